"""The project as a whole: layout, floors, pins, published files, and forbidden contents."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import dev
import qfmt
from support.paths import DIGITS, ROOT, TOOLS

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

TOP_LEVEL = {
    ".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "docs",
    "examples", "pyproject.toml", "qfmt", "readers", "schema", "spec.md", "tests", "tools",
}  # fmt: skip

FLOORS = {
    "__init__": 0, "errors": 0, "regular": 0, "engines": 0, "forms": 0, "urls": 0, "transfer": 0, "progress": 0,
    "budget": 1, "arrays": 1, "quantization": 1, "graph": 1, "model": 1, "content": 1, "notation": 1, "display": 1,
    "memory": 1, "backstop": 1, "threads": 0,
    "arithmetic": 2, "ops": 2, "rules": 3, "interpreter": 3, "passes": 3, "file": 4, "frontends": 5, "backends": 5,
    "archive": 6, "compare": 6, "cli": 7, "view": 7, "__main__": 7,
}  # fmt: skip

FRAMEWORKS = ("torch", "onnx", "onnxruntime")

UNWANTED = re.compile(
    rb"/w[o]rk/|/r[o]ot/|/h[o]me/[a-z]|/U[s]ers/[a-z]|C:\\U[s]ers|p[y]pi\.org|python[h]osted|npm[j]s\.org|deb\.deb[i]an"
)
"""Paths of a machine and addresses of registries. The brackets keep this line from matching itself."""


def tracked(*others: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", *others], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout: there is no list of the project's files")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_the_top_level_is_what_the_documents_say() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert found == TOP_LEVEL


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [f"{path.relative_to(ROOT)}: {hit.group()!r}" for path in tracked() for hit in _unwanted(path)]
    assert found == []


def _unwanted(path: Path) -> Iterator[re.Match[bytes]]:
    """Matches in a file, or in the members of an archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                yield from UNWANTED.finditer(archive.read(member))
    else:
        yield from UNWANTED.finditer(path.read_bytes())


VERSIONS = {
    "CHANGELOG.md": r"^## \[(.+?)\]",
    "readers/c/CMakeLists.txt": r"^project\(qfb VERSION (\S+)",
    "readers/js/package.json": r'"version": "(.+?)"',
    "readers/js/package-lock.json": r'"version": "(.+?)"',
}
"""Files that repeat `qfmt.__version__`, and the pattern of its first place."""


