"""V11–V12, and the parts of V22 and V23 that read stored values from a buffer.

`check` and `save` apply them; opening a file does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

from ..model import DTYPES, StoredArray, Tensor, static_shape
from .quantization import wrong_numbers
from .rule import Stage

VALUES = Stage()


@VALUES.rule(11, "A bool is stored as the byte 0 or 1.")
def _bool(tensor: Tensor) -> str:
    if tensor.dtype != "bool" or tensor.data is None:
        return ""
    _, worst = _ends(StoredArray("uint8", static_shape(tensor), tensor.data))
    return "" if worst <= 1 else f"a byte is {worst}, not 0 or 1"


@VALUES.rule(12, "With elements of less than 8 bits, the bits of the last byte that no element uses are zero.")
def _unused_bits(tensor: Tensor) -> str:
    for stored in _arrays(tensor):
        used = prod(stored.shape) * DTYPES[stored.dtype].bits % 8
        if used and stored.data.view()[-1] >> used:
            return f"the last byte is {stored.data.view()[-1]:#04x}, but only its lowest {used} bits are used"
    return ""


@VALUES.also(23)
def _stored_range(tensor: Tensor) -> str:
    quantization, dtype = tensor.quantization, DTYPES[tensor.dtype]
    if quantization is None or tensor.data is None:
        return ""
    low, high = quantization.quant_min, quantization.quant_max
    if (low, high) == (dtype.minimum, dtype.maximum):
        return ""
    least, most = _ends(StoredArray(tensor.dtype, static_shape(tensor), tensor.data))
    return f"holds values in [{least}, {most}], outside [{low}, {high}]" if least < low or most > high else ""


def _ends(stored: StoredArray) -> tuple[float, float]:
    """The least and the greatest of the values that are finite; infinities if there is none."""
    import numpy as np

    def find() -> tuple[float, float]:
        least, most = inf, -inf
        for part in stored.parts():
            if not DTYPES[stored.dtype].is_integer:
                part = part[np.isfinite(part.astype(np.float32))].astype(np.float32)
            if part.size:
                least, most = min(least, part.min().item()), max(most, part.max().item())
        return least, most

    return stored.data.once(("ends", stored.dtype, prod(stored.shape)), find)


@VALUES.also(22)
def _large_arrays(tensor: Tensor) -> str:
    return "" if tensor.quantization is None else wrong_numbers(tensor, tensor.quantization, is_inline=False)


def _arrays(tensor: Tensor) -> Iterator[StoredArray]:
    """Every array that is stored with a tensor."""
    if tensor.data is not None:
        yield StoredArray(tensor.dtype, static_shape(tensor), tensor.data)
    if tensor.quantization is not None:
        yield from (each for _, each in tensor.quantization.parameters())
