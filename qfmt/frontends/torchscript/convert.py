"""A TorchScript archive as a Model: its `forward` evaluated symbolically, its calls lifted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import SourceError
from ...model import Model, Shape
from ..sniff import sha256_of
from ..stored import StoredTensor
from ..torch import InputSpec, Lifter
from ..torch.attempts import Given, Lifted, lift, own_names
from ..torch.calls import Recorder
from ..torch.values import RANK_NAMES
from .archive import Archive, Argument
from .evaluator import evaluate


def convert_archive(
    path: Path,
    engine: str,
    input_shapes: Mapping[str, Shape],
    input_quantization: Mapping[str, tuple[float, int, str]],
) -> Model:
    """The Model of an archive; see `qfmt.convert`."""
    archive = Archive(path)
    lifted = lift_archive(archive, engine, input_shapes, input_quantization)
    description = describe(path, archive)
    description["source"] |= lifted.notes
    return lifted.lifter.finish(lifted.outputs, **description)


def lift_archive(
    archive: Archive,
    engine: str,
    input_shapes: Mapping[str, Shape],
    input_quantization: Mapping[str, tuple[float, int, str]],
    recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter,
) -> Lifted:
    """Evaluate `forward` and lift its calls; `recorder` may put somebody before the lifter who hears them, too."""
    traced = _traced(archive)
    inputs = [traced.get(argument.name, InputSpec(argument.name)) for argument in _tensor_arguments(archive)]
    specs = Given(engine, input_shapes, input_quantization).specs(inputs)
    return lift(lambda to, values: evaluate(archive, to, values), engine, specs, recorder)


def _tensor_arguments(archive: Archive) -> Iterator[Argument]:
    """The arguments of `forward` that become inputs; those with a default keep it."""
    for argument in archive.inputs:
        if argument.optional:
            continue
        if argument.annotation not in ("Tensor", "Optional[Tensor]"):
            what = f"`forward` takes {argument.name}: {argument.annotation}; only tensors can be inputs"
            raise SourceError(what, hint="wrap the model in a module that takes tensors, and save that")
        yield argument


def _traced(archive: Archive) -> dict[str, InputSpec]:
    """The ranks and dtypes that a trace was made with; its sizes are an example, so they stay open."""
    known: dict[str, InputSpec] = {}
    examples = archive.example_inputs()
    for argument, example in zip(archive.inputs, examples, strict=False):
        if isinstance(example, StoredTensor) and len(example.shape) in RANK_NAMES:
            shape = own_names(argument.name, RANK_NAMES[len(example.shape)], len(archive.inputs))
            dtype = example.dtype if example.quantizer is None else "float32"
            known[argument.name] = InputSpec(argument.name, shape, dtype)
    return known


def describe(path: Path, archive: Archive) -> dict[str, Any]:
    """Source and producer of the model; the keys as in spec.md, "Source keys"."""
    from ... import __version__

    source = {
        "format": "torchscript",
        "format_version": archive.version,
        "framework": "pytorch",
        "sha256": sha256_of(path),
    }
    return {"source": source, "producer": f"qfmt {__version__}"}
