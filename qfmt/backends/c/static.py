"""The network with every size known, which C requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...arrays import Array
from ...budget import Budget
from ...errors import DestinationError, FormatError, QfmtError
from ...model import DTYPES, INT32, Dimension, Model, Node, Quantization, Shape, Tensor, numpy_dtype, static_shape
from ...ops import OPERATORS, Trait, has, known
from ...ops.quantization import is_static
from ...passes.constants import computed
from ...passes.likely_shapes import shape_options
from ...passes.sizes import inferred
from ...rules import meaning_violations
from .names import comment

Shapes = Mapping[str, Sequence[int]]

C_TYPES = {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
"""Element types that C computes with, and their C names."""

MOST = 1 << 26
"""The most elements of an input."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the network: fixed shape, element type in C, and its array if it is already known."""

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
        """The zero point of a tensor that has a single one; 0 without a quantization."""
        points = {0} if self.quantization is None else set(self.quantization.zero_point)
        if len(points) > 1:
            raise QfmtError(f"reads {comment(self.name)}, which has more than one zero point")
        return int(points.pop())

    @property
    def farthest(self) -> int:
        """The largest distance of an integer from the zero point."""
        return max(abs(limit - self.zero_point) for limit in self.limits)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and greatest integer that it may contain."""
        kind = np.iinfo(self.dtype)
        if self.quantization is None:
            return int(kind.min), int(kind.max)
        return max(int(kind.min), self.quantization.quant_min), min(int(kind.max), self.quantization.quant_max)

    @property
    def reach(self) -> tuple[int, int]:
        """The least and greatest integer of its array, if that is known; else its limits."""
        return self.limits if self.array is None else (int(self.array.min(initial=0)), int(self.array.max(initial=0)))


@dataclass(frozen=True)
class Network:
    """A model whose sizes are fixed: values by name, the remaining nodes, and those that read each value.

    `budget` is that of writing it.
    """

    model: Model
    values: Mapping[str, Value]
    nodes: Sequence[Node]
    readers: Mapping[str, Sequence[Node]]
    budget: Budget

    def value(self, name: str) -> Value:
        return self.values[name]


def fixed(model: Model, shapes: Shapes) -> Network:
    """The network with all shapes, derived by the shape rules of its operators.

    Nodes that depend only on constants and shapes are computed here, and so are tensors without elements. A first
    dimension that has only a name is 1.
    """
    if unknown := [name for name in shapes if name not in model.graph.inputs]:
        hint = f"its inputs are {', '.join(model.graph.inputs)}"
        raise DestinationError("is not an input of the network", where=unknown[0], hint=hint)
    tensors = dict(model.tensors)
    for name in model.graph.inputs:
        stored(tensors[name])
    tensors |= {name: replace(tensors[name], shape=size) for name, size in _input_shapes(model, shapes).items()}
    budget = Budget.of(model, "writing C for a network of")
    nodes, found = [], dict.fromkeys((*model.graph.inputs, *(tensor.name for tensor in model.graph.constants())))
    for node in model.graph.nodes:
        budget.node()
        outputs = _shaped(node, tensors)
        tensors.update(outputs)
        if broken := meaning_violations(node.title, node, tensors):  # sizes were open when rules were checked
            raise DestinationError(f"{broken[0].what}, with these sizes", where=f"node {node.title}")
        if _is_settled(node, outputs, tensors):
            outputs = _settled(node, outputs, tensors, budget)
        else:
            nodes.append(node)
        tensors.update(outputs)
        found.update(dict.fromkeys(outputs))
    values = {name: _value(tensors[name]) for name in found}
    return Network(model, values, nodes, replace(model.graph, nodes=nodes).readers(), budget)


def _shaped(node: Node, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a node, with their shapes."""
    try:
        shapes = inferred(node, tensors)
    except FormatError:
        raise
    except QfmtError as error:
        raise DestinationError(error.what, where=f"node {node.title}", hint=error.hint) from None
    outputs = {}
    for index, name in enumerate(node.outputs):
        shape = shapes[index] if index < len(shapes) else None
        shape = shape if is_static(shape) else tensors[name].shape if name else ()
        if not is_static(shape):
            hint = "C requires fixed sizes: remove this node from the network"
            raise DestinationError(
                "has an output whose sizes depend on the values of its inputs", where=f"node {node.title}", hint=hint
            )
        if prod(shape) > INT32:
            raise DestinationError(f"has {prod(shape)} elements, more than int32 can count", where=name)
        if name:
            outputs[name] = replace(tensors[name], shape=shape)
    return outputs


