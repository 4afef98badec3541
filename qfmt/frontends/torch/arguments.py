"""Interpret the arguments of torch calls: numbers, quantized tensors, the quantization of results, and the type in
which torch computes with two operands (torch's documentation, "Type promotion").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import DTYPES, Quantization, numpy_dtype
from ...notation import in_shell
from ..stored import StoredTensor
from .building import Builder
from .values import DTYPE_CODES, Refine, TensorValue, UnknownNumber, narrowest


def number(lift: Builder, value: Any) -> int | float:
    """A scalar that is already known: a number, or a stored tensor of one element."""
    if isinstance(value, StoredTensor):
        value = value.item()
    if isinstance(value, TensorValue) and (known := lift.known(value.key)) is not None:
        array = known
        if array.size != 1:
            raise SourceError(f"{lift.target} gets a tensor of {array.size} elements where a number is needed")
        value = array.item()
    if isinstance(value, bool | int | float):
        return value
    raise UnknownNumber(f"{lift.target} has a number argument that is known only at run time")


def whole(lift: Builder, value: Any) -> int:
    """An integer that is already known."""
    known = number(lift, value)
    if known != known or abs(known) == float("inf") or int(known) != known:
        raise SourceError(f"{lift.target} is called with {known} where an integer is needed")
    return int(known)


def flag(lift: Builder, value: Any) -> int:
    """A bool that is already known, as the attribute of an operator: 0 or 1."""
    return int(bool(number(lift, value)))


def quantized(lift: Builder, value: Any) -> tuple[TensorValue, Quantization]:
    """An argument that must be quantized, and its quantization."""
    x = lift.tensor(value)
    if x.quantization is not None:
        return x, x.quantization
    what = "gets an input that is not quantized"
    if x.origin:
        in_python = f"in Python, input_quantization={{{x.origin!r}: (scale, zero_point, 'uint8')}}"
        stated = in_shell("--input-quantization", f"{x.origin}=SCALE,ZERO_POINT")
        hint = f"declare a quantized input with {stated}; {in_python}"
        raise SourceError(what, hint=hint)
    raise SourceError(what)


def indices(lift: Builder, value: Any) -> TensorValue:
    """An argument of integers that count rows or elements. An input that they come from becomes int64."""
    x = lift.tensor(value)
    if DTYPES[x.dtype].is_integer and x.quantization is None:
        return x
    source = _float_origin(lift, x.key) if x.quantization is None else ""
    if source:
        raise Refine(lift.wanted[source], lift.tensors[source].shape, dtype="int64")
    hint = "if an input has integers, state them: --input-dtype NAME=int64"
    raise SourceError(f"gets {x.dtype} where integer counts are required", hint=hint)


def scalar_like(lift: Builder, value: TensorValue, number: float) -> TensorValue:
    """A scalar constant of the dtype of a tensor, on its grid if it has one."""
    if value.quantization is None:
        try:
            return lift.constant(np.array(number, numpy_dtype(value.dtype)))
        except OverflowError:
            raise SourceError(f"uses {number} beside {value.dtype}, which cannot represent it") from None
    scalar = lift.constant(np.array(number, np.float32))
    return lift.emit("QuantizeLinear", [scalar], quantization=grid(value), dtype=value.dtype)


def quantization(lift: Builder, scale: Any, zero_point: Any, dtype: str) -> Quantization:
    """The quantization of an output, with the fused ReLU of the current call as its quant_min."""
    scale, zero_point = float(number(lift, scale)), int(number(lift, zero_point))
    low = zero_point if lift.fused_relu else None
    return Quantization.per_tensor(scale, zero_point, dtype, quant_min=low, scale_dtype=narrowest(scale))


def grid(value: TensorValue) -> Quantization | None:
    """The grid of a tensor for a result on it: the whole range, without the tensor's ReLU."""
    if value.quantization is None:
        return None
    limits = DTYPES[value.dtype]
    return replace(value.quantization, quant_min=limits.minimum, quant_max=limits.maximum)


