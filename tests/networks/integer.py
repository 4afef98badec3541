"""A small integer-only network, and invalid variants of it.

x ─ Conv, folded ─ sums ─ Requantize ─ y ─ Table ─ t ─┬─ WeightedSum ─ total ─ Requantize ─ out
                                        └─────────────┴─ PairTable ─ pair
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qfmt.model import Attribute, Graph, Model, Node, Proof, Quantization, Tensor
from qfmt.ops import OPERATORS

CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
PARAMETERS = ("multiplier", "shift", "add", "thresholds", "row")

RANDOM = np.random.default_rng(3)
WEIGHT = RANDOM.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8)
BIAS = np.array([100, -2000, 30], np.int32)
STEPS = np.array([np.linspace(-60000, 60000, 15), np.linspace(0, 0, 15)]).astype(np.int32)


def grid(scale: float, zero_point: int, low: int = 0, high: int = 255) -> Quantization:
    return Quantization.of((scale,), (zero_point,), low, high)


def node(operator: str, inputs: str, output: str, rule: str = "", **attributes: Any) -> Node:
    """`inputs` are names separated by spaces; `-` is an absent one."""
    names = tuple(name.replace("-", "") for name in inputs.split())
    entry = OPERATORS[operator]
    return Node(operator, names, (output,), entry.complete(attributes), output, entry.version, rule)


def requantized(inputs: str, output: str, rule: str, axis: int = 1, reach: int = 1 << 24) -> Node:
    made = node("qfmt.Requantize", inputs, output, rule, axis=axis)
    return replace(made, proof=Proof((-reach,), (reach,)))


def network(nodes: dict[str, Node] | None = None, *tensors: Tensor, inputs: tuple[str, ...] = ("x",)) -> Model:
    """The network, with some nodes (by their outputs) and tensors replaced."""
    image = ("N", 3, 5, 5)
    unit = Quantization.of((0.5, 0.25, 1.0), (0, 0, 0), -(1 << 24), 1 << 24, 1)
    known = [
        Tensor("x", "uint8", ("N", 2, 5, 5), None, grid(0.5, 7)),
        Tensor.constant("w", WEIGHT),
        Tensor.constant("b", BIAS),
        Tensor("sums", "int32", image, None, unit),
        Tensor.constant("m", np.array([1 << 30, 3 << 28, 12345], np.int32)),
        Tensor.constant("shift", np.array([42, 40, 20], np.uint8)),
        Tensor.constant("add", np.array([1 << 41, -(1 << 45), 7], np.int64)),
        Tensor.constant("steps", STEPS),
        Tensor.constant("row", np.array([-1, 1, 0], np.int32)),
        Tensor("y", "uint8", image, None, grid(1.0, 5, 3, 18)),
        Tensor.constant("table", np.arange(256)[::-1].astype(np.uint8)),
        Tensor("t", "uint8", image, None, grid(2.0, 9)),
        Tensor("total", "int32", image),
        Tensor.constant("one", np.array([3], np.uint8)),
        Tensor("out", "int8", image, None, grid(1.0, -3, -128, 127)),
        Tensor.constant("pairs", (np.arange(65536).reshape(256, 256) % 251).astype(np.uint8)),
        Tensor("pair", "uint8", image, None, grid(1.0, 0)),
    ]
    steps = {
        "sums": node("Conv", "x w b", "sums", "folded", **CONV),
        "y": requantized("sums m shift add steps row", "y", "multiply_shift"),
        "t": node("qfmt.Table", "y table", "t"),
        "total": node("qfmt.WeightedSum", "y t", "total", weights=(5, -3)),
        "out": requantized("total - one", "out", "power_of_two"),
        "pair": node("qfmt.PairTable", "y t pairs", "pair"),
    }
    by_name = {tensor.name: tensor for tensor in (*known, *tensors)}
    chosen = (*(steps | (nodes or {})).values(),)
    return Model(Graph(inputs, ("out", "pair"), chosen, by_name), "test", "integer", {"integer_only": "exact"})


def changed(name: str, **changes: Any) -> Model:
    """The network with one node changed: by its output, rule, inputs or single attributes."""
    old = next(each for each in network().nodes if each.outputs == (name,))
    own = {key: changes.pop(key) for key in list(changes) if key in old.attributes}
    return network({name: replace(old, attributes={**old.attributes, **own}, **changes)})


def constant(name: str, array: Any, quantization: Quantization | None = None) -> Model:
    return network(None, Tensor.constant(name, np.array(array), quantization))


def other(name: str, **changes: Any) -> Model:
    return network(None, replace(network().tensors[name], **changes))


INT32, INT64, BYTE = np.int32, np.int64, np.uint8
ONE_STEP_BACK = np.where(np.arange(15) == 9, -99999, STEPS).astype(np.int32)
WIDE = Tensor.constant("wide", np.array(7))
SQUARE = Tensor.constant("v", np.eye(2, dtype=np.int8))
OPEN = Tensor("o", "uint8", ("N", 3, None, None), None, grid(1.0, 0))
MEANS = Tensor("f", "int32", ("N", 3, None, None))
OVER_THE_EDGE = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "ceil_mode": 1}

BROKEN: list[tuple[str, Model]] = [
    ("V48", other("sums", quantization=grid(1.0, 1, -9, 9))),
    ("V58", other("x", quantization=Quantization.of((0.5, 0.5), (7, 8), 0, 255, 1))),
    ("V58", other("x", dtype="float32", quantization=None)),
    ("V58", other("x", dtype="uint32")),
    ("V58", other("x", dtype="int32")),
    ("V58", constant("w", WEIGHT.astype(np.float32))),
    ("V61", constant("w", WEIGHT, Quantization.of((1.0,) * 3, (0, 1, 0), -128, 127, 0))),
    ("V61", network({}, Tensor("w", "int8", (3, 2, 3, 3)), inputs=("x", "w"))),
    ("V59", constant("b", BIAS.astype(np.int64))),
    ("V59", constant("b", BIAS, grid(1.0, 0, -9999, 9999))),
    ("V43", constant("b", BIAS[:2])),
    ("V43", constant("b", BIAS[:1])),
    ("V66", other("out", dtype="uint32", quantization=grid(1.0, 3, 0, 9))),
    ("V66", other("y", quantization=Quantization.of((1.0,) * 3, (5,) * 3, 3, 18, 1))),
    ("V65", changed("y", inputs=("sums", "m", "shift"))),
    ("V65", changed("y", inputs=("sums", "m", "shift", "add", "steps"))),
    ("V65", changed("y", inputs=("sums", "m", "shift", "add", "", "row"))),
    ("V65", changed("y", rule="fixed_point_single")),
    ("V65", changed("y", rule="power_of_two")),
    ("V65", changed("out", inputs=("total", "", "one", "add"))),
    ("V65", changed("y", rule="thresholds")),
    ("V63", changed("y", axis=4)),
    ("V63", changed("y", axis=-1)),
    ("V63", changed("y", axis=2)),
    ("V68", changed("y", proof=Proof((), ()))),
    ("V68", changed("y", proof=Proof((-1,), (2, 3, 4)))),
    ("V68", changed("y", proof=Proof((-1, 2), (3, 4)))),
    ("V68", changed("y", proof=Proof((5,), (4,)))),
    ("V68", changed("y", proof=Proof((-1,), (2,), "float_bias", (1, 2), 1))),
    ("V68", changed("t", proof=Proof((-1,), (2,)))),
    ("V63", constant("m", np.array([1, 2, 3]))),
    ("V64", constant("m", np.array([1, 0, 3], INT32))),
    ("V63", constant("m", np.array([1, 2], INT32))),
    ("V63", constant("m", np.array([[1, 2, 3]], INT32))),
    ("V63", constant("m", np.array([], INT32))),
    ("V63", constant("m", np.array([1, 2, 3], INT32), grid(1.0, 0, 0, 9))),
    ("V63", network({}, Tensor("m", "int32", (3,)), inputs=("x", "m"))),
    ("V64", constant("shift", np.array([42, 63, 20], BYTE))),
    ("V64", constant("add", np.array([0, 1 << 62, 0], INT64))),
    ("V64", constant("add", np.array([0, -(1 << 63), 0], INT64))),
    ("V64", constant("row", np.array([-1, 2, 0], INT32))),
    ("V64", constant("row", np.array([-2, 1, 0], INT32))),
    ("V63", constant("steps", STEPS[:, :14])),
    ("V64", constant("steps", ONE_STEP_BACK)),
    ("V63", constant("steps", np.zeros((0, 15), INT32))),
    ("V63", constant("table", np.arange(255).astype(BYTE))),
    ("V63", constant("table", np.arange(256).astype(np.int16))),
    ("V64", other("t", quantization=grid(2.0, 9, 0, 254))),
    ("V63", network({}, Tensor("table", "uint8", (256,)), inputs=("x", "table"))),
    ("V63", constant("pairs", np.zeros((256, 255), BYTE))),
    ("V67", changed("total", weights=(5,))),
    ("V67", changed("total", weights=(1 << 56, 1))),
    ("V49", network({"total": node("qfmt.WeightedSum", "y wide", "total", weights=(1, 1))}, WIDE)),
    ("V60", network({"f": node("Gemm", "v v", "f", "exact", alpha=2.0)}, SQUARE, Tensor("f", "int32", (2, 2)))),
    ("V62", network({"f": node("AveragePool", "o", "f", "exact", **OVER_THE_EDGE)}, OPEN, MEANS, inputs=("x", "o"))),
]
"""Networks, each with the rule that it breaks."""


def extreme_of_nothing(operator: str) -> Model:
    """ReduceMax or ReduceMin of uint8 [0, 3], whose integers are 10 to 90, over the first axis."""
    grid = Quantization.of([0.5], [2], 10, 90)
    tensors = {
        "x": Tensor("x", "uint8", (0, 3), quantization=grid),
        "axes": Tensor.constant("axes", np.array([0])),
        "y": Tensor("y", "uint8", (3,), quantization=grid),
    }
    attributes: dict[str, Attribute] = {"keepdims": 0, "noop_with_empty_axes": 0}
    node = Node(operator, ("x", "axes"), ("y",), attributes, version=OPERATORS[operator].version)
    return Model(Graph(("x",), ("y",), [node], tensors))
