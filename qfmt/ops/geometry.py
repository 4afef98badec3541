"""Positions of windows and bins, their elements, and how many they count: for pools, convolutions and means.

The attributes of a window are those of ONNX: `kernel_shape`, `strides`, `dilations` and `pads`, and of some `ceil_mode`
and `count_include_pad`. `pads` has the padding before each spatial dimension, then the padding after each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import gcd, lcm, prod
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..budget import Budget
from ..errors import QfmtError
from ..graph import MAXIMUM_RANK
from ..memory import require
from ..model import INT32, Dimension, Node, Tensor
from .shapes import axes_of

ONE_SIZE = ("GlobalAveragePool", "ReduceMean")
"""Means over whole axes: one window, of all their elements."""

FEW = 1 << 16
"""The most windows that begin in the padding and may step over the input: each is examined."""

MOST_SIZES, WINDOW_BYTES = 1 << 23, 64
"""The most sizes of windows that are listed; and bytes of memory for each window."""


class Window(NamedTuple):
    """A window along one dimension: its taps are `dilation` apart, and it moves by `stride`.

    `head` and `tail` are the padding before and after; with `ceil_mode` a last, partial window counts if it starts
    inside the input or the padding before it (PyTorch and ONNX alike).
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    head: int = 0
    tail: int = 0
    ceil_mode: bool = False

    @property
    def reach(self) -> int:
        """From its first tap to its last one."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def pads(self) -> int:
        return self.head + self.tail

    def positions(self, size: int) -> int:
        """How many there are along a dimension of that size; QfmtError if none fits."""
        room = size + self.pads - self.reach
        count = (-(-room // self.stride) if self.ceil_mode else room // self.stride) + 1
        if self.ceil_mode and (count - 1) * self.stride >= size + self.head:
            count -= 1
        if count < 1:
            raise QfmtError(f"a window of {self.reach} does not fit into {size} + {self.pads} of padding")
        return count

    def output(self, size: Dimension) -> Dimension:
        """The number of positions along a dimension that may not be known."""
        if isinstance(size, int):
            return self.positions(size)
        return size if self.stride == 1 and self.pads == self.reach - 1 else None

    def painted(self, size: Dimension, more: int) -> Dimension:
        """The output size of a transposed convolution, `more` added at its end."""
        edge = more + self.reach - self.pads
        if isinstance(size, int):
            return self.stride * (size - 1) + edge
        return size if self.stride == 1 and edge == 1 else None

    def margins(self, size: int) -> tuple[int, int]:
        """The padding before and after, including elements that the last window of ceil_mode may reach."""
        reach = (self.positions(size) - 1) * self.stride + self.reach
        return self.head, max(self.pads, reach - size) - self.head

    def check(self, size: Dimension) -> None:
        """QfmtError if it is entirely in the padding: it has no maximum and no mean."""
        if not self.pads:
            return
        is_apart = max(self.head, self.tail) >= self.reach
        if isinstance(size, int) and not is_apart:
            out = self.positions(size)
            last = (out - 1) * self.stride - self.head
            is_apart = not size or last >= size or (self.dilation > size and self._steps_over(size, out))
        if is_apart:
            what = f"a window of {self.kernel} is entirely in the padding"
            raise QfmtError(f"{what}, of {self.head} before and {self.tail} after")

    def _steps_over(self, size: int, out: int) -> bool:
        """Whether a window that begins in the padding has its first tap after the padding beyond the input.

        None of the first `out` windows, at i · stride - head, ends before the input. The starts modulo the dilation
        determine that tap, and repeat after `dilation` windows.
        """
        begun = min(out, -(-self.head // self.stride), self.dilation)
        if begun > FEW:
            raise QfmtError(f"{begun:,} windows begin in the padding, more than {FEW:,}")
        return any((i * self.stride - self.head) % self.dilation >= size for i in range(begun))

    def met(self, size: int) -> tuple[Array, Array]:
        """For each position: its first tap inside the input, and how many taps are inside."""
        starts = self._starts(size)
        before, within = self._taps(starts, 0), self._taps(starts, size)
        taps = within - before
        return np.where(taps > 0, starts + before * self.dilation, 0), taps

    def meetings(self, size: int) -> list[tuple[slice, slice]]:
        """Positions of the window, and the element inside the input that each of them meets there, or one for all.

        Each position meets its elements in order. There is a pair for each tap, or, of a window that is larger than the
        input, for each element.
        """
        out = self.positions(size)
        if self.kernel <= size:
            return [pair for tap in range(self.kernel) if (pair := self._met_by_tap(tap, size, out))]
        return [(found, slice(at, at + 1)) for at in range(size) if (found := self._meeting_element(at, out))]

    def _met_by_tap(self, tap: int, size: int, out: int) -> tuple[slice, slice] | None:
        start = tap * self.dilation - self.head
        first, end = max(0, -(start // self.stride)), min(out, (size - 1 - start) // self.stride + 1)
        if first >= end:
            return None
        return slice(first, end), slice(start + first * self.stride, start + (end - 1) * self.stride + 1, self.stride)

    def _meeting_element(self, at: int, out: int) -> slice | None:
        """The positions whose distance to the element is a multiple of the dilation that the taps reach."""
        distance, common = at + self.head, gcd(self.stride, self.dilation)
        period = self.dilation // common
        first, end = max(0, -((self.reach - 1 - distance) // self.stride)), min(out, distance // self.stride + 1)
        if distance % common:
            return None
        first += (distance // common * pow(self.stride // common, -1, period) - first) % period
        return slice(first, end, period) if first < end else None

    def counts(self, size: int, count_include_pad: int) -> Array:
        """How many elements each position divides by: taps inside the input, or inside input and pads."""
        starts = self._starts(size)
        first, end = (-self.head, size + self.tail) if count_include_pad else (0, size)
        return self._taps(starts, end) - self._taps(starts, first)

    def _starts(self, size: int) -> Array:
        count = self.positions(size)
        require(8 * count)
        return np.arange(count, dtype=np.int64) * self.stride - self.head

    def _taps(self, starts: Array, bound: int) -> Array:
        """How many taps are before a position."""
        return np.clip(-(-(bound - starts) // self.dilation), 0, self.kernel)

    def enough(self, size: int) -> int:
        """A smaller size with the same windows at both ends: all windows between are equal."""
        enough = 4 * (self.reach + self.stride + max(self.head, self.tail))
        return min(size, enough + (size - enough) % self.stride)


def windows(a: Mapping[str, Any]) -> list[Window]:
    """A window for each spatial dimension."""
    rank = len(a["kernel_shape"])
    sides = a["pads"][:rank], a["pads"][rank:]
    each = zip(a["kernel_shape"], a["strides"], a["dilations"], *sides, strict=True)
    return [Window(*numbers, bool(a.get("ceil_mode"))) for numbers in each]


PER_DIMENSION = ("kernel_shape", "strides", "dilations", "output_padding")
"""Attributes of a window with one entry for each spatial dimension."""


FARTHEST = 1 << 30
"""The largest number of a window, its extent, and its pads along a dimension: sums of two fit int32, in which the
kernels of other engines compute positions, and some of them then leave their memory."""


def check_window(rank: int, a: Mapping[str, Any]) -> None:
    """QfmtError unless the attributes of a window have an entry, in its limits, for each of its spatial dimensions."""
    if rank > MAXIMUM_RANK - 2:
        raise QfmtError(
            f"a window of {rank} dimensions; a tensor has up to {MAXIMUM_RANK}, two of them no spatial ones"
        )
    for name, count in {**{name: rank for name in PER_DIMENSION if name in a}, "pads": 2 * rank}.items():
        if len(a[name]) != count:
            raise QfmtError(f"a {rank}-d window needs {count} {name}, not {len(a[name])}")
        least = 0 if name in ("pads", "output_padding") else 1
        if min(a[name], default=least) < least and not (name == "pads" and "output_padding" in a):
            raise QfmtError(f"{name} of {list(a[name])}: each must be at least {least}")
        if max(map(abs, a[name]), default=0) > FARTHEST:
            raise QfmtError(f"{name} of {list(a[name])}: each must be at most {FARTHEST:,}")
    if (extent := max((max(window.reach, window.pads) for window in windows(a)), default=0)) > FARTHEST:
        raise QfmtError(f"a window, or its padding, extends over {extent:,} elements, more than {FARTHEST:,}")


def tap(position: Sequence[int], given: Sequence[Window], out: Sequence[int]) -> tuple[Any, ...]:
    """The indices in a padded input of one tap of a window, over all positions of the window.

    `out` is the number of its positions along each dimension.
    """
    starts = [place * w.dilation for place, w in zip(position, given, strict=True)]
    ends = [start + w.stride * (count - 1) + 1 for start, w, count in zip(starts, given, out, strict=True)]
    return (..., *map(slice, starts, ends, (w.stride for w in given)))


def window_counts(shape: Sequence[int], a: Mapping[str, Any]) -> Array:
    """How many elements each window of an average divides by, [1, 1, *positions]."""
    along = [w.counts(size, a["count_include_pad"]) for w, size in zip(windows(a), shape, strict=True)]
    require(8 * prod(each.size for each in along))
    return reduce(np.multiply.outer, along)[None, None]


def bin_of(size: int, count: int, i: int) -> slice:
    """One of PyTorch's bins: from floor(i · size / count) to ceil((i + 1) · size / count); they may overlap."""
    return slice(i * size // count, -(-(i + 1) * size // count))


def bins(size: int, count: int) -> list[slice]:
    """All of them."""
    return [bin_of(size, count, i) for i in range(count)]


def members(size: int, count: int) -> Array:
    """Which element is in which bin: [size, count] of 0 and 1, int32."""
    found = np.zeros((size, count), np.int32)
    for column, part in enumerate(bins(size, count)):
        found[part, column] = 1
    return found


def common_multiple(sizes: Iterable[int]) -> int:
    """The least common multiple of window sizes; or, if it exceeds int32, any divisor of it that does, too.

    That of thousands of sizes has thousands of digits, which Python does not print.
    """
    multiple = 1
    for size in sizes:
        if multiple > INT32:
            break
        multiple = lcm(multiple, size)
    return multiple


def unit_factors(counts: Array) -> Array:
    """L / n for each window of n elements, L their least common multiple, in int64; QfmtError if L is too large."""
    sizes = np.unique(counts).tolist()
    if 0 in sizes:
        raise QfmtError("a window is entirely in the padding: it has no mean")
    multiple = common_multiple(sizes)
    if multiple > INT32:  # int64 represents no sum of larger ones except 0
        raise QfmtError(f"the least common multiple of windows of {len(sizes)} sizes exceeds int32")
    return np.asarray(multiple // counts.astype(np.int64))


def may_differ(a: Mapping[str, Any]) -> list[bool]:
    """Whether windows, or bins, may differ in size along each of the last dimensions; empty for means over axes."""
    if "count_include_pad" not in a:
        return [size != 1 for size in a.get("output_size", ())]
    head, tail = a["pads"][: len(a["pads"]) // 2], a["pads"][len(a["pads"]) // 2 :]
    padded = (any(pads) and not a["count_include_pad"] for pads in zip(head, tail, strict=False))  # V43: as many
    return [bool(a["ceil_mode"]) or each for each in padded]


class UncountedError(QfmtError):
    """The number of elements of a mean is not known. `is_open`: a known size would help."""

    def __init__(self, what: str, *, is_open: bool = False) -> None:
        super().__init__(what)
        self.is_open = is_open


def mean_sizes(node: Node, tensors: Mapping[str, Tensor], budget: Budget) -> list[int]:
    """All numbers of elements that the windows of a mean divide by; UncountedError if they are not known."""
    shape, a = tensors[node.inputs[0]].shape, node.attributes
    if node.operator == "AveragePool" and not any(node.ints("pads")) and not a["ceil_mode"]:
        return [prod(node.ints("kernel_shape"))]
    if shape is None:
        raise UncountedError("averages over an unknown number of elements", is_open=True)
    axes = list(range(2, len(shape)))
    if node.operator == "ReduceMean":
        stated = tensors[node.inputs[1]] if any(node.inputs[1:]) else None
        if stated is not None and not stated.is_constant:
            raise UncountedError("averages over axes that are not constant")
        axes = reduced_axes(node, None if stated is None else stated.array, len(shape))
    elif "output_size" in a:
        axes = list(range(len(shape)))[-len(node.ints("output_size")) :]
    sizes = [size for axis in axes if isinstance(size := shape[axis], int)]
    if len(sizes) < len(axes):
        raise UncountedError("averages over an unknown number of elements", is_open=True)
    if node.operator in ONE_SIZE:
        return [prod(sizes)]
    if 0 in sizes:
        return [0]
    if "output_size" in a:
        counts = node.ints("output_size")
        budget.allocate(WINDOW_BYTES * sum(counts))
        along = [{part.stop - part.start for part in bins(*each)} for each in zip(sizes, counts, strict=True)]
    else:
        given = windows(a)
        budget.allocate(WINDOW_BYTES * sum(w.enough(size) for w, size in zip(given, sizes, strict=True)))
        with_pads = node.int("count_include_pad")
        along = [sizes_along(w, size, with_pads) for w, size in zip(given, sizes, strict=True)]
    if (count := prod(map(len, along))) > MOST_SIZES:
        raise UncountedError("has windows of too many sizes")
    budget.spend(count)
    return sorted({prod(each) for each in product(*along)})


def sizes_along(window: Window, size: int, count_include_pad: int) -> set[int]:
    """The numbers of elements that windows along one dimension divide by."""
    counts = window.counts(window.enough(size), count_include_pad)
    return set(np.unique(counts[counts > 0]).tolist())


def reduced_axes(node: Node, axes: Array | None, rank: int) -> list[int]:
    """The axes that a reduction is over, in order; `axes` is the value of its second input, None if it has none."""
    if axes is None or axes.size == 0:
        return [] if node.int("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axes_of(axes.reshape(-1), rank))
