"""A graph that only calls torch's own operators, run by torch's C++ interpreter instead of Python's.

A call of a quantized operator from Python costs some twenty microseconds more than one from C++, because packed
parameters are inspected each time; that is noticeable in a network of sixty layers. So if every call of the generated
code is an operator of torch, the same calls become one function of torch's intermediate representation.
If that is not possible (another torch, a Python node), the generated code runs, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .values import check_input

MEMORY_FORMATS = {torch.contiguous_format: 0, torch.channels_last: 2, torch.channels_last_3d: 3}
"""Codes of the intermediate representation."""


class _Python(Exception):
    """A node of the graph is Python code."""


def compiled(graph: fx.Graph, objects: dict[str, Any]) -> Callable[..., Any] | None:
    """The graph as a function of the (checked) inputs, or None. `objects` are those that `get_attr` reads."""
    try:
        return _Writer(graph, objects).function()
    except (_Python, RuntimeError, AttributeError, TypeError):
        return None


class _Writer:
    """Writes a graph node by node; `held` are objects that cannot be constants, and become inputs after the others."""

    def __init__(self, graph: fx.Graph, objects: dict[str, Any]) -> None:
        self.nodes, self.objects = list(graph.nodes), objects
        self.graph: Any = torch._C.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.held: list[torch.Tensor] = []

    def function(self) -> Callable[..., Any]:
        if not any(isinstance(node.target, torch._ops.OpOverload) for node in self.nodes):
            raise _Python  # nothing to call
        for node in sorted(self.nodes, key=lambda node: node.op != "placeholder"):
            self._write(node)
        made: Callable[..., Any] = torch._C._create_function_from_graph("forward", self.graph)
        held = self.held
        return (lambda *inputs: made(*inputs, *held)) if held else made

    def _write(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self.graph.addInput(node.name)
        elif node.op == "get_attr":
            self.values[node] = self._object(self.objects[str(node.target)])
        elif node.op == "output":
            self._return(node.args[0])
        elif node.target is check_input:
            self.values[node] = self.values[node.args[0]]  # type: ignore[index]
        elif isinstance(node.target, torch._ops.OpOverload):
            self.values[node] = self._call(node, node.target)
        else:
            raise _Python

    def _object(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_mkldnn:  # an internal layout of oneDNN
            self.held.append(value)
            return self.graph.addInput()
        return self.graph.insertConstant(value)

    def _return(self, result: Any) -> None:
        if isinstance(result, fx.Node):
            self.graph.registerOutput(self.values[result])
            return
        kind = torch._C.TupleType([torch._C.TensorType.get()] * len(result))
        self.graph.registerOutput(self._made("prim::TupleConstruct", [self.values[item] for item in result], kind))

    def _made(self, kind: str, inputs: list[Any], of: Any = None) -> Any:
        """The output of a new node, of a type that is not Tensor if stated."""
        node = self.graph.insertNode(self.graph.create(kind, inputs, 1))
        if of is None and node.schema() == "(no schema)":
            raise _Python
        value = node.output()
        if of is not None:
            value.setType(of)
        return value

    def _call(self, node: fx.Node, target: torch._ops.OpOverload) -> Any:
        """Every argument of the schema in order, including defaults."""
        arguments = []
        for index, argument in enumerate(target._schema.arguments):
            if index < len(node.args):
                value = node.args[index]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif argument.has_default_value():
                value = argument.default_value
            else:
                raise _Python
            arguments.append(self._argument(value, argument.type))
        if len(target._schema.returns) != 1 or str(target._schema.returns[0].type) != "Tensor":
            raise _Python
        return self._made(target._schema.name, arguments)

    def _argument(self, value: Any, kind: Any) -> Any:
        """An argument whose type in the schema is `kind`."""
        if isinstance(value, fx.Node):
            return self.values[value]
        if not isinstance(value, list | tuple):
            return self.graph.insertConstant(_plain(value, str(kind)))
        if value and not any(isinstance(item, fx.Node) for item in value):
            return self.graph.insertConstant([_plain(item, str(kind)) for item in value])
        if not all(isinstance(item, fx.Node) for item in value):
            raise _Python
        kind = kind.getElementType() if kind.kind() == "OptionalType" else kind
        return self._made("prim::ListConstruct", [self.values[item] for item in value], kind)


def _plain(value: Any, kind: str) -> Any:
    """A literal as the intermediate representation has it; `kind` is that of the schema."""
    if isinstance(value, torch.memory_format):
        return MEMORY_FORMATS[value]
    return float(value) if isinstance(value, int) and "float" in kind else value
