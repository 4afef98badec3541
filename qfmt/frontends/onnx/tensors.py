"""Element types, shapes and data of ONNX's values, as tensors of a Model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import DTYPES, Data, Shape, Tensor, static_shape


class TensorData(Data):
    """The data of an ONNX tensor; external data stays mapped in its file."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any, nbytes: int) -> None:
        self._tensor = tensor
        self.nbytes = nbytes

    def view(self) -> memoryview:
        if self._tensor.dtype.bitwidth < 8:
            return memoryview(self._tensor.tobytes())
        array = np.ascontiguousarray(self._tensor.numpy())
        return array.reshape(-1).view(np.uint8).data.toreadonly()


def dtype_of(code: Any) -> str:
    """The element type of a number or enum of ONNX; SourceError for one that qfmt cannot store."""
    import onnx_ir as ir

    try:
        name = ir.DataType(code).numpy().name
    except (TypeError, ValueError):
        name = ir.DataType(code).name if code in set(ir.DataType) else str(code)
    if name not in DTYPES:
        raise SourceError(f"tensors of {name} cannot be stored in .qfb")
    return name


def stored(name: str, tensor: Any) -> Tensor:
    """An initializer as a constant; its data is read when it is asked for."""
    try:
        dtype = dtype_of(tensor.dtype)
    except SourceError as error:
        raise error.at(f"initializer {name}") from None
    shape = tuple(int(size) for size in tensor.shape)
    count = int(np.prod(shape, dtype=np.int64))
    result = Tensor(name, dtype, shape, TensorData(tensor, -(-count * DTYPES[dtype].bits // 8)))
    static_shape(result)
    return result


def described(value: Any) -> Tensor:
    """A tensor of the element type and shape that the model states for a value."""
    if value.type is None:
        raise SourceError("has no element type", where=f"value {value.name!r}", hint="run onnx.shape_inference on it")
    try:
        dtype = dtype_of(value.dtype)
    except SourceError as error:
        raise error.at(f"value {value.name!r}") from None
    return Tensor(value.name, dtype, shape_of(value))


def shape_of(value: Any) -> Shape:
    if value.shape is None:
        return None
    sizes = (size if isinstance(size, int) else size.value for size in value.shape)
    return tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)  # -1: some write unknown so