def require_no_relu(value: TensorValue, number: float, what: str) -> None:
    """SourceError for a number below the range of a tensor with a fused ReLU, which the nodes after it keep."""
    q = value.quantization
    if q is not None and q.quant_min > DTYPES[value.dtype].minimum and number < 0:
        raise SourceError(f"{what} {number}, below the range of the ReLU before it, which is not supported")


def dtype(code: Any) -> str:
    """An element type by c10's code."""
    if not isinstance(code, int) or code not in DTYPE_CODES:
        raise SourceError(f"computes in the element type {str(code)[:20]} (c10::ScalarType), which is not supported")
    return DTYPE_CODES[code]


def axes(lift: Builder, dim: Any) -> TensorValue | None:
    """The axes of a reduction; None for all."""
    if dim is None or dim == []:
        return None
    return lift.constant(np.array(dim if isinstance(dim, list | tuple) else [dim], np.int64))


def _float_origin(lift: Builder, key: str) -> str:
    """An input of the graph that a tensor has its float type from; "" if there is none."""
    seen, waiting = set[str](), [key]
    while waiting:
        lift.budget.spend()
        if (key := waiting.pop()) in lift.inputs:
            return key
        node = lift.makers.get(key)
        if key not in seen and node is not None and node.operator != "Cast":
            kind = lift.tensors[key].dtype
            waiting += [each for each in node.inputs if each and lift.tensors[each].dtype == kind]
        seen.add(key)
    return ""


def operands(lift: Builder, a: Any, b: Any) -> tuple[TensorValue, TensorValue]:
    """Two operands, tensors or numbers, as tensors of one type; quantized ones are unchanged."""
    if isinstance(a, int | float) and not isinstance(b, int | float):
        y, x = _beside(lift, lift.tensor(b), a)
        return x, y
    x = lift.tensor(a)
    return _beside(lift, x, b) if isinstance(b, int | float) else _pair(lift, x, lift.tensor(b))


def _beside(lift: Builder, x: TensorValue, number: float) -> tuple[TensorValue, TensorValue]:
    kind = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
    if x.quantization is None and _kind(x.dtype) < kind:
        x = lift.emit("Cast", [x], {"to": ("bool", "int64", "float32")[kind]})
    return x, lift.constant(np.array(number).astype("float32" if x.quantization is not None else numpy_dtype(x.dtype)))


def alike(lift: Builder, values: Sequence[TensorValue]) -> list[TensorValue]:
    """Tensors that one operator joins or compares, all cast to the type that torch promotes them to.

    A tensor without dimensions counts only if its kind is higher. Unchanged if some are quantized.
    """
    if not values or any(value.quantization is not None for value in values):
        return [*values]
    scalars, others = (
        [value.dtype for value in values if (value.shape == ()) == is_scalar] for is_scalar in (True, False)
    )
    dtype = reduce(_wider, others or scalars)
    if scalars and _kind(widest := reduce(_wider, scalars)) > _kind(dtype):
        dtype = widest
    return [value if value.dtype == dtype else lift.emit("Cast", [value], {"to": dtype}) for value in values]


def _kind(dtype: str) -> int:
    """Bools, integers, floats."""
    return 0 if dtype == "bool" else 1 if DTYPES[dtype].is_integer else 2


def _pair(lift: Builder, x: TensorValue, y: TensorValue) -> tuple[TensorValue, TensorValue]:
    first, second = alike(lift, (x, y))
    return first, second


def _wider(a: str, b: str) -> str:
    """The type for both: that of the higher kind; of one kind, one that has the numbers of both."""
    if _kind(a) != _kind(b):
        return a if _kind(a) > _kind(b) else b
    return "float32" if {a, b} == {"float16", "bfloat16"} else np.promote_types(numpy_dtype(a), numpy_dtype(b)).name
