"""Set sizes of inputs of an existing graph, and derive the shapes of all tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ..errors import FormatError, QfmtError, SourceError
from ..model import INT32, Dimension, Graph, Node, Shape, Tensor
from ..ops import Trait, has, known
from ..ops.quantization import is_static
from .constants import computed
from .edits import only_read

LARGEST = INT32
"""The most elements of a tensor whose sizes are stated."""

FEW = 1 << 16
"""The most elements of computed sizes that are folded; other constants are computed at run time."""

HINT = "state different input sizes"


def with_input_shapes(graph: Graph, shapes: Mapping[str, Sequence[Dimension]]) -> Graph:
    """The graph with these shapes of inputs, and the shapes of other tensors that follow from them.

    Raises SourceError for a name that is not an input, and for a shape that contradicts what is known.
    """
    tensors = dict(graph.tensors)
    for name, sizes in shapes.items():
        if name not in graph.inputs:
            raise SourceError(f"there is no input {name!r}", hint=f"the inputs are {', '.join(graph.inputs)}")
        tensors[name] = limited(_sized(tensors[name], tuple(sizes)))
    nodes = []
    for node in graph.nodes:
        try:
            shapes_of_outputs = inferred(node, tensors)
        except FormatError:
            raise
        except (QfmtError, ValueError, IndexError, TypeError) as error:
            why = error.what if isinstance(error, QfmtError) else "these sizes do not fit it"
            raise SourceError(why, where=node.title, hint=HINT) from None
        for name, shape in zip(node.outputs, shapes_of_outputs, strict=False):
            tensors[name] = limited(_sized(tensors[name], shape))
        if known := _known(node, tensors):
            tensors[known.name] = known
        else:
            nodes.append(node)
    return only_read(replace(graph, nodes=nodes, tensors=tensors))


def with_output_shapes(graph: Graph) -> Graph:
    """The graph with derived shapes for tensors without a stated one; never raises an error."""
    tensors = dict(graph.tensors)
    for node in graph.nodes:
        try:
            shapes = inferred(node, tensors)
        except QfmtError:
            continue
        for name, shape in zip(node.outputs, shapes, strict=False):
            if name and tensors[name].shape is None:
                tensors[name] = replace(tensors[name], shape=shape)
    return replace(graph, tensors=tensors)


def _known(node: Node, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The output of a node that computes sizes, if these are already known; then the node is not needed."""
    given = node.input_tensors(tensors)
    output = tensors[node.outputs[0]]
    if is_static(output.shape) and prod(output.shape) > FEW:
        return None
    if len(node.outputs) > 1 or output.dtype != "int64" or output.quantization is not None or not given:
        return None
    for tensor in filter(None, given):
        if not tensor.is_constant and not (has(node, Trait.SIZES) and is_static(tensor.shape)):
            return None
    (made,) = computed(node, given, [output], output.aliases)
    return made


def inferred(node: Node, tensors: Mapping[str, Tensor]) -> Sequence[Shape]:
    """The output shapes of an operator; none if it is unknown."""
    operator = known(node)
    if operator is None:
        return ()
    given = node.input_tensors(tensors)
    return operator.inferred(given, node.attributes, lambda tensor: tensor.is_constant)


def limited(tensor: Tensor) -> Tensor:
    """The tensor; SourceError if it is too large to compute."""
    count = prod(size for size in tensor.shape or () if isinstance(size, int))
    if count > LARGEST:
        raise SourceError(f"would have {count:,} elements, more than {LARGEST:,}", where=tensor.name, hint=HINT)
    return tensor


def _sized(tensor: Tensor, shape: Shape) -> Tensor:
    """A tensor with the sizes of `shape` where its own are unknown."""
    if shape is None:
        return tensor
    known = tensor.shape if tensor.shape is not None else (None,) * len(shape)
    if len(known) != len(shape):
        raise SourceError(f"has {len(known)} dimensions, not {len(shape)}", where=tensor.name)
    sizes = []
    for own, other in zip(known, shape, strict=True):
        if isinstance(own, int) and isinstance(other, int) and own != other:
            raise SourceError(f"has the size {own}, but {other} is stated or follows", where=tensor.name)
        sizes.append(own if isinstance(own, int) or other is None else other)
    return replace(tensor, shape=tuple(sizes))
