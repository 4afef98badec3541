"""Worker processes, each with one task at a time: what kills a worker is the task that it has.

`concurrent.futures` gives up a whole pool when a process of it dies, and does not say which task it had. Messages are
JSON: nothing that comes from a worker, which reads untrusted files, is unpickled.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, resource_tracker
from typing import Any

Message = dict[str, Any]
Work = Callable[[Message], Message]

_CONTEXT = get_context("spawn")


class _Worker:
    """A process that answers tasks until its connection is closed. `work` must be picklable and raise no Exception."""

    def __init__(self, work: Work) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs, work), daemon=True)
        with _uninterrupted():
            self.process.start()
        theirs.close()
        self.task: Message = {}

    def takes(self, task: Message) -> bool:
        """Give it a task; false if it is dead."""
        self.task = task
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(task).encode())
            return True
        return False

    def answer(self) -> Message:
        """What it answers, or {"error": why it died}."""
        with suppress(EOFError, OSError):
            answer: Message = json.loads(self.connection.recv_bytes())
            return answer
        self.process.join()
        return {"error": f"the worker process {_end(self.process.exitcode or 0)}"}

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def results(tasks: Iterable[Message], work: Work, jobs: int) -> Generator[tuple[Message, Message]]:
    """Each task and the answer to it, as they come. A task whose worker dies is answered with {"error": …}."""
    waiting, finished = iter(tasks), list[tuple[Message, Message]]()
    busy: dict[object, _Worker] = {}
    idle: list[_Worker] = []
    try:
        while True:
            while len(busy) < jobs and (task := next(waiting, None)) is not None:
                worker = next((each for each in _taken(idle) if each.takes(task)), None) or _started(work, task)
                busy[worker.connection] = worker
            yield from finished
            if not busy:
                return
            finished = []
            for ready in connection.wait([worker.connection for worker in busy.values()]):
                worker = busy.pop(ready)
                finished.append((worker.task, worker.answer()))
                (idle if worker.process.exitcode is None else []).append(worker)
    finally:
        for worker in (*busy.values(), *idle):
            worker.kill()


def _taken(idle: list[_Worker]) -> Iterator[_Worker]:
    while idle:
        yield idle.pop()


def _started(work: Work, task: Message) -> _Worker:
    worker = _Worker(work)
    worker.takes(task)  # if it is dead already, that is its answer
    return worker


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + ("; it may have run out of memory" if name == "SIGKILL" else "")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What starts here never sees a Ctrl-C, which a terminal sends to all processes: the parent ends its workers."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # with the first worker it would start, and admit the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(parent: connection.Connection, work: Work) -> None:
    """The worker. If the parent is gone, so is whoever wanted the answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            parent.send_bytes(json.dumps(work(json.loads(parent.recv_bytes()))).encode())
