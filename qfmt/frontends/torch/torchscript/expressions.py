"""Expressions of an archive's code: names, attributes, literals, and calls of every kind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import ControlFlowError, SourceError
from ...stored import StoredTensor
from ..calls import Packed, PackedState, Recorder, Value
from . import folding, packing
from .archive import Archive
from .code import Class, Function
from .frames import Frame, Symbol, not_followed
from .objects import EnumMember, NamedTuple, ScriptObject, enum_member
from .operators import Operators, keeps_state, placed

NAMES = {"inf": float("inf"), "nan": float("nan")}

CONVERSIONS = {"int": "aten::Int", "float": "aten::Float", "bool": "aten::Bool", "str": "aten::str"}

NUMBERS = {"int": int, "float": float, "bool": bool}

TYPE_FIRST = ("annotate", "unchecked_cast", "uninitialized")


class Expressions:
    """Evaluates expressions. `run` calls a function of the archive: (function, args, kwargs, scope) → its result.

    Attributes that the code sets on modules are stored separately, so that an archive can be evaluated again.
    """

    def __init__(
        self,
        archive: Archive,
        recorder: Recorder,
        constants: tuple[Any, ...],
        own_containers: frozenset[int],
        run: Callable[[Function, Sequence[Any], Mapping[str, Any], str], Any],
    ) -> None:
        self.run = run
        self.library = archive.library
        self.constants = constants
        self.operators = Operators(recorder, own_containers, archive.budget)
        self._written: dict[tuple[int, str], Any] = {}
        self._read: set[tuple[int, str]] = set()

    def value(self, node: ast.expr, frame: Frame, variable: str = "") -> Any:
        """The value of an expression; `variable` is the target of its assignment."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node, frame)
            case ast.Attribute():
                return self._attribute(self.value(node.value, frame), node.attr, node, frame)
            case ast.Call():
                return self._call(node, frame, variable)
            case ast.List():
                self.operators.hold(len(node.elts), node, frame)
                return [self.value(element, frame) for element in node.elts]
            case ast.Tuple():
                self.operators.hold(len(node.elts), node, frame)
                return tuple(self.value(element, frame) for element in node.elts)
            case ast.Dict() if all(node.keys):
                self.operators.hold(4 * len(node.keys), node, frame)
                keys = [self.value(key, frame) for key in node.keys if key is not None]
                if not all(map(folding.is_plain, keys)):
                    raise not_followed(node, frame)
                return dict(zip(keys, (self.value(element, frame) for element in node.values), strict=True))
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.UnaryOp(op=ast.USub()):
                return self.operators.apply("aten::neg", [self.value(node.operand, frame)], {}, node, frame)
        raise not_followed(node, frame)

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        if node.id in frame.variables:
            return frame.variables[node.id]
        if node.id in NAMES:
            return NAMES[node.id]
        if node.id in ("torch", "ops", "__torch__", "CONSTANTS"):
            return Symbol(node.id)
        raise SourceError(f"`{node.id[:100]}` has no value here", where=frame.where(node))

    def _attribute(self, owner: Any, name: str, node: ast.expr, frame: Frame) -> Any:
        match owner:
            case Symbol("CONSTANTS"):
                index = name.removeprefix("c")
                if not index.isdecimal() or not int(index) < len(self.constants):
                    raise SourceError(f"the archive has no constant {name[:100]}", where=frame.where(node))
                return self.constants[int(index)]
            case Symbol():
                return self._symbol(f"{owner}.{name}")
            case Class(base="Enum"):
                return placed(lambda: enum_member(owner, name=name), node, frame)
            case Class():
                return self._symbol(f"{owner.name}.{name}")
            case ScriptObject():
                return self._object_attribute(owner, name, node, frame)
            case NamedTuple() if name in owner.fields[: len(owner)]:
                return owner[owner.fields.index(name)]
            case EnumMember() if name in ("name", "value"):
                return getattr(owner, name)
            case Value() | StoredTensor():
                return self.operators.record(f"prim::{name}", (owner,), {}, node, frame)
        raise SourceError(f"a {type(owner).__name__} has no attribute `{name[:100]}`", where=frame.where(node))

    def _symbol(self, name: str) -> Any:
        """A class or function if the archive has one of that name; else a longer name."""
        return (self.library.find(name) if name.startswith("__torch__.") else None) or Symbol(name)

    def _object_attribute(self, owner: ScriptObject, name: str, node: ast.expr, frame: Frame) -> Any:
        key = (id(owner), name)
        if key in self._written:
            return self._written[key]
        self._read.add(key)
        if name == "training":
            return False  # a conversion needs the archive after .eval()
        if name in owner.attributes:
            return owner.attributes[name]
        if owner.cls.fields.get(name):
            return self._final(owner.cls, name, node, frame)
        raise SourceError(f"{owner.cls.name} has no attribute `{name[:100]}`", where=frame.where(node))

    def _final(self, cls: Class, name: str, node: ast.expr, frame: Frame) -> Any:
        """The value of a class attribute declared `Final`."""
        expression = placed(lambda: cls.expression(name), node, frame)
        return self.value(expression, Frame(frame.function, frame.scope))

    def set_attribute(self, owner: Any, name: str, value: Any, node: ast.expr, frame: Frame) -> None:
        if not isinstance(owner, ScriptObject):
            raise not_followed(node, frame)
        if owner.path is None:  # not in the module tree: being restored, or created by this run
            owner.attributes[name] = value
            return
        if (id(owner), name) in self._read and (id(owner), name) not in self._written:
            raise keeps_state(f"`{owner.path}.{name}`".replace("`.", "`"), node, frame)
        self._written[id(owner), name] = value

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        container = self.value(node.value, frame)
        if not isinstance(node.slice, ast.Slice):
            index = self.value(node.slice, frame)
            return self.operators.apply("aten::__getitem__", [container, index], {}, node, frame)
        bounds = [bound and self.value(bound, frame) for bound in (node.slice.lower, node.slice.upper)]
        if isinstance(container, Value):
            return self.operators.record("prim::TupleSlice", (container, *bounds), {}, node, frame)
        return self.operators.apply("aten::slice", [container, *bounds], {}, node, frame)

    def _call(self, node: ast.Call, frame: Frame, variable: str) -> Any:
        self.operators.spend(1, node, frame)
        function = node.func
        if isinstance(function, ast.Name) and function.id not in frame.variables:
            return self._builtin(function.id, node, frame, variable)
        if isinstance(function, ast.Attribute):
            owner = self.value(function.value, frame)
            if isinstance(owner, Class) and function.attr == "__new__":
                return ScriptObject(owner)
            if not isinstance(owner, Symbol):
                return self.method(owner, function.attr, *self._arguments(node, frame), node, frame)
        called = self.value(function, frame)
        args, kwargs = self._arguments(node, frame)
        match called:
            case Function():
                return self.run(called, args, kwargs, frame.scope)
            case Class(base="NamedTuple"):
                return NamedTuple.of(called, tuple(args))
            case Symbol():
                return self.operators.apply(_target(called), args, kwargs, node, frame, variable)
        raise not_followed(node, frame)

    def _arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        if any(keyword.arg is None for keyword in node.keywords):
            raise not_followed(node, frame)
        args = [self.value(argument, frame) for argument in node.args]
        return args, {str(keyword.arg): self.value(keyword.value, frame) for keyword in node.keywords}

    def _builtin(self, name: str, node: ast.Call, frame: Frame, variable: str) -> Any:
        if name in TYPE_FIRST and node.args:
            kind = node.args[0].id if isinstance(node.args[0], ast.Name) else ""
            value = self.value(node.args[1], frame, variable) if len(node.args) > 1 else None
            if name == "annotate" and kind in NUMBERS and isinstance(value, StoredTensor):
                return NUMBERS[kind](value.item())
            return value
        args, kwargs = self._arguments(node, frame)
        if name == "getattr" and len(args) == 2 and isinstance(args[1], str):
            return self._attribute(args[0], args[1], node, frame)
        if name in CONVERSIONS and len(args) == 1:
            known = args[0].item() if isinstance(args[0], StoredTensor) else args[0]
            return self.operators.apply(CONVERSIONS[name], [known], kwargs, node, frame, variable)
        if name == "print":
            return None
        if name == "fork":
            raise runs_in_parallel(node, frame)
        raise SourceError(f"`{name[:100]}` cannot be called in TorchScript", where=frame.where(node))

    def method(
        self, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any], node: ast.AST, frame: Frame
    ) -> Any:
        if isinstance(owner, Packed | PackedState):
            return placed(lambda: packing.method(owner, name), node, frame)
        if isinstance(owner, Value):
            return self.operators.record(f"aten::{name}", (owner, *args), kwargs, node, frame)
        method = owner.cls.method(name) if isinstance(owner, ScriptObject) else None
        if method is None:
            kind = owner.cls.name if isinstance(owner, ScriptObject) else type(owner).__name__
            raise SourceError(f"{kind} has no method `{name[:100]}`", where=frame.where(node))
        return self.run(method, [owner, *args], kwargs, frame.scope)


def _target(symbol: str) -> str:
    """ "torch.relu" → "aten::relu", "ops.quantized.conv2d" → "quantized::conv2d"."""
    first, *middle, last = symbol.split(".")
    return f"{middle[-1]}::{last}" if first == "ops" and middle else f"aten::{last}"


def runs_in_parallel(node: ast.AST, frame: Frame) -> ControlFlowError:
    """The error for torch.jit.fork."""
    hint = "save the network without fork: qfmt writes one sequence of operators"
    return ControlFlowError(
        "runs parts of the network in parallel (torch.jit.fork)", where=frame.where(node), hint=hint
    )
