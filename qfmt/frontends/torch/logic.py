"""Torch's comparisons, logic and choices of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import DTYPES
from ..stored import StoredTensor
from .lift import Lifter, lifts
from .values import DTYPE_CODES, TensorValue

COMPARISONS = {
    "eq": "Equal",
    "ne": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
"""Torch's comparisons; `ne` is turned round."""


def is_tensor(value: Any) -> bool:
    return isinstance(value, TensorValue | StoredTensor)


def cast(lift: Lifter, x: TensorValue, dtype: str) -> TensorValue:
    result: TensorValue = x if x.dtype == dtype else lift.emit("Cast", [x], {"to": dtype})
    return result


def in_type(lift: Lifter, value: Any, dtype: Any, *, whole: str = "") -> TensorValue:
    """A tensor in the element type, c10's code, that a call asks for before it computes.

    `whole` is the type of integers and truth values where it asks for none.
    """
    x = lift.tensor(value)
    if dtype is not None:
        if dtype not in DTYPE_CODES:
            raise SourceError(f"computes in the element type {dtype}, which is not supported")
        return cast(lift, x, DTYPE_CODES[dtype])
    counts = x.dtype == "bool" or DTYPES[x.dtype].is_integer
    return cast(lift, x, whole) if whole and counts and x.quantization is None else x


def truth(lift: Lifter, value: Any) -> TensorValue:
    """A tensor as torch takes it for a condition: what is not 0."""
    x = lift.tensor(value)
    return x if x.dtype == "bool" else negation(lift, lift.emit("Equal", [*lift.operands(x, 0)]))


def negation(lift: Lifter, x: TensorValue) -> TensorValue:
    result: TensorValue = lift.emit("Not", [x])
    return result


def compared(lift: Lifter, name: str, a: Any, b: Any) -> Any:
    """`aten::lt` and its like on tensors; NotImplemented for other calls."""
    if name in ("__and__", "__or__"):
        return bitwise(lift, a, b)
    if name not in COMPARISONS:
        return NotImplemented
    result = lift.emit(COMPARISONS[name], [*lift.operands(a, b)])
    return negation(lift, result) if name == "ne" else result


@lifts("aten::logical_not")
def logical_not(lift: Lifter, self: Any) -> Any:
    return negation(lift, truth(lift, self))


_LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}


@lifts("aten::logical_and", "aten::logical_or", "aten::logical_xor")
def logical(lift: Lifter, self: Any, other: Any) -> Any:
    name = lift.target.rstrip("_").rpartition("_")[2]
    return lift.emit(_LOGIC[name], [truth(lift, self), truth(lift, other)])


@lifts("aten::bitwise_and", "aten::bitwise_or", "aten::bitwise_xor", "aten::__xor__")
def bitwise(lift: Lifter, self: Any, other: Any) -> Any:
    name = lift.target.partition("::")[2].strip("_").rpartition("_")[2]
    x, y = lift.operands(self, other)
    return lift.emit(_LOGIC[name] if x.dtype == "bool" else f"Bitwise{_LOGIC[name]}", [x, y])


@lifts("aten::bitwise_not")
def bitwise_not(lift: Lifter, self: Any) -> Any:
    x = lift.tensor(self)
    return lift.emit("Not" if x.dtype == "bool" else "BitwiseNot", [x])


@lifts("aten::where")
def where(lift: Lifter, condition: Any, self: Any = None, other: Any = None) -> Any:
    if self is None or other is None:
        return NotImplemented
    if isinstance(self, int | float) and isinstance(other, int | float):  # torch makes them float32 or int64
        kind = np.float32 if isinstance(self, float) or isinstance(other, float) else np.int64
        self, other = np.array(self, kind), np.array(other, kind)
    return lift.emit("Where", [truth(lift, condition), *lift.operands(self, other)])


@lifts("aten::masked_fill")
def masked_fill(lift: Lifter, self: Any, mask: Any, value: Any) -> Any:
    x = lift.tensor(self)
    filling = cast(lift, lift.tensor(value), x.dtype) if is_tensor(value) else lift.scalar_like(x, lift.number(value))
    return lift.emit("Where", [truth(lift, mask), filling, x])


@lifts("aten::any", "aten::all")
def some(lift: Lifter, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    numbers = cast(lift, truth(lift, self), "int32")
    axes = None if dim is None else lift.constant(np.array(dim if isinstance(dim, list) else [dim], np.int64))
    operator = "ReduceMax" if lift.target == "aten::any" else "ReduceMin"
    return cast(lift, lift.emit(operator, [numbers, axes], {"keepdims": int(keepdim)}), "bool")
