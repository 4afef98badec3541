"""Modules whose weights are tensors of torchao: while one is traced, or exported, such a weight is plain tensors, and
its layer one call, `qfmt::quantized_linear`.

A trace of the unmodified module would contain torchao's implementation for this processor, not the operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ....errors import SourceError
from ..operators.torchao_linear import PARTS

if TYPE_CHECKING:
    import torch

LINEAR = "quantized_linear"

_ORIGINALS: dict[int, torch.Tensor] = {}
"""The weights of the module that is traced, by number."""


class Opened(NamedTuple):
    """A weight in parts: its tensors, and its description."""

    original: torch.Tensor
    parts: Mapping[str, torch.Tensor]
    told: str


@contextmanager
def opened(module: torch.nn.Module) -> Iterator[bool]:
    """A context in which a module can be traced: weights of torchao are plain tensors. Yields whether any exist.

    The name of each tensor is that of the weight and its own: `weight_qdata`, `weight_scale`. Reading the weight
    itself fails, which is better than integers that are used as real numbers.
    """
    weights = dict(_weights(module))
    if not weights:
        yield False
        return
    _register()
    before = [(owner, dict(owner._parameters), dict(owner._buffers)) for owner in weights]
    try:
        for owner, weight in weights.items():
            owner._parameters.pop("weight", None)
            owner._buffers.pop("weight", None)
            owner._buffers.update({f"weight_{part}": tensor for part, tensor in weight.parts.items()})
            owner.forward = partial(_forward, owner, weight.told)
        _ORIGINALS.update({json.loads(weight.told)["number"]: weight.original for weight in weights.values()})
        yield True
    finally:
        _ORIGINALS.clear()
        for owner, parameters, buffers in before:
            owner.__dict__.pop("forward", None)
            owner._parameters.clear()
            owner._parameters.update(parameters)
            owner._buffers.clear()
            owner._buffers.update(buffers)


def _weights(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, Opened]]:
    """The layers with such weights; a shared weight is one."""
    known: dict[int, Opened] = {}
    for path, owner in module.named_modules():
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if not any(base.__name__ == "TorchAOBaseTensor" for base in type(tensor).__mro__):
                continue
            where = f"{path}.{name}" if path else name
            if name != "weight" or not _is_linear(owner):
                what = f"is a torchao tensor in a {type(owner).__name__}; only linear layers are supported"
                raise SourceError(what, where=where, hint="quantize nn.Linear only")
            if id(tensor) not in known:
                known[id(tensor)] = _opened(where, tensor, len(known))
            yield owner, known[id(tensor)]


def _is_linear(module: torch.nn.Module) -> bool:
    import torch

    return type(module).forward is torch.nn.Linear.forward and "forward" not in module.__dict__


def _opened(where: str, tensor: Any, number: int) -> Opened:
    kind = type(tensor).__name__
    if not hasattr(tensor, "qdata"):
        raise SourceError(
            f"is a {kind}, which is not supported", where=where, hint="quantize with IntxWeightOnlyConfig"
        )
    names = (*tensor.tensor_attribute_names, *getattr(tensor, "optional_tensor_attribute_names", ()))
    told = {name: _encoded(getattr(tensor, name)) for name in names}
    parts = {name: getattr(tensor, name, None) for name in PARTS}
    text = json.dumps({"number": number, "kind": kind, "told": told})
    return Opened(tensor, {name: part for name, part in parts.items() if part is not None}, text)


def _forward(layer: Any, told: str, input: torch.Tensor) -> Any:
    """The `forward` of nn.Linear."""
    import torch

    parts = (layer._buffers.get(f"weight_{part}") for part in PARTS)
    return getattr(torch.ops.qfmt, LINEAR)(input, *parts, layer.bias, told)


def _encoded(value: Any) -> Any:
    """torchao's description for safetensors; other classes by name."""
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name
    if is_dataclass(value) and not isinstance(value, type):
        data = {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
        return {"_type": type(value).__name__, "_data": data}
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else str(value).removeprefix("torch.")


@cache
def _register() -> Any:
    """Define the call, which torch needs for tracing; the result is that of torchao."""
    import torch

    library: Any = torch.library.Library("qfmt", "FRAGMENT")  # type: ignore[no-untyped-call]
    parts = ", ".join(f"Tensor{'' if part == 'qdata' else '?'} {part}" for part in PARTS)
    library.define(f"{LINEAR}(Tensor x, {parts}, Tensor? bias, str told) -> Tensor")

    def linear(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        *_, bias, told = rest
        return torch.nn.functional.linear(x, _ORIGINALS[json.loads(told)["number"]], bias)

    def shaped(x: torch.Tensor, qdata: torch.Tensor, *_: Any) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], qdata.shape[0]))

    library.impl(LINEAR, linear, "CompositeExplicitAutograd")
    torch.library.register_fake(f"qfmt::{LINEAR}", shaped, lib=library)
    return library
