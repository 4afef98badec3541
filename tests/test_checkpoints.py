"""Files of torch.save: state_dicts and pickled modules, zip and not, read without torch and without running them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import networks
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pickles import Runs, text
from torch import nn
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qfmt
from qfmt.budget import Budget
from qfmt.cli import main
from qfmt.errors import BudgetError, QfmtError, RunError, SourceError, UnsafePickleError
from qfmt.frontends.content import root_of
from qfmt.frontends.options import Options
from qfmt.frontends.pickles import harmless_or_inert, unpickle
from qfmt.frontends.stored import Storage
from qfmt.frontends.torch.saved.file import Saved
from qfmt.frontends.torch.saved.source import convert_saved
from qfmt.frontends.zips import Zip
from qfmt.model import Model, Quantization, Tensor

LEGACY = {"_use_new_zipfile_serialization": False}

FORMS = pytest.mark.parametrize("form", [{}, LEGACY], ids=["zip", "legacy"])


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    yield
    torch.backends.quantized.engine = before


@networks.quiet()
def saved(value: Any, path: Path, **form: Any) -> Path:
    torch.save(value, path, **form)
    return path


# -- real files against torch ----------------------------------------------------------------------------


def state_dicts() -> list[str]:
    fixtures = ("conv2d", "conv3d_relu", "linear", "linear_dynamic_qint8", "lstm")
    made = ("mbv2_eager", "rn_fx", "zoo_eager", "lm_dyn", "emb")
    return [
        *(f"torchscript_bc/TestSerialization.test_{name}.state_dict.pt" for name in fixtures),
        *(f"torch_legacy/t1131/{name}.sd.pt" for name in made),
    ]


@pytest.mark.parametrize("file", state_dicts())
def test_state_dicts_give_the_tensors_that_torch_gives(shared_data: Path, file: str, tmp_path: Path) -> None:
    with networks.quiet():  # the files are PyTorch's own and ours; ScriptObjects need the full unpickler
        theirs = torch.load(shared_data / file, weights_only=False)
    model = qfmt.convert(shared_data / file)
    model.save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    model = qfmt.load(tmp_path / "m.qfb")
    assert model.no_graph.startswith("a state_dict holds tensors, but no graph") and not model.nodes
    compared = sum(compare(model, key, value) for key, value in theirs.items())
    print(f"{compared} tensors of {file} equal bit by bit")
    assert compared


def compare(model: Model, key: str, value: Any) -> int:
    """How many tensors of an entry of a state_dict were found again, each of them equal."""
    if isinstance(value, torch.Tensor):
        assert_same(named(model, key), value, key)
        return 1
    if isinstance(value, tuple):
        assert_same(named(model, key), value[0], key)
        assert_same(named(model, f"{key.partition('._packed_params')[0]}.bias"), value[1], key)
        return 2
    if isinstance(value, torch.ScriptObject):
        (kind, biases, _, _, packed), _ = value.__getstate__()
        assert kind == "quantized_dynamic"
        for part, bias, linear in zip(("ih", "hh"), biases, packed, strict=True):
            assert_same(named(model, f"{key}.weight_{part}"), linear.unpack()[0], key)
            assert_same(named(model, f"{key}.bias_{part}"), bias, key)
        return 4
    assert isinstance(value, torch.dtype), type(value)
    return 0


def named(model: Model, name: str) -> Tensor:
    tensor = model.graph.find(name)
    assert tensor is not None, name
    return tensor


def assert_same(tensor: Tensor, theirs: torch.Tensor, key: str) -> None:
    if tensor.data is None:  # the quantization of the output of the module
        assert tensor.quantization is not None
        mine = tensor.quantization.scale if key.endswith(".scale") else tensor.quantization.zero_point
        assert mine == (theirs.item(),) and key in (f"{tensor.name}.scale", f"{tensor.name}.zero_point")
        return
    assert tensor.shape == tuple(theirs.shape), key
    if not theirs.is_quantized:
        assert tensor.array.tobytes() == theirs.detach().contiguous().numpy().tobytes(), key
        return
    assert tensor.quantization is not None
    if theirs.dtype == torch.quint4x2:
        packed = theirs.int_repr().contiguous().reshape(-1)
        mine = np.ascontiguousarray(tensor.array).reshape(-1)
        assert (mine[0::2] | mine[1::2] << 4).tobytes() == packed.numpy().tobytes(), key
    else:
        assert tensor.array.tobytes() == theirs.int_repr().contiguous().numpy().tobytes(), key
    assert_same_grid(tensor.quantization, theirs)


def assert_same_grid(mine: Quantization, theirs: torch.Tensor) -> None:
    if theirs.qscheme() == torch.per_tensor_affine:
        assert (mine.scale, mine.zero_point, mine.axis) == ((theirs.q_scale(),), (theirs.q_zero_point(),), None)
        return
    scales, points = theirs.q_per_channel_scales(), theirs.q_per_channel_zero_points()
    assert (mine.scale, mine.axis) == (tuple(scales.tolist()), theirs.q_per_channel_axis())
    assert mine.zero_point == tuple(points.tolist())


@pytest.mark.parametrize("name", ["mbv2_eager", "zoo_eager", "lm_dyn", "emb"])
def test_pickled_eager_modules_keep_every_tensor(shared_data: Path, name: str) -> None:
    """Also those that torch itself can load no longer."""
    folder = shared_data / "torch_legacy" / "t1131"
    module, state = qfmt.convert(folder / f"{name}.mod.pt"), qfmt.convert(folder / f"{name}.sd.pt")
    assert "is not in the file" in module.no_graph and "models." in module.no_graph
    for tensor in state.tensors.values():
        again = module.tensors[tensor.name]
        assert (again.dtype, again.shape, again.data, again.quantization) == (
            tensor.dtype, tensor.shape, tensor.data, tensor.quantization
        )  # fmt: skip
    more = module.tensors.keys() - state.tensors.keys()
    assert more == ({"elu", "hs", "prelu", "prelu.weight"} if name == "zoo_eager" else set()), (
        "what torch 1.13 left out of the state_dict"
    )


def test_the_pickled_fx_module_that_torch_cannot_load_runs(shared_data: Path) -> None:
    folder = shared_data / "torch_legacy" / "t1131"
    inputs, expected = torch.load(folder / "rn_fx.io.pt", weights_only=True)
    model = qfmt.convert(folder / "rn_fx.mod.pt")
    assert model.no_graph == "" and model.source["format"] == "pickled_module"
    (result,) = model.run({model.graph.inputs[0]: inputs[0].numpy()}).values()
    print(f"{(result == expected.numpy()).sum()} of {result.size} outputs equal")
    np.testing.assert_array_equal(result, expected.numpy())
    assert model.content_id() == qfmt.convert(folder / "rn_fx.trace.pt").content_id()


# -- graphs from pickled modules -------------------------------------------------------------------------

FX = [name for name, mode in networks.cells() if mode == "fx"]

SHAPES = {"linears": {"x": ("N", None, "F")}}
"""Nothing in the code of these says how many dimensions the input has, and 4 is taken first."""

OWN_NAMES = {"linears", "islands", "two_inputs"}
"""Traces name sizes and constants that the code of FX does not: equal otherwise."""


@pytest.mark.parametrize("name", FX)
def test_fx_modules_give_the_graph_of_their_trace(name: str, tmp_path: Path) -> None:
    network, inputs = networks.quantized(name, "fx")
    path = saved(network, tmp_path / "m.pt")
    model = qfmt.convert(path, input_shapes=SHAPES.get(name))
    assert not model.no_graph
    trace = qfmt.convert(networks.save_as(network, inputs, "trace", tmp_path / "t.pt"))
    assert model.content_id() == trace.content_id() or name in OWN_NAMES
    if name in OWN_NAMES:
        arrays = {key: tensor.numpy() for key, tensor in zip(model.graph.inputs, inputs, strict=True)}
        for mine, theirs in zip(model.run(arrays).values(), trace.run(arrays).values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def chain(wrapped: bool) -> nn.Module:
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(),
        nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()), nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Identity(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 6), nn.Sigmoid(),
    )  # fmt: skip
    return tq.QuantWrapper(body) if wrapped else nn.Sequential(tq.QuantStub(), *body, tq.DeQuantStub())


@FORMS
@pytest.mark.parametrize("wrapped", [False, True], ids=["sequential", "wrapper"])
def test_chains_of_known_modules_give_a_graph(wrapped: bool, form: dict[str, bool], tmp_path: Path) -> None:
    with networks.quiet():
        network = chain(wrapped).eval()
        network.qconfig = tq.get_default_qconfig("fbgemm")
        for module in network.modules():
            if isinstance(module, nn.ConvTranspose2d):
                module.qconfig = tq.QConfig(network.qconfig.activation, tq.default_weight_observer)
        observed = tq.prepare(network)
        observed(torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(1)))
        network = tq.convert(observed)
        x = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(2))
        expected = network(x).numpy()
    model = qfmt.convert(saved(network, tmp_path / "m.pt", **form))
    assert not model.no_graph
    (result,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    np.testing.assert_array_equal(result, expected)
    memory = qfmt.convert(network, example_inputs=(x,))
    assert model.content_id() == memory.content_id()


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(4, 5, **options)
        self.fc = nn.Linear(self.rnn.hidden_size * (2 if self.rnn.bidirectional else 1), 3)

    def forward(self, x):  # type: ignore[no-untyped-def] # torch.fx cannot save annotations that are strings
        return self.fc(self.rnn(x)[0])


@pytest.mark.parametrize("options", [{"batch_first": True}, {"num_layers": 2, "bidirectional": True}], ids=["1", "2x2"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_fx_modules_with_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any], tmp_path: Path) -> None:
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(4))
    with networks.quiet():
        torch.manual_seed(4)
        dynamic = tq.QConfigMapping().set_global(tq.default_dynamic_qconfig)
        network = convert_fx(prepare_fx(Recurrent(kind, **options).eval(), dynamic, (x,)))
        expected = network(x).detach().numpy()
    model = qfmt.convert(saved(network, tmp_path / "m.pt"))
    assert not model.no_graph
    assert model.content_id() == qfmt.convert(network, example_inputs=(x,)).content_id()
    (result,) = model.run({"x": x.numpy()}).values()
    print(f"{(result == expected).sum()} of {result.size} outputs equal")
    np.testing.assert_allclose(result, expected, atol=1e-5)


class Twice(nn.Sequential):
    """A Sequential that is none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


