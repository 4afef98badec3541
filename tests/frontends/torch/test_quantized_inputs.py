"""Inputs whose quantization the user states: torch may take quantized tensors, or the real numbers of the integers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qfmt
from networks import pytorch
from qfmt.frontends.torch.real_inputs import FLOAT_KERNELS, QUANTIZED_KERNELS
from support.changed import one_value_changed
from support.paths import DIGITS


@pytest.mark.parametrize(("zero_point", "dtype"), [(None, "uint8"), (0, "uint8"), (-100, "int8")])
def test_inputs_that_the_network_quantizes_itself(zero_point: int | None, dtype: str) -> None:
    """The file takes integers, and torch quantizes only floats. None: the grid of the network, whose node is gone."""
    model = qfmt.convert(DIGITS)
    (name,) = model.graph.inputs
    grid = model.tensors[model.nodes[0].outputs[0]].quantization
    assert grid is not None
    point = grid.each_zero_point[0] if zero_point is None else zero_point
    asked = qfmt.convert(DIGITS, input_quantization={name: (grid.scale.numbers()[0], int(point), dtype)})
    report = qfmt.verify(DIGITS, asked, samples=1)
    assert report.ok and report.outputs[0].outputs > 0, report.first_wrong
    wrong = one_value_changed(asked, next(each.name for each in asked.graph.constants() if each.quantization))
    assert not qfmt.verify(DIGITS, wrong, samples=1).ok
    lowered = asked.to_integers(input_shapes={name: ("N", 1, 8, 8)})
    assert lowered.tensors[lowered.graph.inputs[0]].dtype == dtype
    report = qfmt.verify(DIGITS, lowered, samples=1)
    assert report.ok and report.integer_only and report.outputs[0].outputs > 0, report.first_wrong


class ClampedFirst(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(torch.cat([x.relu(), x], 0), 0.1, 10, torch.quint8).dequantize()


def test_inputs_that_the_network_quantizes_later(tmp_path: Path) -> None:
    torch.jit.script(ClampedFirst()).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_quantization={"x": (0.1, 10, "uint8")}, input_shapes={"x": (3, 4)})
    report = qfmt.verify(tmp_path / "m.pt", model)
    assert report.ok and report.outputs[0].outputs > 0, report.first_wrong


COMPUTED_FIRST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "mean of windows": lambda x: torch.nn.functional.avg_pool2d(x, 2),
    "padded": lambda x: torch.nn.functional.pad(x, [1, 1], value=0.33),
    "clamped": lambda x: x.clamp(-0.33, 0.77),
    "interpolated": lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "normalized": lambda x: (x - 0.5) / 0.25,
    "sigmoid": torch.sigmoid,
    "cast": lambda x: x.half().to(torch.float32),
    "rounded": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.03, 9, 0, 255),
    "mean, rounded": lambda x: torch.fake_quantize_per_tensor_affine(x.mean(1), 0.03, 9, 0, 255),
    "beside its type": lambda x: x * 0.5 + torch.tensor([0.3, -0.4, 1.6, 2.7], dtype=torch.float64).type_as(x),
    "joined with floats": lambda x: torch.cat([x, torch.full([2, 3, 6, 1], 0.333)], 3),
    "joined with its zeros": lambda x: torch.cat([x.mean(3), x.new_zeros([2, 3, 1])], 2),
}


class Computed(torch.nn.Module):
    def __init__(self, first: str, decomposed: bool) -> None:
        super().__init__()
        self.first, self.decomposed = COMPUTED_FIRST[first], decomposed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        real = self.first(x)
        if not self.decomposed:
            return torch.quantize_per_tensor(real, 0.05, 120, torch.quint8).dequantize()
        ops = torch.ops.quantized_decomposed
        integers = ops.quantize_per_tensor(real, 0.05, 120, 0, 255, torch.uint8)
        result: torch.Tensor = ops.dequantize_per_tensor(integers, 0.05, 120, 0, 255, torch.uint8)
        return result


@pytest.mark.parametrize("first", COMPUTED_FIRST)
@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_a_network_computes_with_real_numbers_before_it_quantizes_them(kind: str, first: str, tmp_path: Path) -> None:
    """Nothing is rounded to the grid of the input before."""
    torch.manual_seed(0)
    x, path = torch.rand(2, 3, 6, 4), tmp_path / f"m.{kind}"
    network = Computed(first, decomposed=kind == "pt2")
    with pytorch.quiet():
        if kind == "pt":
            torch.jit.save(torch.jit.trace(network, x), path)
        else:
            torch.export.save(torch.export.export(network, (x,)), path)
    integers = np.arange(144, dtype=np.uint8).reshape(2, 3, 6, 4)
    for scale, zero_point in (1 / 255, 0), (0.03, 100):
        grid = {"x": (scale, zero_point, "uint8")}
        model = qfmt.convert(path, input_quantization=grid, input_shapes={"x": (2, 3, 6, 4)})
        report = qfmt.verify(path, model)
        assert report.ok and report.outputs[0].outputs > 0, report.first_wrong
        real = (torch.tensor(integers.astype(np.float32)) - zero_point) * np.float32(scale)
        (result,) = model.run({"x": integers}).values()
        np.testing.assert_array_equal(result, network(real).numpy())


class OfItsType(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        real = torch.quantize_per_tensor(x, 0.05, 120, torch.quint8).dequantize()
        return real + torch.full([4], 0.3, dtype=x.dtype)


def test_a_script_that_asks_for_the_type_of_an_input(tmp_path: Path) -> None:
    torch.jit.script(OfItsType()).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_quantization={"x": (0.1, 10, "uint8")}, input_shapes={"x": (3, 4)})
    report = qfmt.verify(tmp_path / "m.pt", model)
    assert report.ok and report.outputs[0].outputs > 0, report.first_wrong


class InFloats(torch.nn.Module):
    """After a mean, calls that torch does not have for quantized tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3)
        for parameter in self.head.parameters():  # sums do not cancel
            torch.nn.init.uniform_(parameter, 0.1, 1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        mean = torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        others = [mean.exp(), mean.softmax(1), mean.sum(1), torch.nn.functional.hardswish(mean), mean.amax(1)]
        return [self.head(mean), *others]


class Joined(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pools = [torch.nn.functional.avg_pool2d(each, 2) for each in (x, y)]
        return torch.cat(pools), torch.quantize_per_tensor(y.relu(), 0.05, 3, torch.quint8).dequantize()


@pytest.mark.parametrize("network", [InFloats(), Joined()], ids=["calls", "joined"])
def test_inputs_that_torch_cannot_take_as_quantized_tensors(network: torch.nn.Module, tmp_path: Path) -> None:
    """All outputs are those of the real numbers, but for the last bits of products."""
    names, path = list(inspect.signature(network.forward).parameters), tmp_path / "m.pt"
    integers = np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)
    real = (torch.tensor(integers.astype(np.float32)) - 7) * np.float32(0.013)
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(network, (real,) * len(names)), path)
    model = qfmt.convert(path, input_quantization=dict.fromkeys(names, (0.013, 7, "uint8")))
    assert qfmt.verify(path, model).ok
    results = model.run(dict.fromkeys(names, integers)).values()
    for mine, theirs in zip(results, network(*[real] * len(names)), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-5)


