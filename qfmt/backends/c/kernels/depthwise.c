/* One filter per channel: sums[c] = bias[c] + sum of x[tap][c] * weights[tap][c]; `zeros` is padding. */
static void depthwise(const struct window *g, const X *restrict x, int32_t position, const X *restrict zeros,
                      const W *restrict weights, const int32_t *restrict bias, int32_t *restrict sums)
{
    const int32_t across = position % g->out[2] * g->stride[2] - g->pad[2];
    const int32_t down = position / g->out[2] % g->out[1] * g->stride[1] - g->pad[1];
    const int32_t deep = position / g->out[2] / g->out[1] % g->out[0] * g->stride[0] - g->pad[0];
    const int32_t image = position / g->out[2] / g->out[1] / g->out[0];
    const int32_t n = g->channels;
    const X *taps[TAPS];
    const X **next = taps;
    for (int32_t i = 0; i < g->kernel[0]; i++) {
        const int32_t d = deep + i * g->dilation[0];
        for (int32_t j = 0; j < g->kernel[1]; j++) {
            const int32_t h = down + j * g->dilation[1];
            for (int32_t k = 0; k < g->kernel[2]; k++) {
                const int32_t w = across + k * g->dilation[2];
                const int32_t inside = d >= 0 && d < g->in[0] && h >= 0 && h < g->in[1] && w >= 0 && w < g->in[2];
                *next++ = inside ? x + (((image * g->in[0] + d) * g->in[1] + h) * g->in[2] + w) * n : zeros;
            }
        }
    }
    for (int32_t begin = 0; begin < n; begin += SIDE) {
        const int32_t c = begin < n - SIDE ? begin : n - SIDE; /* the last ones may be computed again */
        int32_t some[SIDE];
        for (int32_t i = 0; i < SIDE; i++)
            some[i] = bias[c + i];
        for (int32_t t = 0; t < TAPS; t += TOGETHER)
            for (int32_t i = 0; i < SIDE; i++)
                some[i] += TERMS;
        for (int32_t i = 0; i < SIDE; i++)
            sums[c + i] = some[i];
    }
}
