"""Which sums of products of 8-bit integers engines get right on this processor, and which pairs saturate in the others.

Every product is drawn at random, with many integers at the ends of their ranges. Scales are powers of two: then each
engine computes all but the sums without rounding errors, whatever its rule, and an output that differs is a sum that
differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from qfmt.interpreter import execute
from qfmt.model import Node, Tensor
from qfmt.ops import Operand
from qfmt.ops.overflow import PairSums, computed_by
from qfmt.passes.hazards import CHANNELS_FIRST, HALVES, TAPS_FIRST, TAPS_OF_FOURS

EXACT = "exact"
ORDERS: Mapping[str, PairSums | None] = {
    EXACT: None,
    "taps": TAPS_FIRST,
    "fours": TAPS_OF_FOURS,
    "halves": HALVES,
    "channels": CHANNELS_FIRST,
}
"""Where two neighbours are added up in int16, what the terms of a sum run over: the taps of the kernel, for each over
the channels (`fours`: padded with zeros to a multiple of 4; `halves`: of a matrix product each half by itself), or
the channels, for each over the taps."""


class Drawn(NamedTuple):
    """A node on operands, and the integers or real numbers that an engine computed for it."""

    node: Node
    operands: list[Operand | None]
    output: Tensor
    theirs: np.ndarray


class Product(NamedTuple):
    """One cell of a table: an operator as one engine computes it, or with operands of some types."""

    table: str
    row: str
    column: str
    draw: Callable[[np.random.Generator], Drawn]


class Found(NamedTuple):
    """The keys of ORDERS that give all of so many outputs."""

    outputs: int
    orders: list[str]

    def __str__(self) -> str:
        if EXACT in self.orders:
            return EXACT
        return "pairs" if len(self.orders) == len(ORDERS) - 1 else " or ".join(self.orders) or "unknown"


def measure(product: Product, outputs: int) -> Found:
    """Draws until so many outputs have been compared, or no order is left."""
    rng, found = np.random.default_rng(7), Found(0, list(ORDERS))
    while found.outputs < outputs and found.orders:
        drawn = product.draw(rng)
        orders = [name for name in found.orders if _gives(ORDERS[name], drawn)]
        found = Found(found.outputs + drawn.theirs.size, orders)
    return found


def _gives(kernel: PairSums | None, drawn: Drawn) -> bool:
    with computed_by(kernel):
        (mine,) = execute(drawn.node, drawn.operands, [drawn.output])
    return mine.dtype == drawn.theirs.dtype and np.array_equal(mine, drawn.theirs)


def tables(products: Iterable[Product], outputs: int) -> dict[str, dict[str, dict[str, Found]]]:
    """Table → row → column → what was found."""
    found: dict[str, dict[str, dict[str, Found]]] = {}
    for each in products:
        found.setdefault(each.table, {}).setdefault(each.row, {})[each.column] = measure(each, outputs)
    return found


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Of which many are the largest, and some the least."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, endpoint=True)
    chance = rng.random(shape)
    return np.where(chance < 0.5, limits.max, np.where(chance < 0.6, limits.min, values)).astype(dtype)


def step(node: Node, operands: list[Operand | None]) -> float:
    """A power of two so large that 8 bits hold the sums of the node, in such steps; the node states `exact`."""
    (sums,) = execute(node, operands, [Tensor("y", "int32", None)])
    return float(2.0 ** np.ceil(np.log2(max(int(np.abs(sums).max()), 1) / 100)))
