/* Exact sums of products, as int32: Conv, ConvTranspose, qfmt.Linear, Gemm, MatMul, Mul; rules `exact` and `folded`.
 *
 * Everything is added up in int64. Integers have at most 16 bits here, less a zero point 17, so a product is less than
 * 2^34, and a sum of fewer than 2^28 of them less than 2^62; more are refused. */
#include "window.h"

enum { MOST_TERMS = 1 << 28 };

/* What all of them check: the rule, integers of at most 16 bits, an output of int32 whose zero point is 0. */
static qfb_code check_sums(node_t *node, uint32_t factors)
{
    uint32_t i;
    if (!node_is(node, "exact") && !node_is(node, "folded"))
        return UNSUPPORTED("a rule with floats: convert the network with --integer-only");
    for (i = 0; i < factors; i++)
        TRY(node_integers(node, i, 16));
    return node_plain_sums(node);
}

/* A bias of int32, not quantized: absent, or of `count` elements in one dimension. */
static qfb_code check_bias(node_t *node, uint32_t input, int64_t count)
{
    const value_t *bias = node_input(node, input);
    qfb_tensor tensor;
    if (!bias)
        return QFB_OK;
    TRY(qfb_get_tensor(node->file, node_tensor(node, input), &tensor));
    if (bias->dtype != QFB_INT32 || tensor.is_quantized)
        return INVALID("V59", "a bias is not int32, or is quantized");
    if (count >= 0 && (bias->rank != 1 || bias->shape[0] != count))
        return INVALID("V43", "the numbers of biases and channels differ");
    return QFB_OK;
}

/* The zero points of x (one) and w (along an axis, or one); by `folded` none is subtracted, and that of w is 0. */
static qfb_code factor_points(node_t *node, uint32_t axis, int64_t *zx, zero_points_t *zw)
{
    uint32_t i;
    TRY(node_zero_point(node, node_tensor(node, 0), zx));
    TRY(node_zero_points(node, node_tensor(node, 1), axis, zw));
    if (!node_is(node, "folded"))
        return QFB_OK;
    if (node_input(node, 1)->in_arena || !node_input(node, 1)->data)
        return INVALID("V61", "with the rule `folded`, the weight must be a constant");
    for (i = 0; i < zw->numbers.count; i++)
        if (zero_point_of(zw, i))
            return INVALID("V61", "with the rule `folded`, the zero points of the weight must be 0");
    return QFB_OK;
}

/* ---- Convolutions ---- */

typedef struct {
    window_t window;
    int64_t group, channels, filters, per_group; /* of x, of y, of x in a group */
    int64_t terms;                               /* that are added up for an element of y */
    int64_t zx, padding;
    zero_points_t zw;
    int64_t grown[3], crop; /* ConvTranspose: sizes before pads are cut off */
} conv_t;

static qfb_code conv_read(node_t *node, conv_t *c)
{
    const value_t *x = node_input(node, 0), *w = node_input(node, 1);
    uint32_t i;
    if (x->rank < 3 || w->rank != x->rank)
        return INVALID("V43", "input or weight has the wrong number of dimensions for a convolution");
    TRY(window_read(node, x, &c->window));
    TRY(node_int(node, "group", &c->group));
    for (i = 2; i < w->rank; i++)
        if (w->shape[i] != c->window.kernel[3 - w->rank + i])
            return INVALID("V43", "the weight does not have the stated kernel_shape");
    if (c->group < 1)
        return INVALID("V43", "less than one group");
    if (!x->shape[1])
        return UNSUPPORTED("sums of no terms");
    c->channels = x->shape[1], c->per_group = c->channels / c->group;
    if (times((uint64_t)c->per_group, (uint64_t)c->window.taps) >= MOST_TERMS)
        return UNSUPPORTED("sums of too many terms");
    c->terms = c->per_group * c->window.taps;
    return QFB_OK;
}

static qfb_code conv_setup(node_t *node, conv_t *c)
{
    const value_t *w;
    TRY(check_sums(node, 2));
    TRY(conv_read(node, c));
    TRY(window_positions(node, &c->window, 0));
    TRY(factor_points(node, 0, &c->zx, &c->zw));
    w = node_input(node, 1);
    c->filters = w->shape[0];
    if (w->shape[1] != c->per_group || c->channels % c->group || c->filters % c->group)
        return INVALID("V43", "the channels do not fit the groups of the weight");
    c->padding = 0;
    if (node_is(node, "folded")) /* integers as they are, and zero is the zero point */
        c->padding = c->zx, c->zx = 0;
    return check_bias(node, 2, c->filters);
}

