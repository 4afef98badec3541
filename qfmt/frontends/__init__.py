"""From source files and modules to a Model. The content of a source decides its kind, never its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from ..backstop import limited
from ..engines import ENGINES
from ..errors import MissingFileError, RunError, SourceError, ValidityError
from ..file.copies import downloaded
from ..model import Dimension, Model
from ..regular import size_if_any
from ..urls import Place, Url, place


def convert(
    source: Any,
    *,
    engine: str | None = None,
    input_shapes: Mapping[str, Sequence[Dimension]] | None = None,
    input_quantization: Mapping[str, tuple[float, int, str]] | None = None,
    input_dtypes: Mapping[str, str] | None = None,
    eval_mode: bool = False,
    example_inputs: Any = None,
    prepared: Any = None,
) -> Model:
    """The Model of a quantized network, from a file or from memory.

    `source` is the path or URL of a file, which is read without any framework and without executing code from it (of a
    remote file, a temporary copy):

    - a TorchScript archive; only its tensors if its code has no single graph;
    - a pickled module (torch.save of a model): with its graph if it is a torch.fx module or a chain of known
      modules, otherwise only its tensors;
    - a state_dict: only its tensors, and `Model.no_graph` states the reason;
    - safetensors: only its tensors, with their quantization if torchao wrote them;
    - a program of torch.export, quantized by PT2E (`.pt2`);
    - an ONNX model, quantized in any form; this needs the packages onnx and onnx-ir.

    `source` may also be an onnx.ModelProto or an object of torch: an ExportedProgram, a ScriptModule, a state_dict,
    or an nn.Module that was converted or quantized by torchao's `quantize_`. A module is traced with
    `example_inputs` (a tuple of tensors, or a dict by name), or exported with them if PT2E made it. `prepared` is
    the same module after calibration and before `convert`: each tensor keeps the range that its observer saw
    (`Quantization.observed`). It may also be the path of its torch.save file, or, for a source in memory, its
    state_dict.

    `engine` is the engine whose rounding rules the nodes state, one of ENGINES. The default is "onnx" for ONNX,
    "pt2e" for exported programs, else "fbgemm". `input_shapes` gives a size, name or None per dimension, if the
    source does not state enough. `input_quantization` is (scale, zero point, dtype) for inputs that are already
    quantized; a network that quantizes them itself gets their real numbers. `input_dtypes` are the element types of
    other inputs, if the source does not state them: they are float32, or int64 where torch requires indices.
    `eval_mode` converts a network of torch that was saved in training mode as it is after `eval()`; without it, one
    whose result depends on the mode is refused.

    Raises MissingFileError, RemoteError, or SourceError or a subclass of it, which says what is wrong, where, and what
    to do; ValidityError for names, shapes or scales of constants that no `.qfb` may have.
    """
    if engine is not None and engine not in ENGINES:
        raise SourceError(f"unknown engine {engine!r}", hint=f"choose one of {', '.join(ENGINES)}")
    own = getattr(source, "__qfmt_model__", None)  # an object made from a Model refers to it
    if own is not None:
        model: Model = own() if callable(own) else own
        return model
    from .. import __version__
    from ..arithmetic import any_numbers
    from ..rules import tensor_violations
    from .options import Options
    from .sources import object_reader, sniff

    given = engine, input_shapes, input_quantization, input_dtypes, eval_mode
    where: Place | None = None
    if isinstance(source, str | PathLike | Url):
        where = place(source)
        path_given = prepared is None or isinstance(prepared, str | PathLike | Url)
        if example_inputs is not None or not path_given:
            hint = "" if path_given else "give prepared as a path: torch.save(prepared.state_dict(), path)"
            raise SourceError("example_inputs and prepared are for modules in memory", where=str(where), hint=hint)
        with downloaded(where) as path:
            try:
                with limited(size_if_any(path), ""), any_numbers():
                    converted = sniff(path).reader.convert(path, Options.checked(*given))
            except (SourceError, RunError, MissingFileError) as error:
                raise error.at(str(where)) from None
        if prepared is not None:
            from .torch.saved.observers import with_file

            converted = with_file(converted, prepared)
    else:
        reader = object_reader(source)
        if reader is None:
            hint = "pass the path of a file, a module of torch, or an onnx.ModelProto"
            raise SourceError(f"cannot convert a {type(source).__name__}", hint=hint)
        with any_numbers():
            converted = reader.convert_object(source, Options.checked(*given), example_inputs, prepared)
    if broken := [each for tensor in converted.graph.constants() for each in tensor_violations(tensor)]:
        raise ValidityError(broken, where="" if where is None else str(where))
    return converted.replace(producer=f"qfmt {__version__}")
