"""PyTorch's packed parameters: from their stored states (v1, v2, v3), and from the operators that pack.

Layouts: `conv_serialization.h`, `linear_prepack.cpp`, `qembeddingbag_prepack.cpp` and `rnn.cpp` in
aten/src/ATen/native/quantized of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....budget import Budget
from ....errors import SourceError, damaged
from ...harmless import Inert
from ...stored import StoredTensor
from ..calls import Packed, PackedState

CLASSES = "__torch__.torch.classes."
"""The prefixes of the names of PyTorch's own classes."""

PICKLED = "torch.ScriptObject", "torch._C.ScriptObject"
"""The class of a packed object in a file of torch.save."""


def from_state(class_name: str, state: Any) -> Packed | PackedState:
    """A packed object from its stored state; `class_name` is "quantized.Conv2dPackedParamsBase" or the like.

    Classes without a specific record become a PackedState. Raises SourceError for a state that does
    not have the form of its class.
    """
    match class_name, state:
        case "quantized.Conv2dPackedParamsBase" | "quantized.Conv3dPackedParamsBase", tuple():
            return _conv_state(state)
        case "quantized.LinearPackedParamsBase", (StoredTensor() as weight, StoredTensor() | None as bias):
            return _linear(weight, bias, version=1)
        case "quantized.EmbeddingPackedParamsBase", (int(version), [StoredTensor() as weight], _, [int(bits)]):
            return Packed("embedding", weight, bits=bits, version=version)
        case "quantized.LinearPackedParamsBase" | "quantized.EmbeddingPackedParamsBase", _:
            raise SourceError(f"{class_name} has a state in a form that no version of PyTorch wrote")
    return PackedState(class_name, state)


def unpacked(value: Inert, budget: Budget) -> Packed | PackedState:
    """The packed parameters of a `torch.ScriptObject`."""
    match value.state:
        case (state, str(qualified)) if qualified.startswith(CLASSES):
            return from_state(qualified.removeprefix(CLASSES), _live(state, budget))
    raise damaged("a packed object does not state its class")


def _live(state: Any, budget: Budget) -> Any:
    """A state with its packed objects restored."""
    if isinstance(state, Inert) and state.class_name in PICKLED:
        return unpacked(state, budget)
    if isinstance(state, list | tuple):
        budget.hold(len(state))  # a pickle may refer to one list many times
        return type(state)(_live(part, budget) for part in state)
    return state


def _conv_state(state: tuple[Any, ...]) -> Packed:
    match state:
        case (
            "2",
            [StoredTensor(shape=(7 | 11 | 15,)) as config, StoredTensor() as weight],
            [StoredTensor() | None as bias],
        ):
            return _configured(config.array().tolist(), weight, bias, version=2)
        case (3, [*config], [_, StoredTensor() as weight, StoredTensor() | None as bias]):
            return _configured(config, weight, bias, version=3)
        case (StoredTensor() as weight, StoredTensor() | None as bias, [*strides], [*pads], [*dilations], groups):
            rank = len(strides)
            numbers = [_number(value) for value in (*strides, *pads, *dilations, *[0] * rank, groups, 0)]
            return _configured([rank, *numbers], weight, bias, version=1)
    raise SourceError("packed convolution parameters have a form that no version of PyTorch wrote")


def _configured(config: Sequence[Any], weight: StoredTensor, bias: StoredTensor | None, version: int) -> Packed:
    """`config`: rank; that many each of stride, padding, dilation and output padding; groups; flags (1: transposed)."""
    rank = config[0] if config and all(isinstance(number, int) for number in config) else 0
    if not 1 <= rank <= 3 or len(config) != 4 * rank + 3:
        raise SourceError("packed convolution parameters have an invalid geometry")
    stride, padding, dilation, output_padding = (config[1 + i * rank : 1 + (i + 1) * rank] for i in range(4))
    groups, flags = config[-2:]
    return _conv(weight, bias, stride, padding, dilation, output_padding, groups, bool(flags & 1), version)


def _conv(
    weight: StoredTensor,
    bias: StoredTensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    transposed: bool,
    version: int = 0,
) -> Packed:
    _check(weight, bias)
    rank = len(weight.shape) - 2
    if rank == 1:  # PyTorch reads the first number of each; its module has two of `padding` if it does not pad by zeros
        stride, padding, dilation, output_padding = (each[:1] for each in (stride, padding, dilation, output_padding))
    geometry = (stride, padding, dilation, output_padding)
    numbers = (groups, *(number for numbers in geometry for number in numbers))
    if any(len(numbers) != rank for numbers in geometry) or not all(isinstance(number, int) for number in numbers):
        raise SourceError(f"a convolution of weight {list(weight.shape)} has a geometry that does not fit")
    height = rank == 1  # PyTorch packs a 1d convolution as a 2d one of height 1
    return Packed(
        kind="conv",
        weight=weight.unsqueeze(2) if height else weight,
        bias=bias,
        stride=(1, *stride) if height else tuple(stride),
        padding=(0, *padding) if height else tuple(padding),
        dilation=(1, *dilation) if height else tuple(dilation),
        output_padding=(0, *output_padding) if height else tuple(output_padding),
        groups=groups,
        transposed=transposed,
        version=version,
    )


