"""Operators that move elements without changing them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import dequantize, quantize
from ..errors import QfmtError
from ..model import Dimension, Shape
from .registry import Inference, Operand, Quantized, Result, by_engine, operator, optional, required
from .shapes import axis_of, broadcast_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def _value(given: Inference, index: int) -> list[int] | None:
    """A constant int64 input as a list; None if absent or not known."""
    value = given.values[index] if index < len(given.values) else None
    return None if value is None else [int(item) for item in np.asarray(value).reshape(-1)]


def _present(given: Inference, index: int) -> bool:
    return index < len(given.shapes) and (given.shapes[index] is not None or given.values[index] is not None)


def _length(given: Inference, index: int) -> int | None:
    """The number of elements of a vector input, where known."""
    shape = given.shapes[index] if index < len(given.shapes) else None
    return shape[0] if shape and isinstance(shape[0], int) else None


def _elements(shape: tuple[Dimension, ...]) -> Dimension:
    """The product of the sizes; a name times ones is that name."""
    names = [size for size in shape if not isinstance(size, int)]
    known = prod(size for size in shape if isinstance(size, int))
    if not names or known == 0:
        return known
    return names[0] if len(names) == 1 and known == 1 else None


def _reshape_shape(given: Inference) -> list[Shape]:
    x, wanted = given.shapes[0], _value(given, 1)
    if wanted is None:
        count = _length(given, 1)
        return [None if count is None else (None,) * count]
    if wanted.count(-1) > 1:
        raise QfmtError(f"shape {wanted} leaves more than one size open")
    result: list[Dimension] = []
    for i, size in enumerate(wanted):
        if size == 0:
            if x is not None and i >= len(x):
                raise QfmtError(f"shape {wanted} copies dimension {i}, which the input does not have")
            result.append(None if x is None else x[i])
        else:
            result.append(size)
    if -1 in wanted:
        open_axis = wanted.index(-1)
        result[open_axis] = None if x is None else _open_size(x, result, open_axis)
    if x is not None:
        _check_elements(x, result)
    return [tuple(result)]


def _open_size(x: tuple[Dimension, ...], result: list[Dimension], open_axis: int) -> Dimension:
    """What -1 stands for: the elements of the input over those of the other dimensions; names cancel."""
    left = list(x)
    others = [size for i, size in enumerate(result) if i != open_axis]
    for size in [size for size in others if size is not None and not isinstance(size, int)]:
        if size not in left:
            return None
        left.remove(size)
        others.remove(size)
    if None in others:
        return None
    divisor = prod(size for size in others if isinstance(size, int))
    known = prod(size for size in left if isinstance(size, int))
    names = [size for size in left if not isinstance(size, int)]
    if not names:
        if divisor == 0 or known % divisor:
            raise QfmtError(f"{known} elements do not divide into {divisor}")
        return known // divisor
    return names[0] if len(names) == 1 and known == divisor else None


def _check_elements(x: tuple[Dimension, ...], result: list[Dimension]) -> None:
    before, after = _elements(x), _elements(tuple(result))
    if isinstance(before, int) and isinstance(after, int) and before != after:
        raise QfmtError(f"{before} elements do not fit into shape {result}")


@operator("Reshape", 23, "data shape -> reshaped", shape=_reshape_shape, quantized=Quantized.MOVES)
def reshape(x: Array, shape: Array) -> Array:
    """reshaped = the elements of data in the same order; in shape 0 copies a size of data, -1 takes what is left."""
    sizes = [x.shape[i] if size == 0 else int(size) for i, size in enumerate(shape)]
    return _reshaped(x, sizes)


def _reshaped(x: Array, sizes: list[int]) -> Array:
    try:
        return x.reshape(sizes)
    except ValueError:
        raise QfmtError(f"an array of shape {x.shape} cannot be reshaped to {tuple(sizes)}") from None


def _flatten_shape(given: Inference) -> list[Shape]:
    x = given.shapes[0]
    if x is None:
        return [(None, None)]
    axis = _cut(given.attributes["axis"], len(x))
    return [(_elements(x[:axis]), _elements(x[axis:]))]


def _cut(axis: int, rank: int) -> int:
    return rank if axis == rank else axis_of(axis, rank)


@operator(
    "Flatten",
    23,
    "input -> output",
    attributes={"axis": optional(1, "the first axis that goes into the second dimension")},
    shape=_flatten_shape,
    quantized=Quantized.MOVES,
)
def flatten(x: Array, *, axis: int) -> Array:
    """output = input as a matrix: the axes before `axis` into rows, the others into columns."""
    cut = _cut(axis, x.ndim)
    return x.reshape(prod(x.shape[:cut]), prod(x.shape[cut:]))


def _transpose_shape(given: Inference) -> list[Shape]:
    x, perm = given.shapes[0], given.attributes["perm"]
    if x is None:
        return [(None,) * len(perm)]
    if sorted(perm) != list(range(len(x))):
        raise QfmtError(f"perm {list(perm)} is no order of {len(x)} axes")
    return [tuple(x[axis] for axis in perm)]


@operator(
    "Transpose",
    23,
    "data -> transposed",
    attributes={"perm": required("ii", "axis of the input for each axis of the output")},
    shape=_transpose_shape,
    quantized=Quantized.MOVES,
)
def transpose(x: Array, *, perm: tuple[int, ...]) -> Array:
    """Axis i of transposed is axis perm[i] of data."""
    return x.transpose(perm)


def _squeeze_shape(given: Inference) -> list[Shape]:
    x = given.shapes[0]
    axes = _value(given, 1)
    if x is None or (axes is None and (_present(given, 1) or not all(isinstance(size, int) for size in x))):
        return [None]
    gone = {i for i, size in enumerate(x) if size == 1} if axes is None else {axis_of(axis, len(x)) for axis in axes}
    for axis in gone:
        if isinstance(x[axis], int) and x[axis] != 1:
            raise QfmtError(f"axis {axis} has size {x[axis]} and cannot be squeezed")
    return [tuple(size for i, size in enumerate(x) if i not in gone)]


@operator("Squeeze", 23, "data axes? -> squeezed", shape=_squeeze_shape, quantized=Quantized.MOVES)
def squeeze(x: Array, axes: Array | None) -> Array:
    """squeezed = data without the given axes, each of size 1; without all of size 1 if axes is absent."""
    return x.squeeze(None if axes is None else tuple(int(axis) for axis in axes.reshape(-1)))


def _unsqueeze_shape(given: Inference) -> list[Shape]:
    x, axes = given.shapes[0], _value(given, 1)
    if x is None:
        return [None]
    if axes is None:
        count = _length(given, 1)
        return [None if count is None else (None,) * (len(x) + count)]
    rank = len(x) + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise QfmtError(f"axes {axes} name one axis twice")
    rest = iter(x)
    return [tuple(1 if i in new else next(rest) for i in range(rank))]


@operator("Unsqueeze", 23, "data axes -> expanded", shape=_unsqueeze_shape, quantized=Quantized.MOVES)
def unsqueeze(x: Array, axes: Array) -> Array:
    """expanded = data with new axes of size 1 at the given places of the output."""
    return np.expand_dims(x, tuple(int(axis) for axis in axes.reshape(-1)))


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
)
def concat(*inputs: Array, axis: int) -> Array:
    """concat_result = the inputs one after the other along the axis."""
    return np.concatenate(inputs, axis)


def _split_shape(given: Inference) -> list[Shape]:
    x, parts = given.shapes[0], _value(given, 1)
    if parts is None:
        raise QfmtError("the sizes of a split must be constant")
    if x is None:
        return [None] * len(parts)
    axis = axis_of(given.attributes["axis"], len(x))
    size = x[axis]
    if isinstance(size, int) and sum(parts) != size:
        raise QfmtError(f"parts {parts} do not add up to {size}")
    return [(*x[:axis], part, *x[axis + 1 :]) for part in parts]


@operator(
    "Split",
    18,
    "input split -> outputs*",
    attributes={"axis": optional(0, "the axis that is split")},
    shape=_split_shape,
    quantized=Quantized.MOVES,
)
def split(x: Array, parts: Array, *, axis: int) -> list[Array]:
    """outputs = consecutive parts of input along the axis, of the sizes in split (an int64 vector)."""
    return np.split(x, np.cumsum(parts)[:-1], axis)


def _slices(
    sizes: tuple[Dimension, ...], starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None
) -> list[slice]:
    rank = len(sizes)
    result = [slice(None)] * rank
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        if step == 0:
            raise QfmtError("a slice needs a step other than 0")
        at = axis_of(axis, rank)
        size = sizes[at]
        # An end before the first element, walking backwards, is "to the beginning": None in Python.
        stop = None if step < 0 and isinstance(size, int) and end < -size else end
        result[at] = slice(start, stop, step)
    return result


def _slice_shape(given: Inference) -> list[Shape]:
    x = given.shapes[0]
    if x is None:
        return [None]
    starts, ends, axes, steps = (_value(given, i) for i in range(1, 5))
    if (
        starts is None
        or ends is None
        or (axes is None and _present(given, 3))
        or (steps is None and _present(given, 4))
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

    Bounds are int64 vectors; negative ones count from the end, those outside are moved to the edge.
    """
    lists = [None if item is None else [int(i) for i in item] for item in (starts, ends, axes, steps)]
    return x[tuple(_slices(x.shape, *lists))]  # type: ignore[arg-type]


PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def _pad_widths(rank: int, pads: list[int], axes: list[int] | None) -> list[tuple[int, int]]:
    chosen = list(range(rank)) if axes is None else [axis_of(axis, rank) for axis in axes]
    if len(pads) != 2 * len(chosen):
        raise QfmtError(f"{len(pads)} pads do not fit {len(chosen)} axes")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(chosen):
        widths[axis] = (pads[i], pads[len(chosen) + i])
    return widths


def _pad_shape(given: Inference) -> list[Shape]:
    x, pads, axes = given.shapes[0], _value(given, 1), _value(given, 3)
    if x is None or pads is None or (axes is None and _present(given, 3)):
        return [None if x is None else (None,) * len(x)]
    result: list[Dimension] = []
    for size, (before, after) in zip(x, _pad_widths(len(x), pads, axes), strict=True):
        total = before + after
        result.append(size + total if isinstance(size, int) else size if before == after == 0 else None)
    return [tuple(result)]


def _real_scalar(value: Operand | None) -> Array:
    if value is None:
        return np.zeros((), np.float32)
    scalar = value.array.reshape(())
    return scalar.astype(np.float32) if value.quantization is None else dequantize(scalar, value.quantization)


def _pad_integer(
    x: Operand, pads: Operand, value: Operand | None, axes: Operand | None, *, result: Result, mode: str
) -> Array:
    """The constant is real (or quantized itself): 0 becomes the zero point, v becomes rint(v / s) + z."""
    fill = quantize(_real_scalar(value), result.quantization, result.dtype, "divide")
    return pad(x.array, pads.array, fill, axes and axes.array, mode=mode)


