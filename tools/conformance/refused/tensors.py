"""Files with a tensor, or a quantization, that breaks a rule of V1 to V25."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from ..altered import Record, both, grid, numbers, setting
from .case import FLOAT32, HALF, Bases, Change, Refused, changed, floats


def cases(bases: Bases) -> Iterator[Refused]:
    base = bases.sound
    yield from changed((*TENSORS, *GRIDS), base)
    for name, rule, about, at, new in (
        ("bool-2", "V11", "A bool is the byte 2", base.offset("flag"), b"\2"),
        ("unused-bits", "V12", "Bits that no element uses are set", base.offset("g") + 7, b"\xff"),
        ("weight-range", "V23", "A weight of -128, where -127 is the least", base.offset("w"), b"\x80"),
        ("vector-range", "V23", "A value of 2 of a tensor whose quant_min is 3", base.value_offset("outputs"), b"\2"),
    ):
        yield Refused(name, rule, about, base.with_data(at, new))
    yield Refused("value-bool", "V11", "A bool in a test vector is 2", bases.values.with_data(0, b"\2"))
    about = "Bits of a value that no element uses are set"
    yield Refused("value-bits", "V12", about, bases.values.with_data(64, b"\xff"))


TENSORS: tuple[Change, ...] = (
    ("no-name", "V1", "A tensor without a name", setting("b", name="")),
    ("dtype", "V2", "An element type that is not in the table", setting("y", dtype=99)),
    ("scale-unknown", "V2", "A type of scales that is not in the table", numbers("x", "scale", dtype=99)),
    ("size", "V3", "A size of -2", setting("z", shape=[-2, 4], dims=None)),
    ("sizes", "V3", "Sizes of 2^61 together", setting("z", shape=[1 << 31, 1 << 30], dims=None)),
    ("rank", "V3", "33 dimensions", setting("z", shape=[1] * 33, dims=None)),
    ("constant-no-shape", "V3", "A constant without a shape", setting("b", shape=None)),
    ("constant-open-size", "V3", "A constant of a size that is not fixed", setting("b", shape=[-1])),
    ("sizes-0", "V3", "Sizes of 2^61 together, beside a size of 0", setting("z", shape=[0, 1 << 61], dims=None)),
    ("alias-empty", "V4", "An empty alias", setting("w", aliases=[""])),
    ("alias-order", "V4", "Aliases that are not sorted", setting("w", aliases=["b", "a"])),
    ("zero-byte", "V5", "U+0000 in an alias", setting("w", aliases=["a\0"])),
    ("zero-byte-name", "V5", "U+0000 in the name of a tensor", setting("y", name="y\0")),
    ("zero-byte-size", "V5", "U+0000 in the name of a size", setting("x", dims=["N\0", ""])),
    ("zero-byte-scale", "V5", "U+0000 in the name of a scale", grid("x", scale_name="\0")),
    ("bytes", "V10", "More bytes than the shape needs", setting("flag", shape=[2])),
)


def _groups(dtype: int, *index: int, of: str = "g") -> Callable[[Record], object]:
    """A group index of bytes."""
    return numbers(of, "group_index", new=True, dtype=dtype, bytes=bytes(index), shape=[len(index)])


def _levels(dtype: int, codes: bytes, **second: Any) -> Callable[[Record], object]:
    """Scales of the six blocks that are codes; one scale for them."""
    level = {"scale": {"dtype": FLOAT32, **floats(0.5)}, **second}
    return numbers("g", "scale", new=True, dtype=dtype, shape=[3, 2], bytes=codes, quantization=level)


def _observed(**fields: Any) -> dict[str, Any]:
    return {"observer": "MinMaxObserver", "minimum": [0.0], "maximum": [1.0]} | fields


def _small_floats(**fields: Any) -> Callable[[Record], object]:
    """A tensor of float8_e4m3fn that is quantized."""
    whole = {"scale": {"dtype": FLOAT32, **floats(0.5)}, "quant_min": -448, "quant_max": 448}
    return setting("flag", dtype=18, quantization=whole | fields)


GRIDS: tuple[Change, ...] = (
    ("scale-dtype", "V20", "A scale of int32", numbers("x", "scale", dtype=6)),
    ("zero-points", "V20", "Two zero points for three scales", numbers("w", "zero_point", new=True, dtype=3,
        bytes=b"\0\1", shape=[2])),
    ("zero-point-type", "V20", "A zero point of float64 for scales of float32", numbers("g", "zero_point", new=True,
        dtype=13, bytes=struct.pack("<d", 7.0))),
    ("zero-point-computed", "V20", "A zero point of float32 in a tensor that is computed", numbers("z", "zero_point",
        new=True, dtype=FLOAT32, **floats(7.0))),
    ("zero-point-float", "V20", "A zero point of floats", _small_floats(zero_point={"dtype": 3, "bytes": b"\1"})),
    ("level-dtype", "V20", "Quantized scales of uint16", _levels(5, struct.pack("<6H", *range(6)))),
    ("level-bytes", "V20", "Quantized scales whose own scale has 3 bytes", _levels(3, b"123456", scale={
        "dtype": FLOAT32, "bytes": b"\0\0\0"})),
    ("offset-dtype", "V20", "An offset of int8", numbers("w", "offset", new=True, dtype=2, bytes=b"\1")),
    ("offsets", "V20", "Three offsets for six scales", numbers("g", "offset", new=True, dtype=FLOAT32,
        **floats(1.0, 2.0, 3.0))),
    ("table-dimensions", "V20", "A table of two dimensions", numbers("g", "table", new=True, dtype=2, shape=[4, 4],
        bytes=bytes(16))),
    ("level-offset", "V20", "An offset of int8 of the second level", _levels(3, b"123456", offset={
        "dtype": 2, "bytes": b"\1"})),
    ("table-size", "V20", "A table of 15 values for 16 codes", numbers("g", "table", new=True, dtype=FLOAT32,
        **floats(*range(15)))),
    ("table-dtype", "V20", "A table of int32", numbers("g", "table", new=True, dtype=6, shape=[16], bytes=bytes(64))),
    ("table-float8", "V20", "A table of float8_e4m3fn", numbers("g", "table", new=True, dtype=18, shape=[16],
        bytes=bytes(16))),
    ("table-float", "V20", "A table for floats of 8 bits", _small_floats(table={"dtype": 2, "shape": [256],
        "bytes": bytes(256)})),
    ("number-bytes", "V20", "A scale of 3 bytes", numbers("x", "scale", bytes=b"\0\0\0")),
    ("axis", "V21", "Blocks of three dimensions in a tensor with two", numbers("z", "scale", block=[0, 0, 1],
        shape=[1, 1, 3], bytes=struct.pack("<3f", 0.5, 1.0, 2.0))),
    ("scale-dimensions", "V21", "One number for the rows of an unknown size", grid("r", block=[1])),
    ("level-scales", "V21", "Two scales of the second level for three rows", _levels(3, b"123456", block=[1],
        scale={"dtype": FLOAT32, **floats(0.5, 1.0)})),
    ("scales", "V21", "Two scales for three slices", numbers("w", "scale", **floats(0.5, 1.0))),
    ("scales-whole", "V21", "Three scales along a dimension that is one block", numbers("z", "scale", block=[0, 1],
        shape=[3, 4], bytes=struct.pack("<12f", *[0.5] * 12))),
    ("block-negative", "V21", "A block of -1", numbers("z", "scale", block=[-1, 1], shape=[1, 4],
        bytes=struct.pack("<4f", *[0.5] * 4))),
    ("block-size", "V21", "A block of the size of its dimension", numbers("z", "scale", block=[0, 4], shape=[1, 1])),
    ("block-open-size", "V21", "Blocks along a size that is not fixed", numbers("r", "scale", block=[2], shape=[1])),
    ("block-no-rank", "V21", "A block of 2 of a tensor of unknown rank", both(
        setting("r", shape=None, dims=None), numbers("r", "scale", block=[2], shape=[1]))),
    ("block-33", "V21", "Blocks of 33 dimensions, of a tensor of unknown rank", both(
        setting("z", shape=None, dims=None), numbers("z", "scale", block=[1] * 33, shape=[1] * 33))),
    ("block-end", "V21", "Blocks that end with 0", numbers("z", "scale", block=[1, 0], shape=[2, 1],
        bytes=struct.pack("<2f", 0.5, 1.0))),
    ("group-index", "V21", "A group index, and blocks along two dimensions", both(
        setting("z", shape=[4, 4], dims=None), _groups(3, 0, 1, 1, 0, of="z"), numbers(
            "z", "scale", block=[2, 2], shape=[2, 2], bytes=struct.pack("<4f", *[0.5] * 4)))),
    ("group-index-dtype", "V21", "A group index of int8", _groups(2, 0, 0, 1, 1, 0)),
    ("group-index-size", "V21", "A group index of 4 of 5 positions", _groups(3, 0, 0, 1, 1)),
    ("group-index-one", "V21", "A group index without a shape", numbers("g", "group_index", new=True, dtype=3,
        bytes=b"\1")),
    ("group-index-negative", "V22", "A group index of -1", numbers("g", "group_index", new=True, dtype=6, shape=[5],
        bytes=struct.pack("<5i", 0, 0, 1, 1, -1))),
    ("group-index-beyond", "V22", "A group index of 2, of 2 groups", _groups(3, 0, 0, 1, 1, 2)),
    ("scale-zero", "V22", "A scale of 0", numbers("x", "scale", **floats(0.0))),
    ("scale-negative", "V22", "A scale of -1", numbers("x", "scale", **floats(-1.0))),
    ("scale-channel", "V22", "A scale of -1 of a channel of a constant", numbers("w", "scale", bytes=struct.pack(
        "<3f", 0.5, -1.0, 2.0))),
    ("scale-block", "V22", "A scale of -1 of a block of an input", lambda record: (
        record["graph"]["tensors"].append({"name": "zz", "dtype": 3, "shape": [60], "quantization": {
            "block": [30], "scale": {"dtype": FLOAT32, **floats(1.0, -1.0)}, "quant_min": 0, "quant_max": 255}}),
        record["graph"].update(inputs=[5, 8]), record["vectors"][0]["inputs"].append(
            {"shape": [60], "buffer": record["vectors"][0]["outputs"][0]["buffer"]}))),
    ("scale-code-nan", "V22", "A scale of float8_e8m0fnu with the code 255", numbers("x", "scale", dtype=22,
        bytes=b"\xff")),
    ("scale-infinite", "V22", "An infinite scale", numbers("x", "scale", **floats(float("inf")))),
    ("scale-nan", "V22", "A scale that is no number", numbers("x", "scale", **floats(float("nan")))),
    ("scale-float32", "V22", "A scale of float64 that is 0 in float32", numbers("x", "scale", dtype=13,
        bytes=struct.pack("<d", 1e-60))),
    ("zero-point", "V22", "A zero point outside uint8", numbers("x", "zero_point", dtype=5, bytes=b"\0\1")),
    ("zero-point-low", "V22", "A zero point of -1 for uint8", numbers("z", "zero_point", dtype=2, bytes=b"\xff")),
    ("zero-point-dtype", "V22", "A zero point of int32 where uint8 holds it", numbers("x", "zero_point", dtype=6,
        bytes=b"\7\0\0\0")),
    ("zero-point-infinite", "V22", "An infinite zero point", numbers("w", "zero_point", new=True,
        dtype=FLOAT32, bytes=struct.pack("<f", float("inf")))),
    ("offset-nan", "V22", "An offset that is no number", numbers("g", "offset", new=True, dtype=FLOAT32,
        bytes=struct.pack("<f", float("nan")))),
    ("offsets-equal", "V22", "Six equal offsets", numbers("g", "offset", new=True, dtype=FLOAT32, shape=[3, 2],
        bytes=struct.pack("<6f", *[0.5] * 6))),
    ("table-infinite", "V22", "An infinite value of a table", numbers("g", "table", new=True, dtype=FLOAT32,
        **floats(*range(15), float("inf")))),
    ("level-nan", "V22", "A code of a scale that is no number", _levels(18, b"\x7f12345")),
    ("level-zero-points-equal", "V22", "Equal zero points of the second level", _levels(3, b"123456", block=[1],
        scale={"dtype": FLOAT32, **floats(0.5, 1.0, 2.0)}, zero_point={"dtype": 3, "shape": [3], "bytes": b"\1\1\1"})),
    ("block-scale-float32", "V22", "A scale of blocks that is infinite in float32", numbers("g", "scale", dtype=13,
        bytes=struct.pack("<6d", 1, 1, 1, 1, 1, 1e60))),
    ("zero-points-equal", "V22", "Three equal zero points", numbers("w", "zero_point", new=True, dtype=3,
        bytes=b"\1\1\1", shape=[3])),
    ("quant-range", "V23", "quant_min above quant_max", grid("x", quant_min=9, quant_max=8)),
    ("quant-limit-low", "V23", "quant_min below the type", grid("x", quant_min=-1)),
    ("quant-limit", "V23", "quant_max beyond the type", grid("x", quant_max=256)),
    ("quantized-float", "V23", "A quantized float32", setting("b", quantization={
        "scale": {"dtype": FLOAT32, "bytes": b"\0\0\x80?"}, "quant_min": 0, "quant_max": 0})),
    ("quantized-int64", "V23", "A quantized int64", setting("g", dtype=8, shape=[1], quantization={
        **HALF, "quant_min": 0, "quant_max": (1 << 63) - 1})),
    ("quantized-scale", "V23", "A quantized float8_e8m0fnu", setting("b", dtype=22, shape=[12], quantization=HALF)),
    ("quantized-bool", "V23", "A quantized bool", setting("flag", quantization=HALF)),
    ("weight-range-high", "V23", "A weight of 11, where 10 is the greatest", grid("w", quant_max=10)),
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
