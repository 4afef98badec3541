"""Attributes of nodes that qfmt does not know, so that they can be written to ONNX again."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ...model import Attribute

ENCODED = "data:application/x-onnx-attribute;base64,"
"""What precedes an AttributeProto, for attributes that are tensors, graphs or types."""


def opaque_attributes(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    """Numbers, strings and lists of them as they are; anything else as the bytes of its AttributeProto, in base64."""
    return {name: _plain(name, value) for name, value in attributes.items()}


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
