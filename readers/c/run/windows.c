/* The largest and the sum of windows: MaxPool, GlobalMaxPool, ReduceMax and ReduceMin; AveragePool, GlobalAveragePool,
 * qfmt.AdaptiveAveragePool and ReduceMean by the rule `exact`, which gives sums.
 *
 * Where windows have different numbers n of elements, a sum is multiplied by L / n, L the least common multiple of all
 * n. L is less than 2^31, and a window has less than 2^31 elements of at most 17 bits: int64 is checked before. */
#include "window.h"

/* ---- Pools ---- */

typedef struct {
    window_t window;
    int64_t images; /* batch times channels */
    int counts_pads, is_bins; /* bins: from floor(i * in / out) to ceil((i + 1) * in / out) */
} pool_t;

static qfb_code pool_read(node_t *node, pool_t *p)
{
    const value_t *x = node_input(node, 0);
    int64_t ceil_mode;
    if (!x || x->rank < 3)
        return INVALID("V43", "a pool needs an input with spatial dimensions");
    TRY(window_read(node, x, &p->window));
    TRY(node_truth(node, "ceil_mode", &ceil_mode));
    TRY(window_positions(node, &p->window, ceil_mode != 0));
    p->images = (int64_t)times((uint64_t)x->shape[0], (uint64_t)x->shape[1]);
    p->counts_pads = p->is_bins = 0;
    return QFB_OK;
}

static qfb_code pool_give(node_t *node, const pool_t *p, uint32_t dtype)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[5];
    uint32_t rank = window_shape(&p->window, x->shape[0], x->shape[1], shape);
    TRY(node_work(node, (uint64_t)p->images, (uint64_t)p->window.outputs, (uint64_t)p->window.taps, 1));
    return node_give(node, 0, rank, shape, dtype);
}

/* The taps along dimension i that meet the input when the window is at a position: from *first to before *end. */
static void taps_inside(const window_t *w, int i, int64_t position, int64_t *first, int64_t *end)
{
    int64_t start = position * w->stride[i] - w->before[i], step = w->dilation[i];
    *first = start < 0 ? (-start + step - 1) / step : 0;
    *end = start < w->in[i] ? (w->in[i] - 1 - start) / step + 1 : 0;
    if (*end > w->kernel[i])
        *end = w->kernel[i];
    if (*end < *first)
        *end = *first;
}

typedef struct {
    int64_t first[3], end[3], start[3];
} meeting_t;

static void meet(const pool_t *p, const int64_t *position, meeting_t *m)
{
    const window_t *w = &p->window;
    int i;
    for (i = 0; i < 3; i++)
        if (p->is_bins) {
            m->first[i] = position[i] * w->in[i] / w->out[i], m->start[i] = 0;
            m->end[i] = ((position[i] + 1) * w->in[i] + w->out[i] - 1) / w->out[i];
        } else {
            taps_inside(w, i, position[i], &m->first[i], &m->end[i]);
            m->start[i] = position[i] * w->stride[i] - w->before[i];
        }
}

/* All positions of the windows, after the image. */
static void over_positions(const pool_t *p, view_t *place)
{
    int64_t shape[4];
    shape[0] = p->images, memcpy(shape + 1, p->window.out, sizeof p->window.out);
    view_start(place, 4, shape);
}

/* The greatest element that a window meets in an image (`least` if it meets none), or their sum less zero points. */
static int64_t over_window(const value_t *x, uint64_t image, const window_t *w, const meeting_t *m, int is_sum,
                           int64_t start, int64_t zero)
{
    int64_t tap[3], result = start;
    for (tap[0] = m->first[0]; tap[0] < m->end[0]; tap[0]++)
        for (tap[1] = m->first[1]; tap[1] < m->end[1]; tap[1]++)
            for (tap[2] = m->first[2]; tap[2] < m->end[2]; tap[2]++) {
                int64_t d = m->start[0] + tap[0] * w->dilation[0], h = m->start[1] + tap[1] * w->dilation[1];
                int64_t at = (d * w->in[1] + h) * w->in[2] + m->start[2] + tap[2] * w->dilation[2];
                int64_t value = get(x, image + (uint64_t)at);
                result = is_sum ? result + value - zero : value > result ? value : result;
            }
    return result;
}

