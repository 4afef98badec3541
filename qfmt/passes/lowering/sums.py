"""Exact sums of a layer: what adds them up, how far they reach, and what the stated rule makes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...arithmetic import f32
from ...model import Node, Quantization
from .lines import Floats
from .step_functions import Array, Integers

FACTOR_BITS = 16
"""The most that integers may have which are multiplied, or added up."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A node that gives exact sums as int32, and what becomes of them. C channels, or 1 for all.

    `evaluate(x, channels)`: sums [c, n] of some channels to output integers, by the rule `compared`. `pairs`: all
    reachable sums and what they give, where that is known one by one instead; `nearly`: several outputs for one sum, at
    times. `unsure`: of how many sums it cannot be told what the stated rule gives, because it adds up real numbers.
    `whole`: the stated rule adds nothing to a sum but whole numbers, in float32 without rounding.
    """

    node: Node
    axis: int
    low: Integers
    high: Integers
    multiplier: Floats
    compared: str
    unit: Quantization | None = None
    evaluate: Callable[[Integers, slice], Array] | None = None
    pairs: tuple[Integers, Integers] | None = None
    unsure: int = 0
    nearly: bool = False
    whole: bool = True


def unit_of(scale: Array, axis: int, low: Integers, high: Integers) -> Quantization:
    """What the sums mean: their unit, and the range that they stay in."""
    scales = tuple(float(each) for each in np.asarray(scale, np.float64).reshape(-1))
    least, most = min(0, int(low.min(initial=0))), max(0, int(high.max(initial=0)))
    exact = all(float(f32(each)) == each for each in scales)
    zeros, stored = (0,) * len(scales), "float32" if exact else "float64"
    return Quantization.of(scales, zeros, least, most, axis if len(scales) > 1 else None, stored)
