"""Export to ONNX: what ONNX Runtime would merge, drop or move, and what it has no kernels for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import qfmt
from cases.one_node import single
from networks import onnx_models
from qfmt.errors import InexpressibleNodesError
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from support.onnx_witness import LEVELS, runtime

f32 = np.float32
RNG = np.random.default_rng(0)
Y = Tensor("y", "float32", None)

ONE = Quantization.per_tensor(0.5, 3, "uint8")
EACH = Quantization.of((0.5, 0.25, 0.125, 1.0), (1, 2, 3, 4), 5, 250, 1)
BLOCKS = Quantization.of_blocks(
    "uint8", (2, 4, 4, 4), (2, 2, 4, 4), np.array([0.5, 0.25], f32).reshape(1, 2, 1, 1), np.array([1, 2])
)
WINDOW = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(("given", "grid"), [(EACH, ONE), (ONE, EACH), (EACH, EACH), (BLOCKS, ONE), (BLOCKS, EACH)])
@pytest.mark.parametrize(
    "name", ["Add", "Sigmoid", "LeakyRelu", "Softmax", "Concat", "AveragePool", "GlobalAveragePool"]
)
def test_computed_tensors_that_have_many_scales(name: str, given: Quantization, grid: Quantization, opset: int) -> None:
    """ONNX Runtime fuses quantized nodes around an operator as if there were one scale."""
    x = Tensor("x", "uint8", (2, 4, 4, 4), quantization=given)
    attributes = {"AveragePool": WINDOW, "Concat": {"axis": 2}}.get(name, {})
    inputs: list[Tensor | None] = [x, x] if name in ("Add", "Concat") else [x]
    model = single(name, "divide", inputs, Tensor("y", "uint8", None, quantization=grid), attributes)
    feeds = {"x": RNG.integers(5, 251, (2, 4, 4, 4), np.uint8)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(opset=opset), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_windows_with_gaps_are_averaged(form: str) -> None:
    """ONNX Runtime's quantized AveragePool has none."""
    x = Tensor("x", "uint8", (2, 4, 4, 4), quantization=ONE)
    window = {**WINDOW, "dilations": (1, 2)}
    model = single("AveragePool", "divide", [x], Tensor("y", "uint8", None, quantization=ONE), window)
    feeds = {"x": RNG.integers(0, 256, (2, 4, 4, 4), np.uint8)}
    for level in LEVELS:
        found = runtime(model.to_onnx(opset=19, form=form), feeds, level)[0]
        np.testing.assert_array_equal(found, model.run(feeds)["y"])


@pytest.mark.parametrize("scale", [2.0**-8, 1 / 255, 0.3, 0.9])
def test_softmax_on_any_grid(scale: float) -> None:
    """ONNX Runtime's quantized one multiplies by the reciprocal of the scale, without its fraction."""
    grid = Quantization.per_tensor(np.float32(scale), 0, "uint8")
    x = Tensor("x", "uint8", (64, 4), quantization=ONE)
    y = Tensor("y", "uint8", None, quantization=grid)
    model = single("Softmax", "divide", [x], y, {})
    feeds = {"x": RNG.integers(0, 8, (64, 4), np.uint8)}
    powers = np.exp((feeds["x"].astype(np.float64) - 3) / 2)
    units = powers / powers.sum(1, keepdims=True) / grid.scale[0]
    is_clear = np.abs(units % 1 - 0.5) > 1e-4  # float32 may round the others to either side
    assert is_clear.mean() > 0.9
    for level in LEVELS:
        found = runtime(model.to_onnx(), feeds, level)[0]
        np.testing.assert_array_equal(found[is_clear], model.run(feeds)["y"][is_clear])
        np.testing.assert_array_equal(found[is_clear], np.rint(units).clip(0, 255)[is_clear])


