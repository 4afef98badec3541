"""Torch's comparisons, logic and choices of elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from typing import cast as cast_type

import numpy as np

from ....model import DTYPES
from ...stored import StoredTensor
from .. import arguments
from ..arguments import operands
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue

COMPARISONS = {"eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
"""Torch's comparisons; `ne` is negated `eq`."""


def is_tensor(value: Any) -> bool:
    return isinstance(value, TensorValue | StoredTensor)


def cast(lift: Builder, x: TensorValue, dtype: str) -> TensorValue:
    return x if x.dtype == dtype else lift.emit("Cast", [x], {"to": dtype})


def in_float32(lift: Builder, x: TensorValue) -> TensorValue:
    """Floats of 16 bits as float32, in which torch computes what it does in multiple steps. Parameters stay as they are
    stored: only numbers are cast now."""
    if x.dtype not in ("float16", "bfloat16"):
        return x
    return lift.emit("Cast", [x], {"to": "float32"}, fold=x.shape in ((), (1,)))


def as_in(lift: Builder, result: TensorValue, x: TensorValue) -> TensorValue:
    """What was computed of `in_float32(x)`, in the type of x."""
    return cast(lift, result, x.dtype) if x.dtype in ("float16", "bfloat16") else result


Lift = TypeVar("Lift", bound=Callable[..., Any])


def rounded_once(function: Lift) -> Lift:
    """A lift of multiple steps: of tensors of one 16-bit type, torch computes all of them in float32, and rounds the
    results (at::opmath_type)."""

    @wraps(function)
    def lifted(lift: Builder, *args: Any, **kwargs: Any) -> Any:
        given = [lift.tensor(each) for each in (*args, *kwargs.values()) if is_tensor(each)]
        first = next((each for each in given if "float" in each.dtype), None)
        if first is None or {each.dtype for each in given if "float" in each.dtype} != {first.dtype}:
            return function(lift, *args, **kwargs)

        def wide(value: Any) -> Any:
            return in_float32(lift, lift.tensor(value)) if is_tensor(value) else value

        def narrow(result: Any) -> Any:
            if isinstance(result, tuple):
                return tuple(map(narrow, result))
            is_wide = isinstance(result, TensorValue) and result.dtype == "float32"
            return as_in(lift, result, first) if is_wide else result

        return narrow(function(lift, *map(wide, args), **{name: wide(each) for name, each in kwargs.items()}))

    return cast_type(Lift, lifted)


def in_type(lift: Builder, value: Any, dtype: Any, *, whole: str = "") -> TensorValue:
    """A tensor, converted to the element type of a call (c10's code).

    `whole` is the type of integers and bools if there is none.
    """
    x = lift.tensor(value)
    if dtype is not None:
        return cast(lift, x, arguments.dtype(dtype))
    counts = x.dtype == "bool" or DTYPES[x.dtype].is_integer
    return cast(lift, x, whole) if whole and counts and x.quantization is None else x


def truth(lift: Builder, value: Any) -> TensorValue:
    """A tensor as a condition, as in torch: elements that are not 0."""
    x = lift.tensor(value)
    return x if x.dtype == "bool" else negation(lift, lift.emit("Equal", [*operands(lift, x, 0)]))


def negation(lift: Builder, x: TensorValue) -> TensorValue:
    return lift.emit("Not", [x])


def compared(lift: Builder, name: str, a: Any, b: Any) -> Any:
    """`aten::lt` and its like on tensors; NotImplemented for other calls."""
    if name in ("__and__", "__or__"):
        return bitwise(lift, name.strip("_").title(), a, b)
    if name not in COMPARISONS:
        return NotImplemented
    result = lift.emit(COMPARISONS[name], [*operands(lift, a, b)])
    return negation(lift, result) if name == "ne" else result


@lifts("aten::logical_not")
def logical_not(lift: Builder, self: Any) -> Any:
    return negation(lift, truth(lift, self))


@lifts({"aten::logical_and": "And", "aten::logical_or": "Or", "aten::logical_xor": "Xor"})
def logical(lift: Builder, operator: str, self: Any, other: Any) -> Any:
    return lift.emit(operator, [truth(lift, self), truth(lift, other)])


@lifts({"aten::bitwise_and": "And", "aten::bitwise_or": "Or", "aten::bitwise_xor": "Xor", "aten::__xor__": "Xor"})
def bitwise(lift: Builder, operator: str, self: Any, other: Any) -> Any:
    x, y = operands(lift, self, other)
    return lift.emit(operator if x.dtype == "bool" else f"Bitwise{operator}", [x, y])


@lifts("aten::bitwise_not")
def bitwise_not(lift: Builder, self: TensorValue) -> Any:
    return lift.emit("Not" if self.dtype == "bool" else "BitwiseNot", [self])


@lifts("aten::where")
def where(lift: Builder, condition: Any, self: Any = None, other: Any = None) -> Any:
    if self is None or other is None:
        return NotImplemented
    if isinstance(self, int | float) and isinstance(other, int | float):  # torch makes them float32 or int64
        kind = np.float32 if isinstance(self, float) or isinstance(other, float) else np.int64
        self, other = np.array(self, kind), np.array(other, kind)
    return lift.emit("Where", [truth(lift, condition), *operands(lift, self, other)])


@lifts("aten::masked_fill")
def masked_fill(lift: Builder, self: TensorValue, mask: Any, value: Any) -> Any:
    if is_tensor(value) and self.quantization is not None:
        filling = lift.emit("QuantizeLinear", [value], quantization=arguments.grid(self), dtype=self.dtype)
    elif is_tensor(value):
        filling = cast(lift, lift.tensor(value), self.dtype)
    else:
        filling = arguments.scalar_like(lift, self, arguments.number(lift, value))
    return lift.emit("Where", [truth(lift, mask), filling, self], quantization=arguments.grid(self))


@lifts({"aten::any": "ReduceMax", "aten::all": "ReduceMin"})
def some(lift: Builder, operator: str, self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Of no elements, ReduceMax of uint8 is 0, and ReduceMin 255. With an empty list, torch reduces no dimension."""
    result = truth(lift, self)
    if dim not in ([], ()):
        axes = arguments.axes(lift, dim)
        result = lift.emit(operator, [cast(lift, result, "uint8"), axes], {"keepdims": int(keepdim)})
    result = cast(lift, result, "bool")
    return cast(lift, result, "uint8") if lift.tensor(self).dtype == "uint8" else result
