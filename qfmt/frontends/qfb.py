"""A `.qfb` as a source: only as the witness for a file that was lowered from it.

The reference interpreter computes its nodes as stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from ..interpreter import trace
from .witness import Computed, Witness, computed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FileWitness(Witness):
    """No other program reads or runs it."""

    name = "qfmt"

    def __init__(self, path: Path, engine: str | None = None) -> None:
        from ..file.reader import load

        if engine is not None:
            raise RunError(f"--engine {engine} does not apply to a .qfb, which states its rules", hint="drop --engine")
        self.model = load(path)
        self.engine = "reference"

    def open(self) -> str:
        from .. import __version__

        return f"qfmt {__version__}"

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """Every computed tensor by name, and the inputs."""
        tensors = self.model.tensors
        values: dict[str, NDArray[Any]] = {}
        seen = {name: computed(array, tensors[name]) for name, array in inputs.items()}
        for node in trace(self.model, inputs, values):
            seen.update((name, computed(values[name], tensors[name])) for name in node.outputs)
        return seen
