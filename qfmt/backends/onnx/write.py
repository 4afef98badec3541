"""Writes an ONNX model to a file; the weights of a large model go to a second file."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, suppress
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

import onnx_ir as ir

from ...errors import QfmtError
from ...file.opened import uploaded
from ...file.replacing import replacing
from ...urls import Named, place
from .constants import parts, sizes

SMALL = 1024
"""Constants of fewer bytes stay inside: sizes and axes, which shape inference reads."""

DIGITS = 16
"""The digits of the digest in the name of a file of constants."""

ALIGNMENT = 4096
"""Alignment of each constant in bytes, so that a runtime can map it into memory."""


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


def write(model: ir.Model, path: Named, external: int) -> None:
    """See `qfmt.backends.onnx.write_onnx`."""
    with uploaded(place(path)) as local:
        _write(model, local, external)


def _write(model: ir.Model, path: Path, external: int) -> None:
    beside = ""
    with replacing(str(path)) as file, ExitStack() as stack:
        target = path.resolve()
        if sum(_data(value).nbytes for value in model.graph.initializers.values()) > external:
            beside = f"{target.name}.{_digest(model)}.data"  # written before the file that refers to it
            bulk = stack.enter_context(replacing(str(target.with_name(beside))))
            _move_out(model, bulk, beside)
        file.write(to_proto(model).SerializeToString())
        file.flush()
    _remove_others(target, beside)


def _digest(model: ir.Model) -> str:
    """A digest of all constants, for the name of their file: an interrupted write never leaves a model with other
    constants."""
    digest = hashlib.sha256()
    for value in model.graph.initializers.values():
        for part in parts(_data(value)):
            digest.update(part)
    return digest.hexdigest()[:DIGITS]


def _remove_others(path: Path, kept: str) -> None:
    """Remove the constants files of earlier models with this name."""
    for other in path.parent.glob(f"{escape(path.name)}.{'[0-9a-f]' * DIGITS}.data"):
        if other.name != kept:
            with suppress(OSError):
                other.unlink()


def _move_out(model: ir.Model, bulk: BinaryIO, location: str) -> None:
    """Write the constants consecutively, and replace them by references."""
    for value in model.graph.initializers.values():
        data = _data(value)
        if data.nbytes < SMALL:
            continue
        bulk.write(bytes(-bulk.tell() % ALIGNMENT))
        begin = bulk.tell()
        for part in parts(data):
            bulk.write(part)
        value.const_value = ir.ExternalTensor(
            location, begin, bulk.tell() - begin, data.dtype, shape=sizes(data), name=value.name or ""
        )


def _data(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value
