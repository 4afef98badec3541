"""Replace ONNX Runtime's pattern of nodes for dynamic quantization by one operator.

    DynamicQuantizeLinear(x) → y, s, z;  MatMulInteger or ConvInteger(y, W, z, zw) → Cast → · (s · sw) [→ + B]

is `qfmt.DynamicLinear` or `qfmt.DynamicConv` by the rule `dynamic_divide`: the same sums, the same roundings.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ..memory import keep, require
from ..model import DTYPES, INT32, Graph, Node, Quantization, Tensor
from ..ops import OPERATORS
from ..rules.quantization import is_float32_scale
from .constants import unused
from .edits import only_read, renamed, without_unread

RULE = "dynamic_divide"


def fold_dynamic(graph: Graph) -> Graph:
    """The graph with every complete pattern replaced; DynamicQuantizeLinear is removed if nothing else reads it."""
    return _Dynamic(graph).result()


class _Dynamic:
    """Each product of integers, and the chain of nodes that are the only readers of its result."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = set(graph.outputs)
        self.tensors = dict(graph.tensors)
        self.producers = graph.producers()
        self.readers = graph.readers()
        self.preferred: dict[str, str] = {}
        """New constants → those with the same numbers, whose names they get if these are no longer read."""

    def result(self) -> Graph:
        merged: dict[int, Node] = {}
        for node in self.graph.nodes:
            if node.operator in ("MatMulInteger", "ConvInteger"):
                merged.update(self._merged(node))
        if not merged:
            return self.graph
        nodes = without_unread((merged.get(id(node), node) for node in self.graph.nodes), self.graph.outputs)
        return renamed(only_read(replace(self.graph, nodes=nodes, tensors=self.tensors)), self.preferred)

    def _merged(self, product: Node) -> dict[int, Node]:
        """The last node of the pattern that starts at a product → its replacement; empty if there is none."""
        y, weight, zero_point, weight_zero = (*product.inputs, "", "")[:4]
        source = self.producers.get(y)
        if source is None or source.operator != "DynamicQuantizeLinear" or (y, zero_point) != source.outputs[::2]:
            return {}
        cast = self._only_reader(product.outputs[0], "Cast")
        scaled = None if cast is None else self._only_reader(cast.outputs[0], "Mul")
        if cast is None or scaled is None or cast.attributes["to"] != "float32":
            return {}
        scales = self.producers.get(_other(scaled, cast.outputs[0]))
        if scales is None or scales.operator != "Mul" or source.outputs[1] not in scales.inputs:
            return {}
        grid = self._grid(product, weight, _other(scales, source.outputs[1]), weight_zero)
        if grid is None:
            return {}
        last, bias = scaled, ""
        added = self._only_reader(scaled.outputs[0], "Add")
        if added is not None:
            bias = self._bias(product, weight, _other(added, scaled.outputs[0]))
            last = added if bias else scaled
        return {id(last): self._operator(product, source.inputs[0], weight, grid, bias, last)}

    def _only_reader(self, name: str, operator: str) -> Node | None:
        """The node of that operator that is the only reader of a tensor."""
        readers = self.readers.get(name, [])
        alone = len(readers) == 1 and name not in self.outputs and readers[0].operator == operator
        return readers[0] if alone else None

    def _along(self, product: Node, weight: str) -> tuple[int, ...]:
        """The shape of a constant with a number for each output channel, so that it broadcasts against the product."""
        shape = self.tensors[weight].array.shape
        return (shape[-1],) if product.operator == "MatMulInteger" else (shape[0], *(1 for _ in shape[2:]))

    def _is_along(self, product: Node, weight: str, shape: tuple[int, ...]) -> bool:
        """Whether a constant of that shape has a number for each output channel, and adds no dimension."""
        along, result = self._along(product, weight), self.tensors[product.outputs[0]].shape
        rank = len(along) if result is None else len(result)
        return len(along) <= len(shape) <= rank and shape == (1,) * (len(shape) - len(along)) + along

    def _grid(self, product: Node, weight: str, scale: str, zero_point: str) -> Quantization | None:
        """The quantization of the weight, per tensor or per output channel, if its parameters are constant."""
        stored, given = self.tensors[weight], [self.tensors[name] for name in (weight, scale, zero_point) if name]
        if not all(tensor.is_constant for tensor in given) or self.tensors[scale].dtype != "float32":
            return None
        shape, scales = stored.array.shape, self.tensors[scale].array
        linear = product.operator == "MatMulInteger"
        terms = shape[0] if linear else prod(shape[1:])
        if (linear and len(shape) != 2) or terms * 255 * 255 > INT32:  # int32 would wrap around
            return None
        if scales.ndim > 0 and scales.shape != (1,) and not self._is_along(product, weight, scales.shape):
            return None
        values = tuple(float(value) for value in scales.reshape(-1))
        points = self.tensors[zero_point].array.reshape(-1) if zero_point else np.zeros(1, np.int64)
        if points.size not in (1, len(values)) or not all(map(is_float32_scale, values)):
            return None
        limits, axis = DTYPES[stored.dtype], None if len(values) == 1 else 0
        zero_points = tuple(int(value) for value in np.broadcast_to(points, len(values)))
        return Quantization.of(values, zero_points, limits.minimum, limits.maximum, axis)

    def _bias(self, product: Node, weight: str, name: str) -> str:
        """A constant with a number for each output channel, as a vector; "" if the addend is not such a constant."""
        tensor = self.tensors[name]
        if not tensor.is_constant or tensor.dtype != "float32":
            return ""
        if not self._is_along(product, weight, tensor.array.shape):
            return ""
        if tensor.array.ndim == 1:
            return name
        keep(tensor.array.nbytes)
        vector = unused(f"{name}.vector", self.tensors)
        aliases = tuple(sorted({*tensor.aliases, name}))
        self.tensors[vector] = Tensor.constant(vector, tensor.array.reshape(-1), aliases=aliases)
        self.preferred[vector] = next(iter(tensor.aliases), name)
        return vector

    def _operator(self, product: Node, x: str, weight: str, grid: Quantization, bias: str, last: Node) -> Node:
        linear = product.operator == "MatMulInteger"
        operator = OPERATORS["qfmt.DynamicLinear" if linear else "qfmt.DynamicConv"]
        stored = self.tensors[weight]
        own = unused(f"{weight}.{'T' if linear else 'quantized'}", self.tensors)
        aliases = tuple(sorted({*stored.aliases, weight}))
        turned = self._turned(stored) if linear else None
        if turned is not None:
            self.tensors[own] = replace(turned, name=own, quantization=grid, aliases=aliases)
            self.preferred[own] = turned.name
        elif linear:
            keep(stored.array.nbytes)
            self.tensors[own] = Tensor.constant(own, np.ascontiguousarray(stored.array.T), grid, aliases=aliases)
        else:
            self.tensors[own] = replace(stored, name=own, quantization=grid, aliases=aliases)
            self.preferred[own] = weight
        return replace(
            product,
            operator=operator.name,
            version=operator.version,
            inputs=(x, own, bias) if bias else (x, own),
            outputs=last.outputs,
            attributes=operator.complete(product.attributes),
            rule=RULE,
        )

    def _turned(self, weight: Tensor) -> Tensor | None:
        """The constant [out, in] from which a weight [in, out] was made, if there is one."""
        known = (self.tensors[name] for name in weight.aliases if name in self.tensors)
        require(weight.array.nbytes)
        return next((each for each in known if each.is_constant and np.array_equal(each.array, weight.array.T)), None)


def _other(node: Node, name: str) -> str:
    """The other one of two inputs."""
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]
