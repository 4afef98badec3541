"""Small programs for torch.export, and every form of `quantized_decomposed`, called by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

decomposed = pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators


def randn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def whole(high: int, *shape: int, seed: int = 0) -> Any:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


ops = torch.ops.quantized_decomposed

F = torch.nn.functional

U8, I8, I16, I32 = (0, 255, torch.uint8), (-128, 127, torch.int8), (-32768, 32767, torch.int16), torch.int32

X = randn(4, 6, 16)

W = whole(255, 12, 16).to(torch.int8)

SCALES, BIAS = torch.rand(12, generator=torch.Generator().manual_seed(3)) / 100 + 0.001, randn(12)

ZEROS = torch.zeros(12, dtype=torch.int64)


def activation(x: Any, scale: float = 0.02, zero_point: int = 7, kind: Any = U8) -> Any:
    q = ops.quantize_per_tensor(x, scale, zero_point, *kind)
    return ops.dequantize_per_tensor(q, scale, zero_point, *kind)


def weight(w: Any = W, scales: Any = SCALES, low: int = -128) -> Any:
    return ops.dequantize_per_channel(w, scales, ZEROS, 0, low, 127, torch.int8)


def dynamic(x: Any, kind: Any, eps: float = 2.0**-12, choose: Any = ops.choose_qparams.tensor) -> Any:
    scale, zero_point = choose(x, kind[0], kind[1], eps, kind[2])
    q = ops.quantize_per_tensor.tensor(x, scale, zero_point, *kind)
    return ops.dequantize_per_tensor.tensor(q, scale, zero_point, *kind)


def per_token(x: Any) -> Any:
    scale, zero_point = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
    q = ops.quantize_per_token(x, scale, zero_point, *I8)
    return ops.dequantize_per_token(q, scale, zero_point, *I8, torch.float32)


def bias_of_integers() -> Any:
    scales = SCALES * np.float32(0.02)
    q = torch.round(BIAS / scales).to(torch.int32)
    return ops.dequantize_per_channel(q, scales, ZEROS, 0, -(2**31), 2**31 - 1, torch.int32)


GROUPS = torch.rand(12, 4, generator=torch.Generator().manual_seed(4)) / 10 + 0.01

FOURS = whole(16, 12, 16, seed=5).to(torch.int8) - 8

FORMS: Mapping[str, tuple[Callable[..., Any], set[str]]] = {
    "linear": (lambda x: F.linear(activation(x), weight(), BIAS), {"QuantizeLinear", "qfmt.Linear"}),
    "requantized": (
        lambda x: activation(F.relu(F.linear(activation(x), weight(), BIAS)), 0.05, 3),
        {"QuantizeLinear", "qfmt.Linear", "DequantizeLinear"},
    ),
    "signed": (
        lambda x: activation(F.linear(activation(x, kind=I8), weight(W.clamp(-127), low=-127)), 0.1, -3, I8),
        {"QuantizeLinear", "qfmt.Linear", "DequantizeLinear"},
    ),
    "sixteen_bits": (
        lambda x: activation(F.linear(activation(x, 0.0001, 0, I16), weight(), BIAS), 0.0007, 0, I16),
        {"QuantizeLinear", "qfmt.Linear", "DequantizeLinear"},
    ),
    "integer_bias": (
        lambda x: activation(F.linear(activation(x), weight(), bias_of_integers()), 0.05, 3),
        {"QuantizeLinear", "qfmt.Linear", "DequantizeLinear"},
    ),
    "per_tensor_weight": (
        lambda x: F.linear(activation(x), ops.dequantize_per_tensor(W, 0.01, 3, *I8)),
        {"QuantizeLinear", "qfmt.Linear"},
    ),
    "scales_as_tensors": (
        lambda x: ops.dequantize_per_tensor.tensor(
            ops.quantize_per_tensor.tensor(x, torch.tensor(0.02), torch.tensor(5), *U8),
            torch.tensor(0.02),
            torch.tensor(5),
            *U8,
        ),
        {"QuantizeLinear", "DequantizeLinear"},
    ),
    "per_channel_activation": (
        lambda x: ops.dequantize_per_channel(
            ops.quantize_per_channel(x, SCALES[:6], ZEROS[:6] + 3, 1, *U8), SCALES[:6], ZEROS[:6] + 3, 1, *U8
        ),
        {"QuantizeLinear", "DequantizeLinear"},
    ),
    "axes_from_the_end": (
        lambda x: F.linear(
            ops.dequantize_per_channel(
                ops.quantize_per_channel(x, SCALES[:6], ZEROS[:6], -2, *I8),
                SCALES[:6], ZEROS[:6], -2, *I8,
            ),
            ops.dequantize_per_channel(W, SCALES, ZEROS, -2, *I8),
        ),
        {"QuantizeLinear", "DequantizeLinear", "qfmt.Linear"},
    ),
    "moved": (
        lambda x: activation(activation(x).transpose(1, 2).reshape(4, -1)),
        {"QuantizeLinear", "Transpose", "Reshape", "DequantizeLinear"},
    ),
    "dynamic": (lambda x: F.linear(dynamic(x, U8), weight(), BIAS), {"qfmt.DynamicLinear"}),
    "dynamic_signed": (lambda x: F.linear(dynamic(x, I8), weight(), BIAS), {"qfmt.DynamicLinear"}),
    "groups": (
        lambda x: F.linear(
            x, ops.dequantize_per_channel_group(FOURS, GROUPS, None, -8, 7, torch.int8, 4, torch.float32)
        ),
        {"qfmt.Linear"},
    ),
    "fake": (
        lambda x: F.linear(
            torch.fake_quantize_per_tensor_affine(x, 0.02, 7, 0, 255),
            torch.fake_quantize_per_channel_affine(W * 0.01, SCALES, ZEROS.to(torch.int32), 0, -128, 127),
        ),
        {"QuantizeLinear", "qfmt.Linear"},
    ),
    "half": (lambda x: activation(x.half()), {"Cast", "QuantizeLinear", "DequantizeLinear"}),
    "dynamic_symmetric": (lambda x: dynamic(x, I8, choose=ops.choose_qparams_symmetric.tensor), set()),
    "dynamic_other_eps": (lambda x: F.linear(dynamic(x, U8, 0.1), weight()), set()),
    "dynamic_per_token": (lambda x: F.linear(per_token(x), weight(), BIAS), set()),
}  # fmt: skip


class Layer(torch.nn.Module):
    """A weight that is stored, and a quantized input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.arange(-24, 24, dtype=torch.int8).reshape(3, 16))
        self.bias = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: Any) -> Any:
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor(x, 0.02, 3, 0, 255, torch.uint8)
        real = ops.dequantize_per_tensor(q, 0.02, 3, 0, 255, torch.uint8)
        w = ops.dequantize_per_tensor(self.w, 0.01, 0, -128, 127, torch.int8)
        return torch.nn.functional.linear(real, w, self.bias)
