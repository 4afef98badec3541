/* Integers to other integers: qfmt.Requantize, qfmt.RequantShift, qfmt.Table, qfmt.PairTable, qfmt.WeightedSum. */
#include "node.h"

/* x >> shift, rounded down, for x of both signs. */
static int64_t shift_right(int64_t x, int64_t shift) { return x >= 0 ? x >> shift : ~(~x >> shift); }

/* ---- qfmt.Requantize ---- */

typedef struct {
    const value_t *x, *multiplier, *shift, *add, *thresholds, *row; /* NULL if absent */
    int64_t axis, zero, low, high;
    uint64_t channels, inner; /* x is [outer, channels, inner] */
    int single, doubled;      /* fixed_point_single or power_of_two; fixed_point_double */
} requantize_t;

/* A constant without quantization, of that type, with elements inside [low, high]; of one or `channels` elements. */
static qfb_code check_parameter(node_t *node, uint32_t input, int needed, qfb_dtype dtype, int64_t low, int64_t high,
                                uint64_t channels)
{
    const value_t *value = node_input(node, input);
    qfb_tensor tensor;
    uint64_t i;
    if (!value || !needed)
        return value || needed ? INVALID("V65", "the parameters are not those of the rule") : QFB_OK;
    TRY(qfb_get_tensor(node->file, node_tensor(node, input), &tensor));
    if (!tensor.is_constant || tensor.is_quantized || value->dtype != dtype || value->rank != 1)
        return INVALID("V63", "a parameter is not a constant vector of the right type");
    if (!value->count || (value->count != 1 && value->count != channels))
        return INVALID("V63", "a parameter has neither one element nor one per channel");
    TRY(node_work(node, value->count, 1, 1, 1));
    for (i = 0; i < value->count; i++)
        if (get(value, i) < low || get(value, i) > high)
            return INVALID("V64", "a parameter has an invalid value");
    return QFB_OK;
}

static qfb_code check_thresholds(node_t *node, const requantize_t *r, int may_lack_rows)
{
    const value_t *t = r->thresholds;
    qfb_tensor tensor;
    uint64_t i, k, steps;
    if (!t)
        return r->row ? INVALID("V65", "rows without thresholds") : QFB_OK;
    TRY(qfb_get_tensor(node->file, node_tensor(node, 4), &tensor));
    if (!tensor.is_constant || tensor.is_quantized || t->dtype != QFB_INT32 || t->rank != 2 || !t->shape[0])
        return INVALID("V63", "thresholds are not a constant matrix of int32");
    steps = (uint64_t)t->shape[1];
    if (t->shape[1] != r->high - r->low)
        return INVALID("V63", "the numbers of thresholds and steps differ");
    if (!r->row && !may_lack_rows)
        return INVALID("V65", "thresholds without rows");
    if (!r->row && t->shape[0] != 1 && (uint64_t)t->shape[0] != r->channels)
        return INVALID("V63", "there is neither one row of thresholds nor one per channel");
    TRY(node_work(node, t->count, 1, 1, 1));
    for (i = 0; i < (uint64_t)t->shape[0]; i++)
        for (k = 1; k < steps; k++)
            if (get(t, i * steps + k) < get(t, i * steps + k - 1))
                return INVALID("V64", "thresholds are not ascending");
    return QFB_OK;
}

/* Which parameters each rule has: multiplier, shift, add; 2 marks those that it may have: thresholds and rows. */
static qfb_code requantize_rule(node_t *node, requantize_t *r, int *has)
{
    static const struct {
        const char *rule;
        int has[4], single, doubled;
    } rules[] = {{"multiply_shift", {1, 1, 1, 2}, 0, 0},
                 {"fixed_point_single", {1, 1, 0, 2}, 1, 0},
                 {"fixed_point_double", {1, 1, 0, 2}, 1, 1},
                 {"power_of_two", {0, 1, 0, 2}, 1, 0},
                 {"thresholds", {0, 0, 0, 1}, 0, 0}};
    size_t i;
    for (i = 0; i < sizeof rules / sizeof *rules; i++)
        if (node_is(node, rules[i].rule)) {
            memcpy(has, rules[i].has, sizeof rules[i].has);
            r->single = rules[i].single, r->doubled = rules[i].doubled;
            return QFB_OK;
        }
    return INVALID("V47", "qfmt.Requantize does not have this rule");
}

