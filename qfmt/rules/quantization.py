"""V20–V25: how the values of a tensor represent real numbers. Nothing here imports NumPy, or reads a buffer."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf, isfinite, isnan, prod
from typing import Generic, TypeVar

from ..graph import MAXIMUM_RANK
from ..model import DTYPES, INT32, Parameter, Quantization, Tensor, first_holding
from ..quantization import NO_ZERO_POINT, ZERO_POINTS, block_counts
from .rule import Stage, is_int

Value = TypeVar("Value")

QUANTIZATION = Stage()
NUMBERS = Stage()

REMEMBERED = 64
"""How many arrays keep their verdict: tensors may share one. The more arrays, the smaller each of them."""

SCALE_DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e8m0fnu", "float8_e4m3fn")
CODED = ("int8", "uint8", "float8_e4m3fn")
FLOATS = ("float16", "bfloat16", "float32", "float64")
GROUPS = ("uint8", "uint16", "int32")


class _Same(Generic[Value]):
    """A value that equals only itself: comparing or hashing it does not read its numbers."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@QUANTIZATION.rule(
    20,
    "A scale has the type float16, bfloat16, float32, float64, float8_e8m0fnu or float8_e4m3fn, an offset one of the "
    "first four. Either may be quantized: then it has the type int8, uint8 or float8_e4m3fn, and a quantization of "
    "its own, the second level, in which nothing is quantized. Zero points have the type uint8, int8, uint16, int16 "
    "or int32, or, in constants, the type of the scale if the scale is not quantized; tensors of floats have none, or "
    "0 as one uint8. Zero points and offsets have the shape of the scale, or are one number. A table is for integers "
    "of at most 8 bits; it has one dimension, an element for each code, and one of the types float16 to float64, or an "
    "integer type of at most 16 bits. Each array has exactly the bytes that its type and shape need.",
)
def _form(tensor: Tensor, quantization: Quantization) -> str:
    if wrong := _wrong_form(tensor.dtype, quantization, quantization.scale.shape, level=1):
        return wrong
    if quantization.has_float_zero_points and not tensor.is_constant:
        return "zero points of floats in a tensor that is not constant"
    return ""


def _wrong_form(dtype: str, q: Quantization, shape: tuple[int, ...], level: int) -> str:
    """What is wrong with the arrays of a quantization, of which the scales have that shape."""
    for name, stored in q.parameters():
        if stored.nbytes_needed != stored.data.nbytes:
            return f"{name.replace('_', ' ')} of shape {list(stored.shape)} has {stored.data.nbytes} bytes"
    for what, each, plain in (("scale", q.scale, SCALE_DTYPES), ("offset", q.offset, FLOATS)):
        if each is None:
            continue
        if each.quantization is None and each.dtype not in plain:
            return f"{what}s are {each.dtype}, not one of {', '.join(plain)}"
        if each.quantization is not None:
            if level == 2 or each.dtype not in CODED:
                return f"{what}s of {each.dtype} cannot be quantized"
            if wrong := _wrong_form(each.dtype, each.quantization, each.quantization.scale.shape, 2):
                return f"{what}s: {wrong}"
    for what, each in (("zero point", q.zero_point), ("offset", q.offset)):
        if each is not None and each.shape not in ((), shape):
            return f"{what}s of shape {list(each.shape)} for scales of shape {list(shape)}"
    return _wrong_zero_points(dtype, q) or _wrong_table(dtype, q.table)


def _wrong_zero_points(dtype: str, q: Quantization) -> str:
    point, kind = q.zero_point, DTYPES[dtype]
    if point.quantization is not None:
        return "zero points cannot be quantized"
    if point.dtype in ZERO_POINTS:
        return "" if kind.is_integer or point == NO_ZERO_POINT else f"a zero point of {dtype} is not 0"
    fits = point.dtype == q.scale.dtype and q.scale.quantization is None and kind.is_integer
    return "" if fits else f"zero points of {point.dtype} for scales of {q.scale.dtype} and elements of {dtype}"


