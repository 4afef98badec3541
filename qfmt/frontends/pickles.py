"""Reads PyTorch pickles as data: nothing that a file names is ever imported or called.

This is an independent pickle machine, not a subclass of Python's, because a file can crash the standard one (memo
bombs, keys nested a million deep). It supports the opcodes that PyTorch writes. `harmless.py` maps a GLOBAL to one
of qfmt's own rebuilders, a dtype or an inert class. Any other global raises UnsafePickleError. Only qfmt's own
rebuilders are ever called.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import Any

from ..budget import Budget
from ..errors import SourceError
from .harmless import harmless
from .pickle_machine import Machine
from .stored import Storage

BESIDE = 16 << 20
"""Bytes of memory for what training keeps beside tensors in a file of torch.save, such as histories."""


def unpickle(
    data: bytes | memoryview,
    storage: Callable[[str, str], Storage],
    *,
    where: str = "",
    find_global: Callable[[str, str], Any] = harmless,
    budget: Budget | None = None,
) -> Any:
    """The object in a pickle: dicts, lists, tuples, numbers, strings, StoredTensors, Inerts.

    `storage(key, dtype)` returns the storage of a tensor. `find_global(module, name)` maps a global to its
    replacement, None if it is not allowed. `budget` is that of the conversion; None: in proportion to `data`. Raises
    UnsafePickleError for a global that is not allowed, SourceError for any other error.
    """
    return Pickles(bytes(data), storage, where=where, find_global=find_global, budget=budget).next()


class Pickles:
    """Consecutive pickles in a file; `position` is the end of the last one that was read."""

    def __init__(
        self,
        data: bytes | mmap,
        storage: Callable[[str, str], Storage],
        *,
        where: str = "",
        find_global: Callable[[str, str], Any] = harmless,
        budget: Budget | None = None,
    ) -> None:
        self._data, self._storage, self._where, self._find_global = data, storage, where, find_global
        self._budget = budget or Budget(len(data))
        self.position = 0

    def next(self) -> Any:
        """The object in the next pickle."""
        machine = Machine(self._data, self.position, self._storage, self._find_global, self._budget)
        try:
            return machine.run()
        except SourceError as error:
            error.hint = error.hint or "the file is malicious or damaged"
            raise error.at(f"{self._where or 'pickle'}, byte {machine.position}") from None
        except (IndexError, KeyError, ValueError, TypeError, struct.error, OverflowError):
            at = f"{self._where or 'pickle'}, byte {machine.position}"
            hint = "the file is damaged or truncated"
            raise SourceError("the pickle is invalid here", where=at, hint=hint) from None
        finally:
            self.position = machine.position
