"""Replay the test vectors of a model: are the results equal to those of the file?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..model import Model
from ..progress import counted
from .words import values_differ


@dataclass(frozen=True, slots=True)
class Replay:
    """An output of a test vector: `different` of its `elements` differ from the file, bit by bit.

    `vector` is the name of the test vector, or its number where it has none; `largest` the largest difference.
    """

    vector: str
    output: str
    elements: int
    different: int
    largest: float

    @property
    def is_equal(self) -> bool:
        return not self.different


def replay(model: Model, memory: int | None = None) -> Iterator[Replay]:
    """Run every test vector in the reference interpreter, and compare each output with the one in the file: level 5 of
    docs/checking.md.

    `memory` is that of `Model.run`. Raises what `Model.run` raises.
    """
    for index, vector in enumerate(counted(model.vectors, "", len(model.vectors), "test vectors")):
        name = vector.name or str(index)
        computed = model.run({key: value.array for key, value in vector.inputs.items()}, memory=memory)
        for output in dict.fromkeys(model.graph.outputs):
            ours, theirs = computed[output], vector.outputs[output].array
            if (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype):
                yield Replay(name, output, ours.size, *values_differ(ours, theirs))
            else:
                yield Replay(name, output, max(theirs.size, 1), max(theirs.size, 1), float("inf"))
