"""Options that multiple commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ..notation import is_size_name
from .output import paged, printing
from .progress import quiet

if TYPE_CHECKING:
    from ..model import Dimension

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

Shapes = dict[str, "tuple[Dimension, ...]"]


class Command(click.Command):
    """A command whose help text may be cut (`| head`), or not fit on a disk."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        with printing():
            click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def input_shapes(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--input-shape NAME=1,3,224,224`, any number of times, as {name: sizes or names of sizes}."""
    return click.option(
        "--input-shape",
        "shapes",
        multiple=True,
        callback=named("NAME=SIZE,SIZE,… as in x=N,3,224,224", _shape),
        metavar="NAME=SIZE,…",
        help=help,
    )


def size(name: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option such as `--memory 4G`, as bytes; None if it is not given."""
    return click.option(
        name,
        callback=lambda _ctx, _option, value: None if value is None else _bytes(value),
        metavar="SIZE",
        help=help,
    )


def memory() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--memory 4G`, as bytes; None if it is not given."""
    return size(
        "--memory",
        "The most memory that the run may take, as in 500M or 4G  [default: 4 GiB and 256 times the size of"
        " constants and inputs, at most half of what is available]",
    )


def no_progress(
    help: str = "Show no progress.", *, expose_value: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--quiet`, which takes effect by itself. A command that can leave out more asks for its value."""
    return click.option("--quiet", is_flag=True, callback=quiet, expose_value=expose_value, help=help)


def pager(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--no-pager`, and without it a pager for what the command prints."""

    @click.option("--no-pager", is_flag=True, help="On a terminal, print everything at once, without $PAGER.")
    @wraps(command)
    def paging(*arguments: Any, no_pager: bool, **options: Any) -> Any:
        with paged(not no_pager):
            return command(*arguments, **options)

    return paging


def completed(by: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What a shell completes, by a function of `completion`, which is imported only then."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
        from . import completion

        found: list[Any] = getattr(completion, by)(ctx, incomplete)
        return found

    return complete


DIGITS = 30
"""The most digits of a size: Python makes no integer of thousands."""


def is_number(text: str) -> bool:
    """Whether a text is a whole number in ASCII: Python reads the digits of all scripts."""
    return text.isascii() and text.isdecimal()


def _bytes(value: str) -> int:
    text = value.upper().removesuffix("B")
    count, unit = (text[:-1], text[-1]) if text[-1:] in UNITS and text else (text, "")
    if not is_number(count) or len(count) > DIGITS or not int(count):
        raise click.BadParameter(f"{value!r} is not a number of bytes above 0, as in 500M or 4G")
    return int(count) * UNITS[unit]


SECONDS = 10**7
"""The most seconds that an option takes: what waits cannot count to infinity."""


def seconds(name: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option such as `--timeout 600`; None if it is not given."""

    def callback(_ctx: click.Context, _option: click.Parameter, value: float | None) -> float | None:
        if value is not None and not 0 < value <= SECONDS:
            raise click.BadParameter(f"{value:g} is not a number of seconds above 0, up to {SECONDS:,}")
        return value

    return click.option(name, type=float, callback=callback, metavar="SECONDS", help=help)


def named(form: str, parse: Callable[[list[str]], Any]) -> Callable[..., dict[str, Any]]:
    """A callback that reads NAME=WORD,WORD… by name. A name may contain "=", the words may not.

    `parse` raises ValueError for words that are not of the `form`, which the error shows.
    """

    def callback(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for value in values:
            name, _, words = value.rpartition("=")
            try:
                if not name:
                    raise ValueError
                parsed = parse([word.strip() for word in words.split(",")])
            except ValueError:
                raise click.BadParameter(f"{value!r} is not {form}") from None
            if name in read:
                raise click.BadParameter(f"it is given twice for {name}")
            read[name] = parsed
        return read

    return callback


def _shape(words: list[str]) -> tuple[Dimension, ...]:
    if not all(is_number(word) or is_size_name(word) for word in words):
        raise ValueError
    return tuple(int(word) if is_number(word) else word for word in words)
