/* sums[r][o] = bias[o] + sum of rows[r][k] * weights[o][k], for up to 4 rows of `n` numbers, a multiple of 4.

   Weights lie in blocks of 8 outputs, 4 numbers of each in turn. */
static void dot_lanes(const X *restrict rows, int32_t count, const W *restrict weights, const int32_t *restrict bias,
                      size_t n, int32_t outputs, int32_t *restrict sums, int32_t apart)
{
#if defined(TOGETHER)
    const volatile size_t hidden = n; /* gcc 12 copies all sums in each iteration if it knows that this is not 0 */
    const size_t end = hidden;
    const X *x0 = rows, *x1 = x0 + (count > 1 ? n : 0), *x2 = x1 + (count > 2 ? n : 0), *x3 = x2 + (count > 3 ? n : 0);
    for (int32_t o = 0; o < outputs; o += TOGETHER) {
        const W *w0 = weights + (size_t)(o / 8 * 8) * n + o % 8 * 4, *w1 = w0 + SECOND(n, outputs - o);
        struct lanes s0 = NO_LANES, s1 = NO_LANES, s2 = NO_LANES, s3 = NO_LANES;
        for (size_t k = 0; k < end; k += 4) {
            s0 = multiplied(s0, x0 + k, w0 + 8 * k, w1 + 8 * k);
            s1 = multiplied(s1, x1 + k, w0 + 8 * k, w1 + 8 * k);
            s2 = multiplied(s2, x2 + k, w0 + 8 * k, w1 + 8 * k);
            s3 = multiplied(s3, x3 + k, w0 + 8 * k, w1 + 8 * k);
        }
        store(s0, bias + o, sums + o, outputs - o);
        if (count > 1)
            store(s1, bias + o, sums + apart + o, outputs - o);
        if (count > 2)
            store(s2, bias + o, sums + 2 * apart + o, outputs - o);
        if (count > 3)
            store(s3, bias + o, sums + 3 * apart + o, outputs - o);
    }
#else
    for (int32_t o = 0; o < outputs; o++) {
        const W *w = weights + (size_t)(o / 8 * 8) * n + o % 8 * 4;
        for (int32_t r = 0; r < count; r++) {
            const X *x = rows + (size_t)r * n;
            int32_t sum = bias[o];
            for (size_t k = 0; k < n; k += 4)
                sum += x[k] * w[8 * k] + x[k + 1] * w[8 * k + 1] + x[k + 2] * w[8 * k + 2] + x[k + 3] * w[8 * k + 3];
            sums[r * apart + o] = sum;
        }
    }
#endif
}
