"""Runs commands on a pseudo-terminal of any size."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.paths import ROOT

CLEARED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PAGER", "LESS", "QFMT_DEBUG")


class Terminal:
    """A process whose stdin, stdout and stderr are one terminal; `printed` is what it has sent there."""

    def __init__(
        self, *command: object, columns: int = 80, lines: int = 24, variables: dict[str, str] | None = None, **how: Any
    ) -> None:
        termios, fcntl = pytest.importorskip("termios"), pytest.importorskip("fcntl")
        import struct

        self.ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {key: value for key, value in os.environ.items() if key not in CLEARED}
        environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "LC_ALL": "C.UTF-8", **(variables or {})}

        def own() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C on it is a signal for the process

        self.process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=own,
            **how,
        )
        os.close(theirs)
        self.printed = b""

    def send(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def until(self, is_there: Callable[[str], bool] | str, seconds: float = 60) -> str:
        """What was printed, once it has what is waited for."""
        wanted = (lambda text: is_there in text) if isinstance(is_there, str) else is_there
        end = time.monotonic() + seconds
        while not wanted(self.plain):
            left = end - time.monotonic()
            assert left > 0 and self._has_more(left) and self._read(), self.text
        return self.plain

    @property
    def text(self) -> str:
        return self.printed.decode(errors="replace").replace("\r\n", "\n")

    @property
    def plain(self) -> str:
        """The same without colors, and without movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|[\r\x07\x08]", "", self.text)

    def _has_more(self, seconds: float) -> bool:
        """Whether something comes. `select.select` takes descriptors below 1024 only."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.ours, selectors.EVENT_READ)
            return bool(waiting.select(seconds))

    def _read(self) -> bool:
        """Read what comes; False if nothing will, because the other side is closed."""
        with contextlib.suppress(OSError):  # Linux raises it when the other side is closed
            block = os.read(self.ours, 4096)
            self.printed += block
            return bool(block)
        return False

    def end(self) -> tuple[int, str]:
        """Wait for the end: the exit status, and all that was printed."""
        while self._read():
            pass
        os.close(self.ours)
        return self.process.wait(60), self.text


def qfmt(*arguments: object, **how: Any) -> Terminal:
    """The command of this checkout."""
    return Terminal(sys.executable, "-m", "qfmt", *arguments, **how)