def test_subclasses_of_known_modules_are_not_known(tmp_path: Path) -> None:
    model = qfmt.convert(saved(nn.Sequential(Twice(nn.Linear(2, 2))), tmp_path / "m.pt"))
    assert "0: the code of " in model.no_graph and "Twice is not in the file" in model.no_graph
    assert sorted(model.tensors) == ["0.0.bias", "0.0.weight"]


def test_the_user_who_describes_inputs_hears_why_there_is_no_graph(tmp_path: Path) -> None:
    path = saved(nn.Sequential(Twice(nn.Linear(2, 2))), tmp_path / "m.pt")
    with pytest.raises(SourceError, match="Twice is not in the file"):
        qfmt.convert(path, input_shapes={"input": (1, 2)})
    with pytest.raises(SourceError, match="no input 'x'"):
        qfmt.convert(saved({"w": torch.ones(2)}, path), input_shapes={"x": (1, 2)})


# -- state_dicts ------------------------------------------------------------------------------------------


@FORMS
def test_tensors_of_every_layout_and_type(form: dict[str, bool], tmp_path: Path) -> None:
    base = torch.arange(-30, 30, dtype=torch.float32)
    channels = torch.quantize_per_channel(
        torch.randn(4, 3, 2, 2), torch.rand(4).double() + 0.1, torch.arange(4), 0, torch.qint8
    )
    state = {
        "window": base[7:31].reshape(4, 6)[:, ::2], "transposed": base.reshape(6, 10).t(), "whole": base,
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3), "half": base.half(), "brain": base.bfloat16(), "double": base.double() / 3,
        "integers": torch.arange(5), "bytes": torch.arange(5, dtype=torch.uint8), "truth": torch.tensor([True, False]),
        "q": channels.contiguous(memory_format=torch.channels_last), "parameter": nn.Parameter(torch.ones(2)),
        "u": torch.quantize_per_tensor(torch.randn(5), 0.25, 7, torch.quint8),
        "i": torch.quantize_per_tensor(torch.randn(5), 1e-6, 0, torch.qint32),
        "expanded": torch.ones(1, 3).expand(4, 3),
    }  # fmt: skip
    model = qfmt.convert(saved(state, tmp_path / "m.pt", **form))
    assert sorted(model.tensors) == sorted(state)
    for name, theirs in state.items():
        if theirs.dtype == torch.bfloat16:
            assert model.tensors[name].array.tobytes() == theirs.view(torch.int16).numpy().tobytes()
        else:
            assert_same(model.tensors[name], theirs.detach(), name)
    model.save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []


@FORMS
def test_modules_in_both_forms_are_one(form: dict[str, bool], tmp_path: Path) -> None:
    network, _ = networks.quantized("mobilenet_v3", "eager")
    state = qfmt.convert(saved(network.state_dict(), tmp_path / "sd.pt", **form))
    module = qfmt.convert(saved(network, tmp_path / "m.pt", **form))
    assert "is not in the file" in module.no_graph
    for name, tensor in state.tensors.items():
        assert module.tensors[name].quantization == tensor.quantization
        assert module.tensors[name].data == tensor.data
    for name, layer in network.named_modules():
        if isinstance(getattr(layer, "scale", None), float) and (layer.scale, layer.zero_point) != (1.0, 0):
            assert named(module, f"{name}.scale").quantization == named(module, f"{name}.zero_point").quantization
            assert named(module, f"{name}.scale").quantization.scale == (layer.scale,)  # type: ignore[union-attr]


def test_a_checkpoint_around_a_state_dict(tmp_path: Path) -> None:
    inner = {"fc.weight": torch.ones(2, 3), "fc.scale": torch.tensor(0.5), "fc.zero_point": torch.tensor(3)}
    wrapped = {"epoch": 3, "name": "x", "nets": {"state_dict": inner, "lr": 0.1}}
    model = qfmt.convert(saved(wrapped, tmp_path / "m.pt"))
    assert model.content_id() == qfmt.convert(saved(inner, tmp_path / "i.pt")).content_id()
    assert named(model, "nets.state_dict.fc.weight").name == "fc.weight"
    both = qfmt.convert(saved({"a": inner, "b": {"w": torch.zeros(1), "list": [torch.ones(1)]}}, tmp_path / "m.pt"))
    assert sorted(both.tensors) == ["a.fc", "a.fc.weight", "b.list.0", "b.w"]


