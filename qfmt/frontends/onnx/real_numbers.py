"""Converts Pad, Resize, ArgMax and ArgMin on quantized integers to the same operators on real numbers.

Models in the QOperator form apply them to integers directly. An operator that only moves integers needs no
quantization parameters, so `passes.attaching` looks through it. These operators need them to compute the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...arithmetic import dequantize
from ...model import DTYPES, Graph, Node, Tensor
from ...ops import Trait, has
from ...passes.constants import unused
from ...passes.qdq import QUANTIZE, QdqGrids, dequantize_node


def on_real_numbers(graph: Graph, preferred: dict[str, str]) -> Graph:
    """Insert a DequantizeLinear before each of these operators and a QuantizeLinear after it; the integers are the
    same.

    `preferred` receives the names that new tensors get if they are free after all passes.
    """
    return _Rewriting(graph, preferred).result()


class _Rewriting:
    def __init__(self, graph: Graph, preferred: dict[str, str]) -> None:
        self.graph = graph
        self.preferred = preferred
        self.tensors = dict(graph.tensors)
        self.grid_of = QdqGrids(self.tensors)
        self.quantizer: dict[str, Node] = {}
        """Integer tensor → the QuantizeLinear that produced it, directly or through moves."""

    def result(self) -> Graph:
        nodes = [each for node in self.graph.nodes for each in self._rewritten(node)]
        return replace(self.graph, nodes=nodes, tensors=self.tensors)

    def _rewritten(self, node: Node) -> Iterator[Node]:
        quantizer = self.quantizer.get(node.inputs[0]) if node.inputs else None
        if node.operator == QUANTIZE:
            self.quantizer[node.outputs[0]] = node
        elif quantizer is not None and self._keeps_the_grid(node):
            self.quantizer |= dict.fromkeys(node.outputs, quantizer)
        if quantizer is None or not self._is_wanted(node) or not self._fits(quantizer):
            yield node
            return
        real = self._real(node.inputs[0], "dequantized")
        yield dequantize_node((node.inputs[0], *quantizer.inputs[1:]), real)
        inputs = (real, *node.inputs[1:])
        if node.operator == "Pad" and node.attributes["mode"] == "constant":
            inputs = self._padded_with(node, real, quantizer)
        if not self._keeps_the_grid(node):
            yield replace(node, inputs=inputs)
            return
        result = self._real(node.outputs[0], "real")
        self.preferred[result] = node.outputs[0]
        yield replace(node, inputs=inputs, outputs=(result,))
        yield replace(quantizer, inputs=(result, *quantizer.inputs[1:]), outputs=node.outputs, name="")

    def _keeps_the_grid(self, node: Node) -> bool:
        """Whether all output integers are input integers, bounds of these, or an explicit fill value."""
        return has(node, Trait.ANY_MOVE) or (node.operator == "Resize" and node.attributes["mode"] == "nearest")

    def _is_wanted(self, node: Node) -> bool:
        if node.operator == "Pad":
            value = node.inputs[2] if len(node.inputs) > 2 else ""
            return not value or self.tensors[value].is_constant
        if node.operator == "Resize":
            mode = node.attributes["coordinate_transformation_mode"]
            return node.attributes["mode"] == "nearest" and mode != "tf_crop_and_resize"
        return node.operator in ("ArgMax", "ArgMin")

    def _fits(self, quantizer: Node) -> bool:
        """Whether dequantization is injective: one scale per tensor, and an integer type of at most 16 bits."""
        grid = self.grid_of(quantizer)
        data = self.tensors[quantizer.outputs[0]]
        known = grid is not None and grid.axis is None and grid.is_affine and not grid.has_float_zero_points
        kind = DTYPES[data.dtype]
        return known and kind.is_integer and kind.bits <= 16 and self.tensors[quantizer.inputs[1]].dtype == "float32"

    def _padded_with(self, node: Node, real: str, quantizer: Node) -> tuple[str, ...]:
        """The inputs of a Pad on real numbers, with the dequantized padding value."""
        grid = self.grid_of(quantizer)
        assert grid is not None
        given = (*node.inputs, "", "")[1:4]
        integer = self.tensors[given[1]].array.reshape(()) if given[1] else np.int64(0)
        own = unused(f"{node.outputs[0]}.value", self.tensors)
        value = np.float32(dequantize(np.asarray(integer), grid))
        self.tensors[own] = Tensor.constant(own, np.asarray(value))
        return (real, given[0], own, *given[2:]) if given[2] else (real, given[0], own)

    def _real(self, name: str, what: str) -> str:
        own = unused(f"{name}.{what}", self.tensors)
        self.tensors[own] = Tensor(own, "float32", self.tensors[name].shape)
        return own
