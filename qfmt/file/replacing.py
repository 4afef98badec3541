"""Files and folders that take their place when they are complete, whatever becomes of the writer.

On Linux a new file has no name while it is written (O_TMPFILE), so it disappears with its writer. A folder, and a
file on other systems, lies under a temporary name beside its destination, and its writer holds a lock on it. What has
such a name and no lock was left by a killed writer: the next writer into the same directory removes it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, BinaryIO

from ..arrays import BLOCK
from ..errors import DestinationError
from ..regular import hint_for, resolved, state_of
from ..threads import nested

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

if sys.platform != "win32":
    import fcntl

TEMPORARY = ".qfmt-"
"""How the names of files and folders begin that killed processes leave, and the next one removes."""

_TEMPORARY = f"{TEMPORARY}{'[0-9a-f]' * 16}.tmp"
"""The pattern of the names that `_temporary` gives."""

_OPEN_FILES = Path("/proc/self/fd")
"""Where Linux names the open files of a process, also those that have no other name."""

TMPDIR = "TMPDIR names the folder for temporary files"

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2(2)."""


@contextmanager
def replacing(where: str) -> Iterator[BinaryIO]:
    """A new file that takes the place of `where` when the block has ended well, and is removed otherwise.

    Raises DestinationError if it cannot be written.
    """
    with _as_destination_error(where):
        file = NewFile(_target(where))
        try:
            yield file.stream
            file.settle()
        finally:
            file.discard()


@contextmanager
def replacing_all(
    where: str,
    parts: Callable[[Path], Iterable[Path]],
    unused: Callable[[Iterable[Path], Iterable[Path]], Iterable[Path]],
    elsewhere: Callable[[Path], Iterable[Path]] = lambda target: (),
) -> Iterator[tuple[BinaryIO, Callable[[], NewFile]]]:
    """As `replacing`, for a file that others beside it belong to, its parts: it gets its name after all of them.

    Yields the file, and a function that makes a part, whose `target` the caller sets. `parts` lists the files that are
    named like parts of a target. Those that are `unused` are removed: a killed writer left them, or they belong to
    the file that is replaced. `unused` gets parts, and files that may refer to them: those of the folder, and those
    that `elsewhere` finds. That may take long, so they are searched once, before anything gets its name. Writers of
    targets whose names differ in their suffixes only take turns.
    """
    with _as_destination_error(where):
        target = _target(where)
        files = [NewFile(target)]

        def part() -> NewFile:
            files.insert(-1, NewFile(target))
            return files[-2]

        try:
            yield files[-1].stream, part
            if len(files) == 1 and not any(parts(target)):
                files[0].settle()
                return
            with alone(target):
                before = {*parts(target)}
                files_there = chain(target.parent.iterdir(), elsewhere(target))
                others = (path for path in files_there if path not in before and not _leads_to(path, target))
                spare = [*unused(before, others)] if before else []
                remove(unused(spare, [target]))
                try:
                    for file in files:
                        file.settle()
                finally:
                    remove(unused([*spare, *({*parts(target)} - before)], [target]))
        finally:
            for file in files:
                file.discard()


