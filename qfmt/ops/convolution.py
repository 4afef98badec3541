"""Convolutions: exact integer sums, then one requantization."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..memory import require
from ..model import Dimension, Shape
from .accumulation import accumulating, centred, exact_dtype, stored_zero, whole
from .geometry import check_window, tap, windows
from .overflow import Kernel, as_computed
from .registry import Inference, Operand, Quantized, operator, optional, required
from .shapes import check_bias

ATTRIBUTES = {
    "dilations": required("ii", "step between taps, one per spatial dimension"),
    "group": optional(1, "number of groups that channels are split into"),
    "kernel_shape": required("ii", "size of the kernel"),
    "pads": required("ii", "zeros before each spatial dimension, then after each"),
    "strides": required("ii", "step of the window"),
}


Product = Callable[["Array", "Array"], "Array"]
"""w [group, filters, channels, taps], columns [group, channels, taps, P] → [group, filters, P]"""

TAP_BYTES = 300
"""Bytes of memory for each tap of a convolution, along each dimension."""

CACHED_ELEMENTS = 1 << 15
"""How many values of a depthwise convolution are summed at a time."""


def conv_shape(given: Inference) -> list[Shape]:
    w, a = _weight(given, "convolution"), given.attributes
    check_bias(given, w[0])
    x = _input(given, w, "convolution")
    expected = w[1] * a["group"] if isinstance(w[1], int) else None
    if isinstance(x[1], int) and expected is not None and x[1] != expected:
        raise QfmtError(f"the input has {x[1]} channels, the weight expects {expected}")
    spatial = (window.output(size) for window, size in zip(windows(a), x[2:], strict=True))
    return [(x[0], w[0], *spatial)]


def _weight(given: Inference, what: str) -> tuple[Dimension, ...]:
    """The shape of the weight, which fits the attributes."""
    kernel, group = given.attributes["kernel_shape"], given.attributes["group"]
    check_window(len(kernel), given.attributes)
    w = given.known(1)
    if len(w) < 3:
        raise QfmtError(f"the weight of a {what} has at least 3 dimensions, not {len(w)}")
    if len(w) != len(kernel) + 2:
        raise QfmtError(f"a {len(w) - 2}-d window needs {len(w) - 2} kernel_shape, not {len(kernel)}")
    for size, stated in zip(w[2:], kernel, strict=True):
        if isinstance(size, int) and size != stated:
            raise QfmtError(f"the weight has a kernel of {list(w[2:])}, not {list(kernel)}")
    if group < 1 or (isinstance(w[0], int) and w[0] % group):
        raise QfmtError(f"a weight of shape {list(w)} does not divide into {group} groups")
    return w


def _input(given: Inference, w: tuple[Dimension, ...], what: str) -> tuple[Dimension, ...]:
    """The shape of the input, which has the rank of the weight."""
    x = given.known(0)
    if len(x) != len(w):
        raise QfmtError(f"a {len(w) - 2}-d {what} needs an input of rank {len(w)}, not {len(x)}")
    return x


def conv_sums(x: Operand, w: Operand, padding: int = 0, **attributes: Any) -> Array:
    """Σ (x - zx)·(w - zw), exact."""
    weights = whole(w)
    dtype = exact_dtype(x, weights, tuple(range(1, weights.ndim)))
    exact = _convolve(centred(x, dtype), weights.astype(dtype), padding, **attributes)
    zero = padding if x.quantization is None else stored_zero(x)
    return as_computed(exact, lambda kernel: of_convolution(kernel, x.array, w.array, zero, **attributes))


def of_convolution(kernel: Kernel, x: Array, w: Array, zero: int, **attributes: Any) -> Array:
    """A kernel's corrections of the sums of a convolution of stored integers; padding is `zero`."""
    return _convolve(x, w, zero, kernel, np.dtype(np.int32), **attributes)


def _products(w: Array, columns: Array) -> Array:
    """w [group, filters, channels, taps] · columns [group, channels, taps, P] → [group, filters, P]"""
    terms = w.shape[2] * w.shape[3]
    return np.matmul(w.reshape(*w.shape[:2], terms), columns.reshape(len(columns), terms, columns.shape[-1]))


