"""Convolutions: exact integer accumulators, then one requantization."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arithmetic import requantize
from ..errors import QfmtError
from ..model import Dimension, Shape
from .registry import Inference, Operand, Quantized, Result, operator, optional, required
from .shapes import window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

EXACT_IN_FLOAT32 = 1 << 24
"""Sums of integers stay exact in float32 while no partial sum exceeds this; in float64 up to 2**53."""

ATTRIBUTES = {
    "dilations": required("ii", "step between taps, one per spatial dimension"),
    "group": optional(1, "number of groups that channels are split into"),
    "kernel_shape": required("ii", "size of the kernel"),
    "pads": required("ii", "zeros before each spatial dimension, then after each"),
    "strides": required("ii", "step of the window"),
}


def _conv_shape(given: Inference) -> list[Shape]:
    x, w = given.known(0), given.known(1)
    a = given.attributes
    rank = len(w) - 2
    if len(x) != len(w):
        raise QfmtError(f"a {rank}-d convolution needs an input of rank {len(w)}, not {len(x)}")
    expected = w[1] * a["group"] if isinstance(w[1], int) else None
    if isinstance(x[1], int) and expected is not None and x[1] != expected:
        raise QfmtError(f"the input has {x[1]} channels, the weight takes {expected}")
    pads = a["pads"]
    spatial = tuple(
        window(x[2 + i], a["kernel_shape"][i], a["strides"][i], pads[i] + pads[rank + i], a["dilations"][i])
        for i in range(rank)
    )
    return [(x[0], w[0], *spatial)]


def conv_integer(x: Operand, w: Operand, b: Operand | None, *, result: Result, **attributes: Any) -> Array:
    """acc = Σ (x - zx)·(w - zw), exact; padding stands for real zeros; then the requantize rule."""
    acc = _convolve(_centred(x), _centred(w), exact=True, **attributes)
    return _requantize_channels(acc, x, w, b, result)


def _requantize_channels(acc: Array, x: Operand, w: Operand, b: Operand | None, result: Result) -> Array:
    if x.quantization is None or w.quantization is None:
        raise QfmtError("a quantized convolution needs a quantized input and weight")
    shape = (1, -1) + (1,) * (acc.ndim - 2)
    scales = np.array(w.quantization.scale).reshape(shape)
    bias = None if b is None else b.array.astype(np.float32).reshape(shape)
    return requantize(acc, bias, x.quantization.scale[0], scales, result.quantization, result.dtype, result.rule)


def _centred(operand: Operand) -> Array:
    """Integers minus their zero points, int32."""
    values = operand.array.astype(np.int32)
    if operand.quantization is None:
        return values
    return values - operand.quantization.zero_points(values.ndim)


def multiply_exactly(a: Array, b: Array) -> Array:
    """The matrix product of two integer arrays, exact, as int64; through BLAS where the sums allow it."""
    bound = float(np.abs(a).max(initial=0)) * float(np.abs(b).sum(axis=-2, dtype=np.float64).max(initial=0))
    if bound < EXACT_IN_FLOAT32:
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.int64)
    if bound < 2**53:
        return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    return np.matmul(a.astype(np.int64), b.astype(np.int64))


def _convolve(
    x: Array,
    w: Array,
    *,
    exact: bool,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
    kernel_shape: tuple[int, ...],
) -> Array:
    """x [N, C, *spatial] with w [M, C/group, *kernel] → [N, M, *out]."""
    rank = len(kernel_shape)
    padded = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))])
    out = tuple((padded.shape[2 + i] - dilations[i] * (kernel_shape[i] - 1) - 1) // strides[i] + 1 for i in range(rank))
    batch, per_group, filters = x.shape[0], w.shape[1], w.shape[0] // group
    if per_group == 1 and filters == 1:
        return _depthwise(padded, w, strides, dilations, out)
    columns = np.empty((batch, group, per_group, prod(kernel_shape), prod(out)), padded.dtype)
    grouped = padded.reshape(batch, group, per_group, *padded.shape[2:])
    for tap, position in enumerate(np.ndindex(*kernel_shape)):
        window_ = grouped[(..., *_tap(position, strides, dilations, out))]
        columns[:, :, :, tap] = window_.reshape(batch, group, per_group, -1)
    matrix = w.reshape(group, filters, per_group * prod(kernel_shape))
    columns = columns.reshape(batch, group, per_group * prod(kernel_shape), prod(out))
    product = _multiply(matrix, columns, exact)
    return product.reshape(batch, group * filters, *out)


def _multiply(matrix: Array, columns: Array, exact: bool) -> Array:
    if not exact:
        return np.matmul(matrix, columns)
    return multiply_exactly(columns.swapaxes(-1, -2), matrix.swapaxes(-1, -2)).swapaxes(-1, -2)


def _tap(
    position: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], out: tuple[int, ...]
) -> tuple[slice, ...]:
    """The part of a padded input that one tap of the kernel meets, over all positions of the window."""
    return tuple(
        slice(p * d, p * d + s * (o - 1) + 1, s) for p, s, d, o in zip(position, strides, dilations, out, strict=True)
    )


def _depthwise(
    padded: Array, w: Array, strides: tuple[int, ...], dilations: tuple[int, ...], out: tuple[int, ...]
) -> Array:
    total = np.zeros((*padded.shape[:2], *out), padded.dtype)
    for position in np.ndindex(*w.shape[2:]):
        taps = w[(slice(None), 0, *position)].reshape(-1, *(1 for _ in out))
        total += padded[(..., *_tap(position, strides, dilations, out))] * taps
    return total


@operator(
    "Conv",
    22,
    "X W B? -> Y",
    attributes=ATTRIBUTES,
    shape=_conv_shape,
    quantized=Quantized.ACCUMULATES,
    integer=conv_integer,
)
def conv(x: Array, w: Array, b: Array | None, **attributes: Any) -> Array:
    """Y[n, m] = Σ over channels c of the group and taps k of X[n, c, strides·i + dilations·k - pads] · W[m, c, k] + B[m].

    X is [N, C, *spatial], W is [M, C/group, *kernel_shape], B is [M], for any number of spatial dimensions.
    """
    y = _convolve(x, w, exact=False, **attributes)
    return y if b is None else y + b.reshape(1, -1, *(1,) * (y.ndim - 2))


def _conv_transpose_shape(given: Inference) -> list[Shape]:
    x, w = given.known(0), given.known(1)
    a = given.attributes
    rank = len(w) - 2
    if len(x) != len(w):
        raise QfmtError(f"a {rank}-d transposed convolution needs an input of rank {len(w)}, not {len(x)}")
    pads = a["pads"]
    spatial: list[Dimension] = []
    for i in range(rank):
        reach = a["dilations"][i] * (a["kernel_shape"][i] - 1) + 1
        edge = a["output_padding"][i] + reach - pads[i] - pads[rank + i]
        size = x[2 + i]
        if isinstance(size, int):
            spatial.append(a["strides"][i] * (size - 1) + edge)
        else:
            spatial.append(size if a["strides"][i] == 1 and edge == 1 else None)
    channels = w[1] * a["group"] if isinstance(w[1], int) else None
    return [(x[0], channels, *spatial)]


def _conv_transpose_integer(x: Operand, w: Operand, b: Operand | None, *, result: Result, **attributes: Any) -> Array:
    """acc = Σ (x - zx)·(w - zw), exact; then the requantize rule. Weight scales run over output channels."""
    acc = _convolve_transposed(_centred(x), _centred(w), exact=True, **attributes)
    return _requantize_channels(acc, x, w, b, result)


def _convolve_transposed(
    x: Array,
    w: Array,
    *,
    exact: bool,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
    kernel_shape: tuple[int, ...],
    output_padding: tuple[int, ...],
) -> Array:
    """x [N, C, *spatial] with w [C, M/group, *kernel] → [N, M, *out]: each input value paints a kernel."""
    rank = len(kernel_shape)
    batch, channels, filters = x.shape[0], x.shape[1], w.shape[1]
    size = tuple(
        strides[i] * (x.shape[2 + i] - 1) + output_padding[i] + dilations[i] * (kernel_shape[i] - 1) + 1
        for i in range(rank)
    )
    total = np.zeros((batch, group * filters, *size), np.int64 if exact else x.dtype)
    columns = x.reshape(batch, group, channels // group, -1)
    for position in np.ndindex(*kernel_shape):
        tap = w[(..., *position)].reshape(group, channels // group, filters).swapaxes(-1, -2)
        painted = _multiply(tap, columns, exact).reshape(batch, group * filters, *x.shape[2:])
        total[(..., *_tap(position, strides, dilations, x.shape[2:]))] += painted
    crop = tuple(slice(pads[i], size[i] - pads[rank + i]) for i in range(rank))
    return total[(..., *crop)]


@operator(
    "ConvTranspose",
    22,
    "X W B? -> Y",
    attributes={**ATTRIBUTES, "output_padding": required("ii", "added to one side of the output")},
    shape=_conv_transpose_shape,
    quantized=Quantized.ACCUMULATES,
    integer=_conv_transpose_integer,
)
def conv_transpose(x: Array, w: Array, b: Array | None, **attributes: Any) -> Array:
    """The gradient of Conv with respect to its input: each X[n, c, i] adds X · W[c, m, k] to Y[n, m, strides·i + dilations·k - pads].

    X is [N, C, *spatial], W is [C, M/group, *kernel_shape], B is [M]; pads are cropped from the result.
    """
    y = _convolve_transposed(x, w, exact=False, **attributes)
    return y if b is None else y + b.reshape(1, -1, *(1,) * (y.ndim - 2))
