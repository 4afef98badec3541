"""Rows of a table, and sums of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arithmetic import LOOKUP, f32, fma, named
from ..arrays import Array
from ..errors import QfmtError
from ..model import Dimension, Shape
from .registry import LOOKUP_RULES, Inference, Operand, Quantized, by_engine, operator, optional, truth
from .shapes import check_sizes

Add = Callable[[Any, Any, Any], Any]
"""(totals, indices, per_sample_weights) → the totals, each plus one row of the table."""


def _embedding_shape(given: Inference) -> list[Shape]:
    w, indices = given.known(0), given.shapes[1]
    return [None if indices is None else (*indices, _columns(w))]


def _columns(w: tuple[Dimension, ...]) -> Dimension:
    if len(w) != 2:
        raise QfmtError(f"a table of embeddings has 2 dimensions, not {len(w)}")
    return w[1]


def _checked(indices: Array, rows: int) -> Array:
    if indices.size and not 0 <= indices.min() <= indices.max() < rows:
        raise QfmtError(f"an index in [{indices.min()}, {indices.max()}] is outside a table of {rows} rows")
    return indices


def _lines(w: Operand, rule: str) -> tuple[Array, Array]:
    """Slope and offset of every row of a quantized table: [rows, 1] each, or one for all."""
    grid = w.quantization
    assert grid is not None
    scales, zero_points = grid.scales(w.array.shape).astype(f32), grid.zero_points(w.array.shape).astype(f32)
    slopes, offsets = named(LOOKUP, rule)(scales, zero_points)
    shape = (w.array.shape[0], 1)
    return np.broadcast_to(slopes, shape), np.broadcast_to(offsets, shape)


def _embedding_integer(w: Operand, indices: Operand, *, rule: str) -> Array:
    """With the stated lookup rule."""
    at = _checked(indices.array, w.array.shape[0])
    slopes, offsets = _lines(w, rule)
    return fma(w.array[at].astype(f32), slopes[at], offsets[at])


@operator(
    "qfmt.Embedding",
    1,
    "W indices -> Y",
    shape=_embedding_shape,
    quantized=Quantized.WEIGHTS,
    weights=(),
    integer=_embedding_integer,
    rules=LOOKUP_RULES,
    engines=by_engine("lookup_float32", onnx="lookup_float32", pt2e="lookup_float32"),
    dtype="float32",
)
def embedding(w: Array, indices: Array) -> Array:
    """Y[…, :] = W[indices[…], :], real; W is quantized, per row or per tensor.

    W is [rows, columns], indices is int32 or int64 of any shape.
    """
    return w[_checked(indices, w.shape[0])]


def _bag_shape(given: Inference) -> list[Shape]:
    w, indices, offsets = given.known(0), given.shapes[1], given.shapes[2]
    if indices is not None:
        check_sizes(given, 3, indices, "per-sample weights")
    if offsets is not None:
        if len(offsets) != 1:
            raise QfmtError(f"offsets of bags have 1 dimension, not {len(offsets)}")
        return [(_bags(offsets[0], given.attributes["include_last_offset"]), _columns(w))]
    if indices is not None and len(indices) != 2:
        raise QfmtError("bags without offsets require indices of 2 dimensions, one row per bag")
    return [(None if indices is None else indices[0], _columns(w))]


def _bags(offsets: Dimension, include_last: int) -> Dimension:
    if not include_last:
        return offsets
    return offsets - 1 if isinstance(offsets, int) else None


def _bag_integer(
    w: Operand, indices: Operand, offsets: Operand | None, per_sample_weights: Operand | None, *, rule: str, **a: Any
) -> Array:
    """With the stated lookup rule, row by row: y = fma(f32(q), f32(slope · p), f32(y + f32(offset · p))), from y = 0,
    with the slope and offset of the row, and p its per-sample weight, or 1.
    """
    if a["mode"] == "max":
        raise QfmtError("the maximum over rows of a quantized table is not supported")
    slopes, offsets_of_rows = _lines(w, rule)

    def add(total: Array, rows: Array, p: Array) -> Array:
        shifted = total + offsets_of_rows[rows] * p
        return fma(w.array[rows].astype(f32), slopes[rows] * p, shifted)

    bounds = None if offsets is None else offsets.array
    weights = None if per_sample_weights is None else per_sample_weights.array
    return _bag(w.array.shape, add, indices.array, bounds, weights, **a)


def _bag(
    table: tuple[int, ...],
    add: Add,
    indices: Array,
    offsets: Array | None,
    per_sample_weights: Array | None,
    *,
    include_last_offset: int,
    mode: str,
    padding_idx: int,
) -> Array:
    """Every bag row after row: all first rows, all second rows, …"""
    at = _checked(indices, table[0]).reshape(-1)
    starts, ends = bag_ends(indices, offsets, per_sample_weights, include_last_offset)
    weights = np.ones(at.shape, f32) if per_sample_weights is None else per_sample_weights.astype(f32).reshape(-1)
    totals, counts = np.zeros((len(starts), table[1]), f32), np.zeros((len(starts), 1), f32)
    if mode == "max":
        totals -= f32(np.inf)
    for step in range(int((ends - starts).max(initial=0))):
        bags = np.flatnonzero(starts + step < ends)
        bags = bags[at[starts[bags] + step] != padding_idx]
        places = starts[bags] + step
        totals[bags] = add(totals[bags], at[places], weights[places][:, None])
        counts[bags] += 1
    if mode == "mean":
        return totals / np.maximum(counts, f32(1))
    return np.where(counts > 0, totals, f32(0))


def bag_ends(
    indices: Array, offsets: Array | None, per_sample_weights: Array | None, include_last: int
) -> tuple[Array, Array]:
    """The start and end of each bag in the list of all indices. QfmtError for offsets and weights that do not fit: the
    kernels of torch read beyond their arrays then."""
    if per_sample_weights is not None and per_sample_weights.size != indices.size:
        raise QfmtError(f"{per_sample_weights.size} per-sample weights do not fit {indices.size} indices")
    if offsets is None:
        if indices.ndim != 2:
            raise QfmtError("bags without offsets require indices of 2 dimensions, one row per bag")
        starts = np.arange(indices.shape[0]) * indices.shape[1]
        return starts, starts + indices.shape[1]
    bounds = offsets if include_last else np.append(offsets, indices.size)
    if bounds.size and (bounds[0] != 0 or bounds[-1] > indices.size or (bounds[1:] < bounds[:-1]).any()):
        raise QfmtError(f"offsets of bags begin with 0, grow, and end at {indices.size}")
    return bounds[:-1], bounds[1:]


@operator(
    "qfmt.EmbeddingBag",
    1,
    "W indices offsets? per_sample_weights? -> Y",
    attributes={
        "include_last_offset": truth(0, "1: offsets has one more element, the end of the last bag"),
        "mode": optional("sum", "`sum`, `mean`, or `max` of a table that is not quantized", ("sum", "mean", "max")),
        "padding_idx": optional(-1, "an index that is ignored; -1: none"),
    },
    shape=_bag_shape,
    quantized=Quantized.WEIGHTS,
    weights=(),
    integer=_bag_integer,
    rules=LOOKUP_RULES,
    engines=by_engine("lookup_float32", onnx="lookup_float32", pt2e="lookup_float32"),
    dtype="float32",
)
def embedding_bag(
    w: Array, indices: Array, offsets: Array | None, per_sample_weights: Array | None, **attributes: Any
) -> Array:
    """Y[i] = the sum, mean or maximum of the rows of W in bag i, each times its per-sample weight.

    Bag i is the indices from offsets[i] to the next offset or the end; without offsets, indices is [bags, size].
    W is [rows, columns], indices and offsets are int32 or int64. The result for an empty bag is 0. A sum adds row after
    row with a fused multiply-add: y = fma(p, w, y).
    """

    def add(total: Array, rows: Array, p: Array) -> Array:
        real = w[rows].astype(f32)
        return np.maximum(total, real) if attributes["mode"] == "max" else fma(p, real, total)

    return _bag(w.shape, add, indices, offsets, per_sample_weights, **attributes)
