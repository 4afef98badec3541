"""Files whose header, bytes or tables break a rule of the container."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

from .. import flatbuffers
from ..altered import Base, Record, graph, grid, node, numbers, root, setting, value, written
from ..containers import PRODUCER, patched
from .case import FLOAT16, Bases, Refused


def cases(bases: Bases) -> Iterator[Refused]:
    yield from of_bytes(bases.sound)
    yield from of_tables(bases.sound)


def of_bytes(base: Base) -> Iterator[Refused]:
    data, size, offset = base.data, base.meta_size, base.data_offset

    def header_with(at: int, form: str, number: int) -> bytes:
        return patched(data, at, struct.pack(form, number))

    yield Refused("empty", "F1", "No byte at all", b"")
    yield Refused("zip", "F1", "A zip archive", b"PK\5\6" + bytes(18))
    yield Refused("no-tag", "F1", "An ordinary FlatBuffer, without a tag", patched(data, 8, bytes(4)))
    yield Refused("major-2", "F1", "Major version 2", patched(data, 7, b"2"))
    yield Refused("tag", "F1", "Another tag of the header", patched(data, 8, b"qh02"))
    yield Refused("reserved", "F2", "A reserved byte of the header is not zero", patched(data, 56, b"\1"))
    yield Refused("reserved-end", "F2", "The last reserved byte is not zero", patched(data, 127, b"\1"))
    yield Refused("header-part", "F3", "The file ends in the header", data[:40])
    yield Refused("header-only", "F3", "The file ends after the header", data[:128])
    yield Refused("truncated", "F3", "The last byte is missing", data[:-1])
    yield Refused("longer", "F3", "There is a byte more", data + b"\0")
    yield Refused("header-size", "F3", "A header of 120 bytes", header_with(12, "<I", 120))
    odd = flatbuffers.rerooted(base, vtable=8, head=4)
    yield Refused("header-odd", "F3", "A header of 132 bytes, no multiple of 8", odd)
    later = struct.pack("<QQQ", offset + 4096, len(data) - offset, len(data) + 4096)
    moved = patched(data[:offset] + bytes(4096) + data[offset:], 24, later)
    yield Refused("data-offset", "F3", "Data that begin a page later", moved)
    longer = patched(data, 40, struct.pack("<Q", len(data) + 4)) + b"data"
    yield Refused("file-size", "F3", "Four bytes after the data, which the size of the file counts", longer)
    sizes = struct.pack("<QQ", len(data) - offset + 1, len(data))
    yield Refused("data-size", "F3", "Sizes that disagree", patched(data, 32, sizes))
    wrapped = data[:16] + struct.pack("<Q", (1 << 64) - 8) + data[24:]
    yield Refused("meta-size", "F3", "Metadata of 2^64 - 8 bytes", wrapped)
    flipped = bytearray(data)
    flipped[data.index(PRODUCER.encode())] ^= 1
    yield Refused("metadata-bit", "F4", "A bit of the metadata is flipped", bytes(flipped))
    yield Refused(
        "padding", "F5", "A byte between metadata and data is not zero", data[: size + 1] + b"\1" + data[size + 2 :]
    )
    yield Refused("root", "F6", "The root lies outside the metadata", header_with(0, "<I", size + 4))
    yield Refused("root-in-header", "F6", "The root lies in the header", header_with(0, "<I", 64))
    text = data.index(b"vendor.Log")
    yield Refused("utf8", "F6", "A string is not UTF-8", patched(data, text, b"\xff"))
    yield Refused("string-end", "F6", "A string does not end with a zero byte", patched(data, text + 10, b"x"))
    yield Refused(
        "string-length", "F6", "A string longer than the metadata", patched(data, text - 4, b"\xff\xff\xff\x7f")
    )
    position = struct.unpack_from("<I", data)[0]
    vtable = position - struct.unpack_from("<i", data, position)[0]
    yield Refused(
        "vtable", "F6", "The vtable of the root lies outside", patched(data, position, struct.pack("<i", -(1 << 30)))
    )
    yield Refused("table-end", "F6", "A table ends outside the metadata", patched(data, vtable + 2, b"\xff\xff"))
    yield Refused("no-graph", "F6", "The root has no graph", patched(data, vtable + 4 + 2 * 2, b"\0\0"))
    for name, about, made in flatbuffers.cases(base):
        yield Refused(name, "F6", about, made)
    yield Refused(
        "references", "F6", "A thousand nodes are one, with a thousand inputs", flatbuffers.references(base), True
    )
    weight = bytearray(data)
    weight[offset + base.offset("w")] ^= 1
    yield Refused("data-bit-weight", "F9", "A bit of a weight is flipped", bytes(weight))
    last = bytearray(data)
    last[-1] ^= 1
    yield Refused("data-bit", "F9", "A bit of the data is flipped", bytes(last))
    yield Refused("flags", "F10", "A required flag that no reader knows", header_with(48, "<I", 4))


def of_tables(base: Base) -> Iterator[Refused]:
    def table(name: str, rule: str, about: str, change: Callable[[Record], object]) -> Refused:
        return Refused(name, rule, about, base.changed(change))

    def buffer(index: int, **fields: Any) -> Callable[[Record], object]:
        return lambda record: record["buffers"][index].update(fields)

    def moved(record: Record) -> None:
        record["buffers"][0], record["buffers"][1] = record["buffers"][1], record["buffers"][0]
        swap = {0: 1, 1: 0}
        for each in record["graph"]["tensors"]:
            each["buffer"] = swap.get(each["buffer"], each["buffer"])

    def unsorted(record: Record) -> None:
        record["graph"]["tensors"][0]["name"] = "z"

    def twice(record: Record) -> None:
        record["graph"]["tensors"][1]["name"] = record["graph"]["tensors"][0]["name"]

    yield table("input-index", "F7", "An input that is no tensor", graph(inputs=[99]))
    yield table("output-index", "F7", "An output that is no tensor", graph(outputs=[99]))
    yield table("node-input-index", "F7", "An input of a node that is no tensor", node(2, inputs=[99]))
    yield table("node-input-negative", "F7", "An input of a node with the index -2", node(2, inputs=[-2]))
    yield table("node-output-index", "F7", "An output of a node that is no tensor", node(2, outputs=[99]))
    yield table(
        "scale-index", "F7", "Scales in a buffer that is not there", numbers("w", "scale", bytes=None, buffer=99)
    )
    yield table("value-index", "F7", "A value of a test vector in no buffer", value("inputs", buffer=99))
    yield table("buffer-index", "F7", "A buffer that is not there", setting("w", buffer=99))
    yield table("overlap", "F8", "A buffer begins inside another", buffer(1, offset=0))
    yield table("order", "F8", "Buffers that are not in the order of their offsets", moved)
    yield table("outside", "F8", "A buffer ends outside the data", buffer(-1, size=1 << 40))
    yield table("wrapping", "F8", "Offset and size are 2^64 together", buffer(-1, offset=(1 << 64) - 64, size=64))
    last = base.record()["buffers"][-1]["offset"]
    yield Refused("unaligned", "F8", "A buffer begins 4 bytes after a multiple of 64", with_hole(base, last, 4))
    yield Refused("first-buffer", "F8", "64 bytes before the first buffer, all zero", with_hole(base, 0, 64))
    segment = bytearray(base.data[base.data_offset :])
    segment[base.record()["buffers"][0]["size"]] = 1
    yield Refused("hole", "F8", "A byte between two buffers is not zero", written(base.record(), bytes(segment)))
    yield Refused("hole-64", "F8", "64 bytes too many between two buffers, all zero", with_hole(base, last, 64))
    longer = base.data[base.data_offset :] + bytes(64)
    yield Refused("data-end", "F8", "The data go on after the last buffer", written(base.record(), longer))
    yield table("feature", "F10", "A required feature that no reader knows", root(required_features=["sparse"]))
    yield table("tensor-order", "F11", "Tensors that are not sorted", unsorted)
    yield table("tensor-twice", "F11", "Two tensors of one name", twice)
    pairs = [{"key": "b", "value": "1"}, {"key": "a", "value": "2"}]
    yield table("map-order", "F11", "A map that is not sorted", root(metadata=pairs))
    pairs = [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    yield table("map-twice", "F11", "A map with a key twice", root(metadata=pairs))
    pairs = [{"key": "b", "value": "1"}, {"key": "a", "value": "2"}]
    yield table("source-order", "F11", "A source that is not sorted", root(source=pairs))
    pairs = [{"name": "a", "type": 1, "int_value": value} for value in (1, 2)]
    yield table("attribute-again", "F11", "Two attributes of one name", node(2, attributes=pairs))
    yield table("attribute-order", "F11", "Attributes that are not sorted", lambda record: record["graph"]["nodes"][2]
                ["attributes"].reverse())  # fmt: skip
    yield table("size-names", "F12", "Three names for two sizes", setting("x", dims=["N", "", ""]))
    yield table("size-names-alone", "F12", "Names of sizes, but no sizes", setting("x", shape=None))
    yield table("size-name-number", "F12", "A size with a name and a number", setting("x", shape=[2, 4]))
    yield table("no-quant-min", "F12", "A quantization without quant_min", grid("x", quant_min=None))
    yield table("no-quant-max", "F12", "A quantization without quant_max", grid("x", quant_max=None))
    yield table("no-numbers", "F12", "A scale without bytes and without a buffer", numbers("x", "scale", bytes=None))
    yield table("numbers-twice", "F12", "A scale with bytes and a buffer", numbers("x", "scale", buffer=0))
    kinds = [{"name": "a", "type": 9}], [{"name": "a", "type": 3}]
    yield table("attribute-type", "F12", "An attribute of an unknown type", node(2, attributes=kinds[0]))
    yield table("attribute-value", "F12", "An attribute without the value of its type", node(2, attributes=kinds[1]))
    yield table("no-value", "F12", "A value of a test vector without a buffer", value("inputs", buffer=None))
    kinds = [{"name": "a", "type": 1, "ints": [1]}], [{"name": "a", "type": 5, "floats": []}]
    yield table("attribute-twice", "F12", "An attribute with values of two types", node(2, attributes=kinds[0]))
    yield table("attribute-empty", "F12", "An empty list of floats", node(2, attributes=kinds[1]))
    kinds = [{"name": "a", "type": 0}], [{"name": "a", "type": 1, "int_value": 1, "string_value": ""}]
    yield table("attribute-type-0", "F12", "An attribute of type 0", node(2, attributes=kinds[0]))
    yield table("attribute-text", "F12", "An Int with an empty string", node(2, attributes=kinds[1]))
    given = {"name": "a", "int_value": 1, "float_value": 1.0}
    yield table("attribute-int-float", "F12", "An Int with a float", node(2, attributes=[{**given, "type": 1}]))
    yield table("attribute-float-int", "F12", "A Float with an integer", node(2, attributes=[{**given, "type": 2}]))
    yield table("attribute-no-strings", "F12", "An empty list of strings", node(2, attributes=[
        {"name": "a", "type": 6, "strings": []}]))  # fmt: skip
    digest = hashlib.sha256(b"").digest()
    more = {"offset": (len(base.data) - base.data_offset + 63) // 64 * 64, "size": 0, "sha256": digest}
    padded = base.data[base.data_offset :] + bytes(-(len(base.data) - base.data_offset) % 64)
    record = base.record()
    record["buffers"].append(more)
    yield Refused("unused-buffer", "F13", "A buffer that belongs to nothing", written(record, padded))
    same = base.data[base.data_offset + base.offset("b") :][:12]
    yield Refused("equal-buffers", "F13", "Two buffers with the same bytes", base.with_data(base.offset("w"), same))
    large = {"block": [1], "bytes": struct.pack("<1025f", *[0.25] * 1025), "shape": [1025]}
    yield table("large-inline", "F13", "4100 bytes of scales in the metadata", numbers("r", "scale", **large))
    small = {"dtype": FLOAT16, "shape": [3, 2], "buffer": 0}
    yield table("small-buffer", "F13", "12 bytes of offsets in a buffer", numbers("g", "offset", new=True, **small))


def with_hole(base: Base, at: int, size: int) -> bytes:
    """That many zero bytes before the buffers from an offset on."""
    record, segment = base.record(), base.data[base.data_offset :]
    for each in record["buffers"]:
        each["offset"] += size * (each["offset"] >= at)
    return written(record, segment[:at] + bytes(size) + segment[at:])
