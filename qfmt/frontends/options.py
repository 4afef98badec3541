"""The user's options for a conversion: see `qfmt.convert`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

from ..errors import SourceError
from ..model import DTYPES, Dimension, Model, Shape
from ..rules.quantization import is_float32_scale

MODE, EVAL = "mode", "eval"
"""The source key of a network that was converted in eval mode, whatever the mode of its source is."""


class Options(NamedTuple):
    """`engine` "" means that of the source. Shapes, quantization (scale, zero point, dtype) and dtypes are by input
    name. `eval_mode`: as PyTorch's modules compute after `eval()`, whatever mode the source is in."""

    engine: str = ""
    shapes: Mapping[str, Shape] = {}
    quantization: Mapping[str, tuple[float, int, str]] = {}
    dtypes: Mapping[str, str] = {}
    eval_mode: bool = False

    @property
    def of_inputs(self) -> bool:
        """Whether they say anything of inputs."""
        return bool(self.shapes or self.quantization or self.dtypes)

    @classmethod
    def checked(
        cls,
        engine: str | None,
        shapes: Mapping[str, Any] | None,
        grids: Mapping[str, Any] | None,
        dtypes: Mapping[str, Any] | None = None,
        eval_mode: bool = False,
    ) -> Options:
        """Check the arguments of a caller, of any type; a SourceError names the input that is invalid."""
        return cls(
            engine or "",
            {name: _shape(name, shape) for name, shape in _by_input("input_shapes", shapes)},
            {name: _quantization(name, numbers) for name, numbers in _by_input("input_quantization", grids)},
            {name: str(dtype) for name, dtype in _by_input("input_dtypes", dtypes)},
            bool(eval_mode),
        )

    @classmethod
    def like(cls, file: Model, names: Sequence[str]) -> Options:
        """The options that a file states for the network that it was made from; `names` are the network's inputs, in
        order.

        If the numbers of inputs differ, only of those with the same name.
        """
        tensors = {name: file.tensors[name] for name in file.graph.inputs}
        if len(names) == len(tensors):
            like = dict(zip(names, tensors.values(), strict=True))
        else:
            like = {name: tensors[name] for name in names if name in tensors}
        quantized = {
            name: (tensor.quantization.scale[0], int(tensor.quantization.zero_point[0]), tensor.dtype)
            for name, tensor in like.items()
            if tensor.quantization is not None
        }
        shapes = {name: tensor.shape for name, tensor in like.items() if tensor.shape is not None}
        dtypes = {name: tensor.dtype for name, tensor in like.items() if name not in quantized}
        return cls(file.engine, shapes, quantized, dtypes, is_eval(file))

    def grid(self, name: str) -> tuple[float, int, str]:
        """The quantization of an input that has one here. Raises SourceError if no tensor can have it."""
        scale, zero_point, dtype = self.quantization[name]
        where = f"input {name}"
        if dtype not in DTYPES or not (DTYPES[dtype].is_integer and DTYPES[dtype].is_quantizable):
            raise SourceError(f"a quantized input cannot be {dtype}", where=where)
        if not is_float32_scale(scale) or not DTYPES[dtype].minimum <= zero_point <= DTYPES[dtype].maximum:
            raise SourceError(f"scale {scale} and zero point {zero_point} are not valid for {dtype}", where=where)
        return scale, zero_point, dtype

    def check_names(self, names: Sequence[str]) -> None:
        """Raise SourceError for options of an input that the network does not have."""
        for name in (*self.shapes, *self.quantization, *self.dtypes):
            if name not in names:
                hint = f"its inputs are {', '.join(names)}" if names else "it has none"
                raise SourceError(f"the network has no input {name!r}", hint=hint)


def is_eval(file: Model) -> bool:
    """Whether a file was converted in eval mode."""
    return file.source.get(MODE) == EVAL


def _by_input(option: str, given: Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    """The names of inputs, each with what a caller gives for it."""
    if isinstance(given, Mapping | None):
        return (given or {}).items()
    raise SourceError(f"{option} is not a dict by the names of inputs", hint=f"as in {option}={{'x': …}}")


def _shape(name: str, shape: Any) -> tuple[Dimension, ...]:
    try:
        if isinstance(shape, str):
            raise TypeError
        sizes = tuple(size if size is None or isinstance(size, str) else index(size) for size in shape)
    except TypeError:
        hint = "give sizes, names of sizes or None, as in (1, 3, 'H', None)"
        raise SourceError(f"{shape!r} is not a shape", where=f"input {name}", hint=hint) from None
    for size in sizes:
        if size == "" or (isinstance(size, int) and size < 0):
            raise SourceError(f"{size!r} is not a size", where=f"input {name}", hint="give 0 or more, a name, or None")
    return sizes


def _quantization(name: str, given: Any) -> tuple[float, int, str]:
    try:
        scale, zero_point, dtype = given
        return float(scale), index(zero_point), str(dtype)
    except (TypeError, ValueError, OverflowError):
        hint = "give (scale, zero point, dtype), as in (0.0078, 128, 'uint8')"
        raise SourceError(f"{given!r} is not a quantization", where=f"input {name}", hint=hint) from None
