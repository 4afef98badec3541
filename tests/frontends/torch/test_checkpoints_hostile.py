"""Damaged and malicious torch.save files cause one error, and nothing is executed."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import qfmt
from frontends.torch.test_pickled_modules import GraphLike, Twice, fx_file
from qfmt.budget import Budget
from qfmt.cli import main
from qfmt.errors import BudgetError, QfmtError, SourceError, UnsafePickleError, ValidityError
from qfmt.frontends.content import root_of
from qfmt.frontends.harmless import Inert, harmless_or_inert
from qfmt.frontends.options import Options
from qfmt.frontends.pickles import unpickle
from qfmt.frontends.stored import Storage, StoredTensor
from qfmt.frontends.torch.saved.file import Saved
from qfmt.frontends.torch.saved.source import convert_saved
from qfmt.frontends.zips import Zip
from support.examples import examples
from support.pickles import Runs, text
from support.saved import FORMS, LEGACY, quantized_chain, saved

pytestmark = pytest.mark.usefixtures("fbgemm")


class Attack(nn.Module):
    """A module whose pickle calls os.system."""

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


ATTACKS = (
    "_io open", "_posixsubprocess fork_exec", "_types FunctionType", "commands getoutput", "distutils.spawn spawn",
    "imp load_source", "os startfile", "pipes Template", "platform popen", "signal raise_signal", "socket socket",
)  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_what_only_an_attack_needs_is_refused(name: str) -> None:
    """On every version of Python, also if it lacks the module."""
    module, attribute = name.split()
    assert harmless_or_inert(module, attribute) is None


def test_the_marker_would_appear_if_the_pickle_ran(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = saved({"x": Runs(f"touch {marker}")}, tmp_path / "m.pt")
    torch.load(path, weights_only=False)
    assert marker.exists()


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
    """Numbers whose length doubles with each line, and modules that call one another twice."""
    squares = "\n".join(["def forward(self, x):", "    a = 9"] + ["    a = a * a"] * 60 + ["    return x * a"])
    assert "the result of aten::mul exceeds 64 bits" in qfmt.convert(fx_file(tmp_path / "m.pt", squares)).no_graph
    lines = "def forward(self, x):\n    return x" + "\\\n.a" * 150_000
    assert "which PyTorch does not print" in qfmt.convert(fx_file(tmp_path / "m.pt", lines)).no_graph
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
    source = saved(quantized_chain(), tmp_path / "chain.pt")
    with pytest.raises(SourceError, match=r"m\.pt: it is nested too deeply"):
        qfmt.convert(source, prepared=path)


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.called


@pytest.mark.parametrize("state", [{"data": torch.zeros(2)}, (None, {"data": torch.zeros(2)})])
def test_attributes_that_replace_the_elements_of_a_tensor(state: Any, tmp_path: Path) -> None:
    """torch assigns them."""
    rebuild, arguments = torch.ones(2).__reduce_ex__(2)
    subclass = Call(torch._tensor._rebuild_from_type_v2, rebuild, torch.Tensor, arguments, state)
    parameter = Call(torch._utils._rebuild_parameter_with_state, torch.ones(2), False, {}, state)
    for tensor in (subclass, parameter):
        path = saved({"w": tensor}, tmp_path / "m.pt")
        assert not torch.load(path, weights_only=False)["w"].any()
        with pytest.raises(SourceError, match="an attribute of a tensor replaces its elements"):
            qfmt.convert(path)
    kept = Call(torch._utils._rebuild_parameter_with_state, torch.ones(2), False, {}, {"index": 3})
    assert [*qfmt.convert(saved({"w": kept}, tmp_path / "m.pt")).tensors] == ["w"]


def legacy(path: Path, pickled: bytes) -> Path:
    head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    path.write_bytes(b"".join([*head, pickled, pickle.dumps([], 2)]))
    return path


def test_a_class_that_is_a_part_of_a_module_is_no_other_class(tmp_path: Path) -> None:
    """torch.nn.modules.module imports torch, and so all of its classes."""
    made = b"\x80\x04" + text("torch.nn.modules.module") + text("torch.ao.nn.qat.ReLU") + b"\x93)\x81"
    made += pickle.dumps(vars(nn.ReLU()), 2)[2:-1] + b"b."
    with pytest.raises(SourceError, match=r"the code of torch\.nn\.modules\.module:torch\.ao\.nn\.qat\.ReLU is not"):
        qfmt.convert(legacy(tmp_path / "m.pt", made))


def test_a_state_that_changes_after_its_object_copied_it(tmp_path: Path) -> None:
    change = b"h\x02" + text("negative_slope") + b"G" + struct.pack(">d", 0.9) + b"s0"
    made = pickle.dumps(nn.LeakyReLU(0.5), 2)[:-1] + change + b"."
    assert pickle.loads(made).negative_slope == 0.5
    with pytest.raises(SourceError, match="a state changes after an object copied it"):
        qfmt.convert(legacy(tmp_path / "m.pt", made))


class Made:
    """What a pickle makes by the parts of a `__reduce__`."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


