"""Recover names that exporting lost, and find unused parameters.

Folding replaces the weight `c1.weight` by `_frozen_param0`, and leaves the float one in the archive. The module that
reads it determines its owner; the unused float tensor of that module determines its name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..values import VIEWS
from .document import Call, Program, Ref, references

_ANONYMOUS = re.compile(r"(?:.*\.)?_frozen_param\d*")

_PASSED_ON = {
    "aten::permute", "aten::t", "aten::transpose", "aten::view", "aten::reshape", "aten::unsqueeze", "aten::expand",
    "aten::clone", "aten::detach", "aten::alias", "aten::_to_copy", "aten::to", "aten::contiguous",
}  # fmt: skip
"""Calls that pass a weight on to the module that owns it."""

_BIAS_AT = {"aten::linear": 2, "aten::addmm": 0, **{f"aten::conv{rank}d": 2 for rank in (1, 2, 3)}}


def live_values(program: Program) -> set[str]:
    """The names of all values that an output depends on, including stored tensors."""
    makers: dict[str, list[Call]] = defaultdict(list)
    memory = _memory(program)
    for call in program.graph.calls:
        for name in references(call.outputs):
            makers[name].append(call)
        if is_in_place(call.target):
            for name in references(call.args[:1]):
                for view in memory.get(name, {name}):
                    makers[view].append(call)
    live: set[str] = set()
    open_ = list(references(program.outputs))
    while open_:
        name = open_.pop()
        if name not in live:
            live.add(name)
            for call in makers[name]:
                open_ += [*references(call.args), *references(list(call.kwargs.values()))]
    return live


def written(program: Program) -> Iterator[str]:
    """The stored tensors, by value name, that operators in place write to, also through a view."""
    memory = _memory(program)
    for call in program.graph.calls:
        if is_in_place(call.target) and call.target.removesuffix("_") not in VIEWS:
            for name in references(call.args[:1]):
                yield from (view for view in memory[name] if view in program.stored)


def _memory(program: Program) -> dict[str, set[str]]:
    """Name of a view → the names of all views of the same memory."""
    memory: dict[str, set[str]] = {}
    for call in program.graph.calls:
        if call.target.removesuffix("_") in VIEWS or is_in_place(call.target):
            shared: set[str] = set()
            for name in references([*call.args[:1], call.outputs]):
                shared |= memory.get(name, {name})
            memory.update(dict.fromkeys(shared, shared))
    return memory


def is_in_place(target: str) -> bool:
    return target.endswith("_") and not target.endswith("__")


class _Use(NamedTuple):
    call: Call
    position: int


def recovered(
    program: Program, unread: Iterable[str], shape: Callable[[str], tuple[int, ...] | None]
) -> dict[str, str]:
    """Anonymous tensors by value name → their original names. `unread` are the unused tensors."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    for call in program.graph.calls:
        for position, argument in enumerate(call.args):
            for name in references(argument):
                uses[name].append(_Use(call, position))
    free = list(unread)
    names: dict[str, str] = {}
    for value, stored in program.stored.items():
        if not _ANONYMOUS.fullmatch(stored.name):
            continue
        use = _owner(value, uses)
        if use is None:
            continue
        names[value] = _name(use, shape(stored.name), free, shape)
        if names[value] in free:
            free.remove(names[value])
    return names


def _owner(value: str, uses: Mapping[str, list[_Use]]) -> _Use | None:
    """The first call that computes with a stored tensor."""
    seen, open_ = {value}, [value]
    while open_:
        for use in uses.get(open_.pop(0), ()):
            if use.call.target not in _PASSED_ON and not use.call.target.startswith("quantized_decomposed::"):
                return use
            further = [use.call.outputs.name] if isinstance(use.call.outputs, Ref) else []
            open_ += [name for name in further if name not in seen]
            seen.update(further)
    return None


def _name(
    use: _Use, size: tuple[int, ...] | None, free: Iterable[str], shape: Callable[[str], tuple[int, ...] | None]
) -> str:
    role = "bias" if _BIAS_AT.get(use.call.target) == use.position else "weight"
    usual = f"{use.call.scope}.{role}".lstrip(".")
    alike = [name for name in free if shape(name) == size]
    owned = [name for name in alike if name.rpartition(".")[0] == use.call.scope]
    if usual in owned or not alike:
        return usual
    return owned[0] if len(owned) == 1 else alike[0] if len(alike) == 1 and not owned else usual
