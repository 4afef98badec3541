"""Writing a `.qfb`: validated, canonical, in constant memory, and atomic.

A model is written in two passes over its data: the first takes the digests, which decide what is shared and where
everything lies; the second writes. So nothing is held, and the metadata can stand in front.
"""

from __future__ import annotations

import hashlib
import marshal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..arrays import blocks
from ..errors import DestinationError, QfmtError, ValidityError, VersionError
from ..model import Data, Model
from ..progress import BYTES, Progress, Steps
from ..rules import violations
from ..threads import on_threads
from ..urls import Named, place
from . import sharding, shards
from .copies import uploaded
from .decode import Record
from .encode import encode
from .header import ALIGNMENT, PAGE, round_up, seal
from .records import node_record, pair_records, quantization_record, tensor_record, value_record
from .replacing import NewFile, replacing_all
from .tensors import Tensors

_THREADS = 2
"""More would hold more arrays at once, where they are converted while they are read."""

_LARGE = 1 << 16
"""Bytes from which on an array is hashed by another thread: to hand over a smaller one takes longer."""

_MUCH = 1 << 23
"""Bytes of large arrays from which on there are threads: to import and start them takes as long as to hash less."""

_WITHOUT_REFERENCES = 2
"""The version of marshal in which equal values give equal bytes, however many references there are."""

FORMAT = "1.0"
"""The version of the format that every file states: nothing needs a later one yet."""

Name = tuple[str, str] | tuple[int, str, str]
"""Of an array: the name of a tensor, and which of its arrays it is, as `Tensor.stored` has it; or the number of a test
vector, "input" or "output", and the name of the tensor whose value it is."""


class Buffer(NamedTuple):
    """One buffer of the data segment, and where in it it lies."""

    data: Data
    offset: int
    sha256: bytes

    @property
    def end(self) -> int:
        return self.offset + self.data.nbytes


def save(
    model: Model,
    path: Named,
    *,
    target: str | None = None,
    shard_size: int | None = None,
    progress: Progress | None = None,
) -> list[int]:
    """Write a model as a `.qfb` file: equal models give equal bytes. The result has the bytes of each shard.

    The file appears under its name when it is complete: until then, and if anything fails, what was there before
    is untouched. `path` may be a URL (docs/archive.md, "URLs"). `target` is the version of the format that the readers
    of the file know, such as "1.0"; None is the one that this qfmt writes. A file states the lowest version that can
    express it, and this must not be a later one. With `shard_size`, arrays of more bytes in total go to shards: files
    beside it of at most so many bytes, or of one array. `progress(done, total)` is called as bytes are hashed and
    written.

    Raises ValidityError with every rule that the model breaks, VersionError if readers of `target` cannot read the
    file or the model is that of a file of a newer minor version, DestinationError if the file cannot be written.
    """
    return write(model, path, sharding.named_like, target=target, shard_size=shard_size, progress=progress)


def write(
    model: Model,
    path: Named,
    parts: Callable[[Path], Iterable[Path]] = lambda path: (),
    *,
    target: str | None = None,
    shard_size: int | None = None,
    progress: Progress | None = None,
    before_replacing: Callable[[BinaryIO], None] = lambda file: None,
) -> list[int]:
    """As `save`, but only the shards that `parts` lists for a path may be removed: by default none, for a caller that
    writes many files and calls `sharding.tidy` once. `before_replacing` gets the new file; if it raises an error,
    what was there before is untouched."""
    minor = _minor_version(FORMAT if target is None else target)
    held = model.graph.tensors
    if isinstance(held, Tensors) and held.minor_version > minor:
        what = f"cannot be written: its source has format 1.{held.minor_version}, of which this qfmt may not know all"
        raise VersionError(what, where=str(path), hint="copy the file as it is, or use a newer qfmt")
    if shard_size is not None and shard_size < 1:
        raise QfmtError(f"shard_size is {shard_size}", hint="it is a number of bytes, at least 1")
    if broken := violations(model):
        raise ValidityError(broken)
    stored = _stored(model)
    written = 2 * sum(data.nbytes for data in stored.values())  # hashing and writing a byte counts twice
    report = Steps("", written, BYTES, progress)
    with (
        uploaded(place(path)) as local,
        replacing_all(str(local), parts, sharding.unused) as (file, part),
    ):
        buffers, indices = _layout(stored, report)
        record = _model_record(model, buffers, indices, minor)
        end = buffers[-1].end if buffers else 0
        if shard_size is None or end <= shard_size:
            file.write(seal(*encode("Model", record), end))
            _pad(file, PAGE)
            _write(file, buffers, report)
        else:
            groups = _groups(buffers, shard_size)
            record["required_features"] = [shards.FEATURE]
            record["shards"] = [
                _write_shard(part(), group, number, len(groups), report) for number, group in enumerate(groups, 1)
            ]
            file.write(seal(*encode("Model", record), 0))
            _pad(file, PAGE)
        before_replacing(file)
    report.add(report.total - report.done)  # shared buffers were written once
    return [shard["size"] for shard in record.get("shards", ())]


def _write(file: BinaryIO | _Hashed, buffers: list[Buffer], report: Steps) -> None:
    """Write buffers to their places, from the end of the file on, which is aligned."""
    for buffer in buffers:
        _pad(file, ALIGNMENT)
        for block in blocks(buffer.data.view()):
            file.write(block)
            report.add(len(block))


