"""Modules in memory: the same path as archives, observed ranges, and errors."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq

import qfmt
from networks import pytorch
from networks.prepared import WATCHED, converted, grid, images, prepared, seen_by
from qfmt.cli import main
from qfmt.errors import SourceError, UnsupportedOperatorsError
from qfmt.model import Model, Observed
from support.matrix import CELLS
from support.saved import quantized_chain

pytestmark = pytest.mark.usefixtures("fbgemm")


# -- one path ------------------------------------------------------------------------------------------


def test_threads_convert_their_modules_one_after_another() -> None:
    """torch knows one module that it traces, from which names come."""
    network = quantized_chain()
    networks = [copy.deepcopy(network) for _ in range(4)]
    inputs, before = (torch.rand(2, 4),), [*warnings.filters]
    expected = qfmt.convert(networks[0], example_inputs=inputs).content_id()
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda network: qfmt.convert(network, example_inputs=inputs), networks * 5)]
    assert {model.content_id() for model in found} == {expected}
    assert [*warnings.filters] == before


@pytest.mark.parametrize("cell", CELLS)
def test_a_module_equals_its_archive(cell: tuple[str, str], tmp_path: Path) -> None:
    network, inputs = pytorch.quantized(*cell)
    archive = qfmt.convert(pytorch.save_as(network, inputs, "trace", tmp_path / "m.pt"))
    with pytorch.quiet():
        model = qfmt.convert(network, example_inputs=inputs)
    assert model.content_id() == archive.content_id()
    assert model.source == {
        "format": "module", "framework": "pytorch", "framework_version": torch.__version__
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["script", "freeze", "trace"])
def test_script_modules_need_no_inputs(kind: str, tmp_path: Path) -> None:
    network, inputs = pytorch.quantized("mobilenet_v3", "eager")
    path = pytorch.save_as(network, inputs, kind, tmp_path / "m.pt")
    with pytorch.quiet():
        loaded = torch.jit.load(path)
    assert qfmt.convert(loaded).content_id() == qfmt.convert(path).content_id()


def test_a_state_dict_in_memory_equals_its_file(tmp_path: Path) -> None:
    network, _ = pytorch.quantized("mobilenet_v3", "eager")
    torch.save(network.state_dict(), tmp_path / "sd.pt")
    model = qfmt.convert(network.state_dict())
    assert model.no_graph and model.content_id() == qfmt.convert(tmp_path / "sd.pt").content_id()


def test_a_module_made_from_a_model_converts_to_that_model() -> None:
    model = Model(qfmt.Graph((), (), (), {}))
    assert qfmt.convert(SimpleNamespace(__qfmt_model__=model)) is model
    assert qfmt.convert(SimpleNamespace(__qfmt_model__=lambda: model)) is model


def test_modes_are_not_changed_and_dropout_is_off() -> None:
    network, inputs = small()
    for module in network.modules():
        module.training = True
    model = qfmt.convert(network, example_inputs=inputs)
    assert all(module.training for module in network.modules())
    assert model.content_id() == qfmt.convert(network.eval(), example_inputs=inputs).content_id()


def test_warning_filters_are_not_changed() -> None:
    network, inputs = small()
    before = list(warnings.filters)
    qfmt.convert(network, example_inputs=inputs)
    assert warnings.filters == before


def test_a_single_tensor_is_accepted_as_a_tuple() -> None:
    network, (x,) = small()
    assert (
        qfmt.convert(network, example_inputs=x).content_id() == qfmt.convert(network, example_inputs=(x,)).content_id()
    )


# -- observed ranges -----------------------------------------------------------------------------------


def small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return converted(prepared("eager", qat=False)), (images(9),)


@pytest.mark.parametrize("qat", [False, True], ids=["static", "qat"])
def test_eager_observers_are_kept_exactly(qat: bool, tmp_path: Path) -> None:
    observed = prepared("eager", qat)
    network = converted(observed)
    model = qfmt.convert(network, example_inputs=(images(9),), prepared=observed)
    for module, name in WATCHED.items():
        observer = observed.get_submodule(module).activation_post_process
        assert grid(model, name).observed == seen_by(observer), name
        assert (grid(model, name).quant_min, grid(model, name).quant_max) in (
            (0, 255),
            (grid(model, name).zero_point[0], 255),
        )
    for name in ("conv1", "conv2", "fc"):
        assert grid(model, f"{name}.weight").observed == weight_seen(observed, network, name), name
    for name in ("mean",):
        assert grid(model, name).observed is None, "nobody watched it"
    plain = qfmt.convert(network, example_inputs=(images(9),))
    assert model.content_id() == plain.content_id()
    model.save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == [] and qfmt.load(tmp_path / "m.qfb").tensors == model.tensors


@pytorch.quiet()
def weight_seen(observed: nn.Module, network: nn.Module, name: str) -> Observed:
    """The range of the observer that computed the weight's scales, by the steps of torch's `from_float` on a
    copy."""
    module = copy.deepcopy(observed.get_submodule(name))
    if hasattr(module, "weight_fake_quant"):
        conv = type(network.get_submodule(name)).from_float(module)
        observer = module.weight_fake_quant
        assert torch.equal(conv.weight().int_repr(), network.get_submodule(name).weight().int_repr())
        return seen_by(observer)
    inner = module[0] if isinstance(module, nn.Sequential) else module
    observer = inner.qconfig.weight()
    observer(inner.weight)
    low = inner.weight.detach().reshape(inner.weight.shape[0], -1).min(dim=1).values
    assert torch.equal(observer.min_val, low), "the observer watches the smallest weight of each channel"
    return seen_by(observer)


@pytest.mark.parametrize("qat", [False, True], ids=["static", "qat"])
def test_fx_observers_are_kept_exactly(qat: bool) -> None:
    observed = prepared("fx", qat)
    model = qfmt.convert(converted(observed), example_inputs=(images(9),), prepared=observed)
    watched = {}
    for node in observed.graph.nodes:
        if node.op == "call_module" and node.target.startswith("activation_post_process"):
            watched[node.args[0].name] = observed.get_submodule(node.target)
    names = {"x": "quantize_per_tensor", "conv1": "conv1", "conv2": "conv2", "add": "add", "fc": "fc"}
    for node, name in names.items():
        assert grid(model, name).observed == seen_by(watched[node]), (name, list(watched))
    for name in ("conv1", "conv2", "fc"):
        quantization = grid(model, f"{name}.weight")
        assert quantization.observed is not None
        assert len(quantization.observed.minimum) == len(quantization.scale)
        assert (quantization.observed.quant_min, quantization.observed.quant_max) in ((-128, 127), (-127, 127))


def test_reduced_ranges_do_not_change_the_clamp() -> None:
    """fbgemm calibrates activations for 7 bits; its kernels clamp to 8 bits."""
    observed = prepared("eager", qat=False)
    assert observed.conv2.activation_post_process.quant_max == 127
    quantization = grid(qfmt.convert(converted(observed), example_inputs=(images(9),), prepared=observed), "conv2")
    assert quantization.observed is not None
    assert (quantization.observed.quant_min, quantization.observed.quant_max) == (0, 127)
    assert (quantization.quant_min, quantization.quant_max) == (0, 255)


def test_inspect_shows_the_observed_range(tmp_path: Path) -> None:
    observed = prepared("eager", qat=False)
    qfmt.convert(converted(observed), example_inputs=(images(9),), prepared=observed).save(tmp_path / "m.qfb")
    observer = observed.conv1.activation_post_process
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "m.qfb"), "--tensor", "conv1", "--json"])
    facts = json.loads(shown.output)["quantization"]["observed"]
    assert facts["minimum"] == [observer.min_val.item()] and facts["maximum"] == [observer.max_val.item()]
    assert (facts["quant_min"], facts["quant_max"]) == (observer.quant_min, observer.quant_max)
    text = CliRunner().invoke(main, ["inspect", str(tmp_path / "m.qfb"), "--tensor", "conv1"]).output
    assert "HistogramObserver saw 0.." in text and "chose the scale for 0..127 (per_tensor_affine)" in text


@pytest.mark.parametrize(("name", "mode"), [("mobilenet_v3", "fx"), ("linears", "eager"), ("unet", "eager")])
@pytorch.quiet()
def test_tensors_get_only_the_ranges_of_their_observers(name: str, mode: str) -> None:
    """Every stored range is that of an observer; in eager mode it is that of the module's own observer."""
    network, inputs = pytorch.build(name)
    qconfig = tq.get_default_qconfig("fbgemm")
    observed = (
        pytorch._prepare_fx(network, qconfig, inputs) if mode == "fx" else pytorch._prepare_eager(network, qconfig)
    )
    with torch.no_grad():
        observed(*pytorch.example_inputs(name, 10))
    model = qfmt.convert(converted(observed), example_inputs=inputs, prepared=observed)
    activations = [
        seen_by(each)
        for each in observed.modules()
        if isinstance(each, tq.ObserverBase) and hasattr(each, "min_val") and each.min_val.numel()
    ]
    kept = 0
    for node in model.nodes:
        quantization = model.tensors[node.outputs[0]].quantization
        if quantization is None or quantization.observed is None:
            continue
        kept += 1
        assert quantization.observed in activations
        own = getattr(dict(observed.named_modules()).get(node.scope), "activation_post_process", None)
        if mode == "eager" and own is not None:
            assert quantization.observed == seen_by(own), node.outputs
    weights = [tensor for tensor in model.graph.constants() if tensor.quantization is not None and tensor.shape]
    print(f"{name} {mode}: {kept} of {len(activations)} activation ranges kept, {len(weights)} weights")
    assert kept > 5
    for tensor in weights:
        assert tensor.quantization is not None and tensor.quantization.observed is not None, tensor.name
        low, high = np.array(tensor.quantization.observed.minimum), np.array(tensor.quantization.observed.maximum)
        real = np.moveaxis(tensor.dequantize(), tensor.quantization.axis or 0, 0).reshape(low.size, -1)
        step = np.array(tensor.quantization.scale)
        assert (np.abs(np.minimum(real.min(1), 0) - np.minimum(low, 0)) <= step).all()
        assert (np.abs(np.maximum(real.max(1), 0) - np.maximum(high, 0)) <= step).all()


