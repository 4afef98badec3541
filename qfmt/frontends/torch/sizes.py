"""Sizes that are known only at run time: `x.size(0)`, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .calls import Value

if TYPE_CHECKING:
    from .values import TensorValue


class Size(Value):
    """One integer, computed by `build` as an int64 tensor of one element when it is needed.

    `source` is (tensor key, axis) if it is the size of a dimension; `dimension` is that dimension's name.
    """

    __slots__ = ("build", "dimension", "source")

    def __init__(
        self, build: Callable[[], TensorValue], source: tuple[str, int] | None = None, dimension: str | None = None
    ) -> None:
        self.build = build
        self.source = source
        self.dimension = dimension


class Unknown(Value):
    """A number or bool that depends on the data: code that branches on it cannot be converted."""
