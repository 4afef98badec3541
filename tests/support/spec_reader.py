"""A reader of .qfb files, written only from spec.md, with the standard library and without qfmt.

network = spec_reader.Network(open("model.qfb", "rb").read())      # digests and structure checked
network.tensors["conv1.weight"].values()                            # integers or floats, a flat list
"""

from __future__ import annotations

import hashlib
import math
import struct
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
    "source_operator:s",
    "Graph": "tensors:[Tensor]! nodes:[Node]! inputs:[i]! outputs:[i]! name:s",
    "KeyValue": "key:s! value:s!",
    "Model": "minor_version:I required_features:[s] graph:Graph! buffers:[Buffer]! producer:s engine:s "
    "source:[KeyValue] metadata:[KeyValue] vectors:[TestVector]",
    "TestValue": "shape:[q]! buffer:I?",
    "TestVector": "name:s inputs:[TestValue]! outputs:[TestValue]!",
}

SCALARS = {"B": 1, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8}


class Broken(ValueError):
    """The file breaks the specification (as any ValueError means)."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Broken(what)


class Array:
    """A tensor, a value of a test vector, or an array of a quantization, which has a name and a level."""

    def __init__(
        self, record: dict[str, Any], buffers: list[tuple[bytes, str]], name: str = "", level: int = 0
    ) -> None:
        check((code := record["dtype"]) in DTYPES, f"element type {code} is unknown")
        check((index := record["buffer"]) is None or index < len(buffers), f"there is no buffer {index}")
        self.dtype, self.bits, self.letter = DTYPES[code]
        self.data, self.digest = (record.get("bytes"), "") if index is None else buffers[index]
        self.name, self.level, self.quantization = name or record.get("name"), level, record.get("quantization")
        sizes, names = record["shape"], record.get("dims") or [""] * len(record["shape"] or ())
        self.shape: list[int | str | None] | None = [] if sizes is None and level else sizes
        if sizes is not None:
            self.shape = [size if size >= 0 else name or None for size, name in zip(sizes, names, strict=True)]
        if self.data is not None:
            check(self.shape is not None and all(isinstance(size, int) for size in self.shape), "size not fixed")
            self.count = math.prod(self.shape)
            check(len(self.data) == -(-self.count * self.bits // 8), "wrong number of bytes")
            self.digest = self.digest or hashlib.sha256(self.data).hexdigest()
        self.numbers: list[Array] = []
        for key in ("scale", "zero_point", "offset", "table", "group_index") if self.quantization is not None else ():
            if (each := self.quantization.get(key)) is not None:
                check((each["bytes"] is None) != (each["buffer"] is None), "bytes or a buffer")
                self.numbers.append(Array(each, buffers, key, level + 1))

    def values(self) -> list[Any]:
        """The stored values; bit patterns for float types that `struct` does not support."""
        if self.bits >= 8:
            return list(struct.unpack(f"<{self.count}{self.letter or {8: 'B', 16: 'H'}[self.bits]}", self.data))
        mask, sign = (1 << self.bits) - 1, 0 if self.dtype.startswith(("u", "f")) else 1 << self.bits - 1
        codes = [byte >> shift & mask for byte in self.data for shift in range(0, 8, self.bits)]
        return [(code ^ sign) - sign for code in codes[: self.count]]

    def content_lines(self) -> list[str]:
        """The lines of its quantization."""
        if (q := self.quantization) is None:
            return []
        limits = ("level",) if self.level else ("quantization", q["quant_min"], q["quant_max"])
        lines = [words(*limits, *(q["block"] or ()))]
        for each in self.numbers:
            lines += [words(each.name, each.dtype, *each.shape, each.digest), *each.content_lines()]
        return lines


class Metadata:
    """Decodes tables: "FlatBuffers in one page"."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data, self.start, self.budget = data, start, 64 * len(data)

    def get(self, letter: str, at: int) -> Any:
        size = struct.calcsize("<" + letter)
        check(self.start <= at <= len(self.data) - size or at == 0, f"position {at} is outside the metadata")
        self.budget -= size
        check(self.budget > 0, "the metadata refer to themselves too often")
        return struct.unpack_from("<" + letter, self.data, at)[0]

    def follow(self, at: int) -> int:
        return at + self.get("I", at)

    def table(self, name: str, at: int) -> dict[str, Any]:
        vtable = at - self.get("i", at)
        record: dict[str, Any] = {}
        for number, text in enumerate(TABLES[name].split()):
            key, kind = text.split(":")
            slot = 4 + 2 * number
            distance = self.get("H", vtable + slot) if slot < self.get("H", vtable) else 0
            kind, _, default = kind.partition("=")
            check(distance > 0 or not kind.endswith("!"), f"{name}.{key} is missing")
            absent = int(default or 0) if kind in SCALARS else None
            record[key] = self.value(kind.rstrip("!?"), at + distance) if distance else absent
        return record

    def value(self, kind: str, at: int) -> Any:
        if kind == "D":
            return self.data[at : at + 32].hex()
        if kind in SCALARS:
            return self.get(kind, at)
        at = self.follow(at)
        if kind == "b":
            return self.data[at + 4 : at + 4 + self.get("I", at)]
        if kind == "s":
            end = at + 4 + self.get("I", at)
            check(end < len(self.data) and self.data[end] == 0, "a string does not end")
            return self.data[at + 4 : end].decode()
        if kind in TABLES:
            return self.table(kind, at)
        of = kind[1:-1]
        size, count = SCALARS.get(of, 4), self.get("I", at)
        check(at + 4 + count * size <= len(self.data), "a vector does not end")
        return [self.value(of, place) for place in range(at + 4, at + 4 + count * size, size)]


