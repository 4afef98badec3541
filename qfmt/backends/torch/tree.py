"""The constants of a Model as a tree of modules, each a buffer at the path of its name; and the inverse."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import torch
from torch import nn

from ...model import DTYPES, Model, Node, Quantization, Tensor
from ...notation import by
from ...passes.constants import unused
from .values import to_array, to_tensor


class Layer(nn.Module):
    """A module of the source: it contains parameters, and its repr lists the outputs of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def extra_repr(self) -> str:
        return "\n".join(self._lines)


@dataclass(frozen=True)
class _Taken:
    """The names that a new buffer of a module cannot have: the name, or NAME_KEY for a key of `beside`, is in use."""

    module: nn.Module
    beside: Iterable[str]

    def __contains__(self, name: object) -> bool:
        names = (str(name), *(f"{name}_{key}" for key in self.beside))
        return iskeyword(names[0]) or any(hasattr(self.module, each) for each in names)


class Paths:
    """The path in a tree of modules at which each constant becomes a buffer: its name, or a similar one."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self._layers: dict[str, tuple[str, Any]] = {"": ("", root)}

    def layer(self, name: str) -> tuple[str, Any]:
        """The module of that dotted name, made if there is none, and its path."""
        if name not in self._layers:
            parent_name, last = _split(name)
            path, parent = self.layer(parent_name)
            last = self._free(parent, last)
            child = Layer()
            parent.add_module(last, child)
            self._layers[name] = (f"{path}.{last}".lstrip("."), child)
        return self._layers[name]

    def buffer(self, name: str, value: torch.Tensor, **beside: torch.Tensor) -> str:
        """Register a buffer under a dotted name, and those of `beside` as NAME_KEY; returns its path."""
        parent_name, last = _split(name)
        path, parent = self.layer(parent_name)
        last = self._free(parent, last, beside)
        parent.register_buffer(last, value)
        for key, each in beside.items():
            parent.register_buffer(f"{last}_{key}", each)
        return f"{path}.{last}".lstrip(".")

    @staticmethod
    def _free(module: nn.Module, name: str, beside: Iterable[str] = ()) -> str:
        """The name, or a similar one that the module does not already use.

        fx writes names verbatim into the code of `forward`: the name of a tensor must stay a name there.
        """
        known = unicodedata.normalize("NFKC", name)
        name = "".join("_" if c in FORBIDDEN or not c.isprintable() else c for c in known) or "_"
        return unused(name, _Taken(module, beside))


FORBIDDEN = '"\\.'
"""Characters that end a string in Python or separate names."""

DEPTH = 64
"""The deepest nesting of modules; a name with more parts is one name."""


def _split(name: str) -> tuple[str, str]:
    parent, _, last = name.rpartition(".")
    return (parent, last) if name.count(".") < DEPTH else ("", name)


def register(paths: Paths, tensor: Tensor) -> str:
    """The path of the buffer of a constant; its scales and zero points are next to it."""
    values = to_tensor(tensor.array, tensor.dtype)
    if tensor.quantization is None:
        return paths.buffer(tensor.name, values)
    scale, zero_point = _parameters(tensor.quantization)
    return paths.buffer(tensor.name, values, scale=scale, zero_point=zero_point)


def _parameters(q: Quantization) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points; in their own type, if there is more to them than numbers per tensor or per channel."""
    if not q.is_affine:
        return to_tensor(q.scale.array, q.scale.dtype), to_tensor(q.zero_point.array, q.zero_point.dtype)
    shape = (-1,) if q.is_per_channel else ()
    scales = torch.tensor(q.scale.numbers(), dtype=torch.float64).reshape(shape)
    kind = torch.float64 if q.has_float_zero_points else torch.int64
    return scales, torch.tensor(q.each_zero_point, dtype=kind).reshape(shape)


def _quantization(q: Quantization, scale: torch.Tensor, zero_point: torch.Tensor) -> Quantization:
    """The inverse: the tensor's quantization `q` with the numbers of these buffers."""
    if not q.is_affine:
        return q.with_values(to_array(scale, q.scale_dtype), to_array(zero_point, q.zero_point.dtype))
    return q.with_values(scale.tolist(), zero_point.tolist())


def from_buffers(tensor: Tensor, path: str, buffers: Mapping[str, torch.Tensor]) -> Tensor:
    """The inverse of `register`: the tensor with the current values of the buffers."""
    q = tensor.quantization
    if q is not None:
        q = _quantization(q, buffers[f"{path}_scale"], buffers[f"{path}_zero_point"])
    array = to_array(buffers[path], tensor.dtype)
    return Tensor.constant(tensor.name, array, q, dtype=tensor.dtype, aliases=tensor.aliases)


def describe(paths: Paths, model: Model) -> None:
    """A line for each node, in the module of the source that it came from."""
    for node in model.nodes:
        _, layer = paths.layer(node.scope)
        layer._lines.append(_line(node, model))


def _line(node: Node, model: Model) -> str:
    if not node.outputs:  # of an unknown operator
        return node.operator
    out = model.tensors[node.outputs[0]]
    said = [node.operator.removeprefix("qfmt."), out.dtype]
    if out.quantization is not None:
        said.append(_grid(out.quantization, out.dtype))
    for key in ("kernel_shape", "strides", "pads", "dilations", "group"):
        value = node.attributes.get(key)
        if value is not None and any(item != _USUAL[key] for item in (value if isinstance(value, tuple) else (value,))):
            said.append(f"{key}={value}")
    return ", ".join(said)


_USUAL = {"kernel_shape": None, "strides": 1, "pads": 0, "dilations": 1, "group": 1}


def _grid(q: Quantization, dtype: str) -> str:
    if q.is_blocked:
        return f"scales of blocks of {by(q.block)}"
    scale = f"scale={q.scale[0]:.6g}, zero_point={q.zero_point[0]}" if q.axis is None else f"scales along axis {q.axis}"
    limits = DTYPES[dtype]
    whole = (q.quant_min, q.quant_max) == (limits.minimum, limits.maximum)
    return scale if whole else f"{scale}, range={q.quant_min}..{q.quant_max}"
