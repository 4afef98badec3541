/* Parts of tensors, tensors joined, where the greatest is: Concat, Split, Slice, Pad, Gather, ArgMax, ArgMin. */
#include "node.h"
#include "float32.h"

/* ---- Concat ---- */

static qfb_code concat_plan(node_t *node)
{
    const value_t *first = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK];
    uint32_t axis, i, k;
    if (node->node.rule.size)
        return UNSUPPORTED("a rule with floats: convert the network with --integer-only");
    TRY(node_moves(node, 0, 0));
    TRY(node_axis(node, "axis", first->rank, &axis));
    memcpy(shape, first->shape, sizeof shape);
    for (i = 1; i < node->node.inputs.count; i++) {
        const value_t *x = node_input(node, i);
        TRY(node_moves(node, i, 0));
        if (x->rank != first->rank || x->dtype != first->dtype)
            return INVALID("V43", "inputs of different rank or type cannot be joined");
        for (k = 0; k < x->rank; k++)
            if (k != axis && x->shape[k] != first->shape[k])
                return INVALID("V43", "inputs of different sizes cannot be joined");
        shape[axis] += x->shape[axis];
        if (shape[axis] > QFB_RUN_SIZE)
            return UNSUPPORTED("the output is too large");
    }
    TRY(node_give(node, 0, first->rank, shape, first->dtype));
    return node_work(node, node_output(node, 0)->count + 1, 1, 1, 1);
}

static qfb_code concat_run(node_t *node)
{
    value_t *y = node_output(node, 0);
    uint64_t inner = 1, outer, k, place = 0;
    uint32_t axis, i;
    TRY(node_axis(node, "axis", y->rank, &axis));
    for (i = axis + 1; i < y->rank; i++)
        inner *= (uint64_t)y->shape[i];
    for (i = 0; i < node->node.inputs.count; i++) {
        const value_t *x = node_input(node, i);
        uint64_t length = (uint64_t)x->shape[axis] * inner, row = (uint64_t)y->shape[axis] * inner;
        for (outer = 0; outer < y->count / row; outer++)
            for (k = 0; k < length; k++)
                put(y, outer * row + place + k, get(x, outer * length + k));
        place += length;
    }
    return QFB_OK;
}

/* ---- Split ---- */

/* The size along the axis of the part at an index. */
static qfb_code split_sizes(node_t *node, uint32_t *axis, int64_t *sizes, uint32_t *count)
{
    const value_t *x = node_input(node, 0);
    int64_t parts, part, left;
    uint32_t i;
    TRY(node_axis(node, "axis", x->rank, axis));
    left = x->shape[*axis];
    if (node_input(node, 1)) {
        TRY(node_constants(node, 1, sizes, count));
        for (i = 0; i < *count; i++) {
            if (sizes[i] < 0 || sizes[i] > left)
                return INVALID("V43", "the parts do not add up to the size of the axis");
            left -= sizes[i];
        }
        return left ? INVALID("V43", "the parts do not add up to the size of the axis") : QFB_OK;
    }
    TRY(node_int(node, "num_outputs", &parts));
    if (parts < 1 || parts > QFB_RUN_RANK)
        return UNSUPPORTED("less than one part, or more than 8");
    *count = (uint32_t)parts, part = (left + parts - 1) / parts;
    for (i = 0; i < *count; i++) {
        sizes[i] = left < part ? left : part;
        left -= sizes[i];
    }
    return QFB_OK;
}

static qfb_code split_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK], sizes[QFB_RUN_RANK];
    uint32_t axis, count, i;
    TRY(node_moves(node, 0, 0));
    TRY(split_sizes(node, &axis, sizes, &count));
    if (count != node->node.outputs.count)
        return INVALID("V43", "the numbers of outputs and parts differ");
    memcpy(shape, x->shape, sizeof shape);
    for (i = 0; i < count; i++) {
        TRY(node_moves(node, 0, i));
        shape[axis] = sizes[i];
        TRY(node_give(node, i, x->rank, shape, x->dtype));
    }
    return node_work(node, x->count, 1, 1, 1);
}

static qfb_code split_run(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t sizes[QFB_RUN_RANK], start = 0;
    uint32_t axis, count, i, k;
    TRY(split_sizes(node, &axis, sizes, &count));
    for (i = 0; i < count; i++) {
        value_t *y = node_output(node, i);
        view_t view, plain;
        view_start(&plain, x->rank, x->shape);
        view_start(&view, y->rank, y->shape);
        for (k = 0; k < x->rank; k++)
            view.step[k] = plain.step[k];
        view.place = start * plain.step[axis];
        TRY(copy_view(y, x, &view));
        start += sizes[i];
    }
    return QFB_OK;
}

