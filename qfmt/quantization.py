"""How values represent real numbers: a scale for the tensor, for each slice of an axis, or for each block."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import nan, prod
from typing import TYPE_CHECKING, Any, overload

from .arrays import DTYPES, Data, StoredArray, first_holding, numpy_dtype, type_name
from .errors import QfmtError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

ZERO_POINTS = ("uint8", "int8", "uint16", "int16", "int32")
"""The types of integer zero points, which are stored in the first that holds them all."""

PARAMETERS = ("scale", "zero_point", "offset", "table", "group_index")
"""The arrays of a quantization, in the order of the schema."""

INLINE = 4096
"""The most bytes of an array that lies in the metadata of a file; larger ones lie in its data segment."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The range that a calibration observer saw, before scale and zero point were computed from it.

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
class Parameter(StoredArray, Sequence["float"]):
    """The numbers of a quantization: scales, zero points, offsets, a table. One for each block, or one for all.

    As a sequence it is flat, of Python numbers, and needs no NumPy; `array` has a dimension for each entry of the
    quantization's `block`. With a `quantization` of their own the stored numbers are codes, and `real` decodes them:
    the second level of GGUF, NVFP4 and double quantization.
    """

    quantization: Quantization | None = None

    @classmethod
    def of_values(cls, values: ArrayLike | Sequence[float], dtype: str = "") -> Parameter:
        """An array in its own type. Python floats become float32 if that holds them all exactly, otherwise float64.

        `dtype` is needed only for sub-byte types (one value a byte). Raises QfmtError for what cannot be stored.
        """
        import numpy as np

        array = np.asarray(values)
        if not dtype and not isinstance(values, np.ndarray | np.generic) and array.dtype.kind == "f":
            with np.errstate(over="ignore", under="ignore"):
                narrow = array.astype(np.float32)
            array = narrow if np.array_equal(narrow, array, equal_nan=True) else array
        stored = StoredArray.of(array, dtype or None)
        return cls(stored.dtype, stored.shape, Bytes(bytes(stored.data.view())))

    def __len__(self) -> int:
        return prod(self.shape)

    def __bool__(self) -> bool:
        return True

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        at = range(len(self))[index]
        if isinstance(at, int) and (code := _CODES.get(self.dtype)) and self.quantization is None:
            number: float = struct.unpack_from(f"<{code}", self.data.view(), at * struct.calcsize(code))[0]
            return number
        return self.numbers()[index]

    def __iter__(self) -> Iterator[float]:
        return iter(self.numbers())

    def numbers(self) -> tuple[float, ...]:
        """All of them in order, as real numbers, exactly: int for integer types, otherwise float."""
        if self.quantization is None:
            return self.stored_numbers()
        return tuple(self.real.astype(float).reshape(-1).tolist())

    def stored_numbers(self) -> tuple[float, ...]:
        """The stored numbers, which are codes if they are quantized."""
        view, count = self.data.view(), len(self)
        if code := _CODES.get(self.dtype):
            return struct.unpack(f"<{count}{code}", view)
        if self.dtype == "bfloat16":  # the upper half of a float32
            halves = struct.unpack(f"<{count}H", view)
            return struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves)))
        if self.dtype == "float8_e8m0fnu":
            return tuple(nan if exponent == 255 else 2.0 ** (exponent - 127) for exponent in view)
        array = self.array.reshape(-1)
        return tuple((array if DTYPES[self.dtype].is_integer else array.astype(float)).tolist())

    def with_stored(self, values: ArrayLike) -> Parameter:
        """The same with other stored numbers, flat or of its shape."""
        import numpy as np

        stored = np.asarray(values).astype(numpy_dtype(self.dtype)).reshape(self.shape)
        return replace(Parameter.of_values(stored), quantization=self.quantization)

    def copied(self) -> Parameter:
        """The same with bytes of its own."""
        return replace(self, data=Bytes(bytes(self.data.view())))

    @property
    def real(self) -> NDArray[Any]:
        """The numbers in the type of `array`, or in float32 if they are quantized."""
        return self.array if self.quantization is None else self.quantization.dequantize(self.array)

    @property
    def is_inline(self) -> bool:
        """Whether a file has it in its metadata: if it is small."""
        return self.data.nbytes <= INLINE

    @property
    def is_integer(self) -> bool:
        return DTYPES[self.dtype].is_integer and self.quantization is None

    def __repr__(self) -> str:
        from .notation import span

        return f"<{self.dtype} {list(self.shape)}: {span(self.numbers())}>" if len(self) else f"<{self.dtype} []>"


