"""Shards as they are written: their names, whether they are there, and those that no file refers to any more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ..errors import QfmtError
from ..regular import irregular
from .header import SIZE, is_qfb
from .reader import Container
from .replacing import alone, remove
from .shards import SUFFIX, Shard, Shards

DIGITS = 16
"""The digits of the digest in the name of a shard."""


_PART = re.compile(rf"(.+)\.\d+-of-\d+\.[0-9a-f]{{{DIGITS}}}{re.escape(SUFFIX)}", re.DOTALL)
"""What `name` gives, with the stem of the file."""


def name(target: Path, number: int, count: int, sha256: bytes) -> str:
    """The name of a shard of the file `target`: no other bytes have it, so that no file is ever changed."""
    digits = max(5, len(str(count)))  # so that the names are in order
    return f"{target.stem}.{number:0{digits}}-of-{count:0{digits}}.{sha256.hex()[:DIGITS]}{SUFFIX}"


def named_like(target: Path) -> Iterator[Path]:
    """The files that are named like shards of `target`, not like those of `target.stem` and more."""
    found = map(_PART.fullmatch, os.listdir(target.parent))  # noqa: PTH208
    return (target.with_name(match[0]) for match in found if match and match[1] == target.stem)


def unused(parts: Iterable[Path], files: Iterable[Path]) -> list[Path]:
    """Those shards that no `.qfb` file of these refers to, whatever its name is now; none if one cannot be read."""
    left = {path.name: path for path in parts}
    try:
        for path in files if left else ():
            for shard in stated(path):
                left.pop(shard.name, None)
    except (OSError, QfmtError):  # of a newer version, perhaps: its shards are not known
        return []
    return list(left.values())


def spare(files: Iterable[Path]) -> Iterator[Path]:
    """The shards among these files that no file of their folder refers to."""
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    for found in folders.values():
        yield from unused((path for path in found if _PART.fullmatch(path.name)), found)


def tidy(targets: Iterable[Path]) -> None:
    """Remove shards of files that were replaced or removed, if no file refers to them any more. What cannot be removed
    stays. Each folder is read once; `save` reads it for each file."""
    stems: dict[Path, dict[str, Path]] = {}
    for target in targets:
        stems.setdefault(target.parent, {})[target.stem] = target
    for folder, own in stems.items():
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(folder)  # noqa: PTH208
        parts = {folder / name: match[1] for name in names if (match := _PART.fullmatch(name)) and match[1] in own}
        spare: dict[Path, list[Path]] = {}
        for path in unused(parts, (folder / name for name in names)):
            spare.setdefault(own[parts[path]], []).append(path)
        for target, paths in spare.items():
            with suppress(OSError), alone(target):  # another writer may have completed it
                remove(unused(paths, [target]))


def are_intact(path: Path) -> bool:
    """Whether all shards that a file states are as they were written."""
    try:
        data = Container(path, verify=False).data
        if isinstance(data, Shards):
            for index in range(len(data.shards)):
                data.verify(index)
    except QfmtError:
        return False
    return True


def size_of(path: Path) -> int:
    """Bytes of a file with its shards."""
    return path.stat().st_size + sum(shard.size for shard in stated(path))


def stated(path: Path) -> Sequence[Shard]:
    """The shards that a file states, if it is a `.qfb`."""
    with suppress(FileNotFoundError):  # also MissingFileError: removed meanwhile, or a link to nothing
        if irregular(path):
            return ()
        found = path.stat()
        return _stated(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return ()


@lru_cache(1 << 15)
def _stated(path: Path, *_state: int) -> Sequence[Shard]:
    """The same, read once: where many files are removed, each asks all others of the folder."""
    with path.open("rb") as file:
        is_other = not is_qfb(file.read(SIZE))
    data = () if is_other else Container(path, verify=False).data
    return data.shards if isinstance(data, Shards) else ()
