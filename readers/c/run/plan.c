/* Planning and running a network: which shapes its tensors have, where they lie in the arena, node after node. */
#include "node.h"

static const uint32_t NONE = UINT32_MAX;

/* Values lie in the arena at multiples of 64, from the first of a chain that is sorted by place. */
static uint64_t rounded(uint64_t size) { return (size + 63) / 64 * 64; }

size_t qfb_plan_size(const qfb_file *file)
{
    uint64_t size = times(qfb_tensor_count(file), sizeof(value_t));
    return size > SIZE_MAX ? SIZE_MAX : (size_t)size;
}

static const operator_t *find_operator(const qfb_node *node)
{
    const operator_t *tables[] = {qfb_sum_operators, qfb_grid_operators, qfb_window_operators, qfb_layout_operators,
                                  qfb_selection_operators, qfb_resize_operators, qfb_real_operators};
    const operator_t *found;
    size_t i;
    for (i = 0; i < sizeof tables / sizeof *tables; i++)
        for (found = tables[i]; found->name; found++)
            if (qfb_equals(node->operator_name, found->name) && node->version == found->version)
                return found;
    return NULL;
}

/* ---- What is known before the first node ---- */

static qfb_code set_shape(qfb_file *file, value_t *value, const qfb_tensor *tensor, const int64_t *given,
                          uint32_t index)
{
    uint32_t i;
    if (!tensor->shape.present)
        return qfb_fail_(file, QFB_INPUT, "", "tensor", index, "its number of dimensions is not known");
    if (tensor->shape.count > QFB_RUN_RANK)
        return qfb_fail_(file, QFB_UNSUPPORTED, "", "tensor", index, "more than 8 dimensions");
    value->rank = tensor->shape.count, value->count = 1, value->known = 1;
    for (i = 0; i < value->rank; i++) {
        int64_t size = qfb_integer(&tensor->shape, i);
        if (given && size != -1 && given[i] != size)
            return qfb_fail_(file, QFB_INPUT, "", "tensor", index, "does not have the given size");
        value->shape[i] = given ? given[i] : size == -1 ? 1 : size;
        if (value->shape[i] < 0 || value->shape[i] > QFB_RUN_SIZE)
            return qfb_fail_(file, QFB_UNSUPPORTED, "", "tensor", index, "a size is too large");
        value->count = times(value->count, (uint64_t)value->shape[i]);
    }
    value->size = times(value->count, value->width);
    return value->size >> 60 ? qfb_fail_(file, QFB_MEMORY, "", "tensor", index, "is too large") : QFB_OK;
}

static qfb_code prepare_values(qfb_plan *plan)
{
    qfb_file *file = plan->file;
    uint32_t i;
    for (i = 0; i < qfb_tensor_count(file); i++) {
        value_t *value = &plan->values[i];
        const qfb_dtype_info *info;
        qfb_tensor tensor;
        TRY(qfb_get_tensor(file, i, &tensor));
        info = qfb_dtype_of(tensor.dtype);
        memset(value, 0, sizeof *value);
        value->dtype = (uint8_t)tensor.dtype, value->next = value->last_use = NONE;
        value->width = info->bits < 8 ? 1 : (uint8_t)(info->bits / 8);
        value->packed = tensor.is_constant && info->bits < 8 ? info->bits : 0;
        if (!tensor.is_constant)
            continue;
        value->data = tensor.array.data;
        /* constants that this interpreter cannot hold stay unknown: only a node that reads one is refused */
        if (set_shape(file, value, &tensor, NULL, i))
            value->known = 0, qfb_fail_(file, QFB_OK, "", "file", 0, "");
    }
    return QFB_OK;
}

