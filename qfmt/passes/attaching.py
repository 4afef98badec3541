"""Turn integers that represent real numbers into quantized tensors.

ONNX and torch.export express quantization as pairs of operators whose scales are inputs; the integers between them are
ordinary integers. This pass gives each of them the quantization that the operators around it agree on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from ..model import DTYPES, Graph, Node, Quantization, Tensor
from ..ops import OPERATORS, Trait, has
from ..ops.activation import bounds
from .constants import unused
from .qdq import DEQUANTIZE, QUANTIZE, QdqGrids

_SAME_GRID = {"Concat"}
"""Operators, besides those that move integers, whose inputs and output share a grid if all are integers."""


def attach_quantization(graph: Graph, engine: str = "onnx") -> Graph:
    """The graph with `ai.onnx.QuantizeLinear` and `.DequantizeLinear` of known scales replaced by the qfmt operators.

    Integers all of whose writers and readers agree on one scale and zero point get it as their quantization,
    through operators that only move them. If they disagree, or a node reads the bare integers, nothing changes.
    But constants are split, one for each meaning, and the bounds of a Clip of integers become quant_min and quant_max.
    """
    nodes, tensors, lost = _attached(graph, set())
    if lost:  # nothing else would clip
        nodes, tensors, lost = _attached(graph, lost)
    if lost:  # a Clip that stays takes the quantization from others
        nodes, tensors, _ = _attached(graph, {name for node in graph.nodes for name in node.outputs})
    kept = [each for node in nodes for each in _implicit(node, tensors, engine)]
    return replace(graph, nodes=kept, tensors=tensors)


def _attached(graph: Graph, stay: Set[str]) -> tuple[list[Node], dict[str, Tensor], set[str]]:
    """The nodes and the tensors with their quantizations; and the outputs of the Clips that must `stay`, because the
    tensor whose range they became got no quantization."""
    tensors = dict(graph.tensors)
    grid_of = QdqGrids(tensors)
    nodes = _split_constants(graph.nodes, tensors, grid_of)
    nodes, ranges, clips = _narrowed(nodes, tensors, replace(graph, nodes=nodes).uses(), stay)
    classes = _Classes()
    grids: dict[str, list[Quantization]] = defaultdict(list)
    bare: set[str] = set()
    for node in nodes:
        _classify(node, tensors, grid_of, classes, grids, bare)
    agreed = _agreements(classes, grids, bare)
    tensors |= {
        name: replace(tensor, quantization=_within(agreed[root], ranges.get(name)))
        for name, tensor in tensors.items()
        if (root := classes.root(name)) in agreed
    }
    lost = {name for last, names in clips.items() if classes.root(last) not in agreed for name in names}
    return nodes, tensors, lost


def _within(grid: Quantization, limits: tuple[int, int] | None) -> Quantization:
    return grid if limits is None else replace(grid, quant_min=limits[0], quant_max=limits[1])


class _Classes:
    """Tensors that must have one grid (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._joined: list[str] = []

    def root(self, name: str) -> str:
        while (parent := self._parent.get(name, name)) != name:
            self._parent[name] = self._parent.get(parent, parent)
            name = parent
        return name

    def join(self, names: Sequence[str]) -> None:
        first = self.root(names[0])
        for name in names[1:]:
            self._parent[self.root(name)] = first
        self._joined += names[:1]

    @property
    def joined(self) -> set[str]:
        """The roots of the classes that operators join."""
        return {self.root(name) for name in self._joined}


def _split_constants(given: Sequence[Node], tensors: dict[str, Tensor], grid_of: QdqGrids) -> list[Node]:
    """A constant with multiple readers becomes one for each grid that they read it on, and one for the rest."""
    meanings: dict[str, dict[object, str]] = defaultdict(dict)
    nodes = []
    for node in given:
        inputs = list(node.inputs)
        for position, name in enumerate(inputs):
            if not name or not tensors[name].is_constant or not _holds_integers(tensors[name]):
                continue
            meaning = grid_of(node) if (node.operator, position) == (DEQUANTIZE, 0) else None
            if meaning not in meanings[name]:
                own = name if not meanings[name] else unused(f"{name}_{len(meanings[name])}", tensors)
                meanings[name][meaning] = own
                if own != name:
                    aliases = tuple(sorted({*tensors[name].aliases, name}))
                    tensors[own] = replace(tensors[name], name=own, aliases=aliases)
            inputs[position] = meanings[name][meaning]
        nodes.append(node if inputs == list(node.inputs) else replace(node, inputs=tuple(inputs)))
    return nodes


def _classify(
    node: Node,
    tensors: Mapping[str, Tensor],
    grid_of: QdqGrids,
    classes: _Classes,
    grids: dict[str, list[Quantization]],
    bare: set[str],
) -> None:
    """The quantization that a node states for the integers that it reads and writes."""
    if node.operator in (QUANTIZE, DEQUANTIZE):
        name = node.outputs[0] if node.operator == QUANTIZE else node.inputs[0]
        grid = grid_of(node)
        if grid is None:
            bare.add(name)
        else:
            grids[name].append(grid)
        bare.update(_integers(node.inputs[1:] if node.operator == DEQUANTIZE else node.inputs, tensors))
        return
    if has(node, Trait.SIZES):
        return
    moved = _moved(node)
    if moved and tensors[moved[0]].dtype == tensors[node.outputs[0]].dtype and _holds_integers(tensors[moved[0]]):
        classes.join(moved)
        others = [name for name in node.inputs if name and name not in moved]
    else:
        others = [*node.inputs, *node.outputs]
    bare.update(_integers(others, tensors))
    if node.operator not in OPERATORS:
        bare.update(name for name in node.outputs if name)


def _moved(node: Node) -> list[str]:
    """The tensors of a node that have one grid, if any has."""
    if node.operator in _SAME_GRID:
        return [*node.inputs, *node.outputs] if all(node.inputs) else []
    if (node.operator, len(node.inputs)) == ("Clip", 1):  # it clamps to the range of its output
        return [*node.inputs, *node.outputs]
    if not has(node, Trait.MOVE) or not node.inputs[0]:
        return []
    return [node.inputs[0], *(name for name in node.outputs if name)]


def _agreements(
    classes: _Classes, grids: Mapping[str, Sequence[Quantization]], bare: Iterable[str]
) -> dict[str, Quantization]:
    """For each class of tensors, the grid on which all nodes that state one agree, if nothing reads the bare integers.

    Scales along an axis, or block-wise, are only for tensors that are not moved: a move may change their layout.
    """
    stated: dict[str, set[Quantization]] = defaultdict(set)
    for name, found in grids.items():
        stated[classes.root(name)].update(found)
    spoilt = {classes.root(name) for name in bare}
    joined = classes.joined
    alone = {root: len(found) == 1 and root not in spoilt for root, found in stated.items()}
    return {
        root: grid
        for root, found in stated.items()
        for grid in found
        if alone[root] and (root not in joined or grid.is_per_tensor)
    }


def _integers(names: Iterable[str], tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name in names if name and _holds_integers(tensors[name])]


def _holds_integers(tensor: Tensor) -> bool:
    return DTYPES[tensor.dtype].is_quantizable


def _implicit(node: Node, tensors: dict[str, Tensor], engine: str) -> Iterator[Node]:
    """The node in the form whose scale and zero point belong to its tensors, if they do.

    Real numbers of another type than float32 are cast: a product of at most 8 bits and a float16 is exact in float32.
    """
    source, target = node.inputs[:1], node.outputs
    if node.operator == QUANTIZE and tensors[target[0]].quantization is not None:
        if tensors[source[0]].dtype != "float32":
            wide = _float32_of(source[0], tensors)
            yield _cast(source[0], wide, "float32")
            source = (wide,)
        rule = OPERATORS["QuantizeLinear"].engines[engine]
        yield _operator("QuantizeLinear", source, target, node, rule=rule)
    elif node.operator == DEQUANTIZE and tensors[source[0]].quantization is not None:
        dtype = tensors[target[0]].dtype
        if dtype == "float32":
            yield _operator("DequantizeLinear", source, target, node)
        else:
            wide = _float32_of(target[0], tensors)
            yield _operator("DequantizeLinear", source, (wide,), node)
            yield _cast(wide, target[0], dtype)
    elif node.operator in _SAME_GRID and tensors[target[0]].quantization is not None:
        yield replace(node, rule=OPERATORS[node.operator].engines[engine])
    else:
        yield node


def _operator(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], like: Node, rule: str = "") -> Node:
    version = OPERATORS[name].version
    return replace(like, operator=name, version=version, inputs=inputs, outputs=outputs, attributes={}, rule=rule)


