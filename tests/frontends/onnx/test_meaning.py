"""Forms whose meaning is easily lost: every number equals ONNX Runtime's, or the model states that it cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qfmt
from networks.onnx_models import FLOAT, U8, dq, grids, node, proto, q
from qfmt.errors import InexpressibleNodesError, RunError
from qfmt.frontends.onnx.older import RESIZE
from qfmt.ops.resize import divided_neighbours, neighbours
from support.command_line import invoke
from support.onnx_witness import runtime

f32 = np.float32
HALF, BOOL = TensorProto.FLOAT16, TensorProto.BOOL
X = np.linspace(-3, 9, 24, dtype=f32).reshape(4, 6)
GRID = grids(x=(0.5, np.uint8(2)), other=(0.25, np.uint8(2)))
BOUNDS = {"low": np.uint8(3), "high": np.uint8(9), "lower": np.uint8(5)}


def agrees(source: onnx.ModelProto, given: dict[str, Any]) -> qfmt.Model:
    """The model, after a check that all outputs are equal, and those of the model exported again."""
    model = qfmt.convert(source)
    found = model.run(given)
    for program in (source, model.to_onnx()):
        for name, want in zip(model.graph.outputs, runtime(program, given), strict=True):
            np.testing.assert_array_equal(found[name], want)
    return model


CLIPS = {
    "cast": ([node("Clip", ["q", "low", "high"], ["c"]), node("Cast", ["c"], ["y"], to=FLOAT)], ["y"]),
    "two grids": ([node("Clip", ["q", "low", "high"], ["c"]), dq("c", "x", "y"), dq("c", "other", "z")], ["y", "z"]),
    "one after the other": (
        [
            node("Clip", ["q", "low", "high"], ["c"]),
            node("Clip", ["c", "lower"], ["d"]),
            dq("c", "x", "y"),
            dq("d", "x", "z"),
        ],
        ["y", "z"],
    ),
    "computed scale": (
        [
            node("ReduceMax", ["x"], ["s"], keepdims=0),
            node("QuantizeLinear", ["x", "s", "x.z"], ["r"]),
            node("Clip", ["r", "low", "high"], ["c"]),
            node("DequantizeLinear", ["c", "s", "x.z"], ["y"]),
        ],
        ["y"],
    ),
}


@pytest.mark.parametrize("kind", CLIPS)
def test_a_clip_of_integers_that_get_no_quantization_stays(kind: str) -> None:
    nodes, outputs = CLIPS[kind]
    agrees(proto([q("x", "x", "q"), *nodes], {"x": (FLOAT, [4, 6])}, outputs, {**GRID, **BOUNDS}), {"x": X})


def test_padding_of_integers_with_another_number_than_0() -> None:
    """RequantShift limits its results to 0 … 3; what is padded is 100."""
    nodes = [
        node("RequantShift", ["x", "mul", "add"], ["r"], div=1, n_levels=4),
        node("Pad", ["r", "pads", "hundred"], ["p"]),
        node("Add", ["p", "five"], ["y"]),
    ]
    constants = {"mul": f32(1), "add": f32(0), "pads": np.array([1, 0, 0, 1]), "hundred": f32(100), "five": f32(5)}
    found = qfmt.convert(proto(nodes, {"x": (FLOAT, [4, 6])}, {"y": FLOAT}, constants)).run({"x": X})["y"]
    want = np.pad(np.clip(np.floor(X + 0.5), 0, 3), ((1, 0), (0, 1)), constant_values=100) + 5
    np.testing.assert_array_equal(found, want)


TIES = (np.round(np.random.default_rng(0).standard_normal((4, 6)) * 20) * 0.05).astype(np.float16)


@pytest.mark.parametrize("opset", [21, 23, 25])
@pytest.mark.parametrize("axis", [None, 1])
def test_the_precision_of_a_division(opset: int, axis: int | None) -> None:
    """From opset 23 on it is that of the scale, float16; before, ONNX Runtime divides in float32."""
    count = () if axis is None else (6,)
    constants = {"s": np.full(count, 0.1, np.float16), "z": np.full(count, 1, np.int8)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=axis or 0)]
    source = proto(nodes, {"x": (HALF, [4, 6])}, {"y": TensorProto.INT8}, constants, opset=opset)
    model = qfmt.convert(source)
    np.testing.assert_array_equal(model.run({"x": TIES})["y"], runtime(source, {"x": TIES})[0])


def test_the_precision_is_stated_in_an_export() -> None:
    nodes = [node("QuantizeLinear", ["x", "s"], ["q"]), node("Cast", ["q"], ["y"], to=FLOAT)]
    source = proto(nodes, {"x": (HALF, [4, 6]), "s": (HALF, [])}, {"y": FLOAT}, {}, opset=21)
    given = {"x": TIES, "s": np.array(0.1, np.float16)}
    model = qfmt.convert(source)
    for opset in (21, 23, 25):
        np.testing.assert_array_equal(runtime(model.to_onnx(opset=opset), given)[0], model.run(given)["y"])
    with pytest.raises(InexpressibleNodesError, match="opset 19"):
        model.to_onnx(opset=17)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_a_size_that_a_scale_keeps(mode: str) -> None:
    """3 · 1.3 is 3: ONNX interpolates unless all sizes stay, qfmt's Resize does not."""
    image = np.random.default_rng(0).standard_normal((1, 1, 3, 3)).astype(f32)
    for scales, runs in ([1, 1, 1.3, 2], False), ([1, 1, 1.3, 1.3], True), ([1, 1, 1, 2], True):
        nodes = [node("Resize", ["x", "", "s"], ["y"], mode=mode)]
        source = proto(nodes, {"x": (FLOAT, [1, 1, 3, 3])}, {"y": FLOAT}, {"s": np.array(scales, f32)})
        model = qfmt.convert(source)
        if runs:
            np.testing.assert_allclose(model.run({"x": image})["y"], runtime(source, {"x": image})[0], atol=1e-6)
        else:
            with pytest.raises(RunError, match="cannot run this operator"):
                model.run({"x": image})


