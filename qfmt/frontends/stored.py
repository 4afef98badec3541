"""Tensors as an archive stores them: a window (offset, shape, strides) on a storage, read on demand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ..arrays import from_little_endian
from ..budget import Budget
from ..errors import SourceError, damaged
from ..model import DTYPES, numpy_dtype, unpack

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXPANSION_LIMIT = 64 << 20
"""Bytes that a tensor with overlapping or zero strides may have in addition to those of its storage."""

TENSOR_BYTES = 500
"""Memory in bytes of the description of a tensor."""

ELEMENT_BITS = {name: dtype.bits for name, dtype in DTYPES.items()} | {"complex64": 64, "complex128": 128}


class Storage:
    """Consecutive elements of one dtype; `fetch` reads the bytes at the first use.

    Its tensors are charged to `budget`: with strides of 0 a few bytes make a large tensor, and windows may overlap.
    """

    __slots__ = ("_bytes", "_fetch", "budget", "dtype", "name")

    def __init__(self, name: str, dtype: str, fetch: Callable[[], memoryview], budget: Budget | None = None) -> None:
        self.budget = budget
        self.name = name
        self.dtype = dtype
        self._fetch = fetch
        self._bytes: memoryview | None = None

    def bytes(self) -> memoryview:
        if self._bytes is None:
            self._bytes = self._fetch()
        return self._bytes

    @property
    def is_read(self) -> bool:
        """Whether anything has asked for the bytes."""
        return self._bytes is not None

    def as_dtype(self, dtype: str) -> Storage:
        """The same bytes as another dtype (PyTorch's untyped storages)."""
        return Storage(self.name, dtype, self.bytes, self.budget)

    def whole(self) -> StoredTensor:
        """All elements in one dimension; bytes if no dtype is known."""
        dtype = self.dtype or "uint8"
        count = 8 * len(self.bytes()) // ELEMENT_BITS[dtype]
        return self.as_dtype(dtype).tensor((count,), (1,), 0)

    def tensor(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> StoredTensor:
        """A window on the storage; its bounds are checked when it is read."""
        if self.budget is not None:
            elements, bits = prod(max(size, 0) for size in shape), ELEMENT_BITS[self.dtype]
            if bits < 8:  # all elements between the first and the last are unpacked
                span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False))
                elements = max(elements, 2 * (span + 1))
            self.budget.allocate(TENSOR_BYTES + -(-elements * bits // 8))
        return StoredTensor(self, self.dtype, shape, strides, offset)


@dataclass(frozen=True, slots=True)
class PerTensor:
    """A quantizer with one scale and zero point."""

    scale: float
    zero_point: int

    axis = None

    def charge(self) -> None:
        """Count nothing: there is one of each."""

    def scales(self) -> tuple[float, ...]:
        return (self.scale,)

    def zero_points(self) -> tuple[int, ...]:
        return (self.zero_point,)


@dataclass(frozen=True, slots=True)
class PerChannel:
    """A quantizer with a scale and zero point per slice of `axis`.

    The dtype of the zero points is an integer type, or a float type (PyTorch's `per_channel_affine_float_qparams`).
    """

    scale: StoredTensor
    zero_point: StoredTensor
    axis: int

    def charge(self) -> None:
        """Count the scales and zero points, which become numbers in memory."""
        if (budget := self.scale.storage.budget) is not None:
            budget.hold(prod(self.scale.shape))

    def scales(self) -> tuple[float, ...]:
        return tuple(self.scale.array().reshape(-1).tolist())

    def zero_points(self) -> tuple[int, ...] | tuple[float, ...]:
        return tuple(self.zero_point.array().reshape(-1).tolist())


NAME_LIMIT = 64
"""The most names of one tensor."""


@dataclass(slots=True, eq=False)
class StoredTensor:
    """A tensor of an archive.

    `dtype` is a name of `qfmt.model.DTYPES` (qint8 is int8 with a quantizer) or complex64/128. `offset` and
    `strides` count elements. `names` are the paths by which the module tree reaches it, the best first.
    """

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    quantizer: PerTensor | PerChannel | None = None
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, values: Sequence[float], dtype: str) -> StoredTensor:
        """A one-dimensional tensor that no archive stores: `dtype` float64 or int64."""
        raw = struct.pack(f"<{len(values)}{'d' if dtype == 'float64' else 'q'}", *values)
        return cls(Storage("", dtype, lambda: memoryview(raw)), dtype, (len(values),), (1,))

    @property
    def path(self) -> str:
        return self.names[0] if self.names else ""

    def add_name(self, name: str) -> None:
        if len(self.names) < NAME_LIMIT and name not in self.names:
            self.names.append(name)

    def unsqueeze(self, axis: int) -> StoredTensor:
        """The same tensor with a dimension of 1 inserted at `axis`, which must be after the quantized axis."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        strides = (*self.strides[:axis], 0, *self.strides[axis:])
        return StoredTensor(self.storage, self.dtype, shape, strides, self.offset, self.quantizer, self.names)

    def squeeze(self, axis: int) -> StoredTensor:
        """The inverse of `unsqueeze`."""
        shape = (*self.shape[:axis], *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], *self.strides[axis + 1 :])
        return StoredTensor(self.storage, self.dtype, shape, strides, self.offset, self.quantizer, self.names)

    def array(self) -> NDArray[Any]:
        """The elements in logical order, contiguous and read-only; zero-copy if they are stored this way.

        Sub-byte types are unpacked to one value per byte. Raises SourceError if the window exceeds its storage.
        """
        import numpy as np

        raw = self.storage.bytes()
        self.check_bounds(len(raw))
        if prod(self.shape) == 0:
            array = np.empty(self.shape, _element_type(self.dtype))
        else:
            first = self.offset // 8 * 8  # at a byte, of elements of any width
            part = raw[first * ELEMENT_BITS[self.dtype] // 8 :]
            values = _elements(part, self.dtype, self._last() + 1 - first)[self.offset - first :]
            steps = tuple(stride * values.itemsize for stride in self.strides)
            # as bytes: NumPy has no strided views of 8-bit floats
            cells = values.view(f"V{values.itemsize}")
            window = np.lib.stride_tricks.as_strided(cells, self.shape, steps, writeable=False)
            array = np.ascontiguousarray(window).reshape(self.shape)  # ascontiguousarray makes 0-d 1-d
            array = array.view(values.dtype)
        array.flags.writeable = False
        return array

    def charge(self, at_once: int = 1) -> None:
        """Count the elements as read, so many in one operation: a file may let many tensors refer to one."""
        if self.storage.budget is not None:
            self.storage.budget.spend(prod(self.shape) // at_once)

    def item(self) -> int | float | bool | complex:
        """The value of a tensor of one element; a float is widened to a double."""
        if prod(self.shape) != 1 or self.quantizer is not None:
            raise SourceError(f"a tensor of shape {list(self.shape)} is used where one number is needed")
        value: int | float | bool | complex = self.array().reshape(-1)[0].item()
        return value

    def _last(self) -> int:
        return self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def check_bounds(self, nbytes: int) -> None:
        """Raise SourceError if the window exceeds a storage of `nbytes`, or repeats it too often."""
        where = self.path or self.storage.name
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or len(self.shape) > 32 or min(numbers) < 0:
            layout = f"shape {_short(self.shape)}, strides {_short(self.strides)}, offset {self.offset}"
            raise damaged(f"a tensor with {layout} is invalid", where=where)
        if prod(self.shape) == 0:
            if prod(filter(None, self.shape)) >= 1 << 60:  # rule V3; NumPy has no such array either
                raise damaged(f"a tensor has the shape {_short(self.shape)}", where=where)
            return
        bits = ELEMENT_BITS[self.dtype]
        if (self._last() + 1) * bits > nbytes * 8:
            what = f"a tensor needs {-(-(self._last() + 1) * bits // 8)} bytes of a storage that has {nbytes}"
            raise SourceError(what, where=where, hint="the file is damaged or truncated")
        if prod(self.shape) * bits > (nbytes + EXPANSION_LIMIT) * 8:
            what = f"a tensor of shape {_short(self.shape)} repeats a storage of {nbytes} bytes many times"
            raise SourceError(what, where=where, hint="qfmt does not expand it")


def _short(sizes: tuple[int, ...]) -> str:
    return str(list(sizes)) if len(sizes) <= 32 else f"of {len(sizes)} dimensions"


def _element_type(dtype: str) -> np.dtype[Any]:
    bits = ELEMENT_BITS[dtype]
    if dtype not in DTYPES:
        import numpy as np

        return np.dtype(dtype)
    return numpy_dtype(dtype if bits >= 8 else "int8" if DTYPES[dtype].kind == "i" else "uint8")


def _elements(raw: memoryview, dtype: str, count: int) -> NDArray[Any]:
    """The first `count` elements of a storage; `raw` is known to be long enough."""
    bits = ELEMENT_BITS[dtype]
    if bits < 8:
        return unpack(raw[: -(-count * bits // 8)], bits, DTYPES[dtype].kind == "i", count)
    return from_little_endian(raw[: count * bits // 8], _element_type(dtype))
