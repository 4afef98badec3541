"""Validity rules: for each, a model breaks it and, if possible, no other; files report the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import qfmt
from golden.model import golden_model
from networks.integer import BROKEN as BROKEN_INTEGERS
from networks.integer import network as integer_network
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.errors import QfmtError, ValidityError, VersionError
from qfmt.file import header
from qfmt.file.checker import CONTAINER_RULES
from qfmt.model import DTYPES, ArrayData, Observed, Parameter, StoredArray, Vector
from qfmt.ops import OPERATORS, Quantized
from qfmt.quantization import Bytes
from qfmt.rules import RULES, violations
from support.crafted import crafted
from support.examples import examples
from support.mutants import overwrite, sealed, survives
from support.strategies import models

BYTES = ArrayData(np.zeros(54, np.uint8))


def quantized(**changes: Any) -> Quantization:
    """The quantization of `conv.weight`, changed."""
    weight = golden_model().tensors["conv.weight"].quantization
    assert weight is not None
    return replace(weight, **changes)


def tensor(name: str, /, **changes: Any) -> Model:
    """The golden model with one tensor changed, selected by its old name."""
    model = golden_model()
    tensors = {**model.tensors, name: replace(model.tensors[name], **changes)}
    return replace(model, graph=replace(model.graph, tensors=tensors))


def node(index: int, /, **changes: Any) -> Model:
    """The golden model with one node changed: 0 QuantizeLinear, 1 Conv, 2 DequantizeLinear, 3 unknown."""
    model = golden_model()
    nodes = list(model.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(model, graph=replace(model.graph, nodes=nodes))


def graph(**changes: Any) -> Model:
    model = golden_model()
    return replace(model, graph=replace(model.graph, **changes))


def extended(extra: Node, *tensors: Tensor) -> Model:
    """The golden model with an additional node and tensors."""
    model = golden_model()
    known = {**model.tensors, **{tensor.name: tensor for tensor in tensors}}
    return replace(model, graph=replace(model.graph, nodes=[*model.nodes, extra], tensors=known))


def weight(**changes: Any) -> Model:
    return tensor("conv.weight", quantization=quantized(**changes))


def conv(**attributes: Any) -> Model:
    given = {**golden_model().nodes[1].attributes, **attributes}
    return node(1, attributes={key: value for key, value in given.items() if value is not None})


def with_attributes(operator: str, inputs: int = 1, **attributes: Any) -> Model:
    """The golden model with an additional node, whose attributes are the defaults but for these."""
    entry = OPERATORS[operator]
    given = {**entry.complete({}), **attributes}
    extra = Node(operator, ("y",) * inputs, ("z",), given, version=entry.version)
    return extended(extra, Tensor("z", "float32", None))


def numbers(dtype: str, *values: float) -> Parameter:
    """Numbers that are not checked against the rules."""
    return Parameter.of_values(np.array(values if len(values) > 1 else values[0], dtype))


def by_blocks(
    *, scales: tuple[float, ...] = (0.5, -1.0, 0.0, 4.0), points: tuple[int, ...] = (3,), **changes: Any
) -> Model:
    """The golden model whose `conv.weight` has four blocks of 1x2x3x3."""
    grid = Quantization.of_blocks(
        "int8", (2, 3, 3, 3), (1, 2, 3, 3), np.array(scales, np.float32), np.array(points), limits=(-127, 127)
    )
    return tensor("conv.weight", quantization=replace(grid, **changes))


def dequantized(model: Model) -> Model:
    """The model with a quantize rule for Conv, which a block-wise weight requires."""
    nodes = tuple(replace(node, rule=node.rule.replace("float_bias", "divide")) for node in model.nodes)
    return replace(model, graph=replace(model.graph, nodes=nodes))


IMAGE = StoredArray.of(np.zeros((1, 3, 8, 8), np.float32))
MAP = StoredArray.of(np.zeros((1, 2, 4, 4), np.float32))
SIZE = StoredArray.of(np.int64(3))


def vector(
    inputs: dict[str, StoredArray] | None = None, *, outputs: dict[str, StoredArray] | None = None, name: str = ""
) -> Model:
    """The golden model with a test vector; `conv` is an output of the graph if it has a value."""
    given = Vector(inputs or {"x": IMAGE}, outputs or {"y": MAP, "größe": SIZE}, name)
    model = golden_model() if "conv" not in given.outputs else graph(outputs=("y", "größe", "conv"))
    return replace(model, vectors=(given,))


def tensors_only() -> Model:
    return Model(Graph((), (), (), {"a": Tensor.constant("a", np.zeros(2))}))


def archived(**changes: Any) -> Model:
    """The weight of the golden model without a graph, where no node requires an axis."""
    return Model(Graph((), (), (), {"conv.weight": weight(**changes).tensors["conv.weight"]}))


COMPUTED = Quantization.of_blocks("int8", (3, 4), (2, 2), np.array([1, 2, -1, 1], np.float32))
TILES = Quantization.of_blocks("int8", (3, 4), (2, 2), np.array([1, 2, 1, 1], np.float32))
POINTS = StoredArray.of(np.arange(4, dtype=np.int8).reshape(2, 2, 1, 1))
PLAIN = Quantization.of(0.5, 0, 0, 255)
CODES = replace(numbers("uint8", 1), quantization=PLAIN)
ACTIVATION = Quantization.of((0.05000000074505806,), (3,), 3, 255)


def joined(grid: Quantization, rule: str = "") -> Model:
    """The golden model with a Concat onto a grid."""
    join = Node("Concat", ("conv", "conv"), ("z",), {"axis": 0}, version=13, rule=rule)
    return extended(join, Tensor("z", "uint8", (None, 2, 4, 4), None, grid))


def reshaped(operator: str, name: str, given: np.ndarray) -> Model:
    """The golden model with a node whose output has whatever shape that constant gives."""
    known = OPERATORS[operator]
    names = tuple(each.name if each.name == name else "" for each in known.inputs[1:])
    inputs = ("y", *names[: names.index(name) + 1])
    node = Node(operator, inputs, ("z",), known.complete({}), version=known.version)
    return extended(node, Tensor.constant(name, given), Tensor("z", "float32", None))


def combined(operator: str, version: int, rule: str, grid: Quantization, *others: Tensor) -> Model:
    """The golden model with a node of `conv` and other tensors onto a grid."""
    names = ("conv", *(tensor.name for tensor in others))
    shape = ("N", 2, *((1, 1) if operator == "GlobalAveragePool" else (4, 4)))
    node = Node(operator, names, ("z",), OPERATORS[operator].complete({}), version=version, rule=rule)
    return extended(node, Tensor("z", "uint8", shape, None, grid), *others)


ONE = Tensor.constant("one", np.array(9, np.uint8), ACTIVATION.with_values(scale=0.5))
EACH = Quantization.of((0.5, 1.0), 3, 3, 255, 1)
VECTOR = Tensor.constant("vector", np.ones(4, np.int8), Quantization.of((0.5, 1.0, 2.0, 4.0), 0, -127, 127, 0))
NORMS = [Tensor.constant(name, np.ones(2, np.float32)) for name in ("scale", "b", "mean", "var")]

BROKEN: list[tuple[str, Model]] = [
    ("V1", tensor("y", name="")),
    ("V1", tensor("y", name="z")),
    ("V2", tensor("größe", dtype="complex64")),
    ("V3", tensor("größe", shape=(1, -1))),
    ("V3", tensor("größe", shape=("",))),
    ("V3", tensor("größe", shape=(1,) * 33)),
    ("V3", tensor("größe", shape=(2**40, 2**20))),
    ("V3", tensor("größe", shape=(True,))),
    ("V3", tensor("conv.bias", shape=("N",))),
    ("V3", tensor("conv.bias", shape=None)),
    ("V4", tensor("y", aliases=("b", "a"))),
    ("V4", tensor("y", aliases=("",))),
    ("V5", tensor("y", aliases=("a\0b",))),
    ("V5", tensor("y", aliases=("\ud800",))),
    ("V10", tensor("constant.bool", shape=(7,))),
    ("V10", tensor("conv.weight", data=ArrayData(np.zeros(53, np.int8)))),
    ("V11", tensor("constant.bool", data=ArrayData(np.array([0, 1, 2, 0, 0], np.uint8)))),
    ("V12", tensor("constant.int4", data=ArrayData(np.array([0, 0, 0x10], np.uint8)))),
    ("V12", tensor("constant.uint2", data=ArrayData(np.array([0, 4], np.uint8)))),
    ("V20", weight(scale=numbers("int8", 1, 1))),
    ("V20", weight(scale=replace(numbers("float32", 1, 1), data=ArrayData(np.ones(3, np.float32))))),
    ("V20", weight(zero_point=numbers("uint8", 1, 2, 3))),
    ("V20", dequantized(weight(zero_point=numbers("float32", 0.5, 1)))),  # float64 scales
    ("V20", tensor("größe", dtype="int8", quantization=Quantization.of(1.0, 0.5, -127, 127))),
    ("V20", archived(offset=numbers("int8", 1, 2))),
    ("V20", archived(offset=numbers("float16", 1, 2, 3))),
    ("V20", archived(scale=replace(numbers("int16", 1, 2), quantization=PLAIN))),
    ("V20", archived(scale=replace(numbers("uint8", 1, 2), quantization=replace(PLAIN, scale=CODES)))),
    ("V20", archived(table=numbers("float32", *range(255)))),
    ("V20", archived(table=numbers("int32", *range(256)))),
    ("V20", tensor("constant.float8_e5m2", quantization=Quantization.of(1.0, 1, -8, 57344))),
    ("V20", tensor("constant.float8_e5m2", quantization=Quantization.of(1.0, 0.0, -8, 57344))),
    ("V21", archived(scale=replace(numbers("uint8", 1, 2), quantization=replace(PLAIN, block=(0, 1))))),
    ("V21", archived(block=())),
    ("V21", archived(block=(0, 0, 0, 0, 1))),
    ("V21", archived(block=(-1,))),
    ("V21", archived(block=(1, 0))),
    ("V21", archived(block=(0, 1))),
    ("V21", archived(scale=numbers("float64", 1, 2, 3))),
    ("V21", dequantized(by_blocks(block=(1, 2, 3)))),
    ("V21", dequantized(by_blocks(block=(1, 3)))),
    ("V21", dequantized(by_blocks(group_index=numbers("uint8", 0, 1)))),
    ("V21", dequantized(by_blocks(group_index=numbers("int8", 0, 1, 0)))),
    ("V21", archived(group_index=numbers("uint8", 0, 1))),
    ("V21", tensor("größe", dtype="int8", shape=(3, None), quantization=COMPUTED)),
    ("V22", weight(scale=numbers("float32", 0, 1))),
    ("V22", weight(scale=numbers("float32", -1, 1))),
    ("V22", weight(scale=numbers("float32", 1, float("nan")))),
    ("V22", weight(scale=numbers("float32", 1, float("inf")))),
    ("V22", weight(scale=numbers("float64", 1e-60, 1))),
    ("V22", weight(scale=numbers("float64", 1e300, 1))),
    ("V22", weight(zero_point=numbers("int16", 0, 128))),
    ("V22", weight(zero_point=numbers("int8", 1, 2))),  # uint8 is required
    ("V22", weight(zero_point=numbers("uint8", 1, 1))),
    ("V22", dequantized(weight(zero_point=numbers("float64", 0.5, float("inf"))))),
    ("V22", archived(offset=numbers("float16", 1, float("nan")))),
    ("V22", archived(offset=numbers("float16", 1, 1))),
    ("V22", dequantized(by_blocks(scale=Parameter.of_values(np.array([1, 1e60, 1, 1]).reshape(2, 2))))),
    ("V22", dequantized(by_blocks(scales=(1, 2, float("nan"), 1)))),
    ("V22", dequantized(by_blocks(scales=(1, 2, float("inf"), 1)))),
    ("V22", dequantized(by_blocks(group_index=numbers("uint8", 0, 2, 1)))),
    ("V22", tensor("größe", dtype="int8", shape=(3, 4), quantization=COMPUTED)),
    ("V23", weight(quant_min=-129)),
    ("V23", weight(quant_min=128, quant_max=127)),
    ("V23", weight(quant_max=None)),
    ("V23", weight(quant_min=-126)),
    ("V23", weight(quant_max=-100)),
    ("V23", tensor("constant.int4", quantization=Quantization.of(1.0, 0, -7, 7))),
    ("V23", tensor("constant.float8_e4m3fn", quantization=Quantization.of(1.0, 0, -448, 449))),
    ("V23", tensor("constant.float8_e4m3fn", quantization=Quantization.of(1.0, 0, -448, 447))),
    ("V23", tensor("x", quantization=Quantization.of(1.0, 0, 0, 0))),
    ("V23", tensor("größe", quantization=Quantization.of(1.0, 0, 0, 0))),
    ("V23", tensor("constant.float16", quantization=Quantization.of(1.0, 0, 0, 0))),
    ("V25", weight(observed=Observed("", (0.0,), (1.0,)))),
    ("V25", weight(observed=Observed("a", (0.0,), ()))),
    ("V25", weight(observed=Observed("a", (0.0,) * 3, (1.0,) * 3))),
    ("V25", weight(observed=Observed("a", (2.0,), (1.0,)))),
    ("V25", weight(observed=Observed("a", (float("nan"),), (1.0,)))),
    ("V25", weight(observed=Observed("a", (0.0,), (1.0,), 3, None))),
    ("V30", graph(inputs=("x", "x"))),
    ("V30", graph(inputs=("x", "conv.bias"))),
    ("V30", graph(inputs=("x", "nothing"))),
    ("V31", node(3, inputs=("y", "nothing"))),
    ("V31", node(3, outputs=("größe", "nothing"))),
    ("V32", node(3, outputs=("größe", "größe"))),
    ("V32", node(3, outputs=("größe", "y"))),
    ("V32", node(3, outputs=("größe", "x"))),
    ("V32", node(3, outputs=("größe", "conv.bias"))),
    ("V33", node(3, inputs=("größe",))),
    ("V33", node(1, inputs=("y", "conv.weight"))),
    ("V35", graph(outputs=("y", "nothing"))),
    ("V35", graph(outputs=("y",), nodes=golden_model().nodes[:3])),
    ("V36", replace(golden_model(), producer="a\0")),
    ("V36", replace(golden_model(), metadata={"": "a"})),
    ("V36", replace(golden_model(), metadata={"epochs": 5})),  # type: ignore[dict-item]
    ("V36", node(3, attributes={"a": "\udfff"})),
    ("V40", node(3, operator="")),
    ("V40", node(3, version=0)),
    ("V40", node(3, version=2**32)),
    ("V40", node(1, version=21)),
    ("V41", node(1, inputs=("x/quantized",))),
    ("V41", node(1, inputs=("x/quantized", ""))),
    ("V41", node(1, inputs=("x/quantized", "conv.weight", "conv.bias", "conv.bias"))),
    ("V41", node(2, inputs=())),
    ("V42", conv(group=None)),
    ("V42", conv(color=1)),
    ("V42", conv(group=1.0)),
    ("V42", with_attributes("ReduceMax", keepdims=2)),
    ("V42", with_attributes("ReduceMax", keepdims=-1)),
    ("V42", with_attributes("Gelu", approximate="xyz")),
    ("V42", with_attributes("Gelu", approximate="")),
    ("V42", with_attributes("LpNormalization", p=3)),
    ("V42", with_attributes("Attention", inputs=3, softmax_precision="xyz")),
    ("V53", conv(group=True)),
    ("V53", conv(pads=(1, 1, 1, 1.0))),
    ("V53", node(3, attributes={"a": [1]})),
    ("V53", node(3, attributes={"a": 2**63})),
    ("V53", node(3, attributes={"": 1})),
    ("V43", tensor("conv", shape=("N", 2, 4, 5))),
    ("V43", tensor("conv", shape=("N", 2, 4))),
    ("V43", conv(pads=(1,))),
    ("V43", conv(strides=(0, 1))),
    ("V43", conv(strides=(-1, 1))),
    ("V43", conv(dilations=(0, 1))),
    ("V43", conv(pads=(0, -1, 0, 0))),
    ("V43", reshaped("Resize", "scales", np.array([1, 1, 0, 1], np.float32))),
    ("V43", reshaped("Reshape", "shape", np.array([-2, -16]))),
    ("V44", tensor("y", dtype="float16")),
    (
        "V44",
        extended(
            Node("Identity", ("conv",), ("z",), version=23),
            Tensor("z", "int16", ("N", 2, 4, 4), None, ACTIVATION),
        ),
    ),
    (
        "V72",
        extended(
            Node("Gather", ("conv", "at"), ("z",), {"axis": 0}, version=13),
            Tensor("z", "uint8", None, None, ACTIVATION),
            Tensor.constant("at", np.zeros(1, np.float32)),
        ),
    ),
    (
        "V73",
        extended(
            Node("Sin", ("at",), ("z",), version=22),
            Tensor("z", "int8", (2,)),
            Tensor.constant("at", np.ones(2, np.int8)),
        ),
    ),
    ("V71", extended(Node("BitwiseNot", ("conv",), ("z",), version=18), Tensor("z", "float32", ("N", 2, 4, 4)))),
    (
        "V45",
        extended(
            Node("Identity", ("conv",), ("z",), version=23),
            Tensor("z", "uint8", ("N", 2, 4, 4), None, ACTIVATION.with_values(zero_point=4)),
        ),
    ),
    ("V45", extended(Node("Identity", ("conv",), ("z",), version=23), Tensor("z", "uint8", ("N", 2, 4, 4)))),
    (
        "V54",
        extended(
            Node("Identity", ("blocks",), ("z",), version=23),
            Tensor.constant("blocks", np.zeros((3, 4), np.int8), TILES),
            Tensor("z", "int8", (3, 4), None, TILES),
        ),
    ),
    (
        "V55",
        extended(
            Node("Identity", ("conv",), ("z",), version=23),
            Tensor("z", "uint8", ("N", 2, 4, 4), None, replace(ACTIVATION, quant_max=200)),
        ),
    ),
    (
        "V55",
        extended(
            Node("Pad", ("conv", "pads"), ("z",), {"mode": "edge"}, version=23),
            Tensor.constant("pads", np.zeros(8, np.int64)),
            Tensor("z", "uint8", ("N", 2, 4, 4), None, replace(ACTIVATION, quant_max=200)),
        ),
    ),
    (
        "V46",
        extended(
            Node("Shape", ("x",), ("z",), {"start": 0, "end": 4}, version=23),
            Tensor("z", "int32", (4,), None, Quantization.of((1.0,), (0,), 0, 9)),
        ),
    ),
    ("V47", node(1, rule="")),
    ("V47", node(1, rule="reciprocal_fma")),
    ("V47", joined(ACTIVATION.with_values(zero_point=4))),
    ("V56", node(2, rule="divide")),
    ("V56", joined(ACTIVATION, "divide")),
    ("V47", by_blocks()),
    *BROKEN_INTEGERS,
    ("V52", tensor("conv.weight", quantization=Quantization.of((0.5, 1.0, 2.0), 0, -127, 127, 1))),
    (
        "V52",
        extended(
            Node("MatMul", ("conv", "vector"), ("z",), {}, version=13, rule="affine"),
            Tensor("z", "uint8", ("N", 2, 4), None, ACTIVATION),
            VECTOR,
        ),
    ),
    ("V69", combined("GlobalAveragePool", 22, "mean_reciprocal", ACTIVATION.with_values(zero_point=4))),
    ("V69", combined("Add", 14, "sum", ACTIVATION, ONE)),
    ("V69", combined("Add", 14, "sum", ACTIVATION, replace(ONE, quantization=None))),
    ("V69", combined("Mul", 14, "product", EACH, ONE)),
    ("V69", combined("PRelu", 16, "product", ACTIVATION, replace(ONE, quantization=None))),
    ("V57", tensor("x/quantized", quantization=Quantization.of((1.0, 1.0, 1.0), (0, 0, 0), 0, 255, 1))),
    ("V57", tensor("conv", quantization=EACH)),
    ("V69", combined("BatchNormalization", 15, "fused", EACH, *NORMS)),
    ("V50", vector({"y": POINTS})),
    ("V50", vector({"x": IMAGE, "y": POINTS})),
    ("V50", vector({"x": IMAGE}, outputs={"y": MAP})),
    ("V50", vector({"x": StoredArray.of(np.zeros((1, 3, 8, 8), np.int32))})),
    ("V50", replace(tensors_only(), vectors=(Vector({}, {}),))),
    ("V70", replace(vector(), vectors=(replace(vector().vectors[0], digests=bytes(15)),))),
    ("V51", vector({"x": StoredArray.of(np.zeros((1, 3, 8, 9), np.float32))})),
    ("V51", vector({"x": StoredArray.of(np.zeros((1, 3, 8), np.float32))})),
    ("V51", vector({"x": StoredArray.of(np.zeros((2, 3, 8, 8), np.float32))})),
    ("V3", vector({"x": StoredArray("float32", (1, 3, 8, -1), IMAGE.data)})),
    ("V10", vector({"x": StoredArray("float32", (1, 3, 8, 8), BYTES)})),
    ("V23", vector(outputs={"y": MAP, "größe": SIZE, "conv": StoredArray.of(np.full((1, 2, 4, 4), 2, np.uint8))})),
    ("V36", vector(name="\0")),
]


@pytest.mark.parametrize(("rule", "model"), BROKEN, ids=[f"{rule}-{index}" for index, (rule, _) in enumerate(BROKEN)])
def test_each_rule_is_broken_alone(rule: str, model: Model) -> None:
    found = violations(model)
    assert {broken.rule for broken in found} == {rule}, list(map(str, found))
    assert all(broken.where and broken.what for broken in found)


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _ in BROKEN} == {rule.number for rule in RULES}
    assert len({rule.number for rule in RULES}) == len(RULES)


def test_a_node_has_an_output_even_if_each_is_optional() -> None:
    relu, rnn = OPERATORS["Relu"], OPERATORS["RNN"]
    nodes = [
        Node("Relu", ("x",), ("y",), version=relu.version),
        Node("RNN", ("x", "w", "r"), (), rnn.complete({"hidden_size": 1}), version=rnn.version),
        Node("Unknown", ("x",), ()),
    ]
    constants = [Tensor.constant(name, np.ones((1, 1, size), np.float32)) for name, size in (("w", 2), ("r", 1))]
    tensors = [*(Tensor(name, "float32", (3, 1, 2)) for name in "xy"), *constants]
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))
    assert [str(each) for each in violations(model)] == [
        "V41 node 1 (RNN → ): it has no output",
        "V41 node 2 (Unknown → ): it has no output",
    ]


def test_valid_models_break_none() -> None:
    assert violations(golden_model()) == []
    assert violations(dequantized(by_blocks())) == []
    assert violations(dequantized(by_blocks(points=(0, 1, 2, 3)))) == []
    assert violations(dequantized(by_blocks(group_index=numbers("uint8", 1, 0, 1)))) == []
    assert violations(dequantized(by_blocks(offset=numbers("float16", 1)))) == []
    assert violations(integer_network()) == []
    assert violations(vector()) == []


@pytest.mark.parametrize(("operator", "version", "low"), [("Identity", 23, 0), ("Relu", 14, 9), ("Clip", 13, 9)])
def test_integers_are_moved_into_a_wider_range_and_clamped_into_a_narrower_one(
    operator: str, version: int, low: int
) -> None:
    z = Tensor("z", "uint8", ("N", 2, 4, 4), None, replace(ACTIVATION, quant_min=low))
    assert violations(extended(Node(operator, ("conv",), ("z",), version=version), z)) == []


@pytest.mark.parametrize("rule", sorted({rule for operator in OPERATORS.values() for rule in operator.rules}))
def test_a_rule_of_another_operator_is_a_finding(rule: str) -> None:
    """No check reads attributes that the node does not have."""
    z = Tensor("z", "uint8", ("N", 2, 4, 4), None, ACTIVATION)
    for operator in ("Relu", "Identity", "MaxPool"):
        entry = OPERATORS[operator]
        shape = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
        attributes = entry.complete(shape if operator == "MaxPool" else {})
        node = Node(operator, ("conv",), ("z",), attributes, version=entry.version, rule=rule)
        assert violations(extended(node, z)), operator


@pytest.mark.parametrize("name", ["kernel_shape", "strides", "dilations", "pads"])
def test_sizes_of_a_window_contradict_each_other_whatever_the_rank(name: str) -> None:
    sizes = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    for operator in ("MaxPool", "AveragePool", "Conv", "ConvTranspose"):
        entry = OPERATORS[operator]
        given = {**sizes, name: (*sizes[name], 1), "ceil_mode": 1, "group": 1, "output_padding": (0, 0)}
        attributes = entry.complete({each: given[each] for each in entry.attributes if each in given})
        inputs = ("x", "w") if "Conv" in operator else ("x",)
        node = Node(operator, inputs, ("y",), attributes, version=entry.version)
        tensors = {each: Tensor(each, "float32", None) for each in (*inputs, "y")}
        assert [found.rule for found in violations(Model(Graph(inputs, ("y",), (node,), tensors)))] == ["V43"]


def test_a_product_has_no_factor_without_dimensions_whatever_the_rank_of_the_other() -> None:
    tensors = {each: Tensor(each, "float32", None) for each in "xy"} | {"w": Tensor.constant("w", np.float32(1))}
    node = Node("MatMul", ("x", "w"), ("y",), {}, version=OPERATORS["MatMul"].version)
    assert [found.rule for found in violations(Model(Graph(("x",), ("y",), (node,), tensors)))] == ["V43"]


def test_bins_have_a_dimension_whatever_the_rank() -> None:
    entry = OPERATORS["qfmt.AdaptiveAveragePool"]
    node = Node("qfmt.AdaptiveAveragePool", ("x",), ("y",), {"output_size": ()}, version=entry.version)
    tensors = {each: Tensor(each, "float32", None) for each in "xy"}
    assert [found.rule for found in violations(Model(Graph(("x",), ("y",), (node,), tensors)))] == ["V43"]


def test_an_axis_has_two_pads_whatever_the_rank() -> None:
    entry = OPERATORS["Pad"]
    node = Node("Pad", ("x", "pads"), ("y",), entry.complete({}), version=entry.version)
    tensors = {each: Tensor(each, "float32", None) for each in "xy"}
    tensors["pads"] = Tensor.constant("pads", np.zeros(3, np.int64))
    assert [found.rule for found in violations(Model(Graph(("x",), ("y",), (node,), tensors)))] == ["V43"]


@examples(25)
@given(models())
def test_valid_models_of_every_kind_break_none(model: Model) -> None:
    assert violations(model) == []


def test_all_violations_are_reported_together(tmp_path: Path) -> None:
    wrong = Quantization.of((0.0,), (300,), 5, 2)
    tensors = {
        "a": Tensor("a", "uint8", (2,), ArrayData(np.zeros(2, np.uint8)), wrong),
        "b": Tensor("b", "bool", (1,), ArrayData(np.full(1, 7, np.uint8))),
        "c": Tensor("c", "float32", (-1,)),
    }
    nodes = [Node("Relu", ("x",), ("y",)), Node("Relu", (), (), {"slope": 1.0}, version=14)]
    found = violations(Model(Graph(("b",), ("d",), nodes, tensors)))
    assert [str(broken).partition(":")[0] for broken in found] == [
        "V23 tensor 'a'",
        "V11 tensor 'b'",
        "V3 tensor 'c'",
        "V30 graph",
        "V31 node 0 (Relu → y)",
        "V40 node 0 (Relu → y)",
        "V41 node 1 (Relu → )",
        "V42 node 1 (Relu → )",
        "V35 graph",
    ]
    with pytest.raises(ValidityError, match=r"^breaks rule V23 .*, V11 .*, V3 .* .and 6 more.$"):
        Model(Graph(("b",), ("d",), nodes, tensors)).save(tmp_path / "m.qfb")


def test_unknown_operators_and_versions_are_kept(tmp_path: Path) -> None:
    newer = node(1, version=1000, attributes={"anything": 1}, inputs=(), rule="unheard of")
    newer.save(tmp_path / "m.qfb")
    assert qfmt.load(tmp_path / "m.qfb") == newer


def test_every_operator_has_the_facts_that_rules_need() -> None:
    for operator in OPERATORS.values():
        assert operator.version >= 1
        assert operator.quantized is not Quantized.MOVES or operator.inputs
        for word in operator.dtype.split():
            assert word == "same" or word.startswith(("attribute:", "input:")) or word in qfmt.model.DTYPES


def test_every_truth_value_and_every_mode_has_choices() -> None:
    """Their meanings begin with one of the two values, or name the modes."""
    truths, modes = 0, 0
    for operator in OPERATORS.values():
        for name, spec in operator.attributes.items():
            if spec.meaning.startswith(("0: ", "1: ")):
                assert spec.choices == (0, 1), (operator.name, name)
                truths += 1
            if spec.kind == "s" and name != "equation":
                assert spec.choices, (operator.name, name)
                if not set(spec.choices) >= DTYPES.keys():
                    assert set(re.findall(r"`(\w+)`", spec.meaning)) == set(spec.choices), (operator.name, name)
                    modes += 1
            assert not spec.choices or spec.default is None or spec.default in spec.choices
    assert (truths, modes) > (60, 15)


def test_the_finding_names_the_choices() -> None:
    """A long value is shortened."""
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("ReduceMax", {"keepdims": 2}, "the attribute 'keepdims' is 2, not 0 or 1"),
        ("Gelu", {"approximate": "xyz"}, "the attribute 'approximate' is 'xyz', not 'none' or 'tanh'"),
        (
            "Gelu",
            {"approximate": "x" * 10**6},
            f"the attribute 'approximate' is '{'x' * 29}… (1,000,002 characters) …{'x' * 29}', not 'none' or 'tanh'",
        ),
    ]
    for operator, attributes, what in cases:
        assert [broken.what for broken in violations(with_attributes(operator, **attributes))] == [what]


UNWRITABLE = {"V1", "V2", "V5", "V36"}
"""Rules whose violations the encoder cannot write, or a map cannot contain."""


@pytest.mark.parametrize(
    ("rule", "model"),
    [(rule, model) for rule, model in BROKEN if rule not in UNWRITABLE],
    ids=[f"{rule}-{index}" for index, (rule, _) in enumerate(BROKEN) if rule not in UNWRITABLE],
)
def test_a_file_that_breaks_a_rule_is_read_with_errors_only(
    rule: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For files of a writer without validation, `check` finds the same, and reading raises only QfmtError."""
    path = tmp_path / "m.qfb"
    monkeypatch.setattr("qfmt.file.writer.violations", lambda model: [])
    try:
        model.save(path)
    except (KeyError, TypeError, QfmtError):
        return  # a file cannot represent it: the index of a missing tensor, a value that is not a number
    found = {broken.rule for broken in qfmt.check(path)}
    if survives(path.read_bytes(), path):  # a value that a file cannot represent (a size of True) became valid
        assert found == {broken.rule for broken in violations(qfmt.load(path))} <= {rule}
    else:
        assert found & {rule, "F12"}


