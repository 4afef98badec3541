"""What fbgemm's depthwise kernel gives where its sums overflow: there torch's own output is the one that is off.

The kernel (GenerateDepthwiseKernel in FBGEMM, `vpmaddubsw`) adds the products of two neighbouring taps in 16 bits, with
saturation. That happens with activations beyond 127, on every processor. Computed anew with the saturation, its outputs
come out bit by bit, which proves that an output differs for this reason and for no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import Node, Tensor, numpy_dtype
from ..ops import Operand, Result
from ..ops.accumulation import requantize_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

KERNELS = ((3, 3), (5, 5), (7, 7), (3, 3, 3))
"""The kernel sizes that it is generated for; others take a path with 32-bit sums."""

CHANNELS = 8
"""It takes channels in multiples of this."""

INT16 = np.iinfo(np.int16)


def saturated(node: Node, operands: Sequence[Operand | None], output: Tensor) -> Array | None:
    """The outputs of a convolution as that kernel computes them; None for one that it is not used for."""
    if node.operator != "Conv" or node.arithmetic != "float_bias" or output.quantization is None:
        return None
    x, w, bias = (*operands, None)[:3]
    if x is None or w is None or x.quantization is None or w.quantization is None or x.array.dtype != np.uint8:
        return None
    channels, per_group, *kernel = w.array.shape
    is_depthwise = per_group == 1 and node.attributes["group"] == channels == x.array.shape[1]
    if not is_depthwise or channels % CHANNELS or tuple(kernel) not in KERNELS or set(_sizes(node, "dilations")) != {1}:
        return None
    zero_point = int(x.quantization.zero_point[0])
    seen = _taps(x.array, zero_point, kernel, _sizes(node, "strides"), _sizes(node, "pads"))
    along = (1, channels, *(1,) * len(kernel))
    weights = w.array.astype(np.int64).reshape(channels, -1)
    products = [tap * weights[:, index].reshape(along) for index, tap in enumerate(seen)]
    products += [np.zeros_like(products[0])] * (len(products) % 2)
    pairs = zip(products[::2], products[1::2], strict=True)
    total = sum(np.clip(a + b, INT16.min, INT16.max) for a, b in pairs)
    total = total - zero_point * weights.sum(1).reshape(along)
    total = total - w.quantization.zero_points(w.array.ndim).reshape(-1, *along[2:]) * sum(
        tap - zero_point for tap in seen
    )
    result = Result(numpy_dtype(output.dtype), output.quantization, node.arithmetic)
    return requantize_sums(total, x, w, bias, result, channels=1)


def _taps(x: Array, zero_point: int, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> list[Array]:
    """What each tap of the kernel meets, row by row; padding is the zero point."""
    rank = len(kernel)
    around = [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))]
    padded = np.pad(x.astype(np.int64), around, constant_values=zero_point)
    out = [(padded.shape[2 + i] - kernel[i]) // strides[i] + 1 for i in range(rank)]
    taps = []
    for place in np.ndindex(*kernel):
        windows = (slice(p, p + s * (o - 1) + 1, s) for p, s, o in zip(place, strides, out, strict=True))
        taps.append(padded[(slice(None), slice(None), *windows)])
    return taps


def _sizes(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes[name]
    assert isinstance(value, tuple)
    return tuple(int(size) for size in value)
