"""Where a graph turns floats into integers and back: its caller does both."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ...arithmetic import quantize
from ...model import Graph, Node, Tensor
from ...ops import OPERATORS, Trait, has
from .context import Context, NoForm
from .resizing import by_sizes, is_nearest


def move_integers(node: Node, context: Context) -> None:
    """Move integers instead of the floats dequantized from them: readers look up the integers.

    This lowers a Reshape between DequantizeLinear and QuantizeLinear, as torch.fx leaves it.
    """
    source = context.producer.get(node.inputs[0]) if node.inputs else None
    is_move = has(node, Trait.MOVE) or is_nearest(node) or _pads_with_zero(node, context)
    if not is_move or source is None or source.operator != "DequantizeLinear":
        return
    stored = context.tensors[source.inputs[0]]
    grid = stored.quantization
    if grid is None or not grid.is_per_tensor or any(map(context.is_computed, node.inputs[1:])):
        return
    read, made = (context.tensors[name].shape or () for name in (node.inputs[0], node.outputs[0]))
    if 0 in read and 0 not in made:  # the largest of no real numbers is -∞, which no integer represents
        return
    outputs = tuple(context.free(f"{name}.quantized") for name in node.outputs)
    tensors = [_quantized(context.tensors[name], own, stored) for name, own in zip(node.outputs, outputs, strict=True)]
    moved = replace(node, inputs=(stored.name, *node.inputs[1:]), outputs=outputs)
    for tensor in tensors:
        context.add(tensor)
    context.put(by_sizes(with_integer_fill(moved, context), context))
    for name, own in zip(node.outputs, outputs, strict=True):
        context.producer[name] = replace(source, inputs=(own,), outputs=(name,))


def _pads_with_zero(node: Node, context: Context) -> bool:
    """Whether a Pad adds only zeros or existing elements, which the grid contains."""
    if node.operator != "Pad":
        return False
    fill = node.inputs[2] if len(node.inputs) > 2 else ""
    is_zero = not fill or (context.tensors[fill].is_constant and not context.tensors[fill].dequantize().any())
    return node.attributes["mode"] != "constant" or (is_zero and _holds_zero(node, context))


def _holds_zero(node: Node, context: Context) -> bool:
    """Whether the range of the integers behind a Pad's input contains the zero point."""
    source = context.producer.get(node.inputs[0])
    grid = context.tensors[source.inputs[0]].quantization if source is not None and source.inputs[0] else None
    return grid is not None and all(grid.quant_min <= zero <= grid.quant_max for zero in grid.zero_point)


def with_integer_fill(node: Node, context: Context) -> Node:
    """A Pad of integers whose padding value is an integer on their grid, instead of a float."""
    fill = node.inputs[2] if node.operator == "Pad" and len(node.inputs) > 2 else ""
    y = context.tensors[node.outputs[0]]
    if not fill or y.quantization is None or context.tensors[fill].quantization == y.quantization:
        return node
    if not context.tensors[fill].is_constant:
        raise NoForm("pads with a value that is not constant")
    real = context.tensors[fill].dequantize().reshape(())
    integer = quantize(real, y.quantization, context.kind(y), "divide")
    own = context.add(Tensor.constant(context.free(f"{fill}.quantized"), integer, y.quantization, dtype=y.dtype))
    return replace(node, inputs=(*node.inputs[:2], own, *node.inputs[3:]))


def _quantized(real: Tensor, name: str, like: Tensor) -> Tensor:
    return replace(real, name=name, dtype=like.dtype, quantization=like.quantization, aliases=())


def is_input(name: str, context: Context) -> bool:
    """Whether a tensor is a float input, or one that was only moved."""
    while context.is_real(name) and (node := context.producer.get(name)) is not None and has(node, Trait.MOVE):
        context.budget.spend()
        name = node.inputs[0]
    return context.is_real(name) and name in context.model_inputs


def take_input(node: Node, context: Context) -> None:
    """Make the output of a QuantizeLinear the input; moves before it are applied after it."""
    y = context.tensors[node.outputs[0]]
    moves: list[Node] = []
    name = node.inputs[0]
    while name not in context.model_inputs:
        moves.append(context.producer[name])
        name = moves[-1].inputs[0]
    if not moves:
        context.take(y.name, name)
        return
    if y.quantization is None or y.quantization.is_per_channel or any(len(move.outputs) > 1 for move in moves):
        raise NoForm("moves an input before it is quantized")
    current = context.add(_quantized(context.tensors[name], context.free(f"{name}.quantized"), y))
    context.take(current, name)
    for move in reversed(moves):
        last = move is moves[0]
        own = y.name if last else context.free(f"{move.outputs[0]}.quantized")
        tensor = y if last else _quantized(context.tensors[move.outputs[0]], own, y)
        context.put(replace(move, inputs=(current, *move.inputs[1:]), outputs=(own,)), [tensor])
        current = own


def last_integers(context: Context, graph: Graph, failed: Sequence[Node]) -> list[str]:
    """Quantized tensors that the graph before could end with, so that failed nodes come after them; may be empty."""
    beyond = {name for node in failed for name in node.outputs}
    for node in graph.nodes:
        if beyond.intersection(node.inputs):
            beyond.update(node.outputs)
    found: list[str] = []
    producer = graph.producers()  # those of the context may read integers that this graph does not have
    reached = dict.fromkeys(graph.outputs)
    pending = deque(reached)
    while pending:
        name = pending.popleft()
        if name not in beyond and not context.is_real(name):
            if not context.tensors[name].is_constant:
                found.append(name)
        elif name in producer:
            new = dict.fromkeys(each for each in producer[name].inputs if each and each not in reached)
            reached.update(new)
            pending.extend(new)
        elif not context.tensors[name].is_constant:
            return []
    given = context.model_inputs.union(context.taken)
    return [] if given.intersection(found) else found


def output(name: str, context: Context) -> str:
    """The replacement of an output of the graph: the integers that it was dequantized from, if any."""
    node = context.producer.get(name)
    is_dequantized = context.is_real(name) and node is not None and node.operator == "DequantizeLinear"
    return node.inputs[0] if node is not None and is_dequantized else name


def distinct_outputs(names: Sequence[str], outputs: Sequence[str], context: Context) -> list[str]:
    """The outputs; if two are the same integers, one is an Identity of the other, with its own name."""
    found: dict[str, str] = {}
    taken = {*names}
    for name, chosen in zip(names, outputs, strict=True):
        if name not in found and name != chosen and chosen in taken:
            like, entry = context.tensors[chosen], OPERATORS["Identity"]
            copy = replace(like, name=name, aliases=context.tensors[name].aliases)
            context.put(Node("Identity", (chosen,), (name,), {}, "", entry.version), [copy])
            chosen = name
        found.setdefault(name, chosen)
        taken.add(chosen)
    return [found[name] for name in names]
