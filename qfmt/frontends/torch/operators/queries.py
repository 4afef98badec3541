"""Queries of code about a tensor. The lifter knows rank, dtype and quantization, and often sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import SourceError
from ....ops.shapes import axis_of
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import PLAIN_CODES, QUANTIZED_CODES, Quotient, Size, TensorValue, Unknown
from .logic import compared, is_tensor


@lifts("aten::size", "aten::sym_size", "prim::shape")
def size(lift: Builder, self: TensorValue, dim: Any = None) -> Any:
    if dim is not None:
        return shapes.size(lift, self, dim if dim >= 0 else axis_of(dim, shapes.rank(lift, self)))
    return shapes.sizes(lift, self)


@lifts("aten::dim", "prim::ndim")
def dim_(lift: Builder, self: Any) -> Any:
    return shapes.rank(lift, lift.tensor(self))


@lifts("aten::len")
def len_(lift: Builder, self: Any) -> Any:
    return shapes.size(lift, lift.tensor(self), 0)


@lifts("aten::numel")
def numel(lift: Builder, self: TensorValue) -> Any:
    total: Any = 1
    for item in size(lift, self):
        known = isinstance(item, int) and isinstance(total, int)
        total = total * item if known else shapes.arithmetic(lift, "Mul", total, item)
    return total


@lifts("prim::dtype")
def dtype(lift: Builder, self: TensorValue) -> int:
    lift.asked |= lift.undecided & {self.key}
    quantized = QUANTIZED_CODES.get(f"q{self.dtype}") if self.quantization is not None else None
    return PLAIN_CODES[self.dtype] if quantized is None else quantized


@lifts("prim::is_quantized")
def is_quantized(lift: Builder, self: Any) -> bool:
    return lift.tensor(self).quantization is not None


@lifts("aten::is_floating_point")
def is_floating_point(lift: Builder, self: TensorValue) -> bool:
    return self.quantization is None and "float" in self.dtype


@lifts({"aten::q_scale": "scale", "aten::q_zero_point": "zero_point"})
def q_parameter(lift: Builder, which: str, self: Any) -> Any:
    quantization = lift.tensor(self).quantization
    if quantization is None:
        raise SourceError("asks for the scale of a tensor that is not quantized")
    return getattr(quantization, which)[0]


@lifts("prim::device")
def device(lift: Builder, self: Any) -> str:
    return "cpu"


@lifts(
    *(f"prim::is_{kind}" for kind in ("cuda", "meta", "mkldnn", "nested", "sparse")),
    "prim::requires_grad",
    "aten::is_complex",
)
def never(lift: Builder, self: Any) -> bool:
    return False


@lifts("prim::is_cpu")
def always(lift: Builder, self: Any) -> bool:
    return True


@lifts("prim::layout")
def layout(lift: Builder, self: Any) -> int:
    """torch.strided: others are refused."""
    return 0


@lifts("aten::is_contiguous")
def is_contiguous(lift: Builder, self: Any, *args: Any, **kwargs: Any) -> Unknown:
    """Memory layouts are not kept."""
    return Unknown()


@lifts(
    {"aten::Int": True, "aten::IntImplicit": True},
    dict.fromkeys(
        ("prim::NumToTensor", "aten::Float", "aten::FloatImplicit", "aten::ScalarImplicit", "aten::item"), False
    ),
)  # fmt: skip
def number(lift: Builder, whole: bool, self: Any, **kwargs: Any) -> Any:
    """A size is unchanged; a constant tensor becomes its number; anything else depends on the data."""
    if isinstance(self, Size):
        return self
    if isinstance(self, Quotient):
        return self.towards_zero if whole else self
    if isinstance(self, Unknown) or (isinstance(self, TensorValue) and not lift.is_constant(self)):
        return Unknown()
    value = arguments.number(lift, self)
    return int(value) if whole else value


_DECISIONS = (
    "eq", "ne", "lt", "le", "gt", "ge", "Bool", "__and__", "__or__", "__not__", "__is__", "__isnot__", "__contains__",
)  # fmt: skip


@lifts({f"aten::{name}": name for name in _DECISIONS})
def compare(lift: Builder, name: str, *args: Any, **kwargs: Any) -> Any:
    """Decisions on sizes or data are unknown here; `is None` is known to be false, since a value exists."""
    if name in ("__is__", "__isnot__") and len(args) == 2:
        return (args[0] is args[1]) == (name == "__is__")
    if any(map(is_tensor, args[:2])) and len(args) == 2:
        return compared(lift, name, *args)
    return Unknown() if is_open(args) or name == "Bool" else NotImplemented


@lifts("prim::max", "prim::min")
def extreme(lift: Builder, *args: Any) -> Any:
    """Of numbers: known ones are compared before."""
    if not is_open(args):
        return NotImplemented
    raise SourceError("compares sizes that are not known", hint=shapes.hint(lift))


def is_open(values: Sequence[Any]) -> bool:
    """Whether a value, or an element of a list, is known only at run time."""
    return any(
        is_open(value) if isinstance(value, list | tuple) else isinstance(value, Size | Unknown) for value in values
    )
