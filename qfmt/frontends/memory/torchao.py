"""Modules whose weights are tensors of torchao: while one is traced, such a weight is plain tensors, and the layer that
reads it one call, `qfmt::quantized_linear`.

A trace of the module as it is would hold how torchao computes on this processor, and not what.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import SourceError

if TYPE_CHECKING:
    import torch

PARTS = ("scale", "zero_point", "act_quant_scale", "act_quant_zero_point", "act_pre_scale")
"""The tensors of a weight besides `qdata`, in the order of the call's arguments."""

LINEAR = "quantized_linear"

_ORIGINALS: list[torch.Tensor] = []
"""The weights of the module that is traced; calls name them by their number."""


class Opened(NamedTuple):
    """A weight in parts: its integers, the rest, and what is told of it."""

    module: str
    original: torch.Tensor
    qdata: torch.Tensor
    parts: Mapping[str, torch.Tensor]
    told: str


@contextmanager
def opened(module: torch.nn.Module) -> Iterator[None]:
    """Within this context a module has plain tensors for the weights of torchao, and can be traced.

    The integers have the name of the weight, the other tensors of it that name and their own: `weight_scale`.
    """
    weights = list(_weights(module))
    if not weights:
        yield
        return
    _register()
    known: dict[int, Opened] = {}
    before = [(owner, dict(owner._parameters), dict(owner._buffers)) for owner, _, _ in weights]
    try:
        for owner, name, weight in weights:
            each = known.setdefault(id(weight.original), weight)  # tied weights are one
            owner._parameters.pop(name, None)
            owner._buffers[name] = each.qdata
            owner._buffers.update({f"{name}_{part}": tensor for part, tensor in each.parts.items()})
        _ORIGINALS[:] = [weight.original for weight in known.values()]
        with _calls({id(weight.qdata): weight for weight in known.values()}):
            yield
    finally:
        _ORIGINALS.clear()
        for owner, parameters, buffers in reversed(before):
            owner._parameters.clear()
            owner._parameters.update(parameters)
            owner._buffers.clear()
            owner._buffers.update(buffers)


def _weights(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, Opened]]:
    numbers: dict[int, Opened] = {}
    for path, owner in module.named_modules():
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if any(base.__name__ == "TorchAOBaseTensor" for base in type(tensor).__mro__):
                where = f"{path}.{name}" if path else name
                if id(tensor) not in numbers:
                    numbers[id(tensor)] = _opened(where, tensor, len(numbers))
                yield owner, name, numbers[id(tensor)]


def _opened(where: str, tensor: Any, number: int) -> Opened:
    kind = type(tensor).__name__
    if not hasattr(tensor, "qdata"):
        raise SourceError(f"is a {kind}, which is not read", where=where, hint="quantize with IntxWeightOnlyConfig")
    names = (*tensor.tensor_attribute_names, *getattr(tensor, "optional_tensor_attribute_names", ()))
    told = {name: _encoded(getattr(tensor, name)) for name in names}
    parts = {name: getattr(tensor, name, None) for name in PARTS}
    text = json.dumps({"number": number, "kind": kind, "told": told})
    return Opened(where, tensor, tensor.qdata, {name: part for name, part in parts.items() if part is not None}, text)


def _encoded(value: Any) -> Any:
    """As torchao describes it in safetensors; what it does not know there, by its name."""
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
    """The call, which torch has to know to trace it; the result is that of torchao."""
    import torch

    library: Any = torch.library.Library("qfmt", "FRAGMENT")  # type: ignore[no-untyped-call]
    parts = ", ".join(f"Tensor? {part}" for part in PARTS)
    library.define(f"{LINEAR}(Tensor x, Tensor weight, {parts}, Tensor? bias, str told) -> Tensor")

    def linear(x: torch.Tensor, _weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        *_, bias, told = rest
        return torch.nn.functional.linear(x, _ORIGINALS[json.loads(told)["number"]], bias)

    library.impl(LINEAR, linear, "CompositeExplicitAutograd")
    return library


def _calls(weights: Mapping[int, Opened]) -> Any:
    """What puts the call in the place of linear layers with such weights; SourceError for other uses of one."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Calls(TorchFunctionMode):
        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            weight = next((weights[id(each)] for each in (*args, *kwargs.values()) if id(each) in weights), None)
            if weight is None or getattr(func, "__name__", "") == "__get__":
                is_type = weight is not None and func == torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
                return weight.original.dtype if weight is not None and is_type else func(*args, **kwargs)
            if func is torch.nn.functional.linear:
                x, _, bias = _linear_arguments(*args, **kwargs)
                parts = (weight.parts.get(part) for part in PARTS)
                return getattr(torch.ops.qfmt, LINEAR)(x, weight.qdata, *parts, bias, weight.told)
            what = f"a weight of torchao is read by {getattr(func, '__name__', func)}; only linear layers are converted"
            raise SourceError(what, where=weight.module, hint="quantize nn.Linear only")

    return Calls()


def _linear_arguments(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    return input, weight, bias
