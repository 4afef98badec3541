"""Evaluate an `if` whose condition is known only at run time."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from ....errors import ControlFlowError
from ..calls import Value

LOGIC = frozenset(
    f"aten::{name}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "__and__", "__or__", "__not__", "__is__", "__isnot__")
)
"""Operators that are used only in conditions."""

_CONTIGUOUS = "aten::contiguous"

_ASKING = LOGIC | {
    "aten::len", "aten::dim", "aten::size", "aten::__contains__", "prim::is_cuda", "prim::is_quantized", _CONTIGUOUS,
}  # fmt: skip

LEVELS = 8
"""The deepest nesting of `if` that is evaluated so: each level reads the expressions of those in it again."""

UNDECIDED = 1000
"""Bytes of an Undecided with its error."""

TEXT_LIMIT = 300
"""The longest text that is kept for a message."""


class Undecided(Value):
    """A variable that differs after two branches. It may be used in a condition for raising; for any other use,
    `error` names the decision that it depends on."""

    __slots__ = ("error",)

    def __init__(self, error: ControlFlowError) -> None:
        self.error = error


class Text(Undecided):
    """A text for messages, which torch may format in another way."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        what = "the code makes a decision that depends on how PyTorch formats a text"
        super().__init__(ControlFlowError(what, hint="compare the values themselves"))
        self.text = text[:TEXT_LIMIT]


def raises(statements: Sequence[ast.stmt]) -> bool:
    """Whether a branch cannot end without an exception."""
    for statement in statements:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="RaiseException"))):
                return True
            case ast.If() if raises(statement.body) and raises(statement.orelse):
                return True
        if _returns(statement):
            return False
    return False


def _returns(statement: ast.stmt) -> bool:
    """Whether there is a `return` in a statement."""
    inner = (each for block in ("body", "orelse") for each in getattr(statement, block, ()))
    return isinstance(statement, ast.Return) or any(map(_returns, inner))


def sides(node: ast.If) -> tuple[list[ast.stmt] | None, Mapping[str, ast.expr | None] | None]:
    """The side of an `if` that does not raise, and the outcome of both; kept with it, as loops may ask often."""
    known = vars(node)
    if "sides" not in known:
        left = node.orelse if raises(node.body) else node.body if raises(node.orelse) else None
        known["sides"] = left, outcome(node) if left is None else None
    found: tuple[list[ast.stmt] | None, Mapping[str, ast.expr | None] | None] = known["sides"]
    return found


def outcome(node: ast.If, levels: int = LEVELS) -> Mapping[str, ast.expr | None] | None:
    """The variables that an `if` assigns, if both sides only assert or decide.

    Each maps to the expression that both sides agree on, or to None if they differ: `x.contiguous()` is also `x`, where
    that is contiguous. The result is None if the `if` has an effect: a call of a method or an operator that computes.
    """
    if not levels:
        return None
    taken, other = _assignments(node.body, levels), _assignments(node.orelse, levels)
    if taken is None or other is None:
        return None
    merged: dict[str, ast.expr | None] = {}
    for name in {**taken, **other}:
        first, second = taken.get(name), other.get(name)
        same = first is not None and second is not None and ast.dump(_moved(first)) == ast.dump(_moved(second))
        merged[name] = (second if first is not None and _moved(first) is first else first) if same else None
    return merged


def _assignments(statements: Sequence[ast.stmt], levels: int) -> dict[str, ast.expr | None] | None:
    """Variable → expression of the last assignment, for statements without effect; None for others."""
    assigned: dict[str, ast.expr | None] = {}
    for statement in statements:
        match statement:
            case ast.Pass():
                continue
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="RaiseException"))):
                continue
            case ast.If() if _deciding(statement.test) and (inner := outcome(statement, levels - 1)) is not None:
                assigned.update(inner)
            case ast.Assign(targets=[target]) if (pairs := _pairs(target, statement.value)) is not None:
                assigned.update(pairs)
            case ast.AnnAssign(value=ast.expr() as value) if (pairs := _pairs(statement.target, value)) is not None:
                assigned.update(pairs)
            case _:
                return None
    return {name: value if value and not _names(value) & assigned.keys() else None for name, value in assigned.items()}


def _moved(value: ast.expr) -> ast.expr:
    """An expression without a call of `contiguous` around it."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="contiguous"), args=[inner], keywords=[]):
            return inner
    return value


def _names(value: ast.expr) -> set[str]:
    """The variables of an expression: those that its own branch assigns have another meaning outside."""
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}


def _pairs(target: ast.expr, value: ast.expr) -> dict[str, ast.expr] | None:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = {}
        for each, element in zip(target.elts, value.elts, strict=True):
            inner = _pairs(each, element)
            if inner is None:
                return None
            pairs.update(inner)
        return pairs
    return {target.id: value} if isinstance(target, ast.Name) and _deciding(value) else None


def _deciding(value: ast.expr) -> bool:
    """Whether an expression only reads names, queries and compares."""
    match value:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=ast.Name(id="CONSTANTS")):
            return True
        case ast.List() | ast.Tuple():
            return all(map(_deciding, value.elts))
        case ast.UnaryOp():
            return _deciding(value.operand)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)):
            return f"aten::{name}" in _ASKING and all(map(_deciding, value.args)) and not value.keywords
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="ops"), attr="prim"), attr=name)):
            return f"prim::{name}" in _ASKING and all(map(_deciding, value.args)) and not value.keywords
        case ast.Call(func=ast.Name(id="uninitialized" | "unchecked_cast" | "annotate"), args=[_, *rest]):
            return all(map(_deciding, rest))
    return False