def test_constants_of_a_clip_are_followed_once() -> None:
    """Each reads one tensor three times."""
    x = Tensor("x", "uint8", (4,), quantization=ONE)
    w = Tensor.constant("w", np.ones((4, 1), np.int8), Quantization.per_tensor(0.5, 0, "int8"))
    b = Tensor.constant("b", np.ones(1, f32))
    nodes = [Node("MatMul", ("x", "w"), ("t",), version=13), Node("Add", ("t", "b"), ("c0",), version=14)]
    nodes.append(Node("Squeeze", ("c0",), ("d0",), version=23))
    nodes += [Node("Clip", (f"d{i}",) * 3, (f"d{i + 1}",), version=13) for i in range(50)]
    nodes.append(Node("QuantizeLinear", ("d50",), ("y",), version=23, rule="divide"))
    tensors = [x, w, b, Tensor("y", "uint8", None, quantization=ONE)]
    tensors += [Tensor(name, "float32", None) for name in ("t", "c0", *(f"d{i}" for i in range(51)))]
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))
    feeds = {"x": np.arange(4, dtype=np.uint8)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(), feeds, level)[0], model.run(feeds)["y"])


def test_not_a_number_that_is_quantized_per_channel() -> None:
    x = np.array([[np.nan, -np.inf, np.inf, 1e30]], f32)
    model = single("QuantizeLinear", "divide", [Tensor("x", "float32", (1, 4))],
                   Tensor("y", "uint8", None, quantization=EACH), {})  # fmt: skip
    found, wanted = runtime(model.to_onnx(), {"x": x})[0], model.run({"x": x})["y"]
    assert found.tolist() == wanted.tolist() == [[5, 5, 250, 250]]


def test_no_elements_are_normalized() -> None:
    """The process of ONNX Runtime ends if there is another node before it."""
    ones = [Tensor.constant(name, np.ones(3, f32)) for name in ("scale", "b")]
    model = single("InstanceNormalization", "", [Tensor("x", "float32", (2, 3, 0)), *ones], Y, {})
    with pytest.raises(InexpressibleNodesError, match="normalizes no elements"):
        model.to_onnx()


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("dtype", ["", "float16"])
def test_the_identity_in_the_shape_of_a_quantized_matrix(dtype: str, opset: int) -> None:
    """onnx's checker ends with the process if it does not know the type of the input."""
    x = Tensor("x", "int16", (3, 4), quantization=Quantization.per_tensor(0.5, 1, "int16"))
    model = single("EyeLike", "", [x], Tensor("y", dtype or "float32", None), {"dtype": dtype, "k": 1})
    written, feeds = model.to_onnx(opset=opset), {"x": np.zeros((3, 4), np.int16)}
    onnx.checker.check_model(written, full_check=True)
    np.testing.assert_array_equal(runtime(written, feeds)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint4"])
def test_one_quantization_after_another(dtype: str, form: str) -> None:
    """ONNX Runtime would make one of the two, with a scale that neither has."""
    limits = DTYPES[dtype]
    first = Quantization.per_tensor(0.09, limits.maximum // 2, dtype)
    second = Quantization.per_tensor(0.041, limits.minimum, dtype)
    x = RNG.normal(0, 1.5, (50, 40)).astype(f32)
    tensors = [Tensor("x", "float32", (50, 40)), Tensor("a", dtype, (50, 40), quantization=first),
               Tensor("b", dtype, (50, 40), quantization=second), Tensor("y", "float32", (50, 40))]  # fmt: skip
    nodes = [
        Node("QuantizeLinear", ("x",), ("a",), version=23, rule="divide"),
        Node("QuantizeLinear", ("a",), ("b",), version=23, rule="divide"),
        Node("DequantizeLinear", ("b",), ("y",), version=23),
    ]
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))
    for level in LEVELS:
        found = runtime(model.to_onnx(form=form), {"x": x}, level)[0]
        np.testing.assert_array_equal(found, model.run({"x": x})["y"])