def _convolve(
    x: Array, w: Array, padding: int = 0, multiply: Product = _products, dtype: np.dtype[Any] | None = None, **a: Any
) -> Array:
    """x [N, C, *spatial] with w [M, C/group, *kernel] → [N, M, *out], in the dtype of both, or `dtype`."""
    group, kernel, pads = a["group"], a["kernel_shape"], a["pads"]
    rank = len(kernel)
    widths = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    require(x.itemsize * prod(size + sum(width) for size, width in zip(x.shape, widths, strict=True)))
    padded = np.pad(x, widths, constant_values=padding) if any(pads) else x
    given = windows(a)
    out = [window.positions(size) for window, size in zip(given, x.shape[2:], strict=True)]
    require(TAP_BYTES * rank * prod(kernel))
    taps = [tap(position, given, out) for position in np.ndindex(*kernel)]
    if w.shape[1] == 1 and w.shape[0] == group and multiply is _products:
        return _depthwise(padded, w.reshape(group, -1), taps, out)
    batch, filters = x.shape[0], w.shape[0] // group
    matrix = w.reshape(group, filters, w.shape[1], len(taps))
    grouped = padded.reshape(batch, group, w.shape[1], *padded.shape[2:])
    require(x.itemsize * x.shape[1] * len(taps) * prod(out))
    result = np.empty((batch, group, filters, prod(out)), dtype or x.dtype)
    for image in range(batch):
        met = [grouped[image][index] for index in taps]
        columns = met[0] if len(met) == 1 else np.stack(met, axis=2)
        result[image] = multiply(matrix, columns.reshape(group, w.shape[1], len(taps), prod(out)))
    return result.reshape(batch, group * filters, *out)


