"""The interface of `verify` to the source of a file: another program that runs it, and the values it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..arithmetic import dequantize, quantize
from ..arrays import Array
from ..model import Model, Quantization, Tensor, numpy_dtype
from .isolation.wire import record


@record
class Computed(NamedTuple):
    """A tensor that another library computed or read: its integers with their quantization, or floats without."""

    array: Array
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int | None = None

    @property
    def is_quantized(self) -> bool:
        return bool(self.scale)


def is_computed(value: Any) -> bool:
    """Whether a value is a Computed with valid fields."""
    import numpy as np

    match value:
        case Computed(np.ndarray(), tuple() as scale, tuple() as zero_point, axis):
            floats, whole = (isinstance(each, float) for each in scale), (type(each) is int for each in zero_point)
            along = axis is None or (type(axis) is int and 0 <= axis < value.array.ndim)
            return along and all(floats) and all(whole) and len(scale) == len(zero_point)
    return False


def is_array(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.ndarray)


def computed(array: Array, tensor: Tensor) -> Computed:
    """The computed array of a tensor, with the tensor's quantization."""
    return Computed(array, *stated(tensor.quantization))


def stated(grid: Quantization | None) -> tuple[tuple[float, ...], tuple[int, ...], int | None]:
    """Scales, zero points and axis of a per-tensor or per-channel quantization; empty for any other."""
    if grid is None or not grid.is_affine:
        return (), (), None
    return grid.scale.numbers(), tuple(int(point) for point in grid.each_zero_point), grid.axis


OFF_GRID = 2.0**-10
"""The distance from a multiple of the scale, in units of the scale, at which a real number still counts as one."""


def integers_of(array: Array, tensor: Tensor, *, rounded: bool = False) -> Computed | None:
    """The integers of a quantized tensor that these real numbers represent, or are rounded to; None if one is not a
    multiple of the scale, and they are not to be rounded."""
    import numpy as np

    grid = tensor.quantization
    if grid is None or not grid.is_affine or array.dtype.kind != "f":
        return None
    integers = quantize(array.astype(np.float32), grid, numpy_dtype(tensor.dtype), "divide")
    apart = np.abs(dequantize(integers, grid).astype(np.float64) - array)
    if not rounded and not (apart <= OFF_GRID * grid.scales(array.shape)).all():
        return None
    return computed(integers, tensor)


class Witness:
    """The source of a file. `model` is a fresh conversion of it. Call `open` before `constants` and `run`."""

    model: Model
    name: str
    """The program that runs the source: "torch", "onnx"."""
    engine: str
    """The engine of that program."""

    def open(self) -> str:
        """Start the program that runs the source; return its name and version. MissingPackageError if it is
        missing."""
        raise NotImplementedError

    def example_shapes(self) -> Sequence[tuple[int, ...] | None]:
        """The input shapes that the source was made with, if it states them."""
        return ()

    def constants(self) -> Iterator[tuple[str, Computed]]:
        """Yield (name of a constant of `model`, its value from another reader); nothing if there is no other
        reader."""
        return iter(())

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Computed]:
        """Tensors of `model` by name, computed from these inputs. RunError if the source cannot be run."""
        raise NotImplementedError
