"""Reads untrusted zip archives: nothing is extracted to disk; uncompressed entries are read in place."""

from __future__ import annotations

import io
import mmap
import zipfile
import zlib
from collections.abc import Mapping
from functools import reduce
from os import PathLike, fspath
from typing import IO, cast

from ..arrays import blocks
from ..budget import Budget
from ..errors import BudgetError, SourceError, damaged
from ..regular import refusal
from .stored import Storage

DIRECTORY = 30
"""Bytes of memory per byte of the central directory, in which an entry has 46 bytes and a name."""

_AGAIN = "the file is damaged; download it again"

_LOCAL_HEADER = 30
_LOCAL_MAGIC = b"PK\x03\x04"


class Zip:
    """A zip archive, on disk or as bytes. `entries` maps names to directory entries.

    `budget` limits the cost of the conversion; None: in proportion to its size.
    """

    def __init__(self, source: str | PathLike[str] | bytes, budget: Budget | None = None) -> None:
        try:
            with io.BytesIO(source) if isinstance(source, bytes) else open(fspath(source), "rb") as file:  # noqa: PTH123
                self._map = memoryview(
                    source if isinstance(source, bytes) else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                )
                self.budget = budget or Budget(len(self._map))
                with zipfile.ZipFile(cast(IO[bytes], _Charged(file, self.budget))) as directory:
                    listed = directory.infolist()
        except OSError as error:
            raise refusal(error, SourceError) from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
            raise SourceError(
                "is not a complete zip archive", hint="it is truncated or damaged; download it again"
            ) from None
        self.entries: Mapping[str, zipfile.ZipInfo] = {info.filename: info for info in listed}
        if len(self.entries) != len(listed):
            raise SourceError(
                "the zip archive has two entries with the same name", hint="the file is damaged or malicious"
            )
        if sum(info.compress_size for info in listed) > len(self._map):  # to read each would take quadratic time
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
        info = self.entries.get(name)
        if info is None:
            raise damaged("the archive lacks this entry", where=name)
        if limit is not None and info.file_size > limit:
            raise SourceError(f"{info.file_size} bytes are more than is allowed here ({limit})", where=name)
        if info.flag_bits & 1:
            raise SourceError("the entry is encrypted", where=name)
        if info.compress_type == zipfile.ZIP_STORED:
            if info.compress_size != info.file_size:
                what = f"the entry is not compressed, but states {info.compress_size} bytes for {info.file_size}"
                raise SourceError(what, where=name, hint=_AGAIN)
            data = self._raw(info)
        elif info.compress_type == zipfile.ZIP_DEFLATED:
            data = self._inflated(info)
        else:
            what = f"zip compression method {info.compress_type} is not one that PyTorch writes"
            raise SourceError(what, where=name)
        if info.CRC and name not in self._verified and reduce(_continued, blocks(data), 0) != info.CRC:
            raise _damaged(info)
        self._verified.add(name)
        return data

    def _raw(self, info: zipfile.ZipInfo) -> memoryview:
        """The stored bytes of an entry, compressed or not."""
        start = info.header_offset + _LOCAL_HEADER
        header = self._map[info.header_offset : start]
        if len(header) != _LOCAL_HEADER or header[:4] != _LOCAL_MAGIC:
            raise SourceError(
                "the entry is not where the directory of the archive states", where=info.filename, hint=_AGAIN
            )
        start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        data = self._map[start : start + info.compress_size]
        if len(data) != info.compress_size:
            raise SourceError("the entry extends beyond the end of the file", where=info.filename, hint=_AGAIN)
        return data

    def _inflated(self, info: zipfile.ZipInfo) -> memoryview:
        try:
            self.budget.allocate(info.file_size)
        except BudgetError as error:
            raise error.at(info.filename) from None
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(self._raw(info), info.file_size + 1)
        except zlib.error:
            raise _damaged(info) from None
        if len(data) != info.file_size:
            raise _damaged(info)
        return memoryview(data)


def root_of(archive: Zip) -> str:
    """The folder that contains all entries of a PyTorch archive, with its slash; "" if there is none."""
    for name in archive.entries:
        folder, slash, rest = name.partition("/")
        if rest in ("data.pkl", "model.json", "bytecode.pkl", "version", "archive_format", ".data/version"):
            return folder + slash
    return ""


class PytorchZip(Zip):
    """An archive that PyTorch wrote, with its entries in the folder `root`. SourceError if it is of a big-endian
    machine."""

    def __init__(self, source: str | PathLike[str] | bytes, budget: Budget | None = None) -> None:
        super().__init__(source, budget)
        self.root = root_of(self)
        self._storages: dict[tuple[str, str], Storage] = {}
        if self.text("byteorder", "little") != "little":
            raise big_endian()

    def text(self, name: str, default: str = "") -> str:
        """A short entry; `default` if there is none."""
        name = self.root + name
        return self.read(name, 256).decode("ascii", "replace").strip() if name in self.entries else default

    @property
    def version(self) -> str:
        """The version of the archive's format, "" if it is not stated."""
        return self.text("version") or self.text(".data/version")

    def storage(self, name: str, dtype: str, budget: Budget | None) -> Storage:
        """An entry as the elements of tensors, which are charged to `budget`."""
        if (name, dtype) not in self._storages:
            self._storages[name, dtype] = Storage(name, dtype, lambda: self.view(name), budget)
        return self._storages[name, dtype]


def big_endian() -> SourceError:
    return SourceError("was saved on a big-endian machine", hint="load it on a little-endian machine and save it again")


class _Charged:
    """The file that zipfile opens. zipfile reads the whole directory at once; the budget is charged for it before
    zipfile creates the entries."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self.seek, self.tell = file.seek, file.tell
        self._file, self._budget = file, budget

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._budget.spend(len(data) // 4)
        self._budget.allocate(DIRECTORY * len(data))
        return data


def _continued(crc: int, block: memoryview) -> int:
    """A checksum with more bytes."""
    return zlib.crc32(block, crc)


def _damaged(info: zipfile.ZipInfo) -> SourceError:
    return SourceError("the contents of the entry do not match its checksum", where=info.filename, hint=_AGAIN)
