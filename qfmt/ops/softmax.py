"""Softmax and related operators along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import Array
from .pooling import real_sum
from .registry import Quantized, operator, optional
from .shapes import along_axis


def _along(name: str, meaning: str, *torch: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    attributes, kind = {"axis": optional(-1, meaning)}, Quantized.COMPUTES
    return operator(name, 13, "input -> output", attributes=attributes, shape=along_axis, quantized=kind, torch=torch)


@_along(
    "Softmax",
    "the axis that sums to 1",
    "quantized::softmax(qx:input, dim:axis, output_scale:$scale, output_zero_point:$zero_point)",
)
def softmax(x: Array, *, axis: int) -> Array:
    """output = exp(input - m) / Σ exp(input - m) along the axis, m the maximum there."""
    powers = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return powers / real_sum(powers, axis)


@_along("LogSoftmax", "the axis whose exponentials sum to 1")
def log_softmax(x: Array, *, axis: int) -> Array:
    """output = (input - m) - ln(Σ exp(input - m)) along the axis, m the maximum there."""
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(real_sum(np.exp(shifted), axis))


@_along("Hardmax", "the axis along which there is one 1")
def hardmax(x: Array, *, axis: int) -> Array:
    """output = 1 at the first of the largest elements along the axis, 0 elsewhere."""
    if not x.size:
        return x
    first = np.expand_dims(x.argmax(axis), axis)
    places = np.arange(x.shape[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    return (places == first).astype(x.dtype)
