"""Tensors of torchao, and safetensors, read without torchao and torch. tools/make_torchao.py made the samples."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn

import qfmt
from qfmt.budget import Budget
from qfmt.cli import main
from qfmt.errors import BudgetError, QfmtError, SourceError
from qfmt.frontends.harmless import Inert, Subclass
from qfmt.frontends.stored import Storage, StoredTensor
from qfmt.frontends.torch.torchao import of_pickle
from qfmt.model import Model, Tensor
from support.paths import SAMPLES, TOOLS

FILES = pytest.mark.parametrize("file", ["torchao.pt", "torchao.safetensors"])


@pytest.fixture(scope="module")
def expected() -> Mapping[str, Any]:
    with np.load(SAMPLES / "torchao.npz") as file:
        return dict(file)


# -- comparison with torchao -----------------------------------------------------------------------------


@FILES
def test_integers_and_real_values_are_those_of_torchao(file: str, expected: Mapping[str, Any], tmp_path: Path) -> None:
    model = qfmt.convert(SAMPLES / file)
    model.save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    model = qfmt.load(tmp_path / "m.qfb")
    equal = total = 0
    for key, values in expected.items():
        name, _, what = key.rpartition("/")
        tensor = model.tensors[name]
        own = tensor.array.astype(np.float32) if what == "q" else tensor.dequantize()
        if what == "real" and name.startswith("int4_bfloat16"):  # torchao rounds each product to bfloat16
            own = torch.from_numpy(own).bfloat16().float().numpy()
        equal += int((own == values).sum())
        total += values.size
    print(f"{equal} of {total} integers and real values equal")
    assert equal == total > 0


def test_classes_that_torchao_has_removed() -> None:
    model = qfmt.convert(SAMPLES / "torchao-0.9.pt")
    with np.load(SAMPLES / "torchao-0.9.npz") as file:
        expected = dict(file)
    equal = total = 0
    for key, values in expected.items():
        name, _, what = key.rpartition("/")
        tensor = model.tensors[name]
        own = tensor.array.astype(np.float32) if what == "q" else tensor.dequantize()
        equal, total = equal + int((own == values).sum()), total + values.size
    print(f"{equal} of {total} integers and real values equal")
    assert equal == total == 768
    assert [model.tensors[f"{name}.weight"].dtype for name in ("weight_only", "dynamic", "int4")] == [
        "int8",
        "int8",
        "int4",
    ]
    assert model.source["dynamic_inputs"] == (
        "int8 per token, asymmetric: int4.weight; int8 per token, symmetric, -127..127: dynamic.weight"
    )


def test_models_whose_inputs_are_quantized_in_another_way_are_other_models(tmp_path: Path) -> None:
    """No tensor says so, in a model without a network."""
    model = qfmt.convert(SAMPLES / "torchao-0.9.pt")
    key = model.source["dynamic_inputs"]
    for said in (key.replace("asymmetric", "symmetric"), ""):
        source = {**model.source, "dynamic_inputs": said} if said else {"format": model.source["format"]}
        other = model.replace(source=source)
        assert other.content_id() != model.content_id()
        report = qfmt.verify(SAMPLES / "torchao-0.9.pt", other)
        assert report.first_wrong == f"dynamic_inputs {key} → {said or 'nothing'}"
    assert qfmt.verify(SAMPLES / "torchao-0.9.pt", model).ok


def affine(**changes: Any) -> Subclass:
    """A torchao 0.9 tensor as in its pickle, with changes; `layout` is the class of its contents."""
    held = Subclass(f"torchao.dtypes.{changes.pop('layout', 'PlainAQTTensorImpl')}", "int8", (2, 4))
    held.state = {"int_data": stored(np.zeros((2, 4), np.int8)), "scale": stored(np.ones(2, np.float32))}
    tensor = Subclass("torchao.dtypes.affine_quantized_tensor.AffineQuantizedTensor", "float32", (2, 4))
    domain = Inert("torchao.quantization.quant_primitives.ZeroPointDomain", (1,))
    tensor.state = {"tensor_impl": held, "block_size": (1, 4), "zero_point_domain": domain} | changes
    return tensor


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"layout": "TensorCoreTiledAQTTensorImpl"},
            "has the layout TensorCoreTiledAQTTensorImpl, which is not supported",
        ),
        ({"tensor_impl": None}, "has the layout nothing"),
        ({"zero_point_domain": Inert("x.ZeroPointDomain", (2,))}, "zero points that are not integers"),
        ({"quant_min": -300}, "values from -300 to 127"),
        ({"quant_min": 5}, "has values from 0 to 0, but 5 to 127"),
        ({"quant_max": "x"}, "values from -128 to x"),
        ({"quant_min": {0: ()}}, "values from dict to 127"),
        ({"block_size": (1, 3)}, "2 scales"),
    ],
)
def test_invalid_tensors_of_older_versions(changes: dict[str, Any], message: str) -> None:
    assert of_pickle(affine(), Budget(None)).dtype == "int8"
    with pytest.raises(SourceError, match=message):
        of_pickle(affine(**changes), Budget(None))


def test_both_formats_contain_the_same_network() -> None:
    pickled, safe = (qfmt.convert(SAMPLES / f"torchao.{form}") for form in ("pt", "safetensors"))
    assert pickled.content_id() == safe.content_id()
    assert (
        pickled.source["dynamic_inputs"]
        == safe.source["dynamic_inputs"]
        == (
            "int8 per tensor, symmetric: dynamic_tensor.weight; "
            "int8 per token, asymmetric: dynamic_asymmetric.weight int4_dynamic.weight; "
            "int8 per token, symmetric: dynamic.weight"
        )
    )
    assert "convert the module in memory" in pickled.no_graph
    assert "convert the module in memory" in safe.no_graph
    assert safe.tensors["static.weight"].aliases == tuple(
        f"static._weight_{p}" for p in ("qdata", "scale", "zero_point")
    )
    assert safe.graph.find("static._weight_act_quant_scale") is safe.tensors["static.input"]


def test_types_limits_and_scales() -> None:
    tensors = qfmt.convert(SAMPLES / "torchao.safetensors").tensors
    for name, dtype, limits, block, scales in (
        ("int8_row", "int8", (-128, 127), (1,), "float32"),
        ("int8_group", "int8", (-128, 127), (1, 8), "float32"),
        ("int3_row", "int4", (-4, 3), (1,), "float32"),
        ("int4_group", "int4", (-8, 7), (1, 8), "float32"),
        ("int4_bfloat16", "int4", (-8, 7), (1, 8), "bfloat16"),
        ("float8", "float8_e4m3fn", (-448, 448), (1,), "float32"),
    ):
        tensor = tensors[f"{name}.weight"]
        grid = tensor.quantization
        assert grid is not None and (grid.quant_min, grid.quant_max) == limits
        assert tensor.dtype == dtype and grid.scale_dtype == scales
        assert grid.block == block
    static = tensors["static.input"]
    assert static.shape is None and static.quantization is not None
    assert static.quantization.scale.numbers() == (float(np.float32(0.02)),)


def test_no_torch_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'torchao', 'safetensors')))\n"
        "import qfmt\n"
        f"for form in ('pt', 'safetensors'): qfmt.convert({str(SAMPLES)!r} + '/torchao.' + form)"
        f".save({str(tmp_path)!r} + '/' + form + '.qfb')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert qfmt.check(tmp_path / "pt.qfb") == qfmt.check(tmp_path / "safetensors.qfb") == []


# -- modules in memory -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """tools/make_torchao.py."""
    pytest.importorskip("torchao", reason="needs torchao")
    spec = spec_from_file_location("make_torchao", TOOLS / "make_torchao.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def layers(made: ModuleType) -> Mapping[str, nn.Module]:
    return dict(quietly(made.layers))


def quietly(function: Any, *arguments: Any) -> Any:
    """Call without torchao's import warnings about this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def ran(model: Model, x: torch.Tensor) -> Any:
    return model.run({model.graph.inputs[0]: x.numpy()})[model.graph.outputs[0]]


