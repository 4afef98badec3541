"""Where the arrays of all constants lie, read from the metadata in columns: a field of all tables at once, with NumPy.

What is found here is sound by the rules F6–F8 and V2–V10, so that an array can be made without its tensor. Whatever
is out of the ordinary is left out, and decoded one by one, which also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..errors import FormatError
from ..graph import MAXIMUM_RANK
from ..model import DTYPES, numpy_dtype
from .decode import NUMBER, Tables
from .header import ALIGNMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[np.int64]

BITS = {kind.code: kind.bits for kind in DTYPES.values() if kind.bits >= 8}
"""The element types whose arrays are views of a file."""

_CONSTANT = 200
"""Bytes of a Constant and the tensor that has it."""

LARGEST = 1 << 60
"""Rule V3."""


class Constant(NamedTuple):
    """Where the array of a tensor lies: its buffer, and the offset and the sha256 of that in the data segment."""

    tensor: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    buffer: int
    offset: int
    sha256: bytes

    def array(self, data: memoryview) -> NDArray[Any]:
        return np.ndarray(self.shape, self.dtype, data, self.offset)


def constants(tensors: Tables, buffers: Tables, data_size: int) -> Iterator[Constant]:
    """The constants that are plain: without aliases and packed elements. None if any of the tables is broken."""
    with suppress(FormatError):
        yield from _constants(tensors, buffers, data_size)


def _constants(tensors: Tables, buffers: Tables, data_size: int) -> Iterator[Constant]:
    metadata = _Metadata(tensors, "dtype", "shape", "dims", "buffer", "aliases")
    stored = _Metadata(buffers, "offset", "size", "sha256")
    dtype, shape, dims, buffer, aliases = metadata.places
    offset, size = (stored.values(places, 8) for places in stored.places[:2])
    offset, size = np.append(offset, 1), np.append(size, 0)  # of an index without buffer: not aligned
    plain = (dtype > 0) & (shape > 0) & (dims == 0) & (buffer > 0) & (aliases == 0)
    codes, indices = metadata.values(dtype, 1), np.minimum(metadata.values(buffer, 4), len(buffers))
    plain &= np.isin(codes, list(BITS))
    offsets, sizes = offset[indices], size[indices]
    plain &= (offsets >= 0) & (sizes >= 0) & (offsets % ALIGNMENT == 0) & (sizes <= data_size)
    plain &= offsets <= data_size - sizes
    vectors = metadata.targets(shape, plain)
    ranks = metadata.values(vectors, 4)
    plain &= (ranks <= MAXIMUM_RANK) & (vectors > 0) & ((vectors % 8 == 4) | (ranks == 0))
    plain &= vectors + 4 + 8 * ranks <= metadata.size
    tensors.decoder.spend(_CONSTANT * len(plain) + NUMBER * int(ranks[plain].sum()), tensors.positions.start)
    widths = np.array([BITS.get(code, 0) // 8 for code in range(256)])[codes]
    for rank in np.unique(ranks[plain]).tolist():
        found = np.flatnonzero(plain & (ranks == rank))
        lengths = metadata.values(vectors[found][:, None] + 4 + 8 * np.arange(rank), 8)
        fits = (lengths >= 0).all(1) & (np.maximum(lengths, 1).prod(1, dtype=float) < LARGEST / 2)
        fits[fits] &= lengths[fits].prod(1) * widths[found][fits] == sizes[found][fits]
        found, lengths = found[fits], lengths[fits]
        kinds = {code: numpy_dtype(_NAMES[code]) for code in np.unique(codes[found]).tolist()}
        dtypes = map(kinds.__getitem__, codes[found].tolist())
        shapes = map(tuple, lengths.tolist())
        places = indices[found].tolist(), offsets[found].tolist(), stored.digests(stored.places[2][indices[found]])
        yield from map(Constant, found.tolist(), dtypes, shapes, *places)


_NAMES = {kind.code: kind.name for kind in DTYPES.values()}


class _Metadata:
    """The metadata as arrays, and the places of some fields of all tables of a vector; 0 where a field is absent."""

    def __init__(self, tables: Tables, *keys: str) -> None:
        self._decoder = tables.decoder
        data = self._decoder.data
        self.size = len(data)
        self._views = {
            size: np.frombuffer(data, kind, len(data) // size) for size, kind in ((1, "u1"), (4, "<u4"), (8, "<i8"))
        }
        at = self.targets(np.arange(tables.positions.start, tables.positions.stop, 4), np.True_)
        if not at.all():
            raise FormatError("an offset leads outside the metadata")
        vtables = at - self.values(at, 4).astype(np.int32)
        _, first, group = np.unique(vtables * 8 + at % 8, return_index=True, return_inverse=True)
        layouts = [self._decoder.layout(tables.name, position) for position in at[first].tolist()]
        if (at + np.array([layout.size for layout in layouts], np.int64)[group] > self.size).any():
            raise FormatError("a table ends outside the metadata")
        columns = ([layout.present.get(key, 0) for layout in layouts] for key in keys)
        offsets = [np.array(column, np.int64)[group] for column in columns]
        self.places = [np.where(column, at + column, 0) for column in offsets]

    def values(self, places: Column, size: int) -> Column:
        """The numbers at places, of 1, 4 or 8 bytes; 0, which is their default, where there is none."""
        return np.where(places, self._views[size][places // size], 0).astype(np.int64)

    def digests(self, places: Column) -> list[bytes]:
        """The digests at places, all of which are there."""
        digests: list[bytes] = sliding_window_view(self._views[1], 32)[places].view("V32")[:, 0].tolist()
        return digests

    def targets(self, places: Column, given: NDArray[np.bool_] | np.bool_) -> Column:
        """Where offsets lead, as `Decoder.target` does: 0 where it refuses that, and where none is given."""
        offsets = self.values(places, 4)
        found = places + offsets
        inside = given & (offsets > 0) & (found % 4 == 0) & (found >= self._decoder.start) & (found <= self.size - 4)
        return np.where(inside, found, 0)
