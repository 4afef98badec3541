"""The calls of a network, kept in addition to their nodes, so that torch can execute them later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .calls import Place, Value
from .lifter import Lifter
from .values import TensorValue


class Slot(NamedTuple):
    """The slot of a run-time value: the key of the lifter's tensor, or a number for anything else."""

    key: str | int


class Entry(NamedTuple):
    """One call. Arguments and result are those of the evaluator, with Slots for run-time values."""

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    place: Place


class Tape:
    """A recorder before the lifter: it passes every call on, and keeps those that must be computed at run time."""

    def __init__(self, lifter: Lifter) -> None:
        self.lifter = lifter
        self.entries: list[Entry] = []
        self._kept: list[Value] = []  # an id is unique only as long as its object lives

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        """See `calls.Recorder`."""
        given, options = self._noted(args), self._noted(kwargs)  # before in-place operators change the handles
        result = self.lifter.call(target, args, kwargs, place)
        noted = self._noted(result)
        if _holds_slot(noted):
            self.entries.append(Entry(target, given, options, noted, place))
        return result

    def _noted(self, value: Any) -> Any:
        if isinstance(value, TensorValue):
            return Slot(value.key)
        if isinstance(value, Value):
            self._kept.append(value)
            return Slot(id(value))
        if isinstance(value, list | tuple):
            return [self._noted(item) for item in value] if isinstance(value, list) else tuple(map(self._noted, value))
        if isinstance(value, Mapping):
            return {key: self._noted(item) for key, item in value.items()}
        return value


def _holds_slot(value: Any) -> bool:
    if isinstance(value, Slot):
        return True
    return isinstance(value, list | tuple) and any(map(_holds_slot, value))
