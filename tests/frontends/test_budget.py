"""Limits on the cost of a conversion: bombs are refused in one line, and the work of normal sources grows
linearly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.budget import Budget
from qfmt.errors import BudgetError, SourceError
from qfmt.frontends import stored
from qfmt.frontends.harmless import Inert, safe_key
from qfmt.frontends.json_text import parse
from qfmt.frontends.pickles import unpickle
from qfmt.frontends.stored import Storage, StoredTensor
from qfmt.frontends.torch.torchscript.folding import on_values
from qfmt.frontends.zips import Zip
from qfmt.model import unpack
from qfmt.ops import OPERATORS
from qfmt.passes.constants import unused
from qfmt.passes.lowering import lower_integer
from support.paths import HOSTILE
from support.pickles import text

REFUSED = {
    "code_relus.pt": "would take more than",
    "relus20000.pt": "would take more than",
    "tuplekey8000.pt": "without tensors",
    "stride0.pt": "would take more than",
    "deflated_dicts.pt": "would take more than",
    "pt2_lists.pt2": "would take more than",
    "code_nobody.pt": "has no `forward`",
    "ts-dtype8.pt": "computes in the element type 8",
    "ts-nan-addend.pt": "with the scale nan",
    "ts-rebuild.pt": "other than a weight and a bias",
    "verify-segfault.pt": "computes in the element type -1",
    "verify-runtimeerror.pt": "do not all fit int32",
    "packed-lists.pt": "would take more than",
    "packed-flags.pt": "have an invalid geometry",
    "scale-complex.pt": "scales and zero points of a quantized tensor do not fit it",
    "scales-of-nothing.pt": "would take more than",
    "torchao-lists.pt": "would take more than",
    "zero-point-large.pt": "scales and zero points of a quantized tensor do not fit it",
}
CONVERTED = ("verify-executes-code.pt", "verify-setstate-unreachable.pt")

CHILD = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from qfmt.cli import main
main(prog_name="qfmt")
"""
"""The command line with a limit of 2 GiB and one minute: the bombs exceeded both."""

MEGABYTE = 1 << 20


