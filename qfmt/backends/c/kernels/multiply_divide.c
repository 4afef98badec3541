/* y = clamp(zero + floor((x * multiplier + add) / divisor)) */
static void multiply_divide(const X *restrict x, Y *restrict y, int32_t n, const int64_t *restrict multiplier,
                            const int64_t *restrict add, int64_t divisor, int32_t zero, int32_t low, int32_t high)
{
    for (int32_t i = 0; i < n; i++) {
        const int64_t v = (int64_t)x[i] * multiplier[AT] + add[AT];
        int64_t q = v / divisor - (v % divisor < 0) + zero;
        q = q < low ? low : q;
        y[i] = (Y)(q > high ? high : q);
    }
}
