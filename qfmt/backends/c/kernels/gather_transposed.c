/* As a convolution gathers its inputs, but for a transposed one: a tap meets an input where the stride divides. */
static void gather_transposed(const struct window *g, const X *restrict x, int32_t position, int32_t channels, X zero,
                              D *restrict row)
{
    const int32_t across = position % g->out[2] + g->pad[2];
    const int32_t down = position / g->out[2] % g->out[1] + g->pad[1];
    const int32_t deep = position / g->out[2] / g->out[1] % g->out[0] + g->pad[0];
    const int32_t image = position / g->out[2] / g->out[1] / g->out[0];
    for (int32_t i = 0; i < g->kernel[0]; i++) {
        for (int32_t j = 0; j < g->kernel[1]; j++) {
            for (int32_t k = 0; k < g->kernel[2]; k++) {
                const int32_t d = deep - i * g->dilation[0], h = down - j * g->dilation[1];
                const int32_t w = across - k * g->dilation[2];
                const int32_t met = d >= 0 && d % g->stride[0] == 0 && d / g->stride[0] < g->in[0]
                                    && h >= 0 && h % g->stride[1] == 0 && h / g->stride[1] < g->in[1]
                                    && w >= 0 && w % g->stride[2] == 0 && w / g->stride[2] < g->in[2];
                if (met) {
                    const int32_t line = (image * g->in[0] + d / g->stride[0]) * g->in[1] + h / g->stride[1];
                    const X *from = x + (line * g->in[2] + w / g->stride[2]) * g->channels;
                    for (int32_t c = 0; c < channels; c++)
                        row[c] = TAKEN;
                } else {
                    for (int32_t c = 0; c < channels; c++)
                        row[c] = PADDING;
                }
                row += channels;
            }
        }
    }
}
