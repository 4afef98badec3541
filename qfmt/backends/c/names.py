"""Identifiers and comments from names that may contain anything: quotes, newlines, the end of a comment, code."""

from __future__ import annotations

import re

LENGTH = 40
"""The most characters of an identifier that is derived from a name."""

EXAMINED = 300
"""The most characters of a name that are examined; thousands of nodes may read one with millions."""

_WORDS = """auto break case char const continue default do else enum extern for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while main asm bool true
false class new delete this private public protected template typename namespace operator errno
stddef stdint stdio string"""

KEYWORDS = frozenset(_WORDS.split())

_REAL = re.compile("float|double", re.IGNORECASE)
"""Words that the program must not contain, so that a search for them finds nothing."""


def identifier(text: str) -> str:
    """Small letters, digits and single underscores of a name, starting with a letter; "t" if nothing is left."""
    clean = re.sub(r"[^a-z0-9]+", "_", _REAL.sub("real", text[:EXAMINED]).lower()).strip("_")[:LENGTH].strip("_")
    if not clean:
        return "t"
    return clean if clean[0].isalpha() and clean not in KEYWORDS else f"t_{clean}"


def program_name(name: str) -> str:
    """The prefix of a program, and of the names of its files, that is like a given name."""
    return identifier(name).rstrip("_")


def comment(text: str) -> str:
    """A name that is safe in a comment: printable ASCII that cannot begin, end or continue a token."""
    clean = re.sub(r"[^A-Za-z0-9_.:,;/+=()\[\]<> -]", "?", text[:EXAMINED])
    return _REAL.sub("real", re.sub(r"\?(?=\?)", "_", clean).replace("//", "/ /"))[:200]


class Names:
    """Identifiers of one program, each unique; `name` is the prefix of all that a linker sees."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._taken = {f"{name}_run": 1, f"{name}_check": 1}

    def constant(self, label: str) -> str:
        """A constant: `data` distinguishes it from functions, macros and declarations of headers (`int8` + `t`)."""
        return self._unused(f"{self.name}_data_{identifier(label)}")

    def parameter(self, label: str, role: str) -> str:
        """A parameter of the program: short, and different from everything declared at file scope."""
        return self._unused(f"{role}_{identifier(label)}")

    def _unused(self, base: str) -> str:
        """Counts how often each name was requested, as thousands of names may map to one."""
        taken, name = self._taken, base
        while name in taken:
            taken[base] += 1
            name = f"{base}_{taken[base]}"
        taken[name] = 1
        return name
