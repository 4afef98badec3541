"""Two quantized convolutions, and their outputs by formulas that are implemented here; tools/engines.py compares
them.

This module does not call qfmt: it has the published formulas, and exact rational arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

f32 = np.float32


class Grid(NamedTuple):
    scale: np.float32
    zero_point: int


@dataclass(frozen=True)
class Layer:
    """A 3 x 3 convolution with padding 1 from uint8 to uint8; weights are int8 with zero point 0."""

    name: str
    input: Grid
    weight: np.ndarray  # int8 [O, I / group, 3, 3]
    weight_scale: np.ndarray  # float32 [O]
    bias: np.ndarray  # float32 [O]
    output: Grid
    relu: bool = False
    group: int = 1

    @property
    def units(self) -> np.ndarray:
        """The scales of the accumulator, per channel: `sx · sw`, which float64 represents exactly."""
        return np.float64(self.input.scale) * self.weight_scale.astype(np.float64)

    @property
    def whole_bias(self) -> np.ndarray:
        """The bias in these units, rounded, for engines with an int32 bias: `rint(b / f32(sx · sw))`."""
        return np.rint(self.bias / (self.input.scale * self.weight_scale)).astype(np.int64)

    def clamp(self, y: np.ndarray) -> np.ndarray:
        return np.clip(y, self.output.zero_point if self.relu else 0, 255).astype(np.uint8)


class Network(NamedTuple):
    """x is uint8 [1, I, H, W]; the output of conv1 is the input of conv2."""

    x: np.ndarray
    conv1: Layer
    conv2: Layer


def measured_network(size: int) -> Network:
    """Scales as from observers, biases that are not multiples of the accumulator's scale, activations up to 127."""
    rng = np.random.default_rng(1)
    conv1 = _layer("conv1", rng, 8, Grid(f32(0.0173), 57), Grid(f32(0.0319), 0), relu=True)
    conv2 = _layer("conv2", rng, 16, conv1.output, Grid(f32(0.0871), 131))
    return Network(_image(rng, 128, 8, size), conv1, conv2)


def tied_network(size: int) -> Network:
    """All scales are powers of two and each bias is a multiple of the accumulator's scale: only ties are rounded
    differently."""
    rng = np.random.default_rng(2)
    conv1 = _layer("conv1", rng, 8, Grid(f32(2**-6), 57), Grid(f32(2**-5), 0), relu=True)
    conv2 = _layer("conv2", rng, 16, conv1.output, Grid(f32(2**-4), 131))
    return Network(_image(rng, 128, 8, size), _on_powers_of_two(conv1), _on_powers_of_two(conv2))


def depthwise_layer(size: int) -> tuple[np.ndarray, Layer]:
    """A depthwise convolution, and x in the whole range of uint8."""
    rng = np.random.default_rng(3)
    layer = _layer("depthwise", rng, 1, Grid(f32(0.0173), 57), Grid(f32(0.0319), 101))
    return _image(rng, 256, 16, size), replace(layer, group=16)


def _image(rng: np.random.Generator, levels: int, channels: int, size: int) -> np.ndarray:
    return rng.integers(0, levels, (1, channels, size, size)).astype(np.uint8)


def _layer(
    name: str, rng: np.random.Generator, inputs: int, grid: Grid, output: Grid, *, relu: bool = False, outputs: int = 16
) -> Layer:
    real = rng.normal(0, 1 / np.sqrt(9 * inputs), (outputs, inputs, 3, 3)) * rng.uniform(0.5, 2, (outputs, 1, 1, 1))
    scale = (np.abs(real).max((1, 2, 3)) / 127).astype(f32)
    weight = np.clip(np.rint(real / scale[:, None, None, None]), -127, 127).astype(np.int8)
    return Layer(name, grid, weight, scale, rng.normal(0, 0.3, outputs).astype(f32), output, relu)


def _on_powers_of_two(layer: Layer) -> Layer:
    rounded = replace(layer, weight_scale=np.exp2(np.round(np.log2(layer.weight_scale))).astype(f32))
    return replace(rounded, bias=(rounded.whole_bias * rounded.units).astype(f32))


def sums(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Σ (x - zx) · w, int64 [1, O, H, W]: exact."""
    centred = np.pad(x[0].astype(np.int64) - layer.input.zero_point, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 3), (1, 2))
    grouped = windows.reshape(layer.group, -1, *windows.shape[1:]).astype(np.float64)
    weight = layer.weight.reshape(layer.group, -1, *layer.weight.shape[1:]).astype(np.float64)
    acc = np.einsum("gchwij,gocij->gohw", grouped, weight, optimize=True)
    return acc.reshape(1, -1, *x.shape[2:]).astype(np.int64)


def exact(layer: Layer, x: np.ndarray, ties: str, *, whole_bias: bool = False) -> np.ndarray:
    """Exact rational arithmetic on scales and biases; ties round to "even", "away" from zero, or "up"."""
    acc, bias = sums(layer, x), layer.bias.astype(np.float64)
    if whole_bias:
        acc, bias = acc + layer.whole_bias.reshape(1, -1, 1, 1), np.zeros(len(layer.bias))
    real = (acc * layer.units.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)) / np.float64(layer.output.scale)
    rounded = np.rint(real)
    for at in zip(*np.nonzero(np.abs(real - np.floor(real) - 0.5) < 1e-9), strict=True):  # uncertain in float64
        channel = at[1]
        unit = Fraction(float(layer.input.scale)) * Fraction(float(layer.weight_scale[channel]))
        value = (int(acc[at]) * unit + Fraction(float(bias[channel]))) / Fraction(float(layer.output.scale))
        is_up = value.denominator == 2 and (ties == "up" or (ties == "away" and value > 0))
        is_down = value.denominator == 2 and ties == "away" and value < 0
        rounded[at] = value // 1 + is_up if is_up or is_down else round(value)
    return layer.clamp(rounded + layer.output.zero_point)


def fixed_point(layer: Layer, x: np.ndarray, rounding: str) -> np.ndarray:
    """int32 bias, and a 31-bit multiplier with a shift, from `QuantizeMultiplier` of TFLite.

    `rounding` is "single" (TOSA; CMSIS-NN with CMSIS_NN_USE_SINGLE_ROUNDING), "double" (gemmlowp's
    `RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(x, m))`, as in TFLite and CMSIS-NN) or "double up":
    double, but the second division rounds ties up, not away from zero.
    """
    acc = sums(layer, x) + layer.whole_bias.reshape(1, -1, 1, 1)
    rounded = np.empty_like(acc)
    for channel, real in enumerate(layer.units / np.float64(layer.output.scale)):
        multiplier, right = quantized_multiplier(real)
        product = acc[:, channel] * multiplier
        if rounding == "single":
            rounded[:, channel] = (product + (1 << (30 + right))) >> (31 + right)
        else:
            high, mask = (product + (1 << 30)) >> 31, (1 << right) - 1
            threshold = (mask >> 1) + ((high < 0) & (rounding == "double"))
            rounded[:, channel] = (high >> right) + ((high & mask) > threshold)
    return layer.clamp(rounded + layer.output.zero_point)


def quantized_multiplier(real: float) -> tuple[int, int]:
    """(m, right): real ≈ m · 2^-(31 + right), with m of 31 bits; here real < 1, and right ≥ 0."""
    fraction, exponent = np.frexp(real)
    multiplier = int(np.floor(fraction * 2**31 + 0.5))
    return (multiplier // 2, -int(exponent) - 1) if multiplier == 2**31 else (multiplier, -int(exponent))
