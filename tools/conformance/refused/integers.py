"""Files with a node that uses integers only, and breaks a rule."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qfmt.model import Proof, Quantization, Tensor

from ..altered import alone, attribute, grid, node, numbers, setting, tensor
from .case import FLOAT32, HALF, Bases, Change, Refused, changed, floats


def cases(bases: Bases) -> Iterator[Refused]:
    yield from changed(SUMS, bases.sums)
    yield from changed(INTEGERS, bases.integers)
    yield from values(bases)
    yield from types()


def values(bases: Bases) -> Iterator[Refused]:
    """Bounds of V64: the first element of a parameter or table is another."""
    base = bases.integers
    for name, parameter, new, about in (
        ("shift-63", "shift", b"\x3f", "A shift of 63"),
        ("multiplier-0", "multiplier", bytes(4), "A multiplier of 0"),
        ("add-limit", "add", struct.pack("<q", 1 << 62), "An add of 2^62"),
        ("add-least", "add", struct.pack("<q", -1 << 62), "An add of -2^62"),
        ("row-beyond", "row", struct.pack("<i", 2), "A row that is not there"),
        ("row-before", "row", struct.pack("<i", -2), "A row of -2"),
        ("thresholds-order", "thresholds", struct.pack("<i", 1 << 20), "Thresholds that do not ascend"),
        ("table-greatest", "table", b"\x33", "A table with 51 for an output with a quant_max of 50"),
        ("table-least", "table", b"\xcd", "A table with -51 for an output with a quant_min of -50"),
    ):
        yield Refused(name, "V64", about, base.with_data(base.offset(parameter), new))


def types() -> Iterator[Refused]:
    """Types of inputs and outputs."""
    for dtype in ("float32", "uint32", "int64"):
        sums = alone("qfmt.WeightedSum", [Tensor("a", dtype, (3,))], Tensor("y", "int32", (3,)), weights=(1,))
        yield Refused(f"weighted-{dtype}", "V49", f"A weighted sum of {dtype}", sums)
    x, shift = Tensor("x", "int32", (3,)), Tensor.constant("shift", np.array([2], np.uint8))
    for dtype in ("float8_e4m3fn", "uint32"):
        y = Tensor("y", dtype, (3,), None, Quantization.of((0.5,), (0,), 0, 100))
        made = alone("qfmt.Requantize", [x, None, shift], y, rule="power_of_two", axis=0)
        yield Refused(f"requantized-{dtype.partition('_')[0]}", "V66", f"Sums requantized to {dtype}", made)
    made = alone("qfmt.Requantize", [x], Tensor("y", "int32", (3,)), axis=0)
    yield Refused("output-real", "V66", "A node without a rule and parameters, whose output is not quantized", made)
    empty = Tensor.constant("shift", np.zeros(0, np.uint8))
    y = Tensor("y", "uint8", None, None, Quantization.of((0.5,), (0,), 0, 100))
    made = alone("qfmt.Requantize", [Tensor("x", "int32", None), None, empty], y, rule="power_of_two", axis=0)
    yield Refused("parameter-empty", "V63", "Shifts of no channel, by sizes that are not known", made)
    table = Tensor.constant("table", np.zeros(4, np.float32), dtype="float32")
    made = alone("qfmt.Table", [Tensor("x", "uint2", (3,)), table], Tensor("y", "float32", (3,)))
    yield Refused("table-real", "V63", "A table of float32", made)
    y = Tensor("y", "uint8", (3,), None, Quantization.of((0.5,), (0,), 0, 100))
    add = Tensor.constant("add", np.array([2], np.int32))
    mul, proof = Tensor("mul", "int32", (1,)), Proof((0,), (9,))
    made = alone("qfmt.RequantShift", [x, mul, add], y, rule="multiply_add_divide", div=2, proof=proof)
    yield Refused("proof-input", "V68", "A proof of a factor that is no constant", made)
    whole = Quantization.of((0.5,), (0,), 0, 100)
    offset = replace(whole, offset=whole.scale)
    given = [Tensor("x", "int32", (3,), None, offset), *(Tensor(name, "int32", (1,)) for name in ("mul", "add"))]
    made = alone("qfmt.RequantShift", given, y, rule="multiply_add_divide", div=2)
    yield Refused("shifted-offset", "V66", "A RequantShift of sums with an offset", made)
    mul = Tensor.constant("mul", np.array([1, 2, 3], np.int32))
    made = alone("qfmt.RequantShift", [Tensor("x", "int32", (1,)), mul, add], replace(y, shape=None),
                 rule="multiply_add_divide", div=2)  # fmt: skip
    yield Refused("factor-sizes", "V43", "Three factors of one number", made)


SUMS: tuple[Change, ...] = (
    ("exact-alpha", "V60", "By exact, an alpha of 2", attribute(3, "alpha", float_value=2.0)),
    ("exact-open-size", "V62", "By exact, windows of different sizes over sizes that are not known", setting(
        "a", shape=[1, 1, -1, -1])),
    ("exact-int64", "V48", "By exact, sums of int64", setting("mean", dtype=8)),
    ("exact-wide", "V58", "By exact, an input of int32", setting("rows", dtype=6)),
    ("exact-offset", "V58", "By exact, a weight with an offset", numbers("w", "offset", new=True, dtype=FLOAT32,
        **floats(0.5))),
    ("exact-float-point", "V58", "By exact, a weight with a zero point of float32", numbers("w", "zero_point",
        new=True, dtype=FLOAT32, **floats(0.5))),
    ("arity-variadic", "V41", "One of the inputs of a sum has the index -1", node(1, inputs=[0, -1])),
    ("weights-count", "V67", "A weight for two inputs", attribute(1, "weights", ints=[1])),
    ("weights-reach", "V67", "Sums of up to 2^63 exactly, by weights that add up to 0", attribute(1, "weights", ints=[
        1 << 54, -1 << 54])),
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
    ("folded-scales", "V58", "By folded, an input with a scale for each column", numbers("x", "scale", block=[0, 1],
        bytes=struct.pack("<4f", *[0.5] * 4), shape=[1, 4])),
    ("folded-bias", "V59", "By folded, a bias of int64", node(0, inputs=[8, 7, 0])),
    ("multiplier-type", "V63", "Multipliers of uint8", node(1, inputs=[4, 3, 3, 0, 6, 2])),
    ("output-scales", "V66", "Sums on a grid with two scales", numbers("y", "scale", block=[0, 1],
        bytes=struct.pack("<2f", 0.25, 0.5), shape=[1, 2])),
    ("excess-add", "V65", "power_of_two with a multiplier and an add", node(1, rule="power_of_two")),
    ("proof-counts", "V68", "A proof with two low and one high", lambda record: record["graph"]["nodes"][1][
        "proof"].update(low=[-9, -9])),
    ("proof-differs", "V68", "A proof with -1 differences", lambda record: record["graph"]["nodes"][1][
        "proof"].update(differs=[-1])),
    ("no-multiplier", "V65", "multiply_shift without a multiplier", node(1, inputs=[4, -1, 3, 0, 6, 2])),
    ("row-thresholds", "V64", "A row of -1 by the rule thresholds", node(1, rule="thresholds",
        inputs=[4, -1, -1, -1, 6, 2])),
    ("thresholds-alone", "V65", "multiply_shift with thresholds, but no rows", node(1, inputs=[4, 1, 3, 0, 6, -1])),
    ("unknown-rule", "V47", "A rule that is not one of qfmt.Requantize", node(1, rule="float_bias")),
    ("proof-differs-count", "V68", "A proof with two numbers of differences and one low", lambda record: record[
        "graph"]["nodes"][1]["proof"].update(differs=[1, 1])),
    ("proof-channels", "V68", "A proof of three channels, where there are two", lambda record: record["graph"]["nodes"][
        1]["proof"].update(low=[-9] * 3, high=[9] * 3)),
    ("requantized-offset", "V66", "Sums requantized to a quantization with an offset", numbers("y", "offset", new=True,
        dtype=FLOAT32, **floats(0.5))),
    ("folded-input", "V61", "By folded, a weight that is no constant", lambda record: (
        record["graph"].update(inputs=[8, 7]), record["vectors"][0]["inputs"].append(
            {"shape": [2, 4], "buffer": tensor(record, "w")["buffer"]}), tensor(record, "w").update(buffer=None))),
    ("parameter-input", "V63", "A multiplier that is no constant", lambda record: (
        record["graph"].update(inputs=[8, 1]), record["vectors"][0]["inputs"].append(
            {"shape": [2], "buffer": tensor(record, "multiplier")["buffer"]}),
        tensor(record, "multiplier").update(buffer=None))),
    ("proof", "V68", "A proof upside down", lambda record: record["graph"]["nodes"][1]["proof"].update(low=[10000])),
    ("table-shape", "V63", "A table of two dimensions, and no axis", setting("table", shape=[1, 4])),
    ("table-type", "V63", "A table of int8 for an output of uint8", setting("z", dtype=3, quantization={
        **HALF, "quant_max": 50})),
)  # fmt: skip
