"""Writes nodes of operators that qfmt does not know back to ONNX unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ...errors import QfmtError
from ...frontends.onnx.opaque import captured_names, original_attributes, rename_captured
from ...model import Node
from .opsets import Lacks, schema

if TYPE_CHECKING:
    from .builder import Builder

CHANGED = {
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), 13),  # flattened before; axis
    "RoiAlign": 16,  # coordinates without half a pixel before
    "GroupNormalization": 21,  # scales of groups before
}
"""Operators that compute something else from that opset on, with the same inputs and attributes."""

FORMER = {"RoiAlign": ("coordinate_transformation_mode", "output_half_pixel")}
"""The attribute that states the former meaning, if the newer operator has one."""


def write_foreign(builder: Builder, node: Node) -> None:
    """The node with the model's tensors; Lacks if its meaning differs in the opset that is written."""
    domain, _, name = node.operator.rpartition(".")
    if domain == "qfmt":
        raise Lacks("is not known to this onnx package")
    domain = "" if domain == "ai.onnx" else domain
    inputs = [builder.stored(each) if each else None for each in node.inputs]
    builder.domains.setdefault(domain, node.version)
    try:
        attributes = original_attributes(node)
    except QfmtError as error:
        raise Lacks(f"cannot be written: {error}") from None
    if inner := captured_names(node):
        _capture(builder, inner, inputs[-len(inner) :], attributes)
        inputs = inputs[: -len(inner)]
    values = builder.emit_several(name, inputs, node.outputs, domain, attributes)
    if values:
        builder.name(values[0], node.label)
    if not domain and node.version != builder.opset:
        _keep_meaning(builder.nodes[-1], node.version, builder.opset)
    for each, value in zip(node.outputs, values, strict=True):
        if each:
            builder.define(each, value)


def _capture(
    builder: Builder, names: Sequence[str], values: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> None:
    """Have graphs within a node read outer tensors by the names that these have here."""
    found = {name: value.name or "" for name, value in zip(names, values, strict=True) if value is not None}
    rename_captured(attributes, found)


def _keep_meaning(node: ir.Node, version: int, opset: int) -> None:
    """Convert a node, and the nodes of graphs within it, to another opset. Lacks if their meaning cannot be kept."""
    for each in (node, *_inside(node)):
        if each.domain or not _is_known(each, version, opset):
            continue
        since = CHANGED.get(each.op_type, 0)
        is_changed = (version < since) != (opset < since)
        if is_changed and version < opset and each.op_type in FORMER:
            name, value = FORMER[each.op_type]
            each.attributes[name] = ir.AttrString(name, value)
            is_changed = False
        if is_changed or not _is_valid(each, opset):
            raise Lacks(f"was written for opset {version}, in which {each.op_type} differs")


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield inner
                yield from _inside(inner)


def _is_known(node: ir.Node, version: int, opset: int) -> bool:
    """Whether ONNX has an operator of that name; others' operators in its domain are the same in every opset."""
    return schema(node.op_type, version) is not None or schema(node.op_type, opset) is not None


def _is_valid(node: ir.Node, opset: int) -> bool:
    definition = schema(node.op_type, opset)
    if definition is None or definition.deprecated:
        return False
    fits = definition.min_input <= len(node.inputs) <= definition.max_input
    return bool(fits) and node.attributes.keys() <= definition.attributes.keys()