def test_a_model_without_observers_is_not_prepared() -> None:
    network, inputs = small()
    with pytest.raises(SourceError, match="prepared model has no observers"):
        qfmt.convert(network, example_inputs=inputs, prepared=network)


# -- unsupported modules -----------------------------------------------------------------------------------


def refused(source: Any, **options: Any) -> str:
    with pytest.raises(SourceError) as caught, pytorch.quiet():
        qfmt.convert(source, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence and "code/" not in sentence, sentence
    return sentence


def test_a_prepared_model_is_refused_with_a_hint() -> None:
    for mode in ("eager", "fx"):
        sentence = refused(prepared(mode, qat=False), example_inputs=(images(0),))
        assert "prepared, not converted" in sentence and "convert" in sentence and "Observer" in sentence
    assert refused(prepared("eager", qat=True), example_inputs=(images(0),)).startswith("module quant: ")


def test_a_half_converted_model_names_the_module() -> None:
    network = converted(prepared("eager", qat=False))
    network.conv2.activation_post_process = tq.MinMaxObserver()
    sentence = refused(network, example_inputs=(images(0),))
    assert sentence.startswith("module conv2: still has its observer (MinMaxObserver)")


def test_a_float_model_is_refused() -> None:
    sentence = refused(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), example_inputs=(images(0),))
    assert "nothing in the model is quantized" in sentence and "prepare" in sentence
    with pytorch.quiet():
        script = torch.jit.script(nn.Linear(3, 4))
    assert "nothing in the model is quantized" in refused(script)


