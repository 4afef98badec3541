"""Questions that code asks about a tensor. The lifter knows rank, dtype and quantization; sizes often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import SourceError
from ...ops.shapes import axis_of
from .lift import Lifter, lifts
from .logic import compared, is_tensor
from .sizes import Size, Unknown, size_arithmetic
from .values import DTYPE_CODES, TensorValue


@lifts("aten::size", "aten::sym_size", "prim::shape")
def size(lift: Lifter, self: Any, dim: Any = None) -> Any:
    x = lift.tensor(self)
    if dim is not None:
        return lift.size(x, dim if dim >= 0 else axis_of(dim, lift.rank(x)))
    return [lift.size(x, axis) for axis in range(lift.rank(x))]


@lifts("aten::dim", "prim::ndim")
def dim_(lift: Lifter, self: Any) -> Any:
    return lift.rank(lift.tensor(self))


@lifts("aten::len")
def len_(lift: Lifter, self: Any) -> Any:
    return lift.size(lift.tensor(self), 0)


@lifts("aten::numel")
def numel(lift: Lifter, self: Any) -> Any:
    total: Any = 1
    for item in size(lift, self):
        known = isinstance(item, int) and isinstance(total, int)
        total = total * item if known else size_arithmetic(lift, "Mul", total, item)
    return total


@lifts("prim::dtype")
def dtype(lift: Lifter, self: Any) -> int:
    x = lift.tensor(self)
    codes = {"int8": 12, "uint8": 13, "int32": 14} if x.quantization is not None else {}
    plain = {name: code for code, name in DTYPE_CODES.items() if code < 12 or code == 15}
    return {**plain, **codes}[x.dtype]


@lifts("prim::is_quantized")
def is_quantized(lift: Lifter, self: Any) -> bool:
    return lift.tensor(self).quantization is not None


@lifts("aten::is_floating_point")
def is_floating_point(lift: Lifter, self: Any) -> bool:
    x = lift.tensor(self)
    return x.quantization is None and "float" in x.dtype


@lifts("aten::q_scale", "aten::q_zero_point")
def q_parameter(lift: Lifter, self: Any) -> Any:
    quantization = lift.tensor(self).quantization
    if quantization is None:
        raise SourceError("asks for the scale of a tensor that is not quantized")
    return quantization.scale[0] if lift.target == "aten::q_scale" else quantization.zero_point[0]


@lifts("prim::device")
def device(lift: Lifter, self: Any) -> str:
    return "cpu"


@lifts("prim::is_cuda", "prim::is_mkldnn", "prim::is_sparse", "prim::requires_grad", "aten::is_contiguous")
def never(lift: Lifter, self: Any, *args: Any, **kwargs: Any) -> bool:
    return lift.target == "aten::is_contiguous"


@lifts(
    "prim::NumToTensor",
    "aten::Int",
    "aten::Float",
    "aten::IntImplicit",
    "aten::FloatImplicit",
    "aten::ScalarImplicit",
    "aten::scalar_tensor",
    "aten::item",
)
def number(lift: Lifter, self: Any, **kwargs: Any) -> Any:
    """A size stays what it is; a constant tensor gives its number; anything else depends on the data."""
    if isinstance(self, Size):
        return self
    if isinstance(self, TensorValue) and not lift.is_constant(self):
        return Unknown()
    value = lift.number(self)
    return int(value) if lift.target in ("aten::Int", "aten::IntImplicit") else value


@lifts(
    "aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::Bool",
    "aten::__and__", "aten::__or__", "aten::__not__", "aten::__is__", "aten::__isnot__", "aten::__contains__",
    "aten::remainder", "aten::floor", "aten::ceil", "aten::min", "aten::max",
)  # fmt: skip
def compare(lift: Lifter, *args: Any, **kwargs: Any) -> Any:
    """Decisions on sizes or data are unknown here; `is None` is not: a value exists."""
    if lift.target in ("aten::__is__", "aten::__isnot__") and len(args) == 2:
        return (lift.target == "aten::__isnot__") if None in args or args[0] is not args[1] else Unknown()
    if any(map(is_tensor, args[:2])) and len(args) == 2:
        return compared(lift, _name(lift.target), *args)
    return Unknown() if _is_open(args) or lift.target == "aten::Bool" else NotImplemented


def _name(target: str) -> str:
    """Without namespace, and without the mark of what is done in place."""
    name = target.partition("::")[2]
    return name if name.endswith("__") else name.rstrip("_")


def _is_open(values: Sequence[Any]) -> bool:
    """Whether a value, or an element of a list among them, is known only when the network runs."""
    return any(
        _is_open(value) if isinstance(value, list | tuple) else isinstance(value, Size | Unknown) for value in values
    )
