"""The C functions that steps call: templates in `kernels/`, with types and constants inserted."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from .plan import Plan
from .static import C_TYPES

SHORT = {name: name.replace("uint", "u").replace("int", "s") for name in C_TYPES}
"""Element types in the names of functions: u8, s8, …"""


UNNAMED = ("TERMS", "BETTER", "TAKEN", "PADDING", "HOW")
"""Words derived from the others."""


def kernel(plan: Plan, name: str, **words: str) -> str:
    """The name of a function made of the template `name` with its capital words replaced; types have short names."""
    kinds = [SHORT.get(text, re.sub(r"\W", "", text)) for key, text in words.items() if key not in UNNAMED]
    instance = "_".join((name, *kinds)) if kinds else name
    if instance not in plan.kernels:
        replaced = {key: C_TYPES.get(text, text) for key, text in words.items()}
        capitals = re.compile(r"\b(" + "|".join(replaced) + r")\b")
        text = capitals.sub(lambda found: replaced[found.group()], kernel_text(name))
        plan.kernels[instance] = _SIGNATURE.sub(_joined, re.sub(rf"\b{name}(?=\()", instance, text))
    return instance


_SIGNATURE = re.compile(r"^static [^\n(]*\([^)]*\)$", re.MULTILINE)


def _joined(signature: re.Match[str]) -> str:
    """A signature in one line if it fits: types have changed its length."""
    return " ".join(signature.group().split())


def kernel_text(name: str) -> str:
    """The text of a template in C."""
    return template(f"{name}.c").rstrip("\n")


@cache
def template(file: str) -> str:
    """The text of a file in `kernels/`."""
    return (files(__package__) / "kernels" / file).read_text(encoding="utf-8")
