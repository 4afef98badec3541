"""A quantized network in memory: frozen values, names instead of indices, arrays only when asked for.

Quantization is a property of a tensor, not a pair of operators: `fc1.scale` in PyTorch is the
quantization of the tensor that `fc1` puts out, and a tensor without quantization is what its dtype says.

Nothing here imports NumPy until an array is asked for, so that a file can be listed in milliseconds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import QfmtError, ValidityError

if TYPE_CHECKING:
    from os import PathLike

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from .backends.torch.module import QuantizedModule

    Array = NDArray[np.generic]

Dimension = int | str | None
"""A size; or a name, equal wherever it stands in a graph (`"N"`); or None: not known."""

Shape = tuple[Dimension, ...] | None
"""None: not even the rank is known."""

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class DType(NamedTuple):
    """An element type. `bits` < 8 are packed low bits first, without gaps between rows."""

    code: int
    name: str
    bits: int
    kind: str
    minimum: int = 0
    maximum: int = 0

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"


def _integer(code: int, bits: int, signed: bool) -> DType:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return DType(code, f"{'' if signed else 'u'}int{bits}", bits, "i" if signed else "u", low, high)


DTYPES: dict[str, DType] = {
    entry.name: entry
    for entry in (
        DType(1, "bool", 8, "b"),
        _integer(2, 8, True),
        _integer(3, 8, False),
        _integer(4, 16, True),
        _integer(5, 16, False),
        _integer(6, 32, True),
        _integer(7, 32, False),
        _integer(8, 64, True),
        _integer(9, 64, False),
        DType(10, "float16", 16, "f"),
        DType(11, "bfloat16", 16, "f"),
        DType(12, "float32", 32, "f"),
        DType(13, "float64", 64, "f"),
        _integer(14, 4, True),
        _integer(15, 4, False),
        _integer(16, 2, True),
        _integer(17, 2, False),
        DType(18, "float8_e4m3fn", 8, "f"),
        DType(19, "float8_e5m2", 8, "f"),
    )
}
"""Every element type by name; names are those of NumPy and ml_dtypes, codes those of the schema."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a calibration observer saw, before it was turned into scale and zero point.

    `quant_min` and `quant_max` are the integers that it chose the scale for (None: not known), which is not the
    clamp of the tensor: PyTorch calibrates for 0..127 (`reduce_range`) and clamps to 0..255. `qscheme` is
    PyTorch's name of the mapping, "per_tensor_affine" or the like.
    """

    observer: str
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    quant_min: int | None = None
    quant_max: int | None = None
    qscheme: str = ""


@dataclass(frozen=True, slots=True)
class Quantization:
    """real = (q - zero_point) · scale, with q in [quant_min, quant_max].

    `scale` and `zero_point` have one element per tensor (`axis` is None), or one per slice of `axis`.
    Scales are float64 and hold the source's value exactly; `scale_dtype` is the type the source had.
    Zero points are integers; those of embeddings may be floats, all of them. A fused ReLU is a `quant_min`
    equal to the zero point.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...] | tuple[float, ...]
    quant_min: int
    quant_max: int
    axis: int | None = None
    scale_dtype: str = "float32"
    observed: Observed | None = None

    @classmethod
    def per_tensor(
        cls,
        scale: float,
        zero_point: int,
        dtype: str,
        *,
        quant_min: int | None = None,
        scale_dtype: str = "float32",
    ) -> Quantization:
        """One scale and zero point for the whole tensor, over the full range of `dtype`."""
        limits = DTYPES[dtype]
        low = limits.minimum if quant_min is None else quant_min
        return cls((float(scale),), (int(zero_point),), low, limits.maximum, None, scale_dtype)

    @property
    def is_per_channel(self) -> bool:
        return self.axis is not None

    @property
    def has_float_zero_points(self) -> bool:
        return bool(self.zero_point) and isinstance(self.zero_point[0], float)

    def same_grid(self, other: Quantization | None) -> bool:
        """Whether an integer means the same real number here and there."""
        return other is not None and (self.scale, self.zero_point, self.axis) == (
            other.scale,
            other.zero_point,
            other.axis,
        )

    def scales(self, rank: int) -> NDArray[np.float64]:
        """The scales, float64, shaped so that they broadcast against a tensor of `rank`."""
        import numpy as np

        return self._broadcastable(np.array(self.scale, np.float64), rank)

    def zero_points(self, rank: int) -> NDArray[np.int32] | NDArray[np.float32]:
        """The zero points, int32 or float32, shaped so that they broadcast against a tensor of `rank`."""
        import numpy as np

        kind = np.float32 if self.has_float_zero_points else np.int32
        return self._broadcastable(np.array(self.zero_point, kind), rank)

    def _broadcastable(self, values: NDArray[Any], rank: int) -> NDArray[Any]:
        if self.axis is None:
            return values.reshape(())
        return values.reshape([-1 if axis == self.axis else 1 for axis in range(rank)])