# The container


def container_violations(data: bytes, tmp_path: Path) -> set[str]:
    overwrite(tmp_path / "m.qfb", data)
    return {broken.rule for broken in qfmt.check(tmp_path / "m.qfb")}


def patched(data: bytes, at: int, new: bytes, *, seal: bool = True) -> bytes:
    changed = data[:at] + new + data[at + len(new) :]
    return sealed(changed) if seal else changed


CONTAINER_CASES: dict[str, Callable[[bytes], bytes]] = {
    "F2": lambda data: patched(data, 56, b"\1"),
    "F3": lambda data: data + b"\0",
    "F4": lambda data: patched(data, 64, bytes(32), seal=False),
    "F5": lambda data: patched(data, header.PAGE - 1, b"\1"),
    "F6": lambda data: patched(data, 0, b"\0\0\0\0"),
    "F9": lambda data: patched(data, header.PAGE, b"\7", seal=False),
}


@pytest.mark.parametrize("rule", CONTAINER_CASES)
def test_container_rules_broken_by_bytes(rule: str, tmp_path: Path) -> None:
    data = crafted(tmp_path).read_bytes()
    assert container_violations(data, tmp_path) == set()
    assert container_violations(CONTAINER_CASES[rule](data), tmp_path) == {rule}


class Counted(Bytes):
    """Bytes that count how often they are read."""

    looks = 0

    def view(self) -> memoryview:
        Counted.looks += 1
        return super().view()


