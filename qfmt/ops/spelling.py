"""Parse the spellings of operators (`Operator.torch`): which torch call is which operator.

    "aten::leaky_relu(self:X, negative_slope:alpha=0.01)"

A parameter is `torch_name:target`, or one name where both are equal; `=value` if the call may omit it;
`name==value` if the call is this operator only with that value (or without it). A target is an input
(`inputs*`: one more of them), an attribute, `$scale` or `$zero_point` (of the output), or `_` (without
effect on the result). Parameters after a `*` are given by keyword only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ..errors import SourceError
from ..threads import literal
from .registry import OPERATORS, Operator

MISSING = object()


class Parameter(NamedTuple):
    torch_name: str
    target: str
    default: Any
    required: Any
    by_keyword: bool = False


class Spelling(NamedTuple):
    operator: Operator
    parameters: tuple[Parameter, ...]

    def bind(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        return bind(self.parameters, target, args, kwargs)


def bind(
    parameters: Sequence[Parameter], target: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Arguments by their target in the operator; None if a `==` shows that this is another operator."""
    names = [parameter.torch_name for parameter in parameters]
    places = [parameter.torch_name for parameter in parameters if not parameter.by_keyword]
    if len(args) > len(places) or not kwargs.keys() <= set(names):
        raise SourceError(f"{target} is called with arguments that are not supported")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    bound: dict[str, Any] = {}
    for parameter in parameters:
        value = given.get(parameter.torch_name, parameter.default)
        if parameter.required is not MISSING:
            if value is not MISSING and value != parameter.required:
                return None
        elif value is MISSING:
            raise SourceError(f"{target} is called without {parameter.torch_name}")
        else:
            bound.setdefault(parameter.target, []).append(value)
    return {name: values if name.endswith("*") else values[0] for name, values in bound.items() if name != "_"}


@cache
def spellings() -> dict[str, list[Spelling]]:
    """Every spelling by its torch name, e.g. "aten::relu"."""
    table: dict[str, list[Spelling]] = {}
    for operator in OPERATORS.values():
        for text in operator.torch:
            name, parameters = parsed(text)
            table.setdefault(name, []).append(Spelling(operator, parameters))
    return table


def parsed(text: str) -> tuple[str, tuple[Parameter, ...]]:
    """The name of a call, and its parameters."""
    name, _, parameters = text.removesuffix(")").partition("(")
    words = _split(parameters)
    places = words.index("*") if "*" in words else len(words)
    return name, (
        *(_parameter(word) for word in words[:places]),
        *(_parameter(word)._replace(by_keyword=True) for word in words[places + 1 :]),
    )


def _split(parameters: str) -> list[str]:
    """At commas outside brackets."""
    words, depth = [""], 0
    for character in parameters:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            words.append("")
        else:
            words[-1] += character
    return [word.strip() for word in words if word.strip()]


def _parameter(word: str) -> Parameter:
    if "==" in word:
        name, _, value = word.partition("==")
        return Parameter(name, "_", MISSING, literal(value.partition("=")[0]))
    names, equals, value = word.partition("=")
    torch_name, _, target = names.partition(":")
    default = literal(value) if equals else MISSING
    return Parameter(torch_name, target or torch_name, default, MISSING)
