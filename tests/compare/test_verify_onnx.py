"""`qfmt verify` with an ONNX model as the source: clean files pass and damaged ones are found, with every engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner, Result
from onnx import TensorProto
from torch import nn
from torch.ao import quantization as tq

import qfmt
from cases.one_node import single
from networks import onnx_models, onnx_runtime, pytorch
from qfmt.cli import main
from qfmt.compare.classes import classify
from qfmt.engines import RUNTIMES
from qfmt.frontends.onnx import source as onnx_source
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from qfmt.passes.statistics import statistics
from qfmt.rules import violations
from support.changed import one_scale_changed, one_value_changed, with_node, with_tensor, zero_point_moved
from support.paths import DIGITS

Change = Callable[[Model], Model]
LINEAR = "gemm15"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_runtime.static("cnn", "qdq u8s8 per channel", tmp_path_factory.mktemp("cnn"))


@pytest.fixture(scope="module")
def model(source: Path) -> Model:
    return qfmt.convert(source)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], catch_exceptions=False)


def outputs_of(report: qfmt.compare.Report, kind: str) -> int:
    return sum(getattr(node, kind) for node in report.nodes)


# -- clean files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["weight", "scale"])
def test_a_signalling_nan_is_no_warning(place: str, tmp_path: Path) -> None:
    """NumPy warns where it converts one, and warnings are errors here."""
    nan, path = np.array([0x7F800001], np.uint32).view(np.float32), tmp_path / "m.onnx"
    text = """<ir_version: 10, opset_import: ["" : 21]> m (float[2, 2] x) => (float[2, 2] y) {
        q = QuantizeLinear (x, s, z)
        a = DequantizeLinear (q, s, z)
        b = DequantizeLinear (v, t, z)
        c = MatMul (a, b)
        y = Add (c, w)
    }"""
    proto = onnx.parser.parse_model(text)
    constants = {"s": np.float32(0.1), "z": np.int8(0), "v": np.ones((2, 2), np.int8)}
    constants |= {"t": np.float32(0.5), "w": np.ones(1, np.float32)}
    for name, each in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(each), name))
    (changed,) = (each for each in proto.graph.initializer if each.name == ("w" if place == "weight" else "t"))
    changed.raw_data = nan.tobytes()
    onnx.save(proto, path)
    model = qfmt.convert(path)
    assert all("error" not in statistics(each, None, 8, 8) for each in model.graph.constants())
    assert qfmt.verify(path, model).ok


def test_what_functions_compute_is_compared(source: Path, model: Model, tmp_path: Path) -> None:
    """A rounding tie is found at the QuantizeLinear, which is within a function."""
    proto = onnx.load(source)
    graph, constant = proto.graph, {each.name for each in proto.graph.initializer}
    quantize = {each.output[0]: each for each in graph.node if each.op_type == "QuantizeLinear"}
    for node in [each for each in graph.node if each.op_type == "DequantizeLinear" and each.input[0] not in constant]:
        graph.node.remove(first := quantize[node.input[0]])
        node.CopyFrom(onnx.helper.make_node("Grid", first.input, node.output, domain="own"))
    body = [
        onnx.helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["integers"]),
        onnx.helper.make_node("DequantizeLinear", ["integers", "scale", "zero_point"], ["y"]),
    ]
    given = ["x", "scale", "zero_point"]
    proto.functions.append(onnx.helper.make_function("own", "Grid", given, ["y"], body, proto.opset_import))
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    onnx.checker.check_model(proto)
    onnx.save(proto, path := tmp_path / "functions.onnx")
    file, plain = qfmt.convert(path), qfmt.verify(source, model, samples=64)
    report = qfmt.verify(path, file, samples=64)
    counts = [[outputs_of(each, kind) for kind in ("outputs", "equal", "tie", "wrong")] for each in (report, plain)]
    print("{} outputs, {} equal, {} ties, {} wrong".format(*counts[0]))
    assert report.ok and counts[0] == counts[1] and counts[0][2] > 0
    assert not qfmt.verify(path, zero_point_moved(file, LINEAR), samples=1).ok


def test_a_clean_file_is_equal(source: Path, model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.qfb")
    result = command(source, tmp_path / "m.qfb")
    assert result.exit_code == 0, result.output
    assert "from which the file was made" in result.stdout
    assert "engine     onnxruntime, onnxruntime " in result.stdout
    assert result.stdout.endswith("\nequal\n")
    for node in model.nodes:
        assert f" {node.name} " in result.stdout


@pytest.mark.parametrize("engine", RUNTIMES)
def test_every_engine_is_supported(engine: str, source: Path, model: Model) -> None:
    report = qfmt.verify(source, model, samples=2, engine=engine)
    print(f"{engine}: {outputs_of(report, 'equal')} of {outputs_of(report, 'outputs')} equal, "
          f"{outputs_of(report, 'tie')} ties, {outputs_of(report, 'wrong')} wrong")  # fmt: skip
    assert report.engine == engine and report.version.startswith("onnx")
    looked_up = engine in ("onnxruntime:extended", "onnxruntime:all")  # QLinearSoftmax uses a table of integers
    assert [node.operator for node in report.nodes if not node.ok] == ["Softmax"] * (looked_up and not report.ok)
    assert {weight.witnesses for weight in report.weights} == {("conversion", "onnx")}


def test_without_onnx_runtime_the_reference_runs(source: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # any import of it raises
    report = qfmt.verify(source, model, samples=1)
    assert report.ok and report.engine == "reference" and not report.skipped
    skipped = qfmt.verify(source, model, samples=1, engine="onnxruntime")
    assert "onnxruntime is not installed" in skipped.skipped and skipped.ok and len(skipped.weights) > 10


def test_inputs_of_ones_own(source: Path, model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.qfb")
    np.save(tmp_path / "x.npy", np.full((1, 3, 16, 16), 0.25, np.float32))
    result = command(source, tmp_path / "m.qfb", "--input", tmp_path / "x.npy", "--json")
    found = json.loads(result.stdout)
    assert (found["ok"], found["exact"], found["inputs"]) == (True, True, "as given: image [1,3,16,16]")
    assert found["version"].startswith("onnxruntime ")


@pytest.mark.parametrize("engine", ["onnx", "fbgemm"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "arithmetic"])
def test_pytorch_against_its_onnx_export(name: str, engine: str, tmp_path: Path) -> None:
    module, inputs = pytorch.quantized(name, "direct" if name == "arithmetic" else "fx")
    model = qfmt.convert(pytorch.save_as(module, inputs, "trace", tmp_path / "m.pt"), engine=engine)
    (tmp_path / "m.onnx").write_bytes(model.to_onnx().SerializeToString())
    report = qfmt.verify(tmp_path / "m.onnx", model, samples=1)
    print(f"{name}: {outputs_of(report, 'equal')} of {outputs_of(report, 'outputs')} equal, first {report.first_wrong}")
    assert all(weight.ok for weight in report.weights), [weight for weight in report.weights if not weight.ok]
    assert report.ok, [node for node in report.nodes if not node.ok]


def saved_and_exported(module: nn.Module, x: torch.Tensor, form: str, folder: Path) -> Path:
    """A network, quantized on one input, as `m.pt`, whose path is returned, and, converted, as `m.onnx`."""
    module.qconfig = tq.get_default_qconfig("fbgemm")
    prepared = tq.prepare(module)
    prepared(x)
    path = pytorch.save_as(tq.convert(prepared), (x,), "trace", folder / "m.pt")
    (folder / "m.onnx").write_bytes(qfmt.convert(path).to_onnx(form=form).SerializeToString())
    return path


def test_ranges_of_constants_that_one_format_states(tmp_path: Path) -> None:
    """PT2E states -127 for the weights of XNNPACK, and ONNX states no range. The integers are compared."""
    (tmp_path / "m.onnx").write_bytes(qfmt.convert(DIGITS).to_onnx().SerializeToString())
    model = qfmt.convert(tmp_path / "m.onnx")
    quantization = model.tensors["fc.weight"].quantization
    assert quantization is not None
    narrow = with_tensor(model, "fc.weight", quantization=replace(quantization, quant_min=-127))
    assert qfmt.verify(DIGITS, narrow, samples=1).ok
    report = qfmt.verify(DIGITS, one_value_changed(narrow, "fc.weight"), samples=1)
    assert [weight.name for weight in report.weights if not weight.ok] == ["fc.weight"]


@pytest.mark.parametrize("features", [3, 1])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_clamp_that_one_format_has_as_a_node(form: str, features: int, tmp_path: Path) -> None:
    """And a layer with one channel, whose scale ONNX has as a scalar. Each way, and each format against itself.

    Some outputs of so many depend on whether the bias is rounded to integers.
    """
    torch.manual_seed(1)
    layers = (tq.QuantStub(), nn.Linear(4, 600), nn.ReLU(), nn.Linear(600, features), tq.DeQuantStub())
    module = nn.Sequential(*layers).eval()
    saved_and_exported(module, torch.randn(16, 4, generator=torch.Generator().manual_seed(1)), form, tmp_path)
    for source in ("m.pt", "m.onnx"):
        for other in ("m.pt", "m.onnx"):
            report = qfmt.verify(tmp_path / source, qfmt.convert(tmp_path / other))
            assert report.ok, (source, other, report.first_wrong)


def test_a_clamp_with_another_bias(tmp_path: Path) -> None:
    """ONNX has the convolution and its clamp as one node, with an int32 bias: that is a rule, and stated."""
    torch.manual_seed(0)
    module = nn.Sequential(tq.QuantStub(), nn.Conv2d(8, 16, 1), nn.ReLU6(), tq.DeQuantStub()).eval()
    module[1].weight.data *= 6
    path = saved_and_exported(module, torch.randn(1, 8, 32, 32) * 1.2, "qoperator", tmp_path)
    model = qfmt.convert(tmp_path / "m.onnx")
    report = qfmt.verify(path, model, samples=8)
    print(
        f"{outputs_of(report, 'equal')} of {outputs_of(report, 'outputs')} equal, {outputs_of(report, 'stated')} stated"
    )
    assert report.ok and outputs_of(report, "stated") > 0
    (conv,) = (node for node in model.nodes if node.operator == "Conv")
    name = conv.outputs[0]
    for damaged in (
        one_value_changed(model, conv.inputs[1]),
        one_value_changed(model, conv.inputs[2]),
        with_tensor(model, name, quantization=replace(model.tensors[name].quantization, quant_max=50)),
    ):
        assert not qfmt.verify(path, damaged, samples=8).ok


def test_real_numbers_that_one_format_rounds_later(tmp_path: Path) -> None:
    """ONNX has a linear layer of sequences as MatMul, Add and QuantizeLinear: the sum is not rounded yet."""
    layers = (tq.QuantStub(), nn.Linear(4, 8), nn.Hardtanh(-0.5, 0.5), tq.DeQuantStub())
    module = nn.Sequential(*layers).eval()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    path = saved_and_exported(module, x, "qoperator", tmp_path)
    model = qfmt.convert(tmp_path / "m.onnx")
    assert "Add" in [node.operator for node in model.nodes]
    assert qfmt.verify(path, model).ok
    assert not qfmt.verify(path, one_value_changed(model, "1.bias")).ok


def test_a_bias_of_groups_that_share_scales(tmp_path: Path) -> None:
    """Compares a file with the ONNX model that was exported from it, in which the bias is int32."""
    rng, scale = np.random.default_rng(3), np.float32(0.05)
    x = Tensor("x", "uint8", (1, 4, 5, 5), quantization=Quantization.per_tensor(float(scale), 9, "uint8"))
    grid = Quantization.of((0.25, 0.5), 0, -128, 127, 1)
    w = Tensor.constant("w", rng.integers(-9, 9, (4, 2, 3, 3)).astype(np.int8), grid)
    b = Tensor.constant("b", rng.normal(0, 1, 4).astype(np.float32))
    y = Tensor("y", "uint8", (1, 4, 7, 7), quantization=Quantization.per_tensor(0.3, 120, "uint8"))
    attributes = {"group": 2, "kernel_shape": (3, 3), "pads": (0,) * 4, "strides": (1, 1), "dilations": (1, 1)}
    model = single("ConvTranspose", "integer_bias", [x, w, b], y, {**attributes, "output_padding": (0, 0)})
    model = model.replace(engine="fbgemm")
    (tmp_path / "m.onnx").write_bytes(model.to_onnx().SerializeToString())
    report = qfmt.verify(tmp_path / "m.onnx", model)
    assert report.ok
    assert outputs_of(report, "equal") >= 195


# -- damaged files -------------------------------------------------------------------------------------


def output_of(model: Model, name: str) -> str:
    return next(node.outputs[0] for node in model.nodes if node.name == name)


DAMAGES: dict[str, tuple[Change, str]] = {
    "a scale of an activation": (lambda m: one_scale_changed(m, output_of(m, "conv11")), "conv11 (Conv)"),
    "a zero point": (lambda m: zero_point_moved(m, output_of(m, LINEAR)), f"{LINEAR} (qfmt.Linear)"),
    "a rule": (lambda m: with_node(m, output_of(m, "conv4"), rule="float_bias"), "conv4 (Conv)"),
    "an operator": (lambda m: with_node(m, output_of(m, "add5"), operator="Sub"), "add5 (Sub)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_changed_is_named(damage: str, source: Path, model: Model, tmp_path: Path) -> None:
    change, layer = DAMAGES[damage]
    damaged = change(model)
    report = qfmt.verify(source, damaged, samples=1)
    assert report.first_wrong == layer
    if not violations(damaged):
        damaged.save(tmp_path / "damaged.qfb")
        result = command(source, tmp_path / "damaged.qfb")
        assert result.exit_code == 1
        assert result.stdout.endswith(f"first wrong: {layer}\n")


def test_every_constant_that_was_changed_is_found(source: Path, model: Model) -> None:
    constants = [tensor.name for tensor in model.graph.constants()]
    for name in constants:
        report = qfmt.verify(source, one_value_changed(model, name), samples=1)
        (found,) = (weight for weight in report.weights if not weight.ok)
        assert (found.name, found.different) == (name, 1)
        assert not report.ok and any(reader in report.first_wrong for reader in found.read_by)
    print(f"{len(constants)} constants")
    assert len(constants) == 12


DILATED = {"dilations": (2, 2), "pads": (2, 2, 2, 2)}
"""Attributes of another 3 × 3 convolution with the same output shape."""

MISREAD: dict[str, Change] = {
    "a weight": lambda m: one_value_changed(m, "w3_quantized"),
    "a scale of a weight": lambda m: one_scale_changed(m, "w3_quantized"),
    "a bias": lambda m: one_value_changed(m, next(n for n in m.nodes if n.name == "conv2").inputs[2]),
    "a scale of an activation": DAMAGES["a scale of an activation"][0],
    "a zero point": DAMAGES["a zero point"][0],
    "a dilation": lambda m: with_node(
        m,
        output_of(m, "conv7"),
        attributes={**next(n for n in m.nodes if n.name == "conv7").attributes, **DILATED},
    ),
    "an operator": DAMAGES["an operator"][0],
}


@pytest.mark.parametrize("misread", MISREAD)
def test_a_converter_that_misreads_the_source_is_found_out(
    misread: str, source: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fresh conversion has the same error as the file, but onnx's reader and ONNX Runtime do not."""
    wrong = MISREAD[misread](model)
    monkeypatch.setattr(onnx_source, "convert", lambda *_: wrong)
    report = qfmt.verify(source, wrong, samples=2)
    print(f"{misread}: first wrong {report.first_wrong}")
    assert not report.ok


