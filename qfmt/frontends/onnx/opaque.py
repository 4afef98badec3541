"""Attributes of nodes that qfmt does not know, stored so that they can be exported to ONNX again."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import QfmtError
from ...model import Attribute, Node

if TYPE_CHECKING:
    import onnx_ir as ir

ENCODED = "data:application/x-onnx-attribute;base64,"
"""The prefix of an encoded AttributeProto, which stores a tensor, graph or type."""

CAPTURED = "qfmt.captured"
"""The attribute with the names that subgraphs of the node use for captured tensors, which are its last inputs."""


def opaque_attributes(attributes: Mapping[str, Any], inner: Sequence[str]) -> dict[str, Attribute]:
    """Keep numbers, strings and lists of them. Encode any other attribute as the base64 of its AttributeProto."""
    made = {name: _plain(name, value) for name, value in attributes.items()}
    return made | ({CAPTURED: tuple(inner)} if inner else {})


def original_attributes(node: Node) -> dict[str, Any]:
    """The inverse of `opaque_attributes`: numbers, strings, lists, and objects of onnx-ir.

    Raises QfmtError for a malformed encoded attribute.
    """
    return {name: _original(name, value) for name, value in node.attributes.items() if name != CAPTURED}


def captured_names(node: Node) -> tuple[str, ...]:
    """The names that the subgraphs of an opaque node use for its last inputs."""
    names = node.attributes.get(CAPTURED, ())
    return tuple(str(name) for name in names) if isinstance(names, tuple) else ()


def captured(attributes: Mapping[str, Any]) -> list[str]:
    """The names of outer values that the subgraphs of a node read."""
    from .functions import graphs_within

    graphs = [each for value in attributes.values() for each in (value if isinstance(value, tuple | list) else [value])]
    found: dict[str, None] = {}
    for graph in graphs:
        if not hasattr(graph, "initializers"):
            continue
        within = list(graphs_within(graph))
        own = {id(each) for each in within}
        values = [value for each in within for node in each for value in node.inputs]
        values += [value for each in within for value in each.outputs]
        outer = (value for value in values if value is not None and _home(value) not in own)
        found |= dict.fromkeys(value.name or "" for value in outer)
    return list(found)


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


def _original(name: str, value: Attribute) -> Any:
    """Decode one attribute; QfmtError if the bytes are not an AttributeProto, or a tensor in it is external."""
    if not isinstance(value, str) or not value.startswith(ENCODED):
        return value
    import onnx
    import onnx_ir as ir

    try:
        proto = onnx.AttributeProto.FromString(base64.b64decode(value.removeprefix(ENCODED), validate=True))
        proto.name = name
        made = ir.from_proto(proto)
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
