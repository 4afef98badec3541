"""A TorchScript archive as a Model: its `forward` evaluated symbolically, its calls lifted."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import SourceError
from ...model import DTYPES, Model, Quantization, Shape
from ..stored import StoredTensor
from ..torch import InputSpec, Lifter, Refine
from ..torch.calls import Recorder, Value
from ..torch.values import RANK_NAMES, narrowest
from .archive import Archive, Argument
from .evaluator import evaluate

LIKELY_RANKS = (4, 2, 3, 5, 1)
"""Tried in this order where the code asks for the rank of an input before anything tells it."""

REFINEMENTS = 32
"""More restarts than any network needs: each one learns the rank or a size of an input."""


def convert_archive(
    path: Path,
    engine: str,
    input_shapes: Mapping[str, Shape],
    input_quantization: Mapping[str, tuple[float, int, str]],
) -> Model:
    """The Model of an archive; see `qfmt.convert`."""
    archive = Archive(path)
    lifted = lift_archive(archive, engine, input_shapes, input_quantization)
    return lifted.lifter.finish(lifted.outputs, source=_source(path, archive), producer=_producer())


class Lifted(NamedTuple):
    """An archive whose calls were lifted: by whom, who was told of the calls, and what `forward` returned."""

    lifter: Lifter
    recorder: Recorder
    outputs: list[Value | StoredTensor]


def lift_archive(
    archive: Archive,
    engine: str,
    input_shapes: Mapping[str, Shape],
    input_quantization: Mapping[str, tuple[float, int, str]],
    recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter,
) -> Lifted:
    """Evaluate `forward` and lift its calls; `recorder` may put somebody before the lifter who hears them, too."""
    arguments = list(_tensor_arguments(archive))
    names = [argument.name for argument in arguments]
    for given in (*input_shapes, *input_quantization):
        if given not in names:
            raise SourceError(f"the network has no input {given!r}", hint=f"its inputs are {', '.join(names)}")
    known: dict[str, Shape] = {**_traced_shapes(archive), **input_shapes}
    quantized = {name: _quantization(name, *given) for name, given in input_quantization.items()}
    specs = [InputSpec(name, known.get(name), *quantized.get(name, ("float32", None))) for name in names]
    return _lift_by_likely_rank(archive, engine, specs, recorder)


def _lift_by_likely_rank(
    archive: Archive, engine: str, specs: list[InputSpec], recorder: Callable[[Lifter], Recorder]
) -> Lifted:
    """Lift; where a rank had to be assumed and that led to a contradiction, assume another.

    If none leads through, the error of the attempt that came furthest is the telling one.
    """
    errors: list[tuple[int, SourceError]] = []
    for rank in LIKELY_RANKS:
        attempt = _Attempt(archive, engine, specs, rank, recorder)
        try:
            return attempt.lift()
        except SourceError as error:
            errors.append((attempt.lifter.calls, error))
            if not attempt.assumed:
                break
    raise max(errors, key=lambda pair: pair[0])[1]


class _Attempt:
    """Lifting with one assumption about inputs of unknown rank."""

    def __init__(
        self,
        archive: Archive,
        engine: str,
        specs: list[InputSpec],
        rank: int,
        recorder: Callable[[Lifter], Recorder],
    ) -> None:
        self.archive, self.engine, self.specs, self.rank, self.recorder = archive, engine, specs, rank, recorder
        self.lifter = Lifter(engine, rank)
        self.assumed = False

    def lift(self) -> Lifted:
        """Lift the calls of `forward`; starts again whenever more is learnt of an input."""
        specs = {spec.name: spec for spec in self.specs}
        for _ in range(REFINEMENTS):
            self.lifter = Lifter(self.engine, self.rank)
            recorder = self.recorder(self.lifter)
            values = {name: self.lifter.add_input(spec) for name, spec in specs.items()}
            try:
                outputs = evaluate(self.archive, recorder, values)
                return Lifted(self.lifter, recorder, list(_flat(outputs)))
            except Refine as more:
                self.assumed |= more.assumed
                specs[more.name] = replace(specs[more.name], shape=_own_names(more.name, more.shape, self.specs))
        raise SourceError("the sizes of its inputs cannot be worked out", hint=Lifter.SHAPE_HINT)


def _own_names(name: str, shape: tuple[Any, ...], specs: list[InputSpec]) -> tuple[Any, ...]:
    """Sizes of different inputs need not be equal, so with several inputs each has its own names."""
    if len(specs) == 1:
        return shape
    return tuple(f"{name}.{d}" if isinstance(d, str) and not d.startswith(f"{name}.") else d for d in shape)


def _tensor_arguments(archive: Archive) -> Iterator[Argument]:
    """The arguments of `forward` that become inputs; those with a default keep it."""
    for argument in archive.inputs:
        if argument.optional:
            continue
        if argument.annotation not in ("Tensor", "Optional[Tensor]"):
            what = f"`forward` takes {argument.name}: {argument.annotation}; only tensors can be inputs"
            raise SourceError(what, hint="wrap the model in a module that takes tensors, and save that")
        yield argument


def _traced_shapes(archive: Archive) -> dict[str, Shape]:
    """The ranks that a trace was made with; its sizes are an example, so they stay open."""
    shapes: dict[str, Shape] = {}
    examples = archive.example_inputs()
    specs = [InputSpec(argument.name) for argument in archive.inputs]
    for argument, example in zip(archive.inputs, examples, strict=False):
        if isinstance(example, StoredTensor) and len(example.shape) in RANK_NAMES:
            shapes[argument.name] = _own_names(argument.name, RANK_NAMES[len(example.shape)], specs)
    return shapes


def _quantization(name: str, scale: float, zero_point: int, dtype: str) -> tuple[str, Quantization]:
    if dtype not in DTYPES or not DTYPES[dtype].is_integer:
        raise SourceError(f"a quantized input cannot be {dtype}", where=f"input {name}")
    if not scale > 0 or not DTYPES[dtype].minimum <= zero_point <= DTYPES[dtype].maximum:
        raise SourceError(f"scale {scale}, zero point {zero_point} do not quantize to {dtype}", where=f"input {name}")
    return dtype, Quantization.per_tensor(scale, zero_point, dtype, scale_dtype=narrowest(scale))


def _flat(outputs: Any) -> Iterator[Value | StoredTensor]:
    """Tensors of a nested result, in order."""
    if isinstance(outputs, Mapping):
        outputs = outputs.values()
    if isinstance(outputs, Value | StoredTensor):
        yield outputs
    elif outputs is not None and not isinstance(outputs, bool | int | float | str):
        try:
            for item in outputs:
                yield from _flat(item)
        except TypeError:
            raise SourceError("returns something that is not a tensor") from None


def _source(path: Path, archive: Archive) -> dict[str, str]:
    """Keys as in spec.md, "Source keys"."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        digest = hashlib.sha256(content).hexdigest()
    return {
        "format": "torchscript",
        "format_version": archive.version,
        "framework": "pytorch",
        "sha256": digest,
    }


def _producer() -> str:
    from ... import __version__

    return f"qfmt {__version__}"
