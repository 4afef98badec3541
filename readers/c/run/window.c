/* Windows: see window.h. */
#include "window.h"

#define FARTHEST (INT64_C(1) << 30) /* the largest number of a window (V43) */

int64_t window_product(const int64_t *sizes)
{
    uint64_t product = times(times((uint64_t)sizes[0], (uint64_t)sizes[1]), (uint64_t)sizes[2]);
    return product > INT64_MAX ? -1 : (int64_t)product;
}

qfb_code window_read(node_t *node, const value_t *x, window_t *w)
{
    uint32_t rank = x->rank - 2, i, at;
    int64_t kernel[3], stride[3], dilation[3], pads[6];
    if (x->rank < 3 || rank > 3)
        return UNSUPPORTED("a window over none, or more than three, spatial dimensions");
    TRY(node_sizes(node, "kernel_shape", rank, 1, kernel));
    TRY(node_sizes(node, "strides", rank, 1, stride));
    TRY(node_sizes(node, "dilations", rank, 1, dilation));
    TRY(node_sizes(node, "pads", 2 * rank, 0, pads));
    for (i = 0; i < 3; i++) {
        w->in[i] = w->kernel[i] = w->stride[i] = w->dilation[i] = w->out[i] = 1;
        w->before[i] = w->after[i] = 0;
    }
    w->rank = rank;
    for (i = 0; i < rank; i++) {
        at = 3 - rank + i;
        w->in[at] = x->shape[2 + i], w->kernel[at] = kernel[i], w->stride[at] = stride[i];
        w->dilation[at] = dilation[i], w->before[at] = pads[i], w->after[at] = pads[rank + i];
        if (stride[i] > FARTHEST || dilation[i] > FARTHEST || dilation[i] * (kernel[i] - 1) >= FARTHEST ||
            pads[i] + pads[rank + i] > FARTHEST)
            return INVALID("V43", "a number, the extent or the padding of a window is above 2^30");
        if (w->in[at] + pads[i] + pads[rank + i] > QFB_RUN_SIZE)
            return UNSUPPORTED("a window, or an input with its pads, is too large");
    }
    w->inputs = window_product(w->in), w->taps = window_product(w->kernel);
    if (w->inputs < 0 || w->taps < 0)
        return UNSUPPORTED("a window or an input is too large");
    return QFB_OK;
}

qfb_code window_positions(node_t *node, window_t *w, int ceil_mode)
{
    uint32_t i;
    for (i = 0; i < 3; i++) {
        int64_t room = w->in[i] + w->before[i] + w->after[i] - (w->dilation[i] * (w->kernel[i] - 1) + 1);
        if (ceil_mode) { /* division truncates, which rounds a negative quotient up */
            w->out[i] = (room > 0 ? (room - 1) / w->stride[i] + 1 : room / w->stride[i]) + 1;
            if ((w->out[i] - 1) * w->stride[i] >= w->in[i] + w->before[i])
                w->out[i]--;
        } else {
            w->out[i] = room < 0 ? 0 : room / w->stride[i] + 1;
        }
        if (w->out[i] < 1)
            return INVALID("V43", "a window does not fit into the input with its pads");
    }
    w->outputs = window_product(w->out);
    return w->outputs < 0 ? UNSUPPORTED("the output is too large") : QFB_OK;
}

uint32_t window_shape(const window_t *w, int64_t first, int64_t second, int64_t *shape)
{
    uint32_t i;
    shape[0] = first, shape[1] = second;
    for (i = 0; i < w->rank; i++)
        shape[2 + i] = w->out[3 - w->rank + i];
    return w->rank + 2;
}
