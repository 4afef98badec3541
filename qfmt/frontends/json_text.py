"""Parses untrusted JSON: charges its cost before parsing, and refuses duplicate names."""

from __future__ import annotations

import json
import re
from typing import Any

from ..budget import Budget

SIZES = {b"{": 184, b"[": 64, b",": 80}
"""Approximate memory in bytes per character: of an object, an array, or a value with its place."""

NAME = 150
"""The same for a name. The parser keeps equal names once."""

_WIDE, _WIDEST = re.compile(rb"[\xc4-\xff]|\\u(?!00)"), re.compile(rb"[\xf0-\xff]|\\u[dD]8")
"""What makes Python take two bytes, or four, for each character of a text, and of all of it."""

_WHOLE = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escapes of two halves of a character, and of one. A half is no text that can be written again."""


def parse(text: bytes, budget: Budget) -> Any:
    """The value of a JSON text in UTF-8. ValueError if it is invalid, or has duplicate names or half characters."""
    width = 4 if _WIDEST.search(text) else 2 if _WIDE.search(text) else 1
    budget.allocate(sum(text.count(mark) * size for mark, size in SIZES.items()) + (2 * width - 1) * len(text))
    _charge_names(text, budget)
    if _HALF.search(text) and _HALF.search(_WHOLE.sub(b"", text)):
        raise ValueError("half a character")
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _charge_names(text: bytes, budget: Budget) -> None:
    """Count each name once, as far as that is certain: not if it may contain a quote, or has a space behind it."""
    budget.allocate((text.count(b":") - text.count(b'":')) * NAME)
    names: set[bytes] = set()
    begin = 0
    while (end := text.find(b'":', begin)) >= 0:
        quote = text.rfind(b'"', begin, end)
        name = text[quote + 1 : end]
        if name not in names or text[quote - 1 : quote] == b"\\":
            budget.allocate(NAME)
            names.add(name)
        begin = end + 2


def is_shallow(value: Any, levels: int) -> bool:
    """Whether a value of JSON has at most so many levels of lists and objects; anyone may have written it."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(is_shallow(each, levels - 1) for each in inner)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(names := dict(pairs)) != len(pairs):
        raise ValueError("duplicate names")
    return names
