"""Shards as they are written: their names, and those that no file refers to any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path

from ..errors import QfmtError
from .reader import Container
from .shards import SUFFIX, Shards

DIGITS = 16
"""The digits of the digest in the name of a shard."""


def name(target: Path, number: int, count: int, sha256: bytes) -> str:
    """The name of a shard of the file `target`: no other bytes have it, so that no file is ever changed."""
    digits = max(5, len(str(count)))  # so that the names are in order
    return f"{target.stem}.{number:0{digits}}-of-{count:0{digits}}.{sha256.hex()[:DIGITS]}{SUFFIX}"


def named_like(target: Path) -> Iterator[Path]:
    """The files that are named like shards of `target`."""
    return target.parent.glob(f"{escape(target.stem)}.*-of-*.{'[0-9a-f]' * DIGITS}{SUFFIX}")


def unused(target: Path) -> list[Path]:
    """Those that no `.qfb` file in the folder refers to: not even one that was renamed."""
    left = {path.name: path for path in named_like(target)}
    for path in {target, *target.parent.glob("*.qfb")} if left else ():
        with suppress(QfmtError):
            data = Container(path, verify=False).data
            for shard in data.shards if isinstance(data, Shards) else ():
                left.pop(shard.name, None)
    return list(left.values())
