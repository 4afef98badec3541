"""A remote file: what is asked for is fetched into a nameless temporary file of its size, which is mapped.

The system stores only what was written to that file. A server that cannot send parts sends all.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from bisect import bisect_left, bisect_right
from operator import itemgetter
from shutil import disk_usage
from typing import BinaryIO

from ..backstop import grow
from ..errors import QfmtError, RemoteError
from ..notation import size as text_of_size
from ..progress import BYTES, Steps
from ..regular import mapped_file
from ..threads import Turns
from ..transfer import Reading
from ..urls import Url
from .replacing import TMPDIR, no_temporary

FIRST = 1 << 16
"""Bytes that are requested when a file is opened: all metadata of a small model."""

GRANULE = 1 << 12
"""Parts begin and end at multiples of this, so that what lies between two arrays comes with one of them."""

UNSTATED = 4 << 30
"""The most bytes that are taken from a server that does not state the size."""


class RemoteFile:
    """A file by URL, as `opened.LocalFile`. Every part is fetched once; RemoteError where that fails.

    Of a server that sends all at once, no more than `most` bytes and one are taken. A forked process that fetches more
    has its own copy and connection: it would share their positions with its parent.
    """

    def __init__(self, url: Url, most: int | None = None) -> None:
        self._url = url
        self._turns = Turns()
        self._first = first = _Copy(url, most)
        self.size = first.size
        self._copies = [first]
        """The copy of this process is the last one. Those before it are of the processes that it was forked from."""

    def fetch(self, begin: int, end: int) -> None:
        """Make the bytes from `begin` to `end` present, of which none is behind the end of the file."""
        with self._turns.turn():
            if self._with(begin, end):
                return
            if self._copies[-1].process != os.getpid():
                self._copies.append(_Copy(self._url, self.size))
            own = self._copies[-1]
            if (own.size, own.reading.tag) != (self.size, self._first.reading.tag):
                raise RemoteError("has changed since it was opened", where=str(self._url), hint="load it again")
            own.fetch(begin, end)

    def _with(self, begin: int, end: int) -> _Copy | None:
        """The copy that has these bytes. In a forked process it stays the same one, whatever the process fetches: to
        have a part from another copy later would be to have it unverified."""
        return next((each for each in self._copies if each.present.have(begin, end)), None)

    def read(self, offset: int, size: int) -> bytes:
        self.fetch(offset, end := min(offset + size, self.size))
        file = (self._with(offset, end) or self._first).file
        if hasattr(os, "pread"):  # forked processes share the position of the file
            return os.pread(file.fileno(), size, offset)
        file.seek(offset)
        return file.read(size)

    def data(self, begin: int, end: int) -> Fetched:
        """A part of the file, which is fetched when it is asked for. RemoteError if it is too large for this system."""
        return Fetched(self, begin, len(self.view(begin, end)))

    def view(self, begin: int, end: int) -> memoryview:
        """A part of the file as it is mapped; what was not fetched is zeros."""
        with self._turns.turn():
            mapped = (self._with(begin, end) or self._copies[-1]).mapped
            try:
                return mapped(self.size)[begin:end]
            except (OSError, OverflowError) as error:
                what = f"{text_of_size(self.size)} cannot be mapped: {getattr(error, 'strerror', None) or error}"
                raise RemoteError(what, where=str(self._url)) from None


class _Copy:
    """A temporary file with parts of a remote one, and the connection of this process that they come by."""

    def __init__(self, url: Url, most: int | None) -> None:
        """Connect, and make a file, with the first part, or with all if there are no parts, unless it is too large."""
        self._url = url
        self.reading = reading = url.open(FIRST)
        try:
            self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (it lives as long as this)
        except OSError as error:
            reading.close()
            raise no_temporary(error) from None
        self.process = os.getpid()
        weakref.finalize(self, _close, self.process, self.file, reading)
        self.present = _Parts()
        self._mapped: memoryview | None = None
        if reading.size is None or not (reading.ranged or _exceeds(reading.size, most)):
            self.size = copy(url, reading, self.file, None if most is None else most + 1)
            self.present.add(0, self.size)
        else:
            self.size = reading.size
            if not _exceeds(self.size, most):
                self.fetch(0, min(FIRST, self.size))

    def fetch(self, begin: int, end: int) -> None:
        """Fetch what is missing. What is present is never written again: it may be verified, and in use."""
        begin, end = begin // GRANULE * GRANULE, min(-(-end // GRANULE) * GRANULE, self.size)
        for start, stop in self.present.gaps(begin, end):
            _write(self._url, self.file, start, self.reading, stop)
        self.present.add(begin, end)

    def mapped(self, size: int) -> memoryview:
        """The file, made as large as the remote one. Raises OSError, OverflowError."""
        if self._mapped is None:
            self.file.truncate(size)
            self._mapped = memoryview(mapped_file(self.file.fileno()))
        return self._mapped


def _exceeds(size: int, most: int | None) -> bool:
    return most is not None and size > most


class _Parts:
    """Ranges of bytes, in order; ranges that touch are merged."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def have(self, begin: int, end: int) -> bool:
        """Whether every byte is in one of them."""
        return not any(self.gaps(begin, end))

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What lies between them."""
        within = self._ranges[self._touching(begin, end)]
        begins, ends = [begin, *(each[1] for each in within)], [*(each[0] for each in within), end]
        return [(a, b) for a, b in zip(begins, ends, strict=True) if a < b]

    def add(self, begin: int, end: int) -> None:
        """In one step: another thread may fork at any time."""
        touching = self._touching(begin, end)
        joined = [(begin, end), *self._ranges[touching]]
        self._ranges[touching] = [(min(each[0] for each in joined), max(each[1] for each in joined))]

    def _touching(self, begin: int, end: int) -> slice:
        first = bisect_left(self._ranges, begin, key=itemgetter(1))
        return slice(first, bisect_right(self._ranges, end, lo=first, key=itemgetter(0)))


def _close(process: int, *opened: BinaryIO | Reading) -> None:
    """Close what this process opened: a forked one shares the connections of its parent."""
    if process == os.getpid():
        for each in opened:
            each.close()


class Fetched:
    """A part of a remote file, as bytes that are fetched when a slice is asked for."""

    __slots__ = ("_begin", "_file", "_size")

    def __init__(self, file: RemoteFile, begin: int, size: int) -> None:
        self._file, self._begin, self._size = file, begin, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        begin, end, _ = part.indices(len(self))
        if begin < end:
            self._file.fetch(self._begin + begin, self._begin + end)
        return self._file.view(self._begin + begin, self._begin + end)

    def fetch_all(self) -> None:
        """Fetch what is not present, at once."""
        self._file.fetch(self._begin, self._begin + len(self))


def copy(url: Url, reading: Reading, file: BinaryIO, most: int | None = None) -> int:
    """Copy a remote file; its size. RemoteError if it is larger than there is room for, not as large as stated, or has
    `most` bytes (default: UNSTATED), which are not stated."""
    limit = reading.size
    if limit is None:
        limit = min(UNSTATED if most is None else most, disk_usage(tempfile.gettempdir()).free)
    _write(url, file, 0, reading, limit)
    found = file.seek(0, 2)
    if reading.size is None and found == limit:
        what = f"has {text_of_size(limit)} or more, and the server does not state how many"
        raise RemoteError(what, where=str(url), hint="download it, and name the file")
    return found


def _write(url: Url, file: BinaryIO, begin: int, reading: Reading, end: int) -> None:
    steps = Steps("downloading", end - begin, BYTES)
    try:
        if end - begin > (room := disk_usage(tempfile.gettempdir()).free):
            what = f"has {text_of_size(end - begin)}, but there is room for {text_of_size(room)} for a temporary copy"
            raise RemoteError(what, where=str(url), hint=TMPDIR)
        file.seek(begin)
        for chunk in reading.chunks(begin, end):
            left = memoryview(chunk)
            while left:  # a file without a buffer may write a part
                left = left[file.write(left) :]
            grow(len(chunk))
            steps.add(len(chunk))
        file.flush()
    except QfmtError:  # MissingFileError is an OSError, too
        raise
    except OSError as error:
        raise no_temporary(error).at(str(url)) from None
