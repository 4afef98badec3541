"""What `verify` asks of the source of a file: who else can carry it out, and what that one computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..model import Model
from .isolation.wire import record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@record
class Computed(NamedTuple):
    """A tensor that somebody else computed or read: its integers with their quantization, or floats without."""

    array: Array
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int | None = None

    @property
    def is_quantized(self) -> bool:
        return bool(self.scale)


class Witness(Protocol):
    """The source of a file. `model` is what it is converted to now. First `open`, then `constants` and `run`."""

    model: Model
    name: str
    """Who carries the source out: "torch", "onnx"."""
    engine: str
    """Which one of its engines."""

    def open(self) -> str:
        """Make ready whoever carries the source out; gives its name and version. MissingPackageError without it."""

    def example_shapes(self) -> list[tuple[int, ...] | None]:
        """The shapes of inputs that the source was made with, as far as it says."""

    def constants(self) -> Iterator[tuple[str, Computed]]:
        """(name of a constant of `model`, what somebody else's reader makes of it); nothing where nobody else reads."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Computed]:
        """Tensors of `model` by name, as computed from these inputs. RunError if that cannot be."""
