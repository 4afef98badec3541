"""Comparisons, logic, operations on bits, and choosing by a condition."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from .functions import function
from .registry import Quantized, Trait, operator, required, truth
from .shapes import broadcast, same

for _entry in (
    ("Equal", 19, np.equal, "C = A = B, a bool.", "A B -> C", "", "bool"),
    ("Greater", 13, np.greater, "C = A > B, a bool.", "A B -> C", "", "bool"),
    ("GreaterOrEqual", 16, np.greater_equal, "C = A ≥ B, a bool.", "A B -> C", "", "bool"),
    ("Less", 13, np.less, "C = A < B, a bool.", "A B -> C", "", "bool"),
    ("LessOrEqual", 16, np.less_equal, "C = A ≤ B, a bool.", "A B -> C", "", "bool"),
    ("And", 7, np.logical_and, "C = A and B.", "A B -> C", "", "bool"),
    ("Or", 7, np.logical_or, "C = A or B.", "A B -> C", "", "bool"),
    ("Xor", 7, np.logical_xor, "C = A or B, but not both.", "A B -> C", "", "bool"),
    ("Not", 1, np.logical_not, "Y = not X.", "X -> Y", "", "bool"),
    ("IsNaN", 20, np.isnan, "Y = whether X is not a number.", "X -> Y", "", "bool"),
    ("BitwiseAnd", 18, np.bitwise_and, "C = the bitwise AND of A and B.", "A B -> C", "", "same", Trait.PLAIN),
    ("BitwiseOr", 18, np.bitwise_or, "C = the bitwise OR of A and B.", "A B -> C", "", "same", Trait.PLAIN),
    ("BitwiseXor", 18, np.bitwise_xor, "C = the bitwise XOR of A and B.", "A B -> C", "", "same", Trait.PLAIN),
    ("BitwiseNot", 18, np.invert, "Y = the bitwise complement of X.", "X -> Y", "", "same", Trait.PLAIN),
):
    function(__name__, *_entry)


@operator(
    "IsInf",
    20,
    "X -> Y",
    attributes={"detect_negative": truth(1, "0: -∞ is ignored"), "detect_positive": truth(1, "0: +∞ is ignored")},
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
    attributes={"direction": required("s", "`LEFT` or `RIGHT`", ("LEFT", "RIGHT"))},
    shape=broadcast,
    quantized=Quantized.FLOAT_ONLY,
    traits=Trait.PLAIN,
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
    attributes={"fmod": truth(0, "1: the remainder has the sign of A, as in C; 0: that of B; floats need 1")},
    shape=broadcast,
    quantized=Quantized.FLOAT_ONLY,
)
def modulo(a: Array, b: Array, *, fmod: int) -> Array:
    """C = the remainder of A / B; of integers divided by 0 it is 0."""
    with np.errstate(all="ignore"):
        return np.fmod(a, b) if fmod else np.mod(a, b)


@operator("Where", 16, "condition X Y -> output", shape=broadcast, quantized=Quantized.COMPUTES, dtype="input:1")
def where(condition: Array, x: Array, y: Array) -> Array:
    """output = X where condition, Y elsewhere."""
    return np.where(condition, x, y)
