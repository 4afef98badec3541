"""Mutants of trees of dicts and lists: JSON documents and decoded records."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, -128, 1000, 65535, 1 << 20, 1 << 31,
           (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63),
           1 << 64)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.5e38, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "0", "a\0b", "a\nb", "\x1b[31m", "é", "..", "/", "nan", "None", "x" * 300)

Place = tuple[Any, Any]
"""A dict or list, and the key in it."""


def mutated(tree: Any, chance: Random) -> Any:
    """A copy of a tree with one to four changes."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if places:
            chance.choice(_CHANGES)(chance.choice(places), places, chance)
    return tree


def _places(tree: Any) -> Iterator[Place]:
    pending = [tree]
    while pending:
        holder = pending.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in items:
            yield holder, key
            pending.append(value)


def other_value(value: Any, chance: Random) -> Any:
    """A value of the same type at a boundary, or near the old one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*NUMBERS, value + 1, value - 1, value * 2, -value))
    if isinstance(value, float):
        return chance.choice((*FLOATS, value * 2, value / 2, -value))
    if isinstance(value, str):
        return chance.choice((*TEXTS, value * 2, value[:-1], value.upper()))
    if isinstance(value, bytes):
        return bytes(chance.choice(value) for _ in value)
    return chance.choice((None, 0, "", [], {}))


def _value(place: Place, places: list[Place], chance: Random) -> None:
    holder, key = place
    if isinstance(holder[key], list | dict) and chance.random() < 0.8:
        _delete(place, places, chance)
    else:
        holder[key] = other_value(holder[key], chance)


def _type(place: Place, places: list[Place], chance: Random) -> None:
    place[0][place[1]] = chance.choice((None, True, 0, -1, 1 << 62, 0.5, "x", [], {}, [0], [[]], {"x": 0}))


def _delete(place: Place, places: list[Place], chance: Random) -> None:
    del place[0][place[1]]


def _graft(place: Place, places: list[Place], chance: Random) -> None:
    """Replace a part by a copy of another part, or by that part itself, which is then shared."""
    holder, key = chance.choice(places)
    part = holder[key]
    if chance.random() < 0.7 or (isinstance(part, list | dict) and _holds(part, place[0])):
        part = copy.deepcopy(part)
    place[0][place[1]] = part


def _holds(tree: Any, wanted: Any) -> bool:
    return tree is wanted or any(holder[key] is wanted for holder, key in _places(tree))


def _kin(place: Place, places: list[Place], chance: Random) -> None:
    """Replace a value by that of the same key elsewhere."""
    others = [other for other in places if other[1] == place[1] and other[0] is not place[0]]
    if others:
        holder, key = chance.choice(others)
        place[0][place[1]] = copy.deepcopy(holder[key])


def _repeat(place: Place, places: list[Place], chance: Random) -> None:
    """Repeat an element of a list, once or many times, or exchange elements."""
    lists = [holder[key] for holder, key in places if isinstance(holder[key], list) and holder[key]]
    if not lists:
        return
    chosen = chance.choice(lists)
    at = chance.randrange(len(chosen))
    if chance.random() < 0.4:
        other = chance.randrange(len(chosen))
        chosen[at], chosen[other] = chosen[other], chosen[at]
    else:
        copies = [copy.deepcopy(chosen[at]) for _ in range(chance.choice((1, 1, 1, 2, 40)))]
        chosen[at:at] = copies if sum(1 for _ in _places(chosen[at])) * len(copies) < 5000 else copies[:1]


def _wrap(place: Place, places: list[Place], chance: Random) -> None:
    """Nest a value, once or deeply."""
    for _ in range(chance.choice((1, 1, 1, 500))):
        place[0][place[1]] = [place[0][place[1]]]


_CHANGES = (_value, _value, _value, _value, _value, _kin, _kin, _type, _delete, _graft, _repeat, _wrap)
