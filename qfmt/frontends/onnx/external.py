"""Reads an ONNX file as a ModelProto and finds all its external data, for every tensor in the model.

A library that runs or parses the model afterwards does not open any file that the model names.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Iterator, Mapping, Sized
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Array
from ...backstop import grow
from ...errors import SourceError, brief
from ...graph import MAXIMUM_RANK
from ...regular import descriptor_of, hint_for, mapped_file, refusal, resolved, unreadable
from .messages import charge, damaged

SHARED = 1 << 20
"""Bytes that tensors may have in addition to twice the size of their files. Tied weights share bytes. A small model
that refers to the same bytes thousands of times is refused before memory is allocated."""

LARGE = 1 << 16
"""Size in bytes above which a tensor stays outside the protobuf message, which has at most 2 GB. The shapes that a
runtime reads while it loads a model are smaller."""


DIGITS = 20
"""More digits than an offset or length has."""


class Place(NamedTuple):
    """The location of a tensor's data: a resolved path, an offset and a length in bytes."""

    path: str
    offset: int
    nbytes: int


class Opened:
    """A file that stays open, so that the checked file is the one that is read, even if its path is replaced."""

    def __init__(self, path: Path) -> None:
        self._descriptor = descriptor_of(path)
        weakref.finalize(self, os.close, self._descriptor)
        self.facts = os.fstat(self._descriptor)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """A part of the file: memory-mapped if it is large; the mapping lives as long as the view."""
        if not nbytes:
            return memoryview(b"")
        if nbytes <= LARGE and hasattr(os, "pread"):  # to map a few bytes takes longer than to read them
            data = os.pread(self._descriptor, nbytes, offset)
            if len(data) == nbytes:
                return memoryview(data)
        before = offset % mmap.ALLOCATIONGRANULARITY
        part = mapped_file(self._descriptor, before + nbytes, offset - before)
        return memoryview(part)[before:]


Files = dict[str, Opened]
"""Files of external data, by the path that tensors refer to."""


