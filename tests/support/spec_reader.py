"""A reader of .qfb files written from spec.md, and docs/spec/writing.md for the content id: the standard library only.

It checks what a decoder of arrays must check (spec.md, "What a reader checks"), and F13.

network = spec_reader.Network(open("model.qfb", "rb").read())      # digests and structure checked; or (…, shards)
network.tensors["conv1.weight"].values()                            # integers or floats, a flat list
"""

from __future__ import annotations

import hashlib
import math
import struct
from itertools import accumulate, pairwise
from typing import Any

# Element types: code → name, bits, struct letter (none for the float types that `struct` does not know).
DTYPES = {
    1: ("bool", 8, "?"), 2: ("int8", 8, "b"), 3: ("uint8", 8, "B"), 4: ("int16", 16, "h"), 5: ("uint16", 16, "H"),
    6: ("int32", 32, "i"), 7: ("uint32", 32, "I"), 8: ("int64", 64, "q"), 9: ("uint64", 64, "Q"),
    10: ("float16", 16, "e"), 11: ("bfloat16", 16, ""), 12: ("float32", 32, "f"), 13: ("float64", 64, "d"),
    14: ("int4", 4, ""), 15: ("uint4", 4, ""), 16: ("int2", 2, ""), 17: ("uint2", 2, ""),
    18: ("float8_e4m3fn", 8, ""), 19: ("float8_e5m2", 8, ""),
    20: ("float8_e4m3fnuz", 8, ""), 21: ("float8_e5m2fnuz", 8, ""), 22: ("float8_e8m0fnu", 8, ""),
    23: ("float4_e2m1fn", 4, ""),
}  # fmt: skip

# Tables: the fields in the order of their numbers. "?" marks a number that may be absent, "!" a required field,
# "=1" a default; [..] a vector, "b" one of bytes, "s" a string, "D" a digest; letters are those of `struct`.
TABLES = {
    "Buffer": "offset:Q size:Q sha256:D!",
    "Observed": "observer:s! minimum:[d]! maximum:[d]! quant_min:q? quant_max:q? qscheme:s",
    "Numbers": "dtype:B shape:[q] bytes:b buffer:I?",
    "SecondLevel": "block:[q] scale:Numbers! zero_point:Numbers offset:Numbers table:Numbers",
    "Array": "dtype:B shape:[q] bytes:b buffer:I? quantization:SecondLevel",
    "Quantization": "block:[q] scale:Array! zero_point:Numbers offset:Array table:Numbers group_index:Numbers "
    "quant_min:q? quant_max:q? observed:Observed scale_name:s zero_point_name:s",
    "Tensor": "name:s! dtype:B shape:[q] dims:[s] buffer:I? quantization:Quantization aliases:[s]",
    "Attribute": "name:s! type:B int_value:q float_value:d string_value:s ints:[q] floats:[d] strings:[s]",
    "Node": "operator:s! version:I=1 inputs:[i]! outputs:[i]! attributes:[Attribute] rule:s name:s scope:s "
    "source_operator:s proof:Proof",
    "Proof": "low:[i]! high:[i]! compared:s differs:[q] largest:I",
    "Graph": "tensors:[Tensor]! nodes:[Node]! inputs:[i]! outputs:[i]! name:s",
    "KeyValue": "key:s! value:s!",
    "Model": "minor_version:I required_features:[s] graph:Graph! buffers:[Buffer]! producer:s engine:s "
    "source:[KeyValue] metadata:[KeyValue] vectors:[TestVector] shards:[Shard]",
    "Shard": "name:s! size:Q sha256:D!",
    "TestValue": "shape:[q]! buffer:I?",
    "TestVector": "name:s inputs:[TestValue]! outputs:[TestValue]! digests:b",
}

# Rule V20: the arrays of a quantization; the types of scales and offsets, of their codes, of zero points, of tables.
PARTS = ("scale", "zero_point", "offset", "table", "group_index")
FLOATS = ("float16", "bfloat16", "float32", "float64")
PLAIN = {"scale": (*FLOATS, "float8_e8m0fnu", "float8_e4m3fn"), "offset": FLOATS}
CODES, POINTS = ("int8", "uint8", "float8_e4m3fn"), ("uint8", "int8", "uint16", "int16", "int32")
SMALL = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
MEANINGS = (*FLOATS, *SMALL, "int16", "uint16")

SCALARS = {"B": 1, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8}