@pytest.mark.parametrize("limits", [(0, 15), (7, 15), (3, 12)])
@pytest.mark.parametrize("opset", [17, 26])
@pytest.mark.parametrize("name", ["Relu", "Tanh", "MaxPool"])
def test_clamps_and_windows_of_4_bits(name: str, opset: int, limits: tuple[int, int]) -> None:
    """ONNX Runtime drops clamps before QuantizeLinear of 4 bits, and fuses nodes of which it has no kernels."""
    grid, shape = Quantization.of(0.2, 7, *limits), (2, 3, 8, 8)
    middle = Tensor("a", "uint4", shape, quantization=grid) if name == "MaxPool" else Tensor("a", "float32", shape)
    tensors = [Tensor("x", "float32", shape), middle, Tensor("b", "uint4", None, quantization=grid),
               Tensor("y", "float32", None)]  # fmt: skip
    nodes = [
        Node("QuantizeLinear", ("x",), ("a",), version=23, rule="divide"),
        Node("MaxPool", ("a",), ("b",), OPERATORS["MaxPool"].complete(WINDOW), version=22),
    ]
    if name == "Relu":
        nodes = [Node("Relu", ("x",), ("a",), version=14),
                 Node("QuantizeLinear", ("a",), ("b",), version=23, rule="divide")]  # fmt: skip
    elif name == "Tanh":
        nodes = [Node("Sinh", ("x",), ("a",), version=22), Node("Tanh", ("a",), ("b",), version=13, rule="divide")]
    nodes.append(Node("DequantizeLinear", ("b",), ("y",), version=23))
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))
    feeds = {"x": RNG.normal(0, 2, shape).astype(f32)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(opset=opset), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("clamp", ["", "Relu", "Clip"])
def test_an_output_that_is_also_transposed_and_quantized(clamp: str) -> None:
    """A clamp before the quantization is dropped."""
    grid = Quantization.per_tensor(0.1, -128 if clamp else 0, "int8")
    nodes = [Node("Tanh", ("x",), ("f",), version=13),
             Node("Transpose", ("f",), ("t",), {"perm": (0, 2, 3, 1)}, version=23)]  # fmt: skip
    bounds = [Tensor.constant(name, np.array(value, f32)) for name, value in (("l", 0), ("h", 30))]
    if clamp:
        inputs = ("t", "l", "h") if clamp == "Clip" else ("t",)
        nodes.append(Node(clamp, inputs, ("c",), version=OPERATORS[clamp].version))
    nodes += [Node("QuantizeLinear", ("c" if clamp else "t",), ("q",), version=23, rule="divide"),
              Node("DequantizeLinear", ("q",), ("y",), version=23)]  # fmt: skip
    tensors = [*(Tensor(name, "float32", (1, 4, 4, 4)) for name in ("x", "f", "t", "y", "c")), *bounds,
               Tensor("q", "int8", (1, 4, 4, 4), quantization=grid)]  # fmt: skip
    used = {each for node in nodes for each in (*node.inputs, *node.outputs)}
    model = Model(Graph(("x",), ("f", "y"), nodes, {each.name: each for each in tensors if each.name in used}))
    feeds = {"x": RNG.normal(0, 1, (1, 4, 4, 4)).astype(f32)}
    plain, fused = (runtime(model.to_onnx(), feeds, level) for level in LEVELS)
    for first, second in zip(plain, fused, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("opset", [20, 21, None])
def test_a_dequantized_output_that_is_also_transposed_and_quantized(opset: int | None) -> None:
    """ONNX Runtime moves a DequantizeLinear behind a Transpose. From opset 21 on, it fails if a float follows."""
    nodes = [onnx_models.q("x", "s", "q"), onnx_models.dq("q", "s", "d"), onnx_models.node("Transpose", ["d"], ["t"]),
             onnx_models.q("t", "u", "i"), onnx_models.dq("i", "u", "y")]  # fmt: skip
    constants = onnx_models.grids(s=(0.03, np.int8(5)), u=(0.05, np.int8(-3)))
    source = onnx_models.proto(nodes, {"x": (onnx.TensorProto.FLOAT, [6, 4])}, ["y", "d"], constants)
    model, feeds = qfmt.convert(source), {"x": RNG.normal(0, 2, (6, 4)).astype(f32)}
    for level in LEVELS:
        for name, array in zip(("y", "d"), runtime(model.to_onnx(opset=opset), feeds, level), strict=True):
            np.testing.assert_array_equal(array, model.run(feeds)[name])


@pytest.mark.parametrize("after", ["", "Relu", "Transpose", "Mul"])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_float_weights_between_quantized_tensors(name: str, after: str) -> None:
    """ONNX Runtime would quantize them with one scale, although the first channel has much larger ones."""
    sizes = [2, 4] if name in ("Gemm", "MatMul") else [2, 4, 5, 5]
    weight = RNG.integers(-64, 65, (4, 4) if len(sizes) == 2 else (4, 4, 3, 3)).astype(f32) / 64
    first = weight[0] if name == "Conv" else weight[:, 0]
    first *= 64
    others = {
        "": [],
        "Relu": [onnx_models.node("Relu", ["p"], ["r"])],
        "Transpose": [onnx_models.node("Transpose", ["p"], ["r"], perm=[*range(len(sizes))][::-1])],
        "Mul": [onnx_models.node("Mul", ["p", "factors"], ["r"])],
    }
    product = onnx_models.node(name, ["xr", "w"], ["p"])
    ends = [onnx_models.q("r" if after else "p", "y", "yq"), onnx_models.dq("yq", "y", "y")]
    nodes = [onnx_models.q("x", "x", "xq"), onnx_models.dq("xq", "x", "xr"), product, *others[after], *ends]
    constants = {**onnx_models.grids(x=(0.5, np.uint8(128)), y=(0.5, np.uint8(128))), "w": weight}
    if after == "Mul":
        constants["factors"] = np.array([0.25, 1, 2, 4], f32).reshape([1, 4, *[1] * (len(sizes) - 2)])
    model = qfmt.convert(onnx_models.proto(nodes, {"x": (onnx.TensorProto.FLOAT, sizes)}, ["y"], constants))
    feeds = {"x": RNG.integers(-8, 9, sizes).astype(f32) / 2}
    for level in LEVELS:
        for form in ("qdq", "qoperator"):
            np.testing.assert_array_equal(runtime(model.to_onnx(form=form), feeds, level)[0], model.run(feeds)["y"])


def test_a_batch_of_integer_matrices_with_scales_of_columns_and_a_bias(tmp_path: Path) -> None:
    """ONNX Runtime's MatMulIntegerToFloat misreads the bias."""
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2,3,5] x) => (float[2,3,4] y) {
        q, xs, xz = DynamicQuantizeLinear(x)
        sums = MatMulInteger(q, w, xz)
        real = Cast<to = 1>(sums)
        scale = Mul(xs, ws)
        scaled = Mul(real, scale)
        y = Add(scaled, b)
    }"""
    source = onnx.parser.parse_model(text)
    arrays = {"w": RNG.integers(-128, 128, (2, 5, 4)).astype(np.int8)}
    arrays |= {name: RNG.uniform(0.01, 0.05, 4).astype(f32) for name in ("ws", "b")}
    source.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(source, tmp_path / "m.onnx")
    model, feeds = qfmt.convert(tmp_path / "m.onnx"), {"x": RNG.normal(0, 1, (2, 3, 5)).astype(f32)}
    for level in LEVELS:
        np.testing.assert_allclose(runtime(model.to_onnx(), feeds, level)[0], model.run(feeds)["y"], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("limits", [None, (0, 6)])
def test_clamps_of_floats_of_8_bits(dtype: str, limits: tuple[int, int] | None) -> None:
    """ONNX Runtime drops a Relu before QuantizeLinear, and refuses a Clip."""
    low, high = (np.float32(ml_dtypes.finfo(dtype).min), np.float32(ml_dtypes.finfo(dtype).max))
    grid = Quantization.of(0.0625, 0, int(low), int(high))
    bounds = [Tensor.constant(name, np.array(each, f32)) for name, each in zip("lh", limits or (), strict=False)]
    clamp = Node("Clip", ("x", "l", "h"), ("a",), version=13) if limits else Node("Relu", ("x",), ("a",), version=14)
    nodes = [clamp, Node("QuantizeLinear", ("a",), ("b",), version=23, rule="divide"),
             Node("DequantizeLinear", ("b",), ("y",), version=23)]  # fmt: skip
    tensors = [Tensor("x", "float32", (9, 9)), Tensor("a", "float32", (9, 9)), *bounds,
               Tensor("b", dtype, (9, 9), quantization=grid), Tensor("y", "float32", (9, 9))]  # fmt: skip
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))
    feeds = {"x": RNG.normal(0, 4, (9, 9)).astype(f32)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize(
    ("name", "axis", "others", "attributes"),
    [
        ("Transpose", 0, [], {"perm": (2, 1, 0)}),
        ("Squeeze", 2, [np.array([1])], {}),
        ("Gather", 0, [np.array([2, 1, 0])], {"axis": 0}),
        ("Slice", 0, [np.array([-1]), np.array([-9]), np.array([0]), np.array([-1])], {}),
    ],
)
def test_moved_integers_keep_the_axis_of_their_scales(
    name: str, axis: int, others: list[np.ndarray], attributes: dict[str, Any]
) -> None:
    shape = (3, 1, 3, 3) if name == "Squeeze" else (3, 3, 3)
    grid = Quantization.of((0.5, 0.25, 1.0), (1, 2, 3), 0, 255, axis)
    constants = [Tensor.constant(f"c{at}", each) for at, each in enumerate(others)]
    x, y = Tensor("x", "uint8", shape, quantization=grid), Tensor("y", "uint8", (3, 3, 3), quantization=grid)
    model, feeds = single(name, "", [x, *constants], y, attributes), {"x": RNG.integers(0, 256, shape, np.uint8)}
    model = replace(model, engine="onnx")
    np.testing.assert_array_equal(runtime(model.to_onnx(), feeds)[0], model.run(feeds)["y"])


@pytest.mark.parametrize(("name", "dtype", "opset"), [("Reshape", "int4", 25), ("DepthToSpace", "uint16", 23)])
def test_integers_without_kernels_are_moved_as_floats(name: str, dtype: str, opset: int) -> None:
    """In the form qoperator, too."""
    grid = Quantization.per_tensor(0.25, 3, dtype)
    tensors = [Tensor("x", "float32", (1, 4, 2, 2)), Tensor("a", dtype, (1, 4, 2, 2), quantization=grid),
               Tensor("b", dtype, (1, 1, 4, 4), quantization=grid), Tensor("y", "float32", None),
               Tensor.constant("s", np.array([1, 1, 4, 4]))]  # fmt: skip
    moved = Node(name, ("a", "s"), ("b",), {"allowzero": 0}, version=23)
    if name == "DepthToSpace":
        moved = Node(name, ("a",), ("b",), {"blocksize": 2, "mode": "DCR"}, version=13)
    nodes = [Node("QuantizeLinear", ("x",), ("a",), version=23, rule="divide"), moved,
             Node("DequantizeLinear", ("b",), ("y",), version=23)]  # fmt: skip
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}))
    feeds = {"x": RNG.normal(0, 1, (1, 4, 2, 2)).astype(f32)}
    found = runtime(model.to_onnx(form="qoperator", opset=opset), feeds)[0]
    np.testing.assert_array_equal(found, model.run(feeds)["y"])


ROWS, COLUMNS = (Quantization.of(2.0 ** -np.arange(4), (0, 0, 0, 0), -128, 127, axis) for axis in (0, 1))
DEEP = Quantization.of(2.0 ** -np.arange(4), (0, 0, 0, 0), -128, 127, 2)
GROUPS = Quantization.of_blocks("int8", (4, 4), (2, 1), 2.0 ** -np.arange(8, dtype=f32).reshape(2, 4))
WIDE = Quantization.of_blocks("int8", (4, 4), (1, 4), 2.0 ** -np.arange(4, dtype=f32).reshape(4, 1))


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("behind", ["", "DequantizeLinear"])
@pytest.mark.parametrize(
    ("name", "shape", "grid"),
    [
        ("MatMul", (4, 4), ROWS),
        ("MatMul", (4, 4), COLUMNS),
        ("MatMul", (4, 4), GROUPS),
        ("MatMul", (4, 4), WIDE),
        ("MatMul", (2, 4, 4), DEEP),
        ("Gemm", (4, 4), ROWS),
        ("qfmt.Linear", (4, 4), ROWS),
        ("qfmt.Linear", (4, 4), COLUMNS),
        ("qfmt.Linear", (4, 4), GROUPS),
        ("Conv", (4, 4, 2, 2), ROWS),
        ("Conv", (4, 4, 2, 2), COLUMNS),
        ("Where", (4, 4), COLUMNS),
    ],
)
def test_constants_whose_scales_are_not_those_of_output_channels(
    name: str, shape: tuple[int, ...], grid: Quantization, behind: str, is_quantized: bool, form: str
) -> None:
    """ONNX Runtime would take them for those, or end. Scales are powers of two, so sums of floats are exact."""
    w = Tensor.constant("w", RNG.integers(-128, 128, shape, np.int8), grid)
    x = Tensor("x", "int8", {"Conv": (2, 4, 4, 4), "Gemm": (8, 4)}.get(name, (2, 4, 4)),
               quantization=Quantization.per_tensor(0.5, 3, "int8"))  # fmt: skip
    real = [Tensor(each, "float32", None) for each in "ab"]
    y = Tensor("y", "int8", None, quantization=Quantization.per_tensor(64.0, 5, "int8"))
    given = [real[0] if behind else x, w]
    if name == "Where":
        given.insert(0, Tensor.constant("c", np.array([True, False, True, False])))
    attributes = OPERATORS[name].complete(WINDOW if name == "Conv" else {})
    version = {"MatMul": 13, "Gemm": 13, "Conv": 22, "Where": 16}.get(name, 1)
    nodes = [
        *([Node("DequantizeLinear", ("x",), ("a",), version=23)] if behind else []),
        Node(name, tuple(each.name for each in given), ("b",), attributes, version=version),
        Node("QuantizeLinear", ("b",), ("y",), version=23, rule="divide"),
    ][: 3 if is_quantized else -1]
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    tensors = {each.name: each for each in [*given, *real, x, y] if each.name in used}
    model = Model(Graph(("x",), (nodes[-1].outputs[0],), nodes, tensors))
    feeds = {"x": RNG.integers(-128, 128, x.shape, np.int8)}
    (wanted,) = model.run(feeds).values()
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(form=form), feeds, level)[0], wanted)


@pytest.mark.parametrize("name", ["qfmt.Linear", "MatMul"])
@pytest.mark.parametrize("outputs", [1, 30])
def test_rows_of_2_bits_that_end_within_a_byte(name: str, outputs: int) -> None:
    axis = 0 if name == "qfmt.Linear" else 1
    grid = Quantization.of(2.0 ** -np.arange(outputs), np.zeros(outputs, np.int64), -2, 1, axis)
    integers = np.moveaxis(RNG.integers(-2, 2, (outputs, 32), np.int8), 0, axis)
    w = Tensor.constant("w", np.ascontiguousarray(integers), grid, dtype="int2")
    model = single(name, "", [Tensor("x", "float32", (2, 3, 32)), w], Y, {})
    feeds = {"x": RNG.integers(-9, 9, (2, 3, 32)).astype(f32)}  # sums are exact
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("dtype", ["int2", "uint2"])
@pytest.mark.parametrize("name", ["qfmt.Linear", "MatMul", "Gemm", "Conv"])
def test_weights_of_2_bits_beside_integers(name: str, dtype: str, form: str) -> None:
    """ONNX Runtime has no kernels."""
    limits = DTYPES[dtype]
    grid = Quantization.per_tensor(0.5, 0, dtype)
    shape = (4, 4, 2, 2) if name == "Conv" else (4, 4)
    given = {"Conv": (2, 4, 4, 4), "Gemm": (2, 4)}.get(name, (2, 3, 4))
    w = Tensor.constant("w", RNG.integers(limits.minimum, limits.maximum + 1, shape), grid, dtype=dtype)
    x = Tensor("x", "uint8", given, quantization=ONE)
    y = Tensor("y", "uint8", None, quantization=Quantization.per_tensor(1.0, 100, "uint8"))
    model = single(name, "affine", [x, w], y, WINDOW if name == "Conv" else {})
    feeds = {"x": RNG.integers(0, 256, x.shape, np.uint8)}
    for level in LEVELS:
        np.testing.assert_array_equal(runtime(model.to_onnx(form=form), feeds, level)[0], model.run(feeds)["y"])


@pytest.mark.parametrize("dtype", ["int2", "int4", "int8"])
def test_transposed_weights_of_few_bits(dtype: str) -> None:
    """ONNX Runtime cannot fold a Transpose of 2 bits."""
    limits = DTYPES[dtype]
    grid = Quantization.of(2.0 ** -np.arange(64), np.zeros(64, np.int64), limits.minimum, limits.maximum, 0)
    integers = RNG.integers(limits.minimum, limits.maximum, (64, 32), np.int8, endpoint=True)
    w = Tensor.constant("w", integers, grid, dtype=dtype)
    model = single("qfmt.Linear", "", [Tensor("x", "float32", (2, 3, 32)), w], Y, {})
    feeds = {"x": RNG.integers(-9, 9, (2, 3, 32)).astype(f32)}  # sums are exact
    first, *others = (runtime(model.to_onnx(), feeds, level)[0] for level in LEVELS)
    np.testing.assert_array_equal(first, model.run(feeds)["y"])
    assert {each.shape for each in others} == {first.shape}  # which quantize x, too: docs/onnx-runtimes.md