def test_a_missing_quant_stub_is_reported_with_its_place() -> None:
    network = converted(prepared("eager", qat=False))
    network.quant = nn.Identity()
    sentence = refused(network, example_inputs=(images(0),))
    assert sentence.startswith("module conv1 (ConvReLU2d): gets a float tensor") and "QuantStub" in sentence
    network = converted(prepared("eager", qat=False))
    network.drop = nn.Softplus()  # has no quantized kernel
    assert "module drop (Softplus): gets a quantized tensor" in refused(network, example_inputs=(images(0),))


def test_missing_example_inputs_are_reported() -> None:
    network, _ = small()
    assert "example_inputs=(x,)" in refused(network)
    assert "try model(*example_inputs)" in refused(network, example_inputs=(torch.ones(2),))


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


def test_an_unsupported_module_is_named_with_its_type() -> None:
    network, inputs = small()
    network.dequant = nn.Sequential(network.dequant, Spectrum())
    with pytest.raises(UnsupportedOperatorsError) as caught:
        qfmt.convert(network, example_inputs=inputs)
    assert caught.value.operators["aten::fft_rfft"] == ("module dequant.1 (Spectrum)",)
    assert "code/" not in str(caught.value)


class Decides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


def test_branches_of_user_code_still_cause_a_warning() -> None:
    network, inputs = small()
    network.dequant = nn.Sequential(network.dequant, Decides())
    with pytest.warns(torch.jit.TracerWarning, match="Python boolean"):
        qfmt.convert(network, example_inputs=inputs)


def test_other_objects_are_refused() -> None:
    assert "cannot convert a Tensor" in refused(torch.ones(2))
    assert "cannot convert a int" in refused(3)
    assert "for modules in memory" in refused("m.pt", example_inputs=(torch.ones(2),))


