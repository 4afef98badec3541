"""Every form of quantized ONNX models: converted, saved, opened, and compared with ONNX Runtime without fusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, version_converter

import qfmt
from networks.onnx_models import (
    FLOAT,
    I8,
    U8,
    conv_net,
    dq,
    grids,
    node,
    operators,
    proto,
    q,
    random_inputs,
    small,
    through_file,
)
from qfmt import QfmtError
from support.onnx_files import compare
from support.onnx_witness import evaluator, runtime

f32 = np.float32
MS = "com.microsoft"


# -- Q and DQ --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(
    ("bias", "rule"), [("int32", "integer_bias"), ("float", "float_bias"), ("none", "integer_bias")]
)
def test_a_convolution_between_dq_and_q_becomes_integer(relu: bool, bias: str, rule: str, tmp_path: Path) -> None:
    model = compare(conv_net(np.random.default_rng(1), relu=relu, bias=bias), tmp_path, steps=1, share=0.999)
    assert operators(model)[f"Conv@{rule}"] == 1
    y = model.tensors["r" if relu else "c"].quantization
    assert y is not None
    assert (y.quant_min, y.quant_max) == (40 if relu else 0, 255)
    weight = model.tensors["w"].quantization
    assert weight is not None
    assert weight.axis == 0


def test_groups_of_a_transposed_convolution_share_the_scales_of_their_channels(tmp_path: Path) -> None:
    rng, scales = np.random.default_rng(4), np.array([0.01, 0.02], f32)
    constants = {
        **grids(x=(0.05, np.uint8(117)), w=(scales, np.zeros(2, np.int8)), y=(0.2, np.uint8(40))),
        **grids(b=(np.tile(f32(0.05) * scales, 2), np.zeros(4, np.int32))),
        "w": rng.integers(-127, 128, (6, 2, 3, 3)).astype(np.int8),
        "b": rng.integers(-500, 500, 4).astype(np.int32),
    }
    nodes = [
        q("x", "x", "xq"), dq("xq", "x", "xd"), dq("w", "w", "wd", axis=1), dq("b", "b", "bd", axis=0),
        node("ConvTranspose", ["xd", "wd", "bd"], ["c"], group=2), q("c", "y", "yq"), dq("yq", "y", "y"),
    ]  # fmt: skip
    model = compare(proto(nodes, {"x": (FLOAT, [1, 6, 5, 5])}, ["y"], constants), tmp_path, steps=1, share=0.98)
    assert operators(model)["ConvTranspose@integer_bias"] == 1


@pytest.mark.parametrize("opset", [10, 11, 13, 17, 19, 21, 23, 25])
def test_opsets(opset: int, tmp_path: Path) -> None:
    """Before opset 13 there is no axis: only per-tensor scales."""
    rng = np.random.default_rng(opset)
    constants = {
        **grids(x=(0.05, np.uint8(117)), w=(0.01, np.int8(0)), y=(0.2, np.uint8(40))),
        "w": rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
    }
    nodes = [
        q("x", "x", "xq"), dq("xq", "x", "xd"), dq("w", "w", "wd"), node("Conv", ["xd", "wd"], ["c"]),
        q("c", "y", "yq"), dq("yq", "y", "yd"), node("Relu", ["yd"], ["y"]),
    ]  # fmt: skip
    source = proto(nodes, {"x": (FLOAT, [1, 3, 5, 5])}, ["y"], constants, opset=opset)
    model = compare(source, tmp_path, share=0.98, steps=1)
    assert operators(model)["Conv@integer_bias"] == 1
    assert model.source["format_version"] == str(opset)


def test_version_converter_makes_no_difference(tmp_path: Path) -> None:
    source = conv_net(np.random.default_rng(2))
    ids = {
        qfmt.convert(version_converter.convert_version(source, opset)).content_id() for opset in (21, 22, 23, 24, 25)
    }
    assert len(ids) == 1


@pytest.mark.parametrize("axis", [1, -1])
def test_the_axis_may_be_negative(axis: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    constants = {
        **grids(x=(0.05, np.uint8(117)), w=(rng.uniform(0.01, 0.1, 4), np.zeros(4, np.int8)), y=(0.2, np.int8(4))),
        "w": rng.integers(-127, 128, (6, 4)).astype(np.int8),
    }
    nodes = [
        q("x", "x", "xq"), dq("xq", "x", "xd"), dq("w", "w", "wd", axis=axis), node("MatMul", ["xd", "wd"], ["m"]),
        q("m", "y", "y"),
    ]  # fmt: skip
    source = proto(nodes, {"x": (FLOAT, [5, 6])}, {"y": I8}, constants)
    model = compare(source, tmp_path, steps=1, share=0.98)
    assert operators(model) == {"QuantizeLinear@divide": 1, "MatMul@integer_bias": 1}


def test_integer_inputs_and_outputs_keep_type_and_name(tmp_path: Path) -> None:
    constants = grids(a=(0.1, np.uint8(3)), b=(0.2, np.int8(0)), y=(0.3, np.uint8(9)))
    nodes = [dq("a", "a", "ad"), dq("b", "b", "bd"), node("Add", ["ad", "bd"], ["s"]), q("s", "y", "y")]
    model = compare(proto(nodes, {"a": (U8, [4, 9]), "b": (I8, [9])}, {"y": U8}, constants), tmp_path)
    assert operators(model) == {"Add@divide": 1}
    assert (model.graph.inputs, model.graph.outputs) == (("a", "b"), ("y",))


def test_shared_and_duplicated_nodes(tmp_path: Path) -> None:
    """One Q with multiple DQs, two Qs of one tensor, a DQ → Q → DQ chain, an output that is read, a tensor that is
    read twice."""
    constants = grids(x=(0.1, np.uint8(128)), y=(0.2, np.uint8(100)), z=(0.15, np.int8(-5)))
    nodes = [
        q("x", "x", "q1"), q("x", "x", "q2"), dq("q1", "x", "d1"), dq("q1", "x", "d2"), dq("q2", "x", "d3"),
        node("Add", ["d1", "d2"], ["a"]), node("Mul", ["d3", "d3"], ["m"]), q("a", "y", "aq"), dq("aq", "y", "ad"),
        q("m", "z", "mq"), dq("mq", "z", "md"), q("md", "y", "cq"), dq("cq", "y", "cd"),
        node("Sub", ["ad", "cd"], ["s"]), q("s", "z", "sq"), dq("sq", "z", "sd"), node("Relu", ["sd"], ["out"]),
    ]  # fmt: skip
    source = proto(nodes, {"x": (FLOAT, [3, 40])}, {"out": FLOAT, "aq": U8, "d2": FLOAT, "m": FLOAT}, constants)
    model = compare(source, tmp_path)
    assert model.graph.outputs == ("out", "aq", "d2", "m")


def test_integers_that_are_read_directly_stay_integers(tmp_path: Path) -> None:
    constants = grids(x=(0.1, np.uint8(128)), y=(0.2, np.uint8(7)))
    nodes = [q("x", "x", "xq"), dq("xq", "x", "xd"), node("Cast", ["xq"], ["c"], to=FLOAT), dq("xq", "y", "other"),
             node("Sum", ["xd", "c", "other"], ["y"])]  # fmt: skip
    model = compare(proto(nodes, {"x": (FLOAT, [3, 40])}, ["y"], constants), tmp_path)
    assert {"ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear"} <= set(operators(model))


def test_a_constant_with_two_meanings_is_two(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    constants = {
        **grids(a=(0.1, np.int8(3)), b=(0.02, np.int8(0))),
        "w": rng.integers(-128, 128, (4, 4)).astype(np.int8),
    }
    nodes = [
        dq("w", "a", "wa"),
        dq("w", "b", "wb"),
        node("MatMul", ["x", "wa"], ["m"]),
        node("Add", ["m", "wb"], ["y"]),
    ]
    model = compare(proto(nodes, {"x": (FLOAT, [4, 4])}, ["y", "w"], constants), tmp_path, share=0.99)
    assert "w" in model.graph.outputs


def test_moves_before_dequantize(tmp_path: Path) -> None:
    """DQ → Transpose → Reshape → Conv → Q, without Q and DQ in between: integers are moved, and sums are exact."""
    source = conv_net(np.random.default_rng(6), relu=False)
    nodes = [each for each in source.graph.node if each.op_type != "Conv"]
    at = next(index for index, each in enumerate(nodes) if each.input[0] == "c")
    nodes[at:at] = [
        node("Transpose", ["xd"], ["t"], perm=[0, 2, 3, 1]),
        node("Reshape", ["t", "shape"], ["s"]),
        node("Split", ["s"], ["s1", "s2"], axis=1, num_outputs=2),
        node("MaxPool", ["s1"], ["p"], kernel_shape=[2, 2]),
        node("Conv", ["p", "wd", "bd"], ["c"]),
    ]
    constants = {each.name: numpy_helper.to_array(each) for each in source.graph.initializer}
    moved = proto(
        nodes, {"x": (FLOAT, [2, 3, 9, 9])}, {"y": FLOAT, "s2": FLOAT}, {**constants, "shape": np.array([1, 6, 9, 9])}
    )  # fmt: skip
    model = compare(moved, tmp_path, steps=1, share=0.99)
    counts = operators(model)
    assert counts["Conv@integer_bias"] == 1
    assert {model.tensors[name].dtype for name in ("t", "s", "p")} == {"uint8"}


@pytest.mark.parametrize("low", [None, -1.03, 0.0, 0.55])
@pytest.mark.parametrize("high", [None, 0.61, 6.0])
@pytest.mark.parametrize("point", [0, 31, 128, 255])
def test_clips_before_q_are_ranges(low: float | None, high: float | None, point: int, tmp_path: Path) -> None:
    bounds = {"lo": low, "hi": high}
    given = {name: np.asarray(value, f32) for name, value in bounds.items() if value is not None}
    constants = {**grids(x=(0.02, np.uint8(110)), y=(0.05, np.uint8(point))), **given}
    clip = node("Clip", ["m", *(name if name in given else "" for name in bounds)], ["c"])
    nodes = [q("x", "x", "xq"), dq("xq", "x", "xd"), node("Mul", ["xd", "xd"], ["m"]), clip, q("c", "y", "y")]
    model = compare(proto(nodes, {"x": (FLOAT, [300])}, {"y": U8}, constants), tmp_path)
    assert operators(model) == {"QuantizeLinear@divide": 1, "Mul@divide": 1}


@pytest.mark.parametrize("second", [(0.0, 2.0), (-1.0, 0.5)])
def test_the_last_of_clips_whose_ranges_do_not_meet_decides(second: tuple[float, float], tmp_path: Path) -> None:
    constants: dict[str, Any] = {**grids(x=(0.02, np.uint8(110)), y=(0.01, np.int8(-20)))}
    constants |= {"lo": f32(-5), "hi": f32(-1.125), "lo2": f32(second[0]), "hi2": f32(second[1])}
    clips = [node("Clip", ["m", "lo", "hi"], ["c"]), node("Clip", ["c", "lo2", "hi2"], ["d"])]
    for first in (node("Mul", ["xd", "xd"], ["m"]), node("Identity", ["xd"], ["m"])):
        nodes = [q("x", "x", "xq"), dq("xq", "x", "xd"), first, *clips, q("d", "y", "y")]
        compare(proto(nodes, {"x": (FLOAT, [300])}, {"y": I8}, constants), tmp_path)


def test_quantize_of_float_weights_is_folded(tmp_path: Path) -> None:
    """AddQDQPairToWeight: the file contains float weights; per-channel."""
    rng = np.random.default_rng(7)
    constants = {
        **grids(x=(0.05, np.uint8(117)), w=(rng.uniform(0.01, 0.1, 4), np.zeros(4, np.int8)), y=(0.3, np.uint8(4))),
        "w": rng.normal(0, 1, (4, 3, 3, 3)).astype(f32),
    }
    nodes = [
        q("x", "x", "xq"), dq("xq", "x", "xd"), q("w", "w", "wq", axis=0), dq("wq", "w", "wd", axis=0),
        node("Conv", ["xd", "wd"], ["c"]), q("c", "y", "yq"), dq("yq", "y", "y"),
    ]  # fmt: skip
    model = compare(proto(nodes, {"x": (FLOAT, [1, 3, 8, 8])}, ["y"], constants), tmp_path, steps=1, share=0.99)
    assert model.tensors["w"].dtype == "int8"
    assert {tensor.dtype for tensor in model.graph.constants()} == {"int8"}
    integers = np.clip(np.rint(constants["w"] / constants["w.s"].reshape(4, 1, 1, 1)), -128, 127)
    assert (model.tensors["w"].array == integers).all()


def test_redundant_constant_nodes(tmp_path: Path) -> None:
    """Constant nodes, Identity, Cast of zero points and ConstantOfShape, as written by PyTorch's legacy exporter."""
    rng = np.random.default_rng(8)
    made = conv_net(rng, bias="none")
    arrays = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    nodes = []
    for name, array in arrays.items():
        if name.startswith("b") or name == "fb":
            continue
        held = array.astype(np.int32) if name.endswith(".z") else array
        nodes.append(node("Constant", [], [f"{name}.0"], value=numpy_helper.from_array(held)))
        cast = {"to": onnx.helper.np_dtype_to_tensor_dtype(array.dtype)}
        nodes.append(node("Cast", [f"{name}.0"], [f"{name}.1"], **cast))
        nodes.append(node("Identity", [f"{name}.1"], [name]))
    zeros = numpy_helper.from_array(np.zeros(1, np.int32))
    nodes += [
        node("Constant", [], ["n"], value_ints=[4]),
        node("ConstantOfShape", ["n"], ["b.z"], value=zeros),
        node("Constant", [], ["b"], value=numpy_helper.from_array(arrays["b"])),
        node("Mul", ["x.s", "w.s"], ["b.s"]),
        dq("b", "b", "bd", axis=0),
    ]
    rest = list(made.graph.node)
    conv = next(each for each in rest if each.op_type == "Conv")
    conv.input.append("bd")
    model = compare(proto([*nodes, *rest], {"x": (FLOAT, [1, 3, 9, 9])}, ["y"]), tmp_path, steps=1, share=0.999)
    assert operators(model) == {"QuantizeLinear@divide": 1, "Conv@integer_bias": 1, "DequantizeLinear": 1}


