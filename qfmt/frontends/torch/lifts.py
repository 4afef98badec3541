"""The table of what torch's calls mean, which the modules of `operators` fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Meaning(NamedTuple):
    """A function (builder, *variant, *arguments) → result; `variant` is what it is told of the target."""

    function: Callable[..., Any]
    variant: tuple[Any, ...]


LIFTS: dict[str, Meaning] = {}
"""By torch target."""


def lifts(*targets: str | Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the meaning of torch calls; its parameters carry torch's names.

    Where one function is several calls, a mapping gives what it gets before their arguments to tell them apart.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            known = {target: ()} if isinstance(target, str) else {name: (each,) for name, each in target.items()}
            LIFTS.update({name: Meaning(function, variant) for name, variant in known.items()})
        return function

    return register


def by_rank(*names: str) -> dict[str, int]:
    """Calls of one to three spatial dimensions: "aten::conv{}d" → {"aten::conv1d": 1, …}."""
    return {name.format(rank): rank for name in names for rank in (1, 2, 3)}
