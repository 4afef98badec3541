"""Operators that create tensors."""

from __future__ import annotations

from math import ceil

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..model import Shape, numpy_dtype
from .registry import ELEMENT_TYPES, Inference, Quantized, operator, optional

LARGEST = 2**63 - 1
"""The largest size of a dimension."""


def _count(start: Array, limit: Array, delta: Array) -> int:
    """How many numbers a range has; computed in float64, so that integers are counted exactly."""
    first, end, step = (each.reshape(()).item() for each in (start, limit, delta))
    if not step:
        raise QfmtError("a range needs a step other than 0")
    exact = (end - first + step - (1 if step > 0 else -1)) // step if isinstance(step, int) else (end - first) / step
    if not exact <= LARGEST:  # NaN, too
        raise QfmtError(f"a range from {first} to {end} by {step} has no number of elements")
    return ceil(max(0, exact))


def _range_shape(given: Inference) -> list[Shape]:
    if any(isinstance(size, int) and size != 1 for shape in given.shapes for size in shape or ()):
        raise QfmtError("the limits and the step of a range must be scalars")
    values = [given.values[index] for index in range(3)]
    return [(None,) if any(value is None for value in values) else (_count(*values),)]  # type: ignore[arg-type]


@operator("Range", 11, "start limit delta -> output", shape=_range_shape, quantized=Quantized.FLOAT_ONLY)
def range_(start: Array, limit: Array, delta: Array) -> Array:
    """output[i] = start + i · delta, for i from 0 to ⌈(limit - start) / delta⌉ - 1; all inputs are scalars."""
    steps = np.arange(_count(start, limit, delta)).astype(start.dtype)
    return start.reshape(()) + steps * delta.reshape(())


def _matrix_shape(given: Inference) -> list[Shape]:
    shape = given.shapes[0]
    if shape is not None and len(shape) != 2:
        raise QfmtError(f"EyeLike needs a matrix, not {len(shape)} dimensions")
    return [shape]


@operator(
    "EyeLike",
    22,
    "input -> output",
    attributes={
        "dtype": optional("", "the dtype of the output, by name; empty: that of input", ("", *ELEMENT_TYPES)),
        "k": optional(0, "the diagonal"),
    },
    shape=_matrix_shape,
    quantized=Quantized.FLOAT_ONLY,
    dtype="attribute:dtype",
)
def eye_like(x: Array, *, dtype: str, k: int) -> Array:
    """output = ones on the k-th diagonal of a matrix of the shape of input, zeros elsewhere."""
    return np.eye(x.shape[0], x.shape[1], k).astype(numpy_dtype(dtype) if dtype else x.dtype)
