"""What an ONNX file takes in memory once it is parsed, found without parsing it.

A message of two bytes, such as an empty node, becomes an object of protobuf and another one of onnx-ir.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...budget import Budget
from ...errors import SourceError

HARMLESS = 1 << 17
"""The most bytes of a file that is not examined, because it cannot take more than 64 MB."""

COST = {
    "NodeProto": 750, "ValueInfoProto": 700, "FunctionProto": 800, "GraphProto": 800, "AttributeProto": 300,
    "TypeProto": 100, "Tensor": 100, "TensorShapeProto": 100, "Dimension": 100,
}  # fmt: skip
"""Bytes of memory for an empty message, measured with onnx 1.23 and onnx-ir 0.2; `OTHER` for all others."""

OTHER = 250

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types (protobuf.dev/programming-guides/encoding). The other two are for groups, which ONNX does not have."""


class _Message(NamedTuple):
    cost: int
    fields: dict[int, _Message]
    """Those that are messages themselves, by number."""


def charge(data: bytes, budget: Budget) -> None:
    """Charge the budget for the messages of a serialized ModelProto.

    Raises SourceError if it is damaged, and BudgetError if it would take too much.
    """
    if len(data) <= HARMLESS:
        return
    import onnx

    open_ = [(0, len(data), _message(onnx.ModelProto.DESCRIPTOR).fields)]
    while open_:
        at, end, fields = open_.pop()
        while at < end:
            key, at = _varint(data, at)
            if key & 7 == LENGTH:
                size, at = _varint(data, at)
                message = fields.get(key >> 3)
                if message is not None:
                    budget.allocate(message.cost)
                    if message.fields:
                        open_.append((at, at + size, message.fields))
                at += size
            elif key & 7 == VARINT:
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


def _message(descriptor: Any) -> _Message:
    if descriptor.full_name not in _known:
        found = _known[descriptor.full_name] = _Message(COST.get(descriptor.name, OTHER), {})
        for field in descriptor.fields:
            if field.message_type is not None:
                found.fields[field.number] = _message(field.message_type)
    return _known[descriptor.full_name]


_known: dict[str, _Message] = {}