def converted(source: Path, folder: Path) -> tuple[int, list[str], int]:
    """Status, lines of standard error, and peak memory in bytes of `qfmt convert` in a separate process."""
    command = [sys.executable, "-c", CHILD, "convert", str(source), str(folder / "out.qfb")]
    with (folder / "stderr").open("w+b") as errors:
        child = subprocess.Popen(command, stderr=errors, cwd=folder, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return child.returncode, errors.read().decode().splitlines(), usage.ru_maxrss * 1024


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The memory of the program without a conversion, in bytes."""
    status, lines, peak = converted(HOSTILE / CONVERTED[0], tmp_path_factory.mktemp("baseline"))
    assert status == 0, lines
    return peak


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, baseline: int, name: str) -> None:
    status, lines, peak = converted(HOSTILE / name, tmp_path)
    assert (status, len(lines)) == (2, 1), (status, lines)
    assert lines[0].startswith("qfmt: error: ") and REFUSED[name] in lines[0] and lines[0].isprintable(), lines
    assert not (tmp_path / "out.qfb").exists()
    assert peak - baseline < 10 * (HOSTILE / name).stat().st_size + 64 * MEGABYTE


@pytest.mark.parametrize("name", CONVERTED)
def test_hostile_code_that_is_not_part_of_the_network_is_not_run(tmp_path: Path, name: str) -> None:
    status, lines, _ = converted(HOSTILE / name, tmp_path)
    assert status == 0, lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.qfb", "stderr"]


# -- generated archives ------------------------------------------------------------------------------------


def zipped(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"m/{name}", content)
    return path


def script(path: Path, *body: str, functions: str = "") -> Path:
    """A TorchScript archive of one module, whose `forward` has this body."""
    lines = ["class M(Module):", "  def forward(self: __torch__.M,", "    x: Tensor) -> Tensor:"]
    code = functions + "\n".join([*lines, *(f"    {line}" for line in body), ""])
    module = b"\x80\x02c__torch__\nM\n)\x81}b."
    fixed = {"data.pkl": module, "constants.pkl": b"\x80\x02).", "version": b"3\n"}
    return zipped(path, fixed | {"code/__torch__.py": code.encode()})


def too_much(path: Path) -> None:
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(path)


def safetensors(path: Path, count: int, size: int = 0) -> Path:
    """A file of `count` tensors with `size` bytes each."""
    header = {
        f"t{index}": {"dtype": "U8", "shape": [size], "data_offsets": [index * size, (index + 1) * size]}
        for index in range(count)
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(count * size))
    return path


def test_more_tensors_than_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 empty tensors cost 3 kB each, and are counted first; the number of tensors with some hundred bytes is not
    limited."""
    with monkeypatch.context() as patch:
        patch.delattr("qfmt.frontends.torch.safetensors._described")
        too_much(safetensors(tmp_path / "empty.safetensors", 20_000))
    assert len(qfmt.convert(safetensors(tmp_path / "small.safetensors", 8_000, 300)).tensors) == 8_000


@pytest.mark.parametrize(
    "text", [b"[" * 1_000_000, b'{"a":' * 1_000_000, b"[" + b"{}," * 200_000 + b"{}]", b"[" + b"[]," * 300_000 + b"1]"]
)
def test_json_that_needs_much_memory(tmp_path: Path, text: bytes) -> None:
    """JSON is charged before it is parsed."""
    path = tmp_path / "m.safetensors"
    path.write_bytes((len(text) + 1).to_bytes(8, "little") + b"{" + text)
    with pytest.raises(SourceError, match=r"would take more than|cannot be read as JSON"):
        qfmt.convert(path)
    entries = {"archive_format": b"pt2", "models/model.json": text}
    with pytest.raises(SourceError, match=r"would take more than|is not valid JSON"):
        qfmt.convert(zipped(tmp_path / "m.pt2", entries))


def test_functions_that_double(tmp_path: Path) -> None:
    first = "def f0(x: Tensor) -> Tensor:\n  return torch.relu(x)\n\n"
    rest = (
        f"def f{i}(x: Tensor) -> Tensor:\n  return __torch__.f{i - 1}(__torch__.f{i - 1}(x))\n\n" for i in range(1, 50)
    )
    too_much(script(tmp_path / "m.pt", "return __torch__.f49(x)", functions=first + "".join(rest)))


def test_constants_that_are_folded(tmp_path: Path) -> None:
    """Each constant has 4 MB, which are not in the file."""
    body = ["y = torch.zeros([1024, 1024], dtype=6)", *["y = torch.add(y, y)"] * 40, "return torch.add(x, y)"]
    too_much(script(tmp_path / "m.pt", *body))


LONG = "a" * 1_000_000


@pytest.mark.parametrize(
    ("before", "read"),
    [
        ([f'd = {{"{LONG}": 1}}', f's = "{LONG}"'], "d[s]"),
        ([f"self.{LONG} = 1"], f"self.{LONG}"),
        ([], f'{{"{LONG}": 1, "{LONG}": 2}}'),
        ([f'l = [("{LONG}", 1), ("{LONG}", 2)]'], "torch.dict(l)"),
        ([f'd = {{"{LONG}": 1}}', f'e = {{"{LONG}": 2}}'], "torch.update(d, e)"),
    ],
    ids=["key", "attribute", "literal", "pairs", "dict"],
)
def test_long_names_that_are_looked_up(tmp_path: Path, before: list[str], read: str) -> None:
    """To find a text among others may be to compare all of its characters."""
    loop = ["for i in range(300000):", f"  y = {read}"]
    too_much(script(tmp_path / "m.pt", *before, *loop, "return x"))


def test_letters_to_strip_are_few() -> None:
    """Python compares each letter of a text with each that is stripped."""

    class Watched(str):
        __slots__ = ()

        def strip(self, letters: str | None = None) -> str:
            stripped.append(letters)
            return super().strip(letters)

    stripped: list[str | None] = []
    assert on_values["aten::strip"](Watched("  abcba "), " a" * 1000) == "bcb"
    assert on_values["aten::strip"](Watched(" a ")) == "a" and stripped == [" a", None]


def test_a_class_has_one_name(tmp_path: Path) -> None:
    """Each of two names for one file could make it a class of its own."""
    code = b"class M(Module):\n  def forward(self: __torch__.a.b.M,\n    x: Tensor) -> Tensor:\n    return x\n"
    files = {"constants.pkl": b"\x80\x02).", "version": b"3\n", "code/__torch__/a/b.py": code}
    for name in (b"__torch__.a.b", b"__torch__.a/b"):
        path = zipped(tmp_path / "m.pt", {"data.pkl": b"\x80\x02c" + name + b"\nM\n)\x81}b.", **files})
        if b"/" not in name:
            assert qfmt.convert(path).graph.outputs
            continue
        with pytest.raises(SourceError, match=r"lacks the class __torch__\.a/b\.M"):
            qfmt.convert(path)


def test_a_tensor_has_few_names() -> None:
    tensor = StoredTensor.of([1.0], "float64")
    for index in range(100):
        tensor.add_name(f"t{index}")
        tensor.add_name("t0")
    assert tensor.names == [f"t{index}" for index in range(64)]


def test_fake_quantizers_that_share_a_weight(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight, one = torch.zeros(1 << 20), torch.ones(1, dtype=torch.int64)
    shared: dict[str, Any] = {}
    for index in range(100):
        top, inner = torch.tensor([127.5 * (index + 1)]), "activation_post_process"
        own = {"fake_quant_enabled": one.to(torch.uint8), "scale": torch.tensor([index + 1.0]), "zero_point": 0 * one}
        own |= {f"{inner}.min_val": -top, f"{inner}.max_val": top}
        shared |= {f"{index}.weight_fake_quant.{name}": value for name, value in own.items()}
        shared[f"{index}.weight"] = weight
    torch.save(shared, tmp_path / "m.pt")
    too_much(tmp_path / "m.pt")


def test_fake_quantizers_that_share_a_histogram(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    one, inner = torch.ones(1, dtype=torch.uint8), "activation_post_process"
    shared = {"fake_quant_enabled": one, "scale": torch.tensor([1.0]), "zero_point": torch.zeros(1, dtype=torch.int64)}
    shared |= {
        f"{inner}.min_val": -one.float(),
        f"{inner}.max_val": one.float(),
        f"{inner}.histogram": torch.zeros(1 << 14),
    }
    state = {f"{at}.activation_post_process.{name}": value for at in range(300) for name, value in shared.items()}
    torch.save(state, tmp_path / "m.pt")
    too_much(tmp_path / "m.pt")


@pytest.mark.parametrize(
    "call",
    [
        "torch.layer_norm(x, [1099511627776])",
        "torch.layer_norm(x, [4194304, 4])",
        "torch.group_norm(torch.reshape(x, [1, 10000000, 1, 1]), 1)",
        "torch.instance_norm(torch.reshape(x, [1, 10000000, 1, 1]), None, None, None, None, True, 0.1, 1e-05, True)",
    ],
)
def test_weights_of_normalizations_that_have_none(tmp_path: Path, call: str) -> None:
    with pytest.raises(SourceError, match=r"would take more than|at most 16777216 elements"):
        qfmt.convert(script(tmp_path / "m.pt", f"return {call}"))


@pytest.mark.parametrize(
    "call", ["torch.split(y, 1, 0)", "torch.chunk(y, 1099511627776, 0)", "ops.prim.ListUnpack(z, 1099511627776)"]
)
def test_lists_that_a_call_returns(tmp_path: Path, call: str) -> None:
    body = ["y = torch.reshape(x, [1099511627776])", "z = torch.is_nothing(x)", f"return torch.cat({call})"]
    too_much(script(tmp_path / "m.pt", *body))


def test_packed_parameters_with_lists_that_double(tmp_path: Path) -> None:
    """The state of a class that is not known, in a module without a graph."""
    state = b"]q\x000" + b"".join(b"](h%ch%ceq%c0" % (i, i, i + 1) for i in range(40)) + b"h\x28"
    packed = b"c__torch__.torch.classes.rnn\nCellParamsBase\n)\x81(" + text("x") + state + b"tb"
    path = script(tmp_path / "m.pt", "if torch.gt(torch.sum(x), 0):", "  return x", "return torch.neg(x)")
    with zipfile.ZipFile(path) as archive:
        entries = {name.removeprefix("m/"): archive.read(name) for name in archive.namelist()}
    module = b"\x80\x02c__torch__\nM\n)\x81}" + text("p") + packed + b"sb."
    too_much(zipped(path, entries | {"data.pkl": module}))


def rebuilt(kind: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], key: str = "0") -> bytes:
    """Opcodes of a tensor in a storage."""
    numbers = [b"(" + b"".join(b"J" + each.to_bytes(4, "little") for each in part) + b"t" for part in (shape, strides)]
    storage = b"(" + text("storage") + f"ctorch\n{kind}Storage\n".encode() + text(key) + text("cpu") + b"K\x04tQ"
    where = storage + b"J" + offset.to_bytes(4, "little") + b"".join(numbers)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + where + b"\x89NtR"


def test_constants_that_many_calls_read(tmp_path: Path) -> None:
    """Each call may read the elements of a tensor, to infer a shape."""
    calls = ["w = self.w", *["y = torch.index_select(x, 0, w)"] * 1000, "return y"]
    path = script(tmp_path / "m.pt", *calls)
    with zipfile.ZipFile(path) as archive:
        entries = {name.removeprefix("m/"): archive.read(name) for name in archive.namelist()}
    tensor = text("w") + rebuilt("Long", 0, (60_000,), (2,))
    module = b"\x80\x02c__torch__\nM\n)\x81}" + tensor + b"sb."
    too_much(zipped(path, entries | {"data.pkl": module, "data/0": bytes(960_000)}))


def test_a_weight_of_many_names_and_parts(tmp_path: Path) -> None:
    """A tensor subclass is examined for each of its names; its state may have any number of entries."""
    parts = text("qdata") + rebuilt("Char", 0, (2, 4), (4, 1)) + text("block_size") + b"K\x01K\x04\x86"
    parts += text("scale") + rebuilt("Float", 0, (2, 1), (1, 1), "1") + b"q\x00"
    parts += b"".join(text(f"e{index}") + b"h\x00" for index in range(2000))
    made = b"ctorch._utils\n_rebuild_wrapper_subclass\n(ctorchao\nInt8Tensor\nctorch\nfloat32\nK\x02K\x04\x86t"
    outer, kind = made[: made.index(b"(")], b"ctorchao\nInt8Tensor\n"
    weight = b"ctorch._tensor\n_rebuild_from_type_v2\n(" + outer + kind + made[made.index(b"(") :] + b"}(" + parts
    names = b"".join(text(f"w{index}") + b"h\x01" for index in range(3000))
    path = pickled(tmp_path / "m.pt", b"}(" + text("w") + weight + b"utRq\x01" + names + b"u")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("m/data/0", bytes(8))
        archive.writestr("m/data/1", bytes((0, 0, 128, 63) * 2))
    too_much(path)


def test_narrow_elements_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of 4 bits are unpacked with all between them, but without those before."""
    tensors = b"".join(text(f"t{index}") + rebuilt("QUInt4x2", 0, (2,), (3_999_999,)) for index in range(50))
    path = pickled(tmp_path / "m.pt", b"}(" + tensors + b"u")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("m/data/0", bytes(2_000_000))
    too_much(path)
    unpacked = []
    monkeypatch.setattr(stored, "unpack", lambda raw, *rest: unpacked.append(len(raw)) or unpack(raw, *rest))
    storage = Storage("0", "uint4", lambda: memoryview(bytes(1_999_999) + b"\x50"))
    assert storage.tensor((), (), 3_999_999).item() == 5 and unpacked == [4]


def test_arguments_with_many_shared_lists(tmp_path: Path) -> None:
    """There are few lists, but many paths through them."""
    body = ["l = [x]", *["l = [l, l]"] * 40, "return torch.cat(l)"]
    too_much(script(tmp_path / "m.pt", *body))


def test_products_of_constants(tmp_path: Path) -> None:
    body = ["y = torch.zeros([1500, 1500], dtype=6)", "return torch.add(x, torch.matmul(y, y))"]
    too_much(script(tmp_path / "m.pt", *body))


@pytest.mark.parametrize("size", [120_000_000, -60_000_000])
def test_windows(size: int, tmp_path: Path) -> None:
    path = script(tmp_path / "m.pt", f"return torch.unfold(x, 1, {size}, 1)")
    with pytest.raises(SourceError, match=f"takes windows of {size} elements"):
        qfmt.convert(path, input_shapes={"x": (1, 8)})


def test_windows_of_many_elements(tmp_path: Path) -> None:
    too_much(script(tmp_path / "m.pt", "y = torch.zeros([20000], dtype=6)", "return torch.unfold(y, 0, 10000, 1)"))


def test_identities(tmp_path: Path) -> None:
    body = ["for i in range(40):", "  x = torch.add(x, torch.eye(1000, 1000, dtype=7))", "return x"]
    too_much(script(tmp_path / "m.pt", *body))


@given(*(st.integers(1, 300) for _ in range(4)))
def test_the_work_of_products(t: int, m: int, k: int, n: int) -> None:
    """A large constant of small rows is no large product: ConViT has such ones."""
    for read, written in (((m * k, k * n), m * n), ((t * m * k, k * n), t * m * n)):
        for name in "MatMul", "qfmt.Linear", "Gemm":
            assert 0 <= OPERATORS[name].work(read, [written]) - written * k <= sum(read) + written
    assert OPERATORS["MatMul"].work([t * m * k, t * k * n], [t * m * n]) >= t * m * n * k


def test_literals_of_lists(tmp_path: Path) -> None:
    too_much(script(tmp_path / "m.pt", "l = [x]", "while True:", "  l = [l, l, l, l]", "return x"))


def test_json_of_brackets(tmp_path: Path) -> None:
    """Three bytes of JSON become seventy bytes of lists."""
    program = b'{"a":[' + b"[]," * 700_000 + b"[]]}"
    too_much(zipped(tmp_path / "m.pt2", {"archive_format": b"pt2", "models/model.json": program}))


def pickled(path: Path, opcodes: bytes) -> Path:
    return zipped(path, {"data.pkl": b"\x80\x02" + opcodes + b".", "version": b"3\n"})


def binary(value: str) -> bytes:
    return b"B" + len(value).to_bytes(4, "little") + value.encode()


def place(more: bytes, key: str) -> bytes:
    """Opcodes that put a storage on the stack, with its place in the memo."""
    kind = text("storage") + b"ctorch\nFloatStorage\n"
    return b"(" + kind + text(key) + text("cpu") + b"K\x04" + more + b"tq\x00Q"


GROWING = {
    "dicts": b"(" + b"}" * 3_000_000 + b"l",
    "copies of a list": b"(" + b"K\x01" * 1000 + b"lq\x000" + b"ctorch\nSize\nq\x010" + b"h\x01h\x00\x85R" * 20_000,
    "a key": b"}" + text(LONG) + b"q\x00K\x01s" + text(LONG) + b"q\x010" + b"h\x01K\x01s" * 300_000,
    "a key of bytes": b"}" + binary(LONG) + b"q\x00K\x01s" + binary(LONG) + b"q\x010(" + b"h\x01K\x01" * 300_000 + b"u",
    "the place of a storage": place(b"N" * 100_000, "0") + b"h\x00Q0" * 5000,
    "the name of a storage": place(b"", LONG) + place(b"", LONG) + b"h\x00Q0" * 100_000,
    "the memo": b"]r" + (1 << 28).to_bytes(4, "little"),
}


@pytest.mark.parametrize("name", GROWING)
def test_pickles_that_grow(tmp_path: Path, name: str) -> None:
    too_much(pickled(tmp_path / "m.pt", GROWING[name]))


def test_tensors_are_not_charged_as_copies() -> None:
    """Scripted networks of thousands of layers with few weights were refused; a tensor copies no argument."""
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\nq\x000((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    tensor += b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQK\x00K\x04\x85K\x01\x85\x89}tq\x010"
    budget = Budget(None)
    rebuilt = unpickle(b"\x80\x02" + tensor + b"](" + b"h\x00h\x01R" * 1000 + b"e.", storage, budget=budget)
    assert len(rebuilt) == 1000 and budget.spent_bytes < 200_000  # without what the storage is charged


def storage(key: str, dtype: str) -> Storage:
    return Storage(key, dtype, lambda: memoryview(bytes(16)))


def test_tensors_that_share_their_bytes(tmp_path: Path) -> None:
    """A hundred windows of 4 MB on one storage exceed the limit of the file."""
    torch = pytest.importorskip("torch")
    whole = torch.zeros(1 << 20)
    some = {f"t{i}": whole[i:] for i in range(6)}
    torch.save(some, tmp_path / "some.pt")
    assert len(qfmt.convert(tmp_path / "some.pt").tensors) == 6
    torch.save({f"t{i}": whole[i:] for i in range(100)}, tmp_path / "many.pt")
    too_much(tmp_path / "many.pt")


# -- work grows linearly -----------------------------------------------------------------------------------


def lines_run(action: Callable[[], object]) -> int:
    """The number of lines of qfmt that an action runs, including iterations of comprehensions; a clock would depend
    on other processes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "qfmt" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def relus(path: Path, count: int) -> Path:
    return script(path, f"for i in range({count}):", "  x = torch.relu(x)", "return x")


def linears(path: Path, count: int) -> Path:
    torch = pytest.importorskip("torch")
    from networks import pytorch

    class Linears(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.eye(4))
            self.count: int = count

        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
            for _ in range(self.count):
                x = torch.nn.functional.linear(x, self.w)
            return x

    with pytorch.quiet():
        torch.jit.save(torch.jit.script(Linears().eval()), path)
    return path


def tensors(path: Path, count: int) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({f"t{i}": torch.zeros(1) for i in range(count)}, path)
    return path


@pytest.mark.parametrize("make", [relus, linears, tensors])
def test_work_grows_linearly(tmp_path: Path, make: Callable[[Path, int], Path]) -> None:
    counts = []
    for size in (100, 100, 200, 400):  # the first run fills caches
        path = make(tmp_path / f"{size}.pt", size)
        counts.append(lines_run(lambda path=path: qfmt.convert(path)))  # type: ignore[misc]
    _, one, two, four = counts
    assert 0.9 < (four - two) / (2 * (two - one)) < 1.1, counts


@given(st.sets(st.integers(1, 40)), st.booleans())
def test_unused_names(taken: set[int], whole: bool) -> None:
    names = {f"x_{number}" for number in taken} | ({"x"} if whole else set())
    name = unused("x", names)
    assert name not in names and (name == "x") == (not whole)
    if whole and taken == set(range(1, len(taken) + 1)):
        assert name == f"x_{len(taken) + 1}"


def test_many_equal_names_need_few_lookups() -> None:
    class Counting(set[str]):
        asked = 0

        def __contains__(self, name: object) -> bool:
            self.asked += 1
            return super().__contains__(name)

    taken = Counting()
    for _ in range(1000):
        taken.add(unused("x", taken))
    assert len(taken) == 1000 and taken.asked < 30 * 1000


def test_keys_whose_hashes_a_file_could_choose() -> None:
    for key in (2**16, -(2**64), 1.5, 2.0**61, (1, 2), ((),), ("a" * 600,) * 2, tuple(range(17)), Inert("m.A", ())):
        assert safe_key(key, 3, 100) is not key
    for key in ("a", b"a", None, True, 2**16 - 1, -5):
        assert safe_key(key, 3, 100) is key
    assert safe_key(10**6, 3, 10**6) == 10**6
    shown = {2**64: str(2**64), 1.5: "1.5", (1, "a"): "(1, 'a')", ((),): "(tuple 3)", ("a" * 600,) * 2: "(tuple 3)"}
    assert all(str(safe_key(key, 3, 100)) == expected for key, expected in shown.items())
    for key in ([], {}):
        with pytest.raises(SourceError, match="as a key"):
            safe_key(key, 3, 100)


def test_integers_that_lead_to_the_same_places_of_a_dict(tmp_path: Path) -> None:
    """Such keys need a time that is quadratic in their number; of 200 kB, 10 s."""
    keys, step = range(2**15), 2**16
    numbers = b"".join(b"J" + (key * step % 2**31).to_bytes(4, "little") + b"N" for key in keys)
    path = pickled(
        tmp_path / "m.pt", b"}(" + text("w") + rebuilt("Float", 0, (1,), (1,)) + text("x") + b"}(" + numbers + b"uu"
    )
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("m/data/0", bytes(4))
    assert [*qfmt.convert(path).tensors] == ["w"]


def test_a_budget_is_in_proportion_to_the_source() -> None:
    for count in ("spend", "allocate"):
        small, large, own = Budget(1000), Budget(1_001_000), Budget(None)
        room = {"spend": lambda budget: budget.operations, "allocate": lambda budget: budget.bytes}[count]
        assert room(large) - room(small) == 1_000_000 * (room(Budget(1)) - room(Budget(0)))
        for budget in (small, large):
            getattr(budget, count)(room(budget))
            with pytest.raises(BudgetError):
                getattr(budget, count)(1)
        getattr(own, count)(10**30)


def test_an_entry_of_an_archive_that_is_read_many_times(tmp_path: Path) -> None:
    """A `.pt2` archive may name one entry as the pickle of every tensor; each reading is a copy."""
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("a", bytes(MEGABYTE))
    opened, copies = Zip(tmp_path / "m.zip"), []
    with pytest.raises(BudgetError, match=r"^a: .*would take more than"):
        copies += [opened.read("a") for _ in range(100)]


def test_moves_of_an_input_before_many_quantizations() -> None:
    """Lowering repeats the moves for each of them: n moves and n quantizations would become n² nodes."""

    def network(count: int) -> Model:
        moved = [Tensor(f"m{i}", "float32", (4,)) for i in range(count + 1)]
        grids = [Quantization.per_tensor(0.5 + i, 0, "int8") for i in range(count)]
        made = [Tensor(f"q{i}", "int8", (4,), None, grid) for i, grid in enumerate(grids)]
        moves = [Node("Identity", (f"m{i}",), (f"m{i + 1}",), version=23) for i in range(count)]
        nodes = [*moves, *(Node("QuantizeLinear", (f"m{count}",), (y.name,), {}, "", 23, "divide") for y in made)]
        tensors = {tensor.name: tensor for tensor in (*moved, *made)}
        return Model(Graph(("m0",), tuple(y.name for y in made), nodes, tensors))

    assert len(lower_integer(network(20)).nodes) == 400
    with pytest.raises(BudgetError, match="would take more than"):
        lower_integer(network(1000))


def test_sums_of_many_inputs_in_onnx() -> None:
    """ONNX has nodes for each input of a sum."""
    grid = Quantization.per_tensor(0.5, 0, "int8")

    def network(count: int) -> Model:
        x = Tensor("x", "int8", (4,), None, grid)
        y = [Tensor(f"y{i}", "int32", (4,)) for i in range(count)]
        nodes = [Node("qfmt.WeightedSum", ("x",) * 500, (each.name,), {"weights": (1,) * 500}) for each in y]
        return Model(Graph(("x",), tuple(each.name for each in y), nodes, {each.name: each for each in (x, *y)}))

    network(2).to_onnx()
    with pytest.raises(BudgetError, match="would take more than"):
        network(200).to_onnx()


def test_names_that_are_made_from_a_long_one() -> None:
    """A file has the name once. Each node that reads the tensor may need a similar one."""
    grid = Quantization.per_tensor(0.5, 3, "int8")

    def network(name: str, count: int) -> Model:
        x = Tensor("x", "int8", (1, 4), None, grid)
        weight = Tensor.constant(name, np.ones((4, 4), np.int8), grid)
        y = [Tensor(f"y{i}", "int8", (1, 4), None, grid) for i in range(count)]
        nodes = [Node("qfmt.Linear", ("x", name), (each.name,), version=1, rule="integer_bias") for each in y]
        tensors = {each.name: each for each in (x, weight, *y)}
        return Model(Graph(("x",), tuple(each.name for each in y), nodes, tensors))

    network("w" * 1000, 100).to_onnx()
    lower_integer(network("w" * 1000, 100))
    for work in (Model.to_onnx, lower_integer):
        with pytest.raises(BudgetError, match="would take more than"):
            work(network("w" * 500_000, 1000))


def test_packed_parameters_with_a_long_path(tmp_path: Path) -> None:
    """Each call looks at the path for the module that has them."""
    long = "w" * 100_000
    path = script(tmp_path / "m.pt", "return x")
    with zipfile.ZipFile(path) as archive:
        entries = {name.removeprefix("m/"): archive.read(name) for name in archive.namelist()}
    packed = b"c__torch__.torch.classes.quantized\nSome\n)\x81K\x00b"
    module = b"\x80\x02c__torch__\nM\n)\x81}" + text(long) + packed + b"sb."
    zipped(path, entries | {"data.pkl": module})
    with pytest.raises(BudgetError, match="a module has a path of 100,000 characters"):
        qfmt.convert(path)


def test_a_weight_with_a_long_name_that_many_calls_read(tmp_path: Path) -> None:
    long = "w" * 100_000
    body = [f"w = self.{long}", *["x = torch.add(x, w)"] * 1000, "return x"]
    path = script(tmp_path / "m.pt", *body)
    with zipfile.ZipFile(path) as archive:
        entries = {name.removeprefix("m/"): archive.read(name) for name in archive.namelist()}
    module = b"\x80\x02c__torch__\nM\n)\x81}" + text(long) + rebuilt("Float", 0, (1,), (1,)) + b"sb."
    zipped(path, entries | {"data.pkl": module, "data/0": bytes(4)})
    names = qfmt.convert(path).tensors
    assert sorted(map(len, names))[-2:] == [len("add_999"), len(long)]  # none begins with it


def test_equal_names_in_json_count_once() -> None:
    """A program of torch.export with 100,000 arguments, and a text of the same size in which all names differ."""
    value = [{"as_tensor": {"name": f"x_{number}"}} for number in range(100_000)]
    text = json.dumps({"inputs": value}).encode()
    assert parse(text, Budget(len(text))) == {"inputs": value}
    other = json.dumps([{str(number): 0} for number in range(len(text) // 12)]).encode()
    with pytest.raises(BudgetError):
        parse(other, Budget(len(other)))


@pytest.mark.parametrize("written", ['"%06d":0', '"%06d" :0', '"%06d\\"x":0'])
def test_names_in_json_are_charged_before_they_are_parsed(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ("{" + ",".join(written % number for number in range(150_000)) + "}").encode()
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("was parsed"))
    with pytest.raises(BudgetError):
        parse(text, Budget(0))