/* ---- Slice ---- */

/* A constant vector that may be absent. */
static qfb_code optional_constants(node_t *node, uint32_t input, int64_t *values, uint32_t count, int64_t absent)
{
    uint32_t i, found;
    for (i = 0; i < count; i++)
        values[i] = absent;
    if (!node_input(node, input))
        return QFB_OK;
    TRY(node_constants(node, input, values, &found));
    return found == count ? QFB_OK : INVALID("V43", "the numbers of starts, ends, axes and steps differ");
}

/* An index from the end is negative; one that is then outside becomes the least or the greatest. */
static int64_t bound(int64_t index, int64_t size, int64_t low, int64_t high)
{
    index = index < -size ? -size - 1 : index;
    return clamp(index < 0 ? index + size : index, low, high);
}

/* The view of the input that the slices are, and its shape. */
static qfb_code slice_view(node_t *node, view_t *view)
{
    const value_t *x = node_input(node, 0);
    int64_t starts[QFB_RUN_RANK], ends[QFB_RUN_RANK], axes[QFB_RUN_RANK], steps[QFB_RUN_RANK];
    int sliced[QFB_RUN_RANK] = {0};
    uint32_t count, i, axis;
    view_t plain;
    TRY(node_constants(node, 1, starts, &count));
    TRY(optional_constants(node, 2, ends, count, 0));
    TRY(optional_constants(node, 3, axes, count, 0));
    TRY(optional_constants(node, 4, steps, count, 1));
    if (!node_input(node, 2))
        return INVALID("V41", "an input is absent");
    view_start(&plain, x->rank, x->shape);
    view_start(view, x->rank, x->shape);
    for (i = 0; i < count; i++) {
        int64_t step = clamp(steps[i], -QFB_RUN_SIZE, QFB_RUN_SIZE), start, end, last, length;
        TRY(axis_from_start(node, node_input(node, 3) ? axes[i] : (int64_t)i, x->rank, &axis));
        if (!step || sliced[axis])
            return INVALID("V43", "a slice with a step of 0, or two slices of one axis");
        sliced[axis] = 1;
        last = x->shape[axis] - (step < 0);
        start = bound(starts[i], x->shape[axis], 0, last), end = bound(ends[i], x->shape[axis], step < 0 ? -1 : 0, last);
        length = step > 0 ? (end - start + step - 1) / step : (start - end - step - 1) / -step;
        view->shape[axis] = (step > 0 ? end > start : start > end && last >= 0) ? length : 0;
        view->step[axis] = plain.step[axis] * step;
        view->place += start * plain.step[axis];
    }
    return QFB_OK;
}

static qfb_code slice_plan(node_t *node)
{
    view_t view;
    TRY(node_moves(node, 0, 0));
    TRY(slice_view(node, &view));
    TRY(node_give(node, 0, view.rank, view.shape, node_input(node, 0)->dtype));
    return node_work(node, node_output(node, 0)->count, 1, 1, 1);
}

static qfb_code slice_run(node_t *node)
{
    view_t view;
    TRY(slice_view(node, &view));
    return copy_view(node_output(node, 0), node_input(node, 0), &view);
}

/* ---- Pad ---- */

enum { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };

typedef struct {
    int64_t before[QFB_RUN_RANK], after[QFB_RUN_RANK], fill;
    int mode;
} pad_t;

/* Whether an integer is the same after it was dequantized and quantized in float32: two roundings move one below 2^22
 * by less than a half. */
static int is_kept(const qfb_quantization *q, int64_t integer)
{
    int64_t centred = integer - qfb_zero_point(q, 0), limit = INT64_C(1) << 22;
    f32_t real = f32_product(f32_of_integer(centred), f32_of_double(qfb_number_bits(&q->scale, 0)));
    return centred > -limit && centred < limit && (real & ~F32_SIGN) < F32_INFINITY;
}

