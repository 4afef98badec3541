"""Torch's functions that select elements by tensors of indices, or move whole slices."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ....errors import SourceError
from ....graph import MAXIMUM_RANK
from ....ops.shapes import axis_of
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue
from .layouts import END, cat, expand, sliced, unsqueeze
from .logic import cast


@lifts("aten::index", "aten::_unsafe_index")
def index(lift: Builder, self: TensorValue, indices: Any) -> Any:
    """`x[:, a, b]`: tensors of integers for neighbouring dimensions, None for the others."""
    given = [_integers(lift, each) for each in indices]
    axes = [axis for axis, each in enumerate(given) if each is not None]
    if not axes or any(later - first != 1 for first, later in pairwise(axes)):
        return NotImplemented
    picked = [each for each in given if each is not None]
    if len(picked) == 1:
        return lift.emit("Gather", [self, picked[0]], {"axis": axes[0]})
    rank = max(shapes.rank(lift, each) for each in picked)
    together = _broadcast(lift, picked)
    if axes[0] == 0:
        return lift.emit(
            "GatherND", [self, lift.emit("Concat", [unsqueeze(lift, each, rank) for each in together], {"axis": rank})]
        )
    return _flattened(lift, self, axes, together)


def _integers(lift: Builder, value: Any) -> TensorValue | None:
    """Indices; a known mask becomes the positions where it is true."""
    if value is None:
        return None
    x = lift.tensor(value)
    if x.dtype not in ("bool", "uint8"):
        return arguments.indices(lift, x)
    known = lift.known(x.key)
    places = () if known is None else known.nonzero()
    if len(places) != 1:
        raise SourceError("selects elements by a mask, so the sizes depend on the data")
    return lift.constant(np.asarray(places[0], np.int64))


def _broadcast(lift: Builder, values: list[TensorValue]) -> list[TensorValue]:
    """Tensors of one shape, int64."""
    total = lift.emit("Mul", [lift.tensor(0), cast(lift, values[0], "int64")])
    for value in values[1:]:
        total = lift.emit("Add", [total, lift.emit("Mul", [lift.tensor(0), cast(lift, value, "int64")])])
    return [lift.emit("Add", [cast(lift, value, "int64"), total]) for value in values]


def _flattened(lift: Builder, x: TensorValue, axes: list[int], places: list[TensorValue]) -> TensorValue:
    """The indexed dimensions flattened into one, and one index computed from all."""
    sizes = [arguments.whole(lift, shapes.size(lift, x, axis)) for axis in axes]
    flat = None
    for position, (place, size) in enumerate(zip(places, sizes, strict=True)):
        negative = lift.emit("Less", [place, lift.tensor(0)])
        counted = lift.emit("Where", [negative, lift.emit("Add", [place, lift.tensor(size)]), place])
        step = lift.emit("Mul", [counted, lift.tensor(prod(sizes[position + 1 :]))])
        flat = step if flat is None else lift.emit("Add", [flat, step])
    around = shapes.sizes(lift, x)
    merged = shapes.reshape(lift, x, [*around[: axes[0]], prod(sizes), *around[axes[-1] + 1 :]])
    return lift.emit("Gather", [merged, flat], {"axis": axes[0]})


@lifts("aten::gather")
def gather(lift: Builder, self: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    return lift.emit("GatherElements", [self, arguments.indices(lift, index)], {"axis": dim})


@lifts("aten::topk")
def topk(lift: Builder, self: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    count = lift.constant(np.array([arguments.whole(lift, k)], np.int64))
    attributes = {"axis": dim, "largest": arguments.flag(lift, largest), "sorted": arguments.flag(lift, sorted)}
    x = lift.tensor(self)
    values, indices = lift.emit_many("TopK", [x, count], attributes, outputs=2)
    if x.quantization is not None:
        values = lift.emit("QuantizeLinear", [values], quantization=arguments.grid(x), dtype=x.dtype)
    return [values, indices]


@lifts("aten::diff")
def diff(lift: Builder, self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    x = cat(lift, [part for part in (prepend, self, append) if part is not None] if n else [self], dim)
    for _ in range(n):
        later, earlier = sliced(lift, x, dim, 1, END), sliced(lift, x, dim, 0, -1)
        x = lift.emit("Xor" if x.dtype == "bool" else "Sub", [later, earlier])
    return x


@lifts("aten::copy")
def copy(lift: Builder, self: TensorValue, src: Any, non_blocking: bool = False) -> Any:
    """A tensor after another was written over all of it."""
    return expand(lift, cast(lift, lift.tensor(src), self.dtype), shapes.sizes(lift, self))


@lifts("aten::fill")
def fill(lift: Builder, self: TensorValue, value: Any) -> Any:
    return copy(lift, self, value)


@lifts("aten::zero")
def zero(lift: Builder, self: TensorValue) -> Any:
    return copy(lift, self, 0)


@lifts("aten::slice_scatter")
def slice_scatter(
    lift: Builder, self: TensorValue, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    """A tensor with one slice replaced."""
    axis = axis_of(dim, shapes.rank(lift, self))
    size = shapes.size(lift, self, axis)
    if step != 1 or not all(isinstance(each, int | None) for each in (start, end)):
        return NotImplemented
    first, last = start or 0, END if end is None else end
    if isinstance(size, int):
        first, last, _ = slice(start, end).indices(size)
        last = END if last == size else last
    elif first and last < END and (first < 0) != (last < 0):
        return NotImplemented  # which one comes first depends on the size
    parts = [sliced(lift, self, axis, 0, first)] if first else []
    parts += [cast(lift, lift.tensor(src), self.dtype)] if first < last or last < 0 == first else []
    parts += [sliced(lift, self, axis, max(first, last) if first else last, END)] if last < END else []
    return cat(lift, parts, axis)


@lifts("aten::select_scatter")
def select_scatter(lift: Builder, self: TensorValue, src: Any, dim: int, index: Any) -> Any:
    axis = axis_of(dim, shapes.rank(lift, self))
    if not isinstance(index, int):
        return NotImplemented
    end = index + 1 or None
    return slice_scatter(lift, self, unsqueeze(lift, lift.tensor(src), axis), axis, index, end)


@lifts("aten::flip")
def flip(lift: Builder, self: TensorValue, dims: Any) -> Any:
    result = self
    for dim in dims:
        result = sliced(lift, result, dim, -1, -END, -1)
    result.channels_last = self.channels_last
    return result


@lifts("aten::roll")
def roll(lift: Builder, self: TensorValue, shifts: Any, dims: Any = ()) -> Any:
    if not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        size = shapes.size(lift, self, axis_of(dim, shapes.rank(lift, self)))
        by = arguments.whole(lift, shift)
        if isinstance(size, int):
            by %= size or 1
            cut: Any = -by
        else:
            divisor = shapes.arithmetic(lift, "Max", size, 1)  # a size may be 0
            cut = shapes.arithmetic(lift, "Sub", size, shapes.arithmetic(lift, "Mod", by, divisor))
        if by:
            parts = [sliced(lift, self, dim, cut, END), sliced(lift, self, dim, 0, cut)]
            self = cat(lift, parts, dim)
    return self


@lifts("aten::movedim")
def movedim(lift: Builder, self: TensorValue, source: Any, destination: Any) -> Any:
    rank = shapes.rank(lift, self)
    pairs = zip(*(each if isinstance(each, list) else [each] for each in (source, destination)), strict=True)
    moved = {axis_of(to, rank): axis_of(of, rank) for of, to in pairs}
    rest = iter([axis for axis in range(rank) if axis not in moved.values()])
    return lift.emit("Transpose", [self], {"perm": tuple(moved[a] if a in moved else next(rest) for a in range(rank))})


@lifts("aten::repeat_interleave")
def repeat_interleave(lift: Builder, self: Any, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Any:
    if not isinstance(repeats, int) or dim is None:
        return NotImplemented
    x = lift.tensor(self)
    return repeated(lift, x, axis_of(dim, shapes.rank(lift, x)), repeats)


def repeated(lift: Builder, x: TensorValue, axis: int, times: int) -> TensorValue:
    """Each slice along an axis repeated `times` times."""
    sizes = shapes.sizes(lift, x)
    apart = expand(lift, unsqueeze(lift, x, axis + 1), [*[-1] * (axis + 1), times, *[-1] * (len(sizes) - axis - 1)])
    return shapes.reshape(lift, apart, [*sizes[:axis], arguments.whole(lift, sizes[axis]) * times, *sizes[axis + 1 :]])


@lifts("aten::broadcast_to")
def broadcast_to(lift: Builder, self: TensorValue, size: Any) -> Any:
    return expand(lift, self, size)


@lifts("aten::as_strided")
def as_strided(lift: Builder, self: TensorValue, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """All elements of an input in their order: a reshape. Anything else depends on the memory layout, which is not
    kept."""
    whole = len(size) <= MAXIMUM_RANK and all(
        isinstance(each, int) for each in (*size, *stride, *(self.shape or (None,)))
    )
    in_order = [prod(size[axis + 1 :]) for axis in range(len(size))] if whole else None
    ordered = whole and all(s == o or n == 1 for s, o, n in zip(stride, in_order or (), size, strict=True))
    is_input = self.key in lift.inputs and not self.channels_last
    if not is_input or not ordered or storage_offset or prod(size) != prod(self.shape or ()):  # type: ignore[arg-type]
        return NotImplemented
    return shapes.reshape(lift, self, size)
