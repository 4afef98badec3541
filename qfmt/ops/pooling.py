"""Pooling."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..arithmetic import MEAN, clamp, f32, named
from ..arrays import Array
from ..errors import QfmtError, RunError
from ..memory import require
from ..model import Shape
from .accumulation import centred, whole
from .geometry import bin_of, check_window, unit_factors, window_counts, windows
from .registry import (
    QUANTIZE_RULES,
    Inference,
    Operand,
    Quantized,
    Result,
    ShapeRule,
    Sums,
    by_engine,
    operator,
    optional,
    required,
    truth,
)

WINDOW = {
    "ceil_mode": truth(0, "1: a last, partial window counts, too"),
    "dilations": required("ii", "step between taps, one per spatial dimension"),
    "kernel_shape": required("ii", "size of the window"),
    "pads": required("ii", "added before each spatial dimension, then after each"),
    "strides": required("ii", "step of the window"),
}
MEAN_RULES = (*MEAN, *QUANTIZE_RULES)


def _pool_shape(given: Inference) -> list[Shape]:
    a, rank = given.attributes, len(given.attributes["kernel_shape"])
    check_window(rank, a)
    x = given.known(0)
    if len(x) != rank + 2:
        raise QfmtError(f"a {rank}-d window needs an input of rank {rank + 2}, not {len(x)}")
    along = list(zip(windows(a), x[2:], strict=True))
    for w, size in along:
        w.check(size)
    return [(*x[:2], *(w.output(size) for w, size in along))]


def _sum(x: Array, a: Any) -> Array:
    """The sum of each window, tap by tap; padding adds 0."""
    along = [*zip(windows(a), x.shape[2:], strict=True)]
    shape = (*x.shape[:2], *(w.positions(size) for w, size in along))
    require(x.itemsize * prod(shape))
    total = np.full(shape, -0.0, x.dtype)  # to which any number can be added without a change
    for met in product(*(w.meetings(size) for w, size in along)):
        positions: tuple[Any, ...] = (..., *(each for each, _ in met))
        elements: tuple[Any, ...] = (..., *(each for _, each in met))
        total[positions] += x[elements]
    inside = window_counts(x.shape[2:], {**a, "count_include_pad": 0})
    return np.add(total, x.dtype.type(0), out=total, where=inside < prod(a["kernel_shape"]))


def _combined(combine: np.ufunc, x: Array, a: Any, least: Any) -> Array:
    """The elements of each window combined, dimension by dimension: for operations without a defined order. `least`
    changes nothing."""
    for i, (w, size) in enumerate(zip(windows(a), x.shape[2:], strict=True)):
        rest: tuple[Any, ...] = (slice(None),) * (x.ndim - 3 - i)
        count = w.positions(size)
        require(x.nbytes // max(size, 1) * count)
        found = np.full((*x.shape[: i + 2], count, *x.shape[i + 3 :]), least, x.dtype)
        for positions, elements in w.meetings(size):
            part = found[(..., positions, *rest)]
            combine(part, x[(..., elements, *rest)], out=part)
        x = found
    return x


@operator("MaxPool", 22, "X -> Y", attributes=WINDOW, shape=_pool_shape, quantized=Quantized.MOVES)
def max_pool(x: Array, **attributes: Any) -> Array:
    """Y = the largest element of the window; padding never wins. X is [N, C, *spatial]."""
    return _combined(np.maximum, x, attributes, _least(x))


def _least(x: Array) -> Any:
    """The smallest number of its type."""
    if x.dtype == np.bool_:
        return False
    return np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -np.inf


def _average_pool_integer(x: Operand, *, result: Result, **attributes: Any) -> Array:
    """With the stated mean rule, over Σ (q - z) of the window; padding represents real zeros."""
    total = _combined(np.add, _centred(x, result), attributes, 0)
    counts = window_counts(x.array.shape[2:], attributes)
    return _mean(total, counts, result)


def _average_pool_exact(x: Operand, *, rule: str, **attributes: Any) -> Array:
    """Σ (q - zx) · L / n of the window; padding adds nothing."""
    total = _combined(np.add, centred(x, np.dtype(np.int64)), attributes, 0)
    return total * unit_factors(window_counts(x.array.shape[2:], attributes))


def _centred(x: Operand, result: Result) -> Array:
    """The integers minus the zero point, which is also that of the result."""
    if x.quantization is None or not x.quantization.same_grid(result.quantization):
        raise QfmtError(f"the rule `{result.rule}` keeps the quantization of the input")
    return whole(x)


def _check_counts(total: Array, counts: Any) -> None:
    if total.size and not np.all(counts):
        raise RunError("no elements have no mean")


def _mean(total: Array, count: Any, result: Result) -> Array:
    _check_counts(total, count)
    q = result.quantization
    rounded = named(MEAN, result.rule)(total, np.asarray(count).astype(f32), f32(q.zero_point[0]))
    return clamp(rounded, q, result.dtype)


@operator(
    "AveragePool",
    22,
    "X -> Y",
    attributes={**WINDOW, "count_include_pad": truth(0, "1: padding counts as elements")},
    shape=_pool_shape,
    quantized=Quantized.OWN,
    integer=_average_pool_integer,
    sums=Sums(_average_pool_exact, ("exact",), 1),
    rules=MEAN_RULES,
    engines=by_engine("mean_reciprocal"),
)
def average_pool(x: Array, **attributes: Any) -> Array:
    """Y = the mean of the window; padding counts as zeros if count_include_pad, otherwise not at all.

    X is [N, C, *spatial]. Elements beyond the padding (ceil_mode) never count.
    """
    total = _sum(x, attributes)
    return total / window_counts(x.shape[2:], attributes).astype(x.dtype)


def _global_shape(given: Inference) -> list[Shape]:
    x = given.known(0)
    if len(x) < 3:
        raise QfmtError(f"a pool over all spatial dimensions needs at least one, and an input of rank 3, not {len(x)}")
    return [(*x[:2], *(1 for _ in x[2:]))]


def _global_average_integer(x: Operand, *, result: Result) -> Array:
    """With the stated mean rule, over Σ (q - z) of all spatial dimensions."""
    return mean_over(x, tuple(range(2, x.array.ndim)), 1, result)


def _global_average_exact(x: Operand, *, rule: str) -> Array:
    """Σ (q - zx) of all spatial dimensions."""
    return sum_over(x, tuple(range(2, x.array.ndim)), 1)


def real_sum(x: Array, axes: int | tuple[int, ...], keepdims: bool = True) -> Array:
    """The sum over the axes, in the type of x. Of float32 it is rounded once: NumPy adds one element after another,
    unless the axes are the last ones, and then the errors of equal elements, as in a white image, add up."""
    kind = np.float64 if x.dtype == np.float32 else x.dtype
    return np.asarray(x.sum(axes, keepdims=keepdims, dtype=kind)).astype(x.dtype, copy=False)


def real_mean(x: Array, axes: tuple[int, ...], keepdims: bool = True) -> Array:
    """The mean over the axes, rounded in the same way; of no elements NaN. `ndarray.mean` warns of these, and filters
    of warnings are not thread-safe."""
    if not all(x.shape[axis] for axis in axes):
        return np.asarray(x.sum(axes, keepdims=keepdims) / 0)
    if x.dtype == np.float32:
        return np.asarray(x.mean(axes, keepdims=keepdims, dtype=np.float64)).astype(x.dtype)
    return np.asarray(x.mean(axes, keepdims=keepdims))


def sum_over(x: Operand, axes: tuple[int, ...], keepdims: int) -> Array:
    """Σ (q - zx) of the axes."""
    total = np.asarray(centred(x, np.dtype(np.int64)).sum(axes, keepdims=bool(keepdims)))
    _check_counts(total, prod(x.array.shape[axis] for axis in axes))
    return total


def mean_over(x: Operand, axes: tuple[int, ...], keepdims: int, result: Result) -> Array:
    """With the stated mean rule, over Σ (q - z) of the axes."""
    total = _centred(x, result).sum(axes, keepdims=bool(keepdims), dtype=np.int64)
    return _mean(total, prod(x.array.shape[axis] for axis in axes), result)


@operator(
    "GlobalAveragePool",
    22,
    "X -> Y",
    shape=_global_shape,
    quantized=Quantized.OWN,
    integer=_global_average_integer,
    sums=Sums(_global_average_exact, ("exact",), 1),
    rules=MEAN_RULES,
    engines=by_engine("mean_reciprocal_fma", qnnpack="mean_reciprocal"),
)
def global_average_pool(x: Array) -> Array:
    """Y = the mean over all spatial dimensions, which are kept with size 1. X is [N, C, *spatial]."""
    return real_mean(x, tuple(range(2, x.ndim)))


@operator("GlobalMaxPool", 22, "X -> Y", shape=_global_shape, quantized=Quantized.MOVES)
def global_max_pool(x: Array) -> Array:
    """Y = the largest element of all spatial dimensions, which are kept with size 1. X is [N, C, *spatial].

    Of no elements: -∞ or the smallest integer; quant_min if quantized.
    """
    return np.asarray(x.max(tuple(range(2, x.ndim)), keepdims=True, initial=_least(x)))


P = {"p": optional(2, "exponent of the norm, at least 1")}


def _with_exponent(shape: ShapeRule) -> ShapeRule:
    def rule(given: Inference) -> list[Shape]:
        if given.attributes["p"] < 1:
            raise QfmtError(f"the exponent of the norm is {given.attributes['p']}; it must be at least 1")
        return shape(given)

    return rule


@operator(
    "LpPool",
    22,
    "X -> Y",
    attributes={**WINDOW, **P},
    shape=_with_exponent(_pool_shape),
    quantized=Quantized.COMPUTES,
)
def lp_pool(x: Array, *, p: int, **attributes: Any) -> Array:
    """Y = (Σ |X|^p)^(1/p) over the window; padding does not count. X is [N, C, *spatial]."""
    total = _sum(np.abs(x) ** x.dtype.type(p), attributes)
    return np.asarray(total ** x.dtype.type(1 / p))


@operator("GlobalLpPool", 22, "X -> Y", attributes=P, shape=_with_exponent(_global_shape), quantized=Quantized.COMPUTES)
def global_lp_pool(x: Array, *, p: int) -> Array:
    """Y = (Σ |X|^p)^(1/p) over all spatial dimensions, which are kept with size 1. X is [N, C, *spatial]."""
    total = real_sum(np.abs(x) ** x.dtype.type(p), tuple(range(2, x.ndim)))
    return np.asarray(total ** x.dtype.type(1 / p))


def _adaptive_shape(given: Inference) -> list[Shape]:
    size = given.attributes["output_size"]
    if not size:
        raise QfmtError("the output_size has no dimensions")
    x = given.known(0)
    if len(x) not in (len(size) + 1, len(size) + 2):
        raise QfmtError(f"an output of {len(size)} dimensions needs an input of rank {len(size) + 2}, not {len(x)}")
    return [(*x[: -len(size)], *size)]


def _adaptive_integer(x: Operand, *, result: Result, output_size: tuple[int, ...]) -> Array:
    """With the stated mean rule, over Σ (q - z) of the bin."""
    total, counts = _bin_sums(_centred(x, result), output_size, np.dtype(np.int64))
    return _mean(total, counts, result)


def _adaptive_exact(x: Operand, *, rule: str, output_size: tuple[int, ...]) -> Array:
    """Σ (q - zx) · L / n of the bin."""
    total, counts = _bin_sums(centred(x, np.dtype(np.int64)), output_size, np.dtype(np.int64))
    return total * unit_factors(counts)


def _bin_sums(x: Array, output_size: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    rank = len(output_size)
    lead = x.ndim - rank
    total = np.empty((*x.shape[:lead], *output_size), dtype)
    counts = np.empty(output_size, np.int64)
    for position in np.ndindex(*output_size):
        index: tuple[Any, ...] = (..., *map(bin_of, x.shape[lead:], output_size, position))
        part = x[index]
        index = (..., *position)
        total[index] = part.sum(tuple(range(lead, x.ndim)), dtype=dtype)
        counts[position] = prod(part.shape[lead:])
    return total, counts


@operator(
    "qfmt.AdaptiveAveragePool",
    1,
    "X -> Y",
    attributes={"output_size": required("ii", "size of each spatial dimension of the output")},
    shape=_adaptive_shape,
    quantized=Quantized.OWN,
    integer=_adaptive_integer,
    sums=Sums(_adaptive_exact, ("exact",), 1),
    rules=MEAN_RULES,
    engines=by_engine("mean_reciprocal_fma", qnnpack="mean_reciprocal"),
)
def adaptive_average_pool(x: Array, *, output_size: tuple[int, ...]) -> Array:
    """Y[…, i] = the mean of X[…, floor(i · in / out) … ceil((i + 1) · in / out) - 1], in each spatial dimension."""
    total, counts = _bin_sums(x, output_size, x.dtype)
    return total / counts.astype(x.dtype)
