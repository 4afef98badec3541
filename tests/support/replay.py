"""Recorders for the evaluator's tests: one only records calls, one has torch execute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from qfmt.frontends.stored import StoredTensor
from qfmt.frontends.torch import execution, program
from qfmt.frontends.torch.calls import Packed, PackedState, Place, Value

CODES = {
    torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.qint8: 12, torch.quint8: 13, torch.qint32: 14, torch.quint4x2: 16,
}  # fmt: skip


class Call(NamedTuple):
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: Place


class Unknown(Value):
    """An unknown value."""

    __slots__ = ()


class Notes:
    """Records calls; knows nothing except the rank that every tensor is assumed to have."""

    def __init__(self, rank: int | None = None) -> None:
        self.calls: list[Call] = []
        self.rank = rank

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        if target == "prim::ListUnpack":
            return tuple(Unknown() for _ in range(args[1]))
        if target == "aten::dim" and self.rank is not None:
            return self.rank
        if target == "aten::size" and len(args) == 1 and self.rank is not None:
            return [Unknown() for _ in range(self.rank)]
        self.calls.append(Call(target, args, kwargs, place))
        return Unknown()

    def packed(self) -> dict[int, Packed]:
        """Every packed object among the arguments of calls, once."""
        return {id(arg): arg for call in self.calls for arg in call.args if isinstance(arg, Packed)}


class Real(Value):
    """A tensor of torch."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Replay:
    """Has torch execute every call immediately, so that an evaluation returns the network's real output."""

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        real = [to_torch(arg) for arg in args]
        options = {key: to_torch(value) for key, value in kwargs.items()}
        if target in QUERIES:
            return QUERIES[target](*real)
        namespace, _, name = target.partition("::")
        if "dtype" in options:
            options["dtype"] = _dtype(options["dtype"])
        if name == "quantize_per_tensor":
            real[-1] = _dtype(real[-1])
        return from_torch(getattr(getattr(torch.ops, namespace), name)(*real, **options))


def _dtype(code: Any) -> Any:
    return next(dtype for dtype, known in CODES.items() if known == code) if isinstance(code, int) else code


QUERIES = {
    "prim::ListUnpack": lambda value, count: tuple(map(from_torch, value)),
    "prim::dtype": lambda x: CODES[x.dtype],
    "prim::device": lambda x: "cpu",
    "prim::is_cuda": lambda x: False,
    "prim::is_quantized": lambda x: x.is_quantized,
    "aten::dim": lambda x: x.dim(),
    "aten::len": lambda x: len(x),
    "aten::size": lambda x, *dim: x.size(*dim) if dim else list(x.size()),
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::wait": lambda x: Real(x),
}


def from_torch(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Real(value)
    return type(value)(map(from_torch, value)) if isinstance(value, list | tuple) else value


def to_torch(value: Any) -> Any:
    """The torch object for any value of an evaluation."""
    match value:
        case Real():
            return value.tensor
        case StoredTensor() | Packed() | PackedState():
            return execution.made(program.made(value))
        case dict():
            return {key: to_torch(element) for key, element in value.items()}
        case list() | tuple():
            return type(value)(map(to_torch, value)) if type(value) in (list, tuple) else tuple(map(to_torch, value))
    return value


def assert_equal(ours: Any, theirs: Any) -> int:
    """Assert that nested results are equal bit by bit; return the number of compared elements."""
    if isinstance(theirs, torch.Tensor):
        assert ours.shape == theirs.shape
        assert torch.equal(
            ours.int_repr() if ours.is_quantized else ours, theirs.int_repr() if theirs.is_quantized else theirs
        )
        return ours.numel()
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        return sum(map(assert_equal, ours, theirs))
    if isinstance(theirs, Mapping):
        assert list(ours) == list(theirs)
        return sum(assert_equal(ours[key], theirs[key]) for key in theirs)
    assert ours == theirs and type(ours) is type(theirs)
    return 1
