"""What differs between two models: graphs, tensors, descriptions. `qfmt.diff`, and the first half of `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

from ..arrays import StoredArray
from ..errors import printable
from ..model import Graph, Model, Node, Proof, Tensor, static_shape
from ..notation import json_value
from ..rules import require_sound
from .words import (
    ARROW,
    NOWHERE,
    attribute_changed,
    changed,
    names_changed,
    names_told,
    present,
    short,
    tensor_words,
    values_differ,
)

if TYPE_CHECKING:
    from os import PathLike


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that no node computes, of both models: a constant, an input, or one that only has a quantization.

    `other` is its name in the second one.

    `different` of its `elements` are not equal, bit by bit; `largest` is the largest difference of stored
    values. `words` list what else differs: dtype, shape, quantization, names. Values are compared only if both models
    have them, with the same dtype and shape.
    """

    name: str
    other: str
    elements: int
    different: int
    largest: float
    words: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not self.different and not self.words

    def __str__(self) -> str:
        apart = f" by at most {self.largest:g}" if self.largest < float("inf") else ", some of them NaN or infinite"
        codes = f"{self.different:,} of {self.elements:,} values differ{apart}"
        return printable("; ".join([*([codes] if self.different else []), *self.words]))


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """A node of both models or of only one, and what differs in it and in its outputs."""

    name: str
    operator: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that differs. `nodes` and `tensors` list only the ones that differ."""

    nodes: tuple[NodeDifference, ...]
    tensors: tuple[TensorDifference, ...]
    words: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not (self.nodes or self.tensors or self.words)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all fields, and `equal`. An infinite difference (another shape, or NaN) is "inf"."""
        made: dict[str, Any] = json_value({"equal": self.is_equal, **asdict(self)})
        return made


def diff(a: Model | str | PathLike[str], b: Model | str | PathLike[str]) -> Difference:
    """What differs between two models, or two `.qfb` files. "x → y" means x in a and y in b.

    Nodes are matched in order if both graphs have the same operators, else by name. Raises MissingFileError,
    FormatError for a file that cannot be read, ValidityError for a graph that breaks rules.
    """
    from ..file.reader import load

    first, second = (each if isinstance(each, Model) else load(each) for each in (a, b))
    require_sound(first)
    require_sound(second)
    pairing = Pairing(first.graph, second.graph)
    nodes = tuple(node for node in pairing.node_differences(provenance=True) if node.words)
    tensors = [tensor for tensor in pairing.tensor_differences(provenance=True) if not tensor.is_equal]
    order = ["the nodes are in another order"] if pairing.is_reordered else []
    return Difference(nodes, tuple(tensors), (*_described(first, second), *order))


def _described(a: Model, b: Model) -> Iterator[str]:
    for name in ("engine", "producer"):
        yield from changed(name, getattr(a, name), getattr(b, name))
    yield from changed("the graph's name", a.graph.name, b.graph.name)
    for name in ("source", "metadata"):
        mine, theirs = getattr(a, name), getattr(b, name)
        for key in sorted(mine.keys() | theirs.keys()):
            yield from changed(f"{name}.{key}", mine.get(key), theirs.get(key))
    if list(a.vectors) != list(b.vectors):
        yield f"test vectors {len(a.vectors)} {ARROW} {len(b.vectors)}{_which(a, b)}"
    for name in ("inputs", "outputs"):
        yield from names_changed(f"the graph's {name}", getattr(a.graph, name), getattr(b.graph, name))


def _which(a: Model, b: Model) -> str:
    """Which test vectors differ, if both have the same number."""
    if len(a.vectors) != len(b.vectors):
        return ""
    pairs = enumerate(zip(a.vectors, b.vectors, strict=True))
    return ", different: " + ", ".join(x.name or str(index) for index, (x, y) in pairs if x != y)


