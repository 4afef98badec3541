"""What commands print on a terminal: tables that fit, colors, a pager, progress."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from qfmt.model import Graph, Model, Node, Quantization, Tensor
from support.command_line import start, tiny_model
from support.paths import DIGITS, ROOT
from support.terminal import Terminal, qfmt

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")

WIDTHS = (60, 80, 200)
LONG = "encoder.layers.{}.self_attention.output_projection.weight"
WIDE = "畳み込み層.重み"
EVIL = "evil\x1b[2J\x1b]0;title\x07\nqfmt: fake"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long names, wide characters, control characters; per-channel scales."""
    grid = Quantization.of((0.5, 0.25), (0, 0), -128, 127, axis=0)
    tensors = {
        name: Tensor.constant(name, np.array([[1, -2], [-128, 127]], np.int8), grid)
        for name in (*map(LONG.format, range(30)), WIDE, EVIL)
    }
    tensors["x"] = Tensor("x", "int8", (2, 2), quantization=grid)
    names = [name for name in tensors if name != "x"]
    nodes = tuple(Node("Identity", (name,), (f"{name}.out",), version=23, scope=name) for name in names)
    tensors |= {node.outputs[0]: Tensor(node.outputs[0], "int8", (2, 2), quantization=grid) for node in nodes}
    path = tmp_path_factory.mktemp("terminal") / "net.qfb"
    Model(Graph(("x",), tuple(node.outputs[0] for node in nodes), nodes, tensors)).save(path)
    return path


def cells(text: str) -> int:
    """The columns of a terminal that a line takes."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


VIEWS = {
    "inspect": ("inspect", "--no-pager"),
    "nodes": ("inspect", "--nodes", "--no-pager"),
    "stats": ("inspect", "--stats", "--no-pager"),
    "tree": ("inspect", "--tree", "--no-pager"),
    "tensor": ("inspect", "--tensor", WIDE, "--no-pager"),
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_what_is_printed_fits_the_terminal(view: str, columns: int, network: Path) -> None:
    command, *options = VIEWS[view]
    terminal = qfmt(command, network.name, *options, columns=columns, cwd=network.parent)
    status, _ = terminal.end()
    shown = terminal.plain
    assert status == 0, shown
    too_long = [line for line in shown.splitlines() if cells(line) > columns and len(line.split()) > 2]
    assert too_long == []  # but for a digest, which is one word
    assert "\x07" not in shown
    assert not [line for line in shown.splitlines() if line.startswith("qfmt:")]
    if view != "tensor":
        assert r"evil\x1b[2J" in "".join(shown.split())
    if columns == 200:
        assert any(WIDE in line for line in shown.splitlines())


def test_columns_are_aligned_by_what_a_terminal_shows(network: Path) -> None:
    """Wide characters take two columns."""
    terminal = qfmt("inspect", network, "--stats", "--no-pager", columns=200)
    terminal.end()
    lines = terminal.plain.splitlines()
    ends = {cells(line[: line.index("..127") + 5]) for line in lines if "..127" in line}
    assert len(ends) == 1
    piped = start("inspect", network, "--tensors", stdout=subprocess.PIPE).communicate()[0].decode()
    begins = {cells(line[: line.index("[2,2]")]) for line in piped.splitlines() if "[2,2]" in line}
    assert len(begins) == 1


def test_a_narrow_terminal_says_what_is_left_out(network: Path) -> None:
    least, less = (qfmt("inspect", network, "--stats", "--no-pager", columns=columns).end() for columns in (8, 1))
    assert least[0] == 0 and less == least
    terminal = qfmt("inspect", network, "--nodes", "--no-pager", columns=60)
    terminal.end()
    assert terminal.plain.splitlines()[-1].startswith("(left out in 60 columns: ")
    terminal = qfmt("inspect", network, "--nodes", "--no-pager", columns=200)
    terminal.end()
    assert "left out" not in terminal.plain


@pytest.mark.parametrize(
    ("variables", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colors_are_for_terminals(variables: dict[str, str], colored: bool, tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "m.qfb")
    status, text = qfmt("inspect", tmp_path / "m.qfb", "--no-pager", variables=variables).end()
    assert status == 0
    assert ("\x1b[36m" in text, "\x1b" in text) == (colored, colored)
    with start("inspect", tmp_path / "m.qfb", stdout=subprocess.PIPE) as piped:
        assert piped.stdout is not None
        assert b"\x1b" not in piped.stdout.read()


@pytest.mark.parametrize(("locale", "block"), [("C.UTF-8", "█"), ("POSIX", "#")])
def test_histograms_use_what_the_encoding_has(locale: str, block: str, network: Path) -> None:
    variables = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    terminal = qfmt("inspect", network, "--stats", "--no-pager", columns=200, variables=variables)
    status, text = terminal.end()
    assert status == 0
    assert block in text
    with start("inspect", network, "--stats", stdout=subprocess.PIPE) as piped:
        assert piped.stdout is not None
        assert "█" not in piped.stdout.read().decode()


# The pager


def pager(tmp_path: Path) -> tuple[Path, Path]:
    """A pager, which notes that it was started, and what it got."""
    program, noted = tmp_path / "my pager", tmp_path / "noted"
    program.write_text(f'#!/bin/sh\ncat > "{noted}"\necho paged\n')
    program.chmod(0o755)
    return program, noted


def test_what_is_longer_than_the_screen_is_paged(network: Path, tmp_path: Path) -> None:
    program, noted = pager(tmp_path)
    variables = {"PAGER": f'"{program}"'}
    status, text = qfmt("inspect", network, variables=variables).end()
    assert (status, text) == (0, "paged\n")
    assert LONG.format(7).partition(".output")[0] in noted.read_text()
    noted.unlink()
    tiny_model().save(tmp_path / "m.qfb")
    status, text = qfmt("inspect", tmp_path / "m.qfb", variables=variables).end()
    assert (status, noted.exists()) == (0, False)
    assert "fc1.weight" in text
    status, text = qfmt("diff", tmp_path / "m.qfb", network, variables=variables).end()
    assert (status, text) == (1, "paged\n")


@pytest.mark.parametrize(("options", "value"), [(["--no-pager"], None), ([], ""), ([], "cat"), ([], "'")])
def test_a_pager_can_be_refused(options: list[str], value: str | None, network: Path, tmp_path: Path) -> None:
    program, noted = pager(tmp_path)
    variables = {"PAGER": f'"{program}"' if value is None else value}
    status, text = qfmt("inspect", network, *options, variables=variables).end()
    assert (status, noted.exists()) == (0, False)
    assert len(text.splitlines()) > 60


def test_a_pipe_is_not_paged(network: Path, tmp_path: Path) -> None:
    program, noted = pager(tmp_path)
    with start("inspect", network, stdout=subprocess.PIPE, variables={"PAGER": f'"{program}"'}) as piped:
        assert piped.stdout is not None
        assert LONG.format(7).encode() in piped.stdout.read()
    assert not noted.exists()


def test_an_error_is_not_paged(network: Path, tmp_path: Path) -> None:
    program, noted = pager(tmp_path)
    status, text = qfmt("inspect", network, "--tensor", "absent", variables={"PAGER": f'"{program}"'}).end()
    assert (status, noted.exists()) == (2, False)
    assert text.startswith("qfmt: error: no tensor 'absent'")


def test_ctrl_c_is_for_the_pager(network: Path, tmp_path: Path) -> None:
    program = tmp_path / "waits"
    program.write_text("#!/bin/sh\ntrap 'echo caught' INT\ncat > /dev/null\necho shown\nread line < /dev/tty\n")
    program.chmod(0o755)
    terminal = qfmt("inspect", network, variables={"PAGER": str(program)})
    terminal.until("shown")
    terminal.send(b"\x03")
    terminal.send(b"\n")  # the shell may begin to read after it looked for signals
    status, text = terminal.end()
    assert (status, "caught" in text, "interrupted" in text) == (0, True, False)


# Progress

SLOW = """
import sys, time
import qfmt.cli.progress as shown
from qfmt.progress import counted
shown.PATIENCE = float(sys.argv.pop(1))
from qfmt.file import checker
from qfmt.model import Graph, Model
def checked(path):
    for _ in counted(range(4), "reading [bold]\\x1b[2Jparts", 4, "parts"):
        time.sleep(0.2)
    return [], Model(Graph((), (), (), {}))
