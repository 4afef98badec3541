"""Normalizations, as computed at inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import QfmtError
from ..model import Shape
from .registry import Inference, Quantized, operator, optional, required
from .shapes import axis_of, same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

EPSILON = optional(1e-5, "added to the variance")


def _per_channel(values: Array, rank: int) -> Array:
    return values.reshape(1, -1, *(1,) * (rank - 2))


@operator(
    "BatchNormalization",
    15,
    "X scale B input_mean input_var -> Y",
    attributes={"epsilon": EPSILON},
    shape=same,
    quantized=Quantized.COMPUTES,
)
def batch_normalization(x: Array, scale: Array, b: Array, mean: Array, var: Array, *, epsilon: float) -> Array:
    """Y = (X - input_mean) / √(input_var + epsilon) · scale + B, per channel (axis 1).

    Computed as X · α + β with α = scale / √(input_var + epsilon), β = B - input_mean · α.
    """
    alpha = scale / np.sqrt(var + var.dtype.type(epsilon))
    beta = b - mean * alpha
    return x * _per_channel(alpha, x.ndim) + _per_channel(beta, x.ndim)


def _layer_normalization_shape(given: Inference) -> list[Shape]:
    shape = given.shapes[0]
    if shape is not None:
        axis_of(given.attributes["axis"], len(shape))
    return [shape]


@operator(
    "LayerNormalization",
    17,
    "X Scale B? -> Y",
    attributes={"axis": optional(-1, "the first of the normalized axes"), "epsilon": EPSILON},
    shape=_layer_normalization_shape,
    quantized=Quantized.COMPUTES,
)
def layer_normalization(x: Array, scale: Array, b: Array | None, *, axis: int, epsilon: float) -> Array:
    """Y = (X - mean) / √(variance + epsilon) · Scale + B, statistics over the axes from `axis` on."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    y = _normalized(x, axes, epsilon) * scale
    return y if b is None else y + b


def _normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    return centred / np.sqrt(variance + x.dtype.type(epsilon))


def _group_shape(given: Inference) -> list[Shape]:
    shape = given.shapes[0]
    groups = given.attributes["num_groups"]
    if shape is not None and len(shape) > 1 and isinstance(shape[1], int) and shape[1] % groups:
        raise QfmtError(f"{shape[1]} channels do not split into {groups} groups")
    return [shape]


@operator(
    "GroupNormalization",
    21,
    "X scale bias -> Y",
    attributes={"epsilon": EPSILON, "num_groups": required("i", "number of groups that channels are split into")},
    shape=_group_shape,
    quantized=Quantized.COMPUTES,
)
def group_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int) -> Array:
    """Y = (X - mean) / √(variance + epsilon) · scale + bias, statistics per sample and group of channels (axis 1)."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    y = _normalized(grouped, (2,), epsilon).reshape(x.shape)
    return y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@operator(
    "InstanceNormalization",
    22,
    "input scale B -> output",
    attributes={"epsilon": EPSILON},
    shape=same,
    quantized=Quantized.COMPUTES,
)
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float) -> Array:
    """output = (input - mean) / √(variance + epsilon) · scale + B, statistics per sample and channel (axis 1)."""
    y = _normalized(x, tuple(range(2, x.ndim)), epsilon)
    return y * _per_channel(scale, x.ndim) + _per_channel(b, x.ndim)
