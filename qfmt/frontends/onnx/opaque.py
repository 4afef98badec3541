"""Attributes of nodes that qfmt does not know, stored so that they can be exported to ONNX again."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import BudgetError, QfmtError
from ...model import Attribute, Node
from .functions import graphs_within
from .messages import budget_for, count

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...budget import Budget

ENCODED = "data:application/x-onnx-attribute;base64,"
"""The prefix of an encoded AttributeProto, which stores a tensor, graph or type."""

CAPTURED = "qfmt.captured"
"""The attribute with the names that subgraphs of the node use for captured tensors, which are its last inputs."""


def opaque_attributes(attributes: Mapping[str, Any], inner: Sequence[str]) -> dict[str, Attribute]:
    """Keep numbers, strings and lists of them. Encode any other attribute as the base64 of its AttributeProto."""
    made = {name: _plain(name, value) for name, value in attributes.items()}
    return made | ({CAPTURED: tuple(inner)} if inner else {})


def original_attributes(node: Node, budget: Budget | None = None) -> dict[str, Any]:
    """The inverse of `opaque_attributes`: numbers, strings, lists, and objects of onnx-ir.

    Raises QfmtError for a malformed encoded attribute; BudgetError if a budget is given that does not allow it.
    """
    return {name: _original(name, value, budget) for name, value in node.attributes.items() if name != CAPTURED}


def captured_names(node: Node) -> tuple[str, ...]:
    """The names that the subgraphs of an opaque node use for its last inputs."""
    names = node.attributes.get(CAPTURED, ())
    return tuple(str(name) for name in names) if isinstance(names, tuple) else ()


def captured(attributes: Mapping[str, Any]) -> list[str]:
    """The names of outer values that the subgraphs of a node read."""
    found: dict[str, None] = {}
    for graph in _held(attributes.values()):
        within = list(graphs_within(graph))
        own = {id(each) for each in within}
        outer = (value for value in _read(within) if _home(value) not in own)
        found |= dict.fromkeys(value.name or "" for value in outer)
    return list(found)


def rename_captured(attributes: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Have the subgraphs of `original_attributes` read outer values by other names."""
    for value in _read(_graphs(attributes)):
        if not _is_defined(value):
            value.name = names.get(value.name or "", value.name)


def names_within(nodes: Iterable[Node]) -> set[str]:
    """The names of the values that the subgraphs of opaque nodes define.

    Raises BudgetError if the subgraphs would take memory out of proportion to their size in the file.
    """
    sizes = [(node, sum(map(_encoded_size, node.attributes.values()))) for node in nodes]
    budget = budget_for(sum(size for _, size in sizes), "writing ONNX for subgraphs of")
    names: set[str] = set()
    for node, size in sizes:
        try:
            graphs = _graphs(original_attributes(node, budget)) if size else []
        except BudgetError:
            raise
        except QfmtError:  # who writes the node reports it
            continue
        names.update(value.name or "" for graph in graphs for value in defined(graph))
    return names


def _encoded_size(value: Attribute) -> int:
    """Bytes of an encoded attribute; 0 for others."""
    return len(value) * 3 // 4 if isinstance(value, str) and value.startswith(ENCODED) else 0


def defined(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a graph defines."""
    yield from (*graph.inputs, *graph.initializers.values())
    for node in graph:
        yield from node.outputs


def _graphs(attributes: Mapping[str, Any]) -> list[ir.Graph]:
    """The subgraphs of `original_attributes`, at any depth."""
    values = (getattr(each, "value", None) for each in attributes.values())
    return [within for graph in _held(values) for within in graphs_within(graph)]


def _held(values: Iterable[Any]) -> list[ir.Graph]:
    """The graphs among values of attributes, and in lists of them."""
    each = (item for value in values for item in (value if isinstance(value, tuple | list) else [value]))
    return [item for item in each if hasattr(item, "initializers")]


def _read(graphs: Sequence[ir.Graph]) -> list[ir.Value]:
    """The values that graphs read or return."""
    values = [value for graph in graphs for node in graph for value in node.inputs if value is not None]
    return values + [value for graph in graphs for value in graph.outputs]


def _is_defined(value: ir.Value) -> bool:
    """Whether a graph that is read alone defines the value."""
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _home(value: ir.Value) -> int:
    """The id of the graph that a value belongs to."""
    return id(value.graph)


def _plain(name: str, value: Any) -> Attribute:
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float | str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(item, int | float | str) for item in value):
        return tuple(value)
    import onnx_ir as ir

    proto = ir.to_proto(ir.convenience.convert_attribute(name, value))
    return ENCODED + base64.b64encode(proto.SerializeToString(deterministic=True)).decode()


def _original(name: str, value: Attribute, budget: Budget | None) -> Any:
    """Decode one attribute; QfmtError if the bytes are not an AttributeProto, or a tensor in it is external."""
    if not isinstance(value, str) or not value.startswith(ENCODED):
        return value
    import onnx
    import onnx_ir as ir

    try:
        data = base64.b64decode(value.removeprefix(ENCODED), validate=True)
        if budget is not None:
            count(data, onnx.AttributeProto, budget)
        proto = onnx.AttributeProto.FromString(data)
        proto.name = name
        made = ir.from_proto(proto)
    except BudgetError:
        raise
    except Exception as error:  # untrusted bytes: protobuf and onnx-ir may raise anything
        raise QfmtError(f"its attribute {name!r} is not an AttributeProto ({type(error).__name__})") from None
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _tensors(proto)):
        raise QfmtError(f"its attribute {name!r} refers to another file for its values")
    return made


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto within a protobuf message."""
    import onnx

    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from _tensors(each)
