"""Convert many sources into an archive, in processes. What is in it already is not converted again.

Workers convert and write files; only this process writes the manifest. Equal models (content id) are stored once, under
the name of their first source in the manifest, whichever was ready first.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from errno import ENOMEM
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypedDict

from ..backstop import limited
from ..errors import DestinationError, QfmtError, RemoteError, SourceError, message
from ..file.copies import downloaded, uploaded
from ..file.header import is_qfb
from ..file.replacing import refuse_links_of_others
from ..file.sharding import tidy
from ..file.writer import write
from ..frontends.content import sha256_of, sha256_of_rest
from ..frontends.sources import external_files
from ..regular import irregular, resolved, state_of
from ..urls import Place, Url, place, text_of
from . import cluster, workers
from .manifest import Entry, Manifest, is_whole
from .names import alike, file_names
from .sources import are_same
from .workers import Limits, Message, named

if sys.platform != "win32":
    import fcntl

Told = Callable[[Entry], None]
Key = tuple[str, str, str]


class Filled(NamedTuple):
    """What `fill` did: the manifest; for each source that it was given, by name, one of RESULTS; and where sources were
    before, if another file has their name now."""

    manifest: Manifest
    results: dict[str, str]
    replaced: dict[str, str]


class Task(TypedDict):
    """What a worker does for a source; JSON."""

    source: str
    path: str
    """Of the source, for a worker."""
    listed: str
    """The same in the manifest, which is relative to the archive."""
    file: str
    """The file of the model, in the archive."""
    repaired: str
    """The same if the source has not changed, but what the archive has of it is damaged."""
    options: dict[str, Any]
    known: Message | None
    """The entry of the manifest, if it has a model."""
    must_be_equal: bool
    """Whether the source must be the one of the entry: it is at another place."""


PERIOD = 10
"""Seconds between two writes of the manifest of an archive by URL."""

RESULTS = {
    "converted": "",
    "equal": "the model of another source, which is stored once",
    "kept": "in the archive already",
    "failed": "",
}
"""What can become of a source, and what that means."""


def fill(
    folder: Place,
    sources: Mapping[str, Place],
    *,
    maker: str = "qfmt:convert",
    options: Mapping[str, Any] | None = None,
    jobs: int = 1,
    limits: Limits | None = None,
    dask: str = "",
    told: Told = lambda entry: None,
) -> Filled:
    """Convert sources {name: path} into an archive, in `jobs` processes, or on a Dask cluster (`cluster.py`).

    `maker` names a function, as "module:function", that gives the model of a path and `options` (by keyword; JSON);
    the option `shard_size` is that of `save`. A source is not converted again if the archive has its result, with all
    shards, for equal digests and options. Any error of a source, and the death of the process that converts it, becomes
    the `error` of its entry and stops nothing. `told` is called with each entry as it comes. After an interruption, the
    next call continues.

    Raises DestinationError if the archive cannot be written, or another process is filling it; SourceError if the name
    of a source is not UTF-8; QfmtError if its manifest cannot be read, or the cluster not be reached.
    """
    for each in (folder, *sources.values()):
        if isinstance(each, Url) and each.protocol == "memory":
            hint = "memory:// is the memory of one process, but other processes convert"
            raise DestinationError("cannot be used for an archive", where=str(each), hint=hint)
    if isinstance(folder, Url) and folder.suffix == ".qfb":
        raise DestinationError("names a file, and an archive is a folder", where=str(folder), hint="omit .qfb")
    if isinstance(folder, Url) and (options or {}).get("shard_size"):
        hint = "fill a local folder, and copy it"
        raise DestinationError("shards cannot be put into an archive by URL", where=str(folder), hint=hint)
    with _locked(folder):
        manifest = Manifest(folder)
        tasks = _planned(manifest, sources, json.loads(json.dumps(options or {})))
        manifest.save()  # without an incomplete line, and with the position of each source
        written: dict[str, str] = {}
        """The file that was written for a source; "" if the archive had it."""
        asked = tasks, WORK, (_everywhere(folder), maker), jobs
        answering = cluster.results(*asked, dask) if dask else workers.results(*asked, limits)
        with _journal(manifest) as journal, closing(answering) as answers:
            settling = _Settling(manifest, journal, sources)
            for task, answer in answers:
                answer = _accepted(folder, task, answer)
                written[task["source"]] = answer.get("file", "")
                told(settling.settle(task, answer))
            settling.finish()
        manifest.save()
    results, replaced = dict[str, str](), dict[str, str]()
    for task in tasks:
        entry = manifest.entries[task["source"]]
        results[entry.source] = _result(entry, written[entry.source])
        known = task["known"]
        if known and entry.path != known["path"] and entry.sha256 != known["sha256"]:
            replaced[entry.source] = known["path"]
    return Filled(manifest, results, replaced)


def _result(entry: Entry, written: str) -> str:
    if entry.error:
        return "failed"
    if not written:
        return "kept"
    return "converted" if entry.file == written else "equal"


def _planned(manifest: Manifest, sources: Mapping[str, Place], options: dict[str, Any]) -> list[Task]:
    """A task for each source; what is not in the manifest joins it, with the name of a file that is its own."""
    entries = manifest.entries
    uses = Counter(entry.file for entry in entries.values())
    owners = {entry.file: name for name, entry in reversed(entries.items())}
    taken = {*map(alike, uses)}
    numbers = Counter[str]()
    tasks: list[Task] = []
    for name, path in sources.items():
        known = entries.get(name)
        must_be_equal = known is not None and _must_be_equal(manifest, known, path)
        before = target = known.file if known else ""
        if not target or uses[target] != 1:
            target = next(file for file in file_names(name, numbers) if alike(file) not in taken)
            taken.add(alike(target))
        planned = Entry(name, _relative(path, manifest.folder), options, file=target)
        manifest.place(planned)  # a link in the folder may lead out of it
        _require_text(planned)
        entries.setdefault(name, replace(planned, options={}))
        tasks.append(
            Task(
                source=name,
                path=_everywhere(path),
                listed=planned.path,
                file=target,
                repaired=before if owners.get(before) == name else target,
                options=options,
                known=asdict(known) if known and known.content_id else None,
                must_be_equal=must_be_equal,
            )
        )
    return tasks


def _must_be_equal(manifest: Manifest, known: Entry, path: Place) -> bool:
    """Whether a worker must compare a source with the earlier one of its name, because it is at another URL now.
    SourceError for a local file that is another source: the model in the archive would be lost.

    A file that was moved, copied or downloaded is the same. What the manifest names by a URL is taken to be there: the
    manifest may come from anyone, so nothing is requested.
    """
    new = _relative(path, manifest.folder)
    if known.path == new or not known.content_id:
        return False
    is_another = False
    with suppress(QfmtError, OSError):  # what cannot be read fails later
        if isinstance(path, Url):
            return "://" in known.path or manifest.source(known).is_file()
        if "://" in known.path:
            is_another = _has_changed(known, path)
        elif resolved(path.parent) == Path(os.path.normpath(path.parent.absolute())):  # a link may lead elsewhere now
            former = manifest.source(known)
            is_another = former.is_file() and not are_same(former, path) and _has_changed(known, path)
    if is_another:
        raise _another(known, new)
    return False


def _another(known: Entry, path: str) -> SourceError:
    what = f"two sources have the name {known.source}: {known.path}, whose model is in the archive, and {path}"
    return SourceError(what, hint="name the folder that holds both, or another archive")


def _has_changed(known: Entry, source: Path) -> bool:
    """Whether a source differs from what was converted. It is read only if its size is equal, as it may have terabytes,
    and parsed for external data only if its bytes are. What is no regular file fails later."""
    if irregular(source):
        return False
    if known.size != source.stat().st_size or known.sha256 != sha256_of(source):
        return True
    return not asdict(known).items() >= _digests(source).items()


def _require_text(entry: Entry) -> None:
    """SourceError if the manifest could be written, but not read: a name may be bytes that are no UTF-8."""
    try:
        json.dumps([entry.source, entry.path, entry.options], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        hint = "rename the source, or set PYTHONUTF8=1 if it has a name in another language"
        raise SourceError("its name, its path or an option is not UTF-8", where=entry.source, hint=hint) from None


def _everywhere(place: Place) -> str:
    """As text that means the same to a worker, which may have another working directory."""
    return text_of(place if isinstance(place, Url) else place.absolute())


def _relative(path: Place, home: Place) -> str:
    """The path of a source relative to the archive; a URL, or a path on another drive, in full. For a source that is a
    link, it is the path of the link, which may later lead elsewhere, or be replaced by a file."""
    if isinstance(path, Url):
        return str(path)
    path = resolved(path.parent) / path.name
    with suppress(ValueError):  # another drive
        if isinstance(home, Path):
            path = Path(os.path.relpath(path, resolved(home)))
    return path.as_posix()


def _accepted(folder: Place, task: Task, answer: object) -> Message:
    """The answer to a task. Of a worker that died, or failed, it is what it announced, if that file has its name."""
    announced = answer.pop(workers.ANNOUNCED, None) if isinstance(answer, dict) else None
    accepted = workers.accepted(answer, partial(_is_answer, task))
    accepted.pop("again", None)  # for `cluster`
    if accepted.get("error") and announced:
        done = workers.accepted(announced, partial(_is_answer, task))
        with suppress(QfmtError, OSError):
            if done.keys() == _CONVERTED.keys() and is_whole(folder / done["file"], Entry(task["source"], "", **done)):
                return done
    return accepted


KEPT: Message = {"kept": True}
"""The answer if a source is in the archive already."""


WORK = f"{__name__}:convert_task"

# Keys and types of the answers of workers
_TEXTS = "sha256", "external", "file", "file_sha256", "content_id", "engine"
_CONVERTED = {**dict.fromkeys(_TEXTS, str), "size": int, "seconds": float}
_FAILED = _CONVERTED | {"error": str, "again": bool}


def _is_answer(task: Task, answer: Message) -> bool:
    """Whether it is KEPT, if the archive may have the source, all of _CONVERTED, or an error with some of _FAILED."""
    if answer == KEPT:
        return task["known"] is not None
    is_complete = bool(answer.get("error")) or (answer.keys() == _CONVERTED.keys() and answer["content_id"] != "")
    is_its_own = answer.get("file", task["file"]) in (task["file"], task["repaired"])
    return is_complete and is_its_own and all(type(value) is _FAILED.get(key) for key, value in answer.items())


def convert_task(folder: str, maker: str, task: Task) -> Message:
    """What a worker does: convert a source into its file, unless the archive has that."""
    begin, path, home, answer = time.perf_counter(), place(task["path"]), place(folder), Message()
    source = path
    try:
        with downloaded(path) as source, limited(source.stat().st_size, ""):
            known, options, digests = task["known"] or {}, dict(task["options"]), Message()
            target = task["file"]
            before = source.stat()
            if task["must_be_equal"] or known.items() >= {"options": options, "size": before.st_size}.items():
                digests = _digests(source)
                is_equal = known.items() >= digests.items()
                if task["must_be_equal"] and not is_equal:
                    raise _another(Entry(**known), task["listed"])
                if is_equal and known["options"] == options:
                    if is_whole(home / known["file"], Entry(**known)):
                        return KEPT
                    target = task["repaired"]  # it is of no use to the sources that share it, either
            shard_size = options.pop("shard_size", None)
            model = named(maker)(source, **options)
            digests = digests or _digests(source)  # not before: a file that cannot be converted may have terabytes
            _require_unchanged(source, before)
            with uploaded(home / target) as file:
                if known.get("file") != target:
                    _require_replaceable(file)
                for parent in reversed(file.parents):  # `mkdir` recurses once for each
                    if not parent.exists():
                        parent.mkdir(exist_ok=True)
                answer = digests | {"file": target, "size": before.st_size, "engine": model.engine}

                def identify(new: BinaryIO) -> None:
                    """Announce the file before it gets its name: its worker may die between that and the answer. The
                    source must not have changed, because arrays may be read from it as they are written."""
                    new.seek(0)
                    answer.update(content_id=model.content_id().hex(), file_sha256=sha256_of_rest(new))
                    _require_unchanged(source, before)
                    workers.announce(answer | {"seconds": _seconds_since(begin)})

                write(model, file, shard_size=shard_size, before_replacing=identify)
    except Exception as error:
        answer = {"error": _said(error, str(path), str(source), f"{home}/"), "again": isinstance(error, RemoteError)}
    return answer | {"seconds": _seconds_since(begin)}


def _seconds_since(begin: float) -> float:
    return round(time.perf_counter() - begin, 3)


def _require_unchanged(source: Path, before: os.stat_result) -> None:
    """SourceError if a source was written to since."""
    if _state(source.stat()) != _state(before):
        raise SourceError("was changed while it was converted", hint="run the same command again")


def _require_replaceable(file: Path) -> None:
    """DestinationError for a file that is no `.qfb`: it may hold data of a source; or no file."""
    if state_of(file):
        if what := irregular(file):
            raise DestinationError(what, hint="move it, or name another folder")
        with file.open("rb") as opened:
            if not is_qfb(opened.read(8)):
                raise DestinationError("is there, and is no .qfb", hint="move it, or name another folder")


def _state(found: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is replaced or written to."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _digests(source: Path) -> Message:
    """The digests of a source and of the files beside it that hold its data."""
    parts = "".join(map(sha256_of, external_files(source)))
    external = parts and hashlib.sha256(parts.encode()).hexdigest()
    return {"sha256": sha256_of(source), "external": external}


def _said(error: Exception, *paths: str) -> str:
    """What to say of an error; its entry has the paths already."""
    if isinstance(error, MemoryError) or getattr(error, "errno", 0) == ENOMEM:  # also of a system call
        return "needs more memory than its worker may take; `--memory` sets the limit"
    if isinstance(error, QfmtError):
        for path in paths:
            error.where = error.where.removeprefix(path).removeprefix(": ")
    return message(error)


class _Settling:
    """Brings answers into the manifest, and stores equal models once."""

    def __init__(self, manifest: Manifest, journal: Told, pending: Mapping[str, object]) -> None:
        self.manifest, self.entries, self.journal = manifest, manifest.entries, journal
        self.rank = {name: (False, position) for position, name in enumerate(self.entries)}
        """Of equal models the file of the source with the lowest one stays: of those whose files were there before,
        or which are converted for the first time, the first in the manifest; then of the others."""
        self.uses = Counter(entry.file for entry in self.entries.values())
        self.firsts: dict[Key, str] = {}
        """The first source of equal models; of sources that are given, when their answers have come."""
        self.moved: set[Key] = set()
        """Models whose first changed: others may still have the file of the one before."""
        self.there: set[str] = set()
        """Files of `firsts` that were found to be there."""
        self.touched: set[str] = set()
        """Files that were removed, or that a worker could have written, now or in a run that was killed: their shards
        or empty folders may be left."""
        for entry in self.entries.values():
            if entry.content_id and entry.source not in pending:
                self.firsts.setdefault(_key(entry), entry.source)

    def settle(self, task: Task, answer: Message) -> Entry:
        """The entry of a source for the answer to its task. If it failed, an earlier result stays as it is."""
        before = self.entries[task["source"]]
        self.touched.add(task["file"])
        if answer == KEPT:
            entry = replace(before, path=task["listed"], error="")
        elif answer.get("error") and before.content_id:
            where = "" if task["listed"] == before.path else f"{task['listed']}: "
            entry = replace(before, error=where + answer["error"])
        else:
            entry = Entry(before.source, task["listed"], task["options"], **Message(file=task["file"]) | answer)
            self.rank[entry.source] = bool(before.error or before.content_id), self.rank[entry.source][1]
        if entry.error:
            self._note(entry)
            return entry
        left = {before.file, entry.file}
        first = self._first(entry)
        if self.rank[first.source] < self.rank[entry.source]:
            entry = replace(entry, file=first.file, file_sha256=first.file_sha256)
        else:
            self.firsts[_key(entry)] = entry.source
        self._note(entry)
        if first.file != entry.file:  # it was ready before this one, which has an earlier position
            self.moved.add(_key(entry))
        self._remove_unused(left | {first.file})
        return entry

    def finish(self) -> None:
        """Give equal models one file: that of the source with the lowest rank, which is known only at the end. Remove
        shards that are of no use, and folders without files: only now, as another worker may have made one for its
        file."""
        left = set()
        for entry in list(self.entries.values()):
            if entry.content_id and _key(entry) in self.moved:
                first = self.entries[self.firsts[_key(entry)]]
                left.add(entry.file)
                self._note(replace(entry, file=first.file, file_sha256=first.file_sha256))
        self._remove_unused(left)
        folder = self.manifest.folder
        if isinstance(folder, Path):
            tidy(folder / file for file in self.touched | {entry.file for entry in self.entries.values()} - {""})
            for file in self.touched:
                _remove_empty(folder, file)

    def _remove_unused(self, files: set[str]) -> None:
        for file in files:
            if file and not self.uses[file]:
                with suppress(QfmtError, OSError):  # `check` names what could not be removed
                    (self.manifest.folder / file).unlink(missing_ok=True)
                self.touched.add(file)

    def _first(self, entry: Entry) -> Entry:
        """The first with an equal model, if its file is there; else the entry itself."""
        if _key(entry) in self.firsts:
            first = self.entries[self.firsts[_key(entry)]]
            with suppress(QfmtError, OSError):  # a file that cannot be read is not shared
                if first.file in self.there or is_whole(self.manifest.folder / first.file, first):
                    self.there.add(first.file)
                    return first
        return entry

    def _note(self, entry: Entry) -> None:
        before = self.entries[entry.source]
        if entry != before:
            self.entries[entry.source] = entry
            self.uses[before.file] -= 1
            self.uses[entry.file] += 1
            self.journal(entry)


def _key(entry: Entry) -> Key:
    """What the entries of equal models, which are stored once, have in common. The content id is not all: options may
    change test vectors, shards and proofs, and `verify` runs a source with the engine that the file states."""
    return entry.content_id, entry.engine, json.dumps(entry.options, sort_keys=True)


def _remove_empty(folder: Path, file: str) -> None:
    """Remove the folders on the way from a folder to a file that are empty."""
    for parent in [*PurePosixPath(file).parents][:-1]:
        with suppress(OSError):
            (folder / parent).rmdir()


@contextmanager
def _journal(manifest: Manifest) -> Iterator[Told]:
    """Writes down each entry that it is given; by URL, where nothing can be appended, all of them now and then."""
    saved = time.monotonic()

    def append(entry: Entry) -> None:
        file.write(entry.line.encode())
        file.flush()

    def save_all(entry: Entry) -> None:
        nonlocal saved
        if time.monotonic() - saved > PERIOD:
            manifest.save()
            saved = time.monotonic()

    if isinstance(manifest.path, Path):
        try:
            with manifest.path.open("ab") as file:
                yield append
        except QfmtError:  # some are OSErrors, too
            raise
        except OSError as error:
            where = error.filename or str(manifest.path)
            raise DestinationError(f"cannot be written: {error.strerror}", where=where) from None
        return
    try:
        yield save_all
    finally:
        manifest.save()


@contextmanager
def _locked(folder: Place) -> Iterator[None]:
    """Only one process fills an archive. Without locks (Windows, URLs), nothing tells. Makes a local folder."""
    if isinstance(folder, Url):
        folder.require_writable()
        yield
        return
    try:
        refuse_links_of_others(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DestinationError(f"cannot be created: {error.strerror}", where=str(folder)) from None
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or choose another folder"
            raise DestinationError("another process is filling this archive", where=str(folder), hint=hint) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
