"""Constants of a model as ONNX tensors: their bytes are not copied before they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...model import DTYPES, Tensor, numpy_dtype, pack, static_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPELLED = {"float32": "FLOAT", "float64": "DOUBLE", "float8_e8m0fnu": "FLOAT8E8M0", "float4_e2m1fn": "FLOAT4E2M1"}


def onnx_dtype(name: str) -> ir.DataType:
    """ONNX's element type of that name: `float8_e4m3fn` is FLOAT8E4M3FN there."""
    return ir.DataType[_SPELLED.get(name, name.upper().replace("_", ""))]


def stored_constant(tensor: Tensor) -> ir.TensorProtocol:
    """The data of a constant: as in its file, read on demand."""
    dtype, shape = onnx_dtype(tensor.dtype), ir.Shape(static_shape(tensor))

    def read() -> ir.TensorProtocol:
        if DTYPES[tensor.dtype].bits >= 8:
            return ir.Tensor(tensor.array, dtype, shape=shape, name=tensor.name)
        assert tensor.data is not None
        return ir.PackedTensor(np.frombuffer(tensor.data.view(), np.uint8), dtype, shape=shape, name=tensor.name)

    return ir.LazyTensor(read, dtype, shape, name=tensor.name)


def turned_constant(tensor: Tensor) -> ir.TensorProtocol:
    """The data of a constant [out, in] of whole bytes as [in, out], read on demand."""
    dtype, shape = onnx_dtype(tensor.dtype), ir.Shape(static_shape(tensor)[::-1])
    return ir.LazyTensor(lambda: ir.Tensor(np.ascontiguousarray(tensor.array.T), dtype, shape=shape), dtype, shape)


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
