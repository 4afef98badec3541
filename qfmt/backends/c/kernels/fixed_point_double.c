/* y = clamp(zero + ((x * multiplier + r) >> shift)), r rounding twice: 2^(shift - 1), and 2^30 away from zero. */
static void fixed_point_double(const X *restrict x, Y *restrict y, int32_t n, const int32_t *restrict multiplier,
                               const uint8_t *restrict shift, int32_t zero, int32_t low, int32_t high)
{
    for (int32_t i = 0; i < n; i++) {
        const int64_t sum = x[i];
        const int64_t second = shift[AT] > 31 ? (sum >= 0 ? INT64_C(1) << 30 : -(INT64_C(1) << 30)) : 0;
        const int64_t first = shift[AT] > 0 ? INT64_C(1) << (shift[AT] - 1) : 0;
        int64_t v = zero + ((sum * multiplier[AT] + first + second) >> shift[AT]);
        v = v < low ? low : v;
        y[i] = (Y)(v > high ? high : v);
    }
}
