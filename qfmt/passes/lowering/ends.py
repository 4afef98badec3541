"""Where a graph turns real numbers into integers and back: both are left to its caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ...arithmetic import quantize
from ...model import Node, Tensor
from ...ops import OPERATORS, Trait, has
from .resizing import RULE, by_sizes, is_nearest
from .work import NoForm, Work


def move_integers(node: Node, work: Work) -> None:
    """Move integers instead of the real numbers that were made from them: who reads these finds what they are made of.

    That is what a Reshape between DequantizeLinear and QuantizeLinear comes to, as torch.fx leaves it.
    """
    source = work.producer.get(node.inputs[0]) if node.inputs else None
    is_move = has(node, Trait.MOVE) or is_nearest(node) or _pads_with_zero(node, work)
    if not is_move or source is None or source.operator != "DequantizeLinear":
        return
    stored = work.tensors[source.inputs[0]]
    grid = stored.quantization
    if grid is None or grid.is_per_channel or grid.is_blocked or any(map(work.is_computed, node.inputs[1:])):
        return
    outputs = tuple(work.free(f"{name}.quantized") for name in node.outputs)
    tensors = [_quantized(work.tensors[name], own, stored) for name, own in zip(node.outputs, outputs, strict=True)]
    rule = RULE if is_nearest(node) else node.rule
    moved = replace(node, inputs=(stored.name, *node.inputs[1:]), outputs=outputs, rule=rule)
    for tensor in tensors:
        work.add(tensor)
    work.put(by_sizes(with_integer_fill(moved, work), work))
    for name, own in zip(node.outputs, outputs, strict=True):
        work.producer[name] = replace(source, inputs=(own,), outputs=(name,))


def _pads_with_zero(node: Node, work: Work) -> bool:
    """Whether a Pad adds nothing but zeros, or elements that are there: the grid has them."""
    if node.operator != "Pad":
        return False
    fill = node.inputs[2] if len(node.inputs) > 2 else ""
    is_zero = not fill or (work.tensors[fill].is_constant and not work.tensors[fill].dequantize().any())
    return node.attributes["mode"] != "constant" or (is_zero and _holds_zero(node, work))


def _holds_zero(node: Node, work: Work) -> bool:
    """Whether the range of the integers that a Pad's input is made of contains that of zero."""
    source = work.producer.get(node.inputs[0])
    grid = work.tensors[source.inputs[0]].quantization if source is not None and source.inputs[0] else None
    return grid is not None and all(grid.quant_min <= zero <= grid.quant_max for zero in grid.zero_point)


def with_integer_fill(node: Node, work: Work) -> Node:
    """A Pad of integers whose constant is one of them, on their grid, instead of a real number."""
    fill = node.inputs[2] if node.operator == "Pad" and len(node.inputs) > 2 else ""
    y = work.tensors[node.outputs[0]]
    if not fill or y.quantization is None or work.tensors[fill].quantization == y.quantization:
        return node
    if not work.tensors[fill].is_constant:
        raise NoForm("pads with a value that is not constant")
    real = work.tensors[fill].dequantize().reshape(())
    integer = quantize(real, y.quantization, work.kind(y), "divide")
    own = work.add(Tensor.constant(work.free(f"{fill}.quantized"), integer, y.quantization, dtype=y.dtype))
    return replace(node, inputs=(*node.inputs[:2], own, *node.inputs[3:]))


def _quantized(real: Tensor, name: str, like: Tensor) -> Tensor:
    return replace(real, name=name, dtype=like.dtype, quantization=like.quantization, aliases=())


def is_input(name: str, work: Work) -> bool:
    """Whether a tensor holds real numbers that are an input, moved at most."""
    while work.is_real(name) and (node := work.producer.get(name)) is not None and has(node, Trait.MOVE):
        name = node.inputs[0]
    return work.is_real(name) and name in work.model_inputs


def take_input(node: Node, work: Work) -> None:
    """Let what a QuantizeLinear makes of an input be the input; what was moved before is moved after."""
    y = work.tensors[node.outputs[0]]
    moves: list[Node] = []
    name = node.inputs[0]
    while name not in work.model_inputs:
        moves.append(work.producer[name])
        name = moves[-1].inputs[0]
    if not moves:
        work.take(y.name, name)
        return
    if y.quantization is None or y.quantization.is_per_channel or any(len(move.outputs) > 1 for move in moves):
        raise NoForm("moves an input before it is quantized")
    current = work.add(_quantized(work.tensors[name], work.free(f"{name}.quantized"), y))
    work.take(current, name)
    for move in reversed(moves):
        last = move is moves[0]
        own = y.name if last else work.free(f"{move.outputs[0]}.quantized")
        tensor = y if last else _quantized(work.tensors[move.outputs[0]], own, y)
        work.put(replace(move, inputs=(current, *move.inputs[1:]), outputs=(own,)), [tensor])
        current = own


def last_integers(work: Work, outputs: Sequence[str], failed: Sequence[Node]) -> list[str]:
    """Quantized tensors that the network could end with, so that what failed comes after; none if there are none."""
    beyond = {name for node in failed for name in node.outputs}
    for node in work.producer.values():  # in order
        if beyond.intersection(node.inputs):
            beyond.update(node.outputs)
    found: list[str] = []
    reached = dict.fromkeys(outputs)
    pending = deque(reached)
    while pending:
        name = pending.popleft()
        if name not in beyond and not work.is_real(name):
            if not work.tensors[name].is_constant:
                found.append(name)
        elif name in work.producer:
            new = dict.fromkeys(each for each in work.producer[name].inputs if each and each not in reached)
            reached.update(new)
            pending.extend(new)
        elif not work.tensors[name].is_constant:
            return []
    given = work.model_inputs.union(work.taken)
    return [] if given.intersection(found) else found


def output(name: str, work: Work) -> str:
    """What replaces an output of the graph: the integers that it was dequantized from, if there are any."""
    node = work.producer.get(name)
    is_dequantized = work.is_real(name) and node is not None and node.operator == "DequantizeLinear"
    return node.inputs[0] if node is not None and is_dequantized else name


def apart(names: Sequence[str], outputs: Sequence[str], work: Work) -> list[str]:
    """The outputs; of two that come to the same integers one is an Identity of the other, with its own name."""
    found: dict[str, str] = {}
    for name, chosen in zip(names, outputs, strict=True):
        if name not in found and name != chosen and chosen in (*names, *found.values()):
            like, entry = work.tensors[chosen], OPERATORS["Identity"]
            copy = replace(like, name=name, aliases=work.tensors[name].aliases)
            work.put(Node("Identity", (chosen,), (name,), {}, "", entry.version), [copy])
            chosen = name
        found.setdefault(name, chosen)
    return [found[name] for name in names]