def test_torch_is_not_imported_to_find_out() -> None:
    script = """
import sys
import qfmt
try:
    qfmt.convert({"weight": [1, 2]})
except qfmt.QfmtError as error:
    print(error)
assert "torch" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "cannot convert a dict" in run.stdout


def test_inputs_may_be_given_by_name() -> None:
    network, (x,) = small()
    model = qfmt.convert(network, example_inputs={"x": x})
    assert model.content_id() == qfmt.convert(network, example_inputs=(x,)).content_id()


def test_dynamic_modules_take_the_same_path(tmp_path: Path) -> None:
    with pytorch.quiet():
        network = tq.quantize_dynamic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), {nn.Linear})
        torch.save(network, tmp_path / "m.pt")
    x = torch.randn(5, 4)
    model = qfmt.convert(network, example_inputs=(x,))
    (result,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    np.testing.assert_array_equal(result, network(x).detach().numpy())
    chain = qfmt.convert(tmp_path / "m.pt")
    assert [node.operator for node in chain.nodes] == [node.operator for node in model.nodes]
    (result,) = chain.run({chain.graph.inputs[0]: x.numpy()}).values()
    np.testing.assert_array_equal(result, network(x).detach().numpy())


def test_arrays_are_accepted_as_tensors() -> None:
    network, (x,) = small()
    expected = qfmt.convert(network, example_inputs=(x,)).content_id()
    for example in (x.numpy(), (x.numpy(),), [x.numpy()]):
        assert qfmt.convert(network, example_inputs=example).content_id() == expected


def test_inputs_of_another_kind_are_refused() -> None:
    network, _ = small()
    with pytest.raises(SourceError, match=r"cannot be of type int; pass a tuple of tensors"):
        qfmt.convert(network, example_inputs=3)


def test_wrappers_of_torch_are_removed() -> None:
    network, inputs = small()
    expected = qfmt.convert(network, example_inputs=inputs).content_id()
    for wrapped in (nn.DataParallel(network), torch.compile(network), nn.DataParallel(nn.DataParallel(network))):
        assert qfmt.convert(wrapped, example_inputs=inputs).content_id() == expected


def test_a_quantized_example_determines_the_quantization_of_the_input() -> None:
    network = nn.Sequential(nnq.Linear(4, 3))
    x = torch.quantize_per_tensor(torch.rand(2, 4), 0.25, 3, torch.quint8)
    model = qfmt.convert(network, example_inputs=(x,))
    (name,) = model.graph.inputs
    grid = model.tensors[name].quantization
    assert grid is not None and (grid.scale.numbers(), grid.zero_point.numbers()) == ((0.25,), (3,))
    (output,) = model.run({name: x.int_repr().numpy()}).values()
    assert np.array_equal(output, network(x).int_repr().numpy())
    given = qfmt.convert(network, example_inputs=(x,), input_quantization={name: (0.5, 1, "uint8")})
    grid = given.tensors[name].quantization
    assert grid is not None and (grid.scale.numbers(), grid.zero_point.numbers()) == ((0.5,), (1,))


def named_network(name: str) -> nn.Module:
    network = nn.Sequential(nnq.Quantize(0.1, 0, torch.quint8))
    network.add_module(name, nn.Sequential(nnq.Linear(4, 3)))
    network.add_module("last", nnq.DeQuantize())
    return network


def test_names_that_torch_cannot_write_are_reported() -> None:
    with pytest.raises(SourceError, match=r"module 数: torch cannot write .* give it another name"):
        qfmt.convert(named_network("数"), example_inputs=(torch.rand(2, 4),))


@pytest.mark.parametrize("kind", ["trace", "script"])
@pytest.mark.parametrize("name", ["in", "from", "lambda", "None", "a b/c:d"])
def test_names_that_are_python_keywords(name: str, kind: str, tmp_path: Path) -> None:
    """torch.jit.save writes `self.in`, which torch.jit.load then cannot read."""
    network, x = named_network(name), torch.rand(2, 4)
    try:
        path = pytorch.save_as(network, (x,), kind, tmp_path / "m.pt")
    except RuntimeError as error:  # TorchScript cannot compile this name
        pytest.skip(str(error).strip().partition("\n")[0])
    model = qfmt.convert(path)
    assert f"{name}.0.weight" in model.tensors
    (output,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    assert np.array_equal(output, network(x).numpy())


def test_the_prepared_model_of_another_network_is_refused() -> None:
    network, inputs = small()
    other = nn.Sequential(tq.QuantStub(), nn.Linear(4, 3), tq.DeQuantStub()).eval()
    other.qconfig = tq.get_default_qconfig("fbgemm")
    tq.prepare(other, inplace=True)(torch.rand(2, 4))
    with pytest.raises(SourceError, match="no observer of the prepared model has the scales"):
        qfmt.convert(network, example_inputs=inputs, prepared=other)


def test_what_torch_cannot_save_is_an_error_of_its_own() -> None:
    class Quantizes(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.quantize_per_tensor(self.layers(x), 0.1, 128, torch.quint8)

    x = torch.rand(1, 4, 5, 5)
    with pytest.raises(SourceError, match=r"torch cannot save it: .*quint8"):
        qfmt.convert(torch.export.export(Quantizes(), (x,)))
    with pytest.raises(SourceError, match="torch cannot save it: Could not export Python function call"):
        qfmt.convert(Quantizes(nn.CrossMapLRN2d(3)).eval(), example_inputs=(x,))