class Data:
    """The bytes of a constant: contiguous, logical order, little-endian, sub-byte values packed.

    Subclasses say where they lie. `view` may verify, read or convert on each call; it keeps nothing.
    """

    __slots__ = ("nbytes",)

    nbytes: int

    def view(self) -> memoryview:
        """All bytes, read-only, format "B"."""
        raise NotImplementedError

    def sha256(self) -> bytes:
        return hashlib.sha256(self.view()).digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Data):
            return NotImplemented
        return self.nbytes == other.nbytes and self.sha256() == other.sha256()

    def __hash__(self) -> int:
        return hash(self.sha256())


class ArrayData(Data):
    """Data that lies in a NumPy array."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        import numpy as np

        little = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
        self._array = np.ascontiguousarray(array, little)
        self.nbytes = self._array.nbytes

    def view(self) -> memoryview:
        import numpy as np

        return self._array.reshape(-1).view(np.uint8).data.toreadonly()


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
        import numpy as np

        values = np.asarray(array)
        kind = dtype or values.dtype.name
        if kind not in DTYPES:
            raise QfmtError(f"arrays of {kind} cannot be stored", where=name)
        _check_values(name, values, DTYPES[kind])
        packed = pack(values, DTYPES[kind].bits) if DTYPES[kind].bits < 8 else values
        return cls(name, kind, tuple(values.shape), ArrayData(packed), quantization, aliases)

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def array(self) -> Array:
        """The stored values: read-only, zero-copy; sub-byte types unpacked, one value a byte.

        Raises QfmtError if the tensor is not a constant, DigestError if its bytes were changed.
        """
        import numpy as np

        if self.data is None:
            raise QfmtError("is computed, not stored: it has no array", where=self.name)
        shape = static_shape(self)
        bits, kind = DTYPES[self.dtype].bits, DTYPES[self.dtype].kind
        if bits < 8:
            count = int(np.prod(shape, dtype=np.int64))
            values: Array = unpack(self.data.view(), bits, kind == "i", count)
        else:
            values = np.frombuffer(self.data.view(), numpy_dtype(self.dtype))
        values = values.reshape(shape)
        values.flags.writeable = False
        return values

    def dequantize(self) -> NDArray[np.float32]:
        """The real values, float32: `f32(q - zero_point) · f32(scale)`; a float tensor as it is."""
        import numpy as np

        if self.quantization is None:
            return self.array.astype(np.float32)
        from .arithmetic import dequantize

        return dequantize(self.array, self.quantization)


def _check_values(name: str, values: Array, kind: DType) -> None:
    """QfmtError if the values are not of that type: they would be stored as others."""
    if values.dtype.name == kind.name:
        return
    if kind.bits >= 8:
        raise QfmtError(f"an array of {values.dtype} is not one of {kind.name}", where=name)
    if not (
        values.dtype.kind in "iu" and kind.minimum <= values.min(initial=0) <= values.max(initial=0) <= kind.maximum
    ):
        raise QfmtError(f"does not hold integers of {kind.name}", where=name)


def static_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor all of whose dimensions are numbers; a constant's always are."""
    if tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
        raise QfmtError("has no fixed shape", where=tensor.name)
    return tuple(size for size in tensor.shape if isinstance(size, int))


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The little-endian NumPy dtype of an element type of at least 8 bits."""
    import numpy as np

    found: np.dtype[np.generic]
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
    else:
        found = np.dtype(name).newbyteorder("<")
    return found


def pack(values: Array, bits: int) -> NDArray[np.uint8]:
    """Sub-byte integers, one a byte, into bytes: the first value in the lowest bits, zero padding."""
    import numpy as np

    per_byte = 8 // bits
    codes = values.reshape(-1).astype(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed.astype(np.uint8, copy=False)


def unpack(packed: memoryview, bits: int, signed: bool, count: int) -> Array:
    """The inverse of `pack`: int8 or uint8, one value a byte."""
    import numpy as np

    shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
    codes = (np.frombuffer(packed, np.uint8)[:, None] >> shifts).reshape(-1)[:count]
    codes = codes & np.uint8((1 << bits) - 1)
    if not signed:
        return codes
    sign = np.uint8(1 << bits - 1)
    return ((codes ^ sign) - sign).view(np.int8)


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
        """A tensor by its name, by any name it had in its source, or by `NAME.scale` / `.zero_point`."""
        tensors = self.tensors
        if name in tensors:
            return tensors[name]
        for tensor in tensors.values():
            if name in tensor.aliases:
                return tensor
        owner, _, last = name.rpartition(".")
        return tensors.get(owner) if last in ("scale", "zero_point") else None


@dataclass(frozen=True, slots=True)
class Model:
    """A network: its graph, where it came from, and the engine whose arithmetic its nodes state.

    `source` describes what was converted (keys of spec.md, "Source keys"); `metadata` is the user's.
    """

    graph: Graph
    producer: str = ""
    arithmetic: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.graph.tensors

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
        from .rules import graph_violations

        if broken := graph_violations(self):
            raise ValidityError(broken)
        return run(self, inputs)

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

    def to_onnx(self, *, form: str = "qdq", opset: int | None = None) -> Any:
        """The network as an `onnx.ModelProto`: integer weights under their names, QuantizeLinear and DequantizeLinear.

        `form="qoperator"` takes operators on integers (QLinearConv, …) where ONNX Runtime has them. `opset` is 13 or
        later; left out, the newest that the installed ONNX Runtime accepts. `qfmt.backends.onnx.write_onnx` writes a
        file, with large weights beside it. Raises MissingPackageError without onnx and onnx-ir, InexpressibleNodes
        with every node that ONNX cannot express.
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

        Producer, source, metadata, aliases and scopes do not count. Defined in spec.md, "Content id".
        """
        digest = hashlib.sha256()
        for line in _content_lines(self):
            digest.update(line.encode() + b"\n")
        return digest.digest()


def _content_lines(model: Model) -> Iterator[str]:
    graph = model.graph
    yield "qfb content 1"
    yield _fields("inputs", *graph.inputs)
    yield _fields("outputs", *graph.outputs)
    for name in sorted(graph.tensors):
        tensor = graph.tensors[name]
        shape = ["*"] if tensor.shape is None else [_size_word(size) for size in tensor.shape]
        yield _fields("tensor", name, tensor.dtype, str(len(shape)), *shape)
        if tensor.quantization is not None:
            yield _quantization_line(tensor.quantization)
        if tensor.data is not None:
            yield _fields("data", tensor.data.sha256().hex())
    for node in graph.nodes:
        yield _fields("node", node.operator, str(node.version), node.arithmetic)
        yield _fields("in", *node.inputs)
        yield _fields("out", *node.outputs)
        for key in sorted(node.attributes):
            yield _fields("attribute", key, *_attribute_words(node.attributes[key]))


def _size_word(size: Dimension) -> str:
    """A name is marked, so that one like "3" or "?" is no number and not unknown."""
    return "?" if size is None else f"={size}" if isinstance(size, str) else str(size)


def _quantization_line(quantization: Quantization) -> str:
    axis = "-" if quantization.axis is None else str(quantization.axis)
    scales = (_number_word(scale) for scale in quantization.scale)
    zero_points = (_number_word(zero_point) for zero_point in quantization.zero_point)
    limits = (str(quantization.quant_min), str(quantization.quant_max))
    return _fields("quantization", axis, *limits, quantization.scale_dtype, *scales, *zero_points)


def _attribute_words(value: Attribute) -> Iterator[str]:
    values = value if isinstance(value, tuple) else (value,)
    yield ("s" if not isinstance(value, tuple) else "l") + attribute_kind(value)
    for item in values:
        yield _number_word(item) if isinstance(item, float) else str(item)


def _number_word(value: float) -> str:
    """An integer in decimal digits, a float as the hexadecimal digits of its float64."""
    return struct.pack(">d", value).hex() if isinstance(value, float) else str(value)


def attribute_kind(value: Attribute) -> str:
    """`i`, `f` or `s`: what the value, or each element of it, is; an empty tuple counts as integers."""
    first = (value[0] if value else 0) if isinstance(value, tuple) else value
    return "f" if isinstance(first, float) else "s" if isinstance(first, str) else "i"


def _fields(*words: str) -> str:
    """Words joined by spaces, each preceded by its length in bytes, so that no two lists look alike."""
    return " ".join(f"{len(word.encode())}:{word}" for word in words)