def other_elements() -> dict[str, Made]:
    """Tensors of zeros whose states have torch read ones."""
    zeros, ones = torch.zeros(4), torch.ones(4)
    data, hooks = Counter({"data": ones}), OrderedDict[str, Any]()
    rebuild, arguments = zeros.__reduce_ex__(2)
    return {
        "of a parameter": Made(torch._utils._rebuild_parameter_with_state, (zeros, True, hooks, data)),
        "of a type": Made(torch._tensor._rebuild_from_type_v2, (rebuild, torch.nn.Parameter, arguments, data)),
        "of BUILD": Made(rebuild, arguments, (ones.storage(), 0, (4,))),
        "of BUILD, as of old": Made(rebuild, arguments, (ones.storage(), 0, (4,), (1,))),
    }


@FORMS
@pytest.mark.parametrize("kind", other_elements())
def test_states_that_replace_the_elements_of_a_tensor(kind: str, form: dict[str, bool], tmp_path: Path) -> None:
    path = saved({"w": other_elements()[kind]}, tmp_path / "m.pt", **form)
    with pytest.raises(SourceError, match=r"replaces its elements|gets a state, but supports none"):
        qfmt.convert(path)


def test_the_state_of_a_subclass_that_changes_later() -> None:
    """torch has its attributes set by then; and a Counter has copied its dict."""
    wrapper = b"ctorch._utils\n_rebuild_wrapper_subclass\n"
    arguments = b"(cx\nT\nctorch\nfloat32\n)t"
    subclass = b"ctorch._tensor\n_rebuild_from_type_v2\n(" + wrapper + b"cx\nT\n" + arguments + b"}q\x00tR0h\x00"
    for made in (subclass, b"ccollections\nCounter\n(}q\x00tR0h\x00"):
        data = b"\x80\x02" + made + text("a") + b"K\x01s."
        with pytest.raises(SourceError, match="a state changes after an object copied it"):
            unpickle(data, lambda key, dtype: None, find_global=harmless_or_inert)  # type: ignore[arg-type,return-value]


def test_what_is_memoized_after_a_gap_has_the_number_of_all_before() -> None:
    data = b"\x80\x02(K\x07q\x01K\x08\x94h\x01l."
    assert unpickle(data, lambda key, dtype: None) == pickle.loads(data) == [7, 8, 8]  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("item", [b"Na", b"K\x00Ns"])
def test_modules_with_items_are_refused(item: bytes, tmp_path: Path) -> None:
    """nn.Sequential would append them."""
    with pytest.raises(SourceError, match="a state that modules do not have"):
        qfmt.convert(legacy(tmp_path / "m.pt", pickle.dumps(nn.Sequential(nn.ReLU()), 2)[:-1] + item + b"."))


def test_a_version_that_is_a_dict(tmp_path: Path) -> None:
    """Not written out: a dict in which dicts share dicts is exponentially longer as text."""
    path = tmp_path / "m.pt"
    path.write_bytes(b"".join(pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, {0: ()}, {}, {}, [])))
    with pytest.raises(SourceError, match="has version dict of the format without zip"):
        qfmt.convert(path)


@pytest.mark.parametrize("name", ["rnn.CellParamsBase", "xnnpack.LinearOpContext"])
def test_a_long_name_of_a_packed_object_with_many_tensors(name: str) -> None:
    packed = Inert("torch.ScriptObject", ())
    tensor = StoredTensor.of([1.0], "float64")
    packed.state = (tensor,) * 10_000, f"__torch__.torch.classes.{name}"
    with pytest.raises(BudgetError):
        convert_saved(Saved({"a" * 50_000: packed}, "3", Budget(60_000)), Options(None), {})


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


