"""A remote file: what is asked for is fetched into a nameless temporary file of its size, which is mapped.

The system stores only what was written to that file. A server that cannot send parts sends all.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from bisect import bisect_left, bisect_right
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

    Of a server that sends all at once, no more than `most` bytes and one are taken. A forked process has its own file
    and connection: it would share their positions with its parent.
    """

    def __init__(self, url: Url, most: int | None = None) -> None:
        self._url = url
        self._turns = Turns()
        self._first = self._open(most)
        self.size = self._first[0]
        if self._reading.ranged and (most is None or self.size <= most):
            self._transfer(0, min(FIRST, self.size))

    def _open(self, most: int | None) -> tuple[int, tuple[object, ...]]:
        """Connect, and make a file, with all of the remote one if it cannot be had in parts: its size and its tag."""
        self._reading = reading = self._url.open(FIRST)
        try:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (it lives as long as this)
        except OSError as error:
            reading.close()
            raise no_temporary(error) from None
        weakref.finalize(self, _close, os.getpid(), self._file, reading)
        self._mapped: memoryview | None = None
        self._present = _Parts()
        size = reading.size
        if size is None or (not reading.ranged and (most is None or size <= most)):
            size = copy(self._url, reading, self._file, None if most is None else most + 1)
            self._present.add(0, size)
        self._opener, self._found = os.getpid(), (size, reading.tag)
        return self._found

    def fetch(self, begin: int, end: int) -> None:
        """Make the bytes from `begin` to `end` present, of which none is behind the end of the file."""
        with self._turns.turn():
            self._be_own()
            if self._found != self._first:
                raise RemoteError("has changed since it was opened", where=str(self._url), hint="load it again")
            if not self._present.have(begin, end):
                self._transfer(begin, end)

    def _be_own(self) -> None:
        """In a forked process, begin anew before anything is read: what it has verified is of its own file."""
        if self._opener != os.getpid():
            self._open(self.size)

    def _transfer(self, begin: int, end: int) -> None:
        """Fetch what is missing. What is present is never written again: it may be verified, and in use."""
        begin, end = begin // GRANULE * GRANULE, min(-(-end // GRANULE) * GRANULE, self.size)
        for start, stop in self._present.gaps(begin, end):
            _write(self._url, self._file, start, self._reading, stop)
        self._present.add(begin, end)

    def read(self, offset: int, size: int) -> bytes:
        self.fetch(offset, min(offset + size, self.size))
        if hasattr(os, "pread"):  # forked processes share the position of the file
            return os.pread(self._file.fileno(), size, offset)
        self._file.seek(offset)
        return self._file.read(size)

    def data(self, begin: int, end: int) -> Fetched:
        """A part of the file, which is fetched when it is asked for. RemoteError if it is too large for this system."""
        return Fetched(self, begin, len(self.view(begin, end)))

    def view(self, begin: int, end: int) -> memoryview:
        """A part of the file as it is mapped; what was not fetched is zeros."""
        with self._turns.turn():
            self._be_own()
            if self._mapped is None:
                try:
                    self._file.truncate(self.size)
                    self._mapped = memoryview(mapped_file(self._file.fileno()))
                except (OSError, OverflowError) as error:
                    what = f"{text_of_size(self.size)} cannot be mapped: {getattr(error, 'strerror', None) or error}"
                    raise RemoteError(what, where=str(self._url)) from None
            return self._mapped[begin:end]


class _Parts:
    """Ranges of bytes, in order; ranges that touch are merged."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def have(self, begin: int, end: int) -> bool:
        """Whether every byte is in one of them."""
        return not any(self.gaps(begin, end))

    def gaps(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What lies between them."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        begins, ends = [begin, *self._ends[first:last]], [*self._begins[first:last], end]
        return [(a, b) for a, b in zip(begins, ends, strict=True) if a < b]

    def add(self, begin: int, end: int) -> None:
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        self._begins[first:last] = [min([begin, *self._begins[first:last]])]
        self._ends[first:last] = [max([end, *self._ends[first:last]])]


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
