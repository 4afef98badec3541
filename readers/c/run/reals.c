/* DequantizeLinear of a constant, whatever its quantization: the only real numbers here. float32 is computed by
 * integers (IEEE 754, ties to even), so that the result is the same on every machine, also on those without floats. */
#include "node.h"

/* A float32 as its bits. Every NaN is the same one. */
typedef uint32_t f32_t;

#define SIGN UINT32_C(0x80000000)
#define INFINITE UINT32_C(0x7f800000)
#define NOT_A_NUMBER UINT32_C(0x7fc00000)

/* The float32 nearest to size * 2^exponent. */
static f32_t rounded(f32_t sign, uint64_t size, int exponent)
{
    uint64_t kept, rest, half = UINT64_C(1) << 63;
    int shift = 40; /* of 64 bits 24 are kept, fewer if the result is subnormal: a multiple of 2^-149 */
    if (!size)
        return sign;
    for (; !(size & half); exponent--)
        size <<= 1;
    if (exponent + shift < -149)
        shift = -149 - exponent;
    if (exponent + shift > 127 - 23 || shift > 64)
        return shift > 64 ? sign : sign | INFINITE;
    kept = shift == 64 ? 0 : size >> shift, rest = shift == 64 ? size : size << (64 - shift);
    kept += rest > half || (rest == half && kept & 1);
    return sign + ((f32_t)(exponent + shift + 149) << 23) + (f32_t)kept; /* a carry goes into the exponent */
}

static f32_t of_integer(int64_t x) { return rounded(x < 0 ? SIGN : 0, x < 0 ? 0 - (uint64_t)x : (uint64_t)x, 0); }

static f32_t of_double(uint64_t bits)
{
    f32_t sign = bits >> 63 ? SIGN : 0;
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff)
        return fraction ? NOT_A_NUMBER : sign | INFINITE;
    return rounded(sign, fraction | (uint64_t)(exponent != 0) << 52, (exponent ? exponent : 1) - 1075);
}

static f32_t magnitude(f32_t x) { return x & ~SIGN; }
static uint64_t size_of(f32_t x) { return (x & 0x7fffff) | (uint64_t)(magnitude(x) >> 23 != 0) << 23; }
static int exponent_of(f32_t x) { return (int)(magnitude(x) >> 23 ? magnitude(x) >> 23 : 1) - 150; }

static f32_t product(f32_t a, f32_t b)
{
    f32_t sign = (a ^ b) & SIGN, x = magnitude(a), y = magnitude(b);
    if (x > INFINITE || y > INFINITE || (x == INFINITE && !y) || (y == INFINITE && !x))
        return NOT_A_NUMBER;
    if (x == INFINITE || y == INFINITE)
        return sign | INFINITE;
    return rounded(sign, size_of(a) * size_of(b), exponent_of(a) + exponent_of(b));
}

static f32_t sum(f32_t a, f32_t b)
{
    const int room = 38; /* bits below those of the larger exponent; what is lost below them leaves a 1 in the last */
    f32_t x = magnitude(a), y = magnitude(b);
    uint64_t large, small;
    int apart;
    if (x < y)
        return sum(b, a);
    if (x >= INFINITE)
        return x > INFINITE || (y == INFINITE && a != b) ? NOT_A_NUMBER : a;
    apart = exponent_of(a) - exponent_of(b), large = size_of(a) << room, small = size_of(b) << room;
    small = apart > 62 ? small != 0 : small >> apart | ((small & ((UINT64_C(1) << apart) - 1)) != 0);
    if ((a ^ b) & SIGN)
        return large == small ? 0 : rounded(a & SIGN, large - small, exponent_of(a) - room);
    return rounded(a & SIGN, large + small, exponent_of(a) - room);
}

/* ---- Quantized numbers ---- */

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
    f32_t s = scales ? real(scales, block, NULL, NULL) : of_double(qfb_number_bits(&q->scale, block)), d, o;
    int64_t code = qfb_stored(codes->data, codes->dtype, element);
    if (q->table.dtype)
        d = of_double(qfb_number_bits(&q->table, (uint64_t)(code - qfb_dtype_of(codes->dtype)->low)));
    else if (!qfb_is_integer_type(codes->dtype))
        d = of_double(qfb_float_bits(codes->data, codes->dtype, element));
    else if (qfb_is_integer_type(q->zero_point.dtype))
        d = of_integer(code - qfb_zero_point(q, block));
    else
        d = sum(of_integer(code), of_double(qfb_number_bits(&q->zero_point, block)) ^ SIGN);
    if (!q->offset.dtype)
        return product(d, s);
    o = offsets ? real(offsets, q->offset.shape.count ? block : 0, NULL, NULL)
                : of_double(qfb_number_bits(&q->offset, block));
    return sum(product(d, s), o);
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
    codes.dtype = tensor.dtype, codes.data = tensor.array.data, codes.shape = tensor.shape, codes.q = tensor.quantization;
    scales = second_level(node->file, &codes.q.scale, &of_scales);
    offsets = second_level(node->file, &codes.q.offset, &of_offsets);
    for (i = 0; i < y->count; i++)
        put(y, i, real(&codes, i, scales, offsets));
    return QFB_OK;
}

const operator_t qfb_real_operators[] = {{"DequantizeLinear", 23, dequantize_plan, dequantize_run}, {NULL, 0, NULL, NULL}};