static qfb_code requantize_read(node_t *node, requantize_t *r)
{
    uint32_t i;
    memset(r, 0, sizeof *r);
    r->x = node_input(node, 0), r->multiplier = node_input(node, 1), r->shift = node_input(node, 2);
    r->add = node_input(node, 3), r->thresholds = node_input(node, 4), r->row = node_input(node, 5);
    TRY(node_int(node, "axis", &r->axis));
    TRY(node_zero_point(node, (uint32_t)qfb_integer(&node->node.outputs, 0), &r->zero));
    TRY(node_range(node, 0, &r->low, &r->high));
    r->channels = r->inner = 1;
    if (r->axis >= 0 && r->axis < (int64_t)r->x->rank) {
        r->channels = (uint64_t)r->x->shape[r->axis];
        for (i = (uint32_t)r->axis + 1; i < r->x->rank; i++)
            r->inner = times(r->inner, (uint64_t)r->x->shape[i]);
    }
    if (r->axis < 0 || r->axis >= (r->x->rank ? (int64_t)r->x->rank : 1))
        return INVALID("V63", "the axis is not a dimension");
    return QFB_OK;
}

static qfb_code requantize_plan(node_t *node)
{
    const int64_t add = (INT64_C(1) << 62) - 1;
    qfb_tensor output;
    requantize_t r;
    int64_t rows;
    int has[4] = {0, 0, 0, 0};
    TRY(node_integers(node, 0, 32));
    TRY(requantize_read(node, &r));
    TRY(requantize_rule(node, &r, has));
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, 0), &output));
    if (!output.is_quantized || !qfb_is_integer_type(output.dtype) || output.dtype == QFB_UINT32)
        return INVALID("V66", "the output is not quantized, or not in integers of int32");
    rows = r.thresholds && r.thresholds->rank ? r.thresholds->shape[0] : 0;
    TRY(check_parameter(node, 1, has[0], QFB_INT32, 1, INT32_MAX, r.channels));
    TRY(check_parameter(node, 2, has[1], QFB_UINT8, 0, 62, r.channels));
    TRY(check_parameter(node, 3, has[2], QFB_INT64, -add, add, r.channels));
    TRY(check_parameter(node, 5, has[3] && r.row, QFB_INT32, has[3] == 1 ? 0 : -1, rows - 1, r.channels));
    if (has[3] != 2 && (has[3] == 1) != (r.thresholds != NULL))
        return INVALID("V65", "the parameters are not those of the rule");
    TRY(check_thresholds(node, &r, has[3] == 1));
    TRY(node_work(node, r.x->count, r.thresholds ? 40 : 4, 1, 1));
    return node_give_like(node, 0, r.x, output.dtype);
}

