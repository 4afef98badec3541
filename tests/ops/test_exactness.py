"""Compares convolutions, matrix products and quantization with torch's kernels, bit by bit if the kernel is known
exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from qfmt.interpreter import execute
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import Operand
from support.torch_kernels import (
    ENGINES,
    Comparison,
    any_grid,
    check,
    compare,
    f32,
    grid,
    integers,
    printed_ledger,
    rule_of,
    to_torch,
)

quantized = torch.ops.quantized

EXACT = ("fbgemm", "qnnpack")
"""Engines whose requantization is known exactly; onednn's is, except for a few ties in a million."""

MILLION = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def _ledger() -> Iterator[None]:
    yield from printed_ledger()


# Convolutions and matrix products. Activations are at most 127: beyond, fbgemm's depthwise kernel saturates.


class Weights(NamedTuple):
    shape: tuple[int, ...]
    group: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    output_padding: int = 0


CONVOLUTIONS = {
    "conv1d": ("conv1d", (2, 16, 1024), [Weights((32, 16, 3), 1, pad=1), Weights((32, 4, 5), 4, 2, 2, 2)]),
    "conv1d depthwise": ("conv1d", (4, 32, 1024), [Weights((32, 1, 3), 32, pad=1)]),
    "conv2d": (
        "conv2d",
        (2, 16, 30, 31),
        [Weights((48, 16, 3, 3), 1, pad=1), Weights((64, 16, 1, 1), 1), Weights((32, 4, 3, 3), 4, 2, 1, 2)],
    ),
    "conv2d depthwise": ("conv2d", (2, 64, 30, 33), [Weights((64, 1, 3, 3), 64, pad=1), Weights((64, 1, 5, 5), 64)]),
    "conv3d": ("conv3d", (2, 8, 9, 20, 20), [Weights((16, 8, 3, 3, 3), 1, pad=1), Weights((16, 4, 1, 3, 3), 2)]),
    "conv_transpose1d": ("conv_transpose1d", (8, 16, 700), [Weights((16, 8, 3), 2, 2, 1)]),
    "conv_transpose2d": ("conv_transpose2d", (4, 16, 27, 28), [Weights((16, 16, 3, 3), 1, 2, 1)]),
    "conv_transpose2d outpad": ("conv_transpose2d", (4, 16, 26, 27), [Weights((16, 8, 3, 3), 2, 2, 1, 1, 1)]),
    "conv_transpose3d": ("conv_transpose3d", (2, 8, 7, 14, 14), [Weights((8, 8, 2, 3, 3), 1, 2)]),
}

UNABLE = {
    ("conv3d", "qnnpack"): "does not have it",
    ("conv_transpose3d", "qnnpack"): "gives numbers without meaning",
    ("conv_transpose2d outpad", "onednn"): "refuses output padding",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, engine: str) -> None:
    if (name, engine) in UNABLE:
        pytest.skip(f"{engine} {UNABLE[name, engine]}")
    rounds = 3 if engine == "fbgemm" else 1
    found = (each for seed in range(rounds) for each in convolutions(name, engine, np.random.default_rng(seed)))
    check(name, engine, found, strict=engine in EXACT, at_least=MILLION if engine == "fbgemm" else 0)


def convolutions(name: str, engine: str, rng: np.random.Generator) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    call, shape, kinds = CONVOLUTIONS[name]
    for kind in kinds:
        for per_channel in (False, True) if "transpose" not in call else (False,):
            for bias, relu in ((True, False), (False, True)):
                yield convolution(call, shape, kind, engine, rng, per_channel, bias, relu and "transpose" not in call)


def weight_grid(rng: np.random.Generator, channels: int, per_channel: bool, engine: str) -> Quantization:
    """Scales and zero points of a weight; a per-tensor zero point is not 0, unless the engine is onednn, which
    requires 0."""
    if per_channel:
        scales = rng.uniform(0.001, 0.02, channels).astype(f32)
        return Quantization.of(tuple(map(float, scales)), (0,) * channels, -128, 127, 0)
    return grid(rng.uniform(0.001, 0.02), int(rng.integers(-3, 4)) if engine in ("fbgemm", "qnnpack") else 0, "int8")