def test_initializers_that_are_inputs_as_well(tmp_path: Path) -> None:
    """IR version 3 listed initializers as inputs: they are defaults, which are used."""
    source = conv_net(np.random.default_rng(9))
    for each in source.graph.initializer:
        source.graph.input.append(onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    model = compare(source, tmp_path, steps=1, share=0.999)
    assert model.graph.inputs == ("x",)


# -- other element types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["INT16", "UINT16"])
@pytest.mark.parametrize("domain", ["", MS])
def test_activations_of_16_bits(kind: str, domain: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    dtype = np.dtype(kind.lower())
    constants = {
        **grids(x=(0.0002, dtype.type(700)), w=(0.01, np.int8(0)), y=(0.001, dtype.type(30))),
        "w": rng.integers(-127, 128, (6, 4)).astype(np.int8),
    }
    nodes = [
        q("x", "x", "xq", domain), dq("xq", "x", "xd", domain), dq("w", "w", "wd"), node("MatMul", ["xd", "wd"], ["m"]),
        q("m", "y", "y", domain),
    ]  # fmt: skip
    source = proto(
        nodes, {"x": (FLOAT, [50, 6])}, {"y": getattr(TensorProto, kind)}, constants, opset=21 if not domain else 17
    )
    model = compare(source, tmp_path, steps=1, share=0.9)
    assert operators(model)["MatMul@integer_bias"] == 1


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2"])
@pytest.mark.parametrize("block", [0, 4])
def test_weights_of_few_bits(kind: str, block: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    bits, low = int(kind[-1]), 0 if kind[0] == "U" else -(2 ** (int(kind[-1]) - 1))
    shape = (3, 5) if block else (5,)
    values = rng.integers(low, low + 2**bits, (10, 5))
    code = getattr(TensorProto, kind)
    constants: dict[str, Any] = {
        "w": small(code, values),
        "w.s": rng.uniform(0.1, 1, shape).astype(f32),
        "w.z": small(code, rng.integers(low, low + 2**bits, shape)),
    }
    nodes = [dq("w", "w", "wd", axis=0 if block else 1, block_size=block), node("MatMul", ["x", "wd"], ["y"])]
    source = proto(nodes, {"x": (FLOAT, [4, 10])}, ["y"], constants, opset=25)
    model = compare(source, tmp_path, share=0.99, witness=evaluator)
    weight = model.tensors["w"]
    assert weight.dtype == kind.lower()
    assert (weight.array == values).all()
    assert weight.quantization is not None
    assert weight.quantization.is_blocked == bool(block)
    assert operators(model) == {"MatMul": 1}


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_float8(kind: str, saturate: int, tmp_path: Path) -> None:
    code = getattr(TensorProto, kind)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], saturate=saturate),
        node("DequantizeLinear", ["xq", "s", "z"], ["y"]),
    ]
    constants = {"s": f32(0.01), "z": small(code, 0.0)}
    model = compare(proto(nodes, {"x": (FLOAT, [400])}, ["y"], constants), tmp_path, witness=evaluator)
    assert ("QuantizeLinear@divide" in operators(model)) == bool(saturate)


