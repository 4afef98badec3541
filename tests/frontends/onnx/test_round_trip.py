"""ONNX models keep their form, unknown operators and unknown dimensions when they are exported to ONNX again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import qfmt
from networks import onnx_runtime
from networks.onnx_models import node, proto, random_inputs
from qfmt.errors import InexpressibleNodesError, SourceError
from support import onnx_witness

FLOAT = TensorProto.FLOAT
QOPERATOR = ["qoperator u8s8", "qoperator s8s8 per channel"]


@pytest.mark.parametrize("level", ["plain", "fused"])
@pytest.mark.parametrize("form", QOPERATOR)
@pytest.mark.parametrize("name", ["cnn", "mlp", "generator", "transformer"])
def test_operators_on_integers_keep_their_form(name: str, form: str, level: str, tmp_path: Path) -> None:
    """ONNX Runtime computes the same bits, also through a file."""
    source = onnx.load(onnx_runtime.static(name, form, tmp_path))
    qfmt.save(qfmt.convert(source), tmp_path / "m.qfb")
    back = qfmt.load(tmp_path / "m.qfb").to_onnx()
    onnx.checker.check_model(back)
    equal = total = 0
    for seed in range(3):
        given = onnx_runtime.inputs(source, seed)
        pairs = zip(onnx_witness.runtime(source, given, level), onnx_witness.runtime(back, given, level), strict=True)
        for want, got in pairs:
            equal, total = equal + int((want == got).sum()), total + want.size
    print(f"{equal} of {total} equal")
    assert equal == total


def test_the_form_follows_the_source(tmp_path: Path) -> None:
    def has_qlinear(model: Any) -> bool:
        return any(each.op_type.startswith("QLinear") for each in model.graph.node)

    of_integers = qfmt.convert(onnx_runtime.static("cnn", QOPERATOR[0], tmp_path))
    of_floats = qfmt.convert(onnx_runtime.static("cnn", "qdq u8s8", tmp_path))
    assert of_integers.source["onnx_form"] == "qoperator"
    assert "onnx_form" not in of_floats.source
    assert has_qlinear(of_integers.to_onnx())
    assert not has_qlinear(of_integers.to_onnx(form="qdq"))
    assert not has_qlinear(of_floats.to_onnx())
    assert has_qlinear(of_floats.to_onnx(form="qoperator"))
    strange = of_integers.replace(source={**of_integers.source, "onnx_form": "another"})
    assert not has_qlinear(strange.to_onnx())


@pytest.mark.parametrize("opset", [13, 17, 21, 23])
def test_an_unknown_operator_of_the_default_domain_is_exported_unchanged(opset: int) -> None:
    """In any opset, since ONNX has no such operator in any of them."""
    with pytest.raises(onnx.defs.SchemaError):
        onnx.defs.get_schema("Sparkle", onnx.defs.onnx_opset_version(), "")
    nodes = [node("Relu", ["x"], ["r"]), node("Sparkle", ["r", "", "w"], ["a", "b"], "mine", strength=3, modes=["up"])]
    constants = {"w": np.arange(3, dtype=np.float32)}
    source = proto(nodes, {"x": (FLOAT, [3])}, ["a", "b"], constants, opset=17)
    back = qfmt.convert(source).to_onnx(opset=opset)
    (made,) = (each for each in back.graph.node if each.op_type == "Sparkle")
    assert made == source.graph.node[1]
    (weight,) = back.graph.initializer
    assert (weight.name, onnx.numpy_helper.to_array(weight).tolist()) == ("w", [0, 1, 2])


def test_an_operator_that_differs_in_the_opset_is_refused() -> None:
    """RotaryEmbedding is part of ONNX from opset 23 on; before, it was a custom operator with other inputs."""
    source = proto([node("RotaryEmbedding", ["x"], ["y"], style=2)], {"x": (FLOAT, [3])}, ["y"], opset=17)
    model = qfmt.convert(source)
    (made,) = model.to_onnx(opset=17).graph.node
    assert made.op_type == "RotaryEmbedding"
    with pytest.raises(InexpressibleNodesError, match="RotaryEmbedding was written for opset 17"):
        model.to_onnx(opset=23)


def test_a_dimension_without_a_name_is_not_known() -> None:
    source = proto([node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["N", 2, 3])}, ["y"])
    sizes = source.graph.input[0].type.tensor_type.shape.dim
    sizes[1].Clear()
    sizes[1].dim_param = ""
    assert sizes[1].HasField("dim_param")
    model = qfmt.convert(source)
    assert model.tensors["x"].shape == ("N", None, 3)
    back = model.to_onnx()
    onnx.checker.check_model(back)
    x = np.ones((2, 5, 3), np.float32)
    assert np.array_equal(onnx_witness.runtime(back, {"x": x})[0], x)


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    source = proto([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [3])}, [])
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    with pytest.raises(SourceError, match="without outputs; declare") as caught:
        qfmt.convert(tmp_path / "m.onnx")
    assert "m.onnx" in str(caught.value)


@pytest.mark.parametrize("scale", [np.float32(0.5), np.array([0.5, 0.25, 3], np.float32).reshape(3, 1)])
def test_bipolar_activations(scale: Any) -> None:
    """QONNX: scale if x ≥ 0, else -scale; the integers are 1 and -1."""
    nodes = [node("BipolarQuant", ["x", "s"], ["b"], domain="qonnx.custom_op.general"), node("Add", ["b", "x"], ["y"])]
    source = proto(nodes, {"x": (FLOAT, [2, 3, 4])}, ["b", "y"], {"s": scale}, opset=17)
    model = qfmt.convert(source)
    (quantized,) = (each for each in model.tensors.values() if each.quantization is not None)
    assert (quantized.quantization.quant_min, quantized.quantization.quant_max) == (-1, 1)
    x = random_inputs(source)["x"]
    x[0, 0] = [0.0, -0.0, np.float32(1e-45), np.float32(-1e-45)]
    expected = np.where(x >= 0, scale, -scale)
    found = model.run({"x": x})
    assert np.array_equal(found["b"], expected)
    assert np.array_equal(found["y"], expected + x)
    back = model.to_onnx()
    onnx.checker.check_model(back)
    for level in onnx_witness.LEVELS:
        b, y = onnx_witness.runtime(back, {"x": x}, level)
        assert np.array_equal(b, expected)
        assert np.array_equal(y, expected + x)