static qfb_code max_plan(node_t *node)
{
    pool_t p;
    TRY(node_moves(node, 0, 0));
    if (node_input(node, 0)->dtype == QFB_UINT64 || node_input(node, 0)->dtype == QFB_BOOL)
        return UNSUPPORTED("MaxPool of uint64 or bool");
    TRY(pool_read(node, &p));
    return pool_give(node, &p, node_input(node, 0)->dtype);
}

static qfb_code max_run(node_t *node)
{
    const value_t *x = node_input(node, 0);
    value_t *y = node_output(node, 0);
    int64_t least = qfb_dtype_of(x->dtype)->low;
    view_t place;
    meeting_t m;
    uint64_t i;
    pool_t p;
    TRY(pool_read(node, &p));
    over_positions(&p, &place);
    for (i = 0; i < y->count; i++, view_next(&place)) {
        meet(&p, place.at + 1, &m);
        put(y, i, over_window(x, (uint64_t)(place.at[0] * p.window.inputs), &p.window, &m, 0, least, 0));
    }
    return QFB_OK;
}

/* ---- Sums ---- */

static qfb_code check_average(node_t *node, int64_t *zero)
{
    if (!node_is(node, "exact"))
        return UNSUPPORTED("a rule with floats: convert the network with --integer-only");
    TRY(node_integers(node, 0, 16));
    TRY(node_plain_sums(node));
    return node_zero_point(node, node_tensor(node, 0), zero);
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* The least common multiple of *l and n, in *l. */
static qfb_code multiply_out(node_t *node, uint64_t *l, uint64_t n)
{
    if (!n)
        return UNSUPPORTED("a window that lies entirely in the padding has no mean");
    *l = times(*l / greatest_divisor(*l, n), n);
    return *l > INT32_MAX ? UNSUPPORTED("windows of sizes whose least common multiple is too large") : QFB_OK;
}

/* How many elements a window divides by: those inside the input, or those inside input and pads. */
static uint64_t divides_by(const pool_t *p, const int64_t *position, const meeting_t *m)
{
    const window_t *w = &p->window;
    uint64_t n = 1;
    int i;
    for (i = 0; i < 3; i++) {
        int64_t size = w->in[i] + w->before[i] + w->after[i], start = position[i] * w->stride[i];
        int64_t taps = start < size ? (size - 1 - start) / w->dilation[i] + 1 : 0;
        n *= (uint64_t)(p->counts_pads ? (taps < w->kernel[i] ? taps : w->kernel[i]) : m->end[i] - m->first[i]);
    }
    return n;
}

static qfb_code adaptive_read(node_t *node, pool_t *p)
{
    const value_t *x = node_input(node, 0);
    window_t *w = &p->window;
    int64_t sizes[3];
    uint64_t images = 1;
    uint32_t rank, i;
    qfb_list list;
    TRY(node_ints(node, "output_size", &list));
    rank = list.count;
    if (rank > 3)
        return UNSUPPORTED("bins over more than three spatial dimensions");
    if (!rank || (x->rank != rank + 1 && x->rank != rank + 2))
        return INVALID("V43", "the output size does not fit the dimensions of the input");
    TRY(node_sizes(node, "output_size", rank, 1, sizes));
    memset(p, 0, sizeof *p);
    for (i = 0; i < 3; i++)
        w->in[i] = w->out[i] = w->dilation[i] = 1;
    for (i = 0; i < rank; i++) {
        w->in[3 - rank + i] = x->shape[x->rank - rank + i], w->out[3 - rank + i] = sizes[i];
        if (x->shape[x->rank - rank + i] < 1)
            return UNSUPPORTED("a bin has no elements");
    }
    for (i = 0; i < x->rank - rank; i++)
        images = times(images, (uint64_t)x->shape[i]);
    w->rank = rank, w->inputs = window_product(w->in), w->outputs = window_product(w->out);
    p->images = (int64_t)(images & INT64_MAX), p->is_bins = 1;
    return w->inputs < 0 || w->outputs < 0 ? UNSUPPORTED("input or output is too large") : QFB_OK;
}

static qfb_code average_read(node_t *node, pool_t *p, int64_t *zero)
{
    int64_t counts_pads;
    TRY(check_average(node, zero));
    if (!qfb_equals(node->node.operator_name, "AveragePool"))
        return adaptive_read(node, p);
    TRY(pool_read(node, p));
    TRY(node_truth(node, "count_include_pad", &counts_pads));
    p->counts_pads = counts_pads != 0;
    if (p->window.taps > INT32_MAX)
        return UNSUPPORTED("a window is too large");
    return QFB_OK;
}

/* The least common multiple of the numbers of elements of all windows, and how many elements they have together. */
static qfb_code common_multiple(node_t *node, const pool_t *p, uint64_t *multiple, uint64_t *all)
{
    meeting_t m;
    view_t place;
    int64_t i;
    *multiple = 1, *all = 0;
    view_start(&place, 3, p->window.out);
    for (i = 0; i < p->window.outputs; i++, view_next(&place)) {
        uint64_t elements;
        meet(p, place.at, &m);
        elements = divides_by(p, place.at, &m);
        if (elements > INT32_MAX)
            return UNSUPPORTED("a bin is too large");
        *all += elements;
        TRY(multiply_out(node, multiple, elements));
    }
    return QFB_OK;
}

static qfb_code average_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t zero, shape[QFB_RUN_RANK];
    uint64_t multiple, all;
    pool_t p;
    TRY(average_read(node, &p, &zero));
    if (!p.is_bins)
        TRY(pool_give(node, &p, QFB_INT32)); /* before the loop over all positions, so that it is short enough */
    TRY(node_work(node, (uint64_t)p.window.outputs, 4, 1, 1));
    TRY(common_multiple(node, &p, &multiple, &all));
    if (!p.is_bins)
        return QFB_OK;
    TRY(node_work(node, all, (uint64_t)p.images, 1, 1));
    memcpy(shape, x->shape, sizeof shape);
    memcpy(shape + x->rank - p.window.rank, p.window.out + 3 - p.window.rank, p.window.rank * sizeof *shape);
    return node_give(node, 0, x->rank, shape, QFB_INT32);
}