def quantized_chain() -> nn.Module:
    network = nn.Sequential(nnq.Quantize(0.05, 3, torch.quint8), nnq.Linear(4, 3), nnq.DeQuantize())
    network[1].scale, network[1].zero_point = 0.25, 3
    return network.eval()


@FORMS
def test_a_checkpoint_around_a_module(form: dict[str, bool], tmp_path: Path) -> None:
    network = quantized_chain()
    alone = qfmt.convert(saved(network, tmp_path / "m.pt", **form))
    assert not alone.no_graph
    around = qfmt.convert(
        saved({"model": network, "epoch": 3, "ema": None, "args": {"lr": 0.1}}, tmp_path / "c.pt", **form)
    )
    assert around.content_id() == alone.content_id()
    assert around.source["format"] == "pickled_module"


def test_modules_beside_other_tensors_keep_all(tmp_path: Path) -> None:
    network = quantized_chain()
    two = qfmt.convert(saved({"model": network, "ema": network}, tmp_path / "m.pt"))
    assert sorted(two.tensors) == [
        f"{key}.{name}" for key in ("ema", "model") for name in ("0", "1", "1.bias", "1.weight")
    ]
    beside = qfmt.convert(saved({"model": network, "state": {"w": torch.ones(2)}}, tmp_path / "m.pt"))
    assert two.no_graph and beside.no_graph
    assert {"state.w", "model.1.weight"} <= set(beside.tensors)
    expected = network[1].weight().int_repr().numpy()
    assert np.array_equal(beside.tensors["model.1.weight"].array, expected)


