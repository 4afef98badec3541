"""Whether torch's kernels are exact on this processor: asked of the kernels themselves, once in a process.

Without VNNI they add up pairs of products of uint8 and int8 in 16 bits, with saturation (`qfmt.ops.overflow`).
"""

from __future__ import annotations

from functools import cache

import torch

from .kernels import deprecated_dtypes, quantized_kernels

quantized = torch.ops.quantized

PRODUCTS = ("conv", "depthwise", "linear", "dynamic")
"""The products for which an engine has kernels of their own."""

CHANNELS = 128
"""Of a probe. `x86` takes fbgemm's kernels for more than 100 groups."""


@cache
def saturates(kernels: str, product: str) -> bool:
    """Whether these kernels (fbgemm, x86, onednn, qnnpack) clip sums of two products on this processor.

    `product` is one of PRODUCTS. All activations are 255, all weights 127: a kernel that clips gives about half.
    """
    weight = torch.full(_WEIGHTS[product], 127, dtype=torch.int8)
    exact = 255 * 127 * weight[0].numel()
    with quantized_kernels(kernels), deprecated_dtypes():
        found = _largest(product, torch._make_per_tensor_quantized_tensor(weight, 1.0, 0), exact / 200)
    return found < 0.99 * exact


_WEIGHTS = {
    "conv": (16, CHANNELS, 1, 1),
    "depthwise": (CHANNELS, 1, 3, 3),
    "linear": (16, CHANNELS),
    "dynamic": (16, CHANNELS),
}


def _largest(product: str, weight: torch.Tensor, scale: float) -> float:
    """The largest sum, of activations with scale 1, on a grid of this scale if the product gives integers."""
    if product == "dynamic":
        packed = quantized.linear_prepack(weight, None)
        return float(quantized.linear_dynamic(torch.full((8, CHANNELS), 255.0), packed, False).max())
    shape = (8, CHANNELS) if product == "linear" else (1, CHANNELS, 8, 8)
    x = torch._make_per_tensor_quantized_tensor(torch.full(shape, 255, dtype=torch.uint8), 1.0, 0)
    if product == "linear":
        y = quantized.linear(x, quantized.linear_prepack(weight, None), scale, 0)
    else:
        pads, groups = ([0, 0], 1) if product == "conv" else ([1, 1], CHANNELS)
        y = quantized.conv2d(x, quantized.conv2d_prepack(weight, None, [1, 1], pads, [1, 1], groups), scale, 0)
    return float(y.dequantize().max())
