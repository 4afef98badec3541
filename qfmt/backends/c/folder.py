"""A folder that is written completely or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ...errors import DestinationError
from ...file.replacing import replacing_folder
from ...regular import resolved

MARK = "written by qfmt"


def check(folder: Path, program: str) -> None:
    """DestinationError unless the folder is new, empty, or has a program of that name only."""
    where = str(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DestinationError("is not a folder", where=where, hint="name a folder that does not exist yet")
    if Path.cwd().is_relative_to(resolved(folder)):  # a process would stay in a folder that is gone
        raise DestinationError("is, or contains, the current folder", where=where, hint="name another folder")
    if not folder.parent.is_dir():
        raise DestinationError("is in a folder that does not exist", where=where, hint="create it first")
    if folder.is_dir():
        _check_content(folder, program, where)


def _check_content(folder: Path, program: str, where: str) -> None:
    if any(folder.iterdir()) and not _is_ours(folder, program):
        raise DestinationError("contains other files", where=where, hint="name a new folder; nothing was changed")


def _is_ours(folder: Path, program: str) -> bool:
    """Whether it contains only that program and its compiled files."""
    made = re.compile(rf"{program}(_check|_weights(_\d+)?)?\.[cho]|lib{program}\.a|main(\.[co]|\.exe)?|Makefile")
    is_whole = all(path.is_file() and made.fullmatch(path.name) for path in folder.iterdir())
    return is_whole and MARK in _begin(folder / f"{program}.h")


def _begin(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(400)
    except OSError:
        return ""


def write(folder: Path, program: str, texts: Mapping[str, str]) -> None:
    """Write all files into a new folder, which then replaces `folder`. DestinationError if that contains other files by
    then."""
    with replacing_folder(folder, partial(_check_content, program=program, where=str(folder))) as made:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="ascii", newline="\n")
