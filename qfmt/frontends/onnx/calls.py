"""An ONNX node as the import functions see it, and checks of its inputs and attributes against a qfmt operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import SourceError
from ...model import Attribute
from ...ops import Operator
from .tensors import dtype_of, schema_of

if TYPE_CHECKING:
    import onnx_ir as ir


class Call(NamedTuple):
    """An ONNX node: tensor names ("" for an absent one), and attributes as Python values."""

    operator: str
    domain: str
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str

    def input(self, position: int) -> str:
        """The name of an input; "" if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def without(self, *names: str) -> Call:
        """The call without these attributes."""
        return self._replace(attributes={name: value for name, value in self.attributes.items() if name not in names})

    @property
    def title(self) -> str:
        """The node in messages."""
        return f"node {self.name or next(iter(self.outputs), '')} ({self.operator})"

    @property
    def full_name(self) -> str:
        """Domain and operator, as opaque nodes name it."""
        return f"{self.domain or 'ai.onnx'}.{self.operator}"


def check_arity(operator: Operator, inputs: Sequence[str]) -> None:
    """Raise SourceError if a node has more inputs than the operator, or fewer than it needs."""
    wanted = operator.inputs
    if len(inputs) > len(wanted) and not wanted[-1].variadic:
        raise SourceError(f"has {len(inputs)} inputs, but {operator.name} accepts {len(wanted)}")
    given = len([parameter for parameter in wanted if not parameter.variadic])
    for index in range(max(len(inputs), given)):
        parameter = wanted[min(index, len(wanted) - 1)]
        if not parameter.optional and not (index < len(inputs) and inputs[index]):
            raise SourceError(f"its input {parameter.name} is absent")


def check_kinds(node: ir.Node, opset: int) -> None:
    """Raise SourceError if an attribute of a standard operator is of another kind than ONNX states: 1.5 for an axis."""
    schema = None if node.domain or not node.attributes else schema_of(node.op_type, opset, "")
    stated = {} if schema is None else schema.attributes
    for name, attribute in node.attributes.items():
        kind, wanted = attribute.type.name, stated[name].type.name if name in stated else ""
        if wanted and kind != wanted:
            what = f"its attribute {name} is of the kind {kind}, not {wanted}"
            raise SourceError(what, hint="run onnx.checker for details")


def attribute_of(value: Any, kind: str) -> Attribute | None:
    """Convert an ONNX value to an attribute of the `kind` in the operator's table; None if it is of another kind."""
    if len(kind) == 2:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return None
        items: Any = tuple(attribute_of(item, kind[0]) for item in value)
        return None if None in items else items
    if kind == "s" and isinstance(value, int):
        return dtype_of(value)  # an element type, which ONNX states as a number
    if isinstance(value, bool | int | float) and kind != "s":
        return int(value) if kind == "i" else float(value)
    return value if isinstance(value, str) and kind == "s" else None