def test_infinity_saturates_to_float8_with_a_computed_scale(tmp_path: Path) -> None:
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["xq"]), node("DequantizeLinear", ["xq", "s", "z"], ["y"])]
    constants = {"z": small(TensorProto.FLOAT8E4M3FN, 0.0)}
    source = proto(nodes, {"x": (FLOAT, [3]), "s": (FLOAT, [])}, ["y"], constants)
    given = {"x": np.array([np.inf, -np.inf, np.nan], f32), "s": np.array(0.5, f32)}
    onnx.save(source, tmp_path / "m.onnx")
    outputs = qfmt.convert(tmp_path / "m.onnx").run(given)
    assert np.array_equal(outputs["y"], np.array([224, -224, np.nan], f32), equal_nan=True)


@pytest.mark.parametrize("operator", ["Clip", "Abs", "MatMul"])
def test_a_clip_of_float8_is_no_range(operator: str, tmp_path: Path) -> None:
    """Its bounds are not integers, and products of float8 are not sums of integers."""
    constants = {"s": f32(0.5), "t": f32(1), "z": small(TensorProto.FLOAT8E4M3FN, 0.0), "lo": f32(-0.3), "hi": f32(0.7)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]), node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node(operator, {"Clip": ["xd", "lo"], "Abs": ["xd"], "MatMul": ["xd", "xd"]}[operator], ["m"]),
        node("Clip", ["m", "lo", "hi"], ["c"]), node("QuantizeLinear", ["c", "t", "z"], ["yq"]),
        node("DequantizeLinear", ["yq", "t", "z"], ["y"]),
    ]  # fmt: skip
    model = compare(proto(nodes, {"x": (FLOAT, [8, 8])}, ["y"], constants), tmp_path)
    assert operators(model) == Counter(["Clip", operator], **{"QuantizeLinear@divide": 2, "DequantizeLinear": 2})


