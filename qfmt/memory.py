"""The memory of a run, checked before any of it is allocated.

A file of some kilobytes can describe values of terabytes. The interpreter computes what a node will allocate from the
sizes of its operands, and refuses the node by name if that is more than the run may take. A reference whose
intermediate values may be larger than its operands and results asks (`require`) before it makes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import MemoryLimitError
from .notation import size

if TYPE_CHECKING:
    from .budget import Budget

BASE, FACTOR = 4 << 30, 256
"""Bytes that work on a model may take: a constant, plus a number for each byte of its constants and inputs."""

SMALL = 1 << 24
"""Bytes that are not counted outside a run."""

UNKNOWN = 1 << 40
"""Bytes of memory of a machine that does not say how much it has."""

CONTAINER = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
"""What the container may take, and what it takes now (Linux, cgroup v2)."""

STATISTICS = Path("/sys/fs/cgroup/memory.stat")
"""What it takes, by kinds: with cached files, which the system gives back."""


class Memory:
    """What a run may take in total, and what its values take now: bytes. `hint` is what a user can do about it.

    What outlasts the computation is charged to `budget`: a run has none.
    """

    __slots__ = ("budget", "held", "hint", "limit")

    def __init__(self, limit: int, hint: str = "", budget: Budget | None = None) -> None:
        self.limit, self.hint, self.budget, self.held = limit, hint, budget, 0

    @classmethod
    def charged(cls, budget: Budget) -> Memory:
        """For work with that budget: as outside a run, and what is kept is charged."""
        return cls(available() // 2, "that is half of the available memory", budget)

    def require(self, nbytes: int) -> None:
        """MemoryLimitError if a node needs more than the run has left."""
        if self.held + nbytes > self.limit:
            held = f" beside the {size(self.held)} that the run holds" if self.held else ""
            what = f"needs {size(nbytes)} of memory{held}, more than the limit of {size(self.limit)}"
            raise MemoryLimitError(what, hint=self.hint)

    def keep(self, nbytes: int) -> None:
        """Count bytes of constants and names that outlast the computation."""
        if self.budget is not None:
            self.budget.allocate(nbytes)

    @contextmanager
    def spent(self) -> Iterator[None]:
        """What is required inside belongs to this run."""
        token = _RUN.set(self)
        try:
            yield
        finally:
            _RUN.reset(token)


_RUN: ContextVar[Memory | None] = ContextVar("memory of the run", default=None)


def require(nbytes: int) -> None:
    """MemoryLimitError for more bytes than the run has left, or, outside a run, than half of the available memory."""
    memory = _RUN.get()
    if memory is not None:
        memory.require(nbytes)
    elif nbytes > SMALL:
        Memory(available() // 2, "that is half of the available memory").require(nbytes)


def keep(nbytes: int) -> None:
    """Count the bytes of a new constant or name in the work that is going on."""
    memory = _RUN.get()
    if memory is not None:
        memory.keep(nbytes)


def limit_for(nbytes: int) -> int:
    """What a run may take unless its caller says otherwise, from the bytes of its constants and inputs."""
    return min(available() // 2, BASE + FACTOR * nbytes)


def available() -> int:
    """Bytes of memory that processes can take now: of the machine, or of the container if that is less."""
    try:
        limit, used = (int(path.read_text()) for path in CONTAINER)
    except (OSError, ValueError):  # there is none, or it has no limit: "max"
        return _of_machine()
    return max(0, min(limit - max(used - _cached(), 0), _of_machine()))


def _cached() -> int:
    """Bytes of files that the container has in memory."""
    try:
        fields = dict(line.split(maxsplit=1) for line in STATISTICS.read_text().splitlines())
        return int(fields["active_file"]) + int(fields["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def _of_machine() -> int:
    try:
        with Path("/proc/meminfo").open() as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return physical()


def physical() -> int:
    """Bytes of memory of the machine, in use or not."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on every system
        return UNKNOWN