class Pairing:
    """Matches nodes and tensors of two graphs. `tensors` maps names of a to names of b.

    `called` are the words for a and b in the differences.
    """

    def __init__(self, a: Graph, b: Graph, called: tuple[str, str] = ("first", "second")) -> None:
        self.a, self.b = a, b
        self.only = tuple(f"only in the {each}" for each in called)
        in_order = _in_order(a, b)
        self.nodes = list(zip(a.nodes, b.nodes, strict=True) if in_order else _by_name(a.nodes, b.nodes))
        self.tensors: dict[str, str] = {} if in_order else dict(_same_names(a, b))
        named = {*self.tensors.values()}
        self._pair(zip(a.inputs, b.inputs, strict=False), named)
        for mine, theirs in self.nodes:
            if mine is not None and theirs is not None:
                self._pair(zip(mine.outputs, theirs.outputs, strict=False), named)
                if in_order or mine.operator == theirs.operator:
                    self._pair(self._constants(mine, theirs), named)
        self._pair(_same_names(a, b), {*self.tensors.values()})

    @property
    def is_reordered(self) -> bool:
        """Whether the nodes that both graphs have are not in the same order."""
        positions = {id(node): position for position, node in enumerate(self.a.nodes)}
        found = [positions[id(mine)] for mine, theirs in self.nodes if mine is not None and theirs is not None]
        return found != sorted(found)

    def _pair(self, pairs: Iterable[tuple[str, str]], taken: Set[str]) -> None:
        """Pair two tensors; the first pairing of a tensor is kept."""
        for x, y in pairs:
            if y not in taken:
                self.tensors.setdefault(x, y)

    def _constants(self, mine: Node, theirs: Node) -> Iterator[tuple[str, str]]:
        for x, y in zip(mine.inputs, theirs.inputs, strict=False):
            if x and y and self.a.tensors[x].is_constant and self.b.tensors[y].is_constant:
                yield x, y

    def node_differences(self, *, provenance: bool) -> Iterator[NodeDifference]:
        """Every node of either graph, in the order of b. `provenance`: names in the source count, too."""
        for mine, theirs in self.nodes:
            node = theirs or mine
            assert node is not None
            if mine is None:
                words = [self.only[1]]
            elif theirs is None:
                words = [self.only[0]]
            else:
                words = list(self._node_words(mine, theirs, provenance))
            yield NodeDifference(node.label, node.operator, tuple(words))

    def _node_words(self, mine: Node, theirs: Node, provenance: bool) -> Iterator[str]:
        yield from changed("operator", mine.operator, theirs.operator)
        if mine.operator == theirs.operator:
            yield from changed("version", mine.version, theirs.version)
        yield from changed("rule", mine.rule, theirs.rule)
        if mine.operator == theirs.operator:  # attributes of different operators are not comparable
            for key in sorted(mine.attributes.keys() | theirs.attributes.keys()):
                yield from attribute_changed(key, mine.attributes.get(key), theirs.attributes.get(key))
            for x, y in zip_longest(mine.inputs, theirs.inputs, fillvalue=""):
                if self.tensors.get(x, x) != y:
                    yield f"reads {short(x) or NOWHERE} {ARROW} {short(y) or NOWHERE}"
        elif [self.tensors.get(x, x) for x in mine.inputs] != [*theirs.inputs]:
            read = (names_told([*filter(None, node.inputs)]) for node in (mine, theirs))
            yield f"reads {f' {ARROW} '.join(read)}"
        if len(mine.outputs) != len(theirs.outputs):
            yield f"has {len(mine.outputs)} {ARROW} {len(theirs.outputs)} outputs"
        for x, y in zip(mine.outputs, theirs.outputs, strict=False):
            prefix = "" if len(mine.outputs) == 1 else f"{y}: "
            yield from (prefix + word for word in tensor_words(self.a.tensors[x], self.b.tensors[y], provenance))
        if provenance:
            if len(mine.inputs) != len(theirs.inputs):  # absent ones at the end: not computed with, but stated
                yield f"has {len(mine.inputs)} {ARROW} {len(theirs.inputs)} inputs"
            yield from changed("name", mine.name, theirs.name)
            yield from changed("scope", mine.scope, theirs.scope)
            yield from changed("source operator", mine.source_operator, theirs.source_operator)
            yield from changed("proof", *map(_summary, (mine.proof, theirs.proof)))
            if mine.proof != theirs.proof and _summary(mine.proof) == _summary(theirs.proof):
                yield "proofs of single channels differ"

    def tensor_differences(self, *, provenance: bool) -> Iterator[TensorDifference]:
        """Every tensor that no node computes, of either graph; the other name is empty if only one graph has it."""
        paired, computed, other_computed = {*self.tensors.values()}, self.a.producers(), self.b.producers()
        for name, tensor in self.a.tensors.items():
            if name not in computed:
                other = self.tensors.get(name)
                yield (_compared(tensor, self.b.tensors[other], provenance) if other else _alone(tensor, self.only[0]))
        for name, tensor in self.b.tensors.items():
            if name not in paired and name not in other_computed:
                yield _alone(tensor, self.only[1])


