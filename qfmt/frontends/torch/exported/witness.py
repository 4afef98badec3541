"""A `.pt2` archive as a witness for a `.qfb`: a fresh conversion, whose calls torch runs one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....arithmetic import quantize
from ....errors import RunError
from ....model import Model, Tensor, numpy_dtype
from ...sniff import sha256_of
from ...witness import Computed, computed
from ..inputs import Given
from ..tape import Tape
from ..witness import TorchWitness
from .archive import Archive
from .program import read_program
from .source import Evaluation, finished

if TYPE_CHECKING:
    from numpy.typing import NDArray


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    """The source of a file, converted as the file was. No engine has a say in it."""
    if engine not in (None, "pt2e"):
        raise RunError(f"--engine {engine} does not apply to a program of torch.export", hint="drop --engine")
    archive = Archive(path)
    evaluation = Evaluation(archive, read_program(archive.program))
    given = Given.like(file, file.engine or "pt2e", evaluation.program.inputs)
    lifted = evaluation.lift(given, Tape)
    return _Witness(finished(evaluation, lifted, given, {"sha256": sha256_of(path)}), lifted, "pt2e")


class _Witness(TorchWitness):
    """Integers are plain tensors to the program; what they mean, its calls say."""

    def _input_grid(self, name: str) -> None:
        return None

    def _named(self, seen: Mapping[str, Computed]) -> dict[str, Computed]:
        assert self.lifted is not None
        tensors, names = self.lifted.lifter.builder.tensors, self.lifted.lifter.names
        named = {names[key]: computed(value.array, tensors[key]) for key, value in seen.items() if key in names}
        return {tensor.name: value for tensor in self.model.tensors.values() for value in _of(tensor, named)}


def _of(tensor: Tensor, named: Mapping[str, Computed]) -> Iterator[Computed]:
    """What the source has for a tensor, under one of the names that it had before folding.

    Where the source moves real numbers and quantizes them afterwards, it has no integers: they are made of the numbers.
    """
    found = [named[name] for name in (tensor.name, *tensor.aliases) if name in named]
    alike = [value for value in found if value.is_quantized == (tensor.quantization is not None)]
    grid = tensor.quantization
    if alike and grid is None:
        yield Computed(_as_stated(tensor, alike[0].array))
    elif alike:
        yield alike[0]
    elif found and grid is not None and found[0].array.dtype == "float32":
        integers = quantize(found[0].array, grid, numpy_dtype(tensor.dtype), "reciprocal")
        yield computed(integers, tensor)


def _as_stated(tensor: Tensor, theirs: NDArray[Any]) -> NDArray[Any]:
    """The source's numbers in the type of the file: grids that no layer takes in are float32 scalars there, and torch
    has them as float64 and int64 of one element, the integers on them as uint8."""
    same = theirs.astype(numpy_dtype(tensor.dtype), copy=False)
    return same.reshape(()) if tensor.shape == () and same.size == 1 else same
