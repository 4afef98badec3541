"""A TorchScript archive as the witness against a `.qfb`: converted anew, and its calls carried out by torch."""

from __future__ import annotations

from pathlib import Path

from ...errors import SourceError
from ...model import Model
from .. import TORCH_ENGINES
from ..torch.attempts import Given
from ..torch.tape import Tape
from ..torch.witness import TorchWitness, engine_for
from .archive import Archive
from .arguments import Arguments
from .convert import describe, lift_archive


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    """The source of a file, converted as the file was: for its engine, with its inputs' shapes and quantization.

    Where the source does not take those, it is converted without, and the two will differ.
    """
    archive = Archive(path)
    leaves = Arguments(archive).leaves
    given = Given.like(file, file.arithmetic or TORCH_ENGINES[0], [leaf.name for leaf in leaves])
    asked = engine_for(file, engine, "TorchScript")
    try:
        lifted = lift_archive(archive, given.engine, given.shapes, given.quantization, Tape)
    except SourceError:
        lifted = lift_archive(archive, given.engine, {}, {}, Tape)
    model = lifted.lifter.finish(lifted.outputs, **describe(path, archive))
    examples = [None if leaf.example is None else tuple(leaf.example.shape) for leaf in leaves]
    return TorchWitness(model, lifted, asked, examples)
