"""Compare one file with one source: constants, nodes, the whole network. `verify` runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engines import engine_of
from ..errors import RunError
from ..frontends.isolation.parent import EngineDied
from ..frontends.witness import Computed
from ..model import Quantization, Tensor
from ..notation import unchecked_positions
from ..passes.likely_shapes import example_shapes
from ..progress import counted
from ..urls import Place
from . import random_inputs
from .converted import Converted
from .lowered import Lowered
from .report import Report, WeightComparison
from .words import quantization_words, values_differ, without_single_channel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..arrays import Array


class Comparison:
    """Compares one file with one source: stored data at construction, computed values in `run`.

    `relation` maps the parts of the file to those of the source.
    """

    def __init__(self, relation: Converted | Lowered) -> None:
        self.relation, self.file, self.witness = relation, relation.file, relation.witness
        self.weights: dict[str, WeightComparison] = {}
        for weight in relation.constants():  # a file may have one constant where the source has two: each must be equal
            if self.weights.setdefault(weight.name, weight).ok:
                self.weights[weight.name] = weight
        self.version = self.inputs = self.skipped = ""

    def reread(self) -> None:
        """Compare the same constants with those that another reader reads from the source."""
        for name, theirs in self.witness.constants():
            weight = self.weights.get(self.relation.tensors.get(name, ""))
            if weight is None or (tensor := self.file.tensors.get(weight.name)) is None:
                continue
            if tensor.dtype != self.witness.model.tensors[name].dtype:  # it has another form in the file
                continue
            if self.witness.name not in weight.witnesses:
                self.weights[weight.name] = self._as_reread(weight, theirs)

    def _as_reread(self, weight: WeightComparison, theirs: Computed) -> WeightComparison:
        tensor = self.file.tensors[weight.name]
        mine, read, who = tensor.array, theirs.array, f"{self.witness.name} reads"
        if (mine.dtype, mine.size) != (read.dtype, read.size):
            words = [f"{who} a different dtype or shape"]
        else:
            different, _ = values_differ(read, mine)
            words = [f"{who} {different} different values"] if different else []
        if tensor.quantization is not None and self._states_grid(tensor, theirs):
            limits = tensor.quantization.quant_min, tensor.quantization.quant_max
            stated = Quantization.of(theirs.scale, theirs.zero_point, *limits, theirs.axis)
            grids = without_single_channel(stated), without_single_channel(tensor.quantization)
            words += [f"{who} {word}" for word in quantization_words(*grids)]
        if not weight.ok:  # differences from the conversion are already reported
            words = []
        witnesses = (*weight.witnesses, self.witness.name)
        return replace(weight, differences=(*weight.differences, *words), witnesses=witnesses)

    def _states_grid(self, tensor: Tensor, theirs: Computed) -> bool:
        """Whether the source must state the quantization of a constant: it may also compute with the scales."""
        if isinstance(self.relation, Converted):
            return self.relation.pairing.b.tensors[tensor.name].quantization is not None
        return theirs.is_quantized

    def run(self, inputs: Mapping[str, ArrayLike] | None, count: int, shapes: Mapping[str, Sequence[int]]) -> None:
        """Compare nodes and outputs, on given inputs or on pseudo-random ones."""
        if inputs is not None:
            given = self.relation.given(inputs)
            self.inputs = f"as given: {_sizes({name: array.shape for name, array in given.items()})}"
            self.relation.sample(given, self.relation.theirs(given))
            return
        chosen, values = self._fitting(shapes)
        self.inputs = f"{count} pseudo-random (seed {random_inputs.SEED}): {_sizes(chosen)}"
        samples = self._drawn(chosen, count)
        for index, drawn in enumerate(counted(samples, f"running {self.witness.name}", count, "samples")):
            self.relation.sample(drawn, values if index == 0 else self.relation.theirs(drawn))

    def _fitting(self, given: Mapping[str, Sequence[int]]) -> tuple[dict[str, tuple[int, ...]], dict[str, Computed]]:
        """The most likely input shapes with which the source runs, and its values for the first sample."""
        refused: RunError | None = None
        stated = example_shapes(self.file)
        examples = self.witness.example_shapes() or [stated.get(name) for name in self.file.graph.inputs]
        for chosen in random_inputs.shapes(self.relation.takes, given, examples):
            values = self._tried(chosen)
            if not isinstance(values, RunError):
                return chosen, values
            refused = refused or values
        assert refused is not None
        refused.hint = refused.hint or "set the sizes of inputs with --input-shape"
        raise refused

    def _drawn(self, shapes: dict[str, tuple[int, ...]], count: int) -> Iterator[dict[str, Array]]:
        relation = self.relation
        form = self.file.graph if relation.foreign else None
        return random_inputs.draw(relation.takes, shapes, count, self.witness.engine, form)

    def _tried(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Computed] | RunError:
        try:
            return self.relation.theirs(next(self._drawn(shapes, 1)))
        except EngineDied:
            raise
        except RunError as error:
            return error

    def report(self, source: Place) -> Report:
        relation, nodes = self.relation, tuple(self.relation.nodes())
        sources = self.file.source.get("sha256"), self.witness.model.source.get("sha256")
        positions = self.witness.model.source.get("unchecked_positions")
        return Report(
            source=str(source),
            engine=self.witness.engine,
            version=self.version,
            same_source=None if relation.foreign or None in sources else sources[0] == sources[1],
            inputs=self.inputs,
            weights=tuple(self.weights.values()),
            nodes=nodes,
            outputs=tuple(relation.side_by_side.results()),
            missing=tuple(relation.missing()),
            interface=tuple(relation.interface(bool(self.skipped))),
            skipped=self.skipped,
            lowered_anew=None if self.skipped else relation.is_lowered_anew,
            notes=(*relation.notes, *([unchecked_positions(positions)] if positions else [])),
            beyond=() if self.skipped else tuple(relation.beyond()),
            uncompared=relation.uncompared,
            unpaired=relation.unpaired,
            other_form=relation.foreign,
            integer_only=relation.integer_only,
            rules_compared=self.file.engine in ("", engine_of(self.witness.engine)) and not relation.foreign,
        )


def _sizes(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} [{','.join(map(str, shape))}]" for name, shape in shapes.items())
