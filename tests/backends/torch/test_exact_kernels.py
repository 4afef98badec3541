"""`to_torch` uses kernels that overflow only on request, and float32 sums are exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from qfmt.backends.torch.products import Weight, conv_sums, float_weight, linear_sums, wide_weight
from qfmt.backends.torch.windows import Geometry
from qfmt.model import Quantization
from qfmt.ops import Operand
from support.counts import tell
from support.paths import PROGRAMS

AVX2 = {"FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.mark.parametrize("processor", ["as it is", "without VNNI"])
def test_layers_that_overflow(processor: str) -> None:
    """`auto`, `onednn` and `reference` equal `run`. The report of `fast` lists what can differ."""
    program = str(PROGRAMS / "exact_kernels.py")
    environment = os.environ | (AVX2 if processor == "without VNNI" else {})
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    layers = json.loads(done.stdout)
    outputs = {engine: [0, 0] for engine in ("auto", "fast", "onednn", "reference")}
    for name, engines in layers.items():
        for engine, counted in outputs.items():
            equal, total, told, _ = engines[engine]
            counted[:] = counted[0] + equal, counted[1] + total
            assert equal == total or (engine == "fast" and told), (name, engine)
    tell(f"layers that overflow, processor {processor}: " + ", ".join(
        f"{engine} {equal:,} of {total:,} equal" for engine, (equal, total) in outputs.items()
    ))  # fmt: skip


GRID = Quantization.per_tensor(1.0, 0, "uint8")


def near_the_limit(rng: np.random.Generator, shape: tuple[int, ...], axes: tuple[int, ...], reach: float) -> np.ndarray:
    """8-bit integers whose largest sum of products with uint8 in any channel is about `reach`."""
    weights = np.where(rng.random(shape) < 0.7, 127, rng.integers(-128, 128, shape))
    share = min(1.0, reach / (255 * np.maximum(weights, 0).sum(axes).max()))
    return np.trunc(weights * share).astype(np.int32)


def images(rng: np.random.Generator, *shape: int) -> tuple[torch.Tensor, Operand]:
    x = np.where(rng.random(shape) < 0.7, 255, rng.integers(0, 256, shape)).astype(np.uint8)
    return torch.from_numpy(x).float(), Operand(x, GRID)


@pytest.mark.parametrize("settings", ["usual", "without oneDNN"])
@pytest.mark.parametrize("reach", [2.0**24, 3 * 2.0**24])
def test_float_sums_of_convolutions_are_exact(settings: str, reach: float) -> None:
    """Compares sums up to 2²⁴ and beyond with torch's integer sums. Without oneDNN, torch may use NNPACK."""
    rng, total = np.random.default_rng(11), 0
    torch._C._set_mkldnn_enabled(settings == "usual")
    try:
        for size, stride, group, channels, batch in (
            (1, 1, 1, 600, 4), (3, 1, 1, 64, 2), (3, 1, 1, 64, 17), (3, 2, 1, 96, 4), (5, 1, 1, 32, 4),
            (7, 2, 1, 16, 4), (3, 1, 64, 64, 4), (3, 1, 4, 256, 2),
        ):  # fmt: skip
            given, x = images(rng, batch, channels, 24, 24)
            weight = near_the_limit(rng, (64, channels // group, size, size), (1, 2, 3), reach)
            exact = functional.conv2d(given.long(), torch.from_numpy(weight).long(), None, stride, size // 2, 1, group)
            made, parts = float_weight(weight, x, group)
            geometry = Geometry([stride] * 2, [size // 2] * 4, [1, 1], group)
            for kernel in (made, Weight(made)) if size > 1 and made.dtype == torch.float32 else (made,):
                got = conv_sums(given, kernel, geometry, parts)
                assert torch.equal(got.double(), exact.double()), (size, group, parts, type(kernel))
                total += got.numel()
    finally:
        torch._C._set_mkldnn_enabled(True)
    tell(f"float sums of convolutions up to {reach:,.0f}, {settings}: {total:,} of {total:,} exact")
    assert total > 1_000_000


@pytest.mark.parametrize("reach", [2.0**24, 3 * 2.0**24])
def test_float_sums_of_other_products_are_exact(reach: float) -> None:
    rng, total = np.random.default_rng(12), 0
    for group in (1, 4):
        given, x = images(rng, 2, 256, 32, 32)
        weight = near_the_limit(rng, (256, 8, 4, 4), (0, 2, 3), reach * group)
        exact = functional.conv_transpose2d(given.long(), torch.from_numpy(weight).long(), None, 2, 1, 0, group)
        made, parts = float_weight(weight, x, group, transposed=True)
        got = conv_sums(given, made, Geometry([2, 2], [1] * 4, [1, 1], group, [0, 0]), parts)
        assert torch.equal(got.double(), exact.double()), (group, parts)
        total += got.numel()
    given, x = images(rng, 900, 1500)
    weight = near_the_limit(rng, (700, 1500), (1,), reach)
    got = linear_sums(given, wide_weight(weight, x, (1,)))
    assert torch.equal(got.double(), functional.linear(given.long(), torch.from_numpy(weight).long()).double())
    total += got.numel()
    tell(f"float sums of transposed convolutions and matrix products up to {reach:,.0f}: {total:,} of {total:,} exact")
