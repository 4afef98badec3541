"""TorchScript archives read without torch, with torch as the witness for every value."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.nn import quantized as nnq
from torch.ao.nn.quantized import dynamic as nnqd

import qfmt
from networks import pytorch
from qfmt.frontends.stored import PerChannel, StoredTensor
from qfmt.frontends.torch.calls import Packed
from qfmt.frontends.torch.torchscript.archive import Archive
from qfmt.frontends.torch.torchscript.evaluator import evaluate
from support.paths import ROOT
from support.replay import Notes, Real, Replay, Unknown, assert_equal, to_torch

pytestmark = pytest.mark.usefixtures("fbgemm")

KINDS = ("trace", "script", "freeze")

LEGACY = ("mbv2_eager", "rn_fx", "zoo_eager", "lm_dyn", "emb")

FIXTURES = {
    "conv2d": 4, "conv2d_graph": 4, "conv2d_graph_v2": 4, "conv2d_graph_v3": 4, "conv3d_relu": 5, "linear": 2,
    "linear_dynamic_qint8": 2, "lstm": 3,
}  # fmt: skip
"""PyTorch's compatibility fixtures of 2020 and 2021, and the rank of their inputs."""


def replayed(path: Path, inputs: tuple[torch.Tensor, ...]) -> Any:
    return to_torch(evaluate(Archive(path), Replay(), [Real(tensor) for tensor in inputs]))


# -- whole archives ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["trace", "script"])
@pytest.mark.parametrize("name", LEGACY)
def test_calls_of_torch_1_13_archives_compute_their_stored_outputs(shared_data: Path, name: str, kind: str) -> None:
    """Also those that torch 2.13 itself cannot load (emb) or run (zoo_eager, scripted)."""
    folder = shared_data / "torch_legacy/t1131"
    inputs, output = torch.load(folder / f"{name}.io.pt", weights_only=False)
    count = assert_equal(replayed(folder / f"{name}.{kind}.pt", inputs), output)
    print(f"{name}.{kind}: {count} outputs equal")


@pytest.mark.parametrize("kind", ["scripted", "traced"])
@pytest.mark.parametrize("name", FIXTURES)
def test_calls_of_compatibility_fixtures_equal_torch(shared_data: Path, name: str, kind: str) -> None:
    start = shared_data / "torchscript_bc" / f"TestSerialization.test_{name}"
    given, expected = (torch.load(f"{start}.{part}.pt", weights_only=False) for part in ("input", "expected"))
    path = Path(f"{start}.{kind}.pt")
    ours = replayed(path, (given,))
    assert_equal(ours, torch.jit.load(path)(given))
    if name != "lstm":  # torch itself no longer computes its stored output
        assert_equal(ours, expected)


def test_real_mobilenet(shared_data: Path) -> None:
    """Published in 2019; its parameters were hoisted to the root module by `optimize_for_mobile`."""
    path = shared_data / "torchscript/ios_mobilenet_quantized.pt"
    torch.manual_seed(1)
    image = torch.randn(1, 3, 224, 224)
    archive, notes = Archive(path), Notes()
    assert [argument.name for argument in archive.inputs] == ["X"]
    evaluate(archive, notes, [Unknown()])
    module = torch.jit.load(path)
    kinds = Counter(node.kind() for node in module.graph.nodes() if node.kind().startswith(("quantized", "aten")))
    assert Counter(call.target for call in notes.calls) == kinds
    assert_equal(replayed(path, (image,)), module(image))
    packed = list(notes.packed().values())
    assert packed[0].path == "features.0.0._packed_params"
    assert packed[0].weight.names == ["features.0.0.weight"]
    assert packed[0].aliases == ("_jit_pass_hoist_conv_packed_params.features.0.0._packed_params.1",)
    assert packed[-1].path == "classifier.1._packed_params._packed_params"
    hoisted = {each.path: getattr(module, each.aliases[0]) for each in packed if each.aliases}
    for each in packed:
        theirs = (
            hoisted.get(each.path) if each.aliases else getattr(module.classifier, "1")._packed_params._packed_params
        )
        assert_same_packed(each, theirs)
    print(f"{len(packed)} packed parameters equal")


def test_evaluating_twice_records_the_same_calls(shared_data: Path) -> None:
    archive = Archive(shared_data / "torch_legacy/t1131/zoo_eager.script.pt")
    first, second = Notes(4), Notes(4)
    for notes in (first, second):
        evaluate(archive, notes, [Unknown()])
    assert [(call.target, call.place) for call in first.calls] == [(call.target, call.place) for call in second.calls]


