"""From what people have to a Model. The kind of a source is told by its content, never by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SourceError
from ..model import Dimension, Model

if TYPE_CHECKING:
    from ..backends.torch.module import QuantizedModule

ENGINES = ("fbgemm", "qnnpack", "onednn", "onnx")
"""Whose arithmetic the nodes may state."""


def convert(
    source: str | PathLike[str] | QuantizedModule,
    *,
    arithmetic: str = "fbgemm",
    input_shapes: Mapping[str, Sequence[Dimension]] | None = None,
    input_quantization: Mapping[str, tuple[float, int, str]] | None = None,
) -> Model:
    """Read a quantized network; no framework is imported and no code of the file is executed.

    `source` is the path of a TorchScript archive. `arithmetic` names the engine whose rounding the nodes
    state: one of ENGINES. `input_shapes` gives sizes, names or None per dimension where the network needs
    to know more than it says; `input_quantization` is (scale, zero point, dtype) for inputs that arrive
    quantized. A module that `Model.to_torch` made gives its model back, with the numbers that its buffers hold
    now. Raises SourceError, or a subclass, that says what is wrong, where, and what to do.
    """
    if arithmetic not in ENGINES:
        raise SourceError(f"arithmetic {arithmetic!r} is not known", hint=f"choose one of {', '.join(ENGINES)}")
    from ..backends.torch import from_module, is_quantized_module

    if is_quantized_module(source):
        return from_module(source)
    if not isinstance(source, str | PathLike):
        raise SourceError(
            f"cannot convert a {type(source).__name__}", hint="pass the path of a file saved with torch.jit.save"
        )
    from .torchscript.convert import convert_archive

    try:
        return convert_archive(
            Path(fspath(source)),
            arithmetic,
            {name: tuple(shape) for name, shape in (input_shapes or {}).items()},
            dict(input_quantization or {}),
        )
    except SourceError as error:
        raise error.at(fspath(source)) from None
