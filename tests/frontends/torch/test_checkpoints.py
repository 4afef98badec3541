"""torch.save files in both forms, read without torch: state_dicts, and objects that contain them."""

from __future__ import annotations

import bisect
import io
import os
import platform
import signal
import subprocess
import sys
from array import array
from collections import OrderedDict, UserDict, defaultdict, deque
from enum import Enum
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn

import qfmt
from networks import pytorch
from qfmt.cli import main
from qfmt.errors import RunError, SourceError
from qfmt.model import Model, Quantization, Tensor
from support.saved import FORMS, quantized_chain, saved

pytestmark = pytest.mark.usefixtures("fbgemm")


# -- real files against torch ----------------------------------------------------------------------------


def state_dicts() -> list[str]:
    fixtures = ("conv2d", "conv3d_relu", "linear", "linear_dynamic_qint8", "lstm")
    made = ("mbv2_eager", "rn_fx", "zoo_eager", "lm_dyn", "emb")
    return [
        *(f"torchscript_bc/TestSerialization.test_{name}.state_dict.pt" for name in fixtures),
        *(f"torch_legacy/t1131/{name}.sd.pt" for name in made),
    ]


@pytest.mark.parametrize("file", state_dicts())
def test_state_dicts_have_the_tensors_of_torch(shared_data: Path, file: str, tmp_path: Path) -> None:
    with pytorch.quiet():  # the files are PyTorch's own and ours; ScriptObjects need the full unpickler
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
    """The number of tensors of an entry of a state_dict that the model contains; asserts that all are equal."""
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
        assert mine.numbers() == (theirs.item(),) and key in (f"{tensor.name}.scale", f"{tensor.name}.zero_point")
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
        assert (mine.scale.numbers(), mine.zero_point.numbers(), mine.axis) == (
            (theirs.q_scale(),),
            (theirs.q_zero_point(),),
            None,
        )
        return
    scales, points = theirs.q_per_channel_scales(), theirs.q_per_channel_zero_points()
    assert (mine.scale.numbers(), mine.axis) == (tuple(scales.tolist()), theirs.q_per_channel_axis())
    assert mine.each_zero_point == tuple(points.tolist())


@pytest.mark.parametrize("name", ["mbv2_eager", "zoo_eager", "lm_dyn", "emb"])
def test_pickled_eager_modules_keep_every_tensor(shared_data: Path, name: str) -> None:
    """Also modules that torch itself can no longer load."""
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
        "empty": torch.empty(0, 3), "half": base.half(), "double": base.double() / 3,
        "integers": torch.arange(5), "bytes": torch.arange(5, dtype=torch.uint8), "truth": torch.tensor([True, False]),
        "q": channels.contiguous(memory_format=torch.channels_last), "parameter": nn.Parameter(torch.ones(2)),
        "u": torch.quantize_per_tensor(torch.randn(5), 0.25, 7, torch.quint8),
        "i": torch.quantize_per_tensor(torch.randn(5), 1e-6, 0, torch.qint32),
        "expanded": torch.ones(1, 3).expand(4, 3),
    }  # fmt: skip
    floats = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16")
    state |= {name: base.to(getattr(torch, name)) for name in floats}
    model = qfmt.convert(saved(state, tmp_path / "m.pt", **form))
    assert sorted(model.tensors) == sorted(state)
    for name, theirs in state.items():
        if name in floats:
            assert model.tensors[name].dtype == name
            assert model.tensors[name].array.tobytes() == theirs.view(torch.uint8).numpy().tobytes()
        else:
            assert_same(model.tensors[name], theirs.detach(), name)
    model.save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []


@FORMS
def test_modules_in_both_forms_are_one(form: dict[str, bool], tmp_path: Path) -> None:
    network, _ = pytorch.quantized("mobilenet_v3", "eager")
    state = qfmt.convert(saved(network.state_dict(), tmp_path / "sd.pt", **form))
    module = qfmt.convert(saved(network, tmp_path / "m.pt", **form))
    assert "is not in the file" in module.no_graph
    for name, tensor in state.tensors.items():
        assert module.tensors[name].quantization == tensor.quantization
        assert module.tensors[name].data == tensor.data
    for name, layer in network.named_modules():
        if isinstance(getattr(layer, "scale", None), float) and (layer.scale, layer.zero_point) != (1.0, 0):
            assert named(module, f"{name}.scale").quantization == named(module, f"{name}.zero_point").quantization
            assert named(module, f"{name}.scale").quantization.scale.numbers() == (layer.scale,)  # type: ignore[union-attr]


