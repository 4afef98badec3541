"""A network as a stream of torch calls, to convert or to run. Every PyTorch source is read into one.

A front end evaluates its `forward` on a recorder. If the inputs are not fully known, the lift is restarted whenever a
call reveals more about the rank or the sizes of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...budget import Budget
from ...engines import TORCH_ENGINES
from ...errors import BudgetError, ControlFlowError, SourceError
from ...model import Dimension, Model, Quantization, Shape
from ...ops.quantization import is_static
from ...passes.edits import without_idle_rules
from ...passes.fold import fold_sandwiches
from ...passes.hoisting import hoist_quantizers
from ..options import EVAL, MODE, Options
from ..stored import StoredTensor
from . import shapes
from .calls import Place, Recorder, RejectedInputError, Value
from .lifter import Lifter
from .lifts import in_eval_mode
from .real_inputs import require_reals
from .values import PLAIN_CODES, InputSpec, Refine, TensorValue, narrowest

LIKELY_RANKS = (4, 2, 3, 5, 1)
"""Ranks that are tried in this order if the code reads the rank of an input before it is known."""

DEPTH_LIMIT = 64
"""The deepest nesting of a result."""

REFINEMENTS = 32
"""More restarts than any network needs: each one learns the rank or a size of an input."""

Evaluate = Callable[[Recorder, Mapping[str, TensorValue]], Any]
"""Runs `forward`: passes every call to the recorder, gets the inputs by name, and returns the result of `forward`."""


class Lifted(NamedTuple):
    """A network whose calls were lifted: the lifter, the listener, and the result of `forward`."""

    lifter: Lifter
    recorder: Recorder
    outputs: list[Value | StoredTensor]
    assumed: Mapping[str, int]
    """Ranks of inputs that were assumed, and not confirmed by the network."""
    eval_mode: bool = False

    @property
    def notes(self) -> dict[str, str]:
        """The source keys for them: docs/spec/conversions.md, "Source keys"."""
        ranks = ", ".join(f"{name}={rank}" for name, rank in self.assumed.items())
        return ({"assumed_ranks": ranks} if ranks else {}) | ({MODE: EVAL} if self.eval_mode else {})


def with_options(specs: Sequence[InputSpec], options: Options) -> list[InputSpec]:
    """The inputs, with the user's options."""
    options.check_names([spec.name for spec in specs])
    return [_stated(spec, options) for spec in specs]


def _stated(spec: InputSpec, options: Options) -> InputSpec:
    if spec.name in options.shapes:
        spec = replace(spec, shape=_sized(spec, options.shapes[spec.name]))
    if (stated := options.dtypes.get(spec.name, spec.dtype)) != spec.dtype:
        if spec.typed:
            raise SourceError(f"is {spec.dtype} in the source, not {stated[:20]}", where=f"input {spec.name}")
        if stated not in PLAIN_CODES:
            hint = f"choose one of {', '.join(PLAIN_CODES)}"
            raise SourceError(f"{stated[:20]!r} is not an element type", where=f"input {spec.name}", hint=hint)
    is_real = spec.typed and spec.dtype == "float32"
    spec = replace(spec, dtype=stated, typed=spec.typed or spec.name in options.dtypes)
    if spec.name not in options.quantization:
        return spec
    scale, zero_point, dtype = options.grid(spec.name)
    grid = Quantization.per_tensor(scale, zero_point, dtype, scale_dtype=narrowest(scale))
    return replace(spec, dtype=dtype, quantization=grid, is_real=is_real)


def _sized(spec: InputSpec, given: Shape) -> Shape:
    """The user's sizes. SourceError if the source states another number: its code may compute with that."""
    for stated, size in zip(spec.shape or (), given or (), strict=False):
        if isinstance(stated, int) and size != stated:
            what = f"has the size {stated} in the source, not {size}"
            raise SourceError(what, where=f"input {spec.name}", hint="export the network again, with dynamic sizes")
    return given


def lift(
    evaluate: Evaluate,
    engine: str,
    specs: Sequence[InputSpec],
    recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter,
    budget: Budget | None = None,
) -> Lifted:
    """Evaluate and lift; `recorder` may put a listener before the lifter.

    If an assumed rank leads to a contradiction, another is assumed; but not 1 where the code asks for a size that is
    not known: of a vector it would get the number of features for that of samples. If all fail, the error of the
    attempt that came furthest is raised; of two, the one that is not the network's own about such a rank.
    """
    errors: list[tuple[int, SourceError]] = []
    for rank in LIKELY_RANKS:
        if rank == 1 and any(isinstance(error, ControlFlowError) for _, error in errors):
            break
        known, assumed = {spec.name: spec for spec in specs}, set[str]()
        lifter = Lifter(engine, rank, budget)
        try:
            for _ in range(REFINEMENTS):
                lifter = Lifter(engine, rank, budget)
                listener = recorder(lifter)
                values = {name: lifter.builder.add_input(spec) for name, spec in known.items()}
                try:
                    outputs = list(_flat(evaluate(listener, values), lifter.builder.budget))
                    if not outputs:
                        raise SourceError("returns no tensor")
                    require_reals(lifter.builder)
                except Refine as more:
                    assumed |= {more.name} if more.assumed else set()
                    known = _refined(known, more)
                    continue
                unconfirmed = sorted(assumed - lifter.builder.confirmed)
                return Lifted(lifter, listener, outputs, dict.fromkeys(unconfirmed, rank))
            raise SourceError("the sizes of its inputs cannot be determined", hint=shapes.hint(lifter.builder))
        except SourceError as error:
            if isinstance(error, RejectedInputError) and not all(is_static(spec.shape) for spec in specs):
                error.hint = error.hint or shapes.hint(lifter.builder)
            errors.append((lifter.calls, error))
            if not assumed or isinstance(error, BudgetError):
                break
    raise max(errors, key=lambda pair: (pair[0], not isinstance(pair[1], RejectedInputError)))[1]


