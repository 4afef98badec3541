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
from ..values import VIEWS, VIEWS_OF_ANY
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
    memory = _Memory(program.graph)
    for call, changed in zip(program.graph.calls, memory.changed, strict=True):
        for name in references(call.outputs):
            makers[name].append(call)
        for name in changed:
            writers[id(memory.views[name])].append(call)
    values: set[str] = set()
    calls: set[int] = set()
    open_ = list(references(program.outputs))
    while open_:
        name = open_.pop()
        if name not in values:
            values.add(name)
            for call in (*makers.pop(name, ()), *writers.pop(id(memory.views.get(name)), ())):
                if id(call) not in calls:  # a call may have many results
                    calls.add(id(call))
                    open_ += [*references(call.args), *references(list(call.kwargs.values()))]
    return Live(values, calls)


def written(program: Program) -> Iterator[str]:
    """The stored tensors, by value name, that calls write to, also through a view."""
    memory = _Memory(program.graph)
    found: dict[int, set[str]] = {}
    for call, changed in zip(program.graph.calls, memory.changed, strict=True):
        if call.target.removesuffix("_") not in VIEWS:
            found.update((id(memory.views[name]), memory.views[name]) for name in changed)
    for views in found.values():
        yield from (view for view in views if view in program.stored)


_WITH_STATISTICS = {
    f"aten::{name}" for name in ("_batch_norm_impl_index", "_native_batch_norm_legit", "batch_norm", "instance_norm")
}
"""Operators with running statistics, which they change if the argument after them says so."""


class _Memory:
    """Which values of a graph share memory, and which are written to.

    `views`: the name of a view → the names of all views of the same memory, one set for all of them. What a call that
    is not known returns may be a view of any of its arguments. `changed`: for each call the names that it writes to.
    """

    def __init__(self, graph: Graph) -> None:
        self.views: dict[str, set[str]] = {}
        self.changed: list[list[str]] = []
        for call in graph.calls:
            is_view = call.target.removesuffix("_") in VIEWS or is_in_place(call.target)
            changed: list[Any] = []
            if bodies := [at for at, each in enumerate(call.args) if isinstance(each, Graph)]:
                for at in bodies:
                    changed += self._called(call.args[at], call.args[at + 1 :], call.outputs)
            elif is_view:
                self._join([*call.args[:1], call.outputs])
            elif call.target in VIEWS_OF_ANY or not is_known(call.target):
                self._join([*call.args, call.outputs])
            if is_in_place(call.target):
                changed += call.args[:1]
            elif call.target in _WITH_STATISTICS and any(call.args[5:6]):
                changed += call.args[3:5]
            names = list(references(changed))
            for name in names:
                self.views.setdefault(name, {name})
            self.changed.append(names)

    def _called(self, body: Graph, given: Sequence[Any], outputs: Any) -> list[Any]:
        """Join what a higher-order operator returns to what it is a view of; the arguments that the body writes to."""
        inner, outer = _Memory(body), dict(zip(body.inputs, given, strict=False))
        for result, value in zip([outputs] if isinstance(outputs, Ref) else outputs, body.outputs, strict=False):
            views = {view for name in references(value) for view in inner.views.get(name, {name})}
            self._join([result, *(outer[view] for view in views & outer.keys())])
        changed = {view for names in inner.changed for name in names for view in inner.views[name]}
        return [argument for name, argument in outer.items() if name in changed]

    def _join(self, values: Sequence[Any]) -> None:
        names = list(references(values))
        shared = max((self.views.setdefault(name, {name}) for name in names), key=len, default=set())
        for name in names:
            if (other := self.views[name]) is not shared:  # a smaller one: a name is moved a few times only
                shared |= other
                self.views.update(dict.fromkeys(other, shared))


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
