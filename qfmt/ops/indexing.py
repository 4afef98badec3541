"""Select, place and find elements by tensors of indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..memory import require
from ..model import Dimension, Shape
from .registry import Inference, Quantized, operator, optional, required, truth
from .shapes import along_axis, axis_of, check_scalar, check_vector, integers

REDUCTIONS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
REDUCTION = optional(
    "none",
    "how an update is combined with the element: `none` (replaces it), `add`, `mul`, `min` or `max`",
    ("none", *REDUCTIONS),
)


def _inside(indices: Array, size: int, axis: int) -> Array:
    """Indices counted from 0, from ones that may count from the end; QfmtError for one outside."""
    if ((indices < -size) | (indices >= size)).any():
        raise QfmtError(f"an index is outside dimension {axis}, which has size {size}")
    return np.where(indices < 0, indices + size, indices)


def _along(indices: Array, axis: int, size: int) -> tuple[Array, ...]:
    """An index with `indices` along an axis, and with each element's own position along the others."""
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _inside(indices, size, axis)
    return tuple(places)


def _elements_shape(given: Inference) -> list[Shape]:
    x, indices = given.shapes[0], given.shapes[1]
    if x is not None and indices is not None and len(x) != len(indices):
        raise QfmtError(f"indices of {len(indices)} dimensions do not fit data of {len(x)}")
    return [indices]


@operator(
    "GatherElements",
    13,
    "data indices -> output",
    attributes={"axis": optional(0, "the axis that indices count")},
    shape=_elements_shape,
    quantized=Quantized.MOVES,
)
def gather_elements(x: Array, indices: Array, *, axis: int) -> Array:
    """output[…, i, …] = data[…, indices[…, i, …], …]: indexed along the axis, at the same position along the others.

    Negative indices count from the end.
    """
    along = axis_of(axis, x.ndim)
    return x[_along(indices, along, x.shape[along])]


def _check_updates(given: Inference, wanted: Sequence[Dimension] | None) -> None:
    """QfmtError for updates of another shape than that of the elements that they replace."""
    updates = given.shapes[2]
    if updates is None or wanted is None:
        return
    pairs = zip(updates, wanted, strict=False)
    if len(updates) != len(wanted) or any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
        raise QfmtError(f"updates of shape {list(updates)} for elements of shape {list(wanted)}")


def _scattered_elements_shape(given: Inference) -> list[Shape]:
    (indices,) = _elements_shape(given)
    _check_updates(given, indices)
    return along_axis(given)


@operator(
    "ScatterElements",
    18,
    "data indices updates -> output",
    attributes={"axis": optional(0, "the axis that indices count"), "reduction": REDUCTION},
    shape=_scattered_elements_shape,
    quantized=Quantized.FLOAT_ONLY,
)
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int, reduction: str) -> Array:
    """output = data, with each of the updates at the position given by its index, as in GatherElements."""
    along = axis_of(axis, x.ndim)
    return _scattered(x, _along(indices, along, x.shape[along]), updates, reduction)


def _scattered(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    result = x.copy()
    if reduction == "none":
        result[places] = updates
    else:
        REDUCTIONS[reduction].at(result, places, updates)
    return result


def _tuples(indices: Array, shape: tuple[int, ...], first: int) -> tuple[Array, ...]:
    """The last axis of indices as indices of the axes from `first` on."""
    if indices.shape[-1] > len(shape) - first:
        raise QfmtError(f"indices of {indices.shape[-1]} axes do not fit {len(shape) - first}")
    return tuple(_inside(indices[..., i], shape[first + i], first + i) for i in range(indices.shape[-1]))


def _gather_nd_shape(given: Inference) -> list[Shape]:
    x, indices, batch = given.known(0), given.known(1), given.attributes["batch_dims"]
    if not 0 <= batch < max(1, min(len(x), len(indices))):
        raise QfmtError(f"{batch} shared axes of {len(x)} and {len(indices)} dimensions")
    for i, (size, other) in enumerate(zip(x[:batch], indices[:batch], strict=True)):
        if isinstance(size, int) and isinstance(other, int) and size != other:
            raise QfmtError(f"data and indices have sizes {size} and {other} in dimension {i}, which they share")
    if not indices or not isinstance(indices[-1], int):
        return [None]
    if not 1 <= indices[-1] <= len(x) - batch:
        raise QfmtError(f"indices of {indices[-1]} axes do not fit {len(x) - batch}")
    return [(*indices[:-1], *x[batch + indices[-1] :])]


@operator(
    "GatherND",
    13,
    "data indices -> output",
    attributes={"batch_dims": optional(0, "how many leading axes data and indices share")},
    shape=_gather_nd_shape,
    quantized=Quantized.MOVES,
)
def gather_nd(x: Array, indices: Array, *, batch_dims: int) -> Array:
    """output[i] = data[indices[i]]: the last axis of indices has indices for the first axes of data.

    Negative indices count from the end.
    """
    lead: list[Array] = list(np.indices(indices.shape[:batch_dims], sparse=True))
    shared = tuple(axis.reshape(*axis.shape, *(1,) * (indices.ndim - 1 - batch_dims)) for axis in lead)
    return x[(*shared, *_tuples(indices, x.shape, batch_dims))]


def _scattered_nd_shape(given: Inference) -> list[Shape]:
    x, indices = given.shapes[:2]
    if x is not None and indices and isinstance(indices[-1], int):
        _check_updates(given, (*indices[:-1], *x[indices[-1] :]))
    return [x]


@operator(
    "ScatterND",
    18,
    "data indices updates -> output",
    attributes={"reduction": REDUCTION},
    shape=_scattered_nd_shape,
    quantized=Quantized.FLOAT_ONLY,
)
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str) -> Array:
    """output = data, with updates[i] at data[indices[i]], as in GatherND."""
    return _scattered(x, _tuples(indices, x.shape, 0), updates, reduction)