checker.checked = checked
sys.argv[0] = "qfmt"
from qfmt.__main__ import run
run()
"""


def slow(patience: float, *arguments: object, **how: object) -> tuple[int, str]:
    return Terminal(sys.executable, "-c", SLOW, patience, "check", DIGITS, *arguments, **how).end()


def test_progress_of_what_takes_long_is_shown_and_removed() -> None:
    status, text = slow(0.1, columns=200)
    assert status == 0
    assert r"reading [bold]\x1b[2Jparts" in text
    assert "2 of 4 parts" in text
    assert text.splitlines()[-1].endswith(f"{DIGITS}: valid")
    assert text.rindex("\x1b[2K") > text.rindex("of 4 parts")  # erased


def test_progress_of_what_is_short_is_not_shown() -> None:
    assert slow(60) == (0, f"{DIGITS}: valid\n")


def test_quiet_shows_no_progress() -> None:
    assert slow(0.1, "--quiet") == (0, f"{DIGITS}: valid\n")


def test_a_pipe_gets_no_progress() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SLOW, "0.1", "check", str(DIGITS)]
    piped = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert (piped.returncode, piped.stdout.decode(), piped.stderr) == (0, f"{DIGITS}: valid\n", b"")


def test_short_commands_do_not_import_what_shows_progress(tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "m.qfb")
    code = (
        "import sys, atexit; sys.argv = ['qfmt', *sys.argv[1:]]\n"
        "atexit.register(lambda: print([name for name in sys.modules if name.startswith('rich')]))\n"
        "from qfmt.__main__ import run; run()"
    )
    for words in (["check"], ["inspect", "--no-pager"], ["inspect", "--stats", "--no-pager"]):
        status, text = Terminal(sys.executable, "-c", code, words[0], tmp_path / "m.qfb", *words[1:]).end()
        assert status == 0
        assert text.splitlines()[-1] == "[]" or "█" in text  # a histogram needs to know how wide a block is