@pytest.mark.parametrize("operator", ["Relu", "Clip"])
def test_a_clip_before_scales_of_blocks_is_no_range(operator: str, tmp_path: Path) -> None:
    constants = {
        "x": np.array([0.02], f32), "s": np.array([0.01, 0.02], f32), "sz": np.array([3, 7], np.uint8),
        "xz": np.uint8(100), "lo": f32(-0.3), "hi": f32(0.7),
    }  # fmt: skip
    names, blocks = ["s", "sz"], {"axis": 0, "block_size": 4}
    nodes = [
        node("QuantizeLinear", ["a", "x", "xz"], ["xq"]), node("DequantizeLinear", ["xq", "x", "xz"], ["xd"]),
        node(operator, ["xd", "lo", "hi"] if operator == "Clip" else ["xd"], ["c"]),
        node("QuantizeLinear", ["c", *names], ["yq"], **blocks),
        node("DequantizeLinear", ["yq", *names], ["y"], **blocks),
    ]  # fmt: skip
    model = compare(proto(nodes, {"a": (FLOAT, [8])}, ["y"], constants), tmp_path)
    assert operators(model)[operator] == 1


def test_float16_scales(tmp_path: Path) -> None:
    """Both ONNX Runtime and qfmt compute in float32 and round once."""
    constants = {
        "s": np.float16(0.037), "z": np.uint8(120), "t": np.float16(0.06), "u": np.int8(-3),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]), node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("Neg", ["xd"], ["n"]), node("QuantizeLinear", ["n", "t", "u"], ["nq"]),
        node("DequantizeLinear", ["nq", "t", "u"], ["y"]),
    ]  # fmt: skip
    source = proto(nodes, {"x": (TensorProto.FLOAT16, [3000])}, {"y": TensorProto.FLOAT16}, constants)
    compare(source, tmp_path)