def test_another_source_is_told(source: Path, model: Model, tmp_path: Path) -> None:
    other = onnx_runtime.static("cnn", "qdq u8u8", tmp_path)
    report = qfmt.verify(other, model, samples=1)
    assert not report.ok and report.same_source is False


# -- errors --------------------------------------------------------------------------------------------


def test_trouble_is_one_line_and_status_2(source: Path, model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.qfb")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(source.read_bytes()[:-100])
    for arguments, words in {
        (source, tmp_path / "m.qfb", "--engine", "fbgemm"): "fbgemm cannot run ONNX",
        (broken, tmp_path / "m.qfb"): "broken.onnx",
        (source, tmp_path / "m.qfb", "--input-shape", "image=1,2,16,16"): "image",
    }.items():
        result = command(*arguments)
        assert result.exit_code == 2, result.output
        assert words in result.stderr and "Traceback" not in result.stderr


def test_operators_without_a_reference_are_named_not_blamed(tmp_path: Path) -> None:
    import onnx

    b = onnx_runtime.Builder({"x": [1, 4]})
    path = tmp_path / "m.onnx"
    onnx.save(b.finish(b("Relu", b("Det", b("Reshape", "x", b.constant(np.array([1, 2, 2]))))), "unknown"), path)
    report = qfmt.verify(path, qfmt.convert(path))
    assert report.ok and len(report.nodes) == 3
    assert [note for note in report.notes if "no reference for ai.onnx.Det" in note]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_scans_are_compared_by_the_layers_of_the_file(layer: type[nn.Module], tmp_path: Path) -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.linear = layer(16, 16), nn.Linear(16, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.recurrent(x)[0])

    torch.manual_seed(0)
    module = tq.quantize_dynamic(Network().eval(), {layer, nn.Linear}, torch.float16)
    model = qfmt.convert(pytorch.save_as(module, (torch.randn(4, 2, 16),), "script", tmp_path / "m.pt"))
    (tmp_path / "m.onnx").write_bytes(model.to_onnx().SerializeToString())
    shapes = dict.fromkeys(model.graph.inputs, (4, 2, 16))
    report = qfmt.verify(tmp_path / "m.onnx", model, input_shapes=shapes)
    print(f"{outputs_of(report, 'equal')} of {outputs_of(report, 'outputs')} equal, first {report.first_wrong}")
    assert report.ok and report.nodes[-1].outputs == 4 * 4 * 2 * 64
    other = qfmt.verify(tmp_path / "m.pt", qfmt.convert(tmp_path / "m.onnx"), input_shapes=shapes)
    assert other.first_wrong.endswith("was not compared: qfmt has no reference for ai.onnx.Scan")
    given = [f"--input-shape={name}=4,2,16" for name in model.graph.inputs]
    result = command(tmp_path / "m.pt", tmp_path / "m.onnx", *given)
    assert result.exit_code == 1 and result.stdout.endswith(f"not verified: {other.first_wrong}\n")


def test_onnx_that_qfmt_wrote_from_onnx_is_compared_by_its_results(tmp_path: Path) -> None:
    """It has one operator of ONNX Runtime in the form of multiple standard ones."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.integers(0, 256, (8, 2, 8), np.uint8), "s": rng.random((8, 2), np.float32)}
    sizes = {"K": 32, "N": 8, "bits": 4, "block_size": 16}
    layer = onnx_models.node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **sizes)
    proto = onnx_models.proto([layer], {"x": (TensorProto.FLOAT, [4, 32])}, ["y"], weights)
    source, written = tmp_path / "m.onnx", tmp_path / "written.onnx"
    onnx.save(proto, source)
    model = qfmt.convert(source)
    onnx.save(model.to_onnx(), written)
    for a, b in ((written, model), (source, qfmt.convert(written)), (written, qfmt.convert(written))):
        report = qfmt.verify(a, b)
        assert report.ok and report.outputs[0].outputs == 4 * 4 * 8, (a, report.first_wrong)
    wrong = model.tensors["w"]
    changed = Tensor.constant("w", (wrong.array + 1) % 16, wrong.quantization)
    other = model.replace(graph=replace(model.graph, tensors={**model.tensors, "w": changed}))
    assert qfmt.verify(written, other).first_wrong == "y (qfmt.Linear)"


def test_an_export_with_other_zero_points_is_compared(tmp_path: Path) -> None:
    """`--same-types` gives activations the type of the weights, and with it another zero point."""
    grids = onnx_models.grids(x=(0.05, np.int8(-3)), y=(0.04, np.int8(5)), w=(0.01, np.uint8(128)))
    weights = grids | {"w": np.random.default_rng(0).integers(0, 256, (4, 8), np.uint8)}
    nodes = [
        *(onnx_models.q("x", "x", "xq"), onnx_models.dq("xq", "x", "xr"), onnx_models.dq("w", "w", "wr")),
        *(onnx_models.node("MatMul", ["xr", "wr"], ["yr"]), onnx_models.q("yr", "y", "yq")),
        onnx_models.dq("yq", "y", "z"),
    ]
    onnx.save(onnx_models.proto(nodes, {"x": (TensorProto.FLOAT, [3, 4])}, ["z"], weights), tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx")
    onnx.save(model.to_onnx(same_types=True), tmp_path / "same.onnx")
    again = qfmt.convert(tmp_path / "same.onnx")
    grids_of_sums = [each.tensors[each.nodes[1].outputs[0]].quantization for each in (model, again)]
    assert [grid and grid.zero_point[0] for grid in grids_of_sums] == [5, 133]
    onnx.save(model.to_onnx(), tmp_path / "plain.onnx")
    plain = qfmt.convert(tmp_path / "plain.onnx")
    for a, b in (("m.onnx", again), ("same.onnx", model), ("plain.onnx", again), ("same.onnx", plain)):
        report = qfmt.verify(tmp_path / a, b)
        assert report.ok and sum(node.outputs for node in report.nodes) > 24, report.first_wrong
        assert not report.uncompared and not report.unpaired and len(report.weights) == 1
        (weight,) = (tensor.name for tensor in b.graph.constants() if len(tensor.shape or ()) == 2)
        assert qfmt.verify(tmp_path / a, one_value_changed(b, weight)).weights[0].different == 1


@pytest.mark.parametrize("operator", ["Resize", "Concat"])
def test_an_export_of_same_types_that_ends_in_moved_integers(operator: str, tmp_path: Path) -> None:
    """An output keeps its type, and so does what it is moved from."""
    grid, out = Quantization.per_tensor(0.05, 0, "int8"), Quantization.per_tensor(0.03, -128, "int8")
    weight = np.random.default_rng(0).integers(-20, 20, (3, 2, 1, 1)).astype(np.int8)
    window = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "group": 1}
    moved = {"Resize": ("y", "", "", "sizes"), "Concat": ("y", "y")}[operator]
    attributes = {"Resize": {"mode": "nearest", "nearest_mode": "floor"}, "Concat": {"axis": 1}}[operator]
    nodes = [
        Node("QuantizeLinear", ("x",), ("q",), {}, "", OPERATORS["QuantizeLinear"].version, "divide"),
        Node("Conv", ("q", "w"), ("y",), window, "", OPERATORS["Conv"].version, "integer_bias"),
        Node(operator, moved, ("z",), OPERATORS[operator].complete(attributes), "", OPERATORS[operator].version),
    ]
    tensors = [
        *(Tensor("x", "float32", (1, 2, 4, 4)), Tensor("q", "int8", (1, 2, 4, 4), None, grid)),
        *(Tensor("y", "int8", None, None, out), Tensor("z", "int8", None, None, out)),
        Tensor.constant("w", weight, Quantization.per_tensor(0.01, 0, "int8")),
        *([Tensor.constant("sizes", np.array([1, 3, 8, 8]))] if operator == "Resize" else []),
    ]
    model = Model(Graph(("x",), ("z",), nodes, {each.name: each for each in tensors}), engine="onnx")
    onnx.save(model.to_onnx(same_types=True), tmp_path / "m.onnx")
    model.save(tmp_path / "m.qfb")
    report = qfmt.verify(tmp_path / "m.onnx", tmp_path / "m.qfb")
    assert report.ok and report.outputs[0].outputs, report.first_wrong


def test_weights_that_the_import_transposes_in_two_exports(tmp_path: Path) -> None:
    """A linear layer on three dimensions is a MatMul, whose folded weight has the name of the Transpose in both."""
    module = nn.Sequential(tq.QuantStub(), nn.Linear(4, 8), tq.DeQuantStub()).eval()
    path = saved_and_exported(module, torch.randn(1, 5, 4), "qdq", tmp_path)
    model = qfmt.convert(path, input_shapes={"input": (1, 5, 4)})
    onnx.save(model.to_onnx(), tmp_path / "m.onnx")
    onnx.save(model.to_onnx(same_types=True), tmp_path / "same.onnx")
    for a, b in (("m.onnx", "same.onnx"), ("same.onnx", "m.onnx"), ("m.pt", "same.onnx")):
        other = qfmt.convert(tmp_path / b)
        report = qfmt.verify(tmp_path / a, other)
        assert report.ok and not report.uncompared and not report.unpaired, (a, report.first_wrong)
        (weight,) = (tensor.name for tensor in other.graph.constants() if len(tensor.shape or ()) == 2)
        changed = qfmt.verify(tmp_path / a, one_value_changed(other, weight))
        assert [each.different for each in changed.weights if not each.ok] == [1]


def test_open_sizes_are_those_of_the_trace_of_the_file(tmp_path: Path) -> None:
    """An ONNX model does not state them; the file that it was exported from does."""
    module = nn.Sequential(tq.QuantStub(), nn.AvgPool2d(2), nn.Conv2d(5, 8, 3), tq.DeQuantStub()).eval()
    path = saved_and_exported(module, torch.randn(1, 5, 12, 10), "qdq", tmp_path)
    report = qfmt.verify(tmp_path / "m.onnx", qfmt.convert(path))
    assert report.ok and report.inputs.endswith("[1,5,12,10]"), report.inputs


class TwoHeads(nn.Module):
    """Dequantizes one tensor twice, for two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.quantize, self.conv, self.dequantize = tq.QuantStub(), nn.Conv2d(4, 4, 1), tq.DeQuantStub()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(self.quantize(x))
        return self.dequantize(y).permute(0, 2, 3, 1), self.dequantize(y).softmax(1)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_nodes_that_move_past_others_of_their_operator(form: str, tmp_path: Path) -> None:
    """The reader of ONNX transposes integers: operators are then in the same order, but not what they read."""
    path = saved_and_exported(TwoHeads().eval(), torch.randn(1, 4, 4, 4), form, tmp_path)
    for source, file in ((path, tmp_path / "m.onnx"), (tmp_path / "m.onnx", path)):
        report = qfmt.verify(source, qfmt.convert(file))
        assert report.ok and not report.first_wrong, report


@pytest.mark.parametrize("rows", [400])
def test_ties_of_a_dynamic_layer(rows: int, tmp_path: Path) -> None:
    """ONNX divides by the scale, and torch multiplies: at a tie, all results of a row are those of another integer."""
    torch.manual_seed(0)
    with pytorch.quiet():
        module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(768, 16)).eval(), {nn.Linear})
    x = torch.randn(rows, 768)
    path = pytorch.save_as(module, (x,), "trace", tmp_path / "m.pt")
    (tmp_path / "m.onnx").write_bytes(qfmt.convert(path).to_onnx().SerializeToString())
    for source, file in ((path, tmp_path / "m.onnx"), (tmp_path / "m.onnx", path)):
        model = qfmt.convert(file)
        report = qfmt.verify(source, model, {model.graph.inputs[0]: x.numpy()})
        assert report.ok and sum(node.stated for node in report.nodes) > 0, report


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "clamp behind a pool": lambda: [nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU6()],
    "two clamps": lambda: [nn.ReLU(), nn.ReLU6()],
    "clamps around a nearest resize": lambda: [nn.ReLU(), nn.Upsample(scale_factor=2), nn.ReLU6()],
    "bilinear": lambda: [nn.Upsample(size=(7, 5), mode="bilinear"), nn.Upsample(size=(9, 8), mode="bilinear")],
}


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", LAYERS)
def test_an_export_is_compared_with_its_origin_in_any_form(name: str, form: str, tmp_path: Path) -> None:
    """Clamps of integers have a quantization, and those that ONNX has in a QuantizeLinear follow the file's rule."""
    torch.manual_seed(2)
    module = nn.Sequential(tq.QuantStub(), *LAYERS[name](), tq.DeQuantStub()).eval()
    module.qconfig = tq.get_default_qconfig("fbgemm")  # type: ignore[assignment]
    inputs = (torch.randn(4, 3, 24, 24),)
    prepared = tq.prepare(module)
    prepared(*inputs)
    source, written = pytorch.save_as(tq.convert(prepared), inputs, "trace", tmp_path / "m.pt"), tmp_path / "m.onnx"
    model = qfmt.convert(source)
    onnx.save(model.to_onnx(form=form), written)
    shapes = dict.fromkeys(model.graph.inputs, (4, 3, 24, 24))
    again = qfmt.convert(written)
    assert not [node for node in again.nodes if node.operator.startswith("ai.onnx")]
    for a, b in ((source, again), (written, model), (written, again)):
        report = qfmt.verify(a, b, input_shapes=shapes)
        assert report.ok, (a.name, report.first_wrong)


