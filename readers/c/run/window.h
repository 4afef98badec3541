/* A window that slides over up to three spatial dimensions: of a convolution, or of a pool. */
#ifndef QFB_WINDOW_H
#define QFB_WINDOW_H

#include "node.h"

/* Along dimensions that are not there everything is 1, and the pads are 0. */
typedef struct {
    uint32_t rank;
    int64_t in[3], kernel[3], stride[3], dilation[3], before[3], after[3], out[3];
    int64_t inputs, taps, outputs; /* products */
} window_t;

/* The product of three sizes; -1 if it is too large. */
int64_t window_product(const int64_t *sizes);

/* From the attributes kernel_shape, strides, dilations and pads, for an input [N, C, *spatial]. `out` is not set. */
qfb_code window_read(node_t *node, const value_t *x, window_t *w);

/* How many positions the window has along each dimension. */
qfb_code window_positions(node_t *node, window_t *w, int ceil_mode);

/* The shape [first, second, *out] of the result, in `shape`; its rank. */
uint32_t window_shape(const window_t *w, int64_t first, int64_t second, int64_t *shape);

#endif
