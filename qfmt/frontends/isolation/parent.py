"""Workers as their parent sees them: one process for each kind of engine, started when it is needed."""

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
from threading import Lock
from typing import Any

from ...errors import MissingPackageError, QfmtError, RunError
from . import wire

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from qfmt.frontends.isolation.child import main
main(sys.argv[2])
"""

_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of torch that wait sleep. By default they spin, and take the processor from those that they wait for: on a
busy machine a call of microseconds then takes milliseconds."""

_ERRORS: dict[str, type[QfmtError]] = {each.__name__: each for each in (RunError, MissingPackageError)}
"""What an engine may answer with."""

_WORKERS: dict[str, Worker] = {}

_LOCK = Lock()


class EngineDied(RunError):
    """The process in which an engine ran has ended."""


class Session:
    """A program and the engine that carries it out, in a worker.

    `program` gives what the engine is made of; it is asked again if the worker has to be started anew. `call` names a
    call of the program and its place, by the index that the engine tells; `name` is what messages call the engine.
    `takes` is whether a value is one that the engine may answer with: a worker that a file took over may say anything.
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
        """Name and version of the package that computes. RunError or MissingPackageError if it cannot."""
        with _LOCK:
            return _worker(self.kind).open(self)

    def ask(self, verb: str, *arguments: Any) -> dict[str, Any]:
        """What the engine answers, by name. RunError if it fails or dies."""
        with _LOCK:
            worker = _worker(self.kind)
            if worker.session is not self:
                worker.open(self)
            return dict(worker.exchange(self, self.takes, verb, *arguments))


def is_installed(package: str) -> bool:
    """Whether a package is there, without importing it."""
    try:
        return find_spec(package) is not None
    except ValueError:  # something other than a module has its name
        return False


class Worker:
    """A process that has one session at a time."""

    def __init__(self, kind: str) -> None:
        self.kind, self.owner = kind, os.getpid()
        self.session: Session | None = None
        self.version = ""
        command = [sys.executable, "-I", "-c", _START, json.dumps(_path()), kind]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={**_WAITING, **os.environ}
            )
        except OSError as error:
            raise RunError(f"a process for {kind} cannot be started: {error.strerror}") from None

    @property
    def is_alive(self) -> bool:
        """Whether this process may ask it: a fork of the one that started it must not."""
        return self.owner == os.getpid() and self.process.poll() is None

    def open(self, session: Session) -> str:
        """Have it make the engine of a session, unless it has that; gives name and version of the package."""
        if self.session is not session:
            self.session = None
            told = dict(self.exchange(session, _is_text, "open", *session.program()))
            self.version, self.session = told.get("version", ""), session
        return self.version

    def exchange(
        self, session: Session, takes: Callable[[Any], bool], verb: str, *arguments: Any
    ) -> Iterator[tuple[str, Any]]:
        """Send a message; give (name, value) for each result."""
        assert self.process.stdin is not None and self.process.stdout is not None
        at, answered, error = -1, False, None
        try:
            wire.write(self.process.stdin, [verb, *arguments])
            while not answered:
                match wire.read(self.process.stdout):
                    case ["value", str() as key, value] if takes(value):
                        yield key, value
                    case ["at", int() as at]:
                        pass
                    case ["done"]:
                        answered = True
                    case ["error", str() as name, str() as what, str() as where, str() as hint] if name in _ERRORS:
                        answered, error = True, _ERRORS[name](what, where=where, hint=hint)
                    case _:  # what no worker of ours says
                        raise wire.Closed
        except wire.Closed:
            self.stop(patience=5)  # how it ended is known when it has
            what, where = "", ""
            with suppress(LookupError):  # what a worker says of where it is may be wrong
                what, where = session.call(at) if at >= 0 else (what, where)
            when = f"while running {what}" if what else "before its first call"
            raise EngineDied(f"{session.name} died ({self._end()}) {when}", where=where) from None
        except MemoryError:
            raise RunError(f"the results of {session.name} do not fit into memory") from None
        finally:
            if not answered:  # the pipes may hold the rest of a message
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
        """End the process, if it does not end by itself within `patience` seconds, and wait for that.

        A fork of the process that started it only closes its own ends of the pipes.
        """
        if self.owner == os.getpid():
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was to be sent to a process that is gone
                stream.close()  # type: ignore[union-attr]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _worker(kind: str) -> Worker:
    worker = _WORKERS.get(kind)
    if worker is not None and worker.is_alive:
        return worker
    if worker is not None:
        worker.stop()
    worker = _WORKERS[kind] = Worker(kind)
    return worker


def _path() -> list[str]:
    """Where the worker imports from: where this process does, but not from the working directory, which may contain
    untrusted files; qfmt is where this one came from."""
    package = str(Path(__file__).parents[3])
    entries = [entry for entry in sys.path if Path(entry).is_absolute() and not _is_here(entry)]
    return entries if package in entries else [package, *entries]


def _is_here(entry: str) -> bool:
    try:
        return Path(entry).samefile(Path())
    except OSError:  # one of them is not there
        return False


@atexit.register
def _stop_all() -> None:
    for worker in _WORKERS.values():
        worker.stop()
