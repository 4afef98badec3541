"""Numbers are quantized before they are moved, so that integers are moved, and what computed them can put them out.

A QuantizeLinear after an operator that only moves numbers, or picks the greatest of some, is the same before it:
rounding is done number by number, and never changes an order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..interpreter import execute
from ..model import Graph, Node, Tensor
from ..ops import CLAMPS, OPERATORS, Operand, Quantized
from .constants import unused
from .order import only_read

FILLS = {"Pad": 2}
"""Operators that move numbers and put in one of their own: which input that is."""


def quantize_earlier(graph: Graph) -> Graph:
    """The graph with every QuantizeLinear as early as it gives the same integers.

    It stays where the moved number is read by others, too, or is stored, or has been quantized already.
    """
    while (changed := _one_step(graph)) is not None:
        graph = only_read(changed)
    return graph


def _one_step(graph: Graph) -> Graph | None:
    """Every QuantizeLinear that can be, moved before one operator; None if there is none."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    readers.update(graph.outputs)
    tensors = dict(graph.tensors)
    before: dict[int, list[Node]] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        mover = makers.get(node.inputs[0]) if node.operator == "QuantizeLinear" else None
        if mover is None or readers[node.inputs[0]] != 1 or id(mover) in before:
            continue
        source = makers.get(mover.inputs[0])
        if source is None or source.operator == "DequantizeLinear" or readers[mover.inputs[0]] != 1:
            continue
        if _moves(mover, tensors) and _is_per_tensor(tensors[node.outputs[0]]):
            before[id(mover)] = _exchanged(mover, node, tensors)
            gone.add(id(node))
    if not gone:
        return None
    nodes = [each for node in graph.nodes if id(node) not in gone for each in before.get(id(node), [node])]
    return replace(graph, nodes=nodes, tensors=tensors)


def _moves(node: Node, tensors: dict[str, Tensor]) -> bool:
    """Whether an operator moves real numbers of its first input, one result each."""
    operator = OPERATORS.get(node.operator)
    if operator is None or operator.quantized is not Quantized.MOVES or len(node.outputs) != 1:
        return False
    if node.operator in CLAMPS:  # folding makes them a range of the QuantizeLinear
        return False
    filled = FILLS.get(node.operator, len(node.inputs))
    filling = node.inputs[filled] if filled < len(node.inputs) else ""
    if filling and not tensors[filling].is_constant:
        return False
    first = tensors[node.inputs[0]]
    return first.quantization is None and first.dtype == "float32" and not first.is_constant


def _is_per_tensor(tensor: Tensor) -> bool:
    grid = tensor.quantization
    return grid is not None and not grid.is_per_channel and not grid.is_blocked


def _exchanged(mover: Node, quantizer: Node, tensors: dict[str, Tensor]) -> list[Node]:
    """Quantize, then move."""
    real, last = mover.inputs[0], tensors[quantizer.outputs[0]]
    early = unused(f"{real}_quantized", tensors)
    tensors[early] = Tensor(early, last.dtype, tensors[real].shape, None, last.quantization)
    inputs = [early, *mover.inputs[1:]]
    filled = FILLS.get(mover.operator, len(inputs))
    if filled < len(inputs) and inputs[filled]:
        inputs[filled] = _filling(inputs[filled], quantizer, last, tensors)
    return [
        replace(quantizer, inputs=(real,), outputs=(early,)),
        replace(mover, inputs=tuple(inputs), outputs=(last.name,)),
    ]


def _filling(name: str, quantizer: Node, last: Tensor, tensors: dict[str, Tensor]) -> str:
    """The number that is put in, quantized."""
    number, own = tensors[name], unused(f"{name}_quantized", tensors)
    (array,) = execute(quantizer, [Operand(number.array, None)], [replace(last, name=own, shape=number.shape)])
    tensors[own] = Tensor.constant(own, array, last.quantization, dtype=last.dtype, aliases=(name,))
    return own
