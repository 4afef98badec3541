"""Exported programs in memory, and the modules that are exported here: saved into memory and read like any archive."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....budget import Budget
from ....errors import SourceError, first_line
from ....model import Model
from ...options import Options
from ..exported.archive import Archive
from ..exported.source import network

if TYPE_CHECKING:
    import torch


def is_exported(source: object) -> bool:
    """Whether a source is an ExportedProgram, or a module made by PT2E, from which torch.export makes one."""
    kinds = {f"{base.__module__}.{base.__name__}" for base in type(source).__mro__}
    if "torch.export.exported_program.ExportedProgram" in kinds:
        return True
    return "torch.nn.modules.module.Module" in kinds and any(map(_is_decomposed, source.modules()))  # type: ignore[attr-defined]


def convert_in_memory(source: Any, options: Options, example_inputs: Any) -> Model:
    """The Model of an ExportedProgram, or of a module from convert_pt2e or _convert_to_reference_decomposed_fx."""
    import torch

    if not isinstance(source, torch.export.ExportedProgram):
        return export_and_convert(source, options, example_inputs)
    return _converted(source, options)


def export_and_convert(module: torch.nn.Module, options: Options, example_inputs: Any) -> Model:
    """The Model of a module, through torch.export."""
    return _converted(_exported(module, example_inputs), options)


def _converted(program: torch.export.ExportedProgram, options: Options) -> Model:
    import torch

    _register()
    archive = Archive(saved(program, torch.export.save), Budget(None))
    return network(archive, {}, must_be_quantized=True).model(options)


def saved(source: Any, save: Callable[[Any, io.BytesIO], object]) -> bytes:
    """What a function of torch saves into memory; SourceError if it cannot."""
    buffer = io.BytesIO()
    try:
        save(source, buffer)
    except Exception as error:
        raise SourceError(f"torch cannot save it: {first_line(error)}") from None
    return buffer.getvalue()


def _is_decomposed(module: Any) -> bool:
    """Whether it is a graph with operators of `quantized_decomposed`."""
    if not any(base.__name__ == "GraphModule" for base in type(module).__mro__):
        return False
    return any(str(node.target).startswith("quantized_decomposed.") for node in module.graph.nodes)


def _register() -> None:
    """The import that defines torch's operators `quantized_decomposed`; torchao defines them, too."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401


def _exported(module: torch.nn.Module, example_inputs: Any) -> Any:
    import torch

    if example_inputs is None:
        raise SourceError(
            f"a {type(module).__name__} is converted by exporting it, which requires inputs",
            hint="pass example_inputs=(x,) with tensors that the model accepts, or an ExportedProgram",
        )
    by_name = dict(example_inputs) if isinstance(example_inputs, dict) else {}
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else () if by_name else tuple(example_inputs)
    try:
        return torch.export.export(module, inputs, by_name or None)
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        hint = "the model must run on example_inputs: try torch.export.export(model, example_inputs)"
        raise SourceError(f"torch could not export the model ({text})", hint=hint) from None
