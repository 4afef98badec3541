"""The interface between PyTorch front ends and the lifter: a stream of operator calls on symbolic values.

A TorchScript evaluator, an FX walk, a module hook: each of them drives a `Recorder`, which returns
concrete Python values if it knows them, or `Value`s that are known only at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

from ...errors import SourceError, brief, damaged
from ..stored import StoredTensor

EVALUATE = "call model.eval() before saving, or convert with --eval-mode (in Python eval_mode=True)"
"""What to do with a network in training mode."""

MEANINGLESS = TypeError, ValueError, LookupError, AttributeError, ArithmeticError
"""Python's exceptions for values of a source that have the wrong type or are out of range."""


PYTHON = {
    "add": "aten::add", "sub": "aten::sub", "mul": "aten::mul", "floordiv": "aten::floor_divide",
    "truediv": "aten::div", "neg": "aten::neg", "mod": "aten::remainder", "pow": "aten::pow", "matmul": "aten::matmul",
    "eq": "aten::eq", "ne": "aten::ne", "lt": "aten::lt", "le": "aten::le", "gt": "aten::gt", "ge": "aten::ge",
    "getitem": "aten::__getitem__", "and_": "aten::__and__", "or_": "aten::__or__", "xor": "aten::__xor__",
    "invert": "aten::bitwise_not", "abs": "aten::abs",
}  # fmt: skip
"""Python's operators, by their names in the module `operator`."""


def meaningless(target: str, error: Exception) -> SourceError:
    """The error for a call with such values."""
    what = f"{target} gets invalid arguments ({type(error).__name__}: {str(error)[:100]})"
    return damaged(what)


class RejectedInputError(SourceError):
    """The code of the network raises an exception."""

    def __init__(self, message: Any) -> None:
        super().__init__(f"the network rejects its input: {brief(message, 300)}")


class Place(NamedTuple):
    """The place of a call in its source.

    `scope` is the module path of the current `self` ("features.0.0", "" for the root).
    """

    scope: str = ""
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """The place in error messages."""
        position = f"{self.file}:{self.line}" if self.file else ""
        return f"module {self.scope} ({position})" if self.scope and position else self.scope or position

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}" if self.file else ""
        return " ".join(part for part in (self.scope, position and f"({position})") if part) or "the root module"


class Value:
    """A value known only at run time: a tensor, a number, a list of unknown length.

    Recorders subclass it; evaluators pass it around and never look inside.
    """

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a symbolic value has no truth value")


@dataclass(slots=True, eq=False)
class Packed:
    """The parameters of one quantized convolution, linear or embedding, as PyTorch packs them.

    `kind` is "conv" (1d to 3d, by the length of `stride` and the weight's rank; PyTorch stores a 1d
    convolution as a 2d one of height 1), "linear", "linear_fp16" (float32 weight), "embedding" (`bits`
    4 or 8). `weight` is `[out, in/groups, *kernel]`, transposed `[in, out/groups, *kernel]`.
    `version` is that of the stored state, 0 if the code of the archive packed it.
    `path` is its place in the module tree ("fc._packed_params._packed_params"), `aliases` every
    other name.
    """

    kind: str
    weight: StoredTensor
    bias: StoredTensor | None = None
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    bits: int = 8
    version: int = 0
    path: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class PackedState:
    """A packed object without a specific record here: its TorchScript class, and its stored state.

    `class_name` is "rnn.CellParamsBase", "sparse.LinearPackedParamsBase", "xnnpack.Conv2dOpContext"…;
    packed objects within `state` are `Packed` already.
    """

    class_name: str
    state: Any
    path: str = ""
    aliases: tuple[str, ...] = ()


class Recorder(Protocol):
    """Receives every call that cannot be finished on concrete values."""

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        """Record one call, and return its result: concrete values if they are known, else `Value`s.

        Arguments are Python numbers, strings, None, lists, tuples, dicts, `StoredTensor`, `Packed`,
        `PackedState` and `Value`s, nested. Targets are "namespace::name": `ops.quantized.conv2d` is
        "quantized::conv2d", `torch.relu` is "aten::relu". Beyond those of PyTorch:

        - "prim::ListUnpack" (value, count): a sequence of `count` results, from a list or a tuple;
        - "aten::__getitem__" (value, index): an element of a list, tuple or dict;
        - "prim::TupleSlice" (value, start, stop): part of a tuple, start or stop None where open;
        - "aten::Int", "aten::Float", "aten::Bool" (value): `int(x)`, `float(x)`, `bool(x)`;
        - "prim::NAME" (value): the attribute `x.NAME`, such as "prim::shape".
        """
        ...


def keeps_state(what: str) -> SourceError:
    """The error for code that keeps state between runs."""
    hint = f"a .qfb holds a stateless network; if this one is in training mode: {EVALUATE}"
    return SourceError(f"the network changes {what} from one run to the next", hint=hint)
