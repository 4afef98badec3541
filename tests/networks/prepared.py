"""A small network that is prepared for quantization, and the ranges of its observers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx, prepare_qat_fx

from networks import pytorch
from qfmt.model import Model, Observed, Quantization


class Small(nn.Module):
    """A convolution with batch statistics, one without activation, a sum, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.sum = nnq.FloatFunctional()
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        x = self.drop(self.sum.add(self.conv2(x), x))
        return self.dequant(self.fc(x.mean([2, 3])))


class SmallFX(Small):
    """The same, in the form that FX requires."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.drop(self.conv2(x) + x)
        return self.fc(x.mean([2, 3]))


def images(seed: int) -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytorch.quiet()
def prepared(mode: str, qat: bool, backend: str = "fbgemm") -> nn.Module:
    torch.manual_seed(5)
    network = SmallFX() if mode == "fx" else Small()
    if mode == "fx":
        chosen = (tq.get_default_qat_qconfig_mapping if qat else tq.get_default_qconfig_mapping)(backend)
        made = (prepare_qat_fx if qat else prepare_fx)(network.train(qat), chosen, (images(0),))
    else:
        network.qconfig = (tq.get_default_qat_qconfig if qat else tq.get_default_qconfig)(backend)
        runs = [["conv1", "bn1", "relu1"]]
        fused = (tq.fuse_modules_qat if qat else tq.fuse_modules)(network.train(qat), runs)
        made = (tq.prepare_qat if qat else tq.prepare)(fused)
    with torch.set_grad_enabled(qat):
        for seed in range(3):
            made(images(seed))
    return made.eval()


@pytorch.quiet()
def converted(observed: nn.Module) -> nn.Module:
    is_fx = isinstance(observed, torch.fx.GraphModule)
    return convert_fx(copy.deepcopy(observed)) if is_fx else tq.convert(observed)


def seen_by(observer: Any) -> Observed:
    inner = getattr(observer, "activation_post_process", observer)
    return Observed(
        type(inner).__name__,
        tuple(inner.min_val.reshape(-1).tolist()),
        tuple(inner.max_val.reshape(-1).tolist()),
        inner.quant_min,
        inner.quant_max,
        str(inner.qscheme).removeprefix("torch."),
    )


def grid(model: Model, name: str) -> Quantization:
    quantization = model.tensors[name].quantization
    assert quantization is not None
    return quantization


WATCHED = {"quant": "quant", "conv1": "conv1", "conv2": "conv2", "sum": "add", "fc": "fc"}
"""Module of the eager network → its output."""
