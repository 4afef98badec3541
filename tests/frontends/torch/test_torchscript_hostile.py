"""Archives that are damaged, malicious or of another kind cause a one-line error, and nothing is executed."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tarfile
import time
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qfmt
from networks import pytorch
from qfmt.budget import Budget
from qfmt.errors import MissingFileError, QfmtError, SourceError, UnsafePickleError
from qfmt.frontends.sources import KINDS, sniff
from qfmt.frontends.torch.torchscript.archive import Archive
from qfmt.frontends.torch.torchscript.code import syntax_of_expression, syntax_tree
from qfmt.frontends.torch.torchscript.evaluator import evaluate
from qfmt.frontends.torch.torchscript.folding import fold, on_values
from qfmt.frontends.zips import Zip
from support.examples import examples
from support.pickles import Runs, text
from support.replay import Notes, Unknown
from support.torchscript_archives import MODULE, NOTHING, archive_of, module_of

STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\x00K\x04\x85K\x01\x85\x89NtR"
WEIGHT = b"\x80\x02c__torch__\nM\n)\x81}" + text("w") + TENSOR + b"sb."
"""A module whose attribute `w` is four floats in data/0."""

WEIGHT_CODE = b"class M(Module):\n  def forward(self: __torch__.M, x: Tensor) -> Tensor:\n    return self.w\n"


def run(path: Path) -> Any:
    return evaluate(Archive(path), Notes(2), [Unknown()])


def refusal(path: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        run(path)
    sentence = str(caught.value)
    assert sentence.isprintable() and 10 < len(sentence) < 600, sentence
    return caught.value


def test_the_plain_archive_works(tmp_path: Path) -> None:
    assert isinstance(run(module_of(tmp_path / "m.pt")), Unknown)


# -- code ----------------------------------------------------------------------------------------------

CODE = {
    "an endless loop": (["while True:", "  pass", "return x"], "operations"),
    "a loop of 2**62": (["for i in range(4611686018427387904):", "  pass", "return x"], "operations"),
    "loops in loops": (
        ["for a in range(1000):", "  for b in range(1000):", "    for c in range(1000):", "      pass", "return x"],
        "operations",
    ),
    "calls itself": (["return (self).forward(x, )"], "nested too deeply"),
    "doubles a string": (['a = "ab"', "while True:", "  a = torch.add(a, a)", "return x"], "operations"),
    "doubles a list": (["a = [1]", "while True:", "  a = torch.add(a, a)", "return x"], "operations"),
    "extends a list by itself": (["a = [1, 2]", "while True:", "  torch.extend(a, a)", "return x"], "operations"),
    "a list of long strings": (
        ['a = torch.mul("ab", 400000)', "l = [a]", "while True:", "  torch.append(l, torch.add(a, a))", "return x"],
        "operations",
    ),
    "joins long strings": (
        ['a = torch.mul("ab", 30000)', f'return torch.join(a, [{", ".join("a" * 20)}])'], "too long"
    ),
    "formats long strings": (
        ['a = torch.mul("ab", 400000)', 'return torch.format("{}{}{}", a, a, a)'], "operations"
    ),
    "lists within lists": (
        ["a = [1]", "while True:", "  a = [a, a]", "  b = torch.relu([a])", "return x"], "operations"
    ),
    "compares lists within lists": (
        ["a = [1]", "b = [1]", "while True:", "  a = [a, a]", "  b = [b, b]", "  c = torch.eq(a, b)"], "operations"
    ),
    "a power": (["return torch.pow(10, 1000000000)"], "math range error"),
    "a power of a size": (["return torch.pow(ops.prim.NumToTensor(10), 1000000000)"], "64 bits"),
    "a product": (["return torch.mul(9223372036854775807, 2)"], "64 bits"),
    "a shift": (["return torch.__lshift__(1, 1000000000000)"], "beyond 64 bits"),
    "a repeated list": (["return torch.mul([1], 1000000000000)"], "too long"),
    "a division by zero": (["return torch.floordiv(1, 0)"], "fails"),
    "an index beyond": (["return [1][5]"], "fails"),
    "a key that is not there": (['return {"a": 1}["b"]'], "fails"),
    "imports": (["import os", "return x"], "Import"),
    "calls __import__": (['return __import__("os").system("touch MARKER")'], "cannot be called in TorchScript"),
    "calls open": (['return open("MARKER", "w")'], "cannot be called in TorchScript"),
    "calls eval": (['return eval("1")'], "cannot be called in TorchScript"),
    "names open": (["y = open", "return y"], "no value"),
    "climbs from a number": (["return (1).__class__"], "no attribute"),
    "climbs from a string": (['return "".__class__.__mro__'], "no attribute"),
    "climbs by getattr": (['return getattr("", "__class__")'], "no attribute"),
    "climbs from a method": (["return self.forward.__globals__"], "no attribute"),
    "climbs by format": (['return torch.format("{0.__class__}", 1).x'], "no attribute"),
    "calls a method of a string": (['return ("a").join([])'], "no method"),
    "a lambda": (["return (lambda: 1)()"], "not supported"),
    "a comprehension": (["return [a for a in [1]]"], "not supported"),
    "a walrus": (["return (a := 1)"], "not supported"),
    "an f-string": (["return f'{x}'"], "not supported"),
    "starred arguments": (["return torch.relu(*[x])"], "not supported"),
    "double-starred arguments": (["return torch.relu(**{})"], "not supported"),
    "an operator sign": (["return 1 + 1"], "not supported"),
    "yields": (["yield x"], "not supported"),
    "deletes": (["del x", "return 1"], "not supported"),
    "unpacks wrongly": (["a, b = [1, 2, 3]", "return x"], "2 values"),
    "a variable that is not there": (["return nothing"], "no value"),
    "an attribute that is not there": (["return self.weight"], "no attribute"),
    "a constant that is not there": (["return CONSTANTS.c0"], "no constant"),
    "a constant by a strange name": (["return CONSTANTS.c1_0"], "no constant"),
    "a module function that is not there": (["return (self.x).forward()"], "no attribute"),
    "a syntax error": (["return ((("], "not TorchScript"),
    "half a statement": (["if x:"], "not TorchScript"),
    "parentheses a hundred thousand deep": (["return " + "(" * 100_000 + "x" + ")" * 100_000], "nested"),
    "signs a million deep": (["return " + "-" * 1_000_000 + "1"], "nested|not TorchScript"),
    "attributes a million deep": (["return x" + ".a" * 1_000_000], "nested|not TorchScript"),
    "attributes behind a quote": (["return torch.relu('\"', x" + ".a" * 150_000 + ")"], "nested"),
    "attributes behind a comment": (["return ( # \"", "  x", *["  .a"] * 150_000, "  )"], "nested"),
    "attributes in an f-string": (['return f"{x' + ".a" * 150_000 + '}"'], "prefix"),
    "a name that grows": (["a = __torch__.a", "while True:", f"  a = a.{'b' * 100}"], "bytes of memory"),
    "ifs ninety deep": (["  " * i + "if True:" for i in range(90)] + ["  " * 90 + "return x.y"], None),
    "a number of five thousand digits": (["return " + "9" * 5000], "not TorchScript"),
    "null bytes": (["return \0x"], "which PyTorch does not print"),
    "line ends of Python": (["# a\r    y = x", "return x"], "which PyTorch does not print"),
    "a blank line that is not empty": (["y = x", "\t", "return x"], "which PyTorch does not print"),
    "a class in a text": (['s = """', "class M(Module):", '"""', "return x"], "which PyTorch does not print"),
    "a class over two lines": (["return x", "", "\\", "class M(Module):"], "which PyTorch does not print"),
    "keys that take exponential time": (
        ["a = (1, 2)", *["a = (a, a)"] * 60, "return torch.dict([(a, 1)])"], "as a key"
    ),
    "an integer of 25,000 bytes": (["return 0x" + "f" * 50_000], "not supported"),
    "an order of what has none": (["return ops.prim.min(1., nan)"], "fails"),
    "decides on a text of numbers": (['if torch.eq(torch.format("{}", 1.5), "a"):', "  return x"], "formats a text"),
    "decides on a text with percents": (
        ['if torch.eq(torch.percentFormat("%d", 1), "1"):', "  return x"], "formats a text"
    ),
    "loops over a long decision": (
        [
            "n = torch.size(x, 0)", "for i in range(150000):", "  if torch.eq(n, 1):",
            *(f"    a{i} = [x, x, x, x, x]" for i in range(300)), "  else:", "    pass", "return x"
        ],
        "operations",
    ),
    "elements that move": (
        ["a = torch.mul([1], 50000)", "while True:", "  torch.insert(a, 0, 1)"], "operations"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_code_that_is_not_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    body, sentence = CODE[name]
    path = module_of(tmp_path / "m.pt", *body)
    if sentence is None:
        run(path)
    else:
        assert any(part in str(refusal(path)) for part in sentence.split("|")), str(refusal(path))
    assert not (tmp_path / "MARKER").exists()


def test_statements_before_a_header_ends(tmp_path: Path) -> None:
    """A space behind the colon, which PyTorch does not print, would make the first statements part of the header."""
    code = WEIGHT_CODE.replace(b"Tensor:\n", b"Tensor: \n   y = self.a\n   if True:\n ")
    path = module_of(tmp_path / "m.pt", **{"code/__torch__.py": code})
    assert "not a function" in str(refusal(path))


@pytest.mark.parametrize("value", [[1], (1, 2), "a"], ids=["list", "tuple", "text"])
def test_numbers_are_computed_from_numbers_only(value: Any) -> None:
    """Python multiplies all of these, and a few bytes then take gigabytes."""
    given = {
        "aten::mul": (value, 1 << 30), "aten::__derive_index": (1 << 30, value, value), "aten::pow": (value, 2),
        "aten::remainder": (value, (1,)), "aten::sub": (value, value), "aten::__lshift__": (value, 30),
        "aten::round": (value, -(10**8)),
    }  # fmt: skip
    for target, args in given.items():
        if target == "aten::mul" and not isinstance(value, tuple):
            with pytest.raises(SourceError, match="too long"):
                fold(on_values, target, args, {})
        else:
            assert fold(on_values, target, args, {}) is NotImplemented
    assert fold(on_values, "aten::round", (5, -(10**8)), {}) == 0


def test_more_code_than_any_network(tmp_path: Path) -> None:
    """A statement of 200 kB took 100 MB while it was parsed."""
    assert "would take more than" in str(refusal(module_of(tmp_path / "m.pt", f"y = [{'x, ' * 100_000}]")))


def test_syntax_trees_are_not_all_kept(tmp_path: Path) -> None:
    lines = [f"y{i} = torch.relu(x)" for i in range(20_000)]
    archive = Archive(module_of(tmp_path / "m.pt", *lines, "return y19999"))
    assert isinstance(evaluate(archive, Notes(2), [Unknown()]), Unknown)
    assert archive.budget.spent_bytes < 16 << 20


def test_lines_are_those_of_the_file_in_each_piece(tmp_path: Path) -> None:
    lines = [f"y{i} = torch.relu(x)" for i in range(1000)]
    assert "code/__torch__.py:1005" in str(refusal(module_of(tmp_path / "m.pt", *lines, "return z")))


def test_lines_are_counted_before_the_code_is_split(tmp_path: Path) -> None:
    """4 MB of comments took 330 MB."""
    assert "bytes of memory" in str(refusal(module_of(tmp_path / "m.pt", *["#"] * 300_000)))


@pytest.mark.parametrize(
    "text", ['__import__("os").system("touch MARKER")', "open", "1" + ".a" * 100_000, "(", "9" * 5000, "[a for a in b]"]
)
def test_constants_of_classes_that_are_not_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code = WEIGHT_CODE.replace(b"Module):", f"Module):\n  w : Final[float] = {text}".encode())
    entries = {"data.pkl": MODULE, "constants.pkl": NOTHING, "code/__torch__.py": code}
    refusal(archive_of(tmp_path / "m.pt", entries))
    assert not (tmp_path / "MARKER").exists()


@pytest.mark.parametrize(
    "body",
    [
        ["a = (1, 2)", *["a = (a, a)"] * 60, "return torch.get(torch.dict(), a)"],  # a hash of 2**60 steps
        ['return torch.remainder("%999999999d", 5)'],
        ['a = torch.mul("a", 30000)', "return torch.mul(a, a)"],
        ["return torch.__lshift__([1], 40)"],
    ],
)
def test_operators_on_values_that_torch_does_not_take(tmp_path: Path, body: list[str]) -> None:
    """They took a minute, or gigabytes."""
    with pytest.raises(SourceError, match=r"aten::|operations"):
        qfmt.convert(module_of(tmp_path / "m.pt", *body))


@pytest.mark.parametrize("early", [["return self"], ["if torch.gt(n, 9):", "  return self"]])
def test_a_branch_that_returns_before_it_raises(tmp_path: Path, early: list[str]) -> None:
    raises = [*early, 'ops.prim.RaiseException("")']
    body = [
        "n = torch.size(x, 0)",
        "if torch.gt(n, 3):",
        *(f"  {line}" for line in raises),
        "else:",
        "  pass",
        "return x",
    ]
    assert "depends on the data" in str(refusal(module_of(tmp_path / "m.pt", *body)))


def test_a_comment_ends_no_function(tmp_path: Path) -> None:
    path = module_of(tmp_path / "m.pt", "if True:", "  y = 1", "# a comment", "  return y", "return 2")
    assert run(path) == 1


def test_a_class_is_found_behind_two_blanks(tmp_path: Path) -> None:
    """PyTorch takes the last class of a name."""
    again = "class  M(Module):\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n    return 2\n"
    module_of(tmp_path / "m.pt", "return 1")
    code = Archive(tmp_path / "m.pt").zip.read("m/code/__torch__.py")
    entries = {"data.pkl": MODULE, "constants.pkl": NOTHING, "code/__torch__.py": code + again.encode()}
    assert run(archive_of(tmp_path / "n.pt", entries)) == 2


def test_texts_have_bytes(tmp_path: Path) -> None:
    """Texts of the code, and those of pickles, have other characters."""
    assert "counts its bytes" in str(refusal(module_of(tmp_path / "m.pt", 'return torch.len("\u00e9")')))


def test_a_slice_with_a_step_is_refused(tmp_path: Path) -> None:
    """PyTorch takes every second element; the step was ignored."""
    assert "a Subscript here" in str(refusal(module_of(tmp_path / "m.pt", "return [1, 2, 3][0:3:2]")))


def test_attributes_are_counted(tmp_path: Path) -> None:
    """300 of them took as long as one."""
    data = b"\x80\x02c__torch__\nM\n)\x81q\x00}" + text("a") + b"h\x00sb."
    body = "for i in range(10000):", "  y = self" + ".a" * 100, "return x"
    assert "operations" in str(refusal(module_of(tmp_path / "m.pt", *body, data=data)))


def test_code_is_found_by_name_only_in_code(tmp_path: Path) -> None:
    """Class names cannot refer to files outside the archive's code folder."""
    data = b"\x80\x02c__torch__.../../etc\npasswd\n)\x81}b."
    assert "lacks the class" in str(refusal(module_of(tmp_path / "m.pt", data=data)))


