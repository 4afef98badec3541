"""Compares an integer-only file with its source: each common tensor, judged by the rule that it was lowered from.

Its nodes are not those of the source: sums, then a requantization. Their inputs are the source's values of the same
name, or the file's own results if the source has no such tensor (sums).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..arithmetic import dequantize, quantize
from ..arrays import Array
from ..content import OF_INPUTS
from ..errors import MemoryLimitError, QfmtError, RunError, some
from ..frontends.witness import Computed, computed
from ..interpreter import checked_inputs, operands_of
from ..model import DTYPES, Graph, Model, Node, Tensor, numpy_dtype, static_shape
from ..ops.rescaling import channels_of
from ..passes.edits import rename
from ..threads import cached_property
from .difference import Pairing
from .judges import BySource, referred
from .random_inputs import as_taken
from .report import NodeComparison, WeightComparison
from .side_by_side import SideBySide
from .words import changed, quantization_words, tensor_words, values_differ

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ..frontends.witness import Witness

ENGINE, KEY, SOURCE_KEY = "integer", "integer_only", "lowered_from"


MOVED, CENTRED = ".quantized", ".centred"
"""Suffixes that the lowering appends to moved real numbers that become integers, and to weights minus their zero
point."""

_NUMBERED = re.compile(rf"{re.escape(MOVED)}(_\d+)?$")
"""The same if multiple quantizers read the real numbers."""


def is_lowered(file: Model) -> bool:
    return file.engine == ENGINE or KEY in file.source


def likenesses(file: Model, shapes: Mapping[str, Sequence[int]]) -> Iterator[Model]:
    """The possible engines and inputs of the conversion before the lowering, most likely first: float inputs,
    integers as in the file, unknown. `shapes` are those that the user states, for inputs of the file or the source."""
    before = file.replace(engine=file.source.get(SOURCE_KEY, ""))
    inputs = dict[str, Tensor]()
    for name in file.graph.inputs:
        if (tensor := file.tensors[name]).quantization is not None:
            tensor = replace(tensor, name=real_name(name), dtype="float32", quantization=None)
        inputs.setdefault(tensor.name, tensor)  # which multiple quantizers may read
    for name, shape in shapes.items():
        if name not in file.graph.inputs:
            inputs[name] = Tensor(name, "float32", (*shape,))
    yield before.replace(graph=replace(file.graph, inputs=(*inputs,), tensors={**file.graph.tensors, **inputs}))
    yield before
    yield before.replace(graph=replace(file.graph, inputs=()))


def same_tensor(name: str, source: Graph, file: Graph) -> bool:
    """Whether a tensor of the file is a tensor of the source. The source may not state its quantization, as in an
    integer-only ONNX network."""
    return _is_same(file.tensors[name], source.tensors.get(name))


def _is_same(mine: Tensor, theirs: Tensor | None) -> bool:
    if theirs is None or theirs.dtype != mine.dtype:
        return False
    if theirs.quantization is None:
        return mine.quantization is None or DTYPES[mine.dtype].is_integer
    return theirs.quantization.same_grid(mine.quantization)


def real_name(name: str) -> str:
    """The name of the real numbers, of that of the integers that they became."""
    return _NUMBERED.sub("", name)


def moved_from(name: str, source: Graph, file: Graph) -> str:
    """The float tensor of the source that a tensor of the file contains as integers; "" if there is none."""
    real = real_name(name)
    is_real = real in source.tensors and DTYPES[source.tensors[real].dtype].kind == "f"
    return real if is_real and file.tensors[name].quantization is not None else ""


def has_inputs_of(source: Model, file: Model) -> bool:
    """Whether all inputs of the file are tensors of the source."""
    graphs = source.graph, file.graph
    return all(same_tensor(name, *graphs) or moved_from(name, *graphs) for name in file.graph.inputs)


def inputs_inside(source: Graph, file: Graph) -> list[str]:
    """The inputs of a file that the source computes: of an integer-only ONNX model, which states no grids."""
    made, names = source.producers(), {name: real_name(name) for name in file.inputs}
    return [
        name
        for name, real in names.items()
        if real in made and _are_integers_of(source.tensors[real], file.tensors[name])
    ]


def _are_integers_of(tensor: Tensor, other: Tensor) -> bool:
    """Whether another tensor, whose grid is not stated, has the name and type of the integers of a quantized tensor, or
    of moved reals."""
    if other.quantization is not None:
        return False
    if other.name == tensor.name:
        return tensor.quantization is not None and tensor.dtype == other.dtype
    return DTYPES[tensor.dtype].kind == "f" and DTYPES[other.dtype].is_integer


def as_named_in(source: Graph, file: Model) -> Model:
    """A file in which tensors of the source were renamed (`Model.rename`), with the source's names."""
    others = (tensor for tensor in file.tensors.values() if not same_tensor(tensor.name, source, file.graph))
    names = {
        alias: tensor.name
        for tensor in others
        for alias in tensor.aliases
        if alias not in file.tensors and _is_rather(alias, tensor, source)
    }
    return rename(file, {name: alias for alias, name in names.items()})


