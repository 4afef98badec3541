"""Names after conversion from ONNX and export to it, and a second conversion of the export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qfmt
from networks import onnx_runtime
from networks.onnx_models import dq, grids, node, proto, q, random_inputs
from support.onnx_witness import runtime

FORMS = [
    "qdq u8s8 per channel",
    "qdq float bias",
    "qdq s8s8 per channel",
    "qoperator u8s8",
    "qoperator s8s8 per channel",
]


def files(name: str, form: str, folder: Path) -> onnx.ModelProto:
    path = onnx_runtime.dynamic(name, folder) if form == "dynamic" else onnx_runtime.static(name, form, folder)
    return onnx.load(path)


@pytest.mark.parametrize("name", ["cnn", "mlp"])
@pytest.mark.parametrize("form", [*FORMS, "dynamic"])
def test_every_tensor_has_a_name_of_the_source(name: str, form: str, tmp_path: Path) -> None:
    source = files(name, form, tmp_path)
    known = {name for node in source.graph.node for name in (*node.input, *node.output)}
    made = qfmt.convert(source)
    # MatMulInteger needs a transposed weight, which has a suffix.
    strange = {each for each in made.tensors if each.removesuffix(".T") not in known}
    assert not strange


@pytest.mark.parametrize("form", ["qdq u8s8 per channel", "qdq s8s8 per channel"])
def test_scales_and_zero_points_keep_their_names(form: str, tmp_path: Path) -> None:
    """Also through a file. Only initializers such as the bounds of a clamp and sizes may get new names."""
    source = files("cnn", form, tmp_path)
    qfmt.save(qfmt.convert(source), tmp_path / "m.qfb")
    model = qfmt.load(tmp_path / "m.qfb")
    written = {each.name for each in model.to_onnx().graph.initializer}
    asked = {name for each in source.graph.node if each.op_type.endswith("QuantizeLinear") for name in each.input[1:]}
    asked |= {name for each in source.graph.node if each.op_type == "DequantizeLinear" for name in each.input[1:]}
    kept = {each.name for each in source.graph.initializer} & asked
    print(f"{len(kept & written)} of {len(kept)} names kept")
    assert kept
    assert kept <= written
    assert all(model.graph.find(name) is not None for name in kept)


@pytest.mark.parametrize("name", ["cnn", "mlp", "generator", "transformer"])
@pytest.mark.parametrize("form", FORMS)
def test_a_round_trip_keeps_the_content_id(name: str, form: str, tmp_path: Path) -> None:
    first = qfmt.convert(files(name, form, tmp_path))
    written = first.to_onnx()
    second = qfmt.convert(written)
    difference = qfmt.diff(first, second)
    assert second.content_id() == first.content_id(), difference
    assert [node.name for node in second.nodes] == [node.name for node in first.nodes]


def test_dynamic_weights_are_transposed_once(tmp_path: Path) -> None:
    source = files("mlp", "dynamic", tmp_path)
    first = qfmt.convert(source)
    written = first.to_onnx()
    weights = {name for name in first.tensors if name.endswith(".T")}
    names = {each.name for each in written.graph.initializer}
    assert weights
    assert {name.removesuffix(".T") for name in weights} <= names & {each.name for each in source.graph.initializer}
    assert "Transpose" not in {each.op_type for each in written.graph.node}
    second = qfmt.convert(written)
    assert second.content_id() == first.content_id(), qfmt.diff(first, second)


@pytest.mark.parametrize("opset", [17, 21])
def test_the_opset_keeps_the_rounding_of_averages(opset: int) -> None:
    """ONNX Runtime sums differently from opset 19 on, and rounds some ties to the other side."""
    nodes = [q("x", "x", "xq"), dq("xq", "x", "xd"), node("AveragePool", ["xd"], ["m"], kernel_shape=[3, 3],
             pads=[1, 1, 1, 1]), q("m", "m", "mq"), dq("mq", "m", "y")]  # fmt: skip
    constants = grids(x=(0.03, np.uint8(117)), m=(0.015, np.uint8(100)))
    source = proto(nodes, {"x": (onnx.TensorProto.FLOAT, [1, 4, 16, 16])}, ["y"], constants, opset=opset)
    written = qfmt.convert(source).to_onnx()
    equal = total = 0
    for seed in range(4):
        inputs = random_inputs(source, seed)
        want, got = runtime(source, inputs)[0], runtime(written, inputs)[0]
        equal, total = equal + int((got == want).sum()), total + want.size
    print(f"{equal} of {total} equal")
    assert equal == total


def test_a_clip_keeps_the_name_of_the_integers_before_it() -> None:
    """A tensor before the rounding does not get it."""
    constants = grids(g=(0.25, np.uint8(3)), h=(0.5, np.uint8(9))) | {"low": np.uint8(20), "high": np.uint8(90)}
    nodes = [q("x", "g", "a"), dq("a", "g", "b"), node("Transpose", ["b"], ["t"], perm=[1, 0])]
    nodes += [q("t", "h", "r"), node("Clip", ["r", "low", "high"], ["c"]), dq("c", "h", "y")]
    source = proto(nodes, {"x": (TensorProto.FLOAT, [2, 3])}, {"y": TensorProto.FLOAT}, constants)
    source.producer_name = "qfmt"
    model = qfmt.convert(source)
    grids_of = [model.tensors[name].quantization for name in ("r", "t")]
    assert [grid and int(grid.zero_point[0]) for grid in grids_of] == [9, 3]
