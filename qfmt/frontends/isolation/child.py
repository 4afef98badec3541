"""The worker: builds the requested engine, and answers requests until its parent closes the pipe.

`parent` starts it. It reads messages from standard input and answers on standard output. It never receives the path
of a source, and never opens one.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from time import sleep
from typing import IO, Any, Protocol

from ...backstop import limit_of_process, limit_process
from ...errors import QfmtError, first_line
from . import wire


class Engine(Protocol):
    """An engine with a program; `execution.Engine` of each frontend implements it. Raises RunError if it cannot run
    it."""

    version: str

    def answer(self, verb: str, *arguments: Any) -> Iterator[tuple[Any, ...]]:
        """Yield ("at", index of a call) before each call, and ("value", name, value) for each result."""


def main(kind: str, parent: str) -> None:
    """Serve one kind of engine. Output that the engine prints is discarded: standard output is for messages."""
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    warnings.simplefilter("ignore")
    sys.modules["PIL"] = None  # type: ignore[assignment]  # onnx's ImageDecoder would use it: it can run programs
    Thread(target=end_with, args=(int(parent),), daemon=True).start()
    server = Server(import_module(f"qfmt.frontends.{kind}.execution").Engine, target)
    with suppress(wire.Closed):
        while True:
            server.serve(*wire.read(source))


def end_with(parent: int) -> None:
    """End this process when the parent ends: a call may take hours, during which nothing reads the pipe.

    It ends before another command has started, which would not expect that this process still writes a file. Windows
    does not tell.
    """
    while sys.platform == "win32" or os.getppid() == parent:
        sleep(0.05)
    os._exit(1)


class Server:
    """Answers requests one by one, with the engine that the last "open" built."""

    def __init__(self, make: Callable[..., Engine], target: IO[bytes]) -> None:
        self.make, self.target = make, target
        self.engine: Engine | None = None
        self.given = 0
        """Bytes of the arrays that the engine was built from."""

    def serve(self, verb: str, *arguments: Any) -> None:
        """Answer one request. Raises Closed if the parent has ended."""
        try:
            for message in self._messages(verb, arguments):
                wire.write(self.target, message)
        except wire.Closed:
            raise
        except Exception as error:
            wire.write(self.target, ["error", *_sendable(error)])
        else:
            wire.write(self.target, ["done"])

    def _messages(self, verb: str, arguments: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        if verb != "open":
            assert self.engine is not None
            limit_process(limit_of_process(self.given + _size(arguments)))
            yield from self.engine.answer(verb, *arguments)
            return
        self.engine = None  # frees its memory before the next one is built
        self.given = _size(arguments)
        self.engine = self.make(*arguments)
        yield "value", "version", self.engine.version


def _sendable(error: Exception) -> tuple[str, str, str]:
    """Message, place and hint of the RunError that the parent raises."""
    if isinstance(error, QfmtError):
        return error.what, error.where, error.hint
    is_loading = isinstance(error, ImportError)  # the parent has found that the package is installed
    return f"{'a package cannot be loaded: ' * is_loading}{first_line(error)}", "", ""


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return sum(map(_size, value.values())) if isinstance(value, dict) else getattr(value, "nbytes", 0)
