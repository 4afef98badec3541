"""What differs between two models: graphs, tensors, descriptions. `qfmt.diff`, and the first half of `verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

from ..model import Graph, Model, Node, Quantization, Tensor, static_shape

if TYPE_CHECKING:
    from os import PathLike

NOWHERE = "nothing"
ARROW = "→"


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A constant, or an input of the graph, of both models. `other` is its name in the second one.

    `different` of its `elements` are not the same, bit by bit; `largest` is the largest difference of stored
    values. `words` say what else differs: dtype, shape, quantization, names.
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
        codes = f"{self.different:,} of {self.elements:,} values differ by at most {self.largest:g}"
        return "; ".join([*([codes] if self.different else []), *self.words])


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """A node of both models, or of one, and what differs in it and in what it says of its outputs."""

    name: str
    operator: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that differs. `nodes` and `tensors` hold only those that do."""

    nodes: tuple[NodeDifference, ...]
    tensors: tuple[TensorDifference, ...]
    words: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not (self.nodes or self.tensors or self.words)

    def to_dict(self) -> dict[str, Any]:
        return {"equal": self.is_equal, **asdict(self)}


def diff(a: Model | str | PathLike[str], b: Model | str | PathLike[str]) -> Difference:
    """What differs between two models, or two `.qfb` files: read "in a → in b".

    Nodes are matched in order if both graphs have the same operators, else by name. Raises FormatError for a
    file that cannot be read.
    """
    from ..file import load

    first, second = (each if isinstance(each, Model) else load(each) for each in (a, b))
    pairing = Pairing(first.graph, second.graph)
    nodes = tuple(node for node in pairing.node_differences(provenance=True) if node.words)
    tensors = [tensor for tensor in pairing.tensor_differences(provenance=True) if not tensor.is_equal]
    return Difference(nodes, tuple(tensors), tuple(_described(first, second)))


def _described(a: Model, b: Model) -> Iterator[str]:
    for name in ("arithmetic", "producer"):
        yield from _changed(name, getattr(a, name), getattr(b, name))
    for name in ("source", "metadata"):
        mine, theirs = getattr(a, name), getattr(b, name)
        for key in sorted(mine.keys() | theirs.keys()):
            yield from _changed(f"{name}.{key}", mine.get(key, NOWHERE), theirs.get(key, NOWHERE))
    if list(a.vectors) != list(b.vectors):
        yield f"test vectors {len(a.vectors)} {ARROW} {len(b.vectors)}{_which(a, b)}"
    for name in ("inputs", "outputs"):
        yield from _changed(f"the graph's {name}", ", ".join(getattr(a.graph, name)), ", ".join(getattr(b.graph, name)))


def _which(a: Model, b: Model) -> str:
    """Which test vectors are not the same, where there are as many."""
    if len(a.vectors) != len(b.vectors):
        return ""
    pairs = enumerate(zip(a.vectors, b.vectors, strict=True))
    return ", different: " + ", ".join(x.name or str(index) for index, (x, y) in pairs if x != y)


def _changed(what: str, mine: Any, theirs: Any) -> Iterator[str]:
    if mine != theirs:
        yield f"{what} {_shown(mine)} {ARROW} {_shown(theirs)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return (NOWHERE if value is None else str(value)) or "''"


