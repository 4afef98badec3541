"""Operators that move elements: the same torch calls on plain integers, quantized tensors and floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...model import DTYPES
from ...ops.shapes import axis_of
from .emit import QUANTIZED, Emitter, Lacks, Site

aten = torch.ops.aten


def _reshape(s: Site) -> Any:
    sizes = s.sizes(1)
    if s.attribute("allowzero") and not (isinstance(sizes, list) and 0 not in sizes):
        raise Lacks("uses 0 as a size")
    if isinstance(sizes, list) and 0 not in sizes:
        return s.result(aten.reshape.default, s.x(0), sizes)
    if isinstance(sizes, list) and sizes.index(0) == 0 and sizes.count(0) == 1 and -1 not in sizes:
        return s.result(aten.reshape.default, s.x(0), [-1, *sizes[1:]])
    return s.result(reshape, s.x(0), sizes)


def reshape(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Reshape; a size of 0 copies that of x."""
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])


def _flatten(s: Site) -> Any:
    axis = s.attribute("axis")
    if axis == 1:  # with a last dimension of 1 more, which a vector lacks
        x = s.x(0) if (s.tensor(0).shape or ())[1:] else s.call(aten.unsqueeze.default, s.x(0), -1)
        return s.result(aten.flatten.using_ints, x, 1)
    return s.result(flatten, s.x(0), axis)


