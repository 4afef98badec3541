"""Splitting tensors, selecting elements, joining and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arithmetic import clamp, quantize
from ..arrays import Array
from ..errors import QfmtError, shortened
from ..memory import require
from ..model import Dimension, Shape
from .accumulation import real_scalar
from .registry import Inference, Operand, Quantized, Result, Trait, by_engine, operator, optional, required
from .shapes import INDICES, axes_of, axis_of, check_scalar, check_vector, integers, is_present


def _concat_shape(given: Inference) -> list[Shape]:
    shapes = [shape for shape in given.shapes if shape is not None]
    if len(shapes) != len(given.shapes):
        return [(None,) * len(shapes[0])] if shapes else [None]
    rank = len(shapes[0])
    axis = axis_of(given.attributes["axis"], rank)
    if any(len(shape) != rank for shape in shapes):
        raise QfmtError("inputs of different rank cannot be joined")
    result: list[Dimension] = []
    for i in range(rank):
        sizes = [shape[i] for shape in shapes]
        numbers = [size for size in sizes if isinstance(size, int)]
        if i == axis:
            result.append(sum(numbers) if len(numbers) == len(sizes) else None)
        elif len(set(numbers)) > 1:
            raise QfmtError(f"inputs have sizes {', '.join(map(str, numbers))} in dimension {i}")
        else:
            result.append(numbers[0] if numbers else sizes[0] if len(set(sizes)) == 1 else None)
    return [tuple(result)]


@operator(
    "Concat",
    13,
    "inputs* -> concat_result",
    attributes={"axis": required("i", "the axis along which inputs are joined")},
    shape=_concat_shape,
    quantized=Quantized.COMPUTES,
    engines=by_engine("premultiplied"),
    selects=lambda a: slice(None),
)
def concat(*inputs: Array, axis: int) -> Array:
    """concat_result = the inputs joined along the axis, in order."""
    return np.concatenate(inputs, axis)


MOST_PARTS = 1 << 16
_MOST = 1 << 60
"""Sizes are less (rule V3)."""
MOST_SHOWN = 100


def _split_shape(given: Inference) -> list[Shape]:
    x, stated = given.shapes[0], given.values[1] if len(given.values) > 1 else None
    check_vector(given, 1)
    count = given.attributes["num_outputs"] if stated is None else stated.size
    if count > MOST_PARTS:
        raise QfmtError(f"a split into {count:,} parts; known are up to {MOST_PARTS:,}")
    if stated is None and (is_present(given, 1) or count < 1):
        raise QfmtError("the sizes of a split must be constant", hint="or absent, and num_outputs stated")
    if given.outputs not in (None, count):
        raise QfmtError(f"{count} parts for {given.outputs} outputs")
    parts: list[Dimension] = [None] * count if stated is None else [int(part) for part in stated.flat]
    if x is None:
        return [None] * count
    axis = axis_of(given.attributes["axis"], len(x))
    size = x[axis]
    if isinstance(size, int):
        if stated is None:
            parts = [*_equal_parts(size, count)]
        elif ((stated < 0) | (stated > size)).any() or stated.sum() != size:
            raise QfmtError(f"parts {shortened(str(parts[:MOST_SHOWN]), 100)} do not add up to {size}")
    return [(*x[:axis], part, *x[axis + 1 :]) for part in parts]


def _equal_parts(size: int, count: int) -> list[int]:
    if count < 1:
        raise QfmtError("Split needs the sizes of its parts, or num_outputs")
    part = -(-size // count)
    return [max(0, min(part, size - i * part)) for i in range(count)]


@operator(
    "Split",
    18,
    "input split? -> outputs*",
    attributes={
        "axis": optional(0, "the axis that is split"),
        "num_outputs": optional(0, "if split is absent: the number of parts, as equal as possible"),
    },
    shape=_split_shape,
    quantized=Quantized.MOVES,
)
def split(x: Array, parts: Array | None, *, axis: int, num_outputs: int) -> list[Array]:
    """outputs = consecutive parts of input along the axis, of the sizes in split (an int64 vector).

    Without split, all have the size ⌈size of the axis / num_outputs⌉, as long as there are elements left: later parts
    are smaller, or empty.
    """
    sizes = _equal_parts(x.shape[axis], num_outputs) if parts is None else parts
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _slices(
    sizes: tuple[Dimension, ...],
    starts: list[int],
    ends: list[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> list[slice]:
    rank, count = len(sizes), len(starts)
    axes, steps = range(count) if axes is None else axes, [1] * count if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise QfmtError(f"{count} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    result = [slice(None)] * rank
    for start, end, at, step in zip(starts, ends, axes_of(axes, rank), steps, strict=True):
        if step == 0:
            raise QfmtError("a slice needs a step other than 0")
        size = sizes[at]
        if step < 0 and isinstance(size, int):
            # Backwards from before the first element is from that element, and to before it is None in Python.
            start = max(start, -size)
            result[at] = slice(start, None if end < -size else end, step)
        else:
            result[at] = slice(start, end, step)
    return result


def _slice_shape(given: Inference) -> list[Shape]:
    x = given.shapes[0]
    if x is None:
        return [None]
    starts, ends, axes, steps = (integers(given, i, dtypes=INDICES) for i in range(1, 5))
    if (
        starts is None
        or ends is None
        or (axes is None and is_present(given, 3))
        or (steps is None and is_present(given, 4))
    ):
        return [(None,) * len(x)]
    slices = _slices(x, starts, ends, axes, steps)
    return [tuple(_sliced(size, part) for size, part in zip(x, slices, strict=True))]


def _sliced(size: Dimension, part: slice) -> Dimension:
    if isinstance(size, int):
        return len(range(*part.indices(size)))
    whole = part.step in (None, 1) and part.start in (None, 0) and (part.stop is None or part.stop >= 2**31 - 1)
    return size if whole else None


@operator("Slice", 13, "data starts ends axes? steps? -> output", shape=_slice_shape, quantized=Quantized.MOVES)
def slice_(x: Array, starts: Array, ends: Array, axes: Array | None, steps: Array | None) -> Array:
    """output = data[start : end : step] along each of the axes (all from the first, if absent; steps of 1).

    Bounds are int64 vectors. Along an axis of n elements, n is added to a negative bound. Then both are clamped to
    0..n, or, if the step is negative, start to 0..n - 1 and end to -1..n - 1. The elements are start, start + step, …
    before end is reached: with a negative step, end = -n - 1 or less includes element 0. An axis without elements stays
    so. A step is not 0.
    """
    lists = [None if item is None else [int(i) for i in item.reshape(-1)] for item in (starts, ends, axes, steps)]
    return x[tuple(_slices(x.shape, *lists))]  # type: ignore[arg-type]


def _pad_widths(rank: int, pads: list[int], axes: list[int] | None) -> list[tuple[int, int]]:
    chosen = list(range(rank)) if axes is None else axes_of(axes, rank)
    if len(pads) != 2 * len(chosen):
        raise QfmtError(f"{len(pads)} pads do not fit {len(chosen)} axes")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(chosen):
        widths[axis] = (pads[i], pads[len(chosen) + i])
    return widths


def _pad_shape(given: Inference) -> list[Shape]:
    x, pads, axes = given.shapes[0], integers(given, 1), integers(given, 3, dtypes=INDICES)
    check_scalar(given, 2)
    if pads is not None and len(pads) % 2:
        raise QfmtError(f"an axis has two pads, but there are {len(pads)} in all")
    if x is None or pads is None or (axes is None and is_present(given, 3)):
        return [None if x is None else (None,) * len(x)]
    result: list[Dimension] = []
    for size, (before, after) in zip(x, _pad_widths(len(x), pads, axes), strict=True):
        total = before + after
        if isinstance(size, int) and size + total >= _MOST:
            raise QfmtError(f"pads of {before} and {after} make a size of {size + total:,}")
        if isinstance(size, int) and size + total < 0:
            raise QfmtError(f"a dimension of size {size} cannot lose {-total} elements")
        result.append(size + total if isinstance(size, int) else size if before == after == 0 else None)
    return [tuple(result)]


def _pad_integer(
    x: Operand, pads: Operand, value: Operand | None, axes: Operand | None, *, result: Result, mode: str
) -> Array:
    """the constant v is real, and dequantized first if it is quantized. What is added is clamp(rint(v / s) + z), the
    quantize rule `divide`; without a constant clamp(z).
    """
    q = result.quantization
    if value is None and result.dtype.kind in "iu":  # float32 would round large zero points
        fill = clamp(q.zero_points(()), q, result.dtype)
    else:
        fill = quantize(real_scalar(value), q, result.dtype, "divide")
    return pad(x.array, pads.array, fill, axes and axes.array, mode=mode)


@operator(
    "Pad",
    23,
    "data pads constant_value? axes? -> output",
    attributes={
        "mode": optional("constant", "`constant`, `reflect`, `edge` or `wrap`", ("constant", "reflect", "edge", "wrap"))
    },
    shape=_pad_shape,
    quantized=Quantized.MOVES,
    integer=_pad_integer,
    traits=Trait.FILL,
)
def pad(x: Array, pads: Array, value: Array | None, axes: Array | None, *, mode: str) -> Array:
    """output = data with elements added (or, negative, removed) before and after each of the axes.

    pads is an int64 vector: all numbers before, then all numbers after. Element i of output is element i - before of
    data, along each axis of n elements. Where data has no such element k, it is constant_value (0 if absent), or the
    element at the nearest edge (`edge`), at k modulo n (`wrap`), or mirrored at the edge elements, again and again
    (`reflect`: -1 is 1, and n is n - 2).
    """
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise QfmtError(f"mode {mode!r} is not supported")
    widths = _pad_widths(x.ndim, [int(p) for p in pads], None if axes is None else [int(axis) for axis in axes])
    shape = tuple(size + before + after for size, (before, after) in zip(x.shape, widths, strict=True))
    if mode != "constant" and 0 not in shape:
        require(4 * 8 * sum(shape))
        return x[np.ix_(*[_sources(size, *width, mode) for size, width in zip(x.shape, widths, strict=True)])]
    output = np.full(shape, 0 if value is None else value.reshape(()).item(), x.dtype)
    kept, places = [], []
    for size, (before, after) in zip(x.shape, widths, strict=True):
        start = max(0, -before)
        stop = max(start, size + min(0, after))
        kept.append(slice(start, stop))
        places.append(slice(start + before, stop + before))
    output[tuple(places)] = x[tuple(kept)]
    return output


def _sources(size: int, before: int, after: int, mode: str) -> Array:
    """Which elements of an axis the padded axis has."""
    places = np.arange(-before, size + after)
    if not size:
        raise QfmtError("an axis without elements has none that could be repeated")
    if mode == "edge":
        return places.clip(0, size - 1)
    places %= size if mode == "wrap" else max(1, 2 * size - 2)
    return places if mode == "wrap" else np.minimum(places, 2 * size - 2 - places)


def _gather_shape(given: Inference) -> list[Shape]:
    x, indices = given.shapes[0], given.shapes[1]
    if x is None or indices is None:
        return [None]
    axis = axis_of(given.attributes["axis"], len(x))
    return [(*x[:axis], *indices, *x[axis + 1 :])]


@operator(
    "Gather",
    13,
    "data indices -> output",
    attributes={"axis": optional(0, "the axis that indices count")},
    shape=_gather_shape,
    quantized=Quantized.MOVES,
)
def gather(x: Array, indices: Array, *, axis: int) -> Array:
    """output[…, i, …] = data[…, indices[i], …] along the axis; the axes of indices replace it.

    Negative indices count from the end. A number without dimensions drops the axis.
    """
    try:
        return np.take(x, indices, axis)
    except IndexError:
        raise QfmtError(f"an index is outside dimension {axis}, which has size {x.shape[axis]}") from None


def _tile_shape(given: Inference) -> list[Shape]:
    x, repeats = given.shapes[0], integers(given, 1)
    if x is None or repeats is None:
        return [None if x is None else (None,) * len(x)]
    if len(repeats) != len(x) or not all(0 <= count <= _MOST for count in repeats):
        raise QfmtError(f"repeats {repeats} do not fit {len(x)} dimensions")
    return [
        tuple(
            size * count if isinstance(size, int) else size if count == 1 else None
            for size, count in zip(x, repeats, strict=True)
        )
    ]


@operator("Tile", 13, "input repeats -> output", shape=_tile_shape, quantized=Quantized.MOVES)
def tile(x: Array, repeats: Array) -> Array:
    """output = input, repeated along each axis (repeats is an int64 vector, one count per axis)."""
    if not np.all(repeats):  # np.tile repeats one axis after the other: it would first make what the last one drops
        return np.empty([size * int(count) for size, count in zip(x.shape, repeats, strict=True)], x.dtype)
    return np.tile(x, repeats)
