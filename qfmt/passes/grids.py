"""Integers that mean real numbers become quantized tensors.

ONNX and torch.export spell quantization as pairs of operators whose scales are inputs; the integers between them are
integers like any others. Here each of them is given the quantization that the operators around it agree on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..model import DTYPES, Graph, Node, Quantization, Tensor, static_shape
from ..ops import OPERATORS, Quantized
from ..ops.shapes import axis_of

QUANTIZE, DEQUANTIZE = "ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear"

_SAME_GRID = {"Concat"}
"""Operators beside those that move integers whose inputs and output share a grid where all of them are integers."""


class Reading(NamedTuple):
    """A place where a tensor is read: node and position of the input."""

    node: int
    position: int


def attach_quantization(graph: Graph, engine: str = "onnx") -> Graph:
    """The graph with `ai.onnx.QuantizeLinear` and `.DequantizeLinear` of known scales replaced by the qfmt operators.

    Integers all of whose writers and readers agree on one scale and zero point get it as their quantization,
    through operators that only move them. Where they disagree, or something reads the bare integers, all stays:
    But constants are split, one for each meaning.
    """
    nodes, tensors = _split_constants(graph)
    classes = _Classes()
    grids: dict[str, list[Quantization]] = defaultdict(list)
    bare: set[str] = set()
    for node in nodes:
        _classify(node, tensors, classes, grids, bare)
    agreed = _agreements(classes, grids, bare)
    tensors |= {
        name: replace(tensor, quantization=agreed[root])
        for name, tensor in tensors.items()
        if (root := classes.root(name)) in agreed
    }
    kept = [each for node in nodes for each in _implicit(node, tensors, engine)]
    return replace(graph, nodes=kept, tensors=tensors)


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
        """The roots of classes that operators joined."""
        return {self.root(name) for name in self._joined}


def _split_constants(graph: Graph) -> tuple[list[Node], dict[str, Tensor]]:
    """A constant that several nodes read becomes one for each grid that they read it on, and one for the rest."""
    tensors = dict(graph.tensors)
    meanings: dict[str, dict[object, str]] = defaultdict(dict)
    nodes = []
    for node in graph.nodes:
        inputs = list(node.inputs)
        for position, name in enumerate(inputs):
            if not name or not tensors[name].is_constant or not _holds_integers(tensors[name]):
                continue
            meaning = _grid_of(node, tensors) if (node.operator, position) == (DEQUANTIZE, 0) else None
            if meaning not in meanings[name]:
                own = name if not meanings[name] else _unused(f"{name}_{len(meanings[name])}", tensors)
                meanings[name][meaning] = own
                aliases = tensors[name].aliases if own == name else tuple(sorted({*tensors[name].aliases, name}))
                tensors[own] = replace(tensors[name], name=own, aliases=aliases)
            inputs[position] = meanings[name][meaning]
        nodes.append(replace(node, inputs=tuple(inputs)))
    return nodes, tensors


def _unused(base: str, tensors: Mapping[str, Tensor]) -> str:
    return next(name for name in _numbered(base) if name not in tensors)


def _numbered(base: str) -> Iterator[str]:
    yield base
    count = 1
    while True:
        yield f"{base}_{count}"
        count += 1


def _classify(
    node: Node,
    tensors: Mapping[str, Tensor],
    classes: _Classes,
    grids: dict[str, list[Quantization]],
    bare: set[str],
) -> None:
    """What a node says of the integers that it reads and writes."""
    operator = OPERATORS.get(node.operator)
    if node.operator in (QUANTIZE, DEQUANTIZE):
        name = node.outputs[0] if node.operator == QUANTIZE else node.inputs[0]
        grid = _grid_of(node, tensors)
        if grid is None:
            bare.add(name)
        else:
            grids[name].append(grid)
        bare.update(_integers(node.inputs[1:] if node.operator == DEQUANTIZE else node.inputs, tensors))
        return
    moved = _moved(node)
    if moved and tensors[moved[0]].dtype == tensors[node.outputs[0]].dtype and _holds_integers(tensors[moved[0]]):
        classes.join(moved)
        others = [name for name in node.inputs if name and name not in moved]
    else:
        others = [*node.inputs, *node.outputs]
    bare.update(_integers(others, tensors))
    if operator is None:
        bare.update(name for name in node.outputs if name)


def _moved(node: Node) -> list[str]:
    """The tensors of a node that have one grid, if any has."""
    operator = OPERATORS.get(node.operator)
    if operator is None:
        return []
    if node.operator in _SAME_GRID:
        return [*node.inputs, *node.outputs]
    if operator.quantized is not Quantized.MOVES or operator.integer is not None:
        return []
    return [node.inputs[0], *(name for name in node.outputs if name)]


def _agreements(
    classes: _Classes, grids: Mapping[str, Sequence[Quantization]], bare: Iterable[str]
) -> dict[str, Quantization]:
    """For each class of tensors the one grid that all who know one state, if nobody reads the bare integers.

    Scales along an axis stay with a tensor that is not moved: the axis may be another one afterwards.
    """
    stated: dict[str, set[Quantization]] = defaultdict(set)
    for name, found in grids.items():
        stated[classes.root(name)].update(found)
    spoilt = {classes.root(name) for name in bare}
    alone = {root: len(found) == 1 and root not in spoilt for root, found in stated.items()}
    return {
        root: grid
        for root, found in stated.items()
        for grid in found
        if alone[root] and (grid.axis is None or root not in classes.joined)
    }


def _integers(names: Iterable[str], tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name in names if name and _holds_integers(tensors[name])]


def _holds_integers(tensor: Tensor) -> bool:
    limits = DTYPES[tensor.dtype]
    return limits.is_integer and limits.bits <= 32


def _grid_of(node: Node, tensors: Mapping[str, Tensor]) -> Quantization | None:
    """The grid that a QuantizeLinear or DequantizeLinear states, if a tensor can have it as its quantization."""
    data = tensors[node.outputs[0] if node.operator == QUANTIZE else node.inputs[0]]
    scale = tensors[node.inputs[1]]
    points = tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
    if scale.data is None or (points is not None and points.data is None) or not _holds_integers(data):
        return None
    if node.attributes.get("block_size") or scale.dtype not in ("float32", "float16", "bfloat16"):
        return None
    values = [float(value) for value in scale.array.reshape(-1).astype("float64")]
    if not values or not all(0 < value < float("inf") for value in values):
        return None
    zero = [0] * len(values) if points is None else [int(value) for value in points.array.reshape(-1)]
    if len(zero) != len(values):
        return None
    axis = None
    if len(static_shape(scale)) == 1 and len(values) > 1:
        if data.shape is None:
            return None
        axis = axis_of(int(node.attributes["axis"]), len(data.shape))  # type: ignore[arg-type]
    limits = DTYPES[data.dtype]
    return Quantization(tuple(values), tuple(zero), limits.minimum, limits.maximum, axis, scale.dtype)


def _implicit(node: Node, tensors: dict[str, Tensor], engine: str) -> Iterator[Node]:
    """The node in the form in which scale and zero point are its tensors' own, if they are.

    Real numbers of another type than float32 are cast: a product of at most 8 bits and a float16 is exact in float32.
    """
    source, target = node.inputs[:1], node.outputs
    if node.operator == QUANTIZE and tensors[target[0]].quantization is not None:
        if tensors[source[0]].dtype != "float32":
            wide = _float32_of(source[0], tensors)
            yield _cast(source[0], wide, "float32")
            source = (wide,)
        rule = OPERATORS["QuantizeLinear"].engines[engine]
        yield _operator("QuantizeLinear", source, target, node, arithmetic=rule)
    elif node.operator == DEQUANTIZE and tensors[source[0]].quantization is not None:
        dtype = tensors[target[0]].dtype
        if dtype == "float32":
            yield _operator("DequantizeLinear", source, target, node)
        else:
            wide = _float32_of(target[0], tensors)
            yield _operator("DequantizeLinear", source, (wide,), node)
            yield _cast(wide, target[0], dtype)
    elif node.operator in _SAME_GRID and tensors[target[0]].quantization is not None:
        yield replace(node, arithmetic=OPERATORS[node.operator].engines[engine])
    else:
        yield node


def _operator(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], like: Node, arithmetic: str = "") -> Node:
    version = OPERATORS[name].version
    return replace(
        like, operator=name, version=version, inputs=inputs, outputs=outputs, attributes={}, arithmetic=arithmetic
    )


def _cast(source: str, target: str, dtype: str) -> Node:
    entry = OPERATORS["Cast"]
    return Node("Cast", (source,), (target,), entry.complete({"to": dtype}), version=entry.version)


def _float32_of(name: str, tensors: dict[str, Tensor]) -> str:
    """A new tensor: the same values, float32."""
    wide = _unused(f"{name}.float32", tensors)
    tensors[wide] = Tensor(wide, "float32", tensors[name].shape)
    return wide
