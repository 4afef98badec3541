"""The line of an interrupted command: what became of the files that it was writing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import printable
from ..urls import Place

_MADE: list[tuple[Place, object]] = []
"""Files that the command writes, and their state before."""
_NOTES: list[str] = []

ending: SystemExit | None = None
"""The exit that a signal caused. Python may report another error: an import that is interrupted, a TypeError."""


def begin() -> None:
    """Forget the files and notes of earlier commands of this process."""
    _MADE.clear()
    _NOTES.clear()


def will_write(*places: Place | None) -> None:
    """If the command is interrupted from now on, say whether these files were written."""
    _MADE.extend((place, _state(place)) for place in places if place is not None)


def will_say(note: str) -> None:
    """If the command is interrupted from now on, say this, too."""
    _NOTES.append(note)


def summary() -> str:
    """`qfmt: interrupted; out.qfb was not written`"""
    return printable("; ".join(["qfmt: interrupted", *map(_fate, _MADE), *_NOTES]))


def _fate(made: tuple[Place, object]) -> str:
    place, before = made
    if _state(place) != before:
        return f"{place} was written"
    return f"{place} was not {'written' if before is None else 'changed'}"


def _state(place: Place) -> object:
    """What changes when a file or folder is replaced. None for a remote one, which appears at the end of a command."""
    with suppress(OSError):
        if isinstance(place, Path):
            found = place.stat()
            return found.st_ino, found.st_mtime_ns
    return None
