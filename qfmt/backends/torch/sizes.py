"""Sizes of tensors are Python integers in the generated code: torch.export sees their dependence on the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .emit import Site


def to_list(vector: torch.Tensor) -> list[int]:
    return [int(item) for item in vector.reshape(-1).tolist()]


def shape_of(x: torch.Tensor, start: int, end: int) -> list[int]:
    """The sizes of some dimensions."""
    return list(x.shape[start:end])


def join(*vectors: list[int]) -> list[int]:
    return [size for vector in vectors for size in vector]


def plus(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in _pairs(a, b)]


def minus(a: list[int], b: list[int]) -> list[int]:
    return [x - y for x, y in _pairs(a, b)]


def times(a: list[int], b: list[int]) -> list[int]:
    return [x * y for x, y in _pairs(a, b)]


def over(a: list[int], b: list[int]) -> list[int]:
    """Quotients, rounded towards zero; sizes are not negative, but numbers computed from them may be."""
    return [x // y if (x >= 0) == (y > 0) else -(-x // y) for x, y in _pairs(a, b)]


def _pairs(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Pairs of elements; a vector of one element broadcasts."""
    length = max(len(a), len(b))
    return list(zip(a * (length // len(a)), b * (length // len(b)), strict=True))


def _shape(s: Site) -> Any:
    return s.call(shape_of, s.builder.some_form(s.node.inputs[0]), s.attribute("start"), s.attribute("end"))


def _of_all(function: Callable[..., list[int]]) -> Callable[[Site], Any]:
    return lambda s: s.call(function, *[s.sizes(index) for index in range(len(s.node.inputs))])


EMITTERS: dict[str, Callable[[Site], Any]] = {
    "Shape": _shape,
    "Concat": _of_all(join),
    "Add": _of_all(plus),
    "Sub": _of_all(minus),
    "Mul": _of_all(times),
    "Div": _of_all(over),
}
"""Operators on sizes; they return a list of integers."""
