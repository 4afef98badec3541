"""Quantize before moving, so that integers are moved, and the node that computes them can output them directly.

A QuantizeLinear after an operator that only moves elements, or selects the largest, is equivalent before it:
rounding works element by element and is monotone.
"""

from __future__ import annotations

from dataclasses import replace

from ..model import Graph, Node, Tensor
from ..ops import Trait, has
from ..ops.accumulation import QUANTIZED
from .constants import computed, unused
from .edits import only_read

FILLS = {"Pad": 2}
"""Operators that move elements and insert a value: the index of the input with that value."""


def hoist_quantizers(graph: Graph) -> Graph:
    """The graph with every QuantizeLinear as early as possible without a change of the integers.

    It stays in place if the moved tensor has other readers, is a constant, or has been quantized already.
    """
    producers, uses = graph.producers(), graph.uses()
    tensors = dict(graph.tensors)
    instead: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.operator != "QuantizeLinear":  # an unknown operator may have no outputs
            continue
        grid = tensors[node.outputs[0]].quantization
        if grid is None or not grid.is_per_tensor:
            continue
        first = below = node
        while (mover := producers.get(first.inputs[0])) is not None and uses[first.inputs[0]] == 1:
            source = producers.get(mover.inputs[0]) if mover.inputs else None
            if source is None or source.operator == "DequantizeLinear" or uses[mover.inputs[0]] != 1:
                break
            if not _moves(mover, tensors):
                break
            above, moved = _exchanged(mover, first, tensors)
            instead[id(below)] = instead.get(id(below), [first])[1:]
            instead[id(mover)] = [above, moved]
            first, below = above, mover
    if not instead:
        return graph
    nodes = [each for node in graph.nodes for each in instead.get(id(node), [node])]
    return only_read(replace(graph, nodes=nodes, tensors=tensors))


def _moves(node: Node, tensors: dict[str, Tensor]) -> bool:
    """Whether an operator moves floats of its first input and has one output."""
    if not has(node, Trait.MOVE | Trait.FILL) or len(node.outputs) != 1:  # clamps become a range of the QuantizeLinear
        return False
    filled = FILLS.get(node.operator, len(node.inputs))
    filling = node.inputs[filled] if filled < len(node.inputs) else ""
    if filling and not tensors[filling].is_constant:
        return False
    first = tensors[node.inputs[0]]
    return first.quantization is None and first.dtype == "float32" and not first.is_constant


def _exchanged(mover: Node, quantizer: Node, tensors: dict[str, Tensor]) -> tuple[Node, Node]:
    """Quantize, then move."""
    real, last = mover.inputs[0], tensors[quantizer.outputs[0]]
    early = unused(real + QUANTIZED, tensors)
    tensors[early] = Tensor(early, last.dtype, tensors[real].shape, None, last.quantization)
    inputs = [early, *mover.inputs[1:]]
    filled = FILLS.get(mover.operator, len(inputs))
    if filled < len(inputs) and inputs[filled]:
        inputs[filled] = _filling(inputs[filled], quantizer, last, tensors)
    return (
        replace(quantizer, inputs=(real,), outputs=(early,)),
        replace(mover, inputs=tuple(inputs), outputs=(last.name,)),
    )


def _filling(name: str, quantizer: Node, last: Tensor, tensors: dict[str, Tensor]) -> str:
    """The inserted value, quantized."""
    number, own = tensors[name], unused(name + QUANTIZED, tensors)
    (tensors[own],) = computed(quantizer, [number], [replace(last, name=own, shape=number.shape)], (name,))
    return own
