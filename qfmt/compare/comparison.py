"""One file beside one source: constants, nodes, the network as a whole. `verify` carries it through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..arithmetic import dequantize
from ..arrays import Array
from ..engines import engine_of
from ..errors import RunError
from ..frontends.isolation.parent import EngineDied
from ..frontends.witness import Computed, integers_of
from ..interpreter import checked_inputs
from ..model import Model
from . import random_inputs
from .beside import BesideRule, completed
from .difference import Pairing, node_name, read_by
from .report import NodeComparison, OutputComparison, Report, WeightComparison
from .running import SideBySide
from .words import quantization_words, values_differ

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..frontends.witness import Witness


LISTED = 3
"""The most kinds of differences that a note lists."""


class Comparison:
    """One file beside one source; what is stored and stated is compared at once, the rest when it can be run.

    `foreign`: one of the two is ONNX, and the other is not, nor was it made of it. Nodes are spelled otherwise there,
    and constants, so only what is computed counts. `rules`: the source with the rules of the engine, where the file
    states those of another.
    """

    integer_only = False

    def __init__(self, file: Model, witness: Witness, *, foreign: bool = False, rules: Model | None = None) -> None:
        self.file, self.witness, self.foreign, self.rules = file, witness, foreign, rules
        self.pairing = Pairing(witness.model.graph, file.graph, ("source", "file"))
        self.tensors = self._paired()
        """Tensor of the source → tensor of the file."""
        self.takes = file
        """The network whose inputs are given or drawn."""
        self.weights = {weight.name: weight for weight in self._constants()}
        self.side_by_side = SideBySide(file, witness.engine)
        if rules is not None:
            names = {theirs: mine for mine, theirs in self.tensors.items()}
            self.side_by_side = self.beside = BesideRule(file, rules, witness.engine, names)
        self.version = self.inputs = self.skipped = ""
        self.notes: list[str] = []
        self._spelled: Counter[str] = Counter()
        """What nodes of a foreign file state otherwise, and how many do."""

    def _paired(self) -> dict[str, str]:
        if not self.foreign:
            return self.pairing.tensors
        paired = dict(self.pairing.tensors)
        for mine, theirs in zip(self.witness.model.graph.outputs, self.file.graph.outputs, strict=False):
            if mine not in paired and theirs not in paired.values():
                paired[mine] = theirs
        return paired

    def _constants(self) -> Iterator[WeightComparison]:
        """Constants, and inputs that are declared otherwise, against the fresh conversion."""
        readers = read_by(self.file.graph)
        for found in self.pairing.tensor_differences(provenance=False):
            name = found.other or found.name
            if found.is_equal and name in self.file.graph.inputs:
                continue
            if self.foreign and not self._is_comparable(found.name, found.other):
                continue
            counts = (found.elements, found.different, found.largest)
            yield WeightComparison(name, tuple(readers.get(name, ())), *counts, found.words, ("conversion",))

    def _is_comparable(self, mine: str, theirs: str) -> bool:
        """Whether a tensor of the source and one of a foreign file are constants of one type, with the same meaning."""
        if not theirs or mine not in self.witness.model.tensors:
            return False
        a, b = self.witness.model.tensors[mine], self.file.tensors[theirs]
        return (
            a.is_constant and b.is_constant and (a.dtype, a.quantization is None) == (b.dtype, b.quantization is None)
        )

    def reread(self) -> None:
        """The same constants, against what another reader makes of the source."""
        for name, theirs in self.witness.constants():
            weight = self.weights.get(self.tensors.get(name, ""))
            if weight is not None and self.witness.name not in weight.witnesses:
                self.weights[weight.name] = self._as_reread(weight, theirs)

    def _as_reread(self, weight: WeightComparison, theirs: Computed) -> WeightComparison:
        tensor = self.file.tensors[weight.name]
        mine, read, who = tensor.array, theirs.array, f"{self.witness.name} reads"
        if (mine.dtype, mine.size) != (read.dtype, read.size):
            words = [f"{who} a different dtype or shape"]
        else:
            different, _ = values_differ(read, mine)
            words = [f"{who} {different} different values"] if different else []
        if tensor.quantization is not None and (theirs.is_quantized or not self.integer_only):
            stated = replace(tensor.quantization, scale=theirs.scale, zero_point=theirs.zero_point, axis=theirs.axis)
            words += [f"{who} {word}" for word in quantization_words(stated, tensor.quantization)]
        if not weight.ok:  # what differs from the conversion has been said
            words = []
        witnesses = (*weight.witnesses, self.witness.name)
        return replace(weight, differences=(*weight.differences, *words), witnesses=witnesses)

    def has_same_inputs(self) -> bool:
        """Whether file and source can be run on the same arrays."""
        mine, theirs = self.witness.model.graph.inputs, self.file.graph.inputs
        return len(mine) == len(theirs) and all(self.weights[name].ok for name in theirs if name in self.weights)

    def run(self, inputs: Mapping[str, ArrayLike] | None, count: int, shapes: Mapping[str, Sequence[int]]) -> None:
        """Nodes and outputs, on inputs as given or on pseudo-random ones."""
        if inputs is not None:
            given = self.given(inputs)
            self.inputs = f"as given: {_sizes({name: array.shape for name, array in given.items()})}"
            self.sample(given, self._theirs(given))
            return
        chosen, values = self._fitting(shapes)
        self.inputs = f"{count} pseudo-random (seed {random_inputs.SEED}): {_sizes(chosen)}"
        for index, drawn in enumerate(random_inputs.draw(self.takes, chosen, count, self.witness.engine)):
            self.sample(drawn, values if index == 0 else self._theirs(drawn))

    def given(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Arrays from the caller, checked."""
        return checked_inputs(self.takes, inputs)

    def sample(self, inputs: Mapping[str, Array], theirs: Mapping[str, Computed]) -> None:
        """Run the file on one sample, of which the source's values are known."""
        self.side_by_side.sample(inputs, theirs)

    def _fitting(self, given: Mapping[str, Sequence[int]]) -> tuple[dict[str, tuple[int, ...]], dict[str, Computed]]:
        """The likeliest shapes that the source can be run on, and what it computes from the first sample."""
        refused: RunError | None = None
        for chosen in random_inputs.shapes(self.takes, given, self.witness.example_shapes()):
            values = self._tried(chosen)
            if not isinstance(values, RunError):
                return chosen, values
            refused = refused or values
        assert refused is not None
        refused.hint = refused.hint or "set the sizes of inputs with --input-shape"
        raise refused

    def _tried(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Computed] | RunError:
        try:
            return self._theirs(next(random_inputs.draw(self.takes, shapes, 1, self.witness.engine)))
        except EngineDied:
            raise
        except RunError as error:
            return error

    def _theirs(self, inputs: Mapping[str, Array]) -> dict[str, Computed]:
        """What the source computes, by the names of the file."""
        names = zip(self.witness.model.graph.inputs, self.file.graph.inputs, strict=True)
        given = {mine: inputs[theirs] for mine, theirs in names}
        seen = self.witness.run(given)
        if self.rules is not None:
            self.beside.values = completed(self.rules, given, seen)
        found = {self.tensors[name]: (name, value) for name, value in seen.items() if name in self.tensors}
        return {name: value for name, (mine, each) in found.items() if (value := self._in_terms(name, mine, each))}

    def _in_terms(self, name: str, mine: str, value: Computed) -> Computed | None:
        """What the source computes, as the file has it: a foreign one may move integers where the source moves the real
        numbers that they represent, or the reverse. None if it has something else."""
        grid, own = self.file.tensors[name].quantization, self.witness.model.tensors[mine].quantization
        if not self.foreign or (grid is None) == (own is None):
            return value
        if grid is None:
            return None if own is None or own.is_blocked else Computed(dequantize(value.array, own))
        return integers_of(value.array, self.file.tensors[name])

    def report(self, path: Path) -> Report:
        nodes, missing = tuple(self._nodes()), tuple(self._missing())
        if self._spelled:
            self.notes.append(f"source and file state these differently, which is allowed: {_most(self._spelled)}")
        sources = self.file.source.get("sha256"), self.witness.model.source.get("sha256")
        return Report(
            source=str(path),
            engine=self.witness.engine,
            version=self.version,
            same_source=None if self.foreign or None in sources else sources[0] == sources[1],
            inputs=self.inputs,
            weights=tuple(self.weights.values()),
            nodes=nodes,
            outputs=tuple(self._outputs()),
            missing=missing,
            interface=tuple(self._interface()),
            skipped=self.skipped,
            notes=tuple(self.notes),
            beyond=() if self.skipped else tuple(self._beyond()),
            integer_only=self.integer_only,
            rules_compared=self.file.engine in ("", engine_of(self.witness.engine)) and not self.foreign,
        )

    def _beyond(self) -> Iterator[str]:
        """Outputs of the source that the file ends before: none, unless it was lowered up to another tensor."""
        return iter(())

    def _missing(self) -> Iterator[str]:
        """Nodes that only the source has."""
        for mine, theirs in self.pairing.nodes:
            if mine is not None and theirs is None and not self.foreign:
                yield f"{node_name(mine)} ({mine.operator})"

    def _interface(self) -> Iterator[str]:
        """Outputs that are others, in another order, or not compared. A foreign file may have other inputs, too."""
        source, file = self.witness.model.graph, self.file.graph
        if self.foreign and len(source.inputs) != len(file.inputs):
            yield f"the network's inputs {', '.join(source.inputs)} → {', '.join(file.inputs)}"
        wanted = [self.tensors.get(name, name) for name in source.outputs]
        if wanted != list(file.outputs):
            yield f"the network's outputs {', '.join(wanted)} → {', '.join(file.outputs)}"
        if self.foreign:
            yield from self._not_compared()

    def _not_compared(self) -> Iterator[str]:
        """Outputs of a file whose nodes differ from those of the source: only what was computed can be compared."""
        if not self.skipped:
            for name in self.side_by_side.outputs:
                if name not in self.side_by_side.compared:
                    yield f"the output {name} was not compared"

    def _nodes(self) -> Iterator[NodeComparison]:
        missing = {node_name(mine) for mine, theirs in self.pairing.nodes if mine is not None and theirs is None}
        for found in self.pairing.node_differences(provenance=False):
            if found.name in missing:
                continue
            ran = self.side_by_side.nodes[found.name]
            if ran.unknown:
                self.notes.append(f"{found.name} was not run: qfmt has no reference for {found.operator}")
            stated = () if self.foreign else found.words
            if self.foreign:
                self._spelled.update(found.words)
            words = (*stated, ran.fault) if ran.fault and not stated else stated
            counts = ran.counts
            yield NodeComparison(found.name, found.operator, counts.total, *counts, words)

    def _outputs(self) -> Iterator[OutputComparison]:
        for name, found in self.side_by_side.outputs.items():
            if found.outputs:
                yield OutputComparison(name, **asdict(found))


def _most(words: Counter[str]) -> str:
    listed = [f"{word} ({count}×)" for word, count in words.most_common(LISTED)]
    return "; ".join([*listed, *(["…"] if len(words) > LISTED else [])])


def _sizes(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} [{','.join(map(str, shape))}]" for name, shape in shapes.items())