Record = dict[str, Any]


VALUES = ("int_value", "float_value", "string_value", "ints", "floats", "strings")  # of an attribute, by its type


class Broken(ValueError):
    """The file breaks the rule with which the message begins."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Broken(what)


class Array:
    """A tensor, a value of a test vector, or an array of a quantization, which has a name and a level."""

    def __init__(self, record: Record, buffers: list[tuple[bytes, str]], name: str = "", level: int = 0) -> None:
        check((code := record["dtype"]) in DTYPES, f"V2: element type {code} is unknown")
        check((index := record["buffer"]) is None or index < len(buffers), f"F7: there is no buffer {index}")
        self.dtype, self.bits, self.letter = DTYPES[code]
        self.data, self.digest = (record.get("bytes"), "") if index is None else buffers[index]
        self.name, self.level, self.quantization = name or record.get("name"), level, record.get("quantization")
        self.shape = shape_of(record["shape"] or [] if level else record["shape"], record.get("dims"), level)
        if level:
            check((record["bytes"] is None) != (index is None), f"F12: {name} has no bytes, or a buffer, too")
            check((index is None) == (len(self.data) <= 4096), f"F13: {name} is a buffer, or none, wrongly")
        if self.data is not None:
            check(self.shape is not None and all(isinstance(size, int) for size in self.shape), "V3: size not fixed")
            self.count = math.prod(self.shape)
            rule, needed = "V20" if level else "V10", -(-self.count * self.bits // 8)
            check(len(self.data) == needed, f"{rule}: wrong number of bytes")
            self.digest = self.digest or hashlib.sha256(self.data).hexdigest()
        self.numbers: list[Array] = []
        if (q := self.quantization) is not None:
            check(level > 0 or None not in (q["quant_min"], q["quant_max"]), "F12: no quant_min or quant_max")
            self.numbers = [Array(q[key], buffers, key, level + 1) for key in PARTS if q.get(key) is not None]
            self.check_numbers(q["block"] or [], {each.name: each for each in self.numbers})

    def check_numbers(self, block: list[int], own: dict[str, Array]) -> None:
        """The types and shapes of the arrays of the quantization (V20), and as many scales as blocks (V21)."""
        scale, zero_point, offset, table, group_index = map(own.get, PARTS)
        for each in filter(None, (scale, offset)):
            check(each.dtype in (CODES if each.quantization else PLAIN[each.name]), f"V20: the type of an {each.name}")
        for each in filter(None, (zero_point, offset)):
            check(each.shape in ([], scale.shape), f"V20: not one {each.name} for each scale")
        if zero_point is not None:
            plain = "" if scale.quantization or self.data is None else scale.dtype
            is_none = (zero_point.dtype, zero_point.shape, zero_point.data) == ("uint8", [], bytes(1))
            fits = zero_point.dtype in (*POINTS, plain) and "int" in self.dtype
            check(is_none or fits, "V20: the type of zero points")
        if table is not None:
            check(self.dtype in SMALL and table.shape == [1 << self.bits], "V20: not a value for each code")
            check(table.dtype in MEANINGS, "V20: the type of a table")
        sizes = [None] * len(block) if self.shape is None else self.shape
        check(all(each >= 0 for each in block) and block[-1:] != [0], "V21: blocks that are negative, or end with 0")
        check(len(scale.shape) == len(block) and len(block) <= len(sizes), "V21: blocks of other dimensions")
        if group_index is not None:
            check(sum(each > 1 for each in block) == 1, "V21: a group index without groups")
            check(group_index.dtype in ("uint8", "uint16", "int32"), "V21: the type of a group index")
        for size, each, count in zip(sizes, block, scale.shape, strict=False):
            check(
                each <= 1 or (isinstance(size, int) and each < size), "V21: a block is not smaller than the dimension"
            )
            if each > 1 and group_index is not None:
                check(group_index.shape == [size], "V21: not an index for each position")
            elif isinstance(size, int) or not each:
                check(count == (-(-size // each) if each else 1), "V21: not a scale for each block")

    def values(self) -> list[Any]:
        """The stored values; bit patterns for float types that `struct` does not support."""
        if self.bits >= 8:
            return list(struct.unpack(f"<{self.count}{self.letter or {8: 'B', 16: 'H'}[self.bits]}", self.data))
        mask, sign = (1 << self.bits) - 1, 0 if self.dtype.startswith(("u", "f")) else 1 << self.bits - 1
        codes = [byte >> shift & mask for byte in self.data for shift in range(0, 8, self.bits)]
        return [(code ^ sign) - sign for code in codes[: self.count]]

    def arrays(self) -> list[Array]:
        """It, and all that belong to its quantization."""
        return [self, *(below for each in self.numbers for below in each.arrays())]

    def content_lines(self, prefix: str = "") -> list[str]:  # of its quantization
        if (q := self.quantization) is None:
            return []
        limits = ("level",) if self.level else ("quantization", q["quant_min"], q["quant_max"])
        lines = [words(*limits, *(q["block"] or ()))]
        for each in self.numbers:
            if (each.name, each.dtype, each.shape, each.data) != ("zero_point", "uint8", [], bytes(1)):
                lines.append(words(prefix + each.name, each.dtype, *each.shape, each.digest))
                lines += each.content_lines(f"{each.name}.")
        return lines


def shape_of(sizes: list[int] | None, dims: list[str] | None, level: int) -> list[int | str | None] | None:
    check(not dims or len(dims) == len(sizes or ()), "F12: not a name for each size")
    if sizes is None:
        return None
    check(len(sizes) <= 32 and min(sizes, default=0) >= -1, f"V{21 if level else 3}: not up to 32 sizes")
    check(math.prod(size for size in sizes if size > 0) < 1 << 60, "V3: the sizes are too large together")
    names = dims or [""] * len(sizes)
    check(all(size == -1 or not name for size, name in zip(sizes, names, strict=True)), "F12: a number with a name")
    return [size if size >= 0 else name or None for size, name in zip(sizes, names, strict=True)]


class Metadata:
    """Decodes tables: "FlatBuffers in one page"."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data, self.start, self.budget = data, start, 64 * len(data)

    def get(self, letter: str, at: int) -> Any:
        size = struct.calcsize("<" + letter)
        check(self.start <= at <= len(self.data) - size, f"F6: position {at} is outside the FlatBuffer")
        self.budget -= size
        check(self.budget > 0, "F6: the metadata refer to themselves too often")
        return struct.unpack_from("<" + letter, self.data, at)[0]

    def follow(self, at: int, distance: int) -> int:
        check(distance > 0 and (at + distance) % 4 == 0, "F6: an offset of 0, or to a place that is not aligned")
        return at + distance

    def table(self, name: str, at: int) -> Record:
        vtable = at - self.get("i", at)
        length, size = self.get("H", vtable), self.get("H", vtable + 2)
        check(vtable % 2 == 0 and length % 2 == 0, "F6: a vtable at an odd position, or of an odd size")
        check(max(vtable + length, at + size) <= len(self.data), "F6: a table or its vtable ends outside")
        record: Record = {}
        for number, text in enumerate(TABLES[name].split()):
            key, kind = text.split(":")
            slot = 4 + 2 * number
            distance = self.get("H", vtable + slot) if slot < length else 0
            check(distance > 0 or not kind.endswith("!"), f"F6: {name}.{key} is missing")
            kind, _, default = kind.rstrip("!?").partition("=")
            width = 32 if kind == "D" else SCALARS.get(kind, 4)
            check(not distance or 4 <= distance <= size - width, f"F6: {name}.{key} is not in its table")
            check(not distance or kind == "D" or (at + distance) % width == 0, f"F6: {name}.{key} is not aligned")
            absent = int(default or 0) if kind in SCALARS and not text.endswith("?") else None
            record[key] = self.value(kind, at + distance) if distance else absent
        return record

    def value(self, kind: str, at: int) -> Any:
        if kind == "D":
            return self.data[at : at + 32].hex()
        if kind in SCALARS:
            return self.get(kind, at)
        at = self.follow(at, self.get("I", at))
        if kind in TABLES:
            return self.table(kind, at)
        of, count = kind.strip("[]"), self.get("I", at)
        size, plain = SCALARS.get(of, 4), self.data[at + 4 : at + 4 + count]
        if kind == "s":
            check(self.data[at + 4 + count :][:1] == b"\0", "F6: a string does not end with a zero byte")
            check(plain.decode(errors="ignore").encode() == plain, "F6: a string is not UTF-8")
            return plain.decode()
        if kind == "b":
            check(len(plain) == count, "F6: a vector ends outside")
            return plain
        check(count == 0 or (at + 4) % size == 0, "F6: the elements of a vector are not aligned")
        return [self.value(of, place) for place in range(at + 4, at + 4 + count * size, size)]


