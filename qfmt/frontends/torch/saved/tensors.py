"""Tensors without a graph as a Model: every one under its own name, with its quantization.

For a module `fc1`, a state_dict has its weight, and `fc1.scale` and `fc1.zero_point`, the quantization of its
output. The latter becomes a tensor `fc1` without shape and data. Packed parameters become the weight and
bias that they were packed from, and keep their name as an alias. The quantization of the input of a layer with a
torchao weight becomes a tensor `fc1.input` of the same kind if it is static, else a source key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from math import isfinite, prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ....budget import Budget
from ....errors import SourceError
from ....model import DTYPES, Graph, Model, Quantization, Tensor
from ...content import is_module
from ...harmless import Inert, ShownKey, Subclass, first_form, members, parts, plain
from ...stored import PerTensor, Storage, StoredTensor
from ..calls import Packed, PackedState
from ..torchao import Weight, of_pickle
from ..torchscript import packing
from ..torchscript.objects import owner
from ..values import StoredData, narrowest, stored_quantization
from .fake_quantized import joined
from .tree import HOLDERS, tree
from .tree import state as state_of

IN_MEMORY = "convert the module in memory: qfmt.convert(model, example_inputs=(x,))"

VISIT, ENTRY_BYTES = 5, 500
"""Operations of a lookup by name, and bytes of memory for a tensor."""

LOOK = 8
"""Elements of a list, most of which are no tensors, that are looked at in the time of an operation."""

WEIGHT = 200
"""Operations to examine a weight of torchao, besides its elements; one may have many names."""

_INNER = re.compile(r"(?:^|\.)_packed_params(?:\._packed_weight|\.weight|\.bias|\._packed_params)?$")


class Entry(NamedTuple):
    """A tensor, a number that PyTorch keeps as one, or a quantization; and its names, of which the first is its own."""

    name: str
    value: StoredTensor | Weight | Quantization | Tensor | float | int
    aliases: tuple[str, ...] = ()


def tensors_only(state: Mapping[Any, Any], source: Mapping[str, str], budget: Budget) -> Model:
    """A Model without nodes of the contents of `state`: tensors, packed parameters, and what contains them.

    A single dict of tensors among other objects (`{"state_dict": …, "epoch": 3}`) counts as the whole; the longer
    names are aliases. Optimizers, and whatever else is no tensor, are omitted.
    """
    entries = joined(_unnested(state, budget), budget)
    budget.tensor(len(entries))
    return of_entries(entries, source)


def of_entries(several: Sequence[Entry], source: Mapping[str, str]) -> Model:
    """The same for tensors, each with its names; SourceError if two have the same name."""
    entries = {entry.name: entry for entry in several}
    if len(entries) != len(several) or "" in entries:
        raise SourceError(
            "has a tensor without a name, or two with the same name", hint="give every tensor its own name"
        )
    outputs = {tensor.name: tensor for tensor in _outputs(entries)}
    tensors = outputs | {
        name: _constant(entry)
        for name, entry in entries.items()
        if not (name.endswith((".scale", ".zero_point")) and name.rpartition(".")[0] in outputs)
    }
    graph = Graph((), (), (), {name: tensors[name] for name in sorted(tensors)})
    return Model(graph, source={**source, **_dynamic(several)})


def stored_tensors(state: Mapping[Any, Any], budget: Budget) -> dict[str, StoredTensor]:
    """The plain tensors of a state by name, without an outer dict that only wraps them."""
    return {entry.name: entry.value for entry in _unnested(state, budget) if isinstance(entry.value, StoredTensor)}


def holds_tensors(state: Mapping[Any, Any], budget: Budget) -> bool:
    """Whether it contains anything that `tensors_only` keeps."""
    walk = _Walk(state, budget)
    for key, value in _children(state):
        walk.visit(_spelled(key), value)
    return bool(walk.entries)


def _unnested(state: Mapping[Any, Any], budget: Budget) -> list[Entry]:
    """The entries of a state, without an outer dict that only wraps them."""
    prefix = ""
    while True:
        walk, filled = _Walk(state, budget), []
        for key, value in _children(state):
            before = len(walk.entries)
            walk.visit(_spelled(key), value)
            if len(walk.entries) > before:
                filled.append(key)
        inner: Any = state.get(filled[0]) if len(filled) == 1 else None
        if not isinstance(plain(inner), dict):
            break
        prefix += f"{_spelled(filled[0])}."
        state = members(inner) if isinstance(inner, Inert) else inner
    entries = walk.entries
    if not entries:
        raise SourceError("contains no tensors", hint="there is nothing to convert")
    if prefix:
        entries = [_also_below(prefix, entry) for entry in entries]
    return entries


def _also_below(prefix: str, entry: Entry) -> Entry:
    """The entry with its longer names, too."""
    names = (entry.name, *entry.aliases)
    return entry._replace(aliases=(*entry.aliases, *(prefix + name for name in names)))


# -- entries of a state ---------------------------------------------------------------------------------------


def _spelled(key: Any) -> str:
    """A key in a name."""
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)


def _children(value: Mapping[Any, Any] | Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The elements of a container that may contain tensors, or are the scale or zero point of a module; and keys that
    may contain tensors."""
    for key, element in value.items() if isinstance(value, Mapping) else enumerate(value):
        is_parameter = type(element) in (int, float) and f".{key}".endswith((".scale", ".zero_point"))
        if isinstance(element, HOLDERS) or is_parameter:
            yield key, element
        if isinstance(key, ShownKey) and isinstance(key.key, HOLDERS):
            yield f"{key}.key", key.key


