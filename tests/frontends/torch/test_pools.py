"""Compares average pools with a custom divisor with torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qfmt
from networks import pytorch
from qfmt.errors import UnsupportedOperatorsError


class Pool(nn.Module):
    def __init__(self, ceil: bool, count: bool, divisor: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(2, 2, 1, ceil_mode=ceil, count_include_pad=count, divisor_override=divisor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def saved(path: Path, *arguments: int) -> tuple[nn.Module, Path]:
    module = Pool(*arguments).eval()  # type: ignore[arg-type]
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(module, torch.ones(1, 1, 5, 5)), path)
    return module, path


@pytest.mark.parametrize("count", [False, True])
def test_a_divisor_that_is_the_size_of_the_window(tmp_path: Path, count: bool) -> None:
    module, path = saved(tmp_path / "m.pt", False, count, 4)
    model, x = qfmt.convert(path), torch.rand(2, 1, 5, 5)
    (found,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-6)
    (corner,) = model.run({model.graph.inputs[0]: np.ones((1, 1, 5, 5), np.float32)}).values()
    assert corner[0, 0, 0, 0] == 0.25


@pytest.mark.parametrize("arguments", [(False, True, 3), (True, False, 4)])
def test_other_divisors_are_not_supported(tmp_path: Path, arguments: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedOperatorsError, match="avg_pool2d"):
        qfmt.convert(saved(tmp_path / "m.pt", *arguments)[1])
