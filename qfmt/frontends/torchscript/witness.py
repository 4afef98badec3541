"""A TorchScript archive as the witness against a `.qfb`: converted anew, and carried out by torch where it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import RunError, SourceError
from ...model import Model, Shape
from .. import TORCH_ENGINES
from ..stored import StoredTensor
from ..torch.attempts import Given
from ..torch.calls import Packed, PackedState
from ..torch.execution import carry_out, computed, input_tensor, made, running
from ..torch.tape import Tape
from ..witness import Computed
from .archive import Archive
from .arguments import Arguments
from .convert import describe, lift_archive
from .folding import fold, on_values

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Witness:
    """The source of a file. `model` is what it is converted to now.

    With torch, inside `running`: `load`, then `unpacked` and `run`. No code of the archive is executed:
    the calls that qfmt's own evaluation found are carried out one by one.
    """

    name = "torch"

    def __init__(
        self,
        path: Path,
        arithmetic: str,
        input_shapes: Mapping[str, Shape],
        input_quantization: Mapping[str, tuple[float, int, str]],
        engine: str | None = None,
    ) -> None:
        self.path = path
        self.engine = engine or (arithmetic if arithmetic in TORCH_ENGINES else TORCH_ENGINES[0])
        if self.engine not in TORCH_ENGINES:
            raise RunError(f"{self.engine} cannot run TorchScript", hint=f"torch has {', '.join(TORCH_ENGINES)}")
        self.archive = Archive(path)
        lifted = lift_archive(self.archive, arithmetic, input_shapes, input_quantization, Tape)
        assert isinstance(lifted.recorder, Tape)
        self.lifter, self.tape = lifted.lifter, lifted.recorder
        self.model: Model = self.lifter.finish(lifted.outputs, **describe(path, self.archive))
        self.trouble = ""
        """Why torch's own reader could not be asked; "" if it could."""
        self._module: Any = None
        self._constants: Mapping[str, Any] = {}
        self._made: dict[int, Any] = {}

    @classmethod
    def of(cls, path: Path, file: Model, engine: str | None = None) -> Witness:
        """The source of a file, converted as the file was: for its engine, with its inputs' shapes and quantization.

        Where the source does not take those, it is converted without, and the two will differ. `engine` is torch's
        that carries it out; None: the one whose arithmetic the file states.
        """
        names = [leaf.name for leaf in Arguments(Archive(path)).leaves]
        given = Given.like(file, file.arithmetic or TORCH_ENGINES[0], names)
        try:
            return cls(path, given.engine, given.shapes, given.quantization, engine)
        except SourceError:
            return cls(path, given.engine, {}, {}, engine)

    def running(self) -> AbstractContextManager[str]:
        """Torch, with the engine; gives its version."""
        return running(self.engine)

    def example_shapes(self) -> list[tuple[int, ...] | None]:
        """The shapes that the network was traced with, input by input, as far as the archive says."""
        examples = [leaf.example for leaf in Arguments(self.archive).leaves]
        return [None if example is None else tuple(example.shape) for example in examples]

    def load(self) -> None:
        """Have torch read the archive as well; `trouble` says if it cannot.

        torch.jit.load runs `__setstate__` of the archive's modules, in TorchScript's interpreter. Those have
        been evaluated here before, which refuses all that does more than unpack and pack parameters; torch is given
        nothing of the file but what was read here.
        """
        import torch

        try:
            self._module = torch.jit.load(self.archive.as_read(), map_location="cpu")  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            self.trouble = str(error).strip().partition("\n")[0]
            return
        if not list(self._module.children()):  # frozen: the code that torch prints has the constants of the archive
            constants = self._module.code_with_constants[1].const_mapping
            self._constants = {f"CONSTANTS.{name}": value for name, value in constants.items()}

    def unpacked(self) -> Iterator[tuple[str, Computed]]:
        """(name of a tensor of `model`, what torch's own reader and `unpack` make of it)."""
        for entry in self.tape.entries:
            for packed in _parameters(entry.args):
                theirs = self._found((packed.path, *packed.aliases))
                for stored, tensor in zip((packed.weight, packed.bias), _unpacked(theirs, packed.kind), strict=False):
                    name = self.lifter.names.get(self.lifter.stored(stored).key) if stored is not None else None
                    if name is not None and tensor is not None:
                        yield name, computed(tensor)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """Every tensor of `model` that a call of the source computes, by name, and the inputs."""
        graph = self.model.graph
        keys = dict(zip(self.lifter.inputs, graph.inputs, strict=True))
        tensors = {key: input_tensor(inputs[name], graph.tensors[name].quantization) for key, name in keys.items()}
        seen = carry_out(self.tape, tensors, self._real, lambda *call: fold(on_values, *call))
        return {self.lifter.names[key]: value for key, value in seen.items() if key in self.lifter.names}

    def _real(self, value: Any) -> Any:
        """As torch itself has it in the archive, or made of what qfmt read."""
        if id(value) not in self._made:
            names = value.names if isinstance(value, StoredTensor) else (value.path, *value.aliases)
            theirs = self._found(names)
            self._made[id(value)] = theirs if _is_same_kind(value, theirs) else made(value)
        return self._made[id(value)]

    def _found(self, names: Sequence[str]) -> Any:
        """What torch's reader has under one of these names of the module tree; None if nothing."""
        for name in names if self._module is not None else ():
            if name in self._constants:
                return self._constants[name]
            for path in ([name], name.split(".")):
                value = self._module._c
                try:
                    for part in path:
                        value = value.getattr(part)
                except (RuntimeError, AttributeError):
                    continue
                return value
        return None


def _parameters(args: Any) -> Iterator[Packed]:
    for arg in args:
        if isinstance(arg, Packed):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _parameters(arg)


def _unpacked(packed: Any, kind: str) -> tuple[Any, ...]:
    """Weight and bias by torch's own operators; nothing where there is nothing to unpack."""
    import torch

    if not isinstance(packed, torch.ScriptObject):
        return ()
    try:
        if kind == "embedding":
            return (torch.ops.quantized.embedding_bag_unpack(packed),)
        unpack: Any = packed.unpack  # type: ignore[attr-defined]
        return tuple(unpack())
    except (RuntimeError, AttributeError):
        return ()


def _is_same_kind(ours: Any, theirs: Any) -> bool:
    import torch

    if isinstance(ours, StoredTensor):
        return isinstance(theirs, torch.Tensor) and tuple(theirs.shape) == ours.shape
    return isinstance(ours, Packed | PackedState) and isinstance(theirs, torch.ScriptObject)
