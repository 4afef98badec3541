"""Statistics of constants: ranges, a histogram of what is stored, saturation, unused codes, channels that are zero.

Arrays are read in parts, each of which is given back, so a file may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, repeat
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arithmetic import any_numbers, dequantize
from ..arrays import DTYPES, StoredArray, numpy_dtype
from ..errors import DigestError, FormatError, QfmtError, RemoteError
from ..graph import static_shape
from ..ops import known
from ..ops.accumulation import output_axis
from ..quantization import block_counts

if TYPE_CHECKING:
    from ..arrays import Array
    from ..graph import Graph, Tensor
    from ..quantization import Parameter, Quantization


def channel_axes(graph: Graph) -> dict[str, int]:
    """The output channels of weights by name: those of the nodes that read them, or along which scales run."""
    found = {}
    for node in graph.nodes:
        entry = known(node)
        for index in entry.weights if entry else ():
            name = node.inputs[index] if index < len(node.inputs) else ""
            shape = graph.tensors[name].shape if name in graph.tensors else None
            if shape and len(shape) > 1 and (along := output_axis(node, len(shape))) is not None:
                found[name] = along
    for tensor in graph.tensors.values():
        if tensor.quantization is not None and (axis := tensor.quantization.axis) is not None:
            found[tensor.name] = axis
    return found


@any_numbers()
def statistics(tensor: Tensor, axis: int | None, bins: int, channels: int) -> dict[str, Any]:
    """Counts of the stored values of a constant, in at most `bins` bins, and of at most `channels` channels on `axis`.

    `first` is the left end of the first bin and `width` the width of each; of integers the bins are codes, of which
    `used` of `codes` occur. `low` and `high` count values at quant_min and quant_max. `peaks` has the largest distance
    from the zero point of each channel: 0 is a channel that is zero everywhere, and `dead` how many are. Of floats,
    only finite values count. What cannot be read is `{"error": …}`. RemoteError if a transfer fails.
    """
    try:
        return _statistics(tensor, axis, bins, channels)
    except RemoteError:  # which another request may not have
        raise
    except QfmtError as error:
        return {"error": str(error)}


def _statistics(tensor: Tensor, axis: int | None, bins: int, channels: int) -> dict[str, Any]:
    assert tensor.data is not None
    shape, kind, grid = static_shape(tensor), DTYPES[tensor.dtype], tensor.quantization
    found: dict[str, Any] = {"elements": prod(shape)}
    if 0 in shape:
        return found
    has_axis = axis is not None and axis < len(shape)
    cut = axis if axis is not None and has_axis else 0
    layout = (prod(shape[:cut]), shape[cut], prod(shape[cut + 1 :])) if has_axis else (1, 1, prod(shape))
    stored = StoredArray(tensor.dtype, layout, tensor.data)
    counted = tensor.data.once(("statistics", tensor.dtype, layout, bins), lambda: _counted(stored, bins))
    found |= counted.facts
    if grid is None or not kind.is_integer:
        return found
    if counted.is_complete or grid.quant_min <= found["min"] <= found["max"] <= grid.quant_max:  # else broken
        found |= {"low": counted.counts.get(grid.quant_min, 0), "high": counted.counts.get(grid.quant_max, 0)}
    points, count = grid.zero_point, counted.lows.size
    given = len(points) if len(points) > 1 else len(grid.scale)
    if has_axis and grid.is_affine and given in (1, count):  # else a rule is broken
        key = ("dead", tensor.data, tensor.dtype, layout, points)
        dead = points.data.once(key, lambda: counted.dead(points.array.reshape(-1)))
        if dead is not None:
            found["dead"] = dead
            if count <= channels:
                found["peaks"] = counted.peaks(points.array.reshape(-1)).tolist()
    return found


class _Counted(NamedTuple):
    """What is known of some bytes as elements of a type, whatever their quantization: tensors may share them.

    `counts` has how often integers occur: all of them if it `is_complete`, else the least and the greatest. `constant`
    has the values of the channels that have only one, in order.
    """

    lows: Array
    highs: Array
    constant: Array
    facts: dict[str, Any]
    counts: dict[int, int]
    is_complete: bool = False

    def peaks(self, points: Array) -> Array:
        """The largest distance from the zero point of each channel."""
        low, high = (np.abs(each.reshape(-1) - points.astype(np.int64)) for each in (self.lows, self.highs))
        peaks: Array = np.maximum(low, high)
        return peaks

    def dead(self, points: Array) -> int | None:
        """How many channels are their zero point everywhere; one zero point is looked up. None: one is not finite."""
        if not np.isfinite(points).all():
            return None
        if len(points) > 1:
            return int((self.peaks(points) == 0).sum())
        first, last = (np.searchsorted(self.constant, np.int64(points[0]), side) for side in ("left", "right"))
        return int(last - first)


def _counted(stored: StoredArray, bins: int) -> _Counted:
    """Of an array [outer, channels, inner]."""
    outer, _, inner = stored.shape
    kind = DTYPES[stored.dtype]
    is_code = kind.kind != "f"
    lows, highs = _ends(stored, (outer, 1, inner), finite=True)
    constant = np.sort(lows[lows == highs].astype(np.int64) if is_code else lows[:0])
    number = int if is_code else float
    low, high = number(lows.min()), number(highs.max())
    if low > high:
        return _Counted(lows, highs, constant, {}, {})
    facts: dict[str, Any] = {"min": low, "max": high}
    if kind.bits <= 8 and is_code:
        low, high = (int(kind.minimum), int(kind.maximum)) if kind.is_integer else (0, 1)
    if not (is_code and high - low < 256):
        codes = (int(low), int(high)) if is_code else ()
        ends = {code: sum(int((part == code).sum()) for part in stored.parts()) for code in codes}
        return _Counted(lows, highs, constant, facts | _spread(stored, low, high, min(bins, 64)), ends)
    each = _codes(stored, int(low), int(high))
    width = -(-len(each) // bins)
    facts |= {"used": int(np.count_nonzero(each)), "codes": len(each), "first": int(low), "width": width}
    facts["bins"] = np.pad(each, (0, -len(each) % width)).reshape(-1, width).sum(1).tolist()
    return _Counted(lows, highs, constant, facts, dict(enumerate(each.tolist(), int(low))), is_complete=True)


def _codes(stored: StoredArray, low: int, high: int) -> Array:
    """How many there are of each integer from low to high."""
    counted = np.zeros(high - low + 1, np.int64)
    for part in stored.parts():
        near = part if part.dtype == np.uint64 else part.astype(np.int64)  # which a uint64 may exceed
        counted += np.bincount((near - near.dtype.type(low)).astype(np.intp), minlength=len(counted))
    return counted


def _spread(stored: StoredArray, low: float, high: float, bins: int) -> dict[str, Any]:
    """Real values, or integers of a wide type, in bins of equal width."""
    low, high = float(low), float(high)
    if low == high:
        finite = sum(int(np.isfinite(part.astype(np.float64)).sum()) for part in stored.parts())
        return {"first": low, "width": 0, "bins": [finite]}
    factor = 0.5 if max(-low, high) > 1 else 1.0  # halves do not overflow, and do not vanish
    counted = np.zeros(bins, np.int64)
    for part in stored.parts():
        real = part.astype(np.float64)
        values, begin, end = (each * factor for each in (real[np.isfinite(real)], low, high))
        place = np.floor((values - begin) / (end - begin) * bins)
        counted += np.bincount(np.clip(place, 0, bins - 1).astype(np.intp), minlength=bins)
    return {"first": low, "width": (high / bins) - (low / bins), "bins": counted.tolist()}


# -- ranges --------------------------------------------------------------------------------------------


@any_numbers()
def stored_range(tensor: Tensor) -> dict[str, Any]:
    """The smallest and largest values of a constant, as stored and as the real numbers that they represent.

    Keys: stored_min, stored_max, real_min, real_max; null if the array is empty, or in a shard that is not there, which
    `error` says then. For each slice with a scale, the smallest and largest value are enough, because dequantizing is
    monotone, but for a table in another order. Raises DigestError for damaged data.
    """
    found: dict[str, Any] = dict.fromkeys(("stored_min", "stored_max", "real_min", "real_max"))
    shape, grid = static_shape(tensor), tensor.quantization
    if 0 in shape:
        return found
    assert tensor.data is not None
    block = shape if grid is None else grid.block_sizes(shape)
    try:
        groups = None if grid is None else _groups(grid, shape)
        low, high = _ends(StoredArray(tensor.dtype, shape, tensor.data), block, groups=groups)
        to = float if DTYPES[tensor.dtype].kind == "f" else low.dtype
        least, most = _used(low, groups).min(), _used(high, groups).max()
        found |= {"stored_min": least.astype(to).item(), "stored_max": most.astype(to).item()}
        if grid is None:
            real = [low.astype("float64"), high.astype("float64")]
        else:
            of_slices = replace(grid, block=tuple(min(each, 1) for each in grid.block), group_index=None)
            real = [_used(dequantize(end, of_slices), groups) for end in (low, high)]
            if grid.table is not None and any(b < a for a, b in pairwise(grid.table.numbers())):
                real = [dequantize(tensor.array, grid)]
    except FormatError as error:
        return found | {"error": missing_shard(error)}
    ends = min(each.min() for each in real), max(each.max() for each in real)
    return found | {"real_min": ends[0].item(), "real_max": ends[1].item()}


class _Groups(NamedTuple):
    """Which of `blocks` blocks each position along an axis belongs to, in any order."""

    axis: int
    blocks: int
    block_of: Array


def _groups(grid: Quantization, shape: tuple[int, ...]) -> _Groups | None:
    if grid.group_index is None:
        return None
    axis = next(at for at, size in enumerate(grid.block) if size > 1)
    blocks = grid.scale.shape[axis]
    return _Groups(axis, blocks, grid.groups(blocks))


def _used(of_blocks: Array, groups: _Groups | None) -> Array:
    """Without the entries of blocks that no position belongs to."""
    return of_blocks if groups is None else of_blocks.take(np.unique(groups.block_of), groups.axis)


def missing_shard(error: FormatError) -> str:
    """Which shard is not there, so that bytes cannot be read. Raises the error if they are damaged instead."""
    if isinstance(error, DigestError):
        raise error
    return f"{error.where.rpartition(': ')[2]} {error.what}"


def real_range(quantization: Quantization) -> tuple[float, float]:
    """The real numbers for quant_min and quant_max, over all slices of the axis or all blocks; those of a table."""
    q = quantization
    limits = (q.quant_min, q.quant_max) if q.table is None else (min(q.table), max(q.table))
    ends = [(limit - point) * scale + offset for scale, point, offset in _scales_and_points(q) for limit in limits]
    return min(float(end.min()) for end in ends), max(float(end.max()) for end in ends)


def scale_range(quantization: Quantization) -> tuple[float, float]:
    """The smallest and the largest scale."""
    scale = quantization.scale
    low, high = number_range(scale) if len(scale) else (np.nan, np.nan)
    return float(low), float(high)


def number_range(numbers: Parameter) -> tuple[float, float]:
    """The smallest and the largest of scales or the like, of which there is at least one; read once for all tensors."""

    def find() -> tuple[float, float]:
        parts = numbers.parts() if numbers.quantization is None else [numbers.real]
        ends = [(part.min(), part.max()) for part in parts]
        number = int if numbers.is_integer else float
        return number(min(low for low, _ in ends)), number(max(high for _, high in ends))

    return numbers.data.once(("range", numbers), find)


def _scales_and_points(quantization: Quantization) -> Iterator[tuple[Array, Array, Array | float]]:
    """Scales, zero points and offsets as float64: some at a time if there are nothing but scales and zero points."""
    q = quantization
    point = q.zero_point.array
    if not q.is_plain:
        yield q.scale.real.astype(float), point.astype(float), 0.0 if q.offset is None else q.offset.real.astype(float)
        return
    for scale, part in zip(
        q.scale.parts(), q.zero_point.parts() if q.zero_point.shape else repeat(point), strict=False
    ):
        yield scale.astype(float), part.astype(float), 0.0


def _ends(
    stored: StoredArray, block: tuple[int, ...], *, finite: bool = False, groups: _Groups | None = None
) -> tuple[Array, Array]:
    """The smallest and the largest value of each block of an array, in its type; with `finite`, of finite values.

    The blocks along the axis of `groups` are those that it says.
    """
    kind = numpy_dtype(stored.dtype)
    counts = within = block_counts(stored.shape, block)
    if groups is not None:
        block = tuple(1 if axis == groups.axis else size for axis, size in enumerate(block))
        within = block_counts(stored.shape, block)
        counts = tuple(groups.blocks if axis == groups.axis else size for axis, size in enumerate(within))
    wide = np.dtype(np.float64 if DTYPES[stored.dtype].kind == "f" else kind)
    limits = (np.inf, -np.inf) if wide.kind == "f" else (True, False) if wide.kind == "b" else _limits(wide)
    low, high = (np.full(prod(counts), limit, wide) for limit in limits)
    start = 0
    for part in stored.parts():
        part = part.astype(wide, copy=False)
        runs = _runs(start, start + part.size, stored.shape, block, within)
        which = _blocks(runs, stored.shape, block, within)
        if groups is not None:
            at = [*np.unravel_index(which, within)]
            at[groups.axis] = groups.block_of[at[groups.axis]].astype(np.intp)
            which = np.ravel_multi_index(at, counts)
        below = above = part
        if finite and wide.kind == "f":
            below, above = (np.where(np.isfinite(part), part, limit) for limit in limits)
        with np.errstate(invalid="ignore"):  # NaN
            np.minimum.at(low, which, np.minimum.reduceat(below, runs - start))
            np.maximum.at(high, which, np.maximum.reduceat(above, runs - start))
        start += part.size
    if not finite:
        low, high = low.astype(kind), high.astype(kind)
    return low.reshape(counts), high.reshape(counts)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)


def _runs(start: int, stop: int, shape: tuple[int, ...], block: tuple[int, ...], counts: tuple[int, ...]) -> Array:
    """Where runs of elements of one block begin, from `start`, in logical order."""
    axis = max((at for at, count in enumerate(counts) if count > 1), default=None)
    if axis is None:
        return np.array([start])
    inner = prod(shape[axis + 1 :])
    row = inner * shape[axis]
    begins = np.arange(start // row, -(-stop // row))[:, None] * row + np.arange(counts[axis]) * block[axis] * inner
    begins = begins.reshape(-1)
    return np.concatenate([[start], begins[(begins > start) & (begins < stop)]])


def _blocks(at: Array, shape: tuple[int, ...], block: tuple[int, ...], counts: tuple[int, ...]) -> Array:
    """The index of the block of each element, both in logical order."""
    which, inner = at * 0, prod(shape)
    for size, step, count in zip(shape, block, counts, strict=True):
        inner //= size
        if count > 1:
            which = which * count + at // inner % size // step
    return which
