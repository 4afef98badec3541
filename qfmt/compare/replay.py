"""Replay the test vectors of a model: does it compute what the file states?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..arrays import Array
from ..model import Model, Node, Vector, value_digest
from ..progress import counted
from .words import values_differ


@dataclass(frozen=True, slots=True)
class Replay:
    """An output of a test vector: `different` of its `elements` differ from the file, bit by bit.

    `vector` is the name of the test vector, or its number where it has none; `largest` the largest difference. A graph
    without outputs has one for each vector, with an empty name.
    `first_difference` names the first node whose output has another digest than the file states, and says what is
    known of its inputs; "" if there is none, or the vector has no digests.
    """

    vector: str
    output: str
    elements: int
    different: int
    largest: float
    first_difference: str = ""

    @property
    def is_equal(self) -> bool:
        return not self.different and not self.first_difference


def replay(model: Model, memory: int | None = None) -> Iterator[Replay]:
    """Run every test vector in the reference interpreter. Compare each output with the one in the file, and what each
    node computes with its digest, if the vector has digests: level 5 of docs/checking.md.

    `memory` is that of `Model.run`. Raises what `Model.run` raises.
    """
    from ..interpreter import run
    from ..rules import require_sound

    require_sound(model)
    for index, vector in enumerate(counted(model.vectors, "", len(model.vectors), "test vectors")):
        first = _First(model, vector)
        computed = run(model, {key: value.array for key, value in vector.inputs.items()}, memory, first.watch)
        if not computed:  # only the digests can differ
            yield Replay(vector.name or str(index), "", 0, 0, 0.0, first.found)
        for output, ours in computed.items():
            theirs = vector.outputs[output].array
            size, found = max(theirs.size, 1), (max(theirs.size, 1), float("inf"))
            if (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype):
                size, found = ours.size, values_differ(ours, theirs)
            yield Replay(vector.name or str(index), output, size, *found, first.found)


class _First:
    """Finds the first node that computes something else than the digests of a test vector state."""

    def __init__(self, model: Model, vector: Vector) -> None:
        self._tensors = model.graph.tensors
        self._stated = {name: digest for _, name, digest in vector.stated_digests(model.graph)}
        self._given = set(model.graph.inputs)
        self.found = ""

    def watch(self, node: Node, values: Mapping[str, Array]) -> None:
        """A node that has run, and the values by name."""
        stated = [] if self.found else [name for name in node.outputs if name in self._stated]
        wrong = [name for name in stated if self._digest(name, values) != self._stated[name]]
        if wrong:
            self.found = f"the first node that differs is {node.title}, output {wrong[0]!r}{self._inputs(node)}"

    def _digest(self, name: str, values: Mapping[str, Array]) -> bytes:
        return value_digest(values[name], self._tensors[name].dtype)

    def _inputs(self, node: Node) -> str:
        """What is known of its inputs: no node before it differs."""
        computed = [name for name in node.inputs if name and not self._tensors[name].is_constant]
        equal = [repr(name) for name in computed if name in self._stated or name in self._given]
        others = [repr(name) for name in computed if name not in self._stated and name not in self._given]
        told = f"; equal before it: {', '.join(equal)}" if equal else ""
        return told + (f"; without a digest: {', '.join(others)}" if others else "")
