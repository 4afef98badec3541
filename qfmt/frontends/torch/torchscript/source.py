"""TorchScript archives: `forward` evaluated symbolically, its calls lifted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import ControlFlowError
from ....model import Model
from ....passes.likely_shapes import EXAMPLES
from ...content import sha256_of
from ...options import Options, is_eval
from ...stored import StoredTensor
from ..calls import Packed, PackedState
from ..network import Network
from ..saved.tensors import holds_tensors, tensors_only
from .archive import Archive
from .arguments import Arguments
from .evaluator import evaluate, restored
from .objects import ScriptObject

if TYPE_CHECKING:
    from ..witness import TorchWitness


def convert(path: Path, options: Options) -> Model:
    """The Model of an archive; only its tensors, if its code has no single graph."""
    archive, source = Archive(path), {"sha256": sha256_of(path)}
    try:
        return network(archive, source, options.eval_mode).model(options)
    except ControlFlowError as error:
        if options.of_inputs:
            raise
        return _without_graph(archive, source, error)


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    from ..witness import without_graph, witness_of

    archive, source = Archive(path), {"sha256": sha256_of(path)}
    try:
        return witness_of(network(archive, source, is_eval(file)), file, engine)
    except ControlFlowError as error:
        return without_graph(_without_graph(archive, source, error), file, engine)


def network(archive: Archive, source: Mapping[str, str], eval_mode: bool = False) -> Network:
    """The network of an archive; `source` are source keys that only the caller knows, `eval_mode` as in Options.

    Raises ControlFlowError for arguments that cannot be inputs; so does its `run`, if the code branches on data.
    """
    arguments = Arguments(archive)
    examples = arguments.example_shapes()
    traced = {EXAMPLES: json.dumps(examples, ensure_ascii=False)} if examples else {}
    return Network(
        arguments.specs(),
        lambda recorder, values: evaluate(archive, recorder, arguments.filled(values), eval_mode),
        archive.budget,
        {**_described(archive), **source, **traced},
    )


def _described(archive: Archive) -> dict[str, str]:
    return {"format": "torchscript", "format_version": archive.version, "framework": "pytorch"}


def _without_graph(archive: Archive, source: Mapping[str, str], error: ControlFlowError) -> Model:
    """The tensors of an archive; `no_graph` says why there is no graph. Raises `error` if there are none."""
    found = state(archive)
    if not holds_tensors(found, archive.budget):
        raise error
    why = f"the code has no single graph ({error})"
    return tensors_only(found, {**_described(archive), **source, "no_graph": why}, archive.budget)


def state(archive: Archive) -> dict[str, Any]:
    """Tensors and packed parameters by their place in the module tree, each once; and the constants of the code.

    For quantized modules also their scale and zero point, as in a state_dict.
    """
    root, constants, _ = restored(archive)
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        archive.budget.spend()
        if isinstance(value, StoredTensor | Packed | PackedState | list | tuple | dict):
            if id(value) not in seen:
                found[path] = value
        elif isinstance(value, ScriptObject) and id(value) not in seen:
            waiting += [(f"{path}.{name}" if path else str(name), each) for name, each in value.attributes.items()]
        elif type(value) in (int, float) and path.endswith((".scale", ".zero_point")):
            found[path] = value
        seen.add(id(value))
    found |= {
        f"CONSTANTS.c{index}": value
        for index, value in enumerate(constants)
        if isinstance(value, StoredTensor | Packed | PackedState) and id(value) not in seen
    }
    return dict(sorted(found.items()))
