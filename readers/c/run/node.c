/* What the operators share: see node.h. */
#include "node.h"

qfb_code node_fail(node_t *node, qfb_code code, const char *rule, const char *what)
{
    return qfb_fail_(node->file, code, rule, "node", node->index, what);
}

/* ---- Operands, attributes ---- */

uint32_t node_tensor(const node_t *node, uint32_t input)
{
    int64_t index = input < node->node.inputs.count ? qfb_integer(&node->node.inputs, input) : -1;
    return index < 0 ? UINT32_MAX : (uint32_t)index;
}

value_t *node_input(const node_t *node, uint32_t input)
{
    uint32_t index = node_tensor(node, input);
    return index == UINT32_MAX ? NULL : &node->plan->values[index];
}

value_t *node_output(const node_t *node, uint32_t output)
{
    return &node->plan->values[qfb_integer(&node->node.outputs, output)];
}

int node_is(const node_t *node, const char *rule) { return qfb_equals(node->node.rule, rule); }

static qfb_code attribute(node_t *node, const char *name, qfb_attribute_type type, qfb_attribute *found)
{
    if (qfb_find_attribute(node->file, &node->node, name, found) || found->type != type)
        return INVALID("V42", "an attribute of the operator is missing or has the wrong type");
    return QFB_OK;
}

qfb_code node_int(node_t *node, const char *name, int64_t *value)
{
    qfb_attribute found;
    TRY(attribute(node, name, QFB_INT, &found));
    if (found.integer < -QFB_RUN_SIZE || found.integer > QFB_RUN_SIZE)
        return UNSUPPORTED("an attribute is too large");
    *value = found.integer;
    return QFB_OK;
}

qfb_code node_truth(node_t *node, const char *name, int64_t *value)
{
    qfb_attribute found;
    TRY(attribute(node, name, QFB_INT, &found));
    if (found.integer < 0 || found.integer > 1)
        return INVALID("V42", "an attribute that is a truth value is neither 0 nor 1");
    *value = found.integer;
    return QFB_OK;
}

qfb_code node_word(node_t *node, const char *name, const char *const *words, int count, int *chosen)
{
    qfb_attribute found;
    TRY(attribute(node, name, QFB_STRING, &found));
    for (*chosen = 0; *chosen < count && !qfb_equals(found.string, words[*chosen]);)
        ++*chosen;
    return QFB_OK;
}

qfb_code node_ints(node_t *node, const char *name, qfb_list *list)
{
    qfb_attribute found;
    TRY(attribute(node, name, QFB_INTS, &found));
    *list = found.list;
    return QFB_OK;
}

qfb_code node_sizes(node_t *node, const char *name, uint32_t count, int64_t least, int64_t *values)
{
    qfb_list list;
    uint32_t i;
    TRY(node_ints(node, name, &list));
    if (list.count != count)
        return INVALID("V43", "an attribute does not have one number for each dimension");
    for (i = 0; i < count; i++) {
        values[i] = qfb_integer(&list, i);
        if (values[i] < least || values[i] > QFB_RUN_SIZE)
            return UNSUPPORTED("a number of an attribute is too small or too large");
    }
    return QFB_OK;
}

qfb_code axis_from_start(node_t *node, int64_t axis, uint32_t rank, uint32_t *found)
{
    if (axis < -(int64_t)rank || axis >= (int64_t)rank)
        return INVALID("V43", "the axis is not a dimension of the tensor");
    *found = (uint32_t)(axis < 0 ? axis + (int64_t)rank : axis);
    return QFB_OK;
}

qfb_code node_axis(node_t *node, const char *name, uint32_t rank, uint32_t *axis)
{
    int64_t value;
    TRY(node_int(node, name, &value));
    return axis_from_start(node, value, rank, axis);
}

qfb_code node_constants(node_t *node, uint32_t input, int64_t *values, uint32_t *count)
{
    const value_t *list = node_input(node, input);
    uint32_t i;
    if (!list || list->in_arena || !list->data || !qfb_is_integer_type(list->dtype))
        return UNSUPPORTED("sizes, axes or indices that are not integer constants");
    if (list->rank != 1 && !(list->rank == 0 && qfb_equals(node->node.operator_name, "Unsqueeze")))
        return INVALID("V43", "sizes, axes or indices that are not a vector");
    if (list->count > QFB_RUN_RANK)
        return UNSUPPORTED("more sizes, axes or indices than dimensions are possible");
    *count = (uint32_t)list->count;
    for (i = 0; i < *count; i++)
        values[i] = qfb_element(list, i);
    return QFB_OK;
}

qfb_code node_integers(node_t *node, uint32_t input, uint32_t bits)
{
    const value_t *value = node_input(node, input);
    if (!value)
        return INVALID("V41", "an input is absent");
    if (!qfb_is_integer_type(value->dtype) || qfb_dtype_of(value->dtype)->bits > bits ||
        (bits <= 32 && value->dtype == QFB_UINT32))
        return UNSUPPORTED("an input is not of integers, or their type is too large");
    return QFB_OK;
}

