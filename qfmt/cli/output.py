"""The output of commands: lines, tables, JSON.

In a pipe, tables are plain text of any width, so that nothing is truncated or wrapped. On a terminal they fit its
width, and what is longer than the screen goes through the user's pager.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any, NamedTuple, TextIO

import click

from ..errors import LONGEST, DestinationError, printable, shortened
from ..notation import NOTHING, json_value

GAP = "  "
WIDEST = 400
"""The most characters of a cell in a table; `--json` has all of them."""
MANY = 1000
"""Lines that are written at once."""
NARROW, NARROWEST = 28, 8
"""Columns of a terminal down to which texts are wrapped before details are left out, and after that."""


class Column(NamedTuple):
    """A column of a table: its title, how it is aligned, its color on a terminal.

    On a terminal, columns without any content are left out; if it is too narrow, those of details, the last one first.
    Then what is not aligned to the right is wrapped.
    """

    title: str
    right: bool = False
    color: str = ""
    detail: bool = False


_PAGE: list[list[str]] = []
"""What is printed and not yet shown, while a pager may be needed."""


def _echo(text: str, *, err: bool = False) -> None:
    if _PAGE and not err:
        _PAGE[-1].append(text)
        return
    with printing(err=err):
        click.echo(text, err=err)


@contextmanager
def printing(*, err: bool = False) -> Iterator[None]:
    """A block that prints. Once the reader has closed (`| head`), the rest is dropped, and the exit status stays that
    of the command.

    DestinationError if stdout cannot be written; what stderr cannot take is dropped.
    """
    try:
        yield
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        if not err and not isinstance(error, BrokenPipeError):
            raise DestinationError(f"cannot be written: {error.strerror}", where="standard output") from None


def line(text: str = "", *, err: bool = False) -> None:
    """One line on stdout or stderr; on a terminal, more lines if it is too narrow."""
    _echo(printable(text) if err else _paragraph(printable(text)), err=err)


def as_json(value: Any) -> None:
    """A value as JSON on stdout, for programs."""
    import json

    _echo(json.dumps(json_value(value), indent=2, allow_nan=False))


# -- terminals -----------------------------------------------------------------------------------------


def can_show(text: str, stream: TextIO) -> bool:
    """Whether the encoding of a stream has these characters."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _terminal_size() -> os.terminal_size:
    from shutil import get_terminal_size  # slow to import

    return get_terminal_size()


def _columns() -> int | None:
    """The columns of the terminal, at least NARROWEST; None if stdout is none, and lines may have any width."""
    return max(NARROWEST, _terminal_size().columns) if sys.stdout.isatty() else None


def has_colors() -> bool:
    """Whether stdout is a terminal with colors, and the user wants them (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """What is printed in the block goes through a pager, if stdout is a terminal and has fewer lines."""
    if not wanted or not sys.stdout.isatty() or os.environ.get("PAGER") in ("", "cat"):
        yield
        return
    _PAGE.append([])
    try:
        yield
    except (click.exceptions.Exit, Exception) as error:
        _show("\n".join(_PAGE.pop()), with_pager=isinstance(error, click.exceptions.Exit))
        raise
    except BaseException:  # an interruption
        _PAGE.clear()
        raise
    _show("\n".join(_PAGE.pop()), with_pager=True)


def _show(text: str, *, with_pager: bool) -> None:
    columns, lines = _terminal_size()
    rows = (max(1, -(-width(click.unstyle(each)) // columns)) for each in text.splitlines())
    if not with_pager or sum(islice(rows, lines)) < lines:
        if text:
            _echo(text)
        return
    os.environ.setdefault("LESS", "-RX")  # colors, and what was shown stays
    before = signal.signal(signal.SIGINT, lambda *_: None)  # it is for the pager
    try:
        click.echo_via_pager(f"{text}\n")
    except ValueError:  # quotes in PAGER that do not end
        _echo(text)
    finally:
        signal.signal(signal.SIGINT, before)


def width(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


@lru_cache(1024)  # a long name may be in many rows
def _wrapped(text: str, columns: int) -> list[str]:
    """Lines of at most that many columns, which end where a name or a list has a mark, if possible.

    All but the first are indented: what a file names must not look like a line of its own.
    """
    if width(text) <= columns:
        return [text]
    from rich.cells import chop_cells

    lines = [""]
    for part in re.findall(r"[^ ./_,;:-]*[ ./_,;:-]?", text):
        if width(lines[-1] + part.rstrip()) <= columns:
            lines[-1] += part
        elif width(part) < columns:
            lines.append(f" {part}")
        else:
            part = lines.pop() + part
            lines.append(chop_cells(part, columns)[0])
            lines += [f" {piece}" for piece in chop_cells(part[len(lines[-1]) :], columns - 1)]
    return [each.rstrip() for each in lines if each.strip()]


# -- pairs and tables ----------------------------------------------------------------------------------


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Lines of a label and its value; values are aligned."""
    indent = max(len(label) for label, _ in rows) + len(GAP)
    for label, text in rows:
        lines = _paragraph(printable(shortened(text, LONGEST)), indent)
        _echo(f"{label:<{indent}}{lines}".rstrip())


