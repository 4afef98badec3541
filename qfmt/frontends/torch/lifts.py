"""The table of torch's calls and their lifts, which the modules of `operators` fill."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from ...errors import SourceError
from ...ops.spelling import Parameter, bind, parsed, spellings
from .values import out_of_place


class Meaning(NamedTuple):
    """A function (builder, *variant, arguments) → result. Arguments are passed separately, or in one object with the
    names in `parameters`. Functions of FX have a recorder of calls instead of the builder."""

    function: Callable[..., Any]
    variant: tuple[Any, ...]
    parameters: tuple[Parameter, ...]

    def __call__(self, lift: Any, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.parameters:
            bound = bind(self.parameters, target, args, kwargs)
            return NotImplemented if bound is None else self.function(lift, *self.variant, SimpleNamespace(**bound))
        given = bound_arguments(lift, target, self.function, (*self.variant, *args), kwargs)
        return self.function(*given.args, **given.kwargs)


LIFTS: dict[str, Meaning] = {}
"""By torch target."""


def parameter_names(target: str) -> tuple[str, ...]:
    """The names of the arguments of a call in their order, as far as they are known."""
    known = {target, out_of_place(target)}
    return () if known.isdisjoint(LIFTS) and known.isdisjoint(spellings()) else _parameter_names(target)


@cache
def _parameter_names(target: str) -> tuple[str, ...]:
    plain = out_of_place(target)
    meaning = LIFTS.get(target) or LIFTS.get(plain)
    spelled = spellings().get(target) or spellings().get(plain)
    if meaning is not None and not meaning.parameters:
        given = list(inspect.signature(meaning.function).parameters.values())[1 + len(meaning.variant) :]
        if given and given[0].kind is given[0].POSITIONAL_OR_KEYWORD:
            return tuple(each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD)
    parameters = meaning.parameters if meaning is not None and meaning.parameters else spelled and spelled[0].parameters
    return tuple(each.torch_name for each in parameters or () if not each.by_keyword)


_IN_EVAL_MODE = {"train": False, "dropout_p": 0.0}
_WITH_STATISTICS = {"training": False, "use_input_stats": False}


def in_eval_mode(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as PyTorch's modules give them after `eval()`: nothing is dropped, and a norm that has
    running statistics computes with them."""
    meaning = LIFTS.get(out_of_place(target))
    parameters = () if meaning is None else meaning.parameters
    given = dict(zip((each.torch_name for each in parameters), args, strict=False)) | dict(kwargs)
    has_statistics = any(
        each.target == "running_mean" and given.get(each.torch_name) is not None for each in parameters
    )
    values = _IN_EVAL_MODE | (_WITH_STATISTICS if has_statistics else {})
    for at, parameter in enumerate(parameters):
        if parameter.target in values and parameter.torch_name in kwargs:
            kwargs = {**kwargs, parameter.torch_name: values[parameter.target]}
        elif parameter.target in values and at < len(args):
            args = (*args[:at], values[parameter.target], *args[at + 1 :])
    return tuple(args), dict(kwargs)


Function = TypeVar("Function", bound=Callable[..., Any])


def registering(table: dict[str, Meaning]) -> Callable[..., Callable[[Function], Function]]:
    """A decorator that registers a function as the meaning of calls, as "aten::relu" if its parameters carry torch's
    names, or with these, as "aten::celu(self, alpha=1.0)", if it takes one object of arguments.

    If one function has multiple calls, a mapping has the first arguments that distinguish them.
    """

    def names(*targets: str | Mapping[str, Any]) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            for each in targets:
                known = {each: ()} if isinstance(each, str) else {text: (variant,) for text, variant in each.items()}
                for text, variant in known.items():
                    name, parameters = parsed(text)
                    table[name] = Meaning(function, variant, parameters)
            return function

        return register

    return names


lifts = registering(LIFTS)


def by_rank(*names: str) -> dict[str, int]:
    """Calls of one to three spatial dimensions: "aten::conv{}d" → {"aten::conv1d": 1, …}."""
    return {name.format(rank): rank for name in names for rank in (1, 2, 3)}


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (int,),
    "str": (str,),
    "Sequence": (list, tuple),
    "None": (type(None),),
}
"""The allowed arguments for each annotation; the function itself checks parameters with any other."""


def bound_arguments(
    lift: Any, target: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of `function`, those annotated as TensorValue as tensors of the graph; SourceError for others
    than it accepts."""
    signature, types, tensors = _signature(function)
    try:
        bound = signature.bind(lift, *args, **kwargs)
    except TypeError:
        raise SourceError(f"{target} is called with arguments that are not supported") from None
    given = bound.arguments
    for name, allowed in types.items():
        if name in given and not isinstance(given[name], allowed):
            raise SourceError(f"{target} is called with a {type(given[name]).__name__} for {name}")
    given.update({name: lift.tensor(given[name]) for name in tensors})
    return bound


@cache
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, tuple[type, ...]], list[str]]:
    """The signature, the allowed arguments of each parameter with a known annotation, and those that are tensors."""
    signature = inspect.signature(function)
    types, tensors = {}, []
    for name, parameter in signature.parameters.items():
        words = [word.strip().partition("[")[0] for word in str(parameter.annotation).split("|")]
        if all(word in _TYPES for word in words) and parameter.kind is not parameter.VAR_POSITIONAL:
            types[name] = tuple(type_ for word in words for type_ in _TYPES[word])
        elif words == ["TensorValue"]:
            tensors.append(name)
    return signature, types, tensors
