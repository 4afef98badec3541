"""How far long work is: the library counts, and whoever wants to show it looks.

`with watched(begun): …` has `begun` called with the `Steps` of each part of the work as it begins. Their counts change
while the work goes on; nobody is called for a step. Without it, counting costs an addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes there are."""

Item = TypeVar("Item")


class Steps:
    """A part of the work: `what` it is ("" if the caller's words say enough), `done` of `total` steps, each a `unit`.

    `progress` is called after each step.
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
    """Have `begun` called with the steps of all work that begins in the block, in this thread."""
    token = _BEGUN.set(begun)
    try:
        yield
    finally:
        _BEGUN.reset(token)


def counted(items: Iterable[Item], what: str, total: int, unit: str = "") -> Iterator[Item]:
    """The items, each of which is a step that is done when the next one is asked for."""
    steps = Steps(what, total, unit)
    try:
        for item in items:
            yield item
            steps.done += 1
    finally:
        steps.done = total
