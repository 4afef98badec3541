"""Paths and URLs: what a user names is one or the other, and here it is decided which.

A URL is read and written by fsspec (`transfer.py`), which a path never reaches. A URL is what the user or the caller
named, never what was read from a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import DestinationError, MissingFileError, QfmtError, RemoteError, masked
from .transfer import PACKAGES, WEB, Reading, Stored, Web, failing, filesystem

if TYPE_CHECKING:
    from urllib.parse import SplitResult


LEADS_UP = "has .. in its key, which would be read as the folder above"
VERSION = "has ?versionId= in its key, which would be read as that of another object"


class Url:
    """A remote file or folder, with as much of `pathlib.Path` as there is need for.

    As text it has no password and no query, which may hold a signature. Methods raise MissingFileError, RemoteError if
    the other side fails, MissingPackageError.
    """

    __slots__ = ("protocol", "text")

    def __init__(self, text: str) -> None:
        """A URL with one of the protocols of PACKAGES. RemoteError if it is malformed."""
        protocol, _, rest = text.partition("://")
        self.protocol = protocol.lower()
        self.text = f"{self.protocol}://{rest}"  # s3fs does not know S3://
        try:
            _ = self._split.port
        except ValueError:  # its message quotes what may be a password
            raise RemoteError("is not a URL", where=masked(text), hint="check host and port") from None
        if self.protocol in WEB and not self._split.hostname:  # a password would be in its path
            raise RemoteError("names no host", where=masked(text), hint="write two slashes after the protocol")
        if self.protocol == "s3" and "@" in self._split.netloc:
            hint = "the protocol's own settings hold the credentials (docs/archive.md)"
            raise RemoteError("has an @ in the name of its bucket", where=masked(text), hint=hint)
        if self.protocol == "s3" and not self._split.netloc and self.name:
            raise RemoteError("names no bucket", where=masked(text), hint="name it, as in s3://BUCKET/KEY")

    def __str__(self) -> str:
        if self.protocol not in WEB:
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

        if self.protocol in WEB:
            return urlsplit(self.text)
        rest = self.text.partition("://")[2]  # a key may hold any character
        bucket, _, key = ("", "", rest.lstrip("/")) if self.protocol == "memory" else rest.partition("/")
        return SplitResult(self.protocol, bucket, f"/{key}", "", "")

    @property
    def name(self) -> str:
        return self._split.path.rstrip("/").rpartition("/")[2]

    @property
    def unescaped_name(self) -> str:
        """The name for which `/` gives this URL: on the web without percent escapes, unless it would be a path."""
        from urllib.parse import unquote

        name = unquote(self.name) if self.protocol in WEB else self.name
        return self.name if "/" in name else name

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
        """What has this path below the folder. RemoteError for a path that leads out of it.

        The keys of S3 may have empty parts.
        """
        if ".." in name.split("/"):
            raise RemoteError(f"{name!r} is not below it", where=str(self))
        return self._below(name)

    def _below(self, name: str) -> Url:
        split = self._split
        if self.protocol in WEB:
            from urllib.parse import quote

            name = quote(name)
        return Url(f"{split.scheme}://{split.netloc}{split.path.rstrip('/')}/{name}")

    # -- what is there ---------------------------------------------------------------------------------

    @property
    def _files(self) -> Any:
        self._require_valid_key()
        return filesystem(self.protocol)

    def is_file(self) -> bool:
        with suppress(MissingFileError), closing(self.open(1)):
            return True
        return False

    exists = is_file

    @property
    def has_query(self) -> bool:
        return bool(self._split.query)

    @property
    def has_folders(self) -> bool:
        """Whether its server lists files. What a web page links to is not that."""
        return self.protocol not in WEB

    def is_dir(self) -> bool:
        """Whether it is a folder that can be listed."""
        with failing(str(self)):
            return self.has_folders and bool(self._files.isdir(self.text))

    def files(self, pattern: str = "") -> list[tuple[str, Url]]:
        """The files of the folder and its folders, or those that match a pattern below it, by their relative paths."""
        with failing(str(self)):
            root = self._files._strip_protocol(self.text).rstrip("/") + "/"
            found = self._files.glob(root + pattern, detail=True) if pattern else self._files.find(root, detail=True)
            names = sorted(path.removeprefix(root) for path, what in found.items() if what["type"] == "file")
            names = [name for name in names if not name.endswith("/")]  # consoles of S3 make these for folders
        return [(name, self._below(name)) for name in names]

    def head(self, count: int) -> bytes:
        """The first bytes of the file: fewer if it has no more."""
        with closing(self.open(count)) as reading:
            return b"".join(reading.chunks(0, count if reading.size is None else min(count, reading.size)))

    # -- reading and writing ---------------------------------------------------------------------------

    def open(self, first: int | None = None) -> Reading:
        """The file, open, until it is closed; with `first`, only the first bytes are requested now."""
        with failing(str(self)):
            self._require_valid_key()
            names = self.protocol, self.text, str(self)
            return Web(*names, first) if self.protocol in WEB else Stored(*names)

    def put(self, path: Path) -> None:
        """Have the content of a local file: all of it or, if that fails, what was there before. DestinationError."""
        self.require_writable()
        with failing(str(self), DestinationError):
            self._files.put_file(str(path), self.text)

    @property
    def _key_problem(self) -> str:
        """Why s3fs would use another object than the one with this key; "" if it would not."""
        if self.protocol != "s3":
            return ""
        return LEADS_UP if ".." in self._split.path.split("/") else VERSION if "?versionId=" in self.text else ""

    def _require_valid_key(self) -> None:
        if what := self._key_problem:
            hint = "download that version, and give its path" if what == VERSION else "rename the object"
            raise RemoteError(what, where=str(self), hint=hint)

    def require_writable(self) -> None:
        """DestinationError if nothing can be written to such a URL."""
        if what := self._key_problem:
            raise DestinationError(what, where=str(self), hint="choose another")
        if self.protocol in WEB:
            hint = "write a local file, or to s3://"
            raise DestinationError(f"{self.protocol}:// is for reading only", where=str(self), hint=hint)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        with suppress(*[MissingFileError] * missing_ok), failing(str(self), DestinationError):
            self._files.rm_file(self.text)


Place: TypeAlias = Path | Url
"""Where a file or folder is."""


Named: TypeAlias = str | os.PathLike[str] | Url
"""What a caller names a place by."""


def place(named: Named) -> Place:
    """The path or the URL that somebody names. RemoteError for a URL of a protocol that is not served; QfmtError for
    an empty one, and for what is no path.

    A `file://` URL is a path, and so is `C://NAME`, which begins with the letter of a drive. Only text can be a URL; a
    file whose path looks like one is `./NAME`.
    """
    if not isinstance(named, str | os.PathLike | Url):  # perhaps an open file, or the content of one
        raise QfmtError(f"expects a path or a URL, not {type(named).__name__}", hint="give the path of the file")
    if not isinstance(named, str):
        return named if isinstance(named, Url) else Path(os.fsdecode(named))
    if not named:  # Path("") is the working directory
        raise QfmtError("the path is empty", hint="give the path of a file or a folder")
    scheme, mark, rest = named.partition("://")
    if not mark or not re.fullmatch(r"[A-Za-z][^/\\]+", scheme):
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


def size_of(place: Place) -> int | None:
    """Bytes of a file; None for a remote one whose server does not state them."""
    if not isinstance(place, Url):
        return place.stat().st_size
    with closing(place.open(1)) as reading:
        return reading.size


def _local(rest: str, named: str) -> Path:
    from urllib.parse import unquote_to_bytes
    from urllib.request import url2pathname

    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise RemoteError("names another machine", where=masked(named), hint="a file of this one is file:///PATH")
    # names of POSIX are bytes, in any encoding or none
    found = url2pathname(f"/{path}") if os.name == "nt" else os.fsdecode(unquote_to_bytes(f"/{path}"))
    if "\0" in found:
        raise RemoteError("contains a NUL byte, which no path can", where=masked(named))
    return Path(found)
