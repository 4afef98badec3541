"""A folder that is written completely or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ...errors import DestinationError
from ...file.replacing import replacing_folder

MARK = "written by qfmt"


def check(folder: Path) -> None:
    """DestinationError unless the folder is new, empty, or one that was written here before."""
    where = str(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DestinationError("is not a folder", where=where, hint="name a folder that does not exist yet")
    if not folder.parent.is_dir():
        raise DestinationError("is in a folder that does not exist", where=where, hint="create it first")
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        raise DestinationError("contains other files", where=where, hint="name a new folder; nothing was changed")


def _is_ours(folder: Path) -> bool:
    """Whether it contains only a program of this module and its compiled files."""
    headers = [path for path in folder.glob("*.h") if path.is_file() and MARK in _begin(path)]
    if len(headers) != 1:
        return False
    own = re.escape(headers[0].stem)
    made = re.compile(rf"{own}(_check)?\.[ch]|{own}_weights(_\d+)?\.[ch]|lib{own}\.a|main(\.c|\.exe)?|Makefile|.*\.o")
    return all(path.is_file() and made.fullmatch(path.name) for path in folder.iterdir())


def _begin(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(400)
    except OSError:
        return ""


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write all files into a new folder, which then replaces `folder`."""
    with replacing_folder(folder) as made:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="ascii", newline="\n")
