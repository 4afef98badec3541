"""Means over bins, whose borders may depend on sizes that are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ...model import Dimension
from ...ops.geometry import members, windows
from .lowering import Site, lowers, plain
from .older import reduced
from .opsets import Lacks

if TYPE_CHECKING:
    from numpy.typing import NDArray


@lowers("qfmt.AdaptiveAveragePool")
def adaptive_average_pool(site: Site) -> ir.Value:
    """GlobalAveragePool or AveragePool if bins are equal; else each axis is multiplied by a matrix of zeros and
    ones."""
    x, out = site.x, site.attributes["output_size"]
    shape = site.tensor(0).shape
    sizes = (None,) * len(out) if shape is None else shape[-len(out) :]
    batched = shape is not None and len(shape) == len(out) + 2
    if batched and set(out) == {1}:
        return site.emit("GlobalAveragePool", x)
    pairs = zip(sizes, out, strict=True)
    steps = [size // count for size, count in pairs if isinstance(size, int) and count and size % count == 0]
    if batched and len(steps) == len(out):
        return site.emit("AveragePool", x, kernel_shape=steps, strides=steps)
    for axis, (size, count) in enumerate(zip(sizes, out, strict=True), -len(out)):
        if count == 1:
            x = reduced(site, "ReduceMean", x, [axis])
        elif size != count:
            x = _binned(site, x, axis, size, count, None if shape is None else len(shape))
    return x


@lowers("MaxPool", "AveragePool", "LpPool")
def pool(site: Site) -> Sequence[ir.Value]:
    """Pads are written instead of ceil_mode if they are equivalent: runtimes disagree on its meaning, and
    before opset 22 it counted windows that begin after the input."""
    try:
        return plain(site, [site.real(0)], without_ceil_mode(site))
    except Lacks:
        if site.opset < 22:
            raise
    return plain(site, [site.real(0)], site.attributes)


def without_ceil_mode(site: Site) -> dict[str, Any]:
    """The attributes of a pool, pads instead of ceil_mode; Lacks if that is not possible."""
    a = dict(site.attributes)
    if not any(a["pads"]) and "count_include_pad" in a:
        a["count_include_pad"] = 0
    return a | {"ceil_mode": 0, "pads": _ceiled(site, a)} if a["ceil_mode"] else a


def _ceiled(site: Site, a: dict[str, Any]) -> tuple[int, ...]:
    """Pads with which the window has as many positions as with ceil_mode."""
    given, ends = windows(a), []
    for i, window in enumerate(given):
        size, out = (tensor.shape[2 + i] if tensor.shape else None for tensor in (site.tensor(0), site.output()))
        if not isinstance(size, int) or not isinstance(out, int):
            raise Lacks("requires a known input size for ceil_mode in that opset")
        missing = (out - 1) * window.stride + window.reach - size - window.pads
        if missing > 0 and a.get("count_include_pad"):
            raise Lacks("cannot exclude the last partial window from its count of elements in that opset")
        ends.append(window.tail + max(missing, 0))
        if ends[-1] >= window.kernel:
            raise Lacks("requires padding as large as its window in that opset")
    return (*(window.head for window in given), *ends)


class _Bins(NamedTuple):
    """Which element is in which bin, [size, count] of 0 and 1; and how many are in each, [count]."""

    members: ir.Value
    counts: ir.Value


def _binned(site: Site, x: ir.Value, axis: int, size: Dimension, count: int, rank: int | None) -> ir.Value:
    bins = _constant_bins(site, size, count) if isinstance(size, int) else _bins(site, x, axis, count)
    if axis == -1:
        return site.emit("Div", site.emit("MatMul", x, bins.members), bins.counts)
    if axis == -2:
        column = site.emit("Unsqueeze", bins.counts, site.constant("column", np.array([1])))
        return site.emit("Div", site.emit("MatMul", site.emit("Transpose", bins.members, perm=[1, 0]), x), column)
    if rank is None:
        raise Lacks("requires a known input rank")
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    y = site.emit("MatMul", site.emit("Transpose", x, perm=perm), bins.members)
    return site.emit("Transpose", site.emit("Div", y, bins.counts), perm=perm)


def _constant_bins(site: Site, size: int, count: int) -> _Bins:
    inside = bin_members(size, count).astype(np.float32)
    return _Bins(site.constant("bins", inside), site.constant("counts", inside.sum(0)))


def bin_members(size: int, count: int) -> NDArray[np.int32]:
    """Which element is in which bin, [size, count]; it becomes a constant of the written file."""
    if size * count > LARGEST_BINS:
        raise Lacks(f"divides {size:,} elements into {count:,} bins, more than {LARGEST_BINS:,} constants")
    return members(size, count)


LARGEST_BINS = 1 << 24


def _bins(site: Site, x: ir.Value, axis: int, count: int) -> _Bins:
    """Bin i goes from floor(i · size / count) to ceil((i + 1) · size / count)."""

    def number(what: str, value: object) -> ir.Value:
        return site.constant(what, np.asarray(value, np.int64))

    size, total = site.emit("Gather", site.emit("Shape", x), number("axis", axis)), number("count", count)
    start = site.emit("Div", site.emit("Mul", number("first", np.arange(count)), size), total)
    end = site.emit("Mul", number("next", np.arange(1, count + 1)), size)
    end = site.emit("Div", site.emit("Add", end, number("up", count - 1)), total)
    at = site.emit("Range", number("zero", 0), size, number("one", 1))
    at = site.emit("Unsqueeze", at, number("column", [1]))
    inside = site.emit("And", site.emit("LessOrEqual", start, at), site.emit("Less", at, end))
    counts = site.to("float32", site.emit("Sub", end, start))
    return _Bins(site.to("float32", inside), counts)