def _is_rather(alias: str, tensor: Tensor, source: Graph) -> bool:
    """Whether an alias is the source's name of a tensor of the file, rather than the tensor's own name."""
    own, other = (real_name(name).removesuffix(CENTRED) in source.tensors for name in (tensor.name, alias))
    return _is_same(tensor, source.tensors.get(alias)) or (other and not own)


class Lowered:
    """Relates an integer-only file to its source, as `Converted` does for other files. Inputs are those of the
    source. `rules` is the source converted with the rules of the engine that runs it, if the file was lowered from the
    rules of another engine."""

    integer_only, foreign = True, False
    uncompared: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()

    def __init__(self, file: Model, witness: Witness, rules: Model | None = None) -> None:
        self.file, self.witness = file, witness
        graphs = witness.model.graph, file.graph
        self.tensors = {name: name for name in file.tensors if same_tensor(name, *graphs)}
        form = IntegerForm(file, witness.model, lambda: self._again)
        source = rules or witness.model
        self.by_source = BySource(file, source, witness.model, witness.engine, self.tensors, form.states)
        self.side_by_side = SideBySide(file, self.by_source, graphs[0])
        self.takes = as_taken(witness.model, self._inputs_of_source(), file)
        self.notes: list[str] = []

    @cached_property
    def _made_by(self) -> dict[str, Node]:
        return self.witness.model.graph.producers()

    def _inputs_of_source(self) -> dict[str, str]:
        """Input of the source → input of the file that is made from it."""
        found = {}
        for name in self.file.graph.inputs:
            origin = name if name in self.tensors else real_name(name)
            while origin in self._made_by and self._made_by[origin].inputs:
                origin = self._made_by[origin].inputs[0]
            found[origin] = name
        return found

    # -- what is stored ----------------------------------------------------------------------------------------

    def constants(self) -> Iterator[WeightComparison]:
        """Compare weights that both have. For other weights, the nodes that read them are compared."""
        readers = self.file.graph.readers()
        for tensor in self.file.graph.constants():
            source = self.witness.model.tensors.get(tensor.name.removesuffix(CENTRED))
            if source is None or not source.is_constant:
                continue
            stated = tensor if source.quantization is not None else replace(tensor, quantization=None)
            words = tuple(tensor_words(source, stated, False)) if source.name == tensor.name else ()
            different, largest = 0, 0.0
            theirs = source.array if source.name == tensor.name else _centred(source).astype(tensor.array.dtype)
            if (theirs.dtype, theirs.shape) == (tensor.array.dtype, tensor.array.shape):
                different, largest = values_differ(theirs, tensor.array)
            elements = prod(static_shape(tensor))
            read = tuple(node.label for node in readers.get(tensor.name, ()))
            yield WeightComparison(tensor.name, read, elements, different, largest, words, ("conversion",))

    # -- what is computed --------------------------------------------------------------------------------------

    def has_same_inputs(self, weights: Mapping[str, WeightComparison]) -> bool:
        return has_inputs_of(self.witness.model, self.file)

    def given(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Inputs of the source, given directly or as the integer inputs of the file."""
        ends = {mine: origin for origin, mine in self._inputs_of_source().items()}
        real: dict[str, ArrayLike] = {}
        for given, values in inputs.items():
            tensor = None if given in self.takes.graph.inputs else self.file.graph.find(given)
            name = tensor.name if tensor else given
            origin = ends.get(name, name)
            if origin not in self.takes.graph.inputs:
                self.notes.append(f"ignored, because not an input: {given}")
                continue
            grid = self.file.tensors[name].quantization if name in ends else None
            is_real = DTYPES[self.takes.tensors[origin].dtype].kind == "f"
            if grid is not None and is_real and np.asarray(values).dtype == numpy_dtype(self.file.tensors[name].dtype):
                values = dequantize(np.asarray(values), grid)
            real[origin] = values
        return checked_inputs(self.takes, real)

    def sample(self, inputs: Mapping[str, Array], theirs: Mapping[str, Computed]) -> None:
        if lost := [name for name in self.file.graph.inputs if name not in theirs]:
            raise RunError(f"the source does not compute {some(lost)}, which the file takes as input")
        taken = {name: theirs[name].array for name in self.file.graph.inputs}
        self.side_by_side.sample(checked_inputs(self.file, taken), theirs)

    def theirs(self, inputs: Mapping[str, Array]) -> dict[str, Computed]:
        """The values that the source computes, completed by the reference."""
        seen = dict(self.witness.run(inputs))
        self.by_source.take(inputs, seen)
        return _known(self.witness.model, self.file, self.by_source.values, seen)

    @cached_property
    def _again(self) -> Model | None:
        """The source, lowered as the file states; None if that is not possible."""
        from ..passes.lowering import EXACT, lower_as
        from ..passes.sizes import with_input_shapes

        source, graph, file = self.witness.model, self.witness.model.graph, self.file.graph
        shapes = {name: self.takes.tensors[name].shape for name in graph.inputs}
        given = {name: shape for name, shape in shapes.items() if shape and shape != graph.tensors[name].shape}
        ends = [name if name in self.tensors else moved_from(name, graph, file) for name in file.outputs]
        try:
            whole = source.replace(graph=with_input_shapes(graph, given)) if given else source
            return lower_as(whole, self.file.source.get(KEY, EXACT), [name for name in ends if name])
        except MemoryLimitError:  # which says nothing of the source
            raise
        except QfmtError as error:
            what = "could not compare with a fresh lowering, nor check the differences that the file states"
            self.notes.append(f"{what}: the source {error.what}")
            return None

    @cached_property
    def is_lowered_anew(self) -> bool:
        """Whether the file is what the lowering makes of the source. If not, the samples do not show everything: a
        multiplier or a threshold counts for few sums."""
        if self._again is None:
            return False
        pairing = Pairing(self._again.graph, self.file.graph)
        other = [node.name for node in pairing.node_differences(provenance=False) if node.words]
        other += [each.name for each in pairing.tensor_differences(provenance=False) if not each.is_equal]
        pairs = ((mine, theirs) for mine, theirs in pairing.nodes if mine is not None and theirs is not None)
        other += [f"the proof of {file.label}" for made, file in pairs if file.proof not in (None, made.proof)]
        ends = [pairing.tensors.get(name, name) for name in self._again.graph.outputs]
        other += ["its outputs"] if ends != [*self.file.graph.outputs] else []
        other += [f"its {key}" for key in OF_INPUTS if self._again.source.get(key) != self.file.source.get(key)]
        if other:
            self.notes.append(f"differs from a fresh lowering of the source in {some(other)}")
        return not other

    # -- the report --------------------------------------------------------------------------------------------

    def interface(self, skipped: bool) -> Iterator[str]:
        """Inputs and outputs that are not tensors of the source. The file may end before the source does."""
        source, file = self.witness.model.graph, self.file.graph
        for name in file.inputs:
            if not same_tensor(name, source, file) and not moved_from(name, source, file):
                yield f"the input {name} is not a tensor of the source"
        yield from () if skipped else (f"the output {name} is not a tensor of the source" for name in self.unknown())
        made = self._inputs_of_source()
        inputs = [made[name] for name in source.inputs if name in made]
        given = [name for name in file.inputs if name in {*made.values()}]
        if inputs != given:  # arrays are passed by position to C programs and to the modules of `to_torch`
            yield f"the network's inputs {', '.join(inputs)} → {', '.join(given)}"
        wanted = [*filter(None, map(self._end, source.outputs))]
        ends_early = any(self.beyond())  # then its outputs are what the source goes on with
        given = [name for name in file.outputs if name in wanted or not ends_early]
        if others := [name for name in file.outputs if name not in given]:
            self.notes.append(f"outputs that are inside the source: {some(others)}")
        if given not in (wanted, [*dict.fromkeys(wanted)]):  # reals and their integers may be one output
            yield f"the network's outputs {', '.join(wanted)} → {', '.join(given)}"
        if skipped:
            return
        yield from self.side_by_side.not_compared()
        if not any(found.counts.total for found in self.side_by_side.nodes.values()):
            yield from (f"no node was compared, and the output {name} is not in the file" for name in self.beyond())

    def unknown(self) -> list[str]:
        """Outputs of the file that are not tensors of the source."""
        graphs = self.witness.model.graph, self.file.graph
        return [name for name in self.file.graph.outputs if name not in self.tensors and not moved_from(name, *graphs)]

    def beyond(self) -> Iterator[str]:
        """Outputs of the source that the file does not compute, because it ends earlier."""
        return (name for name in self.witness.model.graph.outputs if not self._end(name))

    def _end(self, name: str) -> str:
        """The output of the file that is an output of the source, or the integers behind it; "" if there is none."""
        node = self._made_by.get(name)
        integers = node.inputs[0] if node is not None and node.operator == "DequantizeLinear" else name
        return next((each for each in (name, integers, name + MOVED) if each in self.file.graph.outputs), "")

    def missing(self) -> Iterator[str]:
        """None: the nodes differ, and a file may end early."""
        return iter(())

    def nodes(self) -> Iterator[NodeComparison]:
        for node in self.file.nodes:
            ran = self.side_by_side.nodes[id(node)]
            words = (*self._grids(node), *((ran.fault,) if ran.fault else ()))
            yield NodeComparison(node.label, node.operator, ran.counts.total, *ran.counts, words)

    def _grids(self, node: Node) -> Iterator[str]:
        """What a node states of tensors of the source that differs from the source."""
        for name in node.outputs:
            mine, theirs = self.file.tensors[name], self.witness.model.graph.tensors.get(name)
            if theirs is not None and theirs.quantization is not None:
                yield from changed("dtype", theirs.dtype, mine.dtype)
                yield from quantization_words(theirs.quantization, mine.quantization)


class IntegerForm:
    """Finds the differences that an integer-only file states: where it allows them, and where the source, lowered
    again in the same form, has the same integers. The file determines only the form. `source` has the rules that the
    file was lowered from."""

    def __init__(self, file: Model, source: Model, lower: Callable[[], Model | None]) -> None:
        self.file, self.source, self.lower = file, source, lower
        self._values: Mapping[str, Array] | None = None
        self._anew: dict[str, Array] = {}

    def states(self, node: Node, own: str, mine: Array, ruled: Array, values: Mapping[str, Array]) -> Array:
        """Where an output is as the file states. `ruled` is the output by the rule that the file was lowered from."""
        allowed = self._allowed(node, mine.shape)
        stated: Array = np.abs(mine.astype(np.int64) - ruled) <= allowed
        if not allowed.any():
            return stated
        if self._values is not values:
            self._values, self._anew = values, self._lowered_values(values)
        anew = self._anew.get(own)
        if anew is None or anew.shape != mine.shape:
            return np.zeros(mine.shape, bool)
        stated &= mine == anew
        return stated

    def _lowered_values(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The results of each node of the source, lowered again, for the source's values."""
        again = self.lower()
        if again is None:
            return {}
        known = _known(self.source, again, values, {})
        given = {name: value.array for name, value in known.items()}
        found: dict[str, Array] = {}
        for node in again.nodes:
            tensors = again.tensors
            made = referred(node, operands_of(node, given, tensors), [tensors[name] for name in node.outputs])
            if made is None:
                break
            for name, array in zip(node.outputs, made, strict=True):
                found[name] = array
                given.setdefault(name, array)
        return found

    def _allowed(self, node: Node, shape: tuple[int, ...]) -> Array:
        """The largest difference from the rule that a node states, per channel of its output."""
        if node.proof is None or not node.proof.differs:
            return np.zeros((), np.int64)
        differs = np.array(node.proof.differs)
        allowed = np.where(differs > 0, node.proof.largest, 0)
        if "axis" in node.attributes:
            axis: int | None = node.int("axis")
        else:  # RequantShift
            axis = channels_of([self.file.tensors[name].shape or () for name in node.inputs[1:]], len(shape))
        if axis is None or shape[axis : axis + 1] != differs.shape:  # one for all, or not one per channel
            return np.asarray(allowed.min())
        return allowed.reshape([-1 if each == axis else 1 for each in range(len(shape))])


def _known(
    source: Model, lowered: Model, values: Mapping[str, Array], seen: Mapping[str, Computed]
) -> dict[str, Computed]:
    """The values of the source as integers, by the names of the lowered network."""
    found = {}
    for name, tensor in lowered.tensors.items():
        if name in values and same_tensor(name, source.graph, lowered.graph):
            value = seen.get(name)
            found[name] = value if value and value.is_quantized else computed(values[name], tensor)
        elif (real := moved_from(name, source.graph, lowered.graph)) in values:
            assert tensor.quantization is not None
            integers = quantize(values[real], tensor.quantization, numpy_dtype(tensor.dtype), "divide")
            found[name] = computed(integers, tensor)
    return found


def _centred(weight: Tensor) -> Array:
    grid = weight.quantization
    points = 0 if grid is None else grid.zero_points(weight.array.shape)
    centred: Array = weight.array.astype(np.int64) - points
    return centred
