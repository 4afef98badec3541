"""Random inputs and attributes of the operators on stored integers."""

from __future__ import annotations

import numpy as np

from qfmt.model import DTYPES, Quantization

from .torch_inputs import Case, Random, sizes

Array = np.ndarray


def narrow(rng: Random, *shape: int) -> Array:
    """int8 or uint8, over the whole range."""
    limits = np.iinfo(rng.choice(["int8", "uint8"]))
    return rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)


def requantize(rng: Random) -> Case:
    """A case of the rule `multiply_shift`, per tensor or per channel."""
    x = rng.integers(-40000, 40000, sizes(rng, int(rng.integers(1, 5)))).astype(np.int32)
    axis = int(rng.integers(0, x.ndim))
    count = x.shape[axis] if rng.random() < 0.7 else 1
    shift = rng.integers(30, 40, count).astype(np.uint8)
    parameters = [
        rng.integers(1 << 20, 1 << 31, count).astype(np.int32),
        shift,
        (1 << shift.astype(np.int64)) // 2 + rng.integers(-999, 999, count),
    ]
    return Case([x, *parameters], {"axis": axis})


def table(rng: Random) -> Case:
    x = narrow(rng, *sizes(rng, int(rng.integers(1, 5))))
    if rng.random() < 0.5:
        return Case([x, narrow(rng, 256)], {"axis": -1})
    axis = int(rng.integers(0, x.ndim))
    return Case([x, narrow(rng, x.shape[axis], 256)], {"axis": axis})


def pairs(rng: Random, count: int) -> list[Array]:
    """Inputs that broadcast."""
    shape = sizes(rng, int(rng.integers(0, 5)))
    inputs = []
    for _ in range(count):
        own = [size if rng.random() < 0.7 else 1 for size in shape]
        inputs.append(narrow(rng, *own[rng.integers(0, len(own) + 1) :]))
    return inputs


def pair_table(rng: Random) -> Case:
    return Case([*pairs(rng, 2), narrow(rng, 256, 256)], {})


def weighted_sum(rng: Random) -> Case:
    inputs = pairs(rng, int(rng.integers(1, 4)))
    return Case(list(inputs), {"weights": tuple(rng.integers(-(1 << 20), 1 << 20, len(inputs)).tolist())})


def integers_like(rng: Random, array: Array, axis: int | None = None) -> tuple[Array, Quantization]:
    """8-bit integers of this shape, with a zero point, or one per slice of an axis."""
    dtype = str(rng.choice(["int8", "uint8"]))
    limits = DTYPES[dtype]
    count = 1 if axis is None else array.shape[axis]
    points = tuple(rng.integers(limits.minimum, limits.maximum + 1, count).tolist())
    values = rng.integers(limits.minimum, limits.maximum + 1, array.shape).astype(dtype)
    return values, Quantization.of((0.5,) * count, points, limits.minimum, limits.maximum, axis)
