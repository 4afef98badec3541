"""Runs commands of qfmt under limits, each in a separate process. `test_hostile_files.py` starts this program.

Each line of stdin is JSON, a malicious file and the words of a command; each line of stdout is [status, stdout,
stderr]. All modules are imported before the process forks, so that the limits of memory and time count only the
command; with the argument `light`, those that need no framework, as a process with torch in it takes four times as
long to fork.
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

STEPS, PACES = 10_000, 5000
"""The limit of processor time is PACES times the time of a loop of STEPS steps on this machine, now. If a step takes
0.1 µs, that is 5 s: the promised 2 s, and a margin, as a busy processor may slow down after the loop was measured."""

WAITING = 120
"""Limit of real time in seconds, for commands that wait."""

SLACK = 64 << 20
"""Memory limit of a command in bytes, in addition to ten times the size of the file."""


def _to_torch(path: str) -> None:
    qfmt.load(path).to_torch("reference")


PYTHON: dict[str, Callable[[str], None]] = {"to_torch": _to_torch}
"""Functions without a command. They get the file; a QfmtError is printed as by the command line."""


def pace() -> float:
    """Processor time in seconds of a loop of STEPS steps."""
    places: dict[int, int] = {}
    begin = time.process_time()
    for step in range(STEPS):
        places[step & 1023] = step * 3 % 7
    return time.process_time() - begin


def limited(words: list[str], file: Path) -> int:
    """Run one command; return its status."""
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
            os._exit(status)  # exit handlers of heavy modules take longer than the command
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told = []
        for stream in (out, err):
            stream.seek(0)
            told.append(stream.read(1 << 24).decode())
        return status, told[0], told[1]


if __name__ == "__main__":
    left_out = ["__main__", "model_explorer.main"]  # that needs a package that no command does
    left_out += ["torch", "onnx"] if sys.argv[1:] == ["light"] else []
    for module in walk_packages(qfmt.__path__, "qfmt."):
        if not any(name in module.name for name in left_out):
            import_module(module.name)
    import_module("numpy.ma")  # NumPy imports it at the first use of some functions
    gc.freeze()  # a collection in a child would copy what it shares with this process
    for line in sys.stdin:
        path, words = json.loads(line)
        print(json.dumps(outcome(words, Path(path))), flush=True)
