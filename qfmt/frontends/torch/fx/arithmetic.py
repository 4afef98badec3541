"""Arithmetic in the code of a torch.fx GraphModule: numbers that are known are computed, the rest is recorded."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import SourceError
from ..sizes import Unknown
from .functional import Call

NUMBER_LIMIT = 1 << 63
"""Numbers of networks are smaller; those of an attack grow with each line."""

OPERATORS: dict[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    ast.Add: ("aten::add", operator.add),
    ast.Sub: ("aten::sub", operator.sub),
    ast.Mult: ("aten::mul", operator.mul),
    ast.Div: ("aten::div", operator.truediv),
    ast.FloorDiv: ("aten::floor_divide", operator.floordiv),
    ast.Mod: ("aten::remainder", operator.mod),
    ast.Pow: ("aten::pow", operator.pow),
    ast.MatMult: ("aten::matmul", operator.matmul),
    ast.Eq: ("aten::eq", operator.eq),
    ast.NotEq: ("aten::ne", operator.ne),
    ast.Lt: ("aten::lt", operator.lt),
    ast.LtE: ("aten::le", operator.le),
    ast.Gt: ("aten::gt", operator.gt),
    ast.GtE: ("aten::ge", operator.ge),
}


def computed(call: Call, target: str, function: Callable[..., Any], *args: Any) -> Any:
    """The result of an operator of Python's, or of the call that it is where something is not known."""
    if function is operator.eq and all(isinstance(arg, list | tuple) for arg in args):
        return _equal(call, *args)
    if not all(isinstance(arg, int | float) for arg in args):
        return call(target, *args)
    try:
        result = None if function is operator.pow else function(*args)
    except (ArithmeticError, TypeError):
        result = None
    if result is None or abs(result) >= NUMBER_LIMIT:
        raise SourceError("computes a number that is infinite, NaN or too large")
    return result


def _equal(call: Call, first: Sequence[Any], second: Sequence[Any]) -> Any:
    """Whether two shapes are equal: if they are as long, and each of their sizes is."""
    if len(first) != len(second):
        return False
    if any(isinstance(each, list | tuple) for each in (*first, *second)):
        raise SourceError("compares lists within lists")
    found = [computed(call, "aten::eq", operator.eq, *pair) for pair in zip(first, second, strict=True)]
    return False if False in found else True if all(each is True for each in found) else Unknown()
