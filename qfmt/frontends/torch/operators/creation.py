"""Torch's functions that create a tensor of one value, or a range of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from ....errors import SourceError
from ....graph import MAXIMUM_RANK
from ....model import DTYPES, numpy_dtype
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import Refine, Size, TensorValue
from .logic import cast

ELEMENTS = 1 << 24
"""The most elements of a tensor of one value that becomes a constant."""


def filled(lift: Builder, sizes: Any, value: float, dtype: str) -> TensorValue:
    """A tensor of one value; its sizes may be known only at run time."""
    if not isinstance(sizes, list | tuple):
        raise SourceError("creates a tensor whose sizes are not known", hint=shapes.hint(lift))
    shape = [size if isinstance(size, Size) else arguments.whole(lift, size) for size in sizes]
    _require_few(shape)
    try:
        scalar = np.array(value, numpy_dtype(dtype))
    except (ValueError, OverflowError):
        raise SourceError(f"creates a tensor of {dtype} from {value}") from None
    result = lift.emit("Expand", [scalar, shapes.shape_tensor(lift, shape)])
    if not lift.is_constant(result):
        shapes.know(lift, result, [size.dimension if isinstance(size, Size) else size for size in shape])
    return result


def _require_few(shape: Sequence[Any]) -> None:
    known = [size for size in shape if isinstance(size, int)]
    if len(shape) > MAXIMUM_RANK or min(known, default=0) < 0 or prod(max(size, 1) for size in known) > ELEMENTS:
        raise SourceError(f"creates a tensor of the sizes {known}", hint=f"at most {ELEMENTS} elements are created")


def is_zero(lift: Builder, value: TensorValue) -> bool:
    """Whether a tensor contains only zeros: a constant of zeros, or `torch.zeros` of any size."""
    key = value.key
    while key in lift.makers and lift.makers[key].operator == "Expand":
        lift.budget.spend()
        key = lift.makers[key].inputs[0]
    known = lift.known(key)
    return known is not None and not known.any()


def _dtype(code: Any, default: str = "float32") -> str:
    return default if code is None else arguments.dtype(code)


@lifts("aten::arange")
def arange(lift: Builder, *bounds: Any, dtype: Any = None, **options: Any) -> Any:
    """(end), (start, end) or (start, end, step)"""
    bounds += tuple(options[name] for name in ("start", "end", "step") if name in options)
    if not 1 <= len(bounds) <= 3:
        return NotImplemented
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    whole = all(isinstance(each, Size) or isinstance(arguments.number(lift, each), int) for each in (start, end, step))
    kind = _dtype(dtype, "int64" if whole else "float32")
    if any(isinstance(each, Size) for each in (start, end, step)):
        return lift.emit("Range", [_scalar(lift, each, kind) for each in (start, end, step)])
    first, last, by = (arguments.number(lift, each) for each in (start, end, step))
    if kind == "int64":
        first, last, by = int(first), int(last), int(by)
    if not by or not abs(last - first) <= ELEMENTS * abs(by):
        raise SourceError(
            f"creates numbers from {first:g} to {last:g} in steps of {by:g}", hint=f"at most {ELEMENTS} are created"
        )
    count = max(ceil((last - first) / by), 0)  # of the numbers before they are converted to the type
    lift.budget.allocate(count * 8)
    if DTYPES[kind].is_integer:
        first, by = int(first), int(by)
    return lift.constant((first + by * np.arange(count)).astype(numpy_dtype(kind)))


def _scalar(lift: Builder, value: Any, dtype: str) -> TensorValue:
    """A number, or a size, as a tensor without dimensions."""
    if not isinstance(value, Size):
        return lift.constant(np.array(arguments.number(lift, value), numpy_dtype(dtype)))
    size = lift.emit("Squeeze", [value.build(), lift.constant(np.array([0], np.int64))])
    return size if dtype == "int64" else lift.emit("Cast", [size], {"to": dtype})


@lifts({"aten::zeros": 0, "aten::ones": 1})
def of_one_number(lift: Builder, value: int, size: Any, dtype: Any = None, *place: Any, **options: Any) -> Any:
    return filled(lift, size, value, _dtype(dtype))


@lifts("aten::full")
def full(lift: Builder, size: Any, fill_value: Any, dtype: Any = None, *place: Any, **options: Any) -> Any:
    value = arguments.number(lift, fill_value)
    default = "bool" if isinstance(value, bool) else "float32" if isinstance(value, float) else "int64"
    return filled(lift, size, value, _dtype(dtype, default))


@lifts("aten::scalar_tensor")
def scalar_tensor(lift: Builder, s: Any, dtype: Any = None, *place: Any, **options: Any) -> Any:
    return s if isinstance(s, Size) else lift.constant(np.array(arguments.number(lift, s), numpy_dtype(_dtype(dtype))))


@lifts("aten::tensor")
def tensor(lift: Builder, data: Any, *, dtype: Any = None, **options: Any) -> Any:
    """Of a number or nested lists of numbers, which are float32 or int64 by default; of a vector also sizes."""
    if isinstance(data, Size):
        return _scalar(lift, data, _dtype(dtype, "int64"))
    if isinstance(data, list | tuple) and any(isinstance(each, Size) for each in data):
        return cast(lift, shapes.shape_tensor(lift, data), _dtype(dtype, "int64"))
    try:
        array = np.array(_numbers(lift, data))
    except ValueError:  # lists of different lengths, or nested deeper than an array may be
        return NotImplemented
    kinds = {"b": "bool", "i": "int64", "f": "float32"}
    if array.dtype.kind not in kinds or not array.size:  # of none, the type of the list is not known
        return NotImplemented
    return lift.constant(array.astype(numpy_dtype(_dtype(dtype, kinds[array.dtype.kind]))))


def _numbers(lift: Builder, data: Any) -> Any:
    """Nested lists of known numbers; the same list may be in many places."""
    if not isinstance(data, list | tuple):
        return arguments.number(lift, data)
    lift.budget.hold(len(data))
    return [_numbers(lift, each) for each in data]


@lifts("aten::eye")
def eye(lift: Builder, n: Any, m: Any = None, *place: Any, dtype: Any = None, **options: Any) -> Any:
    shape = [arguments.whole(lift, size) for size in (n, n if m is None else m)]
    _require_few(shape)
    kind = numpy_dtype(_dtype(dtype))
    lift.budget.compute(prod(shape), prod(shape) * kind.itemsize)
    return lift.constant(np.eye(*shape, dtype=kind))


@lifts({"aten::zeros_like": 0, "aten::ones_like": 1, "aten::full_like": None})
def like(lift: Builder, value: int | None, self: TensorValue, *args: Any, dtype: Any = None, **options: Any) -> Any:
    if self.key in lift.undecided:  # torch fills no quantized tensors
        raise Refine(lift.wanted[self.key], self.shape, is_real=True)
    if self.quantization is not None:
        return NotImplemented
    number: float | None = value
    if number is None:
        number = arguments.number(lift, options.pop("fill_value", args[0] if args else 0))
        args = args[1:]
    sizes = shapes.sizes(lift, self)
    return filled(lift, sizes, number, _dtype(args[0] if args else dtype, self.dtype))


@lifts({"aten::new_zeros": 0, "aten::new_ones": 1})
def new(lift: Builder, value: int, self: Any, size: Any, dtype: Any = None, *place: Any, **options: Any) -> Any:
    return filled(lift, size, value, _dtype(dtype, lift.dtype_like(lift.tensor(self))))
