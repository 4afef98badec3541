"""Cases of level `read`: everything that a file can say, and what a later version may add."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any, cast

import ml_dtypes
import numpy as np

from qfmt.file import header, schema
from qfmt.file.decode import Decoder
from qfmt.file.encode import encode
from qfmt.model import (
    DTYPES,
    Graph,
    Model,
    Node,
    Observed,
    Parameter,
    Quantization,
    StoredArray,
    Tensor,
    Vector,
    numpy_dtype,
)
from qfmt.ops import OPERATORS
from qfmt.quantization import NO_ZERO_POINT, Bytes

from .networks import Case, numbers

PRODUCER = "qfmt conformance suite"


def of(
    *tensors: Tensor, nodes: tuple[Node, ...] = (), ends: tuple[tuple[str, ...], ...] = ((), ()), **more: Any
) -> Model:
    graph = Graph(ends[0], ends[1], nodes, {tensor.name: tensor for tensor in tensors}, more.pop("graph", ""))
    return Model(graph, PRODUCER, **more)


def constant(name: str, values: Any, dtype: str, grid: Quantization | None = None) -> Tensor:
    array = np.asarray(values)
    kept = array.astype(np.int64) if DTYPES[dtype].bits < 8 and DTYPES[dtype].is_integer else array
    return Tensor.constant(name, kept.astype(numpy_dtype(dtype)) if kept is array else kept, grid, dtype=dtype)


def cases() -> Iterator[Case]:
    yield from arrays()
    yield from quantizations()
    yield from sharded()
    yield from graphs()
    yield from vectors()
    yield from later()
    yield from loose()


def arrays() -> Iterator[Case]:
    every: dict[str, list[Tensor]] = {"integers": [], "floats": []}
    for dtype, kind in DTYPES.items():
        if kind.kind == "b":
            values: Any = [True, False, True, True, False]
        elif kind.kind == "f":
            bits = max(kind.bits, 8)
            top = min(kind.bits, 32)
            codes = numbers(kind.code, (7,), 0, (1 << top) - 1).astype(np.uint64) << np.uint64(kind.bits - top)
            values = codes.astype(f"u{bits // 8}").view(numpy_dtype(dtype))
        else:
            low, high = kind.minimum, kind.maximum
            values = np.array([low, high, 0, 1, high // 2, low // 2, high - 1], np.uint64 if low == 0 else np.int64)
        every["floats" if kind.kind == "f" else "integers"].append(constant(dtype, values, dtype))
    about = "Every type of integers, and bool: an odd number of elements, the least and the greatest"
    yield Case("types-integers", about, of(*every["integers"]))
    yield Case("types-floats", "Every type of floats: bits", of(*every["floats"]))
    kinds = [dtype for dtype, kind in DTYPES.items() if kind.kind == "f" and kind.bits >= 16]
    ends = [constant(dtype, [np.nan, np.inf, -np.inf, -0.0], dtype) for dtype in kinds]
    small = [constant(dtype, [np.nan, 1.0], dtype, Quantization.of((0.5,), (0,), -2, 2))
             for dtype in ("float8_e4m3fn", "float8_e5m2")]  # fmt: skip
    about = "NaN, infinity and -0, which constants may be, quantized floats too"
    yield Case("not-finite", about, of(*ends, *small))
    empty = (constant("a", np.zeros((0,)), "float32"), constant("b", np.zeros((3, 0, 2)), "int8"))
    yield Case("empty-arrays", "Arrays without elements share an empty buffer", of(*empty, constant("c", [7], "int4")))
    scalars = [constant(name, 7, name) for name in ("int8", "int64", "float32", "uint4")]
    yield Case("scalars", "Arrays without dimensions", of(*scalars, constant("matrix", [[7]], "int8")))
    same = numbers(3, (4, 4), 0, 127)
    shared = [constant("a", same, "int8"), constant("b", same.reshape(16), "uint8"), constant("c", same + 1, "int8")]
    yield Case("shared-buffers", "Equal bytes are one buffer, whatever their types and shapes", of(*shared))
    packed = [constant(f"{dtype}.{count}", numbers(count, (count,), 0, 1), dtype) for dtype in ("uint2", "int4")
              for count in (1, 2, 3, 4, 5, 8)]  # fmt: skip
    yield Case(
        "packed", "Types of 2 and 4 bits: the first element in the lowest bits, rows are not padded", of(*packed)
    )
    deep = constant("w", np.arange(4).reshape((1,) * 14 + (2, 2) + (1,) * 16), "int16")
    yield Case("rank-32", "32 dimensions", of(deep))


def quantizations() -> Iterator[Case]:
    """Each form in a tensor of its own; a file of per tensor and per channel, one of blocks, and one that is large."""
    parts: dict[str, list[Case]] = {"blocks": [], "scales": []}
    for each in forms_of_quantization():
        if each.name == "scales-buffer":
            yield each
        else:
            parts["blocks" if each.name.startswith(("blocks", "group")) else "scales"].append(each)
    yield from (together(name, cases) for name, cases in parts.items())


def together(name: str, cases: list[Case]) -> Case:
    """One file of the constants of all of them; their names begin with those of the cases."""
    tensors = [replace(tensor, name=f"{case.name}.{tensor.name}")
               for case in cases for tensor in case.model.graph.tensors.values()]  # fmt: skip
    return Case(name, ". ".join(case.about for case in cases), of(*tensors))


def forms_of_quantization() -> Iterator[Case]:
    every = Quantization.of((0.5,), (3,), 3, 255)
    yield Case(
        "range", "A fused ReLU: the least integer is the zero point", of(constant("w", [3, 255, 77], "uint8", every))
    )
    w = numbers(2, (3, 2, 2), -7, 7)
    each = Quantization.of((0.1, 1e-30, 3.5), (0, -3, 7), -7, 7, 0, "float64")
    yield Case(
        "channels-float64", "Scales of float64 along axis 0, each with a zero point", of(constant("w", w, "int8", each))
    )
    other = Quantization.of((0.25, 0.5), (0, 0), -8, 7, 2, "float16")
    yield Case("channels-last", "Scales of float16 along the last axis, of int4", of(constant("w", w, "int4", other)))
    kinds = []
    for name, scale in (("bfloat16", 0.0078125), ("float8_e8m0fnu", 2.0**-5), ("float16", 0.333251953125)):
        kinds.append(constant(name, [1, 2], "int8", Quantization.of((scale,), (0,), -128, 127, None, name)))
    yield Case("scale-dtypes", "The types in which sources hold their scales", of(*kinds))
    rows = Quantization.of((0.5, 0.25), (7.5, -0.0), 0, 15, 0)
    yield Case(
        "float-zero-points", "Zero points that are no integers", of(constant("w", [[1, 15], [0, 7]], "uint4", rows))
    )
    floats = [constant(name, [0.5, -2.0, 1.0], name, Quantization.of((0.5,), (0,), -limit, limit))
              for name, limit in (("float8_e4m3fn", 448), ("float8_e5m2", 57344), ("float4_e2m1fn", 6))]  # fmt: skip
    yield Case("quantized-floats", "Floats of 8 and 4 bits with a scale", of(*floats))
    seen = Observed("HistogramObserver", (-1.5, -0.0), (2.0, 1e9), 0, 127, "per_channel_affine")
    grid = Quantization.of((0.5, 1.0), (0, 1), 0, 255, 0, observed=seen)
    names = Quantization.of((0.5,), (1,), 0, 255, names=("x_scale", "größe"))
    yield Case("observed", "What calibration saw, and names that scales had", of(
        constant("a", [[1], [2]], "uint8", grid), constant("b", [1], "uint8", names)))  # fmt: skip
    scales = np.array([[0.5, -0.25], [0.0, 1.5], [2.0, 0.125]], np.float16)
    w = numbers(4, (3, 7), 0, 15)
    for name, points, about in (
        ("one", 8, "one zero point for all"),
        ("own", np.array([[0, 15], [8, 7], [1, 2]]), "a zero point for each"),
        ("real", scales[::-1], "float zero points"),
    ):
        blocks = Quantization.of_blocks("uint4", (3, 7), (1, 4), scales, points)
        about = f"Scales for groups of 4 of a row of 7, {about}"
        yield Case(f"blocks-{name}", about, of(constant("w", w, "uint4", blocks)))
    rows = Quantization.of(np.linspace(0.1, 1, 513), (0,), -127, 127, 0, "float64")
    about = "Scales of 4104 bytes, which are a buffer"
    yield Case("scales-buffer", about, of(constant("w", numbers(6, (513, 1), -127, 127), "int8", rows)))
    tiles = Quantization.of_blocks("int8", (3, 7), (2, 5), np.array([[1, 2], [0.5, 0.25]], np.float32))
    yield Case("blocks-tiles", "Scales for tiles, the last ones smaller", of(constant("w", w - 8, "int8", tiles)))
    mx = np.array([[0.25, 8], [1, 2.0**-127], [2.0**127, 4]]).astype(ml_dtypes.float8_e8m0fnu)
    grid = Quantization.of_blocks("float4_e2m1fn", (3, 7), (1, 4), mx)
    yield Case("blocks-mx", "Microscaling: float4 with scales that are powers of two", of(
        constant("w", (w % 5).astype(np.float32), "float4_e2m1fn", grid)))  # fmt: skip

    scale = np.array([[0.5, 1.0, 2.0, 4.0]], np.float32)
    index = Parameter.of_values(np.array([3, 0, 0, 2, 1], np.uint8))
    grouped = Quantization(Parameter.of_values(scale), NO_ZERO_POINT, -8, 7, (1, 3), None, None, index)
    about = "A group index into four groups, where positions div block would give two"
    yield Case("group-index", about, of(constant("w", [[1, -8, 7, 0, -1]], "int4", grouped)))
    first = replace(Quantization.of((0.5,) * 3, (0,) * 3, -8, 7, 0), scale=_codes())
    yield Case("levels-zero-point", "Scales that are codes, with a zero point beyond their type", of(
        constant("w", [[1], [-8], [7]], "int4", first)))  # fmt: skip
    once = Quantization.of((0.5, 1.0), (0, 1), 0, 255, 0, observed=Observed("MinMaxObserver", (-inf,), (inf,)))
    about = "One minimum for two scales, infinite"
    yield Case("observed-once", about, of(constant("w", [[1], [2]], "uint8", once)))


def _codes() -> Parameter:
    """Three codes of int8, with a scale and a zero point of 300 for all."""
    second = Quantization.of((0.25,), (300,), -128, 127)
    return Parameter("int8", (3,), Bytes(b"\1\x80\x7f"), second)


def sharded() -> Iterator[Case]:
    rows = Quantization.of(np.linspace(0.1, 1, 513), (0,), -127, 127, 0, "float64")
    tensors = [
        constant("a", numbers(8, (33,), -7, 7), "int8"),
        constant("b", np.zeros((0, 4)), "float32"),
        constant("w", numbers(9, (513, 1), -127, 127), "int8", rows),
        Tensor("x", "int8", (33,)),
    ]
    graph = Graph(("x",), ("x",), (), {tensor.name: tensor for tensor in tensors})
    model = Model(graph, PRODUCER).with_vectors({"x": numbers(10, (33,), -7, 7).astype(np.int8)})
    about = "Data in three shards: arrays, an empty one, scales, a test vector"
    yield Case("shards", about, model, shard_size=700)


def graphs() -> Iterator[Case]:
    yield Case("nothing", "No tensor, no node", of())
    loose = Tensor("fc1", "uint8", None, None, Quantization.of((0.5,), (7,), 0, 255))
    archive = of(loose, constant("fc1.weight", [[1, 2]], "int8"), source={"no_graph": "a state_dict has none"})
    yield Case("archive", "Tensors without a graph; one is known by its quantization alone", archive)
    names = ["Z", "a", "aa", "b", "é", "日本", "ｚ", "😀", "a.b", "a b", "\n", "~"]
    about = "Names in the order of their UTF-8, which is not that of UTF-16"
    yield Case("names", about, of(*(constant(name, [index], "int8") for index, name in enumerate(names))))
    many = [constant(f"t{index}", [index % 100], "int8") for index in range(40)]
    yield Case("many-tensors", "Forty names to search by halves", of(*many))
    called = replace(constant("w", [1], "int8"), aliases=("conv._packed_params", "größe", "w_quantized"))
    yield Case("aliases", "Names that a tensor had in its source", of(called))
    attributes = {
        "i": -(1 << 63),
        "f": -0.0,
        "s": "ü\n",
        "ii": (1, -2, (1 << 63) - 1),
        "ff": (0.1, float("inf"), 5e-324),
    }
    attributes |= {"ss": ("", "a b", "日本"), "none": (), "empty": "", "zero": 0, "3": 0.0, "big": (1 << 53) + 1}
    tensors = [Tensor("x", "float32", ("N", None, 3)), Tensor("y", "float32", None), Tensor("z", "int64", ())]
    strange = Node("com.example.Strange", ("x", "", "x"), ("y", "z"), attributes, "n", 7, "own rule", "a.b", "aten::x")
    ends = (("x",), ("z", "y", "z"))
    more = {"engine": "fbgemm", "metadata": {"ü": "b", "a": ""}, "graph": "main"}
    about = "An operator that no reader knows: every kind of attribute, an absent input, an output twice"
    yield Case("unknown-operator", about, of(*tensors, nodes=(strange,), ends=ends, **more))
    cell = OPERATORS["RNN"]
    given = {"hidden_size": 1, "activations": ("Tanh",), "activation_alpha": (), "activation_beta": ()}
    opened = of(
        Tensor("x", "float32", ("N", None, 2)), Tensor("r", "float32", (None, 4, 2)),
        constant("w", [[[0.5, 1]]], "float32"), constant("h", [[[2]]], "float32"),
        Tensor("y", "float32", ("N", 1, None, 1)),
        nodes=(Node("Relu", ("x",), ("r",), version=OPERATORS["Relu"].version),
               Node("RNN", ("r", "w", "h"), ("y",), cell.complete(given), version=cell.version)),
        ends=(("x",), ("y",)),
    )  # fmt: skip
    about = "Known operators where one side alone knows a size; lists of floats that are empty"
    yield Case("open-sizes", about, opened)
    newer = Node("Relu", ("x",), ("y",), {"later": 1}, version=1000)
    model = of(Tensor("x", "float32", (2,)), Tensor("y", "float32", (2,)), nodes=(newer,), ends=(("x",), ("y",)))
    yield Case("newer-operator", "A known operator in a version that no reader knows", model)
    passed = of(Tensor("x", "int8", (2,)), constant("w", [1], "int8"), ends=(("x",), ("w", "x")))
    passed = passed.with_vectors({"x": np.array([5, -5], np.int8)})
    yield Case("no-nodes", "Outputs that are an input and a constant, and a test vector", passed)
    source = {"format": "none", "empty": "", "größe": "日本"}
    yield Case(
        "texts", "Maps, and texts that are not ASCII", of(constant("w", [1], "int8"), source=source, graph="größe")
    )


def vectors() -> Iterator[Case]:
    grid = Quantization.of((0.5,), (3,), -8, 7)
    tensors = (Tensor("a", "int4", ("N", 3), None, grid), Tensor("b", "bool", None), Tensor("c", "float16", (None,)))
    model = of(*tensors, Tensor("y", "uint2", ("N",)), nodes=(Node("com.example.F", ("a", "b", "c"), ("y",)),),
               ends=(("a", "b", "c"), ("y", "a", "y")))  # fmt: skip

    def vector(name: str, count: int) -> Vector:
        a = StoredArray.of(numbers(count, (count, 3), -8, 7), "int4")
        inputs = {
            "a": a,
            "b": StoredArray.of(np.array([[True, False]])),
            "c": StoredArray.of(np.arange(count, dtype=np.float16)),
        }
        return Vector(inputs, {"y": StoredArray.of(numbers(7, (count,), 0, 3), "uint2"), "a": a}, name)

    about = "Test vectors of sizes that are not fixed, packed elements, a value without elements, no name"
    yield Case("vectors", about, model.replace(vectors=(vector("größe", 5), vector("", 0), vector("one", 1))))


def later() -> Iterator[Case]:
    from .altered import sound  # which is made from the functions here

    model = of(constant("w", [1, -2, 7], "int4", Quantization.of((0.5,), (0,), -8, 7)))
    yield Case(
        "later-flags", "Optional flags that no reader knows are ignored", model, lambda data: patched(data, 52, b"\5")
    )
    yield Case("later-minor", "A later minor version is read as far as it is understood", model, minor)
    yield Case("later-fields", "Fields that no reader knows, in every table", sound(), extended)
    yield Case("later-header", "A header of 144 bytes", model, longer)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Other bytes in the metadata, under a digest that fits."""
    return sealed(data[:at] + new + data[at + len(new) :])


