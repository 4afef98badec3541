"""Recover names that exporting lost, and find unused parameters.

Folding replaces the weight `c1.weight` by `_frozen_param0`, and leaves the float one in the archive. The module that
reads it determines its owner; the unused float tensor of that module determines its name.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ....budget import Budget
from ..lifter import is_known
from ..values import VIEWS
from .document import Call, Graph, Program, Ref, references

_ANONYMOUS = re.compile(r"(?:.*\.)?_frozen_param\d*")

_PASSED_ON = {
    "aten::permute", "aten::t", "aten::transpose", "aten::view", "aten::reshape", "aten::unsqueeze", "aten::expand",
    "aten::clone", "aten::detach", "aten::alias", "aten::_to_copy", "aten::to", "aten::contiguous",
}  # fmt: skip
"""Calls that pass a weight on to the module that owns it."""

_BIAS_AT = {"aten::linear": 2, "aten::addmm": 0, **{f"aten::conv{rank}d": 2 for rank in (1, 2, 3)}}


class Live(NamedTuple):
    """What an output depends on: `values` by name, including stored tensors, and `calls` by id."""

    values: set[str]
    calls: set[int]


def live(program: Program) -> Live:
    """What an output depends on, also through changes of memory in place."""
    makers: dict[str, list[Call]] = defaultdict(list)
    writers: dict[int, list[Call]] = defaultdict(list)  # by the memory that they write to
    memory = _memory(program)
    for call in program.graph.calls:
        for name in references(call.outputs):
            makers[name].append(call)
        for name in references(_changed(call)):
            writers[id(memory[name])].append(call)
    values: set[str] = set()
    calls: set[int] = set()
    open_ = list(references(program.outputs))
    while open_:
        name = open_.pop()
        if name not in values:
            values.add(name)
            for call in (*makers.pop(name, ()), *writers.pop(id(memory.get(name)), ())):
                if id(call) not in calls:  # a call may have many results
                    calls.add(id(call))
                    open_ += [*references(call.args), *references(list(call.kwargs.values()))]
    return Live(values, calls)


def written(program: Program) -> Iterator[str]:
    """The stored tensors, by value name, that calls write to, also through a view."""
    memory = _memory(program)
    found: dict[int, set[str]] = {}
    for call in program.graph.calls:
        if call.target.removesuffix("_") not in VIEWS:
            found.update((id(memory[name]), memory[name]) for name in references(_changed(call)))
    for views in found.values():
        yield from (view for view in views if view in program.stored)


def _changed(call: Call) -> Sequence[Any]:
    """The arguments that a call writes to, or that the body of a higher-order operator may write to."""
    if call.target in _WITH_STATISTICS and any(call.args[5:6]):
        return call.args[3:5]
    bodies = (each for each in call.args if isinstance(each, Graph))
    if is_in_place(call.target):
        return call.args[:1]
    return call.args if any(_changed(inner) for body in bodies for inner in body.calls) else ()


_WITH_STATISTICS = {
    f"aten::{name}"
    for name in (
        "batch_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_impl_index",
        "instance_norm",
    )
}
"""Operators with running statistics, which they change if the argument after them says so."""


def _memory(program: Program) -> dict[str, set[str]]:
    """Name of a view → the names of all views of the same memory, one set for all of them. What a call that is not
    known returns may be a view of any of its arguments."""
    memory: dict[str, set[str]] = {}
    for call in program.graph.calls:
        for name in references(_changed(call)):
            memory.setdefault(name, {name})
        is_view = call.target.removesuffix("_") in VIEWS or is_in_place(call.target)
        if is_view or not is_known(call.target):
            names = list(references([*call.args[: 1 if is_view else None], call.outputs]))
            shared = max((memory.setdefault(name, {name}) for name in names), key=len, default=set())
            for name in names:
                if (other := memory[name]) is not shared:  # a smaller one: a name is moved a few times only
                    shared |= other
                    memory.update(dict.fromkeys(other, shared))
    return memory


def is_in_place(target: str) -> bool:
    return target.endswith("_") and not target.endswith("__")


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
