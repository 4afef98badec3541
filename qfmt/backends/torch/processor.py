"""Torch's quantized kernels: select them, silence their warnings, and test whether they are exact on this processor.

Without VNNI they sum pairs of products of uint8 and int8 in 16 bits, with saturation (`qfmt.ops.overflow`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any

import torch

from ...passes.hazards import hazards_of
from ...threads import TORCH
from .emit import Site


@contextmanager
def quantized_kernels(kernels: str) -> Iterator[None]:
    """A context in which torch packs, and some operators run, with these kernels.

    The setting is global to the process: threads that need it wait for each other.
    """
    with TORCH.lock:
        before, depth = torch.backends.quantized.engine, len(_BEFORE)
        try:
            _BEFORE.append((get_ident(), before))
            torch.backends.quantized.engine = kernels
            yield
        finally:
            torch.backends.quantized.engine = before
            del _BEFORE[depth:]


_BEFORE: list[tuple[int, str]] = []
"""Threads in such contexts, an outer one first, and the kernels that were set before."""


def _restore() -> None:
    """In a forked child, undo what a thread did that is not there."""
    if _BEFORE and _BEFORE[0][0] != get_ident():
        torch.backends.quantized.engine = _BEFORE[0][1]
        _BEFORE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore)


@contextmanager
def deprecated_dtypes() -> Iterator[None]:
    """torch warns of the removal of quint8 and qint8 whenever one is made; the docs mention it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.quint8, torch.qint8, and torch.qint32 are deprecated.*")
        yield


onednn, quantized = torch.ops.onednn, torch.ops.quantized

PRODUCTS = ("conv", "depthwise", "linear", "dynamic")
"""The products for which an engine has separate kernels."""

CHANNELS = 128
"""The channels of a probe. `x86` uses fbgemm's kernels for more than 100 groups."""


@cache
def saturates(kernels: str, product: str) -> bool:
    """Whether these kernels (fbgemm, x86, onednn, qnnpack) clip sums of two products on this processor.

    `product` is one of PRODUCTS. All activations are 255, all weights 127: a kernel that clips computes about half.
    """
    weight = torch.full(_WEIGHTS[product], 127, dtype=torch.int8)
    exact = 255 * 127 * weight[0].numel()
    if kernels == "onednn" and product != "dynamic" and hasattr(onednn, "qconv_prepack"):
        return _plain_sum(product, weight) < 0.99 * exact
    with quantized_kernels(kernels), deprecated_dtypes():
        found = _quantized_sum(product, torch._make_per_tensor_quantized_tensor(weight, 1.0, 0), exact / 200)
    return found < 0.99 * exact


_WEIGHTS = {
    "conv": (16, CHANNELS, 1, 1),
    "depthwise": (CHANNELS, 1, 3, 3),
    "linear": (16, CHANNELS),
    "dynamic": (16, CHANNELS),
}


AS_FLOATS: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
"""The arguments of oneDNN's kernels for an output of floats."""


def _activations(product: str) -> torch.Tensor:
    shape = (8, CHANNELS) if product in ("linear", "dynamic") else (1, CHANNELS, 8, 8)
    return torch.full(shape, 255, dtype=torch.uint8)


def _geometry(product: str) -> tuple[list[int], list[int], list[int], int]:
    """Strides, pads, dilations and groups."""
    pads, groups = ([0, 0], 1) if product == "conv" else ([1, 1], CHANNELS)
    return [1, 1], pads, [1, 1], groups


def _plain_sum(product: str, weight: torch.Tensor) -> float:
    """The largest sum by oneDNN's kernels on plain tensors."""
    x, ones = _activations(product), torch.ones(len(weight), dtype=torch.float32)
    zeros = torch.zeros(len(weight), dtype=torch.int32)
    if product == "linear":
        packed = onednn.qlinear_prepack(weight, None)
        return float(onednn.qlinear_pointwise(x, 1.0, 0, packed, ones, zeros, None, *AS_FLOATS).max())
    geometry = _geometry(product)
    packed = onednn.qconv_prepack(weight, ones, 1.0, 0, *geometry, None)
    return float(onednn.qconv2d_pointwise(x, 1.0, 0, packed, ones, zeros, None, *geometry, *AS_FLOATS).max())


