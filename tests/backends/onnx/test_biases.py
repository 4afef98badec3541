"""Export to ONNX: biases that ONNX Runtime would round too far, or whose scale it would ignore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from qfmt.model import Graph, Model, Node, Quantization, Tensor, numpy_dtype
from qfmt.ops import OPERATORS
from support.onnx_witness import LEVELS, runtime

f32 = np.float32
RNG = np.random.default_rng(0)
X, FINE = 2.0**-8, 2.0**-40
"""The scale of the input, and that of channels without weights: PyTorch's observers give them 1.2e-7."""

WEIGHT = {
    "Conv": (4, 4, 2, 2),
    "ConvTranspose": (4, 4, 2, 2),
    "Gemm": (4, 4),
    "qfmt.Linear": (4, 4),
    "MatMul": (4, 4),
}
CHANNELS = {"ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
"""The axis of output channels, if it is not 0."""


BETWEEN: list[list[str]] = [[], ["Relu"], ["Mul"], ["Relu", "Add"], ["Transpose", "Transpose"], ["Sub", "Relu", "Div"]]
NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}
"""What changes nothing, which ONNX Runtime removes."""

ZERO = {"uint8": 100, "uint16": 1 << 15}


def network(
    name: str, bias: Tensor, scales: list[float], between: Sequence[str], step: float, dtype: str = "uint8"
) -> Model:
    """x · w + bias, then other nodes, quantized. Scales are powers of two, so sums of floats are exact."""
    axis = CHANNELS.get(name, 0)
    grid = Quantization.of(scales, (0, 0, 0, 0), -128, 127, axis)
    integers = np.moveaxis(RNG.integers(-4, 5, WEIGHT[name], np.int8), axis, 0)
    integers[np.array(scales) == FINE] = 0
    w = Tensor.constant("w", np.ascontiguousarray(np.moveaxis(integers, 0, axis)), grid)
    x = Tensor("x", "uint8", (2, 4, 4, 4) if len(WEIGHT[name]) == 4 else (2, 4),
               quantization=Quantization.per_tensor(X, 3, "uint8"))  # fmt: skip
    y = Tensor("y", dtype, None, quantization=Quantization.per_tensor(step, ZERO[dtype], dtype))
    real = [Tensor(each, "float32", None) for each in ("a", "b", *(f"c{index}" for index in range(len(between))))]
    constants = [Tensor.constant(each, np.array(value, f32)) for each, value in NEUTRAL.items()]
    attributes = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    if name == "MatMul":
        nodes = [Node(name, ("x", "w"), ("a",), version=13), Node("Add", ("a", bias.name), ("b",), version=14)]
    else:
        padding = {"output_padding": (0, 0)} if name == "ConvTranspose" else {}
        given = OPERATORS[name].complete(attributes | padding if len(WEIGHT[name]) == 4 else {})
        version = {"Conv": 22, "ConvTranspose": 22, "Gemm": 13}.get(name, 1)
        nodes = [Node(name, ("x", "w", bias.name), ("b",), given, version=version)]
    for index, each in enumerate(between):
        names = (nodes[-1].outputs[0], *([each] if each in NEUTRAL else []))
        turn = {"perm": (1, 0, *range(2, len(WEIGHT[name])))} if each == "Transpose" else {}
        version = OPERATORS[each].version
        nodes.append(Node(each, names, (f"c{index}",), turn, version=version))
    nodes.append(Node("QuantizeLinear", nodes[-1].outputs, ("y",), version=23, rule="divide"))
    used = {each for node in nodes for each in (*node.inputs, *node.outputs)}
    tensors = {each.name: each for each in (x, w, bias, y, *real, *constants) if each.name in used}
    return Model(Graph(("x",), ("y",), nodes, tensors))


def agrees(model: Model, form: str) -> None:
    feeds = {"x": RNG.integers(0, 256, model.tensors["x"].shape, np.uint8)}
    wanted = model.run(feeds)
    assert len(np.unique(wanted["y"])) > 2
    for level in LEVELS:
        found = runtime(model.to_onnx(form=form), feeds, level)
        for name, array in zip(model.graph.outputs, found, strict=True):
            np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("between", BETWEEN, ids=",".join)
@pytest.mark.parametrize("name", WEIGHT)
def test_a_bias_that_int32_does_not_hold(name: str, between: list[str], form: str) -> None:
    """In units of the sums, that is, of a channel without weights."""
    bias = Tensor.constant("bias", np.array([0.5, 3, -3, 1], f32))
    agrees(network(name, bias, [2.0**-6, FINE, FINE, 2.0**-7], between, 2.0**-3), form)


@pytest.mark.parametrize("beyond", [-0.25, 0, 0.25])
@pytest.mark.parametrize("name", WEIGHT)
def test_a_bias_beside_the_largest_integer(name: str, beyond: float) -> None:
    """2^31 becomes -2^31 where ONNX Runtime quantizes it."""
    bias = Tensor.constant("bias", np.array([0.5, X * 2.0**11 + beyond, -X * 2.0**11 - beyond, 1], f32))
    agrees(network(name, bias, [2.0**-6, 2.0**-20, 2.0**-20, 2.0**-7], [], 2.0**-1), "qdq")


@pytest.mark.parametrize("shape", [(4, 4), (4, "N"), None])
@pytest.mark.parametrize("name", ["Gemm", "MatMul"])
def test_a_bias_beside_a_weight_that_is_computed(name: str, shape: tuple[int | str, ...] | None) -> None:
    bias = Tensor.constant("bias", np.array([0.5, 3, -3, 1], f32))
    model = network(name, bias, [2.0**-6] * 4, [], 2.0**-3)
    grid = Quantization.per_tensor(FINE, 0, "int8")
    graph = replace(
        model.graph, inputs=("x", "w"), tensors={**model.tensors, "w": Tensor("w", "int8", shape, None, grid)}
    )
    feeds = {"x": np.zeros((2, 4), np.uint8), "w": np.zeros((4, 4), np.int8)}
    model = model.replace(graph=graph)
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("between", [[], ["Relu"]], ids=",".join)
@pytest.mark.parametrize("name", WEIGHT)
def test_a_bias_of_a_real_output(name: str, between: list[str]) -> None:
    """ONNX Runtime rounds it for what is quantized, and for the output, too."""
    bias = Tensor.constant("bias", np.array([0.5, 3, -3, 1], f32) + f32(2.0**-12))
    model = network(name, bias, [2.0**-2] * 4, between, 2.0**-3)
    agrees(model.replace(graph=replace(model.graph, outputs=("y", "b"))), "qdq")


@pytest.mark.parametrize("between", BETWEEN, ids=",".join)
@pytest.mark.parametrize("name", WEIGHT)
def test_a_bias_is_not_rounded_beyond_steps_of_16_bits(name: str, between: list[str]) -> None:
    """They may be smaller than those of the sums, to which ONNX Runtime rounds it."""
    bias = Tensor.constant("bias", np.array([0.5, 3, -3, 1], f32) + f32(2.0**-13))
    agrees(network(name, bias, [2.0**-2] * 4, between, 2.0**-13, "uint16"), "qdq")