/* Sizes of inputs that have one name are equal. */
static qfb_code check_names(qfb_plan *plan, uint32_t first, uint32_t second)
{
    qfb_tensor a, b;
    uint32_t i, k;
    TRY(qfb_get_tensor(plan->file, first, &a));
    TRY(qfb_get_tensor(plan->file, second, &b));
    for (i = 0; i < a.dims.count; i++)
        for (k = 0; k < b.dims.count; k++)
            if (qfb_text(&a.dims, i).size && !qfb_compare(qfb_text(&a.dims, i), qfb_text(&b.dims, k)) &&
                plan->values[first].shape[i] != plan->values[second].shape[k])
                return qfb_fail_(plan->file, QFB_INPUT, "", "tensor", first, "sizes with the same name differ");
    return QFB_OK;
}

static qfb_code prepare_inputs(qfb_plan *plan, const int64_t *const *shapes)
{
    qfb_list inputs = qfb_inputs(plan->file);
    uint32_t i, k;
    if (inputs.count > 256)
        return qfb_fail_(plan->file, QFB_UNSUPPORTED, "", "file", 0, "more than 256 inputs");
    for (i = 0; i < inputs.count; i++) {
        uint32_t index = (uint32_t)qfb_integer(&inputs, i);
        qfb_tensor tensor;
        TRY(qfb_get_tensor(plan->file, index, &tensor));
        if (plan->values[index].data || plan->values[index].known)
            return qfb_fail_(
                plan->file, QFB_INVALID, "V30", "tensor", index, "is a constant, or listed twice as an input");
        TRY(set_shape(plan->file, &plan->values[index], &tensor, shapes ? shapes[i] : NULL, index));
        for (k = 0; k <= i; k++)
            TRY(check_names(plan, index, (uint32_t)qfb_integer(&inputs, k)));
    }
    return QFB_OK;
}

/* The node after which each tensor is not needed any more; outputs of the graph are needed to the end. */
static qfb_code find_last_uses(qfb_plan *plan)
{
    qfb_list outputs = qfb_outputs(plan->file);
    qfb_node node;
    uint32_t i, k;
    for (i = 0; i < qfb_node_count(plan->file); i++) {
        TRY(qfb_get_node(plan->file, i, &node));
        for (k = 0; k < node.inputs.count; k++)
            if (qfb_integer(&node.inputs, k) >= 0)
                plan->values[qfb_integer(&node.inputs, k)].last_use = i;
        for (k = 0; k < node.outputs.count; k++)
            plan->values[qfb_integer(&node.outputs, k)].last_use = i;
    }
    for (i = 0; i < outputs.count; i++)
        plan->values[qfb_integer(&outputs, i)].last_use = NONE;
    return QFB_OK;
}

/* ---- Places in the arena ---- */

/* The first place between two values where one more fits. */
static qfb_code place(node_t *node, uint32_t index)
{
    qfb_plan *plan = node->plan;
    value_t *value = &plan->values[index];
    uint32_t *link = &plan->first;
    uint64_t end = 0, size = rounded(value->size);
    for (; *link != NONE && plan->values[*link].offset - end < size; link = &plan->values[*link].next) {
        end = plan->values[*link].offset + rounded(plan->values[*link].size);
        TRY(node_work(node, 1, 1, 1, 1));
    }
    value->offset = end, value->in_arena = 1, value->next = *link, *link = index;
    if (end + size > plan->values_end)
        plan->values_end = end + size;
    return plan->values_end >> 61 ? node_fail(node, QFB_MEMORY, "", "needs more memory than can be addressed") : QFB_OK;
}

/* Take out of the chain what no later node needs. */
static qfb_code release(node_t *node)
{
    qfb_plan *plan = node->plan;
    uint32_t *link = &plan->first;
    while (*link != NONE) {
        value_t *value = &plan->values[*link];
        if (value->last_use <= node->index)
            *link = value->next;
        else
            link = &value->next;
        TRY(node_work(node, 1, 1, 1, 1));
    }
    return QFB_OK;
}

/* ---- Nodes ---- */