@contextmanager
def replacing_folder(folder: Path, check: Callable[[Path], None] = lambda replaced: None) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when the block has ended well, and is removed otherwise. `check`
    raises an error if the folder that was replaced may not be removed, which another process may write to."""
    with _as_destination_error(str(folder)):
        if state_of(folder) and not os.access(folder, os.W_OK):  # it could be renamed, but not removed
            raise PermissionError(0, "it is read-only")
        _sweep(folder.parent)
        made, lock = _locked_folder(folder.parent)
        try:
            yield made
            for path in made.iterdir():
                _take_mode(path, folder / path.name)
                _sync(path)
            _take_mode(made, folder)
            if state_of(folder):
                _exchange(made, folder)
                try:
                    check(made)
                except BaseException:
                    _exchange(made, folder)
                    raise
            else:
                made.rename(folder)
            _sync(folder.parent)
        finally:
            _close(lock)
            with suppress(OSError):
                _remove_folder(made)  # after an exchange, what was there before


def _take_mode(path: Path, replaced: Path) -> None:
    """The permissions of what it replaces, if there is something."""
    if state_of(replaced):
        _set_mode(path, replaced)


def _set_mode(file: Path | int, replaced: Path) -> None:
    """The permissions of what is replaced. It has another owner, so a file loses its set-user-ID and set-group-ID bits;
    those of a folder only set the group of new files. A mode that is right is not set: some mounts refuse that.

    Where group or ACL cannot be kept, the new group may do no more than all others.
    """
    before = replaced.stat()
    wanted = before.st_mode & (0o3777 if stat.S_ISDIR(before.st_mode) else 0o777)
    if not (_has_group(file, before.st_gid) and _has_acl(file, _acl(replaced))):
        wanted &= ~0o070 | (wanted & 0o007) << 3
    if stat.S_IMODE(os.stat(file).st_mode) != wanted:  # noqa: PTH116
        os.chmod(file, wanted)  # noqa: PTH101


def _has_group(file: Path | int, group: int) -> bool:
    if os.stat(file).st_gid != group:  # noqa: PTH116
        try:
            os.chown(file, -1, group)
        except OSError:
            return False
    return True


_ACL = "system.posix_acl_access"


def _acl(file: Path | int) -> bytes:
    """The access control list of a file, beside its mode; empty if it has none, or the system does not say."""
    try:
        return os.getxattr(file, _ACL) if sys.platform == "linux" else b""
    except OSError:
        return b""


def _has_acl(file: Path | int, acl: bytes) -> bool:
    """A new file may have one that its folder gives to all new files."""
    try:
        if sys.platform == "linux" and acl != _acl(file):
            os.setxattr(file, _ACL, acl) if acl else os.removexattr(file, _ACL)
    except OSError:
        return False
    return True


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder for temporary files, which only this user can read, removed with all that is in it.

    That of a killed process is removed by the next one that asks for one.
    """
    import tempfile

    try:
        parent = Path(tempfile.gettempdir())
        _sweep(parent)
        made, lock = _locked_folder(parent, 0o700)
    except OSError as error:
        raise no_temporary(error) from None
    try:
        yield made
    except DestinationError as error:
        if str(made) in error.where:  # which the user did not name
            error.what, error.where, error.hint = f"a temporary file {error.what}", "", error.hint or TMPDIR
        raise
    finally:
        _close(lock)
        with suppress(OSError):
            _remove_folder(made)


def no_temporary(error: OSError) -> DestinationError:
    """What to raise if there can be no temporary file."""
    return DestinationError(f"a temporary file cannot be written: {error.strerror or error}", hint=TMPDIR)