static int64_t padded(const window_t *w, uint32_t i) { return w->in[i] + w->before[i] + w->after[i]; }

static qfb_code conv_plan(node_t *node)
{
    int64_t shape[5];
    uint64_t images, image, row;
    conv_t c;
    TRY(conv_setup(node, &c));
    image = times(times((uint64_t)padded(&c.window, 0), (uint64_t)padded(&c.window, 1)),
                  times((uint64_t)padded(&c.window, 2), (uint64_t)c.channels));
    images = (uint64_t)node_input(node, 0)->shape[0], row = (uint64_t)c.window.outputs;
    TRY(node_work(node, images, image, 1, 1));
    TRY(node_work(node, images, (uint64_t)c.filters, row, (uint64_t)c.terms + 1));
    TRY(node_scratch(node, times(image, 4) + times(row, 8), image >> 58 || row >> 57 ? UINT64_MAX : 1));
    return node_give(node, 0, window_shape(&c.window, node_input(node, 0)->shape[0], c.filters, shape), shape,
                     QFB_INT32);
}

/* An image with its pads, as int32 less the zero point. */
static void load_image(const value_t *x, int64_t image, const conv_t *c, int32_t *to)
{
    const window_t *w = &c->window;
    uint64_t from = (uint64_t)(image * c->channels * w->inputs);
    int64_t channel, d, h, i, width = padded(w, 2), height = padded(w, 1), depth = padded(w, 0);
    for (channel = 0; channel < c->channels; channel++)
        for (d = 0; d < depth; d++)
            for (h = 0; h < height; h++, to += width) {
                int inside = d >= w->before[0] && d < w->before[0] + w->in[0] && h >= w->before[1] &&
                             h < w->before[1] + w->in[1];
                for (i = 0; i < width; i++)
                    to[i] = (int32_t)(inside && i >= w->before[2] && i < w->before[2] + w->in[2]
                                          ? get(x, from++) - c->zx
                                          : c->padding);
            }
}

/* acc += weight times what one tap meets at all positions. Rows that follow one another are one row. */
static void add_tap(int64_t *acc, const int32_t *plane, const window_t *w, int64_t weight, const int64_t *tap)
{
    int64_t width = padded(w, 2), height = padded(w, 1), d, h, i, rows = w->out[1], length = w->out[2];
    int64_t step = w->stride[2];
    if (length == width && step == 1 && rows == height && w->stride[1] == 1)
        length *= rows, rows = 1;
    for (d = 0; d < w->out[0]; d++) {
        const int32_t *slab = plane + (d * w->stride[0] + tap[0] * w->dilation[0]) * height * width;
        for (h = 0; h < rows; h++, acc += length) {
            const int32_t *row = slab + (h * w->stride[1] + tap[1] * w->dilation[1]) * width + tap[2] * w->dilation[2];
            if (step == 1)
                for (i = 0; i < length; i++)
                    acc[i] += weight * row[i];
            else
                for (i = 0; i < length; i++)
                    acc[i] += weight * row[i * step];
        }
    }
}

static void add_filter(int64_t *acc, const int32_t *image, const value_t *weight, const conv_t *c, int64_t filter)
{
    const window_t *w = &c->window;
    int64_t channel, plane = padded(w, 0) * padded(w, 1) * padded(w, 2), tap[3];
    int64_t zero = zero_point_of(&c->zw, (uint32_t)filter);
    int64_t first = filter / (c->filters / c->group) * c->per_group;
    uint64_t at = (uint64_t)(filter * c->per_group * w->taps);
    for (channel = first; channel < first + c->per_group; channel++)
        for (tap[0] = 0; tap[0] < w->kernel[0]; tap[0]++)
            for (tap[1] = 0; tap[1] < w->kernel[1]; tap[1]++)
                for (tap[2] = 0; tap[2] < w->kernel[2]; tap[2]++, at++) {
                    int64_t value = get(weight, at) - zero;
                    if (value)
                        add_tap(acc, image + channel * plane, w, value, tap);
                }
}

