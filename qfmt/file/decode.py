"""A FlatBuffers decoder that verifies as it decodes, driven by the descriptors of `schema.py`.

FlatBuffers' own Python runtime trusts its input. Here every offset is checked against the end of the metadata
and for alignment, every vtable and vector length before it is used, every string for UTF-8, every required
field for presence; what is wrong is a FormatError with the byte where it is.

Nothing is decoded before it is asked for: a vector of tables decodes its elements one by one. The work is
bounded by the size of the metadata: strings and nested tables, which may be shared, are decoded once, and
whatever else is referred to again and again exhausts a budget, counted in bytes of what was decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from sys import getsizeof
from typing import Any, NamedTuple

from ..errors import FormatError
from .schema import TABLES, Field

Record = dict[str, Any]
"""A decoded table: a value for every field of the schema; scalars, bytes, str, tuples, Records, Tables, or None."""

SCALARS = {
    "bool": "?",
    "byte": "b",
    "ubyte": "B",
    "short": "h",
    "ushort": "H",
    "int": "i",
    "uint": "I",
    "long": "q",
    "ulong": "Q",
    "float": "f",
    "double": "d",
}
"""FlatBuffers' scalar types, as `struct` spells them."""

SIZES = {kind: struct.calcsize("<" + code) for kind, code in SCALARS.items()}

_READERS = {kind: struct.Struct("<" + code).unpack_from for kind, code in SCALARS.items()}
_U16, _I32, _U32 = _READERS["ushort"], _READERS["int"], _READERS["uint"]

GROWTH = 16
"""Bytes in memory that a byte of the metadata may become. Up to 9 were seen; threads may decode the same twice."""

FREE = 1 << 20
"""Bytes that any file may become."""

_TABLE = 400
"""Bytes of a table once it is a Record and then a value of the model, without what its fields refer to."""

_NUMBER = 32
"""Bytes of a number in a tuple, with the reference to it."""

_REFERENCE = 8


class _Layout(NamedTuple):
    """Where the fields of the tables that share a vtable are."""

    size: int
    absent: Record
    present: tuple[tuple[str, int, Field, Callable[..., tuple[Any, ...]] | None], ...]


