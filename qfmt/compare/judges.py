"""Judges outputs by the node of the source that computes them. It proves ties, and distinguishes differences that
the file states from errors."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import whole_bias
from ..arrays import Array
from ..engines import engine_of
from ..errors import MemoryLimitError, QfmtError
from ..interpreter import execute, operands_of
from ..model import DTYPES, Model, Node, Quantization, Tensor, numpy_dtype
from ..ops import OPERATORS, Operand
from ..ops.accumulation import unit_of_sums
from .classes import CLAMPS, MOST_CLAMPS, RECURRENT, Classes, Counts, classes, classify, equal_elements, nearly

if TYPE_CHECKING:
    from ..frontends.witness import Computed
    from .side_by_side import Judge

    States = Callable[[Node, str, Array, Array, Mapping[str, Array]], Array]


def by_file(file: Model, engine: str, recurrent: Container[str] = ()) -> Judge:
    """A judge that uses the nodes of the file. `recurrent`: the tensors that nodes of the source's quantized recurrent
    layers compute. A file alone does not widen the tolerance."""

    def judge(
        node: Node, name: str, mine: Array, theirs: Array, operands: Sequence[Operand | None], direct: bool
    ) -> Counts:
        if OPERATORS[node.operator].family != "recurrent" and name not in recurrent:
            node = replace(node, source_operator="")
        counts = classify(node, operands, file.tensors[name], mine, theirs, engine, direct=direct)
        if counts.stated and any(map(_has_nan, map(file.tensors.get, node.inputs))):
            counts = counts._replace(stated=0, wrong=counts.wrong + counts.stated)
        return counts

    return judge


def _has_nan(tensor: Tensor | None) -> bool:
    """Whether a constant makes results NaN, instead of the values of the source."""
    if tensor is None or not tensor.is_constant or DTYPES[tensor.dtype].kind != "f":
        return False
    return bool(np.isnan(tensor.array.astype(np.float64)).any())


def recurrent_tensors(source: Model, names: Mapping[str, str]) -> set[str]:
    """The tensors of a file that quantized recurrent layers of its source compute; `names` as those of BySource."""
    own = {each for node in source.nodes if node.source_operator in RECURRENT for each in node.outputs}
    return {name for name, theirs in names.items() if theirs in own}


class BySource:
    """A judge that uses the nodes of a source, whose rules `engine` follows.

    `stated` is the source with the rules of the file. An output that follows the engine's rule has the class of the
    engine's result. One that follows the file's rule counts as `stated` if the engine's rule yields the engine's
    result. Anything else is wrong. For integer-only files, `states` finds the stated differences: (node, name in the
    source, our output, output by the file's rule, all values of the source). Outputs of operators that the source does
    not have are judged by the file. `names`: tensor of the file → tensor of the source.
    """

    def __init__(
        self,
        file: Model,
        source: Model,
        stated: Model,
        engine: str,
        names: Mapping[str, str],
        states: States | None = None,
    ) -> None:
        self.by_file = by_file(file, engine, recurrent_tensors(source, names))
        self.file, self.source, self.stated, self.engine = file, source, stated, engine
        self.names, self.states = names, states
        self.producers = {id(each): each.graph.producers() for each in (file, source, stated)}
        self.values: Mapping[str, Array] = {}
        """All tensors of the source for the current sample; by the rules of the engine, where it does not show them."""
        self.ruled: Mapping[str, Array] = {}
        """The same by the rules of the file."""

    def take(self, inputs: Mapping[str, Array], seen: Mapping[str, Computed]) -> None:
        """Judge a sample: its inputs, and the tensors that the engine shows."""
        self.values = self.ruled = completed(self.source, inputs, seen)
        if self.stated is not self.source:
            self.ruled = completed(self.stated, inputs, seen)

    def __call__(
        self, node: Node, name: str, mine: Array, theirs: Array, operands: Sequence[Operand | None], direct: bool
    ) -> Counts:
        asked = node, name, mine, theirs, operands, direct
        own = self.names.get(name, "")
        made, origin, output = self._origin(node, name, own, self.source)
        if origin is not None and direct and self.states is None and made.operator != origin.operator:
            return self._by_own_nodes(*asked)
        if origin is None or output is None:
            return self.by_file(*asked)
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype) or (mine == theirs).all():
            return self.by_file(*asked)
        mine, theirs = (in_type(each, numpy_dtype(output.dtype)) for each in (mine, theirs))
        read = known_operands(origin, self.source.tensors, self.values)
        rule = None if read is None else by_node(origin, self.source.tensors, output, read)
        if rule is None or read is None or (rule.shape, rule.dtype) != (mine.shape, mine.dtype):
            return self.by_file(*asked)
        found = classes(origin, read, output, rule, theirs, self.engine, direct=direct)
        ruled = self._by_rule(node, name, own, rule)
        equal, follows = equal_elements(mine, theirs), equal_elements(mine, rule)
        if self.states is not None:
            stated = self.states(node, own, mine, ruled, self.values)
        else:
            stated = equal_elements(mine, ruled)
            alike = partial(nearly, origin, read, output, mine, engine=self.engine, direct=direct)
            follows |= alike(rule) if output.quantization is None else ~stated & alike(rule)
            stated |= alike(ruled)
        known = ~equal & found.known
        right = [each & known & follows for each in found]
        right[1] |= right[0]  # it differs from a result that equals the engine's
        right[4] |= known & stated & ~follows
        return Classes(equal, *right[1:]).counts(mine, theirs)

    def _by_own_nodes(
        self, node: Node, name: str, mine: Array, theirs: Array, operands: Sequence[Operand | None], direct: bool
    ) -> Counts:
        """A node of the file that the source has as multiple nodes between the same tensors: its own result is that of
        the file's rule, and the engine's must be that of the engine's rule."""
        counts = self.by_file(node, name, mine, theirs, operands, direct)
        rule = OPERATORS[node.operator].engines.get(engine_of(self.engine), "")
        if not counts.wrong or self.stated is self.source or rule in ("", node.rule):
            return counts
        output, other = self.file.tensors[name], replace(node, rule=rule)
        made = by_node(other, self.file.tensors, output, operands)
        if made is None or len({(each.shape, each.dtype) for each in (made, mine, theirs)}) > 1:
            return counts
        own = classes(node, operands, output, mine, theirs, self.engine, direct=direct)
        engines = classes(other, operands, output, made, theirs, self.engine, direct=direct)
        return own._replace(stated=own.stated | (engines.known & ~own.known)).counts(mine, theirs)

    def _origin(self, node: Node, name: str, own: str, source: Model) -> tuple[Node, Node | None, Tensor | None]:
        """The node of the file and that of a source that compute a tensor, and this tensor.

        One of them may include a clamp that the other has as a node. Then it is the other's node before it, with the
        range of the first.
        """
        producers, makers = self.producers[id(source)], self.producers[id(self.file)]
        origin, output = producers.get(own), source.tensors.get(own)
        if origin is not None and (before := _before(origin, node, producers)):
            return node, replace(before, outputs=(own,)), replace(self.file.tensors[name], name=own)
        if origin is not None and (before := _before(node, origin, makers)):
            return before, origin, output
        return node, origin, output

    def _by_rule(self, node: Node, name: str, own: str, rule: Array) -> Array:
        """An output by the rule of the file, for the values that the engine computed. `rule`, the output by the rule
        of the engine, if the two rules are one, or if the output cannot be computed."""
        made, origin, output = self._origin(node, name, own, self.stated)
        if origin is None or output is None or (self.stated is self.source and not _round_one_bias(made, origin)):
            return rule
        if made.operator == origin.operator:
            origin = replace(origin, rule=made.rule or origin.rule)
        elif (here := self._origin(node, name, own, self.source)[1]) is not None and here.operator == origin.operator:
            origin = replace(origin, attributes=here.attributes)  # its bits, which nodes of the file state
        read = known_operands(origin, self.stated.tensors, self.ruled)
        if read is None:
            return rule
        found = by_node(origin, self.stated.tensors, output, self._with_real_bias(made, origin, read))
        return rule if found is None or (found.shape, found.dtype) != (rule.shape, rule.dtype) else found

    def _with_real_bias(self, node: Node, origin: Node, read: Sequence[Operand | None]) -> Sequence[Operand | None]:
        """The inputs of a node of the source, with the file's real bias if the source has it in integers."""
        bias = self.file.tensors.get("".join(node.inputs[2:3]))
        if bias is None or not bias.is_constant or bias.quantization:
            return read
        match read:
            case [Operand(_, Quantization() as x), Operand(_, Quantization() as w), Operand(whole, _), *rest]:
                unit = unit_of_sums(x, w, origin.attributes)
                with np.errstate(over="ignore"):  # what is infinite, int32 does not hold
                    if np.array_equal(whole_bias(bias.array, unit, "integer_bias"), whole):
                        return [*read[:2], Operand(bias.array, None), *rest]
        return read


def _round_one_bias(a: Node, b: Node) -> bool:
    """Whether one of two nodes rounds its bias to integers, and the other does not: a form of ONNX has only one of the
    two."""
    kinds = {each.rule.partition("_")[0] for each in (a, b) if "_bias" in each.rule}
    return a.operator == b.operator and kinds == {"float", "integer"}


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
    made = referred(node, read, [output if each == output.name else tensors[each] for each in node.outputs])
    return None if made is None else made[node.outputs.index(output.name)]


def referred(node: Node, read: Sequence[Operand | None], outputs: Sequence[Tensor]) -> Sequence[Array] | None:
    """All outputs of a node as the reference computes them; None if qfmt has no reference for it."""
    try:
        return execute(node, read, outputs)
    except MemoryLimitError:  # which says nothing of the node
        raise
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
            made = referred(node, read, [model.tensors[name] for name in node.outputs])
            if made is not None:  # a node without a reference may come after the end of the file
                for name, array in zip(node.outputs, made, strict=True):
                    values.setdefault(name, array)
    return values
