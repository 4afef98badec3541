"""Completion by real shells, on a terminal. docs/terminal.md has the commands that set it up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qfmt.model import Graph, Model, Tensor
from support.command_line import tiny_model
from support.paths import ROOT
from support.terminal import Terminal

PAGE = (ROOT / "docs" / "terminal.md").read_text(encoding="utf-8")

SHELLS = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"], "fish": ["fish", "--no-config", "-i"]}
PREPARED = {"bash": "true", "zsh": "autoload -Uz compinit; compinit -u -D", "fish": "true"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of many suffixes, and `qfmt` on the path."""
    program = tmp_path / "bin" / "qfmt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m qfmt "$@"\n')
    program.chmod(0o755)
    home = tmp_path / "here"
    (home / "models").mkdir(parents=True)
    tiny_model().save(home / "net.qfb")
    for name in ("net.txt", "net.npy", "models/inner.onnx", "my net.pt", ".hidden.qfb"):
        (home / name).touch()
    return home


@pytest.fixture
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    """A shell in which completion was set up as the page says."""
    name: str = request.param
    if not hasattr(os, "openpty") or shutil.which(name) is None:
        pytest.skip(f"there is no {name}, or there are no pseudo-terminals")
    (command,) = re.findall(rf"^(.*_QFMT_COMPLETE={name}_source .*)$", PAGE, re.MULTILINE)
    command = command.partition(">")[0].strip() + " | source" if name == "fish" else command
    variables = {"PATH": f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    terminal = Terminal(*SHELLS[name], columns=200, lines=50, cwd=folder, variables=variables)
    terminal.send(f"{PREPARED[name]}; {command}; echo rea''dy\n".encode())
    terminal.until("ready")
    yield terminal
    terminal.process.kill()
    terminal.end()


def typed(shell: Terminal, keys: str, *expected: str) -> str:
    """What the shell shows for some keys: once it has what is expected."""
    shell.printed = b""
    shell.send(b"\x15" + keys.encode())  # Ctrl-U: another line
    return shell.until(lambda text: all(each in text for each in expected))


@pytest.mark.parametrize("shell", SHELLS, indirect=True)
def test_a_shell_completes(shell: Terminal) -> None:
    typed(shell, "qfmt insp\t", "inspect ")
    typed(shell, "qfmt check n\t", "net.qfb ")  # neither net.npy nor net.txt
    typed(shell, "qfmt run net.qfb --input n\t", "net.npy ")
    typed(shell, "qfmt inspect mod\t", "models/")
    typed(shell, "qfmt inspect models/\t", "models/inner.onnx ")
    typed(shell, "qfmt convert net.qfb out.qfb --engine qn\t", "qnnpack ")
    typed(shell, "qfmt ops HardSi\t", "HardSigmoid ")
    typed(shell, "qfmt inspect net.qfb --tensor fc1.w\t", "fc1.weight ")
    typed(shell, "qfmt inspect net.qfb --tensor fc1._\t", "fc1._packed_params._packed_params ")
    typed(shell, "qfmt convert net.qfb out.qfb --end-at fc1.w\t", "fc1.weight ")


@pytest.mark.parametrize("shell", SHELLS, indirect=True)
def test_a_shell_quotes_what_it_completes(shell: Terminal) -> None:
    """What is completed is one argument: the program gets the name of the file."""
    shell.printed = b""
    shell.send(b"qfmt inspect my\t")
    shell.until("net.pt")
    shell.send(b"\n")
    shell.until("my net.pt: is an empty file")


def test_names_that_a_shell_would_take_apart_are_not_offered(tmp_path: Path) -> None:
    names = ("plain.weight", "$(touch PWNED)", "`touch PWNED`", "a b", "a;b", "a\nplain,b", "ü/ü", "*")
    path = tmp_path / "m.qfb"
    Model(Graph((), (), (), {name: Tensor.constant(name, np.ones(1, np.int8)) for name in names})).save(path)
    assert completed(f"qfmt inspect {path} --tensor ", 4) == ["plain,plain.weight", "plain,ü/ü"]


def test_what_is_no_file_completes_nothing(tmp_path: Path) -> None:
    (tmp_path / "damaged.qfb").write_bytes(b"QFB")
    for word in (tmp_path / "damaged.qfb", tmp_path / "absent.qfb", tmp_path, "http://127.0.0.1:9/m.qfb"):
        assert completed(f"qfmt inspect {word} --tensor ", 4) == []


def test_a_word_that_is_no_number_completes_nothing() -> None:
    assert completed("qfmt conv", "x") == []


def completed(line: str, word: int | str) -> list[str]:
    """What bash is told."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_QFMT_COMPLETE": "bash_complete"}
    environment |= {"COMP_WORDS": line, "COMP_CWORD": str(word)}
    command = [sys.executable, "-c", "from qfmt.__main__ import run; run()"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return [*filter(None, done.stdout.splitlines())]