/* How many thresholds of a row x reaches: they ascend. */
static int64_t count_reached(const value_t *thresholds, int64_t row, int64_t x)
{
    int64_t low = 0, high = thresholds->shape[1], steps = high;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (x >= get(thresholds, (uint64_t)(row * steps + middle)))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The parameter of a channel, or of all; `absent` if there is none. */
static int64_t of_channel(const value_t *parameter, uint64_t channel, int64_t absent)
{
    return parameter ? get(parameter, parameter->count > 1 ? channel : 0) : absent;
}

static int64_t requantized(const requantize_t *r, uint64_t channel, int64_t x)
{
    int64_t m, shift, add, row = of_channel(r->row, channel, -1);
    if (!r->row && r->thresholds)
        row = r->thresholds->shape[0] > 1 ? (int64_t)channel : 0;
    if (row >= 0)
        return r->low + count_reached(r->thresholds, row, x);
    m = of_channel(r->multiplier, channel, 1), shift = of_channel(r->shift, channel, 0);
    add = of_channel(r->add, channel, 0);
    if (r->single && shift)
        add = INT64_C(1) << (shift - 1);
    if (r->doubled && shift > 31)
        add += x >= 0 ? INT64_C(1) << 30 : -(INT64_C(1) << 30);
    return clamp(r->zero + shift_right(x * m + add, shift), r->low, r->high);
}

static qfb_code requantize_run(node_t *node)
{
    value_t *y = node_output(node, 0);
    requantize_t r;
    uint64_t i = 0, k, channel = 0;
    int has[4];
    TRY(requantize_read(node, &r));
    TRY(requantize_rule(node, &r, has));
    while (i < y->count) {
        for (k = 0; k < r.inner; k++, i++)
            put(y, i, requantized(&r, channel, get(r.x, i)));
        channel = channel + 1 == r.channels ? 0 : channel + 1;
    }
    return QFB_OK;
}

/* ---- qfmt.RequantShift: zy + floor(((q - zx) * mul + add) / div + 1/2) ---- */

static uint64_t size_of(int64_t x) { return x < 0 ? (uint64_t)0 - (uint64_t)x : (uint64_t)x; }

static uint64_t largest(const value_t *value, int64_t zero)
{
    uint64_t most = 0, i;
    for (i = 0; i < value->count; i++) {
        uint64_t size = size_of(get(value, i) - zero);
        most = size > most ? size : most;
    }
    return most;
}

static qfb_code divisor(node_t *node, int64_t *div)
{
    qfb_attribute found;
    if (qfb_find_attribute(node->file, &node->node, "div", &found) || found.type != QFB_INT)
        return INVALID("V42", "div is missing");
    *div = found.integer;
    return *div < 1 ? INVALID("V64", "div is less than 1") : QFB_OK;
}

static qfb_code requant_shift_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK], div, zero;
    uint32_t rank, i;
    qfb_tensor output;
    TRY(node_integers(node, 0, 32));
    TRY(node_zero_point(node, node_tensor(node, 0), &zero));
    TRY(node_zero_point(node, (uint32_t)qfb_integer(&node->node.outputs, 0), &zero));
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, 0), &output));
    if (!node_is(node, "multiply_add_divide") || !output.is_quantized || !qfb_is_integer_type(output.dtype))
        return UNSUPPORTED("qfmt.RequantShift with another rule, or without a quantized output");
    rank = x->rank, memcpy(shape, x->shape, sizeof shape);
    for (i = 1; i < 3; i++) {
        TRY(node_integers(node, i, 64));
        if (node_input(node, i)->dtype == QFB_UINT64)
            return UNSUPPORTED("factors of type uint64");
        TRY(node_broadcast(node, &rank, shape, node_input(node, i)));
    }
    if (rank != x->rank || memcmp(shape, x->shape, rank * sizeof *shape))
        return INVALID("V43", "mul or add does not fit the input");
    TRY(divisor(node, &div));
    TRY(node_work(node, x->count + node_input(node, 1)->count + node_input(node, 2)->count, 4, 1, 1));
    return node_give_like(node, 0, x, output.dtype);
}

