"""V11–V12, V26, V29: what is stored, value by value. `check` and `save` apply them; opening a file does not."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..model import DTYPES, INT32, Blocks, StoredArray, Tensor, static_shape
from .rule import Stage

VALUES = Stage()


@VALUES.rule(11, "A bool is stored as the byte 0 or 1.")
def _bool(tensor: Tensor) -> str:
    if tensor.dtype != "bool" or tensor.data is None:
        return ""
    bytes_ = StoredArray("uint8", static_shape(tensor), tensor.data).parts()
    worst = max((int(part.max(initial=0)) for part in bytes_), default=0)
    return "" if worst <= 1 else f"a byte is {worst}, not 0 or 1"


@VALUES.rule(12, "With elements of less than 8 bits, the bits of the last byte that no element uses are zero.")
def _unused_bits(tensor: Tensor) -> str:
    for stored in _arrays(tensor):
        used = prod(stored.shape) * DTYPES[stored.dtype].bits % 8
        if used and stored.data.view()[-1] >> used:
            return f"the last byte is {stored.data.view()[-1]:#04x}, but only its lowest {used} bits are used"
    return ""


@VALUES.rule(
    26, "The integers of a quantized constant are within [quant_min, quant_max]; so are its floats that are finite."
)
def _stored_range(tensor: Tensor) -> str:
    quantization, dtype = tensor.quantization, DTYPES[tensor.dtype]
    if quantization is None or tensor.data is None:
        return ""
    import numpy as np

    low, high = quantization.quant_min, quantization.quant_max
    if (low, high) == (dtype.minimum, dtype.maximum):
        return ""
    for part in StoredArray(tensor.dtype, static_shape(tensor), tensor.data).parts():
        if not dtype.is_integer:
            part = part[np.isfinite(part.astype(np.float32))].astype(np.float32)
        if part.size and not low <= part.min() <= part.max() <= high:
            return f"holds values in [{part.min()}, {part.max()}], outside [{low}, {high}]"
    return ""


@VALUES.rule(
    29,
    "Scales of blocks are finite, also as float32, and greater than 0 unless the tensor is a constant. Zero points of "
    "blocks are finite, within the range of int32 if they are integers, and not all equal.",
)
def _block_values(tensor: Tensor) -> str:
    if tensor.quantization is None or tensor.quantization.blocks is None:
        return ""
    blocks = tensor.quantization.blocks
    return _scale_values(blocks.scale, tensor.is_constant) or _zero_point_values(blocks)


def _scale_values(scale: StoredArray, is_constant: bool) -> str:
    import numpy as np

    for part in scale.parts():
        with np.errstate(over="ignore", under="ignore"):
            scales = part.astype(np.float32)
        if not np.isfinite(scales).all():
            return f"a block has the scale {scales[~np.isfinite(scales)][0]}"
        if not is_constant and not (scales > 0).all():
            return f"a block has the scale {scales[~(scales > 0)][0]}, which only constants may have"
    return ""


def _zero_point_values(blocks: Blocks) -> str:
    import numpy as np

    if blocks.zero_point is None:
        return ""
    limit, first = INT32, next(blocks.zero_point.parts())[:1]
    differ = False
    for part in blocks.zero_point.parts():
        differ = differ or bool((part != first).any())
        if not np.isfinite(part.astype(np.float64)).all() or (part.dtype.kind == "u" and int(part.max()) > limit):
            return "a zero point of a block is not finite, or outside int32"
    return "" if differ else f"all blocks have the zero point {first[0]}, which is stored only once"


def _arrays(tensor: Tensor) -> Iterator[StoredArray]:
    """Every array that is stored with a tensor."""
    if tensor.data is not None:
        yield StoredArray(tensor.dtype, static_shape(tensor), tensor.data)
    if tensor.quantization is not None and tensor.quantization.blocks is not None:
        blocks = tensor.quantization.blocks
        yield from filter(None, (blocks.scale, blocks.zero_point))
