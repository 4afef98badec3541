"""Dequantize → operator → Quantize sandwiches become one operator on quantized tensors.

What an operator computes on quantized tensors is stated by its entry (`Quantized`) and by the rounding rule of its
node. A sandwich around an operator that computes on real numbers is exactly that with the rule "divide"; one around an
operator that adds up products is that but for rounding ties (spec.md, "Arithmetic": `integer_bias`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..arithmetic import quantize
from ..interpreter import execute
from ..model import Graph, Node, Quantization, Tensor, numpy_dtype
from ..ops import OPERATORS, Operand, Operator, Quantized

WEIGHT_AXES = {"Conv": (0,), "ConvTranspose": (1,), "qfmt.Linear": (0,), "MatMul": (-1,), "Gemm": ()}
"""Of operators that add up products: the axis that the scales of the second input may run along."""

_CLAMPS = ("Relu", "Clip")


def fold_sandwiches(graph: Graph, engine: str = "onnx") -> Graph:
    """The graph with as many operators as possible on quantized tensors, by the rounding rules of `engine`."""
    return _Folding(graph, engine).result()


class _Folding:
    """One walk over the nodes in order; each is kept, or merged with those before and after it."""

    def __init__(self, graph: Graph, engine: str) -> None:
        self.graph = graph
        self.engine = engine
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.readers = Counter(name for node in graph.nodes for name in node.inputs)
        self.readers.update(graph.outputs)
        self.reader: dict[str, Node] = {name: node for node in graph.nodes for name in node.inputs}
        self.integers: dict[str, str] = {}
        """Real tensor → the quantized one that it was dequantized from."""
        self.names: dict[str, str] = {}
        """Quantized tensor → the name that it has from now on."""
        self.merged: set[int] = set()
        self.kept: list[Node] = []

    def result(self) -> Graph:
        for node in self.graph.nodes:
            if id(node) not in self.merged:
                self._visit(node)
        nodes = without_unread(self.kept, self.graph.outputs)
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        named |= {*self.graph.inputs, *self.graph.outputs}
        tensors = {name: tensor for name, tensor in self.tensors.items() if name in named}
        return replace(self.graph, nodes=nodes, tensors=tensors)

    def _visit(self, node: Node) -> None:
        node = replace(node, inputs=tuple(self.names.get(name, name) for name in node.inputs))
        if node.operator == "DequantizeLinear":
            self.integers[node.outputs[0]] = node.inputs[0]
            self.kept.append(node)  # if nothing reads it in the end, it goes
        elif node.operator == "QuantizeLinear":
            self._requantize(node)
        else:
            operator = OPERATORS.get(node.operator)
            if operator is None or not any(name in self.integers for name in node.inputs):
                self.kept.append(node)
            elif operator.quantized is Quantized.MOVES:
                self._move(node)
            elif operator.quantized in (Quantized.ACCUMULATES, Quantized.COMPUTES, Quantized.OWN):
                self._compute(node, operator)
            else:
                self.kept.append(node)

    # -- operators that compute ------------------------------------------------------------------------------

    def _compute(self, node: Node, operator: Operator) -> None:
        inputs = tuple(self.integers.get(name, name) for name in node.inputs)
        if operator.quantized is Quantized.ACCUMULATES and not self._adds_up(node.operator, inputs):
            self.kept.append(node)
            return
        inner = replace(node, inputs=inputs)
        after = self._quantized_after(node)
        if after is None or not self._fits(operator, inputs, after):
            # The real result stays; integers are read only where every one of them is: weights alone gain nothing.
            self.kept.append(inner if operator.quantized is Quantized.ACCUMULATES else node)
            return
        clamps, quantizer = after
        name = self._absorb(node, clamps, quantizer)
        self.kept.append(replace(inner, outputs=(name,), arithmetic=self._rule(operator)))

    def _rule(self, operator: Operator) -> str:
        return operator.engines.get(self.engine, "")

    def _adds_up(self, operator: str, inputs: tuple[str, ...]) -> bool:
        """Whether the grids are those that exact sums of products are known for."""
        x, w = (self.tensors[name].quantization for name in inputs[:2])
        if x is not None and x.is_per_channel:
            return False
        rank = len(self.tensors[inputs[1]].shape or ())
        axes = [axis % rank for axis in WEIGHT_AXES.get(operator, ()) if rank]
        return w is None or not w.is_per_channel or w.axis in axes

    def _fits(self, operator: Operator, inputs: tuple[str, ...], after: tuple[list[Node], Node]) -> bool:
        """Whether the operator can put its result on that grid directly."""
        target = self.tensors[after[1].outputs[0]].quantization
        grids = [self.tensors[name].quantization for name in inputs if name]
        if operator.quantized is Quantized.ACCUMULATES:
            per_channel = target is None or target.is_per_channel
            return not per_channel and all(grid is not None for grid in grids[:2])
        if operator.quantized is Quantized.OWN:
            return all(grid is None or not grid.is_per_channel for grid in (*grids, target))
        return True

    def _quantized_after(self, node: Node) -> tuple[list[Node], Node] | None:
        """The clamps and the QuantizeLinear that alone read the output of a node, one after the other."""
        clamps: list[Node] = []
        current = node
        while len(current.outputs) == 1 and self.readers[current.outputs[0]] == 1:
            following = self.reader.get(current.outputs[0])
            if following is None:
                return None
            if following.operator == "QuantizeLinear":
                target = self.tensors[following.outputs[0]].quantization
                return None if clamps and target is not None and target.is_per_channel else (clamps, following)
            if not self._is_clamp(following, current.outputs[0]):
                return None
            clamps.append(following)
            current = following
        return None

    def _is_clamp(self, node: Node, name: str) -> bool:
        """Relu, or Clip with bounds that are known, of that tensor."""
        bounds = [self.tensors[bound] for bound in node.inputs[1:] if bound]
        return node.operator in _CLAMPS and node.inputs[0] == name and all(bound.is_constant for bound in bounds)

    def _absorb(self, node: Node, clamps: list[Node], quantizer: Node) -> str:
        """The quantized tensor that stands for a node's output, the clamps and the QuantizeLinear after it."""
        self.merged.update(map(id, (*clamps, quantizer)))
        last = self.tensors[quantizer.outputs[0]]
        assert last.quantization is not None
        grid = last.quantization
        for clamp in clamps:
            grid = self._clamped(grid, last.dtype, clamp)
        name = last.name
        aliases = {*last.aliases, last.name, *(each.outputs[0] for each in (node, *clamps))}
        if name not in self.graph.outputs:
            name = (clamps[-1] if clamps else node).outputs[0]
            self.names[last.name] = name
        shape = last.shape if last.shape is not None else self.tensors[node.outputs[0]].shape
        self.tensors[name] = Tensor(name, last.dtype, shape, None, grid, tuple(sorted(aliases - {name})))
        return name

    def _clamped(self, grid: Quantization, dtype: str, clamp: Node) -> Quantization:
        """The grid with the range that a clamp before it leaves: rounding never changes an order."""
        low, high = self._bounds(clamp)
        kind = numpy_dtype(dtype)
        rule = OPERATORS["QuantizeLinear"].engines[self.engine]
        bounds = [quantize(np.array(value, np.float32), grid, kind, rule) for value in (low, high)]
        return replace(
            grid, quant_min=max(grid.quant_min, int(bounds[0])), quant_max=min(grid.quant_max, int(bounds[1]))
        )

    def _bounds(self, clamp: Node) -> tuple[float, float]:
        if clamp.operator == "Relu":
            return 0.0, np.inf
        given = [self.tensors[name].array if name else None for name in (*clamp.inputs[1:], "", "")][:2]
        low, high = given
        return (-np.inf if low is None else float(low.reshape(()))), (
            np.inf if high is None else float(high.reshape(()))
        )

    # -- operators that move integers ------------------------------------------------------------------------

    def _move(self, node: Node) -> None:
        source = self.tensors[self.integers.get(node.inputs[0], node.inputs[0])]
        if source.quantization is None:
            self.kept.append(node)
        elif source.is_constant and self._move_constant(node, source):
            return
        else:
            self._move_integers(node, source)

    def _move_constant(self, node: Node, source: Tensor) -> bool:
        """A constant is moved now; False if what moves it is known only when the network runs."""
        others = [self.tensors[name] if name else None for name in node.inputs[1:]]
        if len(node.outputs) > 1 or any(other is not None and not other.is_constant for other in others):
            return False
        assert source.quantization is not None
        operands = [None if other is None else Operand(other.array, other.quantization) for other in others]
        (moved,) = execute(node, [Operand(source.array, None), *operands], [replace(source, quantization=None)])
        grid = source.quantization
        if grid.axis is not None:
            along = [-1 if axis == grid.axis else 1 for axis in range(source.array.ndim)]
            numbers = np.arange(len(grid.scale), dtype=np.int32).reshape(along)
            channels = np.broadcast_to(numbers, source.array.shape)
            (where,) = execute(
                node, [Operand(channels, None), *operands], [Tensor(node.outputs[0], "int32", tuple(moved.shape))]
            )
            axis = _axis_of_channels(where, len(grid.scale))
            if axis is None:
                return False
            grid = replace(grid, axis=axis)
        name = _unused(source.name, self.tensors)
        aliases = tuple(sorted({*source.aliases, source.name}))
        self.tensors[name] = Tensor.constant(name, moved, grid, dtype=source.dtype, aliases=aliases)
        self.integers[node.outputs[0]] = name
        self.kept.append(replace(_dequantize(name, node.outputs[0]), scope=node.scope))
        return True

    def _move_integers(self, node: Node, source: Tensor) -> None:
        after = [self._quantized_after(replace(node, outputs=(name,))) for name in node.outputs]
        if source.quantization is None or source.quantization.is_per_channel:
            self.kept.append(node)
            return
        if len(after) == 1 and after[0] is not None and node.operator in _CLAMPS:
            clamps, quantizer = after[0]
            name = self._absorb(node, [node, *clamps], quantizer)
            self.kept.append(replace(quantizer, inputs=(source.name,), outputs=(name,)))
            return
        if not all(each is not None and not each[0] for each in after):
            self.kept.append(node)
            return
        outputs, further = [], []
        for name, (_, quantizer) in zip(node.outputs, [each for each in after if each is not None], strict=True):
            target = self.tensors[quantizer.outputs[0]].quantization
            if source.quantization.same_grid(target) and self.tensors[quantizer.outputs[0]].dtype == source.dtype:
                outputs.append(self._absorb(replace(node, outputs=(name,)), [], quantizer))
            else:
                self.tensors[name] = replace(self.tensors[name], dtype=source.dtype, quantization=source.quantization)
                outputs.append(name)
                further.append(quantizer)
        self.kept.append(replace(node, inputs=(source.name, *node.inputs[1:]), outputs=tuple(outputs)))
        for quantizer in further:
            self.merged.add(id(quantizer))
            self.kept.append(quantizer)

    # -- quantizing ------------------------------------------------------------------------------------------

    def _requantize(self, node: Node) -> None:
        """A QuantizeLinear that nothing was merged with."""
        source = self.tensors[self.integers.get(node.inputs[0], node.inputs[0])]
        target = self.tensors[node.outputs[0]]
        assert target.quantization is not None
        same = source.dtype == target.dtype and target.quantization.same_grid(source.quantization)
        if same and target.name not in self.graph.outputs:
            self.names[target.name] = source.name
        elif source.is_constant:
            (array,) = execute(node, [Operand(source.array, source.quantization)], [target])
            aliases = tuple(sorted({*target.aliases, *source.aliases, source.name}))
            self.tensors[target.name] = Tensor.constant(
                target.name, array, target.quantization, dtype=target.dtype, aliases=aliases
            )
        else:
            self.kept.append(replace(node, inputs=(source.name,)))


def _axis_of_channels(where: Any, count: int) -> int | None:
    """The axis along which an array of channel numbers counts from 0 to `count` - 1, if there is one."""
    for axis, size in enumerate(where.shape):
        shape = [-1 if each == axis else 1 for each in range(where.ndim)]
        if size == count and (where == np.arange(count).reshape(shape)).all():
            return axis
    return None


def _dequantize(source: str, target: str) -> Node:
    entry = OPERATORS["DequantizeLinear"]
    return Node(entry.name, (source,), (target,), version=entry.version)


def _unused(base: str, tensors: Mapping[str, Tensor]) -> str:
    count = 1
    while f"{base}_{count}" in tensors:
        count += 1
    return f"{base}_{count}"


def without_unread(nodes: Iterable[Node], outputs: Iterable[str]) -> list[Node]:
    """The nodes that an output depends on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]