class Bytes(Data):
    """Data that lies in memory."""

    __slots__ = ("_bytes", "_digest")

    def __init__(self, content: bytes) -> None:
        self._bytes, self.nbytes, self._digest = content, len(content), b""

    def view(self) -> memoryview:
        return memoryview(self._bytes)

    def sha256(self) -> bytes:
        """Computed once: thousands of tensors may share a grid."""
        self._digest = self._digest or super().sha256()
        return self._digest

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, Bytes) else super().__eq__(other)

    __hash__ = Data.__hash__


_CODES = {
    "float16": "e", "float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H",
    "int32": "i", "uint32": "I", "int64": "q",
}  # fmt: skip

NO_ZERO_POINT = Parameter("uint8", (), Bytes(b"\0"))


@dataclass(frozen=True, slots=True, repr=False)
class Quantization:
    """real = (q - zero_point) · scale + offset, with q in [quant_min, quant_max].

    `block` has the number of elements along each dimension that share a scale: 1 is a scale for each of them, 0 one for
    the whole dimension, and so it is for the dimensions at the end that have no entry. () is per tensor, (1,) and
    (0, 1) are per channel, (1, 32) are groups of 32 in a row. `scale` has a number for each block; `zero_point` and
    `offset` likewise, or one for all. Scales are of the type of the source. Zero points are integers, or floats, as
    those of embeddings. A fused ReLU is a `quant_min` equal to the zero point. q may be a float of 8 or 4 bits: then
    the zero point is 0. A `table` has what the codes q mean. `group_index` has the block of each position along the one
    dimension with larger blocks, if they are not in order. `names` are the names of scale and zero point if these
    were tensors in the source (ONNX), otherwise "". They do not distinguish grids.
    """

    scale: Parameter
    zero_point: Parameter
    quant_min: int
    quant_max: int
    block: tuple[int, ...] = ()
    offset: Parameter | None = None
    table: Parameter | None = None
    group_index: Parameter | None = None
    observed: Observed | None = None
    names: tuple[str, str] = field(default=("", ""), compare=False)

    @classmethod
    def of(
        cls,
        scale: ArrayLike,
        zero_point: ArrayLike,
        quant_min: int,
        quant_max: int,
        axis: int | None = None,
        scale_dtype: str = "",
        *,
        observed: Observed | None = None,
        names: tuple[str, str] = ("", ""),
    ) -> Quantization:
        """One scale and zero point, or, with an axis, one for each slice along it.

        Scales are stored as `scale_dtype`, or in their own type; Python's floats as float32 if that holds them all
        exactly, otherwise as float64. Raises QfmtError for what cannot be stored.
        """
        import numpy as np

        lead = () if axis is None else (1,) * axis
        scales = Parameter.of_values(np.asarray(scale, numpy_dtype(scale_dtype)) if scale_dtype else scale)
        one = len(scales) == 1 and axis is None
        scales = Parameter(scales.dtype, () if one else (*lead, len(scales)), scales.data)
        points = zero_points_of(np.asarray(zero_point), scales)
        block = () if axis is None else (*(0 for _ in lead), 1)
        return cls(scales, points, quant_min, quant_max, block, observed=observed, names=names)

    @classmethod
    def per_tensor(
        cls, scale: float, zero_point: float, dtype: str, *, quant_min: int | None = None, scale_dtype: str = ""
    ) -> Quantization:
        """One scale and zero point for the whole tensor, over the full range of `dtype`."""
        limits = DTYPES[dtype]
        low = limits.minimum if quant_min is None else quant_min
        return cls.of(scale, zero_point, low, limits.maximum, None, scale_dtype)

    @classmethod
    def of_blocks(
        cls,
        dtype: str,
        tensor_shape: tuple[int, ...],
        block_shape: tuple[int, ...],
        scale: NDArray[Any],
        zero_point: ArrayLike = 0,
        *,
        limits: tuple[int, int] | None = None,
    ) -> Quantization:
        """The quantization of a tensor of `dtype` and `tensor_shape` with a scale for every block of `block_shape`.

        `scale` is an array with an element for each block, of the dtype that the source had; its shape may have
        extra or missing dimensions of one block. `zero_point` likewise, or one for all; int4 and the like have one
        value per byte. A block that extends beyond the tensor ends where the tensor does. `limits` are quant_min
        and quant_max, if not those of `dtype`.

        Raises QfmtError if the numbers of blocks disagree, or for zero points that do not fit into the type.
        """
        import numpy as np

        low, high = limits or (DTYPES[dtype].minimum, DTYPES[dtype].maximum)
        if len(block_shape) != len(tensor_shape) or min(block_shape, default=1) < 1:
            raise QfmtError(f"blocks of {list(block_shape)} do not divide a tensor of {list(tensor_shape)}")
        whole = tuple(0 if block >= size else block for block, size in zip(block_shape, tensor_shape, strict=True))
        block = whole[: max((axis + 1 for axis, size in enumerate(whole) if size), default=0)]
        counts, points = block_counts(tensor_shape, block), np.asarray(zero_point)
        if scale.size != prod(counts) or points.size not in (1, scale.size):
            raise QfmtError(f"{scale.size} scales, {points.size} zero points for {prod(counts)} blocks")
        _check_zero_points(points, dtype)
        points = points if DTYPES[dtype].is_integer else np.zeros((), np.uint8)  # which ONNX has as floats
        scales = Parameter.of_values(scale.reshape(counts))
        return cls(scales, zero_points_of(points, scales), low, high, block)

    def __post_init__(self) -> None:
        for name in PARAMETERS:
            if type(each := getattr(self, name)) not in (Parameter, type(None)):  # isinstance asks an ABC: slow
                hint = "Quantization.of takes numbers; with_values replaces those of another quantization"
                raise QfmtError(f"{name} is of type {type(each).__name__}, not Parameter", hint=hint)

    def __repr__(self) -> str:
        from .display import quantization_text

        return quantization_text(self)

    @property
    def scale_dtype(self) -> str:
        """The type of the scales in the source."""
        return self.scale.dtype

    @property
    def axis(self) -> int | None:
        """The dimension that the scales run along, if they are per channel."""
        return len(self.block) - 1 if self.block[-1:] == (1,) and not any(self.block[:-1]) else None

    @property
    def is_per_channel(self) -> bool:
        return self.axis is not None

    @property
    def is_blocked(self) -> bool:
        """Whether scales are neither per tensor nor per channel."""
        return bool(self.block) and self.axis is None

    @property
    def is_affine(self) -> bool:
        """Whether it is per tensor or per channel, and nothing but scales and zero points counts."""
        return self.is_plain and not self.is_blocked

    @property
    def is_per_tensor(self) -> bool:
        """Whether it is one scale and one zero point."""
        return self.is_plain and not self.block

    @property
    def is_plain(self) -> bool:
        """Whether nothing but scales and zero points counts."""
        return not any((self.offset, self.table, self.group_index, self.scale.quantization))

    @property
    def is_summable(self) -> bool:
        """Whether integers minus their zero points can be summed, and scaled then."""
        return self.is_affine and not self.has_float_zero_points

    @property
    def has_float_zero_points(self) -> bool:
        return not self.zero_point.is_integer

    def parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Its arrays and those of a second level, in the order of the schema: "scale", "scale.scale", "zero_point"…"""
        for name in PARAMETERS:
            each: Parameter | None = getattr(self, name)
            if each is not None:
                yield f"{prefix}{name}", each
                if each.quantization is not None:
                    yield from each.quantization.parameters(f"{prefix}{name}.")

    @property
    def each_zero_point(self) -> tuple[float, ...]:
        """The zero points, flat, one for each scale."""
        points = self.zero_point.numbers()
        return points * len(self.scale) if len(points) == 1 else points

    def along(self, axis: int | None) -> Quantization:
        """The same, per channel along another axis: of a transposed tensor."""
        if axis is None or not self.is_per_channel:
            return self
        shape = (*(1 for _ in range(axis)), len(self.scale))
        moved = [replace(each, shape=shape) if each.shape else each for each in (self.scale, self.zero_point)]
        return replace(self, scale=moved[0], zero_point=moved[1], block=(*(0 for _ in range(axis)), 1))

    def shifted(self, offset: int) -> Quantization:
        """The same real numbers for integers that are larger by `offset`."""
        points = zero_points_of(self.zero_point.array.astype("int64") + offset, self.scale)
        return replace(self, zero_point=points, quant_min=self.quant_min + offset, quant_max=self.quant_max + offset)

    def with_values(self, scale: ArrayLike | None = None, zero_point: ArrayLike | None = None) -> Quantization:
        """The same with other scales or zero points: flat, one for each block, or one zero point for all; codes,
        if these are quantized."""
        import numpy as np

        scales, points = self.scale, self.zero_point
        if scale is not None:
            scales = scales.with_stored(scale)
        if zero_point is not None:
            whole = points.quantization is None
            points = zero_points_of(np.asarray(zero_point), scales) if whole else points.with_stored(zero_point)
        return replace(self, scale=scales, zero_point=points)

    def block_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The elements of a block of a tensor of that shape, along each dimension."""
        given = (*self.block, *(0 for _ in shape[len(self.block) :]))
        return tuple(block or size for block, size in zip(given, shape, strict=True))

    def same_grid(self, other: Quantization | None) -> bool:
        """Whether an integer means the same real number with both quantizations."""
        return other is not None and self._meaning == other._meaning

    @property
    def _meaning(self) -> tuple[object, ...]:
        return self.block, self.scale, self.zero_point, self.offset, self.table, self.group_index

    def dequantize(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """`f32(q - z) · f32(s) + f32(o)`: float32, of the shape of `values`; with a table, its values instead of q - z.

        q - z is exact for integers, and rounded once; float zero points are subtracted in float32. Numbers beyond
        float32 are infinite.
        """
        import numpy as np

        shape = np.shape(values)
        with np.errstate(all="ignore"):
            real: NDArray[np.float32] = self._centred(values, shape) * self.scales(shape, np.float32)
            if self.offset is not None:
                real = real + self.spread(self.offset.real.astype(np.float32), shape)
        return real

    def _centred(self, values: NDArray[Any], shape: Sequence[int]) -> NDArray[np.float32]:
        import numpy as np

        if self.table is not None:
            first = len(self.table) // 2 if values.dtype.kind == "i" else 0
            found: NDArray[np.float32] = self.table.array.astype(np.float32)[values.astype(np.intp) + first]
            return found
        if values.dtype.kind not in "iu":  # floats of 8 and 4 bits, whose zero point is 0
            return values.astype(np.float32)
        if self.has_float_zero_points:
            wide: type[np.generic] = np.float32
            values = values.astype(wide)
        else:
            wide = np.int32 if values.dtype.itemsize < 4 else np.int64  # holds every difference
        centred: NDArray[Any] = np.subtract(values, self.zero_points(shape), dtype=wide)
        return centred.astype(np.float32, copy=False)

    def scales(self, shape: Sequence[int], dtype: type[np.floating[Any]] | None = None) -> NDArray[Any]:
        """The scales as `dtype` (float64), to be broadcast against a tensor of that shape."""
        import numpy as np

        return self.spread(self.scale.real.astype(dtype or np.float64), shape)

    def zero_points(self, shape: Sequence[int]) -> NDArray[np.int32] | NDArray[np.float32]:
        """The zero points, int32 or float32, to be broadcast against a tensor of that shape."""
        import numpy as np

        return self.spread(self.zero_point.real.astype(np.float32 if self.has_float_zero_points else np.int32), shape)

    def spread(self, values: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """One value for all, or one for each block → what broadcasts against a tensor of that shape."""
        if not values.ndim:
            return values
        if len(shape) < len(self.block):
            raise QfmtError(f"scales of blocks of {list(self.block)} do not fit {len(shape)} dimensions")
        for axis, (size, block) in enumerate(zip(shape, self.block, strict=False)):
            if block > 1 and self.group_index is not None:
                values = values.take(self.groups(values.shape[axis]), axis)
            elif block > 1:
                values = values.repeat(min(block, size), axis)[(slice(None),) * axis + (slice(size),)]
        if any(own not in (1, size) for own, size in zip(values.shape, shape, strict=False)):  # it would broadcast
            raise QfmtError(f"scales of shape {list(self.scale.real.shape)} do not fit a tensor of {list(shape)}")
        return values.reshape(*values.shape, *(1 for _ in shape[len(self.block) :]))

    def groups(self, count: int) -> NDArray[Any]:
        """The group of each position, below `count`: a large array is not checked when a file is opened."""
        assert self.group_index is not None
        index = self.group_index.array
        low, high = int(index.min(initial=0)), int(index.max(initial=0))
        if not 0 <= low <= high < count:
            raise QfmtError(f"the group index has indices in {low}..{high} of {count} groups")
        return index


def block_counts(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """How many blocks there are along each dimension that `block` has an entry for."""
    return tuple(-(-size // each) if each else 1 for size, each in zip(shape, block, strict=False))


def zero_points_of(points: NDArray[Any], scales: Parameter) -> Parameter:
    """Stored zero points: integers in the first type that holds them, floats in the type of the scales; one for all if
    they are equal, otherwise one for each scale."""
    if points.dtype == object:  # integers beyond int64
        raise QfmtError("zero points do not all fit int32")
    if points.size == 1 or (points.size and (points == points.reshape(-1)[0]).all()):
        points = points.reshape(-1)[0]
    elif points.size == len(scales):
        points = points.reshape(scales.shape)
    name = type_name(points)
    if name not in DTYPES or not DTYPES[name].is_integer:
        return Parameter.of_values(points.astype(numpy_dtype(scales.dtype)))
    low, high = int(points.min(initial=0)), int(points.max(initial=0))
    kind = first_holding(ZERO_POINTS, low, high)
    if kind is None:
        raise QfmtError(f"zero points in {low}..{high} do not all fit int32")
    return Parameter.of_values(points.astype(kind))


def _check_zero_points(points: NDArray[Any], dtype: str) -> None:
    """QfmtError for zero points that a type does not have."""
    limits = DTYPES[dtype]
    if not limits.is_integer:
        if points.astype("float32").any():
            raise QfmtError(f"the zero point of {dtype} must be 0")
    elif points.size and points.dtype.kind in "iu" and not limits.holds(int(points.min()), int(points.max())):
        raise QfmtError(f"zero points in {points.min()}..{points.max()} do not all fit {dtype}")
