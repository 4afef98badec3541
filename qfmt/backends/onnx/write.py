"""Writing an ONNX model to a file, or, if it is large, to a file and another one with its weights."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import onnx_ir as ir

from ...errors import QfmtError
from ...file.replacing import replacing, replacing_all
from .constants import sizes

SMALL = 1024
"""Constants of fewer bytes stay inside: sizes and axes, which shape inference reads."""

ALIGNMENT = 4096
"""Where each constant begins, so that a runtime can map it into memory."""


def to_proto(model: ir.Model) -> Any:
    """The model as an `onnx.ModelProto`. Constants are read now: QfmtError if they are damaged."""
    try:
        return ir.to_proto(model)
    except ir.serde.SerdeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, QfmtError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def write(model: ir.Model, path: str | os.PathLike[str], external: int) -> None:
    """See `qfmt.backends.onnx.write_onnx`."""
    where = os.fsdecode(path)
    if sum(_data(value).nbytes for value in model.graph.initializers.values()) <= external:
        with replacing(where) as file:
            file.write(to_proto(model).SerializeToString())
        return
    with replacing_all(where, f"{where}.data") as (file, bulk):  # the weights are there before what names them
        _move_out(model, bulk, f"{os.path.basename(where)}.data")  # noqa: PTH119
        file.write(to_proto(model).SerializeToString())


def _move_out(model: ir.Model, bulk: BinaryIO, location: str) -> None:
    """Write the constants one after the other, and leave references to them."""
    for value in model.graph.initializers.values():
        data = _data(value)
        if data.nbytes < SMALL:
            continue
        bulk.write(bytes(-bulk.tell() % ALIGNMENT))
        begin = bulk.tell()
        bulk.write(data.tobytes())
        value.const_value = ir.ExternalTensor(
            location, begin, bulk.tell() - begin, data.dtype, shape=sizes(data), name=value.name or ""
        )


def _data(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value
