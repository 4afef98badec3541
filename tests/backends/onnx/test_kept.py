"""Export to ONNX of operators that qfmt keeps as they are, for other opsets than their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import qfmt
from qfmt.errors import InexpressibleNodesError
from support.onnx_witness import runtime

f32 = np.float32
FLOAT = onnx.TensorProto.FLOAT
X = np.random.default_rng(0).normal(size=(1, 2, 6, 6)).astype(f32)
BOXES = {"boxes": np.array([[0, 0, 3, 3]], f32), "batch": np.array([0], np.int64)}


def model(nodes: list[onnx.NodeProto], constants: dict[str, Any], opset: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def within(operator: str, *more: str, **attributes: Any) -> list[onnx.NodeProto]:
    """An If with that operator in both branches."""
    branches = {}
    for name in ("then", "else"):
        inner = helper.make_node(operator, ["x", *more], [name], **attributes)
        outputs = [helper.make_tensor_value_info(name, FLOAT, None)]
        branches[f"{name}_branch"] = helper.make_graph([inner], name, [], outputs)
    return [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]


ALIGN = {"output_height": 2, "output_width": 2}
ZERO = {"zero": np.array(0, f32)}
UNPOOLED = [
    helper.make_node("MaxPool", ["x"], ["v", "i"], kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("MaxUnpool", ["v", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
]
"""Indices are int64: the only type that the schema allows."""


@pytest.mark.parametrize("opset", [None, 13, 15, 16, 21])
@pytest.mark.parametrize(
    "source",
    [
        model([helper.make_node("RoiAlign", ["x", *BOXES], ["y"], **ALIGN)], BOXES, 11),
        model([helper.make_node("RoiAlign", ["x", *BOXES], ["y"], **ALIGN)], BOXES, 15),
        model(UNPOOLED, {}, 11),
    ],
    ids=["RoiAlign-11", "RoiAlign-15", "MaxUnpool"],
)
def test_what_means_the_same_in_another_opset(source: onnx.ModelProto, opset: int | None) -> None:
    """RoiAlign has other coordinates from opset 16 on, unless it states them; ONNX Runtime has none of opset 22."""
    written = qfmt.convert(source).to_onnx(opset=opset)
    np.testing.assert_array_equal(runtime(written, {"x": X})[0], runtime(source, {"x": X})[0])


@pytest.mark.parametrize("opset", [13, 15])
def test_coordinates_that_older_opsets_do_not_have(opset: int) -> None:
    newer = qfmt.convert(model([helper.make_node("RoiAlign", ["x", *BOXES], ["y"], **ALIGN)], BOXES, 16))
    with pytest.raises(InexpressibleNodesError, match="was written for opset 16, in which RoiAlign differs"):
        newer.to_onnx(opset=opset)


@pytest.mark.parametrize(("own", "opset"), [(11, 16), (13, 21)])
def test_a_kept_operator_in_a_branch(own: int, opset: int) -> None:
    source = model(within("RoiAlign", *BOXES, **ALIGN), BOXES | ZERO, own)
    written = qfmt.convert(source).to_onnx(opset=opset)
    np.testing.assert_array_equal(runtime(written, {"x": X})[0], runtime(source, {"x": X})[0])


def test_a_normalization_with_scales_of_groups() -> None:
    scales = {"scale": np.array([2], f32), "bias": np.array([1], f32)}
    source = model(within("GroupNormalization", *scales, num_groups=1), scales | ZERO, 18)
    kept = qfmt.convert(source)
    np.testing.assert_array_equal(runtime(kept.to_onnx(opset=18), {"x": X})[0], runtime(source, {"x": X})[0])
    with pytest.raises(InexpressibleNodesError, match="opset 18, in which GroupNormalization differs"):
        kept.to_onnx(opset=21)


@pytest.mark.parametrize("attributes", [{}, {"axis": 1}])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_what_flattened_before_opset_13(name: str, attributes: dict[str, int]) -> None:
    older = qfmt.convert(model(within(name, **attributes), ZERO, 11))
    with pytest.raises(InexpressibleNodesError, match=f"was written for opset 11, in which {name} differs"):
        older.to_onnx()
    source = model(within(name, **attributes), ZERO, 13)
    np.testing.assert_array_equal(
        runtime(qfmt.convert(source).to_onnx(opset=21), {"x": X})[0], runtime(source, {"x": X})[0]
    )
