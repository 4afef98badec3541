"""Runs torch's quantized kernels for tools/engine_sums.py: each operator in each engine."""

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
    "Conv 1x1": ("Conv", (16, 16, 1, 1), 1, 0), "Conv 3x3": ("Conv", (24, 16, 3, 3), 1, 1),
    "Conv 3x3, 5 channels": ("Conv", (16, 5, 3, 3), 1, 0), "Conv, groups of 8": ("Conv", (32, 8, 5, 5), 4, 0),
    "Conv, groups of 3": ("Conv", (24, 3, 3, 3), 4, 0), "Conv 3x3, padded, groups of 4": ("Conv", (16, 4, 3, 3), 4, 1),
    "Conv 3x3, depthwise": ("Conv", (16, 1, 3, 3), 16, 0), "Conv 5x5, depthwise": ("Conv", (16, 1, 5, 5), 16, 2),
    "Conv 3x3, a group a channel": ("Conv", (32, 1, 3, 3), 16, 0),
    "ConvTranspose 3x3": ("ConvTranspose", (16, 16, 3, 3), 1, 0),
    "ConvTranspose 3x3, 5 channels": ("ConvTranspose", (5, 5, 3, 3), 1, 0),
    "ConvTranspose, groups of 3": ("ConvTranspose", (12, 3, 3, 3), 4, 0),
}  # fmt: skip
"""Name → operator, shape of the weight, groups, padding."""

LINEAR = (64, 63, 5, 301)
"""Numbers of features."""


def products() -> Iterator[Product]:
    for engine in (each for each in torch.backends.quantized.supported_engines if each != "none"):
        for name, (operator, shape, group, pad) in CONVOLUTIONS.items():
            window = {"kernel_shape": shape[2:], "pads": (pad,) * 4, "strides": (1, 1), "dilations": (1, 1)}
            window |= {"group": group} | ({"output_padding": (0, 0)} if operator == "ConvTranspose" else {})
            yield convolution(engine, operator, shape, window, name)
        for features in LINEAR:
            yield _product(engine, f"Linear, {features} features", partial(_linear, features))
            yield _product(engine, f"DynamicLinear, {features} features", partial(_dynamic_linear, features))


def convolution(engine: str, operator: str, shape: tuple[int, ...], window: dict[str, Any], name: str = "") -> Product:
    """Draw a convolution with a weight of this shape and these attributes."""
    return _product(engine, name, partial(_conv, operator, shape, window))


def _product(engine: str, name: str, draw: Callable[..., Drawn]) -> Product:
    return Product("PyTorch", name, engine, partial(_by, engine, draw))


def _by(engine: str, draw: Callable[..., Drawn], rng: np.random.Generator) -> Drawn:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        return draw(engine, rng)
    finally:
        torch.backends.quantized.engine = before


def _conv(operator: str, shape: tuple[int, ...], window: dict[str, Any], engine: str, rng: Any) -> Drawn:
    rank, transposed = len(shape) - 2, operator == "ConvTranspose"
    channels = shape[0] if transposed else shape[1] * window["group"]
    spread = round(POSITIONS ** (1 / rank))
    sizes = (spread * stride + d * (k - 1) for k, stride, d in _sizes(window))
    x, w = integers(rng, (1, channels, *sizes), "uint8"), integers(rng, shape, "int8")
    strides, pads, dilations = (list(window[name]) for name in ("strides", "pads", "dilations"))
    padding = [list(window["output_padding"])] if transposed else []
    kind = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    prepack, call = getattr(torch.ops.quantized, f"{kind}_prepack"), getattr(torch.ops.quantized, kind)
    packed = prepack(_tensor(w), None, strides, pads[:rank], *padding, dilations, window["group"])
    return _drawn(operator, x, w, partial(call, _tensor(x), packed), engine, **window)


POSITIONS = 64
"""The approximate number of kernel positions in a convolution."""


def _sizes(window: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    return zip(window["kernel_shape"], window["strides"], window["dilations"], strict=True)


def _linear(features: int, engine: str, rng: np.random.Generator) -> Drawn:
    x, w = integers(rng, (100, features), "uint8"), integers(rng, (96, features), "int8")
    packed = torch.ops.quantized.linear_prepack(_tensor(w), None)
    return _drawn("qfmt.Linear", x, w, partial(torch.ops.quantized.linear, _tensor(x), packed), engine)


def _dynamic_linear(features: int, engine: str, rng: np.random.Generator) -> Drawn:
    """Draw a dynamic linear layer on integers in 0..255: that range results in a scale of 1 and a zero point of 0."""
    x, w = integers(rng, (100, features), "uint8"), integers(rng, (96, features), "int8")
    x[0, :2] = 0, 255
    packed = torch.ops.quantized.linear_prepack(_tensor(w), None)
    real = x.astype(np.float32)
    theirs = torch.ops.quantized.linear_dynamic(torch.from_numpy(real), packed, False).numpy()
    operands = [Operand(real, None), Operand(w, Quantization.per_tensor(1.0, 0, "int8"))]
    return Drawn(_node("qfmt.DynamicLinear", engine), operands, Tensor("y", "float32", None), theirs)


def _drawn(operator: str, x: np.ndarray, w: np.ndarray, call: Any, engine: str, **attributes: Any) -> Drawn:
    """A product with scales of 1; the zero point of the input is its middle, so that sums stay small."""
    node = _node(operator, engine, **attributes)
    operands: list[Operand | None] = [
        Operand(x, Quantization.per_tensor(1.0, ZERO, "uint8")),
        Operand(w, Quantization.per_tensor(1.0, 0, "int8")),
    ]
    scale = step(Node(*_exact(node)), operands)
    output = Tensor("y", "uint8", None, None, Quantization.per_tensor(scale, ZERO, "uint8"))
    return Drawn(node, operands, output, call(scale, ZERO).int_repr().numpy())


ZERO = 128
"""The zero point of inputs and outputs: even, so that a tie rounds to the same integer before and after the
addition."""


def _node(operator: str, engine: str, **attributes: Any) -> Node:
    entry = OPERATORS[operator]
    return Node(operator, ("x", "w"), ("y",), entry.complete(attributes), "", entry.version, entry.engines[engine])


def _exact(node: Node) -> tuple[Any, ...]:
    return node.operator, node.inputs, node.outputs, node.attributes, "", node.version, "exact"


def _tensor(array: np.ndarray) -> torch.Tensor:
    zero = ZERO if array.dtype == np.uint8 else 0
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(array), 1.0, zero)