def test_a_checkpoint_around_a_state_dict(tmp_path: Path) -> None:
    inner = {"fc.weight": torch.ones(2, 3), "fc.scale": torch.tensor(0.5), "fc.zero_point": torch.tensor(3)}
    wrapped = {"epoch": 3, "name": "x", "nets": {"state_dict": inner, "lr": 0.1}}
    model = qfmt.convert(saved(wrapped, tmp_path / "m.pt"))
    assert model.content_id() == qfmt.convert(saved(inner, tmp_path / "i.pt")).content_id()
    assert named(model, "nets.state_dict.fc.weight").name == "fc.weight"
    both = qfmt.convert(saved({"a": inner, "b": {"w": torch.zeros(1), "list": [torch.ones(1)]}}, tmp_path / "m.pt"))
    assert sorted(both.tensors) == ["a.fc", "a.fc.weight", "b.list.0", "b.w"]


@FORMS
def test_a_checkpoint_around_a_module(form: dict[str, bool], tmp_path: Path) -> None:
    network = quantized_chain()
    alone = qfmt.convert(saved(network, tmp_path / "m.pt", **form))
    assert not alone.no_graph
    checkpoint = {"model": network, "epoch": 3, "ema": None, "args": {"lr": 0.1}, "loss": nn.CrossEntropyLoss()}
    around = qfmt.convert(saved(checkpoint, tmp_path / "c.pt", **form))
    assert around.content_id() == alone.content_id()
    assert around.source["format"] == "pickled_module"


class Settings(dict):
    """As EasyDict, and Lightning's AttributeDict."""


class Color(Enum):
    RED = 1


class Keyword:
    def __new__(cls, *, size: int) -> Keyword:
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"size": 3}


@FORMS
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_objects_beside_tensors(protocol: int, form: dict[str, bool], tmp_path: Path) -> None:
    """Their classes remain names. Tensors among the items of a dict, a list or their like are kept."""
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    beside = {
        "best": defaultdict(float, acc=0.9), "losses": deque([1.0, 2.0]), "settings": Settings(lr=0.1),
        "raw": bytearray(3), "last": deque([torch.ones(3)]), "average": Settings(w=torch.ones(2)),
        "labels": {np.int64(0): "cat", np.str_("a"): 1, Color.RED: 2, Path("a"): 3, int: 4, layer.weight: 5},
        "pairs": {(0, 1, 2): "a", (-1,): "b", (0.5, "x"): "c", ((1, 2), 3): "d"},
        "optimizer": optimizer, "seen": frozenset("ab"), "indices": range(3), "rest": ..., "error": ValueError("nan"),
        "order": array("i", [1, 2]), "batches": iter([1, 2]), "steps": Keyword(size=3), "zone": ZoneInfo("UTC"),
        "address": ip_address("127.0.0.1"), "schedule": partial(max, 1), "name": partial(os.path.join, "a"),
        "model._extra_state": io.BytesIO(b"abc"), "log": io.StringIO("a"), "exit": signal.SIGTERM,
        "machine": platform.uname(), "file": Path(__file__).stat(), "answer": HTTPStatus.OK, "insert": bisect.insort,
        "end": partial(round, 1),
    }  # fmt: skip
    given = {"pickle_protocol": protocol, **form}
    model = qfmt.convert(saved({"model": layer.state_dict(), **beside}, tmp_path / "m.pt", **given))
    key = "labels.(StoredTensor 5).key"
    assert sorted(model.tensors) == ["average.w", key, "last.0", "model.bias", "model.weight"]
    alone = qfmt.convert(saved(Settings(layer.state_dict()), tmp_path / "m.pt", **given))
    assert sorted(alone.tensors) == ["bias", "weight"]


