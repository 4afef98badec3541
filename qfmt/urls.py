"""Paths and URLs: what a user names is one or the other, and here it is decided which.

A URL is read and written by fsspec, and by the package that fsspec needs for its protocol (docs/archive.md, "URLs").
Only the protocols of PACKAGES are served, and no chains of them (`zip://…::http://…`): nothing else that fsspec can do
is reached, and a path never reaches it. A URL is what the user or the caller named, never what was read from a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .errors import DestinationError, MissingFileError, MissingPackageError, QfmtError, RemoteError, first_line

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_EXTRA = "run `pip install '.[remote]'` in a checkout of qfmt"

PACKAGES = {"memory": _EXTRA, "http": _EXTRA, "https": _EXTRA, "s3": "run `pip install s3fs`"}
"""The protocols of URLs, and what to do if packages for them are missing."""

CHUNK = 1 << 22
"""The most bytes that are held while a file is copied."""

_WEB = ("http", "https")

SILENCE = 60
"""Seconds without a byte after which a server counts as gone."""


class Url:
    """A remote file or folder, with as much of `pathlib.Path` as there is need for.

    As text it has no password and no query, which may hold a signature. Methods raise MissingFileError, RemoteError if
    the other side fails, MissingPackageError.
    """

    __slots__ = ("protocol", "text")

    def __init__(self, text: str) -> None:
        """A URL with one of the protocols of PACKAGES. RemoteError if it is malformed."""
        self.text = text
        self.protocol = text.partition("://")[0].lower()
        try:
            _ = self._split.port
        except ValueError:  # its message quotes what may be a password
            raise RemoteError("is not a URL", where=masked(text), hint="check host and port") from None
        if self.protocol == "s3" and "@" in self._split.netloc:
            hint = "the protocol's own settings hold the credentials (docs/archive.md)"
            raise RemoteError("has an @ in the name of its bucket", where=masked(text), hint=hint)

    def __str__(self) -> str:
        if self.protocol not in _WEB:
            return self.text
        split = self._split
        query = "?…" if split.query else ""
        return f"{split.scheme}://{split.netloc.rpartition('@')[2]}{split.path}{query}"

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and self.text.rstrip("/") == other.text.rstrip("/")

    def __hash__(self) -> int:
        return hash(self.text.rstrip("/"))

    @property
    def _split(self) -> SplitResult:
        from urllib.parse import SplitResult, urlsplit

        if self.protocol in _WEB:
            return urlsplit(self.text)
        rest = self.text.partition("://")[2]  # a key may hold any character
        bucket, _, key = ("", "", rest.lstrip("/")) if self.protocol == "memory" else rest.partition("/")
        return SplitResult(self.protocol, bucket, f"/{key}", "", "")

    @property
    def name(self) -> str:
        return self._split.path.rstrip("/").rpartition("/")[2]

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> Url:
        split = self._split
        return Url(f"{split.scheme}://{split.netloc}{split.path.rstrip('/').rpartition('/')[0]}/")

    @property
    def parents(self) -> Iterator[Url]:
        """The folders that it is in, from the inner to the outer one."""
        each = self
        while each.name:
            each = each.parent
            yield each

    def __truediv__(self, name: str) -> Url:
        """What has this relative path below the folder. RemoteError for a path that leads out of it."""
        if ".." in name.split("/") or name.startswith("/"):
            raise RemoteError(f"{name!r} is not below it", where=str(self))
        split = self._split
        if self.protocol in _WEB:
            from urllib.parse import quote

            name = quote(name)
        return Url(f"{split.scheme}://{split.netloc}{split.path.rstrip('/')}/{name}")

    # -- what is there ---------------------------------------------------------------------------------

    @property
    def _files(self) -> Any:
        """The file system of fsspec; the same object for all URLs of a protocol."""
        try:
            import fsspec

            if self.protocol not in _WEB:
                return fsspec.filesystem(self.protocol, use_listings_cache=False)
            from aiohttp import ClientTimeout
        except ImportError as error:
            hint = PACKAGES[self.protocol]
            raise MissingPackageError(f"{self.protocol}:// needs a package: {error}", hint=hint) from None
        timeout = ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        return fsspec.filesystem(self.protocol, client_kwargs={"timeout": timeout})

    def is_file(self) -> bool:
        with suppress(MissingFileError), closing(self.open(1)):
            return True
        return False

    exists = is_file

    @property
    def has_folders(self) -> bool:
        """Whether its server lists files. What a web page links to is not that."""
        return self.protocol not in _WEB

    def is_dir(self) -> bool:
        """Whether it is a folder that can be listed."""
        with _failing(self):
            return self.has_folders and bool(self._files.isdir(self.text))

    def files(self, pattern: str = "") -> list[tuple[str, Url]]:
        """The files of the folder and its folders, or those that match a pattern below it, by their relative paths."""
        with _failing(self):
            root = self._files._strip_protocol(self.text).rstrip("/") + "/"
            found = self._files.glob(root + pattern) if pattern else self._files.find(root)
            names = sorted(path.removeprefix(root) for path in found if not pattern or self._files.isfile(path))
        return [(name, self / name) for name in names]

    def head(self, count: int) -> bytes:
        """The first bytes of the file: fewer if it has no more."""
        with closing(self.open(count)) as reading:
            return b"".join(reading.chunks(0, count if reading.size is None else min(count, reading.size)))

    # -- reading and writing ---------------------------------------------------------------------------

    def open(self, first: int | None = None) -> Reading:
        """The file, open, until it is closed; with `first`, only the first bytes are requested now."""
        with _failing(self):
            return _Web(self, first) if self.protocol in _WEB else _Stored(self)

    def put(self, path: Path) -> None:
        """Have the content of a local file: all of it or, if that fails, what was there before. DestinationError."""
        self.require_writable()
        with _failing(self, DestinationError):
            self._files.put_file(str(path), self.text)

    def require_writable(self) -> None:
        """DestinationError if nothing can be written to such a URL."""
        if self.protocol in _WEB:
            hint = "write a local file, or to s3://"
            raise DestinationError(f"{self.protocol}:// is for reading only", where=str(self), hint=hint)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        with suppress(*[MissingFileError] * missing_ok), _failing(self, DestinationError):
            self._files.rm_file(self.text)


Place: TypeAlias = Path | Url
"""Where a file or folder is."""


Named: TypeAlias = str | os.PathLike[str] | Url
"""What a caller names a place by."""


def place(named: Named) -> Place:
    """The path or the URL that somebody names. RemoteError for a URL of a protocol that is not served.

    A `file://` URL is a path. Only text can be a URL; a file whose path looks like one is `./NAME`.
    """
    if not isinstance(named, str):
        return named if isinstance(named, Url) else Path(os.fsdecode(named))
    scheme, mark, rest = named.partition("://")
    if not mark or not re.fullmatch(r"[A-Za-z][^/\\]*", scheme):
        return Path(named)
    protocol = scheme.lower()
    if protocol == "file":
        return _local(rest, named)
    if protocol not in PACKAGES:
        hint = f"the protocols are file, {', '.join(PACKAGES)}; a file of this name is ./{masked(named)}"
        raise RemoteError(f"qfmt does not read {scheme}://", where=masked(named), hint=hint)
    return Url(named)


def text_of(place: Place) -> str:
    """The text from which `place` makes the same; `str` leaves out what is secret."""
    return place.text if isinstance(place, Url) else str(place)


def masked(text: str) -> str:
    """What is a URL, or quotes some, without their passwords and queries. For what cannot be parsed: too much goes."""
    return re.sub(r"\?[^\s'\"]+", "?…", re.sub(r"(?<=://)[^\s'\"]*@", "", text))


def size_of(place: Place) -> int | None:
    """Bytes of a file; None for a remote one whose server does not state them."""
    if not isinstance(place, Url):
        return place.stat().st_size
    with closing(place.open(1)) as reading:
        return reading.size


def _local(rest: str, named: str) -> Path:
    from urllib.request import url2pathname

    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise RemoteError("names another machine", where=masked(named), hint="a file of this one is file:///PATH")
    return Path(url2pathname(f"/{path}"))


# -- reading -------------------------------------------------------------------------------------------


class Reading(Protocol):
    """An open remote file. `size` is None if the other side does not state it, `ranged` whether parts can be read."""

    size: int | None
    ranged: bool

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` to `end`, by the chunk, and none beyond.

        RemoteError if there are fewer, or if the file was changed since it was opened.
        """

    def close(self) -> None: ...


