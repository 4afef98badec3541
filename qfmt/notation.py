"""How shapes, scales and ranges are written for people, in tables and at a prompt; and numbers in JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .errors import some

if TYPE_CHECKING:
    from .graph import Shape
    from .quantization import Parameter, Quantization

NOTHING = "-"


def shape_text(shape: Shape | Sequence[int]) -> str:
    """`[N,3,224,224]`; `?` is an unknown size."""
    if shape is None:
        return "?"
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def is_size_name(word: str) -> bool:
    """`N`, or `image.N`: the form in which conversion names sizes of a network with multiple inputs.

    Files may have other names, which `--input-shape` does not take.
    """
    return all(part.isidentifier() for part in word.split("."))


def number(value: float | None) -> str:
    """Integers as they are, floats with five digits: enough to recognise one; `--json` has it exactly."""
    if value is None:
        return NOTHING
    return str(value) if isinstance(value, int) else f"{value:.5g}"


def unchecked_positions(names: str) -> str:
    """What to tell about the source key of this name."""
    listed = some(names.split(", "))
    return f"ONNX may select other elements in a nearest Resize whose sizes only a run knows: {listed}"


def json_value(value: Any) -> Any:
    """The value as JSON can represent it: an infinity is the string "inf" or "-inf", NaN is "nan", a tuple a list."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    return [json_value(item) for item in value] if isinstance(value, list | tuple) else value


def span(values: Iterable[float]) -> str:
    """One value if all are equal, else smallest..largest; of no values a dash."""
    distinct = set(values)
    if not distinct:
        return NOTHING
    return "..".join(number(value) for value in sorted({min(distinct), max(distinct)}))


def granularity(quantization: Quantization) -> str:
    """`tensor`, `channel(axis, number of scales)` or `block(size x size, number of scales)`."""
    if quantization.is_blocked:
        return f"block({by(quantization.block)}, {len(quantization.scale)})"
    if quantization.axis is None:
        return "tensor"
    return f"channel({quantization.axis}, {len(quantization.scale)})"


def quantization_cells(quantization: Quantization | None) -> list[str]:
    """Scale, zero point, quant_min..quant_max, granularity. Of blocks the types of scales and zero points: no array is
    read."""
    if quantization is None:
        return [NOTHING] * 4
    limits = f"{quantization.quant_min}..{quantization.quant_max}"
    scale, zero_point = map(_parameter, (quantization.scale, quantization.zero_point))
    return [scale, zero_point, limits, granularity(quantization)]


def _parameter(values: Parameter) -> str:
    """Its span, if it lies in the metadata."""
    return span(values) if values.is_inline else values.dtype


def in_shell(begin: str, word: str) -> str:
    """`--input-shape x=N,3`, to be pasted into a shell: nothing in the word, which may be from a file, is a command.

    After a command, a word is a path, and no option. A word with control characters, or bytes that are no UTF-8, is
    written as `$'…'`, which most shells read.
    """
    if word.startswith("-") and begin.startswith("qfmt "):
        word = f"./{word}"
    if word.isprintable():
        return f"{begin} {shlex.quote(word)}"
    try:
        encoded = word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, which no name of a file has
        encoded = word.encode("utf-8", "replace")
    escaped = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in encoded)
    return f"{begin} $'{''.join(escaped)}'"


def by(sizes: Iterable[int]) -> str:
    """`1x32`"""
    return "x".join(map(str, sizes))


def how_many(count: int, noun: str) -> str:
    """`1 file`, `1,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: int | None) -> str:
    """A readable number of bytes: 47.7 kB. None: a server does not state it."""
    if count is None:
        return "unknown size"
    if count < 1000:
        return f"{count} bytes"
    amount, units = count / 1000, ["kB", "MB", "GB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.1f} {units[0]}"