def sealed(data: bytes) -> bytes:
    size = struct.unpack_from("<Q", data, 16)[0]
    return data[:64] + header.metadata_digest(data[:size]) + data[96:]


def loose() -> Iterator[Case]:
    """What a writer does not write, and a reader accepts."""
    w = constant("w", [1, -2, 7], "int4", Quantization.of((0.5,), (0,), -8, 7))
    model = of(w, ends=((), ("w",)))
    yield Case("loose", "A zero point of 0 that is written", model, loosened)
    about = "Empty lists and texts instead of absent ones; a float of -0 beside an integer"
    model = of(
        w, Tensor("y", "int4", (3,)), nodes=(Node("com.example.F", ("w",), ("y",), {"a": 1}),), ends=((), ("y",))
    )
    yield Case("loose-empty", about, model, emptied)
    pair = of(*(constant(name, [1], "int8", Quantization.of((0.5,), (0,), -8, 7)) for name in ("a", "b")))
    yield Case("loose-unshared", "Equal quantizations that are two tables", pair, unshared)


def loosened(data: bytes) -> bytes:
    record = record_of(data)
    w = record["graph"]["tensors"][0]
    w["quantization"] = {**w["quantization"], "zero_point": {"dtype": DTYPES["uint8"].code, "bytes": b"\0"}}
    return with_metadata(data, *encode("Model", record))