static qfb_code conv_run(node_t *node)
{
    const value_t *x = node_input(node, 0), *w = node_input(node, 1), *bias = node_input(node, 2);
    value_t *y = node_output(node, 0);
    int64_t image, filter, i, *acc = (int64_t *)scratch(node);
    uint64_t at = 0;
    int32_t *loaded;
    conv_t c;
    TRY(conv_setup(node, &c));
    loaded = (int32_t *)(acc + c.window.outputs);
    for (image = 0; image < x->shape[0]; image++) {
        load_image(x, image, &c, loaded);
        for (filter = 0; filter < c.filters; filter++) {
            int64_t start = bias ? get(bias, (uint64_t)filter) : 0;
            for (i = 0; i < c.window.outputs; i++)
                acc[i] = start;
            add_filter(acc, loaded, w, &c, filter);
            for (i = 0; i < c.window.outputs; i++)
                TRY(put_sum(node, y, at++, acc[i]));
        }
    }
    return QFB_OK;
}

static qfb_code transposed_setup(node_t *node, conv_t *c)
{
    const value_t *w;
    window_t *window = &c->window;
    int64_t more[3];
    uint32_t i, at;
    TRY(check_sums(node, 2));
    TRY(conv_read(node, c));
    TRY(factor_points(node, 1, &c->zx, &c->zw));
    TRY(node_sizes(node, "output_padding", window->rank, 0, more));
    if (node_is(node, "folded"))
        return UNSUPPORTED("a transposed convolution with the rule `folded`");
    w = node_input(node, 1);
    c->filters = (int64_t)times((uint64_t)w->shape[1], (uint64_t)c->group);
    if (w->shape[0] != c->channels || c->channels % c->group || c->filters > QFB_RUN_SIZE)
        return INVALID("V43", "the channels do not fit the groups of the weight");
    for (i = 0; i < 3; i++)
        c->grown[i] = 1;
    for (i = 0; i < window->rank; i++) {
        at = 3 - window->rank + i;
        c->grown[at] = window->stride[at] * (window->in[at] - 1) + more[i] +
                       window->dilation[at] * (window->kernel[at] - 1) + 1;
        window->out[at] = c->grown[at] - window->before[at] - window->after[at];
        if (window->in[at] < 1 || c->grown[at] > QFB_RUN_SIZE || window->out[at] < 0 ||
            window->before[at] > c->grown[at])
            return UNSUPPORTED("a transposed convolution with invalid or too large sizes");
    }
    window->outputs = window_product(window->out);
    if (window->outputs < 0)
        return UNSUPPORTED("the output is too large");
    return check_bias(node, 2, c->filters);
}

static qfb_code transposed_plan(node_t *node)
{
    int64_t shape[5];
    uint64_t images;
    conv_t c;
    TRY(transposed_setup(node, &c));
    images = (uint64_t)node_input(node, 0)->shape[0];
    TRY(node_work(node, images, (uint64_t)c.filters, (uint64_t)c.terms, (uint64_t)c.window.inputs));
    TRY(node_work(node, images, (uint64_t)c.filters, (uint64_t)c.window.outputs, 2));
    TRY(node_scratch(node, (uint64_t)c.window.outputs, 8));
    return node_give(node, 0, window_shape(&c.window, node_input(node, 0)->shape[0], c.filters, shape), shape,
                     QFB_INT32);
}

/* Where a tap of the input's position lies in the output, along a dimension; negative if it is cut off. */
static int64_t painted(const window_t *w, int i, int64_t position, int64_t tap)
{
    int64_t at = position * w->stride[i] + tap * w->dilation[i] - w->before[i];
    return at < w->out[i] ? at : -1;
}

/* acc += weight times a channel of x, painted where one tap puts it. */
static void paint(int64_t *acc, const value_t *x, uint64_t from, const conv_t *c, int64_t weight, const int64_t *tap)
{
    const window_t *w = &c->window;
    int64_t d, h, i, to[3];
    for (d = 0; d < w->in[0]; d++)
        for (h = 0; h < w->in[1]; h++)
            for (i = 0; i < w->in[2]; i++, from++) {
                to[0] = painted(w, 0, d, tap[0]), to[1] = painted(w, 1, h, tap[1]), to[2] = painted(w, 2, i, tap[2]);
                if (to[0] >= 0 && to[1] >= 0 && to[2] >= 0)
                    acc[(to[0] * w->out[1] + to[1]) * w->out[2] + to[2]] += weight * (get(x, from) - c->zx);
            }
}

