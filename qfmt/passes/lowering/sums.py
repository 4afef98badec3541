"""Exact sums of a layer: what adds them up, how far they reach, and what the stated rule makes of each.

A sum x holds the bias, as the integer nearest to b / at. By `folded` zero points are gone from the inner loop: they
stand in the bias, and padding is the zero point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product as product_of
from math import lcm, prod
from typing import Any, cast

import numpy as np

from ...arithmetic import MEAN, REQUANTIZE, clamp, f32, named, quantize, requantize
from ...model import DTYPES, Node, Quantization, Tensor
from ...ops import OPERATORS
from ...ops.accumulation import in_units_of_sums
from .fits import Floats
from .steps import Array, Integers
from .work import NoForm, Work

INT32 = (1 << 31) - 1
"""One less than what would not fit: 2³¹ - 1 itself says "never" in thresholds."""


FACTOR_BITS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A node that gives exact sums as int32, and what becomes of them. C channels, or 1 for all.

    `evaluate(x, channels)`: sums [c, n] of some channels to output integers, by the rule `compared`. `pairs`: all
    reachable sums and what they give, where that is known one by one instead; `nearly`: several outputs for one sum, at
    times. `unsure`: of how many sums it cannot be told what the stated rule gives, because it adds up real numbers.
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


# Products of an input and a constant weight, or of two inputs


def product(node: Node, work: Work) -> Sums:
    """Conv, ConvTranspose, qfmt.Linear, Gemm, MatMul by a requantize rule."""
    x, w = (work.tensors[name] for name in node.inputs[:2])
    y = work.tensors[node.outputs[0]]
    if node.arithmetic not in REQUANTIZE:
        raise NoForm("multiplies real numbers")
    xq, wq, yq = (work.grid(tensor) for tensor in (x, w, y))
    if xq.is_per_channel or yq.is_per_channel:
        raise NoForm("has an input or output that is quantized per channel")
    if max(DTYPES[x.dtype].bits, DTYPES[w.dtype].bits) > FACTOR_BITS:
        raise NoForm(f"multiplies integers of more than {FACTOR_BITS} bits")
    if not w.is_constant:
        return _of_inputs(node, work)
    if 0 in (w.shape or ()):
        raise NoForm("has a weight without elements")
    weights = columns(node, _centred(w))
    a = cast(dict[str, Any], node.attributes)
    repeat = int(a["group"]) if node.operator == "ConvTranspose" else 1
    scale = np.array(wq.scale * (repeat if wq.is_per_channel else 1))
    at = f32(xq.scale[0]) * scale.astype(f32)
    _check_scales(at, yq)
    bias, real = _bias(node, work, xq, wq, repeat, at, len(weights))
    given = (xq.quant_min, xq.quant_max)
    zero = int(xq.zero_point[0])
    padded = any(a.get("pads", ())) or node.operator == "ConvTranspose"
    met = (min(given[0], zero), max(given[1], zero)) if padded else given
    folds = node.operator in ("Conv", "qfmt.Linear", "Gemm") or (node.operator == "MatMul" and zero == 0)
    low, high = _reach(weights, met[0] - zero, met[1] - zero, bias)
    if folds:
        folded = bias - zero * weights.sum(1)
        folds = _stays_in_int32(weights, *met, folded)
    if not folds and not _stays_in_int32(weights, met[0] - zero, met[1] - zero, bias):
        raise NoForm(f"sums may reach {low.min():,} or {high.max():,}, beyond int32")
    channels = scale.reshape(-1, 1) if wq.is_per_channel else scale.reshape(())

    def evaluate(sums: Integers, some: slice) -> Array:
        scales = channels[some] if channels.ndim else channels
        exact = sums if real is None else sums - bias[some, None]
        added = None if real is None else real[some, None]
        return requantize(exact, added, xq.scale[0], scales, yq, work.kind(y), node.arithmetic)

    axis = 1 if node.operator.startswith("Conv") else work.last_axis(y) if len(weights) > 1 else 0
    inputs = [x.name, _weight(node, w, work) if folds else w.name]
    kept = folded if folds else bias
    if kept.any():
        if len(weights) == 1 and node.operator in ("Gemm", "qfmt.Linear"):
            kept = kept.reshape(1)
        inputs.append(_bias_tensor(node, work, kept, "folded" if folds else "integers"))
    if node.operator == "MatMul" and len(inputs) > 2:
        raise AssertionError("MatMul has no bias")
    unit = _unit(np.broadcast_to(at.astype(np.float64), len(weights)) if at.size > 1 else at, axis, low, high)
    name = work.free(f"{y.name}.sums")
    adding = replace(node, inputs=tuple(inputs), outputs=(name,), arithmetic="folded" if folds else "exact")
    # No product of scales is rounded to float32: TFLite's multipliers are made so.
    multiplier = np.float64(f32(xq.scale[0])) * scale.astype(f32).astype(np.float64) / np.float64(f32(yq.scale[0]))
    multiplier = np.broadcast_to(multiplier, len(weights)).copy()
    return Sums(adding, axis, low, high, multiplier, node.arithmetic, unit, evaluate)


def _check_scales(at: Array, yq: Quantization) -> None:
    """NoForm where float32 does not hold the unit of sums, or what they are multiplied by: 0 · ∞ is no number."""
    s = f32(yq.scale[0])
    for each in (at, f32(1) / s, at / s, at * (f32(1) / s)):
        if not (np.isfinite(each).all() and (np.asarray(each) > 0).all()):
            raise NoForm("has scales whose product or quotient float32 does not hold")


def columns(node: Node, w: Integers) -> Integers:
    """Weights as [outputs, products of one sum], of whatever layout the operator has."""
    if node.operator == "ConvTranspose":
        group = cast(int, node.attributes["group"])
        parts = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
        return parts.transpose(0, 2, 1, 3).reshape(group * w.shape[1], -1)
    if node.operator in ("Conv", "qfmt.Linear") or node.attributes.get("transB"):
        return w.reshape(len(w), -1)
    if w.ndim < 2:
        return w.reshape(1, -1)
    if w.ndim > 2:  # the widest of all matrices: their sums of either sign
        signs = (np.maximum(w, 0).sum(-2), np.minimum(w, 0).sum(-2))
        lead = tuple(range(w.ndim - 2))
        return np.stack([signs[0].max(lead), signs[1].min(lead)], axis=1)
    return w.T


def _reach(weights: Integers, low: int, high: int, bias: Integers) -> tuple[Integers, Integers]:
    """The least and the greatest sum for inputs in [low, high], per channel, with the bias."""
    positive, negative = np.maximum(weights, 0).sum(1), np.minimum(weights, 0).sum(1)
    return positive * low + negative * high + bias, positive * high + negative * low + bias


def _stays_in_int32(weights: Integers, low: int, high: int, bias: Integers) -> bool:
    """Whether no partial sum leaves int32, in whatever order products and bias are added up."""
    positive, negative = np.maximum(weights, 0).sum(1), -np.minimum(weights, 0).sum(1)
    most = positive * max(high, 0) + negative * max(-low, 0) + np.maximum(bias, 0)
    least = positive * max(-low, 0) + negative * max(high, 0) + np.maximum(-bias, 0)
    return bool(max(most.max(initial=0), least.max(initial=0)) < INT32)


def _bias(
    node: Node, work: Work, xq: Quantization, wq: Quantization, repeat: int, at: Array, count: int
) -> tuple[Integers, Array | None]:
    """The bias as integers in units of sums; and as real numbers, unless the rule adds those integers."""
    tensor = work.tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
    if tensor is None:
        return np.zeros(count, np.int64), None
    if not tensor.is_constant:
        raise NoForm("has a bias that is computed")
    if node.operator == "Gemm" and len(tensor.shape or ()) > 1 and (tensor.shape or ())[0] != 1:
        raise NoForm("has a bias for each row")
    if in_units_of_sums(tensor.quantization, xq.scale[0], wq.scale * repeat):
        return _spread(tensor.array.astype(np.int64), count), None
    real = _spread(tensor.dequantize().astype(f32), count)
    units = np.rint(real / at).astype(np.float64)
    if not np.abs(units).max(initial=0) < INT32:
        raise NoForm(f"has a bias of {np.abs(units).max():.3g} units, beyond int32")
    return units.astype(np.int64), real


def _spread(bias: Array, count: int) -> Array:
    return np.broadcast_to(bias.reshape(-1), count)


def _centred(w: Tensor) -> Integers:
    assert w.quantization is not None
    if w.quantization.is_blocked or w.quantization.has_float_zero_points:
        raise NoForm("has weights with scales by blocks")
    array: Integers = w.array.astype(np.int64)
    return array - w.quantization.zero_points(array.ndim).astype(np.int64)


def _weight(node: Node, w: Tensor, work: Work) -> str:
    """The weight less its zero points, which `folded` does not know."""
    assert w.quantization is not None
    if not any(w.quantization.zero_point):
        return w.name
    centred = _centred(w)
    name = work.free(f"{w.name}.centred")
    dtype = next(each for each in ("int8", "int16", "int32") if _holds(each, centred))
    limits, zero = DTYPES[dtype], (0,) * len(w.quantization.zero_point)
    grid = replace(w.quantization, zero_point=zero, quant_min=limits.minimum, quant_max=limits.maximum, names=("", ""))
    work.add(Tensor.constant(name, centred.astype(dtype), grid))
    return name


def _holds(dtype: str, values: Integers) -> bool:
    limits = DTYPES[dtype]
    return bool(limits.minimum <= values.min(initial=0) and values.max(initial=0) <= limits.maximum)


def _bias_tensor(node: Node, work: Work, values: Integers, word: str) -> str:
    has_own = len(node.inputs) > 2 and node.inputs[2]
    name = work.free(f"{node.inputs[2]}.{word}" if has_own else f"{node.outputs[0]}.bias")
    work.add(Tensor.constant(name, values.astype(np.int32)))
    return name


def _unit(scale: Array, axis: int, low: Integers, high: Integers) -> Quantization:
    """What the sums mean: their unit, and the range that they stay in."""
    scales = tuple(float(each) for each in np.asarray(scale, np.float64).reshape(-1))
    least, most = min(0, int(low.min(initial=0))), max(0, int(high.max(initial=0)))
    exact = all(float(f32(each)) == each for each in scales)
    zeros, stored = (0,) * len(scales), "float32" if exact else "float64"
    return Quantization(scales, zeros, least, most, axis if len(scales) > 1 else None, stored)


def _of_inputs(node: Node, work: Work) -> Sums:
    """MatMul of two computed tensors."""
    a, b = (work.tensors[name] for name in node.inputs[:2])
    y = work.tensors[node.outputs[0]]
    aq, bq, yq = (work.grid(tensor) for tensor in (a, b, y))
    if node.operator != "MatMul" or bq.is_per_channel:
        raise NoForm("has weights that are computed")
    length = work.size(a, -1) or work.size(b, -2 if len(b.shape or ()) > 1 else -1)
    if length is None:
        raise NoForm("adds up a number of products that is not known", unknown_shape=True)
    ends = [each - q.zero_point[0] for q in (aq, bq) for each in (q.quant_min, q.quant_max)]
    products = [int(i * j) for i in ends[:2] for j in ends[2:]]
    low, high = length * min(0, *products), length * max(0, *products)
    if max(-low, high) >= INT32:
        raise NoForm(f"sums may reach {low:,} or {high:,}, beyond int32")
    at = f32(aq.scale[0]) * np.array(bq.scale[0]).astype(f32)
    _check_scales(at, yq)

    def evaluate(sums: Integers, _: slice) -> Array:
        return requantize(sums, None, aq.scale[0], np.array(bq.scale[0]), yq, work.kind(y), node.arithmetic)

    lows, highs = np.array([low]), np.array([high])
    adding = replace(node, outputs=(work.free(f"{y.name}.sums"),), arithmetic="exact")
    unit = _unit(np.array([at]), 0, lows, highs)
    return Sums(adding, 0, lows, highs, np.array([float(at) / yq.scale[0]]), node.arithmetic, unit, evaluate)


# Means


def mean(node: Node, work: Work) -> Sums:
    """AveragePool, GlobalAveragePool, qfmt.AdaptiveAveragePool, ReduceMean: sums of q - zx, times L / n.

    By a quantize rule the mean is one of real numbers, rounded in an order that is not known: then all sums are counted
    whose output depends on it (`unsure`).
    """
    x, y = work.tensors[node.inputs[0]], work.tensors[node.outputs[0]]
    xq, yq = work.grid(x), work.grid(y)
    if xq.is_per_channel or yq.is_per_channel:
        raise NoForm("has an input or output that is quantized per channel")
    if node.arithmetic in MEAN and not xq.same_grid(yq):
        raise NoForm("takes a mean on another grid than that of its input")
    if DTYPES[x.dtype].bits > FACTOR_BITS:
        raise NoForm(f"adds up integers of more than {FACTOR_BITS} bits")
    counts = window_sizes(node, work)
    multiple, zero = lcm(*counts), int(xq.zero_point[0])
    low, high = xq.quant_min - zero, xq.quant_max - zero
    least, most = min(0, low) * multiple, max(0, high) * multiple
    if max(-least, most) >= INT32:
        raise NoForm(f"sums may reach {least:,} or {most:,}, beyond int32")
    rounded = _stated_mean(node.arithmetic, xq, yq, work.kind(y))
    ranges = [np.arange(low * count, high * count + 1) for count in counts]
    unsure = sum(_unsure(rounded, *each) for each in zip(ranges, counts, strict=True) if node.arithmetic not in MEAN)
    lows, highs = np.array([low * multiple]), np.array([high * multiple])
    adding = replace(node, outputs=(work.free(f"{y.name}.sums"),), arithmetic="exact")
    unit = _unit(np.array([xq.scale[0] / multiple]), 0, lows, highs)
    scale = np.array([xq.scale[0] / multiple / yq.scale[0]])
    if len(counts) == 1:

        def evaluate(sums: Integers, _: slice) -> Array:
            return rounded(sums, counts[0], 0)

        return Sums(adding, 0, lows, highs, scale, node.arithmetic, unit, evaluate, None, unsure)
    values = np.concatenate([totals * (multiple // n) for totals, n in zip(ranges, counts, strict=True)])
    outputs = np.concatenate([rounded(totals, n, 0) for totals, n in zip(ranges, counts, strict=True)])
    pairs = values, outputs.astype(np.int64)
    return Sums(adding, 0, lows, highs, scale, node.arithmetic, unit, None, pairs, unsure, nearly=True)


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


def _unsure(rounded: Callable[[Integers, int, int], Array], totals: Integers, count: int) -> int:
    return int(np.count_nonzero(rounded(totals, count, -1) != rounded(totals, count, 1)))


def window_sizes(node: Node, work: Work) -> list[int]:
    """All numbers of elements that the windows of a mean divide by."""
    x, a = work.tensors[node.inputs[0]], cast(dict[str, Any], node.attributes)
    if node.operator == "AveragePool" and not any(a["pads"]) and not a["ceil_mode"]:
        return [prod(a["kernel_shape"])]
    if x.shape is None:
        raise NoForm("averages over a number of elements that is not known", unknown_shape=True)
    axes = list(range(2, len(x.shape)))
    if node.operator == "ReduceMean":
        axes = _reduced(node, work, len(x.shape))
    elif node.operator == "qfmt.AdaptiveAveragePool":
        axes = list(range(len(x.shape)))[-len(a["output_size"]) :]
    sizes = [size for axis in axes if isinstance(size := x.shape[axis], int)]
    if len(sizes) < len(axes):
        raise NoForm("averages over a number of elements that is not known", unknown_shape=True)
    if node.operator in ("GlobalAveragePool", "ReduceMean"):
        return [prod(sizes)]
    along = [_window_sizes_along(node, axis, size) for axis, size in enumerate(sizes)]
    return sorted({prod(each) for each in product_of(*along)})


def _reduced(node: Node, work: Work, rank: int) -> list[int]:
    axes = work.tensors[node.inputs[1]] if len(node.inputs) > 1 and node.inputs[1] else None
    if axes is not None and not axes.is_constant:
        raise NoForm("averages over axes that are computed")
    if axes is None or axes.array.size == 0:
        return [] if node.attributes["noop_with_empty_axes"] else list(range(rank))
    return [int(axis) % rank for axis in axes.array.reshape(-1)]


def _window_sizes_along(node: Node, axis: int, size: int) -> set[int]:
    """The sizes of windows along one axis, told by the operator itself: the mean of a single 1 among n - 1 zeros."""
    attributes: dict[str, Any] = {}
    for name, value in node.attributes.items():
        per_axis = value[axis :: len(value) // 2] if name == "pads" and isinstance(value, tuple) else value
        attributes[name] = (value[axis],) if isinstance(value, tuple) and name != "pads" else per_axis
    ones = np.eye(size)[:, None, :]
    means = OPERATORS[node.operator].reference(ones, **attributes)
    return {round(1 / each) for each in np.unique(means[means > 0])}
