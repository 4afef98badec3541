/* y = low + how many of the `levels` ascending thresholds x reaches, found from what y is already, a good guess. */
static void count(const X *restrict x, Y *restrict y, int32_t n, const int32_t *restrict thresholds, int32_t levels,
                  int32_t low)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t k = y[i] - low;
        while (k < levels && thresholds[k] <= x[i])
            k++;
        while (k > 0 && thresholds[k - 1] > x[i])
            k--;
        y[i] = (Y)(low + k);
    }
}
