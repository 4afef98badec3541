"""The whole way from ONNX to a Model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from ... import __version__
from ...model import Graph, Model
from ...passes.dynamic import fold_dynamic
from ...passes.earlier import quantize_earlier
from ...passes.edits import renamed
from ...passes.fold import fold_sandwiches
from ...passes.grids import attach_quantization
from ...passes.integral import integral
from ..torch.inputs import Given
from . import integer, older, packed, qonnx, quantized, standard  # noqa: F401  (they register what they import)
from .importer import Importer
from .reading import read
from .real_numbers import on_real_numbers


def convert_onnx(
    source: str | PathLike[str] | Any, given: Given, description: Mapping[str, str] | None = None
) -> Model:
    """The Model of an ONNX file or ModelProto. `given` says whose rounding the nodes state, sizes and grids of inputs.

    Raises SourceError for an invalid ONNX model, or one with tensors of a type that cannot be stored.
    """
    onnx, budget = read(source)
    given.check_names([value.name or "" for value in onnx.graph.inputs])
    importer = Importer(onnx, budget, given.shapes)
    for name, grid in given.quantization.items():
        quantized.quantized_input(importer, name, *grid)
    graph = fold_dynamic(integral(importer.run(onnx.graph)))
    graph = on_real_numbers(graph, importer.preferred)
    graph = fold_sandwiches(quantize_earlier(attach_quantization(graph, given.engine)), given.engine)
    graph = renamed(graph, importer.preferred | _stored_otherwise(graph, importer.initializers))
    keys = {"framework": onnx.producer_name, "framework_version": onnx.producer_version, **(description or {})}
    keys = {"format": "onnx", "format_version": str(onnx.opset_imports.get("", 1)), **keys}
    return Model(
        replace(graph, tensors=dict(sorted(graph.tensors.items()))),
        engine=given.engine,
        source={key: text for key, text in {**keys, **importer.notes}.items() if text},
        producer=f"qfmt {__version__}",
    )


def _stored_otherwise(graph: Graph, initializers: Mapping[str, str]) -> dict[str, str]:
    """Constants that are an initializer in another element type: its quantized or unpacked values, under its name."""
    return {
        tensor.name: alias
        for tensor in graph.constants()
        for alias in tensor.aliases
        if initializers.get(alias, tensor.dtype) != tensor.dtype
    }
