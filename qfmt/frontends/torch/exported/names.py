"""Recover names that exporting lost, and find unused parameters.

Folding replaces the weight `c1.weight` by `_frozen_param0`, and leaves the float one in the archive. The module that
reads it determines its owner; the unused float tensor of that module determines its name.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ....budget import Budget
from .document import Call, Program, Ref, references

_ANONYMOUS = re.compile(r"(?:.*\.)?_frozen_param\d*")

_PASSED_ON = {
    "aten::permute", "aten::t", "aten::transpose", "aten::view", "aten::reshape", "aten::unsqueeze", "aten::expand",
    "aten::clone", "aten::detach", "aten::alias", "aten::_to_copy", "aten::to", "aten::contiguous",
}  # fmt: skip
"""Calls that pass a weight on to the module that owns it."""

_BIAS_AT = {"aten::linear": 2, "aten::addmm": 0, **{f"aten::conv{rank}d": 2 for rank in (1, 2, 3)}}


class _Use(NamedTuple):
    call: Call
    position: int


def recovered(
    program: Program, unread: Iterable[str], shape: Callable[[str], tuple[int, ...] | None], budget: Budget
) -> dict[str, str]:
    """Anonymous tensors by value name → their original names. `unread` are the unused tensors."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    for call in program.graph.calls:
        for position, argument in enumerate(call.args):
            for name in references(argument):
                uses[name].append(_Use(call, position))
    free = _Free(unread, shape)
    names: dict[str, str] = {}
    for value, stored in program.stored.items():
        if not _ANONYMOUS.fullmatch(stored.name):
            continue
        use = _owner(value, uses, budget)
        if use is None:
            continue
        names[value] = free.name(use, str(shape(stored.name)))
        free.remove(names[value])
    return names


def _owner(value: str, uses: Mapping[str, list[_Use]], budget: Budget) -> _Use | None:
    """The first call that computes with a stored tensor."""
    seen, open_ = {value}, deque([value])
    while open_:
        for use in uses.get(open_.popleft(), ()):
            budget.spend()
            if use.call.target not in _PASSED_ON and not use.call.target.startswith("quantized_decomposed::"):
                return use
            further = [use.call.outputs.name] if isinstance(use.call.outputs, Ref) else []
            open_ += [name for name in further if name not in seen]
            seen.update(further)
    return None


class _Free:
    """Names of unused tensors that are not given to others yet: by shape, and by shape and module, as text."""

    def __init__(self, names: Iterable[str], shape: Callable[[str], tuple[int, ...] | None]) -> None:
        self.sizes = {name: str(shape(name)) for name in names}
        self.alike: dict[str, dict[str, None]] = defaultdict(dict)
        self.owned: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for name, size in self.sizes.items():
            self.alike[size][name] = self.owned[size, _module(name)][name] = None

    def name(self, use: _Use, size: str) -> str:
        """The name of an anonymous tensor of that shape."""
        role = "bias" if _BIAS_AT.get(use.call.target) == use.position else "weight"
        usual = f"{use.call.scope}.{role}".lstrip(".")
        alike, owned = self.alike[size], self.owned[size, use.call.scope]
        if usual in owned or not alike:
            return usual
        found = owned or alike
        return next(iter(found)) if len(found) == 1 else usual

    def remove(self, name: str) -> None:
        """The name is given to a tensor."""
        if (size := self.sizes.pop(name, None)) is not None:
            del self.alike[size][name], self.owned[size, _module(name)][name]


def _module(name: str) -> str:
    return name.rpartition(".")[0]
