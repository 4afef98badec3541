"""Opening a `.qfb`: the header and the digest of the metadata are checked, the rest waits until it is asked for.

Tensors and nodes are decoded one by one and checked as they are (`decode.py`, rules V1–V25); where many arrays are
asked for, they are found in columns (`columns.py`). Their data is mapped, not read, and its digest verified at the
first use. So opening takes as long for a gigabyte as for a megabyte.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..arrays import Found, blocks
from ..errors import DigestError, FormatError, QfmtError, ValidityError, VersionError, some
from ..model import Data, Graph, Model, Node, Quantization, StoredArray, Tensor, Vector
from ..progress import BYTES, Progress, Steps
from ..rules import digested_count, form_violations, is_name, quantization_violations, vector_violations
from ..threads import Turns, on_threads
from ..urls import Named, Place, Url, place
from . import header, shards
from .decode import Decoder, Record, Tables
from .decoded import Decoded, Placed
from .opened import opened
from .records import attribute_value, dtype_name, proof, quantization, shape, sorted_map
from .tensors import DecodedTensor, Tensors

if TYPE_CHECKING:
    from .columns import Constant
    from .remote import Fetched

_HASHED = 8
"""How many times over the data may be hashed: buffers of a hostile file overlap, or are damaged and asked for again."""


_BATCH = 1 << 20
"""Bytes that are verified between two reports of progress, or more."""


def load(path: Named, *, verify: bool | Literal["all"] = True, progress: Progress | None = None) -> Model:
    """The model in a `.qfb` file, memory-mapped: tensors, nodes and arrays are read when they are used.

    `path` may be a URL (docs/archive.md, "URLs"): each array is then fetched when it is used first.

    Checks levels 1 and 2 of docs/checking.md, and level 3 of each tensor, as they are read.

    `verify` says when digests are compared: `True`, that of the metadata now and that of each array at its first use;
    `"all"`, all of them now, on all processors, with calls of `progress(done, total)` that count bytes; `False`, none.
    The structure is checked in any case: of a tensor when it is used, of its quantization when that is used.

    The model stays as it is when the file is replaced by renaming another over it; it does not survive a change of
    the file in place.

    Raises MissingFileError, or FormatError (its subclasses DigestError, VersionError, ValidityError) for a file that
    cannot be read, RemoteError for a URL: here, or where the broken part is first used.
    """
    if verify not in (True, False, "all"):
        raise QfmtError(f"verify is {verify!r}", hint='it is True, False or "all"')
    container = Container(path, verify=bool(verify))
    if verify == "all":
        container.verify_all(progress)
    return container.model()


def _other_kind(place: Place) -> str:
    """What a file that is not a `.qfb` is, and what to do about it."""
    from ..frontends.sources import sniff

    if isinstance(place, Url):  # the hint is not worth the transfer of all of it
        return "if it is of another format, try `qfmt convert`"
    try:
        kind = sniff(place)
    except QfmtError as error:
        return str(error)
    if kind.key == "qfb":
        return f"it ends in the first 8 bytes; {header.AGAIN}"
    if kind.key == "unknown":
        return "create one with `qfmt convert`"
    return f"it is {kind}; {'try `qfmt convert`' if kind.source else kind.hint}".removesuffix("; ")


Segment: TypeAlias = "memoryview | Fetched | shards.Shards"
"""The data segment: in the file itself, local or remote, or in others."""


class Container:
    """An open file: its header checked, its metadata verified and ready to be decoded, its data mapped."""

    def __init__(self, path: Named, *, verify: bool) -> None:
        self.place = place(path)
        self.where = str(self.place)
        self.verify = verify
        self._verified = defaultdict[int, set[int]](set)
        self.hashed, self.hashing = 0, set[int]()
        self.turns, self.placed = Turns(), Placed(self.where)
        with self.placed:
            self._decoder = Decoder(self._open(), "Model", start=self.header.header_size)
            self.root = self._decoder.root()
            self._check_version()
            self._open_shards()
        self.buffers: Tables = self.root["buffers"]
        self._spans: dict[int, Span] = {}
        self.known: dict[tuple[int, Hashable], Any] = {}
        """What `Data.once` keeps, by buffer."""
        self.tensors = Tensors(self, self.root["graph"]["tensors"])
        self._quantizations: dict[int, tuple[Record, Quantization]] = {}
        self._sound: set[str] = set()

    @property
    def verified(self) -> set[int]:
        """The buffers whose digests were verified. A forked process fetches and verifies a remote file again."""
        return self._verified[os.getpid() if isinstance(self.place, Url) else 0]

    def _open(self) -> bytes:
        """Map the file and read its metadata, which is copied: what has been verified cannot change any more."""
        with opened(self.place) as file:
            head = file.read(0, header.SIZE)
            if not header.is_qfb(head):
                raise FormatError("is not a .qfb file", hint=_other_kind(self.place), rule="F1")
            self.header = header.parse(head, file.size)
            metadata = file.read(0, self.header.meta_size)
            padding = file.read(self.header.meta_size, self.header.data_offset - self.header.meta_size)
            self._data: Segment | None = file.data(self.header.data_offset, self.header.file_size)
        if metadata[: header.SIZE] != head:
            raise FormatError("was changed while it was read", hint=header.AGAIN)
        if self.verify:
            header.check_digest(self.header, metadata)
        header.check_padding(padding)
        return metadata

    @property
    def metadata(self) -> bytes:
        """The metadata with the header."""
        return self._decoder.data

    def let_go(self) -> None:
        """Keep no copy of the metadata if only arrays were asked for so far. To read it again verifies it again."""
        if self.verify and not self._quantizations:
            self._decoder.let_go(self._metadata_again)

    def _metadata_again(self) -> bytes:
        """The verified metadata, from the mapped file; FormatError if the file has changed."""
        mapped = self.data.obj if isinstance(self.data, memoryview) else None
        assert isinstance(mapped, mmap.mmap)
        if mapped.size() < self.header.file_size:  # to read what is not there ends the process
            raise FormatError("was changed while it was read", hint=header.AGAIN)
        metadata = mapped[: self.header.meta_size]
        header.check_digest(self.header, metadata)
        return metadata

    def _open_shards(self) -> None:
        """Have the data from the shards, if there are any."""
        if found := shards.stated(self.root["shards"] or (), self.header.data_size):
            self._data = shards.Shards(self.place, found)
        if bool(found) != (shards.FEATURE in (self.root["required_features"] or ())):
            raise FormatError(f"has {len(found)} shards, but its features do not say so", rule="F14")

    @property
    def data(self) -> Segment:
        """The data segment as bytes that can be sliced; QfmtError if the file was closed."""
        if self._data is None:
            raise QfmtError("the file was closed before this was read", where=self.where)
        return self._data

    def fetch_all(self) -> None:
        """Of a remote file, fetch what is left of it at once."""
        if not isinstance(self.data, memoryview):
            self.data.fetch_all()

    def close(self) -> None:
        """Unmap the data as soon as no array uses it."""
        self._data = None

    def verify_all(self, progress: Progress | None = None) -> None:
        """Verify the digests of all buffers, on all processors; DigestError for one that is damaged."""
        with self.turns.lock, self.placed:
            stored = [self.buffer(index, "buffer {}", str(index)) for index in range(len(self.buffers))]
        self.fetch_all()
        steps = Steps("comparing digests", sum(data.nbytes for data in stored), BYTES, progress)
        with on_threads(processors()) as apply:  # hashlib lets other threads run
            for size in apply(_verify, _batches(stored)):
                steps.add(size)

    def _check_version(self) -> None:
        if features := [name for name in self.root["required_features"] or () if name != shards.FEATURE]:
            raise VersionError(
                f"requires features that this reader does not support: {some(features)}",
                hint="a newer qfmt is needed",
                rule="F10",
            )

    def model(self) -> Model:
        """The model; what is slow about it is decoded later."""
        root, graph = self.root, self.root["graph"]
        with self.placed:
            inputs, outputs = self.names(graph["inputs"]), self.names(graph["outputs"])
            source, metadata = (sorted_map(self.pairs(field)) for field in ("source", "metadata"))
        nodes = Decoded(graph["nodes"], self.node, self.turns, self.placed, "node")
        lazy = Graph(inputs, outputs, nodes, self.tensors, graph["name"] or "")
        described = Model(lazy, root["producer"] or "", root["engine"] or "", source, metadata)
        if root["vectors"] is None:
            return described
        digested = cache(partial(digested_count, lazy))

        def vector(record: Record) -> Vector:
            return self.vector(record, lazy, digested)

        vectors = Decoded(root["vectors"], vector, self.turns, self.placed, "test vector")
        return described.replace(vectors=vectors)

    def pairs(self, field: str) -> Iterator[tuple[str, str]]:
        """A map of the root, as the file has it."""
        return ((pair["key"], pair["value"]) for pair in self.root[field] or ())

    def names(self, indices: Iterable[int]) -> tuple[str, ...]:
        """The names of tensors."""
        return tuple(map(self.tensors.name, indices))

    def node(self, record: Record) -> Node:
        return Node(
            record["operator"],
            tuple("" if index == -1 else self.tensors.name(index) for index in record["inputs"]),
            self.names(record["outputs"]),
            sorted_map((attribute["name"], attribute_value(attribute)) for attribute in record["attributes"] or ()),
            record["name"] or "",
            record["version"],
            record["rule"] or "",
            record["scope"] or "",
            record["source_operator"] or "",
            record["proof"] and proof(record["proof"]),
        )

    def decode(self, tensor: DecodedTensor, record: Record) -> None:
        """Give a tensor its fields but the quantization, after a check of the rules V1–V10."""
        name, dtype, sizes = record["name"], dtype_name(record["dtype"]), shape(record)
        data = None if record["buffer"] is None else self.buffer(record["buffer"], _TENSOR, name)
        aliases = record["aliases"] or ()
        form = f"{dtype} {sizes} {data and data.nbytes}"  # a file can choose shapes with one hash, but not texts
        if aliases or not is_name(name) or form not in self._sound:
            if broken := form_violations(Tensor(name, dtype, sizes, data, None, aliases)):
                raise ValidityError(broken, in_file=True)
            self._sound.add(form)
        tensor.fill(name=name, dtype=dtype, shape=sizes, data=data, aliases=aliases)

    def quantization_of(self, tensor: Tensor, record: Record | None) -> Quantization | None:
        """The quantization of a tensor, after a check of the rules V5 and V20–V25."""
        found = None if record is None else self.quantization(record, tensor.name)
        if found and (broken := quantization_violations(tensor, found)):
            raise ValidityError(broken, in_file=True)
        return found

    def verify_constant(self, constant: Constant) -> None:
        """Verify the digest of an array that was found in columns, as `Stored.view` does."""
        size, name = prod(constant.shape) * constant.dtype.itemsize, self.tensors.name(constant.tensor)
        Stored(self, constant.buffer, constant.offset, size, constant.sha256, _TENSOR, name).view()

    def vector(self, record: Record, graph: Graph, digested: Callable[[], int]) -> Vector:
        """A test vector, after a check of the rules V50, V51 and V70."""
        inputs = self.values(record["inputs"], graph.inputs, "inputs")
        outputs = self.values(record["outputs"], graph.outputs, "outputs")
        vector = Vector(inputs, outputs, record["name"] or "", bytes(record["digests"] or b""))
        if broken := vector_violations(vector, graph, digested):
            raise ValidityError(broken, in_file=True)
        return vector

    def values(self, records: Tables, names: Sequence[str], end: str) -> dict[str, StoredArray]:
        """The values of one end of the graph by the names of its tensors."""
        if len(records) != len(names):
            raise FormatError(f"{len(records)} {end}, but the graph has {len(names)}", rule="V50")
        given: dict[str, Record] = {}
        for name, record in zip(names, records, strict=True):
            if given.setdefault(name, record) != record:
                raise FormatError(f"{name!r} has two values", rule="V50")
        return {name: self.value(name, record) for name, record in given.items()}

    def value(self, name: str, record: Record) -> StoredArray:
        """What the tensor `name` is in a test vector."""
        if name not in self.tensors:  # an end of the graph whose index is -1
            raise FormatError(f"{name!r} is not a tensor of the graph", rule="V50")
        if record["buffer"] is None:
            raise FormatError(f"{name!r} has no buffer", rule="F12")
        data = self.buffer(record["buffer"], "the value of {!r} in a test vector", name)
        return StoredArray(self.tensors[name].dtype, record["shape"], data)

    def quantization(self, record: Record, name: str) -> Quantization:
        """One object for all tensors that share a record. It is kept, too: another one must not get its identity."""
        if id(record) not in self._quantizations:
            made = quantization(record, lambda index: self.buffer(index, _TENSOR, name))
            self._quantizations[id(record)] = record, made
        return self._quantizations[id(record)][1]

    def buffer(self, index: int, place: str, name: str) -> Stored:
        """The data at `place` in the model, which is inside the data segment; `name` is that of its tensor."""
        if index not in self._spans:
            if index >= len(self.buffers):
                what = f"there is no buffer {index}, only {len(self.buffers)}"
                raise FormatError(what, where=place.format(name), rule="F7")
            record = self.buffers[index]
            offset, size = record["offset"], record["size"]
            if offset % header.ALIGNMENT or offset + size > len(self.data):
                raise FormatError(f"buffer {index} ({size} bytes at {offset}) is not inside the data", rule="F8")
            if isinstance(self.data, shards.Shards) and not self.data.holds(offset, size):
                raise FormatError(f"buffer {index} ({size} bytes at {offset}) is not inside one shard", rule="F14")
            self._spans[index] = Span(offset, size, record["sha256"])
        return Stored(self, index, *self._spans[index], place, name)


_TENSOR = "tensor {!r}"
"""Where data is that belongs to a tensor."""


class Span(NamedTuple):
    """Where a buffer lies in the data segment, in bytes, and the sha256 of its bytes."""

    offset: int
    size: int
    sha256: bytes


class Stored(Data):
    """Bytes in the data segment of an open file; their digest is verified when they are first used."""

    __slots__ = ("_container", "_name", "_place", "digest", "index", "offset")

    def __init__(
        self, container: Container, index: int, offset: int, size: int, digest: bytes, place: str, name: str
    ) -> None:
        self._container = container
        self.index = index
        self.offset = offset
        self.digest = digest
        self._place, self._name = place, name
        self.nbytes = size

    def view(self) -> memoryview:
        """All bytes, zero-copy; DigestError if they are not those that were written."""
        container, view = self._container, self._bytes()
        if container.verify and self.index not in container.verified:
            if self.index not in container.hashing:  # by another thread: however many there are, it counts once
                container.hashing.add(self.index)
                container.hashed += self.nbytes
            if container.hashed > _HASHED * len(container.data):
                raise FormatError("buffers overlap", where=self.place, rule="F8")
            if not self._are_intact(view):
                container.hashing.discard(self.index)
                what = "the data is damaged: its sha256 differs from the one stated"
                raise DigestError(what, where=self.place, hint=header.AGAIN, rule="F9")
            container.verified.add(self.index)
        return view

    def once(self, what: Hashable, find: Callable[[], Found]) -> Found:
        known = self._container.known
        if (self.index, what) not in known:
            known[self.index, what] = find()
        found: Found = known[self.index, what]
        return found

    @property
    def place(self) -> str:
        """The file, and where in the model the bytes are."""
        return f"{self._container.where}: {self._place.format(self._name)}"

    def is_intact(self) -> bool:
        """Whether the bytes have the digest that the metadata states."""
        return self._are_intact(self._bytes())

    def _bytes(self) -> memoryview:
        return self._container.data[self.offset : self.offset + self.nbytes]

    def _are_intact(self, view: memoryview) -> bool:
        digest = hashlib.sha256()
        for block in blocks(view):
            digest.update(block)
        return digest.digest() == self.digest

    def sha256(self) -> bytes:
        if not self._container.verify:
            return super().sha256()
        self.view()
        return self.digest


def _batches(stored: Iterable[Stored]) -> Iterator[list[Stored]]:
    """Data in parts of some size: to hand a small one to a thread takes longer than to hash it."""
    batch, size = [], 0
    for data in stored:
        batch.append(data)
        size += data.nbytes
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _verify(batch: Sequence[Stored]) -> int:
    """Verify some data; its bytes."""
    for data in batch:
        data.view()
    return sum(data.nbytes for data in batch)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
