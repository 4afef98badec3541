"""Torch's ways to reshape, cut and join tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import SourceError
from ...ops.shapes import axis_of
from .lift import Lifter, lifts
from .sizes import size_arithmetic
from .values import TensorValue

END = np.iinfo(np.int64).max
"""What torch and ONNX alike write for "to the end"."""


@lifts("aten::reshape", "aten::view", "aten::_unsafe_view")
def reshape(lift: Lifter, self: Any, shape: Any) -> Any:
    return lift.reshape(lift.tensor(self), shape)


@lifts("aten::view_as", "aten::reshape_as")
def reshape_as(lift: Lifter, self: Any, other: Any) -> Any:
    y = lift.tensor(other)
    return lift.reshape(lift.tensor(self), [lift.size(y, axis) for axis in range(lift.rank(y))])


@lifts("aten::flatten")
def flatten(lift: Lifter, self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    x = lift.tensor(self)
    if start_dim == 1 and end_dim == -1:
        return lift.emit("Flatten", [x], {"axis": 1}) if lift.rank(x) > 1 else x
    rank = lift.rank(x)
    start, end = axis_of(start_dim, rank), axis_of(end_dim, rank)
    sizes = [lift.size(x, axis) for axis in range(rank)]
    return lift.reshape(x, [*sizes[:start], -1, *sizes[end + 1 :]])


@lifts("aten::unflatten")
def unflatten(lift: Lifter, self: Any, dim: int, sizes: Any) -> Any:
    x = lift.tensor(self)
    rank = lift.rank(x)
    axis = axis_of(dim, rank)
    around = [lift.size(x, i) for i in range(rank)]
    return lift.reshape(x, [*around[:axis], *sizes, *around[axis + 1 :]])


@lifts("aten::permute")
def permute(lift: Lifter, self: Any, dims: Any) -> Any:
    rank = len(dims)
    return lift.emit("Transpose", [self], {"perm": tuple(axis_of(axis, rank) for axis in dims)})


@lifts("aten::transpose", "aten::swapaxes", "aten::swapdims")
def transpose(lift: Lifter, self: Any, dim0: int, dim1: int) -> Any:
    x = lift.tensor(self)
    order = list(range(lift.rank(x)))
    a, b = axis_of(dim0, len(order)), axis_of(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return lift.emit("Transpose", [x], {"perm": tuple(order)})


@lifts("aten::t", "aten::numpy_T")
def t(lift: Lifter, self: Any) -> Any:
    x = lift.tensor(self)
    return lift.emit("Transpose", [x], {"perm": tuple(reversed(range(lift.rank(x))))})


@lifts("aten::unsqueeze")
def unsqueeze(lift: Lifter, self: Any, dim: int) -> Any:
    x = lift.tensor(self)
    axis = axis_of(dim, lift.rank(x) + 1)
    return lift.emit("Unsqueeze", [x, lift.constant(np.array([axis], np.int64))])


@lifts("aten::squeeze")
def squeeze(lift: Lifter, self: Any, dim: Any = None) -> Any:
    x = lift.tensor(self)
    rank = lift.rank(x)
    axes = range(rank) if dim is None else [axis_of(a, rank) for a in (dim if isinstance(dim, list) else [dim])]
    sizes = [lift.size(x, axis) for axis in axes]
    if any(not isinstance(size, int) for size in sizes):
        raise SourceError(
            "drops dimensions of size 1, but does not know here which ones have that size", hint=lift.shape_hint
        )
    gone = [axis for axis, size in zip(axes, sizes, strict=True) if size == 1]
    return lift.emit("Squeeze", [x, lift.constant(np.array(gone, np.int64))]) if gone else x


@lifts("aten::slice")
def slice_(lift: Lifter, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if isinstance(self, list | tuple):
        return list(self)[slice(start, end, step)]
    start, end = 0 if start is None else start, END if end is None else end
    if start == 0 and isinstance(end, int) and end >= END and step == 1:
        return lift.tensor(self)
    return _sliced(lift, self, dim, start, end, step)


def _sliced(lift: Lifter, x: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    bounds = [lift.shape_tensor([start]), lift.shape_tensor([end])]
    rest = [lift.constant(np.array([dim], np.int64)), lift.constant(np.array([step], np.int64))]
    return lift.emit("Slice", [x, *bounds, *rest])


@lifts("aten::narrow")
def narrow(lift: Lifter, self: Any, dim: int, start: int, length: int) -> Any:
    end = start + length
    return _sliced(lift, self, dim, start, END if start < 0 and end == 0 else end, 1)


@lifts("aten::select")
def select(lift: Lifter, self: Any, dim: int, index: Any) -> Any:
    return lift.emit("Gather", [self, lift.constant(np.array(lift.number(index), np.int64))], {"axis": dim})


@lifts("aten::index_select")
def index_select(lift: Lifter, self: Any, dim: int, index: Any) -> Any:
    return lift.emit("Gather", [self, index], {"axis": dim})


@lifts("aten::split", "aten::split_with_sizes")
def split(lift: Lifter, self: Any, split_size: Any, dim: int = 0) -> Any:
    x = lift.tensor(self)
    if isinstance(split_size, int):
        size = _known_size(lift, x, dim)
        split_size = [min(split_size, size - start) for start in range(0, size, split_size)]
    if len(split_size) == 1:
        return [x]
    sizes = lift.constant(np.array(split_size, np.int64))
    return lift.emit("Split", [x, sizes], {"axis": dim}, outputs=len(split_size))


@lifts("aten::chunk")
def chunk(lift: Lifter, self: Any, chunks: int, dim: int = 0) -> Any:
    size = _known_size(lift, lift.tensor(self), dim)
    return split(lift, self, -(-size // chunks), dim)


@lifts("aten::unbind")
def unbind(lift: Lifter, self: Any, dim: int = 0) -> Any:
    x = lift.tensor(self)
    return [select(lift, x, dim, index) for index in range(_known_size(lift, x, dim))]


def _known_size(lift: Lifter, x: TensorValue, dim: int) -> int:
    size = lift.size(x, axis_of(dim, lift.rank(x)))
    if not isinstance(size, int):
        raise SourceError(f"needs the size of dimension {dim}, which is not known", hint=lift.shape_hint)
    return size


@lifts("aten::cat", "aten::concat")
def cat(lift: Lifter, tensors: Sequence[Any], dim: int = 0) -> Any:
    """On quantized tensors torch gives the result the scale and zero point of the first one."""
    values = _some_tensors(lift, tensors)
    if len(values) == 1 and values[0].quantization is None:
        return lift.alias(values[0])
    return lift.emit("Concat", values, {"axis": dim}, quantization=lift.grid(values[0]))


@lifts("quantized::cat")
def quantized_cat(lift: Lifter, qx: Sequence[Any], dim: int, scale: Any, zero_point: Any) -> Any:
    values = _some_tensors(lift, qx)
    if scale is None or zero_point is None:
        return lift.emit("Concat", values, {"axis": dim}, quantization=lift.grid(values[0]))
    quantization = lift.quantization(scale, zero_point, values[0].dtype)
    return lift.emit("Concat", values, {"axis": dim}, quantization=quantization)


def _some_tensors(lift: Lifter, values: Sequence[Any]) -> list[TensorValue]:
    if not values:
        raise SourceError("joins no tensors")
    return [lift.tensor(value) for value in values]


@lifts("aten::stack")
def stack(lift: Lifter, tensors: Sequence[Any], dim: int = 0) -> Any:
    return cat(lift, [unsqueeze(lift, value, dim) for value in tensors], dim)


@lifts("aten::expand")
def expand(lift: Lifter, self: Any, size: Any, *, implicit: bool = False) -> Any:
    x = lift.tensor(self)
    missing = len(size) - lift.rank(x)
    whole = [lift.size(x, axis - missing) if item == -1 else item for axis, item in enumerate(size)]
    return lift.emit("Expand", [x, lift.shape_tensor(whole)])


@lifts("aten::expand_as")
def expand_as(lift: Lifter, self: Any, other: Any) -> Any:
    y = lift.tensor(other)
    return expand(lift, self, [lift.size(y, axis) for axis in range(lift.rank(y))])


@lifts("aten::repeat")
def repeat(lift: Lifter, self: Any, repeats: Any) -> Any:
    x = lift.tensor(self)
    for _ in range(len(repeats) - lift.rank(x)):
        x = unsqueeze(lift, x, 0)
    return lift.emit("Tile", [x, lift.shape_tensor(repeats)])


@lifts("aten::constant_pad_nd")
def constant_pad(lift: Lifter, self: Any, pad: Any, value: Any = 0) -> Any:
    return _padded(lift, self, pad, "constant", value)


@lifts("aten::pad")
def pad_(lift: Lifter, self: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _padded(lift, self, pad, modes[mode], value)


@lifts("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d")
def reflection_pad(lift: Lifter, self: Any, padding: Any) -> Any:
    return _padded(lift, self, padding, "reflect", None)


@lifts("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(lift: Lifter, self: Any, padding: Any) -> Any:
    return _padded(lift, self, padding, "edge", None)


def _padded(lift: Lifter, self: Any, pad: Any, mode: str, value: Any) -> Any:
    """Torch lists pads from the last dimension, (before, after) each; ONNX all before, then all after."""
    x = lift.tensor(self)
    rank = lift.rank(x)
    before, after = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    pads = lift.shape_tensor(before + after)
    if mode != "constant":
        return lift.emit("Pad", [x, pads], {"mode": mode})
    fill = lift.scalar_like(x, 0 if value is None else lift.number(value))
    return lift.emit("Pad", [x, pads, fill], {"mode": mode})


@lifts("aten::pixel_shuffle")
def pixel_shuffle(lift: Lifter, self: Any, upscale_factor: int) -> Any:
    x = lift.tensor(self)
    lift.need(x, (None,) * 4)
    return lift.emit("DepthToSpace", [x], {"blocksize": upscale_factor, "mode": "CRD"})


@lifts("aten::pixel_unshuffle")
def pixel_unshuffle(lift: Lifter, self: Any, downscale_factor: int) -> Any:
    """Not ONNX's SpaceToDepth, which orders channels otherwise: reshape, transpose, reshape."""
    x = lift.tensor(self)
    lift.need(x, (None,) * 4)
    n, c, r = lift.size(x, 0), _known_size(lift, x, 1), downscale_factor
    rows, columns = (_divided(lift, lift.size(x, axis), r) for axis in (2, 3))
    blocks = lift.reshape(x, [n, c, rows, r, columns, r])
    order = lift.emit("Transpose", [blocks], {"perm": (0, 1, 3, 5, 2, 4)})
    return lift.reshape(order, [n, c * r * r, lift.size(order, 4), lift.size(order, 5)])


def _divided(lift: Lifter, size: Any, divisor: int) -> Any:
    return size // divisor if isinstance(size, int) else size_arithmetic(lift, "Div", size, divisor)


@lifts("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(lift: Lifter, self: Any, groups: int) -> Any:
    x = lift.tensor(self)
    n, c = lift.size(x, 0), _known_size(lift, x, 1)
    rest = [lift.size(x, axis) for axis in range(2, lift.rank(x))]
    split_ = lift.reshape(x, [n, groups, c // groups, -1])
    order = lift.emit("Transpose", [split_], {"perm": (0, 2, 1, 3)})
    return lift.reshape(order, [n, c, *rest])
