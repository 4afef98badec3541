"""A file of torch.save, or safetensors, as a witness against a `.qfb`: converted anew; its graph, if any, carried out
by torch."""

from __future__ import annotations

from pathlib import Path

from ....errors import SourceError
from ....model import Model
from ... import TORCH_ENGINES
from ...sniff import sha256_of, sniff
from ..fx import walker as code
from ..inputs import Given
from ..safetensors import convert_safetensors
from ..tape import Tape
from ..witness import TorchWitness, engine_for
from .file import read
from .source import convert_saved, lift_module, network


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    """The source of a file, converted as the file was."""
    asked = engine_for(file, engine, "PyTorch's networks")
    stated = file.engine or TORCH_ENGINES[0]
    source = {"sha256": sha256_of(path)}
    if sniff(path).key == "safetensors":
        return TorchWitness(convert_safetensors(path, Given(stated), source), None, asked)
    saved = read(path)
    model = convert_saved(saved, Given(stated), source)
    root = network(read(path))  # read anew: each conversion has its own budget
    if root is None or model.no_graph:
        return TorchWitness(model, None, asked)
    try:
        lifted = lift_module(root, Given.like(file, stated, code.parameters(root)), Tape)
    except SourceError:
        lifted = lift_module(root, Given(stated), Tape)
    model = lifted.lifter.finish(lifted.outputs, source=model.source, producer=model.producer)
    return TorchWitness(model, lifted, asked)
