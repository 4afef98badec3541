"""ONNX's nodes become qfmt's, one after the other; every value keeps its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import QfmtError, SourceError
from ...interpreter import execute
from ...model import DTYPES, Attribute, Graph, Node, Shape, Tensor
from ...ops import OPERATORS, Inference, Operand, Operator, Quantized, UnknownRank
from .tensors import described, dtype_of, infer_types, shape_of, stored

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    Array = NDArray[Any]

IMPORTS: dict[str, Callable[..., Any]] = {}
"""What the modules beside this one register: "Op" or "domain.Op" → function (importer, call)."""

LARGE = 1 << 22
"""Bytes that a computed constant may have, or twice those that it was computed from."""

_NOT_COMPUTED = ("ai.onnx.DequantizeLinear", "ai.onnx.QuantizeLinear")
"""Of constants: the passes make quantized constants of them."""

UNSOUND = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError)
"""What comes of a node that lacks an input or an attribute, or has one of another type."""

DOMAINS = {"": "", "ai.onnx": ""}
"""The default domain under both of its names."""


def imports(*operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the meaning of ONNX operators. It returns NotImplemented for a form that has none here."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator in operators:
            IMPORTS[operator] = function
        return function

    return register


class Call(NamedTuple):
    """A node of ONNX: names of tensors ("" for absent ones) and attributes as Python values."""

    operator: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str

    def input(self, position: int) -> str:
        """The name of an input, "" for one that is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    @property
    def full_name(self) -> str:
        """The operator with its domain, as an opaque node states it."""
        return f"{self.domain or 'ai.onnx'}.{self.operator}"


