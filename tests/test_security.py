"""No command executes code from a file: every command gets every file with a trap, and no trap leaves a trace."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
import qfmt  # noqa: E402
from networks.decomposed import Layer, X  # noqa: E402
from networks.pytorch import quiet  # noqa: E402
from qfmt.cli import main  # noqa: E402
from qfmt.errors import QfmtError  # noqa: E402
from qfmt.frontends.sources import sniff  # noqa: E402
from support.paths import DIGITS, HOSTILE, ROOT  # noqa: E402
from support.pickles import Runs  # noqa: E402

TRACE = "PWNED"


def trap() -> Runs:
    """An object that pickles as `os.system("touch PWNED")`."""
    return Runs(f"touch {TRACE}")


class Module(torch.nn.Module):
    """Has a trap among its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.trap = trap()


def replaced(source: Path, path: Path, *members: str) -> Path:
    """A zip archive with traps instead of members, or added to it."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w") as target:
        names = archive.namelist()
        root = names[0].partition("/")[0]
        traps = {f"{root}/{member}" for member in members}
        for name in names:
            if name not in traps:
                target.writestr(name, archive.read(name))
        for name in traps:
            target.writestr(name, pickle.dumps({"weight": trap()}, 2))
    return path


def exported(path: Path) -> Path:
    """A program of torch.export whose weight, constant and sample inputs are traps."""
    plain = path.with_suffix(".plain")
    with quiet():
        torch.export.save(torch.export.export(Layer().eval(), (X,)), plain)
    with zipfile.ZipFile(plain) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
    held = [name for name in names if name.startswith("data/") and not name.endswith(".json")]
    replaced(plain, path, *held, "data/sample_inputs/model.pt", "extra/hook.pkl")
    plain.unlink()
    return path


def saved(value: Any, path: Path, **form: bool) -> Path:
    torch.save(value, path, **form)
    return path


def bare(path: Path) -> Path:
    path.write_bytes(pickle.dumps([trap()], 2))
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "bare pickle": bare,
    "state_dict": lambda path: saved({"weight": torch.ones(2), "x": trap()}, path),
    "state_dict, older form": lambda path: saved(
        {"weight": torch.ones(2), "x": trap()}, path, _use_new_zipfile_serialization=False
    ),
    "module": lambda path: saved(Module(), path),
    "module, older form": lambda path: saved(Module(), path, _use_new_zipfile_serialization=False),
    "data.pkl of an archive": lambda path: replaced(DIGITS, path, "data.pkl"),
    "constants.pkl of an archive": lambda path: replaced(DIGITS, path, "constants.pkl"),
    "traced_inputs.pkl of an archive": lambda path: replaced(DIGITS, path, "traced_inputs.pkl"),
    "pickles beside those of an archive": lambda path: replaced(DIGITS, path, "attributes.pkl", "bytecode.pkl"),
    "exported program": exported,
    **{
        name: lambda path, name=name: Path(shutil.copy(HOSTILE / f"{name}.pt", path))  # type: ignore[misc]
        for name in ("verify-executes-code", "verify-setstate-unreachable")
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which traps would leave their traces."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(os.name != "posix", reason="the traps call `touch`")
@pytest.mark.parametrize("kind", FILES)
def test_no_command_runs_code_of_a_file(kind: str, folder: Path) -> None:
    source = FILES[kind](folder / "m.pt")
    qfmt.convert(DIGITS).save(folder / "digits.qfb")
    before = {*folder.iterdir()}
    written = [folder / name for name in ("out.qfb", "out.onnx", "out_c")]
    commands = [
        ["convert", source, written[0]],
        ["convert", source, written[1]],
        ["convert", source, written[2]],
        ["convert", source, written[0], "--integer-only"],
        ["inspect", source],
        ["inspect", source, "--json"],
        ["check", source],
        ["verify", source, folder / "digits.qfb", "--samples", "1"],
        ["verify", source, source, "--samples", "1"],
        ["verify", DIGITS, source, "--samples", "1"],
        ["diff", source, folder / "digits.qfb"],
        ["diff", DIGITS, source],
        ["run", source, "--input", source],
        ["ops", source],
    ]
    for words in commands:
        done = CliRunner().invoke(main, [*map(str, words)])
        assert done.exit_code in (0, 1, 2), words
        assert "Traceback" not in done.output and "unexpected" not in done.stderr, done.stderr
    for ask in (sniff, qfmt.convert, qfmt.load, lambda path: qfmt.verify(path, folder / "digits.qfb", samples=1)):
        with suppress(QfmtError):
            ask(source)
    assert {*folder.iterdir()} <= before | {*written}


def test_the_traps_work(folder: Path) -> None:
    """Executing the traps leaves a trace."""
    if os.name == "posix":
        pickle.loads(pickle.dumps(trap()))
        assert (folder / TRACE).exists()
        (folder / TRACE).unlink()
    for name in ("verify-executes-code", "verify-setstate-unreachable"):
        load = f"import torch; torch.jit.load({str(HOSTILE / name)!r} + '.pt')"
        subprocess.run([sys.executable, "-W", "ignore", "-c", load], cwd=folder, check=True, capture_output=True)
        assert (folder / TRACE).exists()
        (folder / TRACE).unlink()


@pytest.mark.parametrize("words", [["convert", "digits.qfb", "out.onnx"], ["verify", "digits.onnx", "digits.qfb"]])
def test_other_libraries_leave_nothing_behind(words: list[str], folder: Path) -> None:
    """ONNX Runtime 1.32 keeps a database of the models that it loads in the home folder, and uploads it."""
    pytest.importorskip("onnxruntime")
    model = qfmt.convert(DIGITS)
    model.save(folder / "digits.qfb")
    (folder / "digits.onnx").write_bytes(model.to_onnx(opset=21).SerializeToString())
    (folder / "home").mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ORT_"))}
    environment |= {"HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "qfmt", *words, *["--samples", "1"] * (words[0] == "verify")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list((folder / "home").rglob("*"))


# -- the source of qfmt ----------------------------------------------------------------------------------

FORBIDDEN = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "breakpoint"), "runs text"),
    **dict.fromkeys(("pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "runpy"), "runs a file"),
    **dict.fromkeys(("torch.load", "torch.jit.load", "torch.export.load", "torch.hub", "torch.package"), "runs a file"),
    **dict.fromkeys(("torch.jit.script", "torch.jit.CompilationUnit"), "compiles text"),
    **dict.fromkeys(("torch.ops.load_library", "torch.classes.load_library", "ctypes", "cffi"), "loads a library"),
    **dict.fromkeys(("marshal.load", "marshal.loads", "numpy.fromregex", "yaml"), "reads more than data"),
    **dict.fromkeys(("subprocess", "multiprocessing", "os.system", "os.popen", "os.execv", "pty"), "starts a process"),
    **dict.fromkeys(("onnx.load", "onnx.load_model", "onnx.external_data_helper", "onnx_ir.load"), "opens named files"),
    **dict.fromkeys(("importlib.import_module", "importlib.util.spec_from_file_location"), "imports by a name"),
}
METHODS = {
    "register_custom_ops_library": "loads a library",
    "parse_ir": "compiles text",
    "load_library": "loads a library",
    "set_base_dir": "opens named files",
    "from_file": "opens named files",
}

ALLOWED = {
    ("qfmt/__init__.py", "importlib.import_module"): "the modules of qfmt's own names, from a table",
    ("qfmt/ops/__init__.py", "importlib.import_module"): "the families of operators, from a list",
    ("qfmt/cli/__init__.py", "importlib.import_module"): "the module of a command, from a table",
    ("qfmt/frontends/isolation/child.py", "importlib.import_module"): "the module of an engine, from a table",
    ("qfmt/frontends/sources.py", "importlib.import_module"): "the module of a source, from the table",
    ("qfmt/backends/torch/qdq.py", "importlib.import_module"): "to_torch(): a module of torch, named in the text",
    ("qfmt/file/replacing.py", "ctypes"): "renameat2 of the C library that runs already",
    ("qfmt/frontends/isolation/parent.py", "subprocess"): "starts the worker",
    ("qfmt/archive/workers.py", "subprocess"): "starts workers, which run qfmt",
    ("qfmt/archive/cluster.py", "multiprocessing"): "starts Python's tracker of resources before Dask does",
    ("qfmt/archive/workers.py", "ctypes"): "prctl of the C library that runs already",
    ("qfmt/view/drawing.py", "subprocess"): "starts resvg with limits, on an SVG that qfmt wrote",
    ("qfmt/archive/workers.py", "importlib.import_module"): "the function that a caller of `fill` names",
}


def references(text: str) -> Iterator[str]:
    """Every dotted name that a module imports or uses, with the aliases of its imports resolved."""
    tree, known = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else (alias.name.partition(".")[0])
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = ast.unparse(node)
            first, dot, rest = name.partition(".")
            yield known.get(first, first) + dot + rest


def dangers(text: str) -> set[str]:
    """The names in a module that FORBIDDEN or METHODS list."""
    found = set()
    for name in references(text):
        parts = name.split(".")
        found |= {".".join(parts[: end + 1]) for end in range(len(parts))} & FORBIDDEN.keys()
        found |= {parts[-1]} & METHODS.keys() if len(parts) > 1 else set()
    return found


def test_qfmt_does_not_execute_what_it_reads() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in sorted((ROOT / "qfmt").rglob("*.py"))
        for name in dangers(path.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "no longer needed"


def test_numpy_never_unpickles() -> None:
    for path in (ROOT / "qfmt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in ast.unparse(node), path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch\ntorch.jit.load(x)", "torch.jit.load"),
        ("def f():\n  from torch.jit import load as read\n  read(x)", "torch.jit.load"),
        ("import torch as t\nt.load(x)", "torch.load"),
        ("from pickle import loads", "pickle"),
        ("exec(x)", "exec"),
        ("g = eval", "eval"),
        ("options.register_custom_ops_library(x)", "register_custom_ops_library"),
        ("import onnx\nonnx.load(x)", "onnx.load"),
        ("from os import system", "os.system"),
    ],
)
def test_the_search_finds(text: str, name: str) -> None:
    assert name in dangers(text)


def test_the_search_ignores_harmless_code() -> None:
    assert dangers("import re, torch\nre.compile(x)\nself.eval()\nmodule.load(x)\ntorch.jit.save(x)") == set()