class Layers(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor


class Linked:
    """An object of a cycle, with attributes in a `__dict__` and in a slot."""

    __slots__ = ("__dict__", "slotted")

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.slotted, self.myself = torch.zeros(2), self


def test_tensors_in_objects_are_kept(tmp_path: Path) -> None:
    one = torch.ones(1)
    branches = nn.ModuleDict()
    branches.heads, branches.table = [nn.Linear(2, 2)], {"anchors": [one]}  # type: ignore[assignment]
    held = {
        "tuple": Layers(one, one), "namespace": SimpleNamespace(w=one), "wrapped": UserDict(w=one),
        "object": Linked(w=one, inner=Linked()), "set": {one}, "frozen": frozenset({one}), "list": [nn.Linear(2, 1)],
        "network": branches, "devices": {torch.device("cuda", 0): one, torch.device("cuda", 1): one, "cuda": one},
        "types": {torch.float32: one, ("float32", 1): one, frozenset({1}): one, 2**63: one},
    }  # fmt: skip
    expected = {
        "tuple": ["0", "1"], "namespace": ["w"], "wrapped": ["data.w"], "set": ["0.0"], "frozen": ["0.0"],
        "object": ["inner.slotted", "slotted", "w"], "list": ["0.bias", "0.weight"],
        "network": ["heads.0.bias", "heads.0.weight", "table.anchors.0"], "devices": ["cuda", "cuda:0", "cuda:1"],
        "types": ["(builtins.frozenset 2)", "('float32', 1)", "9223372036854775808", "torch.float32"],
    }  # fmt: skip
    for protocol in (2, 4, 5):
        path = saved(held, tmp_path / "m.pt", pickle_protocol=protocol)
        assert sorted(qfmt.convert(path).tensors) == sorted(f"{a}.{b}" for a, names in expected.items() for b in names)


@pytest.mark.parametrize("protocol", [2, 4])
def test_numbers_of_numpy(protocol: int, tmp_path: Path) -> None:
    """torch takes them where it takes numbers: for channels that NumPy computed, for example."""
    path = tmp_path / "m.pt"
    for network, numbers in (
        (nn.MaxPool2d(2, 1, 1), nn.MaxPool2d(np.int64(2), np.uint8(1), np.int16(1))),
        (nn.LeakyReLU(0.5), nn.LeakyReLU(np.float32(0.5))),  # type: ignore[arg-type]
        (nn.Hardtanh(0.1, 3), nn.Hardtanh(np.float64(0.1), np.float16(3))),  # type: ignore[arg-type]
        (nn.Flatten(-2), nn.Flatten(np.dtype(">i4").type(-2))),
    ):
        expected = qfmt.convert(saved(network, path)).content_id()
        assert qfmt.convert(saved(numbers, path, pickle_protocol=protocol)).content_id() == expected
    beside = {
        "model": nn.ReLU(),
        "best": np.float32(3),
        "name": np.str_("a"),
        "at": np.datetime64("2026"),
        "ok": np.True_,
    }
    assert not qfmt.convert(saved(beside, path, pickle_protocol=protocol)).no_graph


def test_a_list_of_state_dicts_or_modules(tmp_path: Path) -> None:
    state, network = nn.Linear(2, 1).state_dict(), quantized_chain()
    assert sorted(qfmt.convert(saved((state, {"lr": 0.1}, 3), tmp_path / "m.pt")).tensors) == ["bias", "weight"]
    two = qfmt.convert(saved([state, Settings(w=torch.ones(1))], tmp_path / "m.pt"))
    assert sorted(two.tensors) == ["0.bias", "0.weight", "1.w"]
    alone = qfmt.convert(saved(network, tmp_path / "alone.pt"))
    assert qfmt.convert(saved((network, 3), tmp_path / "m.pt")).content_id() == alone.content_id()


def rebuilt_elsewhere(storage: Any, *_: Any) -> torch.Tensor:
    return torch.ones(2)


class Elsewhere:
    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt_elsewhere, torch.ones(2).__reduce_ex__(2)[1]


def test_tensors_that_unknown_functions_create_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"w: not supported: a tensor that .*test_checkpoints\.rebuilt_elsewhere creates"
    ):
        qfmt.convert(saved({"v": torch.ones(1), "w": Elsewhere()}, tmp_path / "m.pt"))


class OldSubclass:
    """A tensor of a subclass, as PyTorch 1.7 to 1.9 pickled it; fastai has such tensors."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = torch.ones(2).__reduce_ex__(2)
        return torch._tensor._rebuild_from_type, (rebuild, torch.Tensor, arguments, {})


def test_tensors_of_subclasses_of_old_versions(tmp_path: Path) -> None:
    assert sorted(qfmt.convert(saved({"v": torch.ones(1), "w": OldSubclass()}, tmp_path / "m.pt")).tensors) == [
        "v",
        "w",
    ]


class OldTensor:
    """A tensor as PyTorch 0.1 pickled it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.FloatTensor, (), (torch.arange(9.0).storage(), 1, (2, 2), (4, 1))


