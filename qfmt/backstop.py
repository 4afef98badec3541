"""Limits of the system for work on files: a backstop for what the budgets of qfmt do not count.

Only programs that are qfmt's own have them, the command line and its workers: a program that imports qfmt keeps its
signals and its limits. Memory is limited on Linux, processor time wherever there are interval timers (not on Windows).
Real files need a small part of what is permitted, also on slow machines.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .errors import BudgetError, QfmtError
from .memory import BASE, FACTOR, available, physical
from .notation import size

READING, THREAD = 1 << 30, 1 << 26
"""Bytes that work on files may take, beside FACTOR for each of their bytes: a constant, and for each processor what
NumPy takes for a thread."""

SECONDS, SECONDS_PER_BYTE = 20, 1e-5
"""Seconds of processor time that work on files may take: a constant, plus a number for each byte."""

LITTLE = 256_000_000
"""Bytes without which no work begins: where libraries get less, they end the process in ways of their own."""

AGAIN = 2.0
"""Seconds until the exception for too much time is raised again, in case something suppressed it."""

LONGEST = 1e9
"""The most seconds of a timer: sparse files may have 2^62 bytes, and the system takes no more than its clock holds."""

_HINT = "networks rarely need that much: the file may be malicious or damaged"

_enforced = False


class _Late(BaseException):
    """The time is over. No Exception: code that expects the errors of a library must not suppress it."""


class _Limits:
    """What work on files of so many bytes may take: bytes of memory beyond the use before, and seconds."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes, self._available = nbytes, available()
        self.seconds = SECONDS + SECONDS_PER_BYTE * nbytes
        self._running = True
        self._lock = threading.RLock()
        self.is_in_force = False
        self._written = _written()

    @property
    def memory(self) -> int:
        """A large file may be sparse: what its size permits is no more than what is available."""
        return READING + THREAD * (os.cpu_count() or 1) + min(FACTOR * self._nbytes, self._available)

    def set(self) -> None:
        """Let the system enforce them from now on."""
        if self._written:
            from resource import RLIMIT_DATA, getrlimit

            self._memory_before, self._permitted_before = getrlimit(RLIMIT_DATA), _permitted()
        self._handler_before = None
        if sys.platform != "win32" and not _time_left():  # another timer, such as that of a profiler, is left alone
            self._handler_before = signal.signal(signal.SIGPROF, self._late)
        self._left = self.seconds
        self.resume()

    def grow(self, nbytes: int) -> None:
        """Raise them for another file, which another thread may read."""
        with self._lock:
            if self.is_in_force and self._handler_before is not None:
                self._left = _time_left()
            self._nbytes += nbytes
            self.seconds += (more := SECONDS_PER_BYTE * nbytes)
            self._left += more
            if self.is_in_force:
                self.resume()

    def pause(self) -> None:
        """Let the system enforce them no more."""
        with self._lock:
            self.is_in_force = False
            if self._handler_before is not None:
                self._left = _time_left()
                _set_timer(0)
            if self._written:
                from resource import RLIMIT_DATA, setrlimit

                setrlimit(RLIMIT_DATA, self._memory_before)

    def resume(self) -> None:
        """Let the system enforce what is left of them."""
        with self._lock:
            self.is_in_force = True
            if self._written:
                from resource import RLIMIT_DATA, setrlimit

                soft, hard = self._memory_before
                setrlimit(RLIMIT_DATA, (_least(self._written + self.memory, soft, hard), hard))
            if self._handler_before is not None:
                _set_timer(self._left)

    def end(self) -> None:
        """Put back what was before."""
        try:
            self._running = False
        finally:  # the signal may come before that; the next one comes much later
            self._running = False
            self.pause()
            if sys.platform != "win32" and self._handler_before is not None:
                signal.signal(signal.SIGPROF, self._handler_before)

    @property
    def is_loose(self) -> bool:
        """Whether this process had less memory before, as a worker may have."""
        return bool(self._written) and self._permitted_before < self._written + self.memory

    def _late(self, _number: int, _frame: FrameType | None) -> None:
        if self._running:
            raise _Late


_entered: list[_Limits] = []
"""Those in force last; those before it are paused."""