def by_onnx_runtime(model: Model, x: torch.Tensor) -> Any:
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {model.graph.inputs[0]: x.numpy()})[0]


REAL = (
    "int8_row", "int8_tensor", "int8_group", "static", "int4_group", "int3_row", "int4_asymmetric", "int4_dynamic",
    "dynamic_asymmetric", "float8",
)  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_layers_that_compute_reals_agree_with_torchao(name: str, layers: Mapping[str, nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    model = qfmt.convert(nn.Sequential(layers[name]), example_inputs=(x,))
    theirs = layers[name](x).detach().numpy()
    ours = ran(model, x)
    print(f"{name}: {(ours == theirs).sum()} of {theirs.size} equal, by {abs(ours - theirs).max():.1e} at most")
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    weight = model.tensors["0.weight"]
    stored = qfmt.convert(SAMPLES / "torchao.pt").tensors[f"{name}.weight"]
    assert (weight.dtype, weight.quantization) == (stored.dtype, stored.quantization)
    assert weight.array.tobytes() == stored.array.tobytes()


@pytest.mark.parametrize("per", ["PerRow", "PerTensor"])
@pytest.mark.parametrize("reduce_range", [False, True])
def test_dynamic_layers_equal_torchao(per: str, reduce_range: bool, made: ModuleType) -> None:
    """Per row or per tensor, results are equal bit by bit: in the reference, back in torch, and in ONNX Runtime."""
    from torchao import quantization as ao

    equal = total = 0
    for seed in range(3):
        torch.manual_seed(seed)
        inner, outer = 8 * int(torch.randint(1, 200, ())), 8 * int(torch.randint(1, 12, ()))
        net = nn.Sequential(nn.Linear(inner, outer), nn.ReLU(), nn.Linear(outer, 16, bias=False)).eval()
        granularity = getattr(ao.granularity, per)()
        quietly(
            ao.quantize_,
            net,
            ao.Int8DynamicActivationInt8WeightConfig(granularity=granularity, reduce_range=reduce_range),
        )
        x = torch.randn(3, 17, inner) * torch.rand(3, 17, 1) * 10
        x[0, seed % 17] = 0
        model = qfmt.convert(net, example_inputs=(x,))
        assert [node.operator for node in model.nodes] == ["qfmt.DynamicLinear", "Relu", "qfmt.DynamicLinear"]
        theirs = net(x).detach().numpy()
        for each in (ran(model, x), model.to_torch("auto")(x).detach().numpy(), by_onnx_runtime(model, x)):
            equal += int((each == theirs).sum())
            total += theirs.size
    print(f"{equal} of {total} equal")
    assert equal == total


def test_the_module_is_not_changed(layers: Mapping[str, nn.Module]) -> None:
    net = nn.Sequential(layers["dynamic"], nn.ReLU())
    names, weight = list(net.state_dict()), net[0].weight
    qfmt.convert(net, example_inputs=(torch.ones(2, 16),))
    assert list(net.state_dict()) == names and net[0].weight is weight and next(net.parameters()) is weight
    assert not dict(net.named_buffers())


def test_tied_weights_are_one_tensor(layers: Mapping[str, nn.Module]) -> None:
    first, second = nn.Linear(16, 4, bias=False), nn.Linear(16, 4)
    first.weight = second.weight = layers["int4_group"].weight

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.second(x)

    x = torch.randn(3, 16)
    net = Tied()
    model = qfmt.convert(net, example_inputs=(x,))
    np.testing.assert_allclose(ran(model, x), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert sum(tensor.dtype == "int4" for tensor in model.tensors.values()) == 1


@pytest.mark.parametrize(
    "name, message",
    [
        ("int4_bfloat16", "computes in bfloat16, which is not supported; call model.float"),
    ],
)
def test_unsupported_weights_are_named(name: str, message: str, layers: Mapping[str, nn.Module]) -> None:
    x = torch.ones(2, 16, dtype=torch.bfloat16 if "bfloat" in name else torch.float32)
    with pytest.raises(SourceError, match=rf"module 0 \(Linear\).*{message}"):
        qfmt.convert(nn.Sequential(layers[name]), example_inputs=(x,))


def test_other_uses_of_a_weight_are_named(layers: Mapping[str, nn.Module]) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layers["int8_row"]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.layer.weight.sum()

    with pytest.raises(SourceError, match=r"torch could not run the model .*no attribute 'weight'"):
        qfmt.convert(Other(), example_inputs=(torch.ones(2, 16),))


def test_other_modules_are_named() -> None:
    ao = pytest.importorskip("torchao.quantization")
    net = nn.Sequential(nn.Embedding(8, 16))
    configuration = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.granularity.PerGroup(8))
    quietly(ao.quantize_, net, configuration, lambda module, _: isinstance(module, nn.Embedding))
    with pytest.raises(SourceError, match=r"0\.weight: is a torchao tensor in a Embedding; only linear layers"):
        qfmt.convert(net, example_inputs=(torch.zeros(2, 3, dtype=torch.int64),))


def test_a_network_that_reads_sizes_is_exported(made: ModuleType) -> None:
    """torch.export supports attention whose heads are computed from sizes; TorchScript's trace does not."""
    from torchao import quantization as ao

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (each(x).view(*x.shape[:-1], -1, 8).transpose(1, 2) for each in (self.q, self.k, self.v))
            mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
            mixed = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + mask, -1) @ v
            return self.out(mixed.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    net, x = Attention().eval(), torch.randn(2, 7, 32)
    quietly(ao.quantize_, net, ao.Int8DynamicActivationIntxWeightConfig(torch.int4, ao.granularity.PerGroup(8)))
    model = qfmt.convert(net, example_inputs=(x,))
    np.testing.assert_allclose(ran(model, x), net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert {"q.weight", "k.weight", "v.weight", "out.weight"} <= set(model.tensors)


def test_a_state_dict_in_memory(layers: Mapping[str, nn.Module]) -> None:
    state = nn.ModuleDict(layers).state_dict()
    assert qfmt.convert(dict(state)).content_id() == qfmt.convert(SAMPLES / "torchao.pt").content_id()


# -- plain safetensors -------------------------------------------------------------------------------------


def test_plain_safetensors_keep_every_type(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kinds = (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
    )  # fmt: skip
    state = {str(kind): (torch.randn(3, 5) * 20).to(kind) for kind in kinds} | {"none": torch.empty(0, 4)}
    state["number"] = torch.tensor(7)
    save_file(state, tmp_path / "m.safetensors", {"format": "pt"})
    qfmt.convert(tmp_path / "m.safetensors").save(tmp_path / "m.qfb")
    tensors = qfmt.load(tmp_path / "m.qfb").tensors
    assert set(tensors) == set(state)
    for name, value in state.items():
        assert tuple(value.shape) == tensors[name].shape
        assert bytes(value.reshape(-1).view(torch.uint8).numpy()) == tensors[name].array.tobytes()


# -- invalid files --------------------------------------------------------------------------------------------


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BROKEN = {
    "cut off": file_of({"a": entry(0, 8, [2])}, bytes(7)),
    "left over": file_of({"a": entry(0, 8, [2])}, bytes(9)),
    "overlap": file_of({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
    "hole": file_of({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, bytes(20)),
    "too small": file_of({"a": entry(0, 8, [3])}, bytes(8)),
    "huge": file_of({"a": entry(0, 8, [1 << 40] * 20)}, bytes(8)),
    "negative": file_of({"a": entry(0, 8, [-2])}, bytes(8)),
    "truth": file_of({"a": entry(0, 8, [True, 2])}, bytes(8)),
    "backwards": file_of({"a": entry(8, 0, [2])}, bytes(8)),
    "type": file_of({"a": entry(0, 8, [2], "F31")}, bytes(8)),
    "no object": file_of({"a": 3}),
    "not text": file_of({"__metadata__": {"a": 3}}),
    "no json": file_of(b'{"a": '),
    "twice": file_of(b'{"a": 1, "a": 2}'),
    "deep": file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "half a character": file_of({"\ud800": entry(0, 8, [2])}),
    "half a character in metadata": file_of({"__metadata__": {"tensor_names": '["a"]', "a": '{"_type": "\udc00"}'}}),
    "latin": file_of(b'{"\xff": 1}'),
    "complex": file_of({"a": entry(0, 8, [1], "C64")}, bytes(8)),
    "empty": file_of({"": entry(0, 8, [2])}, bytes(8)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_safetensors_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(BROKEN[name])
    with pytest.raises(SourceError, match=r"m\.safetensors"):
        qfmt.convert(tmp_path / "m.safetensors").save(tmp_path / "m.qfb")
    assert not (tmp_path / "m.qfb").exists()


def rewritten(tmp_path: Path, change: Any) -> Model:
    """The sample of safetensors with its metadata changed, converted."""
    content = (SAMPLES / "torchao.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    metadata = {name: json.loads(text) for name, text in header["__metadata__"].items()}
    change(header, metadata)
    header["__metadata__"] = {name: json.dumps(value) for name, value in metadata.items()}
    (tmp_path / "m.safetensors").write_bytes(file_of(header, content[end:]))
    return qfmt.convert(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    "where, key, value, message",
    [
        ("int8_row", "_type", "NVFP4Tensor", "is a NVFP4Tensor, which is not supported"),
        ("int8_row", "_type", None, "torchao does not write"),
        ("int8_row", "_data", 3, "torchao does not write"),
        ("int8_row", "_tensor_data_names", ["qdata"], "without scale"),
        ("int8_row", "_tensor_data_names", ["qdata", "scale", "else"], r"lacks its part int8_row\._weight_else"),
        ("int8_row", "block_size", [1, 7], "4 scales"),
        ("int8_row", "block_size", [1, -1], "do not divide"),
        ("int8_row", "block_size", [16], "do not divide"),
        ("int8_row", "block_size", ["x", 1], "not whole numbers"),
        ("int8_row", "reduce_range", True, "but -64 to 63"),
        ("int4_group", "target_dtype", {"_type": "torch.dtype", "_data": "int2"}, "but -2 to 1"),
        ("int4_group", "target_dtype", {"_type": "torch.dtype", "_data": "int44"}, "of type int44"),
        ("int4_group", "activation_quantization", "by_magic", "by_magic, which is not supported"),
        ("dynamic", "act_quant_kwargs", {"_type": "Else", "_data": {}}, "quantizes its input by None"),
        ("float8", "_type", "Int8Tensor", "is a Int8Tensor of float8_e4m3fn"),
        ("int8_row", "_type", "Float8Tensor", "is a Float8Tensor of int8"),
    ],
)
def test_invalid_descriptions(where: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    def change(header: Any, metadata: Any) -> None:
        described = metadata[f"{where}.weight"]
        (described if key.startswith("_") else described["_data"])[key] = value

    with pytest.raises(SourceError, match=message) as caught:
        rewritten(tmp_path, change)
    assert f"{where}.weight" in str(caught.value)


def test_scales_that_are_not_numbers(tmp_path: Path) -> None:
    def change(header: Any, metadata: Any) -> None:
        header["int8_row._weight_scale"]["dtype"] = "I32"

    with pytest.raises(SourceError, match=r"int8_row\.weight: has scales of int32"):
        rewritten(tmp_path, change)


def is_json(content: bytes) -> bool:
    """Whether the header of safetensors is JSON at all."""
    try:
        json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    except ValueError:
        return False
    return True


def test_shuffled_bytes_end_in_one_error(tmp_path: Path) -> None:
    content = (SAMPLES / "torchao.safetensors").read_bytes()
    end, random, refused = 8 + struct.unpack("<Q", content[:8])[0], Random(0), 0
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(random.choice((1, 1, 2, 8))):
            damaged[random.randrange(end)] = random.choice(b'0123456789"{}[],:\\x\x00\xff' + bytes(range(256)))
        (tmp_path / "m.safetensors").write_bytes(damaged)
        try:
            qfmt.convert(tmp_path / "m.safetensors").save(tmp_path / "m.qfb")
            assert is_json(damaged)
        except QfmtError:
            refused += 1
    print(f"{refused} of 200 refused")
    assert refused


def stored(array: Any) -> StoredTensor:
    array = np.asarray(array)
    strides = tuple(step // array.itemsize for step in array.strides)
    raw = memoryview(array.tobytes())
    return StoredTensor(Storage("s", array.dtype.name, lambda: raw), array.dtype.name, array.shape, strides)


@pytest.mark.parametrize(
    "state, message",
    [
        (None, "without qdata"),
        ({"qdata": 3}, "without qdata"),
        ({"qdata": stored(np.zeros((2, 4), np.int8)), "scale": None}, "without scale"),
        ({"qdata": stored(np.zeros((2, 4), np.int8)), "scale": stored(np.zeros((2, 1), np.float32))}, "not positive"),
        ({"qdata": stored(np.zeros((2, 4), np.int8)), "scale": stored(np.full((2, 1), np.nan, "f"))}, "not positive"),
        ({"qdata": stored(np.zeros((2, 4), np.float32)), "scale": stored(np.ones(1, np.float32))}, "of float32"),
        (
            {
                "qdata": stored(np.zeros((2, 4), np.int8)),
                "scale": stored(np.ones((2, 1), np.float32)),
                "act_quant_kwargs": Inert("torchao.x.QuantizeTensorToInt8Kwargs", ()),
            },
            "quantizes its input by None",
        ),
    ],
)
def test_invalid_pickled_tensors(state: Any, message: str) -> None:
    tensor = Subclass("torchao.quantization.Int8Tensor", "float32", (2, 4))
    tensor.state = state
    with pytest.raises(SourceError, match=message):
        of_pickle(tensor, Budget(None))


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ({"target_dtype": {0: ()}}, "IntxUnpackedToInt8Tensor", "holds integers of type dict"),
        ({"activation_quantization": {0: ()}}, "Int8Tensor", "quantizes its input by dict, which"),
        ({"zero_point": stored(np.ones((2, 1), bool))}, "Int8Tensor", "has zero points of bool"),
        ({"zero_point": stored(np.ones((2, 1), np.complex64))}, "Int8Tensor", "has zero points of complex64"),
        ({"zero_point": stored(np.full((2, 1), 1 << 63, np.uint64))}, "Int8Tensor", "has zero points of uint64"),
    ],
)
def test_descriptions_that_no_message_may_write_out(state: Any, kind: str, message: str) -> None:
    """A dict in which dicts share dicts is exponentially longer as text."""
    tensor = Subclass(f"torchao.quantization.{kind}", "float32", (2, 4))
    plain = {"qdata": stored(np.zeros((2, 4), np.int8)), "scale": stored(np.ones((2, 1), np.float32))}
    tensor.state = plain | state
    with pytest.raises(SourceError, match=message):
        of_pickle(tensor, Budget(None))


@pytest.mark.parametrize(("point", "kept"), [(3.0, "uint8"), (0.5, "float32"), (1e30, "float32")])
def test_zero_points_that_are_stored_as_floats(point: float, kept: str) -> None:
    tensor = Subclass("torchao.quantization.Int8Tensor", "float32", (2, 4))
    parts = {
        "qdata": np.zeros((2, 4), np.int8),
        "scale": np.ones((2, 1), "f"),
        "zero_point": np.full((2, 1), point, "f"),
    }
    tensor.state = {name: stored(part) for name, part in parts.items()}
    zero_point = of_pickle(tensor, Budget(None)).quantization.zero_point
    assert zero_point[0] == np.float32(point) and zero_point.dtype == kept


def test_a_long_name_of_many_parts(tmp_path: Path) -> None:
    def change(header: Any, metadata: Any) -> None:
        name = "a" * 50_000
        metadata["tensor_names"] = [name]
        metadata[name] = {"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": [*range(10_000)]}

    with pytest.raises(BudgetError):
        rewritten(tmp_path, change)


def test_other_classes_are_named(tmp_path: Path) -> None:
    with ZipFile(SAMPLES / "torchao.pt") as source, ZipFile(tmp_path / "m.pt", "w") as dest:
        for each in source.namelist():
            dest.writestr(each, source.read(each).replace(b"quantization\nFloat8Tensor", b"quantization\nInt4Tensor"))
    with pytest.raises(
        SourceError, match=r"float8\.weight: is a Int4Tensor, which is not supported; those of Int8Tensor"
    ):
        qfmt.convert(tmp_path / "m.pt")


# -- the command line --------------------------------------------------------------------------------------------


@FILES
def test_verify_compares_the_tensors(file: str, tmp_path: Path) -> None:
    qfmt.convert(SAMPLES / file).save(tmp_path / "m.qfb")
    run = CliRunner().invoke(main, ["verify", str(SAMPLES / file), str(tmp_path / "m.qfb")])
    assert run.exit_code == 0 and "14 of 14 equal, bit by bit" in run.output
    other = qfmt.convert(SAMPLES / file)
    weight = other.tensors["int8_row.weight"]
    changed = Tensor.constant(weight.name, weight.array ^ 1, weight.quantization)
    tensors = dict(other.tensors) | {weight.name: changed}
    other.replace(graph=replace(other.graph, tensors=tensors)).save(tmp_path / "m.qfb")
    run = CliRunner().invoke(main, ["verify", str(SAMPLES / file), str(tmp_path / "m.qfb")])
    assert run.exit_code == 1 and "int8_row.weight" in run.output


def test_inspect_shows_how_layers_quantize_their_inputs() -> None:
    run = CliRunner().invoke(main, ["inspect", str(SAMPLES / "torchao.safetensors")])
    assert run.exit_code == 0
    lines = " ".join(run.output.split())
    assert "inputs quantized at run time: int8 per tensor, symmetric: dynamic_tensor.weight; int8 per token" in lines
    run = CliRunner().invoke(main, ["inspect", str(SAMPLES / "torchao.pt"), "--tensor", "static.input"])
    assert run.exit_code == 0 and "computed at run time; the file has no graph" in run.output