QUANTIZED = torch.quantize_per_tensor(torch.randn(1, 4, 8, 8), 0.05, 100, torch.quint8)
BY_RANK = LINES, _, VOLUMES = QUANTIZED.reshape(1, 4, 64), QUANTIZED, QUANTIZED.reshape(1, 2, 4, 4, 8)
CALLS: dict[str, tuple[torch.Tensor, tuple[Any, ...]]] = {
    **{f"adaptive_avg_pool{rank}d": (x, ([2] * rank,)) for rank, x in enumerate(BY_RANK, 1)},
    **{f"avg_pool{rank}d": (x, ([2] * rank,)) for rank, x in enumerate(BY_RANK, 1)},
    **dict.fromkeys(("clamp", "clip", "hardtanh"), (QUANTIZED, (0, 1))),
    **dict.fromkeys(("gelu", "hardsigmoid", "leaky_relu", "relu6", "sigmoid", "tanh"), (QUANTIZED, ())),
    "constant_pad_nd": (QUANTIZED, ([1, 1], 0.3)),
    "masked_fill": (QUANTIZED, (torch.ones(8, dtype=torch.bool), 0.3)),
    "mean": (QUANTIZED, (1,)),
    "pad": (QUANTIZED, ([1, 1],)),
    "reflection_pad1d": (LINES, ([1, 1],)),
    "reflection_pad2d": (QUANTIZED, ([1, 1, 1, 1],)),
    "threshold": (QUANTIZED, (0.1, 0)),
    "topk": (QUANTIZED, (2,)),
    "upsample_bilinear2d": (QUANTIZED, ([4, 4], False)),
    **dict.fromkeys(("upsample_nearest2d", "_upsample_nearest_exact2d"), (QUANTIZED, ([4, 4],))),
    **dict.fromkeys(("upsample_nearest3d", "_upsample_nearest_exact3d"), (VOLUMES, ([4, 4, 4],))),
}