@pytest.mark.parametrize(
    ("operator", "low", "high"),
    [
        *((name, low, 0) for name in ("Elu", "Celu", "Selu") for low in (-0.01, -1e-6)),
        *(("Sigmoid", low, high) for low, high in ((-7, -6), (-30, -16), (-10, 10))),
        *((name, low, high) for name in ("Mish", "Gelu", "Softplus") for low, high in ((-6, -5), (-30, -9), (-5, 5))),
        *((name, -1e-6, 1e-6) for name in ("Tanh", "Erf", "Sin", "Softsign", "Gelu", "Mish")),
        ("HardSwish", -3.00001, -2.99999),
        ("HardSigmoid", -2.50001, -2.49999),
    ],
)
def test_a_float_near_zero_that_is_a_difference(operator: str, low: float, high: float, tmp_path: Path) -> None:
    """exp(x) - 1 is off by units of 1 in ONNX Runtime, and so is its Sigmoid, also if all outputs are small: those of a
    classifier that is sure of no class."""
    path, nodes = tmp_path / "m.onnx", [onnx_models.node(operator, ["x"], ["y"])]
    onnx.save(onnx_models.proto(nodes, {"x": (TensorProto.FLOAT, [4096])}, ["y"], opset=20), path)
    x = np.linspace(low, high, 4096, dtype=np.float32)
    report = qfmt.verify(path, qfmt.convert(path), {"x": x})
    assert report.ok, report.nodes


