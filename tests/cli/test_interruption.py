"""Ctrl-C and other signals, sent to commands in many phases: nothing is left, one line says what became of results."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qfmt
from support.command_line import start
from support.paths import DIGITS, ROOT
from support.terminal import Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

WAIT = """
import sys, time
module, name, *sys.argv[1:] = sys.argv[1:]
def waits(*arguments, **options):
    print("waiting", file=sys.stderr, flush=True)
    for _ in range(6000):  # a signal just before a long sleep would not end it
        time.sleep(0.01)
from importlib import import_module
owner = import_module(module)
setattr(owner, name, waits)
sys.argv[0] = "qfmt"
from qfmt.__main__ import run
run()
"""
"""Runs a command in which a function waits: a phase in which it is interrupted."""


def interrupted(folder: Path, *command: object) -> tuple[int, str]:
    """Status and stderr of a process that gets SIGINT, with its whole group, when it says that it waits."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    words = [str(word) for word in command]
    with subprocess.Popen(
        [sys.executable, *words], env=environment, cwd=folder, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == b"waiting\n"
        os.killpg(running.pid, signal.SIGINT)
        told = running.stderr.read().decode()  # to its end: no child has the pipe any more
        status = running.wait(60)
    assert list((folder / "tmp").glob("*qfmt*")) == []  # ONNX Runtime has a file there
    return status, told


@pytest.fixture
def net(tmp_path: Path) -> Path:
    qfmt.convert(DIGITS).save(tmp_path / "net.qfb")
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.float32))
    return tmp_path


PHASES = {
    "reading a source": ("qfmt.frontends.torch.torchscript.source convert", "convert {digits} out.qfb"),
    "lowering": ("qfmt.passes.lowering lower_integer", "convert net.qfb out.qfb --integer-only"),
    "checking rules": ("qfmt.file.writer violations", "convert net.qfb out.qfb"),
    "writing": ("qfmt.file.writer _pad", "convert net.qfb out.qfb"),
    "writing shards": ("qfmt.file.writer _pad", "convert net.qfb out.qfb --shard-size 1K"),
    "writing ONNX": ("qfmt.backends.onnx.write to_proto", "convert net.qfb out.onnx"),
    "writing C": ("qfmt.backends.c.folder check", "convert net_int.qfb out/"),
    "vectors": ("qfmt.compare.random_inputs _tried", "convert net.qfb out.qfb --vectors 1"),
    "running": ("qfmt.interpreter execute", "run net.qfb --input x.npy --output out.npz"),
    "recording": ("qfmt.file.writer _pad", "run net.qfb --input x.npy --record out.qfb"),
    "describing": ("qfmt.view.page describe", "view net.qfb --html out.html"),
    "showing": ("qfmt.file.replacing replacing", "view net.qfb"),
    "drawing": ("qfmt.view.drawing as_svg", "view net.qfb --svg out.svg"),
    "checking": ("qfmt.file.checker _check_buffers", "check net.qfb"),
    "comparing": ("qfmt diff", "diff net.qfb net.qfb"),
    "statistics": ("qfmt.passes.statistics statistics", "inspect net.qfb --stats"),
    "verifying, before the worker": ("qfmt.compare.verification _witness", "verify {digits} net.qfb"),
    "verifying, with a worker": ("qfmt.compare.side_by_side execute", "verify {digits} net.qfb"),
}


WRITING = [phase for phase, (_, line) in PHASES.items() if " out" in line]

CASES = [
    pytest.param(phase, before, marks=pytest.mark.slow if place % 2 == before else (), id=f"{phase}-{name}")
    for before, name in enumerate(("new", "there"))
    for place, phase in enumerate(WRITING)
] + [pytest.param(phase, False, id=phase) for phase in PHASES if phase not in WRITING]
"""A result that is new or there already, by turns; the other case is slow."""


@pytest.mark.parametrize(("phase", "before"), CASES)
def test_an_interrupted_command_leaves_what_was_there(phase: str, before: bool, net: Path) -> None:
    where, line = PHASES[phase]
    words = line.format(digits=DIGITS).split()
    results = [word for word in words if word.startswith("out")]
    if "net_int.qfb" in words:
        qfmt.load(net / "net.qfb").to_integers(input_shapes={"x": ("N", 1, 8, 8)}).save(net / "net_int.qfb")
    for name in results:
        if before and name.endswith("/"):
            (net / name).mkdir()
        elif before:
            (net / name).write_bytes(b"before")
    there = {path: path.read_bytes() for path in net.iterdir() if path.is_file()}
    status, told = interrupted(net, "-c", WAIT, *where.split(), *words)
    fate = "".join(f"; {name.rstrip('/')} was not {'changed' if before else 'written'}" for name in results)
    assert (status, told) == (130, f"qfmt: interrupted{fate}\n")
    assert {path: path.read_bytes() for path in net.iterdir() if path.is_file()} == there
    assert before or not any((net / name).exists() for name in results)