class Pairing:
    """Which node and which tensor of one graph is which of the other. `tensors` maps names of a to names of b."""

    def __init__(self, a: Graph, b: Graph) -> None:
        self.a, self.b = a, b
        self.nodes = list(_matched(a.nodes, b.nodes))
        self.tensors: dict[str, str] = dict(zip(a.inputs, b.inputs, strict=False))
        for mine, theirs in self.nodes:
            if mine is not None and theirs is not None:
                self.tensors.update(zip(mine.outputs, theirs.outputs, strict=False))
                self._pair_constants(mine, theirs)
        taken = {*self.tensors.values()}
        for name in a.tensors:
            if name not in self.tensors and name in b.tensors and name not in taken:
                self.tensors[name] = name

    def _pair_constants(self, mine: Node, theirs: Node) -> None:
        for x, y in zip(mine.inputs, theirs.inputs, strict=False):
            if x and y and self.a.tensors[x].is_constant and self.b.tensors[y].is_constant:
                self.tensors.setdefault(x, y)

    def node_differences(self, *, provenance: bool) -> Iterator[NodeDifference]:
        """Every node of either graph, in order of the second. `provenance`: what the source called it counts, too."""
        for mine, theirs in self.nodes:
            node = theirs or mine
            assert node is not None
            if mine is None:
                words = ["only in the second"]
            elif theirs is None:
                words = ["only in the first"]
            else:
                words = list(self._node_words(mine, theirs, provenance))
            yield NodeDifference(node_name(node), node.operator, tuple(words))

    def _node_words(self, mine: Node, theirs: Node, provenance: bool) -> Iterator[str]:
        yield from _changed("operator", mine.operator, theirs.operator)
        yield from _changed("version", mine.version, theirs.version)
        yield from _changed("rule", mine.arithmetic, theirs.arithmetic)
        for key in sorted(mine.attributes.keys() | theirs.attributes.keys()):
            yield from _changed(key, mine.attributes.get(key), theirs.attributes.get(key))
        for x, y in zip_longest(mine.inputs, theirs.inputs, fillvalue=""):
            if self.tensors.get(x, x) != y:
                yield f"reads {x or NOWHERE} {ARROW} {y or NOWHERE}"
        if len(mine.outputs) != len(theirs.outputs):
            yield f"has {len(mine.outputs)} {ARROW} {len(theirs.outputs)} outputs"
        for x, y in zip(mine.outputs, theirs.outputs, strict=False):
            prefix = "" if len(mine.outputs) == 1 else f"{y}: "
            yield from (prefix + word for word in _tensor_words(self.a.tensors[x], self.b.tensors[y], provenance))
        if provenance:
            yield from _changed("name", node_name(mine), node_name(theirs))
            yield from _changed("scope", mine.scope, theirs.scope)
            yield from _changed("source operator", mine.source_operator, theirs.source_operator)

    def tensor_differences(self, *, provenance: bool) -> Iterator[TensorDifference]:
        """Every constant and input of either graph; a tensor of one only has the other name empty."""
        theirs = {*self.tensors.values()}
        for name, tensor in self.a.tensors.items():
            if tensor.is_constant or name in self.a.inputs:
                other = self.tensors.get(name)
                yield (
                    _compared(tensor, self.b.tensors[other], provenance)
                    if other
                    else _alone(tensor, "only in the first")
                )
        for name, tensor in self.b.tensors.items():
            if name not in theirs and (tensor.is_constant or name in self.b.inputs):
                yield _alone(tensor, "only in the second")


def _matched(a: Sequence[Node], b: Sequence[Node]) -> Iterator[tuple[Node | None, Node | None]]:
    """In the order of b, those that only a has at the end."""
    if [node.operator for node in a] == [node.operator for node in b]:
        yield from zip(a, b, strict=True)
        return
    named = {node_name(node): node for node in a}
    for node in b:
        yield named.pop(node_name(node), None), node
    yield from ((node, None) for node in named.values())


def node_name(node: Node) -> str:
    """What to call a node: its name, or what it puts out."""
    return node.name or (node.outputs[0] if node.outputs else node.operator)


def _compared(a: Tensor, b: Tensor, provenance: bool) -> TensorDifference:
    """Two constants, value by value, or two inputs."""
    words = tuple(_tensor_words(a, b, provenance))
    if a.data is None or b.data is None:
        if a.is_constant != b.is_constant:
            words = (*words, "is a constant in one only")
        return TensorDifference(a.name, b.name, 0, 0, 0.0, words)
    elements = prod(static_shape(b))
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return TensorDifference(a.name, b.name, elements, elements, float("inf"), words)
    different, largest = values_differ(a.array, b.array)
    return TensorDifference(a.name, b.name, elements, different, largest, words)