def _wrong_table(dtype: str, table: Parameter | None) -> str:
    if table is None:
        return ""
    kind, held = DTYPES[dtype], DTYPES[table.dtype]
    if not kind.is_integer or kind.bits > 8 or table.shape != (1 << kind.bits,):
        return f"a table of shape {list(table.shape)} for codes of {dtype}"
    if table.quantization is not None or not (table.dtype in FLOATS or (held.is_integer and held.bits <= 16)):
        return f"a table cannot be {table.dtype}"
    return ""


@QUANTIZATION.rule(
    21,
    "`block` has at most 32 entries, and at most as many as the tensor has dimensions; the last one is not 0. An "
    "entry above 1 is less than the size of the dimension, which is known. Along each dimension there are ceil(size / "
    "block) scales where the entry is not 0 and the size is known, one where it is 0, and one in all without `block`. "
    "Where the number of dimensions is not known, the entries are 0 and 1. With a group index exactly one entry is "
    "above 1; there is an index for each position along that dimension, of type uint8, uint16 or int32, and its "
    "scales may be more or fewer.",
)
def _blocks(tensor: Tensor, quantization: Quantization) -> str:
    for name, each in quantization.parameters():
        if each.quantization is not None and (wrong := wrong_blocks(each.shape, each.quantization)):
            return f"{name}: {wrong}"
    return wrong_blocks(tensor.shape, quantization)


def wrong_blocks(shape: Sequence[int | str | None] | None, q: Quantization) -> str:
    """What is wrong with the blocks of a tensor of that shape."""
    block, counts = q.block, q.scale.shape
    if not all(is_int(each) and each >= 0 for each in block) or block[-1:] == (0,):
        return f"blocks of {list(block)} have a negative entry, or end with 0"
    if len(block) > MAXIMUM_RANK:
        return f"blocks with {len(block)} entries, more than {MAXIMUM_RANK}"
    if len(counts) != len(block):
        return f"scales of shape {list(counts)} for blocks of {list(block)}"
    sizes: Sequence[int | str | None] = shape if shape is not None else (None,) * len(block)
    if len(block) > len(sizes):
        return f"blocks of {list(block)} in a tensor with {len(sizes)} dimensions"
    index = q.group_index
    if index is not None and (sum(each > 1 for each in block) != 1 or index.dtype not in GROUPS or index.quantization):
        return f"a group index of {index.dtype} for blocks of {list(block)}"
    for size, each, count in zip(sizes, block, counts, strict=False):
        if each > 1 and not (isinstance(size, int) and each < size):
            return f"blocks of {list(block)} do not fit a tensor of {list(sizes)}"
        if each > 1 and index is not None:
            if index.shape != (size,):
                return f"a group index of shape {list(index.shape)} for {size} positions"
        elif each == 0 and count != 1:
            return f"{count} scales along a dimension with one block"
        elif each and isinstance(size, int) and count != block_counts((size,), (each,))[0]:
            return f"{count} scales for {size} elements in blocks of {each}"
    return ""


@NUMBERS.rule(
    22,
    "The numbers in the arrays of a quantization are finite, as stored. As float32, scales are finite and greater "
    "than 0, but block-wise scales of a constant, and scales of a second level, may also be 0 or negative; a "
    "quantized scale may be any code. Zero points that are integers are within the range of the element type of the "
    "tensor, and have the first of the types uint8, int8, uint16, int16 and int32 that holds them all. If all zero "
    "points are equal, also if there is only one, they are stored as one number without a shape, and so are offsets "
    "that are not quantized; 0.0 and -0.0 are equal. A group index is the index of a scale.",
)
def _numbers(tensor: Tensor, quantization: Quantization) -> str:
    """Of the arrays that lie in the metadata; `values` checks the others."""
    return wrong_numbers(tensor, quantization, is_inline=True)


def wrong_numbers(tensor: Tensor, q: Quantization, *, is_inline: bool) -> str:
    for name, each in q.parameters():
        if each.is_inline == is_inline:
            any_sign = "." in name or (tensor.is_constant and q.is_blocked)
            if wrong := _wrong_numbers(name, _Same(each), tensor.dtype, any_sign, _groups(q)):
                return wrong
    return ""