def test_duplicate_outputs_are_compared_under_both_names(tmp_path: Path) -> None:
    path, text = tmp_path / "m.onnx", "agraph (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), path)
    model = qfmt.convert(path)
    assert model.graph.outputs == ("y", "y_1")
    report = qfmt.verify(path, model)
    assert report.ok
    assert [(found.name, found.outputs, found.equal) for found in report.outputs] == [("y", 8, 8), ("y_1", 8, 8)]


@pytest.mark.parametrize("place", ["input", "output"])
def test_another_element_type_is_another_network(place: str, tmp_path: Path) -> None:
    """A file of the other form may have other nodes, but callers pass and get the arrays of the source."""
    steps = "q = QuantizeLinear(x, scale, zero) y = DequantizeLinear(q, scale, zero)"
    text = """<ir_version: 9, opset_import: ["": 17]> agraph (float[4] x) => (float[4] y)
        <float scale = {0.5}, uint8 zero = {128}> { STEPS }""".replace("STEPS", steps)
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    proto = qfmt.convert(tmp_path / "m.onnx").to_onnx()
    onnx.save(proto, tmp_path / "right.onnx")
    assert qfmt.verify(tmp_path / "m.onnx", qfmt.convert(tmp_path / "right.onnx")).ok
    if place == "input":
        proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
        proto.graph.node.insert(0, onnx.helper.make_node("Cast", ["x"], ["real"], to=onnx.TensorProto.FLOAT))
        proto.graph.node[1].input[0] = "real"
    else:
        proto.graph.output[0].name = proto.graph.node[-1].input[0]
        proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
        del proto.graph.node[-1]
    onnx.save(proto, tmp_path / "other.onnx")
    report = qfmt.verify(tmp_path / "m.onnx", qfmt.convert(tmp_path / "other.onnx"))
    assert not report.ok and report.first_wrong.startswith(f"the type of the {place} ")