def open_proto(path: Path, files: Files | None = None) -> Any:
    """Read a file as an onnx.ModelProto, with its external data as raw_data: the result refers to no file.

    With `files`, for models larger than memory, the initializers of the main graph remain external. Each refers to
    its file by an absolute path, which is added to `files`, an offset and a length.

    A location is relative to the folder of the model. It must name a regular file in that folder or below. A
    symbolic link is followed if its target is there, or, if the model itself was reached by a link, in the folder of
    the model's target: caches such as Hugging Face's keep all files of a model in one folder and link to them. A
    file with a second hard link is refused, because its other name may be outside the folder, and the file system
    does not tell.

    Raises SourceError for a file that is not an ONNX model, for external data that is outside the folder, missing or
    of another size, and if the tensors have more than twice the bytes of their files.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        data = path.read_bytes()
        charge(data)
        proto = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise damaged() from None
    except OSError as error:
        raise refusal(error, SourceError) from None
    external = [(tensor, where) for tensor, where in tensors_within(proto) if is_external(tensor)]
    if external:
        folder = _Folder(path)
        places = folder.places(external)
        own = [] if files is None else list(proto.graph.initializer)
        kept = {id(tensor) for tensor in own}
        for (tensor, _), place in zip(external, places, strict=True):
            _name(tensor, place) if id(tensor) in kept else _load(tensor, place, folder.opened)
        if files is not None:
            files.update(folder.opened)
    return proto


def take_large(proto: Any, files: Files) -> dict[str, Array]:
    """Remove the large initializers from a model that `open_proto` returned with `files`; return name → mapped
    array.

    Other external data is read into the model, and so are element types that NumPy does not have.
    """
    import onnx_ir as ir

    taken: dict[str, Array] = {}
    initializers = proto.graph.initializer
    for index in reversed(range(len(initializers))):
        tensor = initializers[index]
        if not is_external(tensor):
            continue
        entries = {each.key: each.value for each in tensor.external_data}
        place = Place(entries["location"], int(entries["offset"]), int(entries["length"]))
        dtype = ir.DataType(tensor.data_type).numpy()
        if place.nbytes <= LARGE or dtype.isbuiltin != 1:
            _load(tensor, place, files)
            continue
        data = np.frombuffer(files[place.path].view(place.offset, place.nbytes), np.uint8)
        taken[tensor.name] = data.view(dtype.newbyteorder("<")).reshape(tuple(tensor.dims))
        del initializers[index]
    return taken


def external_files(path: Path) -> list[Path]:
    """The files of external data of an ONNX file, without links, in the order in which tensors refer to them. Raises
    what `open_proto` raises."""
    files: Files = {}
    with path.open("rb") as file, mapped_file(file.fileno()) as content:
        if content.find(b"location") >= 0:  # the key under which a tensor names a file; most models need no parsing
            open_proto(path, files)
    return [*map(Path, files)]


def is_external(tensor: Any) -> bool:
    """Whether a TensorProto states that its data is external."""
    return bool(tensor.data_location == tensor.EXTERNAL)


def tensors_within(message: Any, where: str = "") -> Iterator[tuple[Any, str]]:
    """Every TensorProto in an ONNX message, at any depth, with its location for error messages."""
    for name in _fields_with_tensors(message.DESCRIPTOR):
        value = getattr(message, name)
        single = hasattr(value, "DESCRIPTOR")
        for each in ([value] if message.HasField(name) else []) if single else value:
            if each.DESCRIPTOR.name == "TensorProto":
                kind = "initializer" if name == "initializer" else "tensor"
                yield each, f"{where}{kind} {brief(each.name)}".rstrip()
            else:
                yield from tensors_within(each, where + _place(each))


@cache
def _fields_with_tensors(descriptor: Any) -> tuple[str, ...]:
    """The fields of a message type that can contain a TensorProto, directly or nested."""
    return tuple(
        field.name
        for field in descriptor.fields
        if field.message_type is not None and _holds_tensors(field.message_type)
    )


@cache
def _holds_tensors(descriptor: Any) -> bool:
    reached, found = [descriptor], {descriptor.full_name}
    for each in reached:
        if each.name == "TensorProto":
            return True
        for field in each.fields:
            if field.message_type is not None and field.message_type.full_name not in found:
                found.add(field.message_type.full_name)
                reached.append(field.message_type)
    return False


def _place(message: Any) -> str:
    """Where a tensor is, in short: a name may be long, and have many tensors."""
    kind = message.DESCRIPTOR.name
    if kind == "NodeProto":
        return f"node {brief(message.name or next(iter(message.output), ''))} ({brief(message.op_type)}): "
    return f"function {brief(message.domain)}.{brief(message.name)}: " if kind == "FunctionProto" else ""


class _Folder:
    """The folder of a model, and the files in it that tensors may refer to."""

    def __init__(self, path: Path) -> None:
        self.home = path.parent.resolve()
        self.homes = (self.home, path.resolve().parent)
        self.paths: dict[str, str] = {}
        """Location → resolved path."""
        self.opened: Files = {}

    def places(self, tensors: list[tuple[Any, str]]) -> list[Place]:
        """The location of each tensor's data. SourceError names the first tensor whose data cannot be located."""
        found = [self._place(tensor, where) for tensor, where in tensors]
        total = sum(place.nbytes for place in found)
        there = sum(file.facts.st_size for file in self.opened.values())
        if total > 2 * there + SHARED:
            what = f"its tensors have {total} bytes of external data in files of {there} bytes"
            raise SourceError(what, hint="store each tensor separately")
        return found

    def _place(self, tensor: Any, where: str) -> Place:
        try:
            entries = {each.key: each.value for each in tensor.external_data}
            if len(entries) < len(tensor.external_data):
                raise SourceError("states its external data twice", hint="the file is damaged; download it again")
            return self._checked(tensor, entries)
        except SourceError as error:
            raise error.at(where) from None

    def _checked(self, tensor: Any, entries: Mapping[str, str]) -> Place:
        location = entries.get("location", "")
        if not isinstance(location, str):  # protobuf returns bytes for a string that is not UTF-8
            raise SourceError(
                "the location of its external data is not text", hint="the file is damaged; download it again"
            )
        if location not in self.paths:
            self.paths[location] = self._open(location)
        path = self.paths[location]
        size = self.opened[path].facts.st_size
        needed = _needed(tensor)
        offset = _number(entries.get("offset", "0"))
        length = _number(entries["length"]) if "length" in entries else max(0, min(needed, size - offset))
        if offset + length > size:
            what = f"refers to bytes {offset} to {offset + length} of {location!r}, which has {size} bytes"
            raise SourceError(what, hint="the file is truncated; download it again")
        if length != needed:
            what = f"has {length} bytes, but its shape needs {needed}"
            raise SourceError(what, hint="the file is damaged; download it again")
        return Place(path, offset, length)

    def _open(self, location: str) -> str:
        """Open a file of external data and return its resolved path; SourceError if it is not allowed."""
        if not location:
            raise SourceError("its external data has no location", hint="the file is damaged; download it again")
        try:
            path = resolved(self.home / location)
            inside = not Path(location).is_absolute() and ".." not in Path(location).parts
            if not inside or not any(path.is_relative_to(home) for home in self.homes):
                hint = "external data must be in the folder of the model or below"
                raise SourceError(f"its external data {location!r} is outside the model's folder", hint=hint)
            opened = self.opened.get(str(path)) or Opened(path)
        except FileNotFoundError:
            raise SourceError(
                f"its external data {location!r} is missing", hint="put it next to the model, in a local folder"
            ) from None
        except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, a cycle of links, a zero byte
            full = hint_for(error)  # each stays open until the end
            what = f"its external data {location!r} {unreadable(error) if full else 'cannot be opened'}"
            raise SourceError(what, hint=full or "check its name and its permissions") from None
        found = opened.facts
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"its external data {location!r} is not a regular file", hint="replace it with one")
        if found.st_nlink > 1:
            what = f"its external data {location!r} has {found.st_nlink} hard links, and one may be outside the folder"
            raise SourceError(what, hint="replace it with a copy")
        if str(path) not in self.opened:
            self.opened[str(path)] = opened
            grow(found.st_size)
        return str(path)


