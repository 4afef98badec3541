"""The limits of the system for work on files: they end what no budget counts, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import qfmt
from qfmt import backstop
from qfmt.archive.filling import convert_task, fill
from qfmt.cli import main
from qfmt.errors import BudgetError, QfmtError
from support.archives import task_for
from support.paths import EXAMPLES, ROOT

DIGITS = EXAMPLES / "digits" / "digits_int8.pt"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the system limits no memory")
TIMERS = pytest.mark.skipif(sys.platform == "win32", reason="the system has no timers of processor time")

TOO_LONG = "takes more than 1,000 s of processor time; networks rarely need that much"
TOO_LARGE = "takes more than 67.1 MB of memory, or than there is; networks rarely need that much"


def endless(*_: object, **__: object) -> None:
    """Work without an end. Its time is over soon, however slow the machine is."""
    assert signal.getitimer(signal.ITIMER_PROF)[0], "there is no limit"
    signal.setitimer(signal.ITIMER_PROF, 0.01, backstop.AGAIN)
    spin()


def spin() -> None:
    try:
        while True:
            sum(range(1000))
    except Exception:  # as code that expects the errors of a library
        raise AssertionError("the limit is an Exception") from None


def large(*_: object, **__: object) -> None:
    bytearray(1 << 28)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 1000, "READING": 1 << 26, "THREAD": 0, "FACTOR": 0, "SECONDS_PER_BYTE": 0}.items():
        monkeypatch.setattr(backstop, name, value)


def said(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 2
    return result.stderr


def is_as_before() -> bool:
    """Whether this process has no limits: that of memory would be much less than this."""
    return bool(bytearray(1 << 28)) and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("work", "message"),
    [
        pytest.param(endless, TOO_LONG, id="time", marks=TIMERS),
        pytest.param(large, TOO_LARGE, id="memory", marks=LINUX),
    ],
)
@pytest.mark.parametrize(
    ("command", "function"),
    [
        (("inspect", DIGITS), "qfmt.convert"),
        (("diff", DIGITS, DIGITS), "qfmt.diff"),
        (("convert", DIGITS, "out.qfb"), "qfmt.convert"),
        (("convert", DIGITS, "out.qfb"), "qfmt.save"),
        (("convert", DIGITS, "out.onnx"), "qfmt.backends.onnx.write_onnx"),
        (("view", DIGITS, "--html", "out.html"), "qfmt.view.page"),
        (("check", "in.qfb"), "qfmt.file.checker.checked"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_commands_end_with_one_line(
    command: tuple[str | Path, ...],
    function: str,
    work: Callable[..., None],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    qfmt.convert(DIGITS).save("in.qfb")
    monkeypatch.setattr(function, work)
    error = said(*command)
    assert error.startswith(f"qfmt: error: {command[1]}") and message in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.qfb"]
    assert is_as_before()


@LINUX
@pytest.mark.parametrize("limit", ["d", "v"])
def test_a_process_with_little_memory_is_refused(limit: str, tmp_path: Path) -> None:
    def run(kilobytes: int, *arguments: str | Path) -> tuple[int, str]:
        shell = ["bash", "-c", f'ulimit -{limit} {kilobytes}; exec "$@"', "-", sys.executable, "-m", "qfmt"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*shell, *arguments], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    status, told = run(100_000, "check", DIGITS)
    assert (status, told.count("\n")) == (2, 1)
    assert told.startswith("qfmt: error: this process may take only 102.4 MB of memory, and 256.0 MB is the least")
    assert run(256_000, "convert", "--quiet", DIGITS, tmp_path / "digits.qfb") == (0, "")
    assert run(256_000, "check", tmp_path / "digits.qfb") == (0, "")


@LINUX
@pytest.mark.parametrize("limit", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_a_file_is_not_blamed_for_the_limits_of_the_process(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is that of before; only what is said is tested, as memory that is left in the heap counts, too."""
    import resource

    limits = resource.getrlimit

    def less(which: int) -> tuple[int, int]:
        return (1 << 20, limits(which)[1]) if which == getattr(resource, limit) else limits(which)

    with pytest.raises(MemoryError), backstop.enforced(), monkeypatch.context() as patched:
        patched.setattr(resource, "getrlimit", less)
        patched.setattr(resource, "setrlimit", lambda *_: None)
        with backstop.limited(0, "x"):
            raise MemoryError
    assert is_as_before()


@TIMERS
def test_verify_limits_the_reading_of_the_source_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    qfmt.convert(DIGITS).save(tmp_path / "digits.qfb")
    monkeypatch.setattr("qfmt.frontends.torch.torchscript.source.witness", endless)
    assert TOO_LONG in said("verify", DIGITS, tmp_path / "digits.qfb")


