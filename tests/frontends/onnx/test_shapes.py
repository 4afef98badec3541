"""Shapes that an ONNX model states for the values between its nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qfmt
from networks.onnx_models import dq as dequantize
from networks.onnx_models import grids, node, proto, random_inputs
from networks.onnx_models import q as quantize
from support.onnx_witness import runtime

FLAT = [
    node("Shape", ["d"], ["s"]), node("Gather", ["s", "first"], ["n"]),
    node("Concat", ["n", "rest"], ["sizes"], axis=0), node("Reshape", ["d", "sizes"], ["r"]),
]  # fmt: skip
BY_BATCH = [
    node("Shape", ["r"], ["t"]), node("Gather", ["t", "first"], ["m"]),
    node("Concat", ["m", "rest"], ["to"], axis=0), node("Reshape", ["r", "to"], ["y"]),
]  # fmt: skip
BY_SUM = [node("Size", ["r"], ["c"]), node("Cast", ["c"], ["f"], to=TensorProto.FLOAT), node("Div", ["r", "f"], ["y"])]


@pytest.mark.parametrize("last", [BY_BATCH, BY_SUM])
@pytest.mark.parametrize("batch", ["N", None, 1])
def test_a_stated_batch_of_1_does_not_outlast_an_open_batch(
    batch: str | int | None, last: list[onnx.NodeProto], tmp_path: Path
) -> None:
    """Exported with a batch of 1; somebody opened the batch of the input later, or at conversion."""
    constants = {**grids(x=(0.05, np.uint8(120))), "first": np.array([0]), "rest": np.array([-1])}
    nodes = [quantize("x", "x", "q"), dequantize("q", "x", "d"), *FLAT, *last]
    made = proto(nodes, {"x": (TensorProto.FLOAT, [batch, 3, 2, 2])}, ["y"], constants)
    stale = {"q": (TensorProto.UINT8, [1, 3, 2, 2]), "d": (TensorProto.FLOAT, [1, 3, 2, 2])}
    stale |= {"r": (TensorProto.FLOAT, [1, 12])}
    made.graph.value_info.extend(helper.make_tensor_value_info(name, *each) for name, each in stale.items())
    onnx.save(made, tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx", input_shapes=None if batch != 1 else {"x": ("N", 3, 2, 2)})
    assert model.tensors["r"].shape == (None, None)
    opened = proto(nodes, {"x": (TensorProto.FLOAT, ["N", 3, 2, 2])}, ["y"], constants)
    inputs = random_inputs(opened)
    expected = runtime(opened, inputs)
    for result in model.run(inputs).values(), runtime(model.to_onnx(), inputs):
        np.testing.assert_array_equal([*result], expected)