/* What is added: zero, or an integer on the output's grid, clamped. Real numbers but zero would need floats. */
static qfb_code pad_fill(node_t *node, int64_t *fill)
{
    const value_t *value = node_input(node, 2);
    int64_t low, high;
    qfb_tensor tensor;
    uint64_t i;
    TRY(node_zero_point(node, (uint32_t)qfb_integer(&node->node.outputs, 0), fill));
    TRY(node_range(node, 0, &low, &high));
    *fill = clamp(*fill, low, high);
    if (!value)
        return QFB_OK;
    TRY(qfb_get_tensor(node->file, node_tensor(node, 2), &tensor));
    if (!tensor.is_constant || value->count != 1)
        return UNSUPPORTED("a fill value that is not constant");
    if (qfb_is_integer_type(value->dtype) && (tensor.is_quantized || value->dtype == node_input(node, 0)->dtype)) {
        TRY(node_moves(node, 2, 0));
        if (tensor.is_quantized && !is_kept(&tensor.quantization, qfb_element(value, 0)))
            return UNSUPPORTED("a fill value whose real number is not exact in float32");
        *fill = clamp(qfb_element(value, 0), low, high);
        return QFB_OK;
    }
    for (i = 0; i < tensor.array.size; i++)
        if (tensor.array.data[i] && !(i + 1 == tensor.array.size && tensor.array.data[i] == 0x80))
            return UNSUPPORTED("a fill value that is a real number other than 0: convert with --integer-only");
    return QFB_OK;
}

static qfb_code pad_read(node_t *node, pad_t *p)
{
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    const value_t *x = node_input(node, 0), *pads = node_input(node, 1), *chosen = node_input(node, 3);
    int64_t axes[QFB_RUN_RANK];
    uint32_t count = x->rank, i, axis;
    memset(p, 0, sizeof *p);
    TRY(node_word(node, "mode", modes, 4, &p->mode));
    if (p->mode == 4)
        return INVALID("V42", "an unknown mode");
    for (i = 0; i < x->rank; i++)
        axes[i] = i;
    if (chosen)
        TRY(node_constants(node, 3, axes, &count));
    if (!pads || pads->in_arena || !pads->data || !qfb_is_integer_type(pads->dtype) || pads->rank != 1 ||
        pads->count != 2 * (uint64_t)count)
        return UNSUPPORTED("pads that are not constant, or not two for each axis");
    for (i = 0; i < count; i++) {
        TRY(axis_from_start(node, axes[i], x->rank, &axis));
        p->before[axis] = qfb_element(pads, i), p->after[axis] = qfb_element(pads, count + i);
        if (p->before[axis] < -QFB_RUN_SIZE || p->before[axis] > QFB_RUN_SIZE || p->after[axis] < -QFB_RUN_SIZE ||
            p->after[axis] > QFB_RUN_SIZE)
            return UNSUPPORTED("pads that are too large");
        if (!x->shape[axis] && p->mode != PAD_CONSTANT)
            return UNSUPPORTED("the edge of an empty dimension");
    }
    return p->mode == PAD_CONSTANT ? pad_fill(node, &p->fill) : QFB_OK;
}

static qfb_code pad_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK];
    uint32_t i;
    pad_t p;
    TRY(node_moves(node, 0, 0));
    TRY(pad_read(node, &p));
    for (i = 0; i < x->rank; i++)
        shape[i] = x->shape[i] + p.before[i] + p.after[i];
    TRY(node_give(node, 0, x->rank, shape, x->dtype));
    return node_work(node, node_output(node, 0)->count, 2, 1, 1);
}

/* The place in the input of one in the output, along a dimension of `size`; -1 for one that is filled. */
static int64_t padded_from(int64_t at, int64_t size, int mode)
{
    int64_t period = size > 1 ? 2 * (size - 1) : 1;
    if (at >= 0 && at < size)
        return at;
    switch (mode) {
    case PAD_EDGE: return at < 0 ? 0 : size - 1;
    case PAD_WRAP: return (at % size + size) % size;
    case PAD_REFLECT:
        at = (at % period + period) % period;
        return at < size ? at : period - at;
    default: return -1;
    }
}

static qfb_code pad_run(node_t *node)
{
    const value_t *x = node_input(node, 0);
    value_t *y = node_output(node, 0);
    view_t view;
    uint64_t i;
    uint32_t k;
    pad_t p;
    TRY(pad_read(node, &p));
    view_start(&view, y->rank, y->shape);
    for (i = 0; i < y->count; i++, view_next(&view)) {
        int64_t place = 0, at = 0;
        for (k = 0; k < x->rank && at >= 0; k++) {
            at = padded_from(view.at[k] - p.before[k], x->shape[k], p.mode);
            place = place * x->shape[k] + at;
        }
        put(y, i, at < 0 ? p.fill : get(x, (uint64_t)place));
    }
    return QFB_OK;
}

/* ---- Gather ---- */

