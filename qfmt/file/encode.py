"""A FlatBuffers encoder driven by the descriptors of `schema.py`; the inverse of `decode.py`.

Canonical: equal records give equal bytes. Children are written before parents, in the order of the fields; equal
strings are written once, and so is a nested Record that occurs again (the same object); everything else is
written where it stands. Inside a table the widest fields come last, so that least is lost to alignment.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from .decode import SCALARS, SIZES, Record
from .schema import TABLES, Field


def encode(root: str, record: Record) -> tuple[int, bytes]:
    """`record` as the body of a FlatBuffer, to be put at a multiple of 8, and the place of its root in the body."""
    return _Encoder().finish(root, record)


class _Encoder:
    def __init__(self) -> None:
        from flatbuffers import Builder  # imports NumPy: only for those who write

        self._builder = Builder(1 << 16)
        self._nested: dict[int, tuple[Record, int]] = {}

    def finish(self, root: str, record: Record) -> tuple[int, bytes]:
        self._builder.Finish(self._table(root, record), file_identifier=b"QFB1")
        output = bytes(self._builder.Output())
        front = 8  # root offset and identifier, which stand at the front of the file, before its header
        return struct.unpack_from("<I", output)[0] - front, output[front:]

    def _table(self, name: str, record: Record) -> int:
        fields = [(field, record[field.name]) for field in TABLES[name] if record.get(field.name) is not None]
        slots = [(field, self._slot(field, value)) for field, value in fields]
        builder = self._builder
        builder.StartObject(len(TABLES[name]))
        for field, slot in sorted(slots, key=lambda item: -_alignment(item[0])):
            if isinstance(slot, int):
                builder.PrependUOffsetTRelative(slot)
                builder.Slot(field.id)
            elif slot != _default(field):
                self._place(slot, _alignment(field))
                builder.Slot(field.id)
        offset: int = builder.EndObject()
        return offset

    def _slot(self, field: Field, value: Any) -> int | bytes:
        """The bytes that stand in the table itself, or the position of what was written before it."""
        if field.kind in SIZES:
            return struct.pack("<" + SCALARS[field.kind], value)
        if field.kind == "struct":
            return bytes(value)
        if field.kind == "string":
            return self._string(value)
        if field.kind == "table":
            if id(value) not in self._nested:
                self._nested[id(value)] = value, self._table(field.of, value)
            return self._nested[id(value)][1]
        if field.kind == "[string]":
            return self._offsets([self._string(text) for text in value])
        if field.kind == "[table]":
            return self._offsets([self._table(field.of, element) for element in value])
        return self._scalars(field.kind[1:-1], value)

    def _string(self, text: str) -> int:
        offset: int = self._builder.CreateSharedString(text)
        return offset

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        position: int = self._builder.EndVector()
        return position

    def _scalars(self, kind: str, values: Sequence[Any]) -> int:
        packed = struct.pack(f"<{len(values)}{SCALARS[kind]}", *values)
        self._builder.StartVector(SIZES[kind], len(values), SIZES[kind])
        self._place(packed, 1)
        position: int = self._builder.EndVector()
        return position

    def _place(self, packed: bytes, alignment: int) -> None:
        """Prepend bytes that are laid out already, as the builder's own CreateString does."""
        builder = self._builder
        builder.Prep(alignment, len(packed) - alignment)
        builder.Pad(len(packed))
        builder.Bytes[builder.Head() : builder.Head() + len(packed)] = packed


def _alignment(field: Field) -> int:
    return 1 if field.kind == "struct" else field.size


def _default(field: Field) -> bytes | None:
    """What a field that is left out means, as bytes: -0.0 is not 0.0."""
    if field.kind not in SIZES or field.default is None:
        return None
    return struct.pack("<" + SCALARS[field.kind], field.default)
