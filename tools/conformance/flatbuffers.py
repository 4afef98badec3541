"""Files whose FlatBuffer breaks rule F6 in one way: what a reader that trusts positions would not notice."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from qfmt.file import header
from qfmt.file.schema import TABLES

from .altered import Base
from .containers import sealed

MODEL = {field.name: field for field in TABLES["Model"]}
SPACE = 128
"""Bytes that are put before the FlatBuffer of the sound file: a multiple of 8, so everything stays aligned."""
TABLE, END = 64, 44
"""Where in them the new root table is, and its size."""
PLACES = {"minor_version": 4, "graph": 8, "buffers": 12, "producer": 16, "engine": 20, "source": 24, "metadata": 28,
          "vectors": 32}  # fmt: skip
"""How far its fields are from its beginning."""


def cases(base: Base) -> Iterator[tuple[str, str, bytes]]:
    """(name, what is wrong, the file)."""
    yield "unaligned-field", "A u32 at an odd position", rerooted(base, minor_version=37)
    yield "field-outside", "A field behind the end of its table", rerooted(base, size=40, minor_version=40)
    yield "root-unaligned", "The root at a position that is no multiple of 4", rerooted(base, table=TABLE + 2)
    yield "vtable-odd", "A vtable at an odd position", rerooted(base, vtable=1)
    yield "vtable-size-odd", "A vtable of 23 bytes", rerooted(base, length=23)
    yield "vtable-end", "A vtable that ends outside the metadata", rerooted(base, length=60000)
    yield "vtable-in-header", "A vtable in the header, which has 160 bytes", rerooted(base, head=32)
    yield "offset-0", "An offset of 0, which leads to itself", rerooted(base, producer=36, offsets={"producer": 0})
    yield "unaligned-string", "A string at an odd position", rerooted(base, tail=b"\0\4\0\0\0test\0", led="producer")
    yield "unaligned-table", "A table at a position that is no multiple of 4", unaligned_pair(base)
    yield "vtable-0", "A vtable that begins where its table does", own_vtable(base)
    yield "unaligned-vector", "A vector of i64 that is not at a multiple of 8", unaligned_sizes(base)
    yield "bytes-end", "The bytes of a scale end outside the metadata", long_bytes(base)


def rerooted(
    base: Base,
    *,
    vtable: int = 0,
    length: int = 4 + 2 * len(MODEL),
    size: int = END,
    head: int = 0,
    table: int = TABLE,
    tail: bytes = b"",
    led: str = "",
    offsets: dict[str, int] | None = None,
    **places: int,
) -> bytes:
    """The sound file with another root table, whose fields lead to what they led to.

    `vtable` is where its vtable is among the new bytes, `length` its size, `table` and `size` those of the
    table. The first `head` new bytes belong to the header. `tail` is added at the end, and the field `led` leads to
    its second byte. `offsets` are written as they are; `places` as in PLACES.
    """
    data, wanted = base.data, {name: place + table % 4 for name, place in PLACES.items()} | places
    root, meta = struct.unpack_from("<I", data)[0], data[header.SIZE : base.meta_size]
    new = bytearray(SPACE)
    slots = [wanted.get(name, 0) for name in MODEL]
    struct.pack_into(f"<HH{len(slots)}H", new, vtable, length, size, *slots)
    struct.pack_into("<i", new, table, table - vtable)
    for name, place in wanted.items():
        if name != "minor_version":
            there = header.SIZE + SPACE + len(meta) if name == led else followed(data, root, MODEL[name].id) + SPACE
            distance = there + bool(name == led) - (header.SIZE + table + place)
            struct.pack_into("<I", new, table + place, (offsets or {}).get(name, distance))
    made = header.seal(table, bytes(new) + meta + tail, len(data) - base.data_offset)
    return completed(made[:12] + struct.pack("<I", header.SIZE + head) + made[16:], base)


def field(data: bytes, table: int, number: int) -> int:
    """The position of a field of a table."""
    vtable: int = table - struct.unpack_from("<i", data, table)[0]
    return table + int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])


def followed(data: bytes, table: int, number: int) -> int:
    """What a field of a table leads to."""
    at = field(data, table, number)
    return at + int(struct.unpack_from("<I", data, at)[0])


def tensor_at(data: bytes, index: int) -> int:
    """The position of a tensor."""
    tensors = followed(data, followed(data, struct.unpack_from("<I", data)[0], MODEL["graph"].id), 0)
    at = tensors + 4 + 4 * index
    return at + int(struct.unpack_from("<I", data, at)[0])


def with_last(base: Base, at: int, vector: bytes) -> bytes:
    """The sound file, in which the offset at a position leads to a vector at the end of the metadata."""
    body = bytearray(base.data[header.SIZE : base.meta_size])
    struct.pack_into("<I", body, at - header.SIZE, base.meta_size - at)
    root = struct.unpack_from("<I", base.data)[0]
    return completed(header.seal(root - header.SIZE, bytes(body) + vector, len(base.data) - base.data_offset), base)


def unaligned_pair(base: Base) -> bytes:
    """The first pair of the metadata, whose fields are aligned."""
    root = struct.unpack_from("<I", base.data)[0]
    at = followed(base.data, root, MODEL["metadata"].id) + 4
    vtable, table = struct.pack("<4H2x", 8, 14, 6, 10), struct.pack("<i2xII", 10, 8, 12)
    strings = b"".join(struct.pack("<I2s2x", 1, text) for text in (b"a", b"1"))
    body = bytearray(base.data[header.SIZE : base.meta_size])
    struct.pack_into("<I", body, at - header.SIZE, base.meta_size + len(vtable) - at)
    made = bytes(body) + vtable + table + strings
    return completed(header.seal(root - header.SIZE, made, len(base.data) - base.data_offset), base)


def own_vtable(base: Base) -> bytes:
    """A root table at the beginning of which lies its own vtable: its distance is 0, and so is the vtable's size."""
    return rerooted(base, vtable=TABLE)


