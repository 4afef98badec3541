"""The values of the lifter: tensors of the graph, archived tensors, and what is known about them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...errors import SourceError
from ...model import DTYPES, ArrayData, Data, Quantization, Shape, pack
from ..stored import StoredTensor
from .calls import Value

DTYPE_CODES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    11: "bool", 12: "int8", 13: "uint8", 14: "int32", 15: "bfloat16", 16: "uint4", 17: "uint2",
    23: "float8_e5m2", 24: "float8_e4m3fn", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
"""c10::ScalarType: the dtypes of archives. 12, 13, 14, 16 and 17 are the quantized ones."""

PLAIN_CODES = {name: code for code, name in DTYPE_CODES.items() if code not in (12, 13, 14, 16, 17)}

QUANTIZED_CODES = {"qint8": 12, "quint8": 13, "qint32": 14}

RANK_NAMES = {1: ("N",), 2: ("N", "F"), 3: ("N", "C", "L"), 4: ("N", "C", "H", "W"), 5: ("N", "C", "D", "H", "W")}
"""Names for the sizes of an input with only a known rank."""


class UnknownNumber(SourceError):
    """A number is needed that is known only at run time: it may be a size, which can be stated."""


class Memory:
    """The memory that all views of a tensor share; `changed_by` is the call that wrote to it through one of them.

    The memory of a tensor of the module is `kept` from one run to the next. It is `shared` once there is a view, and
    `overlaps` once a view may show an element twice.
    """

    __slots__ = ("_divisions", "_whole", "changed_by", "kept", "overlaps", "shared")

    def __init__(self, whole: Memory | None = None) -> None:
        self.changed_by = ""
        self.kept: bool = whole is not None and whole.kept
        self.shared = False
        self.overlaps = False
        self._whole = whole
        self._divisions: list[list[Memory]] = []

    def divided(self, count: int) -> list[Memory]:
        """Parts that do not overlap each other; another division has other parts."""
        self._divisions.append([Memory(self) for _ in range(count)])
        return self._divisions[-1]

    def change(self, target: str) -> None:
        """A call writes to it: all that overlaps it is changed, too. Each memory is marked once."""
        changed, part, whole = [self], self, self._whole
        while whole is not None and not whole.changed_by:
            whole.changed_by = target
            changed += (each for parts in whole._divisions if part not in parts for each in parts)
            part, whole = whole, whole._whole
        while changed:
            each = changed.pop()
            each.changed_by = target
            changed += (inner for parts in each._divisions for inner in parts if not inner.changed_by)


class TensorValue(Value):
    """A tensor that exists at run time. In-place operators change the tensor that a handle refers to.

    It is `channels_last` if torch stores the channels of an image innermost: some kernels then round otherwise.
    `slice_of` says which part of another tensor it is, if it is one.
    """

    __slots__ = ("channels_last", "dtype", "key", "memory", "origin", "quantization", "shape", "slice_of")

    def __init__(self, key: str, dtype: str, shape: Shape, quantization: Quantization | None, origin: str) -> None:
        self.key = key
        self.dtype = dtype
        self.shape = shape
        self.quantization = quantization
        self.origin = origin
        self.memory = Memory()
        self.channels_last = False
        self.slice_of: Slice | None = None

    @property
    def has_block(self) -> bool:
        """Whether it may have so many channels that a kernel that goes along them computes them in blocks."""
        channels = self.shape[1] if self.shape is not None and len(self.shape) > 1 else None
        return not isinstance(channels, int) or channels >= 8

    @property
    def is_whole(self) -> bool:
        """Whether it has integers or bools that stand for themselves."""
        return self.quantization is None and (self.dtype == "bool" or DTYPES[self.dtype].is_integer)

    def become(self, other: TensorValue) -> None:
        """After an in-place operator every holder of this handle sees the new tensor: the same slice of another one."""
        for slot in self.__slots__:
            if slot != "slice_of":
                setattr(self, slot, getattr(other, slot))


class Slice(NamedTuple):
    """A part of `whole`, where `scatter` puts a new one in its place: a call with whole, part, and these arguments."""

    whole: TensorValue
    scatter: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


HALF_MAX = float(np.finfo(np.float16).max)


class StoredData(Data):
    """The bytes of an archived tensor: read, and made contiguous, on each access.

    `dtype` is float16 if PyTorch narrows the values before it computes with them, and saturates them; int4 or int2
    for integers that are stored one per byte, and fit.
    """

    __slots__ = ("_dtype", "_tensor")

    def __init__(self, tensor: StoredTensor, dtype: str = "") -> None:
        self._tensor = tensor
        self._dtype = dtype or tensor.dtype
        self.nbytes = -(-prod(tensor.shape) * DTYPES[self._dtype].bits // 8)

    def view(self) -> memoryview:
        array, bits = self._tensor.array(), DTYPES[self._dtype].bits
        if self._dtype != self._tensor.dtype and bits >= 8:
            array = np.clip(array, -HALF_MAX, HALF_MAX).astype(self._dtype)
        packed = pack(array, bits) if bits < 8 else array
        return ArrayData(packed).view()


class Unsupported(Value):
    """The result of an unsupported call; lifting continues, so that all such calls can be listed."""


class Refine(Exception):
    """New knowledge about a graph input: lift again from the start with this shape, this dtype if not "", and with real
    numbers if the network needs them."""

    def __init__(
        self, name: str, shape: Shape, *, dtype: str = "", assumed: bool = False, is_real: bool = False
    ) -> None:
        super().__init__(name, shape)
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.assumed = assumed
        self.is_real = is_real


@dataclass(frozen=True)
class InputSpec:
    """What is known about an argument of `forward` before lifting."""

    name: str
    shape: Shape = None
    dtype: str = "float32"
    quantization: Quantization | None = None
    example: tuple[int, ...] | None = None
    """The shape that it had in the trace, if there was one."""
    typed: bool = False
    """Whether the source or the user states its element type, which is float32 otherwise until an operator needs
    another one."""
    is_real: bool = False
    """Whether the network needs floats, although the user states a quantization."""


def narrowest(scale: float) -> str:
    """float32 if it represents the scale exactly: PyTorch computes with it; else float64, as in the file."""
    try:
        return "float32" if struct.unpack("<f", struct.pack("<f", scale))[0] == scale else "float64"
    except OverflowError:
        return "float64"


def stored_quantization(value: StoredTensor) -> Quantization | None:
    """The quantization of an archived tensor, over the full range of its dtype."""
    if value.quantizer is None:
        return None
    value.quantizer.charge()
    limits = DTYPES[value.dtype]
    scales, axis = value.quantizer.scales(), value.quantizer.axis
    zero_points = value.quantizer.zero_points()
    floats = tuple(point for point in zero_points if isinstance(point, float))
    kind = "float32" if all(narrowest(number) == "float32" for number in (*scales, *floats)) else "float64"
    return Quantization.of(scales, zero_points, limits.minimum, limits.maximum, axis, kind)


class Size(Value):
    """One integer, computed by `build` as an int64 tensor of one element when it is needed.

    `source` is (tensor key, axis) if it is the size of a dimension; `dimension` is that dimension's name. It is never
    negative if it is `natural`.
    """

    __slots__ = ("build", "dimension", "natural", "source")

    def __init__(
        self,
        build: Callable[[], TensorValue],
        source: tuple[str, int] | None = None,
        dimension: str | None = None,
        *,
        natural: bool = True,
    ) -> None:
        self.build = build
        self.source = source
        self.dimension = dimension
        self.natural = natural


class Unknown(Value):
    """A number or bool that depends on the data: code that branches on it cannot be converted."""


class Quotient(Unknown):
    """A size divided by a number: a size again once it is rounded, `down` or `towards_zero`."""

    __slots__ = ("down", "towards_zero")

    def __init__(self, down: Size, towards_zero: Size) -> None:
        self.down, self.towards_zero = down, towards_zero


_AUGMENTED = {f"aten::__i{name}__": f"aten::__{name}__" for name in ("and", "or", "xor", "lshift", "rshift")}


def out_of_place(target: str) -> str:
    """The operator that a call in place computes; that of the call if it changes nothing."""
    return _AUGMENTED.get(target) or (target if target.endswith("__") else target.removesuffix("_"))


def is_in_place(target: str) -> bool:
    """Whether a call writes its result into its first argument."""
    return out_of_place(target) != target


VIEWS = {
    f"aten::{name}"
    for name in (
        "_unsafe_view", "adjoint", "alias", "alpha_dropout", "as_strided", "broadcast_to", "channel_shuffle", "chunk",
        "conj", "contiguous", "cpu", "dequantize", "detach", "diagonal", "dropout", "expand", "expand_as",
        "feature_alpha_dropout", "feature_dropout", "flatten", "lift_fresh", "mH", "mT", "matrix_H", "moveaxis",
        "movedim", "narrow", "native_channel_shuffle", "numpy_T", "permute", "positive", "ravel", "real", "reshape",
        "reshape_as", "resolve_conj", "resolve_neg", "select", "slice", "split", "split_with_sizes", "squeeze",
        "swapaxes", "swapdims", "t", "tensor_split", "to", "transpose", "type_as", "unbind", "unflatten", "unfold",
        "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "view", "view_as",
    )
} | {"prim::data"}  # fmt: skip
"""Calls whose result is a view of their first argument's memory: writing to one changes the other.