class NewFile:
    """A new file, locked until it is closed, that can take the place of its target.

    It gets the permissions of the file that is replaced, as a part of which it may get another target.
    """

    def __init__(self, replaced: Path) -> None:
        _sweep(replaced.parent)
        self.replaced = self.target = replaced
        self.temporary = _temporary(replaced.parent)
        found = state_of(replaced)
        mode = found.st_mode & 0o666 if found else 0o666  # nobody else may read it meanwhile
        self.stream = _nameless(replaced.parent) or _named(self.temporary, mode)

    def settle(self) -> None:
        """Put everything on the disk, and take the place of the target."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        os.close(os.dup(self.stream.fileno()))  # some mounts say only here what they could not write; the lock stays
        if state_of(self.replaced):
            _set_mode(self.stream.fileno() if os.chmod in os.supports_fd else self.temporary, self.replaced)
        if not self.temporary.exists():
            directory = os.open(self.target.parent, os.O_RDONLY)
            try:  # given a directory, Python calls linkat(2), which follows the link to an open file
                name = _OPEN_FILES / str(self.stream.fileno())
                os.link(name, self.temporary.name, dst_dir_fd=directory, follow_symlinks=True)
            finally:
                os.close(directory)
        if sys.platform == "win32":
            self.stream.close()  # what is open cannot be renamed there
        self.temporary.replace(self.target)
        _sync(self.target.parent)

    def discard(self) -> None:
        """Leave nothing behind under the temporary name."""
        with suppress(OSError):
            self.stream.close()
        with suppress(OSError):
            self.temporary.unlink()


class _EarlyToDisk(io.FileIO):
    """A file whose bytes go to the disk while it is written, so that `fsync` has little left to wait for."""

    _begun = 0

    def write(self, data: ReadableBuffer) -> int:
        count = super().write(data)
        end = self.tell()
        if end - self._begun >= BLOCK and hasattr(os, "posix_fadvise"):  # Linux keeps what it has not written
            os.posix_fadvise(self.fileno(), self._begun, end - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = end
        return count


@contextmanager
def _as_destination_error(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise DestinationError(what, where=where, hint=hint_for(error)) from None


def _leads_to(path: Path, target: Path) -> bool:
    return path == target or (path.is_symlink() and resolved(path) == target)


def _target(where: str) -> Path:
    """The file to be replaced: what a link leads to, not the link.

    OSError if it must not be replaced; renaming alone would replace a read-only file, or a device.
    """
    refuse_links_of_others(Path(where))
    try:
        target = Path(where).resolve()
    except (ValueError, RuntimeError) as error:  # a zero byte; a link that leads to itself
        raise DestinationError(f"cannot be written: {error}", where=where) from None
    if target.is_dir():
        raise IsADirectoryError(0, "it is a directory")
    if not target.parent.is_dir():
        raise FileNotFoundError(0, f"there is no directory {target.parent}")
    found = state_of(target)
    if found and not (stat.S_ISREG(found.st_mode) and os.access(target, os.W_OK)):
        raise PermissionError(0, "it is read-only or not a regular file")
    return target


def refuse_links_of_others(path: Path) -> None:
    """OSError for a link, or one that it leads to, that someone may have put into a folder for all, to have a file of
    this user replaced. Linux does not follow such a link to open it (fs.protected_symlinks), but renaming is not
    opening."""
    for _ in range(40):  # as many as Linux follows
        if not path.is_symlink():
            break
        if _is_of_another_user(path):
            raise PermissionError(0, "it is a link of another user in a shared folder")
        path = path.parent / path.readlink()


def _is_of_another_user(link: Path) -> bool:
    try:
        found, folder = link.lstat(), link.parent.stat()
    except (OSError, ValueError):
        return False
    is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    mine = sys.platform == "win32" or found.st_uid in (os.geteuid(), folder.st_uid)
    return bool(is_shared) and not mine


# -- new files and folders -----------------------------------------------------------------------------


def _temporary(directory: Path) -> Path:
    return directory / f"{TEMPORARY}{os.urandom(8).hex()}.tmp"


def _nameless(directory: Path) -> BinaryIO | None:
    """A new file without a name; None where the system or the file system has no such thing."""
    if sys.platform != "linux" or not _OPEN_FILES.is_dir():
        return None
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError:
        return None
    _lock(descriptor)  # for the moment between its first name and its last
    return io.BufferedRandom(_EarlyToDisk(descriptor, "w+"))


def _named(path: Path, mode: int) -> BinaryIO:
    while True:
        opened = _EarlyToDisk(path, "x+", opener=lambda name, flags: os.open(name, flags, mode))
        stream = io.BufferedRandom(opened)
        _lock(stream.fileno())
        if path.exists():  # else it was removed before it was locked
            return stream
        stream.close()


def _locked_folder(parent: Path, mode: int = 0o777) -> tuple[Path, int | None]:
    while True:
        path = _temporary(parent)
        path.mkdir(mode)
        if sys.platform == "win32":
            return path, None
        with suppress(FileNotFoundError):  # removed before it was locked
            lock = os.open(path, os.O_RDONLY)
            _lock(lock)
            if path.exists():
                return path, lock
            os.close(lock)


def _exchange(made: Path, folder: Path) -> None:
    """Let two folders change places, at once where the system can do that."""
    if sys.platform == "linux":
        import ctypes  # as slow to import as all of this package that opens a file

        rename = getattr(ctypes.CDLL(None), "renameat2", None)
        if rename is not None and rename(_HERE, os.fsencode(made), _HERE, os.fsencode(folder), _EXCHANGE) == 0:
            return
    old = folder.with_name(f".{folder.name}.old")  # nothing removes this name if the process stops here
    try:
        folder.rename(old)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise OSError(error.errno, "this file system cannot rename the folder; remove it first", folder) from None
    try:
        made.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    old.rename(made)


def _remove_folder(folder: Path) -> None:
    import shutil  # slow to import, too

    try:
        shutil.rmtree(folder)
    except RecursionError:  # of Python 3.11
        raise OSError(f"{folder} is nested too deeply to be one of ours") from None


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold what only one writer of targets with this stem can hold: a file by the name of a temporary one, locked.

    Their parts have the same names (sharding.py): one would remove those of another that is not complete yet.
    """
    if sys.platform == "win32":
        yield
        return
    import hashlib

    path = target.with_name(f"{TEMPORARY}{hashlib.sha256(os.fsencode(target.stem)).hexdigest()[:16]}.tmp")
    holder = os.getpid(), get_ident(), path
    if holder in _LOCKS and (held := _LOCKS[holder]()) is not None and not held.closed:
        raise nested().at(str(target))
    while True:
        with io.FileIO(path, "r+", opener=_made) as file:  # an interruption closes it, and so unlocks it
            _LOCKS[holder] = weakref.ref(file)
            _lock(file.fileno())
            if not _is_there(path, file.fileno()):
                continue
            try:
                yield
                return
            finally:
                remove([path])
                _unlock(file.fileno())
                del _LOCKS[holder]


