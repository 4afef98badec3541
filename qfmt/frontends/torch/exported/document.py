"""An exported program as calls of torch operators on named values: exactly the contents of torch's JSON.

The form: torch/_export/serde/schema.py, major version 8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....errors import SourceError, damaged
from ....model import Dimension
from ..calls import PYTHON
from ..lifts import parameter_names
from ..values import PLAIN_CODES
from .archive import DTYPES


class Ref(NamedTuple):
    """A value of an earlier call, an input or a stored tensor."""

    name: str


class Call(NamedTuple):
    """One node. `target` is "namespace::name"; `outputs` are a name, a list of names, or a tuple of those."""

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Any
    scope: str


class TensorType(NamedTuple):
    dtype: str
    shape: tuple[Dimension, ...]


@dataclass(frozen=True)
class Graph:
    """Calls in order; also the body of a higher-order operator."""

    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]
    calls: tuple[Call, ...]
    types: Mapping[str, TensorType]


class StoredInput(NamedTuple):
    """An input of the graph that the archive contains: `kind` "weights" or "constants", and its qualified name."""

    kind: str
    name: str


@dataclass(frozen=True)
class Program:
    """`inputs` are those of the user, `stored` those in the archive, `fixed` those with a known value.

    `outputs` are those of the user, `changed` (kind, name, new value) the side effects.
    """

    graph: Graph
    inputs: tuple[str, ...]
    stored: Mapping[str, StoredInput]
    fixed: Mapping[str, Any]
    outputs: tuple[Any, ...]
    changed: tuple[tuple[str, str, str], ...]


def read_program(document: Any) -> Program:
    """The Program that a JSON document describes. Raises SourceError if it is invalid."""
    try:
        return _program(document["graph_module"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration, OverflowError) as error:
        what = f"the exported program is invalid ({type(error).__name__}: {str(error)[:100]})"
        raise damaged(what) from None
    except RecursionError:
        raise SourceError("it is nested too deeply", hint="the file is malicious or damaged") from None


def _program(module: Any) -> Program:
    signature, graph = module["signature"], _graph(module["graph"])
    inputs: list[str] = []
    stored: dict[str, StoredInput] = {}
    fixed: dict[str, Any] = {}
    named = [_input(*_variant(spec), inputs, stored, fixed) for spec in signature["input_specs"]]
    order = [name for name in named if name]
    in_order = order == list(graph.inputs) and len(set(order)) == len(order)
    outputs: list[Any] = []
    changed: list[tuple[str, str, str]] = []
    for spec, result in zip(signature["output_specs"], graph.outputs, strict=True):
        kind, body = _variant(spec)
        if kind in ("user_output", "loss_output"):
            outputs.append(_argument(body["arg"] if kind == "user_output" else {"as_tensor": body["arg"]}))
            in_order &= outputs[-1] == result
        elif kind != "token":
            target = next((str(body[key]) for key in body if key != "arg"), "")
            changed.append((kind, target, str(body["arg"]["name"])))
            in_order &= Ref(changed[-1][2]) == result
    if not in_order:
        raise damaged("the inputs and outputs of the graph are not those of its signature, in the same order")
    return Program(graph, tuple(inputs), stored, fixed, tuple(outputs), tuple(changed))


def _input(kind: str, body: Any, inputs: list[str], stored: dict[str, StoredInput], fixed: dict[str, Any]) -> str:
    """Note an input; its name in the graph if it is no constant there."""
    if kind == "user_input":
        value = _argument(body["arg"])
        if not isinstance(value, Ref):
            return ""
        inputs.append(value.name)
        return value.name
    if kind in ("parameter", "buffer", "tensor_constant"):
        name, value = str(body[f"{kind}_name"]), str(body["arg"]["name"])
        place = "weights" if kind == "parameter" or body.get("persistent") else "constants"
        stored[value] = StoredInput(place, name)
        return value
    if kind == "constant_input":
        fixed[str(body["name"])] = _argument(body["value"])
    elif kind != "token":
        raise SourceError(f"has an object of kind {kind} as an input, which is not supported", where=str(body)[:100])
    return ""


def _graph(body: Any) -> Graph:
    return Graph(
        inputs=tuple(value.name for value in map(_argument, body["inputs"]) if isinstance(value, Ref)),
        outputs=tuple(_argument(argument) for argument in body["outputs"]),
        calls=tuple(map(_call, body["nodes"])),
        types={str(name): _type(meta) for name, meta in body["tensor_values"].items()},
    )


def _call(node: Any) -> Call:
    text = str(node["target"])
    args, kwargs = _given(text, node["inputs"])
    outputs = [_argument(output) for output in node["outputs"]]
    return Call(
        target=_target(text),
        args=args,
        kwargs=kwargs,
        outputs=outputs[0] if len(outputs) == 1 else tuple(outputs),
        scope=_scope(node["metadata"].get("nn_module_stack", "")),
    )


_OTHER_NAMES = {
    "axis0": "dim0", "axis1": "dim1", "half_to_float": "dtype", "self": "input", "size": "shape",
    "split_sizes": "split_size",
}  # fmt: skip
"""Torch's names of arguments that other operators with the same lift have under another name."""


