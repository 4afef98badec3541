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
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ..frontends.isolation.child import end_with
from ..frontends.isolation.parent import import_path

Message = dict[str, Any]

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from qfmt.archive.workers import serve
serve(*sys.argv[2:])
"""


class _Worker:
    """A process that answers tasks until its standard input ends."""

    def __init__(self, work: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-I", "-c", _START, json.dumps(import_path()), work, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)  # without Ctrl-C

    def answer(self, task: Message) -> Message:
        """What it answers, or {"error": why it died}."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError, ValueError, RecursionError):
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            if isinstance(answer, dict):
                return answer
        with suppress(OSError):
            self.process.stdin.close()
        return {"error": f"the worker process {_end(self.process.wait())}"}

    def end(self) -> None:
        """End it, and close the pipes."""
        self.process.kill()
        with suppress(OSError), self.process:
            pass


def results(
    tasks: Sequence[Message], work: str, arguments: Sequence[str], jobs: int
) -> Generator[tuple[Message, Message]]:
    """Each task and the answer to it, as they come: what a worker's `work(*arguments, task)` returns.

    `work` is "module:function". The function must raise nothing. If a worker dies, the answer is {"error": …}.
    """
    workers = [_Worker(work, arguments) for _ in range(min(jobs, len(tasks)))]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def answer(task: Message) -> Message:
        worker = idle.get()
        if worker.process.poll() is not None:
            workers.append(worker := _Worker(work, arguments))
        answer = worker.answer(task)
        idle.put(worker)
        return answer

    pool = ThreadPoolExecutor(max(len(workers), 1))
    try:
        given = {pool.submit(answer, task): task for task in tasks}
        for each in as_completed(given):
            yield given[each], each.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.process.kill()
        pool.shutdown()
        for worker in workers:
            worker.end()


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + ("; it may have run out of memory" if name == "SIGKILL" else "")


def named(name: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def serve(work: str, *arguments: str) -> None:
    """The worker, which ends with its parent. Whatever the work prints goes nowhere: the messages need stdout."""
    target = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    function = named(work)
    with suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            target.write(json.dumps(function(*arguments, json.loads(line))).encode() + b"\n")
            target.flush()
