"""Reductions over axes: sums and extremes, norms, and where the extremes are."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..model import Shape
from .pooling import MEAN_RULES, mean_over, real_mean, real_sum, sum_over
from .registry import Inference, Operand, Quantized, Result, Sums, by_engine, operator, optional, truth
from .shapes import axes_of, axis_of, check_scalar, integers, is_present


def _reduce_shape(given: Inference) -> list[Shape]:
    x, keep = given.known(0), bool(given.attributes["keepdims"])
    axes = integers(given, 1)
    if axes is None and is_present(given, 1):
        return [tuple(None for _ in x) if keep else None]
    gone = _resolved(len(x), axes, bool(given.attributes["noop_with_empty_axes"]))
    return [tuple(1 if i in gone else size for i, size in enumerate(x) if keep or i not in gone)]


def _resolved(rank: int, axes: list[int] | None, empty_is_none: bool) -> tuple[int, ...]:
    if not axes:
        return () if empty_is_none else tuple(range(rank))
    return tuple(axes_of(axes, rank))


def _axes(x: Array, axes: Array | None, noop_with_empty_axes: int) -> tuple[int, ...]:
    given = None if axes is None else [int(axis) for axis in axes.reshape(-1)]
    return _resolved(x.ndim, given, bool(noop_with_empty_axes))


OPTIONS = {
    "keepdims": truth(1, "1: reduced axes stay with size 1"),
    "noop_with_empty_axes": truth(0, "1: without axes nothing is reduced; 0: everything is"),
}


def _reduce_mean_integer(
    x: Operand, axes: Operand | None, *, result: Result, keepdims: int, noop_with_empty_axes: int
) -> Array:
    """With the stated mean rule, over Σ (q - z) of the axes."""
    return mean_over(x, _axes(x.array, axes and axes.array, noop_with_empty_axes), keepdims, result)


def _reduce_mean_exact(
    x: Operand, axes: Operand | None, *, rule: str, keepdims: int, noop_with_empty_axes: int
) -> Array:
    """Σ (q - zx) of the axes."""
    return sum_over(x, _axes(x.array, axes and axes.array, noop_with_empty_axes), keepdims)


@operator(
    "ReduceMean",
    18,
    "data axes? -> reduced",
    attributes=OPTIONS,
    shape=_reduce_shape,
    quantized=Quantized.OWN,
    integer=_reduce_mean_integer,
    sums=Sums(_reduce_mean_exact, ("exact",), 1),
    rules=MEAN_RULES,
    engines=by_engine("mean_divide_offset", qnnpack="mean_reciprocal"),
)
def reduce_mean(x: Array, axes: Array | None, *, keepdims: int, noop_with_empty_axes: int) -> Array:
    """reduced = the mean over the axes (an int64 vector); over all of them if absent. That of integers is rounded
    towards zero.
    """
    over = _axes(x, axes, noop_with_empty_axes)
    count = prod(x.shape[axis] for axis in over)
    if x.dtype.kind not in "iu" or not count:
        return real_mean(x, over, bool(keepdims)).astype(x.dtype, copy=False)
    total = np.asarray(x.sum(over, keepdims=bool(keepdims)))  # in 64 bits
    return ((total - np.fmod(total, total.dtype.type(count))) // total.dtype.type(count)).astype(x.dtype, copy=False)


def _log(x: Array) -> Array:
    return np.asarray(np.log(x)).astype(x.dtype, copy=False)


def _sum(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return real_sum(x, axes, keep)


def _product(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    return np.asarray(x.prod(axes, keepdims=keep, dtype=x.dtype))


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    wide = x if x.dtype.kind == "f" else x.astype(np.float64)
    top = wide.max(axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, wide.dtype.type(0))
    total = np.log(real_sum(np.exp(wide - top), axes)) + top
    return np.asarray(total if keep else total.squeeze(axes)).astype(x.dtype)


def _extreme(reduce: Any, lowest: bool) -> Callable[[Array, tuple[int, ...], bool], Array]:
    def extreme(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
        """Of no elements: the end of the range of the type; the interpreter clamps it to that of a quantization."""
        if x.dtype.kind in "iu":
            limits = np.iinfo(x.dtype)
            nothing: Any = limits.min if lowest else limits.max
        else:
            nothing = (not lowest) if x.dtype == np.bool_ else -np.inf if lowest else np.inf
        return np.asarray(reduce(x, axis=axes, keepdims=keep, initial=nothing))

    return extreme


def _reduction(
    name: str,
    version: int,
    function: Callable[[Array, tuple[int, ...], bool], Array],
    way: Quantized,
    meaning: str,
    nothing: str = "",
) -> None:
    """An operator of one reduction, a function of the data, the axes and whether they are kept.

    `nothing` says what it gives for no elements, if that is not the usual 0 or 1.
    """

    def reference(x: Array, axes: Array | None, *, keepdims: int, noop_with_empty_axes: int) -> Array:
        return function(x, _axes(x, axes, noop_with_empty_axes), bool(keepdims))

    reference.__doc__ = f"reduced = {meaning} over the axes (an int64 vector); over all of them if absent."
    if nothing:
        reference.__doc__ += f"\n\nOf no elements: {nothing}."
    operator(name, version, "data axes? -> reduced", attributes=OPTIONS, shape=_reduce_shape, quantized=way)(reference)


_LEAST = "-∞, the smallest integer or false; quant_min if quantized"
_GREATEST = "∞, the largest integer or true; quant_max if quantized"

for _entry in (
    ("ReduceSum", 13, _sum, Quantized.COMPUTES, "the sum"),
    ("ReduceMax", 20, _extreme(np.max, True), Quantized.MOVES, "the largest element", _LEAST),
    ("ReduceMin", 20, _extreme(np.min, False), Quantized.MOVES, "the smallest element", _GREATEST),
    ("ReduceProd", 18, _product, Quantized.COMPUTES, "the product"),
    ("ReduceL1", 18, lambda x, *a: _sum(np.abs(x), *a), Quantized.COMPUTES, "the sum of the magnitudes"),
    (
        "ReduceL2",
        18,
        lambda x, *a: np.asarray(np.sqrt(_sum(x * x, *a))).astype(x.dtype),
        Quantized.COMPUTES,
        "the square root of the sum of the squares",
    ),
    ("ReduceSumSquare", 18, lambda x, *a: _sum(x * x, *a), Quantized.COMPUTES, "the sum of the squares"),
    ("ReduceLogSum", 18, lambda x, *a: _log(_sum(x, *a)), Quantized.COMPUTES, "the natural logarithm of the sum"),
    ("ReduceLogSumExp", 18, _log_sum_exp, Quantized.COMPUTES, "m + ln(Σ exp(data - m)), m the largest element,"),
):
    _reduction(*_entry)


def _arg_shape(given: Inference) -> list[Shape]:
    x, keep = given.known(0), bool(given.attributes["keepdims"])
    gone = axis_of(given.attributes["axis"], len(x))
    return [tuple(1 if i == gone else size for i, size in enumerate(x) if keep or i != gone)]


def _position(name: str, of: Callable[[Array, int], Array], which: str) -> None:
    def reference(x: Array, *, axis: int, keepdims: int, select_last_index: int) -> Array:
        if not x.shape[axis]:
            raise QfmtError(f"axis {axis} has no elements")
        places = x.shape[axis] - 1 - of(np.flip(x, axis), axis) if select_last_index else of(x, axis)
        return (np.expand_dims(places, axis) if keepdims else np.asarray(places)).astype(np.int64)

    reference.__doc__ = (
        f"reduced = the position of the {which} element along the axis; of equal elements, the first or last."
    )
    operator(
        name,
        13,
        "data -> reduced",
        attributes={
            "axis": optional(0, "the axis that is reduced"),
            "keepdims": truth(1, "1: the axis stays with size 1"),
            "select_last_index": truth(0, "1: of equal elements, the last"),
        },
        shape=_arg_shape,
        quantized=Quantized.FLOAT_ONLY,
        dtype="int64",
    )(reference)


_position("ArgMax", np.argmax, "largest")
_position("ArgMin", np.argmin, "smallest")


@operator(
    "CumSum",
    14,
    "x axis -> y",
    attributes={
        "exclusive": truth(0, "1: an element is not part of its own sum"),
        "reverse": truth(0, "1: from the end"),
    },
    shape=lambda given: [given.shapes[0]],
    quantized=Quantized.FLOAT_ONLY,
)
def cumulative_sum(x: Array, axis: Array, *, exclusive: int, reverse: int) -> Array:
    """y = the cumulative sum of x along the axis (an int32 or int64 scalar)."""
    along = axis_of(int(axis.reshape(())), x.ndim)
    ordered = np.flip(x, along) if reverse else x
    total = np.cumsum(ordered, along, dtype=x.dtype)
    if exclusive:
        total = np.roll(total, 1, along)
        total[(slice(None),) * along + (slice(0, 1),)] = 0
    return np.ascontiguousarray(np.flip(total, along) if reverse else total)


def _top_shape(given: Inference) -> list[Shape]:
    x, count = given.known(0), integers(given, 1)
    check_scalar(given, 1)
    axis = axis_of(given.attributes["axis"], len(x))
    shape = tuple((count[0] if count else None) if i == axis else size for i, size in enumerate(x))
    return [shape, shape]


@operator(
    "TopK",
    11,
    "X K -> Values Indices",
    attributes={
        "axis": optional(-1, "the axis that is searched"),
        "largest": truth(1, "0: the smallest elements"),
        "sorted": truth(1, "0: in any order; they are sorted here anyway"),
    },
    shape=_top_shape,
    quantized=Quantized.FLOAT_ONLY,
    dtype="same int64",
)
def top(x: Array, k: Array, *, axis: int, largest: int, sorted: int) -> list[Array]:
    """Values = the K (an int64 vector with one element) largest elements along the axis, in order; Indices = their
    positions.

    Of equal elements, those with the lower index come first.
    """
    count = int(k.reshape(()))
    if not 0 <= count <= x.shape[axis]:
        raise QfmtError(f"axis {axis} has {x.shape[axis]} elements, not {count}")
    if largest:  # a stable sort of the reversed array, reversed: ties keep their order
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    indices = np.take(order, np.arange(count), axis)
    return [np.take_along_axis(x, indices, axis), indices.astype(np.int64)]
