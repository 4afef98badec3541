"""Networks quantized by PT2E (torchao) and exported, with fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from math import log2
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from . import architectures as published
from .pytorch import quiet

Inputs = tuple[torch.Tensor, ...]

with redirect_stderr(StringIO()):  # it warns of missing GPU libraries
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="needs torchao")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")


class ConvNet(nn.Module):
    """Batch norm, a residual, an in-place ReLU, pooling, a nested block."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c2 = nn.Conv2d(8, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, groups=2), nn.Hardtanh(0, 6, inplace=True))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(self.b1(self.c1(x)))
        x = functional.max_pool2d(x + self.c2(x), 2)
        return self.fc(self.block(x).mean((2, 3)))


class Linears(nn.Module):
    """Linear layers over rows, with an activation in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(24, 32), nn.Linear(32, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(functional.gelu(self.a(x)))


class Inverted(nn.Module):
    """Blocks of MobileNetV2, and the layers after them."""

    def __init__(self) -> None:
        super().__init__()
        first = published.conv_bn(3, 8, 3, 2, 1, nn.ReLU6())
        blocks = [published.InvertedResidual(8, 8, 1, 1), published.InvertedResidual(8, 12, 2, 4)]
        self.features = nn.Sequential(first, *blocks)
        self.classifier = nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))


@dataclass(frozen=True)
class Definition:
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    dynamic: bool = False
    qat: bool = False


NETWORKS = {
    "conv": Definition(ConvNet, ((2, 3, 16, 16),)),
    "conv_qat": Definition(ConvNet, ((2, 3, 16, 16),), qat=True),
    "linears": Definition(Linears, ((2, 6, 24),)),
    "linears_dynamic": Definition(Linears, ((2, 6, 24),), dynamic=True),
    "inverted": Definition(Inverted, ((2, 3, 16, 16),)),
    "mobilenet_v2": Definition(partial(published.MobileNetV2, width=0.5, classes=100), ((2, 3, 64, 64),)),
    "resnet18": Definition(partial(published.ResNet18, width=16, classes=100), ((2, 3, 64, 64),)),
}

FORMS: dict[str, Callable[[Any], Any]] = {
    "training": lambda program: program,
    "functional": lambda program: program.run_decompositions({}),
    "core": lambda program: program.run_decompositions(),
}
"""The sets of operators in which a program may be exported."""


def inputs_of(name: str, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in NETWORKS[name].shapes)


@quiet()
def built(name: str) -> nn.Module:
    """The float network, batch statistics settled."""
    torch.manual_seed(sum(name.encode()))
    model = NETWORKS[name].make().train()
    with torch.no_grad():
        for seed in range(3):
            model(*inputs_of(name, seed))
    return model.eval()


@cache
@quiet()
def quantized(name: str, *, fold: bool = True, sizes: bool = False, exact: bool = False) -> tuple[Any, Any]:
    """The module that convert_pt2e returns, and its exported program; `sizes`: with any batch size; `exact`: with sums
    that float32 holds."""
    definition, inputs = NETWORKS[name], inputs_of(name, 100)
    dimensions = tuple({0: torch.export.Dim("batch", min=1, max=64)} for _ in inputs) if sizes else None
    exported = torch.export.export(built(name), inputs, dynamic_shapes=dimensions)
    config = x86.get_default_x86_inductor_quantization_config(is_qat=definition.qat, is_dynamic=definition.dynamic)
    quantizer = x86.X86InductorQuantizer().set_global(config)
    prepare = pt2e.prepare_qat_pt2e if definition.qat else pt2e.prepare_pt2e
    prepared = prepare(exported.module(), quantizer)
    with torch.no_grad():
        for seed in range(10, 14):
            prepared(*inputs_of(name, seed))
    converted = pt2e.convert_pt2e(prepared, fold_quantize=fold)
    if exact:
        _make_exact(converted)
    return converted, torch.export.export(converted, inputs, dynamic_shapes=dimensions)


def _make_exact(module: Any) -> None:
    """Scales become powers of two and biases multiples of one, so that float32 holds every sum, in any order; zero
    points become even, so that it does not matter whether they are added before the rounding or after it."""
    scales = set()
    for node in module.graph.nodes:
        if "quantize_per_tensor" in str(node.target):
            x, scale, zero_point, *limits = node.args
            node.args = (x, 2.0 ** round(log2(scale)), zero_point // 2 * 2, *limits)
        elif "quantize_per_channel" in str(node.target):
            scales.add(node.args[1].target)
    module.recompile()
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name in scales:
                tensor.copy_(2.0 ** tensor.log2().round())
            elif name.endswith("bias"):
                tensor.copy_((tensor * 1024).round() / 1024)


@quiet()
def saved(name: str, folder: Path, form: str = "training", **options: Any) -> Path:
    """A `.pt2` archive."""
    path = folder / f"{name}.pt2"
    torch.export.save(FORMS[form](quantized(name, **options)[1]), path)
    return path