def output_grid(rng: np.random.Generator, unit: float, products: int) -> tuple[float, int]:
    """A scale with which most sums of this many products are inside the range; half of the scales are round
    numbers."""
    scale = unit * np.sqrt(products) * 74 * 60 / 100
    return float(f32(scale)), int(rng.integers(1, 255))


def convolution(
    call: str,
    shape: tuple[int, ...],
    kind: Weights,
    engine: str,
    rng: np.random.Generator,
    per_channel: bool,
    bias: bool,
    relu: bool,
) -> Comparison:
    rank, transposed = len(shape) - 2, "transpose" in call
    channels = kind.shape[1] * kind.group if transposed else kind.shape[0]
    xq = grid(rng.uniform(0.005, 0.05), int(rng.integers(0, 64)) * 2 + 1, "uint8")
    wq = weight_grid(rng, channels, per_channel, engine)
    x, w = rng.integers(0, 128, shape).astype(np.uint8), integers(rng, kind.shape, "int8")
    b = rng.normal(0, 2, channels).astype(f32) if bias else None
    products = int(np.prod(kind.shape[1:])) if not transposed else kind.shape[0] // kind.group * 4
    scale, zero_point = output_grid(rng, xq.scale[0] * float(np.mean(wq.scale)), products)
    lists = [[value] * rank for value in (kind.stride, kind.pad, kind.output_padding, kind.dilation)]
    if not transposed:
        del lists[2]
    packed = getattr(quantized, f"{call}_prepack")(to_torch(w, wq), _tensor(b), *lists, kind.group)
    theirs = getattr(quantized, f"{call}_relu" if relu else call)(to_torch(x, xq), packed, scale, zero_point)
    attributes: dict[str, Any] = {
        "kernel_shape": kind.shape[2:],
        "strides": (kind.stride,) * rank,
        "pads": (kind.pad,) * (2 * rank),
        "dilations": (kind.dilation,) * rank,
        "group": kind.group,
    }
    operator = "ConvTranspose" if transposed else "Conv"
    if transposed:
        attributes["output_padding"] = (kind.output_padding,) * rank
    # The engine x86 uses fbgemm for what onednn does not support, such as output padding.
    rule = rule_of(operator, "fbgemm" if engine == "x86" and kind.output_padding else engine)
    operands = [(x, xq), (w, wq), None if b is None else (b, None)]
    return compare(operator, operands, theirs, rule, relu=relu, **attributes)


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


@pytest.mark.parametrize("engine", ENGINES)
def test_linear(engine: str) -> None:
    check("linear", engine, linears(engine), strict=engine in (*EXACT, "x86"), at_least=MILLION)


