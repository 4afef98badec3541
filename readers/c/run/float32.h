/* float32 by integers (IEEE 754, ties to even), so that results are the same on every machine, also on those without
 * floats: the bits of one number. Every NaN is the same one. */
#ifndef QFB_FLOAT32_H
#define QFB_FLOAT32_H

#include <stdint.h>

#include "names.h"

typedef uint32_t f32_t;

#define F32_SIGN UINT32_C(0x80000000)
#define F32_HALF UINT32_C(0x3f000000)
#define F32_ONE UINT32_C(0x3f800000)
#define F32_INFINITY UINT32_C(0x7f800000)

f32_t f32_of_integer(int64_t x);
f32_t f32_of_double(uint64_t bits); /* the bits of a double */
f32_t f32_product(f32_t a, f32_t b);
f32_t f32_sum(f32_t a, f32_t b);
f32_t f32_quotient(f32_t a, f32_t b); /* finite numbers, b is not 0 */
int64_t f32_floor(f32_t x);           /* of numbers up to 2^47 */

#endif
