"""The source of a file that torch can carry out: the calls that qfmt found in it, on the parameters that qfmt read.

torch's own readers are not asked. They run code of a file: `torch.jit.load` the defaults of its methods and its
`__setstate__`, `torch.load` and `torch.export.load` its pickles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import MissingPackageError, RunError
from ...model import Model
from .. import TORCH_ENGINES
from ..isolation.parent import Session, is_installed
from ..witness import Computed, is_computed
from .execution import INSTALL
from .inputs import Lifted
from .program import Program, given, program
from .tape import Tape

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TorchWitness:
    """See `frontends.witness.Witness`. `lifted` is None for a source without a graph, which cannot be run.

    `engine` is torch's for quantized operators, or another word where none has a say; `examples` are the shapes that
    the source was made with.
    """

    name = "torch"

    def __init__(
        self, model: Model, lifted: Lifted | None, engine: str, examples: Sequence[tuple[int, ...] | None] = ()
    ) -> None:
        self.model, self.engine, self.examples = model, engine, list(examples)
        self.lifted = lifted
        self.session = Session("torch", "torch", self._program, self._call, is_computed)

    def open(self) -> str:
        if not is_installed("torch"):
            raise MissingPackageError("torch is not installed", hint=INSTALL)
        return self.session.open()

    def example_shapes(self) -> list[tuple[int, ...] | None]:
        return self.examples

    def constants(self) -> Iterator[tuple[str, Computed]]:
        """Nobody else reads it."""
        return iter(())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        assert self.lifted is not None
        graph = self.model.graph
        keys = zip(self.lifted.lifter.builder.inputs, graph.inputs, strict=True)
        tensors = {key: given(inputs[name], self._input_grid(name)) for key, name in keys}
        return self._named(self.session.ask("run", tensors))

    def _input_grid(self, name: str) -> Any:
        """The quantization with which torch takes an input."""
        return self.model.graph.tensors[name].quantization

    def _named(self, seen: Mapping[str, Computed]) -> dict[str, Computed]:
        """By the names of `model`, what was computed, by the keys of the lifter."""
        assert self.lifted is not None
        names = self.lifted.lifter.names
        return {names[key]: value for key, value in seen.items() if key in names}

    @property
    def _tape(self) -> Tape:
        assert self.lifted is not None and isinstance(self.lifted.recorder, Tape)
        return self.lifted.recorder

    def _program(self) -> tuple[Program]:
        assert self.lifted is not None
        engine = self.engine if self.engine in TORCH_ENGINES else ""
        return (program(self._tape, engine, list(self.lifted.lifter.names)),)

    def _call(self, index: int) -> tuple[str, str]:
        entry = self._tape.entries[index]
        return entry.target, str(entry.place)


def engine_for(model: Model, asked: str | None, source: str) -> str:
    """The engine of torch that carries a source out: as asked, or the one whose rules a file states."""
    engine = asked or (model.engine if model.engine in TORCH_ENGINES else TORCH_ENGINES[0])
    if engine not in TORCH_ENGINES:
        raise RunError(f"{engine} cannot run {source}", hint=f"torch has {', '.join(TORCH_ENGINES)}")
    return engine