class _Stored:
    """A file in a store that knows sizes and gives any part of a file."""

    ranged = True

    def __init__(self, url: Url) -> None:
        self._url = url
        if url._files.info(url.text)["type"] == "directory":
            raise RemoteError("is a folder, not a file")
        self._file = url._files.open(url.text, "rb", cache_type="none")  # on S3 bound to the ETag that it has now
        self.size: int | None = self._file.seek(0, 2)
        self.close = self._file.close

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        with _failing(self._url):
            while begin < end:
                self._file.seek(begin)
                chunk = self._file.read(min(CHUNK, end - begin))
                _require(chunk, begin, end)
                begin += len(chunk)
                yield chunk


class _Web:
    """A file of a web server, which may know neither its size nor ranges, and may say anything.

    fsspec reads the body of an answer at once; a stream of it is read here, and never beyond what was asked for.
    """

    def __init__(self, url: Url, first: int | None) -> None:
        self._url = url
        self._first: Any = self._request(0, first)
        headers, begin = self._first.r.headers, 0
        self.ranged = self._first.r.status == 206
        self._tag = _tag(headers)
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
        stream = self._url._files.open(self._url.text, "rb", block_size=0, size=1, headers=headers)  # size: no HEAD
        asked = (*stream.r.history, stream.r)
        if self._url.protocol == "https" and any(each.url.scheme != "https" for each in asked):
            stream.close()
            raise RemoteError("leads to an address without encryption")
        if (coding := stream.r.headers.get("Content-Encoding", "identity")) != "identity":
            stream.close()
            what = f"the server sends the file compressed ({coding}), which was not asked for"
            raise RemoteError(what, hint="download it in another way, and give its path")
        return stream

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        with _failing(self._url):
            stream, self._first = self._first, None
            if stream is None or begin:
                if stream is not None:
                    stream.close()
                stream = self._request(begin, end)
                headers = stream.r.headers
                if stream.r.status != 206 or _range(headers) != (begin, self.size) or _tag(headers) != self._tag:
                    stream.close()
                    raise RemoteError("was changed while it was read", hint="try again")
            with closing(stream):
                while begin < end:
                    chunk = stream.read(min(CHUNK, end - begin))
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
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
    if found is None:
        raise RemoteError("the server does not say which part of the file it sends")
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _require(chunk: bytes, begin: int, end: int) -> None:
    if not chunk:
        raise RemoteError(f"ends at byte {begin:,}; {end:,} are stated", hint="try again")


@contextmanager
def _failing(url: Url, kind: type[QfmtError] = RemoteError) -> Iterator[None]:
    """Turns the exceptions of fsspec and of the packages that it uses, which have no common root, into one of ours."""
    try:
        yield
    except QfmtError as error:
        error.where = error.where or str(url)
        raise
    except FileNotFoundError:
        raise MissingFileError("there is no such file", where=str(url), hint="check the URL") from None
    except Exception as error:
        status = getattr(error, "status", None)
        if status in (401, 403) or isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            hint = "the protocol's own settings hold the credentials (docs/archive.md)"
            raise kind("access is denied", where=str(url), hint=hint) from None
        what = masked(first_line(error))  # it may quote the URL in another spelling, or the address of a redirection
        if status:
            what = f"the server answers {status} {getattr(error, 'message', '')}"
        elif "TooManyRedirects" in type(error).__name__:
            what = "the server redirects in a circle, or too often"
        elif "Timeout" in type(error).__name__:
            what = f"nothing came for {SILENCE} seconds"
        raise kind(f"the transfer failed: {what}", where=str(url), hint="check the URL, or try again") from None