def test_shared_scales_are_checked_once() -> None:
    """Otherwise a file of 600 KB, 3,000 tensors with 30,000 scales, would take seconds."""
    weights = np.zeros((4, 2), np.int8)
    for scales, broken in (((1.0, 2.0, 3.0, 4.0), set()), ((1.0, 2.0, 0.0, 4.0), {"V22"})):
        shared = Quantization.of(scales, 0, -128, 127, 0)
        counted = replace(shared.scale, data=Counted(bytes(shared.scale.data.view())))
        shared = replace(shared, scale=counted)
        tensors = {f"t{i}": Tensor.constant(f"t{i}", weights, shared) for i in range(100)}
        Counted.looks = 0
        found = violations(Model(Graph((), (), (), tensors)))
        assert {each.rule for each in found} == broken
        assert len(found) == (100 if broken else 0)
        assert 0 < Counted.looks < 30


def test_a_buffer_that_many_arrays_share_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a small file with thousands of tensors takes quadratic time."""
    count, size = 20, 2000
    codes, scales = ArrayData(np.ones(size, np.int8)), Parameter.of_values(np.linspace(1, 2, size).astype(np.float32))
    assert not scales.is_inline
    tensors = {}
    for index in range(count):
        grid = Quantization(scales, Parameter.of_values(np.uint8(0)), -index, 100, block=(1,))
        tensors[f"t{index}"] = Tensor(f"t{index}", "int8", (size,), codes, grid)
    Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    read: list[str] = []
    parts = StoredArray.parts
    monkeypatch.setattr(StoredArray, "parts", lambda stored: read.append(stored.dtype) or parts(stored))  # type: ignore[func-returns-value]
    assert not qfmt.check(tmp_path / "m.qfb")
    assert sorted(read) == ["float32", "int8"]


def test_container_rules_broken_by_contents(tmp_path: Path) -> None:
    import hashlib

    def rules(**changes: Any) -> set[str]:
        return {broken.rule for broken in qfmt.check(crafted(tmp_path, **changes))}

    def buffer(offset: int, data: bytes) -> dict[str, Any]:
        return {"offset": offset, "size": len(data), "sha256": hashlib.sha256(data).digest()}

    zeros, ones = bytes(64), b"\1" * 64
    both = [
        {"name": "t", "dtype": 2, "shape": [64], "buffer": 0},
        {"name": "u", "dtype": 2, "shape": [64], "buffer": 1},
    ]
    assert rules() == set()
    assert rules(graph={"inputs": [1]}) == {"F7"}
    assert rules(data=zeros + ones, buffers=[buffer(0, zeros), buffer(64, ones)], graph={"tensors": both}) == set()
    assert rules(data=zeros + ones, buffers=[buffer(64, ones), buffer(0, zeros)], graph={"tensors": both}) == {"F8"}
    assert rules(data=zeros, buffers=[buffer(0, zeros), buffer(0, zeros)], graph={"tensors": both}) == {"F8", "F13"}
    assert rules(data=zeros + zeros, buffers=[buffer(0, zeros), buffer(64, zeros)], graph={"tensors": both}) == {"F13"}
    assert rules(data=zeros + zeros) == {"F8"}
    assert rules(data=zeros + b"\1") == {"F8"}
    assert rules(data=zeros + ones, buffers=[buffer(0, zeros), buffer(64, ones)]) == {"F13"}
    assert rules(graph={"tensors": [both[0], {**both[0], "name": "a"}]}) == {"F11"}
    assert rules(source=[{"key": "b", "value": ""}, {"key": "a", "value": ""}]) == {"F11"}
    assert rules(tensor={"dims": ["a", "b"]}) == {"F12"}
    with pytest.raises(VersionError):
        rules(required_features=["x"])


def test_every_container_rule_has_a_test() -> None:
    """F1 and F10 raise an error instead of being listed: the file is not a .qfb, or too new (test_file.py). F14 and F15
    are about shards (file/test_shards.py, and the conformance suite)."""
    broken = {*CONTAINER_CASES, "F7", "F8", "F11", "F12", "F13", "F1", "F10", "F14", "F15"}
    assert broken == {number for number, _ in CONTAINER_RULES}
