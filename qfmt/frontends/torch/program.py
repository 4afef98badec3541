"""The calls of a network as plain data that qfmt read: torch can execute them without the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...arrays import Array
from ...errors import QfmtError, RunError
from ..isolation.wire import record
from ..stored import PerTensor, StoredTensor
from .calls import Packed, PackedState, Place, Value
from .lifter import Lifter
from .values import TensorValue

if TYPE_CHECKING:
    from ...model import Quantization


@record
class Slot(NamedTuple):
    """The slot of a run-time value: the key of the lifter's tensor, or a number for anything else."""

    key: str | int


class Tape:
    """A recorder before the lifter: it passes every call on, and keeps those that must be computed at run time.

    A copy that torch makes has the key of the original in the lifter. It has a slot of its own: a call may change it.
    """

    def __init__(self, lifter: Lifter) -> None:
        self.lifter = lifter
        self.calls: list[Call] = []
        """With the constants themselves in the arguments."""
        self._kept: list[Value] = []  # an id is unique only as long as its object lives
        self._filled: set[str] = set()
        self._copies: dict[int, str] = {}
        """The keys of handles, by id, that had been filled before."""

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        """See `calls.Recorder`."""
        given, options = self._noted(args), self._noted(kwargs)  # before in-place operators change the handles
        result = self.lifter.call(target, args, kwargs, place)
        self._find_copies(result, args)
        noted = self._noted(result)
        if _holds_slot(noted):
            self.calls.append(Call(target, given, options, noted, str(place)))
        for whole, before in self.lifter.rewritten:
            slot = self._slot(whole, before)
            self.calls.append(Call("aten::alias", [slot], {}, self._noted(whole), str(place)))
        return result

    def _find_copies(self, result: Any, args: Sequence[Any]) -> None:
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, TensorValue) and value.key in self._filled and all(value is not arg for arg in args):
                self._kept.append(value)
                self._copies[id(value)] = value.key

    def _slot(self, value: TensorValue, key: str) -> Slot:
        """The slot of a handle that has, or had, this key."""
        self._filled.add(key)
        return Slot(id(value) if self._copies.get(id(value)) == key else key)

    def _noted(self, value: Any) -> Any:
        if isinstance(value, TensorValue):
            return self._slot(value, value.key)
        if isinstance(value, Value):
            self._kept.append(value)
            return Slot(id(value))
        if isinstance(value, list | tuple):
            return [self._noted(item) for item in value] if isinstance(value, list) else tuple(map(self._noted, value))
        if isinstance(value, Mapping):
            return {key: self._noted(item) for key, item in value.items()}
        return value


def _holds_slot(value: Any) -> bool:
    if isinstance(value, Slot):
        return True
    return isinstance(value, list | tuple) and any(map(_holds_slot, value))


@record
class Constant(NamedTuple):
    """The index of a constant of the program."""

    place: int


@record
class Stored(NamedTuple):
    """A tensor: its elements, one a byte if they are narrower, and scale and zero point if it is quantized.

    These are numbers for one per tensor, arrays along `axis` for others. `dtype` is the element type in torch.
    """

    array: Array
    dtype: str
    scale: Any = None
    zero_point: Any = None
    axis: int | None = None


@record
class Made(NamedTuple):
    """Packed parameters: the result of a packing operator of torch."""

    target: str
    args: Sequence[Any]


@record
class Call(NamedTuple):
    """One call. Arguments hold Slots and Constants, the result Slots; `place` is for messages."""

    target: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    place: str


@record
class Program(NamedTuple):
    """The input of the worker. `engine` is that of quantized operators, "" for any; `wanted` are keys of tensors."""

    engine: str
    constants: Sequence[Stored | Made]
    calls: Sequence[Call]
    wanted: Sequence[str]


def program(tape: Tape, engine: str, wanted: Sequence[str]) -> Program:
    """The calls on a tape. RunError, at its place, for packed parameters that cannot be made here."""
    constants: list[Stored | Made] = []
    known: dict[int, Constant] = {}

    def noted(value: Any) -> Any:
        if isinstance(value, StoredTensor | Packed | PackedState):
            if id(value) not in known:
                known[id(value)] = Constant(len(constants))
                constants.append(made(value))
            return known[id(value)]
        if isinstance(value, Slot):
            return value
        if isinstance(value, list | tuple):
            return [noted(item) for item in value]
        return {key: noted(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    calls = []
    for call in tape.calls:
        try:
            args, kwargs = noted(call.args), noted(call.kwargs)
        except QfmtError as error:
            raise error.at(call.place) from None
        calls.append(call._replace(args=args, kwargs=kwargs))
    return Program(engine, constants, calls, wanted)


def given(array: Array, quantization: Quantization | None) -> Stored:
    """An input of the graph in torch's form: floats, or integers with their scale and zero point."""
    if quantization is None:
        return Stored(array, array.dtype.name)
    return Stored(array, array.dtype.name, quantization.scale[0], int(quantization.zero_point[0]))


def made(value: Any) -> Stored | Made:
    """A stored tensor or packed parameters, as the data that torch makes them from."""
    match value:
        case StoredTensor():
            return _stored(value)
        case Packed():
            return _packed(value)
        case PackedState(state=("quantized_dynamic", [b_ih, b_hh], _, [*reduce_range], [w_ih, w_hh])):
            parts = (made(w_ih), made(w_hh), made(b_ih), made(b_hh), bool(sum(reduce_range)))
            return Made("quantized::make_quantized_cell_params_dynamic", parts)
        case PackedState(state=("quantized_fp16", _, _, _, [w_ih, w_hh])):
            return Made("quantized::make_quantized_cell_params_fp16", (made(w_ih), made(w_hh)))
    kind = value.class_name if isinstance(value, PackedState) else type(value).__name__
    raise RunError(f"packed parameters of the class {kind} are not supported")


def _stored(tensor: StoredTensor) -> Stored:
    array, quantizer = tensor.array(), tensor.quantizer
    if quantizer is None:
        return Stored(array, tensor.dtype)
    if isinstance(quantizer, PerTensor):
        return Stored(array, tensor.dtype, quantizer.scale, quantizer.zero_point)
    return Stored(array, tensor.dtype, quantizer.scale.array(), quantizer.zero_point.array(), quantizer.axis)


def _packed(packed: Packed) -> Made:
    weight, bias = _stored(packed.weight), None if packed.bias is None else _stored(packed.bias)
    if packed.kind == "embedding":
        return Made("quantized::embedding_bag_prepack", (weight,))
    if packed.kind != "conv":
        return Made(f"quantized::{packed.kind.replace('linear', 'linear_prepack')}", (weight, bias))
    geometry: list[Any] = [list(packed.stride), list(packed.padding), list(packed.dilation), packed.groups]
    if packed.transposed:
        geometry.insert(2, list(packed.output_padding))
    kind = f"conv{'_transpose' if packed.transposed else ''}{np.ndim(weight.array) - 2}d_prepack"
    return Made(f"quantized::{kind}", (weight, bias, *geometry))
