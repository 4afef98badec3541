"""`verify` of ONNX models with large external data, which the worker receives as arrays in addition to the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qfmt
from networks.onnx_models import node, proto
from qfmt.engines import RUNTIMES
from qfmt.frontends.onnx import external
from qfmt.frontends.onnx.execution import Engine
from qfmt.frontends.onnx.external import open_proto, take_large

FLOAT = TensorProto.FLOAT
GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.integers(-127, 128, (64, 64), np.int8)
TABLE = GENERATOR.standard_normal((1, 64)).astype(np.float32)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "LARGE", 64)


def saved(folder: Path, opset: int = 21) -> Path:
    """A model with external data: an int8 weight, a constant in a branch, small tensors, int4, and an unused
    weight."""
    outer = [onnx.ValueInfoProto(name="out")]
    branch = helper.make_graph([node("Add", ["product", "table"], ["out"])], "branch", [], outer)
    nodes = [
        node("DequantizeLinear", ["weight", "scale", "zero"], ["real"]),
        node("MatMul", ["x", "real"], ["product"]),
        node("If", ["true"], ["sum"], then_branch=branch, else_branch=branch),
        node("Reshape", ["sum", "shape"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "weight": WEIGHT,
        "scale": np.float32(0.125),
        "zero": np.int8(0),
        "table": TABLE,
        "true": np.array(True),
        "shape": np.array([8, 8]),
        "unused": np.arange(1000.0),
    }
    if opset >= 21:
        nodes.append(node("DequantizeLinear", ["nibbles", "scale"], ["z"]))
        constants["nibbles"] = helper.make_tensor("", TensorProto.INT4, [512], [1, -2] * 256)
    outputs = ["y", "z"] if opset >= 21 else ["y"]
    model = proto(nodes, {"x": (FLOAT, [1, 64])}, outputs, constants, opset=opset)
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_large_initializers_are_no_part_of_the_message(tmp_path: Path, lowered: None) -> None:
    model = open_proto(saved(tmp_path), files := {})
    arrays = take_large(model, files)
    assert set(arrays) == {"weight", "table", "unused"}
    assert np.array_equal(arrays["weight"], WEIGHT) and np.array_equal(arrays["table"], TABLE)
    assert not any(array.flags.owndata or array.flags.writeable for array in arrays.values())
    message = model.SerializeToString()
    assert WEIGHT.tobytes() not in message and str(tmp_path).encode() not in message
    small = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert small.keys() == {"scale", "zero", "true", "shape", "nibbles"} and small["shape"].tolist() == [8, 8]


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("engine", RUNTIMES)
def test_every_engine_computes_with_them(engine: str, opset: int, tmp_path: Path, lowered: None) -> None:
    """The results equal those of the model with all its data inside."""
    path = saved(tmp_path, opset)
    model = open_proto(path, files := {})
    arrays = take_large(model, files)
    whole = open_proto(path)
    assert not any(map(external.is_external, whole.graph.initializer))
    x = np.linspace(-1, 1, 64, dtype=np.float32)[None]
    results = []
    for message, beside in ((model, arrays), (whole, {})):
        made = Engine(np.frombuffer(message.SerializeToString(), np.uint8), beside, engine)
        asked = [*made.answer("run", {"x": x}, ["product", "y"], engine)]
        asked += made.answer("constants", ["weight", "real", "table", "product"])
        results.append({each[1]: each[2] for each in asked if each[0] == "value"})
    found, expected = results
    assert found.keys() == expected.keys() >= {"product", "y", "weight", "table"}
    for name, array in found.items():
        assert np.array_equal(array, expected[name]), name


def test_samples_share_a_session(tmp_path: Path, lowered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_proto(saved(tmp_path), files := {})
    arrays = take_large(model, files)
    made = Engine(np.frombuffer(model.SerializeToString(), np.uint8), arrays, "onnxruntime")
    opened = []
    original: Callable[..., Any] = onnxruntime.InferenceSession

    def noted(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", noted)
    for names in (["y"], ["y"], ["product"], ["product"]):
        list(made.answer("run", {"x": TABLE}, names, "onnxruntime"))
    assert len(opened) == 2


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_verify_compares_them(engine: str, tmp_path: Path, lowered: None) -> None:
    path = tmp_path / "m.onnx"
    nodes = [node("DequantizeLinear", ["weight", "scale"], ["real"]), node("MatMul", ["x", "real"], ["y"])]
    whole = proto(nodes, {"x": (FLOAT, [1, 64])}, ["y"], {"weight": WEIGHT, "scale": np.float32(0.125)})
    onnx.save(whole, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = qfmt.convert(path)
    report = qfmt.verify(path, model, engine=engine)
    assert report.ok and not report.skipped
    assert {weight.witnesses for weight in report.weights} == {("conversion", "onnx")}
    stored = np.fromfile(tmp_path / "weights.bin", np.int8)
    stored[int(np.flatnonzero(stored == WEIGHT.reshape(-1)[0])[0])] ^= 1
    model.save(tmp_path / "m.qfb")
    stored.tofile(tmp_path / "weights.bin")
    report = qfmt.verify(path, tmp_path / "m.qfb", engine=engine)
    assert not report.ok and any(not weight.ok for weight in report.weights)


@pytest.mark.slow
def test_a_model_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """Three sparse files; conversion, worker and comparison each read all of them."""
    size = 1 << 15
    nodes, initializers, value = [], [], "x"
    for index in range(3):
        name = f"weight{index}"
        with (tmp_path / name).open("wb") as file:
            file.write(WEIGHT.tobytes())
            file.truncate(size * size)
        tensor = TensorProto(name=name, data_type=TensorProto.INT8, dims=[size, size])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        initializers.append(tensor)
        nodes += [
            node("Gather", [name, "row"], [f"row{index}"], axis=0),
            node("Cast", [f"row{index}"], [f"real{index}"], to=FLOAT),
            node("Add", [value, f"real{index}"], [f"sum{index}"]),
        ]
        value = f"sum{index}"
    model = proto(nodes, {"x": (FLOAT, [1, size])}, [value], {"row": np.array([0])})
    model.graph.initializer.extend(initializers)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    report = qfmt.verify(path, qfmt.convert(path), samples=1)
    assert report.ok and not report.skipped
    assert {weight.witnesses for weight in report.weights} == {("conversion", "onnx")}