def _quantized_sum(product: str, weight: torch.Tensor, scale: float) -> float:
    """The largest sum by kernels on quantized tensors, with this output scale if the product outputs integers."""
    x = _activations(product)
    if product == "dynamic":
        return float(quantized.linear_dynamic(x.float(), quantized.linear_prepack(weight, None), False).max())
    x = torch._make_per_tensor_quantized_tensor(x, 1.0, 0)
    if product == "linear":
        y = quantized.linear(x, quantized.linear_prepack(weight, None), scale, 0)
    else:
        y = quantized.conv2d(x, quantized.conv2d_prepack(weight, None, *_geometry(product)), scale, 0)
    return float(y.dequantize().max())


@cache
def sums_exactly() -> bool:
    """Whether oneDNN's kernels on plain tensors return exact sums as floats, rounded once: padded and grouped, with
    zero points, and with biases; pairs of products fit into 16 bits."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2, 16, 12, 12), dtype=torch.uint8, generator=generator)
    for group in (1, 2, 16):
        weight = torch.randint(-64, 64, (16, 16 // group, 3, 3), dtype=torch.int8, generator=generator)
        bias, ones = torch.linspace(-9, 9, 16, dtype=torch.float32), torch.ones(16, dtype=torch.float32)
        zeros = torch.zeros(16, dtype=torch.int32)
        geometry, image = ([1, 1], [1, 1], [1, 1], group), x.contiguous(memory_format=torch.channels_last)
        packed = onednn.qconv_prepack(weight, ones, 1.0, 7, *geometry, None)
        got = onednn.qconv2d_pointwise(image, 1.0, 7, packed, ones, zeros, bias, *geometry, *AS_FLOATS)
        exact = torch.conv2d(x.double() - 7, weight.double(), padding=1, groups=group)
        if not torch.equal(got, exact.float() + bias[:, None, None]):
            return False
    rows, weight = x.reshape(2, -1), torch.randint(-64, 64, (5, x[0].numel()), dtype=torch.int8, generator=generator)
    bias, ones = torch.linspace(-9, 9, 5, dtype=torch.float32), torch.ones(5, dtype=torch.float32)
    zeros = torch.zeros(5, dtype=torch.int32)
    packed = onednn.qlinear_prepack(weight, None)
    got = onednn.qlinear_pointwise(rows, 1.0, 7, packed, ones, zeros, bias, *AS_FLOATS)
    return torch.equal(got, ((rows.double() - 7) @ weight.double().t()).float() + bias)


def overflows(s: Site, kernels: str) -> bool:
    """Whether a sum of this node can exceed the 16 bits that these kernels have for a pair of products here."""
    if not saturates(kernels, _product(s)):
        return False
    found = (hazard.engines.get(kernels) for hazard in hazards_of(s.node, s.builder.model.tensors))
    return any(overflow is not None and overflow.channels for overflow in found)


def _product(s: Site) -> str:
    if "group" not in s.node.attributes:
        return "linear" if s.node.operator == "qfmt.Linear" else "dynamic"
    is_depthwise = not s.node.operator.endswith("Transpose") and (s.tensor(1).shape or (0, 0))[1] == 1
    return "depthwise" if is_depthwise else "conv"


@cache
def convolves_whole_numbers() -> bool:
    """Whether torch's convolutions of float32 are exact for integers: Winograd's method is not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (16, 16, 16, 16), generator=generator).to(memory_format=torch.channels_last)
    weight = torch.randint(-128, 128, (16, 16, 3, 3), generator=generator)
    got, exact = (torch.conv2d(x.to(kind), weight.to(kind), padding=1) for kind in (torch.float32, torch.float64))
    return torch.equal(got.double(), exact)


_EXTREMES = ([-128, 127, -128, -127], [127, 127, 127, 127])


@cache
def multiplies_int8() -> bool:
    """Whether torch._int_mm exists, and is exact on this processor."""
    if not hasattr(torch, "_int_mm"):
        return False
    mixed, most = (torch.tensor(each, dtype=torch.int8).repeat(64).expand(32, -1).contiguous() for each in _EXTREMES)
    pairs = [(mixed, mixed.flip(1).contiguous()), *((a, b) for b in (mixed, most) for a in (b, b[:1]))]
    for a, b in pairs:
        try:
            got = torch._int_mm(a, b.t())
        except RuntimeError:
            return False
        if not torch.equal(got, (a.double() @ b.double().t()).int()):
            return False
    return True
