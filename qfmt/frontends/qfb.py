"""A `.qfb` as a source: only as the witness against what was lowered from it.

The reference interpreter computes its nodes as stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from ..interpreter import trace
from .witness import Computed, computed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FileWitness:
    """The source of a file; see `frontends.witness.Witness`. Nobody else reads it, and no engine has a say in it."""

    name = "qfmt"

    def __init__(self, path: Path, engine: str | None = None) -> None:
        from ..file import load

        if engine is not None:
            raise RunError(f"--engine {engine} does not apply to a .qfb, which states its rules", hint="drop --engine")
        self.model = load(path)
        self.engine = "reference"

    def open(self) -> str:
        """Our own interpreter."""
        from .. import __version__

        return f"qfmt {__version__}"

    def example_shapes(self) -> list[tuple[int, ...] | None]:
        """The file states what it knows."""
        return []

    def constants(self) -> Iterator[tuple[str, Computed]]:
        """There is no other reader."""
        return iter(())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """Every tensor that is computed, by name, and the inputs."""
        tensors = self.model.tensors
        values: dict[str, NDArray[Any]] = {}
        seen = {name: computed(array, tensors[name]) for name, array in inputs.items()}
        for node in trace(self.model, inputs, values):
            seen.update((name, computed(values[name], tensors[name])) for name in node.outputs)
        return seen
