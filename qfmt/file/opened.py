"""The bytes of a file, wherever it lies: a local one is mapped, of a remote one what is asked for is fetched.

Sources of other formats, which are read by path, and files that are written get a temporary folder.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DestinationError, FormatError, MissingFileError
from ..regular import irregular, refusal
from ..urls import Place, Url
from .replacing import TMPDIR, temporary_folder

if TYPE_CHECKING:
    from .remote import RemoteFile
    from .shards import Shard


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
        return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))[begin:end]


@contextmanager
def opened(place: Place) -> Iterator[LocalFile | RemoteFile]:
    """A file for reading. MissingFileError, FormatError if it cannot be read, here or in the block, RemoteError."""
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
        raise refusal(error, FormatError) from None


@contextmanager
def downloaded(place: Place) -> Iterator[Path]:
    """The path of a file; of a remote one that of a copy, gone after the block. RemoteError.

    The folder of the copy holds nothing but its shards. One that is missing there is missing here, too.
    """
    if not isinstance(place, Url):
        yield place
        return
    with temporary_folder() as folder:
        path = folder / "copy"
        _copy(place, path)
        for shard in _shards(path):
            with suppress(MissingFileError):
                _copy(place.parent / shard.name, folder / shard.name)
        yield path


def _copy(url: Url, path: Path) -> None:
    from .remote import copy

    with closing(url.open()) as reading, path.open("wb") as file:
        copy(url, reading, file)


def _shards(path: Path) -> Sequence[Shard]:
    """The shards that a file states; none if it cannot be read, which reading it will say."""
    from .sharding import stated

    with suppress(FormatError):
        return stated(path)
    return ()


@contextmanager
def uploaded(place: Place) -> Iterator[Path]:
    """A path to write to. What was written for a URL is stored there when the block has ended well: files that were
    written beside it first. DestinationError, RemoteError."""
    if not isinstance(place, Url):
        yield place
        return
    place.require_writable()
    if not place.name or place.text.endswith("/"):
        raise DestinationError("is a folder", where=str(place), hint="add the name of a file")
    with temporary_folder() as folder:
        path = folder / place.name
        try:
            yield path
        except DestinationError as error:
            if str(path) in error.where:
                error.where, error.hint = error.where.replace(str(path), str(place)), error.hint or TMPDIR
            raise
        for each in sorted(folder.iterdir(), key=lambda each: (each == path, each.name)):
            (place if each == path else place.parent / each.name).put(each)
