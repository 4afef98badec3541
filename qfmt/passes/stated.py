"""The grid that a QuantizeLinear or DequantizeLinear of ONNX states, its scales and zero points being inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..model import DTYPES, Node, Quantization, Tensor
from ..ops.shapes import axis_of
from ..rules.quantization import SCALE_DTYPES, is_float32_scale

QUANTIZE, DEQUANTIZE = "ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear"


def stated_grid(node: Node, tensors: Mapping[str, Tensor]) -> Quantization | None:
    """The grid of the integers of one of these nodes, if a tensor can have it as its quantization.

    None where scales are computed, are no positive finite numbers, or do not fit the tensor as far as that is known.
    """
    data = tensors[node.outputs[0] if node.operator == QUANTIZE else node.inputs[0]]
    scale = tensors[node.inputs[1]]
    points = tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
    limits = DTYPES[data.dtype]
    if scale.data is None or (points is not None and points.data is None) or not limits.is_quantizable:
        return None
    if scale.dtype not in SCALE_DTYPES or (not limits.is_integer and node.attributes.get("saturate") == 0):
        return None
    if node.attributes["block_size"]:
        return _by_blocks(node, data, scale, points)
    scales = [float(value) for value in scale.array.reshape(-1).astype("float64")]
    if not scales or not all(map(is_float32_scale, scales)):
        return None
    zero_points = _zero_points(points, len(scales))
    axis = None
    if len(scales) > 1:
        if data.shape is None or len(scale.shape or ()) != 1:
            return None
        axis = axis_of(int(node.attributes["axis"]), len(data.shape))  # type: ignore[arg-type]
    if zero_points is None or (not limits.is_integer and any(zero_points)):
        return None
    return Quantization(tuple(scales), zero_points, limits.minimum, limits.maximum, axis, scale.dtype)


def _zero_points(points: Tensor | None, count: int) -> tuple[int, ...] | tuple[float, ...] | None:
    if points is None:
        return (0,) * count
    values = points.array.reshape(-1)
    if values.size != count:
        return None
    if points.dtype in ("float16", "bfloat16", "float32", "float64"):
        return tuple(float(value) for value in values)
    return tuple(int(value) for value in values)


def _by_blocks(node: Node, data: Tensor, scale: Tensor, points: Tensor | None) -> Quantization | None:
    """A scale for every `block_size` elements along the axis, for every index of the other dimensions."""
    shape = data.shape
    if shape is None or not all(isinstance(size, int) and size for size in shape):
        return None
    sizes = tuple(size for size in shape if isinstance(size, int))
    axis = axis_of(int(node.attributes["axis"]), len(sizes))  # type: ignore[arg-type]
    size = int(node.attributes["block_size"])  # type: ignore[arg-type]
    block = tuple(size if each == axis else 1 for each in range(len(sizes)))
    grid = Quantization.of_blocks(data.dtype, sizes, block, scale.array, 0 if points is None else points.array)
    if grid.blocks is not None and data.is_constant:  # which may have negative scales: nothing is quantized to them
        return grid if bool(np.isfinite(scale.array.astype("float32")).all()) else None
    return grid if all(is_float32_scale(float(value)) for value in scale.array.reshape(-1)) else None
