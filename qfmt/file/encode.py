"""A FlatBuffers encoder driven by the descriptors of `schema.py`; the inverse of `decode.py`.

Canonical: equal records give equal bytes, whatever is installed. (The `flatbuffers` library cannot promise that:
what it writes has changed between its versions, and up to 25.9 it lets tables of different sizes share a vtable.)

A FlatBuffer refers forwards only, so it is written from its end: children before parents, in the order of the fields.
Equal short strings and equal vtables are written once, and so is a small nested Record that occurs again (the same
object); everything else is written where it stands. Places are counted from the end, which is aligned to 8.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import QfmtError
from .decode import SCALARS, SIZES, Record, extent
from .schema import TABLES, Field

_u32 = struct.Struct("<I").pack

_ORDER = {4: 0, 8: 1, 1: 2}
"""In a table the fields of 4 bytes come first, then those of 8, then the rest: little is lost to alignment."""

SHORT = 31
"""The most characters of a string that is written only once, however many fields refer to it."""

REFERENCES = 8
"""A longer string is written again after that many references: readers limit what long strings add up to (F6)."""

SMALL = 256
"""The largest `extent` of a nested table that is written only once; a larger one is written like a long string."""


def encode(root: str, record: Record, *, tables: Mapping[str, tuple[Field, ...]] = TABLES) -> tuple[int, bytes]:
    """`record` as the body of a FlatBuffer, to be put at a multiple of 8, and the place of its root in the body."""
    encoder = _Encoder(tables)
    place = encoder.table(root, record)
    body = encoder.finish()
    return len(body) - place, body


class _Encoder:
    def __init__(self, tables: Mapping[str, tuple[Field, ...]]) -> None:
        self._fields = {name: [(field, _default(field)) for field in fields] for name, fields in tables.items()}
        """The fields of each table with their defaults."""
        self._arrangements: dict[tuple[str, tuple[int, ...]], _Arrangement] = {}
        self._chunks: list[bytes] = []
        self._size = 0
        self._strings: dict[str, int] = {}
        self._uses: Counter[str] = Counter()
        """How often each long string was referred to."""
        self._vtables: dict[bytes, int] = {}
        self._nested: dict[int, tuple[Record, int]] = {}
        self._referred: Counter[int] = Counter()
        """How often each nested Record was referred to."""
        self._again = False
        """Whether what is being written is a large nested Record that was written before."""

    def finish(self) -> bytes:
        self._align(0, 8)
        return b"".join(reversed(self._chunks))

    def table(self, name: str, record: Record) -> int:
        """Write a table and all below it; fields that are None or at their default are left out."""
        slots = []
        for field, default in self._fields[name]:
            value = record.get(field.name)
            try:
                if value is not None and (slot := self._slot(field, value)) != default:
                    slots.append((field, slot))
            except struct.error as error:
                raise QfmtError(f"{name}.{field.name} does not fit into a file: {error}") from None
        key = name, tuple([field.id for field, _ in slots])
        if key not in self._arrangements:
            self._arrangements[key] = _arrange([field for field, _ in slots])
        offsets, size, alignment, vtable = self._arrangements[key]
        self._align(size, alignment)
        place = self._size + size
        table = bytearray(size)
        for (field, slot), at in zip(slots, offsets, strict=True):
            table[at : at + field.size] = slot if isinstance(slot, bytes) else _u32(place - at - slot)
        written = vtable in self._vtables
        table[:4] = struct.pack("<i", self._vtables.setdefault(vtable, place + len(vtable)) - place)
        self._prepend(bytes(table))
        if not written:
            self._prepend(vtable)
        return place

    def _slot(self, field: Field, value: Any) -> bytes | int:
        """The bytes that stand in the table itself, or the place of what was written for it."""
        if field.kind in SIZES:
            return struct.pack("<" + SCALARS[field.kind], value)
        if field.kind == "struct":
            return bytes(value)
        if field.kind == "string":
            return self._string(value)
        if field.kind == "table":
            return self._nested_table(field.of, value)
        if field.kind == "[string]":
            return self._references([self._string(text) for text in value])
        if field.kind == "[table]":
            return self._references([self.table(field.of, element) for element in value])
        kind = field.kind[1:-1]
        if kind == "ubyte":
            return self._vector(len(value), value, 4)
        return self._vector(len(value), struct.pack(f"<{len(value)}{SCALARS[kind]}", *value), max(4, SIZES[kind]))

    def _nested_table(self, name: str, value: Record) -> int:
        uses, outer = self._referred[id(value)], self._again
        self._referred[id(value)] += 1
        self._again = outer or (uses > 0 and uses % REFERENCES == 0 and extent(value) > SMALL)
        if uses == 0 or self._again:
            self._nested[id(value)] = value, self.table(name, value)
        self._again = outer
        return self._nested[id(value)][1]

    def _string(self, text: str) -> int:
        if len(text) > SHORT:
            self._uses[text] = 1 if self._again else self._uses[text] + 1
            if self._uses[text] % REFERENCES == 1:
                self._strings.pop(text, None)
        if text not in self._strings:
            encoded = text.encode()
            self._strings[text] = self._vector(len(encoded), encoded + b"\0", 4)
        return self._strings[text]

    def _references(self, places: Sequence[int]) -> int:
        """A vector of offsets, each counted from where it stands."""
        size = 4 * len(places)
        self._align(size, 4)
        first = self._size + size
        return self._vector(len(places), b"".join(_u32(first - 4 * i - place) for i, place in enumerate(places)), 4)

    def _vector(self, count: int, elements: bytes, alignment: int) -> int:
        self._align(len(elements), alignment)
        self._prepend(elements)
        self._prepend(_u32(count))
        return self._size

    def _align(self, size: int, alignment: int) -> None:
        """Write zeros, so that what is `size` bytes long and comes next begins at a multiple of `alignment`."""
        if missing := -(self._size + size) % alignment:
            self._prepend(bytes(missing))

    def _prepend(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)


class _Arrangement(NamedTuple):
    """Where each field stands in its table, the size and the alignment of the table, and its vtable.

    The vtable has its own size, that of the table, and the offset of each field; those after the last one present are
    left out.
    """

    offsets: list[int]
    size: int
    alignment: int
    vtable: bytes


def _arrange(fields: Sequence[Field]) -> _Arrangement:
    """The arrangement of a table with these fields."""
    offsets, size = {}, 4  # the offset of the vtable comes first
    for field in sorted(fields, key=lambda field: _ORDER[_alignment(field)]):
        size += -size % _alignment(field)
        offsets[field.id] = size
        size += field.size
    slots = [offsets.get(id, 0) for id in range(max(offsets, default=-1) + 1)]
    vtable = struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), size, *slots)
    return _Arrangement([offsets[field.id] for field in fields], size, max([4, *map(_alignment, fields)]), vtable)


def _alignment(field: Field) -> int:
    return 1 if field.kind == "struct" else field.size


def _default(field: Field) -> bytes | None:
    """What a field that is left out means, as bytes: -0.0 is not 0.0."""
    if field.kind not in SIZES or field.default is None:
        return None
    return struct.pack("<" + SCALARS[field.kind], field.default)
