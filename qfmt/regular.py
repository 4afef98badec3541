"""Whether a path leads to a regular file (another kind may block its reader, or never end), and what else is wrong."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import MissingFileError, QfmtError, SourceError

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def irregular(path: str | os.PathLike[str]) -> str:
    """What a path leads to where that is not a regular file, as in "is a FIFO, not a regular file"; else "".

    Nothing is opened. Raises OSError if there is nothing, ValueError if the path holds a zero byte.
    """
    kind = stat.S_IFMT(os.stat(path).st_mode)  # noqa: PTH116
    return "" if kind == stat.S_IFREG else f"is {_KINDS.get(kind, 'something else')}, not a regular file"


def size_if_any(path: str | os.PathLike[str]) -> int:
    """The bytes of a file; 0 if there is none: who opens it says what is wrong."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except (OSError, ValueError):
        return 0


def state_of(path: Path) -> os.stat_result | None:
    """What `stat` says; None if nothing is there. OSError if the system cannot say: since Python 3.14, `Path.exists`
    and `Path.is_file` take that for nothing."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


LONGEST_PATH = 1 << 12
"""Characters of a path that may exist (PATH_MAX of Linux): Python takes quadratic time to resolve longer ones."""


def require_short(path: str) -> None:
    """OSError for a path that is longer than any that may exist."""
    if len(path) > LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def resolved(path: Path) -> Path:
    """The path without links. Of a link to itself the path stays: `Path.resolve` of Python 3.12 raises RuntimeError.
    So it does if links lead to links a thousand times: no system follows them.

    Raises OSError if it is longer than any path that may exist.
    """
    require_short(str(path))
    try:
        return Path(os.path.realpath(path))
    except RecursionError:
        return path.absolute()


def is_link(found: os.stat_result) -> bool:
    """Whether a result of `os.lstat` is a link, or a junction of Windows."""
    is_junction = getattr(found, "st_reparse_tag", 0) == getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", -1)
    return stat.S_ISLNK(found.st_mode) or is_junction


def files_below(folder: Path, failed: Callable[[OSError], object], *, hidden: bool = True) -> Iterator[Path]:
    """What is in a folder and below, but no folder; links to folders are not followed. `failed` gets the errors of
    folders that cannot be read. `os.walk` and `rglob` of Python 3.11 recurse, and fail in deep folders.
    """
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = [entry for entry in found if hidden or not entry.name.startswith(".")]
        except OSError as error:
            failed(error)
            continue
        for entry in entries:
            path = Path(entry.path)
            try:
                is_folder = path.is_dir()  # where `entry` would raise OSError for a link to itself
            except OSError as error:
                if error.errno == errno.EACCES or not entry.is_file(follow_symlinks=False):
                    failed(error)  # a folder may be listed, but not searched
                    continue
                is_folder = False  # of a file on a bad disk, only its name can be read
            if not is_folder:
                yield path
            elif not entry.is_symlink():
                waiting.append(path)


def descriptor_of(path: str | os.PathLike[str]) -> int:
    """A descriptor of the file, for reading. A link is not followed, and a FIFO does not block.

    Raises OSError, also for a link, and ValueError for a path that no file can have.
    """
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    return os.open(path, sum(flags, os.O_RDONLY))


def unreadable(error: Exception) -> str:
    """What to say of a file that cannot be opened or read."""
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def refusal(error: OSError | ValueError, kind: type[QfmtError]) -> QfmtError:
    """What to raise for a file that cannot be opened or read: MissingFileError if there is none, else that kind."""
    if isinstance(error, MissingFileError):  # by URL
        return error
    if isinstance(error, FileNotFoundError):
        return MissingFileError("there is no such file", hint="check the path")
    return kind(unreadable(error), hint=hint_for(error))


def mapped_file(descriptor: int, size: int = 0, offset: int = 0) -> mmap.mmap:
    """An open file, mapped to be read; size 0: all of it. Some file systems, as those of FUSE, share no mappings."""
    if sys.platform == "win32":
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, offset=offset)
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=offset)


def mapped(path: str | os.PathLike[str]) -> mmap.mmap:
    """A source, mapped to be read. MissingFileError or SourceError if it cannot be: it may be empty, or larger than the
    addresses of a process."""
    try:
        with open(os.fspath(path), "rb") as file:  # noqa: PTH123
            return mapped_file(file.fileno())
    except (OSError, ValueError) as error:
        raise refusal(error, SourceError) from None


def hint_for(error: Exception) -> str:
    """What to do if the system opens or maps no more files, whatever they are; empty for other errors."""
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (`ulimit -n`)"
    return "free memory, or raise its limit (`ulimit -v`)" if number == errno.ENOMEM else ""
