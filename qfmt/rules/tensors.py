"""V1–V12: single tensors, their names, types, sizes and bytes, and what V22 and V23 say of stored values. Nothing here
imports NumPy until data is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import inf, prod

from ..errors import Violation, brief
from ..graph import MAXIMUM_RANK
from ..model import DTYPES, Quantization, StoredArray, Tensor, static_shape
from .quantization import NUMBERS, QUANTIZATION, wrong_numbers
from .rule import Stage, first_of, is_int, is_text, quoted

NAMING = Stage()
DATA = Stage()
VALUES = Stage()


def tensor_violations(tensor: Tensor) -> list[Violation]:
    """The rules V1–V25 that a tensor breaks, without reading its data."""
    found = form_violations(tensor)
    if found or tensor.quantization is None:
        return found
    return quantization_violations(tensor, tensor.quantization)


def form_violations(tensor: Tensor) -> list[Violation]:
    """The rules V1–V10 that a tensor breaks, without a look at its quantization."""
    found = NAMING.broken(partial(_place, tensor), tensor)
    return found if found or tensor.data is None else DATA.broken(partial(_place, tensor), tensor)


def quantization_violations(tensor: Tensor, quantization: Quantization) -> list[Violation]:
    """The rules V5 and V20–V25 that a quantization of a tensor breaks, which breaks none of the others."""
    place = partial(_place, tensor)
    return QUANTIZATION.broken(place, tensor, quantization) or NUMBERS.broken(place, tensor, quantization)


def is_name(name: str) -> bool:
    """Whether it may be the name of a tensor by V1 and V5. Without aliases, the others of the rules V1–V10 are about
    what tensors have in common: element type, sizes and bytes."""
    return bool(name) and is_text(name)


def data_violations(tensor: Tensor) -> list[Violation]:
    """The rules about stored values that a tensor breaks; it must break none of the others."""
    return VALUES.broken(partial(_place, tensor), tensor)


def _place(tensor: Tensor) -> str:
    return f"tensor {quoted(tensor.name)}"


@NAMING.rule(1, "A tensor's name is not empty, and no other tensor of the graph has it.")
def _name(tensor: Tensor) -> str:
    return "" if tensor.name else "the name is empty"


@NAMING.rule(2, "The element type is in the table of element types.")
def _dtype(tensor: Tensor) -> str:
    return "" if tensor.dtype in DTYPES else f"the element type {tensor.dtype!r} is not known"


@NAMING.rule(
    3,
    "A size is an integer of at least 0, a name that is not empty, or unknown. There are at most 32 sizes. The "
    "product of all sizes other than 0 is less than 2^60, also if a size is 0. A constant has a shape, and each of "
    "its sizes is an integer.",
)
def _shape(tensor: Tensor) -> str:
    if tensor.shape is None:
        return "" if tensor.data is None else "a constant has no shape"
    if len(tensor.shape) > MAXIMUM_RANK:
        return f"{len(tensor.shape)} dimensions, more than {MAXIMUM_RANK}"
    for axis, size in enumerate(tensor.shape):
        if not (size is None or (isinstance(size, str) and size) or (is_int(size) and int(size) >= 0)):
            return f"dimension {axis} has the size {brief(size)}"
        if tensor.data is not None and not isinstance(size, int):
            return f"dimension {axis} of a constant has no fixed size"
    if prod(size for size in tensor.shape if isinstance(size, int) and size) >= 1 << 60:
        return f"the product of the sizes {tensor.shape} is 2^60 or more"
    return ""


@NAMING.rule(4, "Aliases are not empty, are sorted, and each appears only once.")
def _aliases(tensor: Tensor) -> str:
    return "" if not tensor.aliases else _unsorted(tensor.aliases)


@NAMING.rule(
    5,
    "The name, the aliases, the names of sizes, scale and zero point, the observer and its scheme are Unicode text "
    "without U+0000, and without surrogates, which UTF-8 cannot hold (F6).",
)
def _text(tensor: Tensor) -> str:
    return _wrong_text([tensor.name, *tensor.aliases, *(size for size in tensor.shape or () if isinstance(size, str))])


@QUANTIZATION.also(5)
def _text_of_quantization(tensor: Tensor, quantization: Quantization) -> str:
    observed = quantization.observed
    return _wrong_text([*quantization.names, *((observed.observer, observed.qscheme) if observed else ())])


def _wrong_text(texts: Sequence[str]) -> str:
    wrong = [text for text in texts if not is_text(text)]
    return f"{first_of(wrong)} is not valid text" if wrong else ""


@DATA.rule(10, "A constant has exactly the bytes that its element type and shape need.")
def _size(tensor: Tensor) -> str:
    assert tensor.data is not None
    needed = StoredArray(tensor.dtype, static_shape(tensor), tensor.data).nbytes_needed
    return "" if tensor.data.nbytes == needed else f"{tensor.data.nbytes} bytes stored, {needed} needed"


def _unsorted(words: Sequence[str]) -> str:
    if not words[0]:
        return "an alias is empty"
    wrong = [second for first, second in pairwise(words) if first >= second]
    return f"the alias {quoted(wrong[0])} is out of order or repeated" if wrong else ""


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
