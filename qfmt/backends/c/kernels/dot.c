/* sums[r][o] = bias[o] + sum of rows[r][k] * weights[o][k], for up to 4 rows of `blocks` * UNIT numbers.

   The inner loop is one that compilers turn into instructions for dot products. */
static void dot(const X *restrict rows, int32_t count, const W *restrict weights, const int32_t *restrict bias,
                int32_t blocks, int32_t outputs, int32_t *restrict sums, int32_t apart)
{
    const size_t n = (size_t)blocks * UNIT;
    for (int32_t o = 0; o < outputs; o += 4) {
        const W *w0 = weights + (size_t)o * n, *w1 = w0 + n, *w2 = w1 + n, *w3 = w2 + n;
        if (count == 4) {
            const X *x0 = rows, *x1 = x0 + n, *x2 = x1 + n, *x3 = x2 + n;
            int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
            int32_t c0 = 0, c1 = 0, c2 = 0, c3 = 0, d0 = 0, d1 = 0, d2 = 0, d3 = 0;
            for (size_t k = 0; k < n; k++) {
                a0 += (int32_t)x0[k] * w0[k];
                a1 += (int32_t)x0[k] * w1[k];
                a2 += (int32_t)x0[k] * w2[k];
                a3 += (int32_t)x0[k] * w3[k];
                b0 += (int32_t)x1[k] * w0[k];
                b1 += (int32_t)x1[k] * w1[k];
                b2 += (int32_t)x1[k] * w2[k];
                b3 += (int32_t)x1[k] * w3[k];
                c0 += (int32_t)x2[k] * w0[k];
                c1 += (int32_t)x2[k] * w1[k];
                c2 += (int32_t)x2[k] * w2[k];
                c3 += (int32_t)x2[k] * w3[k];
                d0 += (int32_t)x3[k] * w0[k];
                d1 += (int32_t)x3[k] * w1[k];
                d2 += (int32_t)x3[k] * w2[k];
                d3 += (int32_t)x3[k] * w3[k];
            }
            const int32_t all[4][4] = {{a0, a1, a2, a3}, {b0, b1, b2, b3}, {c0, c1, c2, c3}, {d0, d1, d2, d3}};
            for (int32_t r = 0; r < 4; r++)
                for (int32_t i = 0; i < 4; i++)
                    sums[r * apart + o + i] = bias[o + i] + all[r][i];
        } else {
            for (int32_t r = 0; r < count; r++) {
                const X *x = rows + (size_t)r * n;
                int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
                for (size_t k = 0; k < n; k++) {
                    a0 += (int32_t)x[k] * w0[k];
                    a1 += (int32_t)x[k] * w1[k];
                    a2 += (int32_t)x[k] * w2[k];
                    a3 += (int32_t)x[k] * w3[k];
                }
                sums[r * apart + o] = bias[o] + a0;
                sums[r * apart + o + 1] = bias[o + 1] + a1;
                sums[r * apart + o + 2] = bias[o + 2] + a2;
                sums[r * apart + o + 3] = bias[o + 3] + a3;
            }
        }
    }
}
