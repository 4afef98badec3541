"""The manifest of an archive: `archive.jsonl`, one JSON object a line for each source.

While an archive is filled, lines are appended one by one: the last one of a source counts. When all is done, the
manifest is written anew, atomically, with one line for each source. A source keeps its position.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path, PurePath
from stat import S_ISDIR, S_ISREG
from typing import Any

from ..backstop import limited
from ..budget import Budget
from ..errors import BudgetError, MissingFileError, QfmtError
from ..file.copies import downloaded, uploaded
from ..file.replacing import replacing
from ..file.sharding import are_intact, spare
from ..frontends.content import sha256_of
from ..frontends.json_text import is_shallow, parse
from ..regular import files_below, irregular, is_link, require_short, resolved, state_of
from ..urls import Place, Url

MANIFEST = "archive.jsonl"

RESTORE = "restore it, update qfmt if a newer one wrote it, or remove it and convert the sources again"

LONGEST = 1 << 24
"""The most bytes of a line."""

ENTRY_BYTES, CHARACTER, OPTIONS = 500, 4, 30
"""Bytes in memory that an entry takes: a constant, for a byte of its line, and for one of options that no entry before
it has."""

_REMOTE = re.compile(r"[/\\]{2}|\\\?\?\\")
"""How a path to another machine begins on Windows: two slashes of either kind, or the NT prefix `\\??\\`."""

LEVELS = 4
"""How deep the options of a conversion are nested, at most."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of a source: it is converted if it has a content id, has failed if it has an error, else planned.
    It has both if it was converted once, and could not be read later.

    `source` is its name in the archive, `path` where it lies (of a link: the link), relative to the archive, or its
    URL. `options` are those of the conversion. `size` is that of the source in bytes. `external` is the digest of the
    external data of an ONNX model. `file` is the `.qfb`, relative to the archive: that of the first of equal models.
    Digests and the content id are hexadecimal digits. `engine` is what the model states.
    """

    source: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    sha256: str = ""
    external: str = ""
    file: str = ""
    file_sha256: str = ""
    content_id: str = ""
    engine: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class Manifest:
    """The entries of an archive, by the names of the sources, in the order in which they came."""

    def __init__(self, folder: Place) -> None:
        """The manifest of a folder, empty if it has none.

        The last line is ignored if it is incomplete (`is_cut`): its writer was killed, or it is a part of the manifest.
        Raises QfmtError for any other line that is not one of a manifest, and for a file outside the folder;
        BudgetError if it would take too much memory.
        """
        self.folder = folder
        self.path = folder / MANIFEST
        self.entries: dict[str, Entry] = {}
        self.is_cut = False
        self._folders: set[Path] = set()
        """Folders of the archive that no link leads to."""
        self._options: dict[str, Mapping[str, Any]] = {}
        self._require_no_link()
        if not (state_of(self.path) if isinstance(self.path, Path) else self.path.exists()):
            return
        with downloaded(self.path) as path:
            if what := irregular(path):
                raise QfmtError(what, where=str(path))
            nbytes = path.stat().st_size
            self.is_cut = not nbytes
            budget = Budget(nbytes, "reading")
            with path.open("rb") as file, limited(nbytes, str(self.path)):
                for number, line in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
                    if line.isspace():  # as other readers of JSON Lines do
                        continue
                    if len(line) == LONGEST:  # a sparse file may be larger than memory
                        raise QfmtError("is too long a line", where=f"{self.path}:{number}", hint=RESTORE)
                    try:
                        self._add(line, f"{self.path}:{number}", budget)
                    except QfmtError:
                        if line.endswith(b"\n"):
                            raise
                        self.is_cut = True

    def _require_no_link(self) -> None:
        if not isinstance(self.path, Path):
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            if is_link(self.path.lstat()):  # what it leads to would be replaced
                raise QfmtError("is a link", where=str(self.path), hint="put the manifest itself into the archive")

    def _add(self, line: bytes, where: str, budget: Budget) -> None:
        try:
            budget.allocate(ENTRY_BYTES + CHARACTER * len(line))
            entry = Entry(**parse(line, Budget(len(line), "reading")))  # which is forgotten after the line
            if not is_shallow(entry.options, LEVELS):
                raise TypeError
            if any(type(getattr(entry, name)) not in kinds for name, kinds in _TYPES.items()):
                raise TypeError
            # NaN and Infinity are no JSON, but Python reads and writes them
            if not 0 <= entry.size < 1 << 63 or not 0 <= entry.seconds < inf:
                raise ValueError
            self.place(entry)
        except UnicodeEncodeError as error:  # of `place`
            what = f"names a file that this system cannot name in {error.encoding}: {entry.file}"
            raise QfmtError(what, where=where, hint="set PYTHONUTF8=1") from None
        except (ValueError, TypeError, OSError):  # OSError: a name that is too long
            raise QfmtError("is not a line of a manifest", where=where, hint=RESTORE) from None
        except BudgetError as error:
            raise error.at(where) from None
        self.entries[entry.source] = replace(entry, options=self._shared(entry.options, budget, where))

    def _shared(self, options: Mapping[str, Any], budget: Budget, where: str) -> Mapping[str, Any]:
        """Equal options, which most entries have, once."""
        text = json.dumps(options)
        if text not in self._options:
            try:
                budget.allocate(OPTIONS * len(text))
            except BudgetError as error:
                raise error.at(where) from None
            self._options[text] = options
        return self._options[text]

    def place(self, entry: Entry) -> Place:
        """The place of its file.

        QfmtError if it leads out of the archive or through a link, or is no `.qfb`, which may be replaced and removed:
        the manifest may come from anyone.
        """
        path = self.folder / entry.file
        # One name only: two entries with one file must have equal names. A link may lead anywhere.
        is_name = _is_below(entry.file) and PurePath(entry.file).as_posix() == (entry.file or ".")
        if isinstance(path, Path) and not (is_name and not self._is_behind_link(entry.file)):
            what = f"the file of {entry.source} is not in the archive: {entry.file}"
            hint = "remove the link from the folder, or the line from the manifest"
            raise QfmtError(what, where=str(self.path), hint=hint)
        if entry.file and not entry.file.endswith(".qfb"):
            what = f"the file of {entry.source} is not a .qfb file: {entry.file}"
            raise QfmtError(what, where=str(self.path), hint="remove the line from the manifest")
        return path

    def _is_behind_link(self, file: str) -> bool:
        """Whether a file of the archive, or a folder on the way to it, is a link. Raises OSError, ValueError."""
        require_short(file)
        assert isinstance(self.folder, Path)
        path = self.folder
        for part in PurePath(file).parts:
            path /= part
            if path not in self._folders:
                try:
                    found = path.lstat()
                except OSError:
                    return False  # who opens it says what is wrong
                if is_link(found):
                    return True
                if S_ISDIR(found.st_mode):
                    self._folders.add(path)
        return False

    def unlisted(self) -> list[str]:
        """The `.qfb` files of the folder that no entry names, and, of a local one, shards that no file refers to. None
        are known of a web server, which lists no files."""
        if isinstance(self.folder, Path):
            files = [*files_below(self.folder, lambda error: None)]  # of folders that it may not read, it says nothing
            found = [path for path in files if path.name.endswith(".qfb")] + [*spare(files)]
            names = sorted(path.relative_to(self.folder).as_posix() for path in found)
        elif self.folder.has_folders:
            names = [name for name, _ in self.folder.files() if name.endswith(".qfb")]
        else:
            return []
        listed = {entry.file for entry in self.entries.values()}
        return [name for name in names if name not in listed]

    def source(self, entry: Entry, below: Place | None = None) -> Place:
        """The place of its source, below the place of all sources if that is given.

        QfmtError for a URL in the manifest, which may come from anyone.
        """
        if below is not None:
            if isinstance(below, Path) and not _is_below(entry.source):
                raise QfmtError("is not the name of a source", where=f"{self.path}: {entry.source}")
            return below / entry.source
        if "://" in entry.path or _REMOTE.match(entry.path) or isinstance(self.folder, Url):
            hint = "name the folder of the sources with --sources"
            raise QfmtError(f"only the manifest says that its source is {entry.path}", where=entry.source, hint=hint)
        home = resolved(self.folder)  # that of a link is not the folder that holds the archive
        return Path(os.path.normpath((self.folder if home == self.folder.absolute() else home) / entry.path))

    def save(self) -> None:
        """Write the manifest anew. Raises DestinationError; QfmtError if it has become a link."""
        self._require_no_link()
        with uploaded(self.path) as path, replacing(str(path)) as file:
            file.writelines(entry.line.encode() for entry in self.entries.values())


def _is_below(text: str) -> bool:
    """Whether a text names something below a folder, if there are no links."""
    path = PurePath(text)
    return not path.anchor and ".." not in path.parts


def is_there(file: Path, entry: Entry) -> bool:
    """Whether the file of an entry has the digest that the entry states."""
    found = state_of(file)
    return bool(found and S_ISREG(found.st_mode) and found.st_size) and sha256_of(file) == entry.file_sha256


def is_whole(file: Place, entry: Entry) -> bool:
    """The same, and that all its shards are there."""
    with suppress(MissingFileError), downloaded(file) as path:
        return is_there(path, entry) and are_intact(path)
    return False


_TYPES = {name: {type(value)} for name, value in asdict(Entry("", "")).items()} | {"seconds": {float, int}}
"""Of the values in a line; other programs write 1 for 1.0."""