_LOCKS: dict[tuple[int, int, Path], weakref.ref[io.FileIO]] = {}
"""Process, thread and path of each writer that is alone or waits for it → the file. What an interruption leaves here is
closed."""


def _close_locks() -> None:
    """In a forked child, close the files of threads that are not there: it would wait for them itself."""
    for (_, thread, _), held in _LOCKS.items():
        if thread != get_ident() and (file := held()) is not None:
            file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)


def _made(path: str, _flags: int) -> int:
    """The descriptor of a file, which is made if it does not exist. NFS locks only what may be written; what a killed
    writer left may belong to another user, and Linux may refuse to make what is there (`fs.protected_regular`)."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether its last holder did not remove it while this one waited, and nobody put a link in its place."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def remove(paths: Iterable[Path]) -> None:
    """Remove files, if that is possible."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


# -- what killed writers left --------------------------------------------------------------------------


@lru_cache
def _sweep(directory: Path) -> None:
    """Remove what killed writers left in a directory; impossible without locks.

    A process does that once, as a folder may have very many files.
    """
    if sys.platform == "win32":
        return
    for path in directory.glob(_TEMPORARY):
        with suppress(OSError):  # the lock of a writer, or a file that is not ours
            _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    folder = path.is_dir()
    access = os.O_RDONLY if folder else os.O_RDWR  # NFS locks only what may be written
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder:
            _remove_folder(path)
        else:
            path.unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Lock an open file for as long as it is open; where that is not possible, `_sweep` cannot lock it either."""
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _unlock(descriptor: int) -> None:
    """Unlock an open file that forked processes may have, too."""
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _sync(path: Path) -> None:
    """Make what happened to a file or directory last; not everywhere can a directory be opened."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
