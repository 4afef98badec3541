"""V20–V28: how the values of a tensor represent real numbers. Nothing here reads data or imports NumPy."""

from __future__ import annotations

import struct
from functools import lru_cache
from math import frexp, inf, isfinite, isnan

from ..model import DTYPES, INT32, Blocks, Quantization, Tensor
from ..quantization import block_counts, is_by_blocks
from .rule import Stage, is_int

QUANTIZATION = Stage()
BLOCKS = Stage()

REMEMBERED = 64
"""How many lists of numbers keep their verdict: tensors may share a list. The more lists, the shorter each of them."""


class _Same:
    """A tuple of numbers that equals only itself: comparing or hashing it does not read the numbers."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[float, ...]) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.values is other.values

    def __hash__(self) -> int:
        return id(self.values)


SCALE_DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e8m0fnu")


@QUANTIZATION.rule(
    20,
    "There are blocks, or at least one scale. Each scale is finite, greater than 0, and a value that `scale_dtype` "
    "(float16, bfloat16, float32, float64 or float8_e8m0fnu) represents exactly. Rounded to float32, it is still "
    "finite and greater than 0.",
)
def _scale(tensor: Tensor, quantization: Quantization) -> str:
    scales = quantization.scale
    if quantization.scale_dtype not in SCALE_DTYPES:
        return f"scale_dtype is {quantization.scale_dtype!r}, not one of {', '.join(SCALE_DTYPES)}"
    if quantization.blocks is not None:
        return f"has both blocks and {len(scales)} scales" if scales else ""
    return _wrong_scales(_Same(scales), quantization.scale_dtype)


@lru_cache(REMEMBERED)
def _wrong_scales(same: _Same, scale_dtype: str) -> str:
    """What is wrong with scales that are not those of blocks."""
    scales = same.values
    if not scales:
        return "there is no scale"
    if set(map(type, scales)) != {float}:
        return "a scale is not a float"
    if not (all(map(isfinite, scales)) and min(scales) > 0):
        wrong = next(scale for scale in scales if not (isfinite(scale) and scale > 0))
        return f"scale {wrong} is not finite and greater than 0"
    if not _representable(scales, scale_dtype):
        return f"a scale cannot be represented exactly in {scale_dtype}"
    lost = [scale for scale in (min(scales), max(scales)) if not is_float32_scale(scale)]  # rounding is monotone
    return f"scale {lost[0]} is 0 or infinite in float32" if lost else ""


@QUANTIZATION.rule(
    21,
    "Without an axis there is one scale, or there are blocks. The axis is a dimension of the tensor, counted from 0, "
    "and there are as many scales as its size, where that is known.",
)
def _axis(tensor: Tensor, quantization: Quantization) -> str:
    axis, count = quantization.axis, len(quantization.scale)
    if axis is None:
        return "" if count == 1 or quantization.is_blocked else f"{count} scales without an axis"
    if not is_int(axis) or axis < 0:
        return f"axis {axis!r} is not an integer of at least 0"
    if tensor.shape is None:
        return ""
    if axis >= len(tensor.shape):
        return f"axis {axis} of a tensor with {len(tensor.shape)} dimensions"
    size = tensor.shape[axis]
    return f"{count} scales for {size} slices" if isinstance(size, int) and size != count else ""


@QUANTIZATION.rule(
    22,
    "There are as many zero points as scales; with blocks there is one for all, or none if the blocks have their own. "
    "Each is within the range of the element type and of int32. Or all are floats: finite, and values that "
    "`scale_dtype` represents exactly. The zero point of 4-bit and 8-bit floats is the integer 0.",
)
def _zero_point(tensor: Tensor, quantization: Quantization) -> str:
    zero_points, blocks = quantization.zero_point, quantization.blocks
    count = len(quantization.scale) if blocks is None else int(blocks.zero_point is None)
    if len(zero_points) != count:
        return f"{len(zero_points)} zero points instead of {count}"
    return _wrong_zero_points(_Same(zero_points), tensor.dtype, quantization.scale_dtype)


@lru_cache(REMEMBERED)
def _wrong_zero_points(same: _Same, element_type: str, scale_dtype: str) -> str:
    """What is wrong with zero points whose number is right."""
    zero_points, dtype = same.values, DTYPES[element_type]
    if not dtype.is_integer and set(map(repr, zero_points)) - {"0"}:
        return f"a zero point of {element_type} is not 0"
    if set(map(type, zero_points)) == {float}:
        fits = all(map(isfinite, zero_points)) and _representable(zero_points, scale_dtype)
        return "" if fits else f"a zero point is not a finite {scale_dtype}"
    low, high = max(dtype.minimum, -INT32 - 1), min(dtype.maximum, INT32)
    if (
        set(map(type, zero_points)) <= {int}
        and low <= min(zero_points, default=low) <= max(zero_points, default=low) <= high
    ):
        return ""
    wrong = next(value for value in zero_points if not is_int(value) or not low <= value <= high)
    return f"zero point {wrong!r} is not an integer in the range of {element_type} and int32"


@QUANTIZATION.rule(23, "quant_min and quant_max are within the range of the element type; quant_min ≤ quant_max.")
def _range(tensor: Tensor, quantization: Quantization) -> str:
    low, high, dtype = quantization.quant_min, quantization.quant_max, DTYPES[tensor.dtype]
    if is_int(low) and is_int(high) and dtype.minimum <= low <= high <= dtype.maximum:
        return ""
    return f"the range [{low!r}, {high!r}] is not a range of {tensor.dtype}"


@QUANTIZATION.rule(
    24, "A quantized tensor holds integers of at most 32 bits, or 4-bit or 8-bit floats other than float8_e8m0fnu."
)
def _quantizable(tensor: Tensor, quantization: Quantization) -> str:
    return "" if DTYPES[tensor.dtype].is_quantizable else f"{tensor.dtype} cannot be quantized"


@QUANTIZATION.rule(
    25,
    "An observer has a name, and as many minima as maxima: one, or as many as there are scales. None is NaN, and no "
    "minimum is above its maximum. quant_min and quant_max are both present or both absent; quant_min ≤ quant_max.",
)
def _observed(tensor: Tensor, quantization: Quantization) -> str:
    observed = quantization.observed
    if observed is None:
        return ""
    count = len(observed.minimum)
    if not observed.observer:
        return "the observer has no name"
    if count != len(observed.maximum) or count not in (1, len(quantization.scale) or 1):
        return f"{count} minima and {len(observed.maximum)} maxima were observed"
    if not _are_ordered(_Same(observed.minimum), _Same(observed.maximum)):
        return "an observed minimum is above its maximum"
    low_limit, high_limit = observed.quant_min, observed.quant_max
    if low_limit is None and high_limit is None:
        return ""
    ordered = low_limit is not None and high_limit is not None and low_limit <= high_limit
    if not (ordered and is_int(low_limit) and is_int(high_limit)):
        return f"the observer's range [{low_limit!r}, {high_limit!r}] is not valid"
    return ""


@lru_cache(REMEMBERED)
def _are_ordered(minimum: _Same, maximum: _Same) -> bool:
    pairs = zip(minimum.values, maximum.values, strict=True)
    return not any(isnan(low) or isnan(high) or low > high for low, high in pairs)


@BLOCKS.rule(
    27,
    "Blocks have a size for each dimension, from 1 to that of the tensor, which is known and not 0. Their scales have "
    "the type scale_dtype; their zero points, if any, have the element type or scale_dtype. Both have exactly the "
    "bytes of one element per block.",
)
def _blocks(tensor: Tensor, quantization: Quantization, blocks: Blocks) -> str:
    sizes = blocks.shape
    if quantization.scale_dtype not in SCALE_DTYPES:
        return ""  # V20 says it
    if blocks.tensor_shape != tensor.shape or len(sizes) != len(blocks.tensor_shape):
        return f"blocks of {list(sizes)} do not fit a tensor of {tensor.shape}"
    if not all(is_int(block) and 1 <= block <= size for block, size in zip(sizes, blocks.tensor_shape, strict=True)):
        return f"blocks of {list(sizes)} do not fit a tensor of {list(blocks.tensor_shape)}"
    allowed = {"scale": {quantization.scale_dtype}, "zero point": {tensor.dtype, quantization.scale_dtype}}
    for (what, dtypes), stored in zip(allowed.items(), (blocks.scale, blocks.zero_point), strict=True):
        if stored is None:
            continue
        if stored.dtype not in dtypes or (what == "zero point" and not DTYPES[tensor.dtype].is_integer):
            return f"blocks of {tensor.dtype} cannot have a {what} of type {stored.dtype}"
        if stored.shape != block_counts(blocks.tensor_shape, sizes) or stored.nbytes_needed != stored.data.nbytes:
            return f"{stored.data.nbytes} bytes of {what}s do not fit {list(stored.shape)} blocks"
    return ""


@BLOCKS.rule(28, "Blocks are not used where one scale, or one scale per slice along an axis, says the same.")
def _needs_blocks(tensor: Tensor, quantization: Quantization, blocks: Blocks) -> str:
    return "" if is_by_blocks(blocks.scale.shape, blocks.shape) else f"blocks of {list(blocks.shape)} are not needed"


def is_float32_scale(scale: float) -> bool:
    """Whether a scale is positive and finite once it is rounded to float32, in which engines compute."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", scale))[0]
    except OverflowError:
        return False
    return 0 < rounded < inf


def _representable(scales: tuple[float, ...], dtype: str) -> bool:
    if dtype == "float64":
        return True
    if dtype == "float8_e8m0fnu":
        return all(frexp(scale)[0] == 0.5 and -126 <= frexp(scale)[1] <= 128 for scale in scales)
    code = f"<{len(scales)}{'e' if dtype == 'float16' else 'f'}"
    try:
        packed = struct.pack(code, *scales)
    except OverflowError:
        return False
    if dtype == "bfloat16" and any(packed[0::4]) | any(packed[1::4]):
        return False
    return struct.unpack(code, packed) == scales
