"""What the outputs of an exported program depend on, also through memory that calls change in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..lifter import is_known
from ..lifts import parameter_names
from ..values import VIEWS, VIEWS_OF_ANY, is_in_place, out_of_place
from .document import Call, Graph, Program, Ref, references

CHECKS = {
    "aten::_assert_tensor_metadata", "aten::_assert_scalar", "aten::_assert_async", "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
}  # fmt: skip
"""Calls that check at run time whether the program was exported for such inputs."""

INLINED = {"higher_order::wrap_with_set_grad_enabled": 1, "higher_order::wrap_with_autocast": 4}
"""Higher-order operators that only call their body: the position of the body."""


class Live(NamedTuple):
    """What an output depends on: `values` by name, including stored tensors, and `calls` by id."""

    values: set[str]
    calls: set[int]


def live(program: Program, aliases: Aliases) -> Live:
    """What an output depends on, also through changes of memory in place."""
    makers: dict[str, list[Call]] = defaultdict(list)
    writers: dict[int, list[Call]] = defaultdict(list)  # by the memory that they write to
    for call, changed, unclear in zip(program.graph.calls, aliases.changed, aliases.unclear, strict=True):
        for name in references(call.outputs):
            makers[name].append(call)
        for name in (*changed, *unclear):
            writers[id(aliases.views[name])].append(call)
    values: set[str] = set()
    calls: set[int] = set()
    open_ = list(references(program.outputs))
    while open_:
        name = open_.pop()
        if name not in values:
            values.add(name)
            for call in (*makers.pop(name, ()), *writers.pop(id(aliases.views.get(name)), ())):
                if id(call) not in calls:  # a call may have many results
                    calls.add(id(call))
                    open_ += [*references(call.args), *references(list(call.kwargs.values()))]
    return Live(values, calls)


def written(program: Program, aliases: Aliases) -> Iterator[str]:
    """The stored tensors, by value name, that the program changes: by its results, or by calls, also through a view."""
    stored = {entry.name: value for value, entry in program.stored.items()}
    results = [stored[name] for _, name, _ in program.changed if name in stored]
    found = {id(views): views for views in (aliases.views.get(value, {value}) for value in results)}
    for call, changed in zip(program.graph.calls, aliases.changed, strict=True):
        if out_of_place(call.target) not in VIEWS:
            found.update((id(aliases.views[name]), aliases.views[name]) for name in changed)
    together = {name for views in found.values() for name in views}
    yield from (value for value in program.stored if value in together)


_WITH_STATISTICS = {
    f"aten::{name}" for name in ("_batch_norm_impl_index", "_native_batch_norm_legit", "batch_norm", "instance_norm")
}
"""Operators with running statistics, which they change if the argument after them says so."""


def _unclear(call: Call, tensors: Container[str]) -> list[Any]:
    """What a call may write to without a sign in its name: all arguments that qfmt does not know. Calls that return
    numbers only read."""
    results = [*references(call.outputs)]
    if call.target in CHECKS or call.target in INLINED or (results and not any(name in tensors for name in results)):
        return []
    if not is_known(call.target):
        return [call.args, *call.kwargs.values()]
    known = parameter_names(call.target)
    return [value for name, value in call.kwargs.items() if name not in known]


class Aliases:
    """Which values of a graph share memory, and which are written to.

    `views`: the name of a view → the names of all views of the same memory, one set for all of them. What a call that
    is not known returns may be a view of any of its arguments. `changed`: for each call the names that it writes to.
    `unclear`: those that it may also write to, such as what `out=` names.
    """

    def __init__(self, graph: Graph, shared: Iterable[Sequence[str]] = ()) -> None:
        """`shared`: the names of inputs that share memory."""
        self.views: dict[str, set[str]] = {}
        self.changed: list[list[str]] = []
        self.unclear: list[list[str]] = []
        for names in shared:
            self._join([*map(Ref, names)])
        for call in graph.calls:
            is_view = out_of_place(call.target) in VIEWS or is_in_place(call.target)
            changed: list[Any] = []
            unclear = _unclear(call, graph.types)
            if call.target in INLINED:
                self._call_body(call, changed, unclear)
            elif is_view:
                self._join([*call.args[:1], call.outputs])
            elif call.target in VIEWS_OF_ANY or not is_known(call.target):
                self._join([*call.args, *call.kwargs.values(), call.outputs])
            if is_in_place(call.target):
                changed += call.args[:1]
            elif call.target in _WITH_STATISTICS and any(call.args[5:6]):
                changed += call.args[3:5]
            self.changed.append([*references(changed)])
            self.unclear.append([name for name in references(unclear) if name in graph.types])
            for name in (*self.changed[-1], *self.unclear[-1]):
                self.views.setdefault(name, {name})

    def _call_body(self, call: Call, changed: list[Any], unclear: list[Any]) -> None:
        """Join what a call of a body returns to what it is a view of; note the arguments that the body writes to."""
        body, *given = call.args[INLINED[call.target] :] or (None,)
        if not isinstance(body, Graph):
            return  # damaged
        inner, outer = Aliases(body), dict(zip(body.inputs, given, strict=False))
        outputs = [call.outputs] if isinstance(call.outputs, Ref) else call.outputs
        for result, value in zip(outputs, body.outputs, strict=False):
            views = {view for name in references(value) for view in inner.views.get(name, {name})}
            self._join([result, *(outer[view] for view in views & outer.keys())])
        for calls, noted in ((inner.changed, changed), (inner.unclear, unclear)):
            views = {view for names in calls for name in names for view in inner.views[name]}
            noted += [argument for name, argument in outer.items() if name in views]

    def _join(self, values: Sequence[Any]) -> None:
        names = list(references(values))
        shared = max((self.views.setdefault(name, {name}) for name in names), key=len, default=set())
        for name in names:
            if (other := self.views[name]) is not shared:  # a smaller one: a name is moved a few times only
                shared |= other
                self.views.update(dict.fromkeys(other, shared))
