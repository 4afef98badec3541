"""Means: sums of the integers of a window, exact in int32; windows of different sizes on one unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import lcm, prod
from typing import Any, cast

import numpy as np

from ...arithmetic import MEAN, clamp, f32, named, quantize
from ...model import DTYPES, Node, Quantization
from ...ops.pooling import bins, counts_along
from ...ops.shapes import axis_of
from .requantizing import FOUND
from .steps import Array, Integers, differing, levels_of, search
from .sums import FACTOR_BITS, INT32, Sums, unit_of
from .work import NoForm, Work

MOST_SUMS = 1 << 23
"""Of windows of different sizes all sums are listed, if they are no more."""

SUM_BYTES, WINDOW_BYTES = 16, 64
"""Bytes that a sum takes which is listed, and a window."""


def mean(node: Node, work: Work) -> Sums:
    """AveragePool, GlobalAveragePool, qfmt.AdaptiveAveragePool, ReduceMean: sums of q - zx, times L / n.

    By a quantize rule the mean is one of real numbers, rounded in an order that is not known: then all sums are counted
    whose output depends on it (`unsure`).
    """
    x, y = work.tensors[node.inputs[0]], work.tensors[node.outputs[0]]
    xq, yq = work.grid(x), work.grid(y)
    if xq.is_per_channel or yq.is_per_channel:
        raise NoForm("has an input or output that is quantized per channel")
    if node.rule in MEAN and not xq.same_grid(yq):
        raise NoForm("computes a mean on a different grid than its input")
    if DTYPES[x.dtype].bits > FACTOR_BITS:
        raise NoForm(f"sums integers of more than {FACTOR_BITS} bits")
    counts = window_sizes(node, work)
    if not counts or not all(counts):
        raise NoForm("averages over zero elements")
    if len(counts) > 1:
        listed = sum(counts) * (xq.quant_max - xq.quant_min)
        if listed > MOST_SUMS:
            raise NoForm("has windows with too many possible sums to compare each of them")
        work.budget.allocate(SUM_BYTES * listed)
    work.budget.spend(len(counts) * (yq.quant_max - yq.quant_min) // FOUND)
    multiple, zero = lcm(*counts), int(xq.zero_point[0])
    low, high = xq.quant_min - zero, xq.quant_max - zero
    if node.attributes.get("count_include_pad"):
        low, high = min(low, 0), max(high, 0)
    least, most = min(0, low) * multiple, max(0, high) * multiple
    if max(-least, most) >= INT32:
        raise NoForm(f"sums may reach {least:,} or {most:,}, outside int32")
    rounded = _stated_mean(node.rule, xq, yq, work.kind(y))
    unsure = 0
    if node.rule not in MEAN:
        unsure = sum(_unsure(rounded, low * n, high * n, n, xq.scale[0] / n, yq) for n in counts)
    lows, highs = np.array([low * multiple]), np.array([high * multiple])
    adding = replace(node, outputs=(work.free(f"{y.name}.sums"),), rule="exact")
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
    """Sums of n centred integers to outputs; of real numbers with the largest error that these may have, times `sign`.

    Whatever the order, n terms that are rounded, added and divided in float32 are off by (n + 2) · 2⁻²⁴ of the sum of
    their magnitudes at most, but for terms of higher order. That is the magnitude of the sum, if all have one sign.
    """
    if rule in MEAN:
        return lambda totals, count, sign: clamp(
            named(MEAN, rule)(totals, np.asarray(count).astype(f32), f32(xq.zero_point[0])), yq, dtype
        )
    scale, zero = float(f32(xq.scale[0])), int(xq.zero_point[0])
    low, high = xq.quant_min - zero, xq.quant_max - zero
    offset = abs(zero) * 2.0**-24 if rule == "premultiplied" else 0.0  # what -z · s is off by

    def of_reals(totals: Integers, count: int, sign: int) -> Array:
        largest = np.abs(totals) / count if low >= 0 or high <= 0 else max(-low, high)
        error = sign * ((count + 8) * 2.0**-24 * largest + offset) * scale
        return quantize((totals * (scale / count) + error).astype(f32), yq, dtype, rule)

    return of_reals


def _unsure(
    rounded: Callable[[Integers, int, int], Array], low: int, high: int, count: int, scale: float, yq: Quantization
) -> int:
    """How many sums of n integers may be rounded either way: those between the thresholds of either error."""
    ends, levels = (np.array([low]), np.array([high])), levels_of(yq.quant_min, yq.quant_max)
    slope, zero = np.array([scale / yq.scale[0]]), int(yq.zero_point[0])
    less = search(lambda x: rounded(x, count, -1), *ends, levels, slope, zero)
    more = search(lambda x: rounded(x, count, 1), *ends, levels, slope, zero)
    return int(differing(less, more.above).sum())


def window_sizes(node: Node, work: Work) -> list[int]:
    """All numbers of elements that the windows of a mean divide by."""
    x, a = work.tensors[node.inputs[0]], cast(dict[str, Any], node.attributes)
    if node.operator == "AveragePool" and not any(a["pads"]) and not a["ceil_mode"]:
        return [prod(a["kernel_shape"])]
    if x.shape is None:
        raise NoForm("averages over an unknown number of elements", unknown_shape=True)
    axes = list(range(2, len(x.shape)))
    if node.operator == "ReduceMean":
        axes = _reduced(node, work, len(x.shape))
    elif node.operator == "qfmt.AdaptiveAveragePool":
        axes = list(range(len(x.shape)))[-len(a["output_size"]) :]
    sizes = [size for axis in axes if isinstance(size := x.shape[axis], int)]
    if len(sizes) < len(axes):
        raise NoForm("averages over an unknown number of elements", unknown_shape=True)
    if node.operator in ("GlobalAveragePool", "ReduceMean"):
        return [prod(sizes)]
    if 0 in sizes:
        return [0]
    work.budget.allocate(WINDOW_BYTES * sum(_windows(node, axis, size) for axis, size in enumerate(sizes)))
    along = [window_sizes_along(node, axis, size) for axis, size in enumerate(sizes)]
    if (sizes_at_all := prod(map(len, along))) > MOST_SUMS:
        raise NoForm("has windows of too many sizes")
    work.budget.spend(sizes_at_all)
    return sorted({prod(each) for each in product(*along)})


def _reduced(node: Node, work: Work, rank: int) -> list[int]:
    axes = work.tensors[node.inputs[1]] if len(node.inputs) > 1 and node.inputs[1] else None
    if axes is not None and not axes.is_constant:
        raise NoForm("averages over axes that are not constant")
    if axes is None or axes.array.size == 0:
        return [] if node.attributes["noop_with_empty_axes"] else list(range(rank))
    return [axis_of(int(axis), rank) for axis in axes.array.reshape(-1)]


def _enough(node: Node, axis: int, size: int) -> int:
    """A smaller size with the same windows at both ends: those between are all alike."""
    a = cast(dict[str, Any], node.attributes)
    reach = (a["kernel_shape"][axis] - 1) * a["dilations"][axis] + 1
    stride, pads = a["strides"][axis], a["pads"][axis :: len(a["pads"]) // 2]
    enough = 4 * (reach + stride + max(pads))
    return int(min(size, enough + (size - enough) % stride))


def _windows(node: Node, axis: int, size: int) -> int:
    """How many windows along one axis are counted, at most."""
    if node.operator == "qfmt.AdaptiveAveragePool":
        return cast(tuple[int, ...], node.attributes["output_size"])[axis]
    return _enough(node, axis, size)


def window_sizes_along(node: Node, axis: int, size: int) -> set[int]:
    """The sizes of windows along one axis, as the operator itself counts them."""
    if node.operator == "qfmt.AdaptiveAveragePool":
        count = cast(tuple[int, ...], node.attributes["output_size"])[axis]
        return {part.stop - part.start for part in bins(size, count)}
    a = cast(dict[str, Any], node.attributes)
    counts = counts_along(axis, _enough(node, axis, size), a["count_include_pad"], a)
    return set(np.unique(counts[counts > 0]).tolist())
