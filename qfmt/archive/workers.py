"""Worker processes, each with one task at a time: what kills a worker is the task that it has.

`concurrent.futures` gives up a whole pool when a process of it dies, and does not say which task it had; so threads of
a pool talk to processes. Messages are lines of JSON: nothing that a worker says, which reads untrusted files, is
unpickled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import SimpleQueue
from threading import Event, Thread, Timer
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ..backstop import enforced, limit_process
from ..errors import QfmtError, message
from ..frontends.isolation.child import end_with
from ..frontends.isolation.parent import import_path
from ..memory import physical
from ..progress import counted

Message = dict[str, Any]

AnyTask = TypeVar("AnyTask", bound=Mapping[str, object])

ANNOUNCED = "announced"
"""The key of what a worker announces before it answers."""

LONGEST = 1 << 28
"""Bytes of the longest answer of a worker."""

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from qfmt.archive.workers import serve
serve(*sys.argv[2:])
"""


_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of prctl(2): the signal that a process gets when the thread that started it ends."""


class Limits(NamedTuple):
    """What a worker may take: bytes of memory, as far as the system can limit that, and seconds for a task."""

    memory: int
    seconds: float | None = None

    @classmethod
    def of(cls, memory: int | None, seconds: float | None, jobs: int) -> Limits:
        """Without a limit of memory, its share of that of the machine."""
        return cls(memory or physical() // jobs, seconds)


class _Worker:
    """A process that answers tasks until its standard input ends."""

    def __init__(self, work: str, arguments: Sequence[str], limits: Limits) -> None:
        self.limits = limits
        numbers = str(os.getpid()), str(limits.memory)
        command = [sys.executable, "-I", "-c", _START, json.dumps(import_path()), *numbers, work, *arguments]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        try:  # in a new session, so that Ctrl-C does not reach it
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True)
        except OSError as error:
            raise QfmtError(f"a process cannot be started: {error.strerror}", hint="use fewer --jobs") from None

    def answer(self, task: Mapping[str, object]) -> Message:
        """What it answers, or {"error": why it died}, with what it announced."""
        assert self.process.stdin is not None and self.process.stdout is not None
        late, announced = Event(), Message()
        with suppress(OSError, ValueError, RecursionError), self._limited(late):
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
            while isinstance(answer := json.loads(self.process.stdout.readline(LONGEST)), dict):
                if answer.keys() != {ANNOUNCED}:
                    return answer | announced
                announced = answer
        with suppress(OSError):
            self.process.stdin.close()
        status = self.process.wait()
        if late.is_set():
            return {"error": f"took longer than {self.limits.seconds:g} s, the limit of --timeout"} | announced
        return {"error": f"the worker process {_end(status)}"} | announced

    @contextmanager
    def _limited(self, late: Event) -> Iterator[None]:
        """Kill it, and say so, if this takes too long."""

        def kill() -> None:
            late.set()
            self.process.kill()

        if self.limits.seconds is None:
            yield
            return
        timer = Timer(self.limits.seconds, kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if late.is_set():  # also if its answer came just before: it has no next task
                self.process.wait()

    def end(self) -> None:
        """End it, and close the pipes."""
        self.process.kill()
        with suppress(OSError), self.process:
            pass


def results(
    tasks: Sequence[AnyTask], work: str, arguments: Sequence[str], jobs: int, limits: Limits | None = None
) -> Generator[tuple[AnyTask, Message]]:
    """Each task and the answer to it, as they come: what a worker's `work(*arguments, task)` returns.

    `work` is "module:function". The function must raise nothing. If a worker dies, the answer is {"error": …}.
    QfmtError if the system starts no more processes.
    """
    count = min(jobs, len(tasks))
    limits = limits or Limits.of(None, None, max(count, 1))
    workers: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def answer(task: AnyTask) -> Message:
        worker = idle.get()
        try:
            if worker.process.poll() is not None:
                workers.append(worker := _Worker(work, arguments, limits))
            return worker.answer(task)
        finally:  # whatever happens: other threads wait for a worker
            idle.put(worker)

    pool = ThreadPoolExecutor(max(count, 1))
    try:
        for _ in range(count):
            workers.append(_Worker(work, arguments, limits))
            idle.put(workers[-1])
        given = {pool.submit(answer, task): task for task in tasks}
        for each in counted(as_completed(given), "", len(tasks), "files"):
            yield given[each], each.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.process.kill()
        pool.shutdown()
        for worker in workers:
            worker.end()


def accepted(answer: object, is_valid: Callable[[Message], bool]) -> Message:
    """The answer of a worker if it is an error, or valid for its work; else {"error": …}.

    Answers are checked because a file may have taken over the worker that read it.
    """
    if isinstance(answer, dict):
        is_error = [*answer] == ["error"] and type(answer["error"]) is str and answer["error"] != ""
        if (is_error or is_valid(answer)) and _is_text(answer):
            return answer
    return {"error": "the worker process sent an invalid answer"}


def _is_text(answer: Message) -> bool:
    """Whether it can be written into a manifest that can be read: without halves of characters and endless numbers."""
    try:
        json.dumps(answer, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_SIGNALS = {each.value: each.name for each in signal.Signals}


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = _SIGNALS.get(-status, f"signal {-status}")
    return f"was ended by {name}" + ("; it may have run out of memory" if name == "SIGKILL" else "")


def named(name: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


_answers: list[BinaryIO] = []
"""In a worker: where its answers go."""


def announce(answer: Message) -> None:
    """Called by a worker before it does what its parent must know of, even if it dies then. In other processes, nothing
    happens."""
    for target in _answers:
        _say(target, json.dumps({ANNOUNCED: answer}).encode())


def _say(target: BinaryIO, line: bytes) -> None:
    target.write(line + b"\n")
    target.flush()


def serve(parent: str, memory: str, work: str, *arguments: str) -> None:
    """The worker, which ends with its parent. Whatever the work prints goes nowhere: the messages need stdout."""
    target = os.fdopen(os.dup(1), "wb")
    _answers.append(target)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    if sys.platform == "linux":  # at once, even if this process is stopped, or waits for a slow disk
        import ctypes

        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    try:
        Thread(target=end_with, args=(int(parent),), daemon=True).start()
    except RuntimeError as error:  # the system allows no more threads
        for _ in sys.stdin.buffer:
            _say(target, json.dumps({"error": message(error)}).encode())
        return
    function = named(work)
    limit_process(int(memory))  # after the imports, as it limits what tasks need beyond them
    with suppress(BrokenPipeError), enforced():
        for line in sys.stdin.buffer:
            _say(target, _answer(function, arguments, line))


def _answer(function: Callable[..., Message], arguments: Sequence[str], task: bytes) -> bytes:
    try:
        return json.dumps(function(*arguments, json.loads(task))).encode()
    except MemoryError as error:
        return json.dumps({"error": message(error)}).encode()