@examples(50)
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
    assert b"A Sequential with another `forward`." in path.read_bytes()
    assert "Twice is not in the file" in qfmt.convert(path).no_graph, "for a module's source may have changed"


@FORMS
def test_negated_elements_are_refused(form: dict[str, bool], tmp_path: Path) -> None:
    """The file has the elements before they are negated; the pickle says that they are."""
    negated = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert negated.tolist() == [-1, -1]
    with pytest.raises(SourceError, match="negates or conjugates the elements that it has in the file"):
        qfmt.convert(saved({"w": negated}, tmp_path / "m.pt", **form))
    model = qfmt.convert(saved({"w": negated.resolve_neg()}, tmp_path / "m.pt", **form))
    assert model.tensors["w"].array.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.eye(3).to_sparse(), r"w: not supported: a sparse tensor; save a dense tensor"),
        (lambda: torch.empty(3, device="meta"), r"w: not supported: a meta tensor no storage; save a dense tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "w: not supported: a nested tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_dense_elements_are_not_left_out(
    make: Callable[[], torch.Tensor], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=said):
        qfmt.convert(saved({"w": make(), "b": torch.ones(2)}, tmp_path / "m.pt"))


def test_a_storage_within_another_is_refused() -> None:
    """As PyTorch before 0.2 wrote it: with the offset and the size of the part."""

    def stored(view: bytes) -> Any:
        parts = text("storage"), b"ctorch\nFloatStorage\n", text("0"), text("cpu"), b"K\x02", view
        data = b"\x80\x02(" + b"".join(parts) + b"tQ."
        return unpickle(
            data, lambda key, dtype: Storage(key, dtype, lambda: memoryview(b"")), find_global=harmless_or_inert
        )

    assert isinstance(stored(b"N"), Storage)
    with pytest.raises(SourceError, match="an external object that is not a storage"):
        stored(text("1") + b"K\x01K\x01\x87")


def test_strings_of_python_2_are_read(tmp_path: Path) -> None:
    data = b"\x80\x02}q\x00(U\x01aX\x01\x00\x00\x00bu."
    assert unpickle(data, lambda key, dtype: None) == pickle.loads(data) == {"a": "b"}  # type: ignore[arg-type,return-value]


def test_names_that_differ_in_damaged_characters_only(tmp_path: Path) -> None:
    """Two names must not become one."""
    keys = [b"X\x03\x00\x00\x00\xed\xa0" + last for last in (b"\x80", b"\x81")]
    escaped = b"X\x0c\x00\x00\x00\\xed\\xa0\\x80"
    both = b"\x80\x02}(" + keys[0] + b"K\x01" + keys[1] + b"K\x02" + escaped + b"K\x03u."
    found = unpickle(both, lambda key, dtype: None)  # type: ignore[arg-type,return-value]
    assert {str(key): value for key, value in found.items()} == {"\\xed\\xa0\\x80": 3, "\\xed\\xa0\\x81": 2}
    assert list(found.values()) == [1, 2, 3]
    with pytest.raises(SourceError, match="the pickle is invalid here"):
        unpickle(b"\x80\x02X\x01\x00\x00\x00\xff.", lambda key, dtype: None)  # type: ignore[arg-type,return-value]
    old = unpickle(b"\x80\x02}(U\x01\xffK\x01U\x01\xfeK\x02u.", lambda key, dtype: None)  # type: ignore[arg-type,return-value]
    assert old == {"\\xff": 1, "\\xfe": 2}


def test_pickled_modules_that_shrink(tmp_path: Path) -> None:
    network, x = torch.nn.Sequential(torch.nn.Softshrink(0.2), torch.nn.Hardshrink(0.3)), torch.linspace(-1, 1, 41)
    x[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])  # NaN stays, unlike in ONNX's Shrink
    torch.save(network, tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    (result,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    assert result.tobytes() == network(x).numpy().tobytes()


@pytest.mark.parametrize(("name", "shape", "rule"), [("a\0b", [0], "V5"), ("a", [2**40, 0, 2**40], "V3")])
def test_tensors_that_no_file_may_have_are_refused_when_they_are_read(
    name: str, shape: list[int], rule: str, tmp_path: Path
) -> None:
    """Not only when they are written: `inspect`, `diff` and `view` convert in memory."""
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValidityError, match=rf"m\.safetensors: breaks rule {rule} "):
        qfmt.convert(path)
