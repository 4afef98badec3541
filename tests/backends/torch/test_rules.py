"""Compares the rounding rules in torch with the reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from qfmt import arithmetic
from qfmt.backends.torch import arithmetic as rules
from qfmt.backends.torch.onednn import ONEDNN_EMITTERS
from qfmt.backends.torch.reference import REFERENCE_EMITTERS
from qfmt.model import DTYPES, Quantization
from qfmt.ops import OPERATORS

pytestmark = pytest.mark.usefixtures("engine_is_left_alone")


def grids() -> Iterator[tuple[Quantization, str]]:
    generator = np.random.default_rng(3)
    for dtype in ("uint8", "int8", "int16", "int32"):
        limits = DTYPES[dtype]
        for zero_point in (limits.minimum, 0, 1, 61, min(limits.maximum, 1000)):
            scale = float(np.float32(generator.uniform(0.001, 0.2)))
            yield Quantization.per_tensor(scale, zero_point, dtype), dtype
            yield Quantization.per_tensor(0.125, zero_point, dtype, quant_min=zero_point), dtype
    yield Quantization.of((0.5, 0.03), (3, 4), 0, 255, axis=1), "uint8"


@pytest.mark.parametrize("rule", arithmetic.QUANTIZE)
def test_quantize_rules_agree(rule: str) -> None:
    generator = np.random.default_rng(1)
    count = 0
    for quantization, dtype in grids():
        ties = np.arange(-300, 300).astype(np.float32) * np.float32(quantization.scale[0]) / 2
        reals = [ties, generator.normal(0, 10, 2000), [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45]]
        x = np.concatenate(reals).astype(np.float32).reshape(-1, 2)
        expected = arithmetic.quantize(x, quantization, np.dtype(dtype), rule)
        grid = rules.Grid.of(quantization, getattr(torch, dtype))
        got = rules.quantize(torch.from_numpy(x), grid, rule)
        np.testing.assert_array_equal(got.numpy(), expected)
        back = rules.dequantize(got, grid, rule).numpy()
        np.testing.assert_array_equal(back, arithmetic.dequantize(expected, quantization, rule))
        count += x.size
    print(f"{rule}: {count} of {count} integers equal")


@pytest.mark.parametrize("rule", arithmetic.REQUANTIZE)
@pytest.mark.parametrize("per_channel", [False, True])
def test_requantize_rules_agree(rule: str, per_channel: bool) -> None:
    generator = np.random.default_rng(2)
    for quantization, dtype in grids():
        if quantization.is_per_channel:
            continue
        acc = generator.integers(-(2**22), 2**22, (500, 6)).astype(np.float64)
        weights = np.array(2.0**-9) if not per_channel else generator.uniform(1e-4, 0.1, (1, 6)).astype(np.float32)
        for bias in (None, generator.normal(0, 5, (1, 6)).astype(np.float32), np.full((1, 6), 0.0625, np.float32)):
            arguments = (0.25, weights, quantization, np.dtype(dtype), rule)
            expected = arithmetic.requantize(acc, bias, *arguments)
            grid = rules.Grid.of(quantization, getattr(torch, dtype))
            addend = torch.zeros(()) if bias is None else torch.from_numpy(bias)
            at = 0.25 * torch.from_numpy(weights).float()
            steps = rules.REQUANTIZE[rule](addend, at, grid.scales(0), grid.zero_points(0))
            got = rules.clamp(rules.after(torch.from_numpy(acc), steps), grid)
            np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("rule", arithmetic.MEAN)
def test_mean_rules_agree(rule: str) -> None:
    total = np.concatenate([np.arange(-2000, 2000), np.random.default_rng(4).integers(-(2**26), 2**26, 2000)])
    for count in (1, 2, 3, 4, 9, 49, 1000):
        for quantization, dtype in grids():
            if quantization.is_per_channel or dtype.endswith("32"):
                continue
            zero_point = np.float32(quantization.zero_point[0])
            rounded = arithmetic.MEAN[rule](total, np.float32(count), zero_point)
            expected = arithmetic.clamp(rounded, quantization, np.dtype(dtype))
            grid = rules.Grid.of(quantization, getattr(torch, dtype))
            got = rules.mean(torch.from_numpy(total), torch.tensor(count), grid, rule)
            np.testing.assert_array_equal(got.numpy(), expected)


def test_tables_name_operators() -> None:
    assert REFERENCE_EMITTERS.keys() <= OPERATORS.keys()
    assert ONEDNN_EMITTERS.keys() <= OPERATORS.keys()