def _is_settled(node: Node, outputs: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the outputs of a node are known without the inputs of the network."""
    if known(node) is None:
        return False
    constant = all(tensors[name].is_constant for name in node.inputs if name)
    return constant or has(node, Trait.SIZES) or not any(map(_size, outputs.values()))


def _settled(
    node: Node, outputs: Mapping[str, Tensor], tensors: Mapping[str, Tensor], budget: Budget
) -> dict[str, Tensor]:
    """The outputs of a node as constants."""
    if not any(map(_size, outputs.values())):
        arrays = [np.empty(static_shape(each), numpy_dtype(each.dtype)) for each in outputs.values()]
        pairs = zip(outputs.items(), arrays, strict=True)
        return {
            name: Tensor.constant(name, array, each.quantization, dtype=each.dtype) for (name, each), array in pairs
        }
    given = node.input_tensors(tensors)
    read = [_size(each) for each in given if each is not None]
    written = [_size(each) for each in outputs.values()]
    nbytes = sum(_size(each) * numpy_dtype(each.dtype).itemsize for each in outputs.values())
    budget.compute(OPERATORS[node.operator].work(read, written), nbytes)
    return {each.name: each for each in computed(node, given, list(outputs.values()))}


def _size(tensor: Tensor) -> int:
    return prod(static_shape(tensor))


def _value(tensor: Tensor) -> Value:
    array = tensor.array if tensor.is_constant else None
    return Value(tensor.name, stored(tensor, array is not None), static_shape(tensor), tensor.quantization, array)


def stored(tensor: Tensor, constant: bool = False) -> str:
    """The C element type: 4 and 2 bits in 8, bool as uint8. DestinationError for floats, unless constant."""
    kind = DTYPES[tensor.dtype]
    if kind.kind not in "iub":
        if constant:
            return str(numpy_dtype(tensor.dtype))
        hint = "make the network integer-only first: `qfmt convert … --integer-only --exact`"
        raise DestinationError(f"is {tensor.dtype}, but a C program is integer-only", where=tensor.name, hint=hint)
    if kind.kind == "b":
        return "uint8"
    bits = max(8, kind.bits)
    return f"{'u' if kind.kind == 'u' else ''}int{bits}"


def _input_shapes(model: Model, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The shape of every input; DestinationError names all that are not known, or one that is impossible."""
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
        what = f"C requires inputs of fixed sizes, and {'this is' if len(missing) == 1 else 'these are'} {listed}"
        where = ", ".join(tensor.name for tensor in missing)
        raise DestinationError(what, where=where, hint=f"state all sizes, as in `{shape_options(model, '1')}`")
    for name, shape in found.items():
        if prod(shape) > MOST:
            raise DestinationError(f"has {prod(shape):,} elements; C supports up to {MOST:,}", where=name)
    return found


def _first(shape: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """The first size: 1 if it has only a name."""
    return tuple(size if isinstance(size, int) else 1 for size in shape[:1])


def _agrees(shape: Shape, given: Sequence[Dimension]) -> bool:
    """Whether a shape of numbers is one that the tensor may have."""
    if shape is None:
        return True
    pairs = zip(shape, given, strict=False)
    return len(shape) == len(given) and all(not isinstance(size, int) or size == own for size, own in pairs)


def _spelled(shape: Sequence[Dimension]) -> str:
    return f"[{','.join(str(size or '?') for size in shape)}]"