@FORMS
def test_storages_that_no_tensor_has_are_kept(form: dict[str, bool], tmp_path: Path) -> None:
    held = {
        "floats": torch.arange(3.0).storage(),
        "bytes": torch.arange(3, dtype=torch.int8).untyped_storage(),
        "list": [torch.arange(2.0).half().storage()],
        "old": OldTensor(),
    }
    assert len(qfmt.convert(saved({"floats": held["floats"]}, tmp_path / "m.pt", **form)).tensors) == 1
    model = qfmt.convert(saved({"weight": torch.ones(2), **held}, tmp_path / "m.pt", **form))
    found = {name: tensor.array for name, tensor in model.tensors.items() if name != "weight"}
    assert {name: (str(array.dtype), array.tolist()) for name, array in found.items()} == {
        "floats": ("float32", [0, 1, 2]),
        "bytes": ("uint8", [0, 1, 2]),
        "list.0": ("float16", [0, 1]),
        "old": ("float32", [[1, 2], [5, 6]]),
    }


@FORMS
def test_one_storage_as_bytes_and_as_another_type_of_8_bits(form: dict[str, bool], tmp_path: Path) -> None:
    whole = torch.arange(4, dtype=torch.uint8)
    for state in ({"a": whole, "b": whole.view(torch.float8_e4m3fn)}, {"b": whole.view(torch.float8_e5m2), "a": whole}):
        model = qfmt.convert(saved(state, tmp_path / "m.pt", **form))
        assert {name: tensor.array.view("uint8").tolist() for name, tensor in model.tensors.items()} == {
            "a": [0, 1, 2, 3],
            "b": [0, 1, 2, 3],
        }


@FORMS
def test_elements_of_4_bits(form: dict[str, bool], tmp_path: Path) -> None:
    """A tensor of torch has pairs of them."""
    pairs = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    model = qfmt.convert(saved({"all": pairs, "row": pairs[1:], "column": pairs[:, :1]}, tmp_path / "m.pt", **form))
    assert {name: tensor.array.astype("float32").tolist() for name, tensor in model.tensors.items()} == {
        "all": [[0.5, 1, 1.5, 2], [3, 4, 6, -0.0]],
        "row": [[3, 4, 6, -0.0]],
        "column": [[0.5, 1], [3, 4]],
    }
    save_file({"all": pairs, "w": torch.ones(1)}, tmp_path / "m.safetensors")
    found = qfmt.convert(tmp_path / "m.safetensors").tensors["all"]
    assert found.array.tobytes() == model.tensors["all"].array.tobytes()
    with pytest.raises(SourceError, match=r"transposed tensor of 4-bit elements; save tensor\.contiguous\(\)"):
        qfmt.convert(saved({"w": pairs.t()}, tmp_path / "m.pt", **form))