def emptied(data: bytes) -> bytes:
    record = record_of(data)
    w, y = record["graph"]["tensors"]
    scale = {**w["quantization"]["scale"], "shape": []}
    names = {"scale_name": "", "zero_point_name": ""}
    w["quantization"] = {**w["quantization"], "block": [], "scale": scale, **names}
    for each in (w, y):
        each.update(dims=[], aliases=[])
    record["graph"]["name"] = ""
    record["graph"]["nodes"][0].update(rule="", name="", scope="", source_operator="")
    record["graph"]["nodes"][0]["attributes"][0]["float_value"] = -0.0
    record |= {"required_features": [], "source": [], "metadata": [], "vectors": [], "shards": [], "engine": ""}
    return with_metadata(data, *encode("Model", record))


def unshared(data: bytes) -> bytes:
    record = record_of(data)
    for each in record["graph"]["tensors"]:
        each["quantization"] = dict(each["quantization"])
    return with_metadata(data, *encode("Model", record))


def extended(data: bytes) -> bytes:
    """The file as a writer of 1.7 would write it, which knows one more field of each table."""
    tables = {
        name: (*fields, schema.Field("later", len(fields), "ulong", "", 8, None, False))
        for name, fields in schema.TABLES.items()
    }

    def later(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: later(each) for key, each in value.items()} | {"later": 7}
        return [later(each) for each in value] if isinstance(value, list) else value

    return with_metadata(data, *encode("Model", {**later(record_of(data)), "minor_version": 7}, tables=tables))


