"""Opening a `.qfb`: the header and the digest of the metadata are checked, the rest waits until it is asked for.

Tensors and nodes are decoded one by one and checked as they are (`decode.py`, rules V1–V29); their data is mapped,
not read, and its digest verified at the first use. So opening takes as long for a gigabyte as for a megabyte.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import DigestError, FormatError, QfmtError, ValidityError, VersionError, some
from ..model import Data, Graph, Model, Node, Quantization, StoredArray, Tensor, Vector
from ..regular import irregular, refusal
from ..rules import tensor_violations, vector_violations
from . import header
from .decode import Decoder, Record, Tables
from .decoded import Decoded, Placed
from .records import attribute_value, dtype_name, quantization, shape, sorted_map

_HASHED = 8
"""How many times over the data may be hashed: once by each of some threads that all begin with the same buffer."""


def load(path: str | os.PathLike[str], *, verify: bool = True) -> Model:
    """The model in a `.qfb` file, memory-mapped: tensors, nodes and arrays are read when they are used.

    Checks levels 1 and 2 of docs/checking.md, and 3 of each tensor, as they are read. `verify=False` skips the digests
    (not the checks of structure). The model stays as it is when the file is
    replaced by renaming another over it; it does not survive a change of the file in place.

    Raises MissingFileError, or FormatError (its subclasses DigestError, VersionError, ValidityError) for a file that
    cannot be read: here, or where the broken part is first used.
    """
    return Container(path, verify=verify).model()


def _other_kind(path: Path) -> str:
    """What a file that is not a `.qfb` is, and what to do about it."""
    from ..frontends.sources import sniff

    try:
        kind = sniff(path)
    except QfmtError as error:
        return str(error)
    if kind.key == "unknown":
        return "create one with `qfmt convert`"
    return f"it is {kind}; {'try `qfmt convert`' if kind.source else kind.hint}".removesuffix("; ")


class Container:
    """An open file: its header checked, its metadata verified and ready to be decoded, its data mapped."""

    def __init__(self, path: str | os.PathLike[str], *, verify: bool) -> None:
        self.where = os.fsdecode(path)
        self.verify = verify
        self.verified: set[int] = set()
        self.hashed = 0
        self.placed = Placed(self.where)
        with self.placed:
            self._open()
            self.root = Decoder(self.metadata, "Model", start=self.header.header_size).root()
            self._check_version()
        self.buffers: Tables = self.root["buffers"]
        self._spans: dict[int, Span] = {}
        self.tensors = Tensors(self, self.root["graph"]["tensors"])
        self._quantizations: dict[int, Quantization] = {}

    def _open(self) -> None:
        """Map the file and read its metadata, which is copied: what has been verified cannot change any more."""
        path = Path(self.where)
        try:
            if what := irregular(path):
                raise FormatError(what)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(header.SIZE)
                if not header.is_qfb(head):
                    raise FormatError("is not a .qfb file", hint=_other_kind(path), rule="F1")
                self.header = header.parse(head, size)
                rest = file.read(self.header.data_offset - header.SIZE)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise refusal(error, FormatError) from None
        self.metadata = head + rest[: self.header.meta_size - header.SIZE]
        if self.verify:
            header.check_digest(self.header, self.metadata)
        header.check_padding(rest[len(self.metadata) - header.SIZE :])
        self._data: memoryview | None = memoryview(mapped)[self.header.data_offset : self.header.file_size]

    @property
    def data(self) -> memoryview:
        """The data segment, mapped; QfmtError if the file was closed."""
        if self._data is None:
            raise QfmtError("the file was closed before this was read", where=self.where)
        return self._data

    def close(self) -> None:
        """Unmap the data as soon as no array uses it."""
        self._data = None

    def _check_version(self) -> None:
        if features := self.root["required_features"]:
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
        nodes = Decoded(graph["nodes"], self.node, self.placed, "node")
        lazy = Graph(inputs, outputs, nodes, self.tensors, graph["name"] or "")
        described = Model(lazy, root["producer"] or "", root["engine"] or "", source, metadata)
        if root["vectors"] is None:
            return described
        vectors = Decoded(root["vectors"], lambda record: self.vector(record, lazy), self.placed, "test vector")
        return described.replace(vectors=vectors)

    def pairs(self, field: str) -> Iterator[tuple[str, str]]:
        """A map of the root, as the file has it."""
        return ((pair["key"], pair["value"]) for pair in self.root[field] or ())

    def names(self, indices: Iterable[int]) -> tuple[str, ...]:
        """The names of tensors; the empty one for -1."""
        return tuple("" if index == -1 else self.tensors.name(index) for index in indices)

    def node(self, record: Record) -> Node:
        return Node(
            record["operator"],
            self.names(record["inputs"]),
            self.names(record["outputs"]),
            sorted_map((attribute["name"], attribute_value(attribute)) for attribute in record["attributes"] or ()),
            record["name"] or "",
            record["version"],
            record["rule"] or "",
            record["scope"] or "",
            record["source_operator"] or "",
        )

    def tensor(self, record: Record) -> Tensor:
        """A tensor, after a check of the rules V1–V29."""
        name, sizes = record["name"], shape(record)
        tensor = Tensor(
            name,
            dtype_name(record["dtype"]),
            sizes,
            None if record["buffer"] is None else self.buffer(record["buffer"], _tensor(name)),
            None if record["quantization"] is None else self.quantization(record["quantization"], name),
            record["aliases"] or (),
        )
        if broken := tensor_violations(tensor):
            raise ValidityError(broken, in_file=True)
        return tensor

    def vector(self, record: Record, graph: Graph) -> Vector:
        """A test vector, after a check of the rules V50 and V51."""
        inputs = self.values(record["inputs"], graph.inputs, "inputs")
        outputs = self.values(record["outputs"], graph.outputs, "outputs")
        vector = Vector(inputs, outputs, record["name"] or "")
        if broken := vector_violations(vector, graph):
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
        data = self.buffer(record["buffer"], f"the value of {name!r} in a test vector")
        return StoredArray(self.tensors[name].dtype, record["shape"], data)

    def quantization(self, record: Record, name: str) -> Quantization:
        """One object for all tensors that share a record, which the decoder keeps."""
        if id(record) not in self._quantizations:
            self._quantizations[id(record)] = quantization(record, lambda index: self.buffer(index, _tensor(name)))
        return self._quantizations[id(record)]

    def buffer(self, index: int, place: str) -> Stored:
        """The data at `place` in the model, which is inside the data segment."""
        if index >= len(self.buffers):
            raise FormatError(f"there is no buffer {index}, only {len(self.buffers)}", where=place, rule="F7")
        if index not in self._spans:
            record = self.buffers[index]
            self._spans[index] = Span(record["offset"], record["size"], record["sha256"])
        offset, size, digest = self._spans[index]
        if offset % header.ALIGNMENT or offset + size > len(self.data):
            raise FormatError(f"buffer {index} ({size} bytes at {offset}) is not inside the data", rule="F8")
        return Stored(self, index, offset, size, digest, place)


def _tensor(name: str) -> str:
    """Where data is that belongs to a tensor."""
    return f"tensor {name!r}"


class Span(NamedTuple):
    """Where a buffer lies in the data segment, in bytes, and the sha256 of its bytes."""

    offset: int
    size: int
    sha256: bytes


class Stored(Data):
    """Bytes in the data segment of an open file; their digest is verified when they are first used."""

    __slots__ = ("_container", "_place", "digest", "index", "offset")

    def __init__(self, container: Container, index: int, offset: int, size: int, digest: bytes, place: str) -> None:
        self._container = container
        self.index = index
        self.offset = offset
        self.digest = digest
        self._place = place
        self.nbytes = size

    def view(self) -> memoryview:
        """All bytes, zero-copy; DigestError if they are not those that were written."""
        container = self._container
        view = container.data[self.offset : self.offset + self.nbytes]
        if container.verify and self.index not in container.verified:
            container.hashed += self.nbytes
            if container.hashed > _HASHED * len(container.data):
                raise FormatError("buffers overlap", where=f"{container.where}: {self._place}", rule="F8")
            if not self.is_intact():
                place = f"{container.where}: {self._place}"
                what = "the data is damaged: its sha256 differs from the one stated"
                raise DigestError(what, where=place, hint=header.AGAIN, rule="F9")
            container.verified.add(self.index)
        return view

    def is_intact(self) -> bool:
        """Whether the bytes have the digest that the metadata states."""
        view = self._container.data[self.offset : self.offset + self.nbytes]
        return hashlib.sha256(view).digest() == self.digest

    def sha256(self) -> bytes:
        if not self._container.verify:
            return super().sha256()
        self.view()
        return self.digest


class Tensors(Mapping[str, Tensor]):
    """The tensors of a file by name, in the order of their names; each is decoded when it is asked for."""

    __slots__ = ("_container", "_indices", "_names", "_tables", "_tensors")

    def __init__(self, container: Container, tables: Tables) -> None:
        self._container = container
        self._tables = tables
        self._names: dict[int, str] = {}
        self._indices: dict[str, int] = {}
        self._tensors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            with self._container.placed:
                name = self.name(index)
            yield name

    def __contains__(self, name: object) -> bool:
        with self._container.placed:
            return isinstance(name, str) and self._index(name) is not None

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            with self._container.placed:
                index = self._index(name)
                if index is None:
                    raise KeyError(name)
                self._tensors[name] = self._container.tensor(self._tables[index])
        return self._tensors[name]

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {self._container.where}>"

    def __reduce__(self) -> tuple[type, tuple[dict[str, Tensor]]]:
        """A copy, or a pickle, does not depend on the file."""
        return dict, (dict(self),)

    def close(self) -> None:
        """See `Model.close`."""
        self._container.close()

    def name(self, index: int) -> str:
        """The name of the tensor at an index, which from then on is found under it; FormatError if there is none."""
        if index not in self._names:
            if not 0 <= index < len(self):
                raise FormatError(f"there is no tensor {index}, only {len(self)}", rule="F7")
            name = self._tables.string_field(index, "name")
            if self._indices.setdefault(name, index) != index:
                raise FormatError(f"two tensors have the name {name!r}", rule="F11")
            self._names[index] = name
        return self._names[index]

    def _index(self, name: str) -> int | None:
        """Where a tensor is, found by halves: the names are sorted, in a valid file."""
        low, high = 0, len(self)
        while name not in self._indices and low < high:
            middle = (low + high) // 2
            if self.name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return self._indices.get(name)
