"""Means: sums of the integers of a window, exact in int32; windows of different sizes on one unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...arithmetic import MEAN, clamp, f32, named, quantize
from ...model import DTYPES, INT32, Node, Quantization
from ...ops.geometry import UncountedError, common_multiple, mean_sizes
from .context import Context, NoForm
from .requantizing import FACTOR_BITS, FOUND, Sums, check_levels, unit_of
from .step_functions import Array, Integers, differing, levels_of, search

MOST_SUMS = 1 << 23
"""The most sums of windows of different sizes that are listed."""

SUM_BYTES = 16
"""Bytes of memory for each listed sum."""


def mean(node: Node, context: Context) -> Sums:
    """AveragePool, GlobalAveragePool, qfmt.AdaptiveAveragePool, ReduceMean: sums of q - zx, times L / n.

    With a quantize rule, the mean is computed from floats in an unknown order: then all sums whose output depends on
    the order are counted (`unsure`).
    """
    x, y = context.tensors[node.inputs[0]], context.tensors[node.outputs[0]]
    xq, yq = context.grid(x), context.grid(y)
    if xq.is_per_channel or yq.is_per_channel:
        raise NoForm("has an input or output that is quantized per channel")
    if node.rule in MEAN and not xq.same_grid(yq):
        raise NoForm("computes a mean with a quantization other than that of its input")
    if DTYPES[x.dtype].bits > FACTOR_BITS:
        raise NoForm(f"sums integers of more than {FACTOR_BITS} bits")
    try:
        counts = mean_sizes(node, context.tensors, context.budget)
    except UncountedError as error:
        raise NoForm(error.what, unknown_shape=error.is_open) from None
    if not counts or not all(counts):
        raise NoForm("averages over zero elements")
    if len(counts) > 1:
        listed = sum(counts) * (xq.quant_max - xq.quant_min)
        if listed > MOST_SUMS:
            raise NoForm("has windows with too many possible sums to compare each of them")
        context.budget.allocate(SUM_BYTES * listed)
    check_levels(yq)
    context.budget.spend(len(counts) * (yq.quant_max - yq.quant_min) // FOUND)
    multiple, zero = common_multiple(counts), int(xq.zero_point[0])
    low, high = xq.quant_min - zero, xq.quant_max - zero
    if node.attributes.get("count_include_pad"):
        low, high = min(low, 0), max(high, 0)
    least, most = min(0, low) * multiple, max(1, high) * multiple
    if max(-least, most) >= INT32:
        raise NoForm(f"sums may reach {least:,} or {most:,}, outside int32")
    rounded = _stated_mean(node.rule, xq, yq, context.kind(y))
    unsure = 0
    if node.rule not in MEAN:
        unsure = sum(_unsure(rounded, low * n, high * n, n, xq.scale[0] / n, yq) for n in counts)
    lows, highs = np.array([low * multiple]), np.array([high * multiple])
    adding = replace(node, outputs=(context.free(f"{y.name}.sums"),), rule="exact")
    unit = unit_of(np.array([xq.scale[0] / multiple]), 0, lows, highs)
    scale = np.array([xq.scale[0] / multiple / yq.scale[0]])
    if len(counts) == 1:

        def evaluate(sums: Integers, _: slice) -> Array:
            return rounded(sums, counts[0], 0)

        return Sums(adding, 0, lows, highs, scale, node.rule, unit, evaluate, None, unsure)
    ranges = [np.arange(low * n, high * n + 1) for n in counts]
    values = np.concatenate([totals * (multiple // n) for totals, n in zip(ranges, counts, strict=True)])
    outputs = np.concatenate([rounded(totals, n, 0) for totals, n in zip(ranges, counts, strict=True)])
    pairs = values, outputs.astype(np.int64)
    return Sums(adding, 0, lows, highs, scale, node.rule, unit, None, pairs, unsure, nearly=True)


def _stated_mean(
    rule: str, xq: Quantization, yq: Quantization, dtype: np.dtype[Any]
) -> Callable[[Integers, int, int], Array]:
    """Sums of n centred integers to outputs; for means of floats with their largest error, times `sign`.

    In any order, n terms that are rounded, added and divided in float32 have an error of at most (n + 2) · 2⁻²⁴ of
    the sum of their magnitudes, plus terms of higher order. That is the magnitude of the sum if all have one sign.
    """
    if rule in MEAN:
        return lambda totals, count, sign: clamp(
            named(MEAN, rule)(totals, np.asarray(count).astype(f32), f32(xq.zero_point[0])), yq, dtype
        )
    scale, zero = float(f32(xq.scale[0])), int(xq.zero_point[0])
    low, high = xq.quant_min - zero, xq.quant_max - zero
    offset = abs(zero) * 2.0**-24 if rule == "premultiplied" else 0.0  # the error of -z · s

    def of_reals(totals: Integers, count: int, sign: int) -> Array:
        largest = np.abs(totals) / count if low >= 0 or high <= 0 else max(-low, high)
        error = sign * ((count + 8) * 2.0**-24 * largest + offset) * scale
        return quantize((totals * (scale / count) + error).astype(f32), yq, dtype, rule)

    return of_reals


def _unsure(
    rounded: Callable[[Integers, int, int], Array], low: int, high: int, count: int, scale: float, yq: Quantization
) -> int:
    """How many sums of n integers may be rounded either way: those between the thresholds of both errors."""
    ends, levels = (np.array([low]), np.array([high])), levels_of(yq.quant_min, yq.quant_max)
    slope, zero = np.array([scale / yq.scale[0]]), int(yq.zero_point[0])
    less = search(lambda x: rounded(x, count, -1), *ends, levels, slope, zero)
    more = search(lambda x: rounded(x, count, 1), *ends, levels, slope, zero)
    return int(differing(less, more.above).sum())
