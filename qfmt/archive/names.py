"""Names of files in an archive, for the names of their sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import PurePosixPath
from unicodedata import normalize

from ..file.replacing import TEMPORARY
from ..file.shards import as_part
from .manifest import MANIFEST

_UNLIKE_TEMPORARY = re.compile(f"^(?:{re.escape(TEMPORARY)})+")
"""What no name may begin with: such a file or folder would be swept away as a leftover."""

LONGEST = 200
"""Bytes of the longest name of a file, without its suffix."""


def alike(file: str) -> str:
    """A key that is equal for names of one file on some system: Windows and macOS ignore case, and macOS ignores how
    a letter with an accent is composed."""
    return normalize("NFC", file.casefold())


def file_names(source: str, numbers: Counter[str]) -> Iterator[str]:
    """Names for the file of a source: `net.qfb` for `net.pt`; if another source has it, `net.pt.qfb`, and so on.
    All may have shards. No folder has a name that ends like that of a file, or is that of the manifest. `numbers` has
    the last number that each name got."""
    named = (_UNLIKE_TEMPORARY.sub("", part) for part in source.split("/"))
    parts = [part for part in named if part.strip(".")]  # below the archive
    taken = (".qfb", f"/{MANIFEST}")
    cut = [_cut(part) for part in parts[:-1]]
    folders = [f"{part}_" if alike(f"/{part}").endswith(taken) else part for part in cut]
    path = PurePosixPath(*folders, as_part(parts[-1]) if parts else "source")
    yield str(path.with_name(f"{_cut(path.stem)}.qfb"))
    whole = str(path.with_name(_cut(path.name)))
    yield f"{whole}.qfb"
    for number in count(numbers[alike(whole)] + 2):
        numbers[alike(whole)] = number - 1
        yield f"{whole}.{number}.qfb"


def _cut(name: str) -> str:
    """A name to which a suffix can be added, also that of shards: file systems take 255 bytes."""
    while len(name.encode("utf-8", "surrogateescape")) > LONGEST:
        name = name[:-1]
    return name