def test_the_kernels_for_quantized_tensors_are_those_of_torch() -> None:
    for name, (x, arguments) in CALLS.items():
        result = getattr(torch.ops.aten, name)(x, *arguments)
        assert (result[0] if name == "topk" else result).is_quantized, name
    for name in "cat", "stack":
        assert getattr(torch.ops.aten, name)([QUANTIZED, QUANTIZED]).is_quantized
    assert {*CALLS, "cat", "stack"} == QUANTIZED_KERNELS
    for name in FLOAT_KERNELS:
        arguments = (1, torch.zeros(1, 1, 8, 8, dtype=torch.int64)) if name == "gather" else (1,)
        with pytest.raises(NotImplementedError, match="QuantizedCPU"):
            getattr(torch.ops.aten, name)(QUANTIZED, *arguments)


class MeanBeside(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        integers = torch.quantize_per_tensor(torch.nn.functional.max_pool2d(x, 2), 0.05, 120, torch.quint8)
        return integers.dequantize(), torch.nn.functional.avg_pool2d(x, 2)


def test_a_network_quantizes_an_input_and_computes_with_its_real_numbers(tmp_path: Path) -> None:
    x, path = torch.rand(2, 3, 6, 4), tmp_path / "m.pt"
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(MeanBeside(), x), path)
    model = qfmt.convert(path, input_quantization={"x": (0.03, 100, "uint8")})
    integers = np.arange(144, dtype=np.uint8).reshape(2, 3, 6, 4)
    real = (torch.tensor(integers.astype(np.float32)) - 100) * np.float32(0.03)
    for mine, theirs in zip(model.run({"x": integers}).values(), MeanBeside()(real), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
    assert qfmt.verify(path, model).ok


class OneQuantized(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        own = torch.quantize_per_tensor(x, 0.05, 128, torch.quint8)
        return torch.ops.quantized.add(own, torch.relu(y), 0.1, 120).dequantize()


def test_inputs_of_which_the_network_quantizes_one(tmp_path: Path) -> None:
    grids = {"x": (0.05, 128, "uint8"), "y": (0.04, 120, "uint8")}
    quantized = torch.quantize_per_tensor(torch.randn(2, 8), *grids["y"][:2], torch.quint8)
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(OneQuantized(), (torch.randn(2, 8), quantized)), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_quantization=grids)
    report = qfmt.verify(tmp_path / "m.pt", model)
    assert report.ok and report.outputs[0].outputs > 0, report.first_wrong