# -- operators on quantized tensors ----------------------------------------------------------------------------


def qlinear(
    operator: str, shape: Sequence[int], names: Sequence[str], constants: dict[str, Any], **a: Any
) -> onnx.ModelProto:
    """One operator of com.microsoft on uint8, or of ONNX itself."""
    domain = "" if operator in ("QLinearConv", "QLinearMatMul") else MS
    made = node(operator, list(names), ["y"], operator, domain=domain, **a)
    return proto([made], {"x": (U8, shape)}, {"y": U8}, constants, opset=17)


GRIDS = grids(x=(0.05, np.uint8(110)), y=(0.09, np.uint8(60)), o=(0.03, np.uint8(90)))
X, Y, OTHER = ("x", "x.s", "x.z"), ("y.s", "y.z"), ("o", "o.s", "o.z")


def test_qlinear_conv(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    constants = {
        **GRIDS, **grids(w=(rng.uniform(0.001, 0.02, 6), rng.integers(-5, 5, 6).astype(np.int8))),
        "w": rng.integers(-128, 128, (6, 2, 3, 3)).astype(np.int8), "b": rng.integers(-3000, 3000, 6).astype(np.int32),
    }  # fmt: skip
    names = [*X, "w", "w.s", "w.z", *Y, "b"]
    source = qlinear("QLinearConv", [1, 4, 7, 7], names, constants, group=2, auto_pad="SAME_UPPER", strides=[2, 2])
    assert operators(compare(source, tmp_path, witness=evaluator)) == {"Conv@integer_bias": 1}


def test_qlinear_matmul_and_gemm(tmp_path: Path) -> None:
    rng = np.random.default_rng(13)
    constants = {
        **GRIDS, **grids(w=(rng.uniform(0.001, 0.02, 5), np.zeros(5, np.int8))),
        "w": rng.integers(-128, 128, (8, 5)).astype(np.int8), "b": rng.integers(-3000, 3000, 5).astype(np.int32),
    }  # fmt: skip
    both = [*X, "w", "w.s", "w.z"]
    source = qlinear("QLinearMatMul", [20, 8], [*both, *Y], constants)
    assert operators(compare(source, tmp_path)) == {"MatMul@integer_bias": 1}
    for trans_b, operator in ((0, "Gemm@integer_bias"), (1, "qfmt.Linear@integer_bias")):
        own = {**constants, "w": constants["w"].T.copy() if trans_b else constants["w"]}
        source = qlinear("QGemm", [20, 8], [*both, "b", *Y], own, transB=trans_b)
        model = compare(source, tmp_path)
        assert operators(model) == {operator: 1}
        assert (model.tensors["w"].array == own["w"]).all()
        own["w"] = own["w"] // 2  # smaller weights, so that no pair of products exceeds int16
        real = proto([node("QGemm", [*both, "b"], ["y"], domain=MS, transB=trans_b)], {"x": (U8, [20, 8])}, ["y"], own)
        compare(real, tmp_path, share=0.99)


@pytest.mark.parametrize(("operator", "shape", "names", "attributes", "share"), [
    ("QLinearAdd", [3, 4, 25], [*X, *OTHER, *Y], {}, 0.95),
    ("QLinearMul", [3, 4, 25], [*X, *OTHER, *Y], {}, 0.95),
    ("QLinearSigmoid", [300], [*X, *Y], {}, 1),
    ("QLinearLeakyRelu", [300], [*X, *Y], {"alpha": 0.2}, 1),
    ("QLinearConcat", [4, 5], [*Y, *X, *OTHER], {"axis": 0}, 1),
    ("QLinearAveragePool", [1, 3, 8, 8], [*X, *Y], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 0.99),
    ("QLinearGlobalAveragePool", [2, 300, 3, 5], [*X, *Y], {}, 0.95),
    ("QLinearSoftmax", [4, 10], [*X, *Y], {"opset": 13, "axis": -1}, 0.99),
    ("QLinearWhere", [4, 5], ["c", *X, *OTHER, *Y], {}, 1),
])  # fmt: skip
def test_operators_of_onnx_runtime_on_integers(
    operator: str, shape: list[int], names: list[str], attributes: dict[str, Any], share: float, tmp_path: Path
) -> None:
    rng = np.random.default_rng(14)
    condition = rng.integers(0, 2, shape).astype(bool)
    constants = {**GRIDS, "o": rng.integers(0, 256, shape[-2:]).astype(np.uint8), "c": condition}
    if operator == "QLinearSoftmax":
        constants |= grids(y=(1 / 256, np.uint8(0)))
    constants = {name: constants[name] for name in names if name in constants}
    model = compare(qlinear(operator, shape, names, constants, **attributes), tmp_path, steps=1, share=share)
    assert all(each.rule == "divide" for each in model.nodes), operators(model)


def test_without_a_zero_point_an_output_has_the_type_of_the_input(tmp_path: Path) -> None:
    constants = {"x.s": f32(0.05), "y.s": f32(0.05)}
    made = node("QLinearLeakyRelu", ["x", "x.s", "", "y.s", ""], ["y"], domain=MS, alpha=0.5)
    source = proto([made, node("DequantizeLinear", ["y", "y.s"], ["r"])], {"x": (I8, [300])}, ["r"], constants)
    assert compare(source, tmp_path, share=1).tensors["y"].dtype == "int8"
    given = ["x", "x.s", "", "w", "x.s", "", "", "y.s"]  # ONNX Runtime outputs floats
    floats = proto(
        [node("QGemm", given, ["y"], domain=MS)],
        {"x": (I8, [2, 3])},
        ["y"],
        constants | {"w": np.ones((3, 2), np.int8)},
    )
    assert "com.microsoft.QGemm" in operators(qfmt.convert(floats))


def test_scales_that_are_computed_leave_the_pair_in_the_graph(tmp_path: Path) -> None:
    """QLinearAdd whose scales and zero points are inputs of the graph."""
    inputs = {"x": (U8, [9]), "x.s": (FLOAT, []), "o": (U8, [9]), "o.s": (FLOAT, [])}
    made = node("QLinearAdd", ["x", "x.s", "z", "o", "o.s", "z", "y.s", "z"], ["y"], domain=MS)
    source = proto([made], inputs, {"y": U8}, {"z": np.uint8(3), "y.s": f32(0.7)}, opset=17)
    model = through_file(qfmt.convert(source), tmp_path)
    feeds = {**random_inputs(source), "x.s": np.array(0.3, f32), "o.s": np.array(0.9, f32)}
    assert (model.run(feeds)["y"] == runtime(source, feeds)[0]).all()


# -- Brevitas' Q → Clip → DQ -----------------------------------------------------------------------------------


def test_clips_of_integers_are_narrow_ranges(tmp_path: Path) -> None:
    rng = np.random.default_rng(15)
    constants = {
        **grids(x=(0.1, np.uint8(0)), w=(rng.uniform(0.1, 0.5, 4), np.zeros(4, np.int8)), y=(0.3, np.int8(0))),
        "w": rng.integers(-7, 8, (4, 6)).astype(np.int8),
        **{name: np.int8(value) for name, value in {"-7": -7, "7": 7, "-8": -8}.items()},
        **{name: np.uint8(value) for name, value in {"u0": 0, "u15": 15}.items()},
        "b": rng.integers(-50, 50, 4).astype(np.int32), "b.s": f32(0.013), "b.z": np.int32(0),
    }  # fmt: skip
    nodes = [
        q("x", "x", "xq"), node("Clip", ["xq", "u0", "u15"], ["xc"]), dq("xc", "x", "xd"),
        node("Clip", ["w", "-7", "7"], ["wc"]), dq("wc", "w", "wd", axis=0), dq("b", "b", "bd"),
        node("Gemm", ["xd", "wd", "bd"], ["g"], transB=1), q("g", "y", "yq"), node("Clip", ["yq", "-8", "7"], ["yc"]),
        dq("yc", "y", "y"),
    ]  # fmt: skip
    model = compare(proto(nodes, {"x": (FLOAT, [60, 6])}, ["y"], constants), tmp_path, steps=1, share=0.98)
    assert operators(model) == {"QuantizeLinear@divide": 1, "qfmt.Linear@float_bias": 1, "DequantizeLinear": 1}
    ranges = {name: tensor.quantization for name, tensor in model.tensors.items() if tensor.quantization is not None}
    found = {(each.quant_min, each.quant_max) for each in ranges.values()}
    assert {(0, 15), (-7, 7), (-8, 7)} <= found
    weight = next(tensor for tensor in model.graph.constants() if tensor.dtype == "int8")
    assert (weight.array == constants["w"]).all()


# -- other operators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("ConstantOfShape", ["sizes"], {}),
        ("Expand", ["one", "sizes"], {}),
        ("Range", ["zero", "many", "step"], {}),
        ("Tile", ["row", "sizes"], {}),
    ],
)
def test_a_huge_constant_is_not_made_while_converting(
    operator: str, inputs: list[str], attributes: dict[str, Any], tmp_path: Path
) -> None:
    """For a constant of 10 GB the node stays, and the file is small."""
    constants = {
        "sizes": np.array([50_000, 50_000]), "one": f32(1), "zero": np.int64(0), "many": np.int64(2_500_000_000),
        "step": np.int64(1), "row": np.ones((1, 1), f32),
    }  # fmt: skip
    used = {name: value for name, value in constants.items() if name in inputs}
    nodes = [
        node(operator, inputs, ["huge"], **attributes),
        node("Shape", ["huge"], ["s"]),
        node("Cast", ["s"], ["y"], to=1),
    ]
    model = qfmt.convert(proto(nodes, {"x": (FLOAT, [1])}, ["y", "huge"], used))
    qfmt.save(model, tmp_path / "m.qfb")
    assert (tmp_path / "m.qfb").stat().st_size < 20_000
    assert {"Expand", operator} & set(operators(model))


