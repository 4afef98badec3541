"""The progress of long work: the library counts its steps, and whoever shows them reads the counts.

`with watched(begun): …` calls `begun` with the `Steps` of each part of the work when it begins. Their counts change
while the work goes on; no step calls anything. If nobody watches, a step costs an addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Progress = Callable[[int, int], None]
"""Called with the number of bytes that are done, and of all bytes."""

Item = TypeVar("Item")


class Steps:
    """A part of the work: `what` it is ("" if the caller has a name for all of it), `done` of `total` steps, which
    are `unit`, as in "samples". `progress` is called by each `add`.
    """

    __slots__ = ("_progress", "done", "total", "unit", "what")

    def __init__(self, what: str, total: int, unit: str = "", progress: Progress | None = None) -> None:
        self.what, self.total, self.unit, self.done, self._progress = what, total, unit, 0, progress
        if begun := _BEGUN.get():
            begun(self)

    def add(self, count: int = 1) -> None:
        self.done += count
        if self._progress is not None:
            self._progress(self.done, self.total)


BYTES = "bytes"
"""The unit that is shown as a size."""

_BEGUN: ContextVar[Callable[[Steps], None] | None] = ContextVar("begun", default=None)


@contextmanager
def watched(begun: Callable[[Steps], None]) -> Iterator[None]:
    """Call `begun` with the steps of all work that begins in the block, in this thread."""
    token = _BEGUN.set(begun)
    try:
        yield
    finally:
        _BEGUN.reset(token)


def counted(items: Iterable[Item], what: str, total: int, unit: str = "") -> Iterator[Item]:
    """The items. Each is a step, which is done when the next item is asked for."""
    steps = Steps(what, total, unit)
    try:
        for item in items:
            yield item
            steps.done += 1
    finally:
        steps.done = total
