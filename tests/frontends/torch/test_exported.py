"""Programs of torch.export, quantized by PT2E: the conversion of `.pt2` archives, and its results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfmt
from networks.exported import FORMS, NETWORKS, built, inputs_of, pt2e, quantized, saved
from networks.pytorch import flat, quiet
from qfmt import Model, QfmtError
from support import processor

QUICK = {
    ("conv", "training"),
    ("conv", "core"),
    ("linears", "core"),
    ("linears_dynamic", "training"),
    ("inverted", "core"),
}

CELLS = [
    pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.slow)
    for name in NETWORKS
    for form in FORMS
]


@quiet()
def torchs(program: Any, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    with torch.no_grad():
        return [tensor.numpy() for tensor in flat(program.module()(*inputs))]


def run(model: Model, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    given = {name: tensor.numpy() for name, tensor in zip(model.graph.inputs, inputs, strict=True)}
    return list(model.run(given).values())


DEEP = ("inverted", "mobilenet_v2", "resnet18")
"""Networks with so many layers that a tie in a hidden one moves the outputs: all their sums are made exact."""


def check_outputs(name: str, model: Model, program: Any, largest: float = 1e-6) -> None:
    inputs = inputs_of(name, 101)
    for mine, theirs in zip(run(model, inputs), torchs(program, inputs), strict=True):
        apart, size = np.abs(mine - theirs).max(), np.abs(theirs).max()
        print(f"{name}: {mine.size} outputs, largest difference {apart:.2g} of {size:.2g}")
        assert apart <= largest * size


@pytest.mark.parametrize(("name", "form"), CELLS)
def test_archive_computes_the_same(name: str, form: str, tmp_path: Path) -> None:
    exact = name in DEEP
    model = qfmt.convert(saved(name, tmp_path, form, exact=exact))
    assert model.source["format"] == "exported_program" and model.engine == "pt2e"
    qfmt.save(model, tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    check_outputs(name, qfmt.load(tmp_path / "m.qfb"), quantized(name, exact=exact)[1], 0 if exact else 1e-6)


def test_names_are_those_of_the_modules(tmp_path: Path) -> None:
    model = qfmt.convert(saved("conv", tmp_path))
    state = quantized("conv")[1].state_dict
    weights = {name: tensor for name, tensor in model.tensors.items() if name.endswith(".weight")}
    assert weights.keys() == {"c1.weight", "c2.weight", "block.0.weight", "fc.weight"}
    assert model.source["dropped_parameters"] == "4"
    for index, name in enumerate(["c1.weight", "c2.weight", "block.0.weight", "fc.weight"]):
        tensor = model.tensors[name]
        assert tensor.aliases == (f"_frozen_param{index}",)
        assert np.array_equal(tensor.array, state[f"_frozen_param{index}"].numpy())
        assert tensor.quantization is not None
        assert tensor.quantization.scale.numbers() == tuple(state[f"_scale_{index}"].tolist())
        assert (tensor.quantization.quant_min, tensor.quantization.quant_max) == (-128, 127)


def test_sizes_stay_names(tmp_path: Path) -> None:
    model = qfmt.convert(saved("conv", tmp_path, sizes=True))
    assert [type(size) for size in model.tensors["x"].shape or ()] == [str, int, int, int]
    x = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    (mine,), (theirs,) = run(model, [x]), torchs(quantized("conv", sizes=True)[1], [x])
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())  # the last layer sums floats


def test_unfolded_weights_are_folded(tmp_path: Path) -> None:
    unfolded, folded = qfmt.convert(saved("conv", tmp_path, fold=False)), qfmt.convert(saved("conv", tmp_path))
    for tensor in folded.graph.constants():
        assert np.array_equal(unfolded.tensors[tensor.name].array, tensor.array), tensor.name
        assert unfolded.tensors[tensor.name].quantization == tensor.quantization


@pytest.mark.parametrize("form", FORMS)
def test_dynamic_layers_are_found(form: str, tmp_path: Path) -> None:
    model = qfmt.convert(saved("linears_dynamic", tmp_path, form))
    rules = [node.rule for node in model.nodes if node.operator == "qfmt.DynamicLinear"]
    assert rules == ["dynamic_reciprocal"] * 2
    assert "qfmt.Linear" not in {node.operator for node in model.nodes}
    check_outputs("linears_dynamic", model, quantized("linears_dynamic")[1])


def test_in_memory_is_the_same(tmp_path: Path) -> None:
    module, program = quantized("conv")
    from_file = qfmt.convert(saved("conv", tmp_path))
    assert qfmt.convert(program).content_id() == from_file.content_id()
    assert qfmt.convert(module, example_inputs=inputs_of("conv", 100)).content_id() == from_file.content_id()


@pytest.mark.parametrize(("name", "form"), CELLS)
@quiet()
def test_nodes_are_those_of_the_program(name: str, form: str, tmp_path: Path) -> None:
    """Each node gets the inputs of the program's call: integers are equal, or one apart at ties; floats are within
    1e-5."""
    path = saved(name, tmp_path, form)
    report = qfmt.verify(path, qfmt.convert(path), samples=2)
    assert report.ok and not report.skipped
    counts = {what: sum(getattr(node, what) for node in report.nodes) for what in ("outputs", "equal", "tie", "close")}
    print(name, form, counts)
    assert counts["equal"] + counts["tie"] + counts["close"] == counts["outputs"]
    assert counts["tie"] <= 1e-4 * counts["outputs"]
    assert all(node.outputs for node in report.nodes if node.operator in ("Conv", "qfmt.Linear", "QuantizeLinear"))


def test_verify_finds_a_changed_weight(tmp_path: Path) -> None:
    path = saved("conv", tmp_path)
    model = qfmt.convert(path)
    weight = model.tensors["c1.weight"]
    changed = qfmt.Tensor.constant(weight.name, -np.clip(weight.array, -127, 127), weight.quantization)
    tensors = {**model.tensors, weight.name: dataclasses.replace(changed, aliases=weight.aliases)}
    report = qfmt.verify(path, model.replace(graph=dataclasses.replace(model.graph, tensors=tensors)), samples=1)
    assert not report.ok
    assert [w.name for w in report.weights if not w.ok] == ["c1.weight"]


ENGINES = ("qdq", "reference", "onednn", "native", "auto")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["conv", "linears_dynamic", "inverted"])
@quiet()
def test_back_to_torch(name: str, engine: str) -> None:
    """Outputs are equal bit by bit; of dynamic layers, whose sums no float32 holds, only in `quantized_decomposed`.

    Kernels of `native` that saturate on this processor are compared with their recomputation.
    """
    exact = "dynamic" not in name
    program = quantized(name, exact=exact)[1]
    model = qfmt.convert(program)
    module = model.to_torch(engine)
    inputs = inputs_of(name, 102)
    with torch.no_grad():
        mine, theirs = flat(module(*inputs)), flat(program.module()(*inputs))
    if engine == "native":
        given = {key: value.numpy() for key, value in zip(model.graph.inputs, inputs, strict=True)}
        kernels = module.engine.removeprefix("native:")
        theirs = [torch.from_numpy(each) for each in processor.run(model, given, kernels).values()]
    equal = sum(int((a == b).sum()) for a, b in zip(mine, theirs, strict=True))
    total = sum(tensor.numel() for tensor in theirs)
    print(f"{name}, {module.engine}: {equal} of {total} equal")
    assert equal == total or not (exact or engine == "qdq")
    for a, b in zip(mine, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max()
    by_numpy = {row.operator for row in module.report() if row.computed_by == "numpy"}
    assert by_numpy <= {"qfmt.DynamicLinear"} or engine in ("reference", "auto")  # they compute what the file states


@quiet()
def test_reference_modules_of_fx() -> None:
    """`_convert_to_reference_decomposed_fx` uses the same operators."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx, prepare_fx

    inputs = inputs_of("conv", 100)
    prepared = prepare_fx(built("conv"), get_default_qconfig_mapping("fbgemm"), inputs)
    prepared(*inputs)
    module = _convert_to_reference_decomposed_fx(prepared)
    model = qfmt.convert(module, example_inputs=inputs)
    kinds = {node.operator for node in model.nodes if model.tensors[node.outputs[0]].quantization is not None}
    assert {"Conv", "Add", "MaxPool", "qfmt.Linear"} <= kinds
    assert {"c1.weight", "c2.weight", "block.0.weight", "fc.weight"} <= model.tensors.keys()
    limits = {(q.quant_min, q.quant_max) for tensor in model.tensors.values() if (q := tensor.quantization)}
    assert (0, 127) in limits  # the calibrated range, which converted modules do not state
    with torch.no_grad():
        theirs = module(*inputs).numpy()
    (mine,) = run(model, inputs)
    assert np.array_equal(mine, theirs)


