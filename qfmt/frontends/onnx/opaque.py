"""Attributes of nodes that qfmt does not know, so that they can be written to ONNX again."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import QfmtError
from ...model import Attribute, Node

if TYPE_CHECKING:
    import onnx_ir as ir

ENCODED = "data:application/x-onnx-attribute;base64,"
"""What precedes an AttributeProto, for attributes that are tensors, graphs or types."""

CAPTURED = "qfmt.captured"
"""The attribute with the names under which graphs within the node read tensors around it, its last inputs."""


def opaque_attributes(attributes: Mapping[str, Any], inner: Sequence[str]) -> dict[str, Attribute]:
    """Numbers, strings and lists of them as they are; anything else as the bytes of its AttributeProto, in base64."""
    made = {name: _plain(name, value) for name, value in attributes.items()}
    return made | ({CAPTURED: tuple(inner)} if inner else {})


def original_attributes(node: Node) -> dict[str, Any]:
    """What `opaque_attributes` was made of: numbers, strings, lists, and objects of onnx-ir.

    Raises QfmtError for an attribute that only looks as if it had been made by `opaque_attributes`.
    """
    return {name: _original(name, value) for name, value in node.attributes.items() if name != CAPTURED}


def captured_names(node: Node) -> tuple[str, ...]:
    """The names of the last inputs of an opaque node within the graphs that it holds."""
    names = node.attributes.get(CAPTURED, ())
    return tuple(str(name) for name in names) if isinstance(names, tuple) else ()


def captured(attributes: Mapping[str, Any]) -> list[str]:
    """What the graphs of a node read of the values around it, by name."""
    from .reading import graphs_within

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
    """The graph to which a value belongs."""
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
    """QfmtError for bytes that are not an attribute, and for tensors whose values are in another file."""
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
