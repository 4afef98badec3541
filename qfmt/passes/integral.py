"""Give float tensors that certainly contain integers a grid of scale 1: integer-only networks.

It begins after each `qfmt.RequantShift`, whose results are clipped, and at inputs that are declared to be integers. It
inserts QuantizeLinear and DequantizeLinear of scale 1 there, which change nothing; the other passes do the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from ..arithmetic import EXACT_IN_FLOAT32
from ..memory import keep, require
from ..model import DTYPES, Graph, Node, Tensor, first_holding
from ..ops import OPERATORS, Trait, has
from ..ops.accumulation import inner_size, terms_of
from ..ops.activation import bounds
from .constants import unused
from .hoisting import FILLS
from .qdq import DEQUANTIZE, QUANTIZE, dequantize_node

_PRODUCTS = ("Conv", "qfmt.Linear", "MatMul", "Gemm")

JOINS = ("Add", "Sub", "Concat")
"""Operators whose constants become integers if their other inputs are."""

NARROW = ("uint8", "int8", "uint16", "int16", "int32")

Range = tuple[int, int]


def integral(graph: Graph) -> Graph:
    """The graph with the integers of integer-only networks as quantized tensors; other graphs are unchanged."""
    if not any(node.operator == "qfmt.RequantShift" for node in graph.nodes):
        return graph
    return _Integral(graph).result()


class _Integral:
    """One pass over the nodes: the range of every tensor of integers, and its name as a quantized tensor."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = set(graph.outputs)
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.ranges: dict[str, Range] = {}
        self.real: dict[str, str] = {}
        """Tensor of integers → its dequantized form, which readers use."""
        self.nodes: list[Node] = []
        self.producers = graph.producers()

    def result(self) -> Graph:
        for node in self.graph.nodes:
            node = replace(node, inputs=tuple(self.real.get(name, name) for name in node.inputs))
            if node.operator == DEQUANTIZE:
                self._is_given(node)
            if node.operator in JOINS:
                node = self._with_integers(node)
            if node.operator in _PRODUCTS:
                self._product(node)
            else:
                self._other(node)
        return replace(self.graph, nodes=self.nodes, tensors=self.tensors)

    def _is_given(self, node: Node) -> None:
        """An input of integers is dequantized with scale 1."""
        kind = DTYPES[self.tensors[node.inputs[0]].dtype]
        scale = self.tensors[node.inputs[1]]
        if kind.bits <= 16 and len(node.inputs) == 2 and scale.is_constant and (scale.array == 1).all():
            self.ranges[node.outputs[0]] = (kind.minimum, kind.maximum)

    def _other(self, node: Node) -> None:
        found = self._range(node)
        dtype = None if found is None else first_holding(NARROW, *found)
        if found is None or dtype is None or len(node.outputs) > 1:
            self.nodes.append(node)
        elif has(node, Trait.ANY_MOVE) and node.operator != "Clip":
            self.nodes.append(node)
            self.ranges[node.outputs[0]] = found
        else:
            self._on_grid(node, found, dtype)

    def _with_integers(self, node: Node) -> Node:
        """The node with its constants as integers, if it joins them with tensors of integers."""
        if not any(name in self.ranges for name in node.inputs):
            return node
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            tensor = self.tensors[name]
            if (values := _whole(tensor, 8, 16, 32)) is not None and values.size:
                inputs[place] = self._constant(tensor, values)
                self.ranges[inputs[place]] = int(values.min()), int(values.max())
        return replace(node, inputs=tuple(inputs))

    def _range(self, node: Node) -> Range | None:
        """The range of a node's integers; None if they may not be integers, or the range is not known."""
        known = [self.ranges.get(name) for name in node.inputs if name]
        if node.operator == "Clip":
            return self._clipped(node)
        if node.operator in JOINS and all(known):
            ranges = [each for each in known if each is not None]
            if node.operator == "Concat":
                return min(low for low, _ in ranges), max(high for _, high in ranges)
            (low, high), (other_low, other_high) = ranges
            if node.operator == "Sub":
                other_low, other_high = -other_high, -other_low
            low, high = low + other_low, high + other_high
            return (low, high) if max(-low, high) <= EXACT_IN_FLOAT32 else None  # beyond, float32 rounds
        if not has(node, Trait.ANY_MOVE) or not known or known[0] is None:
            return None
        filling = self._filling(node) if has(node, Trait.FILL) else 0.0  # Relu clips at 0; MOVE adds nothing
        if filling is None or not filling.is_integer():
            return None
        return (min(int(filling), known[0][0]), max(int(filling), known[0][1]))

    def _filling(self, node: Node) -> float | None:
        """The number that a node inserts; None if it is computed."""
        name = (*node.inputs, "", "")[FILLS[node.operator]]
        if not name:
            return 0.0
        return float(self.tensors[name].array.reshape(())) if self.tensors[name].is_constant else None

    def _clipped(self, node: Node) -> Range | None:
        """The range of a Clip after a RequantShift, or of integers."""
        source = self.producers.get(node.inputs[0])
        whole = source is not None and source.operator == "qfmt.RequantShift"
        if not whole and node.inputs[0] not in self.ranges:
            return None
        low, high = bounds(node, self.tensors) or (-inf, inf)
        return (int(low), int(high)) if low.is_integer() and high.is_integer() and low <= high else None

    def _product(self, node: Node) -> None:
        """Integers times integers: weight and bias become integers, and so do the sums, if float32 is exact."""
        given, weight = self.ranges.get(node.inputs[0]), self.tensors[node.inputs[1]]
        if node.operator == "MatMul" and not weight.is_constant:
            self._product_of_two(node)
            return
        bias = self.tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
        weights = _whole(weight, 8)
        added = None if bias is None else _whole(bias, 32)
        simple = node.operator != "Gemm" or (node.attributes["alpha"] == node.attributes["beta"] == 1)
        if given is None or weights is None or (bias is not None and added is None) or not simple:
            self.nodes.append(node)
            return
        reach = _reach(node, weights, given)
        reach += 0 if added is None else int(np.abs(added.astype(np.int64)).max(initial=0))
        if reach > EXACT_IN_FLOAT32:
            self.nodes.append(node)
            return
        inputs = [node.inputs[0], self._constant(weight, weights)]
        if bias is not None and added is not None:
            inputs.append(self._constant(bias, added))
        self._on_grid(replace(node, inputs=tuple(inputs)), (-reach, reach), "int32")

    def _product_of_two(self, node: Node) -> None:
        """Integers times integers, both computed: the sums are integers if float32 is exact."""
        a, b = (self.ranges.get(name) for name in node.inputs)
        count = inner_size(*(self.tensors[name].shape for name in node.inputs))
        reach = None if a is None or b is None or count is None else count * max(map(abs, a)) * max(map(abs, b))
        if reach is None or reach > EXACT_IN_FLOAT32:
            self.nodes.append(node)
        else:
            self._on_grid(node, (-reach, reach), "int32")

    def _constant(self, tensor: Tensor, integers: Any) -> str:
        """A constant of integers, dequantized with scale 1."""
        keep(integers.nbytes)
        own = unused(f"{tensor.name}.integers", self.tensors)
        names = tuple(sorted({*tensor.aliases, tensor.name}))
        self.tensors[own] = Tensor.constant(own, integers, aliases=names)
        real = unused(f"{tensor.name}.dequantized", self.tensors)
        self.tensors[real] = Tensor(real, "float32", tensor.shape)
        self.nodes.append(self._dequantize(own, real))
        return real

    def _on_grid(self, node: Node, limits: Range, dtype: str) -> None:
        """A node whose output contains integers, and that output quantized and dequantized again; an output of the
        graph keeps its name."""
        name = node.outputs[0]
        tensor = self.tensors[name]
        real = unused(f"{name}.dequantized", self.tensors)
        if name in self.outputs:
            inner = unused(f"{name}.real", self.tensors)
            self.tensors[inner] = replace(tensor, name=inner)
            node, real = replace(node, outputs=(inner,)), name
        else:
            self.real[name] = real
        integers = unused(f"{name}.integers", self.tensors)
        self.tensors[integers] = Tensor(integers, dtype, tensor.shape)
        self.tensors[real] = replace(tensor, name=real)
        attributes: Mapping[str, Any] = {"axis": 1, "block_size": 0, "output_dtype": dtype, "saturate": 1}
        version = OPERATORS[QUANTIZE].version
        self.nodes += [node, Node(QUANTIZE, (node.outputs[0], self._one()), (integers,), attributes, version=version)]
        self.nodes.append(self._dequantize(self._within(integers, limits), real))
        self.ranges[real] = limits

    def _within(self, name: str, limits: Range) -> str:
        """The same integers after a Clip, which states their range and changes nothing."""
        tensor = self.tensors[name]
        if limits == (DTYPES[tensor.dtype].minimum, DTYPES[tensor.dtype].maximum):
            return name
        clipped, *bounds = (unused(f"{name}.{word}", self.tensors) for word in ("clipped", "min", "max"))
        self.tensors[clipped] = replace(tensor, name=clipped)
        for bound, value in zip(bounds, limits, strict=True):
            self.tensors[bound] = Tensor.constant(bound, np.array(value, tensor.dtype))
        self.nodes.append(Node("Clip", (name, *bounds), (clipped,), version=OPERATORS["Clip"].version))
        return clipped

    def _dequantize(self, source: str, target: str) -> Node:
        return dequantize_node((source, self._one()), target)

    def _one(self) -> str:
        if "scale.one" not in self.tensors:
            self.tensors["scale.one"] = Tensor.constant("scale.one", np.float32(1))
        return "scale.one"


def _whole(tensor: Tensor, *widths: int) -> Any:
    """A constant of integers in the first type of those bits, signed or not, that fits; None if none does."""
    if not tensor.is_constant or tensor.quantization is not None:
        return None
    require(tensor.array.nbytes)
    array: Any = tensor.array.astype(np.float64)
    if not (array == np.rint(array)).all():
        return None
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    name = first_holding((f"{sign}int{bits}" for bits in widths for sign in ("", "u")), low, high)
    return None if name is None else array.astype(name)


def _reach(node: Node, weights: Any, given: Range) -> int:
    """The largest absolute value that a sum of products may have."""
    magnitudes = np.abs(terms_of(node, weights.astype(np.int64)))
    return int(magnitudes.sum((1, 2)).max(initial=0)) * max(-given[0], given[1])