@TIMERS
def test_work_that_a_user_asks_for_has_no_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[float] = []
    run = qfmt.Model.with_vectors

    def seen(model: qfmt.Model, *arguments: object, **options: object) -> qfmt.Model:
        limits.append(signal.getitimer(signal.ITIMER_PROF)[0])
        return run(model, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(qfmt.Model, "with_vectors", seen)
    arguments = ["convert", DIGITS, tmp_path / "out.qfb", "--vectors", "1", "--input-shape", "x=1,1,8,8"]
    assert CliRunner().invoke(main, list(map(str, arguments))).exit_code == 0
    assert limits == [0]


@TIMERS
def test_a_source_of_an_archive_is_limited_and_named(tmp_path: Path) -> None:
    with backstop.enforced():
        answer = convert_task(str(tmp_path), f"{__name__}:endless", task_for(DIGITS))
    assert answer["error"].startswith(TOO_LONG)
    assert not list(tmp_path.iterdir())


@TIMERS
def test_a_program_that_imports_qfmt_keeps_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    module = "qfmt.frontends.torch.torchscript.source.convert"

    def convert(*_: object) -> None:
        seen.append(signal.getitimer(signal.ITIMER_PROF)[0])
        raise QfmtError("seen")

    monkeypatch.setattr(module, convert)
    with pytest.raises(QfmtError, match="seen"):
        qfmt.convert(DIGITS)
    with pytest.raises(QfmtError, match="seen"), backstop.enforced():
        qfmt.convert(DIGITS)
    assert seen[0] == 0 and seen[1] != 0


@TIMERS
def test_other_threads_and_timers_are_left_alone() -> None:
    limits: list[float] = []

    def limited() -> None:
        with backstop.enforced(), backstop.limited(0, "x"):
            limits.append(signal.getitimer(signal.ITIMER_PROF)[0])

    thread = threading.Thread(target=limited)
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 1000)
    try:
        limited()
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    assert limits[0] == 0 and limits[1] > 900


@TIMERS
def test_files_that_belong_to_the_first_raise_the_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = qfmt.convert(DIGITS)
    sizes = qfmt.save(model, tmp_path / "digits.qfb", shard_size=4096)
    grown: list[int] = []
    monkeypatch.setattr("qfmt.file.shards.grow", grown.append)
    with qfmt.load(tmp_path / "digits.qfb"):
        assert grown == sizes
    monkeypatch.undo()
    monkeypatch.setattr(backstop, "SECONDS_PER_BYTE", 1.0)
    with backstop.enforced(), backstop.limited(0, "x"):
        qfmt.load(tmp_path / "digits.qfb")
        left = signal.getitimer(signal.ITIMER_PROF)[0]
    assert sum(sizes) <= left


@TIMERS
def test_threads_and_pauses_raise_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are read in threads, and first in a run whose results are then written."""
    monkeypatch.setattr(backstop, "SECONDS_PER_BYTE", 1.0)
    monkeypatch.setattr(backstop, "SECONDS", 100)
    with backstop.enforced(), backstop.limited(0, "x"):
        thread = threading.Thread(target=backstop.grow, args=(1000,))
        thread.start()
        thread.join()
        assert 1000 < signal.getitimer(signal.ITIMER_PROF)[0] < 2000
        with backstop.paused():
            backstop.grow(1000)
            assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
        assert 2000 < signal.getitimer(signal.ITIMER_PROF)[0] < 3000
    backstop.grow(1000)
    assert is_as_before()


@TIMERS
def test_limits_of_a_sparse_file_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes no limit above 2^63 bytes, and no timer above its clock."""
    monkeypatch.setattr(backstop, "SECONDS_PER_BYTE", 1e-5)
    monkeypatch.setattr(backstop, "FACTOR", 256)
    with backstop.enforced(), backstop.limited(1 << 62, "x"):
        backstop.grow(1 << 62)
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 1e8
    assert is_as_before()


@LINUX
def test_a_sparse_file_takes_no_more_memory_than_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstop, "FACTOR", 256)
    monkeypatch.setattr(backstop, "available", lambda: 50_000_000)
    with (
        backstop.enforced(),
        pytest.raises(BudgetError, match=r"more than 117\.1 MB of memory, or than there is"),
        backstop.limited(1 << 40, "x"),
    ):
        np.ones(200_000_000, np.uint8)
    assert is_as_before()


def test_shards_that_are_mapped_late_raise_the_limits_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("qfmt.file.shards.MAPPED", 1)
    sizes = qfmt.save(qfmt.convert(DIGITS), tmp_path / "digits.qfb", shard_size=4096)
    grown: list[int] = []
    monkeypatch.setattr("qfmt.file.shards.grow", grown.append)
    with qfmt.load(tmp_path / "digits.qfb") as model:
        assert grown == sizes[:1]
        for _ in range(2):
            for tensor in model.graph.constants():
                tensor.data.sha256()
    assert len(sizes) > 2
    assert sorted(grown) == sorted(sizes)


@TIMERS
def test_external_data_raises_the_limits_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weights = [onnx.numpy_helper.from_array(np.ones(1000, np.float32), name) for name in "ab"]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1000]) for name in "xy"]
    nodes = [onnx.helper.make_node("Add", ["x", "a"], ["z"]), onnx.helper.make_node("Add", ["z", "b"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save_model(onnx.helper.make_model(graph), tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    grown: list[int] = []
    monkeypatch.setattr("qfmt.frontends.onnx.external.grow", grown.append)
    qfmt.convert(tmp_path / "m.onnx")
    assert grown == [(tmp_path / "m.data").stat().st_size]


@TIMERS
def test_the_limit_is_said_again_if_something_suppressed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstop, "AGAIN", 0.1)
    suppressed = 0
    with pytest.raises(BudgetError, match="x: takes more than"), backstop.enforced(), backstop.limited(0, "x"):
        for _ in range(3):
            with suppress(BaseException):
                spin() if suppressed else endless()
            suppressed += 1
        spin()
    assert suppressed == 3
    assert is_as_before()


@TIMERS
def test_each_file_of_an_archive_that_is_shown_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fill(tmp_path / "archive", {"digits.pt": DIGITS})
    monkeypatch.setattr("qfmt.load", endless)
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "archive"), "--json"])
    (told,) = json.loads(shown.stdout)["models"]
    assert told["error"].startswith("takes more than 1,000 s of processor time")
    assert is_as_before()
