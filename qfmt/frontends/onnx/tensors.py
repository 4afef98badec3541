"""Converts element types, shapes and data of ONNX values to tensors of a Model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

from ...errors import SourceError
from ...model import DTYPES, ArrayData, Data, Shape, Tensor
from .external import Opened, check_rank

FILE = "qfmt.file"
"""The metadata key under which an external onnx-ir tensor keeps its open file."""


class MappedData(Data):
    """External data: a memory-mapped part of an open file. The mapping lives as long as a view of it."""

    __slots__ = ("_file", "_offset")

    def __init__(self, file: Opened, offset: int, nbytes: int) -> None:
        self._file = file
        self._offset = offset
        self.nbytes = nbytes

    def view(self) -> memoryview:
        return self._file.view(self._offset, self.nbytes)


class TensorData(Data):
    """The data of an ONNX tensor in memory."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any, nbytes: int) -> None:
        self._tensor = tensor
        self.nbytes = nbytes

    def view(self) -> memoryview:
        if self._tensor.dtype.bitwidth < 8:
            return memoryview(self._tensor.tobytes())
        return ArrayData(self._tensor.numpy()).view()


def dtype_of(code: Any) -> str:
    """The element type for an ONNX number or enum; SourceError for one that qfmt cannot store."""
    import onnx_ir as ir

    try:
        name = ir.DataType(code).numpy().name
    except (TypeError, ValueError):
        name = str(code)
    if name == "object":
        name = "strings"
    if name not in DTYPES:
        raise SourceError(f"tensors of {name} cannot be stored in .qfb")
    return name


def is_storable(tensor: Any) -> bool:
    """Whether a `.qfb` has the element type of an initializer: not text or complex numbers, as some writers leave."""
    return tensor is None or tensor.dtype.name not in ("STRING", "COMPLEX64", "COMPLEX128")


def stored(name: str, tensor: Any) -> Tensor:
    """An initializer as a constant, with data that is read on demand; SourceError if data is missing."""
    try:
        return _stored(name, tensor)
    except SourceError as error:
        raise error.at(f"initializer {name}") from None


def _stored(name: str, tensor: Any) -> Tensor:
    import onnx_ir as ir

    if tensor is None:
        raise SourceError("has no data")
    check_rank(tensor.shape)
    dtype, shape = dtype_of(tensor.dtype), tuple(int(size) for size in tensor.shape)
    if any(size < 0 for size in shape):
        raise SourceError(f"its shape is {list(shape)}")
    bits = DTYPES[dtype].bits
    needed = -(-prod(shape) * bits // 8)
    found = _bytes_of(tensor, needed, bits)
    if found != needed:
        cause = "the file is damaged; download it again"
        if not found:
            cause = "its weights were stripped; download the complete model"
        raise SourceError(f"has {found} bytes, but its shape needs {needed}", hint=cause)
    if isinstance(tensor, ir.ExternalTensor):
        return Tensor(name, dtype, shape, MappedData(tensor.meta[FILE], tensor.offset or 0, needed))
    return Tensor(name, dtype, shape, TensorData(tensor, needed))


_LISTS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
"""The fields of a TensorProto without raw_data; its data type determines which one has the values."""


def _bytes_of(tensor: Any, needed: int, bits: int) -> int:
    """The number of bytes of data in an ONNX tensor; values in a typed field count by their number."""
    import onnx_ir as ir

    if isinstance(tensor, ir.ExternalTensor):
        return int(tensor.length or 0)
    if not isinstance(tensor, ir.TensorProtoTensor):
        return needed
    import onnx

    if tensor.raw.HasField("segment"):
        raise SourceError("is a part of a tensor", hint="join the parts with the program that wrote them")
    raw = tensor.raw.HasField("raw_data")
    belongs = "raw_data" if raw else onnx.helper.tensor_dtype_to_field(tensor.raw.data_type)
    filled = [each for each in _LISTS if len(getattr(tensor.raw, each))]
    if set(filled) - {belongs}:
        what = f"has its data in {', '.join(filled)}, but data of its type belongs in {belongs}"
        raise SourceError(what, hint="the file is damaged; download it again")
    numbers = len(getattr(tensor.raw, belongs))
    if tensor.raw.data_type == onnx.TensorProto.BOOL and not {*tensor.raw.int32_data} <= {0, 1}:
        raise SourceError("has truth values other than 0 and 1", hint="the file is damaged; download it again")
    if raw:
        return numbers
    return numbers if bits < 8 else numbers * bits // 8


def described(value: Any) -> Tensor:
    """A tensor with the element type and shape that the model states for a value."""
    import onnx_ir as ir

    try:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            kind = type(value.type).__name__.removesuffix("Type").lower()
            raise SourceError(f"is a {kind}, not a tensor", hint="rewrite the model")
        if value.type is None:
            raise SourceError("has no element type", hint="run onnx.shape_inference on it")
        return Tensor(value.name, dtype_of(value.dtype), shape_of(value))
    except SourceError as error:
        raise error.at(f"value {value.name!r}") from None


def schema_of(operator: str, opset: int, domain: str) -> Any:
    """What ONNX states of an operator; None if that opset does not have it."""
    import onnx

    try:
        return onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:
        return None


def dtype_by_schema(call: Any, index: int, types: Sequence[str]) -> str:
    """The element type of an output: from a subgraph of the node, else from the operator's schema, where it may be
    the type of an input; "" if neither states it.

    onnx's shape inference would find more, but it copies shapes along the whole graph: its cost is quadratic in the
    size of the file.
    """
    for graph in call.attributes.values():
        if hasattr(graph, "initializers"):
            at = index + (call.operator == "Loop")  # skips the condition of a Loop
            inner = graph.outputs[at : at + 1]
            return dtype_of(inner[0].dtype) if inner and inner[0].dtype is not None else ""
    schema = schema_of(call.operator, call.opset, call.domain)
    if schema is None:
        return ""
    kind = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    for formal, dtype in zip(schema.inputs, types, strict=False):
        if formal.type_str == kind and dtype:
            return dtype
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}.get(kind, ())
    kind = allowed[0] if len(allowed) == 1 else kind  # MaxPool: I is tensor(int64)
    name = kind.removeprefix("tensor(").removesuffix(")")
    name = {"float": "float32", "double": "float64"}.get(name, name)
    return name if kind.startswith("tensor(") and name in DTYPES else ""


_SILENT = logging.NullHandler()


def quiet() -> None:
    """Silence onnx-ir's log. Without a handler, Python prints it, with tracebacks, to standard error."""
    logging.getLogger("onnx_ir").addHandler(_SILENT)


def shape_of(value: Any) -> Shape:
    if value.shape is None:
        return None
    check_rank(value.shape)
    sizes = (size if isinstance(size, int) else size.value or None for size in value.shape)  # "": no name
    return tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)  # -1: unknown, in some files
