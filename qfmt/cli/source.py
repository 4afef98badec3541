"""A model from any file that the user names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import qfmt

from ..errors import DestinationError, QfmtError
from ..regular import irregular, refusal
from .output import working

if TYPE_CHECKING:
    from ..model import Model


class _File(click.Path):
    """A regular file. Others are rejected before they are opened: opening a FIFO waits for its writer."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
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
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(value) if is_archive(Path(value)) else super().convert(value, param, ctx)


class _Archive(_File):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not is_archive(Path(value)):
            self.fail(f"{value} is not a folder that `qfmt convert --out` wrote", param, ctx)
        return Path(value)


FILE, FILE_OR_ARCHIVE, ARCHIVE = _File(), _FileOrArchive(), _Archive()
"""The types of arguments that name an existing file, or a folder with the manifest of an archive."""

QFB, CONVERTED = "qfb", "converted"


def is_archive(path: Path) -> bool:
    """Whether it is a folder with the manifest of an archive."""
    if not path.is_dir():
        return False
    from ..archive.manifest import MANIFEST

    return (path / MANIFEST).is_file()


def kind_of(path: Path) -> str:
    """QFB for a `.qfb` file, detected by its content or, if that is damaged, by its name; else CONVERTED."""
    with path.open("rb") as file:
        identifier = file.read(8)[4:7]
    return QFB if identifier == b"QFB" or path.suffix == ".qfb" else CONVERTED


def open_model(path: Path) -> tuple[Model, str]:
    """The model of a `.qfb`, or of another format, converted in memory; and which of the two it was."""
    kind = kind_of(path)
    if kind == QFB:
        return qfmt.load(path), kind
    with working(f"converting {path.name}"):
        return qfmt.convert(path), kind


def spare(dest: Path, *sources: Path) -> None:
    """DestinationError if writing `dest` would replace one of the sources."""
    if dest.exists() and any(map(dest.samefile, sources)):
        raise DestinationError("is the source itself", where=str(dest), hint="choose another name for the result")
