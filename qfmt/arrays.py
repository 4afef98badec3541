"""Element types, and the bytes of stored arrays. Nothing here imports NumPy until an array is needed."""

from __future__ import annotations

import hashlib
import mmap
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from .errors import QfmtError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = "NDArray[Any]"
"""An array of any element type: a name for annotations, which needs no NumPy."""

Found = TypeVar("Found")


class DType(NamedTuple):
    """An element type. `bits` < 8 are packed low bits first, without gaps between rows.

    `minimum` and `maximum` are the limits of quantized values: those of an integer type, and the largest finite
    numbers of a float type of 8 or 4 bits, which are integers. Both are 0 where nothing is quantized to the type.
    """

    code: int
    name: str
    bits: int
    kind: str
    minimum: int = 0
    maximum: int = 0

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_from_ml_dtypes(self) -> bool:
        """Whether NumPy itself does not have it."""
        return self.name.startswith(("bfloat", "float8", "float4"))

    @property
    def is_quantizable(self) -> bool:
        """Whether a tensor of this type may be quantized: integers of up to 32 bits, floats of 4 and 8."""
        return self.maximum > 0 and self.bits <= 32

    def holds(self, low: float, high: float) -> bool:
        """Whether all from low to high are within the limits."""
        return bool(self.minimum <= low and high <= self.maximum)

    def every(self) -> Array:
        """All integers of a type of at most 16 bits, in order."""
        import numpy as np

        return np.arange(self.minimum, self.maximum + 1).astype(numpy_dtype(self.name))


def _integer(code: int, bits: int, signed: bool) -> DType:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return DType(code, f"{'' if signed else 'u'}int{bits}", bits, "i" if signed else "u", low, high)


def _narrow_float(code: int, name: str, bits: int, largest: int) -> DType:
    return DType(code, name, bits, "f", -largest, largest)


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
        _narrow_float(18, "float8_e4m3fn", 8, 448),
        _narrow_float(19, "float8_e5m2", 8, 57344),
        _narrow_float(20, "float8_e4m3fnuz", 8, 240),
        _narrow_float(21, "float8_e5m2fnuz", 8, 57344),
        DType(22, "float8_e8m0fnu", 8, "f"),
        _narrow_float(23, "float4_e2m1fn", 4, 6),
    )
}
"""Every element type by name; names are those of NumPy and ml_dtypes, codes those of the schema."""

INT32 = DTYPES["int32"].maximum
"""The largest int32: the limit of sums and counts."""


def first_holding(names: Iterable[str], low: float, high: float) -> str | None:
    """The first of some element types that can represent a range."""
    return next((name for name in names if DTYPES[name].holds(low, high)), None)


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The NumPy dtype of an element type, which for int4 and the like holds one value a byte."""
    import numpy as np

    if name not in DTYPES:
        raise QfmtError(f"unknown element type {name!r}", hint=f"use one of {', '.join(DTYPES)}")
    kind = DTYPES[name]
    if kind.is_integer:
        return np.dtype(f"{kind.kind}{max(kind.bits, 8) // 8}")
    if kind.is_from_ml_dtypes:
        import ml_dtypes

        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)


def type_name(array: Array) -> str:
    """The name of an array's NumPy dtype."""
    return _type_name(array.dtype)


@cache
def _type_name(dtype: np.dtype[Any]) -> str:
    """NumPy composes a name each time, which takes microseconds."""
    return dtype.name


def pack(values: Array, bits: int) -> NDArray[np.uint8]:
    """Sub-byte values, one a byte, into bytes: the first value in the lowest bits, zero padding."""
    import numpy as np

    per_byte = 8 // bits
    flat = values.reshape(-1)
    bytes_: NDArray[np.uint8] = flat.astype(np.uint8) if values.dtype.kind in "iub" else flat.view(np.uint8)
    codes = bytes_ & np.uint8((1 << bits) - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed.astype(np.uint8, copy=False)


def unpack(packed: memoryview, bits: int, signed: bool, count: int) -> Array:
    """The inverse of `pack` for integers: int8 or uint8, one value a byte."""
    import numpy as np

    shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
    codes = (np.frombuffer(packed, np.uint8)[:, None] >> shifts).reshape(-1)[:count]
    codes = codes & np.uint8((1 << bits) - 1)
    if not signed:
        return codes
    sign = np.uint8(1 << bits - 1)
    return ((codes ^ sign) - sign).view(np.int8)


def elements(view: memoryview, dtype: str, count: int) -> Array:
    """`count` values of an element type, flat: zero-copy, or one value a byte where they were packed."""

    kind = DTYPES[dtype]
    if kind.bits >= 8:
        return from_little_endian(view, numpy_dtype(dtype))
    return unpack(view, kind.bits, kind.kind == "i", count).view(numpy_dtype(dtype))


def from_little_endian(view: memoryview, dtype: np.dtype[Any]) -> Array:
    """Numbers of this machine, from little-endian bytes: zero-copy unless the machine is big-endian."""
    import numpy as np

    stored = np.frombuffer(view, _little_endian(dtype))
    return stored.astype(dtype, copy=False)


def _little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if sys.byteorder == "little" and dtype.isnative else dtype.newbyteorder("<")


_SMALL = 4096
"""Bytes up to which data is hashed as it is: Python does that in a tenth of the time of a digest."""


class Data:
    """The bytes of a constant: contiguous, logical order, little-endian, sub-byte values packed.

    Subclasses know where they are. `view` may verify, read or convert on each call; it caches nothing.
    """

    __slots__ = ("nbytes",)

    nbytes: int

    def view(self) -> memoryview:
        """All bytes, read-only, format "B"."""
        raise NotImplementedError

    def sha256(self) -> bytes:
        digest = hashlib.sha256()
        for block in blocks(self.view()):
            digest.update(block)
        return digest.digest()

    def once(self, what: Hashable, find: Callable[[], Found]) -> Found:
        """The result of `find`, which `what` names. Bytes of a file keep it: thousands of arrays may share them."""
        return find()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Data):
            return NotImplemented
        return self.nbytes == other.nbytes and self.sha256() == other.sha256()

    def __hash__(self) -> int:
        return hash(bytes(self.view()) if self.nbytes <= _SMALL else self.sha256())

    def __reduce__(self) -> tuple[Callable[[bytes], Data], tuple[bytes]]:
        """A copy, or a pickle, has its own bytes: it does not depend on a file."""
        return _of_bytes, (bytes(self.view()),)


