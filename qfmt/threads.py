"""What threads of a process take turns at, and work that is shared among threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .errors import QfmtError

if TYPE_CHECKING:
    import ast


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801
        """That of Python 3.12. Before, one lock for all objects of a class was held while a value was computed: a child
        that another thread forked meanwhile waited for it for ever."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self._function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._function(instance)
            return value


class Turns:
    """Threads take turns, by `turn`, or by `lock` where the thread whose turn it is may ask for it again.

    A forked child does not wait for other threads of its parent, which are not in the child.
    """

    __slots__ = ("__weakref__", "_taken", "lock")

    def __init__(self) -> None:
        self.lock, self._taken = RLock(), False
        _ALL.add(self)

    def renew(self) -> None:
        """Have a new lock if another thread has it. Only at a fork: later, threads of the child may have the numbers of
        those of its parent."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock, self._taken = RLock(), False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A context that waits for other threads. QfmtError if it is this thread's turn already."""
        with self.lock:
            if self._taken:
                raise nested()
            try:
                self._taken = True
                yield
            finally:
                self._taken = False


def nested() -> QfmtError:
    """The error for a signal handler that asks for what the thread does that it interrupts: it would wait for ever."""
    hint = "a signal handler interrupts it: do this when the handler has returned"
    return QfmtError("this cannot begin in the middle of the same work", hint=hint)


_ALL: WeakSet[Turns] = WeakSet()


def _renew_all() -> None:
    for turns in _ALL:
        turns.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)

TORCH = Turns()
"""For tracing, kernels and parsing: torch's settings, and Python's filters of warnings, belong to the process."""


PARSES = 9
"""Attempts to parse a text beside threads that are not qfmt's."""


def parsed(text: str, mode: str = "eval", name: str = "<text>") -> ast.AST:
    """The tree of some Python code. Raises as `ast.parse`.

    Python 3.11 counts the depth of all trees together that threads parse at the same time, as torch may, and raises
    SystemError if that does not fit (python/cpython#106905).
    """
    import ast

    with TORCH.lock:
        for _ in range(PARSES - 1):
            with suppress(SystemError):
                return ast.parse(text, name, mode)
        return ast.parse(text, name, mode)


def literal(text: str) -> Any:
    """The value of a Python literal."""
    import ast

    return ast.literal_eval(parsed(text))


@contextmanager
def on_threads(count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """`map` by `count` threads; by this one where none can be started: while Python ends, and in a signal handler that
    interrupts this, as `concurrent.futures` has one lock for all pools."""
    own = get_ident()
    if own in _HAVE_POOLS:
        yield map
        return
    try:
        _HAVE_POOLS.add(own)
        with _pool(count) as apply:
            yield apply
    finally:
        _HAVE_POOLS.discard(own)


_HAVE_POOLS: set[int] = set()
"""The threads that have a pool of others, or start one."""


@contextmanager
def _pool(count: int) -> Iterator[Callable[..., Iterator[Any]]]:
    try:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(count)
        pool.submit(int).result()
    except RuntimeError:
        yield map
        return
    with pool:
        yield pool.map