static qfb_code gather_plan(node_t *node)
{
    const value_t *x = node_input(node, 0), *indices;
    int64_t shape[2 * QFB_RUN_RANK];
    uint32_t axis, rank, i;
    TRY(node_moves(node, 0, 0));
    TRY(node_integers(node, 1, 64));
    indices = node_input(node, 1);
    TRY(node_axis(node, "axis", x->rank, &axis));
    rank = x->rank + indices->rank - 1;
    if (rank > QFB_RUN_RANK)
        return UNSUPPORTED("more than 8 dimensions");
    for (i = 0; i < rank; i++)
        shape[i] = i < axis ? x->shape[i]
                   : i < axis + indices->rank ? indices->shape[i - axis] : x->shape[i - indices->rank + 1];
    TRY(node_give(node, 0, rank, shape, x->dtype));
    return node_work(node, node_output(node, 0)->count, 1, 1, 1);
}

static qfb_code gather_run(node_t *node)
{
    const value_t *x = node_input(node, 0), *indices = node_input(node, 1);
    value_t *y = node_output(node, 0);
    uint64_t inner = 1, i;
    int64_t size, index;
    uint32_t axis, k;
    TRY(node_axis(node, "axis", x->rank, &axis));
    for (k = axis + 1; k < x->rank; k++)
        inner *= (uint64_t)x->shape[k];
    size = x->shape[axis];
    for (i = 0; i < y->count; i++) {
        uint64_t chosen = i / inner % indices->count, outer = i / inner / indices->count;
        index = get(indices, chosen);
        if (index < -size || index >= size)
            return node_fail(node, QFB_INPUT, "", "an index is outside the dimension");
        put(y, i, get(x, (outer * (uint64_t)size + (uint64_t)(index < 0 ? index + size : index)) * inner + i % inner));
    }
    return QFB_OK;
}

/* ---- ArgMax, ArgMin ---- */

static qfb_code position_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK], keeps, last, zero;
    uint32_t axis, rank = 0, i;
    qfb_tensor tensor;
    TRY(node_integers(node, 0, 32));
    TRY(qfb_get_tensor(node->file, node_tensor(node, 0), &tensor));
    if (tensor.is_quantized && x->width > 2)
        return UNSUPPORTED("integers of more than 16 bits as real numbers: float32 cannot represent all of them");
    TRY(node_zero_point(node, node_tensor(node, 0), &zero)); /* one scale for all: the integers have the same order */
    if (tensor.is_quantized && f32_of_double(qfb_number_bits(&tensor.quantization.scale, 0)) >> 23 > 127 + 110)
        return UNSUPPORTED("a scale of 2^111 or more: real numbers may be infinite, which are all equal");
    TRY(node_axis(node, "axis", x->rank, &axis));
    TRY(node_truth(node, "keepdims", &keeps));
    TRY(node_truth(node, "select_last_index", &last));
    if (!x->shape[axis])
        return INVALID("V43", "the axis has no elements");
    for (i = 0; i < x->rank; i++)
        if (i != axis || keeps)
            shape[rank++] = i == axis ? 1 : x->shape[i];
    TRY(node_give(node, 0, rank, shape, QFB_INT64));
    return node_work(node, x->count, 1, 1, 1);
}

static qfb_code position_run(node_t *node)
{
    const value_t *x = node_input(node, 0);
    value_t *y = node_output(node, 0);
    int is_max = qfb_equals(node->node.operator_name, "ArgMax");
    uint64_t inner = 1, i, k, length;
    int64_t last;
    uint32_t axis, d;
    TRY(node_axis(node, "axis", x->rank, &axis));
    TRY(node_truth(node, "select_last_index", &last));
    length = (uint64_t)x->shape[axis];
    for (d = axis + 1; d < x->rank; d++)
        inner *= (uint64_t)x->shape[d];
    for (i = 0; i < y->count; i++) {
        uint64_t start = i / inner * length * inner + i % inner, best = 0;
        for (k = 1; k < length; k++) {
            int64_t value = get(x, start + k * inner), most = get(x, start + best * inner);
            if ((is_max ? value > most : value < most) || (last && value == most))
                best = k;
        }
        put(y, i, (int64_t)best);
    }
    return QFB_OK;
}

const operator_t qfb_selection_operators[] = {
    {"ArgMax", 13, position_plan, position_run}, {"ArgMin", 13, position_plan, position_run},
    {"Concat", 13, concat_plan, concat_run}, {"Split", 18, split_plan, split_run},
    {"Slice", 13, slice_plan, slice_run},    {"Pad", 23, pad_plan, pad_run},
    {"Gather", 13, gather_plan, gather_run}, {NULL, 0, NULL, NULL}};
