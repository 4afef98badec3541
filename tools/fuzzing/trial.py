"""One mutant: its outcome, within limits of time and memory, and without side effects."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from qfmt.errors import QfmtError

from .consumers import LARGE, Consume, one_line

SECONDS = 4.0
"""The limit of processor time for one mutant: twice the promised limit, since another program may share the core."""

STOP = 10
"""Seconds of the processor after which a mutant is interrupted; twice that ends the process."""

PER_BYTE, MEMORY = 10, 64 << 20
"""Memory limit of a mutant in bytes: PER_BYTE times its size, plus MEMORY."""

ADDRESSES = 3 << 30
"""Limit of additional address space in bytes, so that a mutant that exhausts memory ends only its own process."""

EXCESS = ("TooMuchMemory", "TooLong")

QFMT = f"{os.sep}qfmt{os.sep}"


class SideEffect(BaseException):
    """An action that reading a file must not cause."""


class TooSlow(BaseException):
    """The limit of time was reached; raised at the current place."""


class ProgramEnded(BaseException):
    """The program under test has ended; this process can test nothing else."""


class Outcome(NamedTuple):
    """The outcome of a mutant. `finding` is empty, or the fault; `frame` is the innermost line of qfmt."""

    word: str
    finding: str = ""
    frame: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the process can attempt nothing more."""
        return self.finding.startswith(ProgramEnded.__name__)


def attempt(consume: Consume, path: Path, chance: Random, empty: Path) -> Outcome:
    """Attempt one mutant; `empty` is the working directory, in which nothing may be written.

    A mutant that exceeds a limit is tried once more, since imports may have been the cause.
    """
    state = chance.getstate()
    outcome = _attempt(consume, path, chance, empty)
    if outcome.finding.startswith(EXCESS):
        gc.collect()
        chance.setstate(state)
        outcome = _attempt(consume, path, chance, empty)
    return outcome


def _attempt(consume: Consume, path: Path, chance: Random, empty: Path) -> Outcome:
    before, begin = _start_of_peak(), time.process_time()
    try:
        with _limited():
            word = consume(path, chance)
    except QfmtError as error:
        try:
            one_line(error)
        except Exception as wrong:
            return _found(wrong)
        word = f"refused: {type(error).__name__}"
    except (Exception, SideEffect, TooSlow, ProgramEnded) as error:
        return _found(error)
    taken, allowed = _peak() - before, PER_BYTE * path.stat().st_size + MEMORY
    if taken > allowed and word != LARGE:
        return Outcome(word, f"{EXCESS[0]}: {taken >> 20} MB of {allowed >> 20}", word)
    if (spent := time.process_time() - begin) > SECONDS:
        return Outcome(word, f"{EXCESS[1]}: {spent:.1f} s", word)
    if left := [*empty.iterdir()]:
        for made in left:
            made.unlink()
        return Outcome(word, f"SideEffect: wrote {', '.join(made.name for made in left)}", word)
    return Outcome(word)


def _found(error: BaseException) -> Outcome:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if QFMT in frame.filename]
    if isinstance(error, RecursionError):  # the innermost line is arbitrary
        own = own[:30]
    place = own[-1] if own else frames[-1]
    text = str(error).split("\n")[0][:300]
    where = f"{place.filename.rpartition(QFMT)[2] if own else Path(place.filename).name}:{place.lineno}"
    return Outcome("finding", f"{type(error).__name__}: {text}", where)


@contextmanager
def _limited() -> Iterator[None]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 2 * STOP + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, STOP)
    _watched[0] = True
    try:
        yield
    finally:
        _watched[0] = False
        signal.setitimer(signal.ITIMER_PROF, 0)


def _start_of_peak() -> int:
    """Reset the peak of memory; return the current use in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


# Forbidden actions


FORBIDDEN = frozenset({
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pickle.find_class",
})  # fmt: skip

_watched: list[bool] = [False]
"""Whether a mutant is being attempted; between attempts, mutants may be written."""


def confine(own: Path, permitted: frozenset[str] = frozenset()) -> None:
    """Prepare this process for mutants: set limits, and a hook that refuses forbidden actions.

    It may write only in the folder `own`. This cannot be undone.
    """
    signal.signal(signal.SIGPROF, _too_slow)
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESSES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    forbidden = FORBIDDEN - permitted
    inside = (str(own) + os.sep, "/proc/self/", "/dev/null")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not _watched[0]:
            return
        if event in forbidden:
            raise SideEffect(event)
        if event == "open" and isinstance(arguments[0], str) and _writes(arguments):
            path = os.path.abspath(arguments[0])  # noqa: PTH100 - links are not to be followed
            if not path.startswith(inside) and "__pycache__" not in path:
                raise SideEffect(f"writes {path}")

    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


def _too_slow(signal_: int, frame: Any) -> None:
    raise TooSlow(f"not finished after {STOP} s")
