"""From the nodes of a Model to an ONNX graph.

A tensor has two forms there: stored, under its own name, and, if it is quantized, real (dequantized), which
DequantizeLinear computes when an operator needs it. QuantizeLinear converts the result of an operator to the tensor of
its output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ...budget import NODE, Budget
from ...errors import InexpressibleNodesError, QfmtError
from ...frontends.onnx.opaque import names_within
from ...memory import Memory
from ...model import Model, Node, Tensor
from ...ops import known
from ...passes.constants import unused
from ...passes.same_types import with_same_types
from ...passes.sizes import with_output_shapes
from . import (
    clamps,
    dynamic,
    integers,
    moves,
    older,
    pools,
    products,
    qdq,
    qoperator,
    recurrent,
    sums,
    tables,
)
from .constants import constant, onnx_dtype, sizes, stored_constant
from .fused import apart
from .lowering import lower
from .opsets import Lacks, ir_version, signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAMILIES = (clamps, dynamic, integers, moves, older, pools, products, qoperator, recurrent, sums, tables)
"""Importing them fills the table of operators that are not one-to-one."""


LARGEST_SIZE = 2**63 - 1
"""The largest size of a dimension in ONNX."""


class Builder:
    """Writes the graph of one model, for one opset and form."""

    def __init__(self, model: Model, form: str, opset: int, same_types: bool) -> None:
        if any(model.tensors[name].shape is None for name in model.graph.outputs):  # ONNX requires a shape of outputs
            model = model.replace(graph=with_output_shapes(model.graph))
        self.model, self.form, self.opset, self.same_types = model, form, opset, same_types
        self.apart = apart(model)
        self.is_integer_only = model.engine == "integer" or any(_is_of_integers(node) for node in model.nodes)
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.domains: dict[str, int] = {"": opset}
        self._stored: dict[str, ir.Value] = {}
        self._real: dict[str, ir.Value] = {}
        self._made: dict[tuple[Hashable, ...], ir.Value] = {}
        self._types: dict[ir.Value, str] = {}  # of what nodes compute
        self._named: set[ir.Node] = set()
        self._outputs = frozenset(model.graph.outputs)
        self._assumed = frozenset(model.source.get("assumed_types", "").split(", ")) - self._outputs
        self._taken = set(model.tensors) | names_within(model.nodes)  # ONNX knows no shadowing
        self._budget = Budget.of(model, "writing ONNX for a network of")

    # Tensors of the model

    def stored(self, name: str) -> ir.Value:
        """A tensor in its stored form: integers, if it is quantized."""
        if name not in self._stored:
            data = stored_constant(self.model.tensors[name])
            self._budget.allocate(data.nbytes)  # tensors of a model may share one array
            self._stored[name] = self._initializer(name, data)
        return self._stored[name]

    def real(self, name: str) -> ir.Value:
        """The real numbers of a tensor."""
        tensor = self.model.tensors[name]
        if tensor.quantization is None:
            return self.stored(name)
        if name not in self._real:
            self._real[name] = qdq.dequantized(self, tensor, self.stored(name))
        return self._real[name]

    def define(self, name: str, value: ir.Value) -> None:
        """Define that tensor, in its stored form, as the result of a node."""
        if value.producer() is None or value.name in self._stored:
            value = self.emit("Identity", value)
        stated = onnx_dtype(self.model.tensors[name].dtype).name.lower()
        if (held := self._types.get(value, stated)) != stated:
            raise Lacks(f"has an output of {stated}, but ONNX's is of {held}")
        self._describe(value, self.model.tensors[name])
        self._stored[name] = value

    def define_real(self, name: str, value: ir.Value, *, inside: bool = False) -> None:
        """Define that tensor by its real numbers, `inside` its [quant_min, quant_max] or not."""
        tensor = self.model.tensors[name]
        if tensor.quantization is None:
            self.define(name, value)
        else:
            self.define(name, qdq.quantized(self, tensor, value, inside))

    def is_output(self, value: ir.Value | None) -> bool:
        """Whether the network outputs that value."""
        return value is not None and value.name in self._outputs and self._stored.get(value.name) is value

    def know_real(self, name: str, value: ir.Value) -> None:
        """Record the real numbers of a tensor, which exist already."""
        self._real.setdefault(name, value)

    # Elements of the graph

    def emit(
        self, operator: str, *inputs: ir.Value | None, name: str = "", domain: str = "", **attributes: Any
    ) -> ir.Value:
        """A node with one output, of that name or a derived one."""
        (value,) = self.emit_several(operator, inputs, [name or operator], domain, attributes)
        return value

    def emit_several(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        names: Sequence[str],
        domain: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> list[ir.Value]:
        """A node, which gets the name of its first output, if it has any."""
        self._budget.spend(NODE)  # a node of the model becomes one or more for each of its inputs
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        outputs = [ir.Value(name=self.fresh(name) if name else "") for name in names]
        if not domain:
            self._check_types(operator, given, outputs, attributes or {})
        self._budget.allocate(sum(len(value.name or "") for value in (*given, *outputs) if value is not None))
        self.domains.setdefault(domain, 1)
        self.nodes.append(
            ir.node(
                operator,
                given,
                attributes or None,
                domain=domain,
                outputs=outputs,
                name=outputs[0].name if outputs else None,
            )
        )
        return outputs

    def _check_types(
        self,
        operator: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        attributes: Mapping[str, Any],
    ) -> None:
        """Lacks if ONNX's operator does not have the types of its inputs, as far as they are known."""
        if (own := signature(operator, self.opset)) is None:
            return
        bound: dict[str, str] = {}
        for index, value in enumerate(inputs):
            held = None if value is None else self._types.get(value) or (value.dtype and value.dtype.name.lower())
            variable = own.of(own.inputs, index)
            if not held or variable is None:
                continue
            allowed = own.allowed.get(variable, frozenset({variable}))
            if f"tensor({held})" not in allowed or bound.setdefault(variable, held) != held:
                raise Lacks(f"has an input of {held}, which ONNX's {operator} does not have in that opset")
        for index, value in enumerate(outputs):
            variable = own.of(own.outputs, index) or ""
            if operator == "Cast":
                self._types[value] = ir.DataType(attributes["to"]).name.lower()
            elif variable in bound or variable.startswith("tensor("):
                self._types[value] = bound.get(variable, variable.removeprefix("tensor(").removesuffix(")"))

    def constant(self, name: str, array: NDArray[Any], dtype: str = "") -> ir.Value:
        """An initializer that is not a tensor of the model; `dtype` if it differs from the array's."""
        return self._initializer(self.fresh(name), constant(array, dtype or array.dtype.name))

    def initializer(self, name: str, data: ir.TensorProtocol) -> ir.Value:
        """An initializer whose data is read when it is written."""
        return self._initializer(self.fresh(name), data)

    def once(self, key: tuple[Hashable, ...], make: Callable[[], ir.Value]) -> ir.Value:
        """The value cached for that key, or a new one."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def name(self, value: ir.Value, name: str) -> None:
        """Give the node that computes a value the name of the model's node."""
        producer = value.producer()
        if producer is not None and producer not in self._named:
            producer.name = name
            self._named.add(producer)

    def added(self, tensor: Tensor) -> ir.Value:
        """The real numbers of a quantized constant that the model does not have."""
        stored = self._initializer(tensor.name, stored_constant(tensor))
        return qdq.dequantized(self, tensor, stored)

    def fresh(self, wanted: str) -> str:
        """That name, or a similar one that no other value has."""
        return _unique(wanted, self._taken)

    def _initializer(self, name: str, data: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(name=name, shape=sizes(data), type=ir.TensorType(data.dtype), const_value=data)
        self.initializers.append(value)
        return value

    @contextmanager
    def body(self) -> Iterator[list[ir.Node]]:
        """Emit nodes into the graph of an attribute."""
        outside, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outside

    # The whole

    def build(self) -> ir.Model:
        for name in self.model.graph.inputs:
            self._stored[name] = ir.Value(name=name)
            tensor = self.model.tensors[name]
            if _is_too_large(tensor):
                raise QfmtError("has a size beyond int64, which ONNX does not have", where=f"input {name}")
            self._describe(self._stored[name], tensor)
        inputs = [self._stored[name] for name in self.model.graph.inputs]
        names: set[str] = set()
        with Memory.charged(self._budget).spent():
            self._lower_all()
            outputs = [self.stored(name) for name in self.model.graph.outputs]
            for node in self.nodes:
                node.name = _unique(node.name or "", names)
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports=self.domains,
            name=self.model.graph.name or "qfmt",
        )
        from ... import __version__

        version = ir_version(self.domains)
        return ir.Model(graph, ir_version=version, producer_name="qfmt", producer_version=__version__)

    def _lower_all(self) -> None:
        """Every node; those that cannot be written are reported together."""
        missing: dict[str, list[str]] = {}
        for node in self.model.nodes:
            if reason := self._lower(node):
                missing.setdefault(f"{node.operator} {reason}", []).append(node.label)
        if missing:
            raise InexpressibleNodesError(missing, format=f"ONNX opset {self.opset}")

    def _lower(self, node: Node) -> str:
        """Write one node; or record why it cannot be written, and continue as if it had been."""
        try:
            lower(self, node)
        except Lacks as reason:
            self._stored |= {name: ir.Value(name=name) for name in node.outputs}
            return str(reason)
        except QfmtError as error:
            raise error.at(f"node {node.title}") from None
        except (IndexError, TypeError, ValueError):
            tensors = (self.model.tensors[name] for name in (*node.inputs, *node.outputs) if name)
            if all(tensor.shape is not None for tensor in tensors):
                raise
            return "has sizes that contradict each other, or requires known ranks"  # V43 needs ranks, too
        return ""

    def _describe(self, value: ir.Value, tensor: Tensor) -> None:
        if _is_too_large(tensor):
            raise Lacks("has an output of a size beyond int64")
        value.name = tensor.name
        if tensor.name in self._assumed:  # a runtime knows the type
            return
        value.type = ir.TensorType(onnx_dtype(tensor.dtype))
        value.shape = None if tensor.shape is None else ir.Shape(tensor.shape)


def build(model: Model, form: str, opset: int, same_types: bool) -> ir.Model:
    """The model in ONNX; InexpressibleNodesError names every node that cannot be written."""
    return Builder(with_same_types(model) if same_types else model, form, opset, same_types).build()


def _is_too_large(tensor: Tensor) -> bool:
    return any(isinstance(size, int) and size > LARGEST_SIZE for size in tensor.shape or ())


def _is_of_integers(node: Node) -> bool:
    """Whether a node occurs only in integer-only networks."""
    operator = known(node)
    return operator is not None and (operator.takes_integers or node.rule in operator.sum_rules)


def _unique(wanted: str, taken: set[str]) -> str:
    """Reserve that name, or a similar one that is not used."""
    name = unused(wanted, taken)
    taken.add(name)
    return name
