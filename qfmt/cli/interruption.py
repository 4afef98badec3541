"""What an interrupted command says: one line, with what became of the files that it was to write."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import printable
from ..urls import Place

_MADE: list[tuple[Place, object]] = []
"""Files that the command writes, and what was there before."""
_NOTES: list[str] = []


def begin() -> None:
    """Forget what commands before this one, in the same process, were to write."""
    _MADE.clear()
    _NOTES.clear()


def makes(*places: Place | None) -> None:
    """Say of these files, if the command is interrupted from now on, whether they were written."""
    _MADE.extend((place, _state(place)) for place in places if place is not None)


def leaves(note: str) -> None:
    """Say this, if the command is interrupted from now on."""
    _NOTES.append(note)


def told() -> str:
    """`qfmt: interrupted; out.qfb was not written`"""
    return printable("; ".join(["qfmt: interrupted", *map(_fate, _MADE), *_NOTES]))


def _fate(made: tuple[Place, object]) -> str:
    place, before = made
    if _state(place) != before:
        return f"{place} was written"
    return f"{place} was not {'written' if before is None else 'changed'}"


def _state(place: Place) -> object:
    """What differs if a file or folder was replaced; a remote one appears at the end of a command."""
    with suppress(OSError):
        if isinstance(place, Path):
            found = place.stat()
            return found.st_ino, found.st_mtime_ns
    return None
