"""Relates a converted file to its source. Their nodes may have different forms, for example if only one is ONNX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..arithmetic import dequantize, f32
from ..arrays import Array
from ..content import OF_INPUTS
from ..frontends.witness import Computed, computed, integers_of
from ..interpreter import checked_inputs
from ..model import DTYPES, Graph, Model, Quantization, Tensor, numpy_dtype, static_shape
from ..ops import known
from ..ops.accumulation import QUANTIZED
from ..passes.edits import with_inputs
from .difference import Pairing
from .judges import BySource, by_file, in_type, recurrent_tensors
from .onnx_form import FLOATS, in_form_of_onnx, in_terms_of_onnx, in_types_of, means_itself, stating
from .random_inputs import as_taken
from .report import NodeComparison, WeightComparison
from .side_by_side import SideBySide
from .words import NOWHERE, changed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..frontends.witness import Witness

LISTED = 3
"""The most kinds of differences that a note lists."""


class Converted:
    """Relates a file to the source that it was converted from. `Lowered` has the same interface.

    `foreign`: one of the two is ONNX, and the other neither is ONNX nor was made from it; or qfmt wrote only one of two
    ONNX models. Their nodes and constants have other forms, so only computed values count. `rules`: the source with the
    rules of the engine, and with those that the file states, if these are of another engine.
    """

    integer_only = False
    is_lowered_anew: bool | None = None

    def __init__(
        self, file: Model, witness: Witness, *, foreign: bool = False, rules: tuple[Model, Model] | None = None
    ) -> None:
        self.file, self.witness, self.foreign = file, witness, foreign
        a, b = witness.model.graph, file.graph
        if foreign and witness.name == "onnx":
            b, a = in_form_of_onnx(file, in_types_of(witness.model, file).graph, file)
        elif foreign:
            a, b = in_form_of_onnx(in_terms_of_onnx(witness.model, file), b, rules[1] if rules else witness.model)
        self.pairing = Pairing(a, b, ("source", "file"))
        self._reads = a.readers(), b.readers()
        self.tensors = self._paired()
        """Tensor of the source → tensor of the file."""
        self.makers = file.graph.producers()
        self.takes = self._asked() if foreign else file
        """The network whose inputs the caller passes, or that are drawn."""
        self.by_source: BySource | None = None
        names = {theirs: mine for mine, theirs in self.tensors.items()}
        if foreign and rules is None:  # nodes that only the file has would prove ties of their own
            rules = witness.model, witness.model
        if rules is not None:
            self.by_source = BySource(file, *rules, witness.engine, names)
        recurrent = recurrent_tensors(witness.model, names)
        engine = "" if witness.name == "qfmt" else witness.engine  # it computes exactly
        self.side_by_side = SideBySide(file, self.by_source or by_file(file, engine, recurrent), witness.model.graph)
        self.notes: list[str] = []
        self.uncompared: tuple[str, ...] = ()
        """Constants of the source that a foreign file has in a form that was not compared, or not with their scales."""
        self.unpaired: tuple[str, ...] = ()
        """Constants that a foreign file reads, and that were compared with none of the source."""

    def _asked(self) -> Model:
        """The source, whose inputs have the file's names. Only its interface ties a foreign file to the source: if the
        file chose the range of the inputs, it could be right for these and wrong for all others."""
        source, inputs = self.witness.model, self.file.graph.inputs
        source = as_taken(source, dict(zip(source.graph.inputs, inputs, strict=False)), self.file)
        return source.replace(graph=with_inputs(source.graph, inputs))

    def _paired(self) -> dict[str, str]:
        """A node that includes the clamp after it has both names: its output is the last of the tensors in the other
        format."""
        if not self.foreign:
            return self.pairing.tensors
        source, file = self.witness.model.graph, self.file.graph
        paired = dict(self.pairing.tensors)
        paired |= {last: name for name, last in _last_named(file, source)} | dict(_last_named(source, file))
        known = {*paired.values()}
        for mine, theirs in zip(source.outputs, file.outputs, strict=False):
            if mine not in paired and theirs not in known:
                paired[mine] = theirs
                known.add(theirs)
        return paired

    def constants(self) -> Iterator[WeightComparison]:
        """Compare constants, and tensors without values whose declarations differ, with the fresh conversion."""
        readers, seen, paired = self.file.graph.readers(), set[str](), set[str]()
        for found in self.pairing.tensor_differences(provenance=False):
            name = found.other or found.name
            if found.is_equal and not self.pairing.b.tensors[name].is_constant:
                continue
            read_by = readers.get(name, ())
            # ONNX needs a scale of 1 where PyTorch has another one that keeps a size: only results count
            resizes = bool(read_by) and all(node.operator == "Resize" for node in read_by)
            if self.foreign and (resizes or not self._is_comparable(found.name, found.other)):
                continue
            if self.foreign and self._states_grids(found.name, name, seen, paired):
                seen.add(found.name)
                paired.add(name)
            counts = (found.elements, found.different, found.largest)
            read = tuple(node.label for node in read_by)
            yield WeightComparison(name, read, *counts, found.words, ("conversion",))

        if self.foreign:
            self.uncompared = tuple(self._unseen(seen))
            counting = _counting(self.pairing.b, self.file)
            self.unpaired = tuple(tensor.name for tensor in counting if tensor.name not in paired)

    def _unseen(self, seen: set[str]) -> Iterator[str]:
        for tensor in _counting(self.pairing.a, self.witness.model):
            if seen.isdisjoint((tensor.name, *tensor.aliases, tensor.name + QUANTIZED)):
                yield tensor.name

    def _states_grids(self, mine: str, theirs: str, seen: set[str], paired: set[str]) -> bool:
        """Whether the scales and zero points of two constants were compared. Where only one of them has some, constants
        of the other graph must hold them, which are compared then, too."""
        a, b = self.pairing.a, self.pairing.b
        for own, here, other, compared in (
            (self.witness.model.tensors.get(mine), a.tensors[mine], b, paired),
            (self.file.tensors.get(theirs), b.tensors[theirs], a, seen),
        ):
            if own is None or own.quantization is None or means_itself(own) or here.quantization is not None:
                continue
            if (held := stating(other, own.dtype, own.quantization)) is None:
                return False
            compared |= held
        return True

    def _is_comparable(self, mine: str, theirs: str) -> bool:
        """Whether a tensor of the source and one of a foreign file are constants of one type, with the same meaning."""
        if not theirs:
            return False
        a, b = self.pairing.a.tensors[mine], self.pairing.b.tensors[theirs]
        if mine in self._reads[0] and theirs not in self._reads[1]:  # the file may read another one
            return False
        return (
            a.is_constant and b.is_constant and (a.dtype, a.quantization is None) == (b.dtype, b.quantization is None)
        )

    def has_same_inputs(self, weights: Mapping[str, WeightComparison]) -> bool:
        """Whether file and source can be run on the same arrays."""
        mine, theirs = self.witness.model.graph.inputs, self.file.graph.inputs
        return len(mine) == len(theirs) and all(weights[name].ok for name in theirs if name in weights)

    def given(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Arrays from the caller, checked."""
        return checked_inputs(self.takes, inputs)

    def sample(self, inputs: Mapping[str, Array], theirs: Mapping[str, Computed]) -> None:
        """Run the file on one sample; `theirs` are the source's values."""
        self.side_by_side.sample(inputs, theirs)

    def theirs(self, inputs: Mapping[str, Array]) -> dict[str, Computed]:
        """The values that the source computes, by the names of the file."""
        names = zip(self.witness.model.graph.inputs, self.file.graph.inputs, strict=True)
        given = {mine: inputs[theirs] for mine, theirs in names}
        seen = self.witness.run(given)
        if self.by_source is not None:
            self.by_source.take(given, seen)
        found = {self.tensors[name]: (name, value) for name, value in seen.items() if name in self.tensors}
        return {name: value for name, (mine, each) in found.items() if (value := self._in_terms(name, mine, each))}

    def _in_terms(self, name: str, mine: str, value: Computed) -> Computed | None:
        """A value of the source in the form of the file. A foreign file may move integers where the source moves the
        real numbers that they represent, or the reverse. None if the values are not comparable, as real numbers that
        the file rounds to integers later."""
        grid, own = self.file.tensors[name].quantization, self.witness.model.tensors[mine].quantization
        if not self.foreign or (grid is None) == (own is None):
            return value if grid is None or not self.foreign else _moved(value, self.file.tensors[name])
        if grid is None:
            if self.file.tensors[name].dtype == value.array.dtype.name:  # integers without a meaning
                return Computed(value.array)
            maker = self.makers.get(name)
            rounds = maker is not None and ((operator := known(maker)) is None or operator.rules)
            return None if own is None or own.is_blocked or rounds else Computed(dequantize(value.array, own))
        return integers_of(value.array, self.file.tensors[name])

    def nodes(self) -> Iterator[NodeComparison]:
        spelled = Counter[str]()
        differences = self.pairing.node_differences(provenance=False)
        own = {id(each): node for each, node in zip(self.pairing.b.nodes, self.file.nodes, strict=True)}
        for (_, each), found in zip(self.pairing.nodes, differences, strict=True):
            if each is None:  # only the source has it
                continue
            node = own[id(each)]
            ran = self.side_by_side.nodes[id(node)]
            if ran.unknown:
                self.notes.append(f"{found.name} was not run: qfmt has no reference for {found.operator}")
            stated = () if self.foreign else found.words
            if self.foreign:
                spelled.update(found.words)
            words = (*stated, ran.fault) if ran.fault and not stated else stated
            yield NodeComparison(found.name, found.operator, ran.counts.total, *ran.counts, words)
        if spelled:
            self.notes.append(f"source and file state these differently, which is allowed: {_most(spelled)}")

    def missing(self) -> Iterator[str]:
        """Nodes that exist only in the source."""
        for mine, theirs in self.pairing.nodes:
            if mine is not None and theirs is None and not self.foreign:
                yield mine.title

    def interface(self, skipped: bool) -> Iterator[str]:
        """Outputs that differ, have another order, or were not compared. A foreign file may also have other
        inputs."""
        source, file = self.witness.model.graph, self.file.graph
        if self.foreign and len(source.inputs) != len(file.inputs):
            yield f"the network's inputs {', '.join(source.inputs)} → {', '.join(file.inputs)}"
        if self.foreign:
            for name, other in zip(source.inputs, file.inputs, strict=False):
                yield from changed(
                    f"the type of the input {other}", source.tensors[name].dtype, file.tensors[other].dtype
                )
            for name, other in zip(source.outputs, file.outputs, strict=False):
                a, b = source.tensors[name], file.tensors[other]
                if not _are_moved(a, b):
                    yield from changed(f"the type of the output {other}", a.dtype, b.dtype)
        for key in () if self.foreign else OF_INPUTS:
            yield from changed(key, *(each.source.get(key, NOWHERE) for each in (self.witness.model, self.file)))
        for what, mine, theirs in (("inputs", source.inputs, file.inputs), ("outputs", source.outputs, file.outputs)):
            if _are_exchanged(mine, theirs):  # arrays go by these names
                yield f"the network's {what} {', '.join(mine)} → {', '.join(theirs)}"
        wanted = [self.tensors.get(name, name) for name in source.outputs]
        if wanted != list(file.outputs):
            yield f"the network's outputs {', '.join(wanted)} → {', '.join(file.outputs)}"
        if self.foreign and not skipped:
            yield from self.side_by_side.not_compared()

    def beyond(self) -> Iterator[str]:
        """Outputs of the source that the file does not compute, because it ends earlier."""
        return iter(())


