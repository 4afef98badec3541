"""Dequantize → operator → Quantize sandwiches become one operator on quantized tensors.

What an operator computes on quantized tensors is stated by its entry (`Quantized`) and by the rounding rule of its
node. A sandwich around an operator that computes in floating point is exactly that operator with the rule "divide"; one
around an operator that sums products is equal except for rounding ties (docs/spec/running.md: `integer_bias`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..arithmetic import f32, quantize
from ..model import DTYPES, Graph, Node, Quantization, Tensor, numpy_dtype
from ..ops import OPERATORS, Operator, Quantized, Trait, has, known
from ..ops.accumulation import in_units_of_sums, output_axis
from ..ops.activation import bounds
from .constants import computed, moved_constant, names_of, unused
from .edits import only_read, renamed, without_unread


def fold_sandwiches(graph: Graph, engine: str = "onnx") -> Graph:
    """The graph with as many operators as possible on quantized tensors, by the rounding rules of `engine`."""
    return _Folding(graph, engine).result()


def _have_reciprocals(x: Quantization, w: Quantization, y: Quantization) -> bool:
    """Whether float32 has the reciprocals of the scale of sums and of that of the output: rules multiply by them."""
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        scales = *(f32(x.scale[0]) * w.scale.real.astype(f32).reshape(-1)), f32(y.scale[0])
        return bool(np.isfinite(f32(1) / np.array(scales, f32)).all())


class _Folding:
    """One pass over the nodes in order; each is kept, or merged with those before and after it."""

    def __init__(self, graph: Graph, engine: str) -> None:
        self.graph = graph
        self.engine = engine
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.outputs = set(graph.outputs)
        self.uses = graph.uses()
        self.readers = graph.readers()
        self.integers: dict[str, str] = {}
        """Real tensor → the quantized one that it was dequantized from."""
        self.names: dict[str, str] = {}
        """Quantized tensor → its new name."""
        self.moved: dict[str, str] = {}
        """Quantized tensor → the float tensor that it replaces, whose name it gets if nothing reads that."""
        self.merged: set[int] = set()
        self.kept: list[Node] = []

    def result(self) -> Graph:
        for node in self.graph.nodes:
            if id(node) not in self.merged:
                self._visit(node)
        nodes = without_unread(self.kept, self.graph.outputs)
        return renamed(only_read(replace(self.graph, nodes=nodes, tensors=self.tensors)), self.moved)

    def _visit(self, node: Node) -> None:
        if not self.names.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(self.names.get(name, name) for name in node.inputs))
        if node.operator == "DequantizeLinear":
            self.integers[node.outputs[0]] = node.inputs[0]
            self.kept.append(node)  # removed if nothing reads it in the end
        elif node.operator == "QuantizeLinear":
            self._requantize(node)
        else:
            operator = known(node)
            if operator is None or not any(name in self.integers for name in node.inputs):
                self.kept.append(node)
            elif operator.moves:
                self._move(node)
            elif operator.quantized in (Quantized.ACCUMULATES, Quantized.COMPUTES, Quantized.OWN):
                self._compute(node, operator)
            else:
                self.kept.append(node)

    # -- operators that compute ------------------------------------------------------------------------------

    def _compute(self, node: Node, operator: Operator) -> None:
        inputs = tuple(self.integers.get(name, name) for name in node.inputs)
        if operator.accumulates and not self._adds_up(node, inputs):
            pairs = zip(inputs, node.inputs, strict=True)
            stored = (name if name and self.tensors[name].is_constant else own for name, own in pairs)
            self.kept.append(replace(node, inputs=tuple(stored)))
            return
        inner = replace(node, inputs=inputs)
        after = self._quantized_after(node)
        if after is None or not self._fits(operator, inputs, after):
            # The result stays float; integers are read only if all inputs are quantized: weights alone gain nothing.
            self.kept.append(inner if operator.accumulates else node)
            return
        clamps, quantizer = after
        name = self._absorb(node, clamps, quantizer)
        self.kept.append(replace(inner, outputs=(name,), rule=self._rule(operator, node, inputs)))

    def _rule(self, operator: Operator, node: Node, inputs: tuple[str, ...]) -> str:
        """The engine's rule. ONNX's bias is integers; one that is real is not rounded to them."""
        rule = operator.engines.get(self.engine, "")
        if rule != "integer_bias" or len(inputs) < 3 or not inputs[2]:
            return rule
        x, w, bias = (self.tensors[name].quantization for name in inputs[:3])
        assert x is not None
        assert w is not None
        return rule if in_units_of_sums(bias, x, w, node.attributes) else "float_bias"

    def _adds_up(self, node: Node, inputs: tuple[str, ...]) -> bool:
        """Whether exact sums of products are defined for the grids."""
        for name in inputs[:2]:
            grid = self.tensors[name].quantization
            if grid and not (grid.is_summable and self._is_integer(name)):
                return False
        x, w = (self.tensors[name].quantization for name in inputs[:2])
        if x is not None and x.is_per_channel:
            return False
        shape = self.tensors[inputs[1]].shape
        scaled = any(node.attributes.get(name, 1) != 1 for name in ("alpha", "beta"))
        if scaled or (node.operator == "Gemm" and not self._is_vector(inputs[2:])):
            return False
        return w is None or w.axis is None or (shape is not None and w.axis == output_axis(node, len(shape)))

    def _is_vector(self, names: tuple[str, ...]) -> bool:
        """Whether a bias, if there is one, has a dimension."""
        return all(not name or len(self.tensors[name].shape or ()) == 1 for name in names)

    def _fits(self, operator: Operator, inputs: tuple[str, ...], after: tuple[list[Node], Node]) -> bool:
        """Whether the operator can quantize its result to that grid directly."""
        target = self.tensors[after[1].outputs[0]].quantization
        grids = [self.tensors[name].quantization for name in inputs if name]
        if operator.accumulates:
            x, w = grids[:2]
            if x is None or w is None or target is None or not self._has_one_range(after[1]):
                return False
            return _have_reciprocals(x, w, target)
        if operator.quantized is Quantized.OWN:
            return all(grid is None or grid.is_per_tensor for grid in (*grids, target))
        return bool(operator.rules)

    def _quantized_after(self, node: Node) -> tuple[list[Node], Node] | None:
        """The chain of clamps and a QuantizeLinear that is the only reader of the output of a node."""
        clamps: list[Node] = []
        current = node
        while len(current.outputs) == 1 and self.uses[current.outputs[0]] == 1:
            following = next(iter(self.readers.get(current.outputs[0], ())), None)
            if following is None:
                return None
            if following.operator == "QuantizeLinear":
                return (clamps, following) if not clamps or self._has_one_range(following) else None
            if not is_clamp(following, current.outputs[0], self.tensors):
                return None
            clamps.append(following)
            current = following
        return None

    def _has_one_range(self, quantizer: Node) -> bool:
        """Whether a QuantizeLinear gives integers of one scale, whose range may be that of clamps before it."""
        target = self.tensors[quantizer.outputs[0]]
        grid = target.quantization
        return grid is not None and grid.is_per_tensor and self._is_integer(target.name)

    def _is_integer(self, name: str) -> bool:
        return DTYPES[self.tensors[name].dtype].is_integer

    def _absorb(self, node: Node, clamps: list[Node], quantizer: Node) -> str:
        """The quantized tensor that replaces a node's output, the clamps and the QuantizeLinear after it."""
        self.merged.update(map(id, (*clamps, quantizer)))
        last = self.tensors[quantizer.outputs[0]]
        assert last.quantization is not None
        grid = last.quantization
        for clamp in reversed(clamps):  # the last one decides where ranges do not meet
            grid = clamped(grid, last.dtype, clamp, self.tensors, self.engine)
        name = last.name
        aliases = {*last.aliases, last.name, *(each.outputs[0] for each in (node, *clamps))}
        if name not in self.outputs:
            name = (clamps[-1] if clamps else node).outputs[0]
            self.names[last.name] = name
        shape = last.shape if last.shape is not None else self.tensors[node.outputs[0]].shape
        self.tensors[name] = Tensor(name, last.dtype, shape, None, grid, tuple(sorted(aliases - {name})))
        return name

    # -- operators that move integers ------------------------------------------------------------------------

    def _move(self, node: Node) -> None:
        source = self.tensors[self.integers.get(node.inputs[0], node.inputs[0])]
        if source.quantization is None:
            self.kept.append(node)
        elif source.is_constant and OPERATORS[node.operator].integer is None and self._move_constant(node, source):
            return
        else:
            self._move_integers(node, source)

    def _move_constant(self, node: Node, source: Tensor) -> bool:
        """A constant is moved now; False if the move depends on values known only at run time."""
        others = node.input_tensors(self.tensors)[1:]
        if len(node.outputs) > 1 or any(other is not None and not other.is_constant for other in others):
            return False
        moved = moved_constant(node, source, others, unused(source.name, self.tensors))
        if moved is None:
            return False
        self.tensors[moved.name] = moved
        self._dequantized(moved.name, node.outputs[0], node)
        return True

    def _dequantized(self, source: str, target: str, like: Node) -> None:
        """Record that a float tensor is a dequantized one."""
        entry = OPERATORS["DequantizeLinear"]
        self.integers[target] = source
        self.kept.append(Node(entry.name, (source,), (target,), version=entry.version, scope=like.scope))

    def _move_integers(self, node: Node, source: Tensor) -> None:
        """Moving the integers and dequantizing afterwards is equivalent; inserted values have to wait for the grid."""
        grid = source.quantization
        assert grid is not None
        if not grid.is_per_tensor:
            self.kept.append(node)
            return
        if OPERATORS[node.operator].integer is not None:
            self._move_and_clamp(node, source)
            return
        outputs, real = [], {}
        for name in node.outputs:
            after = self._quantized_after(replace(node, outputs=(name,)))
            if after is not None and not after[0] and self._changes_nothing(source, after[1]):
                outputs.append(self._absorb(replace(node, outputs=(name,)), [], after[1]))
                continue
            moved = unused(f"{name}.quantized", self.tensors)
            self.tensors[moved] = replace(self.tensors[name], name=moved, dtype=source.dtype, quantization=grid)
            real[name] = moved
            self.moved[moved] = name
            outputs.append(moved)
        self.kept.append(replace(node, inputs=(source.name, *node.inputs[1:]), outputs=tuple(outputs)))
        for name, moved in real.items():
            self._dequantized(moved, name, node)

    def _changes_nothing(self, source: Tensor, quantizer: Node) -> bool:
        """Whether a QuantizeLinear has the grid of `source`, and does not clamp its integers."""
        x, target = source.quantization, self.tensors[quantizer.outputs[0]]
        y = target.quantization
        if x is None or y is None or source.dtype != target.dtype or not x.same_grid(y):
            return False
        return y.quant_min <= x.quant_min and x.quant_max <= y.quant_max

    def _move_and_clamp(self, node: Node, source: Tensor) -> None:
        """Clamps become the range of the QuantizeLinear behind them; padding needs its grid."""
        after = self._quantized_after(node)
        if after is None:
            self.kept.append(node)
            return
        clamps, quantizer = after
        if has(node, Trait.CLAMP):
            if self._has_one_range(quantizer) and is_clamp(node, node.inputs[0], self.tensors):
                name = self._absorb(node, [node, *clamps], quantizer)
                self.kept.append(replace(quantizer, inputs=(source.name,), outputs=(name,)))
                return
        elif not clamps and self._changes_nothing(source, quantizer):
            name = self._absorb(node, [], quantizer)
            self.kept.append(replace(node, inputs=(source.name, *node.inputs[1:]), outputs=(name,)))
            return
        self.kept.append(node)

    # -- quantizing ------------------------------------------------------------------------------------------

    def _requantize(self, node: Node) -> None:
        """A QuantizeLinear that was not merged."""
        source = self.tensors[self.integers.get(node.inputs[0], node.inputs[0])]
        target = self.tensors[node.outputs[0]]
        assert target.quantization is not None
        if self._changes_nothing(source, node) and target.name not in self.outputs:
            self.names[target.name] = source.name
        elif source.is_constant:
            aliases = tuple(sorted(names_of(source).union(target.aliases)))
            (self.tensors[target.name],) = computed(node, [source], [target], aliases)
        else:
            self.kept.append(replace(node, inputs=(source.name,)))


def is_clamp(node: Node, name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a node is Relu, or Clip with bounds that are known, of that tensor."""
    if not has(node, Trait.CLAMP) or node.inputs[0] != name:
        return False
    known = bounds(node, tensors)
    return known is not None and known[0] <= known[1]  # which NaN is not


def clamped(grid: Quantization, dtype: str, clamp: Node, tensors: Mapping[str, Tensor], engine: str) -> Quantization:
    """The grid with its range narrowed by a clamp before it: rounding is monotone."""
    rule = OPERATORS["QuantizeLinear"].engines[engine]
    kind = numpy_dtype(dtype)
    low, high = (int(quantize(np.array(value, np.float32), grid, kind, rule)) for value in bounds(clamp, tensors) or ())
    return replace(grid, quant_min=max(grid.quant_min, low), quant_max=min(grid.quant_max, high))
