"""Shape rules that multiple operators share. A dimension is a size, a name, or None (not known)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

from ..errors import QfmtError
from ..graph import MAXIMUM_RANK, static_shape
from ..model import Dimension, Shape, Tensor

if TYPE_CHECKING:
    from .registry import Inference, Operator


def same(given: Inference) -> list[Shape]:
    """The shape of the first input. An operator of one input with this rule computes each element by itself."""
    return [given.shapes[0]]


def bounded(given: Inference) -> list[Shape]:
    """The shape of the first input; the others are one number each."""
    for index in range(1, len(given.shapes)):
        check_scalar(given, index)
    return [given.shapes[0]]


def per_channel(given: Inference) -> list[Shape]:
    """The shape of the first input; the others have one number for each channel."""
    shape = given.shapes[0]
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    for other in given.shapes[1:]:
        if other is None:
            continue
        if len(other) != 1 or (isinstance(channels, int) and isinstance(other[0], int) and other[0] != channels):
            raise QfmtError(f"parameters of shape {list(other)} do not fit {channels} channels")
        channels = other[0] if isinstance(other[0], int) else channels
    return [shape if shape is None or len(shape) < 2 else (shape[0], channels, *shape[2:])]


def check_sizes(given: Inference, index: int, wanted: Sequence[Dimension], what: str) -> None:
    """QfmtError for an input whose sizes are known and others: it would broadcast. It may be absent."""
    shape = given.shapes[index] if index < len(given.shapes) else None
    if shape is None:
        return
    pairs = zip(shape, wanted, strict=False)
    if len(shape) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise QfmtError(f"{what} of shape {list(shape)} is not {list(wanted)}")


def check_scalar(given: Inference, index: int) -> None:
    """QfmtError for an input that does not have exactly one element; it may be absent."""
    shape = given.shapes[index] if index < len(given.shapes) else None
    if shape is not None and any(isinstance(size, int) and size != 1 for size in shape):
        raise QfmtError(f"input {index} has the shape {list(shape)}, but is one number")


def keeps_shape(operator: Operator) -> bool:
    """Whether the output has the shape of the first input by the shape rule alone."""
    return operator.shape in (same, bounded, per_channel)


def tells_sizes(tensor: Tensor) -> bool:
    """Whether shape rules may read the values of a constant: sizes, axes, pads; float factors of sizes."""
    if not tensor.is_constant or prod(shape := static_shape(tensor)) > MANY_SIZES:
        return False
    return tensor.dtype == "int64" or (len(shape) == 1 and tensor.quantization is None)


MANY_SIZES = 1 << 16
"""More numbers are no sizes. To read them for each node takes time."""


def along_axis(given: Inference) -> list[Shape]:
    """The shape of the first input, which has the dimension `axis`."""
    shape = given.shapes[0]
    if shape is not None:
        axis_of(given.attributes["axis"], len(shape))
    return [shape]


def broadcast(given: Inference) -> list[Shape]:
    """NumPy's broadcasting over all inputs."""
    result: Shape = ()
    for shape in given.shapes:
        if shape is None or result is None:
            return [None]
        result = broadcast_pair(result, shape)
    return [result]


def broadcast_pair(a: Sequence[Dimension], b: Sequence[Dimension]) -> tuple[Dimension, ...]:
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    return tuple(_broadcast_size(x, y) for x, y in zip(left, right, strict=True))


def _broadcast_size(x: Dimension, y: Dimension) -> Dimension:
    if x == y or y == 1:
        return x
    if x == 1:
        return y
    if isinstance(x, int) and isinstance(y, int):
        raise QfmtError(f"sizes {x} and {y} do not broadcast")
    return x if isinstance(x, int) else y if isinstance(y, int) else None


def check_broadcasts(shape: Sequence[Dimension], to: Sequence[Dimension], what: str) -> None:
    """QfmtError unless a shape broadcasts to another, which stays as it is."""
    both = broadcast_pair(to, shape)
    pairs = zip(both, to, strict=False)
    if len(both) != len(to) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise QfmtError(f"{what} of shape {list(shape)} does not broadcast to {list(to)}")


def check_bias(given: Inference, channels: Dimension, index: int = 2) -> None:
    """QfmtError unless that input, if there is one, has one element for each output channel."""
    bias = given.shapes[index] if len(given.shapes) > index else None
    if bias is None:
        return
    if len(bias) != 1 or (isinstance(bias[0], int) and isinstance(channels, int) and bias[0] != channels):
        raise QfmtError(f"a bias of shape {list(bias)} does not fit {channels} output channels")


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative axis as one from 0; QfmtError if the rank has no such axis."""
    if not -rank <= axis < rank:
        raise QfmtError(f"axis {axis} is outside rank {rank}")
    return axis % rank if rank else 0


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """Possibly negative axes as ones from 0; QfmtError if the rank has no such axis, or if one is listed twice."""
    listed = [int(axis) for axis in axes]
    found = [axis_of(axis, rank) for axis in listed]
    if len({*found}) != len(found):
        raise QfmtError(f"axes {listed} list an axis twice")
    return found


INDICES = ("int64", "int32")
"""The types of bounds and of some axes in ONNX."""


def check_vector(given: Inference, index: int, or_number: bool = False) -> None:
    """QfmtError for an input that is not a vector, or one number if that is allowed; it may be absent."""
    shape = given.shapes[index] if index < len(given.shapes) else None
    if shape is not None and len(shape) != 1 and not (or_number and not shape):
        raise QfmtError(f"input {index} has the shape {list(shape)}; it must be a vector")


def integers(
    given: Inference,
    index: int,
    most: int = 2 * MAXIMUM_RANK,
    *,
    dtypes: Sequence[str] | None = ("int64",),
    or_number: bool = False,
) -> list[int] | None:
    """A constant vector as a list; None if absent or not known. QfmtError for another type, and for more numbers than
    an input of that kind has: thousands of nodes may share a large one. (A Pad has two for each dimension.)"""
    check_vector(given, index, or_number)
    value = given.values[index] if index < len(given.values) else None
    if value is None:
        return None
    if dtypes and value.dtype.name not in dtypes:
        raise QfmtError(f"input {index} has the type {value.dtype.name}; it must be {' or '.join(dtypes)}")
    if value.size > most:
        raise QfmtError(f"input {index} has {value.size:,} numbers; known are up to {most:,}")
    return [int(item) for item in value.reshape(-1)]


def is_present(given: Inference, index: int) -> bool:
    return index < len(given.shapes) and (given.shapes[index] is not None or given.values[index] is not None)


def length(given: Inference, index: int) -> int | None:
    """The number of elements of a vector of sizes or axes, or of one number, if known; QfmtError for more than tensors
    have."""
    shape = given.shapes[index] if index < len(given.shapes) else None
    count = 1 if shape == () else shape[0] if shape and isinstance(shape[0], int) else None
    if count is not None and count > MAXIMUM_RANK:
        raise QfmtError(f"input {index} has {count:,} sizes or axes; a tensor has up to {MAXIMUM_RANK} dimensions")
    return count