def _given(text: str, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments by position and by name. torch reads those of operators that have a schema by name."""
    target = _target(text)
    has_schema = text.startswith("torch.ops.") and not target.startswith("higher_order::")
    names = (parameter_names(target) or ("self", "other")) if has_schema else ()
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for item in inputs:
        name, value = str(item["name"]), _argument(item["arg"])
        if name not in names and (other := _OTHER_NAMES.get(name)) in names:
            name = str(other)
        if item.get("kind") != 2 and (not has_schema or names[len(args) : len(args) + 1] == (name,)):
            args.append(value)
        elif name in kwargs:
            raise ValueError(name)
        else:
            kwargs[name] = value
    if not kwargs.keys().isdisjoint(names[: len(args)]):
        raise SourceError(f"{target[:100]} is called with arguments that are not supported")
    return tuple(args), kwargs


def _target(text: str) -> str:
    """ "torch.ops.aten.conv2d.default" → "aten::conv2d". Overloads differ only in the types of arguments."""
    parts = text.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) in (4, 5):
        return f"{parts[2]}::{parts[3]}"
    if parts[0] in ("_operator", "operator") and parts[-1] in PYTHON:
        return PYTHON[parts[-1]]
    return "::".join(text.rpartition(".")[::2]).removeprefix("::")


def _scope(stack: str) -> str:
    """The path of the innermost module, of "key,path,type;key,path,type"."""
    path = stack.rpartition(";")[2].split(",", 2)
    return re.sub(r"@\d+$", "", path[1]) if len(path) == 3 else ""


# -- arguments -------------------------------------------------------------------------------------------


def _argument(body: Any) -> Any:
    """A Python value, with Refs for named values."""
    kind, value = _variant(body)
    if kind not in _ARGUMENTS:
        raise SourceError(f"an argument is of kind {kind}, which is not supported")
    return _ARGUMENTS[kind](value)


def _variant(body: Any) -> tuple[str, Any]:
    """Name and value of a union: a mapping with one entry."""
    ((kind, value),) = body.items()
    return str(kind), value


def _number(value: Any) -> float:
    """JSON has no infinity: torch writes it as a word."""
    if isinstance(value, str):
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}[value]
    return float(value)


def _name(value: Any) -> Ref:
    return Ref(str(value["name"]))


def _symbol(value: Any) -> Any:
    kind, inner = _variant(value)
    return Ref(str(inner)) if kind == "as_name" else _argument(value)


def _exact(kind: type) -> Callable[[Any], Any]:
    """Torch does not convert values: a number with a fraction stays one where an integer is stated."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{str(value)[:40]} is not a {kind.__name__}")
        return value

    return read


_int, _bool, _text = map(_exact, (int, bool, str))


def _each(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [read(value) for value in values]


def _scalar_type(code: Any) -> int:
    if DTYPES[code] not in PLAIN_CODES:
        raise SourceError(f"computes in the element type {DTYPES[code]}, which is not supported")
    return PLAIN_CODES[DTYPES[code]]


def _nothing(value: Any) -> None:
    return None


_ARGUMENTS: Mapping[str, Callable[[Any], Any]] = {
    "as_none": _nothing,
    "as_tensor": _name,
    "as_tensors": _each(_name),
    "as_nested_tensors": _each(_each(_name)),
    "as_optional_tensor": _argument,
    "as_optional_tensors": _each(_argument),
    "as_int": _int,
    "as_ints": _each(_int),
    "as_int_lists": _each(_each(_int)),
    "as_float": _number,
    "as_floats": _each(_number),
    "as_float_lists": _each(_each(_number)),
    "as_string": _text,
    "as_strings": _each(_text),
    "as_bool": _bool,
    "as_bools": _each(_bool),
    "as_sym_int": _symbol,
    "as_sym_ints": _each(_symbol),
    "as_sym_bool": _symbol,
    "as_sym_bools": _each(_symbol),
    "as_sym_float": _symbol,
    "as_sym_floats": _each(_symbol),
    "as_scalar_type": _scalar_type,
    "as_memory_format": _nothing,
    "as_layout": _nothing,
    "as_device": lambda device: str(device["type"]),
    "as_graph": lambda body: _graph(body["graph"]),
    "as_operator": _text,
    "as_custom_obj": _name,
}

_PLAIN_SYMBOL = re.compile(r"(?:Symbol\('(\w+)'[^()]*\)|([A-Za-z_]\w*))")


def _type(meta: Any) -> TensorType:
    return TensorType(DTYPES.get(meta["dtype"], ""), tuple(map(_dimension, meta["sizes"])))


def _dimension(size: Any) -> Dimension:
    """A number, the name of a size, or None for a computed size."""
    if "as_int" in size:
        return int(size["as_int"])
    found = _PLAIN_SYMBOL.fullmatch(str(size["as_expr"]["expr_str"]))
    return (found[1] or found[2]) if found else None


def references(value: Any) -> Iterator[str]:
    """The names of all values within an argument."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references(item)
