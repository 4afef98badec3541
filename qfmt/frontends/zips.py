"""Zip archives read with care: nothing is extracted to disk, stored entries are seen in place."""

from __future__ import annotations

import mmap
import zipfile
import zlib
from collections.abc import Mapping
from os import PathLike, fspath

from ..errors import SourceError

ENTRY_LIMIT = 1 << 20
"""More entries than this is no model."""

EXPANSION = 32 << 20, 100
"""Compressed entries may grow to this many bytes plus this multiple of the file, all together."""

_LOCAL_HEADER = 30
_LOCAL_MAGIC = b"PK\x03\x04"


class Zip:
    """A zip archive on disk. `entries` maps names to what the directory says of them."""

    def __init__(self, path: str | PathLike[str]) -> None:
        try:
            self._file = zipfile.ZipFile(path)
            with open(fspath(path), "rb") as raw:  # noqa: PTH123 (a descriptor is all that is wanted)
                self._map = memoryview(mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
        except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OverflowError):
            raise SourceError("is not a whole zip archive", hint="it was cut off or damaged; get it again") from None
        listed = self._file.infolist()
        self.entries: Mapping[str, zipfile.ZipInfo] = {info.filename: info for info in listed}
        if len(listed) > ENTRY_LIMIT:
            raise SourceError(f"the zip archive has {len(listed)} entries, more than any model")
        if len(self.entries) != len(listed):
            raise SourceError("the zip archive has two entries of one name", hint="the file is damaged or hostile")
        self._expanded = 0

    def read(self, name: str, limit: int) -> bytes:
        """The contents of an entry, at most `limit` bytes; its checksum is verified."""
        return bytes(self.view(name, limit))

    def view(self, name: str, limit: int, *, checksum: bool = True) -> memoryview:
        """The same without a copy where the entry is stored uncompressed; it stays valid on its own."""
        info = self.entries.get(name)
        if info is None:
            raise SourceError("the archive lacks this entry", where=name, hint="the file is damaged")
        if info.file_size > limit:
            raise SourceError(f"{info.file_size} bytes are more than makes sense here ({limit})", where=name)
        if info.flag_bits & 1:
            raise SourceError("the entry is encrypted", where=name)
        if info.compress_type == zipfile.ZIP_STORED:
            return self._stored(info, checksum)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            return self._inflated(info)
        raise SourceError(f"zip compression method {info.compress_type} is not one that PyTorch writes", where=name)

    def _stored(self, info: zipfile.ZipInfo, checksum: bool) -> memoryview:
        header = self._map[info.header_offset : info.header_offset + _LOCAL_HEADER]
        if len(header) != _LOCAL_HEADER or header[:4] != _LOCAL_MAGIC:
            raise SourceError("the entry is not where the directory says", where=info.filename)
        start = info.header_offset + _LOCAL_HEADER
        start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        view = self._map[start : start + info.file_size]
        if len(view) != info.file_size or info.compress_size != info.file_size:
            raise SourceError("the entry goes beyond the end of the file", where=info.filename)
        if checksum and info.CRC and zlib.crc32(view) != info.CRC:
            raise _damaged(info)
        return view

    def _inflated(self, info: zipfile.ZipInfo) -> memoryview:
        fixed, factor = EXPANSION
        room = fixed + factor * len(self._map) - self._expanded
        if info.file_size > room:
            what = f"the entry would expand from {info.compress_size} bytes to {info.file_size}"
            raise SourceError(what, where=info.filename, hint="that is a zip bomb, not a model")
        try:
            with self._file.open(info) as entry:
                data = entry.read(info.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError):
            raise _damaged(info) from None
        if len(data) != info.file_size:
            raise _damaged(info)
        self._expanded += len(data)
        return memoryview(data)


def _damaged(info: zipfile.ZipInfo) -> SourceError:
    return SourceError("the entry does not have the contents it was written with", where=info.filename,
                       hint="the file is damaged; get it again")  # fmt: skip
