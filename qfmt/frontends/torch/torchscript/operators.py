"""One call of one of PyTorch's operators: computed if all is known, else passed to the recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....budget import Budget, reading
from ...stored import StoredTensor
from ..calls import Packed, PackedState, Place, Recorder, RejectedInputError, Value, keeps_state
from . import branches, folding, packing

BEFORE_TRUE_DIVISION, BEFORE_FULL_OF_INTEGERS = 3, 4
"""Versions of archives, of PyTorch 1.5 and 1.6: the last in which `div` of integers rounds towards zero, and in which
`full` of an integer gives floats."""


class Operators:
    """Applies operators, and counts the steps of an evaluation: statements, calls, elements of lists."""

    def __init__(self, recorder: Recorder, own_containers: frozenset[int], budget: Budget, version: str = "") -> None:
        self._recorder = recorder
        self._version = int(version or BEFORE_FULL_OF_INTEGERS + 1)
        self._own_containers = own_containers
        self.budget = budget

    def of_version(self, target: str, args: list[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """What a call means today that is in an archive of this version: torch's loader replaces it likewise."""
        if target in ("aten::div", "aten::div_") and self._version <= BEFORE_TRUE_DIVISION:
            return target.replace("aten::div", "qfmt::div_0_3"), args
        if target == "aten::full" and self._version <= BEFORE_FULL_OF_INTEGERS and len(args) > 1:
            states_type = any(each is not None for each in (*args[2:3], kwargs.get("dtype")))
            fill = args[1] if states_type or not isinstance(args[1], int) else float(args[1])
            return target, [args[0], fill, *args[2:]]
        return target, args

    def apply(self, target: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of `target` ("aten::relu"); NotImplemented if it has to be recorded."""
        special = _SPECIAL.get(target)
        result = special(self, args) if special else NotImplemented
        if result is NotImplemented:
            self.budget.spend(folding.cost(target, args))
            result = self._known(target, args, kwargs)
        if isinstance(result, str | list | tuple):
            is_changed = bool(args) and result is args[0]  # in place: nothing is copied
            self.budget.hold(0 if is_changed else len(result))
        elif isinstance(result, branches.Text):
            self.budget.allocate(branches.UNDECIDED)
        return result

    def record(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        """Pass a call to the recorder."""
        undecided, _ = self._look_through((*args, *kwargs.values()))
        if undecided is not None:
            raise undecided.error
        return self._recorder.call(target, args, kwargs, place)

    def _known(self, target: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """Operators that need no recorder: packing, any lists and dicts, and plain values."""
        if args and (result := packing.apply(target, args)) is not NotImplemented:
            return result
        if target in folding.mutations and args and isinstance(args[0], list | dict):
            if id(args[0]) in self._own_containers:
                raise keeps_state("a list or dict of the module")
            return folding.fold(folding.mutations, target, args, kwargs)
        result = folding.fold(folding.on_containers, target, args, kwargs)
        if result is not NotImplemented or target not in folding.on_values:
            return result
        undecided, symbolic = self._look_through((*args, *kwargs.values()))
        if undecided is not None:
            passed_on = target in branches.LOGIC or isinstance(undecided, branches.Text)
            return undecided if passed_on else NotImplemented
        if symbolic:
            args = [_as_number(arg) for arg in args]
            if not all(map(folding.is_plain, args)):
                return NotImplemented
        return folding.fold(folding.on_values, target, args, kwargs)

    def _look_through(self, values: Sequence[Any]) -> tuple[branches.Undecided | None, bool]:
        """(an Undecided among values, if any; whether there is any Value or tensor among them)."""
        undecided, symbolic = None, False
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            self.budget.spend(1 + reading(value))
            if isinstance(value, branches.Undecided):
                undecided = value
            elif isinstance(value, Value | StoredTensor | Packed | PackedState):
                symbolic = True
            elif isinstance(value, list | tuple):
                waiting.extend(value)
            elif isinstance(value, dict):
                waiting.extend(value.values())
        return undecided, symbolic

    def _same(self, args: list[Any]) -> Any:
        """`is`: a Value is never None."""
        if len(args) != 2 or (args[0] is not None and args[1] is not None):
            return NotImplemented
        undecided, _ = self._look_through(args)
        return undecided if undecided is not None else args[0] is args[1]

    def _different(self, args: list[Any]) -> Any:
        same = self._same(args)
        return not same if isinstance(same, bool) else same

    def _raise(self, args: list[Any]) -> Any:
        message = args[0] if args else None
        shown = message.text if isinstance(message, branches.Text) else message
        raise RejectedInputError(shown if isinstance(shown, str) else "an exception")

    def _unwrap(self, args: list[Any]) -> Any:
        return args[0] if args else NotImplemented


_SPECIAL: Mapping[str, Callable[[Operators, list[Any]], Any]] = {
    "aten::__is__": Operators._same,
    "aten::__isnot__": Operators._different,
    "prim::RaiseException": Operators._raise,
    "aten::warn": lambda operators, args: None,
    "prim::unchecked_unwrap_optional": Operators._unwrap,
    "aten::_unwrap_optional": Operators._unwrap,
}


def _as_number(value: Any) -> Any:
    """A stored integer without dimensions counts as a number: traced code computes sizes with them."""
    if isinstance(value, StoredTensor) and value.shape == () and value.dtype in ("int64", "int32", "bool"):
        return folding.of_tensor(value.item())
    return value