# -- packed parameters ---------------------------------------------------------------------------------


def assert_same_packed(ours: Packed, theirs: Any) -> None:
    """Compare weight, quantizer, bias and geometry with torch's own packed object, bit for bit."""
    weight, bias = theirs.unpack()
    assert ours.weight.dtype == "int8" and weight.dtype == torch.qint8
    assert np.array_equal(ours.weight.array(), weight.int_repr().numpy())
    quantizer = ours.weight.quantizer
    if isinstance(quantizer, PerChannel):
        assert quantizer.scales() == tuple(weight.q_per_channel_scales().double().tolist())
        assert quantizer.zero_points() == tuple(weight.q_per_channel_zero_points().tolist())
        assert quantizer.axis == weight.q_per_channel_axis()
    else:
        assert quantizer is not None
        assert (quantizer.scale, quantizer.zero_point) == (weight.q_scale(), weight.q_zero_point())
    assert (ours.bias is None) == (bias is None)
    if ours.bias is not None:
        assert ours.bias.array().tobytes() == bias.detach().numpy().tobytes()
    if ours.kind == "conv":
        names = ("stride", "padding", "dilation", "output_padding")
        assert [list(getattr(ours, name)) for name in names] == [list(getattr(theirs, name)()) for name in names]
        assert (ours.groups, ours.transposed) == (theirs.groups(), bool(theirs.transpose()))


class EveryPacking(nn.Module):
    """A module of every class that packs, with random contents."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        odd = ODD[torch.backends.quantized.engine]
        self.conv1 = fill(nnq.Conv1d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2))
        self.conv2 = fill(nnq.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2))
        self.conv2n = fill(nnq.Conv2d(4, 3, 1, bias=False), per_channel=False)
        self.conv3 = fill(nnq.Conv3d(2, 4, (1, 2, 3), stride=(3, 2, 1), padding=(0, 1, 2)))
        self.up1 = fill(nnq.ConvTranspose1d(4, 2, 3, stride=2, output_padding=odd), per_channel=False)
        self.up2 = fill(nnq.ConvTranspose2d(4, 2, 3, (2, 3), 1, output_padding=(odd, 2 * odd)), per_channel=False)
        self.fc = fill(nnq.Linear(5, 3))
        self.fcn = fill(nnq.Linear(5, 3, bias_=False), per_channel=False)
        self.dynamic = fill(nnqd.Linear(5, 3))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, x3: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        q1 = torch.quantize_per_tensor(x1, 0.1, 3, torch.quint8)
        q2 = torch.quantize_per_tensor(x2, 0.1, 3, torch.quint8)
        q3 = torch.quantize_per_tensor(x3, 0.1, 3, torch.quint8)
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        return [
            self.conv1(q1), self.conv2(q2), self.conv2n(q2), self.conv3(q3), self.up1(q1), self.up2(q2),
            self.fc(q), self.fcn(q), self.dynamic(x),
        ]  # fmt: skip


ODD = {"fbgemm": 1, "onednn": 0}
"""oneDNN supports neither weights with a zero point nor output padding."""

SHAPES = ((2, 4, 9), (2, 4, 9, 8), (1, 2, 5, 6, 7), (3, 5))


def fill(module: Any, per_channel: bool = True) -> Any:
    weight, bias = module._weight_bias()
    values = torch.randint(-128, 128, weight.shape, dtype=torch.int8)
    if per_channel:
        scales = torch.rand(weight.shape[0], dtype=torch.float64) / 50 + 0.001
        zero_points = torch.randint(-3, 4, (weight.shape[0],)) * ODD[torch.backends.quantized.engine]
        packed = torch._make_per_channel_quantized_tensor(values, scales, zero_points, 0)
    else:
        packed = torch._make_per_tensor_quantized_tensor(values, 0.0123456789, 2 * ODD[torch.backends.quantized.engine])
    module.set_weight_bias(packed, None if bias is None else torch.randn(bias.shape))
    module.scale, module.zero_point = 0.37, 5
    return module


@pytest.fixture(scope="module")
def every_packing(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """EveryPacking as each kind of archive, packed for each engine that supports it."""
    folder = tmp_path_factory.mktemp("packing")
    paths = {}
    before = torch.backends.quantized.engine
    for engine in ("fbgemm", "onednn"):
        torch.backends.quantized.engine = engine
        inputs = tuple(torch.randn(shape) for shape in SHAPES)
        for kind in KINDS:
            paths[engine, kind] = pytorch.save_as(EveryPacking().eval(), inputs, kind, folder / f"{engine}.{kind}.pt")
    torch.backends.quantized.engine = before
    return paths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine_name", ["fbgemm", "onednn"])
def test_packed_parameters_equal_those_that_torch_unpacks(
    every_packing: dict[tuple[str, str], Path], engine_name: str, kind: str
) -> None:
    torch.backends.quantized.engine = engine_name
    path = every_packing[engine_name, kind]
    notes = Notes()
    evaluate(Archive(path), notes, [Unknown()] * 4)
    theirs = {}
    for node in _quantized_calls(path):
        theirs[node.output().debugName()] = list(node.inputs())[1].toIValue()
    ours = [call.args[1] for call in notes.calls if call.target.startswith("quantized::")]
    assert len(ours) == len(theirs) == 9
    for packed, witness in zip(ours, theirs.values(), strict=True):
        assert_same_packed(packed, witness)
    inputs = tuple(torch.randn(shape) for shape in SHAPES)
    count = assert_equal(replayed(path, inputs), torch.jit.load(path)(*inputs))
    print(f"{count} outputs equal")


def _quantized_calls(path: Path) -> list[Any]:
    """The nodes of torch's own frozen graph with packed parameters, in order."""
    module = torch.jit.load(path).eval()
    frozen = module if not list(module.children()) else torch.jit.freeze(module)
    return [node for node in frozen.graph.nodes() if node.kind().startswith(("quantized::conv", "quantized::linear"))]