static qfb_code check_edges(node_t *node)
{
    uint32_t i, k;
    for (i = 0; i < node->node.inputs.count; i++) {
        const value_t *value = node_input(node, i);
        if (value && !value->known)
            return INVALID("V33", "an input is read before it is computed, or is too large");
    }
    if (!node->node.outputs.count || node->node.outputs.count > 256)
        return UNSUPPORTED("no outputs, or more than 256");
    for (i = 0; i < node->node.outputs.count; i++) {
        if (node_output(node, i)->known || node_output(node, i)->data)
            return INVALID("V32", "an output is an input, a constant or the output of an earlier node");
        for (k = 0; k < i; k++)
            if (node_output(node, i) == node_output(node, k))
                return INVALID("V32", "an output is listed twice");
    }
    return QFB_OK;
}

/* Whether the operator rounds or sums: others move, select or clamp integers, and state no rule (V56). */
static int states_rule(const operator_t *op)
{
    static const char *const names[] = {"qfmt.Requantize", "qfmt.RequantShift", "Conv", "ConvTranspose", "qfmt.Linear",
        "Gemm", "MatMul", "Mul", "AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean"};
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(op->name, names[i]))
            return 1;
    return 0;
}

static qfb_code plan_node(node_t *node)
{
    const operator_t *op = find_operator(&node->node);
    uint32_t i;
    TRY(check_edges(node));
    if (!op)
        return UNSUPPORTED("the operator, or this version of it, is not supported with integers only");
    if (node->node.rule.size && !states_rule(op))
        return UNSUPPORTED("the operator states no rule that is known");
    TRY(op->plan(node));
    for (i = 0; i < node->node.outputs.count; i++) {
        if (!node_output(node, i)->known)
            return INVALID("V41", "more outputs than the operator has");
        TRY(place(node, (uint32_t)qfb_integer(&node->node.outputs, i)));
    }
    return release(node);
}

qfb_code qfb_plan_make(qfb_plan *plan, qfb_file *file, void *memory, size_t size, const int64_t *const *shapes,
                       uint64_t work_limit)
{
    qfb_list outputs = qfb_outputs(file);
    node_t node;
    uint32_t i;
    memset(plan, 0, sizeof *plan);
    memset(&node, 0, sizeof node);
    plan->file = file, plan->values = (value_t *)memory, plan->first = NONE;
    plan->work_limit = work_limit ? work_limit : UINT64_C(1000000000000);
    qfb_fail_(file, QFB_OK, "", "file", 0, "");
    if (size < qfb_plan_size(file) || (uintptr_t)memory % 8)
        return qfb_fail_(file, QFB_MEMORY, "", "file", 0, "the memory for the plan is too small, or not aligned");
    TRY(prepare_values(plan));
    TRY(prepare_inputs(plan, shapes));
    TRY(find_last_uses(plan));
    node.plan = plan, node.file = file;
    for (i = 0; i < qfb_node_count(file); i++) {
        node.index = i;
        TRY(qfb_get_node(file, i, &node.node));
        TRY(plan_node(&node));
    }
    for (i = 0; i < outputs.count; i++) {
        uint64_t index = (uint64_t)qfb_integer(&outputs, i);
        if (!plan->values[index].known)
            return qfb_fail_(file, QFB_INVALID, "V35", "tensor", index, "is not computed");
        if (!qfb_is_integer_type(plan->values[index].dtype) && plan->values[index].dtype != QFB_BOOL &&
            !plan->values[index].in_arena) /* a node computes only integers, but for DequantizeLinear */
            return qfb_fail_(
                file, QFB_UNSUPPORTED, "", "tensor", index, "is an output of real numbers: convert with --integer-only");
    }
    plan->arena_size = plan->values_end + rounded(plan->scratch_size);
    return QFB_OK;
}

/* The integers of an input lie in its range; those of types of less than 8 bits, which take a byte each, in that of
 * their type. */