static qfb_code average_run(node_t *node)
{
    const value_t *x = node_input(node, 0);
    value_t *y = node_output(node, 0);
    uint64_t multiple, all, i;
    int64_t zero, sum;
    meeting_t m;
    view_t place;
    pool_t p;
    TRY(average_read(node, &p, &zero));
    TRY(common_multiple(node, &p, &multiple, &all));
    over_positions(&p, &place);
    for (i = 0; i < y->count; i++, view_next(&place)) {
        meet(&p, place.at + 1, &m);
        sum = over_window(x, (uint64_t)(place.at[0] * p.window.inputs), &p.window, &m, 1, 0, zero);
        if (sum < INT32_MIN || sum > INT32_MAX)
            return node_fail(node, QFB_OVERFLOW, "", "a sum exceeds int32");
        TRY(put_sum(node, y, i, sum * (int64_t)(multiple / divides_by(&p, place.at + 1, &m))));
    }
    return QFB_OK;
}

/* ---- Over whole dimensions ---- */

/* Which dimensions are reduced, and whether they stay with size 1. */
static qfb_code reduced_axes(node_t *node, int *gone, int *keeps)
{
    const value_t *x = node_input(node, 0);
    int64_t axes[QFB_RUN_RANK], keepdims, noop;
    uint32_t count = 0, i, axis;
    int is_global = memcmp(node->node.operator_name.text, "Reduce", 6) != 0;
    if (is_global && x->rank < 3)
        return INVALID("V43", "a pool needs an input with a batch, channels and a spatial dimension");
    *keeps = 1;
    for (i = 0; i < x->rank; i++)
        gone[i] = is_global && i >= 2;
    if (is_global)
        return QFB_OK;
    TRY(node_truth(node, "keepdims", &keepdims));
    TRY(node_truth(node, "noop_with_empty_axes", &noop));
    *keeps = keepdims != 0;
    if (node_input(node, 1))
        TRY(node_constants(node, 1, axes, &count));
    for (i = 0; i < x->rank; i++)
        gone[i] = !count && !noop;
    for (i = 0; i < count; i++) {
        TRY(axis_from_start(node, axes[i], x->rank, &axis));
        if (gone[axis])
            return INVALID("V43", "an axis is listed twice");
        gone[axis] = 1;
    }
    return QFB_OK;
}