static qfb_code requant_shift_run(node_t *node)
{
    const value_t *x = node_input(node, 0), *mul = node_input(node, 1), *add = node_input(node, 2);
    value_t *y = node_output(node, 0);
    int64_t zx, zy, div, low, high;
    view_t m, a;
    uint64_t i, most;
    TRY(node_zero_point(node, node_tensor(node, 0), &zx));
    TRY(node_zero_point(node, (uint32_t)qfb_integer(&node->node.outputs, 0), &zy));
    TRY(node_range(node, 0, &low, &high));
    TRY(divisor(node, &div));
    most = times(largest(x, zx), largest(mul, 0));
    if (most >> 62 || largest(add, 0) >> 62 || (uint64_t)div >> 62 || (most + largest(add, 0) + (uint64_t)div) >> 62)
        return node_fail(node, QFB_OVERFLOW, "", "x * mul + add exceeds int64");
    view_broadcast(&m, y, mul), view_broadcast(&a, y, add);
    for (i = 0; i < y->count; i++, view_next(&m), view_next(&a)) {
        int64_t wide = (get(x, i) - zx) * get(mul, (uint64_t)m.place) + get(add, (uint64_t)a.place) + div / 2;
        put(y, i, clamp(zy + wide / div - (wide % div < 0), low, high));
    }
    return QFB_OK;
}

/* ---- Tables ---- */

/* The place of an integer in a table: q less the smallest of its type. */
static uint64_t table_index(const value_t *x, uint64_t index)
{
    const qfb_dtype_info *info = qfb_dtype_of(x->dtype);
    return (uint64_t)(get(x, index) - info->low) & ((UINT64_C(1) << info->bits) - 1);
}

/* The last input, a table for operands of one or two types, with values in the range of the output. */
static qfb_code check_table(node_t *node, uint32_t operands, uint32_t leading)
{
    const value_t *table = node_input(node, operands);
    qfb_tensor tensor, output;
    uint32_t i;
    uint64_t k;
    for (i = 0; i < operands; i++)
        TRY(node_integers(node, i, 8));
    TRY(node_integers(node, operands, 64));
    TRY(qfb_get_tensor(node->file, node_tensor(node, operands), &tensor));
    TRY(qfb_get_tensor(node->file, (uint32_t)qfb_integer(&node->node.outputs, 0), &output));
    if (!tensor.is_constant || tensor.is_quantized || table->rank != leading + operands || tensor.dtype != output.dtype)
        return INVALID("V63", "the table is not a constant of the output's type, or has the wrong dimensions");
    for (i = 0; i < operands; i++)
        if (table->shape[leading + i] != INT64_C(1) << qfb_dtype_of(node_input(node, i)->dtype)->bits)
            return INVALID("V63", "a table does not have one element for each integer");
    TRY(node_work(node, table->count, 1, 1, 1));
    for (k = 0; output.is_quantized && k < table->count; k++)
        if (qfb_element(table, k) < output.quantization.quant_min ||
            qfb_element(table, k) > output.quantization.quant_max)
            return INVALID("V64", "a table has values outside the range of the output");
    return QFB_OK;
}

static qfb_code table_axis(node_t *node, int *rows, uint32_t *axis)
{
    int64_t stated;
    TRY(node_int(node, "axis", &stated));
    *rows = stated != -1, *axis = 0;
    return *rows ? axis_from_start(node, stated, node_input(node, 0)->rank, axis) : QFB_OK;
}

static qfb_code table_plan(node_t *node)
{
    const value_t *x = node_input(node, 0), *table = node_input(node, 1);
    uint32_t axis;
    int rows;
    TRY(node_integers(node, 0, 8));
    TRY(table_axis(node, &rows, &axis));
    TRY(check_table(node, 1, rows ? 1 : 0));
    if (rows && table->shape[0] != x->shape[axis])
        return INVALID("V43", "the numbers of channels and of rows of the table differ");
    TRY(node_work(node, x->count, 1, 1, 1));
    return node_give_like(node, 0, x, table->dtype);
}

static qfb_code table_run(node_t *node)
{
    const value_t *x = node_input(node, 0), *table = node_input(node, 1);
    value_t *y = node_output(node, 0);
    uint64_t i, inner = 1, size = UINT64_C(1) << qfb_dtype_of(x->dtype)->bits;
    uint32_t axis, k;
    int rows;
    TRY(table_axis(node, &rows, &axis));
    for (k = axis + 1; k < x->rank; k++)
        inner *= (uint64_t)x->shape[k];
    for (i = 0; i < y->count; i++)
        put(y, i, qfb_element(table, (rows ? i / inner % (uint64_t)x->shape[axis] * size : 0) + table_index(x, i)));
    return QFB_OK;
}

