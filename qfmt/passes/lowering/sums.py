"""Exact sums of a layer: the node that computes them, their range, and their outputs by the stated rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...arithmetic import f32
from ...model import Node, Quantization
from .lines import Floats
from .step_functions import Array, Integers

FACTOR_BITS = 16
"""The most bits of integers that are multiplied or summed."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A node that outputs exact sums as int32, and how they are requantized. C channels, or 1 for all.

    `evaluate(x, channels)`: sums [c, n] of some channels to output integers, by the rule `compared`. `pairs`: all
    reachable sums and their outputs, if these are known individually; `nearly`: one sum may have multiple outputs.
    `unsure`: for how many sums the stated rule's result is uncertain, because it sums floats.
    `whole`: the stated rule adds only integers to a sum, in float32 without rounding.
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
    """The quantization of the sums: their unit, and their range."""
    scales = tuple(float(each) for each in np.asarray(scale, np.float64).reshape(-1))
    least, most = min(0, int(low.min(initial=0))), max(0, int(high.max(initial=0)))
    exact = all(float(f32(each)) == each for each in scales)
    zeros, stored = (0,) * len(scales), "float32" if exact else "float64"
    return Quantization.of(scales, zeros, least, most, axis if len(scales) > 1 else None, stored)
