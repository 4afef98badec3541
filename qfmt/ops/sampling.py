"""Sampling an image at positions given by another tensor."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..memory import require
from ..model import Shape
from .registry import Inference, Quantized, operator, optional, truth
from .resize import cubic_kernel


def _sample_shape(given: Inference) -> list[Shape]:
    x, grid = given.known(0), given.known(1)
    if len(x) != len(grid):
        raise QfmtError(f"a grid of {len(grid)} dimensions does not fit an input of {len(x)}")
    if isinstance(grid[-1], int) and grid[-1] != len(x) - 2:
        raise QfmtError(
            f"the positions in the grid have {grid[-1]} coordinates, but the input has {len(x) - 2} spatial dimensions"
        )
    if isinstance(x[0], int) and isinstance(grid[0], int) and x[0] != grid[0]:
        raise QfmtError(f"a grid for {grid[0]} images, but there are {x[0]}")
    return [(*x[:2], *grid[1:-1])]


def _taps(place: Array, mode: str) -> list[tuple[Array, Array]]:
    """Positions around a place along one dimension, and their weights."""
    low = np.floor(place)
    if mode == "nearest":
        return [(np.rint(place), np.ones_like(place))]
    if mode == "linear":
        return [(low, 1 - (place - low)), (low + 1, place - low)]
    return [(low + i, cubic_kernel(np.abs(place - low - i), -0.75)) for i in (-1, 0, 1, 2)]


def _inside(position: Array, size: int, padding: str, corners: bool) -> Array:
    """Positions outside, moved inside: to the edge, or mirrored at it."""
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(position)
        offset = np.abs(position - low)
        turns, rest = np.divmod(offset, span)
        position = low + np.where(turns % 2 == 0, rest, span - rest)
    return np.clip(position, 0, size - 1)


@operator(
    "GridSample",
    22,
    "X grid -> Y",
    attributes={
        "align_corners": truth(0, "1: -1 and 1 are the centres of the outer elements; 0: their edges"),
        "mode": optional("linear", "`linear`, `nearest` or `cubic`", ("linear", "nearest", "cubic")),
        "padding_mode": optional(
            "zeros",
            "values outside: `zeros`, `border` (the edge) or `reflection` (at the edge)",
            ("zeros", "border", "reflection"),
        ),
    },
    shape=_sample_shape,
    quantized=Quantized.FLOAT_ONLY,
)
def grid_sample(x: Array, grid: Array, *, align_corners: int, mode: str, padding_mode: str) -> Array:
    """Y[n, c, i] = X[n, c] at the position grid[n, i], interpolated as in Resize.

    X is [N, C, *spatial], grid [N, *out, rank]: coordinates from -1 to 1 along the spatial dimensions, the last first.
    """
    shape, count = x.shape[2:], len(x.shape[2:])
    require(8 * prod(grid.shape[:-1]) * (5 * x.shape[1] + 8 * count + 8))  # elements; places and shares; indices
    corners = bool(align_corners)
    taps = []
    for axis, size in enumerate(shape):
        unit = (grid[..., count - 1 - axis].astype(np.float64) + 1) / 2
        place = unit * (size - 1) if corners else unit * size - 0.5
        taps.append(_taps(place, mode))
    flat = x.reshape(*x.shape[:2], prod(shape))
    total = np.zeros((*x.shape[:2], *grid.shape[1:-1]), np.float64)
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * (grid.ndim - 2))
    for corner in product(*taps):
        weight, index = np.ones(grid.shape[:-1]), np.zeros(grid.shape[:-1], np.int64)
        for (position, share), size in zip(corner, shape, strict=True):
            outside = (position < 0) | (position > size - 1)
            moved = _inside(position, size, padding_mode, corners)
            weight = weight * np.where(outside, 0, share) if padding_mode == "zeros" else weight * share
            index = index * size + np.nan_to_num(moved).astype(np.int64)
        met = flat[batch, :, index]
        total += np.moveaxis(met * weight[..., None], -1, 1)
    return total.astype(x.dtype)