@pytest.mark.parametrize(("alpha", "runs"), [(2.0, True), (0.5, False)])
def test_a_product_of_integers_by_a_fraction(alpha: float, runs: bool) -> None:
    """ONNX does not say how it is rounded."""
    nodes = [node("Gemm", ["x", "w"], ["y"], alpha=alpha)]
    source = proto(nodes, {"x": (TensorProto.INT32, [2, 2])}, {"y": TensorProto.INT32}, {"w": np.eye(2, dtype="i4")})
    given = {"x": np.array([[1, 2], [3, 5]], np.int32)}
    if runs:
        np.testing.assert_array_equal(qfmt.convert(source).run(given)["y"], 2 * given["x"])
    else:
        with pytest.raises(RunError, match="cannot run this operator"):
            qfmt.convert(source).run(given)


def test_bytes_without_zero_points_are_centred() -> None:
    rng = np.random.default_rng(0)
    constants = {"w": rng.integers(0, 256, (6, 32)).astype(np.uint8), "s": rng.random((6, 2)).astype(f32)}
    nodes = [node("GatherBlockQuantized", ["w", "x", "s"], ["y"], domain="com.microsoft", bits=8, block_size=16)]
    source = proto(nodes, {"x": (TensorProto.INT64, [3])}, {"y": FLOAT}, constants, opset=21)
    given = {"x": np.array([0, 5, 2])}
    np.testing.assert_array_equal(qfmt.convert(source).run(given)["y"], runtime(source, given)[0])


def test_zero_points_that_are_not_integers() -> None:
    """Those of 4-bit weights may be floats; here they are computed."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.integers(0, 256, (3, 2, 8)).astype(np.uint8), "s": rng.random(6).astype(f32)}
    nodes = [node("MatMulNBits", ["x", "w", "s", "z"], ["y"], domain="com.microsoft", K=32, N=3, bits=4, block_size=16)]
    source = proto(nodes, {"x": (FLOAT, [2, 32]), "z": (FLOAT, [6])}, {"y": FLOAT}, constants, opset=21)
    given = {"x": rng.random((2, 32)).astype(f32), "z": (15 * rng.random(6)).astype(f32)}
    model = qfmt.convert(source)
    np.testing.assert_allclose(model.run(given)["y"], runtime(source, given)[0], rtol=1e-5)
    with pytest.raises(InexpressibleNodesError, match="zero points that are not integers"):
        model.to_onnx()


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_what_is_beyond_an_8_bit_float_becomes_the_largest(dtype: str) -> None:
    source = proto(
        [node("Cast", ["x"], ["f"], to=TensorProto.FLOAT8E4M3FN), node("Cast", ["f"], ["y"], to=FLOAT)],
        {"x": (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [3])}, {"y": FLOAT}, {}, opset=21,
    )  # fmt: skip
    found = qfmt.convert(source).run({"x": np.array([27413, -600, 3], dtype)})["y"]
    np.testing.assert_array_equal(found, f32([448, -448, 3]))


def test_functions_that_return_their_inputs() -> None:
    """Inputs of the model keep their names."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    swap = helper.make_function("d", "Swap", ["a", "b"], ["b", "a"], [], opsets)
    twice = helper.make_function("d", "Twice", ["a"], ["o", "o"], [node("Neg", ["a"], ["o"])], opsets)
    nodes = [
        node("Swap", ["x", "w"], ["p", "q"], domain="d"),
        node("Twice", ["q"], ["r", "s"], domain="d"),
        node("Sub", ["p", "s"], ["y"]),
    ]
    kind = (FLOAT, [4, 6])
    model = qfmt.convert(proto(nodes, {"x": kind, "w": kind}, {"y": FLOAT}, {}, opset=17, functions=[swap, twice]))
    assert (model.graph.inputs, model.graph.outputs) == (("x", "w"), ("y",))
    np.testing.assert_array_equal(model.run({"x": X, "w": 3 * X})["y"], 3 * X + X)