@pytest.mark.parametrize("kind", ["trace", "script"])
def test_names_are_those_of_the_module_tree(every_packing: dict[tuple[str, str], Path], kind: str) -> None:
    notes = Notes()
    evaluate(Archive(every_packing["fbgemm", kind]), notes, [Unknown()] * 4)
    found = {packed.path: packed for packed in notes.packed().values()}
    convs, linears = ("conv1", "conv2", "conv2n", "conv3", "up1", "up2"), ("fc", "fcn", "dynamic")
    assert set(found) == {f"{name}._packed_params" for name in convs} | {
        f"{name}._packed_params._packed_params" for name in linears
    }
    assert found["conv2._packed_params"].weight.names == ["conv2.weight"]
    assert found["fc._packed_params._packed_params"].bias.names == ["fc.bias"]
    scopes = {call.place.scope for call in notes.calls if call.target.startswith("quantized::")}
    assert scopes == {*convs, *linears}
    places = [call.place for call in notes.calls if call.target == "quantized::conv2d"]
    assert all(place.file.startswith("code/__torch__") and place.line > 0 for place in places)


def test_frozen_archives_name_constants(every_packing: dict[tuple[str, str], Path]) -> None:
    notes = Notes()
    evaluate(Archive(every_packing["fbgemm", "freeze"]), notes, [Unknown()] * 4)
    assert {packed.path for packed in notes.packed().values()} == {f"CONSTANTS.c{i}" for i in range(9)}


def test_geometry_of_versions_1_2_3_is_the_same(shared_data: Path) -> None:
    found = []
    for name in ("conv2d_graph", "conv2d_graph_v2", "conv2d_graph_v3"):
        notes = Notes(4)
        evaluate(Archive(shared_data / f"torchscript_bc/TestSerialization.test_{name}.scripted.pt"), notes, [Unknown()])
        (packed,) = notes.packed().values()
        found.append(packed)
    assert [packed.version for packed in found] == [1, 2, 3]
    for packed in found:
        assert (packed.stride, packed.padding, packed.dilation, packed.output_padding) == (
            (1, 1), (0, 0), (1, 1), (0, 0),
        )  # fmt: skip
        assert (packed.groups, packed.transposed) == (1, False)
        assert packed.weight.strides == (27, 1, 9, 3)


# -- tensors -------------------------------------------------------------------------------------------


