"""Lines of C: wrapped to a readable width, and arrays of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ...arrays import Array
from ...model import DTYPES
from .static import C_TYPES

COLUMNS = 118
"""The most columns of a line of code or comment."""

NUMBERS = 108
"""Columns of a line of numbers."""

SUFFIXED = {"int64": "INT64_C({})", "uint64": "UINT64_C({})", "uint32": "UINT32_C({})"}
"""Suffixes of C literals that may not fit an int."""

LEAST = {"int32": "INT32_MIN", "int64": "INT64_MIN"}
"""The least number of a type, which C has no literal for."""


def literal(number: int, kind: str) -> str:
    """An integer of that type as a C expression."""
    for each, name in LEAST.items():
        if number == DTYPES[each].minimum:
            return name
    return str(number) if abs(number) < 1 << 31 else SUFFIXED[kind].format(number)


def text_of(lines: Iterable[str]) -> str:
    """The text of a file; long lines are broken where C or a comment allows it."""
    return "\n".join(part for line in lines for each in line.split("\n") for part in _wrapped(each)) + "\n"


def _wrapped(line: str) -> Iterator[str]:
    """Parts of a line, split at spaces; strings and preprocessor lines are not split."""
    indent = len(line) - len(line.lstrip())
    if line.startswith(("#", "\t")) or '"' in line:
        yield line
        return
    under = indent + (3 if line.lstrip().startswith("/*") else 8)
    if line.startswith("static ") and 0 < line.find("(") < COLUMNS // 2:
        under = line.find("(") + 1
    while len(line) > COLUMNS:
        cut = max(line.rfind(", ", under, COLUMNS) + 1, 0) or line.rfind(" ", under, COLUMNS + 1)
        cut = cut if cut > under else line.find(" ", COLUMNS)
        if cut < 0:
            break
        yield line[:cut].rstrip()
        line = " " * under + line[cut + 1 :].lstrip()
    yield line


def array_of(declared: str, array: Array) -> Iterator[str]:
    """The lines that define an array of numbers; `declared` is the text before its size, and after it."""
    kind = str(array.dtype)
    yield f"{declared.format(kind=C_TYPES[kind], size=max(1, array.size))} = {{"
    flat = array.reshape(-1).tolist() or [0]  # C has no empty arrays
    words = list(map(SUFFIXED[kind].format if kind in SUFFIXED else str, flat))
    if kind in LEAST:
        least = int(np.iinfo(kind).min)
        words = [LEAST[kind] if number == least else word for number, word in zip(flat, words, strict=True)]
    per_line = max(1, NUMBERS // (max(map(len, words)) + 1))
    for begin in range(0, len(words), per_line):
        yield "    " + ",".join(words[begin : begin + per_line]) + ","
    yield "};"