@operator(
    "Pad",
    23,
    "data pads constant_value? axes? -> output",
    attributes={"mode": optional("constant", "`constant`, `reflect`, `edge` or `wrap`")},
    shape=_pad_shape,
    quantized=Quantized.MOVES,
    integer=_pad_integer,
)
def pad(x: Array, pads: Array, value: Array | None, axes: Array | None, *, mode: str) -> Array:
    """output = data with elements added (or, negative, removed) before and after each of the axes.

    pads is an int64 vector: all befores, then all afters. Added are constant_value (0 if absent), the
    mirror image without its edge (reflect), the edge, or the other end (wrap).
    """
    widths = _pad_widths(x.ndim, [int(p) for p in pads], None if axes is None else [int(axis) for axis in axes])
    grown = [(max(0, before), max(0, after)) for before, after in widths]
    options = {"constant_values": 0 if value is None else value.reshape(()).item()} if mode == "constant" else {}
    padded = np.pad(x, grown, mode=mode, **options)  # type: ignore[call-overload]
    crop = tuple(
        slice(max(0, -before), size - max(0, -after))
        for (before, after), size in zip(widths, padded.shape, strict=True)
    )
    return padded[crop]


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
    """output[…, i, …] = data[…, indices[i], …] along the axis; the axes of indices take its place."""
    try:
        return np.take(x, indices, axis)
    except IndexError:
        raise QfmtError(f"an index is outside of dimension {axis}, which has size {x.shape[axis]}") from None