BLOCK = 1 << 23
"""Bytes that are read at once where an array is read once, from its beginning to its end."""

_FEW = 1 << 16
"""Bytes that are not worth giving back."""

_READ: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()
"""The bytes of each mapped file that were read since its memory was given back."""


def blocks(view: memoryview) -> Iterator[memoryview]:
    """Bytes in parts, each of which is given back when the next one is asked for."""
    for start in range(0, len(view), BLOCK):
        block = view[start : start + BLOCK]
        yield block
        give_back(block)


def give_back(view: memoryview) -> None:
    """Let the system have the memory in which parts of a mapped file lie; they are read again when they are used.

    Else what is read once stays, and counts as memory of the process: as much as the file. A few bytes stay until more
    of their file was read: other threads may be reading there, too. What a user mapped to write stays: changes may be
    nowhere else.
    """
    source: object = view if len(view) >= _FEW else None
    while source is not None and not isinstance(source, mmap.mmap):
        source = source.obj if isinstance(source, memoryview) else getattr(source, "base", None)
    if isinstance(source, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") and memoryview(source).readonly:
        _READ[source] = read = _READ.get(source, 0) + len(view)
        if read >= BLOCK:
            source.madvise(mmap.MADV_DONTNEED)
            _READ.pop(source, None)


class ArrayData(Data):
    """Data in a NumPy array."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        import numpy as np

        self._array = np.ascontiguousarray(array, _little_endian(array.dtype))
        self.nbytes = self._array.nbytes

    def view(self) -> memoryview:
        import numpy as np

        return self._array.reshape(-1).view(np.uint8).data.toreadonly()


def _can_change(array: Any) -> bool:
    """Whether its elements can be written to, also through an array of which it is a view."""
    import numpy as np

    return isinstance(array, np.ndarray) and (array.flags.writeable or _can_change(array.base))


def _of_bytes(data: bytes) -> ArrayData:
    import numpy as np

    return ArrayData(np.frombuffer(data, np.uint8))


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A stored array: an element type, a shape, and the bytes that they need."""

    dtype: str
    shape: tuple[int, ...]
    data: Data

    @classmethod
    def of(cls, values: ArrayLike, dtype: str | None = None, *, where: str = "") -> StoredArray:
        """`values` in stored form, copied if someone could change them later; `dtype` is needed only for sub-byte
        integers (one value a byte).

        Raises QfmtError, at `where`, for values that cannot be stored: a dtype other than the array's, integers that
        do not fit.
        """
        import numpy as np

        if isinstance(values, np.ma.MaskedArray):
            raise QfmtError("is a masked array", where=where, hint="give all elements: array.filled(value)")
        try:
            array = np.asarray(values)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # also of a tensor with a gradient
            raise QfmtError(f"is not an array: {error}", where=where) from None
        kind = dtype or type_name(array)
        if kind not in DTYPES:
            raise QfmtError(f"arrays of {kind} cannot be stored", where=where)
        _check_values(array, DTYPES[kind], where)
        own = array.copy() if _can_change(array) else array
        packed = pack(own, DTYPES[kind].bits) if DTYPES[kind].bits < 8 else own
        return cls(kind, tuple(array.shape), ArrayData(packed))

    @property
    def nbytes_needed(self) -> int:
        return -(-prod(self.shape) * DTYPES[self.dtype].bits // 8)

    @property
    def array(self) -> Array:
        """The values: read-only, zero-copy; sub-byte types unpacked, one value a byte.

        Raises DigestError if the bytes were changed.
        """
        values = elements(self.data.view(), self.dtype, prod(self.shape)).reshape(self.shape)
        values.setflags(write=False)
        return values

    def parts(self) -> Iterator[Array]:
        """The values in order, flat, one part after another: a large array is not unpacked or converted all at once.

        Raises DigestError if the bytes were changed.
        """
        view, count, bits = self.data.view(), prod(self.shape), DTYPES[self.dtype].bits
        for start in range(0, count, PART):
            end = min(start + PART, count)
            part = view[start * bits // 8 : -(-end * bits // 8)]
            yield elements(part, self.dtype, end - start)
            give_back(part)


PART = 1 << 18
"""Elements of a part of an array; a multiple of 8, so that it begins with a byte."""


def _check_values(values: Array, kind: DType, where: str) -> None:
    """QfmtError if the values are not of that type: other values would be stored."""
    if type_name(values) == kind.name:
        return
    if kind.bits >= 8 or not kind.is_integer:
        raise QfmtError(f"an array of {values.dtype} cannot be stored as {kind.name}", where=where)
    if not (values.dtype.kind in "iu" and kind.holds(values.min(initial=0), values.max(initial=0))):
        raise QfmtError(f"does not contain integers of type {kind.name}", where=where)
