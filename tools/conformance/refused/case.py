"""A file that a reader must refuse: what it is about, and who refuses it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ..altered import Base, Record

EVERY, VALIDATING, BOUNDED = "every reader", "readers that check validity", "readers that bound their work"

DECODING = ("V2", "V3", "V10", "V20", "V21", "V50")
"""The rules of validity on which decoding rests."""


class Bases(NamedTuple):
    """The sound files, by the functions of `altered` that make them; `sharded` is `sound` with shards."""

    sound: Base
    integers: Base
    formulas: Base
    sums: Base
    values: Base
    sharded: Base


class Refused(NamedTuple):
    """A file, the rule that it breaks, and what is wrong with it."""

    name: str
    rule: str
    about: str
    data: bytes
    is_large: bool = False
    is_whole: bool = False
    shards: tuple[tuple[str, bytes], ...] = ()
    """Files beside it that it refers to, by their names."""

    @property
    def by(self) -> str:
        """Who refuses it."""
        everyone = (self.rule.startswith("F") and self.rule != "F13") or self.rule in DECODING
        everyone = everyone and not self.is_whole
        return BOUNDED if self.is_large else EVERY if everyone else VALIDATING


Change = tuple[str, str, str, Callable[[Record], object]]
"""A name, a rule, what is wrong, and the change of the record of a sound file."""

FLOAT16, FLOAT32 = 10, 12


def floats(*values: float) -> dict[str, Any]:
    """The bytes and the shape of an array of float32."""
    return {"bytes": struct.pack(f"<{len(values)}f", *values), "shape": [len(values)] if len(values) > 1 else None}


HALF: dict[str, Any] = {"scale": {"dtype": FLOAT32, **floats(0.5)}, "quant_min": 0, "quant_max": 1}


def changed(changes: Iterable[Change], base: Base) -> Iterator[Refused]:
    for name, rule, about, change in changes:
        yield Refused(name, rule, about, base.changed(change))
