"""Crafted files with valid digests and invalid contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qfmt.file import header
from qfmt.file.decode import Record
from qfmt.file.encode import encode
from qfmt.file.schema import ENUMS
from qfmt.model import DTYPES, numpy_dtype


def crafted(tmp_path: Path, *, tensor: Record | None = None, data: bytes = bytes(64), **fields: Any) -> Path:
    """A file with valid digests and one int8 tensor of 64 elements, except for the given replacements."""
    import hashlib

    tensors = [{"name": "t", "dtype": 2, "shape": [64], "buffer": 0, **(tensor or {})}]
    graph: Record = {"tensors": tensors, "nodes": [], "inputs": [], "outputs": []}
    buffers = [{"offset": 0, "size": 64, "sha256": hashlib.sha256(data[:64]).digest()}]
    record = {"graph": {**graph, **fields.pop("graph", {})}, "buffers": fields.pop("buffers", buffers), **fields}
    metadata = header.seal(*encode("Model", record), len(data))
    path = tmp_path / "crafted.qfb"
    path.write_bytes(metadata + bytes(-len(metadata) % header.PAGE) + data)
    return path


# Invalid contents: offset and size of a buffer, a shape, and fields of a quantization, a tensor and the graph


BUFFERS = [(2**64 - 64, 64), (2**64 - 64, 128), (0, 2**64 - 1), (64, 64), (2**63, 2**63), (1, 63), (0, 65)]


SHAPES = [[2**62, 4], [2**32, 2**32], [0, 2**62], [-2], [-1], [65], [1] * 33, [2**63 - 1], [-(2**63)], None]


def numbers(dtype: str, *values: float, **fields: Any) -> Record:
    """An array of a quantization with one or more numbers."""
    shape = [len(values)] if len(values) > 1 else None
    stored = np.array(values).astype(numpy_dtype(dtype)).tobytes()
    return {"dtype": DTYPES[dtype].code, "shape": shape, "bytes": stored, **fields}


GRID: Record = {
    "scale": numbers("float32", 0.5),
    "zero_point": numbers("int8", -3),
    "quant_min": -128,
    "quant_max": 127,
}
"""The valid quantization; QUANTIZATIONS change its fields."""

_CODES = numbers("uint8", 2, quantization={"scale": numbers("float32", 0.5)})
_EIGHT = numbers("float32", *range(1, 9))

QUANTIZATIONS: list[Record] = [
    {"scale": numbers("float32", shape=[0], bytes=b"")},
    *({"scale": numbers("float32", value)} for value in (0.0, float("nan"), float("inf"), -1.0)),
    {"scale": numbers("float64", 1e300)},
    {"scale": numbers("float64", 1e-60)},
    {"scale": numbers("float32", 1.0, 2.0)},
    {"scale": numbers("float32", 1.0, shape=[1])},
    {"scale": numbers("float32", 1.0, shape=[-1])},
    {"scale": numbers("float32", 1.0, shape=[2**32, 2**32])},
    {"scale": numbers("float32", 1.0, bytes=None)},
    {"scale": numbers("float32", 1.0, buffer=0)},
    {"scale": numbers("float32", 1.0, bytes=None, buffer=1)},
    {"scale": numbers("float32", 1.0, bytes=None, buffer=0)},
    {"scale": numbers("float32", 1.0, bytes=bytes(5))},
    {"scale": numbers("float32", 1.0) | {"dtype": 99}},
    {"scale": numbers("int8", 1)},
    {"scale": numbers("float8_e4m3fn", float("nan"))},
    {"scale": _CODES | {"dtype": DTYPES["int4"].code}},
    {"scale": _CODES | {"quantization": {"scale": numbers("float32", 0.5), "block": [1]}}},
    {"scale": _CODES | {"quantization": {"scale": numbers("int8", 1)}}},
    {"scale": _CODES | {"quantization": {"scale": numbers("float32", float("inf"))}}},
    {"scale": _CODES | {"quantization": {"scale": numbers("float32", 1.0), "zero_point": numbers("float16", 1.0)}}},
    {
        "scale": _CODES
        | {"quantization": {"scale": numbers("float32", 1.0), "offset": numbers("float32", float("nan"))}}
    },
    {"zero_point": numbers("int16", 128)},
    {"zero_point": numbers("int16", 3)},
    {"zero_point": numbers("int64", 3)},
    {"zero_point": numbers("int8", -1, -2)},
    {"zero_point": numbers("float64", 0.5)},
    {"zero_point": numbers("float32", float("nan"))},
    {"offset": numbers("int8", 1)},
    {"offset": numbers("float32", float("inf"))},
    {"offset": numbers("float32", 1.0, 2.0)},
    {"table": numbers("float32", *range(255))},
    {"table": numbers("float32", *range(255), float("nan"))},
    {"table": numbers("int32", *range(256))},
    {"group_index": numbers("uint8", *range(8))},
    {"block": [0]},
    {"block": [1]},
    {"block": [-8], "scale": _EIGHT},
    {"block": [8, 1], "scale": _EIGHT | {"shape": [8, 1]}},
    {"block": [8], "scale": numbers("float32", *range(1, 8))},
    {"block": [64], "scale": numbers("float32", 1.0, shape=[1])},
    {"block": [8], "scale": _EIGHT, "zero_point": numbers("int8", *[-3] * 8)},
    {"block": [8], "scale": _EIGHT, "group_index": numbers("uint8", *range(8))},
    {"block": [8], "scale": _EIGHT, "group_index": numbers("int8", *[0] * 64)},
    {"block": [8], "scale": _EIGHT, "group_index": numbers("uint8", *[8] * 64)},
    {"quant_min": None},
    {"quant_max": None},
    {"quant_min": -129},
    {"quant_max": 128},
    {"quant_min": 1, "quant_max": 0},
    {"observed": {"observer": "", "minimum": [0.0], "maximum": [1.0]}},
    {"observed": {"observer": "a", "minimum": [0.0], "maximum": []}},
    {"observed": {"observer": "a", "minimum": [float("nan")], "maximum": [1.0]}},
]

TENSORS = [
    {"name": ""},
    {"dtype": 0},
    {"dtype": 200},
    {"buffer": 1},
    {"buffer": 2**32 - 1},
    {"dims": ["N"]},
    {"shape": [8, -1], "dims": ["", "N"]},
    {"dims": ["", ""]},
    {"aliases": ["b", "a"]},
    {"aliases": ["a", "a"]},
    {"aliases": [""]},
]

TYPES = ENUMS["AttributeType"]

GRAPHS = [
    {"inputs": [1]},
    {"outputs": [-2]},
    {"outputs": [2**31 - 1]},
    {"nodes": [{"operator": "a", "inputs": [7], "outputs": []}]},
    {"nodes": [{"operator": "a", "inputs": [], "outputs": [], "attributes": [{"name": "a", "type": 0}]}]},
    {"nodes": [{"operator": "a", "inputs": [], "outputs": [], "attributes": [{"name": "a", "type": 77}]}]},
    {"nodes": [{"operator": "a", "inputs": [], "outputs": [], "attributes": [{"name": "a", "type": TYPES["Ints"]}]}]},
    {"nodes": [{"operator": "a", "inputs": [], "outputs": [], "attributes": [{"name": "a", "type": 1}] * 2}]},
]