class _Walk:
    """Collects every tensor of a state, and counts: a pickle may refer to one object many times."""

    def __init__(self, state: Mapping[Any, Any], budget: Budget) -> None:
        self._root = id(state)
        self.entries: list[Entry] = []
        self._budget = budget
        self._known: set[int] = set()

    def visit(self, name: str, value: Any) -> None:
        """Add what is at a name, and below it. Not recursive: objects may form long chains."""
        waiting = [(self._root, iter([(name, value)]))]
        around = {self._root}
        while waiting:
            for inner in waiting[-1][1]:
                if (found := id(inner[1])) not in around:  # no cycle
                    waiting.append((found, self._inside(*inner, is_first=len(waiting) == 1)))
                    around.add(found)
                    break
            else:
                around.discard(waiting.pop()[0])

    def _inside(self, name: str, value: Any, is_first: bool) -> Iterator[tuple[str, Any]]:
        """Add a tensor; of other values, what they contain, with its names."""
        self._budget.spend(VISIT)
        self._budget.allocate(len(name))
        packed = _packed(name, value, self._budget)
        if packed is not None:
            for entry in _parts(name, packed, self._budget):
                self._budget.allocate(len(entry.name))
                self.entries.append(entry)
        elif isinstance(value, Subclass):
            self._budget.spend(WEIGHT + len(value.state or ()))
            self.entries += weight_entries(name, placed(name, of_pickle, value, self._budget))
        elif isinstance(value, StoredTensor):
            self._budget.allocate(ENTRY_BYTES)
            own = _own_name(name)
            self.entries.append(Entry(own, value, (name,) if own != name else ()))
        elif isinstance(value, Storage):
            yield name, value.whole()
        elif (old := first_form(value)) is not None:
            yield name, old
        elif isinstance(value, Inert) and value.class_name.startswith("torch._utils._rebuild_"):
            what = value.class_name.removeprefix("torch._utils._rebuild_").replace("_", " ")
            raise SourceError(
                f"not supported: a {what}", where=name, hint="save a dense tensor: tensor.cpu().to_dense()"
            )
        elif is_module(value):
            if self._is_new(value) or is_first:
                yield name, state_of(tree(value, self._budget))
        elif isinstance(value, Inert) and any(isinstance(each, Storage) for each in value.arguments):
            what = f"not supported: a tensor that {value.class_name[:100]} creates"
            raise SourceError(what, where=name, hint="save a tensor of PyTorch's own class")
        elif isinstance(value, Inert):
            if not value.class_name.startswith("torch.optim."):
                yield name, self._members(value)
        elif type(value) in (int, float):
            if isinstance(value, float) or abs(value) < 1 << 63:
                self.entries.append(Entry(name, value))
        elif isinstance(value, dict | list | tuple):
            self._budget.spend(len(value) // LOOK)
            for key, element in _children(value):
                yield f"{name}.{_spelled(key)}", element

    def _members(self, value: Inert) -> Any:
        """What an object contains; at later visits its items only, as objects may form cycles."""
        if not self._is_new(value):
            return value.items or ()
        self._budget.hold(sum(len(held) for _, held in parts(value) if isinstance(held, Sized)))
        return members(value)

    def _is_new(self, value: Inert) -> bool:
        known = id(value) in self._known
        self._known.add(id(value))
        return not known


def placed(name: str, read: Callable[..., Weight], *arguments: Any) -> Weight:
    """A weight that is read, with its name in the error if it cannot be."""
    try:
        return read(*arguments)
    except SourceError as error:
        raise error.at(name) from None


def weight_entries(name: str, weight: Weight, aliases: Mapping[str, str] = MappingProxyType({})) -> Iterator[Entry]:
    """A weight of torchao, and what belongs to the input of its layer. `aliases`: names of its parts in the source."""
    of_input = ("act_pre_scale", "act_quant_scale", "act_quant_zero_point")
    yield Entry(name, weight, tuple(alias for part, alias in aliases.items() if part not in of_input))
    if weight.pre_scale is not None:
        module, _, own = name.rpartition(".")
        yield Entry(aliases.get("act_pre_scale", f"{module}._{own}_act_pre_scale"), weight.pre_scale)
    if weight.activation is not None and weight.activation.grid is not None:
        known = tuple(aliases[part] for part in of_input[1:] if part in aliases)
        yield Entry(f"{name.removesuffix('.weight')}.input", weight.activation.grid, known)


def _own_name(name: str) -> str:
    """Weights and biases of packed parameters that were saved without being packed belong to the module."""
    if not _INNER.search(name):
        return name
    part = "bias" if name.endswith(".bias") else "weight"
    return f"{owner(name.removesuffix(f'.{part}'))}{part}"


def _packed(name: str, value: Any, budget: Budget) -> Packed | PackedState | None:
    """Packed parameters: an object of one of PyTorch's classes, or `Linear`'s form in a state_dict."""
    if isinstance(value, Packed | PackedState):
        return value
    if isinstance(value, Inert) and value.class_name in packing.PICKLED:
        return packing.unpacked(value, budget)
    if name.endswith("_packed_params") and isinstance(value, tuple) and len(value) == 2:
        return packing.from_state("quantized.LinearPackedParamsBase", value)
    return None


def _parts(name: str, packed: Packed | PackedState, budget: Budget) -> Iterator[Entry]:
    """Weight and bias of packed parameters; all parts of other classes."""
    if isinstance(packed, PackedState):
        yield from _cell(name, packed, budget)
        return
    module = owner(name)
    inner = f"{module}_packed_params"
    aliases = (name, inner) if name.startswith(inner) else (name,)
    yield Entry(f"{module}weight", packed.weight, tuple(dict.fromkeys(aliases)))
    if packed.bias is not None:
        yield Entry(f"{module}bias", packed.bias)


def _cell(name: str, packed: PackedState, budget: Budget) -> Iterator[Entry]:
    """The parameters of a recurrent cell, by the names of PyTorch's float cell; others by number."""
    match packed.state:
        case (str(), [StoredTensor() as b_ih, StoredTensor() as b_hh], [], _, [Packed() as w_ih, Packed() as w_hh]):
            parts: Sequence[tuple[str, Any]] = (
                ("weight_ih", w_ih.weight), ("weight_hh", w_hh.weight), ("bias_ih", b_ih), ("bias_hh", b_hh),
            )  # fmt: skip
        case (str(), [], [], _, [Packed() as w_ih, Packed() as w_hh]):
            parts = (
                ("weight_ih", w_ih.weight), ("weight_hh", w_hh.weight), ("bias_ih", w_ih.bias), ("bias_hh", w_hh.bias),
            )  # fmt: skip
        case (str(), [w_ih, w_hh, b_ih, b_hh, *_], [float(s_ih), float(s_hh)], [int(z_ih), int(z_hh)], _):
            quantized = _quantized(w_ih, s_ih, z_ih), _quantized(w_hh, s_hh, z_hh)
            parts = (("weight_ih", quantized[0]), ("weight_hh", quantized[1]), ("bias_ih", b_ih), ("bias_hh", b_hh))
        case state:
            parts = [(str(index), part) for index, part in enumerate(_flat(state, budget))]
    for part, tensor in parts:
        if isinstance(tensor, StoredTensor):
            yield Entry(f"{name}.{part}", tensor)


def _quantized(weight: Any, scale: float, zero_point: int) -> Any:
    """The weight of a cell of PyTorch 1.3 to 1.5, whose scale is stored separately."""
    return replace(weight, quantizer=PerTensor(scale, zero_point)) if isinstance(weight, StoredTensor) else None


def _flat(state: Any, budget: Budget) -> Iterator[Any]:
    budget.hold(1)  # a list may be in many places
    if isinstance(state, list | tuple):
        for part in state:
            yield from _flat(part, budget)
    elif isinstance(state, Packed):
        yield from (state.weight, state.bias)
    else:
        yield state


# -- quantization of outputs and inputs ----------------------------------------------------------------------


def _outputs(entries: Mapping[str, Entry]) -> Iterator[Tensor]:
    """How modules quantize their outputs, if there is a scale and a zero point other than PyTorch's
    defaults 1.0 and 0, which belong to modules that were never calibrated, or that quantize dynamically."""
    for name, entry in entries.items():
        module, _, last = name.rpartition(".")
        other = entries.get(f"{module}.zero_point")
        if last != "scale" or not module or other is None or module in entries:
            continue
        if f"{module}.fake_quant_enabled" in entries:  # it is off, or not known for which integers (`joined`)
            continue
        scale, zero_point = _number(entry.value, "f"), _number(other.value, "i")
        if scale is None or zero_point is None or not (isfinite(scale) and scale > 0) or (scale, zero_point) == (1, 0):
            continue
        dtype = "int8" if zero_point < 0 else "uint8"  # not stated; PyTorch's kernels use quint8, and rarely qint8
        if DTYPES[dtype].minimum <= zero_point <= DTYPES[dtype].maximum:
            grid = Quantization.per_tensor(scale, int(zero_point), dtype, scale_dtype=narrowest(scale))
            yield Tensor(module, dtype, None, None, grid)


def _dynamic(entries: Sequence[Entry]) -> dict[str, str]:
    """A source key: which weights belong to layers that quantize their input at run time, and how."""
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        activation = entry.value.activation if isinstance(entry.value, Weight) else None
        if activation is not None and activation.grid is None:
            kinds.setdefault(str(activation), []).append(entry.name)
    words = (f"{kind}: {' '.join(sorted(names))}" for kind, names in sorted(kinds.items()))
    return {"dynamic_inputs": "; ".join(words)} if kinds else {}


def _number(value: StoredTensor | Weight | Quantization | Tensor | float | int, kind: str) -> float | int | None:
    """A scale or zero point of one element as a number; None for any other tensor."""
    if isinstance(value, int | float):
        return value if kind == "f" or isinstance(value, int) else None
    if not isinstance(value, StoredTensor):
        return None
    if prod(value.shape) != 1 or value.dtype not in DTYPES or DTYPES[value.dtype].kind != kind or value.quantizer:
        return None
    number = value.item()
    return number if isinstance(number, int | float) else None


def _constant(entry: Entry) -> Tensor:
    aliases = tuple(sorted({*entry.aliases} - {entry.name, ""}))
    if isinstance(entry.value, Weight):
        return entry.value.tensor(entry.name, aliases)
    if isinstance(entry.value, Tensor):
        return replace(entry.value, aliases=aliases)
    if isinstance(entry.value, Quantization):
        return Tensor(entry.name, "int8", None, None, entry.value, aliases)
    if not isinstance(entry.value, StoredTensor):
        array = np.asarray(entry.value, "int64" if isinstance(entry.value, int) else narrowest(entry.value))
        return replace(Tensor.constant(entry.name, array), aliases=aliases)
    value = entry.value
    if value.dtype not in DTYPES:
        raise SourceError(f"a tensor of {value.dtype} cannot be stored", where=entry.name, hint="remove it")
    return Tensor(entry.name, value.dtype, value.shape, StoredData(value), stored_quantization(value), aliases)
