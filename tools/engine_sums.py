"""Find which engines sum products of 8-bit integers exactly on this processor, and which pairs saturate in the
others.

Products are random, with many integers at the ends of their ranges. Scales are powers of two, so that everything
except the sums is exact in every engine, whatever its rule: an output that differs is a sum that differs.
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
"""Orders of the terms of a sum, of which two neighbours are added in int16: taps of the kernel, then channels
(`fours`: padded with zeros to a multiple of 4; `halves`: each half of a matrix product separately), or channels,
then taps."""


class Drawn(NamedTuple):
    """A node with operands, and the integers or real numbers that an engine computed for it."""

    node: Node
    operands: list[Operand | None]
    output: Tensor
    theirs: np.ndarray


class Product(NamedTuple):
    """One cell of a table: an operator in one engine, or with operands of some types."""

    table: str
    row: str
    column: str
    draw: Callable[[np.random.Generator], Drawn]


class Found(NamedTuple):
    """The keys of ORDERS that reproduce all of these outputs."""

    outputs: int
    orders: list[str]

    def __str__(self) -> str:
        if EXACT in self.orders:
            return EXACT
        return "pairs" if len(self.orders) == len(ORDERS) - 1 else " or ".join(self.orders) or "unknown"


def measure(product: Product, outputs: int) -> Found:
    """Draw until this many outputs have been compared, or no order remains."""
    rng, found = np.random.default_rng(7), Found(0, list(ORDERS))
    while found.outputs < outputs and found.orders:
        drawn = product.draw(rng)
        orders = [name for name in found.orders if _gives(ORDERS[name], drawn)]
        found = Found(found.outputs + drawn.theirs.size, orders)
    return found


def first_order(product: Product) -> str | None:
    """The first key of ORDERS that reproduces one draw; faster than `measure`, which tries all of them."""
    drawn = product.draw(np.random.default_rng(7))
    return next((name for name, kernel in ORDERS.items() if _gives(kernel, drawn)), None)


def _gives(kernel: PairSums | None, drawn: Drawn) -> bool:
    with computed_by(kernel):
        (mine,) = execute(drawn.node, drawn.operands, [drawn.output])
    return mine.dtype == drawn.theirs.dtype and np.array_equal(mine, drawn.theirs)


def tables(products: Iterable[Product], outputs: int) -> dict[str, dict[str, dict[str, Found]]]:
    """Table → row → column → result."""
    found: dict[str, dict[str, dict[str, Found]]] = {}
    for each in products:
        found.setdefault(each.table, {}).setdefault(each.row, {})[each.column] = measure(each, outputs)
    return found


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random integers; many are the largest, and some the smallest."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, endpoint=True)
    chance = rng.random(shape)
    return np.where(chance < 0.5, limits.max, np.where(chance < 0.6, limits.min, values)).astype(dtype)


def step(node: Node, operands: list[Operand | None]) -> float:
    """The smallest power of two as a scale with which the sums of the node fit in 8 bits; the node states
    `exact`."""
    (sums,) = execute(node, operands, [Tensor("y", "int32", None)])
    return float(2.0 ** np.ceil(np.log2(max(int(np.abs(sums).max()), 1) / 100)))
