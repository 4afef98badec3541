"""A quantized network in memory: frozen values, names instead of indices, arrays only when asked for.

Quantization is a property of a tensor, not a pair of operators: `fc1.scale` in PyTorch is the
quantization of the tensor that `fc1` puts out, and a tensor without quantization is what its dtype says.

Nothing here imports NumPy until an array is asked for, so that a file can be listed in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .arrays import DTYPES, ArrayData, Data, DType, StoredArray, numpy_dtype, pack, unpack
from .errors import QfmtError
from .quantization import Blocks, Observed, Quantization

if TYPE_CHECKING:
    from os import PathLike

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from .backends.torch.module import QuantizedModule

    Array = NDArray[np.generic]

__all__ = [
    "DTYPES",
    "ArrayData",
    "Attribute",
    "Blocks",
    "DType",
    "Data",
    "Dimension",
    "Graph",
    "Model",
    "Node",
    "Observed",
    "Quantization",
    "Shape",
    "StoredArray",
    "Tensor",
    "Vector",
    "attribute_kind",
    "numpy_dtype",
    "pack",
    "static_shape",
    "unpack",
]

Dimension = int | str | None
"""A size; or a name, equal wherever it stands in a graph (`"N"`); or None: not known."""

Shape = tuple[Dimension, ...] | None
"""None: not even the rank is known."""

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
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

        Raises QfmtError for what cannot be stored: another dtype than the array has, integers that do not fit.
        """
        stored = StoredArray.of(array, dtype, where=name)
        return cls(name, *stored, quantization, aliases)

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
        """All arrays that belong to it, in the order in which a file has them: its own "", "scale", "zero_point"."""
        if self.data is not None:
            yield "", self.data
        if self.quantization is not None and self.quantization.blocks is not None:
            blocks = self.quantization.blocks
            yield "scale", blocks.scale.data
            if blocks.zero_point is not None:
                yield "zero_point", blocks.zero_point.data

    def dequantize(self) -> NDArray[np.float32]:
        """The real values, float32: `f32(q - zero_point) · f32(scale)`; a float tensor as it is."""
        import numpy as np

        if self.quantization is None:
            return self.array.astype(np.float32)
        from .arithmetic import dequantize

        return dequantize(self.array, self.quantization)


def static_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor all of whose dimensions are numbers; a constant's always are."""
    if tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
        raise QfmtError("has no fixed shape", where=tensor.name)
    return tuple(size for size in tensor.shape if isinstance(size, int))


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `operator` is ONNX's name, or `qfmt.Name` for what ONNX lacks.

    An absent optional input is the empty name. `arithmetic` names the rounding rule by which the
    outputs are computed (spec.md, "Arithmetic"); it is empty where nothing is rounded.
    `scope` and `source_operator` say where the node came from: the module path, and what it was there.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""
    version: int = 1
    arithmetic: str = ""
    scope: str = ""
    source_operator: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order over tensors that are found by name."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[Node]
    tensors: Mapping[str, Tensor]
    name: str = ""

    @property
    def is_archive(self) -> bool:
        """Whether there are tensors only, because the source said nothing about what is computed from them."""
        return not (self.nodes or self.inputs or self.outputs)

    def constants(self) -> Iterator[Tensor]:
        return (tensor for tensor in self.tensors.values() if tensor.data is not None)

    def find(self, name: str) -> Tensor | None:
        """A tensor by its name, by a name that it, its scale or zero point had, or by `NAME.scale` / `.zero_point`."""
        tensors = self.tensors
        if name in tensors:
            return tensors[name]
        for tensor in tensors.values():
            if name in tensor.aliases or (tensor.quantization is not None and name in tensor.quantization.names):
                return tensor
        owner, _, last = name.rpartition(".")
        return tensors.get(owner) if last in ("scale", "zero_point") else None

    def near(self, name: str) -> list[str]:
        """Names and aliases of tensors that look like `name`, or contain it."""
        return near_names(name, (known for tensor in self.tensors.values() for known in (tensor.name, *tensor.aliases)))


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that look like `name`, or contain it; of many names, or long ones, not all are compared."""
    from difflib import get_close_matches

    compared = [other for other in islice(known, COMPARED) if len(other) <= COMPARED // 100]
    close = get_close_matches(name, compared, n=count)
    return list(dict.fromkeys([*close, *(other for other in compared if name in other)]))[:count]


COMPARED = 20_000


class TensorView(Mapping[str, Tensor]):
    """The tensors of a graph by name; `view[name]` takes every name that `Graph.find` takes, those of the source too.

    As with `__missing__` of a dict, `in` and `get` know only the names that tensors have here. A KeyError has names
    that are near.
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

    @overload
    def get(self, name: str, /) -> Tensor | None: ...
    @overload
    def get(self, name: str, /, default: Default) -> Tensor | Default: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        return self._graph.tensors.get(name, default)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors>"


Default = TypeVar("Default")


