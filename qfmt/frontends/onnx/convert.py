"""The whole way from ONNX to a Model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from ... import __version__
from ...errors import SourceError
from ...model import Model
from ...passes.dynamic import fold_dynamic
from ...passes.fold import fold_sandwiches
from ...passes.grids import attach_quantization
from ..torch.attempts import Given
from . import quantized, standard  # noqa: F401  (they register what they import)
from .importer import Importer
from .reading import read


def convert_onnx(
    source: str | PathLike[str] | Any, given: Given, description: Mapping[str, str] | None = None
) -> Model:
    """The Model of an ONNX file or ModelProto. `given` says whose rounding the nodes state, and sizes of inputs.

    Raises SourceError for what is no sound ONNX model, or holds tensors of a type that cannot be stored.
    """
    if given.quantization:
        name = next(iter(given.quantization))
        raise SourceError("an ONNX model states how its inputs are quantized", where=f"input {name}")
    onnx = read(source)
    given.check_names([value.name or "" for value in onnx.graph.inputs])
    importer = Importer(onnx, given.shapes)
    graph = importer.run(onnx.graph)
    graph = fold_sandwiches(attach_quantization(fold_dynamic(graph), given.engine), given.engine)
    keys = {"framework": onnx.producer_name, "framework_version": onnx.producer_version, **(description or {})}
    keys = {"format": "onnx", "format_version": str(onnx.opset_imports.get("", 1)), **keys}
    return Model(
        replace(graph, tensors=dict(sorted(graph.tensors.items()))),
        arithmetic=given.engine,
        source={key: text for key, text in {**keys, **importer.notes}.items() if text},
        producer=f"qfmt {__version__}",
    )
