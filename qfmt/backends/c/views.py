"""Memory as the steps of a program see it: buffers, and the tensors in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...arrays import Array
from .static import C_TYPES

Order = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one element type: in the arena at `offset` (elements), an argument of the program, or a constant."""

    dtype: str
    size: int
    name: str
    external: bool = False
    offset: int = 0
    first: int = -1
    last: int = -1

    @property
    def width(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def base(self) -> str:
        """The C expression of its beginning, of its own type."""
        if self.external:
            return self.name
        arena = f"arena{8 * self.width}"
        whole = arena if self.offset == 0 else f"{arena} + {self.offset}"
        return whole if self.dtype == arena_type(self.width) else f"({C_TYPES[self.dtype]} *)({whole})"


def arena_type(width: int) -> str:
    """The element type of the arena of `width` bytes; the other sign is reached by a cast, which C allows."""
    return "uint8" if width == 1 else f"int{8 * width}"


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in a buffer: its logical shape, and the memory order of its dimensions, without gaps."""

    buffer: Buffer
    shape: tuple[int, ...]
    order: Order
    offset: int = 0

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def pointer(self) -> str:
        return f"{self.buffer.base} + {self.offset}" if self.offset else self.buffer.base

    @property
    def physical(self) -> tuple[int, ...]:
        """The sizes in memory order."""
        return tuple(self.shape[axis] for axis in self.order)

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart in memory neighbours along each dimension lie."""
        apart = dict(zip(self.order, (prod(self.physical[at + 1 :]) for at in range(len(self.order))), strict=True))
        return tuple(apart[axis] for axis in range(len(self.order)))

    @property
    def whole(self) -> View:
        """All of the buffer."""
        return View(self.buffer, (self.buffer.size,), (0,))

    def positions(self) -> Array:
        """Where in the buffer each element lies, in the logical shape."""
        flat = np.arange(self.size, dtype=np.int64) + self.offset
        return flat.reshape(self.physical).transpose(np.argsort(self.order) if self.order else ())


def plain(rank: int) -> Order:
    """The last dimension runs fastest, as in the file."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Dimension 1 runs fastest."""
    return plain(rank) if rank < 3 else (0, *range(2, rank), 1)


def alike(shape: Sequence[int], a: Order, b: Order) -> bool:
    """Whether a tensor of this shape lies the same way in both orders."""
    return [axis for axis in a if shape[axis] != 1] == [axis for axis in b if shape[axis] != 1]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the function of a step."""

    name: str
    view: View
    written: bool = False
