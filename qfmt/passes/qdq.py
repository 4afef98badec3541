"""The grid that a QuantizeLinear or DequantizeLinear of ONNX states by its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Array
from ..memory import keep
from ..model import DTYPES, Attribute, Node, Quantization, Tensor
from ..ops import OPERATORS
from ..ops.shapes import axis_of
from ..rules.quantization import FLOATS, SCALE_DTYPES

QUANTIZE, DEQUANTIZE = "ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear"


def dequantize_node(inputs: Sequence[str], output: str) -> Node:
    """A DequantizeLinear of ONNX, per tensor, to float32; `inputs` are integers, scale and, optional, zero point."""
    attributes: dict[str, Attribute] = {"axis": 1, "block_size": 0, "output_dtype": "float32"}
    return Node(DEQUANTIZE, tuple(inputs), (output,), attributes, version=OPERATORS[DEQUANTIZE].version)


class QdqGrids:
    """The grid that each of these nodes states, if a tensor can have it as its quantization.

    None if scales are computed, are not positive, give infinite numbers, or do not fit the tensor as far as that is
    known.
    Nodes that share scale and zero point are examined once. Each grid counts: a file may state thousands of one scale.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self._found: dict[object, Quantization | None] = {}

    def __call__(self, node: Node) -> Quantization | None:
        data = self.tensors[node.outputs[0] if node.operator == QUANTIZE else node.inputs[0]]
        attributes = tuple(sorted(node.attributes.items()))
        shape = str(data.shape)  # a file can choose shapes with one hash, but not texts
        key = (data.dtype, shape, data.is_constant, node.inputs[1:], attributes)
        if key not in self._found:
            keep(sum(each.data.nbytes for name in node.inputs[1:] if name and (each := self.tensors[name]).data))
            grid = _grid(node, data, self.tensors)
            names = (node.inputs[1], (*node.inputs[2:], "")[0])
            self._found[key] = grid and replace(grid, names=names)
        return self._found[key]


def _grid(node: Node, data: Tensor, tensors: Mapping[str, Tensor]) -> Quantization | None:
    scale = tensors[node.inputs[1]]
    points = tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
    limits = DTYPES[data.dtype]
    if scale.data is None or (points is not None and points.data is None) or not limits.is_quantizable:
        return None
    if scale.dtype not in SCALE_DTYPES or (not limits.is_integer and node.attributes.get("saturate") == 0):
        return None
    array = scale.array
    if node.attributes["block_size"]:
        return _by_blocks(node, data, array, points)
    if not array.size or not _are_scales(array, data.dtype):
        return None
    zero_points = _zero_points(points, array.size)
    axis = None
    if array.size > 1:
        if data.shape is None or array.ndim != 1:
            return None
        axis = axis_of(node.int("axis"), len(data.shape))
    if zero_points is None or (not limits.is_integer and zero_points.any()):
        return None
    return Quantization.of(array.reshape(-1), zero_points, limits.minimum, limits.maximum, axis, scale.dtype)


def _are_scales(array: Any, dtype: str) -> bool:
    """Whether all are positive, as float32, too, and no integer of `dtype` represents an infinite number with them."""
    limits = DTYPES[dtype]
    with np.errstate(over="ignore", under="ignore"):
        rounded = array.astype(np.float32)
        largest = rounded * np.float32(limits.maximum - limits.minimum)
    return bool(((rounded > 0) & np.isfinite(largest)).all())


def _zero_points(points: Tensor | None, count: int) -> Array | None:
    if points is None:
        return np.zeros(count, np.int64)
    values = points.array.reshape(-1)
    if values.size != count:
        return None
    return values.astype(np.float64 if points.dtype in FLOATS else np.int64)


def _by_blocks(node: Node, data: Tensor, scale: Any, points: Tensor | None) -> Quantization | None:
    """A scale for every `block_size` elements along the axis, for every index of the other dimensions."""
    shape = data.shape
    if shape is None or not all(isinstance(size, int) and size for size in shape):
        return None
    sizes = tuple(size for size in shape if isinstance(size, int))
    axis = axis_of(node.int("axis"), len(sizes))
    size = node.int("block_size")
    block = tuple(size if each == axis else 1 for each in range(len(sizes)))
    grid = Quantization.of_blocks(data.dtype, sizes, block, scale, 0 if points is None else points.array)
    if not grid.is_affine and data.is_constant:  # these may have negative scales: nothing is quantized to them
        return grid if bool(np.isfinite(scale.astype(np.float32)).all()) else None
    return grid if _are_scales(scale, data.dtype) else None