class Decoder:
    """Decodes the FlatBuffer `data`; objects lie in [`start`, end of data)."""

    def __init__(
        self, data: bytes, root: str, *, start: int = 8, tables: Mapping[str, tuple[Field, ...]] = TABLES
    ) -> None:
        self._data = data
        self._start = start
        self._root = root
        self._tables = tables
        self._budget = GROWTH * len(data) + FREE
        self._strings: dict[int, str] = {}
        self._nested: dict[tuple[str, int], Record] = {}
        self._layouts: dict[tuple[str, int, int], _Layout] = {}

    def root(self) -> Record:
        """The root table."""
        return self.table(self._root, self.target(0, "the root offset"))

    def table(self, name: str, position: int) -> Record:
        """The table at a position, with every field that this reader knows."""
        layout = self._layout(name, position)
        self._spend(_TABLE, position)
        record = layout.absent.copy()
        for key, offset, field, unpack in layout.present:
            at = position + offset
            record[key] = unpack(self._data, at)[0] if unpack else self._wide(name, field, at)
        return record

    def string_field(self, name: str, position: int, key: str) -> str:
        """One required string field of a table, without decoding the others."""
        for present, offset, _, _ in self._layout(name, position).present:
            if present == key:
                at = position + offset
                return self._string(self.target(at, key), f"{name}.{key}")
        raise _broken(f"{name}.{key} is missing", position)

    def _wide(self, name: str, field: Field, at: int) -> Any:
        """The value of a field that is not a scalar."""
        if field.kind == "struct":
            return self._data[at : at + field.size]
        place = f"{name}.{field.name}"
        target = self.target(at, place)
        if field.kind == "string":
            return self._string(target, place)
        if field.kind == "table":
            return self._nested_table(field.of, target)
        if field.kind == "[string]":
            return tuple(self._string(self.target(at, place), place) for at in self._elements(target, place))
        if field.kind == "[table]":
            return Tables(self, field.of, self._elements(target, place), place)
        return self._scalars(field.kind[1:-1], target, place)

    def _nested_table(self, name: str, position: int) -> Record:
        key = name, position
        if key not in self._nested:
            self._nested[key] = self.table(name, position)
        return self._nested[key]

    def _string(self, position: int, place: str) -> str:
        if position in self._strings:
            return self._strings[position]
        count = self._count(position, 1, place)
        end = position + 4 + count
        if end >= len(self._data) or self._data[end] != 0:
            raise _broken(f"the string {place} does not end with a zero byte", end)
        try:
            text = self._data[position + 4 : end].decode()
        except UnicodeDecodeError:
            raise _broken(f"the string {place} is not UTF-8", position + 4) from None
        self._spend(getsizeof(text), position)
        self._strings[position] = text
        return text

    def _scalars(self, kind: str, position: int, place: str) -> tuple[Any, ...] | bytes:
        count = self._count(position, SIZES[kind], place)
        if kind == "ubyte":
            self._spend(count, position)
            return self._data[position + 4 : position + 4 + count]
        self._spend(_NUMBER * count, position)
        return struct.unpack_from(f"<{count}{SCALARS[kind]}", self._data, position + 4)

    def _elements(self, position: int, place: str) -> range:
        """The positions of the elements of a vector of offsets."""
        count = self._count(position, 4, place)
        self._spend(_REFERENCE * count, position)
        return range(position + 4, position + 4 + 4 * count, 4)

    def _count(self, position: int, size: int, place: str) -> int:
        """The length of a vector, after a check that it ends inside the metadata."""
        count: int = _U32(self._data, position)[0]
        if count > (len(self._data) - position - 4) // size:
            raise _broken(f"{place} has {count} elements, more than fit into the metadata", position)
        if count and (position + 4) % size:
            raise _broken(f"{place} is not aligned", position)
        return count

    def target(self, position: int, place: str) -> int:
        """Where an offset leads: inside the metadata, aligned, with room for four bytes."""
        target: int = position + _U32(self._data, position)[0]
        if target == position or not self._start <= target <= len(self._data) - 4:
            raise _broken(f"{place} points outside the metadata, to byte {target}", position)
        if target % 4:
            raise _broken(f"{place} points to byte {target}, which is not aligned", position)
        return target

    def _layout(self, name: str, position: int) -> _Layout:
        """The layout of the table at a position, which ends inside the metadata."""
        vtable = position - _I32(self._data, position)[0]
        key = name, vtable, position % 8
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._parse_vtable(name, position, vtable)
        if position + layout.size > len(self._data):
            raise _broken(f"{name} ends outside the metadata", position)
        return layout

    def _parse_vtable(self, name: str, position: int, vtable: int) -> _Layout:
        end = len(self._data)
        if not self._start <= vtable <= end - 4 or vtable % 2:
            raise _broken(f"the vtable of {name} cannot be at byte {vtable}", position)
        length, size = _U16(self._data, vtable)[0], _U16(self._data, vtable + 2)[0]
        if length < 4 or length % 2 or vtable + length > end or size < 4:
            raise _broken(f"the vtable of {name} has impossible sizes ({length}, {size})", vtable)
        absent: Record = {}
        present = []
        for field in self._tables[name]:
            slot = 4 + 2 * field.id
            offset = _U16(self._data, vtable + slot)[0] if slot < length else 0
            if offset == 0:
                if field.required:
                    raise _broken(f"{name}.{field.name} is missing", position)
                absent[field.name] = field.default
                continue
            if offset < 4 or offset + field.size > size:
                raise _broken(f"{name}.{field.name} is outside its table", vtable + slot)
            if field.kind != "struct" and (position + offset) % field.size:
                raise _broken(f"{name}.{field.name} is not aligned", position + offset)
            present.append((field.name, offset, field, _READERS.get(field.kind)))
        return _Layout(size, absent, tuple(present))

    def _spend(self, count: int, position: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise _broken("the same tables or vectors are referenced too often", position)


class Tables:
    """A vector of tables that decodes an element when it is asked for, and keeps none."""

    __slots__ = ("_decoder", "_name", "_place", "_positions")

    def __init__(self, decoder: Decoder, name: str, positions: range, place: str) -> None:
        self._decoder = decoder
        self._name = name
        self._positions = positions
        self._place = place

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Record:
        return self._decoder.table(self._name, self._position(index))

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))

    def string_field(self, index: int, key: str) -> str:
        """One required string field of an element, without decoding the others."""
        return self._decoder.string_field(self._name, self._position(index), key)

    def _position(self, index: int) -> int:
        return self._decoder.target(self._positions[index], f"{self._place}[{index}]")


def _broken(what: str, position: int) -> FormatError:
    return FormatError(what, where=f"metadata, byte {position}", rule="F6")
