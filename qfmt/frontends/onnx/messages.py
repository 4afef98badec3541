"""What an ONNX file takes in memory once it is parsed, found without parsing it.

A message of two bytes, such as an empty node, becomes an object of protobuf and another one of onnx-ir. An element of a
list, which may have one byte, becomes an object of Python. The numbers of tensors are not counted: they take at most 30
bytes each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...budget import Budget
from ...errors import SourceError

HARMLESS = 1 << 17
"""The most bytes of a file that is not examined, because it cannot take more than 64 MB."""

SPARE = 30 << 20
"""Bytes of memory that a graph may take whose weights lie in other files, beside those of its own size."""

COST = {
    "NodeProto": 750, "ValueInfoProto": 700, "FunctionProto": 800, "GraphProto": 800, "AttributeProto": 300,
    "TypeProto": 100, "Tensor": 100, "TensorShapeProto": 100, "Dimension": 100,
}  # fmt: skip
"""Bytes of memory for an empty message, measured with onnx 1.23 and onnx-ir 0.2; `OTHER` for all others."""

OTHER = 250

ELEMENTS = {"NodeProto.output": 350, "NodeProto.input": 220, "AttributeProto.strings": 160}
"""Bytes of memory for a number or a short text in a list; `ELEMENT` for all others."""

ELEMENT = 90

FLOAT, STRING, BYTES = 2, 9, 12
"""Types of fields (descriptor.proto)."""

WIDTHS = {FLOAT: 4, STRING: 0, BYTES: 0}
"""`_Part.width` by the type of a field; others are varints."""

LONG, TEXT = 1000, 30
"""Bytes of a text that is examined, and bytes of memory for each of one that is not ASCII."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types (protobuf.dev/programming-guides/encoding). The other two are for groups, which ONNX does not have."""


class _Part(NamedTuple):
    """A message, or an element of a list."""

    cost: int
    """Bytes of memory that it takes."""

    width: int
    """Bytes in the file, of a number in a list: 1 if it is a varint. 0 for what is no number."""

    fields: dict[int, _Part]
    """Those of a message that are messages, lists or texts, by number."""

    is_text: bool = False
    """Whether it is text, of which Python keeps 4 bytes for each character if one of them is not Latin."""


def charge(data: bytes) -> None:
    """Count the messages of a serialized ModelProto, and the elements of its lists.

    Raises SourceError if it is damaged, and BudgetError if it would take memory out of proportion to its size.
    """
    if len(data) > HARMLESS:
        import onnx

        count(data, onnx.ModelProto, budget_for(len(data), "reading"))


def memory_of(message: Any) -> int:
    """Bytes of memory for a message: what a copy of it takes."""
    budget = Budget(None)
    count(message.SerializeToString(), type(message), budget)
    return budget.spent_bytes


def budget_for(size: int, work: str) -> Budget:
    """A budget for messages of so many bytes."""
    budget = Budget(size, work)
    budget.bytes += SPARE
    return budget


def count(data: bytes, kind: Any, budget: Budget) -> None:
    """Charge a serialized message of a kind, such as ModelProto, to a budget; as `charge`."""
    open_ = [(0, len(data), _message(kind.DESCRIPTOR).fields)]
    while open_:
        at, end, fields = open_.pop()
        while at < end:
            key, at = _varint(data, at)
            part = fields.get(key >> 3)
            if key & 7 == LENGTH:
                size, at = _varint(data, at)
                if part is not None:
                    elements = _packed(data[at : at + size], part.width) if part.width else 1
                    budget.allocate(part.cost * elements)
                    if part.is_text and size >= LONG and not data[at : at + size].isascii():
                        budget.allocate(TEXT * size)
                    if part.fields:
                        open_.append((at, at + size, part.fields))
                at += size
                continue
            if part is not None:
                budget.allocate(part.cost)
            if key & 7 == VARINT:
                _, at = _varint(data, at)
            elif key & 7 in (FIXED32, FIXED64):
                at += 4 if key & 7 == FIXED32 else 8
            else:
                raise damaged()
        if at != end:
            raise damaged()


def damaged() -> SourceError:
    """The error for bytes that are not a complete ModelProto."""
    return SourceError("is not a complete ONNX model", hint="it is truncated or damaged; download it again")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    try:
        value = data[at]
        if value < 0x80:
            return value, at + 1
        value &= 0x7F
        for shift in range(7, 70, 7):
            at += 1
            value |= (data[at] & 0x7F) << shift
            if data[at] < 0x80:
                return value, at + 1
    except IndexError:
        pass
    raise damaged()


CONTINUED = bytes(range(0x80, 0x100))
"""Bytes that are not the last of a varint."""


def _packed(data: bytes, width: int) -> int:
    """How many numbers the bytes of a list contain."""
    return len(data.translate(None, CONTINUED)) if width == 1 else len(data) // width


def _message(descriptor: Any) -> _Part:
    if descriptor.full_name not in _known:
        found = _known[descriptor.full_name] = _Part(COST.get(descriptor.name, OTHER), 0, {})
        for field in descriptor.fields:
            if field.message_type is not None:
                found.fields[field.number] = _message(field.message_type)
            elif field.default_value == [] and not (descriptor.name == "TensorProto" and field.name.endswith("_data")):
                cost = ELEMENTS.get(f"{descriptor.name}.{field.name}", ELEMENT)
                found.fields[field.number] = _Part(cost, WIDTHS.get(field.type, 1), {}, field.type == STRING)
            elif field.type == STRING or field.full_name == "onnx.AttributeProto.s":
                found.fields[field.number] = _Part(0, 0, {}, is_text=True)
    return _known[descriptor.full_name]


_known: dict[str, _Part] = {}
