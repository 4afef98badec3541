"""Shards: files in the folder of a `.qfb` that hold its data segment, one part after another (spec.md, "Shards").

The file states the name, the size and the sha256 of each. Names come from a file, so they are checked before anything
is opened: only regular files in that folder, and no links.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..arrays import blocks
from ..backstop import grow
from ..errors import DigestError, FormatError, MissingFileError, QfmtError
from ..regular import descriptor_of, hint_for, mapped_file, unreadable
from ..threads import Turns
from ..urls import Place, Url
from .decode import Record
from .header import AGAIN, ALIGNMENT

if TYPE_CHECKING:
    from .remote import Fetched

Part: TypeAlias = "memoryview | Fetched | str"
"""The bytes of a shard, or what is wrong with it."""

FEATURE = "shards"
"""The feature that a file with shards requires: a reader without it would not find the data."""

SUFFIX = ".qfs"
MAXIMUM_DATA = (1 << 63) - 1
"""The most bytes that shards may have together."""

MAPPED = 128
"""The most local shards that stay mapped. Systems often allow a process 1024 open files."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f/\\:\ud800-\udfff]")


class Shard(NamedTuple):
    """A shard as its file states it, and where it begins in the data segment."""

    name: str
    size: int
    sha256: bytes
    begin: int


def stated(records: Iterable[Record], data_size: int) -> list[Shard]:
    """The shards that a file with `data_size` bytes of its own states; FormatError if they break rule F14."""
    shards: list[Shard] = []
    begin, before = 0, ""
    for record in records:
        shard = Shard(record["name"], record["size"], record["sha256"], begin)
        if not is_name(shard.name):
            raise FormatError(f"{shard.name!r} is not a name for a shard", rule="F14")
        if shard.name <= before:
            raise FormatError(f"the shard {shard.name!r} follows {before!r}, out of order or repeated", rule="F14")
        if begin % ALIGNMENT or not shard.size or (begin := begin + shard.size) > MAXIMUM_DATA:
            raise FormatError(f"the shard {shard.name!r} cannot have {shard.size} bytes", rule="F14")
        shards.append(shard)
        before = shard.name
    if data_size and shards:
        raise FormatError(f"has both shards and {data_size} bytes of data", rule="F14")
    return shards


def is_name(name: str) -> bool:
    """Whether a shard may have that name: it leads nowhere but to the folder, on any system."""
    return name.endswith(SUFFIX) and not _FORBIDDEN.search(name) and len(name.encode()) <= 255


def as_part(name: str) -> str:
    """A name with `_` for what no shard may have in its name."""
    return _FORBIDDEN.sub("_", name)


class Shards:
    """The data segment of a file with shards. What is wrong with a shard is said when it is used, so that a file is
    readable without any shard if no data is asked for.

    Local shards are mapped now, so that a file stays readable when another one with other shards takes its place; but
    those after the first MAPPED when they are used, as each mapping takes a descriptor.
    """

    def __init__(self, place: Place, shards: Sequence[Shard]) -> None:
        self._where = str(place)
        self.shards = shards
        self._begins = [shard.begin for shard in shards]
        self._parts: dict[int, Part] = {}
        self._turns = Turns()
        self._counted: set[int] = set()
        if isinstance(place, Url):
            self._folder: Place = place.parent
        else:
            self._folder = folder = place.resolve().parent  # that of the file, not of a link to it
            with suppress(OSError):  # too many open files: the others are mapped when they are used
                for index in range(min(len(shards), MAPPED)):
                    self._parts[index] = self._local(index, folder)

    def __len__(self) -> int:
        return self.shards[-1].begin + self.shards[-1].size

    def __getitem__(self, place: slice) -> memoryview:
        """Bytes of one shard; FormatError if it cannot be read."""
        if place.start >= place.stop:
            return memoryview(b"")
        index = self._index(place.start)
        begin = self.shards[index].begin
        return self.part(index)[place.start - begin : place.stop - begin]

    def _index(self, offset: int) -> int:
        """The shard that has the byte at an offset."""
        return bisect_right(self._begins, offset) - 1

    def holds(self, offset: int, size: int) -> bool:
        """Whether one shard has all of these bytes."""
        shard = self.shards[self._index(offset)]
        return not size or offset + size <= shard.begin + shard.size

    def is_lost(self, offset: int) -> bool:
        """Whether the shard that these bytes are in cannot be read."""
        return isinstance(self._part(self._index(offset)), str)

    def part(self, index: int) -> memoryview | Fetched:
        """A whole shard; FormatError if it cannot be read."""
        part = self._part(index)
        if isinstance(part, str):
            raise FormatError(part, where=self._place(index), hint=HINT, rule="F15")
        return part

    def _part(self, index: int) -> Part:
        shard = self.shards[index]
        if index not in self._parts:
            if not isinstance(self._folder, Url):
                try:
                    return self._local(index, self._folder)
                except OSError as error:
                    raise QfmtError(unreadable(error), where=self._place(index), hint=hint_for(error)) from None
            with self._turns.lock:  # once: of two copies, only one would be verified
                if index not in self._parts:
                    self._parts.setdefault(index, _fetched(self._folder / shard.name, shard))
        return self._parts[index]

    def _local(self, index: int, folder: Path) -> Part:
        """A local shard, mapped now. Its bytes count for limits of the command, once. OSError if unreadable."""
        shard = self.shards[index]
        part = _mapped(folder / shard.name, shard)
        if not isinstance(part, str) and index not in self._counted:
            self._counted.add(index)
            grow(shard.size)
        return part

    def fetch_all(self) -> None:
        """Of remote shards, fetch what is left at once."""
        for index in range(len(self.shards) if isinstance(self._folder, Url) else 0):
            part = self._part(index)
            if not isinstance(part, str | memoryview):
                part.fetch_all()

    def verify(self, index: int) -> None:
        """FormatError if the shard cannot be read, DigestError if it is not the one that was written."""
        digest = hashlib.sha256()
        for block in blocks(self.part(index)[0 : self.shards[index].size]):
            digest.update(block)
        if digest.digest() != self.shards[index].sha256:
            what = "is damaged: its sha256 differs from the one stated"
            raise DigestError(what, where=self._place(index), hint=AGAIN, rule="F15")

    def _place(self, index: int) -> str:
        return f"{self._where}: shard {self.shards[index].name!r}"


NOT_REGULAR = "is not a regular file"

HINT = "put it into the folder of the file, or convert the source again"


def _fetched(url: Url, shard: Shard) -> Part:
    from .remote import RemoteFile

    try:
        file = RemoteFile(url, shard.size)
    except MissingFileError:
        return "is missing"
    return file.data(0, shard.size) if file.size == shard.size else of_another_size(file.size, shard)


def of_another_size(size: int, shard: Shard) -> str:
    return f"has {size} bytes instead of {shard.size}"


def _mapped(path: Path, shard: Shard) -> Part:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return "is a link"
        if not stat.S_ISREG(mode):
            return NOT_REGULAR
        descriptor = descriptor_of(path)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):  # it was replaced just now
                return NOT_REGULAR
            if found.st_size != shard.size:
                return of_another_size(found.st_size, shard)
            return memoryview(mapped_file(descriptor))
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return "is missing"
    except ValueError as error:
        return unreadable(error)
