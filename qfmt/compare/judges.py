"""Judges outputs by the node of the source that computes them. It proves ties, and distinguishes differences that
the file states from errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import whole_bias
from ..arrays import Array
from ..errors import QfmtError
from ..interpreter import execute, operands_of
from ..model import DTYPES, Model, Node, Quantization, Tensor, numpy_dtype
from ..ops import Operand
from ..ops.accumulation import unit_of_sums
from .classes import CLAMPS, MOST_CLAMPS, Counts, classify, distance, same_numbers

if TYPE_CHECKING:
    from ..frontends.witness import Computed
    from .side_by_side import Judge

    States = Callable[[Node, str, Array, Array, Mapping[str, Array]], Array]


def by_file(file: Model, engine: str) -> Judge:
    """A judge that uses the nodes of the file."""
    return lambda node, name, mine, theirs, operands, direct: classify(
        node, operands, file.tensors[name], mine, theirs, engine, direct=direct
    )


class BySource:
    """A judge that uses the nodes of a source, whose rules `engine` follows.

    An output that follows the source's rule is judged by it. A different output counts as `stated` if the file
    states the difference, and if the rule yields the engine's result; else it is wrong. A file states a difference
    by the rules of its nodes. For a file with nodes in another form, `states` finds the stated differences: (node,
    name in the source, our output, output by the source's rule, all values of the source). Outputs of operators that
    the source does not have are judged by the file. `names`: tensor of the file → tensor of the source.
    """

    def __init__(
        self, file: Model, source: Model, engine: str, names: Mapping[str, str], states: States | None = None
    ) -> None:
        self.by_file = by_file(file, engine)
        self.file = file
        self.source, self.engine, self.names, self.states = source, engine, names, states
        self.producers, self.makers = source.graph.producers(), file.graph.producers()
        self.values: Mapping[str, Array] = {}
        """All tensors of the source for the current sample."""

    def __call__(
        self, node: Node, name: str, mine: Array, theirs: Array, operands: Sequence[Operand | None], direct: bool
    ) -> Counts:
        asked = node, name, mine, theirs, operands, direct
        own = self.names.get(name, "")
        made, origin, output = self._origin(node, name, own)
        if origin is None or output is None or (self.states is None and origin.operator != made.operator):
            return self.by_file(*asked)
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype) or (mine == theirs).all():
            return self.by_file(*asked)
        if made.rule == origin.rule and DTYPES[mine.dtype.name].kind == "f":  # sums in any order, no rule to state
            return self.by_file(*asked)
        mine, theirs = (in_type(each, numpy_dtype(output.dtype)) for each in (mine, theirs))
        read = known_operands(origin, self.source.tensors, self.values)
        rule = None if read is None else by_node(origin, self.source.tensors, output, read)
        if rule is None or read is None or (rule.shape, rule.dtype) != (mine.shape, mine.dtype):
            return self.by_file(*asked)
        other = ~_same(mine, rule) & ~_same(mine, theirs)
        if self.states is not None:
            stated = other & self.states(node, own, mine, rule, self.values)
        else:
            stated = other & self._by_rule(made, origin, output, mine, read)
        judged = partial(classify, origin, read, output, theirs=theirs, engine=self.engine, direct=direct)
        counts = judged(mine=np.where(other, theirs, mine))
        beyond = judged(mine=np.where(stated, rule, theirs)).wrong
        wrong, told = int((other & ~stated).sum()) + beyond, int(stated.sum()) - beyond
        largest = float(distance(mine.astype(np.float64), theirs.astype(np.float64)).max(initial=0))
        return counts._replace(
            equal=counts.equal - int(other.sum()),
            stated=counts.stated + told,
            wrong=counts.wrong + wrong,
            largest=largest,
        )

    def _origin(self, node: Node, name: str, own: str) -> tuple[Node, Node | None, Tensor | None]:
        """The node of the file and that of the source that compute a tensor, and this tensor.

        One of them may include a clamp that the other has as a node. Then it is the other's node before it, with the
        range of the first.
        """
        origin, output = self.producers.get(own), self.source.tensors.get(own)
        if origin is not None and (before := _before(origin, node, self.producers)):
            return node, replace(before, outputs=(own,)), replace(self.file.tensors[name], name=own)
        if origin is not None and (before := _before(node, origin, self.makers)):
            return before, origin, output
        return node, origin, output

    def _by_rule(self, node: Node, origin: Node, output: Tensor, mine: Array, read: Sequence[Operand | None]) -> Array:
        """Where the source's node, computed by the different rule of the file's node, has the result of the file."""
        read = self._with_real_bias(node, origin, read)
        if node.rule == origin.rule:
            return np.zeros(mine.shape, bool)
        alike = by_node(replace(origin, rule=node.rule), self.source.tensors, output, read)
        return np.zeros(mine.shape, bool) if alike is None or alike.shape != mine.shape else _same(mine, alike)

    def _with_real_bias(self, node: Node, origin: Node, read: Sequence[Operand | None]) -> Sequence[Operand | None]:
        """The inputs of a node of the source, with the file's real bias if the source has it in integers."""
        bias = self.file.tensors.get("".join(node.inputs[2:3]))
        if bias is None or not bias.is_constant or bias.quantization or not origin.rule.startswith("integer_bias"):
            return read
        match read:
            case [Operand(_, Quantization() as x), Operand(_, Quantization() as w), Operand(whole, _), *rest]:
                unit = unit_of_sums(x, w, origin.attributes)
                with np.errstate(over="ignore"):  # what is infinite, int32 does not hold
                    if np.array_equal(whole_bias(bias.array, unit, origin.rule), whole):
                        return [*read[:2], Operand(bias.array, None), *rest]
        return read


def in_type(integers: Array, dtype: np.dtype[Any]) -> Array:
    """Integers in a type of the same size, if one is signed and the other is not: uint8 as int8, 128 less. Else as
    they are."""
    kinds = {integers.dtype.kind, dtype.kind}
    if kinds != {"i", "u"} or integers.dtype.itemsize != dtype.itemsize:
        return integers
    offset = DTYPES[dtype.name].minimum - DTYPES[integers.dtype.name].minimum
    return (integers.astype(np.int64) + offset).astype(dtype)


def _before(clamp: Node, like: Node, producers: Mapping[str, Node]) -> Node | None:
    """The node before at most a few clamps, if it has the operator of a node that is no clamp."""
    node: Node | None = clamp
    for _ in range(MOST_CLAMPS):
        if node is None or node.operator not in CLAMPS or like.operator in CLAMPS:
            return None
        last, node = node, producers.get(node.inputs[0])
        if node is not None and (node.operator, node.outputs) == (like.operator, last.inputs[:1]):
            return node
    return None


def known_operands(
    node: Node, tensors: Mapping[str, Tensor], values: Mapping[str, Array]
) -> list[Operand | None] | None:
    """The inputs of a node; None if one is neither constant nor among the values."""
    if not all(not name or name in values or tensors[name].is_constant for name in node.inputs):
        return None
    return operands_of(node, values, tensors)


def by_node(node: Node, tensors: Mapping[str, Tensor], output: Tensor, read: Sequence[Operand | None]) -> Array | None:
    """An output of a node as the reference computes it; None if qfmt has no reference for it."""
    outputs = [output if each == output.name else tensors[each] for each in node.outputs]
    try:
        return execute(node, read, outputs)[node.outputs.index(output.name)]
    except QfmtError:
        return None


def completed(model: Model, inputs: Mapping[str, Array], seen: Mapping[str, Computed]) -> dict[str, Array]:
    """All tensors of a network: those that another library computed, and the results of the reference for the
    rest."""
    values = {**inputs, **{name: value.array for name, value in seen.items()}}
    for node in model.nodes:
        if all(name in values for name in node.outputs):
            continue
        if (read := known_operands(node, model.tensors, values)) is not None:
            try:
                made = execute(node, read, [model.tensors[name] for name in node.outputs])
            except QfmtError:  # a node without a reference may come after the end of the file
                continue
            for name, array in zip(node.outputs, made, strict=True):
                values.setdefault(name, array)
    return values


def _same(a: Array, b: Array) -> Array:
    same: Array = same_numbers(a, b) if DTYPES[a.dtype.name].kind == "f" else a == b
    return same
