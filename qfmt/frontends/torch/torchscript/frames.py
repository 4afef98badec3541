"""One call of a function whose code is read, not executed: what TorchScript's Python and that of torch.fx share."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

from ....budget import reading
from ....errors import SourceError
from ...harmless import flat_key
from ..calls import MEANINGLESS, Place, Value, meaningless
from .folding import is_plain
from .operators import Operators

NONE: Mapping[str, Any] = MappingProxyType({})

STEP = 2
"""Operations of an expression or assignment: it takes as long."""


class Code(Protocol):
    """The called function: a `code.Function`, or the `forward` of torch.fx."""

    @property
    def file(self) -> str: ...

    def line(self, node: ast.AST) -> int: ...

    def text(self, node: ast.AST) -> str: ...


class Frame:
    """One call of a function: its variables, and the statement that is executed, to which calls and errors refer.

    A subclass knows the names, attributes, calls and subscripts of its dialect.
    """

    def __init__(self, function: Code, scope: str, operators: Operators, at: ast.AST) -> None:
        self.function, self.scope, self.operators, self.at = function, scope, operators, at
        self.budget = operators.budget
        self.variables: dict[str, Any] = {}

    @property
    def where(self) -> str:
        return f"{self.function.file}:{self.function.line(self.at)}"

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Errors without a place get that of the current statement; so do Python's exceptions for invalid values."""
        try:
            yield
        except MEANINGLESS as error:
            raise meaningless(self.function.text(self.at) or "a call", error).at(self.where) from None
        except SourceError as error:
            raise (error if error.where else error.at(self.where)) from None

    def not_followed(self, node: ast.AST) -> SourceError:
        """The error for Python code that the dialect, or this evaluator, does not support."""
        what = f"the code has a {type(node).__name__} here, which is not supported: `{self.function.text(node)}`"
        return SourceError(what, hint="trace the module with torch.jit.trace, and convert that")

    @property
    def place(self) -> Place:
        return Place(self.scope, self.function.file, self.function.line(self.at))

    def apply(self, target: str, args: list[Any], kwargs: Mapping[str, Any] = NONE) -> Any:
        """The result of an operator: computed if everything is known, else recorded."""
        target, args = self.operators.of_version(target, args, kwargs)
        result = self.operators.apply(target, args, kwargs)
        return self.record(target, tuple(args), kwargs) if result is NotImplemented else result

    def record(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] = NONE) -> Any:
        """Pass a call to the recorder."""
        return self.operators.record(target, args, kwargs, self.place)

    def value(self, node: ast.expr) -> Any:
        """The value of an expression."""
        self.budget.spend(STEP)
        match node:
            case ast.Constant() if not _is_foreign(node.value):
                return node.value
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(self.value(node.value), self.spelled(node), node)
            case ast.Call():
                return self.call(node)
            case ast.List():
                self.budget.hold(len(node.elts))
                return list(map(self.value, node.elts))
            case ast.Tuple():
                self.budget.hold(len(node.elts))
                return tuple(map(self.value, node.elts))
            case ast.Dict() if all(node.keys):
                self.budget.hold(4 * len(node.keys))
                keys = [self.value(key) for key in node.keys if key is not None]
                if not all(map(is_plain, keys)):
                    raise self.not_followed(node)
                self.budget.spend(sum(map(reading, keys)))
                return dict(zip((flat_key(key, len(keys)) for key in keys), map(self.value, node.values), strict=True))
            case ast.Subscript():
                return self.subscript(self.value(node.value), node)
            case ast.UnaryOp(op=ast.USub()):
                return self.apply("aten::neg", [self.value(node.operand)])
        raise self.not_followed(node)

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        if any(keyword.arg is None for keyword in node.keywords):
            raise self.not_followed(node)
        return list(map(self.value, node.args)), {str(each.arg): self.value(each.value) for each in node.keywords}

    def assign(self, target: ast.expr, value: Any) -> None:
        self.budget.spend(STEP)
        if isinstance(target, ast.Name):
            self.variables[target.id] = value
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise self.not_followed(target)
        if isinstance(value, Value):
            value = self.record("prim::ListUnpack", (value, len(target.elts)))
        if not isinstance(value, list | tuple) or len(value) != len(target.elts):
            raise SourceError(f"{len(target.elts)} values were expected here")
        for each, element in zip(target.elts, value, strict=True):
            self.assign(each, element)

    def spelled(self, node: ast.Attribute) -> str:
        """The name of an attribute. To find it among others may be to compare all of its characters."""
        self.budget.spend(reading(node.attr))
        return node.attr

    def longer(self, owner: str, name: str) -> Symbol:
        """The dotted name of an attribute of a name."""
        self.budget.allocate(len(owner) + len(name))
        return Symbol(f"{owner}.{name}")

    def name(self, node: ast.Name) -> Any:
        raise NotImplementedError

    def attribute(self, owner: Any, name: str, node: ast.expr) -> Any:
        raise NotImplementedError

    def call(self, node: ast.Call) -> Any:
        raise NotImplementedError

    def subscript(self, container: Any, node: ast.Subscript) -> Any:
        raise NotImplementedError


def _is_foreign(literal: Any) -> bool:
    """Whether PyTorch has no such literal: bytes, and integers beyond 64 bits, whose products take quadratic time."""
    return isinstance(literal, bytes) or (isinstance(literal, int) and abs(literal) > 1 << 63)


class Symbol(str):
    """A dotted name of PyTorch: "torch.relu", "ops.quantized.conv2d", "__torch__.a.B"."""

    __slots__ = ()
