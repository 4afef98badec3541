"""Elementwise functions from quantized tensors to a quantized one, through floats if necessary.

A region is the part between them: one node that dequantizes, computes and quantizes, or multiple nodes between a
DequantizeLinear and a QuantizeLinear. The reference interpreter runs it for every possible integer of its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ...budget import NODE
from ...interpreter import execute, operands_of
from ...model import DTYPES, Node, Shape, Tensor
from ...ops import OPERATORS, Trait, has
from ...ops.shapes import broadcast, broadcast_pair
from .context import Context, NoForm
from .step_functions import Array, Integers

TABLE_BITS = 8

MOST_NODES = 100
"""The most nodes of a region: formulas have about ten. Each node is visited once for every region that contains it."""

ELEMENTS, RESULT = 20, 4
"""Elements that a quantized node computes in the time of an operation; temporary bytes of memory for each result."""

SEVERAL = "computes floats from more than one element"
"""The reason why a node cannot be part of a region."""


@dataclass(slots=True)
class Region:
    """Nodes in order; `leaves`: the quantized tensors at the start; `axis`: along which constants differ."""

    output: Tensor
    nodes: list[Node] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    axis: int | None = None
    count: int = 1
    reached: set[str] = field(default_factory=set)


def region(node: Node, context: Context) -> Region:
    """The region of a node with a quantized output; NoForm, naming the node, if it is not an elementwise function."""
    found = Region(context.tensors[node.outputs[0]])
    _grow(found, node, context)
    if context.grid(found.output).is_per_channel:
        raise NoForm("has an output that is quantized per channel")
    for leaf in found.leaves:
        context.grid(leaf)
        if leaf.quantization is not None and leaf.quantization.is_per_channel:
            raise NoForm(f"reads {leaf.name!r}, which is quantized per channel", node=node)
    _check_sizes(found, context)
    return found


def _check_sizes(found: Region, context: Context) -> None:
    """NoForm if a constant adds dimensions or elements to those of the leaves: a table cannot."""
    known: Shape = ()
    for leaf in found.leaves:
        known = None if known is None or leaf.shape is None else broadcast_pair(known, leaf.shape)
    for node in found.nodes:
        data = node.inputs if OPERATORS[node.operator].shape is broadcast else node.inputs[:1]
        constants = [context.tensors[name] for name in data if name and context.tensors[name].is_constant]
        for shape in (each.shape or () for each in constants):
            if len(shape) > 1 if known is None else broadcast_pair(known, shape) != known:
                raise NoForm("has a float constant that may add dimensions or elements", node=node)


def _grow(found: Region, node: Node, context: Context) -> None:
    """Add a node, after those that it depends on through floats."""
    if node.outputs[0] in found.reached:
        return
    found.reached.add(node.outputs[0])
    if len(found.reached) > MOST_NODES:
        raise NoForm(f"computes floats with more than {MOST_NODES} operators", node=node)
    if not is_by_element(node):
        source = _computing(node, context)
        if is_by_element(source) or is_move(source):
            raise NoForm("moves numbers without a scale", node=node)
        raise NoForm(SEVERAL, node=source)
    for place, name in enumerate(node.inputs):
        if not name:
            continue
        tensor = context.tensors[name]
        if tensor.is_constant and _fits(found, node, place, tensor, context):
            continue
        if tensor.quantization is not None:
            if all(leaf.name != name for leaf in found.leaves):
                found.leaves.append(tensor)
        elif tensor.is_constant:
            raise NoForm(f"has a different float constant for each position, {name!r}", node=node)
        elif name in context.producer:
            _grow(found, context.producer[name], context)
        else:
            raise NoForm(f"reads numbers without a scale, {name!r}", node=node)
    found.nodes.append(node)


def _computing(node: Node, context: Context) -> Node:
    """The node whose elements a node moves, if it only moves elements."""
    while is_move(node) and node.inputs and (source := context.producer.get(node.inputs[0])) is not None:
        context.budget.spend(NODE // 10)  # each node behind a long chain of moves follows it again
        node = source
    return node


def is_move(node: Node) -> bool:
    """Whether a node moves or clamps elements."""
    return has(node, Trait.ANY_MOVE)


def is_by_element(node: Node) -> bool:
    """Whether each element of the output depends on one element of each input, constants apart."""
    return has(node, Trait.ELEMENTWISE) and len(node.outputs) == 1


def _fits(found: Region, node: Node, place: int, tensor: Tensor, context: Context) -> bool:
    """Whether a constant is a single value, or varies along one axis of the output, the same for all constants."""
    sizes = [size for size in tensor.shape or () if size != 1]
    if not sizes:
        return True
    rank = len(found.output.shape) if found.output.shape is not None else None
    if len(sizes) > 1 or rank is None or not isinstance(sizes[0], int):
        return False
    shape = tensor.shape or ()
    axis = 1 if node.operator == "BatchNormalization" else rank - len(shape) + shape.index(sizes[0])
    if found.axis not in (None, axis):
        return False
    found.axis, found.count = axis, sizes[0]
    return True


def integers(tensor: Tensor) -> Integers:
    """All integers of the type of a tensor of up to 8 bits, those outside its range clamped."""
    dtype, grid = DTYPES[tensor.dtype], tensor.quantization
    assert grid is not None
    if dtype.bits > TABLE_BITS:
        raise NoForm(f"reads {tensor.name!r}, of {dtype.bits} bits: too many for a table")
    return np.clip(dtype.every().astype(np.int64), grid.quant_min, grid.quant_max)


def table(found: Region, context: Context) -> Array:
    """The outputs for all integers of the leaf: [2^bits], or [C, 2^bits] where constants differ along an axis."""
    (leaf,) = found.leaves
    values = integers(leaf)
    if found.axis is None:
        return _run(found, {leaf.name: values.reshape(-1, 1)}, context).reshape(-1)
    rank = max(2, len(found.output.shape or ()))
    channel = found.axis + rank - len(found.output.shape or ())
    along = 1 if channel == 0 else 0
    shape = [len(values) if axis == along else found.count if axis == channel else 1 for axis in range(rank)]
    given = np.broadcast_to(values.reshape([-1 if axis == along else 1 for axis in range(rank)]), shape)
    result = np.moveaxis(_run(found, {leaf.name: given}, context), (channel, along), (0, 1))
    return np.ascontiguousarray(result.reshape(found.count, len(values)))


def pair_table(found: Region, context: Context) -> Array:
    """The outputs for all pairs of integers of two leaves, [2^bits, 2^bits]."""
    a, b = found.leaves
    first, second = integers(a), integers(b)
    result = _run(found, {a.name: first[:, None], b.name: second[None, :]}, context)
    return np.broadcast_to(result, (*result.shape[:-2], len(first), len(second))).reshape(len(first), len(second))


def evaluate(found: Region, x: Integers, context: Context) -> Array:
    """The outputs for some integers of the only leaf, of any shape."""
    (leaf,) = found.leaves
    return _run(found, {leaf.name: x}, context)


def _run(found: Region, given: dict[str, Any], context: Context) -> Array:
    shape = np.broadcast_shapes(*(array.shape for array in given.values()))
    constants = (context.tensors[name] for node in found.nodes for name in node.inputs if name)
    rank = max((len(each.shape or ()) for each in constants if each.is_constant), default=0)
    more = [1] * (rank - len(shape))  # a PRelu takes no slope of more dimensions than its input
    values = {
        name: array.reshape(*array.shape, *more).astype(context.kind(context.tensors[name]))
        for name, array in given.items()
    }
    elements = prod(shape)
    context.budget.allocate(RESULT * elements)
    for node in found.nodes:
        context.budget.spend(NODE + elements // ELEMENTS)
        operands = operands_of(node, values, context.tensors)
        outputs = [context.tensors[name] for name in node.outputs]
        values.update(zip(node.outputs, execute(node, operands, outputs), strict=True))
    result: Array = values[found.output.name]
    return result.reshape(result.shape[: result.ndim - len(more)])
