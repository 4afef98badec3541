"""The graph of a network: tensors by name, nodes in order, arrays only when asked for.

Quantization is a property of a tensor, not a pair of operators: `fc1.scale` in PyTorch is the quantization of the
tensor that `fc1` outputs. A tensor without quantization has values of its dtype.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .arrays import Array, Data, StoredArray
from .errors import QfmtError
from .quantization import Quantization

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Dimension = int | str | None
"""A size; or a name (`"N"`), equal everywhere in a graph; or None: not known."""

MAXIMUM_RANK = 32
"""The most dimensions that NumPy 1 supports."""

Shape = tuple[Dimension, ...] | None
"""None: not even the rank is known."""

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Tensor:
    """A named value of the graph; it is a constant if and only if it has data.

    `aliases` are the names it had in its source (`fc1._packed_params`, an ONNX initializer, …).
    """

    name: str
    dtype: str
    shape: Shape
    data: Data | None = None
    quantization: Quantization | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.data is not None and not isinstance(self.data, Data):
            raise QfmtError(
                f"data of a {type(self.data).__name__} cannot be stored", where=self.name, hint="use Tensor.constant"
            )

    @classmethod
    def constant(
        cls,
        name: str,
        array: ArrayLike,
        quantization: Quantization | None = None,
        *,
        dtype: str | None = None,
        aliases: tuple[str, ...] = (),
    ) -> Tensor:
        """A tensor that holds `array`; `dtype` is needed only for sub-byte types (one value a byte).

        Raises QfmtError for values that cannot be stored: a dtype other than the array's, integers that do not fit.
        """
        stored = StoredArray.of(array, dtype, where=name)
        return cls(name, stored.dtype, stored.shape, stored.data, quantization, aliases)

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def array(self) -> Array:
        """The stored values: read-only, zero-copy; sub-byte types unpacked, one value a byte.

        Raises QfmtError if the tensor is not a constant, DigestError if its bytes were changed.
        """
        if self.data is None:
            raise QfmtError("is computed, not stored: it has no array", where=self.name)
        return StoredArray(self.dtype, static_shape(self), self.data).array

    def stored(self) -> Iterator[tuple[str, Data]]:
        """All arrays of the tensor that a file has in its data segment, in their order: its data "", then the large
        ones of its quantization, as `Quantization.parameters` names them."""
        if self.data is not None:
            yield "", self.data
        if self.quantization is not None:
            for name, each in self.quantization.parameters():
                if not each.is_inline:
                    yield name, each.data

    def dequantize(self) -> NDArray[np.float32]:
        """The real values, float32: by `Quantization.dequantize`, or the values of a tensor without quantization."""
        if self.quantization is not None:
            return self.quantization.dequantize(self.array)
        import numpy as np

        return self.array.astype(np.float32)

    def __repr__(self) -> str:
        from .display import tensor_text

        return tensor_text(self)

    def _repr_html_(self) -> str:
        from .display import tensor_html

        return tensor_html(self)


def static_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor all of whose dimensions are numbers; a constant's always are."""
    sizes: list[int] = []
    for size in (None,) if tensor.shape is None else tensor.shape:
        if not isinstance(size, int):
            raise QfmtError("has no fixed shape", where=tensor.name)
        sizes.append(size)
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a requantization (docs/spec/integer-only.md, "Lowering and proofs").

    `low` and `high`: the least and the greatest sum that can occur, for each channel or one for all. `compared`: the
    rule with which it was compared, or empty. `differs`: in how many cases its output is another, for each channel or
    one for all; empty: in none. `largest`: the largest such difference.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    compared: str = ""
    differs: tuple[int, ...] = ()
    largest: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One operation. `operator` is ONNX's name, or `qfmt.Name` if ONNX has none.

    An absent optional input is the empty name. `rule` names the rounding rule of the
    outputs (docs/spec/running.md); it is empty if nothing is rounded.
    `scope` and `source_operator` say where the node came from: the module path, and the operator there. `proof` is
    what is known of a requantization.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""
    version: int = 1
    rule: str = ""
    scope: str = ""
    source_operator: str = ""
    proof: Proof | None = None

    @property
    def label(self) -> str:
        """The name of the node in messages: its name, else its first output, else its operator."""
        return self.name or (self.outputs[0] if self.outputs else self.operator)

    @property
    def title(self) -> str:
        """The same with the operator behind."""
        return f"{self.label} ({self.operator})"

    def input_tensors(self, tensors: Mapping[str, Tensor]) -> list[Tensor | None]:
        """The tensors of the inputs, from those of the graph by name; None for an input that is absent."""
        return [tensors[name] if name else None for name in self.inputs]

    def int(self, name: str, default: builtins.int | None = None) -> builtins.int:
        """An attribute that is one integer, or the default; QfmtError for any other."""
        return self._one(name, builtins.int, default)

    def ints(self, name: str, default: tuple[builtins.int, ...] | None = None) -> tuple[builtins.int, ...]:
        """The same for a list of integers."""
        value = self._one(name, tuple, default)
        if not all(type(each) is builtins.int for each in value):
            raise self._unfit(name, value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """The same for a string."""
        return self._one(name, str, default)

    def _one(self, name: str, kind: type[Kind], default: Kind | None) -> Kind:
        value = self.attributes.get(name, default)
        if type(value) is not kind:
            raise self._unfit(name, value)
        return value

    def _unfit(self, name: str, value: object) -> QfmtError:
        return QfmtError(f"its attribute {name} is {value!r}", where=self.label)

    def __repr__(self) -> str:
        from .display import node_text

        return node_text(self)


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """Nodes in topological order over tensors that are found by name."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[Node]
    tensors: Mapping[str, Tensor]
    name: str = ""

    @property
    def is_archive(self) -> bool:
        """Whether there are only tensors, because the source does not state what is computed from them."""
        return not (self.nodes or self.inputs or self.outputs)

    def constants(self) -> Iterator[Tensor]:
        return (tensor for tensor in self.tensors.values() if tensor.data is not None)

    def producers(self) -> dict[str, Node]:
        """The node that computes each tensor, in the order of the nodes."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def readers(self) -> dict[str, list[Node]]:
        """The nodes that read each tensor, in their order: one that reads it twice is listed twice."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    found.setdefault(name, []).append(node)
        return found

    def uses(self) -> Counter[str]:
        """How often each tensor is used: by nodes, and as an output of the graph."""
        used = Counter(name for node in self.nodes for name in node.inputs if name)
        used.update(self.outputs)
        return used

    def walk(self) -> Iterator[tuple[Node, tuple[Tensor | None, ...], tuple[Tensor | None, ...]]]:
        """Each node in order with the tensors that it reads and computes; None where an optional one is absent."""
        for node in self.nodes:
            made = tuple(self.tensors[name] if name else None for name in node.outputs)
            yield node, tuple(node.input_tensors(self.tensors)), made

    def find(self, name: str) -> Tensor | None:
        """A tensor by its name, by a source name of it, its scale or zero point, or by `NAME.scale` / `.zero_point`."""
        tensors = self.tensors
        if name in tensors or not name:  # what has no name in the source has an empty one
            return tensors.get(name)
        for tensor in tensors.values():
            if name in tensor.aliases or (tensor.quantization is not None and name in tensor.quantization.names):
                return tensor
        owner, _, last = name.rpartition(".")
        return tensors.get(owner) if last in ("scale", "zero_point") else None

    def near(self, name: str) -> list[str]:
        """Names and aliases of tensors that look like `name`, or contain it."""
        return near_names(name, (known for tensor in self.tensors.values() for known in (tensor.name, *tensor.aliases)))

    def __repr__(self) -> str:
        from .display import graph_text

        return graph_text(self)

    def _repr_html_(self) -> str:
        from .display import graph_html

        return graph_html(self)


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are in the module `name`, resemble it or contain it, in this order, and at most NEAR.

    Only the first COMPARED names are compared, and no long ones.
    """
    from difflib import get_close_matches

    compared = [other for other in islice(known, COMPARED) if len(other) <= COMPARED // 100]
    inside = [other for other in compared if other.startswith(f"{name}.")]
    near = [*inside, *get_close_matches(name, compared, n=NEAR), *(other for other in compared if name in other)]
    return list(dict.fromkeys(near))[:NEAR]


COMPARED, NEAR = 20_000, 3


class TensorView(Mapping[str, Tensor]):
    """The tensors of a graph by name; `view[name]` accepts every name that `Graph.find` does, those of the source too.

    As with `__missing__` of a dict, `in` and `get` know only the names that tensors have here. A KeyError lists similar
    names.
    """

    __slots__ = ("_graph",)

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.get(name) or self._graph.find(name)
        if tensor is None:
            near = self._graph.near(name)
            raise KeyError(f"no tensor {name!r}; similar: {', '.join(near)}" if near else f"no tensor {name!r}")
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._graph.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._graph.tensors)

    def __len__(self) -> int:
        return len(self._graph.tensors)

    def values(self) -> ValuesView[Tensor]:
        return self._graph.tensors.values()

    def items(self) -> ItemsView[str, Tensor]:
        return self._graph.tensors.items()

    @overload
    def get(self, name: str, /) -> Tensor | None: ...
    @overload
    def get(self, name: str, /, default: Default) -> Tensor | Default: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        return self._graph.tensors.get(name, default)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors>"


Default = TypeVar("Default")
Kind = TypeVar("Kind")


def attribute_kind(value: Attribute) -> str:
    """`i`, `f` or `s`: the kind of the value, or of its elements; an empty tuple counts as integers."""
    first = (value[0] if value else 0) if isinstance(value, tuple) else value
    return "f" if isinstance(first, float) else "s" if isinstance(first, str) else "i"
