"""Locks for what only one thread of a process may do at a time. They survive a fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, RLock


class Turns:
    """Threads take turns. A forked child begins with its own lock: the threads that could release that of its parent
    are not in the child."""

    def __init__(self, make: Callable[[], Lock | RLock] = Lock) -> None:
        """`make` is RLock if the thread whose turn it is may ask for it again."""
        self._lock = make()

        def renew() -> None:
            self._lock = make()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=renew)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A context that waits for the threads that came before."""
        with self._lock:
            yield


TORCH = Turns(RLock)
"""For tracing and for quantized kernels: torch's settings, and Python's filters of warnings, belong to the process."""