def linears(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(1)
    for rows, inner, out in ((1024, 64, 256), (256, 301, 129), (1, 512, 1000), (4000, 40, 1)):
        for per_channel in (False, True):
            for bias, relu in ((True, False), (False, True)):
                xq = grid(rng.uniform(0.005, 0.05), int(rng.integers(0, 64)) * 2 + 1, "uint8")
                wq = weight_grid(rng, out, per_channel, engine)
                x, w = rng.integers(0, 128, (rows, inner)).astype(np.uint8), integers(rng, (out, inner), "int8")
                b = rng.normal(0, 2, out).astype(f32) if bias else None
                scale, zero_point = output_grid(rng, xq.scale[0] * float(np.mean(wq.scale)), inner)
                packed = quantized.linear_prepack(to_torch(w, wq), _tensor(b))
                call = quantized.linear_relu if relu else quantized.linear
                theirs = call(to_torch(x, xq), packed, scale, zero_point)
                operands = [(x, xq), (w, wq), None if b is None else (b, None)]
                yield compare("qfmt.Linear", operands, theirs, rule_of("qfmt.Linear", engine), relu=relu)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("channels", [1, 5, 64])
def test_fbgemm_brings_the_bias_to_the_accumulator_by_the_granularity_of_the_weight(
    channels: int, per_channel: bool
) -> None:
    """Accumulators are 0, and biases are such that b / at and b · (1 / at) round to different outputs."""
    torch.backends.quantized.engine = "fbgemm"
    rng = np.random.default_rng(channels)
    xq, scale = grid(0.02, 5, "uint8"), 0.0371
    at = f32(0.02) * f32(0.0043)
    halves = (np.arange(-100, 100) + 0.5) * scale
    biases = (halves[:, None] * (1 + np.arange(-6, 7) * 2.0**-24)).astype(f32).reshape(-1)
    multiplier = at / f32(scale)
    split = biases[np.rint(biases / at * multiplier) != np.rint(biases * (f32(1) / at) * multiplier)]
    assert split.size
    b = rng.choice(split, channels)
    sw = float(f32(0.0043))
    wq = Quantization.of((sw,) * channels, (0,) * channels, -128, 127, 0) if per_channel else grid(sw, 0, "int8")
    x, w = np.full((3, 8), 5, np.uint8), integers(rng, (channels, 8), "int8")
    packed = quantized.linear_prepack(to_torch(w, wq), torch.from_numpy(b))
    theirs = quantized.linear(to_torch(x, xq), packed, scale, 128)
    found = compare("qfmt.Linear", [(x, xq), (w, wq), (b, None)], theirs, "float_bias")
    assert (found.ours == found.theirs).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_matmul(engine: str) -> None:
    """torch multiplies dequantized floats here, so its sums are not exact: ties occur, but no other differences."""
    check("matmul", engine, matmuls(engine))


def matmuls(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(2)
    for dtype in ("uint8", "int8"):
        for _ in range(5):
            a, b = integers(rng, (3, 33, 65), dtype), integers(rng, (3, 65, 40), dtype)
            qa, qb = any_grid(rng, dtype), any_grid(rng, dtype)
            theirs = quantized.matmul(to_torch(a, qa), to_torch(b, qb), qa.scale[0] * qb.scale[0] * 1300, 17)
            yield compare("MatMul", [(a, qa), (b, qb)], theirs, rule_of("MatMul", engine))


# Quantize and dequantize


@pytest.mark.parametrize("engine", ENGINES)
def test_quantize_per_tensor(engine: str) -> None:
    check("quantize_per_tensor", engine, quantizations(engine, None), strict=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_quantize_per_channel(axis: int) -> None:
    check("quantize_per_channel", "fbgemm", quantizations("fbgemm", axis), strict=True)


def quantizations(engine: str, axis: int | None) -> Iterator[Comparison]:
    """Random values, multiples of half a step, and their neighbours."""
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(10)
    for dtype, kind in (("uint8", torch.quint8), ("int8", torch.qint8)):
        for _ in range(20):
            q = any_grid(rng, dtype)
            halves = (np.arange(-300, 300) * 0.5 * q.scale[0]).astype(f32)
            near = [np.nextafter(halves, f32(side)) for side in (-1e9, 1e9)]
            x = np.concatenate([rng.normal(0, 100 * q.scale[0], 2600).astype(f32), halves, *near])
            if axis is None:
                theirs = torch.quantize_per_tensor(torch.from_numpy(x), q.scale[0], q.zero_point[0], kind)
                yield compare("QuantizeLinear", [(x, None)], theirs, rule_of("QuantizeLinear", engine))
                continue
            x = x.reshape(4, -1) if axis == 0 else x.reshape(-1, 4)
            scales = tuple(float(f32(q.scale[0] * factor)) for factor in (1, 2, 0.7, 1.5))
            points = tuple(int(point) for point in rng.integers(q.quant_min, q.quant_max + 1, 4))
            along = Quantization.of(scales, points, q.quant_min, q.quant_max, axis)
            theirs = torch.quantize_per_channel(
                torch.from_numpy(x), torch.tensor(scales, dtype=torch.float64), torch.tensor(points), axis, kind
            )
            node = Node("QuantizeLinear", ("x",), ("y",), rule="reciprocal_offset")
            (ours,) = execute(node, [Operand(x, None)], [Tensor("y", dtype, None, None, along)])
            exact = x / along.scales(x.shape) + along.zero_points(x.shape)
            yield Comparison(ours, theirs.int_repr().numpy(), exact, 256 + np.abs(exact))


def test_dequantize_computes_the_same_floats() -> None:
    rng = np.random.default_rng(11)
    for dtype in ("uint8", "int8"):
        for _ in range(50):
            x, q = integers(rng, (256,), dtype), any_grid(rng, dtype)
            (ours,) = execute(Node("DequantizeLinear", ("x",), ("y",)), [Operand(x, q)], [Tensor("y", "float32", None)])
            assert ours.tobytes() == to_torch(x, q).dequantize().numpy().tobytes()
