/* sums[c] = sum of (x - zero) under the window at `position`, times common / what the window divides by. */
static void pool_sum(const struct pool *g, const X *restrict x, int32_t position, int32_t zero, int32_t common,
                     int32_t *restrict sums)
{
    const int32_t across = position % g->out[2], down = position / g->out[2] % g->out[1];
    const int32_t deep = position / g->out[2] / g->out[1] % g->out[0];
    const int32_t image = position / g->out[2] / g->out[1] / g->out[0];
    const int32_t times = common / (g->divisor[0][deep] * g->divisor[1][down] * g->divisor[2][across]);
    for (int32_t c = 0; c < g->channels; c++)
        sums[c] = 0;
    for (int32_t i = 0; i < g->taps[0][deep]; i++) {
        const int32_t d = image * g->in[0] + g->first[0][deep] + i * g->dilation[0];
        for (int32_t j = 0; j < g->taps[1][down]; j++) {
            const int32_t h = d * g->in[1] + g->first[1][down] + j * g->dilation[1];
            for (int32_t k = 0; k < g->taps[2][across]; k++) {
                const X *from = x + (h * g->in[2] + g->first[2][across] + k * g->dilation[2]) * g->channels;
                for (int32_t c = 0; c < g->channels; c++)
                    sums[c] += from[c] - zero;
            }
        }
    }
    for (int32_t c = 0; c < g->channels; c++)
        sums[c] *= times;
}
