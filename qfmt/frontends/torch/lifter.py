"""The one lifter: a stream of torch calls becomes the nodes and tensors of a Model.

Every torch frontend (TorchScript archives, modules in memory, FX graphs, exported programs) replays its
source as calls `(target, arguments, place)`. A call is looked up in this order: the functions registered
with `@lifts` (the modules of `operators`), then the spellings of the operators. While lifting, every
tensor has a number; names are given at the end, when it is known which module made which calls.

A registered function gets the `building.Builder`, which adds nodes and tensors. `arguments` interprets the arguments
of a call, and `shapes` knows shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...budget import Budget
from ...errors import BudgetError, QfmtError, SourceError, UnsupportedOperatorsError, some
from ...model import Attribute, Graph, Model, Node
from ...ops import OPERATORS, Operator
from ...ops.spelling import spellings
from ...passes.constants import unused
from ...passes.edits import without_unread
from ..stored import StoredTensor
from . import arguments, operators, shapes  # noqa: F401  (each module of `operators` registers what calls mean)
from .building import Builder
from .calls import MEANINGLESS, Place, Value, keeps_state, meaningless
from .lifts import LIFTS
from .values import (
    DECOMPOSE,
    VIEWS,
    Quotient,
    Size,
    TensorValue,
    UnknownNumber,
    Unsupported,
    check_unchanged,
    is_in_place,
    out_of_place,
    share,
)

NOT_CONVERTED = "the network still observes ranges: call convert, convert_fx or convert_pt2e, and save what it returns"


class Lifter:
    """Translates calls into nodes; implements `calls.Recorder`.

    `builder` has the result; `names` maps keys of its tensors to names, once finished; `calls` are counted. `rewritten`
    are the tensors that the last call changed through a slice, and their keys before.
    """

    def __init__(self, engine: str, assumed_rank: int = 4, budget: Budget | None = None) -> None:
        self.builder = Builder(engine, assumed_rank, budget or Budget(None))
        self.calls = 0
        self.names: dict[str, str] = {}
        self.rewritten: list[tuple[TensorValue, str]] = []

    def call(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], place: Place) -> Any:
        """One torch call, e.g. ("quantized::conv2d", (x, packed, 0.1, 3), {}). See `calls.Recorder`."""
        self.builder.place, self.builder.target = place, target
        self.calls += 1
        self.rewritten.clear()
        try:
            if self._holds_unsupported((*args, *kwargs.values())):
                return self._after_unsupported(target, args)
            check_unchanged(target, (*args, *kwargs.values()))
            with np.errstate(all="ignore"):  # a number beyond the range of a type becomes infinite, as in torch
                return self._dispatch(target, args, kwargs)
        except SourceError as error:
            if not error.hint and (isinstance(error, UnknownNumber) or _reads_size((*args, *kwargs.values()))):
                error.hint = shapes.hint(self.builder)
            if not error.where:
                error.at(place.where)
            raise
        except QfmtError as error:
            raise SourceError(f"{target}: {error.what}", where=place.where, hint=error.hint) from None
        except MEANINGLESS as error:
            if _reads_size((*args, *kwargs.values())):
                what = f"{target} has a number argument that is known only at run time"
                raise SourceError(what, where=place.where, hint=shapes.hint(self.builder)) from None
            raise meaningless(target, error).at(place.where) from None
        except RecursionError:
            what = f"{target} gets lists that are nested too deeply"
            raise SourceError(what, where=place.where, hint="the file is malicious or damaged") from None

    def finish(self, outputs: Sequence[Any], **description: Any) -> Model:
        """The model, with names and without unused nodes. Raises one UnsupportedOperatorsError for all."""
        lift = self.builder
        if lift.unsupported_calls:
            observes = any("moving_avg_obs" in name for name in lift.unsupported_calls)
            hint = NOT_CONVERTED if observes else "`qfmt ops` lists what is supported"
            if known := [name for name in lift.unsupported_calls if is_known(name)]:
                hint += f"; with other arguments: {some(known)}"
            raise UnsupportedOperatorsError(lift.unsupported_calls, hint=hint)
        check_unchanged("the result", outputs)
        keys = self._distinct(outputs)
        nodes = without_unread(lift.nodes, keys)
        used = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*keys, *lift.inputs}
        read = {id(stored.storage) for key, stored in lift.stored_tensors.items() if key in used}
        for name, storage in lift.changed_state:  # what constants are computed from is read, too
            if id(storage) in read or storage.is_read:
                raise keeps_state(f"the tensor {name}" if name else "a tensor of the module")
        names = self.names = name_tensors(nodes, used, lift.wanted)
        graph = Graph(
            inputs=tuple(names[key] for key in lift.inputs),
            outputs=tuple(names[key] for key in keys),
            nodes=[renamed(node, names) for node in nodes],
            tensors={
                names[key]: replace(lift.tensors[key], name=names[key])
                for key in sorted(used - {""}, key=names.__getitem__)
            },
        )
        return Model(graph, engine=lift.engine, **description)

    def _distinct(self, outputs: Sequence[Any]) -> tuple[str, ...]:
        """The keys of the outputs; one that is listed twice is copied, with a new name."""
        lift, keys = self.builder, dict[str, None]()
        lift.place, lift.target = Place(), "output"
        for value in outputs:
            key = lift.tensor(value).key
            if key in keys:
                key = lift.emit("Identity", [value], fold=False).key
            keys[key] = None
        return tuple(keys)

    def _holds_unsupported(self, values: Sequence[Any]) -> bool:
        """Whether a result of an unsupported call is among the values, which may contain the same list many
        times."""
        self.builder.budget.spend(len(values))
        return any(
            isinstance(value, Unsupported) or (isinstance(value, list | tuple) and self._holds_unsupported(value))
            for value in values
        )

    def _after_unsupported(self, target: str, args: Sequence[Any]) -> Any:
        """A call on the result of an unsupported one: it is recorded only if it is unsupported, too."""
        if target == "prim::ListUnpack":
            count = max(args[1], 0)
            self.builder.budget.hold(count)
            return [Unsupported()] * count
        if target.startswith(("prim::", "aten::__")) or is_known(target):
            return Unsupported()
        return self.builder.unsupported(target)

    def _dispatch(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if kwargs.get("out") is not None:
            raise SourceError(f"{target} writes its result into another tensor", hint=DECOMPOSE)
        for name, relu in _variants(target):
            self.builder.fused_relu = relu
            result = self._one(name, args, kwargs)
            if result is not NotImplemented:
                return self._remembered(target, name, args, kwargs, result)
        return self.builder.unsupported(target)

    def _remembered(self, target: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """The result of a call, after what it says of memory: it may be a view of its first argument, or change it."""
        in_place = is_in_place(target)
        if not in_place:
            result = self._another(result, args)
        if not args or not (in_place or name in VIEWS):
            return result
        first = self.builder.stored(args[0]) if isinstance(args[0], StoredTensor) else args[0]
        if not isinstance(first, TensorValue):
            return result
        if not in_place:
            share(name, first, result, args[1:], kwargs)
        if not in_place or not isinstance(result, TensorValue):
            return result
        if first.quantization is not None and result.quantization is None:
            what = f"{target} writes real numbers into a quantized tensor"
            raise SourceError(what, hint="quantize them with torch.quantize_per_tensor")
        if result.dtype != first.dtype and result.quantization is None:
            result = self.builder.emit("Cast", [result], {"to": first.dtype})
        return self._changed(first, result, target)

    def _changed(self, value: TensorValue, result: TensorValue, target: str) -> TensorValue:
        """The result of an in-place operator: the given handle. What it is a slice of changes, too. Other views of its
        memory must not be read any more.

        SourceError if the tensor is one of the module's own, which the next run would find changed.
        """
        memory, new = value.memory, self.builder.alias(result)
        if result.key == value.key:
            return value
        if memory.kept:
            raise keeps_state("a tensor of the module")
        if out_of_place(target) not in VIEWS:
            wholes = [*self._rewritten(value, new)]
            memory.change(target)
            for whole, rewritten in wholes:
                rewritten.memory, new.memory.shared = new.memory, True
                self.rewritten.append((whole, whole.key))
                whole.become(rewritten)
        elif memory.shared:
            raise SourceError(f"{target} changes the shape of a tensor that has other views", hint=DECOMPOSE)
        else:
            new.memory = memory
        value.become(new)
        return value

    def _rewritten(self, part: TensorValue, new: TensorValue) -> Iterator[tuple[TensorValue, TensorValue]]:
        """The tensors of which a changed one is a slice, and what becomes of them, as far as that can be computed."""
        while part.slice_of is not None and not part.memory.overlaps:
            self.builder.budget.node()
            whole, scatter, args, kwargs = part.slice_of
            if whole.memory is not part.memory or whole.quantization is not None:
                return
            try:
                result = self._one(scatter, (whole, new, *args), kwargs)
            except BudgetError:
                raise
            except SourceError:
                return
            if result is NotImplemented:
                return
            part, new = whole, self.builder.alias(result)
            new.channels_last = whole.channels_last
            yield whole, new

    def _another(self, result: Any, args: Sequence[Any]) -> Any:
        """A result with another handle than the arguments have: in-place operators change handles."""
        if isinstance(result, list):
            return [self._another(each, args) for each in result]
        is_given = isinstance(result, TensorValue) and any(result is each for each in args)
        return self.builder.alias(result) if is_given else result

    def _one(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in LIFTS:
            result = LIFTS[name](self.builder, name, args, kwargs)
            if result is not NotImplemented:
                return result
        for spelling in spellings().get(name, ()):
            bound = spelling.bind(name, args, kwargs)
            if bound is not None:
                return _spelled(self.builder, spelling.operator, bound)
        return NotImplemented


def _spelled(lift: Builder, operator: Operator, bound: dict[str, Any]) -> Any:
    """A call that equals the operator, with other names of arguments."""
    inputs = [bound.get(parameter.name) for parameter in operator.inputs]
    if operator.inputs[-1].variadic:
        inputs = [*arguments.alike(lift, [lift.tensor(value) for value in bound[f"{operator.inputs[-1].name}*"]])]
    while inputs and inputs[-1] is None:
        inputs.pop()
    if not inputs:
        raise SourceError("is called without a tensor")
    attributes = {
        name: _attribute(bound[name], spec.kind) for name, spec in operator.attributes.items() if name in bound
    }
    first = lift.tensor(inputs[0])
    quantization = None
    if "$scale" in bound:
        quantization = arguments.quantization(lift, bound["$scale"], bound["$zero_point"], first.dtype)
    elif first.quantization is not None and operator.dtype == "same":
        quantization = arguments.grid(first)
    return lift.emit(operator.name, inputs, attributes, quantization=quantization)


def _attribute(value: Any, kind: str) -> Attribute:
    """A torch argument as an attribute of the kind in the operator's table."""
    if len(kind) == 2:
        items = value if isinstance(value, list | tuple) else (value,)
        return tuple(_attribute(item, kind[0]) for item in items)  # type: ignore[return-value]
    if isinstance(value, Value):
        raise SourceError("has a parameter that is known only at run time")
    match kind, value:
        case "s", str():
            return value
        case "i", int():
            return int(value)
        case "f", int() | float():
            return float(value)
    raise SourceError(f"gets a {type(value).__name__} where another type is required")