def _paragraph(text: str, indent: int = 0) -> str:
    """The text; on a terminal in lines beside its label, broken between words only, so that a path can be copied."""
    columns = _columns()
    if columns is None or width(text) <= columns - indent:
        return text
    lines = [""]
    for word in re.findall(r"\S+ *| +", text):
        if lines[-1] and indent + width(lines[-1] + word.rstrip()) > columns:
            lines.append("")
        lines[-1] += word
    return f"\n{' ' * indent}".join(each.rstrip() for each in lines)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A title line and one line per row."""
    known: dict[str, str] = {}  # a long name may be in many rows
    cells = [[known.setdefault(shown, shown) for shown in map(_cell, row)] for row in rows]
    for lines in _several(_laid_out(columns, cells)):
        _echo("\n".join(lines))


def _cell(text: str) -> str:
    return printable(shortened(text, WIDEST))


def _several(lines: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(lines, MANY)):
        yield some


def _laid_out(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    titles = [column.title for column in columns]
    natural = [_widest(cells) for cells in zip(titles, *rows, strict=True)]
    limit = _columns()
    if limit is not None:
        yield from _drawn(columns, titles, rows, natural, limit)
        return
    for cells in (titles, *rows):
        yield GAP.join(map(_padded, columns, cells, natural)).rstrip()


def _widest(cells: Sequence[str]) -> int:
    return max(map(len if all(map(str.isascii, cells)) else width, cells))


def _padded(column: Column, text: str, columns: int) -> str:
    columns -= width(text) - len(text)
    return text.rjust(columns) if column.right else text.ljust(columns)


def _drawn(
    columns: Sequence[Column], titles: Sequence[str], rows: Sequence[Sequence[str]], natural: Sequence[int], limit: int
) -> Iterator[str]:
    """The lines for a terminal."""
    known = [at for at in range(len(columns)) if not rows or any(row[at] not in ("", NOTHING) for row in rows)]
    shown = _fitting(columns, known, natural, limit)
    widths = _widths(columns, natural, shown, limit)
    has_color = has_colors()

    def lines(cells: Sequence[str], head: bool) -> Iterator[str]:
        wrapped = [_wrapped(cells[at], widths[at]) for at in shown]
        for texts in zip_longest(*wrapped, fillvalue=""):
            parts = []
            for at, text in zip(shown, texts, strict=True):
                part = _padded(columns[at], text, widths[at])
                if has_color and text and (head or columns[at].color):
                    part = part.replace(text, click.style(text, None if head else columns[at].color, bold=head or None))
                parts.append(part)
            yield GAP.join(parts).rstrip()

    yield from lines(titles, True)
    for row in rows:
        yield from lines(row, False)
    if left_out := [titles[at] for at in known if at not in shown and titles[at]]:
        told = f"(left out in {limit} columns: {', '.join(left_out)})"
        yield click.style(told, dim=True) if has_color else told


def _fitting(columns: Sequence[Column], known: Sequence[int], natural: Sequence[int], limit: int) -> list[int]:
    """The columns, without details if these leave little room; and without the last ones that leave none."""
    shown = [*known]
    for room, may_go in ((NARROW, [at for at in known if columns[at].detail]), (NARROWEST, [*known[1:]])):
        least = [each if column.right else min(each, room) for each, column in zip(natural, columns, strict=True)]
        while may_go and sum(least[at] + len(GAP) for at in shown) - len(GAP) > limit:
            if (at := may_go.pop()) in shown:
                shown.remove(at)
    return shown


def _widths(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int], limit: int) -> list[int]:
    """The widths of columns, of which the widest that may be wrapped are cut to one width."""
    room = limit - len(GAP) * (len(shown) - 1) - sum(natural[at] for at in shown if columns[at].right)
    cut = limit
    while cut > NARROWEST and sum(min(natural[at], cut) for at in shown if not columns[at].right) > room:
        cut -= 1
    return [each if column.right else min(each, cut) for each, column in zip(natural, columns, strict=True)]
