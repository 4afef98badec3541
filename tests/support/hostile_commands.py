"""Runs commands of qfmt under limits, those on one file in a process. `test_hostile_files.py` starts this program.

Each line of stdin is JSON, a malicious file and the words of each command; each line of stdout is a list of [status,
stdout, stderr]. All modules are imported before the process forks, so that the limits of memory and time count only the
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

STEPS, PACES = 500_000, 200
"""The limit of processor time is PACES times the time of a loop of STEPS steps on this machine, at the start. If a step
takes 0.1 µs, that is 10 s: the promised 2 s, and a margin, as a busy processor may slow down after that."""

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


def limited(words: list[str], file: Path, seconds: float) -> int:
    """Run one command, in that much processor time; return its status."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + SLACK + 10 * file.stat().st_size
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    end = ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
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
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return 0


def outcomes(commands: list[list[str]], file: Path, seconds: float) -> list[tuple[int, str, str]]:
    """Status (negative: the signal that ended it, and the commands after it), stdout, stderr of each command."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            for number, words in enumerate(commands):
                for stream in (1, 2):
                    opened = os.open(f"{folder}/{number}.{stream}", os.O_CREAT | os.O_WRONLY)
                    os.dup2(opened, stream)
                    os.close(opened)
                status = limited(words, file, seconds)
                sys.stdout.flush()
                sys.stderr.flush()
                Path(folder, f"{number}.0").write_text(str(status))
            os._exit(0)  # exit handlers of heavy modules take longer than the commands
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def told(number: int, stream: int) -> str:
            path = Path(folder, f"{number}.{stream}")
            return path.read_text() if path.exists() else ""

        return [(int(told(each, 0) or ended), told(each, 1), told(each, 2)) for each in range(len(commands))]


if __name__ == "__main__":
    left_out = ["__main__", "model_explorer.main"]  # that needs a package that no command does
    left_out += ["torch", "onnx"] if sys.argv[1:] == ["light"] else []
    for module in walk_packages(qfmt.__path__, "qfmt."):
        if not any(name in module.name for name in left_out):
            import_module(module.name)
    import_module("numpy.ma")  # NumPy imports it at the first use of some functions
    seconds = PACES * pace()
    gc.freeze()  # a collection in a child would copy what it shares with this process
    for line in sys.stdin:
        path, commands = json.loads(line)
        print(json.dumps(outcomes(commands, Path(path), seconds)), flush=True)
