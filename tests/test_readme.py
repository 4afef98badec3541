"""README.md tells the truth: its examples are executed, and print what it says they print.

A `console` block holds commands (`$ …`), each followed by what it prints on stdout and stderr; a line `…` stands for
any number of lines, and seconds may differ. A `python` block is executed, and what it prints stands in comments
`# → …` behind the prints. All blocks share one folder, in order, with `examples/` in it. A `sh` block is not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(console|python)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
ANYTHING = "…"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run: the example's files, and a `qfmt` that is this checkout's."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def commands(block: str) -> list[tuple[str, list[str]]]:
    """(command, lines that it prints) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(printed).strip("\n").splitlines()) for command, printed in found]


def same_text(promised: list[str], printed: list[str]) -> bool:
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == ANYTHING else re.escape(_without_seconds(line)) + "\n" for line in promised
    )
    return re.fullmatch(pattern, "".join(f"{_without_seconds(line)}\n" for line in printed)) is not None


def _without_seconds(line: str) -> str:
    return re.sub(r"\d+\.\d+ s$", "… s", line.rstrip())


def test_there_is_something_to_run() -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds.count("console") >= 5
    assert kinds.count("python") >= 1


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_an_example_prints_what_the_readme_says(index: int, folder: Path) -> None:
    kind, block = BLOCKS[index]
    if kind == "console":
        for command, promised in commands(block):
            printed = shell(command, folder).rstrip("\n").splitlines()
            assert same_text(promised, printed), f"$ {command}\n" + "\n".join(printed)
    else:
        promised = re.findall(r"# → (.*)$", block, re.MULTILINE)
        assert python(block, folder).splitlines() == promised


def shell(command: str, folder: Path) -> str:
    """What a command prints, both streams; `qfmt` and `python` are this Python's."""
    program = f'"{sys.executable}"'
    functions = f'qfmt() {{ {program} -m qfmt "$@"; }}; python() {{ {program} "$@"; }}; '
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        ["bash", "-c", functions + command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
    )
    return finished.stdout


def python(block: str, folder: Path) -> str:
    """What a block prints, executed in this process: with coverage, and without a second start."""
    printed = io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)
    return printed.getvalue()


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []
