"""Every message of qfmt's errors, from its source code, which is read and not run.

A message is `where: what; hint`, as `QfmtError` prints it. What depends on the input stands in braces: the last name of
the expression, or three dots.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "qfmt"

ARGUMENTS = "click.UsageError"
"""Errors of the command line have no class of qfmt."""

REASONS = (
    ("Lacks", "qfmt/backends/onnx/", "InexpressibleNodesError"),
    ("QfmtError", "qfmt/backends/c/", "InexpressibleNodesError"),
    ("NoForm", "qfmt/passes/lowering/", "NoIntegerFormError"),
)
"""Exceptions whose texts are a reason in the message of another class: the exception, where, and that class."""

HOW_IT_IS_PRINTED = {
    "UnsupportedOperatorsError": "{where}: {count} operator{s} no equivalent in qfmt: {name} ({n}×: {places}){hint}",
    "InexpressibleNodesError": "{where}: {count} node{s} cannot be written in {format}: {reason} ({n}×: {nodes}){hint}",
    "NoIntegerFormError": "{where}: {count} node{s} no integer form: {nodes} {reason}{hint}",
    "ValidityError": "{where}: breaks rule {rule} {place}: {finding}{hint}",
}
"""Classes that compose their text."""


ALTERNATIVE = " / "
"""Between hints of which one is printed."""


class Message(NamedTuple):
    """A place that raises an error."""

    error: str
    text: str
    module: str


class Helper(NamedTuple):
    """A function that makes an error; its parameter number `what` is the finding, if it is not None."""

    error: str
    what: int | None
    where: str
    hint: str


def tree_of_classes() -> dict[str, str]:
    """The exceptions of qfmt/errors.py in order, each with its base."""
    found = {"QfmtError": "Exception"}
    for node in _parsed(PACKAGE / "errors.py").body:
        if isinstance(node, ast.ClassDef) and node.bases and (base := _last(node.bases[0])) in found:
            found[node.name] = base
    return found


@cache
def messages() -> tuple[Message, ...]:
    """Every message once for each class, sorted by module."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for message in Module(path).messages():
            found.setdefault((message.error, message.text), message)
    return tuple(found.values())


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _nodes(path: Path) -> list[tuple[ast.AST, ast.FunctionDef | None]]:
    """The calls, functions and classes of a module, each with the innermost function that it is in."""
    todo: deque[tuple[ast.AST, ast.FunctionDef | None]] = deque([(_parsed(path), None)])
    found = []
    while todo:
        node, function = todo.popleft()
        if isinstance(node, ast.Call | ast.FunctionDef | ast.ClassDef):
            found.append((node, function))
        inside = node if isinstance(node, ast.FunctionDef) else function
        todo.extend((child, inside) for child in ast.iter_child_nodes(node))
    return found


@cache
def _constants() -> dict[str, ast.expr]:
    """Assignments at module level of names in capitals, in any module."""
    return {
        node.targets[0].id: node.value
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in _parsed(path).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@cache
def _classes() -> dict[str, str]:
    """Every class of the package that is a QfmtError, with the class of qfmt/errors.py that users see."""
    found = {name: name for name in tree_of_classes()}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node, _ in _nodes(path):
            if isinstance(node, ast.ClassDef) and node.bases and (base := _last(node.bases[0])) in found:
                found.setdefault(node.name, found[base])
    return found


def _last(node: ast.expr) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Module:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        own = [node for node in _parsed(path).body if isinstance(node, ast.Assign)]
        self.constants = {_last(node.targets[0]): node.value for node in own}
        self.helpers: dict[str, Helper] = {}
        for node, _ in _nodes(path):
            if isinstance(node, ast.FunctionDef) and (helper := self._helper(node)) is not None:
                self.helpers[node.name] = helper

    def _helper(self, function: ast.FunctionDef) -> Helper | None:
        """The function as a helper, if it returns an error with one of its parameters as the text."""
        if function.returns is None or _last(function.returns) not in _classes():
            return None
        parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and _last(call.func) in _classes() and call.args:
                given = {word.arg: self.text(word.value, function) for word in call.keywords if word.arg}
                if (name := _last(call.args[0])) in parameters and isinstance(call.args[0], ast.Name):
                    error = _classes()[_last(call.func)]
                    return Helper(error, parameters.index(name), given.get("where", ""), given.get("hint", ""))
        return None

    def messages(self) -> Iterator[Message]:
        for node, function in _nodes(self.path):
            if isinstance(node, ast.Call):
                yield from self._message(node, function)

    def _message(self, call: ast.Call, function: ast.FunctionDef | None) -> Iterator[Message]:
        name = _last(call.func)
        error = self._error(name)
        helper = self.helpers.get(name)
        if not call.args or (function is not None and function.name in self.helpers):
            return
        if error == name and error in HOW_IT_IS_PRINTED:
            yield Message(error, HOW_IT_IS_PRINTED[error], "qfmt/errors.py")
        elif error:
            given = {word.arg: self.text(word.value, function) for word in call.keywords if word.arg}
            for what in self.texts(call.args[0], function):
                yield Message(error, composed(given.get("where", ""), what, given.get("hint", "")), self.name)
        elif helper and helper.what is not None and len(call.args) > helper.what:
            for what in self.texts(call.args[helper.what], function):
                yield Message(helper.error, composed(helper.where, what, helper.hint), self.name)

    def _error(self, name: str) -> str:
        """The class that users see, or ""."""
        for reason, folder, error in REASONS:
            if name == reason and self.name.startswith(folder):
                return error
        if name in ("UsageError", "BadParameter", "MissingParameter"):
            return ARGUMENTS
        return _classes().get(name, "")

    def texts(self, node: ast.expr, function: ast.FunctionDef | None) -> list[str]:
        """The texts that an expression can have: a name is what was assigned to it."""
        if isinstance(node, ast.IfExp):
            return [*self.texts(node.body, function), *self.texts(node.orelse, function)]
        if isinstance(node, ast.Name) and function is not None:
            assigned = [
                each.value
                for each in ast.walk(function)
                if isinstance(each, ast.Assign) and any(_last(target) == node.id for target in each.targets)
            ]
            if assigned and not any(_last(value) == node.id for value in assigned):
                return [text for value in assigned for text in self.texts(value, None)]
        return [self.text(node, None if isinstance(node, ast.Name) else function)]

    def text(self, node: ast.expr, function: ast.FunctionDef | None) -> str:
        """The text of an expression."""
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.text(part, function) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self.text(node.value, function)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(node.left, function) + self.text(node.right, function)
        name = _last(node)
        if name.isupper():
            value = self.constants.get(name, _constants().get(name))
            if isinstance(value, ast.Constant | ast.JoinedStr | ast.BinOp):
                return self.text(value, None)
        if isinstance(node, ast.Name) and function is not None and node.id in ("hint", "how", "advice"):
            return ALTERNATIVE.join(filter(None, self.texts(node, function)))
        return f"{{{name or '…'}}}"


def composed(where: str, what: str, hint: str) -> str:
    """A message as it is printed."""
    return f"{where}: {what}; {hint}".removeprefix(": ").removesuffix("; ")


def pattern(text: str) -> re.Pattern[str]:
    """What finds a message in the output of a command: a part in braces is anything, and any of its hints counts."""
    finding, _, hint = text.removeprefix("{where}: ").partition("; ")
    return re.compile("|".join(_anything(f"{finding}; {each}".removesuffix("; ")) for each in hint.split(ALTERNATIVE)))


def _anything(text: str) -> str:
    return ".*".join(map(re.escape, re.split(r"\{.*?\}", text)))