class Network:
    """A file, read and checked."""

    def __init__(self, file: bytes) -> None:
        check(len(file) >= 128 and file[4:8] == b"QFB1" and file[8:12] == b"qh01", "not a .qfb file of version 1")
        header_size, meta_size, data_offset, data_size, file_size = struct.unpack_from("<IQQQQ", file, 12)
        check(not any(file[48:52]), f"requires flags {file[48:52].hex()}")
        check(not any(file[56:64] + file[96:128]), "reserved bytes are not zero")
        check(128 <= header_size <= meta_size < 1 << 31 and header_size % 8 == 0, "impossible sizes")
        check(data_offset == -(-meta_size // 4096) * 4096, "the data begin elsewhere")
        check(file_size == data_offset + data_size == len(file), "truncated, or too long")
        meta = file[:meta_size]
        self.digest = hashlib.sha256(meta[:64] + bytes(32) + meta[96:]).digest()
        check(self.digest == meta[64:96], "the metadata are damaged")
        check(not any(file[meta_size:data_offset]), "the padding is not zero")
        decoder = Metadata(meta, header_size)
        self.model = decoder.table("Model", decoder.follow(0))
        check(not self.model["required_features"], f"needs {self.model['required_features']}")
        buffers = self.buffers(file[data_offset:])
        self.graph = self.model["graph"]
        self.order = [Array(record, buffers) for record in self.graph["tensors"]]
        self.tensors = {tensor.name: tensor for tensor in self.order}
        self.vectors = [self.vector(record, buffers) for record in self.model["vectors"] or ()]

    def vector(self, record: dict[str, Any], buffers: list[tuple[bytes, str]]) -> tuple[str, list[Array], list[Array]]:
        """Name, inputs and outputs of a test vector."""

        def value(index: int, record: dict[str, Any]) -> Array:
            return Array({**record, "dtype": self.graph["tensors"][index]["dtype"]}, buffers)

        inputs, outputs = (
            [value(index, each) for index, each in zip(self.graph[end], record[end], strict=True)]
            for end in ("inputs", "outputs")
        )
        return record["name"] or "", inputs, outputs

    def buffers(self, segment: bytes) -> list[tuple[bytes, str]]:
        found, end = [], 0
        for buffer in self.model["buffers"]:
            start = -(-end // 64) * 64
            check(buffer["offset"] == start and not any(segment[end:start]), "a buffer lies elsewhere")
            end = start + buffer["size"]
            check(hashlib.sha256(segment[start:end]).hexdigest() == buffer["sha256"], "a buffer is damaged")
            found.append((segment[start:end], buffer["sha256"]))
        check(end == len(segment), "the buffers do not end where the file ends")
        return found

    def names(self, indices: list[int]) -> list[str]:
        check(all(-1 <= index < len(self.order) for index in indices), "there is no such tensor")
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
        return lines

    def content_id(self) -> str:
        return hashlib.sha256("".join(line + "\n" for line in self.content_lines()).encode()).hexdigest()


def attribute_words(attribute: dict[str, Any]) -> list[Any]:
    check(1 <= (code := attribute["type"]) <= 6, "an attribute of an unknown type")
    value = attribute[("int_value", "float_value", "string_value", "ints", "floats", "strings")[code - 1]]
    check(value is not None, "an attribute without a value")
    kind, values = ("l", value) if code > 3 else ("s", [value])
    kind = kind + "ifs"[(code - 1) % 3] if values else "li"
    return [attribute["name"], kind, *(real(item) if kind[1] == "f" else item for item in values)]


def real(value: float) -> str:
    return struct.pack(">d", value).hex()


def words(*items: Any) -> str:
    return " ".join(f"{len(str(item).encode())}:{item}" for item in items)