def flatten(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Flatten to a matrix: the axes before `axis` become rows."""
    cut = axis + x.dim() if axis < 0 else axis
    return x.reshape([x.shape[:cut].numel(), x.shape[cut:].numel()])


def _squeeze(s: Site) -> Any:
    return s.result(*((aten.squeeze.dims, s.x(0), s.constant_sizes(1)) if s.has(1) else (aten.squeeze.default, s.x(0))))


def _unsqueeze(s: Site) -> Any:
    axes = s.constant_sizes(1)
    if len(axes) == 1:
        return s.result(aten.unsqueeze.default, s.x(0), axes[0])
    rank = s.rank() + len(axes)
    value = s.x(0)
    for axis in sorted(axis_of(axis, rank) for axis in axes):
        value = s.call(aten.unsqueeze.default, value, axis)
    return value


def _split(s: Site) -> Any:
    if not s.has(1):
        raise Lacks("does not state the sizes of its parts")
    parts, axis, start = s.constant_sizes(1), s.attribute("axis"), 0
    pieces = []
    for size in parts:
        pieces.append(s.call(aten.slice.Tensor, s.x(0), axis, start, start + size))
        start += size
    return pieces


def _slice(s: Site) -> Any:
    starts, ends = s.sizes(1), s.sizes(2)
    known = next((each for each in (starts, ends) if isinstance(each, list)), None)
    count = _length(s, 1) if known is None else len(known)
    axes = s.constant_sizes(3) if s.has(3) else list(range(count))
    steps = s.constant_sizes(4) if s.has(4) else [1] * count
    lists = [each for each in (starts, ends, axes, steps) if isinstance(each, list)]
    if len({len(each) for each in lists}) > 1:
        raise Lacks("has lists of different lengths")
    if any(step < 0 for step in steps):
        raise Lacks("torch does not support negative steps")
    value = s.x(0)
    for i, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        bounds = [each[i] if isinstance(each, list) else s.call(_item, each, i) for each in (starts, ends)]
        value = s.call(aten.slice.Tensor, value, axis, *bounds, step)
    return value


def _length(s: Site, index: int) -> int:
    shape = s.tensor(index).shape
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        raise Lacks("requires a known number of axes")
    return shape[0]


def _item(sizes: list[int], index: int) -> int:
    return sizes[index]


def _gather(s: Site) -> Any:
    _check_type(s)
    indices, axis = s.tensor(1), s.attribute("axis")
    if indices.data is not None and indices.shape == ():
        return s.result(aten.select.int, s.x(0), axis, int(indices.array))
    known = indices.data is not None and int(indices.array.min(initial=0)) >= 0
    if not known or len(indices.shape or ()) != 1:
        return s.result(gather, s.x(0), s.x(1), axis)
    return s.result(aten.index_select.default, s.x(0), axis, s.x(1))


def gather(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """Slices along the axis, which the dimensions of the indices replace; negative ones count from the end."""
    at, size = axis % x.dim(), x.shape[axis]
    places = torch.where(indices < 0, indices + size, indices).reshape(-1)
    return x.index_select(at, places).reshape([*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])


def expand(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Broadcast with a tensor of those sizes: a 1 keeps the size of x."""
    own = [1] * (len(sizes) - x.dim()) + list(x.shape)
    wanted = [1] * (len(own) - len(sizes)) + sizes
    return x.expand([a if b == 1 else b for a, b in zip(own, wanted, strict=True)])


def _depth_to_space(s: Site) -> Any:
    if s.attribute("mode") == "CRD":
        _check_type(s)
        return s.result(aten.pixel_shuffle.default, s.x(0), s.attribute("blocksize"))
    return s.result(depth_to_space, s.x(0), s.attribute("blocksize"))


def depth_to_space(x: torch.Tensor, block: int) -> torch.Tensor:
    """[N, C, H, W] → [N, C / b², H · b, W · b], the block's place in the first channels."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, block, block, c // (block * block), h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // (block * block), h * block, w * block)


def space_to_depth(x: torch.Tensor, block: int) -> torch.Tensor:
    """[N, C, H, W] → [N, C · b², H / b, W / b], the block's place in the first channels."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * block * block, h // block, w // block)


def _pad(s: Site) -> Any:
    """torch lists pads from the last dimension, (before, after) each."""
    pads, rank, mode = s.constant_sizes(1), s.rank(), s.attribute("mode")
    axes = [axis_of(axis, rank) for axis in s.constant_sizes(3)] if s.has(3) else list(range(rank))
    widths = {axis: (pads[i], pads[len(axes) + i]) for i, axis in enumerate(axes)}
    listed = [width for axis in reversed(range(rank)) for width in widths.get(axis, (0, 0))]
    if mode == "constant" and min(listed, default=0) < 0:
        return _padded_and_cropped(s, widths, listed)
    if mode == "constant":
        return s.result(aten.constant_pad_nd.default, s.x(0), _trimmed(listed), _fill(s))
    if mode == "wrap" or any(width < 0 for width in listed) or len(_trimmed(listed)) // 2 > rank - 2:
        raise Lacks(f"torch does not support this padding ({mode})")
    count = rank - 2  # of the dimensions that the operator needs
    sizes = zip(s.tensor(0).shape or (), (max(widths.get(axis, (0, 0))) for axis in range(rank)), strict=True)
    repeats = mode == "reflect" and any(isinstance(size, int) and width >= size for size, width in sizes)
    if count > 3 or repeats or (mode == "edge" and s.form == QUANTIZED):
        raise Lacks(f"torch does not support this padding ({mode})")
    _check_type(s)
    target = getattr(aten, f"{'reflection' if mode == 'reflect' else 'replication'}_pad{count}d").default
    return s.result(target, s.x(0), listed[: 2 * count])


def _padded_and_cropped(s: Site, widths: Mapping[int, tuple[int, int]], listed: list[int]) -> Any:
    """torch crops first, which fails if that leaves less than nothing."""
    x = s.call(aten.constant_pad_nd.default, s.x(0), _trimmed([max(width, 0) for width in listed]), _fill(s))
    cropped = {axis: pair for axis, pair in widths.items() if min(pair) < 0}
    last = max(cropped)
    for axis, (before, after) in cropped.items():
        emit = s.result if axis == last else s.call
        x = emit(aten.slice.Tensor, x, axis, max(-before, 0), after if after < 0 else WHOLE)
    return x


WHOLE = 2**63 - 1
"""The end of a slice that goes on to the last element."""


def _check_type(s: Site) -> None:
    """torch supports little more than storing and moving some types."""
    if s.tensor(0).dtype.startswith(("uint16", "uint32", "uint64", "float8")):
        raise Lacks(f"torch does not select from {s.tensor(0).dtype}, or pad it with its elements")


def _trimmed(listed: list[int]) -> list[int]:
    """Without the zeros of leading dimensions."""
    while len(listed) > 2 and listed[-2:] == [0, 0]:
        listed = listed[:-2]
    return listed


def _fill(s: Site) -> float | int:
    """The padding value: a float, or, on plain integers, the integer that represents it."""
    value = s.scalar(2) if s.has(2) else 0.0
    if s.is_float or s.form == QUANTIZED:
        return value if DTYPES[s.out.dtype].kind == "f" or s.form == QUANTIZED else int(value)
    grid = s.out_grid
    from .arithmetic import quantize

    return int(quantize(torch.tensor(value, dtype=torch.float32), grid, "divide"))


def _extreme(target: Any) -> Emitter:
    def emit(s: Site) -> Any:
        if s.form == QUANTIZED and not s.is_float:
            raise Lacks("torch does not support this reduction of quantized tensors")
        _check_type(s)
        return s.result(target, s.x(0), *s.reduction())

    return emit


MOVES: dict[str, Emitter] = {
    "Identity": lambda s: s.x(0),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda s: s.result(aten.permute.default, s.x(0), s.attribute("perm")),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": lambda s: s.result(expand, s.x(0), s.sizes(1)),
    "Tile": lambda s: s.result(aten.repeat.default, s.x(0), s.sizes(1)),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": lambda s: s.result(space_to_depth, s.x(0), s.attribute("blocksize")),
    "Pad": _pad,
    "ReduceMax": _extreme(aten.amax.default),
    "ReduceMin": _extreme(aten.amin.default),
}
"""Operator → emitter; tables of both forms use it."""