def values_differ(a: Any, b: Any) -> tuple[int, float]:
    """In how many elements two arrays of one dtype and size differ, bit by bit, and by how much at most."""
    import numpy as np

    bits = np.dtype(f"u{a.dtype.itemsize}")
    x, y = (np.ascontiguousarray(each).reshape(-1) for each in (a, b))
    off = x.view(bits) != y.view(bits)
    count = int(off.sum())
    if not count:
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(x[off].astype(np.float64) - y[off].astype(np.float64))
    return count, float(np.where(np.isnan(distance), np.inf, distance).max())


def _alone(tensor: Tensor, words: str) -> TensorDifference:
    elements = prod(static_shape(tensor)) if tensor.is_constant else 0
    return TensorDifference(tensor.name, "", elements, elements, float("inf") if elements else 0.0, (words,))


def _tensor_words(a: Tensor, b: Tensor, provenance: bool) -> Iterator[str]:
    yield from _changed("dtype", a.dtype, b.dtype)
    yield from _changed("shape", _sizes(a.shape), _sizes(b.shape))
    yield from quantization_words(a.quantization, b.quantization)
    if provenance:
        yield from _changed("name", a.name, b.name)
        yield from _changed("aliases", ", ".join(a.aliases), ", ".join(b.aliases))
        if a.quantization is not None and b.quantization is not None:
            yield from _changed("scale dtype", a.quantization.scale_dtype, b.quantization.scale_dtype)
            yield from _changed("observed", a.quantization.observed, b.quantization.observed)


def _sizes(shape: Any) -> str:
    return "?" if shape is None else f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def quantization_words(a: Quantization | None, b: Quantization | None) -> Iterator[str]:
    """What differs between two quantizations: each field, and of scales and zero points the first that does."""
    if a is None or b is None:
        if a is not b:
            yield "is quantized in one only"
        return
    for name in ("axis", "quant_min", "quant_max"):
        yield from _changed(name, getattr(a, name), getattr(b, name))
    yield from _first_changed("scale", a.scale, b.scale)
    if bool(a.zero_point) == bool(b.zero_point):
        yield from _first_changed("zero point", a.zero_point, b.zero_point)
    yield from _blocks_words(a, b)


def _blocks_words(a: Quantization, b: Quantization) -> Iterator[str]:
    mine, theirs = a.blocks, b.blocks
    if mine is None or theirs is None:
        if mine is not theirs:
            yield "has scales by blocks in one only"
        return
    yield from _changed("blocks", _sizes(mine.shape), _sizes(theirs.shape))
    pairs = (("scale", mine.scale, theirs.scale), ("zero point", mine.zero_point, theirs.zero_point))
    for what, x, y in pairs:
        if x is None or y is None:
            if x is not y:
                yield f"has {what}s for each block in one only"
        elif (x.dtype, x.shape) != (y.dtype, y.shape):
            yield from _changed(f"{what}s", f"{x.dtype}{_sizes(x.shape)}", f"{y.dtype}{_sizes(y.shape)}")
        elif x != y:
            different, largest = values_differ(x.array, y.array)
            yield f"{different:,} of {prod(x.shape):,} {what}s of blocks differ by at most {largest:g}"


def _first_changed(what: str, a: Sequence[float], b: Sequence[float]) -> Iterator[str]:
    if len(a) != len(b):
        yield f"{len(a)} {ARROW} {len(b)} {what}s"
        return
    off = [index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if off:
        index = off[0]
        place = f"[{index}]" if len(a) > 1 else ""
        more = f" and {len(off) - 1} more" if len(off) > 1 else ""
        yield f"{what}{place} {_shown(a[index])} {ARROW} {_shown(b[index])}{more}"


def read_by(graph: Graph) -> Mapping[str, list[str]]:
    """Tensor → names of the nodes that read it."""
    readers: dict[str, list[str]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node_name(node))
    return readers