def record_of(data: bytes) -> dict[str, Any]:
    """The metadata of a file, to be changed."""
    size = struct.unpack_from("<Q", data, 16)[0]
    return cast(dict[str, Any], plain(Decoder(data[:size], "Model", start=header.SIZE).root()))


def with_metadata(data: bytes, root: int, body: bytes) -> bytes:
    """Other metadata before the same data."""
    offset = struct.unpack_from("<Q", data, 24)[0]
    made = header.seal(root, body, len(data) - offset)
    return made + bytes(-len(made) % header.PAGE) + data[offset:]


def minor(data: bytes) -> bytes:
    """The file as a writer of 1.7 would write it, with a field that is new: the root ends with it."""
    record = record_of(data)
    fields = schema.TABLES["Model"]
    comment = schema.Field("comment", len(fields), "string", "", 4, None, False)
    later = {**schema.TABLES, "Model": (*fields, comment)}
    root, body = encode("Model", {**record, "minor_version": 7, "comment": "of a later version"}, tables=later)
    return with_metadata(data, root, body)


def plain(value: Any) -> Any:
    """A decoded record with all below it, as the encoder takes it."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(value[index]) for index in range(len(value))] if hasattr(value, "string_field") else value


def longer(data: bytes) -> bytes:
    """16 bytes more between header and FlatBuffer, whose offsets all count from where they stand."""
    root, size, offset = struct.unpack_from("<I", data)[0], *struct.unpack_from("<QQ", data, 16)
    assert size + 16 <= offset
    moved = data[:128] + b"a later header.." + data[128:size]
    head = struct.pack("<I", root + 16) + moved[4:12] + struct.pack("<IQ", 144, size + 16) + moved[24:]
    return sealed(head + bytes(offset - len(head)) + data[offset:])
