/* The inputs that meet the window at `position`, tap by tap, `channels` of each, HOW; padding is `zero`. */
static void gather(const struct window *g, const X *restrict x, int32_t position, int32_t channels, X zero,
                   D *restrict row)
{
    const int32_t across = position % g->out[2] * g->stride[2] - g->pad[2];
    const int32_t down = position / g->out[2] % g->out[1] * g->stride[1] - g->pad[1];
    const int32_t deep = position / g->out[2] / g->out[1] % g->out[0] * g->stride[0] - g->pad[0];
    const int32_t image = position / g->out[2] / g->out[1] / g->out[0];
    const int32_t whole = g->dilation[2] == 1 && channels == g->channels && across >= 0
                          && across + g->kernel[2] <= g->in[2];
    for (int32_t i = 0; i < g->kernel[0]; i++) {
        const int32_t d = deep + i * g->dilation[0];
        for (int32_t j = 0; j < g->kernel[1]; j++) {
            const int32_t h = down + j * g->dilation[1];
            const int32_t inside = d >= 0 && d < g->in[0] && h >= 0 && h < g->in[1];
            const int32_t line = inside ? ((image * g->in[0] + d) * g->in[1] + h) * g->in[2] : 0;
            const int32_t steps = whole ? 1 : g->kernel[2];
            const int32_t length = whole ? channels * g->kernel[2] : channels;
            for (int32_t k = 0; k < steps; k++) {
                const int32_t w = across + k * g->dilation[2];
                if (inside && w >= 0 && w < g->in[2]) {
                    const X *from = x + (line + w) * g->channels;
                    for (int32_t c = 0; c < length; c++)
                        row[c] = TAKEN;
                } else {
                    for (int32_t c = 0; c < length; c++)
                        row[c] = PADDING;
                }
                row += length;
            }
        }
    }
}
