"""Files of torch.save, in both of its forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq

from networks import pytorch

LEGACY = {"_use_new_zipfile_serialization": False}

FORMS = pytest.mark.parametrize("form", [{}, LEGACY], ids=["zip", "legacy"])


@pytorch.quiet()
def saved(value: Any, path: Path, **form: Any) -> Path:
    torch.save(value, path, **form)
    return path


def chain(wrapped: bool) -> nn.Module:
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(),
        nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()), nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Identity(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 6), nn.Sigmoid(),
    )  # fmt: skip
    return tq.QuantWrapper(body) if wrapped else nn.Sequential(tq.QuantStub(), *body, tq.DeQuantStub())


def quantized_chain() -> nn.Module:
    network = nn.Sequential(nnq.Quantize(0.05, 3, torch.quint8), nnq.Linear(4, 3), nnq.DeQuantize())
    network[1].scale, network[1].zero_point = 0.25, 3
    return network.eval()
