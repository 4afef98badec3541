"""A `.pt2` archive as a witness against a `.qfb`: converted anew, and its calls carried out by torch one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...arithmetic import quantize
from ...errors import RunError
from ...model import Model, Tensor, numpy_dtype
from .. import TORCH_ENGINES
from ..sniff import sha256_of
from ..torch.attempts import Given
from ..torch.execution import carry_out, input_tensor, made, running
from ..torch.tape import Tape
from ..torchscript.folding import fold, on_values
from ..witness import Computed
from .archive import Archive
from .convert import Evaluation, finished
from .program import read_program

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Witness:
    """The source of a file; see `frontends.witness.Witness`. torch.export.load, which executes pickles, is not asked:
    torch carries out the calls that qfmt read, on the parameters that qfmt read. No engine has a say in them.
    """

    name = "torch"
    trouble = ""

    def __init__(self, path: Path, file: Model, engine: str | None = None) -> None:
        if engine not in (None, "pt2e"):
            raise RunError(f"{engine} has no say in a program of torch.export", hint="leave --engine out")
        self.engine = "pt2e"
        archive = Archive(path)
        evaluation = Evaluation(archive, read_program(archive.program))
        given = Given.like(file, file.arithmetic or self.engine, evaluation.program.inputs)
        lifted = evaluation.lift(given, Tape)
        assert isinstance(lifted.recorder, Tape)
        self.lifter, self.tape = lifted.lifter, lifted.recorder
        self.model = finished(evaluation, lifted, given, {"sha256": sha256_of(path)})
        self._made: dict[int, Any] = {}

    def running(self) -> AbstractContextManager[str]:
        """Torch; gives its version. Any engine does."""
        try:
            import torch
        except ImportError:
            return running(TORCH_ENGINES[0])
        return running(next(name for name in torch.backends.quantized.supported_engines if name != "none"))

    def example_shapes(self) -> list[tuple[int, ...] | None]:
        """The program states its sizes itself."""
        return []

    def load(self) -> None:
        """Nothing else is loaded."""

    def unpacked(self) -> Iterator[tuple[str, Computed]]:
        """Nobody else reads it."""
        return iter(())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """Every tensor of `model` that a call of the source computes, by name, and the inputs."""
        keys = dict(zip(self.lifter.inputs, self.model.graph.inputs, strict=True))
        tensors = {key: input_tensor(inputs[name], None) for key, name in keys.items()}
        seen = carry_out(self.tape, tensors, self._real, lambda *call: fold(on_values, *call))
        named = {
            self.lifter.names[key]: self._meaning(key, value) for key, value in seen.items() if key in self.lifter.names
        }
        return {tensor.name: value for tensor in self.model.tensors.values() for value in _of(tensor, named)}

    def _meaning(self, key: str, value: Computed) -> Computed:
        """Integers with the scale and zero point that the calls say."""
        grid = self.lifter.tensors[key].quantization
        if grid is None or grid.is_blocked:
            return value
        return Computed(value.array, grid.scale, tuple(int(point) for point in grid.zero_point), grid.axis)

    def _real(self, value: Any) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = made(value)
        return self._made[id(value)]


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
        yield Computed(integers, grid.scale, tuple(int(point) for point in grid.zero_point), grid.axis)


def _as_stated(tensor: Tensor, theirs: NDArray[Any]) -> NDArray[Any]:
    """The source's numbers in the type of the file: grids that no layer takes in are float32 scalars there, and torch
    has them as float64 and int64 of one element, the integers on them as uint8."""
    same = theirs.astype(numpy_dtype(tensor.dtype), copy=False)
    return same.reshape(()) if tensor.shape == () and same.size == 1 else same
