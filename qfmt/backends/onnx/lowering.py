"""How each operator is written in ONNX.

Most are ONNX's own, with its inputs and attributes; a function is registered where one is not, or was not in an
older opset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ...model import Node, Tensor
from ...ops import OPERATORS, Operator
from .opsets import schema, since

if TYPE_CHECKING:
    from .builder import Builder


class Lacks(Exception):
    """ONNX, or the opset that was asked for, cannot say what a node does; the argument tells why."""


class Site:
    """One node of the model that is being written, and what it is written with."""

    def __init__(self, builder: Builder, node: Node, operator: Operator) -> None:
        self.builder, self.node, self.operator = builder, node, operator
        self.attributes: dict[str, Any] = dict(node.attributes)
        self.name = node.name or node.outputs[0]

    @property
    def opset(self) -> int:
        return self.builder.opset

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def tensor(self, index: int) -> Tensor:
        return self.builder.model.tensors[self.node.inputs[index]]

    def output(self, index: int = 0) -> Tensor:
        return self.builder.model.tensors[self.node.outputs[index]]

    def real(self, index: int) -> ir.Value | None:
        """The real numbers of an input; None if it is absent."""
        return self.builder.real(self.node.inputs[index]) if self.has(index) else None

    def stored(self, index: int) -> ir.Value | None:
        """An input as the model has it; None if it is absent."""
        return self.builder.stored(self.node.inputs[index]) if self.has(index) else None

    def emit(self, operator: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """A node with one output, whose name tells which node of the model it serves."""
        return self.builder.emit(operator, *inputs, name=f"{self.name}_{operator}", domain=domain, **attributes)

    def constant(self, what: str, array: Any) -> ir.Value:
        return self.builder.constant(f"{self.name}.{what}", array)


Lower = Callable[[Site], "ir.Value | Sequence[ir.Value] | None"]
"""Emits what computes a node: the real numbers of its outputs. None: it has defined the outputs itself."""

LOWER: dict[str, Lower] = {}
"""What is written for operators that are not ONNX's own, or not just so."""


def lowers(*operators: str) -> Callable[[Lower], Lower]:
    def register(function: Lower) -> Lower:
        LOWER.update(dict.fromkeys(operators, function))
        return function

    return register


def lower(builder: Builder, node: Node) -> None:
    """Write one node; Lacks if ONNX cannot say what it does."""
    operator = OPERATORS.get(node.operator)
    if operator is None or node.version > operator.version:
        return _foreign(builder, node)
    site = Site(builder, node, operator)
    made = LOWER.get(node.operator, one_to_one)(site)
    if made is None:
        return None
    values = [made] if isinstance(made, ir.Value) else list(made)
    builder.name(values[0], site.name)
    for name, value in zip(node.outputs, values, strict=True):
        builder.define_real(name, value)
    return None


def one_to_one(site: Site) -> Sequence[ir.Value]:
    """An operator of ONNX, with the same inputs and attributes."""
    inputs = [site.real(index) for index in range(len(site.node.inputs))]
    return plain(site, inputs, site.attributes)


def plain(site: Site, inputs: Sequence[ir.Value | None], attributes: dict[str, Any]) -> Sequence[ir.Value]:
    """The operator of that name, in the opset that is written; attributes at their defaults are left out."""
    name = site.node.operator
    definition = schema(name, site.opset)
    if definition is None:
        raise Lacks(since(name))
    written = {}
    for key, value in attributes.items():
        if value == site.operator.attributes[key].default:
            continue
        if key not in definition.attributes:
            raise Lacks(f"has no attribute {key}")
        written[key] = value
    names = [f"{site.name}_{name}" for _ in site.node.outputs]
    return site.builder.emit_several(name, inputs, names, attributes=written)


def _foreign(builder: Builder, node: Node) -> None:
    """A node of an operator that qfmt does not know goes back as it came."""
    domain, _, name = node.operator.rpartition(".")
    if domain == "qfmt":
        raise Lacks("is not known here")
    inputs = [builder.stored(each) if each else None for each in node.inputs]
    values = builder.emit_several(name, inputs, node.outputs, domain, node.attributes)
    for each, value in zip(node.outputs, values, strict=True):
        if each:
            builder.define(each, value)
