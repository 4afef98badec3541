"""A quantized network in memory: frozen values, names instead of indices, arrays only when needed.

Nothing here imports NumPy until an array is asked for, so that a file can be listed in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .arrays import DTYPES, INT32, Array, ArrayData, Data, DType, StoredArray, first_holding, numpy_dtype, pack, unpack
from .errors import QfmtError
from .graph import (
    Attribute,
    Dimension,
    Graph,
    Node,
    Proof,
    Shape,
    Tensor,
    TensorView,
    attribute_kind,
    near_names,
    static_shape,
)
from .quantization import Observed, Parameter, Quantization
from .urls import Named

if TYPE_CHECKING:
    from os import PathLike
    from types import TracebackType

    from numpy.typing import ArrayLike

    from .backends.torch.module import QuantizedModule
    from .view import Page

__all__ = [
    "DIGEST_SIZE",
    "DTYPES",
    "INT32",
    "ArrayData",
    "Attribute",
    "DType",
    "Data",
    "Dimension",
    "Graph",
    "Model",
    "Node",
    "Observed",
    "Parameter",
    "Proof",
    "Quantization",
    "Shape",
    "StoredArray",
    "Tensor",
    "Vector",
    "attribute_kind",
    "first_holding",
    "near_names",
    "numpy_dtype",
    "pack",
    "static_shape",
    "unpack",
    "value_digest",
    "digested",
    "digested_outputs",
]


@dataclass(frozen=True, slots=True)
class Vector:
    """A test vector: a value for each input of the graph, and the resulting value of each output.

    Element types are those of the tensors; a quantized tensor has its integers here. `digests` are those of what the
    nodes compute on the way, one after another; empty if the vector states none.
    """

    inputs: Mapping[str, StoredArray]
    outputs: Mapping[str, StoredArray]
    name: str = ""
    digests: bytes = b""

    def stored(self, graph: Graph) -> Iterator[tuple[str, str, StoredArray]]:
        """("input" or "output", name of the tensor, value), in the order of the graph."""
        yield from (("input", name, self.inputs[name]) for name in graph.inputs)
        yield from (("output", name, self.outputs[name]) for name in graph.outputs)

    def stated_digests(
        self, graph: Graph, named: Iterable[tuple[Node, str]] | None = None
    ) -> Iterator[tuple[Node, str, bytes]]:
        """(node, name of its output, digest), in the order of the graph; `named`, if given, is `digested(graph)`."""
        parts = (self.digests[at : at + DIGEST_SIZE] for at in range(0, len(self.digests), DIGEST_SIZE))
        pairs = digested(graph) if named is None else named
        yield from ((node, name, digest) for (node, name), digest in zip(pairs, parts, strict=False))


DIGEST_SIZE = 16
"""Bytes of a digest in a test vector: the beginning of a sha256, enough against mistakes."""


def digested_outputs(node: Node, graph: Graph) -> list[str]:
    """The outputs of a node of which a test vector may have digests: those that are not floats."""
    found = [name for name in node.outputs if name in graph.tensors]  # others break rule V31
    return [name for name in found if DTYPES[graph.tensors[name].dtype].kind != "f"]


def digested(graph: Graph) -> list[tuple[Node, str]]:
    """All of them, with their nodes: what test vectors with digests have digests of, in this order."""
    return [(node, name) for node in graph.nodes for name in digested_outputs(node, graph)]


def value_digest(array: Array, dtype: str) -> bytes:
    """The digest of a value of an element type, as spec.md states it ("Test vectors")."""
    return sha256(StoredArray.of(array, dtype).data.view()).digest()[:DIGEST_SIZE]


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """A network: its graph, where it came from, and the engine whose rules its nodes state.

    `source` describes what was converted (docs/spec/conversions.md, "Source keys"); `metadata` is free. `vectors`
    are inputs with the outputs of the network for them (`with_vectors` makes them, `qfmt run --vectors` replays them).
    """

    graph: Graph
    producer: str = ""
    engine: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    vectors: Sequence[Vector] = ()

    @property
    def tensors(self) -> TensorView:
        """The tensors by name, or by their name in the source: `model.tensors["fc1.weight"]`."""
        return TensorView(self.graph)

    @property
    def nodes(self) -> Sequence[Node]:
        return self.graph.nodes

    @property
    def no_graph(self) -> str:
        """Why there is nothing to run, and how to get a graph; "" for a network."""
        return self.source.get("no_graph", "there is no graph, only tensors") if self.graph.is_archive else ""

    def run(self, inputs: Mapping[str, ArrayLike], *, memory: int | None = None) -> dict[str, Array]:
        """Run the reference interpreter (NumPy only): {input: array} → {output: array}.

        Checks the meaning of the graph, level 3 of docs/checking.md. `memory` is the most bytes that the run may take.
        The default is 4 GiB plus 256 times the bytes of constants and inputs, at most half of the available memory.

        Raises RunError if there is no graph, an input is missing or misshapen, a node has no reference or would take
        too much memory, ValidityError if the graph breaks validity rules: a file may not have been written by `save`.
        """
        from .interpreter import run
        from .rules import require_sound

        require_sound(self)
        return run(self, inputs, memory)

    def with_vectors(
        self,
        *inputs: Mapping[str, ArrayLike],
        names: Sequence[str] = (),
        digests: bool = False,
        memory: int | None = None,
    ) -> Model:
        """The same model with additional test vectors: each of `inputs` ({input: array}), and the outputs of `run`;
        with `digests` of what each node computes on the way, if requested.

        `names` are for people; without them, vectors have none. `memory` is that of `run`. Raises what `run` raises,
        and QfmtError if the numbers of names and inputs differ.
        """
        if names and len(names) != len(inputs):
            raise QfmtError(f"{len(names)} names for {len(inputs)} test vectors")
        from .interpreter import checked_inputs, run
        from .rules import require_sound

        require_sound(self)
        vectors = list(self.vectors)
        for given, name in zip(inputs, names or [""] * len(inputs), strict=True):
            found: list[bytes] = []

            def note(node: Node, values: Mapping[str, Array], found: list[bytes] = found) -> None:
                named = digested_outputs(node, self.graph)
                found.extend(value_digest(values[name], self.graph.tensors[name].dtype) for name in named)

            ends = (checked_inputs(self, given), run(self, given, memory, note if digests else None))
            taken, made = ({key: self._stored(key, array) for key, array in arrays.items()} for arrays in ends)
            vectors.append(Vector(taken, made, name, b"".join(found)))
        return replace(self, vectors=tuple(vectors))

    def _stored(self, name: str, array: Array) -> StoredArray:
        """The value of a tensor in a run, as a file stores it."""
        return StoredArray.of(array, self.tensors[name].dtype, where=name)

    def to_torch(self, engine: str = "auto") -> QuantizedModule:
        """A `torch.nn.Module` that computes this network; its `engine` names the engine, `report()` lists fallbacks.

        Checks the meaning of the graph, level 3 of docs/checking.md.

        - `reference`: plain integer tensors, the stated rules: bit for bit the results of `run`.
        - `native`: `torch.ops.quantized`, with the kernels that the model's engine names, or else torch's setting, or
          `native:KERNELS` (fbgemm, qnnpack, onednn, x86): bit for bit the results of the source module on them, also
          where they overflow 16 bits on this processor, but for the last bits of a float SiLU. torch has one setting
          for a process: threads take turns.
        - `onednn`: uint8 and int8 tensors through `torch.ops.onednn`, without torch's deprecated dtypes; `reference`
          computes the products that can overflow there on this processor.
        - `qdq`: `quantized_decomposed` operators, for `torch.export` and `torch.compile`.
        - `auto`: the results of `run`, by oneDNN's kernels where their sums are exact on this processor, else as
          `reference`; the last bits of float operators are torch's.
        - `fast`: the fastest, even if it rounds differently from the file, or can overflow on this processor.

        Arguments are the inputs in order; quantized ones, as in `run`, are plain integers. The result is a tensor,
        or a tuple. Raises MissingPackageError without torch, RunError for an engine that does not exist.
        """
        from .backends.torch import to_torch

        return to_torch(self, engine)

    def to_onnx(self, *, form: str | None = None, opset: int | None = None, same_types: bool = False) -> Any:
        """The network as an `onnx.ModelProto`: integer weights under their names, QuantizeLinear and DequantizeLinear.

        `form="qoperator"` uses operators on integers (QLinearConv, …) where ONNX Runtime has them, `form="qdq"` floats
        between Q and DQ; the default is the form of an ONNX source, otherwise "qdq". `opset` is 13 or later, by default
        the newest that the installed ONNX Runtime accepts. `same_types` gives weights the type of the input that they
        are multiplied with, uint8 or int8, under another name, and makes int8 activations inside the network uint8:
        ONNX Runtime is exact on these on every processor. Checks the meaning of the graph, level 3 of docs/checking.md.

        `qfmt.backends.onnx.write_onnx` writes a file, with large weights in a second one. Raises MissingPackageError
        without onnx and onnx-ir, InexpressibleNodesError with every node that ONNX cannot express.
        """
        from .backends.onnx import to_onnx

        return to_onnx(self, form=form, opset=opset, same_types=same_types)

    def save(self, path: Named, *, target: str | None = None, shard_size: int | None = None) -> None:
        """Write a `.qfb` file, atomically, for readers of the format version `target`; see `qfmt.save`."""
        from .file.writer import save

        save(self, path, target=target, shard_size=shard_size)

    def to_integers(
        self,
        *,
        form: str = "multiply_shift",
        bits: int = 32,
        exact: bool = False,
        input_shapes: Mapping[str, Sequence[Dimension]] | None = None,
        outputs: Sequence[str] = (),
    ) -> Model:
        """The same network, with nodes that compute with integers only; see `qfmt.passes.lowering.lower_integer`."""
        from .passes.lowering import lower_integer

        return lower_integer(self, form=form, bits=bits, exact=exact, input_shapes=input_shapes, outputs=outputs)

    def to_c(
        self,
        folder: str | PathLike[str],
        *,
        name: str = "",
        shapes: Mapping[str, Sequence[int]] | None = None,
        compact: bool = False,
    ) -> list[str]:
        """Write an integer-only network as a C program into `folder`; see `qfmt.backends.c.write_c`.

        Checks the meaning of the graph, and the stated ranges of its sums: level 3 and P2 of docs/checking.md.
        """
        from .backends.c import write_c

        return write_c(self, folder, name=name, shapes=shapes, compact=compact)

    def view(self, other: Model | None = None, *, name: str = "model", arrays: bool = False) -> Page:
        """A page about the model, as `qfmt view` makes it: a notebook shows it, `view().save("m.html")` writes it.

        With `other` it shows what differs. `arrays` embeds the arrays. Raises ValidityError if two models are compared
        and one breaks rules.
        """
        from .view import page

        return page(self, other, name=name, arrays=arrays)

    def replace(self, **changes: Any) -> Model:
        """The same model with some fields changed."""
        return replace(self, **changes)

    def rename(self, names: Mapping[str, str]) -> Model:
        """The same model with tensors under other names: {old: new}; an old name becomes an alias.

        Raises QfmtError for a tensor that does not exist and for a new name that is already used.
        """
        from .passes.edits import rename

        return rename(self, names)

    def subgraph(self, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Model:
        """The part of the network between tensors: `inputs` become its inputs, `outputs` its outputs.

        The default is those of the network. Names are any that `tensors[…]` accepts. Test vectors are dropped.
        Raises QfmtError for a tensor that does not exist, for a constant, and if the outputs need more inputs.
        """
        from .passes.edits import subgraph

        return subgraph(self, inputs, outputs)

    def replace_tensor(self, name: str, values: ArrayLike, quantization: Quantization | None = None) -> Model:
        """The same model with other values of a constant, of the same dtype and shape; without test vectors and proofs.

        `quantization` replaces that of the tensor. Raises QfmtError for a tensor that does not exist or is computed,
        and for values that it cannot represent.
        """
        from .passes.edits import replace_tensor

        return replace_tensor(self, name, values, quantization)

    def close(self) -> None:
        """Release the file that the model was loaded from; arrays that were read from it stay valid.

        Reading anything else then raises QfmtError. Does nothing for a model that was not loaded.
        """
        close = getattr(self.graph.tensors, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        from .display import model_text

        return model_text(self)

    def _repr_html_(self) -> str:
        from .display import model_html

        return model_html(self)

    def content_id(self) -> bytes:
        """32 bytes that identify what the network computes: equal for equal names, types, quantization and data.

        Producer, source (except how inputs are quantized), metadata, test vectors, aliases and scopes are not included.
        Defined in docs/spec/writing.md, "Content id".
        """
        from .content import content_digest

        return content_digest(self)