# -- pickles -------------------------------------------------------------------------------------------

PICKLES = {
    "not a module": (b"\x80\x02K\x05.", "module"),
    "a class that is not there": (b"\x80\x02c__torch__\nOther\n)\x81}b.", "lacks the class"),
    "a class of another file": (b"\x80\x02c__torch__.a.b\nOther\n)\x81}b.", "lacks the class"),
    "a state that nobody sets": (b"\x80\x02c__torch__\nM\n)\x81K\x01b.", "no `__setstate__`"),
    "a packed object of nothing": (
        b"\x80\x02c__torch__\nM\n)\x81}" + text("p") + b"c__torch__.torch.classes.quantized\nConv2dPackedParamsBase\n"
        b")\x81)bsb.", "no version of PyTorch wrote",
    ),
    "a linear of nothing": (
        b"\x80\x02c__torch__\nM\n)\x81}" + text("p") + b"c__torch__.torch.classes.quantized\nLinearPackedParamsBase\n"
        b")\x81NNN\x87bsb.", "no version of PyTorch wrote",
    ),
    "a convolution of a strange geometry": (
        b"\x80\x02c__torch__\nM\n)\x81}" + text("p") + b"c__torch__.torch.classes.quantized\nConv2dPackedParamsBase\n"
        b")\x81K\x03](K\x02K\x01e]b)\x81\x87bsb.", "",
    ),
    "truncated": (MODULE[:-3], "is incomplete"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_are_not_modules(tmp_path: Path, name: str) -> None:
    data, sentence = PICKLES[name]
    assert sentence in str(refusal(module_of(tmp_path / "m.pt", data=data)))


RESULTS = {
    "a list of itself": ["l = [x]", "torch.append(l, l)", "return l"],
    "a dict of itself": ['d = {"a": x}', 'torch._set_item(d, "b", d)', "return d"],
    "2 ** 40 times the same": ["t = (x,)", *["t = (t, t)"] * 40, "return t"],
    "looks for a list in lists": [
        "l = [1]",
        "m = [1]",
        *["l = [l, l]", "m = [m, m]"] * 40,
        "torch.__contains__([l], m)",
    ],
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_without_end(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"nested too deeply|more than \d+ operations"):
        qfmt.convert(module_of(tmp_path / "m.pt", *RESULTS[name]))


@pytest.mark.parametrize("entry", ["data", "constants"])
def test_a_forbidden_global_is_named_and_not_executed(tmp_path: Path, entry: str) -> None:
    marker = tmp_path / "marker"
    evil = pickle.dumps(Runs(f"touch {marker}"), 2)
    entries = {"data.pkl": evil} if entry == "data" else {"constants.pkl": evil}
    path = module_of(tmp_path / "m.pt", "return CONSTANTS.c0", **entries)
    error = refusal(path)
    assert isinstance(error, UnsafePickleError) and f"{os.system.__module__}.system" in str(error)
    assert f"{entry}.pkl" in error.where
    assert not marker.exists()


@pytest.mark.parametrize("state", ["self", "list", "dict"])
def test_cycles(tmp_path: Path, state: str) -> None:
    """A module or list that contains itself is harmless: no traversal is endless."""
    inner = {"self": b"h\x00", "list": b"]q\x01h\x01a", "dict": b"}q\x01" + text("d") + b"h\x01s"}[state]
    data = b"\x80\x02c__torch__\nM\n)\x81q\x00}" + text("a") + inner + b"sb."
    path = module_of(tmp_path / "m.pt", "return torch.relu(self.a)", data=data)
    if state == "self":
        run(path)
    else:
        assert "operations" in str(refusal(path))


def test_modules_nested_ten_thousand_deep(tmp_path: Path) -> None:
    opening = b"c__torch__\nM\n)\x81}" + text("a")
    data = b"\x80\x02" + opening * 10_000 + b"N" + b"sb" * 10_000 + b"."
    assert "nested too deeply" in str(refusal(module_of(tmp_path / "m.pt", data=data)))


# -- zip archives --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small quantized archive that torch wrote."""
    module = torch.nn.Sequential(torch.ao.nn.quantized.Linear(3, 2)).eval()
    return pytorch.save_as(module, (torch.zeros(1, 3),), "script", tmp_path_factory.mktemp("real") / "m.pt")


def test_every_truncation_is_a_source_error(tmp_path: Path, real: Path) -> None:
    raw = real.read_bytes()
    for length in range(0, len(raw), 13):
        (tmp_path / "m.pt").write_bytes(raw[:length])
        refusal(tmp_path / "m.pt")


@given(st.data())
@examples(50)
def test_changed_bytes_yield_calls_or_a_source_error(real: Path, data: st.DataObject) -> None:
    raw = bytearray(real.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=3)):
        raw[position] ^= data.draw(st.integers(1, 255))
    path = real.with_name("changed.pt")
    path.unlink(missing_ok=True)  # the previous example's file may still be mapped
    path.write_bytes(raw)
    notes = Notes(2)
    try:
        evaluate(Archive(path), notes, [Unknown()])
        for packed in notes.packed().values():
            packed.weight.array()
    except QfmtError as error:
        assert str(error).isprintable()


def test_an_end_of_several_disks_is_refused(tmp_path: Path, real: Path) -> None:
    raw = bytearray(real.read_bytes())
    locator = raw.rindex(b"PK\x06\x07")
    raw[locator + 16 : locator + 20] = (3).to_bytes(4, "little")
    (tmp_path / "m.pt").write_bytes(raw)
    assert "zip archive" in str(refusal(tmp_path / "m.pt"))


# -- archives of which PyTorch reads other parts --------------------------------------------------------


def zipped(*entries: tuple[str, bytes]) -> tuple[bytes, bytes, bytes]:
    """An archive in three parts: its entries, its directory, its end."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content)
    whole = file.getvalue()
    size, begin = struct.unpack("<2L", whole[-10:-2])
    return whole[:begin], whole[begin : begin + size], whole[-22:]


def ended(end: bytes, **places: int) -> bytes:
    """The end of an archive, with other numbers in it."""
    names = "count", "total", "size", "begin", "comment"
    values = dict(zip(names, struct.unpack("<2H2LH", end[8:]), strict=True)) | places
    return end[:8] + struct.pack("<2H2LH", *values.values())


def network(factor: int, root: str = "m/") -> list[tuple[str, bytes]]:
    code = f"class M(Module):\n  def forward(self: __torch__.M, x: Tensor) -> Tensor:\n    return {factor}\n"
    parts = {"data.pkl": MODULE, "constants.pkl": NOTHING, "code/__torch__.py": code.encode()}
    return [(f"{root}{name}", content) for name, content in parts.items()]


def test_archives_that_programs_read_in_different_ways(tmp_path: Path) -> None:
    entries, directory, end = zipped(*network(2))
    others, other_directory, _ = zipped(*network(3))
    begin, size = len(entries), len(directory)
    archives = {
        "a directory that is not where the end states": [entries, directory, others, other_directory, end],
        "an end that counts too few entries": [entries, directory, ended(end, count=2, total=2)],
        "an end that counts too many entries": [entries, directory, ended(end, count=4, total=4)],
        "something before the entries": [b"x" * 9, entries, directory, ended(end, begin=begin + 9)],
        "something before the end": [entries, directory, b"x" * 9, end],
        "a directory in the comment": [
            entries, directory, ended(end, begin=begin + size + 22, comment=size), other_directory
        ],
        "a locator of nothing": [entries, directory, b"PK\6\7" + bytes(16), end],
        "a locator of another end": [
            entries, directory,
            struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, size, begin), bytes(9),
            struct.pack("<4sLQL", b"PK\6\7", 0, begin + size, 1), end,
        ],
    }  # fmt: skip
    for name, parts in archives.items():
        with pytest.raises(SourceError, match="not a complete zip archive"):
            Zip(b"".join(parts))
            pytest.fail(name)
    assert len(Zip(entries + directory + end).entries) == len(Zip(entries + directory + end + bytes(9)).entries) == 3


def test_names_in_extra_fields_are_not_read(tmp_path: Path) -> None:
    """Python 3.14 takes the name of an entry from the extra field 0x7075."""
    extra = struct.pack("<BL", 1, zlib.crc32(b"a")) + b"b"
    info = zipfile.ZipInfo("a")
    info.extra = struct.pack("<2H", 0x7075, len(extra)) + extra
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr(info, b"")
    assert list(Zip(tmp_path / "m.zip").entries) == ["a"]


def test_the_folder_of_an_archive_is_that_of_its_first_entry(tmp_path: Path) -> None:
    parts = zipped(("a/first", b""), *network(3, "b/"), *network(2, "a/"))
    (tmp_path / "m.pt").write_bytes(b"".join(parts))
    assert run(tmp_path / "m.pt") == 2


def test_names_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    """PyTorch takes the first one."""
    (tmp_path / "m.pt").write_bytes(b"".join(zipped(("m/CODE/__torch__.py", b""), *network(2))))
    assert "differ in case only" in str(refusal(tmp_path / "m.pt"))


def test_a_storage_with_two_types_is_refused(tmp_path: Path) -> None:
    """PyTorch ignores the second one."""
    second = TENSOR.replace(b"Float", b"Int")
    data = b"\x80\x02}" + text("a") + TENSOR + b"s" + text("b") + second + b"s."
    path = archive_of(tmp_path / "m.pt", {"data.pkl": data, "data/0": bytes(16)})
    with pytest.raises(SourceError, match="two element types"):
        qfmt.convert(path)


def test_an_archive_of_both_forms_is_the_old_one(tmp_path: Path) -> None:
    """As for PyTorch."""
    path = module_of(tmp_path / "m.pt", **{"model.json": b"{}"})
    assert sniff(path).key == "torchscript_json"


def test_a_pickle_in_the_name_of_a_tar_archive_is_a_tar_archive(tmp_path: Path) -> None:
    """As for PyTorch, also without the magic word of newer forms."""
    header = tarfile.TarInfo("pickle").tobuf(tarfile.USTAR_FORMAT)
    magic = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
    raw = bytearray(magic + header[len(magic) : 257] + bytes(255))
    raw[148:156] = b"        "
    raw[148:156] = b"%06o\0 " % sum(raw)
    (tmp_path / "m.pt").write_bytes(raw)
    assert sniff(tmp_path / "m.pt").key == "torch_tar"


def test_an_object_with_two_states_is_refused(tmp_path: Path) -> None:
    """torch merges them."""
    data = b"\x80\x02c__torch__\nM\n)\x81}" + text("a") + b"K\x01sb}" + text("a") + b"K\x02sb."
    assert "two states" in str(refusal(module_of(tmp_path / "m.pt", data=data)))


def repacked(real: Path, path: Path, **options: Any) -> Path:
    """The same entries, written by Python's zipfile."""
    source = zipfile.ZipFile(real)
    with zipfile.ZipFile(path, "w", **options) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_repacked_archives_are_the_same(tmp_path: Path, real: Path, method: int) -> None:
    weights = []
    for path in (real, repacked(real, tmp_path / "m.pt", compression=method)):
        notes = Notes(2)
        evaluate(Archive(path), notes, [Unknown()])
        weights += [packed.weight.array().tolist() for packed in notes.packed().values()]
    assert len(weights) == 2 and weights[0] == weights[1]


def test_a_compression_that_pytorch_does_not_write(tmp_path: Path, real: Path) -> None:
    assert "compression method 12" in str(refusal(repacked(real, tmp_path / "m.pt", compression=zipfile.ZIP_BZIP2)))


def test_changed_weights_are_noticed(tmp_path: Path, real: Path) -> None:
    info = next(i for i in zipfile.ZipFile(real).infolist() if i.filename.endswith("data/0"))
    changed = bytearray(real.read_bytes())
    header = changed[info.header_offset :][:30]
    changed[info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))] ^= 1
    (tmp_path / "m.pt").write_bytes(changed)
    notes = Notes(2)
    evaluate(Archive(tmp_path / "m.pt"), notes, [Unknown()])
    (packed,) = notes.packed().values()
    with pytest.raises(SourceError, match=r"data/0.*damaged"):
        packed.weight.array()


