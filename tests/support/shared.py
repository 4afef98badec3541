"""What several worker processes of a test run need, such as compiled programs, is made once."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "QFMT_TESTS_SHARED"


def shared_folder() -> Path:
    """The folder of this run. Processes that this one starts inherit it; this one removes it."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="qfmt-tests-")
        atexit.register(shutil.rmtree, os.environ[VARIABLE], ignore_errors=True)
    return Path(os.environ[VARIABLE])


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name, which `make` fills; workers that also need it wait."""
    from filelock import FileLock

    folder = shared_folder() / name
    complete = folder.with_name(f"{name}.complete")
    with FileLock(folder.with_name(f"{name}.lock")):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            make(folder)
            complete.touch()
    return folder