@dataclass(frozen=True, slots=True)
class Vector:
    """A test vector: a value for each input of the graph, and for each output the one that it gives for them.

    Element types are those of the tensors; a quantized tensor has its integers here.
    """

    inputs: Mapping[str, StoredArray]
    outputs: Mapping[str, StoredArray]
    name: str = ""

    def stored(self, graph: Graph) -> Iterator[tuple[str, str, StoredArray]]:
        """("input" or "output", name of the tensor, value), in the order of the graph."""
        yield from (("input", name, self.inputs[name]) for name in graph.inputs)
        yield from (("output", name, self.outputs[name]) for name in graph.outputs)


@dataclass(frozen=True, slots=True)
class Model:
    """A network: its graph, where it came from, and the engine whose arithmetic its nodes state.

    `source` describes what was converted (keys of spec.md, "Source keys"); `metadata` is the user's. `vectors` are
    inputs with the outputs that the network gives for them (`with_vectors` makes some, `qfmt run --vectors` replays).
    """

    graph: Graph
    producer: str = ""
    arithmetic: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    vectors: Sequence[Vector] = ()

    @property
    def tensors(self) -> TensorView:
        """The tensors by name, or by a name that they had in the source: `model.tensors["fc1.weight"]`."""
        return TensorView(self.graph)

    @property
    def nodes(self) -> Sequence[Node]:
        return self.graph.nodes

    @property
    def no_graph(self) -> str:
        """Why there is nothing to run, and what would give a graph; "" for a network."""
        return self.source.get("no_graph", "there is no graph, only tensors") if self.graph.is_archive else ""

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Run the reference interpreter (NumPy only): {input: array} → {output: array}.

        Raises RunError if there is no graph, an input is missing or misshapen or a node has no reference,
        ValidityError if the graph breaks validity rules: a file is not trusted to have been written by `save`.
        """
        from .interpreter import run
        from .rules import require_sound

        require_sound(self)
        return run(self, inputs)

    def with_vectors(self, *inputs: Mapping[str, ArrayLike], names: Sequence[str] = ()) -> Model:
        """The same model with test vectors more: each of `inputs` ({input: array}), and what `run` gives for it.

        `names` are for people; left out, a vector has none. Raises what `run` raises, and QfmtError for another
        number of names than of inputs.
        """
        if names and len(names) != len(inputs):
            raise QfmtError(f"{len(names)} names for {len(inputs)} test vectors")
        from .interpreter import checked_inputs

        vectors = list(self.vectors)
        for given, name in zip(inputs, names or [""] * len(inputs), strict=True):
            ends = (checked_inputs(self, given), self.run(given))
            taken, made = ({key: self._stored(key, array) for key, array in arrays.items()} for arrays in ends)
            vectors.append(Vector(taken, made, name))
        return replace(self, vectors=tuple(vectors))

    def _stored(self, name: str, array: Array) -> StoredArray:
        """What a tensor holds in a run, as a file stores it."""
        return StoredArray.of(array, self.tensors[name].dtype, where=name)

    def to_torch(self, engine: str = "auto") -> QuantizedModule:
        """A `torch.nn.Module` that computes this network; its `engine` says by whom, `report()` what fell back.

        - `reference`: plain integer tensors, the stated arithmetic: bit for bit what `run` gives.
        - `native`: `torch.ops.quantized`, with the kernels that the model's arithmetic names, or `native:KERNELS`
          (fbgemm, qnnpack, onednn, x86): bit for bit what the source module gives on them.
        - `onednn`: uint8 and int8 tensors through `torch.ops.onednn`, without torch's deprecated dtypes.
        - `qdq`: `quantized_decomposed` operators, for `torch.export` and `torch.compile`.
        - `auto`: the fastest that this machine and this torch have.

        Arguments are the inputs in order; quantized ones, as in `run`, are plain integers. The result is a tensor,
        or a tuple. Raises MissingPackageError without torch, RunError for an engine that is not there.
        """
        from .backends.torch import to_torch

        return to_torch(self, engine)

    def to_onnx(self, *, form: str | None = None, opset: int | None = None) -> Any:
        """The network as an `onnx.ModelProto`: integer weights under their names, QuantizeLinear and DequantizeLinear.

        `form="qoperator"` takes operators on integers (QLinearConv, …) where ONNX Runtime has them, `form="qdq"` floats
        between Q and DQ; left out, the form of an ONNX source, else "qdq". `opset` is 13 or later; left out, the newest
        that the installed ONNX Runtime accepts. `qfmt.backends.onnx.write_onnx` writes a file, with large weights
        beside it. Raises MissingPackageError without onnx and onnx-ir, InexpressibleNodes with every node that ONNX
        cannot express.
        """
        from .backends.onnx import to_onnx

        return to_onnx(self, form=form, opset=opset)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a `.qfb` file, atomically; see `qfmt.save`."""
        from .file import save

        save(self, path)

    def replace(self, **changes: object) -> Model:
        """The same model with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def content_id(self) -> bytes:
        """32 bytes that name what the network computes: equal for equal names, types, quantization and data.

        Producer, source, metadata, test vectors, aliases and scopes do not count. Defined in spec.md, "Content id".
        """
        from .content import content_digest

        return content_digest(self)


def attribute_kind(value: Attribute) -> str:
    """`i`, `f` or `s`: what the value, or each element of it, is; an empty tuple counts as integers."""
    first = (value[0] if value else 0) if isinstance(value, tuple) else value
    return "f" if isinstance(first, float) else "s" if isinstance(first, str) else "i"