def test_the_state_dict_of_a_trace_lacks_the_weights(tmp_path: Path) -> None:
    """What the thread "the packing format of quantized parameters after jitting" is about."""
    with networks.quiet():
        traced = torch.jit.trace(quantized_chain(), torch.rand(2, 4))
    model = qfmt.convert(saved(traced.state_dict(), tmp_path / "m.pt"))
    assert "this one, of a TorchScript module, lacks the packed parameters, too; save" in model.no_graph


SCALES = [
    ({"m.scale": torch.tensor([0.5]), "m.zero_point": torch.tensor([3])}, ["m"]),
    ({"m.scale": torch.tensor(0.5), "m.zero_point": torch.tensor(-3)}, ["m"]),
    ({"m.scale": torch.tensor(1.0), "m.zero_point": torch.tensor(0)}, ["m.scale", "m.zero_point"]),
    ({"m.scale": torch.tensor(0.5), "m.zero_point": torch.tensor(300)}, ["m.scale", "m.zero_point"]),
    ({"m.scale": torch.tensor(-0.5), "m.zero_point": torch.tensor(3)}, ["m.scale", "m.zero_point"]),
    ({"m.scale": torch.ones(2), "m.zero_point": torch.zeros(2)}, ["m.scale", "m.zero_point"]),
    ({"m.scale": torch.tensor(0.5)}, ["m.scale"]),
    ({"scale": torch.tensor(0.5), "zero_point": torch.tensor(3)}, ["scale", "zero_point"]),
    (
        {"m": torch.ones(1), "m.scale": torch.tensor(0.5), "m.zero_point": torch.tensor(3)},
        ["m", "m.scale", "m.zero_point"],
    ),
]


@pytest.mark.parametrize(("state", "names"), SCALES)
def test_what_counts_as_the_quantization_of_a_module(state: dict[str, Any], names: list[str], tmp_path: Path) -> None:
    model = qfmt.convert(saved(state, tmp_path / "m.pt"))
    assert sorted(model.tensors) == names
    if names == ["m"]:
        tensor = model.tensors["m"]
        assert tensor.shape is None and tensor.data is None and tensor.quantization is not None
        assert tensor.dtype == ("int8" if tensor.quantization.zero_point[0] < 0 else "uint8")
        assert model.graph.find("m.scale") is tensor


def test_what_is_no_network_is_refused(tmp_path: Path) -> None:
    for value in (torch.ones(2), [torch.ones(2)], "text", {"a": 1}):
        with pytest.raises(SourceError, match="tensors or other plain data"):
            qfmt.convert(saved(value, tmp_path / "m.pt"))
    with pytest.raises(SourceError, match="contains no tensors"):
        qfmt.convert(saved({"a": {}}, tmp_path / "m.pt"))
    with pytest.raises(SourceError, match="z: a tensor of complex64 cannot be stored"):
        qfmt.convert(saved({"z": torch.ones(1, dtype=torch.complex64)}, tmp_path / "m.pt"))


# -- what people see --------------------------------------------------------------------------------------


def test_one_sentence_says_that_there_is_no_graph(tmp_path: Path) -> None:
    source, stored = saved({"fc.weight": torch.ones(2, 3)}, tmp_path / "m.pt"), tmp_path / "m.qfb"
    shown = CliRunner().invoke(main, ["convert", str(source), str(stored)])
    model = qfmt.load(stored)
    assert "torch.jit.save" in model.no_graph and "example_inputs" in model.no_graph
    assert shown.exit_code == 0 and model.no_graph in shown.stderr
    assert model.no_graph in CliRunner().invoke(main, ["inspect", str(stored)]).output
    with pytest.raises(RunError) as caught:
        model.run({"x": np.zeros(1)})
    assert str(caught.value) == model.no_graph
    np.save(tmp_path / "x.npy", np.zeros(1))
    run = CliRunner().invoke(main, ["run", str(stored), "--input", str(tmp_path / "x.npy")])
    assert run.exit_code == 2 and model.no_graph in run.stderr