Some of them sometimes copy; they are always treated as views."""

_DIVISIONS = {
    f"aten::{name}"
    for name in (
        "chunk", "split", "split_with_sizes", "unbind", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    )
}  # fmt: skip
"""Calls whose results are different elements of their first argument."""

_SLICES = {"aten::slice": "aten::slice_scatter", "aten::select": "aten::select_scatter"}
"""Calls whose result can be put back by another one."""

_OVERLAPPING = {f"aten::{name}" for name in ("as_strided", "broadcast_to", "expand", "expand_as", "unfold")}
"""Calls whose result may show an element more than once."""

VIEWS_OF_ANY = {"aten::einsum", "aten::meshgrid"}
"""Calls whose results may be views of any tensor of a list."""

_SAME_ONLY = {"aten::dequantize", "aten::to", "aten::type_as"}
"""Calls that return a view only if there is nothing to do."""

DECOMPOSE = "export it and convert program.run_decompositions(), or remove in-place operators from the model"


def share(
    target: str, first: TensorValue, result: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> None:
    """Record the memory of the results of a view of `first`, whose other arguments are `args` and `kwargs`."""
    if target not in VIEWS:
        return
    results, memory = result if isinstance(result, list | tuple) else [result], first.memory
    memory.overlaps |= target in _OVERLAPPING
    is_divided = target in _DIVISIONS and len(results) > 1 and not memory.overlaps
    parts = memory.divided(len(results)) if is_divided else [memory] * len(results)
    for value, part in zip(results, parts, strict=True):
        if isinstance(value, TensorValue) and (target not in _SAME_ONLY or value.key == first.key):
            value.memory = part
            value.memory.shared = True
            if target in _SLICES:
                value.slice_of = Slice(first, _SLICES[target], args, kwargs or {})


def check_unchanged(target: str, values: Any) -> None:
    """Raise SourceError if a tensor among the arguments of a call was changed through another view of its memory."""
    for value in _tensors(values):
        if value.memory.changed_by:
            what = f"{target} reads a tensor that {value.memory.changed_by} changed through another view of it"
            raise SourceError(what, hint=DECOMPOSE)


def _tensors(values: Any) -> Iterator[TensorValue]:
    for value in values:
        if isinstance(value, TensorValue):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
