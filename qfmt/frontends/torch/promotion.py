"""The type in which torch computes with two operands: torch's documentation, "Type promotion"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...model import DTYPES, numpy_dtype

if TYPE_CHECKING:
    from .building import Builder
    from .values import TensorValue


def operands(lift: Builder, a: Any, b: Any) -> tuple[TensorValue, TensorValue]:
    """Two operands, tensors or numbers, as tensors of one type; quantized ones are unchanged."""
    if isinstance(a, int | float) and not isinstance(b, int | float):
        y, x = _beside(lift, lift.tensor(b), a)
        return x, y
    x = lift.tensor(a)
    return _beside(lift, x, b) if isinstance(b, int | float) else _alike(lift, x, lift.tensor(b))


def _beside(lift: Builder, x: TensorValue, number: float) -> tuple[TensorValue, TensorValue]:
    kind = 0 if isinstance(number, bool) else 1 if isinstance(number, int) else 2
    if x.quantization is None and _kind(x.dtype) < kind:
        x = lift.emit("Cast", [x], {"to": ("bool", "int64", "float32")[kind]})
    return x, lift.constant(np.array(number).astype("float32" if x.quantization is not None else numpy_dtype(x.dtype)))


def _alike(lift: Builder, x: TensorValue, y: TensorValue) -> tuple[TensorValue, TensorValue]:
    if x.dtype == y.dtype or x.quantization is not None or y.quantization is not None:
        return x, y
    kinds, scalars = (_kind(x.dtype), _kind(y.dtype)), (x.shape == (), y.shape == ())
    if kinds[0] != kinds[1]:
        dtype = x.dtype if kinds[0] > kinds[1] else y.dtype
    elif scalars[0] != scalars[1]:
        dtype = y.dtype if scalars[0] else x.dtype
    else:
        dtype = _promoted(x.dtype, y.dtype)
    first, second = (each if each.dtype == dtype else lift.emit("Cast", [each], {"to": dtype}) for each in (x, y))
    return first, second


def _kind(dtype: str) -> int:
    """Bools, integers, floats."""
    return 0 if dtype == "bool" else 1 if DTYPES[dtype].is_integer else 2


def _promoted(a: str, b: str) -> str:
    return "float32" if {a, b} == {"float16", "bfloat16"} else np.promote_types(numpy_dtype(a), numpy_dtype(b)).name
