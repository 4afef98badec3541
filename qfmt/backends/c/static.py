"""The network with every size known: what C needs before any layer is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DestinationError, QfmtError
from ...interpreter import trace
from ...model import DTYPES, Dimension, Model, Node, Quantization, Shape, Tensor, numpy_dtype, static_shape
from ...ops.quantization import is_static
from ...passes.likely import shape_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Shapes = Mapping[str, Sequence[int]]

C_TYPES = {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
"""Element types that C computes with, and how it calls them."""

INT32 = (1 << 31) - 1
"""The largest sum; and the most elements of a tensor, which are counted in int32."""

MOST = 1 << 26
"""The most elements of an input: the network is run once on it, to plan its memory."""

_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the network: fixed shape, element type as C stores it, and its array if it is known beforehand."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    quantization: Quantization | None
    array: Array | None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def zero_point(self) -> int:
        """The zero point of a tensor that has one for all; 0 where there is no quantization."""
        points = {0} if self.quantization is None else set(self.quantization.zero_point)
        if len(points) > 1:
            raise QfmtError(f"{self.name} has several zero points")
        return int(points.pop())

    @property
    def farthest(self) -> int:
        """How far an integer may be from the zero point."""
        return max(abs(limit - self.zero_point) for limit in self.limits)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and greatest integer that it may hold."""
        kind = np.iinfo(self.dtype)
        if self.quantization is None:
            return int(kind.min), int(kind.max)
        return max(int(kind.min), self.quantization.quant_min), min(int(kind.max), self.quantization.quant_max)

    @property
    def reach(self) -> tuple[int, int]:
        """The least and greatest integer that it does hold, where its array is known; else its limits."""
        return self.limits if self.array is None else (int(self.array.min(initial=0)), int(self.array.max(initial=0)))


@dataclass(frozen=True)
class Network:
    """A model whose sizes are fixed: values by name, and the nodes that are left to compute."""

    model: Model
    values: Mapping[str, Value]
    nodes: Sequence[Node]
    readers: Mapping[str, int]

    def value(self, name: str) -> Value:
        return self.values[name]


def fixed(model: Model, shapes: Shapes) -> Network:
    """The network run once, on inputs of the given shapes, to learn the shape of everything.

    What depends on constants and shapes alone is computed here and now, and so is what has no elements. A first
    dimension that has only a name is 1.
    """
    tensors = model.tensors
    if unknown := [name for name in shapes if name not in model.graph.inputs]:
        hint = f"its inputs are {', '.join(model.graph.inputs)}"
        raise DestinationError("is not an input of the network", where=unknown[0], hint=hint)
    kinds = {name: stored(tensors[name]) for name in model.graph.inputs}
    sizes = _input_shapes(model, shapes)
    known: dict[str, Array] = {}
    found = {name: Value(name, kinds[name], size, tensors[name].quantization, None)
             for name, size in sizes.items()}  # fmt: skip
    running: dict[str, Array] = {}
    nodes = []
    inputs = {name: _zeros(tensors[name], size) for name, size in sizes.items()}
    for node in trace(model, inputs, running):
        given = [name for name in node.inputs if name]
        settled = (
            node.operator in _OF_SHAPES
            or all(name in known or tensors[name].is_constant for name in given)
            or not any(running[name].size for name in node.outputs if name)
        )
        for name in node.outputs:
            if not name:
                continue
            array = running[name]
            if settled:
                known[name] = array
            found[name] = Value(name, stored(tensors[name], settled), array.shape, tensors[name].quantization,
                                array if settled else None)  # fmt: skip
        if not settled:
            nodes.append(node)
    for tensor in model.graph.constants():
        found[tensor.name] = Value(
            tensor.name, stored(tensor, True), static_shape(tensor), tensor.quantization, tensor.array
        )
    for value in found.values():
        if value.size > INT32:
            raise DestinationError(f"has {value.size} elements, more than int32 counts", where=value.name)
    readers = Counter(name for node in nodes for name in node.inputs if name)
    readers.update(model.graph.outputs)
    return Network(model, found, nodes, readers)


def stored(tensor: Tensor, constant: bool = False) -> str:
    """The type that C stores it in: 4 and 2 bits in 8, bool as uint8. DestinationError for floats, unless constant."""
    kind = DTYPES[tensor.dtype]
    if kind.kind not in "iub":
        if constant:
            return str(numpy_dtype(tensor.dtype))
        hint = "make the network integer-only first: `qfmt convert … --integer-only --exact`"
        raise DestinationError(f"is {tensor.dtype}, and a C program is integer-only", where=tensor.name, hint=hint)
    if kind.kind == "b":
        return "uint8"
    bits = max(8, kind.bits)
    return f"{'u' if kind.kind == 'u' else ''}int{bits}"


def _input_shapes(model: Model, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The shape of every input; DestinationError names all of them that are not settled, or one that cannot be."""
    tensors = [model.tensors[name] for name in model.graph.inputs]
    for tensor in tensors:
        if tensor.name in shapes and not _agrees(tensor.shape, shapes[tensor.name]):
            what = f"is {_spelled(tensor.shape or ())} in the network, so it cannot be {_spelled(shapes[tensor.name])}"
            raise DestinationError(what, where=tensor.name)
    given = {tensor.name: shapes.get(tensor.name, tensor.shape) for tensor in tensors}
    known = {name: None if shape is None else (*_first(shape), *shape[1:]) for name, shape in given.items()}
    found = {name: shape for name, shape in known.items() if is_static(shape)}
    if missing := [tensor for tensor in tensors if tensor.name not in found]:
        listed = ", ".join("of unknown rank" if (shape := known[tensor.name]) is None else _spelled(shape)
                           for tensor in missing)  # fmt: skip
        what = f"C needs inputs of fixed sizes, and {'this is' if len(missing) == 1 else 'these are'} {listed}"
        where = ", ".join(tensor.name for tensor in missing)
        raise DestinationError(what, where=where, hint=f"state all sizes, as in `{shape_options(model, '1')}`")
    for name, shape in found.items():
        if prod(shape) > MOST:
            raise DestinationError(f"has {prod(shape):,} elements; C is written for up to {MOST:,}", where=name)
    return found


def _first(shape: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """The first size: 1 where it has only a name."""
    return tuple(size if isinstance(size, int) else 1 for size in shape[:1])


def _agrees(shape: Shape, given: Sequence[Dimension]) -> bool:
    """Whether a shape of numbers is one that the tensor may have."""
    if shape is None:
        return True
    pairs = zip(shape, given, strict=False)
    return len(shape) == len(given) and all(not isinstance(size, int) or size == own for size, own in pairs)


def _spelled(shape: Sequence[Dimension]) -> str:
    return f"[{','.join(str(size or '?') for size in shape)}]"


def _zeros(tensor: Tensor, shape: tuple[int, ...]) -> Array:
    """Real zeros, or what is nearest to them in the range of the tensor."""
    grid = tensor.quantization
    point = 0 if grid is None or grid.has_float_zero_points else int(grid.zero_point[0])
    value = 0 if grid is None else min(max(point, grid.quant_min), grid.quant_max)
    return np.full(shape, value, numpy_dtype(tensor.dtype))