class Network:
    """A file, read and checked. `shards` has the bytes of its shards by their names."""

    def __init__(self, file: bytes, shards: dict[str, bytes] | None = None) -> None:
        check(file[4:8] == b"QFB1", "F1: not a .qfb file of version 1")
        check(len(file) >= 128, "F3: the file ends in the header")
        check(file[8:12] == b"qh01", "F1: the tag of the header")
        header_size, meta_size, data_offset, data_size, file_size = struct.unpack_from("<IQQQQ", file, 12)
        check(not any(file[48:52]), f"F10: requires flags {file[48:52].hex()}")
        check(not any(file[56:64] + file[96:128]), "F2: reserved bytes are not zero")
        check(128 <= header_size <= meta_size < 1 << 31 and header_size % 8 == 0, "F3: impossible sizes")
        check(data_offset == -(-meta_size // 4096) * 4096, "F3: the data begin elsewhere")
        check(file_size == data_offset + data_size and file_size == len(file), "F3: truncated, or too long")
        meta = file[:meta_size]
        self.digest = hashlib.sha256(meta[:64] + bytes(32) + meta[96:]).digest()
        check(self.digest == meta[64:96], "F4: the metadata are damaged")
        check(not any(file[meta_size:data_offset]), "F5: the padding is not zero")
        decoder = Metadata(meta, header_size)
        self.model = decoder.table("Model", decoder.follow(0, struct.unpack_from("<I", meta)[0]))
        features = set(self.model["required_features"] or ())
        check(features <= {"shards"}, f"F10: needs {self.model['required_features']}")
        check(bool(features) == bool(self.model["shards"]), "F14: shards without the feature, or the feature alone")
        buffers = self.buffers(self.joined(shards or {}, data_size) if features else file[data_offset:])
        self.graph = self.model["graph"]
        self.order = [Array(record, buffers) for record in self.graph["tensors"]]
        self.tensors = {tensor.name: tensor for tensor in self.order}
        for holder in (self.graph, *self.graph["nodes"]):
            indices = (
                *holder["outputs"],
                *(index for index in holder["inputs"] if holder is self.graph or index != -1),
            )
            check(all(0 <= index < len(self.order) for index in indices), "F7: a tensor that is not there")
        self.vectors = [self.vector(record, buffers) for record in self.model["vectors"] or ()]
        is_archive = not any(self.graph[each] for each in ("nodes", "inputs", "outputs"))
        check(not (is_archive and self.vectors), "V50: test vectors of an archive")
        self.check_orders()
        self.check_uses(buffers)

    def joined(self, files: dict[str, bytes], data_size: int) -> bytes:
        """The data segment of a file with shards."""
        shards, end = self.model["shards"], 0
        check(data_size == 0, "F14: both shards and data")
        names = [shard["name"].encode() for shard in shards]
        check(all(one < next for one, next in pairwise(names)), "F14: names that are not sorted")
        for shard in shards:
            name, size = shard["name"], shard["size"]
            check(name.endswith(".qfs") and len(name.encode()) <= 255, f"F14: {name!r} is no name of a shard")
            check(not any(c < " " or c in "\x7f/\\:" for c in name), f"F14: {name!r} is no name in the folder")
            check(end % 64 == 0 and size > 0, "F14: the size of a shard")
            end += size
        check(end < 1 << 63, "F14: more in shards than any file has")
        for buffer in self.model["buffers"]:
            first, last = buffer["offset"], buffer["offset"] + buffer["size"]
            cuts = accumulate(shard["size"] for shard in shards)
            check(not any(first < cut < last for cut in cuts), "F14: a buffer in two shards")
        for shard in shards:
            data = files.get(shard["name"])
            check(
                data is not None and len(data) == shard["size"],
                f"F15: {shard['name']} is not there, or of another size",
            )
            check(hashlib.sha256(data).hexdigest() == shard["sha256"], f"F15: {shard['name']} is damaged")
        return b"".join(files[shard["name"]] for shard in shards)

    def buffers(self, segment: bytes) -> list[tuple[bytes, str]]:
        found, end = [], 0
        for buffer in self.model["buffers"]:
            start = -(-end // 64) * 64
            check(buffer["offset"] == start and not any(segment[end:start]), "F8: not right after the last buffer")
            end = start + buffer["size"]
            check(hashlib.sha256(segment[start:end]).hexdigest() == buffer["sha256"], "F9: a buffer is damaged")
            found.append((segment[start:end], buffer["sha256"]))
        check(end == len(segment), "F8: the buffers do not end where the file ends")
        return found

    def check_orders(self) -> None:
        maps = [[pair["key"] for pair in self.model[field] or ()] for field in ("source", "metadata")]
        maps += [[each["name"] for each in node["attributes"] or ()] for node in self.graph["nodes"]]
        for names in (*maps, [tensor.name for tensor in self.order]):
            keys = [name.encode() for name in names]
            check(all(one < next for one, next in pairwise(keys)), "F11: names that are not sorted")
        for attribute in (each for node in self.graph["nodes"] for each in node["attributes"] or ()):
            code = attribute["type"]
            check(1 <= code <= 6 and attribute[VALUES[code - 1]] is not None, "F12: an attribute lacks type or value")
            others = [attribute[each] for each in VALUES if each != VALUES[code - 1]]
            check(all(each in (None, 0) for each in others), "F12: values of two types")
            check(code < 5 or len(attribute[VALUES[code - 1]]) > 0, "F12: an empty list has the type Ints")

    def check_uses(self, buffers: list[tuple[bytes, str]]) -> None:
        arrays = [array for tensor in self.order for array in tensor.arrays()]
        arrays += [value for _, inputs, outputs, _ in self.vectors for value in (*inputs, *outputs)]
        digests = [digest for _, digest in buffers]
        used, distinct = {array.digest for array in arrays}, {*digests}
        check(used >= distinct and len(distinct) == len(digests), "F13: a buffer of nothing, or two of the same bytes")

    def vector(self, record: Record, buffers: list[tuple[bytes, str]]) -> tuple[str, list[Array], list[Array], bytes]:
        """Name, inputs, outputs and digests of a test vector."""

        def value(index: int, record: Record) -> Array:
            check(record["buffer"] is not None, "F12: a value without a buffer")
            return Array({**record, "dtype": self.graph["tensors"][index]["dtype"]}, buffers)

        for end in ("inputs", "outputs"):
            check(len(self.graph[end]) == len(record[end]), f"V50: not a value for each of the {end}")
        inputs, outputs = (list(map(value, self.graph[end], record[end])) for end in ("inputs", "outputs"))
        return record["name"] or "", inputs, outputs, bytes(record["digests"] or b"")

    def names(self, indices: list[int]) -> list[str]:
        return ["" if index < 0 else self.order[index].name for index in indices]

    def content_lines(self) -> list[str]:
        lines = ["qfb content 1", *(words(end, *self.names(self.graph[end])) for end in ("inputs", "outputs"))]
        for tensor in self.order:
            sizes = tensor.shape or []
            shape = ["?" if size is None else f"={size}" if isinstance(size, str) else size for size in sizes]
            shape = ["*"] if tensor.shape is None else shape
            lines.append(words("tensor", tensor.name, tensor.dtype, len(shape), *shape))
            lines += tensor.content_lines()
            if tensor.data is not None:
                lines.append(words("data", tensor.digest))
        for node in self.graph["nodes"]:
            lines.append(words("node", node["operator"], node["version"], node["rule"] or ""))
            lines += [words("in", *self.names(node["inputs"])), words("out", *self.names(node["outputs"]))]
            lines += [words("attribute", *attribute_words(item)) for item in node["attributes"] or ()]
        stated = {pair["key"]: pair["value"] for pair in self.model["source"] or ()}
        lines += [words(key, stated[key]) for key in ("dynamic_inputs", "quantized_inputs") if key in stated]
        return lines

    def content_id(self) -> str:
        return hashlib.sha256("".join(line + "\n" for line in self.content_lines()).encode()).hexdigest()


def attribute_words(attribute: Record) -> list[Any]:
    value = attribute[VALUES[(code := attribute["type"]) - 1]]
    kind, values = ("l", value) if code > 3 else ("s", [value])
    kind = kind + "ifs"[(code - 1) % 3] if values else "li"
    return [attribute["name"], kind, *(real(item) if kind[1] == "f" else item for item in values)]


def real(value: float) -> str:
    return struct.pack(">d", value).hex()


def words(*items: Any) -> str:
    return " ".join(f"{len(str(item).encode())}:{item}" for item in items)