def _refined(specs: Mapping[str, InputSpec], more: Refine) -> dict[str, InputSpec]:
    """The inputs, with new knowledge of one."""
    known = specs[more.name]
    if known.typed and more.dtype:
        what = f"is {known.dtype}, but the network requires {more.dtype}"
        raise SourceError(what, where=f"input {more.name}", hint="state another element type, or none")
    numbers = _numbers(known, more.shape)
    specs = {name: replace(spec, shape=_numbered(spec.shape, numbers)) for name, spec in specs.items()}
    shape = _numbered(more.shape, numbers)
    shape = None if shape is None else own_names(more.name, shape, len(specs))
    dtype, is_real = more.dtype or known.dtype, known.is_real or more.is_real
    return {**specs, more.name: replace(specs[more.name], shape=shape, dtype=dtype, is_real=is_real)}


def _numbers(known: InputSpec, learnt: Shape) -> dict[str, int]:
    """Names of sizes → their numbers, as found."""
    numbers: dict[str, int] = {}
    for name, size in zip(known.shape or (), learnt or (), strict=False):
        if isinstance(name, str) and isinstance(size, int) and numbers.setdefault(name, size) != size:
            raise SourceError(f"the size {name} is {numbers[name]} and {size}", where=f"input {known.name}")
    return numbers


def _numbered(shape: Shape, numbers: Mapping[str, int]) -> Shape:
    """Sizes of one name are equal: if one is a number now, all of them are."""
    return None if shape is None else tuple(numbers.get(d, d) if isinstance(d, str) else d for d in shape)


def own_names(name: str, shape: tuple[Dimension, ...], inputs: int) -> tuple[Dimension, ...]:
    """Sizes of different inputs need not be equal, so with multiple inputs each has its own names."""
    if inputs == 1:
        return shape
    return tuple(f"{name}.{d}" if isinstance(d, str) and not d.startswith(f"{name}.") else d for d in shape)


def _flat(outputs: Any, budget: Budget, depth: int = 0) -> Iterator[Value | StoredTensor]:
    """Tensors of a nested result, in order, without numbers and texts. It may contain itself, or a list many times."""
    budget.spend()
    if depth > DEPTH_LIMIT:
        raise SourceError("returns a list that is nested too deeply", hint="the file is malicious or damaged")
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    if isinstance(outputs, Value | StoredTensor):
        yield outputs
    elif outputs is not None and not isinstance(outputs, bool | int | float | str):
        try:
            for item in outputs:
                yield from _flat(item, budget, depth + 1)
        except TypeError:
            raise SourceError("returns something that is not a tensor") from None


class _InEvalMode:
    """A recorder before another one: it passes calls on as they are after `eval()`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def call(self, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place) -> Any:
        """See `calls.Recorder`."""
        first = args[0] if args else None
        if target == "aten::add_" and isinstance(first, StoredTensor) and first.path.endswith("num_batches_tracked"):
            return first  # a batch norm counts batches in training mode, which a trace keeps
        return self.recorder.call(target, *in_eval_mode(target, args, kwargs), place)


class Network(NamedTuple):
    """`run` evaluates `forward` on a recorder, any number of times; `source` are the source keys of the file.

    `is_decomposed`: integers are plain tensors in the network, and quantize and dequantize calls define their
    quantization, as in PT2E; such pairs are folded.
    """

    inputs: Sequence[InputSpec]
    run: Evaluate
    budget: Budget
    source: Mapping[str, str]
    is_decomposed: bool = False

    @property
    def engine(self) -> str:
        """The default engine, whose rounding the nodes state."""
        return "pt2e" if self.is_decomposed else TORCH_ENGINES[0]

    def lift(self, options: Options, recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter) -> Lifted:
        """The calls lifted; `recorder` may put a listener before the lifter."""
        specs = with_options(self.inputs, options)
        run = self._run_in_eval_mode if options.eval_mode else self.run
        lifted = lift(run, options.engine or self.engine, specs, recorder, self.budget)
        return lifted._replace(eval_mode=options.eval_mode)

    def _run_in_eval_mode(self, recorder: Recorder, values: Mapping[str, TensorValue]) -> Any:
        return self.run(_InEvalMode(recorder), values)

    def finished(self, lifted: Lifted) -> Model:
        """The Model of what was lifted."""
        source = {**self.source, **lifted.notes}
        with lifted.lifter.builder.memory.spent():
            model = lifted.lifter.finish(lifted.outputs, source=source)
            graph = model.graph
            if self.is_decomposed:
                graph = fold_sandwiches(hoist_quantizers(graph), model.engine)
                graph = replace(graph, tensors=dict(sorted(graph.tensors.items())))
        return replace(model, graph=without_idle_rules(graph))

    def model(self, options: Options) -> Model:
        return self.finished(self.lift(options))
