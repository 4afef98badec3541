/* y = clamp(zero + ((x * multiplier + add) >> shift)) */
static void multiply_shift(const X *restrict x, Y *restrict y, int32_t n, const int32_t *restrict multiplier,
                           const uint8_t *restrict shift, const int64_t *restrict add, int32_t zero, int32_t low,
                           int32_t high)
{
    for (int32_t i = 0; i < n; i++) {
        int64_t v = zero + (((int64_t)x[i] * multiplier[AT] + add[AT]) >> shift[AT]);
        v = v < low ? low : v;
        y[i] = (Y)(v > high ? high : v);
    }
}