static qfb_code check_input(qfb_plan *plan, uint32_t index)
{
    const value_t *value = &plan->values[index];
    const qfb_dtype_info *info = qfb_dtype_of(value->dtype);
    int64_t low = info->low, high = info->high;
    qfb_tensor tensor;
    uint64_t i;
    TRY(qfb_get_tensor(plan->file, index, &tensor));
    if (!qfb_is_integer_type(value->dtype) || !(tensor.is_quantized || info->bits < 8))
        return QFB_OK;
    if (tensor.is_quantized)
        low = tensor.quantization.quant_min, high = tensor.quantization.quant_max;
    for (i = 0; i < value->count; i++)
        if (get(value, i) < low || get(value, i) > high)
            return qfb_fail_(plan->file, QFB_INPUT, "", "tensor", index, "an integer of the input is out of its range");
    return QFB_OK;
}

static qfb_code run_node(node_t *node)
{
    const operator_t *op = find_operator(&node->node);
    uint64_t elements = 0;
    uint32_t i;
    for (i = 0; i < node->node.outputs.count; i++) {
        value_t *value = node_output(node, i);
        value->data = node->plan->arena + value->offset;
        elements += value->count != 0;
    }
    return elements ? op->run(node) : QFB_OK;
}

qfb_code qfb_plan_run(qfb_plan *plan, void *arena, uint64_t size, const void *const *inputs)
{
    qfb_list list = qfb_inputs(plan->file);
    node_t node;
    uint32_t i;
    qfb_fail_(plan->file, QFB_OK, "", "file", 0, "");
    if (size < plan->arena_size || (uintptr_t)arena % 8)
        return qfb_fail_(plan->file, QFB_MEMORY, "", "file", 0, "the arena is too small, or not aligned");
    plan->arena = (uint8_t *)arena;
    memset(&node, 0, sizeof node);
    node.plan = plan, node.file = plan->file;
    for (i = 0; i < list.count; i++) {
        uint32_t index = (uint32_t)qfb_integer(&list, i);
        plan->values[index].data = (const uint8_t *)inputs[i];
        TRY(check_input(plan, index));
    }
    for (i = 0; i < qfb_node_count(plan->file); i++) {
        node.index = i;
        TRY(qfb_get_node(plan->file, i, &node.node));
        TRY(run_node(&node));
        if (plan->after)
            plan->after(plan->self, i);
    }
    return QFB_OK;
}

const qfb_value_state *qfb_plan_value(const qfb_plan *plan, uint32_t index) { return &plan->values[index]; }

int qfb_has_digest(const qfb_value_state *value, const uint8_t *digest)
{
    uint32_t bits = qfb_dtype_of(value->dtype)->bits, mask = (1u << bits % 32) - 1;
    qfb_sha256_ hash;
    uint64_t i, k;
    qfb_sha256_begin_(&hash);
    if (bits >= 8)
        qfb_sha256_add_(&hash, value->data, value->count * value->width);
    for (i = 0; bits < 8 && i < value->count; i += 8 / bits) {
        uint8_t byte = 0; /* as a file packs them: the first element in the lowest bits */
        for (k = i; k < value->count && k < i + 8 / bits; k++)
            byte = (uint8_t)(byte | ((uint32_t)get(value, k) & mask) << bits * (k - i));
        qfb_sha256_add_(&hash, &byte, 1);
    }
    return qfb_sha256_begins_(&hash, digest, 16);
}

static qfb_code end_of_graph(const qfb_plan *plan, qfb_list list, uint32_t index, const value_t **value)
{
    if (index >= list.count)
        return qfb_fail_(plan->file, QFB_MISSING, "", "file", 0, "the graph has no such input or output");
    *value = &plan->values[qfb_integer(&list, index)];
    return QFB_OK;
}

qfb_code qfb_plan_input(const qfb_plan *plan, uint32_t index, const qfb_value_state **input)
{
    return end_of_graph(plan, qfb_inputs(plan->file), index, input);
}

qfb_code qfb_plan_output(const qfb_plan *plan, uint32_t index, const qfb_value_state **output)
{
    return end_of_graph(plan, qfb_outputs(plan->file), index, output);
}
