"""A TorchScript archive as the witness for a `.qfb`: a fresh conversion, whose calls torch runs."""

from __future__ import annotations

from pathlib import Path

from ....errors import ControlFlowError, SourceError
from ....model import Model
from ... import TORCH_ENGINES
from ..inputs import Given, Lifted
from ..tape import Tape
from ..witness import TorchWitness, engine_for
from .archive import Archive
from .arguments import Arguments
from .source import describe, lift_archive, without_graph


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    """The source of a file, converted as the file was: for its engine, with its inputs' shapes and quantization.

    Where the source does not take those, it is converted without, and the two will differ.
    """
    archive = Archive(path)
    asked = engine_for(file, engine, "TorchScript")
    try:
        leaves = Arguments(archive).leaves
        lifted = _lifted(archive, Given.like(file, file.engine or TORCH_ENGINES[0], [leaf.name for leaf in leaves]))
    except ControlFlowError as error:
        return TorchWitness(without_graph(path, archive, error), None, asked)
    model = lifted.lifter.finish(lifted.outputs, **describe(path, archive))
    examples = [None if leaf.example is None else tuple(leaf.example.shape) for leaf in leaves]
    return TorchWitness(model, lifted, asked, examples)


def _lifted(archive: Archive, given: Given) -> Lifted:
    try:
        return lift_archive(archive, given.engine, given.shapes, given.quantization, Tape)
    except SourceError:
        return lift_archive(archive, given.engine, {}, {}, Tape)
