"""Statistics of a constant: a histogram of what is stored, saturation, unused codes, channels that are all zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import DTYPES
from ..errors import QfmtError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..arrays import Array
    from ..model import Tensor

CHUNK = 1 << 22
"""Elements that are counted at once: NumPy counts in 8 bytes each."""


def statistics(tensor: Tensor, axis: int | None, bins: int, channels: int) -> dict[str, Any]:
    """Counts of the stored values of a constant, in at most `bins` bins, and of at most `channels` channels on `axis`.

    `first` is the left end of the first bin and `width` the width of each; of integers the bins are codes. `low` and
    `high` count values at quant_min and quant_max. `peaks` has the largest distance from the zero point of each
    channel: 0 is a channel that is zero everywhere. What cannot be read is `{"error": …}`.
    """
    try:
        array = tensor.array
    except QfmtError as error:
        return {"error": str(error)}
    kind = DTYPES[tensor.dtype]
    is_code = kind.is_integer
    found: dict[str, Any] = {"elements": array.size}
    least, most = _ends(array)
    if not array.size or least is None or most is None:
        return found
    found |= {"min": least, "max": most}
    low, high = least, most
    if is_code and kind.bits <= 8:
        low, high = int(kind.minimum), int(kind.maximum)
    if is_code and high - low < 256:
        counted = np.zeros(int(high - low) + 1, np.int64)
        for part in _chunks(array):
            near = part if part.dtype == np.uint64 else part.astype(np.int64)  # which a uint64 may exceed
            counted += np.bincount((near - near.dtype.type(low)).astype(np.intp), minlength=len(counted))
        found |= {"used": int(np.count_nonzero(counted)), "codes": len(counted)}
        width = -(-len(counted) // bins)
        counted = np.pad(counted, (0, -len(counted) % width)).reshape(-1, width).sum(1)
        found |= {"first": int(low), "width": width, "bins": counted.tolist()}
    else:
        found |= _spread(array, float(low), float(high), min(bins, 64))
    grid = tensor.quantization
    if grid is not None and is_code:
        at = [sum(int((part == end).sum()) for part in _chunks(array)) for end in (grid.quant_min, grid.quant_max)]
        found |= {"low": at[0], "high": at[1]}
        points = grid.each_zero_point
        fits = axis is not None and axis < array.ndim and len(points) in (1, array.shape[axis])  # else a broken rule
        if axis is not None and fits and grid.is_affine and np.isfinite(points).all():
            peaks = _peaks(array, axis, points)
            found |= {"dead": int((peaks == 0).sum())}
            if len(peaks) <= channels:
                found["peaks"] = peaks.tolist()
    return found


def _chunks(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    for begin in range(0, flat.size, CHUNK):
        yield flat[begin : begin + CHUNK]


def _ends(array: Array) -> tuple[Any, Any]:
    """The least and the greatest finite value; None if there is none."""
    if array.dtype.kind in "iu":
        return (int(array.min()), int(array.max())) if array.size else (None, None)
    if array.dtype.kind == "b":
        return (0, 1) if array.size else (None, None)
    least, most = np.inf, -np.inf
    for part in _chunks(array):
        real = part.astype(np.float64)
        finite = real[np.isfinite(real)]
        least, most = min(least, finite.min(initial=np.inf)), max(most, finite.max(initial=-np.inf))
    return (float(least), float(most)) if least <= most else (None, None)


def _spread(array: Array, low: float, high: float, bins: int) -> dict[str, Any]:
    """Real values, or integers of a wide type, in bins of equal width."""
    if low == high:
        return {"first": low, "width": 0, "bins": [array.size]}
    factor = 0.5 if max(-low, high) > 1 else 1.0  # halves do not overflow, and do not vanish
    counted = np.zeros(bins, np.int64)
    for part in _chunks(array):
        real = part.astype(np.float64)
        values, begin, end = (each * factor for each in (real[np.isfinite(real)], low, high))
        place = np.floor((values - begin) / (end - begin) * bins)
        counted += np.bincount(np.clip(place, 0, bins - 1).astype(np.intp), minlength=bins)
    return {"first": low, "width": (high / bins) - (low / bins), "bins": counted.tolist()}


def _peaks(array: Array, axis: int, zero_points: tuple[float, ...]) -> NDArray[np.int64]:
    """The largest |q - z| of each channel."""
    others = tuple(each for each in range(array.ndim) if each != axis)
    low, high = array.min(axis=others).astype(np.int64), array.max(axis=others).astype(np.int64)
    zero = np.asarray(zero_points).astype(np.int64)
    peaks: NDArray[np.int64] = np.maximum(np.abs(low - zero), np.abs(high - zero))
    return peaks
