"""What workers of an archive make models with; they import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import qfmt
from qfmt.model import Model


def or_die(path: Path) -> Model:
    """The model of a file; of one that is named so, the death of the process, or an error that nobody expects."""
    if path.stem == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if path.stem == "ended":
        os._exit(3)
    if path.stem == "bug":
        raise ZeroDivisionError("surprise")
    return qfmt.convert(path)


def last_first(path: Path) -> Model:
    """The model of a file; that of `a` when the archive, beside the sources, has `b`."""
    written = path.parent.parent / "archive" / "b.qfb"
    while path.stem == "a" and not written.exists():
        time.sleep(0.01)
    return qfmt.convert(path)