@pytest.mark.parametrize("kind", ["int2", "int4", "uint4", "int8", "int16", "uint16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("name", ["qfmt.Linear", "MatMul"])
def test_a_bias_that_is_added_to_a_product(name: str, shape: tuple[int, ...], dtype: str, kind: str) -> None:
    """ONNX Runtime makes a Gemm of both, and failed at that."""
    integers = RNG.integers(0, 2, (4, 4), np.uint8).astype(numpy_dtype(kind))
    w = Tensor.constant("w", integers, Quantization.per_tensor(0.25, 0, kind), dtype=kind)
    x = Tensor("x", dtype, shape, quantization=Quantization.per_tensor(0.5, 3, dtype))
    bias = Tensor.constant("bias", np.array([1, 2, -3, 4], f32))
    y, real = (Tensor(each, "float32", None) for each in "ya")
    if name == "MatMul":
        nodes = [Node(name, ("x", "w"), ("a",), version=13), Node("Add", ("a", "bias"), ("y",), version=14)]
    else:
        nodes = [Node(name, ("x", "w", "bias"), ("y",), version=1)]
    used = {each for node in nodes for each in (*node.inputs, *node.outputs)}
    tensors = {each.name: each for each in (x, w, bias, y, real) if each.name in used}
    model = Model(Graph(("x",), ("y",), nodes, tensors))
    feeds = {"x": RNG.integers(0, 100, shape).astype(dtype)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("between", BETWEEN, ids=",".join)
@pytest.mark.parametrize("name", WEIGHT)
def test_the_scale_of_a_bias_is_its_own(name: str, between: list[str], form: str) -> None:
    """Not that of the sums."""
    agrees(network(name, in_int32([900, -5000, 3000, 7000], X * 2.0**-5), [2.0**-6] * 4, between, 2.0**-3), form)


@pytest.mark.parametrize("ratio", [2.0**-7, 0.5, 2])
@pytest.mark.parametrize("name", WEIGHT)
def test_the_scale_of_a_bias_is_its_own_in_small_units(name: str, ratio: float) -> None:
    """ONNX Runtime compares the scales of a convolution, but all tiny ones are equal to it."""
    unit = X * 2.0**-14
    agrees(network(name, in_int32([900, -500, 300, 700], unit * ratio), [2.0**-14] * 4, [], 16 * unit), "qdq")


def in_int32(integers: Sequence[int], scale: float) -> Tensor:
    grid = Quantization.of([scale] * 4, (0, 0, 0, 0), -(2**31), 2**31 - 1, 0)
    return Tensor.constant("bias", np.array(integers, np.int32), grid)


@pytest.mark.parametrize("between", [[], ["Flatten"]], ids=",".join)
@pytest.mark.parametrize("moves", [[], ["Expand"], ["Transpose", "Transpose"]], ids=",".join)
@pytest.mark.parametrize("operator", ["Add", "Sum"])
@pytest.mark.parametrize("name", ["MatMul", "Gemm"])
def test_a_bias_that_int32_does_not_hold_is_added(
    name: str, operator: str, moves: list[str], between: list[str]
) -> None:
    """ONNX Runtime removes the moves, and makes a Gemm of the others."""
    bias = Tensor.constant("bias", np.array([0.5, 3, -3, 1], f32))
    model = network("MatMul", bias, [2.0**-6, FINE, FINE, 2.0**-7], [], 2.0**-3)
    product, _, quantize = model.graph.nodes
    given = OPERATORS[name].complete({})
    nodes = [Node(name, product.inputs, ("a",), given, version=OPERATORS[name].version)]
    for index, each in enumerate(moves):
        names = (nodes[-1].outputs[0], *(["shape"] if each == "Expand" else []))
        turn = {"perm": (1, 0)} if each == "Transpose" else {}
        nodes.append(Node(each, names, (f"m{index}",), turn, version=OPERATORS[each].version))
    nodes.append(Node(operator, (nodes[-1].outputs[0], "bias"), ("b",), version=OPERATORS[operator].version))
    nodes += [Node(each, ("b",), ("f",), {"axis": 1}, version=OPERATORS[each].version) for each in between]
    nodes.append(replace(quantize, inputs=nodes[-1].outputs))
    used = {each for node in nodes for each in (*node.inputs, *node.outputs)}
    real = [
        Tensor(each, "float32", (4, 2) if each == "m0" and len(moves) == 2 else (2, 4)) for each in ("m0", "m1", "f")
    ]
    more = [*real, Tensor.constant("shape", np.array([1]))]
    tensors = {**model.tensors, **{each.name: each for each in more if each.name in used}}
    agrees(model.replace(graph=replace(model.graph, nodes=nodes, tensors=tensors)), "qdq")


@pytest.mark.parametrize("weight", ["float32", "float8_e4m3fn", "blocks", "rows"])
@pytest.mark.parametrize("opset", [None, 21, 25])
@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_int8_by_real_weights_and_a_bias(shape: tuple[int, ...], opset: int | None, weight: str) -> None:
    """ONNX Runtime makes a Gemm of both, and failed at that."""
    grids = {
        "float8_e4m3fn": ("float8_e4m3fn", Quantization.of(0.25, 0, -448, 448)),
        "blocks": (
            "int8",
            Quantization.of_blocks("int8", (4, 4), (2, 1), np.full((2, 4), 0.25, f32), np.zeros(1, int)),
        ),
        "rows": ("int8", Quantization.of([0.5, 0.25, 0.5, 1], [0] * 4, -128, 127, 0)),
    }
    integers = RNG.integers(-2, 3, (4, 4))
    w = Tensor.constant("w", integers.astype(f32))
    if weight in grids:
        dtype, grid = grids[weight]
        w = Tensor.constant("w", integers.astype(numpy_dtype(dtype)), grid, dtype=dtype)
    x = Tensor("x", "int8", shape, quantization=Quantization.per_tensor(0.5, 3, "int8"))
    real = [Tensor("r", "float32", shape), *(Tensor(each, "float32", None) for each in "vay")]
    nodes = [Node("DequantizeLinear", ("x",), ("r",), version=23)]
    if weight in grids:
        nodes.append(Node("DequantizeLinear", ("w",), ("v",), version=23))
    nodes += [Node("MatMul", ("r", "v" if weight in grids else "w"), ("a",), version=13),
              Node("Add", ("a", "bias"), ("y",), version=14)]  # fmt: skip
    used = {each for node in nodes for each in (*node.inputs, *node.outputs)}
    held = (x, w, *real, Tensor.constant("bias", np.array([1, 2, -3, 4], f32)))
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in held if each.name in used}))
    feeds = {"x": RNG.integers(-100, 100, shape, np.int8)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(opset=opset), feeds, level)[0], model.run(feeds)["y"])