static void paint_filter(int64_t *acc, const node_t *node, const conv_t *c, int64_t image, int64_t filter)
{
    const value_t *x = node_input(node, 0), *weight = node_input(node, 1);
    const window_t *w = &c->window;
    int64_t filters = c->filters / c->group, first = filter / filters * c->per_group, channel, tap[3];
    int64_t zero = zero_point_of(&c->zw, (uint32_t)(filter % filters));
    for (channel = first; channel < first + c->per_group; channel++) {
        uint64_t at = (uint64_t)((channel * filters + filter % filters) * w->taps);
        uint64_t from = (uint64_t)((image * c->channels + channel) * w->inputs);
        for (tap[0] = 0; tap[0] < w->kernel[0]; tap[0]++)
            for (tap[1] = 0; tap[1] < w->kernel[1]; tap[1]++)
                for (tap[2] = 0; tap[2] < w->kernel[2]; tap[2]++, at++)
                    paint(acc, x, from, c, get(weight, at) - zero, tap);
    }
}

static qfb_code transposed_run(node_t *node)
{
    const value_t *bias = node_input(node, 2);
    value_t *y = node_output(node, 0);
    int64_t image, filter, i, *acc = (int64_t *)scratch(node);
    uint64_t at = 0;
    conv_t c;
    TRY(transposed_setup(node, &c));
    for (image = 0; image < y->shape[0]; image++)
        for (filter = 0; filter < c.filters; filter++) {
            for (i = 0; i < c.window.outputs; i++)
                acc[i] = bias ? get(bias, (uint64_t)filter) : 0;
            paint_filter(acc, node, &c, image, filter);
            for (i = 0; i < c.window.outputs; i++)
                TRY(put_sum(node, y, at++, acc[i]));
        }
    return QFB_OK;
}

/* ---- Matrix products ---- */

typedef struct {
    int64_t rows, inner, columns;
    int64_t a_row, a_inner, b_inner, b_column; /* steps */
    int64_t za;
    zero_points_t zb; /* by column */
    uint32_t rank;    /* of the leading dimensions of the result, which broadcast */
    int64_t lead[QFB_RUN_RANK];
} product_t;

static qfb_code product_work(node_t *node, const product_t *p)
{
    uint64_t batch = 1, rows = (uint64_t)p->rows, inner = (uint64_t)p->inner, columns = (uint64_t)p->columns;
    uint32_t i;
    for (i = 0; i < p->rank; i++)
        batch = times(batch, (uint64_t)p->lead[i]);
    if (p->inner >= MOST_TERMS)
        return UNSUPPORTED("sums of too many terms");
    TRY(node_work(node, batch, rows, columns, inner + 1));
    TRY(node_work(node, batch, rows, inner, 1));
    TRY(node_work(node, batch, columns, inner, 1));
    return node_scratch(node, times(rows == UINT64_MAX ? rows : rows + 1, inner), 4);
}

/* One product of matrices, from `a` and `b` on, into y from `to` on. C is the bias: of the columns, or of both. */
static qfb_code multiply(node_t *node, const product_t *p, uint64_t a, uint64_t b, uint64_t to, const value_t *bias)
{
    const value_t *left = node_input(node, 0), *right = node_input(node, 1);
    value_t *y = node_output(node, 0);
    int32_t *rows = (int32_t *)scratch(node), *column = rows + p->rows * p->inner;
    int64_t r, c, i, wide = bias && bias->rank ? bias->shape[bias->rank - 1] : 1;
    int64_t step = bias && bias->rank == 2 && bias->shape[0] != 1 ? wide : 0;
    for (r = 0; r < p->rows; r++)
        for (i = 0; i < p->inner; i++)
            rows[r * p->inner + i] = (int32_t)(get(left, a + (uint64_t)(r * p->a_row + i * p->a_inner)) - p->za);
    for (c = 0; c < p->columns; c++) {
        int64_t zero = zero_point_of(&p->zb, (uint32_t)c);
        for (i = 0; i < p->inner; i++)
            column[i] = (int32_t)(get(right, b + (uint64_t)(i * p->b_inner + c * p->b_column)) - zero);
        for (r = 0; r < p->rows; r++) {
            const int32_t *row = rows + r * p->inner;
            int64_t sum = bias ? get(bias, (uint64_t)(r * step + (wide == 1 ? 0 : c))) : 0;
            for (i = 0; i < p->inner; i++)
                sum += (int64_t)row[i] * column[i];
            TRY(put_sum(node, y, to + (uint64_t)(r * p->columns + c), sum));
        }
    }
    return QFB_OK;
}

