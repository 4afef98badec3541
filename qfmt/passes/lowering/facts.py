"""The facts that the requantizations of a model state about themselves, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...model import Model, Node, Proof
from ...ops import Trait, has
from ...ops.requantization import PARAMETERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

BITS = (1, 8, 16, 32)
"""Bit widths by which multipliers are counted, each by the smallest that fits; 1: the multiplier is 1."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One requantization. `reach` has the least and the greatest sum of each channel; it is empty if none is stated.

    `widths`: how many channels have multipliers of 1, 8, 16, 32 bits. `pairs`: how many pairs of inputs were compared,
    if not every reachable sum occurs; else 0.
    """

    output: str
    source: str
    rule: str
    channels: int
    widths: Mapping[int, int]
    thresholds: int
    bits: int
    reach: Sequence[tuple[int, int]]
    compared: str
    differs: int
    largest: int
    node: Node
    pairs: int

    @property
    def sums(self) -> int:
        """How many sums were compared over all channels: the reachable ones, or those of all pairs."""
        return self.pairs or sum(high - low + 1 for low, high in self.reach)

    @property
    def shifts(self) -> int:
        """How many channels are only shifted, not multiplied."""
        return self.channels - self.thresholds - sum(self.widths.values())

    @property
    def sum_bits(self) -> int:
        """The bits that a signed accumulator needs."""
        return max((max(high.bit_length(), (-low - 1).bit_length()) + 1 for low, high in self.reach), default=0)


def requantizations(model: Model) -> Iterator[Facts]:
    """Every qfmt.Requantize and qfmt.RequantShift of a model, in order."""
    producers = model.graph.producers()
    for node in model.nodes:
        if has(node, Trait.REQUANTIZE):
            yield _facts(node, parameters(node, model), _pairs(producers.get(node.inputs[0]), model))


def _pairs(adding: Node | None, model: Model) -> int:
    """The number of pairs of inputs of a lowered function of two tensors."""
    if adding is None or adding.operator not in ("qfmt.WeightedSum", "Mul"):
        return 0
    tensors = [model.tensors[name] for name in adding.inputs]
    grids = [tensor.quantization for tensor in tensors if tensor.quantization or not tensor.is_constant]
    return prod(0 if grid is None else grid.quant_max - grid.quant_min + 1 for grid in grids)


def parameters(node: Node, model: Model) -> dict[str, NDArray[Any]]:
    """The parameter arrays of a requantization, by parameter."""
    words = ("multiplier", "add") if node.operator == "qfmt.RequantShift" else PARAMETERS
    return {word: model.tensors[name].array for word, name in zip(words, node.inputs[1:], strict=False) if name}


def _facts(node: Node, arrays: Mapping[str, NDArray[Any]], pairs: int) -> Facts:
    proof = node.proof or Proof((), ())
    reach = list(zip(proof.low, proof.high, strict=True))
    rows = () if "row" in arrays else arrays.get("thresholds", ())  # then each channel has its own thresholds
    sizes = (array.size for word, array in arrays.items() if word != "thresholds")
    channels = max(len(reach), len(rows), *sizes, 1)
    by_rows = np.full(channels, node.rule == "thresholds")
    if "row" in arrays:
        by_rows = np.broadcast_to(arrays["row"] >= 0, channels)
    widths: Counter[int] = Counter()
    most = 0
    if "multiplier" in arrays:
        lines = np.broadcast_to(arrays["multiplier"].reshape(-1), channels)[~by_rows].tolist()
        most = max((int(each).bit_length() for each in lines), default=0)
        widths.update(_width(int(each)) for each in lines)
    return Facts(
        output=node.outputs[0],
        source=node.inputs[0],
        rule=node.rule,
        channels=channels,
        widths=dict(sorted(widths.items())),
        thresholds=int(by_rows.sum()),
        bits=most,
        reach=reach,
        compared=proof.compared,
        differs=sum(proof.differs),
        largest=proof.largest,
        node=node,
        pairs=pairs,
    )


def _width(multiplier: int) -> int:
    """The smallest of BITS that fits a multiplier; the last one if none does."""
    return next((width for width in BITS if multiplier.bit_length() <= width), BITS[-1])


@dataclass(frozen=True, slots=True)
class Totals:
    """All requantizations of a model together. `unproven`: those that state no comparison."""

    count: int
    channels: int
    shifts: int
    thresholds: int
    bits: int
    sums: int
    differs: int
    largest: int
    unproven: int


def totals(model: Model) -> Totals:
    """The totals of all requantizations."""
    found = list(requantizations(model))
    return Totals(
        len(found),
        sum(each.channels for each in found),
        sum(each.shifts for each in found),
        sum(each.thresholds for each in found),
        max((each.bits for each in found), default=0),
        sum(each.sums for each in found if each.compared),
        sum(each.differs for each in found),
        max((each.largest for each in found), default=0),
        sum(not each.compared for each in found),
    )
