"""Every form of `quantized_decomposed` in exported programs, called by hand: it becomes what computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
decomposed = pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators
from networks import flat, quiet  # noqa: E402
from test_exported_functions import Function, randn, whole  # noqa: E402

import qfmt  # noqa: E402
from qfmt import Model  # noqa: E402

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


@quiet()
def exported(name: str) -> Any:
    return torch.export.export(Function(FORMS[name][0]).eval(), (X,))


def results(model: Model, x: Any) -> list[np.ndarray]:
    return list(model.run({model.graph.inputs[0]: x.numpy()}).values())


@pytest.mark.parametrize("name", FORMS)
@quiet()
def test_form_is_torchs(name: str) -> None:
    program = exported(name)
    model = qfmt.convert(program)
    expected = FORMS[name][1]
    if expected:
        assert {node.operator for node in model.nodes} == expected
    steps = equal = total = 0
    for seed in range(3):
        x = randn(4, 6, 16, seed=20 + seed) * (seed + 1)
        for mine, theirs in zip(results(model, x), flat(program.module()(x)), strict=True):
            array = theirs.detach().numpy()
            assert (mine.shape, mine.dtype) == (array.shape, array.dtype)
            near = np.isclose(mine, array, rtol=1e-5, atol=1e-6 * np.abs(array).max())
            equal, total, steps = equal + int((mine == array).sum()), total + mine.size, steps + int((~near).sum())
    print(f"{name}: {equal} of {total} equal, {steps} by a step")
    assert steps <= total / 1000