static qfb_code linear_setup(node_t *node, product_t *p)
{
    const value_t *x, *w;
    memset(p, 0, sizeof *p);
    TRY(check_sums(node, 2));
    TRY(factor_points(node, 0, &p->za, &p->zb));
    x = node_input(node, 0), w = node_input(node, 1);
    if (x->rank < 1 || w->rank != 2 || x->shape[x->rank - 1] != w->shape[1])
        return INVALID("V43", "the weight does not fit the input");
    p->inner = w->shape[1], p->columns = w->shape[0];
    p->rows = p->inner ? (int64_t)(x->count / (uint64_t)p->inner) : 0;
    if (!p->inner)
        return UNSUPPORTED("sums of no terms");
    p->a_row = p->inner, p->a_inner = 1, p->b_inner = 1, p->b_column = p->inner;
    if (node_is(node, "folded"))
        p->za = 0;
    return check_bias(node, 2, p->columns);
}

static qfb_code linear_plan(node_t *node)
{
    int64_t shape[QFB_RUN_RANK];
    const value_t *x;
    product_t p;
    TRY(linear_setup(node, &p));
    TRY(product_work(node, &p));
    x = node_input(node, 0);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = p.columns;
    return node_give(node, 0, x->rank, shape, QFB_INT32);
}

static qfb_code linear_run(node_t *node)
{
    product_t p;
    TRY(linear_setup(node, &p));
    return multiply(node, &p, 0, 0, 0, node_input(node, 2));
}

static qfb_code is_one(node_t *node, const char *name)
{
    qfb_attribute found;
    if (qfb_find_attribute(node->file, &node->node, name, &found) || found.type != QFB_FLOAT)
        return INVALID("V42", "an attribute of the operator is missing or has the wrong type");
    return found.float_bits == UINT64_C(0x3ff0000000000000) ? QFB_OK : INVALID("V60", "alpha or beta is not 1");
}

static qfb_code gemm_setup(node_t *node, product_t *p)
{
    const value_t *a, *b, *c = node_input(node, 2);
    int64_t turned_a, turned_b;
    memset(p, 0, sizeof *p);
    TRY(check_sums(node, 2));
    TRY(is_one(node, "alpha"));
    TRY(is_one(node, "beta"));
    TRY(node_truth(node, "transA", &turned_a));
    TRY(node_truth(node, "transB", &turned_b));
    TRY(factor_points(node, turned_b ? 0 : 1, &p->za, &p->zb));
    a = node_input(node, 0), b = node_input(node, 1);
    if (a->rank != 2 || b->rank != 2)
        return INVALID("V43", "Gemm requires matrices");
    p->rows = a->shape[turned_a ? 1 : 0], p->inner = a->shape[turned_a ? 0 : 1];
    p->columns = b->shape[turned_b ? 0 : 1];
    p->a_row = turned_a ? 1 : a->shape[1], p->a_inner = turned_a ? a->shape[1] : 1;
    p->b_inner = turned_b ? 1 : b->shape[1], p->b_column = turned_b ? b->shape[1] : 1;
    if (b->shape[turned_b ? 1 : 0] != p->inner)
        return INVALID("V43", "the matrices do not fit each other");
    if (node_is(node, "folded"))
        p->za = 0;
    if (c && (c->rank > 2 || (c->rank && c->shape[c->rank - 1] != 1 && c->shape[c->rank - 1] != p->columns) ||
              (c->rank == 2 && c->shape[0] != 1 && c->shape[0] != p->rows)))
        return INVALID("V43", "C does not broadcast to the product");
    return check_bias(node, 2, -1);
}

static qfb_code gemm_plan(node_t *node)
{
    int64_t shape[2];
    product_t p;
    TRY(gemm_setup(node, &p));
    TRY(product_work(node, &p));
    shape[0] = p.rows, shape[1] = p.columns;
    return node_give(node, 0, 2, shape, QFB_INT32);
}

static qfb_code gemm_run(node_t *node)
{
    product_t p;
    TRY(gemm_setup(node, &p));
    return multiply(node, &p, 0, 0, 0, node_input(node, 2));
}

