"""Reads untrusted zip archives: nothing is extracted to disk; uncompressed entries are read in place.

Programs disagree on archives that no program writes: with something before, between or after their parts, with a
directory that is elsewhere than stated, or with names that an extra field replaces. Python's `zipfile` reads them in
another way than PyTorch. So this reader accepts only what all read alike (PKWARE's APPNOTE.TXT, sections 4.3 and 4.5).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import reduce
from os import PathLike
from typing import NamedTuple

from ..arrays import blocks
from ..budget import Budget
from ..errors import BudgetError, SourceError, damaged
from ..regular import mapped, refusal
from .stored import Storage

DIRECTORY = 8
"""Bytes of memory per byte of the central directory, in which an entry has 46 bytes and a name."""

_AGAIN = "the file is damaged; download it again"

LOCAL, _CENTRAL, END, _LOCATOR64, _END64 = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
"""The first bytes of each header: of an entry, of its place in the directory, and of the three ends."""

_LOCAL_HEADER = 30
_CENTRAL_HEADER, _END_HEADER = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s4H2LH")
_LOCATOR64_HEADER, _END64_HEADER = struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")

_TAIL = (1 << 16) + 22
"""The last bytes of an archive, in which its end is."""

_IN_EXTRA = 0xFFFFFFFF
"""A size or offset that is in the extra field, which has the number 1."""

STORED, DEFLATED = 0, 8
"""The compression methods."""


class Entry(NamedTuple):
    """An entry of the directory."""

    name: str
    flags: int
    method: int
    checksum: int
    stored_size: int
    """Bytes in the archive."""
    size: int
    """Bytes of the contents."""
    offset: int
    """The place of its own header."""


class _Read:
    """The bytes of a file, each part read when it is needed. SourceError for a part that cannot be read."""

    def __init__(self, path: str | PathLike[str]) -> None:
        try:
            self._file = open(path, "rb")  # noqa: PTH123, SIM115  (closed with the object)
            self._size = self._file.seek(0, 2)
        except (OSError, ValueError) as error:
            raise refusal(error, SourceError) from None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        begin, end, _ = part.indices(self._size)
        try:
            self._file.seek(begin)
            return memoryview(self._file.read(max(end - begin, 0)))
        except OSError as error:
            raise refusal(error, SourceError) from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class Zip:
    """A zip archive, on disk or as bytes. `entries` maps names to directory entries.

    `budget` limits the cost of the conversion; None: in proportion to its size. If it is not `is_mapped`, it is read: a
    bad sector under a mapping would end the process.
    """

    def __init__(
        self, source: str | PathLike[str] | bytes, budget: Budget | None = None, *, is_mapped: bool = True
    ) -> None:
        self._map: memoryview | _Read
        if isinstance(source, bytes):
            self._map = memoryview(source)
        else:
            self._map = memoryview(mapped(source)) if is_mapped else _Read(source)
        self.budget = budget or Budget(len(self._map))
        try:
            listed = list(_directory(self._map, self.budget))
        except (struct.error, LookupError, ValueError):
            hint = "it is truncated or damaged; download it again"
            raise SourceError("is not a complete zip archive", hint=hint) from None
        self.entries: Mapping[str, Entry] = {entry.name: entry for entry in listed}
        if len(self.entries) != len(listed):
            raise SourceError(
                "the zip archive has two entries with the same name", hint="the file is damaged or malicious"
            )
        if sum(entry.stored_size for entry in listed) > len(self._map):  # to read each would take quadratic time
            what = "the entries of the zip archive overlap, or extend beyond the end of the file"
            raise SourceError(what, hint="the file is damaged or malicious")
        self._verified: set[str] = set()

    def read(self, name: str, limit: int | None = None) -> bytes:
        """The contents of an entry, at most `limit` bytes; its checksum is verified."""
        data = self.view(name, limit)
        try:
            self.budget.allocate(len(data))  # a file may refer to one entry many times
        except BudgetError as error:
            raise error.at(name) from None
        return bytes(data)

    def view(self, name: str, limit: int | None = None) -> memoryview:
        """The same, without a copy if the entry is uncompressed. The view remains valid without the archive.

        The checksum is verified at the first use: many tensors may be in one entry.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise damaged("the archive lacks this entry", where=name)
        if limit is not None and entry.size > limit:
            raise SourceError(f"{entry.size} bytes are more than is allowed here ({limit})", where=name)
        if entry.flags & 1:
            raise SourceError("the entry is encrypted", where=name)
        if entry.method == STORED:
            if entry.stored_size != entry.size:
                what = f"the entry is not compressed, but states {entry.stored_size} bytes for {entry.size}"
                raise SourceError(what, where=name, hint=_AGAIN)
            data = self._raw(entry)
        elif entry.method == DEFLATED:
            data = self._inflated(entry)
        else:
            what = f"zip compression method {entry.method} is not supported"
            raise SourceError(what, where=name, hint="write the archive without compression, or with deflate")
        if entry.checksum and name not in self._verified and reduce(_continued, blocks(data), 0) != entry.checksum:
            raise _damaged(entry)
        self._verified.add(name)
        return data

    def _raw(self, entry: Entry) -> memoryview:
        """The stored bytes of an entry, compressed or not."""
        start = entry.offset + _LOCAL_HEADER
        header = self._map[entry.offset : start]
        if len(header) != _LOCAL_HEADER or header[:4] != LOCAL:
            raise SourceError(
                "the entry is not where the directory of the archive states", where=entry.name, hint=_AGAIN
            )
        start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        data = self._map[start : start + entry.stored_size]
        if len(data) != entry.stored_size:
            raise SourceError("the entry extends beyond the end of the file", where=entry.name, hint=_AGAIN)
        return data

    def _inflated(self, entry: Entry) -> memoryview:
        try:
            self.budget.allocate(entry.size)
        except BudgetError as error:
            raise error.at(entry.name) from None
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(self._raw(entry), entry.size + 1)
        except zlib.error:
            raise _damaged(entry) from None
        if len(data) != entry.size:
            raise _damaged(entry)
        return memoryview(data)


