"""The sources among the files, folders and globs that a user names."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import DestinationError, MissingFileError, QfmtError, SourceError
from ..frontends.sources import sniff
from ..regular import irregular, refusal

NO_MODELS = ("unknown", "numpy")
"""Kinds of files that may lie beside models in a folder: texts, settings, raw weights, inputs."""


class Found(NamedTuple):
    """Sources by their names in the archive, and how many files in folders are no models."""

    sources: dict[str, Path]
    left_out: int


def find(places: Sequence[str], archive: Path) -> Found:
    """The sources for an archive, sorted by name.

    The name of a source is its path relative to the folder that was given, or to the part of a glob without wildcards;
    that of a file is its last part. A file that is named, or that a glob matches, is a source whatever it holds. In a
    folder and below, files of unknown content and hidden ones are left out, and so is the archive.

    Raises MissingFileError, SourceError if there is no source, or two have the same name, DestinationError for a source
    in the archive.
    """
    sources: dict[str, Path] = {}
    left_out, inside = 0, archive.resolve()
    for place in places:
        for name, path, is_named in _candidates(place):
            if path.resolve().is_relative_to(inside):
                if is_named:
                    hint = "choose another folder for the archive"
                    raise DestinationError("the source is in the archive", where=str(path), hint=hint)
            elif not is_named and _is_no_model(path):
                left_out += 1
            elif not sources.setdefault(name, path).samefile(path):
                what = f"two sources have the name {name}: {sources[name]} and {path}"
                raise SourceError(what, hint="name the folder that holds both")
    if not sources:
        raise SourceError("there are no models", where=", ".join(places), hint="name files, folders or globs")
    return Found(dict(sorted(sources.items())), left_out)


def _candidates(place: str) -> Iterator[tuple[str, Path, bool]]:
    """(name, path, whether the user named it) of what a place stands for."""
    path = Path(place)
    try:
        if path.is_dir():
            for each in path.rglob("*"):
                name = each.relative_to(path)
                if each.is_file() and not any(part.startswith(".") for part in name.parts):
                    yield name.as_posix(), each, False
        elif glob.has_magic(place) and not path.exists():
            root = next(each for each in path.parents if not glob.has_magic(str(each)))
            matches = [each for each in map(Path, glob.glob(place, recursive=True)) if each.is_file()]  # noqa: PTH207
            if not matches:
                raise MissingFileError("no file matches", where=place, hint="check the path")
            for each in matches:
                yield each.relative_to(root).as_posix(), each, True
        elif what := irregular(path):
            raise SourceError(what, where=place)
        else:
            yield path.name, path, True
    except (OSError, ValueError) as error:
        if isinstance(error, QfmtError):
            raise
        raise refusal(error, SourceError).at(place) from None


def _is_no_model(path: Path) -> bool:
    with suppress(QfmtError, OSError):  # what cannot be read is a source that fails
        return sniff(path).key in NO_MODELS
    return False
