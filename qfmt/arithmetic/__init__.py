"""The implementation of every rounding rule, with the formulas of docs/spec/running.md and integer-only.md.

`f32` rounds to float32, `rint` rounds half to even, `clamp` limits to [quant_min, quant_max] of the result. `s` and
`z` are scale and zero point. `fma`, a fused multiply-add, rounds once.
"""

from .dynamic import (
    DYNAMIC,
    LEAST_SCALE,
    LOOKUP,
    SMALLEST_SCALE,
    SYMMETRIC_LEAST_SCALE,
    Dynamic,
    dequantize_sums,
    quantize_dynamically,
)
from .quantizing import EXACT_IN_FLOAT32, QUANTIZE, any_numbers, clamp, dequantize, f32, fma, named, quantize
from .sums import FIXED_POINT, MEAN, REQUANTIZE, requantize, rescale, whole_bias

__all__ = [
    "DYNAMIC",
    "Dynamic",
    "EXACT_IN_FLOAT32",
    "FIXED_POINT",
    "LEAST_SCALE",
    "LOOKUP",
    "MEAN",
    "QUANTIZE",
    "REQUANTIZE",
    "SMALLEST_SCALE",
    "SYMMETRIC_LEAST_SCALE",
    "any_numbers",
    "clamp",
    "dequantize",
    "dequantize_sums",
    "f32",
    "fma",
    "named",
    "quantize",
    "quantize_dynamically",
    "requantize",
    "rescale",
    "whole_bias",
]