@pytest.mark.parametrize(
    ("given", "made", "wrong"),
    [
        (("uint8", 100), ("uint8", 120), ""),
        (("uint8", 100), ("int8", -8), ""),
        (("uint8", 100), ("int8", 120), "output"),
        (("uint8", 100), ("uint16", 120), "output"),
        (("int8", 100), ("uint8", 120), "input"),
        (("int8", -28), ("uint8", 120), "input"),
        (("int16", 100), ("uint8", 120), "input"),
    ],
)
def test_integers_of_another_type(given: tuple[str, int], made: tuple[str, int], wrong: str, tmp_path: Path) -> None:
    """Callers pass the arrays of the source. Outputs mean the same if zero points differ as types do."""

    def model(given: tuple[str, int], made: tuple[str, int]) -> onnx.ModelProto:
        (x, a), (y, b) = given, made
        text = f"""<ir_version: 10, opset_import: ["": 21]> agraph ({x}[1,4] x) => ({y}[1,4] y)
            <float s = {{0.05}}, {x} a = {{{a}}}, {y} b = {{{b}}}>
            {{ real = DequantizeLinear(x, s, a) z = Sigmoid(real) y = QuantizeLinear(z, s, b) }}"""
        return onnx.parser.parse_model(text)

    onnx.save(model(("uint8", 100), ("uint8", 120)), tmp_path / "m.onnx")
    onnx.save(qfmt.convert(model(given, made)).to_onnx(), tmp_path / "other.onnx")
    report = qfmt.verify(tmp_path / "m.onnx", qfmt.convert(tmp_path / "other.onnx"))
    assert report.ok == (not wrong), report.first_wrong
    assert any(words.startswith(f"the type of the {wrong} ") for words in report.interface) == bool(wrong)


