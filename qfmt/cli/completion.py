"""What shells complete, apart from commands, options and choices, which click knows: files by suffix, operators, and
tensors of the file on the command line. A shell runs `qfmt` for each Tab, so nothing heavy is imported or read.

Names in a file may be an attacker's, and end up on a command line: names that a shell would not take literally are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from ..errors import QfmtError
from ..urls import Url, place
from .matrix import matrix

if TYPE_CHECKING:
    import click

_PLAIN = re.compile(r"[\w./-]+")


class Bash(BashComplete):
    """Where files are completed, bash also lists folders, and quotes names that need it."""

    source_template = BashComplete.source_template.replace("-o dirnames", "-o plusdirs -o filenames")


def register() -> None:
    add_completion_class(Bash)


def files(incomplete: str, suffixes: Iterable[str]) -> list[CompletionItem]:
    """Files with these suffixes, and folders; if there are none, all files."""
    found = [CompletionItem(name) for name in _files(incomplete, tuple(suffixes))]
    return [CompletionItem(incomplete, type="dir"), *found] if found else [CompletionItem(incomplete, type="file")]


def _files(incomplete: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    head, slash, start = incomplete.rpartition("/")
    try:
        names = sorted(each.name for each in Path(head + slash).expanduser().iterdir() if each.is_file())
    except (OSError, RuntimeError):  # no folder, or no such user
        return
    for name in names:
        hidden = name.startswith(".") and not start.startswith(".")
        if name.startswith(start) and name.lower().endswith(suffixes) and name.isprintable() and not hidden:
            yield f"{head}{slash}{name}"


def operators(_ctx: click.Context, incomplete: str) -> list[str]:
    """Operators, from the matrix, which needs no NumPy."""
    return [name for name in matrix() if name.startswith(incomplete)]


def tensors(ctx: click.Context, incomplete: str) -> list[str]:
    """Tensors of the first local `.qfb` on the line; if none begins like that, their names in the source."""
    given = [ctx.params.get("file"), *(ctx.params.get("paths") or ()), *ctx.args]
    found = (names for word in filter(None, given) if (names := _tensors(word, incomplete)) is not None)
    return list(filter(_PLAIN.fullmatch, next(found, [])))


def _tensors(word: str | Path, incomplete: str) -> list[str] | None:
    """Names that begin like that; None if the word is not a `.qfb`."""
    try:
        path = place(word)
        if isinstance(path, Url) or path.suffix != ".qfb" or not path.is_file():
            return None
        from ..file.reader import load

        with load(path, verify=False) as model:
            names = [name for name in model.tensors if name.startswith(incomplete)]
            aliases = (alias for tensor in model.tensors.values() for alias in tensor.aliases)
            return names or [alias for alias in aliases if alias.startswith(incomplete)]
    except (QfmtError, OSError):
        return None
