"""Pickles of PyTorch, read as data: nothing that a file names is ever imported or called.

This is a pickle machine of its own, not a subclass of Python's, because the standard one can be crashed
by a file (memo bombs, keys nested a million deep). It knows the opcodes that PyTorch writes. A GLOBAL
becomes what `harmless.py` says: one of our own rebuilders, a dtype, an inert class. Anything else is an
UnsafePickleError. Nothing but our own rebuilders is ever called.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from mmap import mmap
from typing import Any

from ..budget import Budget
from ..errors import SourceError
from .harmless import HARMLESS, Inert, InertClass, Subclass, TorchDType, harmless, harmless_or_inert, inert
from .pickle_machine import Machine
from .stored import Storage, StoredTensor

__all__ = [
    "HARMLESS",
    "Inert",
    "InertClass",
    "Pickles",
    "StoredTensor",
    "Subclass",
    "TorchDType",
    "harmless",
    "harmless_or_inert",
    "inert",
    "unpickle",
]


def unpickle(
    data: bytes | memoryview,
    storage: Callable[[str, str], Storage],
    *,
    where: str = "",
    find_global: Callable[[str, str], Any] = harmless,
    budget: Budget | None = None,
) -> Any:
    """The object that a pickle describes, of dicts, lists, tuples, numbers, strings, StoredTensors, Inerts.

    `storage(key, dtype)` gives the storage that a tensor lies in. `find_global(module, name)` gives the
    meaning of a global, None if it is not allowed. `budget` is that of the conversion; None: in proportion to `data`.
    Raises UnsafePickleError for such a global, SourceError for whatever else is wrong.
    """
    return Pickles(bytes(data), storage, where=where, find_global=find_global, budget=budget).next()


class Pickles:
    """Pickles that stand one after the other in a file; `position` is where the last one that was read ends.

    The arguments are those of `unpickle`.
    """

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
        """The object that the next one describes."""
        machine = Machine(self._data, self.position, self._storage, self._find_global, self._budget)
        try:
            return machine.run()
        except SourceError as error:
            raise error.at(f"{self._where or 'pickle'}, byte {machine.position}") from None
        except (IndexError, KeyError, ValueError, TypeError, struct.error, OverflowError):
            at = f"{self._where or 'pickle'}, byte {machine.position}"
            hint = "the file is damaged or truncated"
            raise SourceError("the pickle is invalid here", where=at, hint=hint) from None
        finally:
            self.position = machine.position