def _depthwise(padded: Array, w: Array, taps: list[tuple[Any, ...]], out: list[int]) -> Array:
    """One filter per channel: a sum of shifted images, some channels at a time so that they stay in the cache."""
    total = np.zeros((*padded.shape[:2], *out), padded.dtype)
    step = max(1, CACHED_ELEMENTS // max(1, prod(out)))
    for image, start in product(range(padded.shape[0]), range(0, padded.shape[1], step)):
        channels = slice(start, start + step)
        sums, source = total[image, channels], padded[image, channels]
        term = np.empty_like(sums)
        for i, index in enumerate(taps):
            np.multiply(source[index], w[channels, i].reshape(-1, *(1 for _ in out)), out=term)
            np.add(sums, term, out=sums)
    return total


@operator(
    "Conv",
    22,
    "X W B? -> Y",
    attributes=ATTRIBUTES,
    shape=conv_shape,
    quantized=Quantized.ACCUMULATES,
    **accumulating(
        conv_sums,
        """acc = Σ (x - zx)·(w - zw), exact; padding represents real zeros; then the requantize rule.

        A bias is real, or int32 in units of sx·sw and then added to acc.
        """,
        "by `exact`, Σ (x - zx)·(w - zw) + B; by `folded`, Σ x·w + B, where padding is zx.",
    ),
)
def conv(x: Array, w: Array, b: Array | None, **attributes: Any) -> Array:
    """Y[n, m, i] = Σ X[n, c, strides·i + dilations·k - pads] · W[m, c, k] + B[m], over taps k, channels c of the group.

    X is [N, C, *spatial], W is [M, C/group, *kernel_shape], B is [M], for any number of spatial dimensions.
    """
    y = _convolve(x, w, **attributes)
    return y if b is None else y + b.reshape(1, -1, *(1,) * (y.ndim - 2))


def conv_transpose_shape(given: Inference) -> list[Shape]:
    w, a = _weight(given, "transposed convolution"), given.attributes
    channels = w[1] * a["group"] if isinstance(w[1], int) else None
    check_bias(given, channels)
    x = _input(given, w, "transposed convolution")
    if isinstance(x[1], int) and isinstance(w[0], int) and x[1] != w[0]:
        raise QfmtError(f"the input has {x[1]} channels, the weight expects {w[0]}")
    sizes = zip(windows(a), a["output_padding"], x[2:], strict=True)
    return [(x[0], channels, *(window.painted(size, more) for window, more, size in sizes))]


def conv_transpose_sums(x: Operand, w: Operand, _: int = 0, **attributes: Any) -> Array:
    """Σ (x - zx)·(w - zw), exact."""
    weights = whole(w)
    dtype = exact_dtype(x, weights, (0, *range(2, weights.ndim)))
    exact = _convolve_transposed(centred(x, dtype), weights.astype(dtype), **attributes)
    return as_computed(exact, lambda kernel: _of_transposed(kernel, x.array, w.array, stored_zero(x), **attributes))


def _of_transposed(kernel: Kernel, x: Array, w: Array, zero: int, **a: Any) -> Array:
    """A kernel's corrections of the sums: those of a convolution of the input, `strides` apart among zeros.

    Image and result are mirrored, not the weights, whose taps kernels process in order.
    """
    group, size, rank = a["group"], a["kernel_shape"], len(a["kernel_shape"])
    spread = np.full((*x.shape[:2], *(s * (n - 1) + 1 for s, n in zip(a["strides"], x.shape[2:], strict=True))), zero)
    spread = spread.astype(x.dtype)
    every: tuple[Any, ...] = tuple(slice(None, None, s) for s in a["strides"])
    spread[(..., *every)] = x
    given = windows(a)
    before = [window.reach - 1 - window.head for window in given]
    after = [window.reach - 1 - window.tail + more for window, more in zip(given, a["output_padding"], strict=True)]
    sizes = zip(before, after, spread.shape[2:], strict=True)
    cut: tuple[Any, ...] = tuple(slice(max(0, -b), n + min(0, e)) for b, e, n in sizes)
    spread = np.flip(spread[(..., *cut)], tuple(range(-rank, 0)))
    filters = w.reshape(group, -1, *w.shape[1:]).swapaxes(1, 2).reshape(-1, w.shape[0] // group, *size)
    pads = tuple(max(0, each) for each in (*after, *before))
    attributes = {"group": group, "kernel_shape": size, "pads": pads, "strides": (1,) * rank}
    found = of_convolution(kernel, spread, filters, zero, dilations=a["dilations"], **attributes)
    return np.flip(found, tuple(range(-rank, 0)))


def _convolve_transposed(x: Array, w: Array, **a: Any) -> Array:
    """x [N, C, *spatial] with w [C, M/group, *kernel] → [N, M, *out]: each input value adds a scaled kernel."""
    group, kernel, pads = a["group"], a["kernel_shape"], a["pads"]
    rank = len(kernel)
    batch, channels, filters, spatial = x.shape[0], x.shape[1] // group, w.shape[1], x.shape[2:]
    given = windows(a)
    grown = zip(given, a["output_padding"], spatial, strict=True)
    size = [int(window.painted(each, more) or 0) + window.pads for window, more, each in grown]
    sides = [*zip(pads[:rank], pads[rank:], strict=True)]
    added = [(max(-before, 0), max(-after, 0)) for before, after in sides]  # by negative pads: zeros
    require(x.itemsize * batch * group * filters * prod(n + sum(side) for n, side in zip(size, added, strict=True)))
    total = np.zeros((batch, group * filters, *size), x.dtype)
    columns = x.reshape(batch, group, channels, prod(x.shape[2:]))
    for position in np.ndindex(*kernel) if columns.size else ():
        matrix = w[(..., *position)].reshape(group, channels, filters).swapaxes(-1, -2)
        painted = np.matmul(matrix, columns).reshape(batch, group * filters, *spatial)
        total[tap(position, given, spatial)] += painted
    if min(pads) < 0:
        total = np.pad(total, [(0, 0), (0, 0), *added])
    firsts = [max(before, 0) for before, _ in sides]
    crop = (slice(first, first + end - sum(side)) for first, end, side in zip(firsts, size, sides, strict=True))
    return total[(slice(None), slice(None), *crop)]


TRANSPOSED = {**ATTRIBUTES, "output_padding": required("ii", "added to one side of the output")}


@operator(
    "ConvTranspose",
    22,
    "X W B? -> Y",
    attributes=TRANSPOSED,
    shape=conv_transpose_shape,
    quantized=Quantized.ACCUMULATES,
    **accumulating(
        conv_transpose_sums,
        """acc = Σ (x - zx)·(w - zw), exact; then the requantize rule, with a bias as in Conv.

        Weights are quantized per tensor, or along axis 1: then one scale serves the channels m of every group.
        """,
        "Σ (x - zx)·(w - zw) + B",
        ("exact",),
    ),
)
def conv_transpose(x: Array, w: Array, b: Array | None, **attributes: Any) -> Array:
    """The gradient of Conv for its input: Y[n, m, strides·i + dilations·k - pads] sums X[n, c, i] · W[c, m, k].

    X is [N, C, *spatial], W is [C, M/group, *kernel_shape], B is [M]; pads are cropped from the result.
    """
    y = _convolve_transposed(x, w, **attributes)
    return y if b is None else y + b.reshape(1, -1, *(1,) * (y.ndim - 2))
