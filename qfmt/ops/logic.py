"""Comparisons, logic, operations on bits, and choosing by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .registry import Quantized, operator, optional, required
from .shapes import broadcast, same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def _function(
    name: str, version: int, function: Callable[..., Array], meaning: str, signature: str = "A B -> C"
) -> None:
    """An operator that is one function of NumPy; bits give bits, everything else gives truth."""

    def reference(*inputs: Array) -> Array:
        return function(*inputs)

    reference.__doc__ = meaning
    operator(
        name,
        version,
        signature,
        shape=broadcast if signature == "A B -> C" else same,
        quantized=Quantized.FLOAT_ONLY,
        dtype="same" if name.startswith("Bitwise") else "bool",
    )(reference)


for _entry in (
    ("Equal", 19, np.equal, "C = A = B, a bool."),
    ("Greater", 13, np.greater, "C = A > B, a bool."),
    ("GreaterOrEqual", 16, np.greater_equal, "C = A ≥ B, a bool."),
    ("Less", 13, np.less, "C = A < B, a bool."),
    ("LessOrEqual", 16, np.less_equal, "C = A ≤ B, a bool."),
    ("And", 7, np.logical_and, "C = A and B."),
    ("Or", 7, np.logical_or, "C = A or B."),
    ("Xor", 7, np.logical_xor, "C = A or B, but not both."),
    ("Not", 1, np.logical_not, "Y = not X.", "X -> Y"),
    ("IsNaN", 20, np.isnan, "Y = whether X is not a number.", "X -> Y"),
    ("BitwiseAnd", 18, np.bitwise_and, "C = the bitwise AND of A and B."),
    ("BitwiseOr", 18, np.bitwise_or, "C = the bitwise OR of A and B."),
    ("BitwiseXor", 18, np.bitwise_xor, "C = the bitwise XOR of A and B."),
    ("BitwiseNot", 18, np.invert, "Y = the bitwise complement of X.", "X -> Y"),
):
    _function(*_entry)


@operator(
    "IsInf",
    20,
    "X -> Y",
    attributes={
        "detect_negative": optional(1, "0: -∞ is ignored"),
        "detect_positive": optional(1, "0: +∞ is ignored"),
    },
    shape=same,
    quantized=Quantized.FLOAT_ONLY,
    dtype="bool",
)
def is_infinite(x: Array, *, detect_negative: int, detect_positive: int) -> Array:
    """Y = whether X is infinite."""
    return np.isinf(x) & (((x < 0) & bool(detect_negative)) | ((x > 0) & bool(detect_positive)))


@operator(
    "BitShift",
    11,
    "X Y -> Z",
    attributes={"direction": required("s", "`LEFT` or `RIGHT`")},
    shape=broadcast,
    quantized=Quantized.FLOAT_ONLY,
)
def bit_shift(x: Array, y: Array, *, direction: str) -> Array:
    """Z = X with its bits shifted by Y positions; bits shifted out are lost.

    Zeros are shifted in; to the right of a negative X, ones.
    """
    last = np.iinfo(x.dtype).bits - 1
    places = np.minimum(y, y.dtype.type(last))
    if direction == "LEFT":
        return np.where(y > last, x.dtype.type(0), np.left_shift(x, places))
    return np.where((y > last) & (x >= 0), x.dtype.type(0), np.right_shift(x, places))


@operator(
    "Mod",
    13,
    "A B -> C",
    attributes={"fmod": optional(0, "1: the remainder has the sign of A, as in C; 0: that of B; floats need 1")},
    shape=broadcast,
    quantized=Quantized.FLOAT_ONLY,
)
def modulo(a: Array, b: Array, *, fmod: int) -> Array:
    """C = the remainder of A / B; of integers divided by 0 it is 0."""
    with np.errstate(all="ignore"):
        return np.fmod(a, b) if fmod else np.mod(a, b)


@operator(
    "Where",
    16,
    "condition X Y -> output",
    shape=broadcast,
    quantized=Quantized.COMPUTES,
    dtype="input:1",
)
def where(condition: Array, x: Array, y: Array) -> Array:
    """output = X where condition, Y elsewhere."""
    return np.where(condition, x, y)
