"""An annotated hex dump of a .qfb file: every byte once, with its meaning.

Uses only the schema and imports nothing of qfmt, so that the dump in spec.md shows the contents of the file and not
our reader's interpretation. It trusts its input: use it on files that `qfmt check` accepts.
"""

from __future__ import annotations

import struct
from typing import Any

from fbs import Field, Schema

WIDTH = 12
"""Bytes per line."""

SCALARS = {"ubyte": "<B", "int": "<i", "uint": "<I", "long": "<q", "ulong": "<Q", "double": "<d"}

HEADER = (
    (0, 4, "root offset"),
    (4, 4, "file identifier"),
    (8, 4, "header tag"),
    (12, 4, "header_size"),
    (16, 8, "meta_size"),
    (24, 8, "data_offset"),
    (32, 8, "data_size"),
    (40, 8, "file_size"),
    (48, 4, "required_flags"),
    (52, 4, "optional_flags"),
    (56, 8, "reserved"),
    (64, 32, "sha256 of the metadata"),
    (96, 32, "reserved"),
)
"""Offset, size in bytes and name of every field of the header: the table in spec.md, "Header"."""


def hexdump(data: bytes, schema: Schema) -> str:
    spans = Annotator(data, schema).spans
    lines, at = [], 0
    for start, end, text in [*sorted(spans), (len(data), len(data), "")]:
        if start > at:
            lines += _lines(data, at, start, "padding")
        lines += _lines(data, start, end, text) if end > start else []
        at = max(at, end)
    return "\n".join(line.rstrip() for line in lines)


def parse(dump: str) -> bytes:
    """The bytes that a dump shows."""
    data = bytearray()
    for line in dump.splitlines():
        columns = line[8 : 8 + 3 * WIDTH]
        count = columns.partition("×")[2]
        data += bytes(int(count)) if count else bytes.fromhex(columns)
    return bytes(data)


def _lines(data: bytes, start: int, end: int, text: str) -> list[str]:
    part = data[start:end]
    if len(part) > WIDTH and not any(part):
        return [f"{start:06x}  {f'00 × {len(part)}':<{3 * WIDTH}} {text}"]
    rows = [part[i : i + WIDTH] for i in range(0, len(part), WIDTH)]
    return [f"{start + i * WIDTH:06x}  {row.hex(' '):<{3 * WIDTH}} {'' if i else text}" for i, row in enumerate(rows)]


class Annotator:
    """Collects spans (start, end, text) over a whole file; shared parts are annotated once."""

    def __init__(self, data: bytes, schema: Schema) -> None:
        self.data = data
        self.schema = schema
        self.seen: set[int] = set()
        self.spans: list[tuple[int, int, str]] = []
        self.buffers: list[tuple[int, int]] = []
        for start, size, name in HEADER:
            self.add(start, size, f"{name}{self.header_value(name, start, size)}")
        self.table(schema.root, self.target(0))
        data_offset = self.scalar("ulong", 24)
        for index, (offset, size) in enumerate(self.buffers):
            self.add(data_offset + offset, size, f"data of buffer {index}")

    def header_value(self, name: str, start: int, size: int) -> str:
        if name == "root offset":
            return f" → {self.schema.root} at {self.target(0):06x}"
        if size == 4 and name.endswith(("identifier", "tag")):
            return f' "{self.data[start : start + 4].decode()}"'
        if name == "reserved" or size > 8:
            return ""
        return f" = {self.scalar('uint' if size == 4 else 'ulong', start)}"

    def add(self, start: int, size: int, text: str) -> None:
        self.spans.append((start, start + size, text))

    def scalar(self, kind: str, at: int) -> Any:
        return struct.unpack_from(SCALARS[kind], self.data, at)[0]

    def target(self, at: int) -> int:
        return int(at + self.scalar("uint", at))

    def table(self, name: str, at: int) -> None:
        if at in self.seen:
            return
        self.seen.add(at)
        vtable = at - self.scalar("int", at)
        self.add(at, 4, f"{name}: its vtable is at {vtable:06x}")
        length, size, *slots = self.vtable(vtable)
        if vtable not in self.seen:
            self.seen.add(vtable)
            places = ", ".join(str(slot) if slot else "-" for slot in slots)
            self.add(vtable, length, f"vtable of {length} bytes: table of {size}, fields at {places}")
        fields = self.schema.tables[name].fields
        record = {field.name: at + slot for field, slot in zip(fields, slots, strict=False) if slot}
        for field in fields:
            if field.name in record:
                self.field(f"  {name}.{field.name}", field, record[field.name])
        if name == "Buffer":
            size_of = {key: self.scalar("ulong", record[key]) if key in record else 0 for key in ("offset", "size")}
            self.buffers.append((size_of["offset"], size_of["size"]))

    def vtable(self, at: int) -> list[int]:
        length = struct.unpack_from("<H", self.data, at)[0]
        return list(struct.unpack_from(f"<{length // 2}H", self.data, at))

    def field(self, label: str, field: Field, at: int) -> None:
        if field.type in self.schema.enums:
            code = self.scalar("ubyte", at)
            self.add(at, 1, f"{label} = {code}, {self.schema.enums[field.type].member(code)}")
        elif field.type in SCALARS:
            size = struct.calcsize(SCALARS[field.type])
            self.add(at, size, f"{label} = {self.scalar(field.type, at)}")
        elif field.type in self.schema.structs:
            self.add(at, 32, f"{label}, in place")
        else:
            target = self.target(at)
            self.add(at, 4, f"{label} → {target:06x}")
            self.object(label.strip(), field.type, target)

    def object(self, label: str, kind: str, at: int) -> None:
        if kind in self.schema.tables:
            self.table(kind, at)
        elif at not in self.seen and kind == "string":
            self.seen.add(at)
            size = self.scalar("uint", at)
            text = self.data[at + 4 : at + 4 + size].decode()
            self.add(at, 4 + size + 1, f'{label}: length {size}, "{text}", zero byte')
        elif at not in self.seen:
            self.seen.add(at)
            self.vector(label, kind[1:-1], at)

    def vector(self, label: str, of: str, at: int) -> None:
        count = self.scalar("uint", at)
        if of in SCALARS:
            values = [self.scalar(of, at + 4 + i * struct.calcsize(SCALARS[of])) for i in range(count)]
            self.add(at, 4 + count * struct.calcsize(SCALARS[of]), f"{label}: {count} × {of}, {values}")
            return
        targets = [self.target(at + 4 + 4 * i) for i in range(count)]
        shown = ", ".join(f"{target:06x}" for target in targets)
        self.add(at, 4 + 4 * count, f"{label}: {count} × {of}" + (f" → {shown}" if targets else ""))
        for index, target in enumerate(targets):
            self.object(f"{label}[{index}]", of, target)
