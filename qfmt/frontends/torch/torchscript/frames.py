"""One call of a function of the archive, and the places in it."""

from __future__ import annotations

import ast
from typing import Any, Protocol

from ....errors import SourceError
from ..calls import Place


class Code(Protocol):
    """The called function: a `code.Function`, or the `forward` of torch.fx."""

    @property
    def file(self) -> str: ...

    def line(self, node: ast.AST) -> int: ...

    def text(self, node: ast.AST) -> str: ...


class Frame:
    """One call of a function: its variables, and the statement that assigned each."""

    __slots__ = ("assigned", "function", "scope", "variables")

    def __init__(self, function: Code, scope: str) -> None:
        self.function = function
        self.scope = scope
        self.variables: dict[str, Any] = {}
        self.assigned: dict[str, ast.stmt] = {}

    def where(self, node: ast.AST) -> str:
        return f"{self.function.file}:{self.function.line(node)}"

    def place(self, node: ast.AST, variable: str = "") -> Place:
        return Place(self.scope, self.function.file, self.function.line(node), variable)

    def shown(self, test: ast.expr) -> str:
        """The line of a condition, and that of the variable it names."""
        line = self.function.text(test)
        source = self.assigned.get(test.id) if isinstance(test, ast.Name) else None
        return f"{line} with {self.function.text(source)}" if source is not None else line


class Symbol(str):
    """A dotted name of PyTorch: "torch.relu", "ops.quantized.conv2d", "__torch__.a.B"."""

    __slots__ = ()


def not_followed(node: ast.AST, frame: Frame) -> SourceError:
    """The error for Python code that TorchScript, or this evaluator, does not support."""
    what = f"the code has a {type(node).__name__} here, which is not supported: `{frame.function.text(node)}`"
    return SourceError(what, where=frame.where(node), hint="trace the module with torch.jit.trace, and convert that")