@contextmanager
def enforced() -> Iterator[None]:
    """Let `limited` have an effect inside: this process has no other work than that on files."""
    global _enforced
    before, _enforced = _enforced, True
    try:
        yield
    finally:
        _enforced = before


@contextmanager
def limited(nbytes: int, where: str) -> Iterator[None]:
    """Limit what work on files of so many bytes takes; BudgetError if it takes more. `where` names the files.
    MemoryError if the process had a lower limit before.

    It has no effect if limits are not `enforced`, inside another call, and in threads other than the main one: the
    limits apply to the whole process.
    """
    if not _enforced or _in_force() or not _is_first_thread():
        yield
        return
    limits = _Limits(nbytes)
    try:
        try:
            limits.set()
            _entered.append(limits)
            yield
        finally:
            if limits in _entered:
                _entered.remove(limits)
            limits.end()
    except MemoryError:
        if limits.is_loose:
            raise
        what = f"takes more than {size(limits.memory)} of memory, or than there is"
        raise BudgetError(what, where=where, hint=_HINT) from None
    except _Late:
        what = f"takes more than {limits.seconds:,.0f} s of processor time"
        raise BudgetError(what, where=where, hint=f"{_HINT}; functions of Python have no such limit") from None


def grow(nbytes: int) -> None:
    """Raise the limits for another file that belongs to the first: external data, a shard, bytes that are fetched.

    Also in another thread, and while they are paused: what was read in a run may be written after it.
    """
    for limits in [*_entered]:
        limits.grow(nbytes)


@contextmanager
def paused() -> Iterator[None]:
    """No limits inside: for work that has limits of its own, or takes as long as the user allows, as a run does."""
    if not (limits := _in_force()) or not _is_first_thread():
        yield
        return
    limits.pause()
    try:
        yield
    finally:
        limits.resume()


def _in_force() -> _Limits | None:
    return _entered[-1] if _entered and _entered[-1].is_in_force else None


def require_memory() -> None:
    """QfmtError if the system lets this process have less than LITTLE, unless NumPy is there already.

    With not much more, the OpenBLAS in it gets one thread: it takes memory for each, and ends the process without.
    """
    permitted = sys.maxsize if "numpy" in sys.modules else _permitted()
    if permitted < LITTLE:
        what = f"this process may take only {size(permitted)} of memory, and {size(LITTLE)} is the least"
        raise QfmtError(what, hint="raise the limit of the system (`ulimit -d`, `ulimit -v`)")
    if permitted < LITTLE + THREAD * (os.cpu_count() or 1):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def limit_of_process(nbytes: int) -> int:
    """What a process may take that computes with files and inputs of so many bytes; never more than the machine has."""
    return min(BASE + FACTOR * nbytes, physical())


def limit_process(nbytes: int) -> None:
    """Let the system limit the writable memory of this process to so many bytes beyond its current use.

    Mapped files do not count. Linux only.
    """
    if written := _written():
        from resource import RLIMIT_DATA, getrlimit, setrlimit

        _, hard = getrlimit(RLIMIT_DATA)
        setrlimit(RLIMIT_DATA, (_least(written + nbytes, hard), hard))


def _least(*limits: int) -> int:
    """The least of them, and of what the system can enforce."""
    return min([sys.maxsize, *(limit for limit in limits if limit >= 0)])  # -1: none


def _permitted() -> int:
    """What the system lets this process take: bytes of writable memory, or of addresses."""
    if sys.platform == "win32":
        return sys.maxsize
    from resource import RLIMIT_AS, RLIMIT_DATA, getrlimit

    return _least(*(getrlimit(each)[0] for each in (RLIMIT_AS, RLIMIT_DATA)))


def _written() -> int:
    """The current use that counts against a limit of memory; 0 if the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return 0
    found = re.search(r"^VmData:\s*(\d+) kB", status, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _is_first_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _time_left() -> float:
    """Seconds until the timer of processor time ends; 0 if none is set."""
    return signal.getitimer(signal.ITIMER_PROF)[0] if sys.platform != "win32" else 0.0


def _set_timer(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, min(seconds, LONGEST), AGAIN if seconds else 0)
