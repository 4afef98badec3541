"""The sources among the files, folders and globs that a user names."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..errors import DestinationError, MissingFileError, QfmtError, SourceError
from ..file.copies import downloaded
from ..frontends.sources import sniff
from ..regular import files_below, irregular, refusal, resolved
from ..urls import Place, Url, place
from .manifest import Manifest

MODELS = (".onnx", ".pt", ".pt2", ".pth", ".ptl", ".safetensors")
"""Suffixes that only models have: a file with one of them whose content is unknown is damaged."""

NO_MODELS = ("unknown", "numpy", "empty", "html", "zip", "torch_tar", "pickle")
"""Kinds of files that may lie beside models in a folder: texts, settings, raw weights, inputs, archives."""

SETTINGS = "torch_settings"
"""The same, whatever their suffix: what a training keeps beside its model."""


class Found(NamedTuple):
    """Sources by their names in the archive, and how many files in folders are no models."""

    sources: dict[str, Place]
    left_out: int


def find(places: Sequence[str], archive: Place) -> Found:
    """The sources for an archive, sorted by name.

    The name of a source is its path relative to the folder that was given, or to the part of a glob without wildcards;
    that of a file is its last part. A file that is named, or that a glob matches, is a source whatever it holds. In a
    folder and below, hidden files are left out, the archive, and files of unknown content, unless they were converted
    before or have the suffix of a model: then they are damaged. A web server has no folders, only files.

    Raises MissingFileError, SourceError if there is no source, or two have the same name, DestinationError for a source
    in the archive; QfmtError if its manifest is needed, and cannot be read.
    """
    sources: dict[str, Place] = {}
    others: list[tuple[str, Place]] = []
    is_inside, inside, hint = _Inside(archive), 0, "choose another folder for the archive"
    for named in places:
        for name, path, is_named in _candidates(named):
            if is_inside(path):
                if is_named:
                    raise DestinationError("the source is in the archive", where=str(path), hint=hint)
                inside += 1
            elif not is_named and _is_no_model(path):
                others.append((name, path))
            else:
                _add(sources, name, path)
    converted = {name for name, entry in Manifest(archive).entries.items() if entry.content_id} if others else set()
    damaged = [(name, path) for name, path in others if name in converted]
    for name, path in damaged:
        _add(sources, name, path)
    if inside and not sources:
        raise DestinationError("all sources are in the archive", where=", ".join(places), hint=hint)
    if not sources:
        raise SourceError("there are no models", where=", ".join(places), hint="name files, folders or globs")
    return Found(dict(sorted(sources.items())), len(others) - len(damaged))


def _add(sources: dict[str, Place], name: str, path: Place) -> None:
    if not are_same(sources.setdefault(name, path), path):
        what = f"two sources have the name {name}: {sources[name]} and {path}"
        raise SourceError(what, hint="name the folder that holds both")


class _Inside:
    """Tells whether a place is in an archive, under whatever path: a folder can be mounted twice."""

    def __init__(self, archive: Place) -> None:
        self._archive = archive
        self._known: dict[Path, bool] = {}

    def __call__(self, path: Place) -> bool:
        if isinstance(path, Url) or isinstance(self._archive, Url):
            return str(path).startswith(f"{str(self._archive).rstrip('/')}/")
        return any(map(self._is_archive, resolved(path).parents))

    def _is_archive(self, folder: Path) -> bool:
        if folder not in self._known:
            self._known[folder] = are_same(folder, self._archive)
        return self._known[folder]


def are_same(one: Place, other: Place) -> bool:
    with suppress(OSError):  # a link to nothing
        return one == other or (isinstance(one, Path) and isinstance(other, Path) and one.samefile(other))
    return False


def _candidates(named: str) -> Iterator[tuple[str, Place, bool]]:
    """(name, path, whether the user named it) of what a name stands for."""
    path = place(named)
    if isinstance(path, Url):
        yield from _remote(path)
    else:
        yield from _local(named, path)


def _remote(url: Url) -> Iterator[tuple[str, Url, bool]]:
    if url.has_folders and glob.has_magic(url.text) and not url.exists():
        root = next(each for each in url.parents if not glob.has_magic(each.text))
        found = root.files(url.text.removeprefix(root.text))
        if not found:
            raise MissingFileError("no file matches", where=str(url), hint="check the URL")
        yield from ((name, each, True) for name, each in found)
    elif url.is_dir():
        for name, each in url.files():
            if not any(part.startswith(".") and part != ".." for part in name.split("/")):
                yield name, each, False
    elif not url.name:
        raise SourceError("names no file", where=str(url), hint="add the name of a file")
    else:
        yield url.unescaped_name, url, True


def _local(named: str, path: Path) -> Iterator[tuple[str, Path, bool]]:
    try:
        if path.is_dir():
            for each in _below(path):
                yield each.relative_to(path).as_posix(), each, False
        elif glob.has_magic(named) and not path.exists():
            root = next(each for each in path.parents if not glob.has_magic(str(each)))
            matches = [*_matching(named)]
            if not matches:
                raise MissingFileError("no file matches", where=named, hint="check the path")
            for each in matches:
                yield each.relative_to(root).as_posix(), each, True
        elif what := irregular(path):
            raise SourceError(what, where=named)
        else:
            yield path.name, path, True
    except (OSError, ValueError) as error:
        if isinstance(error, QfmtError):
            raise
        raise refusal(error, SourceError).at(str(getattr(error, "filename", None) or named)) from None


def _below(folder: Path) -> Iterator[Path]:
    """What is in a folder and below, but no folder, and not hidden; links to folders are not followed. OSError."""

    def fail(error: OSError) -> NoReturn:
        raise error

    return files_below(folder, fail, hidden=False)


def _matching(pattern: str) -> Iterator[Path]:
    """The files that match a pattern. `**` follows no links: with two that lead upwards, `glob` would not end. OSError
    for a folder that cannot be read, which `glob` leaves out."""
    parts = Path(pattern).parts
    at = parts.index("**") if "**" in parts else len(parts)
    for number in range(at):
        for folder in filter(os.path.isdir, glob.glob(str(Path(*parts[:number])))):  # noqa: PTH207
            _require_readable(folder, parts[number])
    for found in map(Path, glob.glob(str(Path(*parts[:at])))):  # noqa: PTH207
        if not found.is_dir():
            if at == len(parts):
                yield found
        elif at < len(parts):
            yield from (each for each in _below(found) if _fits(each.relative_to(found).parts, parts[at:]))


def _require_readable(folder: str, name: str) -> None:
    """OSError if it cannot be told whether a folder has something of that name, or that matches it."""
    if glob.has_magic(name):
        os.scandir(folder).close()
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(Path(folder, name))


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a relative path fits a pattern; both in parts.

    If the rest does not fit, only the last `**` is tried with one part more. An earlier one need not be: whatever it
    took, the last one could take as well. So the time is linear for each `**`.
    """
    part = at = 0
    last: tuple[int, int] | None = None
    """The first part behind what the last `**` takes, and the pattern behind it."""
    while part < len(parts):
        if at < len(pattern) and pattern[at] == "**":
            at += 1
            last = part, at
        elif at < len(pattern) and fnmatch(parts[part], pattern[at]):
            part, at = part + 1, at + 1
        elif last is not None:
            last = part, at = last[0] + 1, last[1]
        else:
            return False
    return all(each == "**" for each in pattern[at:])


def _is_no_model(place: Place) -> bool:
    """What cannot be read is a source that fails."""
    with suppress(QfmtError, OSError, MemoryError), downloaded(place) as path:
        if irregular(path) or (kind := sniff(path).key) == SETTINGS:
            return True
        return kind in NO_MODELS and Path(place.name.lower()).suffix not in MODELS
    return False
