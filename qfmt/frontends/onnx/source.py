"""The complete conversion from ONNX to a Model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import SourceError
from ...model import Graph, Model
from ...passes.attaching import attach_quantization
from ...passes.dynamic import fold_dynamic
from ...passes.edits import renamed, without_idle_rules
from ...passes.fold import fold_sandwiches
from ...passes.hoisting import hoist_quantizers
from ...passes.integral import integral
from ..content import sha256_of
from ..options import Options
from . import older, packed, qonnx, quantized, quantlab, standard  # noqa: F401  (they register what they import)
from .importer import Importer
from .reading import read
from .real_numbers import on_real_numbers
from .witness import OnnxWitness


def convert(path: Path, options: Options) -> Model:
    return convert_onnx(path, options, {"sha256": sha256_of(path)})


def witness(path: Path, file: Model, engine: str | None = None) -> OnnxWitness:
    """Convert the source with the options of the file; without its input shapes if they do not fit."""
    try:
        model = convert(path, Options.like(file, file.graph.inputs)._replace(dtypes={}))
    except SourceError:
        model = convert(path, Options(file.engine))
    return OnnxWitness(path, model, engine)


def convert_object(source: Any, options: Options, example_inputs: Any, prepared: Any) -> Model:
    """The Model of a ModelProto."""
    if example_inputs is not None or prepared is not None:
        raise SourceError("example_inputs and prepared are for modules of torch, not for a ModelProto")
    own = type(source)()  # arrays are read when they are needed, and the caller may have changed them then
    own.CopyFrom(source)
    return convert_onnx(own, options, {})


def convert_onnx(source: Path | Any, options: Options, description: Mapping[str, str]) -> Model:
    """The Model of an ONNX file or ModelProto.

    Raises SourceError for an invalid ONNX model, or for tensors of a type that .qfb cannot store.
    """
    engine = options.engine or "onnx"
    onnx, budget = read(source)
    options.check_names([value.name or "" for value in onnx.graph.inputs])
    if options.dtypes:
        raise SourceError("states the element types of its inputs itself", hint="drop --input-dtype")
    importer = Importer(onnx, budget, options.shapes)
    with importer.memory.spent():
        for name in options.quantization:
            quantized.quantized_input(importer, name, *options.grid(name))
        graph = importer.run(onnx.graph)
        graph = on_real_numbers(fold_dynamic(integral(graph)), importer.preferred)
        graph = fold_sandwiches(hoist_quantizers(attach_quantization(graph, engine)), engine)
    graph = renamed(without_idle_rules(graph), importer.preferred | _stored_otherwise(graph, importer.initializers))
    keys = {"framework": onnx.producer_name, "framework_version": onnx.producer_version, **description}
    keys = {"format": "onnx", "format_version": str(onnx.opset_imports.get("", 1)), **keys}
    return Model(
        replace(graph, tensors=dict(sorted(graph.tensors.items()))),
        engine=engine,
        source={key: text for key, text in {**keys, **importer.notes}.items() if text},
    )


def _stored_otherwise(graph: Graph, initializers: Mapping[str, str]) -> dict[str, str]:
    """Constant → the initializer that it is a quantized or unpacked form of."""
    return {
        tensor.name: alias
        for tensor in graph.constants()
        for alias in tensor.aliases
        if initializers.get(alias, tensor.dtype) != tensor.dtype
    }