qfb_code node_affine(node_t *node, const qfb_quantization *q)
{
    const char *what = q->scale.second_level                       ? "scales that are quantized"
                       : q->offset.dtype                           ? "offsets of a quantization"
                       : q->table.dtype                            ? "a table of what codes mean"
                       : q->group_index.dtype                      ? "a group index"
                       : qfb_channel_axis(q) < -1                  ? "block-wise scales"
                       : !qfb_is_integer_type(q->zero_point.dtype) ? "float zero points"
                                                                   : NULL;
    return what ? UNSUPPORTED(what) : QFB_OK;
}

qfb_code node_zero_points(node_t *node, uint32_t tensor, uint32_t axis, zero_points_t *points)
{
    qfb_tensor found;
    int64_t along;
    memset(points, 0, sizeof *points);
    TRY(qfb_get_tensor(node->file, tensor, &found));
    if (!found.is_quantized)
        return QFB_OK;
    TRY(node_affine(node, &found.quantization));
    along = qfb_channel_axis(&found.quantization);
    if (along >= 0 && (along != (int64_t)axis || axis >= node->plan->values[tensor].rank))
        return UNSUPPORTED("a quantization along an axis that the operator does not support");
    points->numbers = found.quantization.zero_point;
    points->zero = points->numbers.count ? qfb_zero_point(&found.quantization, 0) : 0;
    if (points->numbers.count > 1 && (int64_t)points->numbers.count != node->plan->values[tensor].shape[axis])
        return INVALID("V21", "the numbers of zero points and of slices along the axis differ");
    return QFB_OK;
}

qfb_code node_zero_point(node_t *node, uint32_t tensor, int64_t *zero_point)
{
    zero_points_t points;
    TRY(node_zero_points(node, tensor, UINT32_MAX, &points));
    *zero_point = points.zero;
    return QFB_OK;
}

qfb_code node_plain_sums(node_t *node)
{
    const qfb_numbers *zero;
    qfb_tensor sums;
    uint64_t i;
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, 0), &sums));
    zero = &sums.quantization.zero_point;
    if (sums.is_quantized)
        TRY(node_affine(node, &sums.quantization));
    for (i = 0; i < zero->count; i++)
        if (qfb_zero_point(&sums.quantization, i))
            return INVALID("V48", "the sums have a zero point");
    return sums.dtype == QFB_INT32 ? QFB_OK : INVALID("V48", "the sums are not int32");
}

static int same_numbers(const qfb_numbers *a, const qfb_numbers *b)
{
    return a->dtype == b->dtype && qfb_same_list_(&a->shape, &b->shape) &&
           !memcmp(a->array.data, b->array.data, (size_t)a->array.size);
}

static int same_grid(const qfb_quantization *a, const qfb_quantization *b)
{
    return qfb_same_list_(&a->block, &b->block) && same_numbers(&a->scale, &b->scale) &&
           same_numbers(&a->zero_point, &b->zero_point);
}

/* The rule is about the first input: `qfmt run` computes with others through their real numbers. */
static qfb_code other_grid(node_t *node, uint32_t input)
{
    if (input > 0)
        return UNSUPPORTED("an input is quantized differently from the output");
    return INVALID("V45", "input and output of an operator that moves integers are quantized differently");
}

qfb_code node_moves(node_t *node, uint32_t input, uint32_t output)
{
    const value_t *x = node_input(node, input);
    qfb_tensor from, to;
    if (!x || output >= node->node.outputs.count)
        return INVALID("V41", "an input or output is absent");
    if (!qfb_is_integer_type(x->dtype) && x->dtype != QFB_BOOL)
        return UNSUPPORTED("an input is not of integers: convert the network with --integer-only");
    TRY(qfb_get_tensor(node->file, node_tensor(node, input), &from));
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, output), &to));
    if (from.is_quantized != to.is_quantized)
        return other_grid(node, input);
    if (from.is_quantized) {
        TRY(node_affine(node, &from.quantization));
        TRY(node_affine(node, &to.quantization));
    }
    if (from.is_quantized && !same_grid(&from.quantization, &to.quantization))
        return other_grid(node, input);
    return QFB_OK;
}

qfb_code node_range(node_t *node, uint32_t output, int64_t *low, int64_t *high)
{
    qfb_tensor found;
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, output), &found));
    *low = found.is_quantized ? found.quantization.quant_min : qfb_dtype_of(found.dtype)->low;
    *high = found.is_quantized ? found.quantization.quant_max : qfb_dtype_of(found.dtype)->high;
    return QFB_OK;
}

/* ---- Planning ---- */

uint64_t times(uint64_t a, uint64_t b) { return a && b > UINT64_MAX / a ? UINT64_MAX : a * b; }