class Views(nn.Module):
    """Buffers with every kind of layout, and one storage shared."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(120, dtype=torch.float32)
        views = {
            "transposed": base.reshape(8, 15).t(),
            "offset": base[7:31],
            "strided": base.reshape(10, 12)[1::3, 2::5],
            "channels_last": base.reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            "expanded": base[3:4].expand(6, 1),
            "scalar": base[9],
            "empty": base[:0].reshape(0, 4),
            "half_precision": base.to(torch.float16),
            "brain": base.to(torch.bfloat16)[::2],
            "bits": base.reshape(8, 15) > 17,
            "longs": base.to(torch.int64).flip(0),
            "doubles": base.to(torch.float64) / 7,
        }
        for name, view in views.items():
            self.register_buffer(name, view)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.transposed, self.offset, self.strided, self.channels_last, self.expanded, self.scalar,
                self.empty, self.half_precision, self.brain, self.bits, self.longs, self.doubles]  # fmt: skip


def test_strides_offsets_and_dtypes(tmp_path: Path) -> None:
    module = Views()
    path = pytorch.save_as(module, (torch.zeros(1),), "script", tmp_path / "views.pt")
    archive = Archive(path)
    for ours, theirs in zip(evaluate(archive, Notes(), [Unknown()]), module(torch.zeros(1)), strict=True):
        assert isinstance(ours, StoredTensor)
        assert ours.shape == tuple(theirs.shape) and ours.strides == theirs.stride()
        array = ours.array()
        assert array.flags.c_contiguous and not array.flags.writeable
        assert array.dtype.name == ours.dtype == str(theirs.dtype).removeprefix("torch.")
        assert array.astype(np.float64).tolist() == theirs.double().tolist()
    shared = {name: getattr(module, name) for name in ("transposed", "offset", "strided")}
    assert {ours.path for ours in evaluate(archive, Notes(), [Unknown()])} >= set(shared)


def test_stored_arrays_are_not_copied(shared_data: Path) -> None:
    notes = Notes()
    evaluate(Archive(shared_data / "torchscript/ios_mobilenet_quantized.pt"), notes, [Unknown()])
    contiguous = [p.weight for p in notes.packed().values() if p.weight.strides[-1] == 1 and p.kind == "linear"]
    for weight in contiguous:
        assert np.shares_memory(weight.array(), weight.array())


def test_example_inputs_of_traces(every_packing: dict[tuple[str, str], Path]) -> None:
    assert [example.shape for example in Archive(every_packing["fbgemm", "trace"]).example_inputs()] == [*SHAPES]
    assert not Archive(every_packing["fbgemm", "script"]).example_inputs()


def test_neither_torch_nor_code_of_the_archive_is_loaded(shared_data: Path) -> None:
    """In a fresh process, only qfmt, NumPy and the standard library are imported."""
    path = shared_data / "torchscript/ios_mobilenet_quantized.pt"
    program = """
import sys
sys.modules["torch"] = None
from qfmt.frontends.torch.torchscript import archive, evaluator
from qfmt.frontends.torch.calls import Value

class Notes:
    count = 0
    def call(self, *call):
        self.count += 1
        return Value()

notes = Notes()
evaluator.evaluate(archive.Archive(sys.argv[1]), notes, [Value()])
assert not any(name.startswith(("onnx", "torch.", "__torch__")) for name in sys.modules)
print(notes.count)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, path],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(result.stdout) > 60


def test_a_conv1d_that_pads_by_reflection(tmp_path: Path) -> None:
    """torch pads before the call, and packs the convolution with two numbers of padding."""
    layer = nnq.Conv1d(2, 3, 3, padding=2, padding_mode="reflect")
    scale, zero_point = torch.tensor(0.1), torch.tensor(3)
    network = nn.Sequential(nnq.Quantize(scale, zero_point, torch.quint8), layer, nnq.DeQuantize()).eval()
    x = torch.randn(2, 2, 9)
    pytorch.save_as(network, (x,), "trace", tmp_path / "m.pt")
    (found,) = qfmt.convert(tmp_path / "m.pt").run({"input": x.numpy()}).values()
    assert np.array_equal(found, network(x).numpy())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_scripted_encoder(frozen: bool, tmp_path: Path) -> None:
    """Its code asks whether any of some lengths is not 0."""
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)
    with pytorch.quiet():
        network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        scripted = torch.jit.script(network)
        torch.jit.save(torch.jit.freeze(scripted) if frozen else scripted, tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"src": x.shape})
    (found,) = model.run({"src": x.numpy()}).values()
    np.testing.assert_allclose(found, network(x).detach().numpy(), rtol=1e-5, atol=1e-5)
