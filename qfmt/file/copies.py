"""Copies of remote files in temporary folders: of those that are read by path, and of those that are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ..errors import DestinationError, FormatError, MissingFileError
from ..urls import Place, Url
from .remote import copy
from .replacing import TMPDIR, temporary_folder
from .sharding import stated
from .shards import HINT, Shard, of_another_size


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
                _copy(place.parent / shard.name, folder / shard.name, shard)
        yield path


def _copy(url: Url, path: Path, shard: Shard | None = None) -> None:
    """Copy a file, or a shard; FormatError if it has not the size that is stated."""
    first = None if shard is None else max(shard.size, 1)  # of a part, a server says how large the whole is
    with closing(url.open(first)) as reading, path.open("wb") as file:
        if shard is not None and reading.size not in (None, shard.size):
            raise FormatError(of_another_size(reading.size, shard), where=str(url), hint=HINT, rule="F15")
        copy(url, reading, file, shard and shard.size + 1)


def _shards(path: Path) -> Sequence[Shard]:
    """The shards that a file states; none if it cannot be read, which reading it will say."""
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
