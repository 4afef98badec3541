"""The parent's side of workers: one process per kind of engine, started on demand."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...engines import FOR_RUNTIME
from ...errors import LONGEST, RunError
from ...memory import Memory, limit_for
from ...threads import Turns
from . import wire

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from qfmt.frontends.isolation.child import main
main(*sys.argv[2:])
"""

_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Makes waiting threads of torch sleep. By default they spin and use the processor that other threads need: on a
busy machine a call of microseconds then takes milliseconds."""

_WORKERS: dict[str, Worker] = {}

_REQUESTS = Turns()


class EngineDied(RunError):
    """The worker process has ended unexpectedly."""


class Session:
    """A program, and the engine that executes it in a worker.

    `program` returns the arguments that the engine is built from; it is called again if the worker is restarted.
    `call` maps the index of a call to its name and place, for error messages; `name` is the engine in messages.
    `takes` checks that a value is a valid answer, since a malicious file may have taken over the worker.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        program: Callable[[], Sequence[Any]],
        call: Callable[[int], tuple[str, str]],
        takes: Callable[[Any], bool],
    ) -> None:
        self.kind, self.name, self.program, self.call, self.takes = kind, name, program, call, takes

    def open(self) -> str:
        """Start the engine; return the name and version of its package. RunError if it cannot start."""
        with _REQUESTS.turn():
            return _worker(self.kind).open(self)

    def ask(self, verb: str, *arguments: Any) -> dict[str, Any]:
        """Send a request; return the results by name. RunError if the engine fails or its process dies."""
        with _REQUESTS.turn():
            worker = _worker(self.kind)
            if worker.session is not self:
                worker.open(self)
            return dict(worker.exchange(self, self.takes, verb, *arguments))


def is_installed(package: str) -> bool:
    """Whether a package is installed, without importing it."""
    try:
        return find_spec(package) is not None
    except ValueError:  # sys.modules has something else under its name
        return False


FEWER = "verify with smaller inputs"


def _nbytes(value: Any) -> int:
    """Bytes of the arrays in arguments or a result."""
    if isinstance(value, dict | list | tuple) and not hasattr(value, "array"):
        return sum(map(_nbytes, value.values() if isinstance(value, dict) else value))
    return int(getattr(getattr(value, "array", value), "nbytes", 0))


class Worker:
    """A process that has one session at a time."""

    def __init__(self, kind: str) -> None:
        self.kind, self.owner = kind, os.getpid()
        self.session: Session | None = None
        self.version = ""
        self.given = 0
        """Bytes of the arrays that the engine was built from."""
        flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]  # -I ignores PYTHONDONTWRITEBYTECODE
        command = [sys.executable or "", *flags, "-c", _START, json.dumps(import_path()), kind, str(os.getpid())]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command,
                bufsize=0,  # a buffer has a lock, which a thread may hold when the process forks
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                env=_WAITING | os.environ | FOR_RUNTIME,
            )
        except OSError as error:
            raise RunError(f"a process for {kind} cannot be started: {error.strerror}") from None

    @property
    def is_alive(self) -> bool:
        """Whether the worker runs and belongs to this process; a fork of the process that started it must not use
        it."""
        return self.owner == os.getpid() and self.process.poll() is None

    def open(self, session: Session) -> str:
        """Build the engine of a session, unless it is the current one; return name and version of the package."""
        if self.session is not session:
            self.session, self.given = None, 0
            program = session.program()
            told = dict(self.exchange(session, lambda value: isinstance(value, str), "open", *program))
            self.given = _nbytes(program)
            self.version, self.session = told.get("version", ""), session
        return self.version

    def exchange(
        self, session: Session, takes: Callable[[Any], bool], verb: str, *arguments: Any
    ) -> Iterator[tuple[str, Any]]:
        """Send a request; yield (name, value) for each result. Together they take what a run may, with the arguments
        and the arrays that the engine was built from."""
        assert self.process.stdin is not None and self.process.stdout is not None
        memory = Memory(limit_for(self.given + _nbytes(arguments)), FEWER)
        at, answered, error = -1, False, None
        try:
            wire.write(self.process.stdin, [verb, *arguments])
            while not answered:
                match wire.read(self.process.stdout):
                    case ["value", str() as key, value] if takes(value):
                        memory.require(size := _nbytes(value))
                        memory.held += size
                        yield key, value
                    case ["at", int() as at]:
                        pass
                    case ["done"]:
                        answered = True
                    case ["error", str() as what, str() as where, str() as hint]:
                        answered = True
                        error = RunError(what[:LONGEST], where=where[:LONGEST], hint=hint[:LONGEST])
                    case _:  # not a message of our worker
                        raise wire.Closed
        except wire.Closed:
            self.stop(patience=5)  # to know its exit status
            what, where = "", ""
            with suppress(LookupError):  # the index that a worker reports may be wrong
                what, where = session.call(at) if at >= 0 else (what, where)
            when = f"while running {what}" if what else "before its first call"
            raise EngineDied(f"{session.name} died ({self._end()}) {when}", where=where) from None
        except MemoryError:
            raise RunError(f"the results of {session.name} do not fit into memory", hint=FEWER) from None
        finally:
            if not answered:  # the pipes may contain the rest of a message
                self.stop()
        if error is not None:
            raise error

    def _end(self) -> str:
        code = self.process.returncode
        if code >= 0:
            return f"exit status {code}"
        known = {each.value: f", {each.name}" for each in signal.Signals}
        return f"signal {-code}{known.get(-code, '')}"

    def stop(self, patience: float = 0) -> None:
        """Terminate the process, unless it ends by itself within `patience` seconds, and wait for it.

        A fork of the process that started it only closes its ends of the pipes.
        """
        if self.owner == os.getpid():
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # unsent data for a process that has ended
                stream.close()  # type: ignore[union-attr]


def _worker(kind: str) -> Worker:
    worker = _WORKERS.get(kind)
    if worker is not None and worker.is_alive:
        return worker
    if worker is not None:
        worker.stop()
    worker = _WORKERS[kind] = Worker(kind)
    return worker


def import_path() -> list[str]:
    """The import path of the worker: that of this process, and the location of qfmt, but not the working directory,
    which may contain untrusted files."""
    package = str(Path(__file__).parents[3])
    entries = [entry for entry in sys.path if Path(entry).is_absolute() and not _is_here(entry)]
    return entries if package in entries else [package, *entries]


def _is_here(entry: str) -> bool:
    try:
        return Path(entry).samefile(Path())
    except OSError:  # one of the paths does not exist
        return False


@atexit.register
def _stop_all() -> None:
    for worker in _WORKERS.values():
        worker.stop()
