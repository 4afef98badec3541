"""V1–V29: single tensors, their data and their quantization. Nothing here imports NumPy until data is read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite, isnan, prod
from typing import Any

from ..errors import Violation
from ..model import DTYPES, Quantization, Tensor, numpy_dtype, unpack
from .rule import Stage, first_of, is_int, is_text

MAXIMUM_RANK = 32
"""NumPy 1 takes no more."""

_PART = 1 << 20

NAMING = Stage()
DATA = Stage()
QUANTIZATION = Stage()
VALUES = Stage()


def tensor_violations(tensor: Tensor) -> list[Violation]:
    """The rules V1–V29 that a tensor breaks, without a look at its data."""
    found = NAMING.broken(_place(tensor), tensor)
    if not found and tensor.data is not None:
        found += DATA.broken(_place(tensor), tensor)
    if not found and tensor.quantization is not None:
        found += QUANTIZATION.broken(_place(tensor), tensor, tensor.quantization)
    return found


def data_violations(tensor: Tensor) -> list[Violation]:
    """The rules about the values of a constant that it breaks; the tensor must break none of the others."""
    return [] if tensor.data is None else VALUES.broken(_place(tensor), tensor)


def _place(tensor: Tensor) -> str:
    return f"tensor {tensor.name!r}"


@NAMING.rule(1, "A tensor's name is not empty, and no other tensor of the graph has it.")
def _name(tensor: Tensor) -> str:
    return "" if tensor.name else "the name is empty"


@NAMING.rule(2, "The element type is one of the table of element types.")
def _dtype(tensor: Tensor) -> str:
    return "" if tensor.dtype in DTYPES else f"the element type {tensor.dtype!r} is not known"


@NAMING.rule(
    3,
    "A size is an integer of at least 0, a name that is not empty, or not known. There are at most 32 of them, and the "
    "product of those that are not 0 stays below 2^60. A constant has a shape, all of whose sizes are integers.",
)
def _shape(tensor: Tensor) -> str:
    if tensor.shape is None:
        return "" if tensor.data is None else "a constant without a shape"
    if len(tensor.shape) > MAXIMUM_RANK:
        return f"{len(tensor.shape)} dimensions"
    for axis, size in enumerate(tensor.shape):
        if not (size is None or (isinstance(size, str) and size) or (is_int(size) and int(size) >= 0)):
            return f"size {size!r} of dimension {axis}"
        if tensor.data is not None and not isinstance(size, int):
            return f"dimension {axis} of a constant is not a number"
    if prod(size for size in tensor.shape if isinstance(size, int) and size) >= 1 << 60:
        return f"the sizes {tensor.shape} are too large together"
    return ""


@NAMING.rule(4, "Aliases are not empty, sorted, and each stands once.")
def _aliases(tensor: Tensor) -> str:
    return "" if not tensor.aliases else _unsorted(tensor.aliases)


@NAMING.rule(
    5, "Name, names of sizes, aliases, observer and its scheme are Unicode text without surrogates and without U+0000."
)
def _text(tensor: Tensor) -> str:
    texts = [tensor.name, *tensor.aliases, *(size for size in tensor.shape or () if isinstance(size, str))]
    if tensor.quantization is not None and tensor.quantization.observed is not None:
        texts += [tensor.quantization.observed.observer, tensor.quantization.observed.qscheme]
    wrong = [text for text in texts if not is_text(text)]
    return f"{first_of(wrong)} is not text" if wrong else ""


@DATA.rule(10, "A constant has exactly the bytes that its element type and shape need.")
def _size(tensor: Tensor) -> str:
    assert tensor.data is not None
    needed = -(-element_count(tensor) * DTYPES[tensor.dtype].bits // 8)
    return "" if tensor.data.nbytes == needed else f"{tensor.data.nbytes} bytes stored, {needed} needed"


@VALUES.rule(11, "A bool is stored as the byte 0 or 1.")
def _bool(tensor: Tensor) -> str:
    if tensor.dtype != "bool":
        return ""
    worst = max((int(part.max(initial=0)) for part in _parts(tensor, "uint8")), default=0)
    return "" if worst <= 1 else f"a byte is {worst}"


@VALUES.rule(12, "The bits of the last byte that no element of less than 8 bits uses are zero.")
def _unused_bits(tensor: Tensor) -> str:
    assert tensor.data is not None
    bits = DTYPES[tensor.dtype].bits
    used = element_count(tensor) * bits % 8
    if bits >= 8 or not used or not tensor.data.view()[-1] >> used:
        return ""
    return f"the last byte is {tensor.data.view()[-1]:#04x}, {used} bits of it are used"


@QUANTIZATION.rule(
    20,
    "There is at least one scale; each is finite, greater than 0, and a value that `scale_dtype` (float16, bfloat16, "
    "float32 or float64) represents exactly. Rounded to float32 it is still finite and greater than 0.",
)
def _scale(tensor: Tensor, quantization: Quantization) -> str:
    scales = quantization.scale
    if not scales:
        return "there is no scale"
    if quantization.scale_dtype not in ("float16", "bfloat16", "float32", "float64"):
        return f"scale_dtype is {quantization.scale_dtype!r}"
    if set(map(type, scales)) != {float}:
        return "a scale is not a float"
    if not (all(map(isfinite, scales)) and min(scales) > 0):
        return f"scale {next(scale for scale in scales if not (isfinite(scale) and scale > 0))}"
    if not _representable(scales, quantization.scale_dtype):
        return f"a scale is not exactly a {quantization.scale_dtype}"
    wrong = [scale for scale in scales if not is_float32_scale(scale)]
    return f"scale {wrong[0]} is 0 or infinite as a float32" if wrong else ""


@QUANTIZATION.rule(
    21,
    "Without an axis there is one scale. With one it is a dimension of the tensor, counted from 0, and there are as "
    "many scales as its size, where that is known.",
)
def _axis(tensor: Tensor, quantization: Quantization) -> str:
    axis, count = quantization.axis, len(quantization.scale)
    if axis is None:
        return "" if count == 1 else f"{count} scales without an axis"
    if not is_int(axis) or axis < 0:
        return f"axis {axis!r}"
    if tensor.shape is None:
        return ""
    if axis >= len(tensor.shape):
        return f"axis {axis} of a tensor with {len(tensor.shape)} dimensions"
    size = tensor.shape[axis]
    return f"{count} scales for {size} slices" if isinstance(size, int) and size != count else ""


@QUANTIZATION.rule(
    22,
    "There are as many zero points as scales; each is inside the range of the element type and of an int32. Or all are "
    "floats: finite, and values that `scale_dtype` represents exactly.",
)
def _zero_point(tensor: Tensor, quantization: Quantization) -> str:
    zero_points, dtype = quantization.zero_point, DTYPES[tensor.dtype]
    if len(zero_points) != len(quantization.scale):
        return f"{len(zero_points)} zero points, {len(quantization.scale)} scales"
    if set(map(type, zero_points)) == {float}:
        fits = all(map(isfinite, zero_points)) and _representable(zero_points, quantization.scale_dtype)
        return "" if fits else f"a zero point is not a finite {quantization.scale_dtype}"
    low, high = max(dtype.minimum, -(1 << 31)), min(dtype.maximum, (1 << 31) - 1)
    if (
        set(map(type, zero_points)) <= {int}
        and low <= min(zero_points, default=low) <= max(zero_points, default=low) <= high
    ):
        return ""
    wrong = next(value for value in zero_points if not is_int(value) or not low <= value <= high)
    return f"zero point {wrong!r} is not one of {tensor.dtype} and int32"


@QUANTIZATION.rule(23, "quant_min and quant_max are inside the range of the element type; quant_min ≤ quant_max.")
def _range(tensor: Tensor, quantization: Quantization) -> str:
    low, high, dtype = quantization.quant_min, quantization.quant_max, DTYPES[tensor.dtype]
    if is_int(low) and is_int(high) and dtype.minimum <= low <= high <= dtype.maximum:
        return ""
    return f"the range [{low!r}, {high!r}] is not one of {tensor.dtype}"


@QUANTIZATION.rule(24, "Only tensors of integers of at most 32 bits are quantized.")
def _quantizable(tensor: Tensor, quantization: Quantization) -> str:
    dtype = DTYPES[tensor.dtype]
    return "" if dtype.is_integer and dtype.bits <= 32 else f"{tensor.dtype} is quantized"


@QUANTIZATION.rule(
    25,
    "What was observed has a name, and as many minima as maxima: one, or as many as there are scales. None is NaN, and "
    "no minimum is above its maximum. quant_min and quant_max are both there or both absent; quant_min ≤ quant_max.",
)
def _observed(tensor: Tensor, quantization: Quantization) -> str:
    observed = quantization.observed
    if observed is None:
        return ""
    count = len(observed.minimum)
    if not observed.observer:
        return "the observer has no name"
    if count != len(observed.maximum) or count not in (1, len(quantization.scale)):
        return f"{count} minima and {len(observed.maximum)} maxima were observed"
    pairs = zip(observed.minimum, observed.maximum, strict=True)
    if any(isnan(low) or isnan(high) or low > high for low, high in pairs):
        return "an observed minimum is above its maximum"
    low_limit, high_limit = observed.quant_min, observed.quant_max
    if low_limit is None and high_limit is None:
        return ""
    ordered = low_limit is not None and high_limit is not None and low_limit <= high_limit
    if not (ordered and is_int(low_limit) and is_int(high_limit)):
        return f"the observer's range is [{low_limit!r}, {high_limit!r}]"
    return ""


@VALUES.rule(26, "The integers of a quantized constant are inside [quant_min, quant_max].")
def _stored_range(tensor: Tensor) -> str:
    quantization, dtype = tensor.quantization, DTYPES[tensor.dtype]
    if quantization is None:
        return ""
    low, high = quantization.quant_min, quantization.quant_max
    if (low, high) == (dtype.minimum, dtype.maximum):
        return ""
    for part in _parts(tensor, tensor.dtype):
        if part.size and not low <= part.min() <= part.max() <= high:
            return f"holds integers in [{part.min()}, {part.max()}], outside [{low}, {high}]"
    return ""


def element_count(tensor: Tensor) -> int:
    """The number of elements of a constant."""
    return prod(size for size in tensor.shape or () if isinstance(size, int))


def is_float32_scale(scale: float) -> bool:
    """Whether a scale is a positive, finite number once it is rounded to float32, by which engines compute."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", scale))[0]
    except OverflowError:
        return False
    return 0 < rounded < inf


