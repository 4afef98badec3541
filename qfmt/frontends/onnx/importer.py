"""Converts ONNX nodes to qfmt nodes, one by one; every value keeps its name."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import Array
from ...budget import Budget
from ...errors import QfmtError, SourceError
from ...model import DTYPES, Attribute, Graph, Node, Shape, Tensor
from ...ops import OPERATORS
from ...ops.quantization import is_static
from ...ops.registry import ByName
from ...ops.shapes import tells_sizes
from ...passes.constants import unused
from ...progress import counted
from .calls import Call, attribute_of, check_arity, check_kinds
from .folding import Charged, folded
from .functions import graphs_within
from .opaque import defined
from .tensors import described, dtype_by_schema, is_storable, shape_of, stored

if TYPE_CHECKING:
    import onnx_ir as ir

imports: ByName[Callable[..., Any]] = ByName()
"""Functions (importer, call) by ONNX operator, "Op" or "domain.Op". They return NotImplemented for a form that they
do not support."""

UNSOUND = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""Exceptions that a node with a missing or mistyped input or attribute causes."""

WITHOUT_EFFECT = {"consumed_inputs", "momentum", "stash_type"}
"""Attributes of ONNX operators that do not change their results at inference."""


class Importer:
    """Collects nodes and tensors under their ONNX names."""

    def __init__(self, model: ir.Model, budget: Budget, shapes: Mapping[str, Shape] | None = None) -> None:
        graph = model.graph
        taken = {value.name or "" for node in graph for value in node.inputs if value is not None}
        taken |= {value.name or "" for each in graphs_within(graph) for value in defined(each)}
        self.model = model
        self.budget = budget
        self.memory = Charged(budget)
        self.outputs = {value.name or "" for value in graph.outputs}
        self._taken = taken
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, ir.Value] = {}
        """onnx-ir values by name, for the types and shapes that the model states."""
        self.preferred: dict[str, str] = {}
        """New tensor → the name in the ONNX file that it gets if the name is free after all passes."""
        self.call_ = Call("", "", 1, (), (), {}, "")
        """The ONNX node that is being converted."""
        self.opsets = model.opset_imports
        self._assumed: list[str] = []
        self.unchecked: list[str] = []
        """Outputs of nearest Resizes whose positions only a run knows."""
        self.names: dict[str, str] = {}
        """Output → the tensor that it is an alias of."""
        for name, value in graph.initializers.items():
            if is_storable(value.const_value) or value.uses() or name in self.outputs:
                self.tensors[name] = stored(name, value.const_value)
        self.initializers = {name: tensor.dtype for name, tensor in self.tensors.items()}
        given = [value for value in graph.inputs if value.name not in graph.initializers]
        stated = [described(value) for value in given]
        inputs = [replace(tensor, shape=(shapes or {}).get(tensor.name, tensor.shape)) for tensor in stated]
        self.tensors.update((tensor.name, tensor) for tensor in inputs)
        self.inputs = tuple(tensor.name for tensor in inputs)
        self._has_fixed_inputs = inputs == stated and all(is_static(tensor.shape) for tensor in inputs)

    @property
    def notes(self) -> dict[str, str]:
        """Notes on the conversion for the file, by source key (docs/spec/conversions.md); empty if there are none."""
        of_integers = any(node.op_type.startswith("QLinear") or node.op_type == "QGemm" for node in self.model.graph)
        names = {"assumed_types": self._assumed, "unchecked_positions": self.unchecked}
        return {key: ", ".join(each) for key, each in names.items()} | {"onnx_form": "qoperator" if of_integers else ""}

    # -- converting a graph ----------------------------------------------------------------------------------

    def run(self, graph: ir.Graph) -> Graph:
        """Convert a graph. A SourceError names the node that caused it."""
        for node in counted(graph, "", len(graph), "nodes"):
            self._node(node)
        outputs: dict[str, None] = {}
        for value in graph.outputs:
            outputs[self._output(value.name or "", outputs)] = None
        return Graph(self.inputs, tuple(outputs), self.nodes, self.tensors, graph.name or "")

    def _node(self, node: ir.Node) -> None:
        self.values.update((value.name, value) for value in node.outputs if value.name)
        read = ("" if value is None else value.name or "" for value in node.inputs)
        inputs = tuple(self.names.get(name, name) for name in read)
        call = Call(
            node.op_type,
            node.domain,
            self.opsets.get(node.domain, 1),
            inputs,
            self._outputs(node),
            {name: attribute.value for name, attribute in node.attributes.items()},
            node.name or "",
        )
        self.call_ = call
        self.budget.spend(
            sum(len(value) for value in call.attributes.values() if isinstance(value, str | tuple | list))
        )
        try:
            check_kinds(node, call.opset)
            if call.outputs:  # else it computes nothing
                self.dispatch(call)
        except SourceError as error:
            raise error.at(call.title) from None
        except QfmtError as error:
            raise SourceError(error.what, where=call.title, hint=error.hint) from None
        except UNSOUND as error:
            what = f"its inputs and attributes do not fit the operator ({type(error).__name__}: {error})"
            raise SourceError(what, where=call.title, hint="run onnx.checker for details") from None

    def _outputs(self, node: ir.Node) -> tuple[str, ...]:
        """The outputs of a node; an unused output that precedes a used one gets a name."""
        names = [value.name or "" for value in node.outputs]
        while names and not names[-1]:
            names.pop()
        return tuple(name or self.fresh(f"{names[-1]}.unused") for name in names)

    def without_unread(self, call: Call) -> Call:
        """The call without outputs, after the first, that no node reads and that are none of the network."""
        others = call.outputs[1:]
        is_read = any(name in self.outputs or (name in self.values and self.values[name].uses()) for name in others)
        return call if is_read else call._replace(outputs=call.outputs[:1])

    def dispatch(self, call: Call) -> None:
        """Convert a node: by its registered function, else as the qfmt operator of that name, else as an opaque
        node."""
        function = imports.get(f"{call.domain}.{call.operator}" if call.domain else call.operator)
        if function is not None and function(self, call) is not NotImplemented:
            return
        if call.domain or self.one_to_one(call) is NotImplemented:
            self.opaque(call)

    def _output(self, name: str, earlier: Container[str]) -> str:
        """Give a graph output its own name, if it is an alias of an input, a constant or another output. If the name
        is an output already, it gets a new name."""
        source = self.names.get(name, name)
        if name in earlier:
            source, name = name, self.fresh(name)
            self.outputs.add(name)
        if source != name and name not in self.tensors:
            self.call_ = Call("Identity", "", 1, (source,), (name,), {}, "")
            self.emit("Identity", [source], [name])
        return name

    # -- called by functions ---------------------------------------------------------------------------------

    def one_to_one(self, call: Call) -> Any:
        """Convert to the operator of the same name; NotImplemented if its attributes, inputs or outputs differ."""
        entry, outputs = OPERATORS.get(call.operator), call.outputs
        while outputs and not outputs[-1]:
            outputs = outputs[:-1]
        if entry is None:
            return NotImplemented
        given = {name: value for name, value in call.attributes.items() if name not in WITHOUT_EFFECT}
        if not given.keys() <= entry.attributes.keys():
            return NotImplemented
        for names, parameters in ((outputs, entry.outputs), (call.inputs, entry.inputs)):
            if len(names) > len(parameters) and not parameters[-1].variadic:
                return NotImplemented
        if any(spec.default is None and name not in given for name, spec in entry.attributes.items()):
            return NotImplemented
        attributes: dict[str, Attribute] = {}
        for name, value in given.items():
            if (converted := attribute_of(value, entry.attributes[name].kind)) is None:
                return NotImplemented
            attributes[name] = converted
        self.emit(call.operator, call.inputs, outputs, attributes)
        return None

    def opaque(self, call: Call) -> None:
        """Keep a node that qfmt does not know unchanged. It can be inspected and exported to ONNX, but not run."""
        from .opaque import captured, opaque_attributes

        self.budget.node(len(call.inputs))
        self.budget.tensor(len(call.outputs) + len(call.attributes))
        inner = captured(call.attributes)
        types = [self.tensors[each].dtype if each else "" for each in call.inputs]
        for index, name in enumerate(call.outputs):
            if name:
                self.tensors[name] = self._of_unknown_type(name, index, call, types)
        attributes = opaque_attributes(call.attributes, inner)
        self.budget.allocate(sum(len(value) for value in attributes.values() if isinstance(value, str | tuple)))
        self.nodes.append(
            Node(
                operator=call.full_name,
                inputs=(*call.inputs, *(self.names.get(name, name) for name in inner)),
                outputs=call.outputs,
                attributes=attributes,
                name=call.name,
                version=call.opset,
                source_operator=call.full_name,
            )
        )

    def alias(self, call: Call, source: str) -> None:
        """Make the first output of a node an alias of the tensor `source`."""
        if not source:
            raise SourceError("its input is absent")
        self.names[call.outputs[0]] = source

    def emit(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add a node and return the name of its first output. `outputs` are names, or the prefix of a new one.

        Nodes over constants are folded, except those that dequantize.
        """
        self.budget.node(len(inputs))
        self.budget.tensor(0 if isinstance(outputs, str) else len(outputs) - 1)
        entry = OPERATORS[operator]
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        check_arity(entry, inputs)
        names = [self.fresh(outputs or operator.lower())] if isinstance(outputs, str) else list(outputs)
        names = [name or self.fresh(f"{operator.lower()}_unused") for name in names]
        complete = entry.complete(attributes or {})
        given = [self.tensors[name] if name else None for name in inputs]
        shapes = entry.inferred(given, complete, tells_sizes)
        dtypes = [None if tensor is None else tensor.dtype for tensor in given]
        for position, name in enumerate(names):
            dtype = entry.likely_dtype(position, dtypes, complete)
            shape = shapes[min(position, len(shapes) - 1)]
            self.tensors[name] = Tensor(name, dtype, self._refined(name, shape))
        node = Node(
            operator=operator,
            inputs=tuple(inputs),
            outputs=tuple(names),
            attributes=complete,
            name=self.call_.name,
            version=entry.version,
            source_operator=f"{self.call_.domain}.{self.call_.operator}".lstrip("."),
        )
        constants = [] if self.outputs.intersection(names) else folded(node, self.tensors, self.memory)
        self.tensors.update((tensor.name, tensor) for tensor in constants)
        if not constants:
            self.nodes.append(node)
        return names[0]

    def constant(self, array: Any, name: str, dtype: str = "", aliases: Sequence[str] = ()) -> str:
        """Add a constant and return its name, which is `name` or a similar one. `dtype` overrides that of the array."""
        own, array = self.fresh(name), np.asarray(array)
        self.budget.allocate(array.nbytes)
        self.tensors[own] = Tensor.constant(own, array, dtype=dtype or None, aliases=tuple(aliases))
        return own

    def value(self, name: str) -> Array | None:
        """The array of a constant; None if the tensor is absent or not constant."""
        tensor = self.tensors.get(name)
        return tensor.array if tensor is not None and tensor.data is not None else None

    def shape(self, name: str) -> Shape:
        return self.tensors[name].shape

    def rank(self, name: str) -> int | None:
        shape = self.tensors[name].shape
        return None if shape is None else len(shape)

    def fresh(self, base: str) -> str:
        """A name that no tensor has."""
        name = unused(base, self._taken)
        self._taken.add(name)
        return name

    # -- internal --------------------------------------------------------------------------------------------

    def _of_unknown_type(self, name: str, index: int, call: Call, types: Sequence[str]) -> Tensor:
        """The output of an opaque operator: as the model states it, else with the element type of the operator's
        schema, else with that of its first floating-point input (QAttention takes integers and outputs floats)."""
        value = self.values.get(name)
        if value is not None and value.type is not None:
            return replace(described(value), shape=self._stated(value))
        dtype = dtype_by_schema(call, index, types)
        if not dtype:
            self._assumed.append(name)
            known = [each for each in types if each] or ["float32"]
            floats = [each for each in known if DTYPES[each].kind == "f"]
            dtype = known[0] if call.operator.startswith("QLinear") else [*floats, *known][0]  # its floats are scales
        return Tensor(name, dtype, None)

    def _stated(self, value: ir.Value) -> Shape:
        """The shape that the model states for a value. If an input has open sizes, or sizes other than the stated ones,
        only the rank and the names of sizes count: the numbers may belong to another batch size. Programs that change
        the batch of the input rarely update them."""
        shape = shape_of(value)
        if shape is None or self._has_fixed_inputs:
            return shape
        return tuple(size if isinstance(size, str) else None for size in shape)

    def _refined(self, name: str, shape: Shape) -> Shape:
        """The inferred shape; dimensions that inference leaves open come from the model."""
        value = self.values.get(name)
        stated = None if value is None else self._stated(value)
        if shape is None or stated is None or len(shape) != len(stated):
            return stated if shape is None else shape
        return tuple(b if a is None else a for a, b in zip(shape, stated, strict=True))
