"""ONNX's nodes become qfmt's, one after the other; every value keeps its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...budget import Budget
from ...errors import QfmtError, SourceError
from ...model import Attribute, Graph, Node, Shape, Tensor
from ...ops import OPERATORS
from ...ops.registry import ByName
from .emitting import Call, Emitter
from .tensors import described, dtype_by_schema, dtype_of, stored

if TYPE_CHECKING:
    import onnx_ir as ir

imports: ByName[Callable[..., Any]] = ByName()
"""Functions (importer, call) for ONNX operators: "Op" or "domain.Op". They return NotImplemented for a form that is not
supported."""

UNSOUND = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""What comes of a node that lacks an input or an attribute, or has one of another type."""

DOMAINS = {"": "", "ai.onnx": ""}
"""The default domain under both of its names."""


class Importer(Emitter):
    """Collects nodes and tensors under the names that ONNX gave them."""

    def __init__(self, model: ir.Model, budget: Budget, shapes: Mapping[str, Shape] | None = None) -> None:
        graph = model.graph
        taken = {value.name or "" for node in graph for value in (*node.inputs, *node.outputs) if value is not None}
        taken |= {value.name or "" for value in graph.inputs} | set(graph.initializers)
        super().__init__({value.name or "" for value in graph.outputs}, taken, budget)
        self.model = model
        self.opsets = {DOMAINS.get(domain, domain): version for domain, version in model.opset_imports.items()}
        self._assumed: list[str] = []
        self.names: dict[str, str] = {}
        """Outputs that are nothing but another tensor → the name of that."""
        for name, value in graph.initializers.items():
            self.tensors[name] = stored(name, value.const_value)
        self.initializers = {name: tensor.dtype for name, tensor in self.tensors.items()}
        given = [value for value in graph.inputs if value.name not in graph.initializers]
        for value in given:
            tensor = described(value)
            self.tensors[tensor.name] = replace(tensor, shape=(shapes or {}).get(tensor.name, tensor.shape))
        self.inputs = tuple(value.name or "" for value in given)

    @property
    def notes(self) -> dict[str, str]:
        """What the file should say of the conversion: source keys (docs/spec/conversions.md); "" if nothing."""
        of_integers = any(node.op_type.startswith("QLinear") or node.op_type == "QGemm" for node in self.model.graph)
        return {"assumed_types": ", ".join(self._assumed), "onnx_form": "qoperator" if of_integers else ""}

    # -- running over a graph --------------------------------------------------------------------------------

    def run(self, graph: ir.Graph) -> Graph:
        """The graph with every node of ONNX turned into nodes of qfmt. SourceError for what is wrong, placed."""
        for node in graph:
            self._node(node)
        outputs: list[str] = []
        for value in graph.outputs:
            outputs.append(self._output(value.name or "", outputs))
        return Graph(self.inputs, tuple(outputs), self.nodes, self.tensors, graph.name or "")

    def _node(self, node: ir.Node) -> None:
        domain = DOMAINS.get(node.domain, node.domain)
        self.values.update((value.name, value) for value in node.outputs if value.name)
        read = ("" if value is None else value.name or "" for value in node.inputs)
        inputs = tuple(self.names.get(name, name) for name in read)
        call = Call(
            node.op_type,
            domain,
            self.opsets.get(domain, 1),
            inputs,
            self._outputs(node),
            {name: attribute.value for name, attribute in node.attributes.items()},
            node.name or "",
        )
        self.call_ = call
        try:
            self.dispatch(call)
        except QfmtError as error:
            where = f"node {call.name or next(iter(call.outputs), '')} ({call.operator})"
            if isinstance(error, SourceError):
                raise error.at(where) from None
            raise SourceError(error.what, where=where, hint=error.hint) from None
        except UNSOUND as error:
            where = f"node {call.name or next(iter(call.outputs), '')} ({call.operator})"
            what = f"its inputs and attributes do not fit the operator ({type(error).__name__}: {error})"
            raise SourceError(what, where=where, hint="run onnx.checker for details") from None

    def _outputs(self, node: ir.Node) -> tuple[str, ...]:
        """Its outputs; an unused output that precedes a used one gets a name."""
        names = [value.name or "" for value in node.outputs]
        while names and not names[-1]:
            names.pop()
        return tuple(name or self.fresh(f"{names[-1]}.unused") for name in names)

    def dispatch(self, call: Call) -> None:
        """The meaning of a node: the function registered for it, else the operator of that name, else opaque."""
        function = imports.get(f"{call.domain}.{call.operator}" if call.domain else call.operator)
        if function is not None and function(self, call) is not NotImplemented:
            return
        if not call.domain and self.one_to_one(call):
            return
        self.opaque(call)

    def _output(self, name: str, earlier: Sequence[str]) -> str:
        """An output under its own name, which may be only another name of an input, a constant, another output; under
        a new name if it is an output already."""
        source = self.names.get(name, name)
        if name in earlier:
            source, name = name, self.fresh(name)
            self.outputs.add(name)
        if source != name and name not in self.tensors:
            self.call_ = Call("Identity", "", 1, (source,), (name,), {}, "")
            self.emit("Identity", [source], [name])
        return name

    # -- what functions call ---------------------------------------------------------------------------------

    def one_to_one(
        self, call: Call, attributes: Mapping[str, Any] | None = None, inputs: Sequence[str] | None = None
    ) -> bool:
        """The operator of the same name; False if qfmt's has other attributes or outputs."""
        entry = OPERATORS.get(call.operator)
        given = call.attributes if attributes is None else attributes
        outputs = call.outputs
        while outputs and not outputs[-1]:
            outputs = outputs[:-1]
        if entry is None or not given.keys() <= entry.attributes.keys():
            return False
        if len(outputs) > len(entry.outputs) and not entry.outputs[-1].variadic:
            return False
        if len(call.inputs if inputs is None else inputs) > len(entry.inputs) and not entry.inputs[-1].variadic:
            return False
        if any(spec.default is None and name not in given for name, spec in entry.attributes.items()):
            return False
        converted = {name: attribute_of(value, entry.attributes[name].kind) for name, value in given.items()}
        if any(value is None for value in converted.values()):
            return False
        self.emit(call.operator, call.inputs if inputs is None else inputs, outputs, converted)  # type: ignore[arg-type]
        return True

    def opaque(self, call: Call) -> None:
        """A node that qfmt has no meaning for, as it is: it can be looked at and written to ONNX again, not run."""
        from .opaque import captured, opaque_attributes

        self.budget.node(len(call.inputs))
        self.budget.tensor(len(call.outputs) + len(call.attributes))
        inner = captured(call.attributes)
        for name in call.outputs:
            if name:
                self.tensors[name] = self._of_unknown_type(name, call)
        self.nodes.append(
            Node(
                operator=call.full_name,
                inputs=(*call.inputs, *(self.names.get(name, name) for name in inner)),
                outputs=call.outputs,
                attributes=opaque_attributes(call.attributes, inner),
                name=call.name,
                version=call.opset,
                source_operator=call.full_name,
            )
        )

    def alias(self, call: Call, source: str) -> None:
        """The first output of a node is nothing but the tensor `source`."""
        if not source:
            raise SourceError("its input is absent")
        self.names[call.outputs[0]] = source

    # -- within ----------------------------------------------------------------------------------------------

    def _of_unknown_type(self, name: str, call: Call) -> Tensor:
        """The output of an operator without a meaning here: as the model states it, else of the element type that
        the operator's schema says."""
        value = self.values.get(name)
        if value is not None and value.type is not None:
            return described(value)
        types = [self.tensors[each].dtype if each else "" for each in call.inputs]
        dtype = dtype_by_schema(call, call.outputs.index(name), types)
        if not dtype:
            self._assumed.append(name)
            dtype = next((each for each in types if each), "float32")
        return Tensor(name, dtype, None)


def attribute_of(value: Any, kind: str) -> Attribute | None:
    """A value of ONNX as an attribute of the kind that the operator's table states; None if it is not of that kind."""
    if len(kind) == 2:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return None
        items: Any = tuple(attribute_of(item, kind[0]) for item in value)
        return None if None in items else items
    if kind == "s" and isinstance(value, int):
        return dtype_of(value)  # ONNX numbers the element types, qfmt names them
    if isinstance(value, bool | int | float) and kind != "s":
        return int(value) if kind == "i" else float(value)
    return value if isinstance(value, str) and kind == "s" else None
