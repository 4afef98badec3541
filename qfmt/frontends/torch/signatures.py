"""Check the arguments of a call against the annotations of the function that lifts it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ...errors import SourceError

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (int,),
    "str": (str,),
    "Sequence": (list, tuple),
    "None": (type(None),),
}
"""The allowed arguments for each annotation; the function itself checks parameters with any other."""


def check_arguments(target: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """SourceError unless `function` accepts these arguments after the lifter itself."""
    signature, types = _signature(function)
    try:
        bound = signature.bind(None, *args, **kwargs).arguments
    except TypeError:
        raise SourceError(f"{target} is called with arguments that are not supported") from None
    for name, allowed in types.items():
        if name in bound and not isinstance(bound[name], allowed):
            raise SourceError(f"{target} is called with a {type(bound[name]).__name__} for {name}")


@cache
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, tuple[type, ...]]]:
    """The signature, and the allowed arguments of each parameter with a known annotation."""
    signature = inspect.signature(function)
    types = {}
    for name, parameter in signature.parameters.items():
        words = [word.strip().partition("[")[0] for word in str(parameter.annotation).split("|")]
        if all(word in _TYPES for word in words) and parameter.kind is not parameter.VAR_POSITIONAL:
            types[name] = tuple(type_ for word in words for type_ in _TYPES[word])
    return signature, types
