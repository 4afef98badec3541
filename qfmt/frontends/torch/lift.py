"""The one lifter: a stream of torch calls becomes the nodes and tensors of a Model.

Every torch frontend (TorchScript archives, modules in memory, FX graphs, exported programs) replays its
source as calls `(target, arguments, place)`. A call is looked up in this order: the functions registered
with `@lifts` (the modules beside this one), then the spellings of the operators. While lifting, every
tensor has a number; names are given at the end, when it is known which module made which calls.

What the registered functions call on the lifter stands in its bases: `emitting` adds nodes and tensors, `arguments`
reads what a call was given, `shaping` knows and computes shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...budget import Budget
from ...errors import QfmtError, SourceError, UnsupportedOperatorsError
from ...model import Attribute, Graph, Model
from ...ops.registry import ByName
from ...ops.spelling import spellings
from ...passes.edits import without_unread
from .calls import MEANINGLESS, Place, Value, meaningless
from .names import name_tensors, renamed
from .shaping import Shaper
from .signatures import check_arguments
from .values import TensorValue, Unsupported
from .views import VIEWS, check_unchanged, share

lifts: ByName[Callable[..., Any]] = ByName()
"""What torch calls mean: torch target → function (lifter, *arguments) → result; parameters carry torch's names."""


class Lifter(Shaper):
    """Gives calls their meaning; implements `calls.Recorder`. `names` maps keys of tensors to names, once finished."""

    def __init__(self, engine: str, assumed_rank: int = 4, budget: Budget | None = None) -> None:
        super().__init__(engine, assumed_rank, budget or Budget(None))
        self.calls = 0
        self.names: dict[str, str] = {}
        self.dynamic: dict[str, Value] = {}
        """Keys of tensors that were quantized on a grid of the moment → that grid: see `chosen`."""
        self._unsupported: dict[str, list[str]] = {}

    def call(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], place: Place) -> Any:
        """One torch call, e.g. ("quantized::conv2d", (x, packed, 0.1, 3), {}). See `calls.Recorder`."""
        self.place, self.target = place, target
        self.calls += 1
        if _holds_unsupported(args) or _holds_unsupported(kwargs.values()):
            return self._after_unsupported(target, args)
        try:
            check_unchanged(target, (*args, *kwargs.values()))
            return self._dispatch(target, args, kwargs)
        except SourceError as error:
            if not error.where:
                error.at(_where(place))
            raise
        except QfmtError as error:
            raise SourceError(f"{target}: {error.what}", where=_where(place), hint=error.hint) from None
        except MEANINGLESS as error:
            raise meaningless(target, error).at(_where(place)) from None

    def finish(self, outputs: Sequence[Any], **description: Any) -> Model:
        """The model: names given, what no output needs dropped. Raises UnsupportedOperatorsError, all at once."""
        if self._unsupported:
            hint = "`qfmt ops` lists what is supported"
            raise UnsupportedOperatorsError(self._unsupported, hint=hint)
        check_unchanged("the result", outputs)
        keys = tuple(self.tensor(value).key for value in outputs)
        nodes = without_unread(self.nodes, keys)
        used = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*keys, *self.inputs}
        names = self.names = name_tensors(nodes, used, self._wanted)
        graph = Graph(
            inputs=tuple(names[key] for key in self.inputs),
            outputs=tuple(names[key] for key in keys),
            nodes=[renamed(node, names) for node in nodes],
            tensors={
                names[key]: replace(self.tensors[key], name=names[key])
                for key in sorted(used - {""}, key=names.__getitem__)
            },
        )
        return Model(graph, engine=self.engine, **description)

    def within(self, module: str) -> None:
        """The present call is that of `module`, though the source, flattened, does not say so."""
        if module.startswith(self.place.scope):
            self.place = self.place._replace(scope=module)

    def unsupported(self, target: str) -> Unsupported:
        """Note a call without a meaning; `finish` reports all of them."""
        self._unsupported.setdefault(target, []).append(_where(self.place))
        return Unsupported()

    def unused_result(self) -> Unsupported:
        """A second result that networks do not read; if one does, the call is reported as unsupported."""
        return Unsupported()

    def _after_unsupported(self, target: str, args: Sequence[Any]) -> Any:
        """A call on the result of an unsupported one: it matters only if it is unsupported, too."""
        if target == "prim::ListUnpack":
            return [Unsupported()] * args[1]
        if target.startswith(("prim::", "aten::__")) or is_known(target):
            return Unsupported()
        return self.unsupported(target)

    def _dispatch(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for name, relu in _variants(target):
            self.fused_relu = relu
            result = self._one(name, args, kwargs)
            if result is not NotImplemented:
                share(name, args, result)
                if _is_in_place(target) and isinstance(args[0], TensorValue) and isinstance(result, TensorValue):
                    return _changed(args[0], result, target)
                return result
        return self.unsupported(target)

    def _one(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in lifts:
            function = lifts[name]
            check_arguments(name, function, args, kwargs)
            result = function(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        for spelling in spellings().get(name, ()):
            bound = spelling.bind(name, args, kwargs)
            if bound is not None:
                return self._spelled(spelling.operator, bound)
        return NotImplemented

    def _spelled(self, operator: Any, bound: dict[str, Any]) -> Any:
        inputs = [bound.get(parameter.name) for parameter in operator.inputs]
        if operator.inputs[-1].variadic:
            inputs = bound[f"{operator.inputs[-1].name}*"]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if not inputs:
            raise SourceError("is called without a tensor")
        attributes = {
            name: _attribute(bound[name], spec.kind) for name, spec in operator.attributes.items() if name in bound
        }
        first = self.tensor(inputs[0])
        quantization = None
        if "$scale" in bound:
            quantization = self.quantization(bound["$scale"], bound["$zero_point"], first.dtype)
        elif first.quantization is not None and operator.dtype == "same":
            quantization = self.grid(first)
        return self.emit(operator.name, inputs, attributes, quantization=quantization)


def _attribute(value: Any, kind: str) -> Attribute:
    """A torch argument as an attribute of the kind that the operator's table says."""
    if len(kind) == 2:
        items = value if isinstance(value, list | tuple) else (value,)
        return tuple(_attribute(item, kind[0]) for item in items)  # type: ignore[return-value]
    if isinstance(value, Value) or not isinstance(value, bool | int | float | str):
        raise SourceError("takes a parameter that is known only at run time")
    return float(value) if kind == "f" else str(value) if kind == "s" else int(value)


def _changed(value: TensorValue, result: TensorValue, target: str) -> TensorValue:
    """What an in-place operator returns: the handle that it was given. Other views of it must not be read any more."""
    if target.removesuffix("_") not in VIEWS and result.key != value.key:
        value.memory.changed_by = target
    value.become(result)
    return value


def is_known(target: str) -> bool:
    """Whether a call has a meaning here, in some form of its arguments at least."""
    return any(name in lifts or name in spellings() for name, _ in _variants(target))


def _variants(target: str) -> list[tuple[str, bool]]:
    """The names under which a call may be known: itself, without the in-place `_`, without a fused ReLU."""
    name = target.removesuffix("_") if _is_in_place(target) else target
    variants = [(target, False)]
    if name != target:
        variants.append((name, False))
    if name.endswith("_relu") and name.startswith("quantized::"):
        variants.append((name.removesuffix("_relu"), True))
    return variants


def _is_in_place(target: str) -> bool:
    return target.endswith("_") and not target.endswith("__")


def _holds_unsupported(values: Any) -> bool:
    return any(
        isinstance(value, Unsupported) or (isinstance(value, list | tuple) and _holds_unsupported(value))
        for value in values
    )


def _where(place: Place) -> str:
    where = f"{place.file}:{place.line}" if place.file else ""
    return f"module {place.scope} ({where})" if place.scope and where else place.scope or where