def _summary(proof: Proof | None) -> str | None:
    """A proof in a few words: the least and the greatest sum of any channel, and how many outputs differ in all."""
    if proof is None:
        return None
    low, high = min(proof.low, default=0), max(proof.high, default=0)
    return f"sums {low:,}..{high:,}, {sum(proof.differs):,} differ from {proof.compared or NOWHERE}"


def _by_name(a: Sequence[Node], b: Sequence[Node]) -> Iterator[tuple[Node | None, Node | None]]:
    """In the order of b; nodes that only a has come last."""
    named: dict[str, list[Node]] = {}
    for node in reversed(a):  # names need not be unique
        named.setdefault(node.label, []).append(node)
    for node in b:
        yield (found.pop() if (found := named.get(node.label)) else None), node
    left = {id(node) for found in named.values() for node in found}
    yield from ((node, None) for node in a if id(node) in left)


def _in_order(a: Graph, b: Graph) -> bool:
    """Whether nodes are matched by position; their names may then differ. They are not if some of them read others, and
    names tell more."""
    if [node.operator for node in a.nodes] != [node.operator for node in b.nodes]:
        return False
    mine, theirs = _places(a), _places(b)
    read = (
        (x, y) for node, other in zip(a.nodes, b.nodes, strict=True) for x, y in zip_longest(node.inputs, other.inputs)
    )
    return all(mine.get(x) == theirs.get(y) for x, y in read) or not any(
        theirs.get(name, place) != place for name, place in mine.items()
    )


def _places(graph: Graph) -> dict[str | None, tuple[int, int]]:
    """Where the tensors of a run come from: the position of a node, or -1, and that of the output, or input."""
    sources = ((-1, graph.inputs), *((index, node.outputs) for index, node in enumerate(graph.nodes)))
    return {name: (index, position) for index, names in sources for position, name in enumerate(names)}


def _same_names(a: Graph, b: Graph) -> Iterator[tuple[str, str]]:
    return ((name, name) for name in a.tensors if name in b.tensors)


def _compared(a: Tensor, b: Tensor, provenance: bool) -> TensorDifference:
    """Two constants, value by value, or two inputs."""
    words = tuple(tensor_words(a, b, provenance))
    if a.data is None or b.data is None:
        words = (*words, *present("stored values", a.data, b.data))
        return TensorDifference(a.name, b.name, 0, 0, 0.0, words)
    elements = prod(static_shape(b))
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return TensorDifference(a.name, b.name, elements, 0, 0.0, words)
    mine, theirs = (StoredArray(each.dtype, static_shape(each), each.data) for each in (a, b) if each.data is not None)
    find = partial(_parts_differ, mine, theirs)
    different, largest = mine.data.once(("differences", a.dtype, elements, theirs.data), find)
    return TensorDifference(a.name, b.name, elements, different, largest, words)


def _parts_differ(a: StoredArray, b: StoredArray) -> tuple[int, float]:
    """As `values_differ`, some elements at a time, and none if the bytes are equal."""
    if a.data == b.data:
        return 0, 0.0
    found = [values_differ(mine, theirs) for mine, theirs in zip(a.parts(), b.parts(), strict=True)]
    return sum(count for count, _ in found), max((largest for _, largest in found), default=0.0)


def _alone(tensor: Tensor, words: str) -> TensorDifference:
    elements = prod(static_shape(tensor)) if tensor.is_constant else 0
    return TensorDifference(tensor.name, "", elements, 0, 0.0, (words,))
