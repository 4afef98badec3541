"""Other shapes for the same elements."""

from __future__ import annotations

from math import prod

import numpy as np

from ..arrays import Array
from ..errors import QfmtError, shortened
from ..model import Dimension, Shape
from .registry import Inference, Quantized, Trait, operator, optional, required, truth
from .shapes import axes_of, axis_of, broadcast_pair, integers, is_present, length


def _elements(shape: tuple[Dimension, ...]) -> Dimension:
    """The product of the sizes; a name times ones is that name."""
    names = [size for size in shape if not isinstance(size, int)]
    known = prod(size for size in shape if isinstance(size, int))
    if not names or known == 0:
        return known
    return names[0] if len(names) == 1 and known == 1 else None


def _reshape_shape(given: Inference) -> list[Shape]:
    x, wanted = given.shapes[0], integers(given, 1)
    if wanted is None:
        count = length(given, 1)
        return [None if count is None else (None,) * count]
    if wanted.count(-1) > 1:
        raise QfmtError(f"shape {wanted} leaves more than one size open")
    result: list[Dimension] = []
    for i, size in enumerate(wanted):
        if size == 0 and not given.attributes["allowzero"]:
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
    """The size for -1: the elements of the input divided by those of the other dimensions; names cancel."""
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
            raise QfmtError(f"{known} elements are not divisible by {divisor}")
        return known // divisor
    return names[0] if len(names) == 1 and known == divisor else None


def _check_elements(x: tuple[Dimension, ...], result: list[Dimension]) -> None:
    before, after = _elements(x), _elements(tuple(result))
    if isinstance(before, int) and isinstance(after, int) and before != after:
        raise QfmtError(f"{before} elements do not fit into shape {result}")


@operator(
    "Reshape",
    23,
    "data shape -> reshaped",
    attributes={"allowzero": truth(0, "1: a 0 in shape is a size of 0")},
    shape=_reshape_shape,
    quantized=Quantized.MOVES,
)
def reshape(x: Array, shape: Array, *, allowzero: int) -> Array:
    """reshaped = the elements of data in the same order. In shape 0 copies a size of data, -1 is the remaining size."""
    return x.reshape([x.shape[i] if size == 0 and not allowzero else int(size) for i, size in enumerate(shape)])


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
    attributes={"axis": optional(1, "the first axis that is merged into the second dimension")},
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
        raise QfmtError(f"perm {shortened(str(list(perm)), 100)} is not a permutation of {len(x)} axes")
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
    axes = integers(given, 1)
    if x is None or (axes is None and (is_present(given, 1) or not all(isinstance(size, int) for size in x))):
        return [None]
    gone = [i for i, size in enumerate(x) if size == 1] if axes is None else axes_of(axes, len(x))
    for axis in gone:
        if isinstance(x[axis], int) and x[axis] != 1:
            raise QfmtError(f"axis {axis} has size {x[axis]} and cannot be squeezed")
    return [tuple(size for i, size in enumerate(x) if i not in gone)]


@operator("Squeeze", 23, "data axes? -> squeezed", shape=_squeeze_shape, quantized=Quantized.MOVES)
def squeeze(x: Array, axes: Array | None) -> Array:
    """squeezed = data without the given axes, each of size 1; if axes is absent, without all axes of size 1."""
    return x.squeeze(None if axes is None else tuple(int(axis) for axis in axes.reshape(-1)))


def _unsqueeze_shape(given: Inference) -> list[Shape]:
    x, axes = given.shapes[0], integers(given, 1, or_number=True)
    if x is None:
        return [None]
    if axes is None:
        count = length(given, 1)
        return [None if count is None else (None,) * (len(x) + count)]
    rank = len(x) + len(axes)
    new = axes_of(axes, rank)
    rest = iter(x)
    return [tuple(1 if i in new else next(rest) for i in range(rank))]


@operator("Unsqueeze", 23, "data axes -> expanded", shape=_unsqueeze_shape, quantized=Quantized.MOVES)
def unsqueeze(x: Array, axes: Array) -> Array:
    """expanded = data with new axes of size 1 at the given positions, which count in the output, also negative ones.

    axes may also be one number without dimensions.
    """
    return np.expand_dims(x, tuple(int(axis) for axis in axes.reshape(-1)))


def _expand_shape(given: Inference) -> list[Shape]:
    x, wanted = given.shapes[0], integers(given, 1)
    if wanted is None and x is not None:
        count = length(given, 1)
        return [None if count is None else (None,) * max(len(x), count)]
    return [None if x is None or wanted is None else broadcast_pair(x, wanted)]


@operator("Expand", 13, "input shape -> output", shape=_expand_shape, quantized=Quantized.MOVES)
def expand(x: Array, shape: Array) -> Array:
    """output = input, broadcast with a tensor of the given shape (an int64 vector)."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape)))


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
    traits=Trait.SIZES,
)
def shape(x: Array, *, end: int, start: int) -> Array:
    """shape = the sizes of data from axis start to end (negative: from the last axis), int64."""
    return np.array(x.shape[start:end], np.int64)


@operator(
    "Size",
    23,
    "data -> size",
    shape=lambda given: [()],
    quantized=Quantized.FLOAT_ONLY,
    dtype="int64",
    traits=Trait.SIZES,
)
def size(x: Array) -> Array:
    """size = the number of elements of data, int64."""
    return np.array(x.size, np.int64)


def _depth_to_space_shape(given: Inference) -> list[Shape]:
    x, block = given.known(0), given.attributes["blocksize"]
    if len(x) != 4:
        raise QfmtError(f"DepthToSpace needs an input of rank 4, not {len(x)}")
    if isinstance(x[1], int) and x[1] % (block * block):
        raise QfmtError(f"{x[1]} channels are not divisible into blocks of {block} × {block}")
    channels = x[1] // (block * block) if isinstance(x[1], int) else None
    height, width = (size * block if isinstance(size, int) else None for size in x[2:])
    return [(x[0], channels, height, width)]


@operator(
    "DepthToSpace",
    13,
    "input -> output",
    attributes={
        "blocksize": required("i", "size of the blocks"),
        "mode": optional(
            "DCR", "order of the channels: `DCR` (block, channel) or `CRD` (channel, block)", ("DCR", "CRD")
        ),
    },
    shape=_depth_to_space_shape,
    quantized=Quantized.MOVES,
)
def depth_to_space(x: Array, *, blocksize: int, mode: str) -> Array:
    """output[n, c, h·b + i, w·b + j] = input[n, k, h, w], with b = blocksize.

    k is (i·b + j)·(C / b²) + c (`DCR`) or c·b² + i·b + j (`CRD`). input is [N, C, H, W], output
    [N, C / b², H·b, W·b].
    """
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
            raise QfmtError(f"a size of {size} is not divisible into blocks of {block}")
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
    """output[n, (i·b + j)·C + c, h, w] = input[n, c, h·b + i, w·b + j], with b = blocksize.

    input is [N, C, H, W], output [N, C·b², H / b, W / b].
    """
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b * b, h // b, w // b)
