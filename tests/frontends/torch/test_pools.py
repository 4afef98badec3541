"""Compares with torch: average pools with a custom divisor, and kernels that round by the memory format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

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


class Layout(nn.Module):
    """A kernel that rounds by the memory format, of a quantized input, or after a convolution, which changes it."""

    def __init__(self, kernel: Any, rank: int, after: str) -> None:
        super().__init__()
        self.kernel, self.after = kernel, after
        if after == "input":
            return
        kind = {1: nn.quantized.Conv1d, 2: nn.quantized.Conv2d, 3: nn.quantized.Conv3d}[rank]
        self.conv = kind(16, 16, 1)
        weight = torch.randint(-9, 9, (16, 16, *[1] * rank)) / 64.0
        self.conv.set_weight_bias(torch.quantize_per_tensor(weight, 1 / 64, 0, torch.qint8), None)
        self.conv.scale, self.conv.zero_point = 0.0625, 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.0625, 3, torch.quint8)
        if self.after != "input":
            q = self.conv(q)
        if self.after == "contiguous":
            q = q.contiguous()
        return self.kernel(q).dequantize()


def joined(axis: int) -> Any:
    return lambda q: torch.ops.quantized.cat([q, torch.ops.quantized.mul(q, q, 0.125, 5)], axis, 0.125, 7)


KERNELS = {
    "pool 1": (1, lambda q: F.avg_pool1d(q, 2)),
    "pool 2": (2, lambda q: F.avg_pool2d(q, 2)),
    "pool 3": (3, lambda q: F.avg_pool3d(q, 2)),
    "pool of sums": (2, lambda q: F.avg_pool2d(torch.ops.quantized.add(q, q, 0.0625, 3), 2)),
    "pool of parts": (2, lambda q: F.avg_pool2d(q[:, :, 1:], 2)),
    "pool of copies": (2, lambda q: F.avg_pool2d(q.clone(), 2)),
    "pool of copies, channels last": (2, lambda q: F.avg_pool2d(q.clone(memory_format=torch.channels_last), 2)),
    "pool of another format": (2, lambda q: F.avg_pool2d(q.to(memory_format=torch.channels_last), 2)),
    "pool of repeated": (2, lambda q: F.avg_pool2d(q.repeat(1, 2, 1, 1), 2)),
    "pool of stacked": (2, lambda q: F.avg_pool2d(torch.stack([q, q], 1)[:, 0], 2)),
    "pool of flipped": (2, lambda q: F.avg_pool2d(q.flip(2), 2)),
    "pool of selected": (2, lambda q: F.avg_pool2d(q[:, torch.arange(15, -1, -1)], 2)),
    "adaptive 3": (3, lambda q: F.adaptive_avg_pool3d(q, 4)),
    "mean of images": (2, lambda q: q.mean([2, 3])),
    "mean of rows": (2, lambda q: q.mean([-1])),
    "cat 1": (2, joined(1)),
    "cat 2": (2, joined(2)),
    "cat of pools": (2, lambda q: joined(1)(F.adaptive_avg_pool2d(q, 1))),
    "cat of sequences": (1, joined(1)),
    "bilinear": (2, lambda q: F.interpolate(q, scale_factor=1.5, mode="bilinear")),
}


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("name", KERNELS)
def test_rules_follow_the_memory_format(
    tmp_path: Path, name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    rank, kernel = KERNELS[name]
    torch.manual_seed(0)
    x = torch.randn(2, 16, *{1: (24,), 2: (12, 12), 3: (6, 6, 6)}[rank]) * 2
    differ = 0
    with pytorch.quiet():  # qnnpack has no convolution of volumes
        for after in ("input", "convolution", "contiguous")[: 1 if rank == 3 and engine == "qnnpack" else 3]:
            module, path = Layout(kernel, rank, after), tmp_path / f"{after}.pt"
            torch.jit.save(torch.jit.trace(module, x), path)
            model = qfmt.convert(path, engine=engine)
            (found,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
            differ += int((found != module(x).numpy()).sum())
    assert differ == 0


@pytest.mark.parametrize("after", ["input", "convolution"])
@pytest.mark.parametrize("kernel", [lambda q: q.std([-1]), lambda q: q.std([2, 3], unbiased=False, keepdim=True)])
def test_deviations_are_on_the_grid_of_their_input(kernel: Any, after: str, fbgemm: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 16, 20, 20) * 2
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(Layout(kernel, 2, after), x), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 16, 20, 20)})
    assert model.nodes[-2].operator == "QuantizeLinear"
    report = qfmt.verify(tmp_path / "m.pt", model, {"x": x.numpy()})
    assert report.ok and report.outputs[0].outputs > 0


class Few(nn.Module):
    """Only the weights tell that a pool has fewer channels than its kernel computes at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, one, zero = torch.quantize_per_tensor(x, 0.0625, 3, torch.quint8), torch.ones(3), torch.zeros(3)
        return F.avg_pool2d(torch.ops.quantized.batch_norm2d(q, one, zero, zero, one, 1e-5, 0.0625, 3), 2).dequantize()


def test_weights_tell_the_channels(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 24, 24) * 2
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(Few(), x), tmp_path / "m.pt")
        expected = Few()(x)
    models = [qfmt.convert(tmp_path / "m.pt", input_shapes=shapes) for shapes in ({}, {"x": (2, 3, 24, 24)})]
    assert [node.rule for node in models[0].nodes] == [node.rule for node in models[1].nodes]
    for model in models:
        (found,) = model.run({"x": x.numpy()}).values()
        np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)],
    ids=["batch", "group", "instance"],
)
def test_the_weights_of_a_normalization_tell_its_channels(tmp_path: Path, layer: nn.Module) -> None:
    torch.jit.save(torch.jit.script(layer.eval()), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    assert model.tensors["input"].shape == ("N", 6, "H", "W")
