"""The bytes of URLs, as fsspec and the packages that it uses transfer them.

Whatever these raise becomes a QfmtError. Only the protocols of PACKAGES are served, and no chains of them
(`zip://…::http://…`): nothing else that fsspec can do is reached.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from io import BytesIO
from selectors import SelectSelector
from socket import socketpair
from typing import Any, Protocol

from .errors import MissingFileError, MissingPackageError, QfmtError, RemoteError, first_line, masked

_EXTRA = "run `pip install '.[remote]'` in a checkout of qfmt"

PACKAGES = {"memory": _EXTRA, "http": _EXTRA, "https": _EXTRA, "s3": "run `pip install s3fs`"}
"""The protocols of URLs, and what to do if packages for them are missing."""

CHUNK = 1 << 22
"""The most bytes that are held while a file is copied."""

WEB = ("http", "https")

SILENCE = 60
"""Seconds without a byte after which a server counts as gone."""


def filesystem(protocol: str) -> Any:
    """The file system of fsspec; the same object for all URLs of a protocol."""
    try:
        import fsspec

        if protocol == "memory":
            return fsspec.filesystem(protocol)
        _note_loop()
        if protocol not in WEB:
            return fsspec.filesystem(protocol, use_listings_cache=False)
        from aiohttp import ClientTimeout
    except ImportError as error:
        raise MissingPackageError(f"{protocol}:// needs a package: {error}", hint=PACKAGES[protocol]) from None
    timeout = ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
    return fsspec.filesystem(protocol, client_kwargs={"timeout": timeout, "raise_for_status": _close_failed})


_LOOPS: list[Any] = []
"""The event loop in which fsspec's connections are, for a thread of its own."""

_KEPT: list[Any] = []
"""Sockets that a forked child has in place of those of its parent."""


def _note_loop() -> None:
    from fsspec.asyn import get_loop

    if (loop := get_loop()) not in _LOOPS:
        _LOOPS.append(loop)


def _leave_connections() -> None:
    """In a forked child, have nothing of the connections of its parent. They share sockets, and what waits for them: to
    close a connection, as the garbage collector does, would end it in the parent, too, or leave it unheard."""
    if asyn := sys.modules.get("fsspec.asyn"):
        asyn.reset_lock()  # fsspec 2026.9 does so by another name than that of its lock
    for loop in _LOOPS:
        if (selector := getattr(loop, "_selector", None)) is not None:
            ends = socketpair()
            for key in list((selector.get_map() or {}).values()):
                os.dup2(ends[0].fileno(), key.fd, inheritable=False)
            loop._selector = SelectSelector()
            _KEPT.extend(ends)
    _LOOPS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_connections)


async def _close_failed(response: Any) -> None:
    """Called by aiohttp for each response. fsspec raises for those that failed, and leaves them open: aiohttp would
    report that when they are collected."""
    if response.status >= HTTPStatus.BAD_REQUEST:
        response.close()


TAGS = "ETag", "LastModified", "created"
"""What stores say of a file that changes with its content."""


