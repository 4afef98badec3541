"""A graph that only calls torch's own operators, run by torch's C++ interpreter instead of Python's.

A call of a quantized operator from Python costs some twenty microseconds more than one from C++, because packed
parameters are inspected each time; that is noticeable in a network of sixty layers. So if every call of the generated
code is an operator of torch, the same calls become one function of torch's intermediate representation.
If that is not possible (another torch, a Python node), the generated code runs, with equal results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .values import check_input

DTYPE_CODES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
    torch.float32: 6, torch.float64: 7, torch.bool: 11, torch.qint8: 12, torch.quint8: 13, torch.qint32: 14,
    torch.bfloat16: 15,
}  # fmt: skip
"""c10::ScalarType codes, which constants of the intermediate representation use for dtypes."""


MEMORY_FORMATS = {torch.contiguous_format: 0, torch.channels_last: 2, torch.channels_last_3d: 3}


class _Python(Exception):
    """A node of the graph is Python code."""


def compiled(graph: fx.Graph, objects: dict[str, Any]) -> Callable[..., Any] | None:
    """The graph as a function of the (checked) inputs, or None. `objects` are those that `get_attr` reads."""
    try:
        return _Writer(graph, objects).function()
    except (_Python, RuntimeError, AttributeError):
        return None


class _Writer:
    """Writes a graph as text, with the objects as further inputs, then inserts them as constants."""

    def __init__(self, graph: fx.Graph, objects: dict[str, Any]) -> None:
        self.graph, self.objects = graph, objects
        self.lines: list[str] = []
        self.inputs: list[str] = []
        self.constants: list[tuple[str, Any]] = []
        self.names: dict[fx.Node, str] = {}

    def function(self) -> Callable[..., Any]:
        for node in self.graph.nodes:
            self._write(node)
        parameters = [f"%{name} : Tensor" for name in self.inputs]
        parameters += [f"%{name} : {_type_of(value)}" for name, value in self.constants]
        text = "\n".join([f"graph({', '.join(parameters)}):", *self.lines])
        parsed = torch._C.parse_ir(text)
        if any(node.schema() == "(no schema)" for node in parsed.nodes() if not node.kind().startswith("prim::")):
            raise _Python
        first = next(iter(parsed.nodes()), None)
        if first is None:
            raise _Python  # nothing to call
        values = list(parsed.inputs())[len(self.inputs) :]
        kept = [index for index, (_, constant) in enumerate(self.constants) if _is_opaque(constant)]
        with parsed.insert_point_guard(first):
            for index, (_, constant) in enumerate(self.constants):
                if index not in kept:
                    values[index].replaceAllUsesWith(parsed.insertConstant(constant))  # type: ignore[attr-defined]
        for index in reversed(range(len(values))):
            if index not in kept:
                parsed.eraseInput(len(self.inputs) + index)
        made: Callable[..., Any] = torch._C._create_function_from_graph("forward", parsed)
        held = [self.constants[index][1] for index in kept]
        return (lambda *inputs: made(*inputs, *held)) if held else made

    def _write(self, node: fx.Node) -> None:
        name = self.names[node] = f"v{len(self.names)}"
        if node.op == "placeholder":
            self.inputs.append(name)
        elif node.op == "get_attr":
            self.constants.append((name, self.objects[str(node.target)]))
        elif node.op == "output":
            self._return(node.args[0])
        elif node.target is check_input:
            self.names[node] = self.names[node.args[0]]  # type: ignore[index]
        elif isinstance(node.target, torch._ops.OpOverload):
            self._call(node, node.target, name)
        else:
            raise _Python

    def _return(self, result: Any) -> None:
        if isinstance(result, fx.Node):
            self.lines.append(f"  return (%{self.names[result]})")
            return
        listed = ", ".join(f"%{self.names[item]}" for item in result)
        kinds = ", ".join("Tensor" for _ in result)
        self.lines += [f"  %result : ({kinds}) = prim::TupleConstruct({listed})", "  return (%result)"]

    def _call(self, node: fx.Node, target: torch._ops.OpOverload, name: str) -> None:
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
            arguments.append(self._argument(value, str(argument.type)))
        if len(target._schema.returns) != 1 or str(target._schema.returns[0].type) != "Tensor":
            raise _Python
        called = target._schema.name
        self.lines.append(f"  %{name} : Tensor = {called}({', '.join(arguments)})")

    def _argument(self, value: Any, kind: str) -> str:
        if isinstance(value, fx.Node):
            return f"%{self.names[value]}"
        name = f"c{len(self.lines)}"
        if isinstance(value, list | tuple) and not value:
            self.lines.append(f"  %{name} : {_empty(kind)} = prim::ListConstruct()")
            return f"%{name}"
        if isinstance(value, list | tuple) and any(isinstance(item, fx.Node) for item in value):
            if "Tensor" not in kind or not all(isinstance(item, fx.Node) for item in value):
                raise _Python
            listed = ", ".join(f"%{self.names[item]}" for item in value)
            self.lines.append(f"  %{name} : Tensor[] = prim::ListConstruct({listed})")
        else:
            self.lines.append(f"  %{name} : {_constant(value, kind)}")
        return f"%{name}"


def _empty(kind: str) -> str:
    """The type of an empty list, from `kind`, its type in the schema."""
    if "Tensor" in kind:
        return "Tensor[]"
    return "Scalar?[]" if "List[Optional" in kind else "float[]" if "float" in kind else "int[]"


def _constant(value: Any, kind: str) -> str:
    """Type and definition of a literal; `kind` is that of the schema."""
    if value is None:
        return "NoneType = prim::Constant()"
    if isinstance(value, torch.dtype):
        if value not in DTYPE_CODES:
            raise _Python
        value = DTYPE_CODES[value]
    if isinstance(value, torch.memory_format):
        value = MEMORY_FORMATS[value]
    if isinstance(value, bool):
        return f"bool = prim::Constant[value={int(value)}]()"
    if isinstance(value, str):
        if value and not value.replace("_", "").isalnum():
            raise _Python  # text from a file must stay a string
        return f'str = prim::Constant[value="{value}"]()'
    if isinstance(value, list | tuple):
        floats = "float" in kind
        items = ", ".join(_number(item, floats) for item in value)
        return f"{'float' if floats else 'int'}[] = prim::Constant[value=[{items}]]()"
    floats = isinstance(value, float) or "float" in kind
    if not isinstance(value, int | float):
        raise _Python
    return f"{'float' if floats else 'int'} = prim::Constant[value={_number(value, floats)}]()"


def _number(value: Any, is_float: bool) -> str:
    """Floats with a point or an exponent, all digits; integers through `operator.index`."""
    if not is_float:
        return str(operator.index(value))
    text = repr(float(value))
    if not text.lstrip("-")[0].isdigit():
        raise _Python  # inf, nan
    return text


def _is_opaque(value: Any) -> bool:
    """Whether it is a tensor in an internal layout of oneDNN, which cannot be a constant of a graph."""
    return isinstance(value, torch.Tensor) and value.is_mkldnn


def _type_of(value: Any) -> str:
    return "Tensor" if isinstance(value, torch.Tensor) else value._type().annotation_str
