/* y = low + how many of the `levels` ascending thresholds x reaches, from a guess, for `n` listed channels; each has
   a row of thresholds, one after the other. */
static void count_of(const X *restrict x, Y *restrict y, int32_t n, const int32_t *restrict channels,
                     const int32_t *restrict thresholds, int32_t levels, int32_t low)
{
    for (int32_t i = 0; i < n; i++, thresholds += levels) {
        const int32_t sum = x[channels[i]];
        int32_t k = y[channels[i]] - low;
        while (k < levels && thresholds[k] <= sum)
            k++;
        while (k > 0 && thresholds[k - 1] > sum)
            k--;
        y[channels[i]] = (Y)(low + k);
    }
}
