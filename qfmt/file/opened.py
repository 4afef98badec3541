"""The bytes of a file, wherever it lies: a local one is mapped, of a remote one what is asked for is fetched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from ..errors import FormatError, QfmtError
from ..regular import irregular, mapped_file, refusal
from ..urls import Place, Url

if TYPE_CHECKING:
    from .remote import RemoteFile


class LocalFile:
    """An open file of `size` bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size = file, os.fstat(file.fileno()).st_size

    def read(self, offset: int, size: int) -> bytes:
        """A copy of some bytes: fewer if the file ends before."""
        self._file.seek(offset)
        return self._file.read(min(size, max(self.size - offset, 0)))

    def data(self, begin: int, end: int) -> memoryview:
        """A part of the file, mapped; it can be read after the file was closed."""
        return memoryview(mapped_file(self._file.fileno()))[begin:end]


@contextmanager
def opened(place: Place) -> Iterator[LocalFile | RemoteFile]:
    """A file for reading. MissingFileError, QfmtError if it cannot be read, here or in the block, RemoteError."""
    try:
        if isinstance(place, Url):
            from .remote import RemoteFile

            yield RemoteFile(place)
            return
        if what := irregular(place):
            raise FormatError(what, hint="give the path of a .qfb file")
        with place.open("rb") as file:
            yield LocalFile(file)
    except (OSError, ValueError) as error:
        raise refusal(error, QfmtError).at(str(place)) from None
