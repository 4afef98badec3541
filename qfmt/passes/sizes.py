"""Sizes of inputs that are stated afterwards: the shapes of all tensors that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import SourceError
from ..model import Dimension, Graph, Node, Shape, Tensor
from ..ops import OPERATORS, Inference, UnknownRank


def with_input_shapes(graph: Graph, shapes: Mapping[str, Sequence[Dimension]]) -> Graph:
    """The graph with these shapes of inputs, and those of other tensors that its operators make of them.

    Raises SourceError for a name that is no input, and for a shape that contradicts what is known.
    """
    tensors = dict(graph.tensors)
    for name, sizes in shapes.items():
        if name not in graph.inputs:
            raise SourceError(f"there is no input {name!r}", hint=f"the inputs are {', '.join(graph.inputs)}")
        tensors[name] = _sized(tensors[name], tuple(sizes))
    for node in graph.nodes:
        for name, shape in zip(node.outputs, _inferred(node, tensors), strict=False):
            tensors[name] = _sized(tensors[name], shape)
    return replace(graph, tensors=tensors)


def _inferred(node: Node, tensors: Mapping[str, Tensor]) -> Sequence[Shape]:
    """The shapes that an operator gives; none if it is not known, or needs a rank that is not."""
    operator = OPERATORS.get(node.operator)
    if operator is None:
        return ()
    absent = [None] * (len(operator.inputs) - len(node.inputs))
    given = [tensors[name] if name else None for name in node.inputs]
    shapes = [None if tensor is None else tensor.shape for tensor in given]
    values = [tensor.array if tensor is not None and tensor.is_constant else None for tensor in given]
    try:
        return operator.infer(Inference([*shapes, *absent], dict(node.attributes), [*values, *absent]))
    except UnknownRank:
        return ()


def _sized(tensor: Tensor, shape: Shape) -> Tensor:
    """A tensor with the sizes of `shape` where these are more than it knows."""
    if shape is None:
        return tensor
    known = tensor.shape if tensor.shape is not None else (None,) * len(shape)
    if len(known) != len(shape):
        raise SourceError(f"has {len(known)} dimensions, not {len(shape)}", where=tensor.name)
    sizes = []
    for own, other in zip(known, shape, strict=True):
        if isinstance(own, int) and isinstance(other, int) and own != other:
            raise SourceError(f"has a size of {own} where {other} is stated or follows", where=tensor.name)
        sizes.append(own if isinstance(own, int) or other is None else other)
    return replace(tensor, shape=tuple(sizes))