def _cast(source: str, target: str, dtype: str) -> Node:
    entry = OPERATORS["Cast"]
    return Node("Cast", (source,), (target,), entry.complete({"to": dtype}), version=entry.version)


def _float32_of(name: str, tensors: dict[str, Tensor]) -> str:
    """A new tensor: the same values, float32."""
    wide = unused(f"{name}.float32", tensors)
    tensors[wide] = Tensor(wide, "float32", tensors[name].shape)
    return wide


Ranges = dict[str, tuple[int, int]]
"""Tensor → the smallest and the largest of its integers."""


def _narrowed(
    nodes: Sequence[Node], tensors: dict[str, Tensor], uses: Counter[str], stay: Set[str]
) -> tuple[list[Node], Ranges, dict[str, list[str]]]:
    """Make the bounds of Clips of integers the range of their output, but not of those in `stay`. Remove those whose
    input only a QuantizeLinear gives, or is constant.

    Brevitas writes narrow ranges so. The QuantizeLinear then outputs the clipped integers: clamping twice is clamping
    to the intersection of the ranges. Returns the nodes that are left; the ranges; and for each output that needs its
    range the outputs of its Clips.
    """
    producers = {node.outputs[0]: position for position, node in enumerate(nodes) if node.operator == QUANTIZE}
    kept: list[Node | None] = list(nodes)
    ranges: Ranges = {}
    clips: dict[str, list[str]] = {}
    clamps: dict[str, list[str]] = {}
    roots: dict[str, str] = {}
    """Clipped constant → the constant before the first Clip."""
    for position, node in enumerate(nodes):
        limits = _limits(node, tensors)
        if limits is None or node.outputs[0] in stay:
            continue
        source, target = node.inputs[0], node.outputs[0]
        low, high = ranges.get(source, limits)
        limits = (max(low, limits[0]), min(high, limits[1]))
        if limits[0] > limits[1]:
            continue
        kept[position] = None
        if tensors[source].is_constant:
            tensors[target] = _clipped(tensors[source], tensors[target], limits, roots.get(source, source))
            roots[target] = roots.get(source, source)
            if source in roots and uses[source] == 1:
                del tensors[source]
        elif source in producers and uses[source] == 1:
            at = producers.pop(source)
            quantizer = kept[at]
            assert quantizer is not None
            kept[at] = replace(quantizer, outputs=(target,))
            producers[target] = at
            clips[target] = clips.pop(source, [])
            clips[target].append(target)
        else:
            kept[position] = replace(node, inputs=(source,))
            clamps[target] = [target]
        ranges[target] = limits
    for target, outputs in clips.items():
        former = [nodes[producers[target]].outputs[0], *outputs]
        names = {name for each in former for name in (each, *tensors[each].aliases)} - {target}
        tensors[target] = replace(tensors[target], aliases=tuple(sorted(names)))
    return [node for node in kept if node is not None], ranges, clips | clamps


def _limits(node: Node, tensors: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """The range after a Clip of integers, if its bounds are constants."""
    if node.operator != "Clip" or not DTYPES[tensors[node.inputs[0]].dtype].is_integer:
        return None
    kind, known = DTYPES[tensors[node.inputs[0]].dtype], bounds(node, tensors)
    if known is None or not kind.is_quantizable:
        return None
    return int(max(kind.minimum, known[0])), int(min(kind.maximum, known[1]))


def _clipped(source: Tensor, target: Tensor, limits: tuple[int, int], root: str) -> Tensor:
    """The constant after the Clip: the same data if nothing is clipped."""
    known = {*source.aliases, source.name} if source.name == root else {*source.aliases}
    names = tuple(sorted({*target.aliases, *known} - {target.name}))
    array = source.array
    if array.size == 0 or (array.min() >= limits[0] and array.max() <= limits[1]):
        return replace(source, name=target.name, aliases=names)
    clipped = np.clip(array, *limits).astype(array.dtype)
    return Tensor.constant(target.name, clipped, dtype=source.dtype, aliases=names)
