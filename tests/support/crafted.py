"""Files of right digests that say what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qfmt.file import header
from qfmt.file.decode import Record
from qfmt.file.encode import encode
from qfmt.file.schema import ENUMS


def crafted(tmp_path: Path, *, tensor: Record | None = None, data: bytes = bytes(64), **fields: Any) -> Path:
    """A file whose digests are right, with one int8 tensor of 64 elements and whatever is given instead."""
    import hashlib

    tensors = [{"name": "t", "dtype": 2, "shape": [64], "buffer": 0, **(tensor or {})}]
    graph: Record = {"tensors": tensors, "nodes": [], "inputs": [], "outputs": []}
    buffers = [{"offset": 0, "size": 64, "sha256": hashlib.sha256(data[:64]).digest()}]
    record = {"graph": {**graph, **fields.pop("graph", {})}, "buffers": fields.pop("buffers", buffers), **fields}
    metadata = header.seal(*encode("Model", record), len(data))
    path = tmp_path / "crafted.qfb"
    path.write_bytes(metadata + bytes(-len(metadata) % header.PAGE) + data)
    return path


# What a file cannot say: offset and size of a buffer, a shape, and fields of a quantization, a tensor and the graph


BUFFERS = [(2**64 - 64, 64), (2**64 - 64, 128), (0, 2**64 - 1), (64, 64), (2**63, 2**63), (1, 63), (0, 65)]


SHAPES = [[2**62, 4], [2**32, 2**32], [0, 2**62], [-2], [-1], [65], [1] * 33, [2**63 - 1], [-(2**63)], None]

QUANTIZATIONS = [
    {"scale": []},
    {"scale": [0.0]},
    {"scale": [float("nan")]},
    {"scale": [float("inf")]},
    {"scale": [-1.0]},
    {"scale": [0.1]},
    {"scale": [1e300]},
    {"scale": [1.0, 2.0]},
    {"scale_dtype": 2},
    {"scale_dtype": 99},
    {"zero_point": []},
    {"zero_point": [128]},
    {"zero_point": [0, 0]},
    {"zero_point_float": [0.5]},
    {"zero_point": [], "zero_point_float": []},
    {"zero_point": [], "zero_point_float": [float("nan")]},
    {"quant_min": None},
    {"quant_max": None},
    {"quant_min": -129},
    {"quant_max": 128},
    {"quant_min": 1, "quant_max": 0},
    {"axis": 0},
    {"axis": 2**32 - 1},
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
