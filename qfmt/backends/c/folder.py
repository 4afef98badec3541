"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...errors import DestinationError

MARK = "written by qfmt"


def check(folder: Path) -> None:
    """DestinationError unless the folder is new, empty, or one that was written here before."""
    where = str(folder)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DestinationError("is no folder", where=where, hint="name one that is not there yet")
    if not folder.parent.is_dir():
        raise DestinationError("lies in a folder that does not exist", where=where, hint="make it first")
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        raise DestinationError("holds other files", where=where, hint="name a new folder; nothing was changed")


def _is_ours(folder: Path) -> bool:
    """Whether it holds a program of this module, what a compiler made of it, and no other file."""
    headers = [path for path in folder.glob("*.h") if MARK in _begin(path)]
    if len(headers) != 1:
        return False
    name = headers[0].stem
    made = {f"{name}.h", f"{name}.c", f"{name}_weights.h", f"{name}_check.c", f"lib{name}.a", "main.c", "Makefile",
            "main", "main.exe"}  # fmt: skip
    return all(
        path.is_file() and (path.name in made or path.suffix == ".o" or path.name.startswith(f"{name}_weights"))
        for path in folder.iterdir()
    )


def _begin(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(400)
    except OSError:
        return ""


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write all files beside it, then put the folder in its place; what was there goes only then."""
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, text in texts.items():
                (made / name).write_text(text, encoding="ascii", newline="\n")
            made.chmod(0o777 & ~_umask())
            if folder.exists():
                old = made.with_name(made.name + ".old")
                folder.rename(old)
                made.rename(folder)
                shutil.rmtree(old)
            else:
                made.rename(folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise DestinationError(f"cannot be written: {error.strerror or error}", where=str(folder)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