@pytest.mark.parametrize(("name", "dtype"), [("QAttention", "float32"), ("QLinearFancy", "uint8")])
def test_the_type_of_an_unknown_operator_of_integers(name: str, dtype: str) -> None:
    """That of a real input, unless reals are scales. The export does not state it: a runtime knows its operators."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node(name, ["q", "s", "z"], ["f", "g"], domain="com.microsoft"),
        node("Cast", ["f"], ["y"], to=FLOAT),
    ]
    model = qfmt.convert(proto(nodes, {"x": (FLOAT, [2, 3])}, ["y"]))
    assert [model.tensors[each].dtype for each in "fg"] == [dtype] * 2
    assert not {"f", "g"} & {value.name for value in model.to_onnx().graph.value_info}


@pytest.mark.parametrize(
    ("engine", "rule"),
    [("fbgemm", "float_bias"), ("x86", "affine"), ("onednn", "affine"), ("qnnpack", "integer_bias_reciprocal")],
)
def test_the_rounding_of_another_engine_may_be_stated(engine: str, rule: str, tmp_path: Path) -> None:
    source = conv_net(np.random.default_rng(17))
    model = through_file(qfmt.convert(source, engine=engine), tmp_path)
    inputs = random_inputs(source)
    assert np.array_equal(model.run(inputs)["y"], runtime(source, inputs)[0])  # no sum is at a tie
    assert operators(model)[f"Conv@{rule}"] == 1


def test_an_operator_of_an_unknown_domain_is_kept_and_reported(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Fancy", ["r", "w"], ["f", "g"], "fancy_1", domain="my.domain", level=3, names=["a", "b"]),
        node("Neg", ["f"], ["y"]),
    ]
    source = proto(nodes, {"x": (FLOAT, [2, 3])}, ["y"], {"w": np.arange(6, dtype=f32)})
    model = through_file(qfmt.convert(source), tmp_path)
    strange = model.nodes[1]
    assert (strange.operator, strange.name) == ("my.domain.Fancy", "fancy_1")
    assert strange.attributes == {"level": 3, "names": ("a", "b")}
    assert model.tensors["w"].array.tolist() == [0, 1, 2, 3, 4, 5]
    assert "f" in model.source["assumed_types"]
    with pytest.raises(QfmtError, match=r"fancy_1 \(my.domain.Fancy\)"):
        model.run({"x": np.zeros((2, 3), f32)})


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    body = [node("QuantizeLinear", ["v", "s", "z"], ["i"]), node("DequantizeLinear", ["i", "s", "z"], ["w"])]
    function = onnx.helper.make_function(
        "mine", "Fake", ["v", "s", "z"], ["w"], body, [onnx.helper.make_opsetid("", 21)]
    )
    nodes = [node("Fake", ["x", "s", "z"], ["f"], domain="mine"), node("Relu", ["f"], ["y"])]
    source = proto(nodes, {"x": (FLOAT, [50])}, ["y"], {"s": f32(0.1), "z": np.int8(3)}, functions=[function])
    assert operators(compare(source, tmp_path))["QuantizeLinear@divide"] >= 1


def control_flow(rng: np.random.Generator) -> onnx.ModelProto:
    """Q → DQ → If, whose branches read a dequantized tensor, an alias, and an initializer."""
    inner = {"then": ["Add", "Mul"], "else": ["Sub", "Max"]}
    branches = {
        f"{word}_branch": onnx.helper.make_graph(
            [node(first, ["xd", "w"], [f"{word}1"]), node(second, [f"{word}1", "same"], [word])],
            word, [], [onnx.helper.make_tensor_value_info(word, FLOAT, [4, 5])],
        )
        for word, (first, second) in inner.items()
    }  # fmt: skip
    nodes = [
        q("x", "x", "xq"), dq("xq", "x", "xd"), node("Identity", ["xd"], ["same"]),
        node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Cast", ["sum"], ["positive"], to=TensorProto.BOOL),
        node("If", ["positive"], ["chosen"], "branch", **branches), q("chosen", "y", "yq"), dq("yq", "y", "y"),
    ]  # fmt: skip
    constants = {**grids(x=(0.05, np.uint8(117)), y=(0.1, np.uint8(128))), "w": rng.normal(size=(4, 5)).astype(f32)}
    return proto(nodes, {"x": (FLOAT, [4, 5])}, ["y"], constants)


def test_graphs_within_nodes_are_kept_with_what_they_read(tmp_path: Path) -> None:
    source = control_flow(np.random.default_rng(16))
    model = through_file(qfmt.convert(source), tmp_path)
    branch = next(each for each in model.nodes if each.operator == "ai.onnx.If")
    assert branch.attributes["qfmt.captured"] == ("xd", "w", "same")
    with pytest.raises(QfmtError, match=r"branch \(ai.onnx.If\)"):
        model.run(random_inputs(source))
    back = model.to_onnx(opset=21)
    back.ir_version = 10
    for seed in range(4):
        inputs = random_inputs(source, seed)
        assert (runtime(back, inputs)[0] == runtime(source, inputs)[0]).all()


@pytest.mark.parametrize("unused", [np.array(["a"], object), np.ones(1, np.complex64)])
def test_constants_that_nobody_reads_may_have_any_type(unused: np.ndarray) -> None:
    given = {"labels": unused}
    model = qfmt.convert(proto([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"], given, opset=17))
    assert list(model.tensors) == ["x", "y"]
    with pytest.raises(QfmtError, match="cannot be stored in"):
        qfmt.convert(proto([node("Identity", ["labels"], ["y"])], {}, ["y"], given, opset=17))