def _number(text: str) -> int:
    """An offset or length, in ASCII digits only: programs disagree on blanks, underscores and other digits."""
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < DIGITS):
        raise SourceError("the offset or length of its external data is not a non-negative integer")
    return int(text)


def _needed(tensor: Any) -> int:
    """The number of bytes that shape and element type require."""
    import onnx_ir as ir

    check_rank(tensor.dims)
    try:
        bits = int(ir.DataType(tensor.data_type).bitwidth)
    except (TypeError, ValueError):
        raise SourceError(f"data of element type {tensor.data_type} cannot be in another file") from None
    if any(size < 0 for size in tensor.dims):
        raise SourceError(f"its shape is {list(tensor.dims)}")
    return int(-(-prod(tensor.dims) * bits // 8))


def check_rank(shape: Sized) -> None:
    """SourceError for more dimensions than a tensor has: each node would copy them, and their product has no limit."""
    if len(shape) > MAXIMUM_RANK:
        raise SourceError(f"has {len(shape):,} dimensions; a tensor has up to {MAXIMUM_RANK}")


def _name(tensor: Any, place: Place) -> None:
    del tensor.external_data[:]
    for key, value in (("location", place.path), ("offset", place.offset), ("length", place.nbytes)):
        tensor.external_data.add(key=key, value=str(value))


def _load(tensor: Any, place: Place, files: Files) -> None:
    tensor.raw_data = bytes(files[place.path].view(place.offset, place.nbytes))
    del tensor.external_data[:]
    tensor.ClearField("data_location")
