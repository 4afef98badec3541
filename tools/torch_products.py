"""Torch's quantized kernels for tools/engine_sums.py: each operator on each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from engine_sums import Drawn, Product, integers, step

from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand

CONVOLUTIONS = {
    "Conv 1x1": (16, 16, 1, 1, 0), "Conv 3x3": (16, 24, 3, 1, 1), "Conv 3x3, 5 channels": (5, 16, 3, 1, 0),
    "Conv, groups of 8": (32, 32, 5, 4, 0), "Conv, groups of 3": (12, 24, 3, 4, 0),
    "Conv 3x3, padded, groups of 4": (16, 16, 3, 4, 1), "Conv 3x3, depthwise": (16, 16, 3, 16, 0),
    "Conv 5x5, depthwise": (16, 16, 5, 16, 2), "Conv 3x3, a group a channel": (16, 32, 3, 16, 0),
}  # fmt: skip
"""Name → channels, outputs, size of the kernel, groups, padding."""

LINEAR = (64, 63, 5, 301)
"""Features."""


def products() -> Iterator[Product]:
    for engine in (each for each in torch.backends.quantized.supported_engines if each != "none"):
        rows: dict[str, Callable[..., Drawn]] = {name: partial(_conv, *sizes) for name, sizes in CONVOLUTIONS.items()}
        rows |= {f"Linear, {each} features": partial(_linear, each) for each in LINEAR}
        rows |= {f"DynamicLinear, {each} features": partial(_dynamic_linear, each) for each in LINEAR}
        for name, draw in rows.items():
            yield Product("PyTorch", name, engine, partial(_by, engine, draw))


def _by(engine: str, draw: Callable[..., Drawn], rng: np.random.Generator) -> Drawn:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        return draw(engine, rng)
    finally:
        torch.backends.quantized.engine = before


def _conv(channels: int, outputs: int, size: int, group: int, pad: int, engine: str, rng: Any) -> Drawn:
    x = integers(rng, (2, channels, 24, 24), "uint8")
    w = integers(rng, (outputs, channels // group, size, size), "int8")
    packed = torch.ops.quantized.conv2d_prepack(_tensor(w), None, [1, 1], [pad] * 2, [1, 1], group)
    call = partial(torch.ops.quantized.conv2d, _tensor(x), packed)
    return _drawn("Conv", x, w, call, engine, kernel_shape=(size, size), pads=(pad,) * 4, group=group)


def _linear(features: int, engine: str, rng: np.random.Generator) -> Drawn:
    x, w = integers(rng, (100, features), "uint8"), integers(rng, (96, features), "int8")
    packed = torch.ops.quantized.linear_prepack(_tensor(w), None)
    return _drawn("qfmt.Linear", x, w, partial(torch.ops.quantized.linear, _tensor(x), packed), engine)


def _dynamic_linear(features: int, engine: str, rng: np.random.Generator) -> Drawn:
    """Integers of which the range is 0..255 are on the grid that it gives."""
    x, w = integers(rng, (100, features), "uint8"), integers(rng, (96, features), "int8")
    x[0, :2] = 0, 255
    packed = torch.ops.quantized.linear_prepack(_tensor(w), None)
    real = x.astype(np.float32)
    theirs = torch.ops.quantized.linear_dynamic(torch.from_numpy(real), packed, False).numpy()
    operands = [Operand(real, None), Operand(w, Quantization.per_tensor(1.0, 0, "int8"))]
    return Drawn(_node("qfmt.DynamicLinear", engine), operands, Tensor("y", "float32", None), theirs)


def _drawn(operator: str, x: np.ndarray, w: np.ndarray, call: Any, engine: str, **attributes: Any) -> Drawn:
    """A product with scales 1; the zero point of the input is its middle, so that sums stay small."""
    node = _node(operator, engine, **attributes)
    operands: list[Operand | None] = [
        Operand(x, Quantization.per_tensor(1.0, ZERO, "uint8")),
        Operand(w, Quantization.per_tensor(1.0, 0, "int8")),
    ]
    scale = step(Node(*_exact(node)), operands)
    output = Tensor("y", "uint8", None, None, Quantization.per_tensor(scale, ZERO, "uint8"))
    return Drawn(node, operands, output, call(scale, ZERO).int_repr().numpy())


ZERO = 128
"""The zero point of inputs and outputs: even, so that a tie goes to the same integer before and after it is added."""


def _node(operator: str, engine: str, **attributes: Any) -> Node:
    entry = OPERATORS[operator]
    if "group" in attributes:
        attributes |= {"strides": (1, 1), "dilations": (1, 1)}
    return Node(operator, ("x", "w"), ("y",), entry.complete(attributes), "", entry.version, entry.engines[engine])


def _exact(node: Node) -> tuple[Any, ...]:
    return node.operator, node.inputs, node.outputs, node.attributes, "", node.version, "exact"


def _tensor(array: np.ndarray) -> torch.Tensor:
    zero = ZERO if array.dtype == np.uint8 else 0
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(array), 1.0, zero)