def _groups(q: Quantization) -> int:
    """How many scales there are along the dimension that has larger blocks."""
    return next((count for count, block in zip(q.scale.shape, q.block, strict=True) if block > 1), 0)


@lru_cache(REMEMBERED)
def _wrong_numbers(name: str, same: _Same[Parameter], dtype: str, any_sign: bool, groups: int) -> str:
    stored, what = same.value, name.replace("_", " ")
    least, most, first, differ = stored.data.once(("numbers", stored.dtype, len(stored)), lambda: _summary(stored))
    if first is None:
        return ""
    if not isfinite(first):
        return f"a {what} is {first}"
    last = name.rpartition(".")[2]
    if last == "scale":
        return _wrong_scales(what, least, most, stored, any_sign)
    if last == "zero_point" and DTYPES[stored.dtype].is_integer:
        low, high = max(DTYPES[dtype].minimum, -INT32 - 1), min(DTYPES[dtype].maximum, INT32)
        if "." not in name and (least < low or most > high):
            return f"zero points in {least}..{most} do not fit {dtype}"
        if first_holding(ZERO_POINTS, least, most) != stored.dtype:
            return f"zero points in {least}..{most} are stored as {stored.dtype}"
    if last in ("zero_point", "offset") and stored.shape and not differ and stored.quantization is None:
        return f"every {last.replace('_', ' ')} is {first}, which is written once"
    if last == "group_index" and (least < 0 or most >= groups):
        return f"indices in {least}..{most} of {groups} groups"
    return ""


def _summary(stored: Parameter) -> tuple[float, float, float | None, bool]:
    """The least and the greatest stored number, the first one (None: there is none; or one that is not finite), and
    whether they differ."""
    least, most, first, differ = inf, -inf, None, False
    for part in parts(stored):
        if not all(map(isfinite, part)):
            return least, most, next(each for each in part if not isfinite(each)), differ
        if part:
            first = part[0] if first is None else first
            differ = differ or part.count(first) != len(part)
            least, most = min(least, min(part)), max(most, max(part))
    return least, most, first, differ


def _wrong_scales(what: str, least: float, most: float, stored: Parameter, any_sign: bool) -> str:
    if stored.quantization is not None:
        return ""
    if any_sign:
        least, most = 1, max(abs(least), most, 1)
    lost = [each for each in (least, most) if not is_float32_scale(each)]
    return f"{what} {lost[0]} is not a finite number above 0 in float32" if lost else ""


def parts(stored: Parameter) -> Iterator[Sequence[float]]:
    """The stored numbers: those in the metadata at once, those in a buffer some at a time."""
    if stored.is_inline:
        yield stored.stored_numbers()
    else:
        for part in stored.parts():
            yield part.astype(float).tolist() if DTYPES[stored.dtype].kind == "f" else part.tolist()


@QUANTIZATION.rule(
    23,
    "A quantized tensor holds integers of at most 32 bits, or 4-bit or 8-bit floats other than float8_e8m0fnu. "
    "quant_min and quant_max are within the range of its type; quant_min ≤ quant_max. The integers of a constant, and "
    "its floats that are finite, are within [quant_min, quant_max].",
)
def _range(tensor: Tensor, quantization: Quantization) -> str:
    low, high, dtype = quantization.quant_min, quantization.quant_max, DTYPES[tensor.dtype]
    if not dtype.is_quantizable:
        return f"{tensor.dtype} cannot be quantized"
    if is_int(low) and is_int(high) and dtype.minimum <= low <= high <= dtype.maximum:
        return ""
    return f"the range [{low!r}, {high!r}] is not a range of {tensor.dtype}"


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
    if count != len(observed.maximum) or count not in (1, prod(quantization.scale.shape)):
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
def _are_ordered(minimum: _Same[Sequence[float]], maximum: _Same[Sequence[float]]) -> bool:
    pairs = zip(minimum.value, maximum.value, strict=True)
    return not any(isnan(low) or isnan(high) or low > high for low, high in pairs)


def is_float32_scale(scale: float) -> bool:
    """Whether a scale is positive and finite once it is rounded to float32, in which engines compute."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", scale))[0]
    except OverflowError:
        return False
    return 0 < rounded < inf