def _representable(scales: tuple[float, ...], dtype: str) -> bool:
    if dtype == "float64":
        return True
    code = f"<{len(scales)}{'e' if dtype == 'float16' else 'f'}"
    try:
        packed = struct.pack(code, *scales)
    except OverflowError:
        return False
    if dtype == "bfloat16" and any(packed[0::4]) | any(packed[1::4]):
        return False
    return struct.unpack(code, packed) == scales


def _parts(tensor: Tensor, dtype: str) -> Iterator[Any]:
    """The values of a constant in parts, so that a large one is not unpacked all at once."""
    import numpy as np

    assert tensor.data is not None
    view, left = tensor.data.view(), element_count(tensor)
    bits, signed = DTYPES[dtype].bits, DTYPES[dtype].kind == "i"
    for start in range(0, len(view), _PART):
        part = view[start : start + _PART]
        if bits < 8:
            count = min(left, len(part) * 8 // bits)
            left -= count
            yield unpack(part, bits, signed, count)
        else:
            yield np.frombuffer(part, numpy_dtype(dtype))


def _unsorted(words: Sequence[str]) -> str:
    if not words[0]:
        return "an alias is empty"
    wrong = [second for first, second in pairwise(words) if first >= second]
    return f"{wrong[0]!r} is not in order" if wrong else ""
