"""Files that a reader must refuse: one that is sound, with one thing wrong in its bytes, its tables or its model."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from qfmt.file.schema import TABLES

from . import flatbuffers
from .altered import Base, Record, attribute, both, graph, grid, node, numbers, root, setting, tensor, value, written
from .containers import PRODUCER, patched

EVERY, VALIDATING, BOUNDED = "every reader", "readers that check validity", "readers that bound their work"

DECODING = ("V2", "V3", "V10", "V20", "V21", "V50")
"""The rules of validity on which decoding rests."""


class Refused(NamedTuple):
    """A file, the rule that it breaks, and what is wrong with it."""

    name: str
    rule: str
    about: str
    data: bytes
    is_large: bool = False
    is_whole: bool = False
    shards: tuple[tuple[str, bytes], ...] = ()
    """Files beside it that it refers to, by their names."""

    @property
    def by(self) -> str:
        """Who refuses it."""
        everyone = (self.rule.startswith("F") and self.rule != "F13") or self.rule in DECODING
        everyone = everyone and not self.is_whole
        return BOUNDED if self.is_large else EVERY if everyone else VALIDATING


def cases(base: Base, whole: Base, formulas: Base, sums: Base, values: Base, sharded: Base) -> Iterator[Refused]:
    """From the files of `sound`, `integers`, `formulas`, `sums` and `values`, and that of `sound` with shards."""
    yield from of_bytes(base)
    yield from of_tables(base)
    yield from of_shards(base, sharded)
    for name, rule, about, change in (*TENSORS, *GRIDS, *GRAPHS, *VECTORS):
        yield Refused(name, rule, about, base.changed(change))
    yield Refused("bool-2", "V11", "A bool is the byte 2", base.with_data(base.offset("flag"), b"\2"))
    yield Refused(
        "unused-bits", "V12", "Bits that no element uses are set", base.with_data(base.offset("g") + 7, b"\xff")
    )
    yield Refused(
        "weight-range", "V23", "A weight of -128, where -127 is the least", base.with_data(base.offset("w"), b"\x80")
    )

    yield Refused("value-bool", "V11", "A bool in a test vector is 2", values.with_data(0, b"\2"))
    yield Refused("value-bits", "V12", "Bits of a value that no element uses are set", values.with_data(64, b"\xff"))
    yield from of_required_fields(base, whole, sharded)

    for changes, each in ((INTEGERS, whole), (FORMULAS, formulas), (SUMS, sums)):
        for name, rule, about, change in changes:
            yield Refused(name, rule, about, each.changed(change))
    outside = base.with_data(base.value_offset("outputs"), b"\2")
    yield Refused("vector-range", "V23", "A value of 2 of a tensor whose quant_min is 3", outside)
    for name, parameter, new, about in (
        ("shift-63", "shift", b"\x3f", "A shift of 63"),
        ("multiplier-0", "multiplier", bytes(4), "A multiplier of 0"),
        ("multiplier-negative", "multiplier", b"\xff\xff\xff\xff", "A multiplier of -1"),
        ("add-limit", "add", struct.pack("<q", 1 << 62), "An add of 2^62"),
        ("row-beyond", "row", struct.pack("<i", 2), "A row that is not there"),
        ("row-before", "row", struct.pack("<i", -2), "A row of -2"),
        ("thresholds-order", "thresholds", struct.pack("<i", 1 << 20), "Thresholds that do not ascend"),
    ):
        yield Refused(name, "V64", about, whole.with_data(whole.offset(parameter), new))


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


def of_shards(base: Base, sharded: Base) -> Iterator[Refused]:
    """Where a system can store a shard of that name or size, it is there: only the rule tells that a file is wrong."""
    segment = base.data[base.data_offset :]
    first, last = sharded.record()["shards"]
    border = first["size"]

    def stating(rule: str, name: str, about: str, *shards: Record, there: dict[str, bytes] | None = None) -> Refused:
        data = sharded.changed(root(shards=list(shards)))
        return Refused(f"shard-{name}", rule, about, data, shards=tuple((there or {}).items()))

    def cut(name: str, about: str, *ends: int) -> Refused:
        parts = {f"shard-{name}.{end:04}.qfs": segment[begin:end] for begin, end in pairwise((0, *ends, len(segment)))}
        return stating("F14", name, about, *(_shard(*part) for part in parts.items()), there=parts)

    without = sharded.changed(root(required_features=None))
    yield Refused("shard-feature", "F14", "Shards without the feature", without)
    feature = root(required_features=["shards"])
    yield Refused("shard-none", "F14", "The feature without shards", base.changed(feature))
    other = sharded.changed(root(required_features=["Shards"]))
    yield Refused("shard-unknown", "F10", "Another feature, which no reader knows", other)
    both = base.changed(root(required_features=["shards"], shards=[first, last]))
    yield Refused("shard-data", "F14", "Shards, and data in the file", both)
    for name, about, given in (
        ("folder", "a name in a folder below", "a/shard-folder.qfs"),
        ("parent", "a name in the folder above", "../shard-parent.qfs"),
        ("suffix", "a name that does not end in .qfs", "shard-suffix.qfsx"),
        ("order", "a name that comes after the next one", "z.qfs"),
    ):
        there = {given: segment[:border]}
        yield stating("F14", name, f"A shard with {about}", {**first, "name": given}, last, there=there)
    for name, about, given in (
        ("backslash", "a name in a folder, as Windows writes it", "a\\" + first["name"]),
        ("drive", "a name on another drive", "C:" + first["name"]),
        ("control", "a line feed in its name", "\n" + first["name"]),
        ("delete", "the control character 7F in its name", "\x7f" + first["name"]),
        ("long", "a name of 256 bytes", "n" * 252 + ".qfs"),
        ("twice", "the name of the next one", last["name"]),
    ):
        yield stating("F14", name, f"A shard with {about}", {**first, "name": given}, last)
    empty = "shard-empty.qfs"
    yield stating("F14", "empty", "A shard of 0 bytes", _shard(empty, b""), first, last, there={empty: b""})
    yield cut("odd", "A size that is no multiple of 64", border - 1)
    yield cut("crossed", "A buffer that ends in the next shard", base.value_offset("inputs") + 64)
    filled = bytearray(segment)
    filled[base.record()["buffers"][0]["size"]] = 1
    parts = {"shard-hole.1.qfs": bytes(filled[:border]), "shard-hole.2.qfs": bytes(filled[border:])}
    hole = (_shard(*part) for part in parts.items())
    yield stating("F8", "hole", "A byte between two buffers of a shard is not zero", *hole, there=parts)
    wrapped = {**first, "size": (1 << 64) - 64}
    yield stating("F14", "wrapped", "Sizes of more than 2^63 in total", wrapped, last)
    moved = {**first, "size": border - 64}, {**last, "size": last["size"] + 64}
    yield stating("F15", "moved", "Sizes that are those of no file", *moved)
    yield stating("F15", "missing", "A shard that is not there", {**first, "name": "a.qfs"}, last)
    wrong = stating("F15", "digest", "The sha256 of another shard", {**first, "sha256": last["sha256"]}, last)
    yield wrong._replace(is_whole=True)


def _shard(name: str, data: bytes) -> Record:
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).digest()}


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


ALIKE = ("Model.graph", "Observed.observer", "Observed.minimum", "Graph.nodes", "Graph.outputs", "Node.inputs",
         "KeyValue.key", "TestVector.inputs", "Proof.low")  # fmt: skip
"""Required fields without a file here: `no-graph` is one, the others stand beside a field of the same kind."""


def of_required_fields(base: Base, whole: Base, sharded: Base) -> Iterator[Refused]:
    """One field is missing that FlatBuffers requires; `no-graph` is another."""
    level = {"scale": {"dtype": FLOAT32, "bytes": b"\0\0\0?"}}
    observed = {"observer": "MinMaxObserver", "minimum": [0.0], "maximum": [1.0]}
    codes = numbers("g", "scale", new=True, dtype=3, shape=[3, 2], bytes=b"123456", quantization=level)
    wide = grid("x", observed=observed)

    def unchanged(record: Record) -> None:
        pass

    def holder(record: Record, table: str) -> Record:
        """The first table of a kind, in depth-first order."""
        graph = record["graph"]
        found: Record = {
            "Model": record,
            "Graph": graph,
            "Buffer": record["buffers"][-1],
            "Tensor": graph["tensors"][-1],
            "Node": graph["nodes"][-1],
            "Attribute": (graph["nodes"][-1]["attributes"] or [{}])[0],
            "KeyValue": (record["metadata"] or [{}])[0],
            "TestVector": record["vectors"][0],
            "TestValue": record["vectors"][0]["outputs"][0],
            "Quantization": tensor(record, "x")["quantization"],
            "Observed": tensor(record, "x")["quantization"].get("observed") or {},
            "Proof": graph["nodes"][1].get("proof") or {},
            "Shard": (record["shards"] or [{}])[-1],
        }[table]
        return found

    def without(of: Base, table: str, field: str, before: Callable[[Record], object]) -> Refused:
        def change(record: Record) -> None:
            before(record)
            holder(record, table)[field] = None

        return Refused(f"no-{table}-{field}".lower(), "F6", f"A {table} without {field}", of.changed(change))

    bases = {"Proof": whole, "Shard": sharded}
    for table, fields in TABLES.items():
        for field in fields:
            if field.required and table != "SecondLevel" and f"{table}.{field.name}" not in ALIKE:
                yield without(bases.get(table, base), table, field.name, wide if table == "Observed" else unchanged)
    level["scale"] = None
    yield Refused("no-secondlevel-scale", "F6", "A SecondLevel without scale", base.changed(codes))


Change = tuple[str, str, str, Callable[[Record], object]]

TENSORS: tuple[Change, ...] = (
    ("no-name", "V1", "A tensor without a name", setting("b", name="")),
    ("dtype", "V2", "An element type that is not in the table", setting("y", dtype=99)),
    ("scale-unknown", "V2", "A type of scales that is not in the table", numbers("x", "scale", dtype=99)),
    ("size", "V3", "A size of -2", setting("x", shape=[-2, 4], dims=None)),
    ("sizes", "V3", "Sizes of 2^61 together", setting("y", shape=[1 << 31, 1 << 30], dims=None)),
    ("rank", "V3", "33 dimensions", setting("y", shape=[1] * 33, dims=None)),
    ("constant-no-shape", "V3", "A constant without a shape", setting("b", shape=None)),
    ("constant-open-size", "V3", "A constant of a size that is not fixed", setting("b", shape=[-1])),
    ("sizes-0", "V3", "Sizes of 2^61 together, beside a size of 0", setting("y", shape=[0, 1 << 61], dims=None)),
    ("alias-empty", "V4", "An empty alias", setting("w", aliases=[""])),
    ("alias-order", "V4", "Aliases that are not sorted", setting("w", aliases=["b", "a"])),
    ("zero-byte", "V5", "U+0000 in an alias", setting("w", aliases=["a\0"])),
    ("zero-byte-name", "V5", "U+0000 in the name of a tensor", setting("y", name="y\0")),
    ("zero-byte-size", "V5", "U+0000 in the name of a size", setting("x", dims=["N\0", ""])),
    ("zero-byte-scale", "V5", "U+0000 in the name of a scale", grid("x", scale_name="\0")),
    ("bytes", "V10", "More bytes than the shape needs", setting("b", shape=[2])),
)

FLOAT16, FLOAT32 = 10, 12


def _floats(*values: float) -> dict[str, Any]:
    return {"bytes": struct.pack(f"<{len(values)}f", *values), "shape": [len(values)] if len(values) > 1 else None}


def _groups(dtype: int, *index: int, of: str = "g") -> Callable[[Record], object]:
    """A group index of bytes."""
    return numbers(of, "group_index", new=True, dtype=dtype, bytes=bytes(index), shape=[len(index)])


def _levels(dtype: int, codes: bytes, **second: Any) -> Callable[[Record], object]:
    """Scales of the six blocks that are codes; one scale for them."""
    level = {"scale": {"dtype": FLOAT32, **_floats(0.5)}, **second}
    return numbers("g", "scale", new=True, dtype=dtype, shape=[3, 2], bytes=codes, quantization=level)


HALF: dict[str, Any] = {"scale": {"dtype": FLOAT32, **_floats(0.5)}, "quant_min": 0, "quant_max": 1}


def _observed(**fields: Any) -> dict[str, Any]:
    return {"observer": "MinMaxObserver", "minimum": [0.0], "maximum": [1.0]} | fields


def _twice(end: str) -> Callable[[Record], object]:
    """The first value of the test vector again."""
    return lambda record: record["vectors"][0][end].append(record["vectors"][0][end][0])


def _small_floats(**fields: Any) -> Callable[[Record], object]:
    """A tensor of float8_e4m3fn that is quantized."""
    whole = {"scale": {"dtype": FLOAT32, **_floats(0.5)}, "quant_min": -448, "quant_max": 448}
    return setting("b", dtype=18, shape=[12], quantization=whole | fields)


GRIDS: tuple[Change, ...] = (
    ("scale-dtype", "V20", "A scale of int32", numbers("x", "scale", dtype=6)),
    ("zero-points", "V20", "Two zero points for three scales", numbers("w", "zero_point", new=True, dtype=3,
        bytes=b"\0\1", shape=[2])),
    ("zero-point-type", "V20", "A zero point of float64 for a scale of float32", numbers("x", "zero_point", dtype=13,
        bytes=struct.pack("<d", 7.0))),
    ("zero-point-float", "V20", "A zero point of floats", _small_floats(zero_point={"dtype": 3, "bytes": b"\1"})),
    ("level-dtype", "V20", "Quantized scales of uint16", _levels(5, struct.pack("<6H", *range(6)))),
    ("level-bytes", "V20", "Quantized scales whose own scale has 3 bytes", _levels(3, b"123456", scale={
        "dtype": FLOAT32, "bytes": b"\0\0\0"})),
    ("offset-dtype", "V20", "An offset of int8", numbers("w", "offset", new=True, dtype=2, bytes=b"\1")),
    ("offsets", "V20", "Three offsets for six scales", numbers("g", "offset", new=True, dtype=FLOAT32,
        **_floats(1.0, 2.0, 3.0))),
    ("table-dimensions", "V20", "A table of two dimensions", numbers("g", "table", new=True, dtype=2, shape=[4, 4],
        bytes=bytes(16))),
    ("level-offset", "V20", "An offset of int8 of the second level", _levels(3, b"123456", offset={
        "dtype": 2, "bytes": b"\1"})),
    ("table-size", "V20", "A table of 15 values for 16 codes", numbers("g", "table", new=True, dtype=FLOAT32,
        **_floats(*range(15)))),
    ("table-dtype", "V20", "A table of int32", numbers("g", "table", new=True, dtype=6, shape=[16], bytes=bytes(64))),
    ("table-float", "V20", "A table for floats of 8 bits", _small_floats(table={"dtype": 2, "shape": [256],
        "bytes": bytes(256)})),
    ("number-bytes", "V20", "A scale of 3 bytes", numbers("x", "scale", bytes=b"\0\0\0")),
    ("axis", "V21", "Blocks of three dimensions in a tensor with two", numbers("w", "scale", block=[0, 0, 1],
        shape=[1, 1, 3])),
    ("scale-dimensions", "V21", "One number for the rows of an unknown size", grid("r", block=[1])),
    ("level-scales", "V21", "Two scales of the second level for three rows", _levels(3, b"123456", block=[1],
        scale={"dtype": FLOAT32, **_floats(0.5, 1.0)})),
    ("scales", "V21", "Two scales for three slices", numbers("w", "scale", **_floats(0.5, 1.0))),
    ("scales-whole", "V21", "Three scales along a dimension that is one block", numbers("w", "scale", block=[0, 1],
        shape=[3, 4], bytes=struct.pack("<12f", *[0.5] * 12))),
    ("block-negative", "V21", "A block of -1", numbers("r", "scale", block=[-1], shape=[1])),
    ("block-size", "V21", "A block of the size of its dimension", numbers("w", "scale", block=[0, 4], shape=[1, 1],
        bytes=struct.pack("<f", 0.5))),
    ("block-open-size", "V21", "Blocks along a size that is not fixed", numbers("r", "scale", block=[2], shape=[1])),
    ("block-no-rank", "V21", "A block of 2 of a tensor of unknown rank", both(
        setting("r", shape=None, dims=None), numbers("r", "scale", block=[2], shape=[1]))),
    ("block-end", "V21", "Blocks that end with 0", numbers("w", "scale", block=[1, 0], shape=[3, 1])),
    ("group-index", "V21", "A group index without groups", _groups(3, 0, 0, 0, of="w")),
    ("group-index-dtype", "V21", "A group index of int8", _groups(2, 0, 0, 1, 1, 0)),
    ("group-index-size", "V21", "A group index of 4 of 5 positions", _groups(3, 0, 0, 1, 1)),
    ("group-index-one", "V21", "A group index without a shape", numbers("g", "group_index", new=True, dtype=3,
        bytes=b"\1")),
    ("group-index-negative", "V22", "A group index of -1", numbers("g", "group_index", new=True, dtype=6, shape=[5],
        bytes=struct.pack("<5i", 0, 0, 1, 1, -1))),
    ("group-index-beyond", "V22", "A group index of 2, of 2 groups", _groups(3, 0, 0, 1, 1, 2)),
    ("scale-zero", "V22", "A scale of 0", numbers("x", "scale", **_floats(0.0))),
    ("scale-negative", "V22", "A scale of -1", numbers("x", "scale", **_floats(-1.0))),
    ("scale-channel", "V22", "A scale of -1 of a channel of a constant", numbers("w", "scale", bytes=struct.pack(
        "<3f", 0.5, -1.0, 2.0))),
    ("scale-block", "V22", "A scale of -1 of a block of an input", lambda record: (
        record["graph"]["tensors"].append({"name": "z", "dtype": 3, "shape": [60], "quantization": {
            "block": [30], "scale": {"dtype": FLOAT32, **_floats(1.0, -1.0)}, "quant_min": 0, "quant_max": 255}}),
        record["graph"].update(inputs=[5, 7]), record["vectors"][0]["inputs"].append(
            {"shape": [60], "buffer": record["vectors"][0]["outputs"][0]["buffer"]}))),
    ("scale-code-nan", "V22", "A scale of float8_e8m0fnu with the code 255", numbers("x", "scale", dtype=22,
        bytes=b"\xff")),
    ("scale-infinite", "V22", "An infinite scale", numbers("x", "scale", **_floats(float("inf")))),
    ("scale-nan", "V22", "A scale that is no number", numbers("x", "scale", **_floats(float("nan")))),
    ("scale-float32", "V22", "A scale of float64 that is 0 in float32", numbers("x", "scale", dtype=13,
        bytes=struct.pack("<d", 1e-60))),
    ("zero-point", "V22", "A zero point outside uint8", numbers("x", "zero_point", dtype=5, bytes=b"\0\1")),
    ("zero-point-dtype", "V22", "A zero point of int32 where uint8 holds it", numbers("x", "zero_point", dtype=6,
        bytes=b"\7\0\0\0")),
    ("zero-point-infinite", "V22", "An infinite zero point", numbers("x", "zero_point", dtype=FLOAT32,
        bytes=struct.pack("<f", float("inf")))),
    ("offset-nan", "V22", "An offset that is no number", numbers("g", "offset", new=True, dtype=FLOAT32,
        bytes=struct.pack("<f", float("nan")))),
    ("offsets-equal", "V22", "Six equal offsets", numbers("g", "offset", new=True, dtype=FLOAT32, shape=[3, 2],
        bytes=struct.pack("<6f", *[0.5] * 6))),
    ("table-infinite", "V22", "An infinite value of a table", numbers("g", "table", new=True, dtype=FLOAT32,
        **_floats(*range(15), float("inf")))),
    ("level-nan", "V22", "A code of a scale that is no number", _levels(18, b"\x7f12345")),
    ("level-zero-points-equal", "V22", "Equal zero points of the second level", _levels(3, b"123456", block=[1],
        scale={"dtype": FLOAT32, **_floats(0.5, 1.0, 2.0)}, zero_point={"dtype": 3, "shape": [3], "bytes": b"\1\1\1"})),
    ("block-scale-float32", "V22", "A scale of blocks that is infinite in float32", numbers("g", "scale", dtype=13,
        bytes=struct.pack("<6d", 1, 1, 1, 1, 1, 1e60))),
    ("zero-points-equal", "V22", "Three equal zero points", numbers("w", "zero_point", new=True, dtype=3,
        bytes=b"\1\1\1", shape=[3])),
    ("quant-range", "V23", "quant_min above quant_max", grid("x", quant_min=9, quant_max=8)),
    ("quant-limit-low", "V23", "quant_min below the type", grid("x", quant_min=-1)),
    ("quant-limit", "V23", "quant_max beyond the type", grid("x", quant_max=256)),
    ("quantized-float", "V23", "A quantized float32", setting("b", quantization={
        "scale": {"dtype": FLOAT32, "bytes": b"\0\0\x80?"}, "quant_min": 0, "quant_max": 1})),
    ("quantized-scale", "V23", "A quantized float8_e8m0fnu", setting("b", dtype=22, shape=[12], quantization=HALF)),
    ("quantized-bool", "V23", "A quantized bool", setting("flag", quantization=HALF)),
    ("observed", "V25", "A minimum above its maximum", grid("x", observed=_observed(minimum=[2.0]))),
    ("observed-nan", "V25", "A minimum that is no number", grid("x", observed=_observed(minimum=[float("nan")]))),
    ("observed-nan-maximum", "V25", "A maximum that is no number", grid("x", observed=_observed(
        maximum=[float("nan")]))),
    ("observed-name", "V25", "An observer without a name", grid("x", observed=_observed(observer=""))),
    ("observed-count", "V25", "Two minima and maxima for one scale", grid("x", observed=_observed(
        minimum=[0.0, 0.0], maximum=[1.0, 1.0]))),
    ("observed-maxima", "V25", "A minimum and two maxima", grid("x", observed=_observed(maximum=[1.0, 1.0]))),
    ("observed-range", "V25", "An observer's quant_min above its quant_max", grid("x", observed=_observed(
        quant_min=1, quant_max=0))),
    ("observed-one-end", "V25", "An observer with a quant_min alone", grid("x", observed=_observed(quant_min=1))),
)  # fmt: skip

GRAPHS: tuple[Change, ...] = (
    ("constant-input", "V30", "An input of the graph is a constant", both(graph(inputs=[5, 0]), lambda record: record[
        "vectors"][0]["inputs"].append({"shape": [3], "buffer": record["graph"]["tensors"][0]["buffer"]}))),
    ("input-twice", "V30", "A tensor is an input twice", both(graph(inputs=[5, 5]), _twice("inputs"))),
    ("no-input", "F7", "An input of the graph with the index -1", graph(inputs=[-1])),
    ("no-output", "F7", "A node with an output that is absent", node(2, outputs=[-1])),
    ("output-twice", "V32", "Two nodes give one tensor", node(2, outputs=[6])),
    ("output-input", "V32", "A node whose output is an input of the graph", node(2, outputs=[5])),
    ("output-constant", "V32", "A node whose output is a constant", node(2, outputs=[0])),
    ("cycle", "V33", "A node reads what is computed later", node(0, inputs=[3, 4, 0])),
    ("not-computed", "V35", "A tensor that nothing computes", lambda record: record["graph"]["tensors"].append(
        {**record["graph"]["tensors"][-1], "name": "z"})),
    ("empty-key", "V36", "An empty key", root(metadata=[{"key": "", "value": ""}])),
    ("zero-byte-producer", "V36", "U+0000 in the producer", root(producer="\0")),
    ("zero-byte-attribute", "V36", "U+0000 in the value of an attribute", node(2, attributes=[
        {"name": "a", "type": 3, "string_value": "\0"}])),
    ("zero-byte-node", "V36", "U+0000 in the name of a node", node(2, name="\0")),
    ("zero-byte-vector", "V36", "U+0000 in the name of a test vector", lambda record: record["vectors"][0].update(
        name="\0")),
    ("no-operator", "V40", "A node whose operator is the empty name", node(2, operator="")),
    ("version-0", "V40", "Version 0 of an operator", node(2, version=0)),
    ("version-first", "V40", "Version 13 of Relu, which begins with 14", node(1, version=13)),
    ("arity", "V41", "A layer without a weight", node(0, inputs=[5])),
    ("arity-more", "V41", "A Relu of two inputs", node(1, inputs=[6, 5])),
    ("arity-outputs", "V41", "A Relu with two outputs", lambda record: (
        record["graph"]["tensors"].append({**record["graph"]["tensors"][6], "name": "z"}),
        record["graph"]["nodes"][1].update(outputs=[3, 7]))),
    ("attribute", "V42", "An attribute that the operator does not have", node(1, attributes=[
        {"name": "slope", "type": 1, "int_value": 1}])),
    ("attribute-name", "V53", "An attribute without a name", node(2, attributes=[
        {"name": "", "type": 1, "int_value": 1}])),
    ("shape", "V43", "An output of another size than the operator gives", setting("y", shape=[-1, 2])),
    ("moved-grid", "V45", "An operator that moves integers, to another grid", numbers("r", "scale", **_floats(0.5))),
    ("rule", "V47", "A rounding rule that is not known", node(0, rule="nearest")),
    ("no-rule", "V47", "No rule of a layer with a quantized output", node(0, rule=None)),
    ("rule-without-rounding", "V56", "A rounding rule of a node that rounds nothing", node(1, rule="divide")),
    ("input-scales", "V57", "A layer whose input has a scale for each column", numbers("x", "scale", block=[0, 1],
        bytes=struct.pack("<4f", *[0.5] * 4), shape=[1, 4])),
    ("output-channels", "V57", "A layer whose output has a scale for each column", both(*(numbers(
        name, "scale", block=[0, 1], bytes=struct.pack("<3f", 0.25, 0.5, 1.0), shape=[1, 3]) for name in ("y", "r")))),
    ("weight-axis", "V52", "A weight with scales along its input channels", numbers("w", "scale", block=[0, 1],
        bytes=struct.pack("<4f", *[0.5] * 4), shape=[1, 4])),
)  # fmt: skip

FORMULAS: tuple[Change, ...] = (
    ("attribute-kind", "V42", "A float for an attribute that is an integer", attribute(
        0, "ceil_mode", type=2, int_value=0, float_value=1.0)),
    ("attribute-missing", "V42", "An attribute that is missing", lambda record: record["graph"]["nodes"][0][
        "attributes"].pop(0)),
    ("window-in-padding", "V43", "A window that lies in the padding alone", both(
        attribute(0, "pads", ints=[2, 0, 0, 0]), setting("pool", shape=[1, 1, 3, 2]))),
    ("stride-0", "V43", "A stride of 0", attribute(0, "strides", ints=[2, 0])),
    ("moved-real", "V45", "Quantized integers moved into a tensor that is not quantized", setting(
        "same", quantization=None)),
    ("moved-zero-point", "V45", "An operator that moves integers, to another zero point", numbers(
        "same", "zero_point", bytes=b"\6")),
    ("moved-scale-type", "V45", "An operator that moves integers, to an equal scale of float64", numbers(
        "same", "scale", dtype=13, bytes=struct.pack("<d", 0.5))),
    ("moved-dtype", "V44", "An operator that moves integers, to another type", setting("same", dtype=5)),
    ("real-dtype", "V44", "DequantizeLinear to float16", setting("real", dtype=10)),
    ("float-only", "V46", "A quantized output of Shape", setting("shape", dtype=6, quantization=HALF)),
    ("moved-blocks", "V54", "An operator that moves integers with blocks", both(*(both(
        numbers(name, "scale", block=[2, 2], shape=[2, 2], bytes=struct.pack("<4f", 1, 2, 3, 4)),
    ) for name in ("tiles", "moved")))),
    ("moved-range", "V55", "An operator that moves integers into a narrower range", grid("same", quant_max=254)),
    ("mean-grid", "V69", "A mean rule from one grid to another", numbers("pool", "scale", **_floats(0.25))),
    ("mean-zero-point", "V69", "A mean rule to another zero point", numbers("pool", "zero_point", bytes=b"\6")),
    ("sum-real", "V69", "The rule sum with an input that is not quantized", setting("one", quantization=None)),
    ("rule-real", "V56", "A quantize rule of a node with a real output", node(4, rule="divide")),
    ("sum-scales", "V69", "The rule sum with two scales", numbers("one", "scale", **_floats(0.25))),
    ("product-channels", "V69", "The rule product with a scale for each channel", numbers("product", "scale",
        block=[0, 0, 1], shape=[1, 1, 4], bytes=struct.pack("<4f", 1, 2, 3, 4))),
    ("proof-of-none", "V68", "A proof of an operator that does not requantize", node(1, proof={
        "low": [0], "high": [1]})),
    ("archive-vector", "V50", "An archive with a test vector", lambda record: (
        record["graph"].update(nodes=[], inputs=[], outputs=[], tensors=[
            each for each in record["graph"]["tensors"] if each["quantization"] or each["buffer"] is not None]),
        record.update(vectors=[{"inputs": [], "outputs": []}]))),
)  # fmt: skip

SUMS: tuple[Change, ...] = (
    ("exact-alpha", "V60", "By exact, an alpha of 2", attribute(3, "alpha", float_value=2.0)),
    ("exact-open-size", "V62", "By exact, windows of different sizes over sizes that are not known", setting(
        "a", shape=[1, 1, -1, -1])),
    ("weights-count", "V67", "A weight for two inputs", attribute(1, "weights", ints=[1])),
    ("weights-reach", "V67", "Sums that exceed int64", attribute(1, "weights", ints=[1 << 62, 1])),
    ("div-0", "V64", "A divisor of 0", attribute(2, "div", int_value=0)),
    ("table-input", "V49", "A table for integers of 16 bits", setting("small", dtype=4)),
)  # fmt: skip

INTEGERS: tuple[Change, ...] = (
    ("folded-point", "V48", "By folded, sums with a zero point", setting("sums", quantization={
        **HALF, "zero_point": {"dtype": 3, "bytes": b"\1"}})),
    ("parameter-count", "V63", "Two multipliers for one channel", attribute(1, "axis", int_value=0)),
    ("parameter-rank", "V63", "Multipliers in two dimensions", setting("multiplier", shape=[2, 1])),
    ("parameter-quantized", "V63", "A quantized multiplier", setting("multiplier", quantization={
        **HALF, "quant_max": 5})),
    ("axis-beyond", "V63", "Channels along a dimension that is not there", attribute(1, "axis", int_value=2)),
    ("axis-negative", "V63", "Channels along axis -1", attribute(1, "axis", int_value=-1)),
    ("thresholds-width", "V63", "Three thresholds for two steps", grid("y", quant_max=2)),
    ("thresholds-rows", "V63", "Two rows of thresholds for one channel", node(1, rule="thresholds",
        inputs=[4, -1, -1, -1, 6], attributes=[{"name": "axis", "type": 1, "int_value": 0}])),
    ("folded-zero-point", "V61", "By folded, a weight with a zero point", numbers("w", "zero_point", new=True, dtype=3,
        bytes=b"\1")),
    ("folded-int64", "V48", "By folded, sums of int64", setting("sums", dtype=8)),
    ("folded-scales", "V58", "By folded, an input with a scale for each column", numbers("x", "scale", block=[0, 1],
        bytes=struct.pack("<4f", *[0.5] * 4), shape=[1, 4])),
    ("folded-bias", "V59", "By folded, a bias of int64", node(0, inputs=[8, 7, 0])),
    ("multiplier-type", "V63", "Multipliers of uint8", node(1, inputs=[4, 3, 3, 0, 6, 2])),
    ("output-scales", "V66", "Sums on a grid with two scales", numbers("y", "scale", block=[0, 1],
        bytes=struct.pack("<2f", 0.25, 0.5), shape=[1, 2])),
    ("output-real", "V66", "An output that is not quantized", setting("y", quantization=None)),
    ("excess-add", "V65", "power_of_two with a multiplier and an add", node(1, rule="power_of_two")),
    ("proof-counts", "V68", "A proof with two low and one high", lambda record: record["graph"]["nodes"][1][
        "proof"].update(low=[-9, -9])),
    ("proof-differs", "V68", "A proof with -1 differences", lambda record: record["graph"]["nodes"][1][
        "proof"].update(differs=[-1])),
    ("no-shift", "V65", "multiply_shift without a shift", node(1, inputs=[4, 1, -1, 0, 6, 2])),
    ("row-thresholds", "V64", "A row of -1 by the rule thresholds", node(1, rule="thresholds",
        inputs=[4, -1, -1, -1, 6, 2])),
    ("thresholds-alone", "V65", "multiply_shift with thresholds, but no rows", node(1, inputs=[4, 1, 3, 0, 6, -1])),
    ("unknown-rule", "V47", "A rule that is not one of qfmt.Requantize", node(1, rule="float_bias")),
    ("proof", "V68", "A proof upside down", lambda record: record["graph"]["nodes"][1]["proof"].update(low=[10000])),
    ("table-shape", "V63", "A table of two dimensions, and no axis", setting("table", shape=[1, 4])),
    ("table-range", "V64", "A table with values beyond the range of its output", grid("z", quant_max=29)),
)  # fmt: skip

VECTORS: tuple[Change, ...] = (
    ("vector-count", "V50", "A test vector with two inputs", lambda record: record["vectors"][0]["inputs"].append(
        record["vectors"][0]["inputs"][0])),
    ("vector-outputs", "V50", "A test vector with two outputs", _twice("outputs")),
    ("vector-negative", "V3", "A value with a size of -1", value("outputs", shape=[-1, 3])),
    ("vector-33", "V3", "A value of 33 dimensions", value("outputs", shape=[1] * 31 + [20, 3])),
    ("vector-shape", "V51", "A value of another size than its tensor", value("inputs", shape=[40, 2])),
    ("vector-rank", "V51", "A value of one dimension of a tensor with two", value("inputs", shape=[80])),
    ("vector-name-size", "V51", "A size with a name that is two sizes", value("outputs", shape=[30, 2])),
    ("vector-digests", "V70", "A test vector with one digest too few", lambda record: record["vectors"][0].update(
        digests=bytes(16))),
    ("vector-bytes", "V10", "A value with fewer bytes than its shape needs", value("outputs", shape=[90, 3])),
)  # fmt: skip
