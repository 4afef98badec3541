"""Writes an ONNX model to a file; the weights of a large model go to a second file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

import onnx_ir as ir

from ...errors import QfmtError
from ...file.copies import uploaded
from ...file.replacing import replacing_all
from ...regular import irregular
from ...urls import Named, place
from .constants import parts, sizes

SMALL = 1024
"""Constants of fewer bytes stay inside: sizes and axes, which shape inference reads."""

DIGITS, SUFFIX = 16, ".data"
"""The digits of the digest in the name of a file of constants, and how that ends."""

NAMED = DIGITS + len(SUFFIX)
"""Characters at the end of a name that tell which constants the file has."""

BLOCK = 1 << 20
"""Bytes of a file that are searched at once."""

SEARCHED = 4 << 30
"""The most bytes of files in a folder that are searched."""

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
    with replacing_all(str(path), _named_like, _unused, _above) as (file, part):
        if sum(_data(value).nbytes for value in model.graph.initializers.values()) > external:
            bulk = part()
            bulk.target = bulk.target.with_name(f"{bulk.target.name}.{_digest(model)}{SUFFIX}")
            _move_out(model, bulk.stream, bulk.target.name)
        file.write(to_proto(model).SerializeToString())


def _digest(model: ir.Model) -> str:
    """A digest of all constants, for the name of their file: an interrupted write never leaves a model with other
    constants."""
    digest = hashlib.sha256()
    for value in model.graph.initializers.values():
        for part in parts(_data(value)):
            digest.update(part)
    return digest.hexdigest()[:DIGITS]


def _named_like(path: Path) -> list[Path]:
    """The constants files of models that have or had this name."""
    return list(path.parent.glob(f"{escape(path.name)}.{'[0-9a-f]' * DIGITS}{SUFFIX}"))


def _unused(constants: Iterable[Path], files: Iterable[Path]) -> list[Path]:
    """Those that none of the files names, whatever it is; none if one cannot be read, or it is too much to read."""
    left, searched = {each.name[-NAMED:].encode(): each for each in constants}, 0
    try:
        for each in files if left else ():
            if left and each.exists() and not irregular(each):
                searched += each.stat().st_size
                if searched > SEARCHED:
                    return []
                for end in _occurring(left, each):
                    del left[end]
    except OSError:
        return []
    return list(left.values())


def _above(path: Path) -> Iterator[Path]:
    """Models in the folders above: constants of a model may lie in a folder below it."""
    return (model for folder in path.parent.parents for model in folder.glob("*.onnx"))


def _occurring(ends: Iterable[bytes], path: Path) -> set[bytes]:
    """The ends of names that are anywhere in a file: ASCII, which no form of a model escapes."""
    found, before = set[bytes](), b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(end for end in ends if end in before + block)
            before = block[-NAMED:]
    return found


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