def _directory(archive: memoryview | _Read, budget: Budget) -> Iterator[Entry]:
    """The entries of an archive. Raises struct.error, LookupError or ValueError if it is damaged."""
    begin, end, count = _place_of_directory(archive)
    budget.spend((end - begin) // 4)
    budget.allocate(DIRECTORY * (end - begin))
    at = begin
    for _ in range(count):  # one header after the other: a sparse file may state a directory that is larger than memory
        magic, _, _, flags, method, _, _, checksum, stored_size, size, name, extra, comment, disk, _, _, offset = (
            _CENTRAL_HEADER.unpack(archive[at : at + _CENTRAL_HEADER.size])
        )
        begin, at = at + _CENTRAL_HEADER.size, at + _CENTRAL_HEADER.size + name + extra + comment
        if magic != _CENTRAL or disk or at > end:
            raise ValueError
        fields = archive[begin : begin + name + extra]
        size, stored_size, offset = _large((size, stored_size, offset), fields[name:])
        yield Entry(bytes(fields[:name]).decode("utf-8", "replace"), flags, method, checksum, stored_size, size, offset)
    if at != end:
        raise ValueError


def _place_of_directory(archive: memoryview | _Read) -> tuple[int, int, int]:
    """Where the directory begins and ends, and how many entries it has."""
    start = max(len(archive) - _TAIL, 0)
    end = start + bytes(archive[start:]).rindex(END)
    _, disk, first_disk, here, count, size, begin, _ = _END_HEADER.unpack(archive[end : end + _END_HEADER.size])
    locator = end - _LOCATOR64_HEADER.size
    if archive[max(locator, 0) :][:4] == _LOCATOR64:
        _, of_end, end, disks = _LOCATOR64_HEADER.unpack(archive[locator : locator + _LOCATOR64_HEADER.size])
        header = archive[end : end + _END64_HEADER.size]
        magic, _, _, _, disk, first_disk, here, count, size, begin = _END64_HEADER.unpack(header)
        if magic != _END64 or end + _END64_HEADER.size != locator or of_end or disks > 1:
            raise ValueError
    if disk or first_disk or here != count or begin + size != end or archive[:4] not in (LOCAL, END):
        raise ValueError
    return begin, end, count


def _large(sizes: tuple[int, ...], extra: memoryview) -> tuple[int, ...]:
    """Sizes and offset, those of 64 bits from the extra field."""
    if _IN_EXTRA not in sizes:
        return sizes
    at, kind, length = 0, 0, -4
    while kind != 1:
        at += 4 + length
        kind, length = struct.unpack_from("<2H", extra, at)
    numbers = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
    return tuple(next(numbers, size) if size == _IN_EXTRA else size for size in sizes)


def root_of(archive: Zip) -> str:
    """The folder of the first entry, with its slash, which PyTorch takes for that of all; "" if there is none."""
    folder, slash, _ = next(iter(archive.entries), "").partition("/")
    return folder + slash if slash else ""


class PytorchZip(Zip):
    """An archive that PyTorch wrote, with its entries in the folder `root`. SourceError if it is of a big-endian
    machine."""

    def __init__(self, source: str | PathLike[str] | bytes, budget: Budget | None = None) -> None:
        super().__init__(source, budget)
        self.root = root_of(self)
        self._names = {name.lower(): name for name in self.entries}
        if len(self._names) < len(self.entries):
            what = "two entries of the archive have names that differ in case only, which PyTorch confuses"
            raise SourceError(what, hint="the file is damaged or malicious")
        self._storages: dict[tuple[str, str], Storage] = {}
        if self.text("byteorder", "little") != "little":
            raise big_endian()

    def text(self, name: str, default: str = "") -> str:
        """A short entry, which PyTorch finds in any case; `default` if there is none."""
        found = self._names.get((self.root + name).lower())
        return default if found is None else self.read(found, 256).decode("ascii", "replace").strip()

    @property
    def version(self) -> str:
        """The version of the archive's format, "" if it is not stated. PyTorch prefers `.data/version`."""
        found = self.text(".data/version") or self.text("version")
        if found and not (found.isdecimal() and len(found) < 4):
            raise SourceError(f"states the version {found[:20]!a} of its format", hint=_AGAIN)
        return found

    def storage(self, name: str, dtype: str, budget: Budget | None) -> Storage:
        """An entry as the elements of tensors, which are charged to `budget`."""
        if (name, dtype) not in self._storages:
            self._storages[name, dtype] = Storage(name, dtype, lambda: self.view(name), budget)
        return self._storages[name, dtype]


def big_endian() -> SourceError:
    return SourceError("was saved on a big-endian machine", hint="load it on a little-endian machine and save it again")


def _continued(crc: int, block: memoryview) -> int:
    """A checksum with more bytes."""
    return zlib.crc32(block, crc)


def _damaged(entry: Entry) -> SourceError:
    return SourceError("the contents of the entry do not match its checksum", where=entry.name, hint=_AGAIN)