def test_an_embedding_with_zero_points_that_are_floats(tmp_path: Path) -> None:
    """EmbeddingQuantizer of torchao."""
    from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

    rows = torch.tensor([[0, 3], [2, 1]])
    with quiet():
        exported = torch.export.export(nn.Sequential(nn.Embedding(4, 8)).eval(), (rows,))
        prepared = pt2e.prepare_pt2e(exported.module(), EmbeddingQuantizer())
        prepared(rows)
        converted = pt2e.convert_pt2e(prepared)
        torch.export.save(torch.export.export(converted, (rows,)), tmp_path / "m.pt2")
    model = qfmt.convert(tmp_path / "m.pt2")
    weight = model.tensors["0.weight"].quantization
    assert weight is not None and weight.zero_point.dtype == "float32"
    (found,) = model.run({model.graph.inputs[0]: rows.numpy()}).values()
    assert np.array_equal(found, converted(rows).detach().numpy())


class Float8(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decomposed = torch.ops.quantized_decomposed
        q = decomposed.quantize_per_tensor.default(x, 1.5, 0, -448, 448, torch.float8_e4m3fn)
        return decomposed.dequantize_per_tensor.default(q, 1.5, 0, -448, 448, torch.float8_e4m3fn)


def test_float8_that_torch_rounds_to_integers_is_refused(tmp_path: Path) -> None:
    """1.2 / 1.5 = 0.8 becomes 1, and not the float8 next to 0.8."""
    x = torch.tensor([1.2])
    with quiet():
        torch.export.save(torch.export.export(Float8().eval(), (x,)), tmp_path / "m.pt2")
    assert Float8()(x) == 1.5
    with pytest.raises(QfmtError, match="quantizes to float8_e4m3fn after rounding to integers"):
        qfmt.convert(tmp_path / "m.pt2")


class Rolled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
        return torch.roll(quantize(x, 0.5, 0, -128, 127, torch.int8), 1, 1)


def test_integers_that_are_rolled(tmp_path: Path) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with quiet():
        torch.export.save(torch.export.export(Rolled().eval(), (x,)), tmp_path / "m.pt2")
    model = qfmt.convert(tmp_path / "m.pt2")
    (found,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    assert found.dtype == np.int8 and np.array_equal(found, Rolled()(x).numpy())