MOVES = {
    "Transpose": "z = Transpose<perm = [0, 2, 3, 1]>(p)",
    "Flatten": "z = Flatten(p)",
    "MaxPool": "z = MaxPool<kernel_shape = [2, 2]>(p)",
    "two moves": "t = Flatten(p) z = Transpose<perm = [1, 0]>(t)",
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    "mean", ["AveragePool<kernel_shape = [2, 2], strides = [2, 2]>", "AveragePool<kernel_shape = [2, 4]>"]
)
def test_ties_before_a_move(mean: str, move: str, tmp_path: Path) -> None:
    """The file quantizes before the move, and the source after it."""
    text = f"""<ir_version: 9, opset_import: ["": 17]> agraph (float[1,4,8,8] x) => (float y)
        <float s = {{0.05}}, uint8 zero = {{128}}>
        {{ q = QuantizeLinear(x, s, zero) r = DequantizeLinear(q, s, zero) p = {mean}(r) {MOVES[move]}
           w = QuantizeLinear(z, s, zero) y = DequantizeLinear(w, s, zero) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx")
    report = qfmt.verify(tmp_path / "m.onnx", model, samples=8)
    assert report.ok and sum(node.tie for node in report.nodes) > 0, report.first_wrong
    for node in model.nodes[1:-1]:
        model = one_scale_changed(model, node.outputs[0])
    assert not qfmt.verify(tmp_path / "m.onnx", model).ok


def test_nodes_of_one_name_are_counted_one_by_one(tmp_path: Path) -> None:
    """Only the second is wrong, and the source has one more of that name."""
    path, text = tmp_path / "m.onnx", "agraph (float[3] x) => (float[3] y) { a = Relu(x) b = Neg(a) y = Exp(b) }"
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    for node in proto.graph.node:
        node.name = "n"
    onnx.save(proto, path)
    model = qfmt.convert(path)
    second = replace(model.nodes[1], operator="Abs")
    changed = replace(model.graph, nodes=(model.nodes[0], second, model.nodes[2]))
    report = qfmt.verify(path, model.replace(graph=changed), engine="reference")
    assert [(node.outputs, bool(node.wrong)) for node in report.nodes] == [(12, False), (12, True), (12, False)]
    shorter = replace(model.graph, nodes=model.nodes[:2], outputs=("b",))
    tensors = {name: tensor for name, tensor in model.tensors.items() if name != "y"}
    report = qfmt.verify(path, model.replace(graph=replace(shorter, tensors=tensors)), engine="reference")
    assert [(node.operator, node.outputs) for node in report.nodes] == [("Relu", 12), ("Neg", 12)]
    assert report.missing == ("n (Exp)",)


def foreign(path: Path, scale: float, batch: int | str) -> Path:
    """Another network with the interface of `DIGITS`. For inputs that are 0 it is right: it adds x · W to that result.
    Its quantizer states that inputs are in the range of 255 · scale."""
    rest = qfmt.convert(DIGITS).run({"x": np.zeros((1, 1, 8, 8), np.float32)})["dequant"]
    weight = np.random.default_rng(1).standard_normal((64, 10)).astype(np.float32)
    arrays = {"scale": np.float32(scale), "zero": np.uint8(0), "W": weight, "rest": rest}
    nodes = [
        onnx_models.node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        onnx_models.node("DequantizeLinear", ["q", "scale", "zero"], ["tiny"]),
        onnx_models.node("Add", ["x", "tiny"], ["sum"]),
        onnx_models.node("Flatten", ["sum"], ["flat"]),
        onnx_models.node("MatMul", ["flat", "W"], ["product"]),
        onnx_models.node("Add", ["product", "rest"], ["dequant"]),
    ]
    onnx.save(onnx_models.proto(nodes, {"x": (TensorProto.FLOAT, (batch, 1, 8, 8))}, ["dequant"], arrays), path)
    return path


def test_a_file_does_not_choose_the_range_of_its_inputs(tmp_path: Path) -> None:
    report = qfmt.verify(DIGITS, qfmt.convert(foreign(tmp_path / "m.onnx", 1e-30, "N")))
    assert report.first_wrong == "dequant (Add)"


def test_nothing_compared_is_not_equal(tmp_path: Path) -> None:
    """A batch of no samples."""
    report = qfmt.verify(DIGITS, qfmt.convert(foreign(tmp_path / "m.onnx", 0.1, 0)))
    assert not report.ok
    report = qfmt.verify(
        DIGITS, qfmt.convert(foreign(tmp_path / "m.onnx", 0.1, 0)), {"x": np.zeros((0, 1, 8, 8), "f4")}
    )
    assert report.first_wrong == "nothing was compared: no output has elements and a reference"


def test_a_tie_elsewhere_does_not_explain_an_output(tmp_path: Path) -> None:
    """A network whose result is a constant. A node that leads nowhere computes a tensor of the source, off by one at
    ties of its own."""
    grid = qfmt.convert(DIGITS).tensors["quant"].quantization
    assert grid is not None
    scale = np.float32(grid.scale[0])
    arrays = {"scale": scale, "zero": np.uint8(grid.zero_point[0]), "half": scale * np.float32(0.5 + 1e-7)}
    nodes = [
        onnx_models.node("QuantizeLinear", ["x", "scale", "zero"], ["integers"]),
        onnx_models.node("DequantizeLinear", ["integers", "scale", "zero"], ["real"]),
        onnx_models.node("Add", ["real", "half"], ["between"]),
        onnx_models.node("QuantizeLinear", ["between", "scale", "zero"], ["quant"]),
    ]
    onnx.save(
        onnx_models.proto(nodes, {"x": (TensorProto.FLOAT, (1, 1, 8, 8))}, ["quant"], arrays), tmp_path / "m.onnx"
    )
    graph = qfmt.convert(tmp_path / "m.onnx").graph
    constant = Tensor.constant("dequant", np.zeros((1, 10), np.float32))
    tensors = {**graph.tensors, "dequant": constant}
    file = qfmt.convert(tmp_path / "m.onnx").replace(graph=replace(graph, outputs=("dequant",), tensors=tensors))
    (tmp_path / "digits.onnx").write_bytes(qfmt.convert(DIGITS, engine="onnx").to_onnx().SerializeToString())
    report = qfmt.verify(tmp_path / "digits.onnx", file)
    assert outputs_of(report, "wrong") and not outputs_of(report, "tie")
    assert not report.ok


def test_each_of_two_constants_is_compared(tmp_path: Path) -> None:
    """A file in which two products read the second one's weight: its comparison does not replace the first one's."""
    arrays = {"a": np.zeros((4, 4), np.float32), "b": np.ones((4, 4), np.float32)}
    nodes = [onnx_models.node("MatMul", ["x", "a"], ["m"]), onnx_models.node("MatMul", ["m", "b"], ["y"])]
    path = tmp_path / "m.onnx"
    onnx.save(onnx_models.proto(nodes, {"x": (TensorProto.FLOAT, (1, 4))}, ["y"], arrays), path)
    graph = qfmt.convert(path).graph
    first, second = graph.nodes
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name != "a"}
    shared = replace(graph, nodes=(replace(first, inputs=("x", "b")), second), tensors=tensors)
    report = qfmt.verify(path, qfmt.convert(path).replace(graph=shared), {"x": np.zeros((1, 4), np.float32)})
    assert [(weight.name, weight.different) for weight in report.weights] == [("b", 16)]
    assert not report.ok


def test_every_bit_of_an_int64_counts() -> None:
    x, y = Tensor("x", "int64", (1,)), Tensor("y", "int64", (1,))
    mine, theirs = np.array([2**53]), np.array([2**53 + 1])
    counts = classify(single("Identity", "", [x], y, {}).nodes[0], [Operand(mine, None)], y, mine, theirs)
    assert (counts.equal, counts.wrong) == (0, 1)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_mean_along_an_axis_from_the_end(keepdims: int) -> None:
    grid = Quantization.per_tensor(0.5, 3, "uint8")
    shape = (3, 4, 1) if keepdims else (3, 4)
    x, y = Tensor("x", "uint8", (3, 4, 6), quantization=grid), Tensor("y", "uint8", shape, quantization=grid)
    axes = Tensor.constant("axes", np.array([-1]))
    model = single("ReduceMean", "mean_reciprocal_fma", [x, axes], y, {"keepdims": keepdims})
    values = np.random.default_rng(2).integers(0, 256, (3, 4, 6)).astype(np.uint8)
    mine = model.run({"x": values})["y"]
    theirs = mine.copy()
    theirs.flat[5] += 1
    read = [Operand(values, grid), Operand(axes.array, None)]
    counts = classify(model.nodes[0], read, y, mine, theirs, "onnxruntime")
    real = values.reshape(12, 6)[5].astype(float).mean()  # whose integer is the nearest one, or the other at a tie
    assert (counts.equal, counts.tie + counts.wrong) == (11, 1)
    assert bool(counts.tie) == (real % 1 == 0.5)


def test_a_source_operator_does_not_widen_the_tolerance() -> None:
    x, y = Tensor("x", "float32", (1,)), Tensor("y", "float32", (1,))
    relu = replace(single("Relu", "", [x], y, {}).nodes[0], source_operator="aten::quantized_lstm")
    mine, theirs = np.array([1.01], np.float32), np.array([1], np.float32)
    assert classify(relu, [Operand(mine, None)], y, mine, theirs).wrong == 1
