"""A model from any file that the user names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import qfmt

from .. import backstop
from ..errors import DestinationError, QfmtError, SourceError, ValidityError
from ..file.header import is_qfb
from ..file.opened import LocalFile
from ..regular import irregular, refusal, resolved, size_if_any
from ..urls import Place, Url, place
from .progress import working

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..model import Model


MODELS = (".qfb", ".pt", ".pth", ".ptl", ".pt2", ".ts", ".onnx", ".safetensors", ".bin", ".ckpt")
"""Suffixes that sources usually have; what a file is, its content tells."""
ARRAYS = (".npy", ".npz")


class _File(click.Path):
    """A regular file, or a URL. Others are rejected before they are opened: opening a FIFO waits for its writer.

    Shells complete names with some suffixes; any other may be given.
    """

    def __init__(self, suffixes: tuple[str, ...] = MODELS) -> None:
        super().__init__()
        self.suffixes = suffixes

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from .completion import files

        return files(incomplete, self.suffixes)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = place(value)
        if isinstance(path, Url):
            return path
        try:
            what = irregular(path)
        except (OSError, ValueError) as error:
            what = str(refusal(error, QfmtError))
            if value == "-":
                what = "standard input is not supported; give the name of a file"
        if what:
            self.fail(f"{value} {what}" if what.startswith("is ") else f"{value}: {what}", param, ctx)
        return path


class _FileOrArchive(_File):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_archive(path := place(value)):
            return path
        if isinstance(path, Path) and path.is_dir():
            self.fail(f"{value} is neither a file nor a folder that `qfmt convert --out` wrote", param, ctx)
        return super().convert(value, param, ctx)


class _Archive(_File):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_archive(path := place(value)):
            self.fail(f"{path} is not a folder that `qfmt convert --out` wrote", param, ctx)
        return path


class _Destination(click.Path):
    """A path or URL to write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return place(value)


FILE, FILE_OR_ARCHIVE, ARCHIVE = _File(), _FileOrArchive(), _Archive(())
QFB_OR_ARCHIVE, ARRAYS_FILE = _FileOrArchive((".qfb",)), _File(ARRAYS)
"""The types of arguments that name an existing file, or a folder with the manifest of an archive."""

DESTINATION = _Destination()
"""The type of those that name what will be written."""

QFB, CONVERTED = "qfb", "converted"


def is_archive(path: Place) -> bool:
    """Whether it is a folder with the manifest of an archive. A URL with a query or the suffix .qfb names a file; so
    does one with any suffix on a web server."""
    if isinstance(path, Url):
        if path.has_query or path.suffix == ".qfb" or (path.suffix and not path.has_folders):
            return False
    elif not path.is_dir():
        return False
    from ..archive.manifest import MANIFEST

    return (path / MANIFEST).is_file()


def kind_of(path: Place) -> str:
    """QFB for a `.qfb` file, detected by its content or, if that is of no source, by its name; else CONVERTED."""
    if isinstance(path, Url):
        return QFB if path.suffix == ".qfb" or is_qfb(path.head(8)) else CONVERTED
    if what := irregular(path):  # of an archive, which has its own arguments
        raise SourceError(what)
    with path.open("rb") as file:
        if is_qfb(LocalFile(file).read(0, 8)):
            return QFB
    if path.suffix != ".qfb":
        return CONVERTED
    from ..frontends.sources import sniff

    return CONVERTED if sniff(path).source else QFB


@contextmanager
def limited(*paths: Place) -> Iterator[None]:
    """Limit what work on files may take (`backstop.limited`). Of a URL, bytes count when they are fetched.

    What is found to be invalid only now, such as a scale that is NaN, is an error of these files.
    """
    nbytes = sum(0 if isinstance(path, Url) else size_if_any(path) for path in paths)
    names = ", ".join(map(str, paths))
    with backstop.limited(nbytes, names):
        try:
            yield
        except ValidityError as error:
            if not error.where:
                error.where, error.hint = names, "correct this in the source; `qfmt inspect` shows what was read"
            raise


def open_model(path: Place) -> tuple[Model, str]:
    """The model of a `.qfb`, or of another format, converted in memory; and which of the two it was."""
    kind = kind_of(path)
    with limited(path):
        if kind == QFB:
            return qfmt.load(path), kind
        with working(f"converting {path.name}"):
            return qfmt.convert(path), kind


def unlinked(path: Place) -> Place:
    """The path without links, the same for all names that lead to a file."""
    return path if isinstance(path, Url) else resolved(path)


def distinct(**results: Place | None) -> None:
    """UsageError if two options name the same file for their results."""
    named: dict[Place, str] = {}
    for option, dest in results.items():
        if dest is not None:
            known = unlinked(dest)
            if known in named:
                raise click.UsageError(f"--{named[known]} and --{option.replace('_', '-')} name the same file: {dest}")
            named[known] = option.replace("_", "-")


def spare(dest: Place, *sources: Place | None) -> None:
    """DestinationError if writing `dest` would replace one of the sources, or a file that has data of one; also for a
    folder that contains one."""
    local = [] if isinstance(dest, Url) or not dest.exists() else [path for path in sources if isinstance(path, Path)]
    if dest in sources or (isinstance(dest, Path) and any(map(dest.samefile, local))):
        raise DestinationError("is the source itself", where=str(dest), hint="choose another name for the result")
    if isinstance(dest, Path) and dest.is_dir() and any(dest.samefile(path.absolute().parent) for path in local):
        raise DestinationError("contains the source", where=str(dest), hint="choose another folder for the result")
    if isinstance(dest, Path) and any(dest.samefile(part) for path in local for part in _parts(path)):
        raise DestinationError("has data of the source", where=str(dest), hint="choose another name for the result")


def _parts(source: Path) -> list[Path]:
    """The files beside a source that have its data; none if it cannot be read, which reading it will say."""
    from ..file.sharding import stated
    from ..frontends.sources import external_files

    with suppress(QfmtError, OSError), limited(source):
        if kind_of(source) == QFB:
            return [part for shard in stated(source) if (part := source.parent / shard.name).exists()]
        return external_files(source)
    return []