def children(pid: int) -> list[int]:
    """The processes that the threads of a process have started; Linux only."""
    lists = [*Path(f"/proc/{pid}/task").glob("*/children")]
    if not lists:
        pytest.skip("this system does not list the children of a process")
    return [int(each) for path in lists for each in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def waited(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


@pytest.mark.parametrize("group", [True, False], ids=["Ctrl-C", "kill"])
def test_the_worker_of_verify_ends(group: bool, net: Path) -> None:
    """The process that runs torch gets the signal, too, from a terminal, but not from kill."""
    with start(
        "verify", DIGITS, "net.qfb", "--samples", 500, cwd=net, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        assert waited(lambda: bool(children(running.pid)))
        (worker,) = children(running.pid)
        assert waited(lambda: b"torch" in Path(f"/proc/{worker}/maps").read_bytes())
        (os.killpg if group else os.kill)(running.pid, signal.SIGINT)
        told = running.communicate(timeout=60)[1]
    assert (running.returncode, told) == (130, b"qfmt: interrupted\n")
    assert not alive(worker)


@pytest.mark.parametrize("cluster", [(), ("--dask", "local")], ids=["jobs", "dask"])
def test_the_workers_of_an_archive_end(cluster: tuple[str, ...], tmp_path: Path) -> None:
    if cluster:
        pytest.importorskip("distributed", reason="Dask is not installed")
    (tmp_path / "sources").mkdir()
    for number in range(300 if cluster else 40):
        (tmp_path / "sources" / f"{number:03}.pt").write_bytes(DIGITS.read_bytes())
    command = ["convert", "sources", "--out", "archive", "--jobs", 2]
    with start(*command, *cluster, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True) as running:
        manifest = tmp_path / "archive" / "archive.jsonl"
        assert waited(lambda: manifest.exists() and re.search(rb'"content_id": ?"[0-9a-f]', manifest.read_bytes()))
        workers = children(running.pid)
        assert len(workers) == 2 + bool(cluster)  # and a process of multiprocessing
        os.killpg(running.pid, signal.SIGINT)
        told = running.communicate(timeout=60)[1]
    note = b"qfmt: interrupted; archive keeps what was converted; run the same command again to continue\n"
    assert (running.returncode, told) == (130, note)
    assert waited(lambda: not any(map(alive, workers)))
    assert not [path for path in (tmp_path / "archive").iterdir() if path.suffix not in (".qfb", ".jsonl")]
    for path in sorted((tmp_path / "sources").iterdir())[40:]:
        path.unlink()
    done = start(*command, cwd=tmp_path, stdout=subprocess.PIPE).communicate(timeout=300)[0]
    assert b"kept" in done


def test_ctrl_c_on_a_terminal_removes_the_progress(net: Path) -> None:
    code = WAIT.replace(
        "import sys, time\n", "import sys, time\nimport qfmt.cli.progress as shown\nshown.PATIENCE = 0.1\n"
    )
    words = ["-c", code, "qfmt.file.writer", "violations", "convert", "net.qfb", "out.qfb"]
    terminal = Terminal(sys.executable, *words, cwd=net)
    terminal.until("writing out.qfb")
    terminal.send(b"\x03")
    status, text = terminal.end()
    assert status == 130
    assert text.splitlines()[-1].endswith("qfmt: interrupted; out.qfb was not written")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


def test_a_result_that_was_written_is_said_to_be(net: Path) -> None:
    """A signal that comes after the file, as during the notes on it."""
    status, told = interrupted(net, "-c", WAIT, "qfmt.cli.convert", "_hazards", "convert", "net.qfb", "out.qfb")
    assert (status, told) == (130, "qfmt: interrupted; out.qfb was written\n")
    assert qfmt.check(net / "out.qfb") == []


LOSING = """
import os, signal, sys, time, weakref
import qfmt, qfmt.__main__ as program
class Thing: pass
def dropped(*arguments):
    thing = Thing()
    called = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del thing
    time.sleep(60)
def suppressed(*arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except SystemExit:
        os.kill(os.getpid(), signal.SIGINT)  # is ignored: files may be removed here
        time.sleep(program._REMOVAL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
program._REMOVAL = 0.2
qfmt.diff = globals()[sys.argv.pop(1)]
program.run()
"""


@pytest.mark.parametrize("how", ["dropped", "suppressed"])
def test_an_exit_that_is_lost_is_raised_again(how: str, net: Path) -> None:
    """Python drops exceptions of callbacks; a library may suppress any."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LOSING, how, "diff", "net.qfb", "net.qfb"]
    done = subprocess.run(command, env=environment, cwd=net, capture_output=True, timeout=50)
    assert (done.returncode, done.stderr) == (130, b"qfmt: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "convert {digits} out.qfb --integer-only --exact",
        "verify {digits} net.qfb --samples 20",
        "inspect net.qfb --json",
    ],
)
def test_at_any_moment(line: str, net: Path) -> None:
    words = line.format(digits=DIGITS).split()
    begin = time.monotonic()
    assert start(*words, cwd=net, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(120) == 0
    total, names = time.monotonic() - begin, sorted(path.name for path in net.iterdir())
    for part in range(40):
        running = start(*words, cwd=net, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        time.sleep(0.05 + total * part / 40)
        os.killpg(running.pid, signal.SIGINT)
        told = running.communicate(timeout=60)[1].decode()
        assert running.returncode in (0, 130), told
        assert (running.returncode == 130) == (told.startswith("qfmt: interrupted") and told.count("\n") == 1), told
        assert sorted(path.name for path in net.iterdir()) == names
