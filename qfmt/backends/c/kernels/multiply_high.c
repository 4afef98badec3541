/* y = clamp(zero + ((x * multiplier + add) >> (32 + shift))), where the upper half of int64 is all that is shifted */
static void multiply_high(const X *restrict x, Y *restrict y, int32_t n, const int32_t *restrict multiplier,
                          const uint8_t *restrict shift, const int64_t *restrict add, int32_t zero, int32_t low,
                          int32_t high)
{
    low -= zero;
    high -= zero;
    for (int32_t i = 0; i < n; i++) {
        const uint64_t sum = (uint64_t)((int64_t)x[i] * multiplier[AT] + add[AT]);
        int32_t v = (int32_t)(sum >> 32) >> shift[AT];
        v = v < low ? low : v;
        y[i] = (Y)(zero + (v > high ? high : v));
    }
}
