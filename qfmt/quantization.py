"""How the values of a tensor represent real numbers: one scale, one per slice of an axis, or one per block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from .arrays import DTYPES, StoredArray, numpy_dtype
from .errors import QfmtError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


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
class Blocks:
    """One scale for every block of `shape` elements of a tensor of `tensor_shape`: groups along an axis, tiles.

    `shape` has an entry for each dimension, between 1 (a scale per element) and the size (one block); the last block
    along a dimension is smaller if the size is not a multiple. `scale` has an element for each block, and so has
    `zero_point`, unless all blocks have the same, which is then in the Quantization.
    """

    shape: tuple[int, ...]
    tensor_shape: tuple[int, ...]
    scale: StoredArray
    zero_point: StoredArray | None = None

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """One value for each block → one for each element of the tensor."""
        for axis, size in enumerate(self.shape):
            if size > 1:
                values = values.repeat(size, axis)
        return values[tuple(slice(size) for size in self.tensor_shape)]


def block_counts(tensor_shape: tuple[int, ...], block_shape: tuple[int, ...]) -> tuple[int, ...]:
    """How many blocks there are along each dimension."""
    return tuple(-(-size // block) for size, block in zip(tensor_shape, block_shape, strict=True))


def is_by_blocks(counts: tuple[int, ...], block_shape: tuple[int, ...]) -> bool:
    """Whether the blocks are needed: neither one for the tensor, nor one per slice of an axis."""
    several = [block for count, block in zip(counts, block_shape, strict=False) if count != 1]
    return len(several) > 1 or any(block != 1 for block in several)


@dataclass(frozen=True, slots=True, repr=False)
class Quantization:
    """real = (q - zero_point) · scale, with q in [quant_min, quant_max].

    `scale` and `zero_point` have one element per tensor (`axis` is None), or one per slice of `axis`. Where there
    are `blocks`, which hold the scales, `scale` is empty; `zero_point` has the one for all blocks, or is empty, too.
    Scales are float64 and hold the source's value exactly; `scale_dtype` is the type the source had.
    Zero points are integers; those of embeddings may be floats, all of them. A fused ReLU is a `quant_min`
    equal to the zero point. q may be a float of 8 or 4 bits: then the zero point is 0. `names` are the names of scale
    and zero point if these were tensors in the source (ONNX), otherwise "". They do not distinguish grids.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...] | tuple[float, ...]
    quant_min: int
    quant_max: int
    axis: int | None = None
    scale_dtype: str = "float32"
    observed: Observed | None = None
    blocks: Blocks | None = None
    names: tuple[str, str] = field(default=("", ""), compare=False)

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
        and quant_max, if not those of `dtype`. A quantization per tensor or per channel is stored as such.

        Raises QfmtError if the numbers of blocks disagree, or for zero points that do not fit into the type.
        """
        import numpy as np

        low, high = limits or (DTYPES[dtype].minimum, DTYPES[dtype].maximum)
        if len(block_shape) != len(tensor_shape) or min(block_shape, default=1) < 1:
            raise QfmtError(f"blocks of {list(block_shape)} do not divide a tensor of {list(tensor_shape)}")
        block_shape = tuple(max(1, min(sizes)) for sizes in zip(block_shape, tensor_shape, strict=True))
        counts, scale_dtype = block_counts(tensor_shape, block_shape), scale.dtype.name
        points = _zero_points(np.asarray(zero_point), dtype, scale.dtype)
        if scale.size != prod(counts) or points.size not in (1, scale.size):
            raise QfmtError(f"{scale.size} scales, {points.size} zero points for {prod(counts)} blocks")
        one = points.reshape(-1)[:1].tolist() if (points == points.reshape(-1)[:1]).all() else []
        several = [axis for axis, count in enumerate(counts) if count != 1]
        if not is_by_blocks(counts, block_shape):
            zero_points = one * scale.size or points.reshape(-1).tolist()
            scales = scale.astype(np.float64).reshape(-1).tolist()
            return cls(tuple(scales), tuple(zero_points), low, high, several[0] if several else None, scale_dtype)
        own = None if one else StoredArray.of(points.reshape(counts), _points_dtype(points, dtype))
        blocks = Blocks(block_shape, tuple(tensor_shape), StoredArray.of(scale.reshape(counts)), own)
        return cls((), tuple(one), low, high, None, scale_dtype, None, blocks)

    def __repr__(self) -> str:
        from .display import quantization_text

        return quantization_text(self)

    @property
    def is_per_channel(self) -> bool:
        return self.axis is not None

    @property
    def is_blocked(self) -> bool:
        return self.blocks is not None

    @property
    def has_float_zero_points(self) -> bool:
        if self.blocks is not None and self.blocks.zero_point is not None:
            return not DTYPES[self.blocks.zero_point.dtype].is_integer
        return bool(self.zero_point) and isinstance(self.zero_point[0], float)

    def same_grid(self, other: Quantization | None) -> bool:
        """Whether an integer means the same real number with both quantizations."""
        return other is not None and (self.scale, self.zero_point, self.axis, self.blocks) == (
            other.scale,
            other.zero_point,
            other.axis,
            other.blocks,
        )

    def scales(self, rank: int, dtype: type[np.floating[Any]] | None = None) -> NDArray[Any]:
        """The scales as `dtype` (float64), to be broadcast against a tensor of `rank`; of blocks, of its shape."""
        import numpy as np

        return self._broadcastable(self.blocks.scale if self.blocks else None, self.scale, dtype or np.float64, rank)

    def zero_points(self, rank: int) -> NDArray[np.int32] | NDArray[np.float32]:
        """The zero points, int32 or float32, shaped as the scales are."""
        import numpy as np

        kind = np.float32 if self.has_float_zero_points else np.int32
        return self._broadcastable(self.blocks.zero_point if self.blocks else None, self.zero_point, kind, rank)

    def _broadcastable(self, stored: StoredArray | None, values: Sequence[float], kind: Any, rank: int) -> NDArray[Any]:
        import numpy as np

        if self.blocks is not None and stored is not None:
            if rank != len(self.blocks.shape):
                raise QfmtError(f"scales of blocks of {list(self.blocks.shape)} do not fit {rank} dimensions")
            return self.blocks.spread(stored.array.astype(kind))
        array = np.array(values, np.float64 if issubclass(kind, np.floating) else kind).astype(kind)
        return array.reshape([-1 if axis == self.axis else 1 for axis in range(rank)] if self.is_per_channel else ())


def _zero_points(points: NDArray[Any], dtype: str, scale_dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zero points in the type in which they are stored: that of the tensor, or that of the scales for floats."""
    if not DTYPES[dtype].is_integer:
        if points.astype("float32").any():
            raise QfmtError(f"the zero point of {dtype} must be 0")
        return points.astype(int).reshape(-1)[:1]
    if points.dtype.name not in DTYPES or not DTYPES[points.dtype.name].is_integer:
        return points.astype(scale_dtype)
    wide, limits = points.astype(int), DTYPES[dtype]
    if wide.size and not limits.minimum <= wide.min() <= wide.max() <= limits.maximum:
        raise QfmtError(f"zero points in {wide.min()}..{wide.max()} do not all fit {dtype}")
    return wide.astype(numpy_dtype(dtype))


def _points_dtype(points: NDArray[Any], dtype: str) -> str:
    return dtype if points.dtype.kind in "iu" else points.dtype.name