def test_a_zip_bomb(tmp_path: Path) -> None:
    """60 MB of zeros in 60 kB, as code, as a pickle, as a tensor."""
    zeros = bytes(60 << 20)
    for name in ("code/__torch__.py", "data.pkl", "data/0"):
        entries = {"data.pkl": WEIGHT, "constants.pkl": NOTHING, "code/__torch__.py": WEIGHT_CODE, name: zeros}
        path = archive_of(tmp_path / "m.pt", entries, zipfile.ZIP_DEFLATED)
        assert path.stat().st_size < 100_000
        with pytest.raises(SourceError, match=r"would take more than"):
            run(path).array()


def test_entries_take_no_more_than_they_are_charged_for(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for index in range(20_000):
            archive.writestr(f"{index}", b"")
    budget = Budget((tmp_path / "m.pt").stat().st_size)
    tracemalloc.start()
    Zip(tmp_path / "m.pt", budget)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{peak:,} bytes are taken, {budget.spent_bytes:,} charged")
    assert peak <= budget.spent_bytes


def test_a_directory_that_lies_about_sizes(tmp_path: Path) -> None:
    raw = bytearray(module_of(tmp_path / "m.pt").read_bytes())
    directory = raw.rindex(b"PK\x01\x02")
    raw[directory + 20 : directory + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    (tmp_path / "m.pt").write_bytes(raw)
    assert "end of the file" in str(refusal(tmp_path / "m.pt")) or "more than is allowed" in str(
        refusal(tmp_path / "m.pt")
    )


def test_an_uncompressed_entry_of_two_sizes(tmp_path: Path) -> None:
    raw = bytearray(module_of(tmp_path / "m.pt").read_bytes())
    directory = raw.index(b"PK\x01\x02")
    raw[directory + 24 : directory + 28] = struct.pack("<I", 1)
    (tmp_path / "m.pt").write_bytes(raw)
    assert "is not compressed, but states" in str(refusal(tmp_path / "m.pt"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name(tmp_path: Path) -> None:
    path = module_of(tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("m/data.pkl", MODULE)
    assert "two entries with the same name" in str(refusal(path))


def test_entries_that_overlap(tmp_path: Path) -> None:
    """Thousands of entries may be in one place: reading all of them would take quadratic time."""
    raw = bytearray(module_of(tmp_path / "m.pt").read_bytes())
    for found in re.finditer(rb"PK\x01\x02", bytes(raw)):
        struct.pack_into("<II", raw, found.start() + 20, len(raw) // 3, len(raw) // 3)
    (tmp_path / "m.pt").write_bytes(raw)
    assert "overlap" in str(refusal(tmp_path / "m.pt"))


def test_an_entry_is_summed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, summed = Zip(module_of(tmp_path / "m.pt", data=MODULE + bytes(1000))), 0

    def count(data: bytes, start: int) -> int:
        nonlocal summed
        summed += len(data)
        return crc32(data, start)

    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", count)
    for _ in range(3):
        assert len(archive.view("m/data.pkl")) == summed > 1000


def test_an_annotation_of_thousands_of_digits(tmp_path: Path) -> None:
    code = f"class M(Module):\n  def forward(self: __torch__.M, x: 0x{'f' * 5000}) -> Tensor:\n    return x\n"
    path = archive_of(
        tmp_path / "m.pt",
        {"data.pkl": MODULE, "constants.pkl": NOTHING, "version": b"3\n", "code/__torch__.py": code.encode()},
    )
    with pytest.raises(SourceError, match="nested too deeply"):
        qfmt.convert(path)


def test_names_that_point_elsewhere_are_harmless(tmp_path: Path) -> None:
    path = module_of(tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a") as archive:
        for name in ("/etc/passwd", "../../x", "m/../../y", "C:\\z"):
            archive.writestr(name, b"x")
    before = sorted(tmp_path.rglob("*"))
    run(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_tensor(tmp_path: Path) -> None:
    weight = run(module_of(tmp_path / "m.pt", "return self.w", data=WEIGHT))
    with pytest.raises(SourceError, match="m/data/0: the archive lacks"):
        weight.array()
    short = run(module_of(tmp_path / "s.pt", "return self.w", data=WEIGHT, **{"data/0": b"x" * 15}))
    with pytest.raises(SourceError, match="16 bytes of a storage that has 15"):
        short.array()


@pytest.mark.parametrize("name", ["byteorder", "ByteOrder"])  # PyTorch ignores case
def test_big_endian_archives(name: str, tmp_path: Path) -> None:
    assert "big-endian" in str(refusal(module_of(tmp_path / "m.pt", **{name: b"big"})))


# -- other kinds of files ------------------------------------------------------------------------------


def test_other_kinds_are_called_by_name(tmp_path: Path, shared_data: Path) -> None:
    legacy = shared_data / "torch_legacy/t1131"
    made = {
        "empty": b"", "unknown": b"hello world, this is nothing", "html": b"\n<!DOCTYPE html><p>Not found",
        "git_lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pickle": pickle.dumps({"a": 1}, 4),
        "gguf": b"GGUF\x03\0\0\0", "safetensors": struct.pack("<Q", 2) + b"{}", "qfb": b"\x10\0\0\0QFB1" + bytes(56),
        "torchscript_flatbuffer": b"\x10\0\0\0PTMF" + bytes(16), "executorch": b"\x10\0\0\0ET12" + bytes(16),
        "broken_zip": module_of(tmp_path / "whole.pt").read_bytes()[:-30],
    }  # fmt: skip
    files = {
        "state_dict": legacy / "mbv2_eager.sd.pt",
        "torch_module": legacy / "rn_fx.mod.pt",
        "torch_data": legacy / "rn_fx.io.pt",
        "torch_legacy": shared_data / "torchscript_bc/TestSerialization.test_linear.state_dict.pt",
        "onnx": shared_data / "onnx_qdq/polygraphy_qdq_conv.onnx",
        "numpy": shared_data / "onnx_qop/tract_qtanh_1/io.npz",
        "tflite": shared_data / "tflite/hello_world_int8.tflite",
        "zip": archive_of(tmp_path / "any.zip", {"a.txt": b"x"}),
        "torch_package": archive_of(tmp_path / "p.pt", {"m/m.pkl": MODULE, ".data/extern_modules": b"torch\n"}),
        "torchscript_lite": archive_of(tmp_path / "l.ptl", {"data.pkl": MODULE, "bytecode.pkl": NOTHING}),
        "torchscript_json": archive_of(tmp_path / "j.pt", {"model.json": b"{}", "code/m.py": b""}),
        "torch_export": archive_of(tmp_path / "e.pt2", {"archive_format": b"pt2", "models/model.json": b"{}"}),
    }
    for key, content in made.items():
        files[key] = tmp_path / f"{key}.pt"
        files[key].write_bytes(content)
    for key, path in files.items():
        assert sniff(path) == KINDS[key], path
        if KINDS[key].source is None:
            with pytest.raises(SourceError) as caught:
                qfmt.convert(path)
            assert KINDS[key].name in str(caught.value) and KINDS[key].hint in str(caught.value)


def test_lite_archives_with_code_are_read(tmp_path: Path) -> None:
    path = module_of(tmp_path / "m.ptl", **{"bytecode.pkl": NOTHING})
    assert sniff(path).key == "torchscript" and isinstance(run(path), Unknown)


def test_a_saved_call_of_the_system_is_unsafe_not_a_kind(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save({"weight": torch.ones(1), "x": Runs(f"touch {marker}")}, tmp_path / "m.pt")
    with pytest.raises(UnsafePickleError, match="system"):
        sniff(tmp_path / "m.pt")
    assert not marker.exists()


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such file"):
        qfmt.convert(tmp_path / "nothing.pt")
    for path, why in ((tmp_path, "directory"), (tmp_path / "a\0b", "null")):
        with pytest.raises(SourceError, match=why):
            qfmt.convert(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_with_a_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writer, bytes(4096))
    with pytest.raises(SourceError, match="is a FIFO, not a regular file"):
        qfmt.convert(tmp_path / "pipe")
    os.close(writer)


def test_detecting_the_kind_does_not_depend_on_the_file_size(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x12\x00" * 3_000_000)  # an endless series of ModelProto fields
    begin = time.process_time()
    assert sniff(tmp_path / "m.onnx").key == "unknown"
    assert time.process_time() - begin < 1


def test_python_gives_no_advice_about_code() -> None:
    """Its warnings would be lines of standard error for each such number of the code, or errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert syntax_tree("a = 1or 2").body
        assert syntax_of_expression("1or 2")
