"""The output of commands: lines, tables, JSON, and a spinner during long work.

In a pipe, tables are plain text of any width, so that nothing is truncated or wrapped. On a terminal rich draws
them; it is imported only then.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from ..errors import LONGEST, printable, shortened

if TYPE_CHECKING:
    from rich.status import Status

GAP = "  "
PATIENCE = 1.0
"""Seconds after which a spinner shows that work is still running."""
WIDEST = 400
"""The most characters of a cell in a table; `--json` has all of them."""
DRAWN = 1000
"""The most rows that rich draws: each takes half a millisecond, and a terminal is not for more."""


class Column(NamedTuple):
    """A column of a table: its title, how it is aligned, and rich's style for a terminal."""

    title: str
    right: bool = False
    style: str = ""


def _echo(text: str, *, err: bool = False) -> None:
    """Print. Once the reader has closed (`| head`), drop the rest; the exit status stays that of the command."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


def line(text: str = "", *, err: bool = False) -> None:
    """One line on stdout or stderr."""
    _echo(printable(text), err=err)


def as_json(value: Any) -> None:
    """A value as JSON on stdout, for programs. JSON has no infinities: they are "inf" and "-inf", and NaN is "nan"."""
    import json

    _echo(json.dumps(_strict(value), indent=2, allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Lines of a label and its value; values are aligned."""
    width = max(len(label) for label, _ in rows)
    _echo("\n".join(printable(shortened(f"{label:<{width}}{GAP}{text}".rstrip(), LONGEST)) for label, text in rows))


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A title line and one line per row."""
    known: dict[str, str] = {}  # a long name may be in many rows
    cells = [[known.setdefault(shown, shown) for shown in map(_cell, row)] for row in rows]
    if _is_terminal(sys.stdout) and len(cells) <= DRAWN:
        _draw(columns, cells)
    else:
        for lines in _several(_aligned(columns, cells)):
            _echo("\n".join(lines))


def _cell(text: str) -> str:
    return printable(shortened(text, WIDEST))


def _several(lines: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(lines, DRAWN)):
        yield some


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal; a process may be started with a closed stream."""
    return stream is not None and stream.isatty()


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    lines = [[column.title for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        padded = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, cells, widths, strict=True)
        )
        yield GAP.join(padded).rstrip()


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for column in columns:
        title = Text(column.title)
        drawn.add_column(title, justify="right" if column.right else "left", style=column.style, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


@contextmanager
def working(on_what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal's stderr for work that takes longer than a second; what is given changes its text."""
    if not _is_terminal(sys.stderr):
        yield lambda text: None
        return
    shown: list[Status] = []
    said = on_what

    def markup() -> str:
        from rich.markup import escape

        return escape(printable(said))

    def show() -> None:
        from rich.console import Console

        shown.append(Console(stderr=True).status(markup()))
        shown[0].start()

    def say(text: str) -> None:
        nonlocal said
        said = text
        for status in shown:
            status.update(markup())

    timer = threading.Timer(PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        yield say
    finally:
        timer.cancel()
        timer.join()
        for status in shown:
            status.stop()