def _reads_size(values: Sequence[Any]) -> bool:
    """Whether a size that is not known is among the arguments of a call, or in a list among them."""
    lists = (value if isinstance(value, list | tuple) else (value,) for value in values)
    return any(isinstance(each, Size | Quotient) for items in lists for each in items)


def is_known(target: str) -> bool:
    """Whether a call is supported, at least for some forms of its arguments."""
    return any(name in LIFTS or name in spellings() for name, _ in _variants(target))


def _variants(target: str) -> list[tuple[str, bool]]:
    """The names under which a call may be known: itself, without the in-place `_`, without a fused ReLU."""
    name = out_of_place(target)
    variants = [(target, False)]
    if name != target:
        variants.append((name, False))
    if name.endswith("_relu") and name.startswith("quantized::"):
        variants.append((name.removesuffix("_relu"), True))
    return variants


def name_tensors(nodes: Sequence[Node], used: set[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Key → name. A tensor is named after the module that computed it, if the module made only one call; else
    after module and call. Constants and inputs keep their names in the source, and the real numbers of an input are
    named after it (`wanted`)."""
    calls = Counter(node.scope for node in nodes)
    names: dict[str, str] = {"": ""}
    taken: set[str] = set()
    for key in sorted(used - {""}, key=lambda key: int(key[1:])):
        if wanted.get(key):
            names[key] = _unique(wanted[key], taken)
    for node in nodes:
        _name_outputs(node, names, taken, alone=bool(node.scope) and calls[node.scope] == 1)
    for key in sorted(used - names.keys()):
        names[key] = _unique("constant", taken)
    return names


def _name_outputs(node: Node, names: dict[str, str], taken: set[str], *, alone: bool) -> None:
    call = node.source_operator.rpartition("::")[2]
    base = node.scope if alone else f"{node.scope}.{call}".lstrip(".")
    outputs = OPERATORS[node.operator].outputs
    for position, key in enumerate(node.outputs):
        part = f".{outputs[position].name.lower()}" if position and not outputs[-1].variadic else ""
        if key not in names:
            names[key] = _unique(base + part, taken)
    roles = OPERATORS[node.operator].inputs
    for position, key in enumerate(node.inputs):
        if key not in names:
            role = roles[min(position, len(roles) - 1)].name.lower()
            names[key] = _unique(f"{names[node.outputs[0]]}.{role}", taken)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with the names of its tensors instead of their keys."""
    inputs = tuple(names[key] for key in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names[key] for key in node.outputs))


def _unique(base: str, taken: set[str]) -> str:
    name = unused(base, taken)
    taken.add(name)
    return name