def _groups(buffers: list[Buffer], shard_size: int) -> list[list[Buffer]]:
    """The buffers of each shard; a large one is alone."""
    groups: list[list[Buffer]] = [[]]
    for buffer in buffers:
        begin = groups[-1][0].offset if groups[-1] else 0
        if buffer.offset > begin and buffer.data.nbytes and round_up(buffer.end - begin, ALIGNMENT) > shard_size:
            groups.append([])
        groups[-1].append(buffer)
    return groups


def _write_shard(file: NewFile, buffers: list[Buffer], number: int, count: int, report: Steps) -> Record:
    """Write one of `count` shards, and give it its name; what the metadata say of it."""
    stream = _Hashed(file.stream)
    _write(stream, buffers, report)
    if number < count:
        _pad(stream, ALIGNMENT)
    name = sharding.name(file.target, number, count, sha256 := stream.digest.digest())
    if not shards.is_name(name):
        raise DestinationError(f"a shard cannot have the name {name!r}", where=str(file.target), hint="choose another")
    file.target = file.target.with_name(name)
    return {"name": name, "size": stream.tell(), "sha256": sha256}


class _Hashed:
    """A stream that is hashed while it is written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.tell, self.digest = stream, stream.tell, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self.digest.update(data)


def _minor_version(target: str) -> int:
    """The minor version that a file states; VersionError if readers of `target` do not know it."""
    major, minor = (int(part) for part in FORMAT.split("."))
    known = re.fullmatch(rf"{major}\.(\d{{1,9}})", target)
    if known is None or int(known[1]) < minor:
        raise VersionError(f"the format version {target!r} is not supported", hint=f"this qfmt writes {FORMAT}")
    return minor


def _stored(model: Model) -> dict[Name, Data]:
    """Every array in its canonical place: those of the tensors by name, then those of the test vectors."""
    stored: dict[Name, Data] = {}
    for name in sorted(model.tensors):
        stored.update(((name, part), data) for part, data in model.tensors[name].stored())
    for index, vector in enumerate(model.vectors):
        stored.update(((index, end, name), value.data) for end, name, value in vector.stored(model.graph))
    return stored


def _layout(stored: Mapping[Name, Data], report: Steps) -> tuple[list[Buffer], dict[Name, int]]:
    """The buffers in the order of the arrays that first use them, and which buffer holds which array."""
    buffers: list[Buffer] = []
    known: dict[tuple[bytes, int], int] = {}
    indices: dict[Name, int] = {}
    offset = 0
    for name, digest in _digests(stored, report):
        data = stored[name]
        if (digest, data.nbytes) not in known:
            known[digest, data.nbytes] = len(buffers)
            offset = round_up(offset, ALIGNMENT)
            buffers.append(Buffer(data, offset, digest))
            offset += data.nbytes
        indices[name] = known[digest, data.nbytes]
    return buffers, indices


def _digests(stored: Mapping[Name, Data], report: Steps) -> Iterator[tuple[Name, bytes]]:
    """The sha256 of every array, in their order."""
    large = [data for data in stored.values() if data.nbytes >= _LARGE]
    much = sum(data.nbytes for data in large) >= _MUCH
    with on_threads(_THREADS) if much else nullcontext(map) as apply:  # hashlib lets other threads run
        digests = apply(lambda data: data.sha256(), large)
        for name, data in stored.items():
            report.add(data.nbytes)
            yield name, next(digests) if data.nbytes >= _LARGE else data.sha256()


def _model_record(model: Model, buffers: list[Buffer], indices: Mapping[Name, int], minor: int) -> Record:
    graph = model.graph
    names = sorted(graph.tensors)
    quantizations: dict[bytes, Record] = {}
    tensors = []
    for name in names:
        tensor, shared = graph.tensors[name], None
        if tensor.quantization is not None:  # its bytes tell apart all that differs, as == does not: 0.0 and -0.0
            record = quantization_record(tensor.quantization, partial(_buffer, indices, name))
            shared = quantizations.setdefault(marshal.dumps(record, _WITHOUT_REFERENCES), record)
        tensors.append(tensor_record(tensor, indices.get((name, "")), shared))
    positions = {name: index for index, name in enumerate(names)} | {"": -1}
    return {
        "minor_version": minor,
        "graph": {
            "tensors": tensors,
            "nodes": [node_record(node, positions) for node in graph.nodes],
            "inputs": [positions[name] for name in graph.inputs],
            "outputs": [positions[name] for name in graph.outputs],
            "name": graph.name or None,
        },
        "buffers": [{"offset": at.offset, "size": at.data.nbytes, "sha256": at.sha256} for at in buffers],
        "producer": model.producer or None,
        "engine": model.engine or None,
        "source": pair_records(model.source),
        "metadata": pair_records(model.metadata),
        "vectors": [_vector_record(number, model, indices) for number in range(len(model.vectors))] or None,
    }


def _buffer(indices: Mapping[Name, int], name: str, part: str) -> int:
    return indices[name, part]


def _vector_record(number: int, model: Model, indices: Mapping[Name, int]) -> Record:
    vector = model.vectors[number]
    values: dict[str, list[Record]] = {"input": [], "output": []}
    for end, name, value in vector.stored(model.graph):
        values[end].append(value_record(value, indices[number, end, name]))
    return {
        "name": vector.name or None,
        "inputs": values["input"],
        "outputs": values["output"],
        "digests": vector.digests or None,
    }


def _pad(file: BinaryIO | _Hashed, multiple: int) -> None:
    position = file.tell()
    file.write(bytes(round_up(position, multiple) - position))
