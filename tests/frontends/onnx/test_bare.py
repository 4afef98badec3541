"""Resize, Pad and ArgMax directly on integers between QuantizeLinear and DequantizeLinear, as in the form
QOperator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qfmt
from networks.onnx_models import dq, grids, node, operators, proto, q, random_inputs
from support.onnx_files import compare
from support.onnx_witness import runtime

PADS = np.array([0, 0, 1, 2, 0, 0, 2, 0], np.int64)


@pytest.mark.parametrize("point", [np.uint8(117), np.uint8(0), np.int8(-128)])
@pytest.mark.parametrize("form", ["absent", "value", "reflect", "edge"])
def test_padding(form: str, point: np.generic, tmp_path: Path) -> None:
    """The padding value is an integer; its default is 0, whatever the zero point."""
    names = ["xm", "pads", "v"] if form == "value" else ["xm", "pads"]
    mode = form if form in ("reflect", "edge") else "constant"
    pool = node("MaxPool", ["xq"], ["xm"], kernel_shape=[1, 1])
    nodes = [q("x", "x", "xq"), pool, node("Pad", names, ["p"], mode=mode), dq("p", "x", "y")]
    constants = {**grids(x=(0.037, point)), "pads": PADS, "v": np.array(33, point.dtype)}
    constants = {name: value for name, value in constants.items() if name != "v" or form == "value"}
    model = compare(proto(nodes, {"x": (TensorProto.FLOAT, [1, 2, 5, 6])}, ["y"], constants), tmp_path)
    assert model.tensors["p"].quantization is not None
    assert not any(name.startswith("ai.onnx.") for name in operators(model))


def test_resizing_to_the_nearest(tmp_path: Path) -> None:
    nodes = [q("x", "x", "xq"), node("Resize", ["xq", "", "by"], ["r"], mode="nearest"), dq("r", "x", "y")]
    constants = {**grids(x=(0.037, np.uint8(117))), "by": np.array([1, 1, 2, 1.5], np.float32)}
    model = compare(proto(nodes, {"x": (TensorProto.FLOAT, [1, 2, 4, 6])}, ["y"], constants), tmp_path)
    assert model.tensors["r"].quantization is not None


def test_interpolated_integers_are_those_of_their_operator(tmp_path: Path) -> None:
    """ONNX interpolates integers to integers, which differ from quantized interpolated real numbers."""
    nodes = [q("x", "x", "xq"), node("Resize", ["xq", "", "by"], ["r"], mode="linear"), dq("r", "x", "y")]
    constants = {**grids(x=(0.037, np.uint8(117))), "by": np.array([1, 1, 2, 2], np.float32)}
    model = compare(proto(nodes, {"x": (TensorProto.FLOAT, [1, 2, 4, 6])}, ["y"], constants), tmp_path)
    assert model.tensors["r"].quantization is None


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_argmax_of_integers(operator: str, tmp_path: Path) -> None:
    nodes = [q("x", "x", "xq"), node(operator, ["xq"], ["i"], axis=1)]
    source = proto(nodes, {"x": (TensorProto.FLOAT, [2, 5])}, {"i": TensorProto.INT64}, grids(x=(0.5, np.uint8(117))))
    model = compare(source, tmp_path)
    assert model.tensors["xq"].quantization is not None


def test_per_channel_scales_are_not_changed(tmp_path: Path) -> None:
    scales = np.array([0.1, 0.2], np.float32)
    nodes = [q("x", "x", "xq", axis=1), node("Pad", ["xq", "pads"], ["p"]), dq("p", "x", "y", axis=1)]
    constants = {**grids(x=(scales, np.array([3, 200], np.uint8))), "pads": PADS}
    compare(proto(nodes, {"x": (TensorProto.FLOAT, [1, 2, 5, 6])}, ["y"], constants), tmp_path)


def test_shape_of_a_quantized_tensor(tmp_path: Path) -> None:
    nodes = [q("x", "x", "xq"), node("Shape", ["xq"], ["n"]), dq("xq", "x", "xd"), node("Reshape", ["xd", "n"], ["y"])]
    source = proto(nodes, {"x": (TensorProto.FLOAT, ["N", 3])}, ["y"], grids(x=(0.05, np.uint8(117))))
    model = compare(source, tmp_path)
    assert model.tensors["xq"].quantization is not None


@pytest.mark.parametrize("opset", [13, 20, 21])
def test_types_that_an_older_opset_does_not_quantize(opset: int) -> None:
    """int16 with a computed scale: com.microsoft supports it in any opset."""
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Mul", ["most", "step"], ["s"]),
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("Transpose", ["q"], ["t"], perm=[1, 0]),
        node("DequantizeLinear", ["t", "s", "z"], ["y"]),
    ]
    constants = {"step": np.float32(1 / 3000), "z": np.int16(7)}
    source = proto(nodes, {"x": (TensorProto.FLOAT, [3, 4])}, ["y"], constants)
    written = qfmt.convert(source).to_onnx(opset=opset)
    onnx.checker.check_model(written, full_check=True)
    assert {each.domain for each in written.graph.node} == ({"", "com.microsoft"} if opset < 21 else {""})
    inputs = random_inputs(source, 0)
    assert (runtime(written, inputs)[0] == runtime(source, inputs)[0]).all()