@pytest.mark.parametrize("name", VERSIONS)
def test_the_first_version_in_a_file_is_that_of_the_package(name: str) -> None:
    found = re.search(VERSIONS[name], (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == qfmt.__version__


def test_torch_is_pinned_once() -> None:
    assert re.findall(r'"(torch==[^"]+)"', PYPROJECT) == ["torch==2.13.0"]


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    command = "python3 tools/dev.py test"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"exec {command}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_setting_up_needs_the_standard_library_only() -> None:
    imported = {name.partition(".")[0] for name in _imports(TOOLS / "dev.py")}
    assert imported <= sys.stdlib_module_names


# Floors


def _imports(path: Path, package: tuple[str, ...] = (), inside_functions: bool = False) -> Iterator[str]:
    """The modules that a file imports at module level, or also inside functions; not those only for type
    checkers."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)
        elif _is_for_type_checkers(node):
            continue
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


MODULES = sorted((ROOT / "qfmt").rglob("*.py"))


def _parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


def test_modules_import_no_higher_floor_and_no_framework() -> None:
    """A framework is imported inside functions, or by the package of `backends/` with its name."""
    wrong = []
    for path in MODULES:
        parts = _parts(path)
        own, is_backend = FLOORS[parts[1]], parts[1] == "backends" and parts[2] in FRAMEWORKS
        for name in _imports(path, parts[:-1]):
            top, _, rest = name.partition(".")
            brings_one = top in FRAMEWORKS or name.startswith(tuple(f"qfmt.backends.{other}" for other in FRAMEWORKS))
            if brings_one and not is_backend:
                wrong.append(f"{path}: {name} must be imported inside a function")
            floor = FLOORS.get(rest.partition(".")[0]) if top == "qfmt" else None
            if floor is not None and floor > own:
                wrong.append(f"{path}: {name} is on floor {floor}, above floor {own}")
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """Not inside functions either, except in the methods of `Model`, which import from every floor."""
    paths = {".".join(_parts(path)).removesuffix(".__init__"): path for path in MODULES}
    imported: dict[str, set[str]] = {}
    for module, path in paths.items():
        imported[module] = set()
        for name in _imports(path, _parts(path)[:-1], inside_functions=module != "qfmt.model"):
            while name and name not in paths:
                name = name.rpartition(".")[0]
            imported[module] |= {name} - {module}
    TopologicalSorter(imported).prepare()  # raises CycleError, which names them


@pytest.mark.parametrize(("source", "other"), [("onnx", "torch"), ("torch", "onnx")])
def test_a_source_imports_nothing_of_another(source: str, other: str, tmp_path: Path) -> None:
    path = DIGITS
    if source == "onnx":
        onnx = pytest.importorskip("onnx")
        path = tmp_path / "m.onnx"
        text = "agraph (float[2] x) => (float[2] y) { y = Relu(x) }"
        path.write_bytes(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}').SerializeToString())
    code = f"import sys, qfmt; qfmt.convert({str(path)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.startswith("qfmt.frontends.")]
    assert any(name.startswith(f"qfmt.frontends.{source}.") for name in loaded)
    assert [name for name in loaded if name.startswith(f"qfmt.frontends.{other}")] == []


def test_every_source_has_a_reader() -> None:
    from qfmt.frontends.sources import IN_MEMORY, KINDS, SOURCES

    assert {kind.source for kind in KINDS.values() if kind.source} == set(SOURCES)
    for source in SOURCES:
        assert {"convert", "witness"} <= vars(source.reader).keys(), source.module
    for module in IN_MEMORY:
        assert "convert_object" in vars(import_module(module, "qfmt.frontends")), module


def test_importing_qfmt_imports_neither_numpy_nor_a_framework() -> None:
    code = "import sys, qfmt, qfmt.model; print(*{'numpy', 'torch', 'onnx', 'flatbuffers'} & sys.modules.keys())"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert finished.stdout.strip() == b""


# Tools


def test_tools_report_unsupported_arguments(tmp_path: Path) -> None:
    words = tmp_path / "tools" / "words.py"
    words.parent.mkdir()
    words.write_bytes((ROOT / "tools" / "words.py").read_bytes())
    for arguments, finding in (
        ([str(words)], "needs a git checkout"),
        ([str(ROOT / "tools" / "operators.py"), "Konv"], "no operators: Konv"),
    ):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        assert done.returncode == 2, done
        assert finding in done.stderr


# Published files: tests/test_release.py installs them


def shipped() -> set[str]:
    """Every file of the checkout, except git's own and ignored ones."""
    paths = (path.relative_to(ROOT) for path in tracked("--others", "--exclude-standard"))
    return {path.as_posix() for path in paths if path.parts[0] in TOP_LEVEL - {".ci", ".gitignore"}}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    flit = pytest.importorskip("flit_core.wheel", reason="flit_core is in the test extra")
    built = flit.make_wheel_in(ROOT / "pyproject.toml", tmp_path_factory.mktemp("wheel")).file
    with zipfile.ZipFile(built) as archive:
        yield archive


def about(name: str) -> str:
    """The path in the wheel of a metadata file."""
    return f"qfmt-{qfmt.__version__}.dist-info/{name}"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    package = {name for name in shipped() if name.startswith("qfmt/")}
    assert {"qfmt/py.typed", "qfmt/file/schema.py", "qfmt/backends/c/kernels/dot.c"} <= package
    metadata = map(about, ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"))
    assert set(wheel.namelist()) == {*package, *metadata}
    assert wheel.read(about("entry_points.txt")).split() == [b"[console_scripts]", b"qfmt=qfmt.__main__:run"]


def test_metadata_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    metadata = Parser().parsestr(wheel.read(about("METADATA")).decode())
    assert metadata["Version"] == qfmt.__version__
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")
    assert metadata["Requires-Python"] == ">={}.{}".format(*dev.OLDEST)
    assert f"Programming Language :: Python :: {dev.OLDEST[0]}.{dev.OLDEST[1]}" in metadata.get_all("Classifier")
    for extra in set(metadata.get_all("Provides-Extra")) - {"docs", "release", "test"}:  # these are for tools/dev.py
        assert f"`{extra}`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_source_archive_holds_the_project_and_nothing_else(tmp_path: Path) -> None:
    sdist = pytest.importorskip("flit_core.sdist", reason="flit_core is in the test extra")
    built = sdist.SdistBuilder.from_ini_path(ROOT / "pyproject.toml").build(tmp_path)
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == {*shipped(), "PKG-INFO"}


def tools() -> list[str]:
    return sorted(path.name for path in TOOLS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", tools())
def test_a_tool_says_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of them need other packages, and say which, too."""
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(TOOLS / name), run_name="__main__")
    told = capsys.readouterr().out or str(left.value)
    (first, *_) = re.split(r"[.:,`;](?:\s|$)", ast.get_docstring(ast.parse((TOOLS / name).read_text(encoding="utf-8"))))
    assert " ".join(first.split()) in " ".join(told.split())
