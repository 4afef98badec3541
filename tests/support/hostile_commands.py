"""Runs commands of qfmt under limits, each in a separate process: what `test_hostile_files.py` starts.

Each line of stdin is JSON, the file that is attacked with and the words of a command; each line of stdout then
[status, stdout, stderr]. All modules are imported before the process is forked, so that the limit of memory counts what
the command itself takes, and no command takes the time.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from math import ceil
from pathlib import Path
from pkgutil import walk_packages
from traceback import print_exc

import qfmt

STEPS, PACES = 200_000, 100
"""A command may take the processor for so many times what so many steps of a loop take on this machine, now. That is
the promise of 2 s, where a step takes 0.1 µs."""

WAITING = 120
"""Seconds of real time, for what waits."""

SLACK = 64 << 20
"""Bytes that any command may take; ten times the size of the file come on top."""


def _to_torch(path: str) -> None:
    qfmt.load(path).to_torch("reference")


PYTHON: dict[str, Callable[[str], None]] = {"to_torch": _to_torch}
"""What has no command: the function is given the file, and a QfmtError is told as the command line tells it."""


def pace() -> float:
    """Seconds of the processor that a loop of STEPS takes."""
    places: dict[int, int] = {}
    begin = time.process_time()
    for step in range(STEPS):
        places[step & 1023] = step * 3 % 7
    return time.process_time() - begin


def limited(words: list[str], file: Path) -> int:
    """Run one command; its status."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + SLACK + 10 * file.stat().st_size
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    seconds = ceil(time.process_time() + PACES * pace())
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.alarm(WAITING)
    try:
        if words[0] in PYTHON:
            PYTHON[words[0]](words[1])
        else:
            from qfmt.cli import main

            main(words)
    except qfmt.QfmtError as error:
        print(f"qfmt: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as left:
        return int(left.code or 0)
    except BaseException:
        print_exc()
        return 3
    return 0


def outcome(words: list[str], file: Path) -> tuple[int, str, str]:
    """Status (negative: the signal that ended it), stdout, stderr."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = limited(words, file)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # what heavy modules do at exit takes longer than the command
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told = []
        for stream in (out, err):
            stream.seek(0)
            told.append(stream.read(1 << 24).decode())
        return status, told[0], told[1]


if __name__ == "__main__":
    for module in walk_packages(qfmt.__path__, "qfmt."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    gc.freeze()  # a collection in a child would copy what it shares with this process
    for line in sys.stdin:
        path, words = json.loads(line)
        print(json.dumps(outcome(words, Path(path))), flush=True)
