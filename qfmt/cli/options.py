"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..model import Dimension

Shapes = dict[str, "tuple[Dimension, ...]"]


def input_shapes(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--input-shape NAME=1,3,224,224`, any number of times, as {name: sizes or names of sizes}."""
    return click.option("--input-shape", "shapes", multiple=True, callback=_shapes, metavar="NAME=SIZE,…", help=help)


def _shapes(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> Shapes:
    return dict(_shape(value) for value in values)


def _shape(value: str) -> tuple[str, tuple[Dimension, ...]]:
    name, equals, sizes = value.partition("=")
    words = [word.strip() for word in sizes.split(",")]
    if not (name and equals and all(word.isdecimal() or _is_name(word) for word in words)):
        raise click.BadParameter(f"{value!r} is not NAME=SIZE,SIZE,… as in x=N,3,224,224")
    return name, tuple(int(word) if word.isdecimal() else word for word in words)


def _is_name(word: str) -> bool:
    """`N`, or `image.N`: the conversion of a network with several inputs names sizes so."""
    return all(part.isidentifier() for part in word.split("."))
