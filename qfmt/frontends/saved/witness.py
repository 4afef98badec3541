"""A file of torch.save, or safetensors, as a witness against a `.qfb`: converted anew; its graph, if any, carried out
by torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import RunError, SourceError
from ...model import Model
from .. import TORCH_ENGINES
from ..safetensors import convert_safetensors
from ..sniff import sha256_of, sniff
from ..torch.attempts import Given
from ..torch.execution import carry_out, input_tensor, made, running
from ..torch.tape import Tape
from ..torchscript.folding import fold, on_values
from ..witness import Computed
from . import code
from .convert import convert_saved, lift_module, network
from .file import read

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Witness:
    """The source of a file; see `frontends.witness.Witness`. torch's own reader, which executes pickles, is not asked:
    torch gets its parameters from what qfmt read.
    """

    name = "torch"
    trouble = ""

    def __init__(self, path: Path, file: Model, engine: str | None = None) -> None:
        arithmetic = file.arithmetic or TORCH_ENGINES[0]
        self.engine = engine or (arithmetic if arithmetic in TORCH_ENGINES else TORCH_ENGINES[0])
        if self.engine not in TORCH_ENGINES:
            raise RunError(f"{self.engine} cannot run PyTorch's networks", hint=f"torch has {', '.join(TORCH_ENGINES)}")
        source = {"sha256": sha256_of(path)}
        if sniff(path).key == "safetensors":
            self.model = convert_safetensors(path, Given(arithmetic), source)
            return
        saved = read(path)
        self.model = convert_saved(saved, Given(arithmetic), source)
        root = network(saved.value)
        if root is None or self.model.no_graph:
            return
        given = Given.like(file, arithmetic, code.parameters(root))
        try:
            lifted = lift_module(root, given, Tape)
        except SourceError:
            lifted = lift_module(root, Given(arithmetic), Tape)
        assert isinstance(lifted.recorder, Tape)
        self.lifter, self.tape = lifted.lifter, lifted.recorder
        self.model = self.lifter.finish(lifted.outputs, source=self.model.source, producer=self.model.producer)
        self._made: dict[int, Any] = {}

    def running(self) -> AbstractContextManager[str]:
        """Torch, with the engine; gives its version."""
        return running(self.engine)

    def example_shapes(self) -> list[tuple[int, ...] | None]:
        """A pickle does not keep any."""
        return []

    def load(self) -> None:
        """Nothing else is loaded."""

    def unpacked(self) -> Iterator[tuple[str, Computed]]:
        """Nobody else reads it."""
        return iter(())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """Every tensor of `model` that a call of the source computes, by name, and the inputs."""
        graph = self.model.graph
        keys = dict(zip(self.lifter.inputs, graph.inputs, strict=True))
        tensors = {key: input_tensor(inputs[name], graph.tensors[name].quantization) for key, name in keys.items()}
        seen = carry_out(self.tape, tensors, self._real, lambda *call: fold(on_values, *call))
        return {self.lifter.names[key]: value for key, value in seen.items() if key in self.lifter.names}

    def _real(self, value: Any) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = made(value)
        return self._made[id(value)]
