/* See float32.h. */
#include "float32.h"

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
        return shift > 64 ? sign : sign | F32_INFINITY;
    kept = shift == 64 ? 0 : size >> shift, rest = shift == 64 ? size : size << (64 - shift);
    kept += rest > half || (rest == half && kept & 1);
    return sign + ((f32_t)(exponent + shift + 149) << 23) + (f32_t)kept; /* a carry goes into the exponent */
}

f32_t f32_of_integer(int64_t x) { return rounded(x < 0 ? F32_SIGN : 0, x < 0 ? 0 - (uint64_t)x : (uint64_t)x, 0); }

f32_t f32_of_double(uint64_t bits)
{
    f32_t sign = bits >> 63 ? F32_SIGN : 0;
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff)
        return fraction ? NOT_A_NUMBER : sign | F32_INFINITY;
    return rounded(sign, fraction | (uint64_t)(exponent != 0) << 52, (exponent ? exponent : 1) - 1075);
}

static f32_t magnitude(f32_t x) { return x & ~F32_SIGN; }
static uint64_t size_of(f32_t x) { return (x & 0x7fffff) | (uint64_t)(magnitude(x) >> 23 != 0) << 23; }
static int exponent_of(f32_t x) { return (int)(magnitude(x) >> 23 ? magnitude(x) >> 23 : 1) - 150; }

f32_t f32_product(f32_t a, f32_t b)
{
    f32_t sign = (a ^ b) & F32_SIGN, x = magnitude(a), y = magnitude(b);
    if (x > F32_INFINITY || y > F32_INFINITY || (x == F32_INFINITY && !y) || (y == F32_INFINITY && !x))
        return NOT_A_NUMBER;
    if (x == F32_INFINITY || y == F32_INFINITY)
        return sign | F32_INFINITY;
    return rounded(sign, size_of(a) * size_of(b), exponent_of(a) + exponent_of(b));
}

f32_t f32_sum(f32_t a, f32_t b)
{
    const int room = 38; /* bits below those of the larger exponent; what is lost below them leaves a 1 in the last */
    f32_t x = magnitude(a), y = magnitude(b);
    uint64_t large, small;
    int apart;
    if (x < y)
        return f32_sum(b, a);
    if (x >= F32_INFINITY)
        return x > F32_INFINITY || (y == F32_INFINITY && a != b) ? NOT_A_NUMBER : a;
    apart = exponent_of(a) - exponent_of(b), large = size_of(a) << room, small = size_of(b) << room;
    small = apart > 62 ? small != 0 : small >> apart | ((small & ((UINT64_C(1) << apart) - 1)) != 0);
    if ((a ^ b) & F32_SIGN)
        return large == small ? 0 : rounded(a & F32_SIGN, large - small, exponent_of(a) - room);
    return rounded(a & F32_SIGN, large + small, exponent_of(a) - room);
}

f32_t f32_quotient(f32_t a, f32_t b)
{
    uint64_t wide = size_of(a) << 39;
    int exponent = exponent_of(a) - exponent_of(b) - 40; /* the last bit says whether there was a rest */
    return rounded((a ^ b) & F32_SIGN, wide / size_of(b) << 1 | (wide % size_of(b) != 0), exponent);
}

int64_t f32_floor(f32_t x)
{
    int64_t size = (int64_t)size_of(x);
    int exponent = exponent_of(x);
    if (exponent >= 0)
        size *= INT64_C(1) << (exponent < 24 ? exponent : 24);
    else if (exponent < -24)
        return x & F32_SIGN && size ? -1 : 0;
    else
        return x & F32_SIGN ? ~((size - 1) >> -exponent) : size >> -exponent;
    return x & F32_SIGN ? -size : size;
}
