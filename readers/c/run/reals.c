/* DequantizeLinear of a constant, whatever its quantization: the only operator that gives real numbers. */
#include "float32.h"
#include "node.h"

/* An array of codes: a constant, or the scales or offsets of one. */
typedef struct {
    qfb_dtype dtype;
    const uint8_t *data;
    qfb_list shape;
    qfb_quantization q;
} codes_t;

/* The codes that scales or offsets are, if they have a second level; else NULL. */
static const codes_t *second_level(qfb_file *file, const qfb_numbers *numbers, codes_t *codes)
{
    if (!numbers->second_level)
        return NULL;
    codes->dtype = numbers->dtype, codes->data = numbers->array.data, codes->shape = numbers->shape;
    qfb_second_level(file, numbers, &codes->q);
    return codes;
}

/* What a code stands for: f32(f32(d * s) + o), where d is the element of the table, or f32(q - z). */
static f32_t real(const codes_t *codes, uint64_t element, const codes_t *scales, const codes_t *offsets)
{
    const qfb_quantization *q = &codes->q;
    uint64_t block = qfb_block_of(q, &codes->shape, element);
    f32_t s = scales ? real(scales, block, NULL, NULL) : f32_of_double(qfb_number_bits(&q->scale, block)), d, o;
    int64_t code = qfb_stored(codes->data, codes->dtype, element);
    if (q->table.dtype)
        d = f32_of_double(qfb_number_bits(&q->table, (uint64_t)(code - qfb_dtype_of(codes->dtype)->low)));
    else if (!qfb_is_integer_type(codes->dtype))
        d = f32_of_double(qfb_float_bits(codes->data, codes->dtype, element));
    else if (qfb_is_integer_type(q->zero_point.dtype))
        d = f32_of_integer(code - qfb_zero_point(q, block));
    else
        d = f32_sum(f32_of_integer(code), f32_of_double(qfb_number_bits(&q->zero_point, block)) ^ F32_SIGN);
    if (!q->offset.dtype)
        return f32_product(d, s);
    o = offsets ? real(offsets, q->offset.shape.count ? block : 0, NULL, NULL)
                : f32_of_double(qfb_number_bits(&q->offset, block));
    return f32_sum(f32_product(d, s), o);
}

static qfb_code dequantize_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    qfb_tensor tensor;
    if (!x || node->node.inputs.count != 1)
        return INVALID("V41", "the operator has one input");
    TRY(qfb_get_tensor(node->file, node_tensor(node, 0), &tensor));
    if (!tensor.is_constant || !tensor.is_quantized || node->node.rule.size)
        return UNSUPPORTED("DequantizeLinear of what is computed: convert the network with --integer-only");
    TRY(node_work(node, x->count, x->rank + 1, 1, 1));
    return node_give_like(node, 0, x, QFB_FLOAT32);
}

static qfb_code dequantize_run(node_t *node)
{
    value_t *y = node_output(node, 0);
    const codes_t *scales, *offsets;
    codes_t codes, of_scales, of_offsets;
    qfb_tensor tensor;
    uint64_t i;
    TRY(qfb_get_tensor(node->file, node_tensor(node, 0), &tensor));
    codes.dtype = tensor.dtype, codes.data = tensor.array.data, codes.shape = tensor.shape;
    codes.q = tensor.quantization;
    scales = second_level(node->file, &codes.q.scale, &of_scales);
    offsets = second_level(node->file, &codes.q.offset, &of_offsets);
    for (i = 0; i < y->count; i++)
        put(y, i, real(&codes, i, scales, offsets));
    return QFB_OK;
}

const operator_t qfb_real_operators[] = {
    {"DequantizeLinear", 23, dequantize_plan, dequantize_run},
    {NULL, 0, NULL, NULL}};