def _are_moved(one: Tensor, other: Tensor) -> bool:
    """Whether zero points differ as the types do, which have as many bits: ONNX may store uint8 as int8."""

    def points(tensor: Tensor, grid: Quantization) -> list[float]:
        return [point - DTYPES[tensor.dtype].minimum for point in grid.each_zero_point]

    a, b = one.quantization, other.quantization
    same_bits = DTYPES[one.dtype].bits == DTYPES[other.dtype].bits
    return same_bits and a is not None and b is not None and points(one, a) == points(other, b)


def _are_exchanged(mine: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether names of one network stand at other positions in another one; if that has fewer, in another order."""
    known, common = {*mine}, {*mine} & {*theirs}
    if len(mine) != len(theirs):
        mine, theirs = ([name for name in names if name in common] for names in (mine, theirs))
    return any(one != other and other in known for one, other in zip(mine, theirs, strict=False))


def _counting(graph: Graph, model: Model) -> Iterator[Tensor]:
    """The constants of a graph that must be compared: those that nodes read and that `model` states a quantization for,
    and floats. Constants of a Resize may have another form in ONNX."""
    readers = graph.readers()
    for tensor in graph.constants():
        own = model.tensors.get(tensor.name, tensor)
        floats = tensor.dtype in FLOATS and prod(static_shape(tensor)) > 1
        resizes = all(node.operator == "Resize" for node in readers.get(tensor.name, ()))
        if not resizes and (floats or not means_itself(tensor) or not means_itself(own)):
            yield tensor


def _moved(value: Computed, tensor: Tensor) -> Computed:
    """Integers of the type of the tensor, if the zero point differs as the types do: uint8 may be int8, 128 less. With
    any other zero point, the integers would end at other real numbers."""
    to, dtype = computed(value.array, tensor), numpy_dtype(tensor.dtype)
    offset = DTYPES[tensor.dtype].minimum - DTYPES[value.array.dtype.name].minimum
    same_scale = np.array_equal(np.array(value.scale, f32), np.array(to.scale, f32))  # ONNX has no scales in float64
    if not same_scale or tuple(point + offset for point in value.zero_point) != to.zero_point:
        return value
    moved = in_type(value.array, dtype)
    return to._replace(array=moved) if moved.dtype == dtype else value


def _last_named(a: Graph, b: Graph) -> Iterator[tuple[str, str]]:
    """Computed tensors of a with an alias that b computes, and the last tensor of b with one of their names."""
    order = {name: position for position, node in enumerate(b.nodes) for name in node.outputs if name}
    for node in a.nodes:
        for name in filter(None, node.outputs):
            # A file may list the names of other tensors. To subtract `keys()` would visit all of them.
            aliases = {*a.tensors[name].aliases}.difference(a.tensors)
            if not order.keys().isdisjoint(aliases):
                yield name, max(order.keys() & {name, *aliases}, key=order.__getitem__)


def _most(words: Counter[str]) -> str:
    listed = [f"{word} ({count}×)" for word, count in words.most_common(LISTED)]
    return "; ".join([*listed, *(["…"] if len(words) > LISTED else [])])
