"""From source files and modules to a Model. The content of a source decides its kind, never its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..errors import MissingFileError, SourceError
from ..model import Dimension, Model

TORCH_ENGINES = ("fbgemm", "qnnpack", "onednn", "x86")
"""The quantized engines of PyTorch; the first is the default for its models."""

ENGINES = (*TORCH_ENGINES, "onnx", "pt2e")
"""The engines whose rules nodes may state: "onnx" is the default for ONNX models, and for programs of torch.export
"pt2e", which is what PT2E puts into them: dequantize, compute, quantize."""


RUNTIMES = ("onnxruntime", "onnxruntime:basic", "onnxruntime:extended", "onnxruntime:all", "reference")
"""What runs an ONNX model for `verify`: ONNX Runtime, without optimizations or with those of that level,
or the reference implementation of the onnx package. The first, or else the last, is the default."""


def engine_of(runs: str) -> str:
    """The one of ENGINES whose rules a program computes by: what runs an ONNX model computes by those of ONNX."""
    return "onnx" if runs in RUNTIMES else runs


def convert(
    source: Any,
    *,
    engine: str | None = None,
    input_shapes: Mapping[str, Sequence[Dimension]] | None = None,
    input_quantization: Mapping[str, tuple[float, int, str]] | None = None,
    example_inputs: Any = None,
    prepared: Any = None,
) -> Model:
    """The Model of a quantized network, from a file or from memory.

    `source` is the path of a file, which is read without any framework and without executing code of it:

    - a TorchScript archive; only its tensors if its code has no single graph;
    - a pickled module (torch.save of a model): with its graph if it is one of torch.fx or a chain of known
      modules, otherwise only its tensors;
    - a state_dict: only its tensors. `Model.no_graph` says so then;
    - safetensors: tensors only, with their quantization where torchao wrote them;
    - a program of torch.export, quantized by PT2E (`.pt2`);
    - an ONNX model, quantized in any form; it needs the packages onnx and onnx-ir.

    Or it is an onnx.ModelProto, or an object of torch: an nn.Module, quantized and converted, or by torchao's
    `quantize_`, which is traced with `example_inputs` (a tuple of tensors, or a dict by name), or, if PT2E made it,
    exported with them; an ExportedProgram; a ScriptModule; a state_dict. `prepared` is the same module after
    calibration and before `convert`: each tensor keeps what its observer saw (`Quantization.observed`). It may also be
    the path of a file that torch.save wrote of it, or for a source in memory its state_dict.

    `engine` names the engine whose rounding the nodes state: one of ENGINES; None: "onnx" for ONNX, "pt2e" for
    exported programs, otherwise "fbgemm". `input_shapes` gives sizes, names or None per dimension, if the source does
    not state enough; `input_quantization` is (scale, zero point, dtype) for inputs that are quantized already. Raises
    MissingFileError, or SourceError or a subclass, that says what is wrong, where, and what to do.
    """
    if engine is not None and engine not in ENGINES:
        raise SourceError(f"unknown engine {engine!r}", hint=f"choose one of {', '.join(ENGINES)}")
    own = getattr(source, "__qfmt_model__", None)  # what a Model was made into knows where it came from
    if own is not None:
        model: Model = own() if callable(own) else own
        return model
    from .torch.inputs import Given

    in_memory = example_inputs is not None or prepared is not None
    if isinstance(source, str | PathLike):
        path_given = prepared is None or isinstance(prepared, str | PathLike)
        if example_inputs is not None or not path_given:
            hint = "give prepared as a path: torch.save(prepared.state_dict(), path)" if not path_given else ""
            raise SourceError("example_inputs and prepared are for modules in memory", where=fspath(source), hint=hint)
        converted = _from_file(Path(fspath(source)), engine, input_shapes or {}, input_quantization or {})
        if prepared is None:
            return converted
        from .torch.saved.observers import with_file

        return with_file(converted, prepared)
    if type(source).__name__ == "ModelProto" and not in_memory:
        from .onnx.source import convert_onnx

        return convert_onnx(source, Given.checked(arithmetic or "onnx", input_shapes or {}, input_quantization or {}))
    given = Given.checked(arithmetic or TORCH_ENGINES[0], input_shapes or {}, input_quantization or {})
    from .torch.memory import is_torch

    if not is_torch(source):
        hint = "pass the path of a file, a module of torch, or an onnx.ModelProto"
        raise SourceError(f"cannot convert a {type(source).__name__}", hint=hint)
    from .torch.memory.exporting import convert_in_memory, is_exported

    if is_exported(source):
        return convert_in_memory(source, given._replace(engine=arithmetic or "pt2e"), example_inputs)
    from .torch.memory.source import convert_torch

    return convert_torch(source, given, example_inputs, prepared)


def _from_file(path: Path, engine: str | None, shapes: Mapping[str, Any], quantization: Mapping[str, Any]) -> Model:
    from .sniff import READABLE, SAVED, sha256_of, sniff
    from .torch.inputs import Given

    try:
        kind = sniff(path)
        if kind.key == "onnx":
            from .onnx.source import convert_onnx

            given = Given.checked(engine or "onnx", shapes, quantization)
            return convert_onnx(path, given, {"sha256": sha256_of(path)})
        given = Given.checked(engine or TORCH_ENGINES[0], shapes, quantization)
        if kind.key == "torch_export":
            from .torch.exported.source import convert_exported

            given = Given.checked(engine or "pt2e", shapes, quantization)
            return convert_exported(path, given, {"sha256": sha256_of(path)})
        if kind.key == "safetensors":
            from .torch.safetensors import convert_safetensors

            return convert_safetensors(path, given, {"sha256": sha256_of(path)})
        if kind.key in SAVED:
            from .torch.saved.file import read
            from .torch.saved.source import convert_saved

            return convert_saved(read(path), given, {"sha256": sha256_of(path)})
        if kind.key == "qfb":
            raise SourceError("is already a .qfb", hint="open it with qfmt.load")
        if kind.key != "torchscript":
            raise SourceError(f"is {kind}, which cannot be converted", hint=kind.hint or READABLE)
        from .torch.torchscript.source import convert_archive

        return convert_archive(path, given.engine, given.shapes, given.quantization)
    except (SourceError, MissingFileError) as error:
        raise error.at(str(path)) from None