def _expand_shape(given: Inference) -> list[Shape]:
    x, wanted = given.shapes[0], _value(given, 1)
    return [None if x is None or wanted is None else broadcast_pair(x, wanted)]


@operator("Expand", 13, "input shape -> output", shape=_expand_shape, quantized=Quantized.MOVES)
def expand(x: Array, shape: Array) -> Array:
    """output = input, broadcast with a tensor of the given shape (an int64 vector)."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape)))


def _tile_shape(given: Inference) -> list[Shape]:
    x, repeats = given.shapes[0], _value(given, 1)
    if x is None or repeats is None:
        return [None if x is None else (None,) * len(x)]
    return [
        tuple(
            size * count if isinstance(size, int) else size if count == 1 else None
            for size, count in zip(x, repeats, strict=True)
        )
    ]


@operator("Tile", 13, "input repeats -> output", shape=_tile_shape, quantized=Quantized.MOVES)
def tile(x: Array, repeats: Array) -> Array:
    """output = input, repeated along each axis (repeats is an int64 vector, one count per axis)."""
    return np.tile(x, repeats)


LAST = 2**63 - 1


def _shape_shape(given: Inference) -> list[Shape]:
    x = given.shapes[0]
    if x is None:
        return [(None,)]
    return [(len(range(len(x))[given.attributes["start"] : given.attributes["end"]]),)]


@operator(
    "Shape",
    23,
    "data -> shape",
    attributes={"end": optional(LAST, "one after the last axis"), "start": optional(0, "the first axis")},
    shape=_shape_shape,
    quantized=Quantized.FLOAT_ONLY,
    dtype="int64",
)
def shape(x: Array, *, end: int, start: int) -> Array:
    """shape = the sizes of data from axis start to end (negative: from the last axis), int64."""
    return np.array(x.shape[start:end], np.int64)


def _depth_to_space_shape(given: Inference) -> list[Shape]:
    x, block = given.known(0), given.attributes["blocksize"]
    if len(x) != 4:
        raise QfmtError(f"DepthToSpace needs an input of rank 4, not {len(x)}")
    if isinstance(x[1], int) and x[1] % (block * block):
        raise QfmtError(f"{x[1]} channels do not divide into blocks of {block} × {block}")
    channels = x[1] // (block * block) if isinstance(x[1], int) else None
    height, width = (size * block if isinstance(size, int) else None for size in x[2:])
    return [(x[0], channels, height, width)]


@operator(
    "DepthToSpace",
    13,
    "input -> output",
    attributes={
        "blocksize": required("i", "size of the blocks"),
        "mode": optional("DCR", "order of the channels: `DCR` (block, channel) or `CRD` (channel, block)"),
    },
    shape=_depth_to_space_shape,
    quantized=Quantized.MOVES,
)
def depth_to_space(x: Array, *, blocksize: int, mode: str) -> Array:
    """output moves blocks of channels of [N, C, H, W] into blocks of space: [N, C / b², H · b, W · b]."""
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        blocks = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth_shape(given: Inference) -> list[Shape]:
    x, block = given.known(0), given.attributes["blocksize"]
    if len(x) != 4:
        raise QfmtError(f"SpaceToDepth needs an input of rank 4, not {len(x)}")
    for size in x[2:]:
        if isinstance(size, int) and size % block:
            raise QfmtError(f"a size of {size} does not divide into blocks of {block}")
    channels = x[1] * block * block if isinstance(x[1], int) else None
    height, width = (size // block if isinstance(size, int) else None for size in x[2:])
    return [(x[0], channels, height, width)]


@operator(
    "SpaceToDepth",
    13,
    "input -> output",
    attributes={"blocksize": required("i", "size of the blocks")},
    shape=_space_to_depth_shape,
    quantized=Quantized.MOVES,
)
def space_to_depth(x: Array, *, blocksize: int) -> Array:
    """output moves blocks of space of [N, C, H, W] into channels: [N, C · b², H / b, W / b], block first."""
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b * b, h // b, w // b)
