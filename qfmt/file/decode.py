"""A FlatBuffers decoder that verifies as it decodes, driven by the descriptors of `schema.py`.

FlatBuffers' own Python runtime trusts its input. Here every offset is checked against the end of the metadata
and for alignment, every vtable and vector length before it is used, every string for UTF-8, every required
field for presence; what is wrong is a FormatError with the byte where it is.

Nothing is decoded before it is asked for: a vector of tables decodes its elements one by one. The work is
bounded by the size of the metadata: strings and nested tables, which may be shared, are decoded once, and
whatever is referred to again and again exhausts a budget, counted in bytes of what was decoded. A shared string costs
its characters each time, because whoever uses it checks or compares them, and a shared table its `extent`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add, itemgetter, or_
from sys import getsizeof
from typing import Any, NamedTuple

from ..errors import FormatError
from ..threads import cached_property
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

_INLINE = {*SCALARS, "struct"}
"""The kinds of fields whose values are in the table itself; of the others it has the offset."""

_U16, _I32, _U32 = (struct.Struct("<" + SCALARS[kind]).unpack_from for kind in ("ushort", "int", "uint"))

GROWTH = 32
"""Bytes in memory that a byte of the metadata may become. Up to 18 were seen; threads may decode the same twice."""

FREE = 1 << 20
"""Bytes that any file may become."""

FIELD = 60
"""Bytes of a field of a table once it is in a Record and then in a value of the model, without what it refers to."""

NUMBER = 32
"""Bytes of a number in a tuple, with the reference to it."""

_REFERENCE = 8

_LAYOUT = 3000
"""Bytes of the layout of a vtable."""

_TEXT, _CHARACTER = 60, 4
"""Bytes of a string, and of a byte of it."""


class _Layout(NamedTuple):
    """Where the fields of the tables that share a vtable are."""

    size: int
    absent: Record
    present: dict[str, int]
    """The offset of each field that is there, in the order in which `unpack` returns them: offsets for wide ones."""
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    wide: tuple[tuple[str, int, Callable[[int], Any]], ...]
    """The fields that are not scalars: the offset of each, and what decodes its target."""


def _code(field: Field) -> str:
    """How `struct` spells what a table has of a field: its value, or the offset to it."""
    return f"{field.size}s" if field.kind == "struct" else SCALARS.get(field.kind, "I")


def _unpacker(slots: Sequence[tuple[int, str]]) -> Callable[[bytes, int], tuple[Any, ...]]:
    """What reads the values at offsets from a position, in their order: at once, unless they overlap."""
    format, end = "<", 0
    for offset, code in slots:
        if offset < end:
            each = [(offset, struct.Struct("<" + code).unpack_from) for offset, code in slots]
            return lambda data, at: tuple(read(data, at + offset)[0] for offset, read in each)
        format += f"{offset - end}x{code}"
        end = offset + struct.calcsize("<" + code)
    return struct.Struct(format).unpack_from


def _words(data: bytes) -> Sequence[int]:
    """The numbers of 4 bytes at the multiples of 4, without a copy if this machine has them in the same order."""
    words = memoryview(data)[: len(data) & ~3].cast("I")
    if sys.byteorder == "little":
        return words
    from array import array

    swapped = array("I", words)
    swapped.byteswap()
    return swapped


class Decoder:
    """Decodes the FlatBuffer `data`; objects lie in [`start`, end of data)."""

    def __init__(
        self, data: bytes, root: str, *, start: int = 8, tables: Mapping[str, tuple[Field, ...]] = TABLES
    ) -> None:
        self.data = data
        self.start, self._last = start, len(data) - 4
        self._root = root
        self._tables = tables
        self._budget = GROWTH * len(data) + FREE
        self._strings: dict[int, str] = {}
        self._nested: dict[tuple[str, int], Record] = {}
        self._extents: dict[tuple[str, int], int] = {}
        self._layouts: dict[tuple[str, int, int], _Layout] = {}

    @cached_property
    def data(self) -> bytes:
        """All bytes; after `let_go` they are read again."""
        return self._again()

    def let_go(self, again: Callable[[], bytes]) -> None:
        """Keep no copy of the data: `again` returns the same bytes when they are needed."""
        self._again = again
        self.__dict__.pop("data", None)

    def root(self) -> Record:
        """The root table."""
        return self.table(self._root, self.target(0))

    def table(self, name: str, position: int) -> Record:
        """The table at a position, with every field that this reader knows."""
        layout = self.layout(name, position)
        self.spend(FIELD * (len(layout.absent) + len(layout.present)), position)
        record = layout.absent.copy()
        record.update(zip(layout.present, layout.unpack(self.data, position), strict=True))
        for key, offset, decode in layout.wide:
            record[key] = decode(self._inside(position + offset, record[key]))
        return record

    def string_field(self, name: str, position: int, key: str) -> str:
        """One required string field of a table, without decoding the others."""
        at = position + self.layout(name, position).present[key]
        return self._string(self.target(at), key)

    def string_fields(self, name: str, positions: range, key: str) -> list[str]:
        """The same of all tables that a vector refers to: each step for all of them, in a third of the time."""
        data, words = self.data, _words(self.data)
        found, places = [], {}
        for table in self._all_inside(positions, words):
            layout = words[table >> 2] - table, table % 8
            if layout not in places:
                places[layout] = self.layout(name, table).present[key]
            found.append(table + places[layout])
        if max(found, default=0) > self._last:
            raise _broken(f"{name} ends outside the metadata", max(found))
        targets = self._all_inside(found, words)
        ends = [target + 4 + words[target >> 2] for target in targets]
        try:
            if max(ends, default=0) < len(data) and not any(data[end] for end in ends):
                self.spend(_TEXT * len(ends) + _CHARACTER * (sum(ends) - sum(targets)), positions.start)
                return [data[target + 4 : end].decode() for target, end in zip(targets, ends, strict=True)]
        except UnicodeDecodeError:
            pass
        return [self._string(target, f"{name}.{key}") for target in targets]  # which says what is wrong

    def _all_inside(self, positions: Sequence[int], words: Sequence[int]) -> list[int]:
        """Where the offsets at positions lead, as `target` does: all of them are checked at once."""
        offsets = [words[position >> 2] for position in positions]
        targets = list(map(add, positions, offsets))
        least, most = min(targets, default=self.start), max(targets, default=self._last)
        if least < self.start or most > self._last or reduce(or_, targets, 0) % 4 or not all(offsets):
            return [self.target(position) for position in positions]
        return targets

    def part(self, name: str, keys: Sequence[str]) -> str:
        """What tables with only some of their fields are called."""
        part = f"{name} ({', '.join(keys)})"
        self._tables = {**self._tables, part: tuple(field for field in self._tables[name] if field.name in keys)}
        return part

    def _wide(self, name: str, field: Field) -> Callable[[int], Any]:
        """What decodes a field that is not a scalar."""
        place = f"{name}.{field.name}"
        if field.kind == "string":
            return partial(self._string, place=place)
        if field.kind == "table":
            return partial(self._nested_table, field.of)
        if field.kind == "[string]":
            return lambda at: tuple(self._string(self.target(each), place) for each in self._elements(at, place))
        if field.kind == "[table]":
            return lambda at: Tables(self, field.of, self._elements(at, place))
        return partial(self._scalars, field.kind[1:-1], place=place)

    def _nested_table(self, name: str, position: int) -> Record:
        key = name, position
        record = self._nested.get(key)
        if record is None:
            record = self._nested[key] = self.table(name, position)
        else:
            if key not in self._extents:
                self._extents[key] = extent(record)
            self.spend(self._extents[key], position)
        return record

    def _string(self, position: int, place: str) -> str:
        text = self._strings.get(position)
        if text is not None:
            self.spend(len(text), position)
            return text
        end: int = position + 4 + _U32(self.data, position)[0]
        if end >= len(self.data) or self.data[end]:
            raise _broken(f"the string {place} does not end with a zero byte inside the metadata", position)
        try:
            text = self.data[position + 4 : end].decode()
        except UnicodeDecodeError:
            raise _broken(f"the string {place} is not UTF-8", position + 4) from None
        self.spend(getsizeof(text), position)
        self._strings[position] = text
        return text

    def _scalars(self, kind: str, position: int, place: str) -> tuple[Any, ...] | bytes:
        count = self._count(position, SIZES[kind], place)
        if kind == "ubyte":
            self.spend(count, position)
            return self.data[position + 4 : position + 4 + count]
        self.spend(NUMBER * count, position)
        return struct.unpack_from(f"<{count}{SCALARS[kind]}", self.data, position + 4)

    def _elements(self, position: int, place: str) -> range:
        """The positions of the elements of a vector of offsets."""
        count = self._count(position, 4, place)
        self.spend(_REFERENCE * count, position)
        return range(position + 4, position + 4 + 4 * count, 4)

    def _count(self, position: int, size: int, place: str) -> int:
        """The length of a vector, after a check that it ends inside the metadata."""
        count: int = _U32(self.data, position)[0]
        if count > (len(self.data) - position - 4) // size:
            raise _broken(f"{place} has {count} elements, more than fit into the metadata", position)
        if count and (position + 4) % size:
            raise _broken(f"{place} is not aligned", position)
        return count

    def target(self, position: int) -> int:
        """Where the offset at a position leads: inside the metadata, aligned, with room for four bytes."""
        return self._inside(position, _U32(self.data, position)[0])

    def _inside(self, position: int, offset: int) -> int:
        target = position + offset
        if not offset or target % 4 or not self.start <= target <= self._last:
            raise _broken(f"an offset leads to byte {target}, which is outside the metadata or not aligned", position)
        return target

    def layout(self, name: str, position: int) -> _Layout:
        """The layout of the table at a position, which ends inside the metadata."""
        vtable = position - _I32(self.data, position)[0]
        key = name, vtable, position % 8
        layout = self._layouts.get(key)
        if layout is None:
            self.spend(_LAYOUT, position)
            layout = self._layouts[key] = self._parse_vtable(name, position, vtable)
        if position + layout.size > len(self.data):
            raise _broken(f"{name} ends outside the metadata", position)
        return layout

    def _parse_vtable(self, name: str, position: int, vtable: int) -> _Layout:
        end = len(self.data)
        if not self.start <= vtable <= end - 4 or vtable % 2:
            raise _broken(f"the vtable of {name} cannot be at byte {vtable}", position)
        length, size = _U16(self.data, vtable)[0], _U16(self.data, vtable + 2)[0]
        if length < 4 or length % 2 or vtable + length > end or size < 4:
            raise _broken(f"the vtable of {name} has impossible sizes ({length}, {size})", vtable)
        absent: Record = {}
        present: list[tuple[int, Field]] = []
        for field in self._tables[name]:
            slot = 4 + 2 * field.id
            offset = _U16(self.data, vtable + slot)[0] if slot < length else 0
            if offset == 0:
                if field.required:
                    raise _broken(f"{name}.{field.name} is missing", position)
                absent[field.name] = field.default
                continue
            if offset < 4 or offset + field.size > size:
                raise _broken(f"{name}.{field.name} is outside its table", vtable + slot)
            if field.kind != "struct" and (position + offset) % field.size:
                raise _broken(f"{name}.{field.name} is not aligned", position + offset)
            present.append((offset, field))
        present.sort(key=itemgetter(0))
        unpack = _unpacker([(offset, _code(field)) for offset, field in present])
        wide = tuple(
            (field.name, offset, self._wide(name, field)) for offset, field in present if field.kind not in _INLINE
        )
        return _Layout(size, absent, {field.name: offset for offset, field in present}, unpack, wide)

    def spend(self, count: int, position: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise _broken("the same tables, vectors or strings are referred to too often", position)


class Tables:
    """A vector of tables that decodes an element when it is asked for, and keeps none."""

    __slots__ = ("decoder", "name", "positions")

    def __init__(self, decoder: Decoder, name: str, positions: range) -> None:
        self.decoder = decoder
        self.name = name
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Record:
        return self.decoder.table(self.name, self._position(index))

    def __iter__(self) -> Iterator[Record]:
        return (self[index] for index in range(len(self)))

    def part(self, *keys: str) -> Tables:
        """The same tables with only some of their fields; the others are not decoded."""
        return Tables(self.decoder, self.decoder.part(self.name, keys), self.positions)

    def string_field(self, index: int, key: str) -> str:
        """One required string field of an element, without decoding the others."""
        return self.decoder.string_field(self.name, self._position(index), key)

    def string_fields(self, key: str) -> list[str]:
        """The same of all elements."""
        return self.decoder.string_fields(self.name, self.positions, key)

    def _position(self, index: int) -> int:
        return self.decoder.target(self.positions[index])


def extent(value: Any) -> int:
    """How much there is to check in a nested table, or in a part of it: characters, bytes, and 8 for each number of a
    vector."""
    if isinstance(value, dict):
        return sum(map(extent, value.values()))
    return len(value) * (1 if isinstance(value, str | bytes) else _REFERENCE) if isinstance(value, Sequence) else 0


def _broken(what: str, position: int) -> FormatError:
    return FormatError(what, where=f"metadata, byte {position}", rule="F6")
