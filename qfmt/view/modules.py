"""The modules of the original network, as `qfmt inspect --tree` and Model Explorer have them; the page of `qfmt view`
computes the same (readers/page/src/tree.ts)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph import Node

DEEPEST = 32
"""How deep modules are nested at most, because names in a file may have any number of dots."""

Path = list[str]


def module_paths(nodes: Sequence[Node]) -> list[Path]:
    """The module that each node is in, as its parts from the outermost: its scope, or, if no node has a scope, the
    modules in its name.

    A node without a module, such as an addition of which a trace does not say where it is called, is in the innermost
    module that contains both the node before it and the next node with a module.
    """
    has_scopes = any(node.scope for node in nodes)
    paths = [module_path(node.scope) if has_scopes else module_path(node.label)[:-1] for node in nodes]
    after = _next(paths)
    for place in range(1, len(paths)):
        if not paths[place]:
            pairs = zip(paths[place - 1], after[place], strict=False)
            paths[place] = [part for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return paths


def module_path(name: str) -> Path:
    """The parts of a name: `/features/features.0/Conv` as ONNX exporters write it, else `features.0`."""
    return list(filter(None, name.split("/" if "/" in name else ".")))[:DEEPEST]


def _next(paths: Sequence[Path]) -> list[Path]:
    """For each path, the next one that is not empty."""
    found: list[Path] = []
    last: Path = []
    for path in reversed(paths):
        found.append(last)
        last = path or last
    return found[::-1]
