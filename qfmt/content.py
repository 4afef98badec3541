"""The lines whose digest is the content id of a model (spec.md, "Content id")."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .model import Attribute, Blocks, Dimension, Model, Quantization, attribute_kind


def content_lines(model: Model) -> Iterator[str]:
    """The lines, without their line feeds."""
    graph = model.graph
    yield "qfb content 1"
    yield _fields("inputs", *graph.inputs)
    yield _fields("outputs", *graph.outputs)
    for name in sorted(graph.tensors):
        tensor = graph.tensors[name]
        shape = ["*"] if tensor.shape is None else [_size_word(size) for size in tensor.shape]
        yield _fields("tensor", name, tensor.dtype, str(len(shape)), *shape)
        if tensor.quantization is not None:
            yield _quantization_line(tensor.quantization)
            if tensor.quantization.blocks is not None:
                yield _blocks_line(tensor.quantization.blocks)
        if tensor.data is not None:
            yield _fields("data", tensor.data.sha256().hex())
    for node in graph.nodes:
        yield _fields("node", node.operator, str(node.version), node.arithmetic)
        yield _fields("in", *node.inputs)
        yield _fields("out", *node.outputs)
        for key in sorted(node.attributes):
            yield _fields("attribute", key, *_attribute_words(node.attributes[key]))


def _size_word(size: Dimension) -> str:
    """A name is marked, so that one like "3" or "?" is no number and not unknown."""
    return "?" if size is None else f"={size}" if isinstance(size, str) else str(size)


def _quantization_line(quantization: Quantization) -> str:
    axis = "-" if quantization.axis is None else str(quantization.axis)
    scales = (_number_word(scale) for scale in quantization.scale)
    zero_points = (_number_word(zero_point) for zero_point in quantization.zero_point)
    limits = (str(quantization.quant_min), str(quantization.quant_max))
    return _fields("quantization", axis, *limits, quantization.scale_dtype, *scales, *zero_points)


def _blocks_line(blocks: Blocks) -> str:
    own = blocks.zero_point
    zero_points = () if own is None else (own.dtype, own.data.sha256().hex())
    return _fields("blocks", *map(str, blocks.shape), blocks.scale.data.sha256().hex(), *zero_points)


def _attribute_words(value: Attribute) -> Iterator[str]:
    values = value if isinstance(value, tuple) else (value,)
    yield ("s" if not isinstance(value, tuple) else "l") + attribute_kind(value)
    for item in values:
        yield _number_word(item) if isinstance(item, float) else str(item)


def _number_word(value: float) -> str:
    """An integer in decimal digits, a float as the hexadecimal digits of its float64."""
    return struct.pack(">d", value).hex() if isinstance(value, float) else str(value)


def _fields(*words: str) -> str:
    """Words joined by spaces, each preceded by its length in bytes, so that no two lists look alike."""
    return " ".join(f"{len(word.encode())}:{word}" for word in words)