static qfb_code pair_plan(node_t *node)
{
    int64_t shape[QFB_RUN_RANK];
    uint32_t rank = 0;
    TRY(check_table(node, 2, 0));
    TRY(node_broadcast(node, &rank, shape, node_input(node, 0)));
    TRY(node_broadcast(node, &rank, shape, node_input(node, 1)));
    TRY(node_give(node, 0, rank, shape, node_input(node, 2)->dtype));
    return node_work(node, node_output(node, 0)->count, 1, 1, 1);
}

static qfb_code pair_run(node_t *node)
{
    const value_t *a = node_input(node, 0), *b = node_input(node, 1), *table = node_input(node, 2);
    value_t *y = node_output(node, 0);
    uint64_t i, columns = (uint64_t)table->shape[1];
    view_t left, right;
    view_broadcast(&left, y, a), view_broadcast(&right, y, b);
    for (i = 0; i < y->count; i++, view_next(&left), view_next(&right))
        put(y, i, qfb_element(table, table_index(a, (uint64_t)left.place) * columns +
                                         table_index(b, (uint64_t)right.place)));
    return QFB_OK;
}

/* ---- qfmt.WeightedSum ---- */

static qfb_code weighted_plan(node_t *node)
{
    int64_t shape[QFB_RUN_RANK];
    uint64_t reach = 0, size;
    uint32_t rank = 0, i;
    const qfb_dtype_info *info;
    qfb_list weights;
    TRY(node_ints(node, "weights", &weights));
    if (!weights.count || weights.count != node->node.inputs.count)
        return INVALID("V67", "the numbers of weights and inputs differ");
    for (i = 0; i < weights.count; i++) {
        TRY(node_integers(node, i, 32));
        TRY(node_broadcast(node, &rank, shape, node_input(node, i)));
        info = qfb_dtype_of(node_input(node, i)->dtype);
        size = times(size_of(qfb_integer(&weights, i)), (uint64_t)info->high + 1);
        if (size >> 63 || (reach += size) >> 63)
            return INVALID("V67", "a sum could exceed int64");
    }
    TRY(node_give(node, 0, rank, shape, QFB_INT32));
    TRY(node_scratch(node, node_output(node, 0)->count, 8));
    return node_work(node, node_output(node, 0)->count, weights.count + 1, 1, 1);
}

static qfb_code weighted_run(node_t *node)
{
    value_t *y = node_output(node, 0);
    int64_t *sums = (int64_t *)scratch(node);
    qfb_list weights;
    uint32_t input;
    uint64_t i;
    TRY(node_ints(node, "weights", &weights));
    memset(sums, 0, (size_t)y->count * sizeof *sums);
    for (input = 0; input < weights.count; input++) {
        const value_t *x = node_input(node, input);
        int64_t weight = qfb_integer(&weights, input);
        view_t view;
        view_broadcast(&view, y, x);
        for (i = 0; i < y->count; i++, view_next(&view))
            sums[i] += weight * get(x, (uint64_t)view.place);
    }
    for (i = 0; i < y->count; i++)
        TRY(put_sum(node, y, i, sums[i]));
    return QFB_OK;
}

const operator_t qfb_grid_operators[] = {
    {"qfmt.Requantize", 1, requantize_plan, requantize_run},
    {"qfmt.RequantShift", 1, requant_shift_plan, requant_shift_run},
    {"qfmt.Table", 1, table_plan, table_run},
    {"qfmt.PairTable", 1, pair_plan, pair_run},
    {"qfmt.WeightedSum", 1, weighted_plan, weighted_run},
    {NULL, 0, NULL, NULL}};
