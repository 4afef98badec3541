"""What threads, forked processes and signal handlers may do at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import qfmt
from qfmt.errors import QfmtError
from qfmt.frontends.isolation import parent
from qfmt.frontends.torch.torchscript import code
from qfmt.threads import TORCH, Turns
from support.processes import end_of_fork

MODEL = """
import atexit, sys, threading
import numpy as np
import qfmt

arrays = [np.full(5_000_000, index, np.uint8) for index in range(2)]
tensors = {f"w{index}": qfmt.Tensor.constant(f"w{index}", array) for index, array in enumerate(arrays)}
model = qfmt.Model(qfmt.Graph((), (), (), tensors))

def work():
    model.save(sys.argv[1])
    assert qfmt.load(sys.argv[1], verify="all") == model
"""

ENDS = {
    "a thread outlives the main thread": """
def late():
    threading.main_thread().join()
    work()

threading.Thread(target=late).start()
""",
    "at exit": "atexit.register(work)",
    "no threads": """
import concurrent.futures

class Executor:
    def __init__(self, count):
        raise RuntimeError("can't start new thread")

concurrent.futures.ThreadPoolExecutor = Executor
work()
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_large_arrays_are_hashed_without_more_threads(end: str, tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    done = subprocess.run([sys.executable, "-c", MODEL + ENDS[end], path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert qfmt.check(path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("turns", [parent._REQUESTS, code._PARSING, TORCH])
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(turns: Turns) -> None:
    began, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.turn():
            began.set()
            forked.wait()

    def take() -> None:
        with turns.turn():
            pass

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait()
    assert not turns._lock.acquire(timeout=0)
    assert end_of_fork(take) == 0
    forked.set()
    holder.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_does_not_wait_for_the_thread_that_forked() -> None:
    turns = Turns()

    def take() -> None:
        with turns.turn():
            pass

    with turns.turn():
        assert end_of_fork(take) == 0


def test_turns_are_not_nested_by_mistake() -> None:
    turns = Turns()
    for _ in range(2):
        with turns.turn(), pytest.raises(QfmtError, match="the same work; a signal handler"), turns.turn():
            pass
    with TORCH.turn(), TORCH.turn():
        pass
