"""Runs a file in two ways: each node on the inputs of the source's node, and the whole network."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array
from ..errors import MemoryLimitError, QfmtError
from ..interpreter import execute, operands_of, read_constant
from ..memory import Memory, limit_for
from ..model import Graph, Model, Node, Quantization
from ..ops import OPERATORS, Operand, known
from ..progress import counted
from .classes import CLAMPS, MOST_CLAMPS, Counts, distance, equal_elements
from .report import OutputComparison

if TYPE_CHECKING:
    from ..frontends.witness import Computed

    Judge = Callable[[Node, str, Array, Array, Sequence[Operand | None], bool], Counts]


@dataclass
class NodeFindings:
    """Counts of one node, over all samples."""

    counts: Counts = field(default_factory=Counts)
    fault: str = ""
    unknown: bool = False
    """Whether qfmt has no reference for its operator, which was kept unchanged from the source."""


class SideBySide:
    """Runs a file on samples of which the values of its `source` are known, and collects what differs.

    `judge` classifies an output of a node: (node, name of the output, our values, their values, inputs of the node,
    whether the source has these inputs).
    """

    def __init__(self, model: Model, judge: Judge, source: Graph) -> None:
        self.model, self.judge = model, judge
        self.nodes = {id(node): NodeFindings() for node in model.nodes}
        """By identity: names need not be unique."""
        self.outputs = {name: OutputComparison(name, 0, 0, 0.0) for name in model.graph.outputs}
        self._makers = model.graph.producers()
        self._copies = _repeated(source, model.graph.outputs)
        """Outputs that the source lists twice: a file has a copy of them."""
        self.compared: set[str] = set()
        """Outputs that also exist in the source; they may have no elements."""
        self._constants: dict[str, Array]
        """Those that this sample has read; their unpacked elements count in its memory."""
        self._constant_bytes = sum(data.nbytes for each in model.graph.constants() for _, data in each.stored())
        self._memory: Memory
        """What a sample may take, as a run: all values of the file are held, twice where they differ."""

    def sample(self, inputs: Mapping[str, Array], theirs: Mapping[str, Computed]) -> None:
        """Run one sample. `theirs` are the known values of the source, by the names of the file.

        If one call of the source became multiple nodes, values in between are missing there, and ours are used.
        """
        theirs = {**{copy: theirs[name] for copy, name in self._copies.items() if name in theirs}, **theirs}
        given: dict[str, Array] = dict(inputs)
        own: dict[str, Array] = dict(inputs)
        taken = self._constant_bytes + sum(array.nbytes for array in inputs.values())
        self._memory = Memory(limit_for(taken), "free memory, or use smaller inputs: --input-shape")
        self._constants = {}
        own.update((name, self._read(name)) for name in self.outputs if self._is_constant(name))
        agreed = set(inputs)
        """Tensors that are equal in both runs: nodes after them need not be computed twice."""
        for node in counted(self.model.nodes, "comparing", len(self.model.nodes), "nodes"):
            found = self.nodes[id(node)]
            mine = self._run(node, given, found)
            same = all(name in agreed or self._is_constant(name) for name in node.inputs)
            alone = mine if same else self._run(node, own, NodeFindings())
            direct = all(name in theirs or name in inputs or self._is_constant(name) for name in node.inputs)
            self._memory.held += sum(array.nbytes for made in (mine, None if same else alone) for array in made or ())
            for index, name in enumerate(node.outputs):
                if name in theirs:
                    if mine is not None:
                        rounds = self._before_clamps(node, theirs)
                        operands = self._operands(rounds, given) or []
                        if not _same_grid(self.model.tensors[name].quantization, theirs[name]):
                            found.fault = f"the source has {name} with {_grid(theirs[name])}"
                        counts = self.judge(rounds, name, mine[index], theirs[name].array, operands, direct)
                        found.counts = found.counts.plus(counts)
                    given[name] = theirs[name].array
                elif mine is not None:
                    given[name] = mine[index]
                if alone is not None:
                    own[name] = alone[index]
                    if name in given and _same(alone[index], given[name]):
                        agreed.add(name)
        for name, output in self.outputs.items():
            if name in theirs and (name in own or not any(found.unknown for found in self.nodes.values())):
                self.compared.add(name)
                self.outputs[name] = _counted(output, own.get(name), theirs[name].array)

    def results(self) -> Iterator[OutputComparison]:
        """The outputs that have elements, and whether differences of single nodes lead to them."""
        reached: set[str] = set()
        for node in self.model.nodes:
            counts = self.nodes[id(node)].counts
            if counts.equal < counts.total or not reached.isdisjoint(node.inputs):
                reached.update(node.outputs)
        return (replace(each, reached=name in reached) for name, each in self.outputs.items() if each.outputs)

    def not_compared(self) -> Iterator[str]:
        """Outputs of a file whose nodes differ from those of the source: only what was computed can be compared."""
        unknown = dict.fromkeys(node.operator for node in self.model.nodes if self.nodes[id(node)].unknown)
        why = f": qfmt has no reference for {', '.join(unknown)}" if unknown else ""
        return (f"the output {name} was not compared{why}" for name in self.outputs if name not in self.compared)

    def _before_clamps(self, node: Node, theirs: Mapping[str, Computed]) -> Node:
        """The node, or the one before clamps that the source has as its range: what it rounds, they only clamp."""
        first = node
        for _ in range(MOST_CLAMPS):
            if first.operator not in CLAMPS or first.inputs[0] in theirs or first.inputs[0] not in self._makers:
                break
            first = self._makers[first.inputs[0]]
        return node if first.operator in CLAMPS or len(first.outputs) > 1 else replace(first, outputs=node.outputs)

    def _run(self, node: Node, values: Mapping[str, Array], found: NodeFindings) -> Sequence[Array] | None:
        """The outputs of a node for these values; None, and the reason in `found`, if it cannot be run."""
        operands = self._operands(node, values)
        found.unknown = node.operator not in OPERATORS
        if operands is None or found.unknown:
            return None
        try:
            with self._memory.spent():
                return execute(node, operands, [self.model.tensors[name] for name in node.outputs])
        except MemoryLimitError:  # which says nothing of the file
            raise
        except (QfmtError, ValueError, IndexError, TypeError) as error:  # a file may state shapes that do not fit
            found.fault = error.what if isinstance(error, QfmtError) else str(error)
            return None

    def _operands(self, node: Node, values: Mapping[str, Array]) -> list[Operand | None] | None:
        """None if one of them was never computed."""
        read = {name: values[name] for name in node.inputs if name in values}
        for name in filter(None, node.inputs):
            if name not in read and not self._is_constant(name):
                return None
            if name not in read and name not in self._constants:
                self._constants[name] = self._read(name, node)
        return operands_of(node, ChainMap(read, self._constants), self.model.tensors)

    def _read(self, name: str, node: Node | None = None) -> Array:
        return read_constant(self.model.tensors[name], self._memory, node)

    def _is_constant(self, name: str) -> bool:
        return not name or self.model.tensors[name].is_constant


def _repeated(source: Graph, outputs: Sequence[str]) -> dict[str, str]:
    """The outputs of a file that its source has twice: as the same tensor, or an Identity of it. Each with the first
    output that it repeats. Outputs belong together by position."""
    if len(outputs) != len(source.outputs):
        return {}
    firsts = dict(zip(reversed(source.outputs), reversed(outputs), strict=True))
    nodes = (node for node in source.nodes if known(node) and node.operator == "Identity")
    copied = {node.outputs[0]: node.inputs[0] for node in nodes if node.inputs[0] in firsts}
    repeated = zip(outputs, (firsts[copied.get(name, name)] for name in source.outputs), strict=True)
    return {name: first for name, first in repeated if name != first}


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _same_grid(stated: Quantization | None, theirs: Computed) -> bool:
    """Compare scales as float32, the type that torch computes with. Of other forms than per tensor and per channel the
    engine's grid is not known: the integers are compared, and what is computed from them."""
    if stated is None or not stated.is_affine or not theirs.is_quantized:
        return (stated is None or not stated.is_affine) and not theirs.is_quantized
    scales = np.array_equal(np.array(stated.scale, np.float32), np.array(theirs.scale, np.float32))
    return scales and (stated.each_zero_point, stated.axis) == (theirs.zero_point, theirs.axis)


def _grid(theirs: Computed) -> str:
    if not theirs.is_quantized:
        return "no quantization"
    if theirs.axis is not None:
        return f"other scales or zero points along axis {theirs.axis}"
    return f"scale {theirs.scale[0]:.9g}, zero point {theirs.zero_point[0]}"


def _counted(found: OutputComparison, mine: Array | None, theirs: Array) -> OutputComparison:
    """The counts with those of one more sample."""
    has_classes = theirs.ndim == 2 and theirs.size > 0
    found = replace(
        found,
        outputs=found.outputs + theirs.size,
        argmax_total=found.argmax_total + (len(theirs) if has_classes else 0),
    )
    if mine is None or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return replace(found, outputs=max(found.outputs, 1), largest=float("inf"))
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    return replace(
        found,
        equal=found.equal + int(equal_elements(mine, theirs).sum()),
        largest=max(found.largest, float(distance(a, b).max(initial=0))),
        argmax_equal=found.argmax_equal + (int((a.argmax(1) == b.argmax(1)).sum()) if has_classes else 0),
    )
