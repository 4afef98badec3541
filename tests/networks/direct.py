"""Networks that call quantized operators directly, for operators that no conversion emits."""

import torch
from torch import nn
from torch.nn import functional


def _grid(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.0317, 61, torch.quint8)


class Arithmetic(nn.Module):
    """Arithmetic of two quantized tensors, and of one with a number; results outside the range are clamped."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        ops = torch.ops.quantized
        a = _grid(x)
        b = torch.quantize_per_tensor(x.transpose(0, 1).reshape(x.shape) * 1.5, 0.043, 70, torch.quint8)
        row = torch.quantize_per_tensor(x[:1, :, :1, :1], 0.02, 128, torch.quint8)
        results = [
            ops.add(a, b, 0.061, 65),
            ops.add_relu(a, b, 0.0402, 3),
            ops.mul(a, b, 0.055, 90),
            ops.mul_relu(a, b, 0.031, 0),
            ops.mul(a, row, 0.04, 110),
            ops.cat([a, b, a], 1, 0.05, 71),
            ops.cat_relu([a, b], 3, 0.0333, 9),
            ops.matmul(a, b.transpose(2, 3), 0.21, 120),
            ops.add_scalar(a, 0.5),
            ops.add_scalar(a, -0.5),
            ops.add_scalar(a, 4.0),
            ops.add_scalar(a, -9.0),
            ops.add_scalar_relu(a, 0.25),
            ops.mul_scalar(a, 1.7),
            ops.mul_scalar(a, -0.6),
            ops.mul_scalar(a, 0.0),
            ops.mul_scalar_relu(a, 0.8),
            ops.mul_scalar_relu(a, -0.8),
        ]
        return [torch.dequantize(result) for result in results]


class Functions(nn.Module):
    """Activations and rescaling, called as functions on quantized tensors."""

    def __init__(self) -> None:
        super().__init__()
        slopes = torch.tensor([0.1, 0.2, -0.1, 0.3])
        self.register_buffer("slopes", torch.quantize_per_tensor(slopes, 0.01, 40, torch.quint8))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        ops = torch.ops.quantized
        a = _grid(x)
        results = [
            ops.celu(a, 0.03, 40, 0.8),
            ops.elu(a, 0.03, 40, 1.2, 1.0, 1.0),
            ops.hardswish(a, 0.025, 20),
            ops.leaky_relu(a, 0.2, False, 0.028, 30),
            ops.prelu(a, self.slopes, 0.026, 25),
            ops.sigmoid(a, 0.0051, 2),
            ops.softmax(a, 1, 0.00392, 0),
            ops.relu6(a),
            ops.clamp(a, -0.4, 0.9),
            functional.hardtanh(a, -0.7, 1.1),
            torch.clamp(a, min=-0.3),
            torch.clamp(a, max=0.6),
            functional.relu(a),
            functional.gelu(a),
            torch.sigmoid(a),
            torch.tanh(a),
            functional.hardsigmoid(a),
            functional.leaky_relu(a, 0.3),
            torch.quantize_per_tensor(torch.dequantize(a), 0.07, 12, torch.quint8),
        ]
        return [torch.dequantize(result) for result in results]


class Volumes(nn.Module):
    """Quantized kernels on one and three spatial dimensions, without convolutions around them."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.rand(4) + 0.3)

    def forward(self, x: torch.Tensor, line: torch.Tensor) -> list[torch.Tensor]:
        a, b = _grid(x), _grid(line)
        results = [
            functional.avg_pool3d(a, 2, 1, padding=1),
            functional.avg_pool3d(a, (2, 3, 3), (1, 2, 2), padding=1, count_include_pad=False, ceil_mode=True),
            functional.adaptive_avg_pool3d(a, (2, 3, 5)),
            functional.interpolate(a, scale_factor=2.0, mode="nearest"),
            a.mean([2, 3, 4]),
            functional.max_pool1d(b, 3, 2, padding=1),
            functional.avg_pool1d(b, 3, 2),
            functional.adaptive_avg_pool1d(b, 7),
            functional.pad(b, [2, 1], mode="reflect"),
            functional.pad(b, [2, 1]),
            torch.ops.quantized.batch_norm3d(a, self.weight, self.bias, self.mean, self.variance, 1e-5, 0.04, 66),
        ]
        return [torch.dequantize(result) for result in results]


class Signed(nn.Module):
    """Kernels that support qint8 activations."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a = torch.quantize_per_tensor(x, 0.0317, -5, torch.qint8)
        b = torch.quantize_per_tensor(x.transpose(0, 1).reshape(x.shape), 0.041, 7, torch.qint8)
        ops = torch.ops.quantized
        results = [
            ops.add(a, b, 0.055, -3),
            ops.mul(a, b, 0.06, 4),
            ops.cat([a, b], 1, 0.05, 2),
            ops.hardswish(a, 0.025, -30),
            ops.leaky_relu(a, 0.2, False, 0.028, -20),
            ops.add_scalar(a, 0.5),
            ops.mul_scalar(a, -0.6),
            functional.relu(a),
            torch.clamp(a, -0.5, 0.75),
            torch.sigmoid(a),
            torch.tanh(a),
            functional.max_pool2d(a, 2),
            functional.avg_pool2d(a, 3, 2, padding=1),
            functional.interpolate(a, scale_factor=2.0, mode="bilinear", align_corners=True),
            a.mean([2, 3]),
        ]
        return [torch.dequantize(result) for result in results]
