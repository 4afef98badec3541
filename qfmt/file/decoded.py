"""What is decoded when it is asked for, and where an error happened that meets it then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar, overload

from ..errors import FormatError, MissingFileError
from ..threads import Turns
from .decode import Record, Tables
from .header import AGAIN

Element = TypeVar("Element")


class Placed:
    """A context in which the error of a file learns where it happened, and what to do."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FormatError | MissingFileError):
            error.at(self._where).hint = error.hint or AGAIN


class Decoded(Sequence[Element], Generic[Element]):
    """The tables of a vector in order, as values of the model; each is decoded when it is asked for."""

    __slots__ = ("_decode", "_elements", "_placed", "_tables", "_turns", "_what")

    def __init__(
        self, tables: Tables, decode: Callable[[Record], Element], turns: Turns, placed: Placed, what: str
    ) -> None:
        self._tables = tables
        self._decode = decode
        self._turns, self._placed = turns, placed
        self._what = what
        self._elements: dict[int, Element] = {}

    def __len__(self) -> int:
        return len(self._tables)

    @overload
    def __getitem__(self, index: int) -> Element: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Element, ...]: ...
    def __getitem__(self, index: int | slice) -> Element | tuple[Element, ...]:
        try:
            positions = range(len(self))[index]
        except IndexError:
            raise IndexError(f"there are {len(self)} {self._what}s") from None
        if isinstance(positions, range):
            return tuple(self[position] for position in positions)
        if positions not in self._elements:
            with self._turns.lock, self._placed, Placed(f"{self._what} {positions}"):
                if positions not in self._elements:  # from another thread
                    self._elements[positions] = self._decode(self._tables[positions])
        return self._elements[positions]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} {self._what}s>"

    def __reduce__(self) -> tuple[type, tuple[tuple[Element, ...]]]:
        """A copy, or a pickle, does not depend on a file."""
        return tuple, (tuple(self),)