def unaligned_sizes(base: Base) -> bytes:
    """The sizes of the first tensor."""
    first = tensor_at(base.data, 0)
    sizes, at = followed(base.data, first, 2), field(base.data, first, 2)
    count = struct.unpack_from("<I", base.data, sizes)[0]
    return with_last(base, at, base.data[sizes : sizes + 4 + 8 * count])


def long_bytes(base: Base) -> bytes:
    """The scale of `x`, a float32, of which the file states five bytes."""
    names = [each["name"] for each in base.record()["graph"]["tensors"]]
    scale = followed(base.data, followed(base.data, tensor_at(base.data, names.index("x")), 5), 1)
    return with_last(base, field(base.data, scale, 2), struct.pack("<If", 5, 0.5))


def references(base: Base, nodes: int = 1000, inputs: int = 1000) -> bytes:
    """The sound file with many nodes that are one table, which has many inputs."""
    root = struct.unpack_from("<I", base.data)[0]
    at = field(base.data, followed(base.data, root, MODEL["graph"].id), 1)
    body = bytearray(base.data[header.SIZE : base.meta_size])
    struct.pack_into("<I", body, at - header.SIZE, base.meta_size - at)
    vtable = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
    node = len(vtable) + 4 * (nodes + 1)
    listed = struct.pack(f"<{nodes + 1}I", nodes, *(node - 4 * index for index in range(1, nodes + 1)))
    table = struct.pack("<iIIII", len(vtable), 16 + 4 * (inputs + 2), 1, 8, 4 * (inputs + 2))
    read = struct.pack(f"<{inputs + 1}I", inputs, *(3,) * inputs)
    body += listed + vtable + table + read + bytes(4) + struct.pack("<I", 10) + b"vendor.Log\0\0"
    return completed(header.seal(root - header.SIZE, bytes(body), len(base.data) - base.data_offset), base)


def completed(made: bytes, base: Base) -> bytes:
    return sealed(made + bytes(-len(made) % header.PAGE) + base.data[base.data_offset :])
