"""`qfmt verify` for files that were made to look right: what the file says of itself proves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import qfmt
from cases.one_node import single
from networks import pytorch
from qfmt.compare import Report
from qfmt.model import Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from support.changed import one_value_changed, with_node, zero_point_moved
from support.paths import DIGITS

CONV, LINEAR, WEIGHT = "stem.0", "fc", "fc.weight"


def written(model: Model, path: Path, form: str = "qdq") -> Path:
    path.write_bytes(model.to_onnx(form=form).SerializeToString())
    return path


def total(report: Report, name: str) -> int:
    return sum(getattr(node, name) for node in report.nodes)


def half_a_step_added(model: Model, name: str) -> Model:
    """With a node before a tensor, so that every value is half-way between two integers."""
    tensor, before = model.tensors[name], f"{name}.before"
    assert tensor.quantization is not None
    half = Quantization.of(np.float32(tensor.quantization.scale[0] / 2), 0, -128, 127)
    tensors = {
        **model.tensors,
        before: replace(tensor, name=before, aliases=()),
        "half": Tensor.constant("half", np.array([1], np.int8), half),
    }
    version = OPERATORS["Add"].version
    added = Node("Add", (before, "half"), (name,), {}, "add", version, rule="divide")
    nodes: list[Node] = []
    for node in model.nodes:
        nodes += [replace(node, outputs=(before,)), added] if node.outputs == (name,) else [node]
    return model.replace(graph=replace(model.graph, nodes=tuple(nodes), tensors=tensors))


@pytest.mark.parametrize("name", [CONV, LINEAR])
@pytest.mark.parametrize("source", ["ONNX", "PyTorch"])
def test_nodes_of_the_file_prove_no_ties(source: str, name: str, tmp_path: Path) -> None:
    """A file that states another origin may have other nodes."""
    model = qfmt.convert(DIGITS, engine="onnx" if source == "ONNX" else None)
    path = written(model, tmp_path / "m.onnx") if source == "ONNX" else DIGITS
    if source == "PyTorch":
        model = model.replace(source={**model.source, "format": "onnx", "framework": "qfmt"})
    assert qfmt.verify(path, model).ok
    report = qfmt.verify(path, half_a_step_added(model, name))
    print(f"{name}: {total(report, 'tie')} tie, {total(report, 'wrong')} wrong of {total(report, 'outputs')}")
    assert not report.ok and total(report, "wrong")


def test_nan_of_an_attribute_is_no_nan_of_the_source(tmp_path: Path) -> None:
    grid = Quantization.of(np.float32(0.05), 100, 0, 255)
    x, y = Tensor("x", "uint8", (2, 50), None, grid), Tensor("y", "uint8", (2, 50), None, grid)
    model = single("LeakyRelu", "divide", [x], y, {"alpha": 0.1}).replace(engine="onnx")
    path = written(model, tmp_path / "m.onnx")
    assert qfmt.verify(path, model).ok
    report = qfmt.verify(path, with_node(model, "y", attributes={"alpha": float("nan")}))
    assert not report.ok and not total(report, "stated")


def test_the_place_of_equal_elements_is_defined_in_onnx(tmp_path: Path) -> None:
    x = Tensor("x", "uint8", (4, 900), None, Quantization.of(np.float32(0.05), 100, 0, 255))
    attributes = {"axis": 1, "keepdims": 0, "select_last_index": 0}
    model = single("ArgMax", "", [x], Tensor("y", "int64", (4,)), attributes).replace(engine="onnx")
    path = written(model, tmp_path / "m.onnx")
    assert qfmt.verify(path, model).is_exact
    assert not qfmt.verify(path, with_node(model, "y", attributes={**attributes, "select_last_index": 1})).ok


def test_a_constant_that_nothing_reads_is_not_compared(tmp_path: Path) -> None:
    model = qfmt.convert(DIGITS, engine="onnx")
    path = written(model, tmp_path / "m.onnx")
    copy = replace(model.tensors[WEIGHT], name="copy", aliases=())
    (node,) = (each for each in model.nodes if WEIGHT in each.inputs)
    inputs = tuple("copy" if name == WEIGHT else name for name in node.inputs)
    graph = replace(with_node(model, node.outputs[0], inputs=inputs).graph, tensors={**model.tensors, "copy": copy})
    report = qfmt.verify(path, model.replace(graph=graph))
    assert report.uncompared == (WEIGHT,) and report.unpaired == ("copy",)
    assert qfmt.verify(path, model).unpaired == ()


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)[0]
        return y


def test_weights_of_a_recurrent_layer_are_compared_bit_by_bit(tmp_path: Path) -> None:
    """Its outputs may differ much more than by a rounding error, so that samples do not show a step of a weight."""
    torch.manual_seed(1)
    x, shapes = torch.randn(4, 2, 5), {"x": (4, 2, 5)}
    with pytorch.quiet():
        module = torch.ao.quantization.quantize_dynamic(Recurrent().eval(), dtype=torch.qint8)
        torch.jit.trace(module, x, check_trace=False).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    path = written(model, tmp_path / "m.onnx")
    report = qfmt.verify(path, model, input_shapes=shapes)
    assert report.ok and not report.uncompared and not report.unpaired
    weights = [name for name in model.tensors if ".weight_" in name]
    assert len(weights) == 2
    for name in weights:
        assert not qfmt.verify(path, one_value_changed(model, name), input_shapes=shapes).ok
        assert qfmt.verify(path, zero_point_moved(model, name), input_shapes=shapes).unpaired == (name,)


def test_a_dynamic_layer_by_the_rule_of_another_engine(tmp_path: Path) -> None:
    """ONNX has it as multiple nodes, which round the input by a division. The file multiplies by the reciprocal."""
    torch.manual_seed(2)
    with pytorch.quiet():
        module = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(40, 3)).eval())
        torch.jit.trace(module, torch.randn(5, 40), check_trace=False).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", engine="pt2e")
    path, halves = written(model, tmp_path / "m.onnx"), np.tile((np.arange(120) + 0.5) * 0.1, 2)
    halves[:2] = 0, 12.7  # the scale is 0.1, and the numbers are between two integers
    inputs = {"input": halves.astype(np.float32).reshape(6, 40)}
    report = qfmt.verify(path, model, inputs)
    print(f"{total(report, 'stated')} of {total(report, 'outputs')} outputs as the file states")
    assert report.ok and total(report, "stated")
    (weight,) = (name for name in model.tensors if name.endswith("weight"))
    assert not qfmt.verify(path, one_value_changed(model, weight), inputs).ok


def test_a_bias_that_only_one_form_rounds(tmp_path: Path) -> None:
    """QOperator has integer biases only: results differ as the rules do, and no further."""
    unit = np.float32(0.0625)
    x = Tensor("x", "uint8", (1, 3, 9, 9), None, Quantization.of(np.float32(0.25), 10, 0, 255))
    w = Tensor.constant(
        "w", np.arange(-6, 6, dtype=np.int8).reshape(4, 3, 1, 1), Quantization.of(unit * 4, 0, -128, 127)
    )
    b = Tensor.constant("b", np.float32([0.3, 1.3, 2.3, 3.3]) * unit)
    y = Tensor("y", "uint8", (1, 4, 9, 9), None, Quantization.of(unit * np.float32(0.7), 128, 0, 255))
    sizes = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
    model = single("Conv", "float_bias", [x, w, b], y, sizes).replace(engine="onnx")
    path = written(model, tmp_path / "m.onnx", "qoperator")
    report = qfmt.verify(path, model)
    print(f"{total(report, 'stated')} of {total(report, 'outputs')} outputs as the file states")
    assert report.ok and total(report, "stated")
    assert not qfmt.verify(path, model.replace_tensor("b", b.array + unit, None)).ok


def test_an_input_that_does_not_fit_a_recurrent_layer_is_not_drawn(tmp_path: Path) -> None:
    """A kernel of torch would take it, and read beyond the weights."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LSTM(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x)[0]
            return result

    torch.jit.script(Layer().eval()).save(tmp_path / "m.pt")
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(tmp_path / "m.pt"))
    assert report.ok and report.inputs.endswith(",8]"), report.inputs
