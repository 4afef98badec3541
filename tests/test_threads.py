"""What threads, forked processes and signal handlers may do at the same time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.errors import QfmtError
from qfmt.file.tensors import Tensors
from qfmt.frontends.isolation import parent
from qfmt.threads import TORCH, Turns, cached_property, literal, on_threads
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


@pytest.mark.parametrize("read", ["names", "tensors", "nodes"])
def test_threads_decode_a_file_once(read: str, tmp_path: Path) -> None:
    """What a file may become in memory has a limit. Each thread that decoded the same spent a part of it."""
    grid, count = Quantization.per_tensor(0.5, 0, "int8"), 2000
    nodes = [Node("Identity", (f"x{index}",), (f"x{index + 1}",), version=23) for index in range(count)]
    between = [Tensor(f"x{index}", "int8", (1,), None, grid) for index in range(count + 1)]
    constants = [Tensor.constant(f"w{index}", np.zeros(1, np.int8), grid) for index in range(count)]
    tensors = {tensor.name: tensor for tensor in (*between, *constants)}
    Model(Graph(("x0",), (f"x{count}",), nodes, tensors)).save(tmp_path / "m.qfb")

    def left(readers: int) -> int:
        """What is left for more when so many threads have read it."""
        model = qfmt.load(tmp_path / "m.qfb")
        ready = threading.Barrier(readers)

        def work(_: int) -> None:
            ready.wait()
            match read:
                case "names":
                    assert list(model.tensors) == sorted(tensors)
                case "tensors":
                    assert all(tensor.quantization for tensor in model.tensors.values())
                case "nodes":
                    assert len([node.operator for node in model.nodes]) == count

        with ThreadPoolExecutor(readers) as threads:
            list(threads.map(work, range(readers)))
        assert isinstance(model.graph.tensors, Tensors)
        return model.graph.tensors._container._decoder._budget

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert left(8) == left(1)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("turns", [parent._REQUESTS, TORCH])
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
    assert not turns.lock.acquire(timeout=0)
    assert end_of_fork(take) == 0
    forked.set()
    holder.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_threads_of_a_forked_child_take_turns() -> None:
    """One of them may have the number of the parent's thread that had the lock."""
    turns, began, forked = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns.lock:
            began.set()
            forked.wait()

    def take() -> None:
        def one() -> None:
            with turns.turn():
                pass

        for _ in range(4):
            other = threading.Thread(target=one, daemon=True)
            other.start()
            other.join(5)
        assert turns.lock.acquire(timeout=20)

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait()
    assert end_of_fork(take) == 0
    forked.set()
    holder.join()


class Slow:
    """An object whose value a thread computes until it may end."""

    def __init__(self) -> None:
        self.began, self.end = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        self.began.set()
        self.end.wait()
        return 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_does_not_wait_for_a_value_that_its_parent_computes() -> None:
    slow, other = Slow(), Slow()
    other.end.set()
    holder = threading.Thread(target=lambda: slow.value)
    holder.start()
    slow.began.wait()
    assert end_of_fork(lambda: other.value) == 0
    slow.end.set()
    holder.join()
    assert slow.value == slow.__dict__["value"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_does_not_wait_for_the_thread_that_forked() -> None:
    turns = Turns()

    def take() -> None:
        with pytest.raises(QfmtError, match="in the middle of the same work"), turns.turn():
            pass

    with turns.turn():
        assert end_of_fork(take) == 0


def test_a_parser_that_other_threads_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of torch parse, too. Python 3.11 then raises SystemError, rarely."""
    parse, left = ast.parse, 5

    def disturbed(*arguments: Any) -> ast.AST:
        nonlocal left
        left -= 1
        if left > 0:
            raise SystemError("AST constructor recursion depth mismatch (before=120, after=80)")
        return parse(*arguments)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert literal("(1, 'a')") == (1, "a")
    assert left == 0


def test_a_signal_handler_uses_no_other_threads() -> None:
    with on_threads(2) as apply:
        assert apply is not map and list(apply(abs, [-1, 2])) == [1, 2]
        with on_threads(2) as nested:
            assert nested is map
    with on_threads(2) as apply:
        assert apply is not map


def test_turns_are_not_nested_by_mistake() -> None:
    turns = Turns()
    for _ in range(2):
        with turns.turn(), pytest.raises(QfmtError, match="the same work; a signal handler"), turns.turn():
            pass
    with turns.lock, turns.lock:
        pass
