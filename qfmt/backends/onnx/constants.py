"""Constants of a model as ONNX tensors: their bytes are not copied before they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...arrays import BLOCK, blocks, give_back
from ...model import DTYPES, Tensor, numpy_dtype, pack, static_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Parts = Callable[[], Iterator[memoryview | bytes]]

_SPELLED = {"float32": "FLOAT", "float64": "DOUBLE", "float8_e8m0fnu": "FLOAT8E8M0", "float4_e2m1fn": "FLOAT4E2M1"}


def onnx_dtype(name: str) -> ir.DataType:
    """ONNX's element type of that name: `float8_e4m3fn` is FLOAT8E4M3FN there."""
    return ir.DataType[_SPELLED.get(name, name.upper().replace("_", ""))]


_PAGES = 1 << 16
"""Bytes of a file that may become resident when one of them is read."""


class Constant(ir.LazyTensor):
    """The data of a constant of a model, read on demand: as one tensor, or in `parts`, which need little memory."""

    def __init__(self, tensor: Tensor, read: Callable[[], ir.TensorProtocol], parts: Parts, shape: ir.Shape) -> None:
        super().__init__(read, onnx_dtype(tensor.dtype), shape, name=tensor.name)
        self.parts = parts


def parts(tensor: ir.TensorProtocol) -> Iterator[memoryview | bytes]:
    """The bytes of a tensor in order; memory that is not needed any more is given back."""
    yield from tensor.parts() if isinstance(tensor, Constant) else (tensor.tobytes(),)


def stored_constant(tensor: Tensor) -> ir.TensorProtocol:
    """The data of a constant: as in its file, read on demand."""
    dtype, shape, data = onnx_dtype(tensor.dtype), ir.Shape(static_shape(tensor)), tensor.data

    def read() -> ir.TensorProtocol:
        if DTYPES[tensor.dtype].bits >= 8:
            return ir.Tensor(tensor.array, dtype, shape=shape, name=tensor.name)
        assert data is not None
        return ir.PackedTensor(np.frombuffer(data.view(), np.uint8), dtype, shape=shape, name=tensor.name)

    if data is None:  # a broken graph: an error where it is read
        return ir.LazyTensor(read, dtype, shape, name=tensor.name)
    return Constant(tensor, read, lambda: blocks(data.view()), shape)


def turned_constant(tensor: Tensor) -> ir.TensorProtocol:
    """The data of a constant [out, in] of int8 or uint8 as [in, out], read on demand."""
    dtype, shape = onnx_dtype(tensor.dtype), ir.Shape(static_shape(tensor)[::-1])

    def columns() -> Iterator[memoryview | bytes]:
        """Some columns at a time, as rows. All of the array is read for each part, but only a few of its rows are
        in memory: pages of a file come in groups."""
        array, (rows, count) = tensor.array, static_shape(tensor)
        assert tensor.data is not None
        step = max(1, BLOCK // max(1, rows))
        few = max(1, BLOCK // max(_PAGES, step))
        for start in range(0, count, step):
            turned = np.empty((min(step, count - start), rows), array.dtype)
            for row in range(0, rows, few):
                turned[:, row : row + few] = array[row : row + few, start : start + step].T
                give_back(tensor.data.view())
            yield turned.reshape(-1).view(np.uint8).data

    return Constant(tensor, lambda: ir.Tensor(np.ascontiguousarray(tensor.array.T), dtype, shape=shape), columns, shape)


def constant(values: NDArray[Any], dtype: str) -> ir.TensorProtocol:
    """An array as a tensor of that element type, one value a byte if it has less than 8 bits."""
    held = values.astype(numpy_dtype(dtype))
    if DTYPES[dtype].bits < 8:
        packed = pack(held, DTYPES[dtype].bits)
        return ir.PackedTensor(packed, onnx_dtype(dtype), shape=ir.Shape(values.shape))
    return ir.Tensor(held, onnx_dtype(dtype), shape=ir.Shape(values.shape))


def sizes(tensor: ir.TensorProtocol) -> ir.Shape:
    """The shape of a constant."""
    return ir.Shape([int(size) for size in tensor.shape.numpy()])
