"""Mutants of bytes in any format."""

from __future__ import annotations

from random import Random

from .trees import NUMBERS

LARGEST = 1 << 20
"""The maximum size of a mutant in bytes."""


def changed_bytes(data: bytes, chance: Random) -> bytes:
    """A copy with one to four changes: bits, numbers, or parts that are cut out, doubled or moved."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not changed:
            break
        at, length = chance.randrange(len(changed)), chance.choice((1, 2, 4, 8, 30))
        way = chance.randrange(6)
        if way < 2:
            changed[at] ^= 1 << chance.randrange(8)
        elif way == 2:
            number = (chance.choice(NUMBERS) % (1 << 64)).to_bytes(8, "little")
            changed[at : at + 4] = number[:4] if chance.random() < 0.7 else number
        elif way == 3:
            del changed[at : at + length]
        elif way == 4:
            changed[at:at] = changed[at : at + length] * chance.choice((1, 1, 50))
        else:
            other = chance.randrange(len(changed))
            changed[at : at + length] = changed[other : other + length]
    return bytes(changed[:LARGEST])