static qfb_code reduce_plan(node_t *node, uint32_t dtype)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK];
    int gone[QFB_RUN_RANK], keeps;
    uint32_t rank = 0, i;
    TRY(reduced_axes(node, gone, &keeps));
    for (i = 0; i < x->rank; i++)
        if (!gone[i] || keeps)
            shape[rank++] = gone[i] ? 1 : x->shape[i];
    TRY(node_give(node, 0, rank, shape, dtype));
    TRY(node_scratch(node, node_output(node, 0)->count, 8));
    return node_work(node, x->count + node_output(node, 0)->count, 2, 1, 1);
}

enum { IS_SUM, IS_GREATEST, IS_LEAST };

/* The sum, less zero points, or the greatest, or the least, of what falls together: in scratch memory. */
static qfb_code reduce(node_t *node, int kind, int64_t start, int64_t zero)
{
    const value_t *x = node_input(node, 0);
    value_t *y = node_output(node, 0);
    int64_t step = 1, *results = (int64_t *)scratch(node);
    int gone[QFB_RUN_RANK], keeps;
    view_t view;
    uint64_t i;
    uint32_t axis;
    TRY(reduced_axes(node, gone, &keeps));
    view_start(&view, x->rank, x->shape);
    for (axis = x->rank; axis-- > 0;) {
        view.step[axis] = gone[axis] ? 0 : step;
        step *= gone[axis] ? 1 : x->shape[axis];
    }
    for (i = 0; i < y->count; i++)
        results[i] = start;
    for (i = 0; i < x->count; i++, view_next(&view)) {
        int64_t *result = &results[view.place], value = get(x, i);
        if (kind == IS_SUM)
            *result += value - zero;
        else if (kind == IS_GREATEST ? value > *result : value < *result)
            *result = value;
    }
    for (i = 0; i < y->count; i++)
        if (kind == IS_SUM)
            TRY(put_sum(node, y, i, results[i]));
        else
            put(y, i, results[i]);
    return QFB_OK;
}

static qfb_code mean_plan(node_t *node)
{
    int64_t zero;
    TRY(check_average(node, &zero));
    return reduce_plan(node, QFB_INT32);
}

static qfb_code mean_run(node_t *node)
{
    int64_t zero;
    TRY(check_average(node, &zero));
    if (!node_input(node, 0)->count && node_output(node, 0)->count)
        return UNSUPPORTED("a mean of no elements");
    return reduce(node, IS_SUM, 0, zero);
}

static qfb_code extreme_plan(node_t *node)
{
    TRY(node_moves(node, 0, 0));
    if (node_input(node, 0)->dtype == QFB_UINT64 || node_input(node, 0)->dtype == QFB_BOOL)
        return UNSUPPORTED("the maximum or minimum of uint64 or bool");
    return reduce_plan(node, node_input(node, 0)->dtype);
}

/* Of no elements: the end of the range of the output. */
static qfb_code extreme(node_t *node, int kind)
{
    const value_t *x = node_input(node, 0);
    int64_t low = qfb_dtype_of(x->dtype)->low, high = qfb_dtype_of(x->dtype)->high;
    if (!x->count)
        TRY(node_range(node, 0, &low, &high));
    return reduce(node, kind, kind == IS_GREATEST ? low : high, 0);
}

static qfb_code greatest_run(node_t *node)
{
    return extreme(node, IS_GREATEST);
}

static qfb_code least_run(node_t *node)
{
    return extreme(node, IS_LEAST);
}

const operator_t qfb_window_operators[] = {
    {"MaxPool", 22, max_plan, max_run},
    {"GlobalMaxPool", 22, extreme_plan, greatest_run},
    {"ReduceMax", 20, extreme_plan, greatest_run},
    {"ReduceMin", 20, extreme_plan, least_run},
    {"AveragePool", 22, average_plan, average_run},
    {"GlobalAveragePool", 22, mean_plan, mean_run},
    {"qfmt.AdaptiveAveragePool", 1, average_plan, average_run},
    {"ReduceMean", 18, mean_plan, mean_run},
    {NULL, 0, NULL, NULL}};
