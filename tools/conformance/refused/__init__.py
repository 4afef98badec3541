"""Files that a reader must refuse: one that is sound, with one thing wrong in its bytes, its tables or its model."""

from __future__ import annotations

from collections.abc import Iterator

from . import container, graphs, integers, required, shapes, shards, tensors
from .case import Bases as Bases
from .case import Refused


def cases(bases: Bases) -> Iterator[Refused]:
    for family in (container, shards, required, tensors, graphs, shapes, integers):
        yield from family.cases(bases)
