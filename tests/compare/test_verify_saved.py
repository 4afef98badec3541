"""`qfmt verify` with torch.save files: FX graphs are executed; for other files, tensors are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
import pytest
import torch
import torch.ao.quantization as tq
from click.testing import CliRunner
from torch.ao.nn import quantized as nnq

import qfmt
from networks import pytorch
from qfmt.cli import main
from qfmt.errors import BudgetError, SourceError
from qfmt.frontends.options import Options
from qfmt.frontends.torch import witness
from qfmt.frontends.torch.network import Network
from qfmt.frontends.torch.values import InputSpec
from qfmt.model import Model, Quantization, Tensor

pytestmark = pytest.mark.usefixtures("fbgemm")

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def pickled(name: str, folder: Path, zipped: bool = True) -> tuple[Path, tuple[torch.Tensor, ...]]:
    network, inputs = pytorch.quantized(name, "fx")
    path = folder / f"{name}.pt"
    with pytorch.quiet():
        torch.save(network, path, _use_new_zipfile_serialization=zipped)
    return path, inputs


def changed(model: Model, name: str) -> Model:
    array = model.tensors[name].array.copy()
    array.flat[0] += 1 if array.flat[0] < 100 else -1
    tensors = {**model.tensors, name: replace(model.tensors[name], data=Tensor.constant(name, array).data)}
    return model.replace(graph=replace(model.graph, tensors=tensors))


@pytest.mark.parametrize("name", ["mobilenet_v3", "islands", "pooling", "two_inputs", "dictionary"])
def test_fx_graphs_are_executed(name: str, tmp_path: Path) -> None:
    path, inputs = pickled(name, tmp_path)
    model = qfmt.convert(path)
    given = {key: value.numpy() for key, value in zip(model.graph.inputs, inputs, strict=True)}
    report = qfmt.verify(path, model, given)
    nodes = [node for node in report.nodes if node.outputs]
    equal, total = sum(node.equal for node in nodes), sum(node.outputs for node in nodes)
    print(f"{name}: {equal} of {total} outputs of {len(nodes)} nodes equal")
    assert report.ok and report.same_source and not report.skipped
    # the Sigmoid of SiLU and the comparison of a threshold are not separate calls
    assert len(nodes) == len(model.nodes) - (2 if name == "islands" else 0)
    for node in nodes:  # means may tie, and the floats of `islands` be added up in another order
        rest = node.tie if "Average" in node.operator else node.close if name == "islands" else 0
        assert node.equal + rest == node.outputs, node
    assert [output.name for output in report.outputs] == list(model.graph.outputs)


@FORMS
def test_one_weight_that_changed_is_named(zipped: bool, tmp_path: Path) -> None:
    path, _ = pickled("mobilenet_v3", tmp_path, zipped)
    model = qfmt.convert(path)
    node = next(node for node in model.nodes if node.operator == "Conv")
    changed(model, node.inputs[1]).save(tmp_path / "m.qfb")
    shown = CliRunner().invoke(main, ["verify", str(path), str(tmp_path / "m.qfb"), "--input-shape", "x=1,3,32,32"])
    assert shown.exit_code == 1, shown.output
    assert f"{node.inputs[1]}: 1 of" in shown.output and node.outputs[0] in shown.output


@FORMS
def test_a_state_dict_is_compared_tensor_by_tensor(zipped: bool, tmp_path: Path) -> None:
    network = torch.nn.Sequential(nnq.Quantize(0.1, 3, torch.quint8), nnq.Linear(4, 3))
    path = tmp_path / "sd.pt"
    with pytorch.quiet():
        torch.save(network.state_dict(), path, _use_new_zipfile_serialization=zipped)
    model = qfmt.convert(path)
    report = qfmt.verify(path, model)
    assert report.ok and report.skipped == "the source has no graph"
    assert {"1.weight", "1.bias"} <= {weight.name for weight in report.weights}
    report = qfmt.verify(path, changed(model, "1.weight"))
    assert not report.ok
    assert [(weight.name, weight.different) for weight in report.weights if not weight.ok] == [("1.weight", 1)]


def test_tensors_without_values_are_compared(tmp_path: Path) -> None:
    """The scale of an output is all that a state_dict has of it."""
    network = torch.nn.Sequential(nnq.Quantize(0.1, 3, torch.quint8), nnq.Linear(4, 3))
    path = tmp_path / "sd.pt"
    with pytorch.quiet():
        torch.save(network.state_dict(), path)
    model = qfmt.convert(path)
    name = next(tensor.name for tensor in model.tensors.values() if tensor.data is None)
    others = {key: tensor for key, tensor in model.tensors.items() if key != name}
    scaled = replace(model.tensors[name], quantization=Quantization.per_tensor(0.3, 3, "uint8"))
    for tensors in (others, {**others, name: scaled}):
        other = model.replace(graph=replace(model.graph, tensors=tensors))
        report = qfmt.verify(path, other)
        assert not report.ok and [weight.name for weight in report.weights if not weight.ok] == [name]
        for difference in (qfmt.diff(model, other), qfmt.diff(other, model)):
            assert [tensor.name for tensor in difference.tensors] == [name]


def test_nothing_of_a_pickle_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("torch's own reader was asked")

    path, inputs = pickled("mobilenet_v3", tmp_path)
    model = qfmt.convert(path)
    monkeypatch.setattr(torch, "load", refuse)
    assert qfmt.verify(path, model, {"x": np.asarray(inputs[0])}).ok


def test_an_unsupported_graph_is_not_treated_as_tensors_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = pickled("islands", tmp_path)
    model = qfmt.convert(path)

    def refuse(*args: object) -> NoReturn:
        raise SourceError("cannot be carried out")

    monkeypatch.setattr(witness, "witness_of", refuse)
    with pytest.raises(SourceError, match="cannot be carried out"):
        qfmt.verify(path, model)


def test_a_source_that_exceeds_the_budget_is_not_converted_again(tmp_path: Path) -> None:
    path, _ = pickled("islands", tmp_path)
    lifts: list[Options] = []

    class Costly:
        inputs: tuple[InputSpec, ...] = ()
        is_decomposed = False

        def lift(self, options: Options, recorder: object) -> NoReturn:
            lifts.append(options)
            raise BudgetError("too much")

    with pytest.raises(BudgetError):
        witness.witness_of(cast("Network", Costly()), qfmt.convert(path), None)
    assert len(lifts) == 1


def test_a_state_dict_and_a_file_with_a_graph(tmp_path: Path) -> None:
    with pytorch.quiet():
        module = torch.nn.Sequential(tq.QuantStub(), torch.nn.Linear(4, 3), tq.DeQuantStub()).eval()
        module.qconfig = tq.get_default_qconfig("fbgemm")
        prepared = tq.prepare(module)
        prepared(torch.randn(2, 4))
        module = tq.convert(prepared)
        torch.save(module.state_dict(), tmp_path / "state.pt")
        model = qfmt.convert(module.eval(), example_inputs=(torch.randn(2, 4),))
    report = qfmt.verify(tmp_path / "state.pt", model)
    assert report.ok and report.skipped and report.weights, report.first_wrong
    assert "the file has a graph, and the source has none: only what both store was compared" in report.notes
    other = {name: tensor for name, tensor in model.tensors.items() if not name.endswith("weight")}
    weight = next(tensor for name, tensor in model.tensors.items() if name.endswith("weight"))
    data = Tensor.constant("", np.roll(weight.array, 1), dtype=weight.dtype).data
    changed = replace(model.graph, tensors={**other, weight.name: replace(weight, data=data)})
    assert qfmt.verify(tmp_path / "state.pt", model.replace(graph=changed)).first_wrong == weight.name