def test_a_scale_of_a_state_dict_is_explained(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "torch_legacy" / "t1131" / "mbv2_eager.sd.pt"
    shown = CliRunner().invoke(main, ["inspect", str(source), "--tensor", "classifier.1.scale"]).output
    assert "classifier.1.scale is the scale of the output of classifier.1" in shown
    assert "zero point   55" in shown and "no graph" in shown


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it raises
import qfmt

for source in sys.argv[1:]:
    print(len(qfmt.convert(source).tensors))
"""


def test_no_torch_is_needed(shared_data: Path) -> None:
    legacy = shared_data / "torch_legacy" / "t1131"
    older = shared_data / "torchscript_bc" / "TestSerialization.test_conv2d.state_dict.pt"
    files = [legacy / "mbv2_eager.sd.pt", legacy / "zoo_eager.mod.pt", legacy / "rn_fx.mod.pt", older]
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *files], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 4


# -- hostile files ----------------------------------------------------------------------------------------


class Attack(nn.Module):
    """A module whose pickle calls the system."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.trap = Runs(command)


@FORMS
@pytest.mark.parametrize("kind", ["state_dict", "module", "hook"])
def test_a_call_of_the_system_is_refused_and_never_run(kind: str, form: dict[str, bool], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    command = f"touch {marker}"
    value: Any = {"weight": torch.ones(2), "x": Runs(command)}
    if kind != "state_dict":
        value = Attack(command)
    if kind == "hook":
        del value.trap
        value._forward_hooks[0] = Runs(command)
    path = saved(value, tmp_path / "m.pt", **form)
    with pytest.raises(UnsafePickleError, match=rf"{os.system.__module__}\.system"):
        qfmt.convert(path)
    for words in (["convert", str(path), str(tmp_path / "m.qfb")], ["inspect", str(path)]):
        shown = CliRunner().invoke(main, words)
        assert shown.exit_code == 2 and "nothing was executed" in shown.stderr
    assert not marker.exists() and not (tmp_path / "m.qfb").exists()


def test_the_marker_would_appear_if_the_pickle_ran(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = saved({"x": Runs(f"touch {marker}")}, tmp_path / "m.pt")
    torch.load(path, weights_only=False)
    assert marker.exists()


HOSTILE_CODE = [
    "return __import__('os').system('touch {marker}')",
    "return os.system('touch {marker}')",
    "return getattr(os, 'system')('touch {marker}')",
    "return x.__class__.__base__.__subclasses__()",
    "return (lambda: os.system('touch {marker}'))()",
    "return [os.system('touch {marker}') for _ in [1]][0]",
    "return eval('1')",
    "return torch.ops.load_library('touch {marker}')",
    "return torch.load('touch {marker}')",
    "import os; os.system('touch {marker}'); return x",
    "while True: pass",
    "return 9 ** 9 ** 9",
    "return " + "(" * 4000 + "x" + ")" * 4000,
    "return " + "-" * 5000 + "x",
    "return x[" + "0][" * 3000 + "0]",
    "\x00",
    "return self.nothing(x)",
    "yield x",
]


@pytest.mark.parametrize("body", HOSTILE_CODE, ids=range(len(HOSTILE_CODE)))
def test_code_of_fx_is_read_and_never_run(body: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = "def forward(self, x):\n    " + body.replace("{marker}", str(marker))
    path = fx_file(tmp_path / "m.pt", source, "import os\nimport torch\nfrom os import system\n")
    model = qfmt.convert(path)
    assert model.no_graph and list(model.tensors) == ["weight"]
    assert model.no_graph.isprintable() and len(model.no_graph) < 1000
    assert not marker.exists()


class GraphLike:
    """Pickled as torch.fx pickles a GraphModule."""

    def __init__(self, code: str, imports: str) -> None:
        self.body = {"_code": code, "_parameters": {"weight": torch.ones(2)}, "_buffers": {}, "_modules": {}}
        self.imports = imports

    def __reduce__(self) -> tuple[Any, ...]:
        from torch.fx.graph_module import reduce_graph_module

        return reduce_graph_module, (self.body, self.imports)


def fx_file(path: Path, code: str, imports: str = "import torch\n") -> Path:
    return saved(GraphLike(code, imports), path)


def test_the_code_of_fx_is_followed(tmp_path: Path) -> None:
    code = """def forward(self, x : torch.Tensor, y = None):
    a = x.view(2, -1);  b = None
    c, d = torch.chunk(a, 2, dim = 1)
    e = (c + d * 2 - 1) / 2
    f = torch.cat((e, -d), dim = 1)[(slice(None, None, None), slice(1, None, 2))]
    g = operator_getitem([f, 3], 0)[:, None, 0]
    return {'out': g, 'list': (self.weight, [e])}
"""
    path = fx_file(tmp_path / "m.pt", code, "import torch\nfrom _operator import getitem as operator_getitem\n")
    model = qfmt.convert(path, input_shapes={"x": (8,)})
    assert not model.no_graph, model.no_graph
    x = np.arange(8, dtype=np.float32)
    a = x.reshape(2, -1)
    c, d = a[:, :2], a[:, 2:]
    e = (c + d * 2 - 1) / 2
    g = np.concatenate([e, -d], 1)[:, 1::2][:, None, 0]
    results = model.run({"x": x})
    for mine, theirs in zip(
        (results[name] for name in model.graph.outputs), (g, np.ones(2, np.float32), e), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("call", "operators"),
    [
        ("feature_alpha_dropout(x, 0.5, False, True)", []),
        ("alpha_dropout(x, inplace = True)", []),
        ("dropout3d(x, 0.5, False, True)", []),
        ("elu(x, 2.0, True)", ["Elu"]),
        ("leaky_relu(input = x, inplace = True)", ["LeakyRelu"]),
        ("gelu(x, approximate = 'tanh')", ["Gelu"]),
        ("mish(x, True)", ["Mish"]),
        ("linear(x, self.weight.view(1, 2))", ["qfmt.Linear"]),
    ],
)
def test_functions_of_fx_take_inplace_where_torch_does(call: str, operators: list[str], tmp_path: Path) -> None:
    code = f"def forward(self, x):\n    y = torch.nn.functional.{call}\n    return (y + 1,)\n"
    model = qfmt.convert(fx_file(tmp_path / "m.pt", code), input_shapes={"x": (1, 2)})
    assert [node.operator for node in model.nodes] == [*operators, "Add"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("linear(x, self.weight, None, True)", "linear is called with arguments that are not supported"),
        ("elu(x, 2.0, True, 3)", "elu is called with arguments that are not supported"),
        ("feature_alpha_dropout(x, 0.5, True)", "is in training mode"),
        ("gelu(x, 'tanh')", "gelu is called with arguments that are not supported"),
        ("gelu(x, approximate = True)", "takes a bool where another type is needed"),
    ],
)
def test_functions_of_fx_with_other_arguments_are_refused_where_they_are(
    call: str, message: str, tmp_path: Path
) -> None:
    code = f"def forward(self, x):\n    y = torch.nn.functional.{call}\n    return (y + 1,)\n"
    with pytest.raises(SourceError, match=message) as raised:
        qfmt.convert(fx_file(tmp_path / "m.pt", code), input_shapes={"x": (1, 2)})
    assert raised.value.where.endswith("forward:2"), raised.value.where


def test_pickles_within_pickles_without_end(tmp_path: Path) -> None:
    laugh: Any = torch.ones(1)
    for _ in range(60):
        laugh = [laugh, laugh]
    with pytest.raises(SourceError, match="would take more than"):
        qfmt.convert(saved({"weight": torch.ones(1), "x": laugh}, tmp_path / "m.pt"))
    module = nn.Module()
    for _ in range(30):
        outer = nn.Module()
        outer.a = outer.b = module
        module = outer
    with pytest.raises(SourceError, match="would take more than"):
        qfmt.convert(saved(module, tmp_path / "m.pt"))


def test_code_that_works_without_end(tmp_path: Path) -> None:
    """Numbers that double their length with each line, and modules that call one another twice."""
    squares = "\n".join(["def forward(self, x):", "    a = 9"] + ["    a = a * a"] * 60 + ["    return x * a"])
    assert "the result of aten::mul exceeds 64 bits" in qfmt.convert(fx_file(tmp_path / "m.pt", squares)).no_graph
    inner: Any = GraphLike("def forward(self, x):\n    return x", "import torch")
    for _ in range(30):
        outer = GraphLike("def forward(self, x):\n    a = self.m(x)\n    return self.m(a)", "import torch")
        outer.body["_modules"] = {"m": inner}  # type: ignore[assignment]
        inner = outer
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(saved(inner, tmp_path / "m.pt"))


@pytest.mark.parametrize("file", ["rn_fx.mod.pt", "zoo_eager.mod.pt", "lm_dyn.sd.pt"])
def test_damaged_pickles_raise_nothing_else(shared_data: Path, file: str) -> None:
    """Bytes changed, dropped and moved, in the pickle of a zip whose checksums are those of the damaged file."""
    archive = Zip(shared_data / "torch_legacy" / "t1131" / file)
    root = root_of(archive)
    whole = archive.read(f"{root}data.pkl", 1 << 24)
    random, fine = Random(7), 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            at, other, count = random.randrange(len(data)), random.randrange(len(data)), random.randint(0, 20)
            data[at : at + random.randint(1, 20)] = random.choice(
                [bytes([random.randrange(256)]), b"", data[other : other + count]]
            )
        try:
            value = unpickle(
                bytes(data),
                lambda key, dtype: Storage(key, dtype, lambda: archive.view(f"{root}data/{key}", 1 << 24)),
                find_global=harmless_or_inert,
            )
            for tensor in convert_saved(Saved(value, "3", Budget(None)), Options("fbgemm"), {}).graph.constants():
                _ = tensor.array
            fine += 1
        except QfmtError as error:
            assert "\n" not in str(error)
    print(f"{fine} of 300 damaged pickles still convert")


def test_packed_objects_nested_deeply(tmp_path: Path) -> None:
    """As `{"x": ScriptObject with state (((…)), class)}`, which PyTorch's own pickler could not write."""
    state = b"(" * 5000 + b"t" * 5000 + text("__torch__.torch.classes.quantized.LinearPackedParamsBase")
    top = b"\x80\x02}" + text("x") + b"ctorch\nScriptObject\n)\x81(" + state + b"tbs."
    preamble = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    path = tmp_path / "m.pt"
    path.write_bytes(b"".join(preamble) + top + pickle.dumps([], 2))
    with pytest.raises(SourceError, match="nested too deeply"):
        qfmt.convert(path)


def legacy_bytes(folder: Path) -> bytes:
    q = torch.quantize_per_channel(
        torch.randn(2, 3), torch.tensor([0.5, 0.25]).double(), torch.tensor([0, 1]), 0, torch.qint8
    )
    return saved({"w": q, "b": torch.ones(3), "m.scale": torch.tensor(0.5)}, folder / "whole.pt", **LEGACY).read_bytes()


def test_every_truncation_of_the_older_form_is_refused(tmp_path: Path) -> None:
    whole, path = legacy_bytes(tmp_path), tmp_path / "m.pt"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(QfmtError):
            qfmt.convert(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_in_the_older_form_raises_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    known = folder / "legacy.bin"
    if not known.exists():
        known.write_bytes(legacy_bytes(folder))
    damaged = bytearray(known.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "damaged.pt"
    path.write_bytes(bytes(damaged))
    try:
        for tensor in qfmt.convert(path).graph.constants():
            _ = tensor.array
    except QfmtError as error:
        assert "\n" not in str(error)


def test_the_older_form_has_classes_with_their_source(tmp_path: Path) -> None:
    path = saved(nn.Sequential(Twice(nn.Linear(2, 2))), tmp_path / "m.pt", **LEGACY)
    assert b"A Sequential that is none." in path.read_bytes()
    assert "Twice is not in the file" in qfmt.convert(path).no_graph, "for a module's source may have changed"


def test_strings_of_python_2_are_read(tmp_path: Path) -> None:
    data = b"\x80\x02}q\x00(U\x01aX\x01\x00\x00\x00bu."
    assert unpickle(data, lambda key, dtype: None) == pickle.loads(data) == {"a": "b"}  # type: ignore[arg-type,return-value]


def test_pickled_modules_that_shrink(tmp_path: Path) -> None:
    network, x = torch.nn.Sequential(torch.nn.Softshrink(0.2), torch.nn.Hardshrink(0.3)), torch.linspace(-1, 1, 41)
    torch.save(network, tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    (result,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    assert [node.operator for node in model.nodes] == ["Shrink", "Shrink"]
    assert result.tobytes() == network(x).numpy().tobytes()