def _non_zero_shape(given: Inference) -> list[Shape]:
    x = given.shapes[0]
    if x == ():
        raise QfmtError("a number without dimensions has no positions")
    return [(None if x is None else len(x), None)]


@operator("NonZero", 13, "X -> Y", shape=_non_zero_shape, quantized=Quantized.FLOAT_ONLY, dtype="int64")
def non_zero(x: Array) -> Array:
    """Y = the positions of the elements that are not 0, in order, one per column: [rank, number]."""
    require(2 * 8 * x.ndim * int(np.count_nonzero(x)))
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


def _compress_shape(given: Inference) -> list[Shape]:
    x = given.known(0)
    axis, condition = axis_of(given.attributes["axis"], len(x)), given.values[1]
    check_vector(given, 1)
    size, chosen = x[axis], given.known(1)[0]
    if isinstance(size, int) and isinstance(chosen, int) and chosen > size:
        raise QfmtError(f"a condition of {chosen} elements for {size} slices")
    count = None if condition is None else int(np.count_nonzero(condition))
    return [tuple(count if i == axis else size for i, size in enumerate(x))]


@operator(
    "Compress",
    11,
    "input condition -> output",
    attributes={"axis": required("i", "the axis from which slices are taken")},
    shape=_compress_shape,
    quantized=Quantized.MOVES,
)
def compress(x: Array, condition: Array, *, axis: int) -> Array:
    """output = the slices of input along the axis where condition (a vector of bool, which may be shorter) is true."""
    return np.compress(condition, x, axis)


def _one_hot_shape(given: Inference) -> list[Shape]:
    indices, depth = given.known(0), integers(given, 1, dtypes=None, or_number=True)
    check_scalar(given, 1)
    values = given.shapes[2]
    if values is not None and (len(values) != 1 or (isinstance(values[0], int) and values[0] != 2)):
        raise QfmtError(f"values of shape {list(values)}, but they are two numbers")
    axis = axis_of(given.attributes["axis"], len(indices) + 1)
    return [(*indices[:axis], depth[0] if depth else None, *indices[axis:])]


@operator(
    "OneHot",
    11,
    "indices depth values -> output",
    attributes={"axis": optional(-1, "the new axis, in the output")},
    shape=_one_hot_shape,
    quantized=Quantized.FLOAT_ONLY,
    dtype="input:2",
)
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int) -> Array:
    """output = values[1] at the position of the index along a new axis of size depth, values[0] elsewhere.

    Indices may count from the end; an index outside [-depth, depth - 1] has no position.
    """
    size = int(depth.reshape(-1)[0])
    along = axis_of(axis, indices.ndim + 1)
    whole = indices.astype(np.int64)
    outside = (whole < -size) | (whole >= size)
    places = np.where(outside, -1, np.where(whole < 0, whole + size, whole))
    row = np.arange(size).reshape([-1 if i == along else 1 for i in range(indices.ndim + 1)])
    return np.where(np.expand_dims(places, along) == row, values[1], values[0]).astype(values.dtype)


def _reversed_shape(given: Inference) -> list[Shape]:
    x, lengths, batch = given.known(0), given.shapes[1], given.attributes["batch_axis"]
    if len(x) < 2 or batch == given.attributes["time_axis"]:
        raise QfmtError(f"one axis of {len(x)} dimensions cannot be that of the sequences and of the steps")
    check_vector(given, 1)
    count = lengths[0] if lengths else None
    if isinstance(count, int) and isinstance(x[batch], int) and count != x[batch]:
        raise QfmtError(f"{count} lengths for {x[batch]} sequences")
    return [x]


@operator(
    "ReverseSequence",
    10,
    "input sequence_lens -> Y",
    attributes={
        "batch_axis": optional(1, "0 or 1: the axis of the sequences", (0, 1)),
        "time_axis": optional(0, "0 or 1: the axis of the steps", (0, 1)),
    },
    shape=_reversed_shape,
    quantized=Quantized.MOVES,
)
def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int, time_axis: int) -> Array:
    """Y = input, with the first sequence_lens steps (an int64 vector) of each sequence in reverse order."""
    y = x.copy()
    source, target = np.moveaxis(x, (batch_axis, time_axis), (0, 1)), np.moveaxis(y, (batch_axis, time_axis), (0, 1))
    for i, length in enumerate(lengths):
        target[i, :length] = source[i, :length][::-1]
    return y


def _triangle_shape(given: Inference) -> list[Shape]:
    shape = given.shapes[0]
    if shape is not None and len(shape) < 2:
        raise QfmtError(f"requires 2 dimensions or more, not {len(shape)}")
    check_scalar(given, 1)
    return [shape]


@operator(
    "Trilu",
    14,
    "input k? -> output",
    attributes={"upper": truth(1, "1: the upper triangle stays; 0: the lower")},
    shape=_triangle_shape,
    quantized=Quantized.COMPUTES,
)
def triangle(x: Array, k: Array | None, *, upper: int) -> Array:
    """output = a triangle of the last two axes, from the k-th diagonal on (0 if absent), zeros elsewhere."""
    diagonal = 0 if k is None else int(k.reshape(()))
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    stays = columns - rows >= diagonal if upper else columns - rows <= diagonal
    return np.where(stays, x, x.dtype.type(0))