qfb_code node_give(node_t *node, uint32_t output, uint32_t rank, const int64_t *shape, uint32_t dtype)
{
    qfb_tensor stated;
    value_t *value;
    uint32_t i;
    if (output >= node->node.outputs.count)
        return INVALID("V41", "an output is absent");
    value = node_output(node, output);
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, output), &stated));
    if (stated.dtype != dtype)
        return INVALID("V44", "an output does not have the type of the operator's result");
    if (rank > QFB_RUN_RANK)
        return UNSUPPORTED("more than 8 dimensions");
    if (stated.shape.present && stated.shape.count != rank)
        return INVALID("V43", "an output does not have the rank of the operator's result");
    value->rank = rank, value->count = 1, value->known = 1;
    for (i = 0; i < rank; i++) {
        if (shape[i] < 0 || shape[i] > QFB_RUN_SIZE)
            return INVALID("V43", "the operator cannot be applied to these sizes, or they are too large");
        if (stated.shape.present && qfb_integer(&stated.shape, i) != -1 && qfb_integer(&stated.shape, i) != shape[i])
            return INVALID("V43", "an output does not have the sizes of the operator's result");
        value->shape[i] = shape[i];
        value->count = times(value->count, (uint64_t)shape[i]);
    }
    value->size = times(value->count, value->width);
    return value->size >> 60 ? node_fail(node, QFB_MEMORY, "", "an output is too large") : QFB_OK;
}

qfb_code node_give_like(node_t *node, uint32_t output, const value_t *like, uint32_t dtype)
{
    return node_give(node, output, like->rank, like->shape, dtype);
}

qfb_code node_work(node_t *node, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    qfb_plan *plan = node->plan;
    uint64_t steps = times(times(a, b), times(c, d));
    if (steps > plan->work_limit || plan->work > plan->work_limit - steps)
        return node_fail(node, QFB_WORK, "", "the network takes more steps than allowed");
    plan->work += steps;
    return QFB_OK;
}

qfb_code node_scratch(node_t *node, uint64_t count, uint64_t width)
{
    uint64_t size = times(count, width);
    if (size >> 60)
        return node_fail(node, QFB_MEMORY, "", "needs more memory than can be addressed");
    if (size > node->plan->scratch_size)
        node->plan->scratch_size = size;
    return QFB_OK;
}

void *scratch(const node_t *node) { return node->plan->arena + node->plan->values_end; }

/* ---- Elements ---- */

int64_t qfb_element(const qfb_value_state *value, uint64_t index)
{
    return value->packed ? qfb_stored(value->data, (qfb_dtype)value->dtype, index) : get(value, index);
}

qfb_code put_sum(node_t *node, value_t *value, uint64_t index, int64_t sum)
{
    if (sum < INT32_MIN || sum > INT32_MAX)
        return node_fail(node, QFB_OVERFLOW, "", "a sum exceeds int32");
    put(value, index, sum);
    return QFB_OK;
}

/* ---- Views ---- */

void view_start(view_t *view, uint32_t rank, const int64_t *shape)
{
    int64_t step = 1;
    uint32_t i;
    memset(view, 0, sizeof *view);
    view->rank = rank;
    for (i = rank; i-- > 0;) {
        view->shape[i] = shape[i], view->step[i] = step;
        step = (int64_t)((uint64_t)step * (uint64_t)(shape[i] ? shape[i] : 1));
    }
}

void view_broadcast(view_t *view, const value_t *to, const value_t *from)
{
    int64_t step = 1;
    uint32_t i, k;
    view_start(view, to->rank, to->shape);
    for (i = to->rank, k = from->rank; i-- > 0;) {
        int64_t size = k ? from->shape[--k] : 1;
        view->step[i] = size == 1 ? 0 : step;
        step = (int64_t)((uint64_t)step * (uint64_t)(size ? size : 1));
    }
}

void view_next(view_t *view)
{
    uint32_t i;
    for (i = view->rank; i-- > 0;) {
        view->place += view->step[i];
        if (++view->at[i] < view->shape[i])
            return;
        view->place -= view->step[i] * view->shape[i];
        view->at[i] = 0;
    }
}

qfb_code node_broadcast(node_t *node, uint32_t *rank, int64_t *shape, const value_t *other)
{
    uint32_t i, grown = other->rank > *rank ? other->rank : *rank;
    memmove(shape + (grown - *rank), shape, *rank * sizeof *shape);
    for (i = 0; i < grown - *rank; i++)
        shape[i] = 1;
    *rank = grown;
    for (i = 0; i < other->rank; i++) {
        int64_t size = other->shape[i], *own = &shape[grown - other->rank + i];
        if (*own != size && *own != 1 && size != 1)
            return INVALID("V43", "the sizes of the inputs do not broadcast");
        *own = *own == 1 ? size : *own;
    }
    return QFB_OK;
}

qfb_code copy_view(value_t *y, const value_t *x, view_t *view)
{
    uint64_t i;
    for (i = 0; i < y->count; i++, view_next(view))
        put(y, i, get(x, (uint64_t)view->place));
    return QFB_OK;
}
