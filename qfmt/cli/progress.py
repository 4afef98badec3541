"""The progress line of all commands: on stderr, if that is a terminal, once work has taken `PATIENCE`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import click

from ..errors import printable
from ..progress import BYTES, Steps, watched
from .output import can_show

if TYPE_CHECKING:
    from rich.live import Live

PATIENCE = 1.0
"""Seconds after which the line appears: most commands end before, and never import rich."""
BAR = 20
"""The columns of a bar."""

_QUIET = "qfmt.quiet"
"""The key for `--quiet` in click's context."""


def quiet(ctx: click.Context, _option: click.Parameter, value: bool) -> bool:
    """The callback of `--quiet`: no progress is shown."""
    ctx.meta[_QUIET] = value
    return value


@contextmanager
def working(on_what: str) -> Iterator[None]:
    """Show the progress of the work in the block, if it takes long, stderr is a terminal, and `--quiet` is not given.

    The block must not print to stdout.
    """
    context = click.get_current_context(silent=True)
    if not sys.stderr.isatty() or (context is not None and context.meta.get(_QUIET)):
        yield
        return
    begun: list[Steps] = []
    shown: list[Live] = []
    begin = monotonic()

    def add(steps: Steps) -> None:
        begun[:] = [each for each in begun if each.done < each.total]
        begun.append(steps)

    def show() -> None:
        shown.append(_live(on_what, begun, begin))
        shown[0].start()

    timer = threading.Timer(PATIENCE, show)
    timer.daemon = True
    timer.start()
    try:
        with watched(add):
            yield
    finally:
        timer.cancel()
        timer.join()
        for each in shown:
            each.stop()


def _live(on_what: str, begun: list[Steps], begin: float) -> Live:
    """A line that redraws itself. It shows the outermost part of the work that is not done."""
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True)
    spinner = Spinner("dots" if can_show("⠋", sys.stderr) else "line")

    def drawn() -> Table:
        unfinished = [each for each in [*begun] if each.done < each.total]
        steps = unfinished[0] if unfinished else None
        words = printable(f"{on_what}: {steps.what}" if steps and steps.what else on_what)
        seconds = int(monotonic() - begin)
        time, count = f"{seconds // 60}:{seconds % 60:02}", _count(steps) if steps else ""
        bar: list[ProgressBar | Text] = [ProgressBar(1.0, _share(unfinished), width=BAR), Text(count)] if steps else []
        room = console.width - len(f"- {' ' * bool(steps) * (BAR + 1)} {count} {time} ")
        text = Text(words)
        text.truncate(max(room, 8), overflow="ellipsis")
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(spinner, text, *bar, Text(time))
        return grid

    return Live(get_renderable=drawn, console=console, transient=True, redirect_stdout=False, refresh_per_second=10)


def _share(unfinished: list[Steps]) -> float:
    """The share that is done, if each part of the work is one step of the part before it."""
    share, step = 0.0, 1.0
    for each in unfinished:
        share += step * each.done / each.total
        step /= each.total
    return min(share, 1.0)


def _count(steps: Steps) -> str:
    if steps.unit == BYTES:
        from ..notation import size

        return f"{size(steps.done)} of {size(steps.total)}"
    return f"{steps.done:,} of {steps.total:,}{' ' * bool(steps.unit)}{steps.unit}"