@FORMS
def test_modules_of_old_versions(form: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of PyTorch 0.3, and convolutions of 1.0."""

    def reduced(self: nn.Parameter, protocol: int) -> tuple[Any, ...]:
        return nn.Parameter, (self.data,), (self.requires_grad, False, OrderedDict())

    monkeypatch.setattr(nn.Parameter, "__reduce_ex__", reduced)
    convolution, x = nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5)
    del convolution.__dict__["padding_mode"], convolution.__dict__["_reversed_padding_repeated_twice"]
    path = saved(nn.Sequential(convolution, nn.ReLU()).eval(), tmp_path / "m.pt", **form)
    monkeypatch.undo()
    model = qfmt.convert(path)
    assert {"0.weight", "0.bias"} < set(model.tensors)
    expected = torch.load(path, weights_only=False)(x).detach().numpy()
    np.testing.assert_allclose(model.run({"input": x.numpy()})["1"], expected, rtol=1e-5, atol=1e-6)


def test_tensors_in_a_long_chain_of_objects_are_kept(tmp_path: Path) -> None:
    chain: Any = [torch.ones(1)]
    for _ in range(100):
        chain = SimpleNamespace(next=[chain])
    (name,) = qfmt.convert(saved({"chain": chain, "epoch": 1}, tmp_path / "m.pt")).tensors
    assert name == "chain." + "next.0." * 100 + "0"


class Key(str):
    """A text as parsers of settings have it."""


@pytest.mark.parametrize("protocol", [2, 4])
@FORMS
def test_keys_that_are_other_texts(form: dict[str, bool], protocol: int, tmp_path: Path) -> None:
    latin = os.fsdecode(b"caf\xe9")
    spelled = "caf\\xed\\xb3\\xa9"
    given = {"pickle_protocol": protocol, **form}
    for key, name in {
        b"fc.weight": "fc.weight", Key("fc.weight"): "fc.weight", np.str_("fc.weight"): "fc.weight",
        Path("a/b"): "a/b", latin: spelled, b"\xe9": "\\xe9",
    }.items():  # fmt: skip
        model = qfmt.convert(saved({key: torch.ones(2), "data": latin}, tmp_path / "m.pt", **given))
        assert list(model.tensors) == [name]
        assert qfmt.convert(saved({"x": {key: torch.ones(2)}}, tmp_path / "m.pt", **given)).tensors[name].aliases
    with pytest.raises(SourceError, match="two with the same name"):
        qfmt.convert(saved({latin: torch.ones(2), spelled: torch.zeros(2)}, tmp_path / "m.pt", **given))


class Slots(dict):
    __slots__ = ("__dict__", "slotted")


def test_state_dicts_of_a_subclass_with_slots(tmp_path: Path) -> None:
    """An attribute may have the name of an item."""
    state = Slots(w=torch.ones(1), state=torch.ones(2))
    state.slotted, state.w = torch.ones(3), torch.ones(4)  # type: ignore[attr-defined]
    for outer in (state, {"state_dict": state}):
        tensors = qfmt.convert(saved(outer, tmp_path / "m.pt")).tensors
        assert {name: tensor.shape for name, tensor in tensors.items()} == {
            "w": (1,), "state": (2,), "slotted": (3,), "state.w": (4,),
        }  # fmt: skip


def test_tensors_that_are_keys_only(tmp_path: Path) -> None:
    (name,) = qfmt.convert(saved({"a": {torch.ones(1): 1}}, tmp_path / "m.pt")).tensors
    assert name == "(StoredTensor 0).key"


def test_containers_that_contain_themselves(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.ones(1), "list": []}
    state["again"] = state
    state["list"] += [state, torch.ones(2), state["list"]]
    assert sorted(qfmt.convert(saved(state, tmp_path / "m.pt")).tensors) == ["list.1", "w"]


class Attributes(dict):
    """Its items are its attributes, too."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


def test_state_dicts_of_a_subclass_with_attributes(tmp_path: Path) -> None:
    state = Settings(w=torch.ones(1))
    state._metadata, state.ema = {"version": 1}, torch.zeros(2)  # type: ignore[attr-defined]
    for outer in (state, {"state_dict": state}):
        assert sorted(qfmt.convert(saved(outer, tmp_path / "m.pt")).tensors) == ["ema", "w"]
    attributes = Attributes(w=torch.ones(1))
    for outer in (attributes, {"model": attributes}):
        assert sorted(qfmt.convert(saved(outer, tmp_path / "m.pt")).tensors) == ["w"]


def test_modules_whose_parts_are_in_a_subclass_of_dict(tmp_path: Path) -> None:
    network = quantized_chain()
    alone = qfmt.convert(saved(network, tmp_path / "alone.pt"))
    network._modules = Settings(network._modules)
    assert qfmt.convert(saved(network, tmp_path / "m.pt")).content_id() == alone.content_id()
    network._modules = [*network._modules.items()]  # type: ignore[assignment]
    with pytest.raises(SourceError, match="the parameters, buffers and modules of a module are not dicts"):
        qfmt.convert(saved(network, tmp_path / "m.pt"))


def test_modules_and_other_tensors_are_all_kept(tmp_path: Path) -> None:
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
    """See the forum thread "the packing format of quantized parameters after jitting"."""
    with pytorch.quiet():
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
def test_scales_that_count_as_the_quantization_of_a_module(
    state: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    model = qfmt.convert(saved(state, tmp_path / "m.pt"))
    assert sorted(model.tensors) == names
    if names == ["m"]:
        tensor = model.tensors["m"]
        assert tensor.shape is None and tensor.data is None and tensor.quantization is not None
        assert tensor.dtype == ("int8" if tensor.quantization.zero_point[0] < 0 else "uint8")
        assert model.graph.find("m.scale") is tensor


def test_files_without_a_network_are_refused(tmp_path: Path) -> None:
    for value in (torch.ones(2), [torch.ones(2)]):
        with pytest.raises(SourceError, match="tensors or other plain data"):
            qfmt.convert(saved(value, tmp_path / "m.pt"))
    for value in ("text", {"a": 1}, {"a": {}}, [{"lr": 0.1}], np.ones(3)):
        with pytest.raises(SourceError, match=r"is a torch\.save file without tensors"):
            qfmt.convert(saved(value, tmp_path / "m.pt"))
    with pytest.raises(SourceError, match="z: a tensor of complex64 cannot be stored"):
        qfmt.convert(saved({"z": torch.ones(1, dtype=torch.complex64)}, tmp_path / "m.pt"))


# -- messages ---------------------------------------------------------------------------------------------


def test_a_missing_graph_is_explained_in_one_sentence(tmp_path: Path) -> None:
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