class Importer:
    """Collects nodes and tensors under the names that ONNX gave them."""

    def __init__(self, model: ir.Model, shapes: Mapping[str, Shape] | None = None) -> None:
        graph = model.graph
        self.model = model
        self.opsets = {DOMAINS.get(domain, domain): version for domain, version in model.opset_imports.items()}
        self.notes: dict[str, str] = {}
        """What the file should say of the conversion: source keys of spec.md."""
        self._assumed: list[str] = []
        self.preferred: dict[str, str] = {}
        """New tensors → the names of the file that they take if nothing else has these in the end."""
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        """Outputs that are nothing but another tensor → the name of that."""
        self.call_ = Call("", "", 1, (), (), {}, "")
        self.outputs = {value.name for value in graph.outputs}
        self._taken = {value.name for node in graph for value in (*node.inputs, *node.outputs) if value is not None}
        self._taken |= {value.name for value in graph.inputs} | set(graph.initializers)
        for name, value in graph.initializers.items():
            self.tensors[name] = stored(name, value.const_value)
        self.initializers = {name: tensor.dtype for name, tensor in self.tensors.items()}
        given = [value for value in graph.inputs if value.name not in graph.initializers]
        for value in given:
            tensor = described(value)
            self.tensors[tensor.name] = replace(tensor, shape=(shapes or {}).get(tensor.name, tensor.shape))
        self.inputs = tuple(value.name or "" for value in given)

    # -- running over a graph --------------------------------------------------------------------------------

    def run(self, graph: ir.Graph) -> Graph:
        """The graph with every node of ONNX turned into nodes of qfmt. SourceError for what is wrong, placed."""
        for node in graph:
            self._node(node)
        outputs = tuple(self._output(value.name or "") for value in graph.outputs)
        return Graph(self.inputs, outputs, self.nodes, self.tensors, graph.name or "")

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
            what = f"its inputs and attributes are not those of the operator ({type(error).__name__}: {error})"
            raise SourceError(what, where=where, hint="onnx.checker tells more") from None

    def _outputs(self, node: ir.Node) -> tuple[str, ...]:
        """Its outputs; one that nobody asks for, but stands before another one, gets a name."""
        names = [value.name or "" for value in node.outputs]
        while names and not names[-1]:
            names.pop()
        return tuple(name or self.fresh(f"{names[-1]}.unused") for name in names)

    def dispatch(self, call: Call) -> None:
        """The meaning of a node: the function registered for it, else the operator of that name, else opaque."""
        function = IMPORTS.get(f"{call.domain}.{call.operator}" if call.domain else call.operator)
        if function is not None and function(self, call) is not NotImplemented:
            return
        if not call.domain and self.one_to_one(call):
            return
        self.opaque(call)

    def _output(self, name: str) -> str:
        """An output under its own name, which may be only another name of an input, a constant, another output."""
        source = self.names.get(name, name)
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

    def emit(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add a node; the name of its first output. `outputs` are names, or the start of a new one.

        A node over constants is computed now, but for what dequantizes.
        """
        entry = OPERATORS[operator]
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        _check_arity(entry, inputs)
        names = [self.fresh(outputs or operator.lower())] if isinstance(outputs, str) else list(outputs)
        names = [name or self.fresh(f"{operator.lower()}_unused") for name in names]
        complete = entry.complete(attributes or {})
        shapes = self._infer(operator, inputs, complete)
        for position, name in enumerate(names):
            dtype = self._dtype(operator, inputs, complete, position)
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
        if not self._computed(node):
            self.nodes.append(node)
        return names[0]

    def alias(self, call: Call, source: str) -> None:
        """The first output of a node is nothing but the tensor `source`."""
        if not source:
            raise SourceError("its input is absent")
        self.names[call.outputs[0]] = source

    def constant(self, array: Any, name: str) -> str:
        """A new constant."""
        own = self.fresh(name)
        self.tensors[own] = Tensor.constant(own, np.asarray(array))
        return own

    def value(self, name: str) -> Array | None:
        """The array of a constant; None if the tensor is computed or absent."""
        tensor = self.tensors.get(name)
        return tensor.array if tensor is not None and tensor.data is not None else None

    def shape(self, name: str) -> Shape:
        return self.tensors[name].shape

    def rank(self, name: str) -> int | None:
        shape = self.tensors[name].shape
        return None if shape is None else len(shape)

    def fresh(self, base: str) -> str:
        """A name that no tensor has."""
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    # -- within ----------------------------------------------------------------------------------------------

    def _of_unknown_type(self, name: str, call: Call) -> Tensor:
        """The output of an operator without a meaning here: of the type that the model states, or ONNX infers."""
        value = self.values.get(name)
        if value is not None and value.type is None and not self._assumed:
            infer_types(self.model)
        if value is None or value.type is None:
            self._assumed.append(name)
            self.notes["assumed_types"] = ", ".join(self._assumed)
            first = next((each for each in call.inputs if each), "")
            return Tensor(name, self.tensors[first].dtype if first else "float32", None)
        return described(value)

    def _infer(self, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> list[Shape]:
        rule = OPERATORS[operator].shape
        missing = [None] * (len(OPERATORS[operator].inputs) - len(inputs))
        shapes = [self.tensors[name].shape if name else None for name in inputs]
        arrays = [self.value(name) if name and self.tensors[name].dtype == "int64" else None for name in inputs]
        try:
            return rule(Inference([*shapes, *missing], attributes, [*arrays, *missing]))
        except UnknownRank:
            return [None]

    def _refined(self, name: str, shape: Shape) -> Shape:
        """An inferred shape, and where that knows nothing what the model says of the value."""
        value = self.values.get(name)
        stated = None if value is None else shape_of(value)
        if shape is None or stated is None or len(shape) != len(stated):
            return stated if shape is None else shape
        return tuple(b if a is None else a for a, b in zip(shape, stated, strict=True))

    def _dtype(self, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any], position: int) -> str:
        dtypes = [self.tensors[name].dtype if name else None for name in inputs]
        first = next((dtype for dtype in dtypes if dtype), "float32")
        return OPERATORS[operator].output_dtype(position, dtypes, attributes) or first

    def _computed(self, node: Node) -> bool:
        """Whether all inputs are constants, so that the outputs became constants, too."""
        if node.operator in _NOT_COMPUTED or not node.inputs:
            return False
        tensors = [self.tensors[name] if name else None for name in node.inputs]
        if any(tensor is not None and tensor.data is None for tensor in tensors):
            return False
        if node.operator == "Clip" and tensors[0] is not None and DTYPES[tensors[0].dtype].is_quantizable:
            return False  # the range of a weight: `passes.grids` makes quant_min and quant_max of it
        if not self._is_small(node, tensors):
            return False
        if any(name in self.outputs for name in node.outputs):
            return False
        operands = [None if tensor is None else Operand(tensor.array, None) for tensor in tensors]
        results = execute(node, operands, [self.tensors[name] for name in node.outputs])
        first = tensors[0]
        moved = OPERATORS[node.operator].quantized is Quantized.MOVES and first is not None
        aliases = (*first.aliases, first.name) if moved and first is not None else ()
        for name, array in zip(node.outputs, results, strict=True):
            dtype = self.tensors[name].dtype
            self.tensors[name] = Tensor.constant(name, array, dtype=dtype, aliases=tuple(sorted(set(aliases))))
        return True

    def _is_small(self, node: Node, inputs: Sequence[Tensor | None]) -> bool:
        """Whether outputs are known to be no larger than the inputs, or than what a file may well be longer by."""
        given = sum(tensor.data.nbytes for tensor in inputs if tensor is not None and tensor.data is not None)
        for tensor in (self.tensors[name] for name in node.outputs):
            if tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
                if given > LARGE:
                    return False
            elif prod(size for size in tensor.shape if isinstance(size, int)) * DTYPES[tensor.dtype].bits > 8 * max(
                LARGE, 2 * given
            ):
                return False
        return True


def _check_arity(operator: Operator, inputs: Sequence[str]) -> None:
    """SourceError for more inputs than an operator has, or fewer than it needs."""
    wanted = operator.inputs
    if len(inputs) > len(wanted) and not wanted[-1].variadic:
        raise SourceError(f"has {len(inputs)} inputs, {operator.name} takes {len(wanted)}")
    for index, parameter in enumerate(wanted):
        if not parameter.optional and not parameter.variadic and not (index < len(inputs) and inputs[index]):
            raise SourceError(f"its input {parameter.name} is absent")


def attribute_of(value: Any, kind: str) -> Attribute | None:
    """A value of ONNX as an attribute of the kind that the operator's table says; None if it is no such thing."""
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