def test_an_output_that_a_call_leaves_out(tmp_path: Path) -> None:
    """A node of the function has to compute it."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    inner = helper.make_function(
        "d", "F", ["a"], ["b", "c"], [node("Neg", ["a"], ["b"]), node("Relu", ["a"], ["c"])], opsets
    )
    outer = helper.make_function("d", "G", ["a"], ["c"], [node("F", ["a"], ["", "c"], domain="d")], opsets)
    nodes = [node("F", ["x"], ["", "r"], domain="d"), node("G", ["r"], ["y"], domain="d")]
    source = proto(nodes, {"x": (FLOAT, [4, 6])}, {"y": FLOAT}, {}, opset=17, functions=[inner, outer])
    onnx.save(source, tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx")
    np.testing.assert_array_equal(model.run({"x": X})["y"], np.maximum(X, 0))
    assert qfmt.verify(tmp_path / "m.onnx", model).ok


def test_names_of_inlined_nodes_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """InlinePass counts from 2 for each name that is taken: a thousand calls took half a million attempts."""
    from onnx_ir.passes.common import inliner

    def unique(name: str, _: object, used: set[str]) -> str:
        assert name not in used
        used.add(name)
        return name

    monkeypatch.setattr(inliner, "_make_unique_name", unique)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    body = [helper.make_node("Neg", ["a"], ["t"]), node("Abs", ["t"], ["o"])]
    function = helper.make_function("d", "F", ["a"], ["o"], body, opsets)
    nodes = [node("F", [f"x{at}"], [f"x{at + 1}"], domain="d") for at in range(9)]
    source = proto(nodes, {"x0": (FLOAT, [4, 6])}, {"x9": FLOAT}, {}, opset=17, functions=[function])
    np.testing.assert_array_equal(qfmt.convert(source).run({"x0": X})["x9"], np.abs(X))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_an_extreme_of_no_elements(operator: str) -> None:
    """The end of the range of the type."""
    nodes = [node(operator, ["x", "axes"], ["y"], keepdims=0)]
    bare = qfmt.convert(proto(nodes, {"x": (U8, [0, 3])}, {"y": U8}, {"axes": np.array([0])}, opset=18))
    assert set(bare.run({"x": np.zeros((0, 3), np.uint8)})["y"]) == {0 if operator == "ReduceMax" else 255}


def test_the_largest_of_no_elements() -> None:
    """ONNX Runtime refuses it; C gives the same (tests/backends/c)."""
    kind = (FLOAT, [1, 2, 0, 3])
    model = qfmt.convert(proto([node("GlobalMaxPool", ["x"], ["y"])], {"x": kind}, {"y": FLOAT}, {}))
    assert set(model.run({"x": np.zeros(kind[1], f32)})["y"].ravel()) == {-np.inf}


RESIZES = {
    "one keeps its size": ([1, 1, 1.3, 2], [1, 1, 3, 3], False),
    "one may keep its size": ([1, 1, 1.3, 2], [1, 1, "h", "w"], False),
    "both may": ([1, 1, 1.5, 1.5], [1, 1, "h", "w"], False),
    "only one is scaled": ([1, 1, 1, 1.3], [1, 1, "h", "w"], True),
    "none can": ([1, 1, 2, 0.5], [1, 1, "h", "w"], True),
}


@pytest.mark.parametrize("name", RESIZES)
def test_sizes_that_only_a_run_knows(name: str) -> None:
    scales, shape, runs = RESIZES[name]
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="linear")]
    model = qfmt.convert(proto(nodes, {"x": (FLOAT, shape)}, {"y": FLOAT}, {"s": np.array(scales, f32)}))
    assert [each.operator for each in model.nodes] == ["Resize" if runs else "ai.onnx.Resize"]


@pytest.mark.parametrize(
    ("scale", "places", "runs"), [(2, "half_pixel", True), (1.5, "half_pixel", False), (2, "align_corners", False)]
)
def test_a_linear_resize_of_integers(scale: float, places: str, runs: bool) -> None:
    """They are truncated: equal only if all numbers between them are exact."""
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="linear", coordinate_transformation_mode=places)]
    source = proto(nodes, {"x": (U8, [1, 1, 4, 4])}, {"y": U8}, {"s": np.array([1, 1, scale, scale], f32)})
    model, given = qfmt.convert(source), {"x": np.random.default_rng(0).integers(0, 256, (1, 1, 4, 4), np.uint8)}
    np.testing.assert_array_equal(runtime(model.to_onnx(), given)[0], runtime(source, given)[0])
    if runs:
        np.testing.assert_array_equal(model.run(given)["y"], runtime(source, given)[0])
    else:
        assert model.nodes[0].operator == "ai.onnx.Resize"


@pytest.mark.parametrize("opset", [19, 23])
def test_a_quotient_of_float16_is_rounded_in_an_export(opset: int) -> None:
    """ONNX Runtime would leave out a Cast to float16 that a Cast to float32 follows."""
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("Cast", ["q"], ["y"], to=FLOAT)]
    source = proto(nodes, {"x": (HALF, [4, 6])}, {"y": FLOAT}, {"s": np.float16(0.1), "z": np.int8(1)}, opset=23)
    model, given = qfmt.convert(source), {"x": TIES}
    want = runtime(source, given)[0]
    for level in "plain", "fused":
        np.testing.assert_array_equal(runtime(model.to_onnx(opset=opset), given, level)[0], want)
    np.testing.assert_array_equal(model.run(given)["y"], want)


@pytest.mark.parametrize("computed", [False, True])
def test_nan_becomes_the_smallest_integer(computed: bool) -> None:
    given = {"x": np.array([np.nan, np.inf, -np.inf, 1], f32), **({"s": np.array(0.5, f32)} if computed else {})}
    inputs = {"x": (FLOAT, [4]), **({"s": (FLOAT, [])} if computed else {})}
    constants = {"z": np.int8(3), **({} if computed else {"s": f32(0.5)})}
    agrees(proto([node("QuantizeLinear", ["x", "s", "z"], ["y"])], inputs, {"y": TensorProto.INT8}, constants), given)


NAMES = ["q_dequantized", "d_quantize", "e_quantize", "f_dequantized", "e.scale", "q.dequantized", "relu", "node"]
"""Names that conversion and export would give to other tensors."""


@pytest.mark.parametrize("captures", [True, False])
def test_names_in_graphs_within_nodes(captures: bool) -> None:
    """They capture aliases of these names, or define them."""
    outer = [node("Identity", ["d"], [name]) for name in NAMES] if captures else []
    reads = NAMES if captures else ["d"] * len(NAMES)
    made = [f"inner{index}" for index in range(len(NAMES))] if captures else NAMES
    chain = [
        node("Add", ["d" if index == 0 else made[index - 1], read], [made[index]]) for index, read in enumerate(reads)
    ]
    kind = helper.make_tensor_value_info
    graphs = {
        "then_branch": helper.make_graph(chain, "t", [], [kind(made[-1], FLOAT, [4, 6])]),
        "else_branch": helper.make_graph([node("Neg", ["h"], ["e1"])], "e", [], [kind("e1", FLOAT, [4, 6])]),
    }
    nodes = [
        q("x", "x", "q"), dq("q", "x", "d"), node("Relu", ["d"], ["e"]), q("e", "x", "f"), dq("f", "x", "h"),
        *outer, node("If", ["c"], ["y"], **graphs),
    ]  # fmt: skip
    source = proto(nodes, {"x": (FLOAT, [4, 6]), "c": (TensorProto.BOOL, [])}, {"y": FLOAT}, GRID)
    model = qfmt.convert(source)
    for choice in True, False:
        given = {"x": X, "c": np.array(choice)}
        np.testing.assert_array_equal(runtime(model.to_onnx(), given)[0], runtime(source, given)[0])


@pytest.mark.parametrize("rows", [1, 3])
def test_a_vector_has_no_output_channels(rows: int) -> None:
    """Its scales are along what MatMul sums: they cannot be left out of the sums, as those of columns can."""
    arrays = {"vector": np.array([3, -5, 7], np.int8), **grids(x=(0.5, np.uint8(2)), y=(1.0, np.uint8(99)))}
    arrays |= {"scales": np.array([0.25, 1, 4], f32), "zeros": np.zeros(3, np.int8)}
    dequantized = node("DequantizeLinear", ["vector", "scales", "zeros"], ["w"], axis=0)
    nodes = [q("x", "x", "a"), dq("a", "x", "b"), dequantized, node("MatMul", ["b", "w"], ["m"])]
    nodes += [q("m", "y", "c"), dq("c", "y", "out")]
    model = agrees(proto(nodes, {"x": (FLOAT, (rows, 3))}, ["out"], arrays), {"x": X[:rows, :3]})
    assert "MatMul" in [each.operator for each in model.nodes if not each.rule]


# -- where runtimes differ from each other, or from the formula -------------------------------------------------


def kept(source: onnx.ModelProto) -> None:
    """The node is unchanged in the model, and written to ONNX again."""
    operator = source.graph.node[-1].op_type
    model = qfmt.convert(source)
    assert [each.operator for each in model.nodes] == [f"{source.graph.node[-1].domain or 'ai.onnx'}.{operator}"]
    assert [each.op_type for each in model.to_onnx().graph.node] == [operator]


IMAGE = np.random.default_rng(3).standard_normal((1, 1, 5, 7)).astype(f32)
STRIDES, DILATIONS = {"strides": [3, 4]}, {"dilations": [2, 1]}


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("kernel", "attributes", "runs"), [([1, 1], STRIDES, False), ([2, 2], DILATIONS, False), ([3, 3], STRIDES, True)]
)
def test_pools_that_pad_by_themselves(operator: str, kernel: list[int], attributes: dict[str, Any], runs: bool) -> None:
    """ONNX Runtime moves windows that are smaller than their stride, and does not count dilations."""
    made = node(operator, ["x"], ["y"], kernel_shape=kernel, auto_pad="SAME_UPPER", **attributes)
    source = proto([made], {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT}, {}, opset=19)
    if runs:
        got = qfmt.convert(source).run({"x": IMAGE})["y"]
        np.testing.assert_allclose(got, runtime(source, {"x": IMAGE})[0], rtol=1e-6)
    else:
        kept(source)


@pytest.mark.parametrize("counts", [0, 1])
def test_quantized_windows_that_the_border_cuts(counts: int) -> None:
    """ONNX Runtime also counts elements beyond the padding."""
    constants = {"s": f32(0.5), "z": np.uint8(120)}
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": counts}
    made = node("QLinearAveragePool", ["x", "s", "z", "s", "z"], ["y"], domain="com.microsoft", **attributes)
    source = proto([made], {"x": (U8, IMAGE.shape)}, {"y": U8}, constants)
    x = np.random.default_rng(0).integers(0, 256, IMAGE.shape).astype(np.uint8)
    got, wanted = qfmt.convert(source), runtime(source, {"x": x})[0]
    if counts:
        assert [each.operator for each in got.nodes] == ["com.microsoft.QLinearAveragePool"]
    else:
        np.testing.assert_array_equal(got.run({"x": x})["y"], wanted)


@pytest.mark.parametrize(("scale", "runs"), [(1 / 256, True), (1 / 100, True), (1 / 255, False), (0.11, False)])
def test_a_softmax_on_integers_multiplies_by_a_whole_number(scale: float, runs: bool) -> None:
    """QLinearSoftmax rounds 1 / scale down."""
    constants = {"s": f32(0.05), "z": np.uint8(3), "t": f32(scale), "u": np.uint8(0)}
    made = node("QLinearSoftmax", ["x", "s", "z", "t", "u"], ["y"], domain="com.microsoft", axis=-1, opset=13)
    source = proto([made], {"x": (U8, [40, 7])}, {"y": U8}, constants)
    if runs:
        agrees(source, {"x": np.random.default_rng(0).integers(0, 256, (40, 7)).astype(np.uint8)})
    else:
        kept(source)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 3), (3, 1), (1,), ()])
def test_a_bias_of_qgemm_has_the_scales_of_its_columns(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    constants = {
        "s": f32(0.25), "z": np.uint8(3), "w": rng.integers(-60, 60, (8, 3)).astype(np.int8),
        "t": np.array([0.125, 0.5, 0.0625], f32), "u": np.zeros(3, np.int8), "one": f32(8), "p": np.uint8(100),
        "c": rng.integers(-4000, 4000, shape).astype(np.int32),
    }  # fmt: skip
    made = node("QGemm", ["x", "s", "z", "w", "t", "u", "c", "one", "p"], ["y"], domain="com.microsoft")
    agrees(
        proto([made], {"x": (U8, [3, 8])}, {"y": U8}, constants),
        {"x": rng.integers(0, 256, (3, 8)).astype(np.uint8)},
    )


@pytest.mark.parametrize("scale", [0.1, 600.0])
@pytest.mark.parametrize("operator", ["Relu", "Sqrt"])
def test_float16_between_integers_is_rounded_and_may_be_infinite(operator: str, scale: float) -> None:
    """ONNX Runtime computes these in float32, and rounds what they read and write; so it does in the exported model."""
    constants = {"g.s": np.float16(scale), "g.z": np.int16(-32768)}
    nodes = [dq("x", "g", "d"), node(operator, ["d"], ["e"]), q("e", "g", "y")]
    kind = TensorProto.INT16
    source = proto(nodes, {"x": (kind, [64])}, {"y": kind}, constants, opset=21)
    given = {"x": np.arange(-32768, 32768, 1024).astype(np.int16)}
    agrees(agrees(source, given).to_onnx(), given)


@pytest.mark.parametrize("scale", [1e36, 3e37, 1e38])
def test_integers_of_scales_that_give_infinite_numbers(scale: float) -> None:
    """They are not quantized back to what they were."""
    nodes = [dq("x", "g", "d"), q("d", "g", "q"), node("Relu", ["d"], ["e"]), dq("q", "g", "y"), q("e", "g", "r")]
    source = proto(nodes, {"x": (U8, [256])}, {"q": U8, "y": FLOAT, "r": U8}, grids(g=(scale, np.uint8(3))))
    agrees(source, {"x": np.arange(256, dtype=np.uint8)})


@pytest.mark.parametrize("scale", [2.5e-37, 1e-37, 1e-39])
def test_scales_of_sums_without_a_reciprocal(scale: float) -> None:
    """The sums stay real numbers: a rule that multiplies the bias by the reciprocal would make all of them infinite."""
    nodes = [
        q("x", "g", "q"),
        dq("q", "g", "d"),
        dq("w", "h", "v"),
        node("Conv", ["d", "v", "b"], ["c"]),
        q("c", "g", "y"),
    ]
    weights = np.int8([3, -5, 7, 11]).reshape(2, 2, 1, 1)
    constants = {"w": weights, "b": np.array([40 * scale / 100, -900 * scale / 100], f32)}
    made = grids(g=(scale, np.int8(0)), h=(0.01, np.int8(0))) | constants
    source = proto(nodes, {"x": (FLOAT, [1, 2, 1, 1])}, {"y": TensorProto.INT8}, made)
    model = agrees(source, {"x": np.array([90 * scale, 52 * scale], f32).reshape(1, 2, 1, 1)})
    assert "float_bias" not in {each.rule for each in model.nodes}


def test_windows_that_do_not_reach_the_size_of_a_transposed_convolution() -> None:
    made = node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], auto_pad="SAME_UPPER")
    kept(proto([made], {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT}, {"w": np.ones((1, 1, 1, 1), f32)}))


@pytest.mark.parametrize(("pads", "runs"), [([-1, 0, 2, 0], False), ([1, 0, 2, 3], True)])
def test_a_wrap_of_what_is_cropped(pads: list[int], runs: bool) -> None:
    made = node("Pad", ["x", "p"], ["y"], mode="wrap")
    source = proto([made], {"x": (FLOAT, [4, 6])}, {"y": FLOAT}, {"p": np.array(pads)}, opset=19)
    if runs:
        agrees(source, {"x": X})
    else:
        kept(source)


@pytest.mark.parametrize(("scale", "runs"), [(0.6, False), (0.5, True), (1.5, True)])
def test_nearest_elements_of_opset_10(scale: float, runs: bool) -> None:
    scales = np.array([1, 1, 1, scale], f32)
    source = proto(
        [node("Resize", ["x", "s"], ["y"])], {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT}, {"s": scales}, opset=10
    )
    if runs:
        agrees(source, {"x": IMAGE})
    else:
        kept(source)


@pytest.mark.parametrize(("mode", "now"), [("bilinear", "linear"), ("bicubic", "cubic"), ("nearest", "nearest")])
def test_modes_of_grid_samples_of_opset_16(mode: str, now: str) -> None:
    grid = np.random.default_rng(3).uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(f32)
    given = {"x": np.arange(25, dtype=f32).reshape(1, 1, 5, 5), "grid": grid}
    ends = {name: (FLOAT, value.shape) for name, value in given.items()}
    for attributes in ({"mode": mode}, {}):
        made = node("GridSample", ["x", "grid"], ["y"], **attributes)
        source = proto([made], ends, {"y": FLOAT}, {}, opset=16)
        model = qfmt.convert(source)
        assert [each.attributes["mode"] for each in model.nodes] == [now if attributes else "linear"]
        np.testing.assert_allclose(model.run(given)["y"], runtime(source, given)[0], rtol=1e-5, atol=1e-5)
        for opset in (17, 21):
            written = runtime(model.to_onnx(opset=opset), given)[0]
            np.testing.assert_allclose(written, runtime(source, given)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "align_corners"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_positions_are_divided_by_the_scale(mode: str, rounding: str) -> None:
    row = np.arange(20, dtype=f32).reshape(1, 1, 1, 20)
    attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    runs = 0
    for scale in (0.3, 0.6, 1 / 3, 1.2, 1.7, 2, 2.4, 2.9, 3):
        made = node("Resize", ["x", "", "s"], ["y"], **attributes)
        source = proto(
            [made], {"x": (FLOAT, row.shape)}, {"y": FLOAT}, {"s": np.array([1, 1, 1, scale], f32)}, opset=19
        )
        if any(each.operator == "ai.onnx.Resize" for each in qfmt.convert(source).nodes):
            assert rounding.startswith("round")  # a position on the border of two elements
            continue
        agrees(source, {"x": row})
        runs += 1
    assert runs == 9 or rounding.startswith("round")


def test_scales_without_elements_are_absent() -> None:
    """Before opset 13 no input of a Resize may be absent."""
    nothing = np.zeros(0, f32)
    made = node("Resize", ["x", "none", "none", "sizes"], ["y"])
    constants = {"none": nothing, "sizes": np.array([*IMAGE.shape[:3], IMAGE.shape[3] + 3])}
    source = proto([made], {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT}, constants, opset=11)
    agrees(source, {"x": IMAGE})
    np.testing.assert_array_equal(
        runtime(qfmt.convert(source).to_onnx(), {"x": IMAGE})[0], runtime(source, {"x": IMAGE})[0]
    )


def test_positions_by_a_scale_for_open_sizes() -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for scale, operator in ((2, "Resize"), (3, "Resize"), (1.2, "ai.onnx.Resize")):
        made = node("Resize", ["x", "", "s"], ["y"], **attributes)
        constants = {"s": np.array([1, 1, 1, scale], f32)}
        source = proto([made], {"x": (FLOAT, ["n", 1, "h", "w"])}, {"y": FLOAT}, constants, opset=19)
        assert [each.operator for each in qfmt.convert(source).nodes] == [operator]


def test_positions_that_only_a_run_knows(tmp_path: Path) -> None:
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    row = np.arange(60, dtype=f32).reshape(1, 1, 3, 20)
    made = node("Resize", ["x", "", "s"], ["y"], **attributes)
    source = proto([made], {"x": (FLOAT, row.shape), "s": (FLOAT, [4])}, {"y": FLOAT}, {}, opset=19)
    model = qfmt.convert(source)
    assert model.source["unchecked_positions"] == "y"
    differs = 0
    for scale in (2, 4, 1.2, 1.7):
        given = {"x": row, "s": np.array([1, 1, 1, scale], f32)}
        is_equal = np.array_equal(model.run(given)["y"], runtime(source, given)[0])
        assert is_equal or scale not in (2, 4)
        differs += not is_equal
    assert differs
    qfmt.save(model, tmp_path / "m.qfb")
    onnx.save(source, tmp_path / "m.onnx")
    said = "ONNX may select other elements in a nearest Resize whose sizes only a run knows: y"
    assert f"note   {said}; state the sizes" in invoke("convert", tmp_path / "m.onnx", tmp_path / "n.qfb").stderr
    assert said in qfmt.verify(tmp_path / "m.onnx", tmp_path / "m.qfb", inputs=given).notes


def test_doubled_sizes_select_the_same() -> None:
    for mode in ("asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners"):
        for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
            a = {**RESIZE, "axes": (), "coordinate_transformation_mode": mode, "nearest_mode": rounding}
            for size in range(1, 500):
                mine = neighbours(size, a, size=np.int64(2 * size))
                np.testing.assert_array_equal(mine, divided_neighbours(size, 2 * size, f32(2), a))


def test_known_positions_are_checked() -> None:
    sizes = np.array([1, 1, 3, 24])
    made = node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest")
    for shape, key in (([1, 1, 3, 20], None), ([1, 1, "h", "w"], "y")):
        source = proto([made], {"x": (FLOAT, shape)}, {"y": FLOAT}, {"sizes": sizes}, opset=19)
        assert qfmt.convert(source).source.get("unchecked_positions") == key


def test_a_mask_that_nobody_reads() -> None:
    dropped = [node("Dropout", ["x"], ["d", "mask"]), node("Relu", ["d"], ["y"])]
    agrees(proto(dropped, {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT}, {}), {"x": IMAGE})
    branch = helper.make_graph(
        [node("Not", ["mask"], ["n"])], "b", [], [helper.make_tensor_value_info("n", BOOL, None)]
    )
    chosen = node("If", ["c"], ["m"], then_branch=branch, else_branch=branch)
    for others, output in ([chosen], "m"), ([], "mask"):
        source = proto(
            [*dropped, *others], {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT, output: BOOL}, {"c": np.array(True)}
        )
        assert "ai.onnx.Dropout" in [each.operator for each in qfmt.convert(source).nodes]


@pytest.mark.parametrize("outputs", [["y"], ["y", "indices"]])
def test_an_order_of_indices_that_nobody_reads(outputs: list[str]) -> None:
    made = node("MaxPool", ["x"], outputs, kernel_shape=[2, 2], storage_order=1)
    agrees(proto([made], {"x": (FLOAT, IMAGE.shape)}, {"y": FLOAT}, {}), {"x": IMAGE})


def test_interpolated_integers_of_opset_10() -> None:
    constants = {"s": np.array([1, 1, 1, 1.3], f32)}
    made = node("Resize", ["x", "s"], ["y"], mode="linear")
    kept(proto([made], {"x": (U8, IMAGE.shape)}, {"y": U8}, constants, opset=10))


@pytest.mark.parametrize("axes", [None, [2, 3]])
def test_computed_scales_that_keep_one_size(axes: list[int] | None) -> None:
    """An error at run time: the scales are NaN."""
    made = node("Resize", ["x", "", "s"], ["y"], mode="linear", **({} if axes is None else {"axes": axes}))
    count = 4 if axes is None else 2
    source = proto([made], {"x": (FLOAT, IMAGE.shape), "s": (FLOAT, [count])}, {"y": FLOAT}, {}, opset=18)
    model = qfmt.convert(source)
    for last, runs in ([1.0, 2.0], True), ([1.1, 1.1], True), ([2.0, 1.5], True), ([1.1, 2.0], False):
        given = {"x": IMAGE, "s": np.array([1, 1, *last][-count:], f32)}
        if runs:
            np.testing.assert_allclose(model.run(given)["y"], runtime(source, given)[0], atol=1e-6)
        else:
            with pytest.raises(RunError, match="are not all finite and greater than 0"):
                model.run(given)


def test_a_summand_that_is_multiplied_by_0() -> None:
    constants = {"w": np.ones((6, 2), f32), "c": np.full((4, 2), np.inf, f32)}
    agrees(
        proto([node("Gemm", ["x", "w", "c"], ["y"], beta=0.0)], {"x": (FLOAT, [4, 6])}, {"y": FLOAT}, constants),
        {"x": X},
    )


@pytest.mark.parametrize(
    ("operator", "gates", "attributes", "runs"),
    [
        ("LSTM", 4, {"clip": 0.3}, False),
        ("GRU", 3, {"clip": 0.3}, True),
        ("RNN", 1, {"activations": ["Affine"], "activation_alpha": [0.5]}, False),
        ("RNN", 1, {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}, True),
        ("RNN", 1, {"activations": ["ThresholdedRelu"]}, False),
        ("RNN", 1, {"activations": ["LeakyRelu"]}, True),
    ],
)
def test_recurrent_layers(operator: str, gates: int, attributes: dict[str, Any], runs: bool) -> None:
    """ONNX Runtime does not clip the cell of an LSTM, and has 0 where ONNX has no default."""
    rng = np.random.default_rng(5)
    constants = {name: rng.standard_normal((1, 2 * gates, size)).astype(f32) for name, size in (("w", 3), ("r", 2))}
    made = node(operator, ["x", "w", "r"], ["y"], hidden_size=2, **attributes)
    source = proto([made], {"x": (FLOAT, [4, 2, 3])}, {"y": FLOAT}, constants, opset=14)
    given = {"x": X.reshape(4, 2, 3)}
    if runs:
        np.testing.assert_allclose(qfmt.convert(source).run(given)["y"], runtime(source, given)[0], atol=1e-5)
    else:
        kept(source)


@pytest.mark.parametrize("operator", ["QLinearMatMul", "QLinearConv"])
def test_computed_scales_of_a_product_of_integers(operator: str) -> None:
    """Every result is a tie, or next to one."""
    rng = np.random.default_rng(7)
    a, b = ([2, 3, 8], [8, 6]) if operator == "QLinearMatMul" else ([2, 3, 8], [6, 3, 2])
    constants = {"w": rng.integers(0, 256, b).astype(np.uint8), "z": np.uint8(128)}
    scales = {"x.s": np.array(0.1, f32), "w.s": np.full(6, 0.05, f32), "y.s": np.array(1.0, f32)}
    bias = [] if operator == "QLinearMatMul" else ["b"]
    constants |= {name: rng.integers(-999, 999, 6).astype(np.int32) for name in bias}
    made = node(operator, ["x", "x.s", "z", "w", "w.s", "z" if bias else "z6", "y.s", "z", *bias], ["y"])
    constants |= {"z6": np.full(6, 128, np.uint8)}
    given = {"x": rng.integers(0, 256, a).astype(np.uint8), **scales}
    inputs = {"x": (U8, a), **{name: (FLOAT, each.shape) for name, each in scales.items()}}
    agrees(proto([made], inputs, {"y": U8}, constants), given)


def test_one_zero_point_for_the_scales_of_all_channels() -> None:
    rng = np.random.default_rng(7)
    constants = {
        **grids(x=(0.1, np.uint8(3)), y=(3.3, np.uint8(9)), w=(rng.uniform(0.01, 0.1, 4), np.uint8(7))),
        "w": rng.integers(0, 256, (4, 1, 3, 3)).astype(np.uint8),
    }
    made = node("QLinearConv", ["x", "x.s", "x.z", "w", "w.s", "w.z", "y.s", "y.z"], ["y"])
    x = rng.integers(0, 256, IMAGE.shape).astype(np.uint8)
    agrees(proto([made], {"x": (U8, IMAGE.shape)}, {"y": U8}, constants), {"x": x})


@pytest.mark.parametrize("last", [(39, 85), (180, 243)])
def test_clips_of_integers_that_do_and_do_not_become_ranges(last: tuple[int, int]) -> None:
    """Ranges that do not meet stay with their Clip, and so does every Clip that gets no quantization for that."""
    bounds = {"a": np.uint8(32), "b": np.uint8(158), "c": np.uint8(last[0]), "d": np.uint8(last[1])}
    nodes = [
        q("x", "s", "q"),
        node("Clip", ["q", "a", "b"], ["first"]),
        node("Identity", ["first"], ["moved"]),
        node("Clip", ["moved", "c", "d"], ["second"]),
        node("MaxPool", ["second"], ["pooled"], kernel_shape=[1, 2]),
        dq("pooled", "s", "y"),
        node("Cast", ["first"], ["bare"], to=TensorProto.INT32),
    ]
    outputs = {"y": FLOAT, "bare": TensorProto.INT32}
    made = proto(nodes, {"x": (FLOAT, (1, 1, 8, 8))}, outputs, grids(s=(0.05, np.uint8(104))) | bounds)
    x = np.linspace(-6, 8, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    results = qfmt.convert(made).run({"x": x})
    theirs = runtime(made, {"x": x})
    assert [np.array_equal(results[name], each) for name, each in zip(outputs, theirs, strict=True)] == [True, True]


def test_blocks_of_8_bit_floats_with_zero_points() -> None:
    """ONNX has them in the type of the elements: they must be 0."""
    kind = TensorProto.FLOAT8E4M3FN
    w = helper.make_tensor("w", kind, (8, 6), np.linspace(-3, 3, 48, dtype=f32))
    z = helper.make_tensor("z", kind, (2, 6), np.zeros(12, f32))
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=0, block_size=4), node("MatMul", ["x", "v"], ["y"])]
    source = proto(
        nodes, {"x": (FLOAT, [2, 8])}, ["y"], {"s": np.linspace(0.1, 0.2, 12, dtype=f32).reshape(2, 6)}, opset=21
    )
    source.graph.initializer.extend([w, z])
    x = np.eye(2, 8, dtype=f32)
    found = qfmt.convert(source).run({"x": x})["y"]
    np.testing.assert_array_equal(found, runtime(source, {"x": x})[0])


def test_activations_that_are_quantized_by_blocks(tmp_path: Path) -> None:
    scales = {"s": np.linspace(0.01, 0.1, 8, dtype=f32).reshape(4, 2)}
    made = [node(f"{which}uantizeLinear", [name, "s"], [to], axis=1, block_size=3)
            for which, name, to in (("Q", "x", "q"), ("Deq", "q", "y"))]  # fmt: skip
    onnx.save(proto(made, {"x": (FLOAT, [4, 6])}, ["y"], scales, opset=21), tmp_path / "m.onnx")
    report = qfmt.verify(tmp_path / "m.onnx", qfmt.convert(tmp_path / "m.onnx"))
    assert report.is_exact, report.first_wrong