def _linear(weight: StoredTensor, bias: StoredTensor | None, version: int = 0) -> Packed:
    _check(weight, bias)
    return Packed("linear" if weight.quantizer else "linear_fp16", weight, bias, version=version)


def _check(weight: Any, bias: Any) -> None:
    if not isinstance(weight, StoredTensor) or not isinstance(bias, StoredTensor | None):
        raise SourceError("packs something other than a weight and a bias of the file")


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, StoredTensor) else value


# -- operators of the archive's code -------------------------------------------------------------------


def _prepack_conv(
    weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any, output_padding: Any = None
) -> Any:
    return _conv(weight, bias, stride, padding, dilation, output_padding or [0] * len(stride), groups, False)


def _prepack_conv_transpose(
    weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: Any
) -> Any:
    return _conv(weight, bias, stride, padding, dilation, output_padding, groups, True)


def _prepack_embedding(weight: Any) -> Any:
    return Packed("embedding", weight, bits=4 if weight.dtype == "uint4" else 8)


def _dynamic_cell(w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, reduce_range: bool = False) -> PackedState:
    state: Any = ("quantized_dynamic", [b_ih, b_hh], [], [int(reduce_range)], [w_ih, w_hh])
    return PackedState("rnn.CellParamsBase", state)


def _half_cell(w_ih: Any, w_hh: Any) -> PackedState:
    return PackedState("rnn.CellParamsBase", ("quantized_fp16", [], [], [], [w_ih, w_hh]))


def _unpack(packed: Packed) -> Any:
    return packed.weight if packed.kind == "embedding" else (packed.weight, packed.bias)


def _unpack_1d(packed: Packed) -> Any:
    return packed.weight.squeeze(2), packed.bias


_PREPACK: Mapping[str, Callable[..., Any]] = {
    **{f"quantized::{name}_prepack": _prepack_conv for name in ("conv", "conv1d", "conv2d", "conv3d")},
    **{f"quantized::conv_transpose{rank}d_prepack": _prepack_conv_transpose for rank in (1, 2, 3)},
    "quantized::linear_prepack": _linear,
    "quantized::linear_prepack_fp16": _linear,
    "quantized::embedding_bag_prepack": _prepack_embedding,
}

_UNPACK: Mapping[str, Callable[[Packed], Any]] = {
    **{f"quantized::{name}_unpack": _unpack for name in ("conv", "conv2d", "conv3d", "linear", "embedding_bag")},
    **{f"quantized::conv_transpose{rank}d_unpack": _unpack for rank in (2, 3)},
    "quantized::conv1d_unpack": _unpack_1d,
    "quantized::conv_transpose1d_unpack": _unpack_1d,
    "quantized::linear_unpack_fp16": _unpack,
}

_CELLS: Mapping[str, Callable[..., PackedState]] = {
    "quantized::make_quantized_cell_params_dynamic": _dynamic_cell,
    "quantized::make_quantized_cell_params_fp16": _half_cell,
}

_METHODS: Mapping[str, Callable[[Packed], Any]] = {
    "unpack": _unpack,
    "weight": lambda packed: packed.weight,
    "bias": lambda packed: packed.bias,
    "stride": lambda packed: list(packed.stride),
    "padding": lambda packed: list(packed.padding),
    "output_padding": lambda packed: list(packed.output_padding),
    "dilation": lambda packed: list(packed.dilation),
    "groups": lambda packed: packed.groups,
    "transpose": lambda packed: packed.transposed,
    "bit_rate": lambda packed: packed.bits,
    "version": lambda packed: packed.version,
}


def apply(target: str, arguments: Sequence[Any]) -> Any:
    """The result of an operator that packs, unpacks or queries packed parameters; NotImplemented for others.

    Packing something that is not stored in the archive (a computed weight) is NotImplemented, too.
    """
    if target in _PREPACK and isinstance(arguments[0], StoredTensor):
        return _PREPACK[target](*arguments)
    if target in _CELLS:
        return _CELLS[target](*arguments)
    if target in _UNPACK and isinstance(arguments[0], Packed):
        return _UNPACK[target](arguments[0])
    kind, _, question = target.rpartition("_")
    if kind.startswith("quantized::conv") and question in _METHODS and isinstance(arguments[0], Packed):
        return _METHODS[question](arguments[0])
    return NotImplemented


def method(packed: Packed | PackedState, name: str) -> Any:
    """The result of a method of a packed object."""
    if isinstance(packed, Packed) and name in _METHODS:
        return _METHODS[name](packed)
    kind = packed.kind if isinstance(packed, Packed) else packed.class_name
    raise SourceError(f"the code reads from packed {kind} parameters `{name}`, which is not supported")
