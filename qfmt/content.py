"""The lines whose digest is the content id of a model (docs/spec/writing.md, "Content id").

No line is ever built as a whole: the same long name may stand in one thousands of times.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from .errors import QfmtError
from .model import Attribute, Dimension, Model, Quantization, attribute_kind
from .quantization import NO_ZERO_POINT

PIECE = 1 << 16
"""About how many bytes are digested at once."""

QUANTIZED_INPUTS = "quantized_inputs"
OF_INPUTS = ("dynamic_inputs", QUANTIZED_INPUTS)
"""The source keys that say how inputs are quantized, which no tensor does."""

LONG = 256
"""Bytes of a word, or of the lines of a quantization, from which on it counts how often they stand there."""

REPEATED = 1 << 28
"""Bytes of long words and lines that stand there again; no network has as many, and a small file could have 2**40."""


def content_digest(model: Model) -> bytes:
    """The SHA-256 of the lines; QfmtError if long names or many scales are repeated too often, or a name is no text."""
    try:
        return _digest(model)
    except UnicodeEncodeError as error:
        raise QfmtError(f"{error.object[:LONG]!r} is not valid text") from None


def _digest(model: Model) -> bytes:
    digest, held = hashlib.sha256(), bytearray()
    seen: set[bytes] = set()
    repeated = 0
    for piece in _pieces(model):
        if len(piece) >= LONG:
            mark = hashlib.sha256(piece).digest()
            repeated += len(piece) if mark in seen else 0
            seen.add(mark)
            if repeated > REPEATED:
                hint = "the file has too many references to long names or to many scales"
                raise QfmtError("the text of the content id is too long", hint=hint)
        held += piece
        if len(held) >= PIECE:
            digest.update(held)
            held.clear()
    digest.update(held)
    return digest.digest()


def content_text(model: Model) -> str:
    """All lines, to be shown: of a small model."""
    return b"".join(_pieces(model)).decode()


def _pieces(model: Model) -> Iterator[bytes]:
    """What the lines consist of."""
    graph = model.graph
    grids: dict[int, tuple[Quantization, bytes]] = {}  # tensors may share one with very many scales
    yield b"qfb content 1\n"
    yield from _line("inputs", *graph.inputs)
    yield from _line("outputs", *graph.outputs)
    for name in sorted(graph.tensors):
        tensor = graph.tensors[name]
        shape = ["*"] if tensor.shape is None else [_size_word(size) for size in tensor.shape]
        yield from _line("tensor", name, tensor.dtype, str(len(shape)), *shape)
        quantization = tensor.quantization
        if quantization is not None:
            if id(quantization) not in grids:
                grids[id(quantization)] = quantization, b"".join(_quantization_lines(quantization))
            yield grids[id(quantization)][1]
        if tensor.data is not None:
            yield from _line("data", tensor.data.sha256().hex())
    for node in graph.nodes:
        yield from _line("node", node.operator, str(node.version), node.rule)
        yield from _line("in", *node.inputs)
        yield from _line("out", *node.outputs)
        for key in sorted(node.attributes):
            yield from _line("attribute", key, *attribute_words(node.attributes[key]))
    for key in OF_INPUTS:
        if key in model.source:
            yield from _line(key, model.source[key])


def _size_word(size: Dimension) -> str:
    """A name is marked, so a name like "3" or "?" is not taken for a number or an unknown size."""
    return "?" if size is None else f"={size}" if isinstance(size, str) else str(size)


def _quantization_lines(quantization: Quantization) -> Iterator[bytes]:
    limits = str(quantization.quant_min), str(quantization.quant_max)
    yield from _line("quantization", *limits, *map(str, quantization.block))
    yield from _parameter_lines(quantization)


def _parameter_lines(quantization: Quantization) -> Iterator[bytes]:
    for name, each in quantization.parameters():
        if each != NO_ZERO_POINT:
            yield from _line(name, each.dtype, *map(str, each.shape), each.data.sha256().hex())
            if each.quantization is not None:
                yield from _line("level", *map(str, each.quantization.block))


def attribute_words(value: Attribute) -> Iterator[str]:
    """The kind of an attribute, and its values: 1, 1.0 and 0.0, -0.0 are not the same.

    An integer is in decimal digits, a float in the hexadecimal digits of its float64.
    """
    values = value if isinstance(value, tuple) else (value,)
    yield ("s" if not isinstance(value, tuple) else "l") + attribute_kind(value)
    for item in values:
        yield struct.pack(">d", item).hex() if isinstance(item, float) else str(item)


def _line(*words: str) -> Iterator[bytes]:
    """Words between spaces, each preceded by its length in bytes, so that no two lists look alike; and a line feed."""
    space = b""
    for word in words:
        text = word.encode()
        yield b"%b%d:%b" % (space, len(text), text)
        space = b" "
    yield b"\n"
