"""The command line as a whole: help, exit status, one-line errors, terminals; `check` and `ops`."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import qfmt
from qfmt.cli import COMMANDS, main
from support.command_line import invoke, start, tiny_model, trouble
from support.paths import DIGITS, ROOT

HOSTILE = "evil\x1b[2Jname\nqfmt: fake"


# The group


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_usage(command: str) -> None:
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: qfmt {command}".rstrip())


def test_version() -> None:
    assert invoke("--version").stdout == f"qfmt {qfmt.__version__}\n"


def test_every_module_of_a_command_is_listed() -> None:
    for name in COMMANDS:
        assert isinstance(main.get_command(click.Context(main), name), click.Command)


@pytest.mark.parametrize(
    ("typed", "advice"), [("convrt", "did you mean 'convert'?"), ("xyzzy", "the commands are convert, inspect")]
)
def test_unknown_command_is_answered_with_a_suggestion(typed: str, advice: str) -> None:
    assert advice in trouble(typed)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nonsense",),
        ("inspect",),
        ("inspect", "no-such-file.qfb"),
        ("inspect", str(DIGITS.parent)),
        ("inspect", DIGITS, "--nonsense"),
        ("inspect", DIGITS, "--floats", "--nodes"),
        ("convert", DIGITS, "x.qfb", "--engine", "nonsense"),
    ],
)
def test_bad_arguments_are_trouble(arguments: tuple[object, ...]) -> None:
    assert "--help" in trouble(*arguments)


def test_unexpected_errors_request_a_report_without_a_traceback(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(qfmt, "load", fail)
    assert "unexpected ZeroDivisionError: surprise" in trouble("inspect", tiny)
    for arguments, variables in ((["--debug"], {}), ([], {"QFMT_DEBUG": "1"})):
        result = CliRunner().invoke(main, [*arguments, "inspect", str(tiny)], env=variables)
        assert "Traceback" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("qfmt: error: unexpected")


def test_a_package_that_cannot_be_loaded_is_not_a_bug_of_qfmt(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ImportError("IMPORTANT") from ImportError("failed to map segment")

    monkeypatch.setattr(qfmt, "load", fail)
    assert trouble("inspect", tiny) == "qfmt: error: a package cannot be loaded: failed to map segment\n"


def test_a_system_that_starts_no_thread_is_not_a_bug_of_qfmt(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(qfmt, "load", fail)
    said = "a thread cannot be started: the system allows no more; raise its limit (ulimit -u), or use fewer --jobs"
    assert trouble("inspect", tiny) == f"qfmt: error: {said}\n"


def test_interruption_is_status_130_without_traceback(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(qfmt, "load", interrupt)
    result = invoke("inspect", tiny)
    assert (result.exit_code, result.output) == (130, "qfmt: interrupted\n")


def test_a_reader_that_has_had_enough_is_no_error(tiny: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed, start("inspect", tiny, stdout=closed, stderr=subprocess.PIPE) as running:
        assert running.communicate(timeout=60)[1] == b""
    assert running.returncode == 0


def test_names_from_a_file_do_not_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.qfb"
    tiny_model(HOSTILE).save(path)
    for options in ((), ("--floats",), ("--tensor", HOSTILE), ("--json",)):
        result = invoke("inspect", path, *options)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
        assert "\nqfmt: fake" not in result.output
    assert "\\x1b[2J" in invoke("inspect", path).stdout


def test_output_survives_a_terminal_without_the_letters(tmp_path: Path) -> None:
    path = tmp_path / "letters.qfb"
    tiny_model("重み").save(path)
    with start("inspect", path, variables={"PYTHONIOENCODING": "latin-1"}, stdout=subprocess.PIPE) as running:
        assert rb"\u91cd" in running.communicate(timeout=60)[0]
    assert running.returncode == 0


def test_inspect_imports_neither_numpy_nor_rich_nor_a_framework(tiny: Path) -> None:
    code = (
        "import sys; from qfmt.cli import main\n"
        f"main(['inspect', {str(tiny)!r}], standalone_mode=False)\n"
        "print(*{'numpy', 'rich', 'torch', 'onnx', 'flatbuffers'} & sys.modules.keys(), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60)
    assert finished.stdout.startswith(b"file")
    assert finished.stderr.strip() == b""


# check


def test_check_of_a_valid_file(tiny: Path) -> None:
    result = invoke("check", tiny)
    assert (result.exit_code, result.stdout) == (0, f"{tiny}: valid\n")
    assert json.loads(invoke("check", tiny, "--json").stdout) == {"file": str(tiny), "valid": True, "violations": []}


def test_check_lists_every_violation(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qfmt.errors import Violation
    from qfmt.file import checker

    broken = [Violation("V12", "tensor fc1", "has no scale"), Violation("V33", "node 1", "reads what is not there")]
    monkeypatch.setattr(checker, "checked", lambda _: (broken, None))
    result = invoke("check", tiny)
    assert result.exit_code == 1
    assert result.stdout == "V12 tensor fc1: has no scale\nV33 node 1: reads what is not there\n"
    listed = json.loads(invoke("check", tiny, "--json").stdout)["violations"]
    assert listed[0] == {"rule": "V12", "where": "tensor fc1", "what": "has no scale"}


def test_check_of_what_is_no_qfb_is_trouble() -> None:
    assert str(DIGITS) in trouble("check", DIGITS)


# ops


def test_ops_lists_every_operator() -> None:
    from qfmt.ops import OPERATORS

    lines = invoke("ops").stdout.splitlines()[1:]
    assert {line.split()[0] for line in lines} == OPERATORS.keys()
    assert {entry["name"] for entry in json.loads(invoke("ops", "--json").stdout)} == OPERATORS.keys()


def test_ops_explains_one_by_its_name_here_or_in_torch() -> None:
    text = invoke("ops", "Conv").stdout
    assert "X W B? -> Y" in text
    assert "fbgemm: float_bias" in text
    assert "strides" in text
    assert invoke("ops", "quantized::add").stdout == invoke("ops", "Add").stdout
    assert "similar: Conv" in trouble("ops", "Cov")
    assert invoke("ops", "aten::relu").stdout == invoke("ops", "Relu").stdout
    assert "'aten::relu6' is converted, to operators" in trouble("ops", "aten::relu6")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", ["ops", "--help", "--version", *(f"{name} --help" for name in COMMANDS)])
def test_a_stream_that_is_full(arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = start(*arguments.split(), stdout=full, stderr=subprocess.PIPE)
        told = done.communicate()[1].decode()
        assert (done.returncode, told) == (
            2,
            "qfmt: error: standard output: cannot be written: No space left on device\n",
        )
        assert start("inspect", "nothing.qfb", stderr=full).wait() == 2


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_a_path_that_cannot_be_looked_at(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no error of standard output."""

    def refused(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "is_dir", refused)
    assert "m.qfb: Input/output error" in trouble(command, "m.qfb")


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit of size")
@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
def test_a_disk_that_becomes_full(variables: dict[str, str], tmp_path: Path) -> None:
    """A part of the output is written; Python without a buffer loses the rest, and says nothing."""
    path = tmp_path / "facts.json"
    with path.open("w") as out:
        limited = [
            "bash",
            "-c",
            'ulimit -f 4; exec "$@"',
            "-",
            sys.executable,
            "-m",
            "qfmt",
            "inspect",
            DIGITS,
            "--json",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", **variables}
        done = subprocess.run(limited, env=environment, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert path.stat().st_size == 4096
    assert (done.returncode, done.stderr) == (2, "qfmt: error: standard output: cannot be written: File too large\n")