/* NumPy's: the last two dimensions are matrices, the others broadcast; a vector is one row, or one column. */
static qfb_code matmul_setup(node_t *node, product_t *p)
{
    value_t a, b;
    TRY(check_sums(node, 2));
    memset(p, 0, sizeof *p);
    a = *node_input(node, 0), b = *node_input(node, 1);
    if (!a.rank || !b.rank)
        return INVALID("V43", "MatMul does not take scalars");
    TRY(factor_points(node, b.rank == 1 ? UINT32_MAX : b.rank - 1, &p->za, &p->zb));
    p->inner = a.shape[a.rank - 1], p->rows = a.rank > 1 ? a.shape[a.rank - 2] : 1;
    p->columns = b.rank > 1 ? b.shape[b.rank - 1] : 1;
    p->a_row = p->inner, p->a_inner = 1, p->b_inner = p->columns, p->b_column = 1;
    if (b.shape[b.rank > 1 ? b.rank - 2 : 0] != p->inner)
        return INVALID("V43", "the matrices do not fit each other");
    if (node_is(node, "folded"))
        p->za = 0;
    a.rank = a.rank > 2 ? a.rank - 2 : 0, b.rank = b.rank > 2 ? b.rank - 2 : 0;
    TRY(node_broadcast(node, &p->rank, p->lead, &a));
    return node_broadcast(node, &p->rank, p->lead, &b);
}

static qfb_code matmul_plan(node_t *node)
{
    int64_t shape[QFB_RUN_RANK + 2];
    product_t p;
    uint32_t rank;
    TRY(matmul_setup(node, &p));
    TRY(product_work(node, &p));
    rank = p.rank;
    memcpy(shape, p.lead, sizeof p.lead);
    if (node_input(node, 0)->rank > 1)
        shape[rank++] = p.rows;
    if (node_input(node, 1)->rank > 1)
        shape[rank++] = p.columns;
    return node_give(node, 0, rank, shape, QFB_INT32);
}

static qfb_code matmul_run(node_t *node)
{
    value_t lead, a, b;
    view_t left, right;
    uint64_t i, batch, size;
    product_t p;
    TRY(matmul_setup(node, &p));
    memset(&lead, 0, sizeof lead);
    a = *node_input(node, 0), b = *node_input(node, 1);
    a.rank = a.rank > 2 ? a.rank - 2 : 0, b.rank = b.rank > 2 ? b.rank - 2 : 0;
    lead.rank = p.rank, memcpy(lead.shape, p.lead, sizeof p.lead);
    view_broadcast(&left, &lead, &a), view_broadcast(&right, &lead, &b);
    size = (uint64_t)(p.rows * p.columns), batch = node_output(node, 0)->count / size;
    for (i = 0; i < batch; i++, view_next(&left), view_next(&right))
        TRY(multiply(node, &p, (uint64_t)(left.place * p.rows * p.inner),
                     (uint64_t)(right.place * p.inner * p.columns), i * size, NULL));
    return QFB_OK;
}

/* ---- Element by element ---- */

static qfb_code mul_plan(node_t *node)
{
    int64_t shape[QFB_RUN_RANK], zero;
    uint32_t rank = 0;
    TRY(check_sums(node, 2));
    TRY(node_zero_point(node, node_tensor(node, 0), &zero));
    TRY(node_zero_point(node, node_tensor(node, 1), &zero));
    if (node_is(node, "folded"))
        return UNSUPPORTED("Mul with the rule `folded`");
    TRY(node_broadcast(node, &rank, shape, node_input(node, 0)));
    TRY(node_broadcast(node, &rank, shape, node_input(node, 1)));
    TRY(node_give(node, 0, rank, shape, QFB_INT32));
    return node_work(node, node_output(node, 0)->count, 1, 1, 1);
}

static qfb_code mul_run(node_t *node)
{
    const value_t *a = node_input(node, 0), *b = node_input(node, 1);
    value_t *y = node_output(node, 0);
    int64_t za, zb;
    view_t left, right;
    uint64_t i;
    TRY(node_zero_point(node, node_tensor(node, 0), &za));
    TRY(node_zero_point(node, node_tensor(node, 1), &zb));
    view_broadcast(&left, y, a), view_broadcast(&right, y, b);
    for (i = 0; i < y->count; i++, view_next(&left), view_next(&right))
        TRY(put_sum(node, y, i, (get(a, (uint64_t)left.place) - za) * (get(b, (uint64_t)right.place) - zb)));
    return QFB_OK;
}

const operator_t qfb_sum_operators[] = {
    {"Conv", 22, conv_plan, conv_run},       {"ConvTranspose", 22, transposed_plan, transposed_run},
    {"qfmt.Linear", 1, linear_plan, linear_run}, {"Gemm", 13, gemm_plan, gemm_run},
    {"MatMul", 13, matmul_plan, matmul_run}, {"Mul", 14, mul_plan, mul_run},
    {NULL, 0, NULL, NULL}};
