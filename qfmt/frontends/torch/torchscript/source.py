"""A TorchScript archive as a Model: its `forward` evaluated symbolically, its calls lifted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ....errors import ControlFlowError
from ....model import Model, Shape
from ....passes.likely import EXAMPLES
from ...sniff import sha256_of
from ..calls import Recorder
from ..inputs import Given, Lifted, lift
from ..lifter import Lifter
from ..saved.archive import archive as tensors_only
from ..saved.archive import holds_tensors
from .archive import Archive
from .arguments import Arguments
from .evaluator import evaluate
from .state import state


def convert_archive(
    path: Path,
    engine: str,
    input_shapes: Mapping[str, Shape],
    input_quantization: Mapping[str, tuple[float, int, str]],
) -> Model:
    """The Model of an archive; see `qfmt.convert`. Only its tensors, if its code has no single graph."""
    archive = Archive(path)
    try:
        lifted = lift_archive(archive, engine, input_shapes, input_quantization)
    except ControlFlowError as error:
        if input_shapes or input_quantization:
            raise
        return without_graph(path, archive, error)
    description = describe(path, archive, Arguments(archive))
    description["source"] |= lifted.notes
    return lifted.lifter.finish(lifted.outputs, **description)


def without_graph(path: Path, archive: Archive, error: ControlFlowError) -> Model:
    """The tensors of an archive; `no_graph` says why there is nothing else. Raises `error` if there are none."""
    found = state(archive)
    if not holds_tensors(found, archive.budget):
        raise error
    source = {**describe(path, archive)["source"], "no_graph": f"the code has no single graph ({error})"}
    return tensors_only(found, source, archive.budget)


def lift_archive(
    archive: Archive,
    engine: str,
    input_shapes: Mapping[str, Shape],
    input_quantization: Mapping[str, tuple[float, int, str]],
    recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter,
) -> Lifted:
    """Evaluate `forward` and lift its calls; `recorder` may put a listener before the lifter."""
    arguments = Arguments(archive)
    specs = Given(engine, input_shapes, input_quantization).specs(arguments.specs())
    run = lambda to, values: evaluate(archive, to, arguments.filled(values))  # noqa: E731
    return lift(run, engine, specs, recorder, archive.budget)


def describe(path: Path, archive: Archive, arguments: Arguments | None = None) -> dict[str, Any]:
    """Source and producer of the model, which has inputs if `arguments` are given; the keys as in spec.md,
    "Source keys"."""
    from .... import __version__

    source = {
        "format": "torchscript",
        "format_version": archive.version,
        "framework": "pytorch",
        "sha256": sha256_of(path),
    }
    if arguments is not None and (examples := arguments.example_shapes()):
        source[EXAMPLES] = json.dumps(examples, ensure_ascii=False)
    return {"source": source, "producer": f"qfmt {__version__}"}
