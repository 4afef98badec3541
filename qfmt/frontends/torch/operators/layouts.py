"""Torch's functions that reshape, split and join tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ....errors import SourceError, damaged
from ....ops.shapes import axis_of
from .. import arguments, shapes
from ..building import Builder
from ..lifts import by_rank, lifts
from ..values import TensorValue, share

END = np.iinfo(np.int64).max
"""The value for "to the end" in both torch and ONNX."""


@lifts("aten::reshape", "aten::view", "aten::_unsafe_view")
def reshape(lift: Builder, self: Any, shape: Any) -> Any:
    if isinstance(shape, int):
        raise SourceError("reads the bytes of a tensor as another element type, which is not supported")
    return shapes.reshape(lift, lift.tensor(self), shape)


@lifts("aten::view_as", "aten::reshape_as")
def reshape_as(lift: Builder, self: Any, other: TensorValue) -> Any:
    return shapes.reshape(lift, lift.tensor(self), shapes.sizes(lift, other))


@lifts("aten::ravel")
def ravel(lift: Builder, self: TensorValue) -> Any:
    return shapes.reshape(lift, self, [-1])


@lifts("aten::flatten")
def flatten(lift: Builder, self: TensorValue, start_dim: int = 0, end_dim: int = -1) -> Any:
    if start_dim == 1 and end_dim == -1:
        return lift.emit("Flatten", [self], {"axis": 1}) if shapes.rank(lift, self) > 1 else self
    sizes = shapes.sizes(lift, self)
    start, end = axis_of(start_dim, len(sizes)), axis_of(end_dim, len(sizes))
    return shapes.reshape(lift, self, [*sizes[:start], -1, *sizes[end + 1 :]])


@lifts("aten::unflatten")
def unflatten(lift: Builder, self: TensorValue, dim: int, sizes: Any) -> Any:
    around = shapes.sizes(lift, self)
    axis = axis_of(dim, len(around))
    return shapes.reshape(lift, self, [*around[:axis], *sizes, *around[axis + 1 :]])


@lifts("aten::permute")
def permute(lift: Builder, self: Any, dims: Any) -> Any:
    rank = len(dims)
    return lift.emit("Transpose", [self], {"perm": tuple(axis_of(axis, rank) for axis in dims)})


@lifts("aten::transpose", "aten::swapaxes", "aten::swapdims")
def transpose(lift: Builder, self: TensorValue, dim0: int, dim1: int) -> Any:
    order = list(range(shapes.rank(lift, self)))
    a, b = axis_of(dim0, len(order)), axis_of(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return lift.emit("Transpose", [self], {"perm": tuple(order)})


@lifts("aten::movedim", "aten::moveaxis")
def movedim(lift: Builder, self: TensorValue, source: Any, destination: Any) -> Any:
    rank = shapes.rank(lift, self)
    sources, places = (
        [axis_of(axis, rank) for axis in (axes if isinstance(axes, list | tuple) else [axes])]
        for axes in (source, destination)
    )
    order = [axis for axis in range(rank) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return lift.emit("Transpose", [self], {"perm": tuple(order)})


@lifts("aten::mT", "aten::mH", "aten::adjoint")
def matrix_transpose(lift: Builder, self: TensorValue) -> Any:
    """Numbers here are real: their conjugates are themselves."""
    return transpose(lift, self, -2, -1)


@lifts("aten::t", "aten::numpy_T", "aten::matrix_H")
def t(lift: Builder, self: TensorValue) -> Any:
    return lift.emit("Transpose", [self], {"perm": tuple(reversed(range(shapes.rank(lift, self))))})


@lifts("aten::unsqueeze")
def unsqueeze(lift: Builder, self: TensorValue, dim: int) -> Any:
    axis = axis_of(dim, shapes.rank(lift, self) + 1)
    return lift.emit("Unsqueeze", [self, lift.constant(np.array([axis], np.int64))])


@lifts("aten::squeeze")
def squeeze(lift: Builder, self: TensorValue, dim: Any = None) -> Any:
    rank = shapes.rank(lift, self)
    axes = range(rank) if dim is None else [axis_of(a, rank) for a in (dim if isinstance(dim, list) else [dim])]
    sizes = [shapes.size(lift, self, axis) for axis in axes]
    if any(not isinstance(size, int) for size in sizes):
        raise SourceError(
            "drops dimensions of size 1, but does not know here which ones have that size", hint=shapes.hint(lift)
        )
    gone = [axis for axis, size in zip(axes, sizes, strict=True) if size == 1]
    return lift.emit("Squeeze", [self, lift.constant(np.array(gone, np.int64))]) if gone else self


@lifts("aten::slice")
def slice_(lift: Builder, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if isinstance(self, list | tuple):
        return list(self)[slice(start, end, step)]
    start, end = 0 if start is None else start, END if end is None else end
    if start == 0 and isinstance(end, int) and end >= END and step == 1:
        return lift.tensor(self)
    return sliced(lift, self, dim, start, end, step)


def sliced(lift: Builder, x: Any, dim: int, start: Any, end: Any, step: int = 1) -> TensorValue:
    """Part of a tensor along a dimension; the bounds may be sizes."""
    bounds = [shapes.shape_tensor(lift, [start]), shapes.shape_tensor(lift, [end])]
    rest = [lift.constant(np.array([dim], np.int64)), lift.constant(np.array([step], np.int64))]
    return lift.emit("Slice", [x, *bounds, *rest])


@lifts("aten::narrow")
def narrow(lift: Builder, self: Any, dim: int, start: int, length: int) -> Any:
    end = start + length
    return sliced(lift, self, dim, start, END if start < 0 and end == 0 else end)


@lifts("aten::select")
def select(lift: Builder, self: Any, dim: int, index: Any) -> TensorValue:
    return lift.emit("Gather", [self, lift.constant(np.array(arguments.number(lift, index), np.int64))], {"axis": dim})


@lifts("aten::index_select")
def index_select(lift: Builder, self: Any, dim: int, index: Any) -> Any:
    """An index without dimensions counts as a list of one."""
    at = arguments.indices(lift, index)
    return lift.emit("Gather", [self, unsqueeze(lift, at, 0) if at.shape == () else at], {"axis": dim})


@lifts("aten::split", "aten::split_with_sizes", "aten::unsafe_split", "aten::unsafe_split_with_sizes")
def split(lift: Builder, self: TensorValue, split_size: Any, dim: int = 0) -> Any:
    if isinstance(split_size, int):
        size = _known_size(lift, self, dim)
        if split_size <= 0:
            raise damaged(f"splits into parts of {split_size} elements")
        lift.budget.hold(-(-size // split_size))
        split_size = [min(split_size, size - start) for start in range(0, size, split_size)]
    if len(split_size) < 2:
        return [self][: len(split_size)]
    sizes = lift.constant(np.array(split_size, np.int64))
    return lift.emit_many("Split", [self, sizes], {"axis": dim}, outputs=len(split_size))


@lifts("aten::chunk", "aten::unsafe_chunk")
def chunk(lift: Builder, self: TensorValue, chunks: int, dim: int = 0) -> Any:
    size = _known_size(lift, self, dim)
    return split(lift, self, -(-size // chunks), dim)


@lifts("aten::tensor_split")
def tensor_split(
    lift: Builder, self: TensorValue, by: Any = None, dim: int = 0, *, sections: Any = None, indices: Any = None
) -> Any:
    """Into a number of parts, the first of which may have one element more, or at positions."""
    by = next((each for each in (by, sections, indices) if each is not None), None)
    if isinstance(by, list | tuple):
        return [sliced(lift, self, dim, start, end) for start, end in pairwise([0, *by, END])]
    count = arguments.whole(lift, by)
    if count <= 0:
        raise damaged(f"splits into {count} parts")
    lift.budget.hold(count)
    each, more = divmod(_known_size(lift, self, dim), count)
    return split(lift, self, [each + 1] * more + [each] * (count - more), dim)


@lifts("aten::unbind")
def unbind(lift: Builder, self: TensorValue, dim: int = 0) -> Any:
    return [select(lift, self, dim, index) for index in range(_known_size(lift, self, dim))]


def _known_size(lift: Builder, x: TensorValue, dim: int) -> int:
    size = shapes.size(lift, x, axis_of(dim, shapes.rank(lift, x)))
    if not isinstance(size, int):
        raise SourceError(f"needs the size of dimension {dim}, which is not known", hint=shapes.hint(lift))
    return size


@lifts("aten::cat", "aten::concat")
def cat(lift: Builder, tensors: Sequence[Any], dim: int = 0) -> Any:
    """For quantized tensors, torch uses the scale and zero point of the first one. It skips vectors without elements
    among tensors of more dimensions."""
    values = arguments.alike(lift, _some_tensors(lift, tensors))
    if any(each.shape is not None and len(each.shape) > 1 for each in values):
        values = [each for each in values if each.shape != (0,)]
    if len(values) == 1 and values[0].quantization is None:
        return lift.alias(values[0])
    return _joined(lift, values, dim, arguments.grid(values[0]))


@lifts("quantized::cat")
def quantized_cat(lift: Builder, qx: Sequence[Any], dim: int, scale: Any, zero_point: Any) -> Any:
    values = _some_tensors(lift, qx)
    grid = arguments.grid(values[0])
    if scale is not None and zero_point is not None:
        grid = arguments.quantization(lift, scale, zero_point, values[0].dtype)
    return _joined(lift, values, dim, grid)


def _joined(lift: Builder, values: list[TensorValue], dim: int, grid: Any) -> TensorValue:
    """Channels of images are joined in blocks, if they are innermost; any other tensors number by number."""
    rule = lift.unless(dim in (1, -3) and all(map(_is_joined_in_blocks, values)), "reciprocal_fma")
    return lift.emit("Concat", values, {"axis": dim}, quantization=grid, rule=rule)


def _is_joined_in_blocks(x: TensorValue) -> bool:
    is_last = x.channels_last or (x.shape is not None and x.shape[2:] == (1, 1))
    return x.shape is not None and len(x.shape) == 4 and is_last and x.has_block


def _some_tensors(lift: Builder, values: Sequence[Any]) -> list[TensorValue]:
    if not values:
        raise SourceError("joins no tensors")
    return [lift.tensor(value) for value in values]


@lifts("aten::stack")
def stack(lift: Builder, tensors: Sequence[Any], dim: int = 0) -> Any:
    result: TensorValue = cat(lift, [unsqueeze(lift, lift.tensor(value), dim) for value in tensors], dim)
    result.channels_last = False
    return result


@lifts("aten::expand")
def expand(lift: Builder, self: TensorValue, size: Any, *, implicit: bool = False) -> Any:
    missing = len(size) - shapes.rank(lift, self)
    whole = [shapes.size(lift, self, axis - missing) if item == -1 else item for axis, item in enumerate(size)]
    return lift.emit("Expand", [self, shapes.shape_tensor(lift, whole)])


@lifts("aten::expand_as")
def expand_as(lift: Builder, self: Any, other: TensorValue) -> Any:
    return expand(lift, lift.tensor(self), shapes.sizes(lift, other))


@lifts("aten::meshgrid")
def meshgrid(lift: Builder, tensors: Sequence[Any], indexing: str = "ij") -> Any:
    """Each vector along an axis of its own; "xy" exchanges the first two axes."""
    vectors = [shapes.reshape(lift, each, [-1]) for each in _some_tensors(lift, tensors)]
    lift.budget.hold(len(vectors) ** 2)
    axes = list(range(len(vectors)))
    if indexing == "xy":
        axes[:2] = axes[1::-1]
    sizes = [shapes.size(lift, vectors[axis], 0) for axis in axes]
    grids = [
        expand(lift, shapes.reshape(lift, x, [-1 if each == axis else 1 for each in axes]), sizes)
        for axis, x in enumerate(vectors)
    ]
    for given, grid in zip(tensors, grids, strict=True):
        if isinstance(given, TensorValue):
            share("aten::expand", given, grid)
    return grids


@lifts("aten::unfold")
def unfold(lift: Builder, self: TensorValue, dimension: int, size: int, step: int) -> Any:
    """Windows along a dimension, whose elements are in a new last one."""
    rank = shapes.rank(lift, self)
    axis = axis_of(dimension, rank)
    length = _known_size(lift, self, axis)
    if not 0 <= size <= length or step <= 0:
        raise damaged(f"takes windows of {size} elements, {step} apart, of {length}")
    starts = range(0, length - size + 1, step)
    lift.budget.hold(len(starts) * size + size)
    at = np.add.outer(np.array(starts, np.int64), np.arange(size))
    windows = lift.emit("Gather", [self, lift.constant(at)], {"axis": axis})
    return permute(lift, windows, [*(each for each in range(rank + 1) if each != axis + 1), axis + 1])


@lifts("aten::tile")
def tile(lift: Builder, self: TensorValue, dims: Any) -> Any:
    return repeat(lift, self, [*[1] * (shapes.rank(lift, self) - len(dims)), *dims])


@lifts("aten::repeat")
def repeat(lift: Builder, self: TensorValue, repeats: Any) -> Any:
    for _ in range(len(repeats) - shapes.rank(lift, self)):
        self = unsqueeze(lift, self, 0)
    return lift.emit("Tile", [self, shapes.shape_tensor(lift, repeats)])


@lifts("aten::constant_pad_nd")
def constant_pad(lift: Builder, self: Any, pad: Any, value: Any = 0) -> Any:
    return _padded(lift, self, pad, "constant", value)


@lifts("aten::pad")
def pad_(lift: Builder, self: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _padded(lift, self, pad, modes[mode], value)


@lifts(by_rank("aten::reflection_pad{}d", "aten::replication_pad{}d"))
def other_pad(lift: Builder, rank: int, self: Any, padding: Any) -> Any:
    return _padded(lift, self, padding, "reflect" if "reflection" in lift.target else "edge", None)


def _padded(lift: Builder, self: Any, pad: Any, mode: str, value: Any) -> Any:
    """Torch lists pads from the last dimension, (before, after) each; ONNX all before, then all after."""
    x = lift.tensor(self)
    rank = shapes.rank(lift, x)
    before, after = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    pads = shapes.shape_tensor(lift, before + after)
    if mode == "wrap" and any(isinstance(each, int) and each < 0 for each in pad):
        raise SourceError("crops a tensor and continues it on the other side, which is not supported")
    if mode != "constant":
        return lift.emit("Pad", [x, pads], {"mode": mode})
    if value is not None:
        arguments.require_no_relu(x, arguments.number(lift, value), "pads with")
    fill = arguments.scalar_like(lift, x, 0 if value is None else arguments.number(lift, value))
    return lift.emit("Pad", [x, pads, fill], {"mode": mode})


@lifts("aten::pixel_shuffle")
def pixel_shuffle(lift: Builder, self: TensorValue, upscale_factor: int) -> Any:
    shapes.need(lift, self, (None,) * 4)
    if upscale_factor < 1:
        raise SourceError(f"enlarges by {upscale_factor}")
    return lift.emit("DepthToSpace", [self], {"blocksize": upscale_factor, "mode": "CRD"})


@lifts("aten::pixel_unshuffle")
def pixel_unshuffle(lift: Builder, self: TensorValue, downscale_factor: int) -> Any:
    """Not ONNX's SpaceToDepth, which orders channels differently: reshape, transpose, reshape."""
    shapes.need(lift, self, (None,) * 4)
    *before, _, height, width = shapes.sizes(lift, self)
    c, r, first = _known_size(lift, self, -3), downscale_factor, len(before)
    blocks = shapes.reshape(lift, self, [*before, c, _divided(lift, height, r), r, _divided(lift, width, r), r])
    order = lift.emit("Transpose", [blocks], {"perm": (*range(first), *(first + each for each in (0, 2, 4, 1, 3)))})
    return shapes.reshape(lift, order, [*before, c * r * r, *shapes.sizes(lift, order)[-2:]])


def _divided(lift: Builder, size: Any, divisor: int) -> Any:
    return size // divisor if isinstance(size, int) else shapes.floor_divided(lift, size, divisor)


@lifts("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(lift: Builder, self: TensorValue, groups: int) -> Any:
    (n, _, *rest), c = shapes.sizes(lift, self), _known_size(lift, self, 1)
    split_ = shapes.reshape(lift, self, [n, groups, c // groups, -1])
    order = lift.emit("Transpose", [split_], {"perm": (0, 2, 1, 3)})
    result = shapes.reshape(lift, order, [n, c, *rest])
    result.channels_last = self.channels_last
    return result