class Reading(Protocol):
    """An open remote file. `size` is None if the other side does not state it, `ranged` whether parts can be read;
    `tag` changes with the content, as far as the other side says so."""

    size: int | None
    tag: tuple[object, ...]
    ranged: bool

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` to `end`, by the chunk, and none beyond.

        RemoteError if there are fewer, or if the file was changed since it was opened.
        """

    def close(self) -> None: ...


class Stored:
    """A file in a store that knows sizes and gives any part of a file."""

    ranged = True

    def __init__(self, protocol: str, text: str, where: str) -> None:
        self._where, files = where, filesystem(protocol)
        found = files.info(text)
        self.tag: tuple[object, ...] = tuple(found.get(key) for key in TAGS)
        if found["type"] == "directory":
            raise RemoteError("is a folder, not a file")
        self._file = files.open(text, "rb", cache_type="none")  # on S3 bound to the ETag that it has now
        if protocol == "s3":
            self._file.fs = _Bounded(files)
        self.size: int | None = self._file.seek(0, 2)
        self.close = self._file.close

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        with failing(self._where):
            while begin < end:
                chunk = self._read(begin, min(CHUNK, end - begin))
                _require(chunk, begin, end)
                begin += len(chunk)
                yield chunk

    def _read(self, begin: int, size: int) -> bytes:
        if isinstance(self._file, BytesIO):  # of memory://: all readers have one position
            return bytes(self._file.getbuffer()[begin : begin + size])
        self._file.seek(begin)
        return bytes(self._file.read(size))


class _Bounded:
    """A file system of S3, of whose answers no more is read than was asked for: s3fs reads all of them at once."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def _call_s3(self, *arguments: Any, **options: Any) -> Any:
        answer = await self._files._call_s3(*arguments, **options)
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", options.get("Range", "")):
            answer["Body"] = _Body(answer["Body"], int(asked[2]) - int(asked[1]) + 1)
        return answer


class _Body:
    """The first bytes of an answer."""

    def __init__(self, body: Any, size: int) -> None:
        self._body, self._size, self.close = body, size, body.close

    async def read(self) -> bytes:
        found = bytearray()
        while len(found) < self._size and (part := await self._body.read(self._size - len(found))):
            found += part
        return bytes(found)


class Web:
    """A file of a web server, which may know neither its size nor ranges, and may say anything.

    fsspec reads the body of an answer at once; a stream of it is read here, and never beyond what was asked for.
    """

    def __init__(self, protocol: str, text: str, where: str, first: int | None) -> None:
        self._protocol, self._text, self._where = protocol, text, where
        self._first: Any = self._request(0, first)
        try:
            self._begin(first)
        except BaseException:
            self.close()
            raise

    def _begin(self, first: int | None) -> None:
        headers, begin = self._first.r.headers, 0
        self.ranged = self._first.r.status == 206
        self.tag: tuple[object, ...] = _tag(headers)
        if self.ranged:
            begin, self.size = _range(headers)
            if self.size is None and first is not None:  # parts of what nobody knows the end of: all of it, instead
                self._first.close()
                self._first, self.ranged = self._request(0, None), False
                if self._first.r.status != 200:
                    what = "the server sends only parts of the file, and does not state its size"
                    raise RemoteError(what, hint="download the file in another way, and give its path")
        else:
            self.size = int(headers["Content-Length"]) if headers.get("Content-Length", "").isdecimal() else None
        if begin:
            raise RemoteError("the server sends another part of the file than was asked for")

    def _request(self, begin: int, end: int | None) -> Any:
        headers = {"Accept-Encoding": "identity"}
        if end is not None:
            headers["Range"] = f"bytes={begin}-{end - 1}"
        # Without `size`, fsspec would first send a HEAD request.
        stream = filesystem(self._protocol).open(self._text, "rb", block_size=0, size=1, headers=headers)
        asked = (*stream.r.history, stream.r)
        coding, what, hint = stream.r.headers.get("Content-Encoding", "identity"), "", ""
        if self._protocol == "https" and any(each.url.scheme != "https" for each in asked):
            what = "leads to an address without encryption"
        elif coding.lower() not in ("", "identity"):
            what = f"the server sends the file compressed ({coding}), which was not asked for"
            hint = "download it in another way, and give its path"
        elif stream.r.status not in (200, 206):  # a redirection to nowhere, no content
            what = f"the server answers {stream.r.status}, without the file"
        if what:
            stream.close()
            raise RemoteError(what, hint=hint)
        return stream

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        with failing(self._where):
            stream, self._first = self._first, None
            if stream is None or begin:
                if stream is not None:
                    stream.close()
                stream = self._request(begin, end)
                headers = stream.r.headers
                if stream.r.status != 206 or _range(headers) != (begin, self.size) or _tag(headers) != self.tag:
                    stream.close()
                    raise RemoteError("was changed while it was read", hint="try again")
            with closing(stream):
                while begin < end:
                    # aiohttp has its own limit, but drops it at a malformed chunk, and then never answers.
                    chunk = stream.read(min(CHUNK, end - begin), timeout=SILENCE)
                    if not chunk and self.size is None:
                        return
                    _require(chunk, begin, end)
                    begin += len(chunk)
                    yield chunk

    def close(self) -> None:
        if self._first is not None:
            self._first.close()


def _tag(headers: Mapping[str, str]) -> tuple[str | None, ...]:
    """What changes with the content of a file."""
    return headers.get("ETag"), headers.get("Last-Modified")


def _range(headers: Mapping[str, str]) -> tuple[int, int | None]:
    """The first byte of a partial answer, and the size of the file."""
    found = re.fullmatch(r"bytes (\d{1,30})-\d+/(\d{1,30}|\*)", headers.get("Content-Range", ""))
    if found is None:
        raise RemoteError("the server does not say which part of the file it sends")
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _require(chunk: bytes, begin: int, end: int) -> None:
    if not chunk:
        raise RemoteError(f"ends at byte {begin:,}; {end:,} are stated", hint="try again")


@contextmanager
def failing(where: str, kind: type[QfmtError] = RemoteError) -> Iterator[None]:
    """Turns the exceptions of fsspec and of the packages that it uses, which have no common root, into one of ours."""
    try:
        yield
    except QfmtError as error:
        error.where = error.where or where
        raise
    except FileNotFoundError:
        raise MissingFileError("there is no such file", where=where, hint="check the URL") from None
    except Exception as error:
        status = getattr(error, "status", None)
        if status in (401, 403) or isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            hint = "the protocol's own settings hold the credentials (docs/archive.md)"
            raise kind("access is denied", where=where, hint=hint) from None
        what = masked(first_line(error))  # it may quote the URL in another spelling, or the address of a redirection
        if status and error.__cause__ is not None:  # aiohttp found it malformed
            what = "the answer of the server is not valid HTTP"
        elif status:  # its own words might be those of the request, with what is secret in it
            phrase = HTTPStatus(status).phrase if status in [*HTTPStatus] else ""
            what = f"the server answers {status} {phrase}".rstrip()
        elif "TooManyRedirects" in type(error).__name__:
            what = "the server redirects in a circle, or too often"
        elif "Redirect" in type(error).__name__:
            what = f"the server redirects to something other than a web address: {what}"
        elif type(error).__name__ in ("ClientPayloadError", "ServerDisconnectedError"):
            what = "the server ended the connection before the end of the file"
        elif "Timeout" in type(error).__name__:
            what = f"nothing came for {SILENCE} seconds"
        raise kind(f"the transfer failed: {what}", where=where, hint="check the URL, or try again") from None
