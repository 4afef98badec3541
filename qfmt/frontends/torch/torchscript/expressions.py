"""Expressions of an archive's code: names, attributes, literals, and calls of every kind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....budget import reading
from ....errors import ControlFlowError, SourceError
from ...stored import StoredTensor
from ..calls import Packed, PackedState, Recorder, Value, keeps_state
from . import packing
from .archive import Archive
from .code import Class, Function
from .frames import NONE, Frame, Symbol
from .objects import EnumMember, NamedTuple, ScriptObject, enum_member
from .operators import Operators

NAMES = {"inf": float("inf"), "nan": float("nan")}

CONVERSIONS = {"int": "aten::Int", "float": "aten::Float", "bool": "aten::Bool", "str": "aten::str"}

WITH_NUMBERS = {f"aten::{name}" for name in ("add", "sub", "mul", "div")}
"""Operators that torch calls with a number if their second operand is a constant of the archive without dimensions:
their results have other types."""

TYPE_FIRST = ("annotate", "unchecked_cast", "uninitialized")


class Run:
    """What all calls of one evaluation share. `call` calls a function: (function, args, kwargs, scope) → its result.

    Attributes that the code sets on modules are stored separately, so that an archive can be evaluated again.
    """

    def __init__(
        self,
        archive: Archive,
        recorder: Recorder,
        constants: tuple[Any, ...],
        own_containers: frozenset[int],
        call: Callable[[Function, Sequence[Any], Mapping[str, Any], str], Any],
    ) -> None:
        self.call = call
        self.library = archive.library
        self.constants = constants
        self.numbers = {id(each) for each in constants if isinstance(each, StoredTensor) and each.shape == ()}
        self.operators = Operators(recorder, own_containers, archive.budget, archive.version)
        self.eval_mode = False
        self.written: dict[tuple[int, str], Any] = {}
        self.read: set[tuple[int, str]] = set()


class ScriptFrame(Frame):
    """One call of a function of an archive."""

    function: Function

    def __init__(self, run: Run, function: Function, scope: str) -> None:
        self.header = function.header
        super().__init__(function, scope, run.operators, self.header)
        self.run = run
        self.assigned: dict[str, int] = {}
        """The line that assigned each variable."""

    def record(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] = NONE) -> Any:
        if target in WITH_NUMBERS and len(args) > 1 and id(args[1]) in self.run.numbers:
            args = (args[0], args[1].item(), *args[2:])
        return super().record(target, args, kwargs)

    def shown(self, test: ast.expr) -> str:
        """The line of a condition, and that of the variable it names."""
        line = self.function.text(test)
        source = self.assigned.get(test.id) if isinstance(test, ast.Name) else None
        return f"{line} with {self.function.text_of(source)}" if source is not None else line

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Attribute):
            self._set_attribute(self.value(target.value), self.spelled(target), value, target)
        else:
            super().assign(target, value)

    def name(self, node: ast.Name) -> Any:
        if node.id in self.variables:
            return self.variables[node.id]
        if node.id in NAMES:
            return NAMES[node.id]
        if node.id in ("torch", "ops", "__torch__", "CONSTANTS"):
            return Symbol(node.id)
        raise SourceError(f"`{node.id[:100]}` has no value here")

    def attribute(self, owner: Any, name: str, node: ast.expr) -> Any:
        match owner:
            case Symbol("CONSTANTS"):
                index = name.removeprefix("c")
                if not index.isdecimal() or not int(index) < len(self.run.constants):
                    raise SourceError(f"the archive has no constant {name[:100]}")
                return self.run.constants[int(index)]
            case Symbol():
                return self._symbol(self.longer(owner, name))
            case Class(base="Enum"):
                return enum_member(owner, name=name)
            case Class():
                return self._symbol(self.longer(owner.name, name))
            case ScriptObject():
                return self._object_attribute(owner, name)
            case NamedTuple() if owner.places.get(name, len(owner)) < len(owner):
                return owner[owner.places[name]]
            case EnumMember() if name in ("name", "value"):
                return getattr(owner, name)
            case Value() | StoredTensor():
                return self.record(f"prim::{name}", (owner,))
        raise SourceError(f"a {type(owner).__name__} has no attribute `{name[:100]}`")

    def _symbol(self, name: Symbol) -> Any:
        """A class or function if the archive has one of that name; else a longer name."""
        return (self.run.library.find(name) if name.startswith("__torch__.") else None) or name

    def _object_attribute(self, owner: ScriptObject, name: str) -> Any:
        key = (id(owner), name)
        if key in self.run.written:
            return self.run.written[key]
        self.run.read.add(key)
        if name == "training" and self.run.eval_mode:
            return False
        if name in owner.attributes:
            return owner.attributes[name]
        if owner.cls.fields.get(name):  # an attribute of the class, declared `Final`
            return ScriptFrame(self.run, self.function, self.scope).value(owner.cls.expression(name))
        raise SourceError(f"{owner.cls.name} has no attribute `{name[:100]}`")

    def _set_attribute(self, owner: Any, name: str, value: Any, node: ast.expr) -> None:
        if not isinstance(owner, ScriptObject):
            raise self.not_followed(node)
        key = (id(owner), name)
        if owner.path is None:  # not in the module tree: being restored, or created by this run
            owner.attributes[name] = value
        elif key in self.run.read and key not in self.run.written:
            raise keeps_state(f"`{owner.path}.{name}`".replace("`.", "`"))
        else:
            self.run.written[key] = value

    def subscript(self, container: Any, node: ast.Subscript) -> Any:
        if not isinstance(node.slice, ast.Slice):
            key = self.value(node.slice)
            if isinstance(container, ScriptObject) and isinstance(key, int | str):  # a ModuleList or ModuleDict
                self.budget.spend(reading(key))
                return self._object_attribute(container, str(key))
            return self.apply("aten::__getitem__", [container, key])
        if node.slice.step is not None:  # PyTorch prints a call of `slice` for it
            raise self.not_followed(node)
        bounds = [bound and self.value(bound) for bound in (node.slice.lower, node.slice.upper)]
        if isinstance(container, Value):
            return self.record("prim::TupleSlice", (container, *bounds))
        return self.apply("aten::slice", [container, *bounds])

    def call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Name) and function.id not in self.variables:
            return self._builtin(function.id, node)
        if isinstance(function, ast.Attribute):
            owner = self.value(function.value)
            if isinstance(owner, Class) and function.attr == "__new__":
                return ScriptObject(owner)
            if not isinstance(owner, Symbol):
                return self.method(owner, self.spelled(function), *self.arguments(node))
        called = self.value(function)
        args, kwargs = self.arguments(node)
        match called:
            case Function():
                return self.run.call(called, args, kwargs, self.scope)
            case Class(base="NamedTuple"):
                return NamedTuple.of(called, tuple(args))
            case Symbol():
                return self.apply(_target(called), args, kwargs)
        raise self.not_followed(node)

    def _builtin(self, name: str, node: ast.Call) -> Any:
        if name in TYPE_FIRST and node.args:
            kind = node.args[0].id if isinstance(node.args[0], ast.Name) else ""
            value = self.value(node.args[1]) if len(node.args) > 1 else None
            is_read = name == "annotate" and kind in CONVERSIONS and isinstance(value, Value | StoredTensor)
            return self._number(kind, value) if is_read else value
        if name == "isinstance":  # what PyTorch knows when it compiles is not in the code any more
            raise self.not_followed(node)
        args, _ = self.arguments(node)
        if name == "getattr" and len(args) == 2 and isinstance(args[1], str):
            self.budget.spend(reading(args[1]))
            return self.attribute(args[0], args[1], node)
        if name in CONVERSIONS and len(args) == 1:
            return self._number(name, args[0])
        if name == "sorted" and len(args) == 1:
            return self.apply("aten::sorted", args)
        if name == "print":
            return None
        if name == "fork":
            raise runs_in_parallel()
        raise SourceError(f"`{name[:100]}` cannot be called in TorchScript")

    def _number(self, kind: str, value: Any) -> Any:
        """A value as a number, bool or text: `int(x)`, and `annotate(int, x)`, as a call with a tensor x is printed."""
        return self.apply(CONVERSIONS[kind], [value.item() if isinstance(value, StoredTensor) else value])

    def method(self, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(owner, Packed | PackedState):
            return packing.method(owner, name)
        if isinstance(owner, Value):
            return self.record(f"aten::{name}", (owner, *args), kwargs)
        method = owner.cls.method(name) if isinstance(owner, ScriptObject) else None
        if method is None:
            kind = owner.cls.name if isinstance(owner, ScriptObject) else type(owner).__name__
            raise SourceError(f"{kind} has no method `{name[:100]}`")
        return self.run.call(method, [owner, *args], kwargs, self.scope)


def _target(symbol: str) -> str:
    """ "torch.relu" → "aten::relu", "ops.quantized.conv2d" → "quantized::conv2d"."""
    first, *middle, last = symbol.split(".")
    return f"{middle[-1]}::{last}" if first == "ops" and middle else f"aten::{last}"


def runs_in_parallel() -> ControlFlowError:
    """The error for torch.jit.fork."""
    hint = "save the network without fork: qfmt writes one sequence of operators"
    return ControlFlowError("runs parts of the network in parallel (torch.jit.fork)", hint=hint)
