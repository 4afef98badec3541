"""One call of one of PyTorch's operators: computed if all is known, else passed to the recorder."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....budget import Budget
from ....errors import SourceError
from ...stored import StoredTensor
from ..calls import MEANINGLESS, Packed, PackedState, Recorder, Value, meaningless
from . import branches, folding, packing
from .frames import Frame


class Operators:
    """Applies operators, and counts the steps of an evaluation: statements, calls, elements of lists."""

    def __init__(self, recorder: Recorder, own_containers: frozenset[int], budget: Budget) -> None:
        self._recorder = recorder
        self._own_containers = own_containers
        self._budget = budget

    def apply(
        self, target: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST, frame: Frame, variable: str = ""
    ) -> Any:
        """The result of `target` ("aten::relu"); `variable` is the target of its assignment."""
        special = _SPECIAL.get(target)
        result = special(self, args, node, frame) if special else NotImplemented
        if result is NotImplemented:
            self.spend(folding.cost(target, args), node, frame)
            result = placed(lambda: self._known(target, args, kwargs, node, frame), node, frame)
        if result is NotImplemented:
            return self.record(target, tuple(args), kwargs, node, frame, variable)
        if isinstance(result, str | list | tuple):
            self.hold(len(result), node, frame)
        return result

    def record(
        self,
        target: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        node: ast.AST,
        frame: Frame,
        variable: str = "",
    ) -> Any:
        """Pass a call to the recorder."""
        undecided, _ = self._look_through((*args, *kwargs.values()), node, frame)
        if undecided is not None:
            raise undecided.error
        return self._recorder.call(target, args, kwargs, frame.place(node, variable))

    def spend(self, steps: int, node: ast.AST, frame: Frame) -> None:
        """Count steps; the error for too many refers to `node`."""
        placed(lambda: self._budget.spend(steps), node, frame)

    def hold(self, elements: int, node: ast.AST, frame: Frame) -> None:
        """Count a list, tuple, dict or string of that many elements."""
        placed(lambda: self._budget.hold(elements), node, frame)

    def _known(self, target: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST, frame: Frame) -> Any:
        """Operators that need no recorder: packing, any lists and dicts, and plain values."""
        if args and (result := packing.apply(target, args)) is not NotImplemented:
            return result
        if target in folding.mutations and args and isinstance(args[0], list | dict):
            if id(args[0]) in self._own_containers:
                raise keeps_state("a list or dict of the module", node, frame)
            return folding.fold(folding.mutations, target, args, kwargs)
        result = folding.fold(folding.on_containers, target, args, kwargs)
        if result is not NotImplemented or target not in folding.on_values:
            return result
        undecided, symbolic = self._look_through((*args, *kwargs.values()), node, frame)
        if undecided is not None:
            return undecided if target in branches.LOGIC else NotImplemented
        if symbolic:
            args = [_as_number(arg) for arg in args]
            if not all(map(folding.is_plain, args)):
                return NotImplemented
        return folding.fold(folding.on_values, target, args, kwargs)

    def _look_through(
        self, values: Sequence[Any], node: ast.AST, frame: Frame
    ) -> tuple[branches.Undecided | None, bool]:
        """(an Undecided among values, if any; whether there is any Value or tensor among them)."""
        undecided, symbolic = None, False
        waiting = list(values)
        while waiting:
            self.spend(1, node, frame)
            value = waiting.pop()
            if isinstance(value, branches.Undecided):
                undecided = value
            elif isinstance(value, Value | StoredTensor | Packed | PackedState):
                symbolic = True
            elif isinstance(value, list | tuple):
                waiting.extend(value)
            elif isinstance(value, dict):
                waiting.extend(value.values())
        return undecided, symbolic

    def _same(self, args: list[Any], node: ast.AST, frame: Frame) -> Any:
        """`is`: a Value is never None."""
        if len(args) != 2 or (args[0] is not None and args[1] is not None):
            return NotImplemented
        undecided, _ = self._look_through(args, node, frame)
        return undecided if undecided is not None else args[0] is args[1]

    def _different(self, args: list[Any], node: ast.AST, frame: Frame) -> Any:
        same = self._same(args, node, frame)
        return not same if isinstance(same, bool) else same

    def _raise(self, args: list[Any], node: ast.AST, frame: Frame) -> Any:
        message = args[0] if args and isinstance(args[0], str) else "an exception"
        raise SourceError(f"the network rejects its input: {message[:300]}", where=frame.where(node))

    def _warn(self, args: list[Any], node: ast.AST, frame: Frame) -> Any:
        return None

    def _unwrap(self, args: list[Any], node: ast.AST, frame: Frame) -> Any:
        return args[0] if args else NotImplemented


_SPECIAL: Mapping[str, Callable[[Operators, list[Any], ast.AST, Frame], Any]] = {
    "aten::__is__": Operators._same,
    "aten::__isnot__": Operators._different,
    "prim::RaiseException": Operators._raise,
    "aten::warn": Operators._warn,
    "prim::unchecked_unwrap_optional": Operators._unwrap,
    "aten::_unwrap_optional": Operators._unwrap,
}


def _as_number(value: Any) -> Any:
    """A stored integer without dimensions counts as a number: traced code computes sizes with them."""
    if isinstance(value, StoredTensor) and value.shape == () and value.dtype in ("int64", "int32", "bool"):
        return value.item()
    return value


def placed(action: Callable[[], Any], node: ast.AST, frame: Frame) -> Any:
    """Run a function; a SourceError without a place gets that of `node`, and so do Python's exceptions."""
    try:
        return action()
    except MEANINGLESS as error:
        raise meaningless(frame.function.text(node) or "a call", error).at(frame.where(node)) from None
    except SourceError as error:
        raise (error if error.where else error.at(frame.where(node))) from None


def keeps_state(what: str, node: ast.AST, frame: Frame) -> SourceError:
    """The error for code that keeps state between runs."""
    hint = "a .qfb holds a stateless network"
    return SourceError(f"the network changes {what} from one run to the next", where=frame.where(node), hint=hint)
