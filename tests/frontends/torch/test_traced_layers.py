"""Layers that a trace spells in another way than a script or an exported program does: each converts, and `verify` runs
the trace in torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

import qfmt
from networks.pytorch import quiet
from qfmt.errors import SourceError, UnsupportedOperatorsError


class Masked(nn.Module):
    """Writes to slices, as the mask of shifted windows in a Swin transformer is made."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.new_zeros((4, 4))
        mask[0:2, -2:] = 3
        mask[3, 1:].fill_(-1)
        y = self.last(x) + mask
        y[..., 0:2] = (y[..., 0:2] * 2 - 0.5) + y[..., 2:]
        y[:, -1:].zero_()
        return y


class Scaled(nn.Module):
    """Computes a factor from a size, which is a tensor in a trace (DeBERTa)."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)
        return self.last(x / scale.to(x.dtype))


class Eye(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x @ torch.eye(4)) + torch.eye(2, 3, dtype=torch.int32)


def padded(rank: int, **options: Any) -> Callable[[], nn.Module]:
    convolution: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    return lambda: nn.Sequential(convolution(3, 4, **options), nn.Flatten(2), nn.LazyLinear(3))


def normalized(norm: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(norm(nn.Conv1d(3, 4, 3), **options), nn.Linear(6, 3))


class Copied(nn.Module):
    """Keeps a copy of what the next layer changes in place, and converts boxes in place as YOLO does."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(x)
        kept = x.clone()
        boxes = torch.relu_(x).clone()
        boxes[..., 0] = x[..., 0] - x[..., 2] / 2
        boxes[..., 2] = x[..., 0] + x[..., 2] / 2
        return boxes + kept


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "same 1d": (padded(1, kernel_size=4, padding="same"), (1, 3, 8)),
    "same 2d": (padded(2, kernel_size=(3, 2), padding="same", dilation=2), (1, 3, 8, 5)),
    "valid 3d": (padded(3, kernel_size=2, padding="valid", groups=1), (1, 3, 4, 4, 4)),
    "weight_norm": (normalized(nn.utils.weight_norm, dim=1), (1, 3, 8)),
    "parametrized": (normalized(parametrizations.weight_norm), (1, 3, 8)),
    "weight_norm of all": (normalized(parametrizations.weight_norm, dim=None), (1, 3, 8)),
    "weight_norm from the end": (normalized(nn.utils.weight_norm, dim=-2), (1, 3, 8)),
    "spectral_norm": (normalized(nn.utils.spectral_norm), (1, 3, 8)),
    "slices": (Masked, (4, 4)),
    "copies": (Copied, (2, 4)),
    "eye": (Eye, (2, 4)),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", LAYERS)
@quiet()
def test_traced_layers(name: str, tmp_path: Path) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(3)
    network, x = make().eval(), torch.randn(shape)
    network(x)
    network = quantize_dynamic(network, {nn.Linear}, inplace=True)
    torch.jit.save(torch.jit.trace(network, x), str(path := tmp_path / "m.pt"))
    expected = network(x).detach().numpy()
    for stated in (None, {next(iter(qfmt.convert(path).graph.inputs)): shape}):
        model = qfmt.convert(path, input_shapes=stated)
        (result,) = model.run({model.graph.inputs[0]: x.numpy()}).values()
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        assert qfmt.verify(path, model).ok


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@quiet()
def test_a_factor_of_a_size(tmp_path: Path) -> None:
    """Where sizes are known, it is a number in the file, and a tensor in torch."""
    network, x = Scaled().eval(), torch.randn(2, 4)
    torch.jit.save(torch.jit.trace(network, x), str(path := tmp_path / "m.pt"))
    model = qfmt.convert(path, input_shapes={"x": (2, 4)})
    (result,) = model.run({"x": x.numpy()}).values()
    np.testing.assert_allclose(result, network(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert qfmt.verify(path, model).ok


@quiet()
def test_a_trace_of_a_pt2e_network(tmp_path: Path) -> None:
    """Its integers are plain tensors, and its calls state their scales."""
    quantizer = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer")
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    network, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), torch.randn(2, 4)
    settings = quantizer.XNNPACKQuantizer().set_global(quantizer.get_symmetric_quantization_config())
    prepared = pt2e.prepare_pt2e(torch.export.export(network, (x,)).module(), settings)
    prepared(x)
    torch.jit.save(torch.jit.trace(pt2e.convert_pt2e(prepared), x), str(path := tmp_path / "m.pt"))
    report = qfmt.verify(path, qfmt.convert(path))
    assert report.ok, report


class Near(nn.Module):
    """Functions whose obvious form has few digits near 0."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.log1p(), x.expm1()


def test_functions_near_zero(tmp_path: Path) -> None:
    """Every digit counts, and the ends of the range: `verify` compares with the largest number of an output."""
    tens = [sign * factor * 10.0**power for sign in (1, -1) for power in range(-30, 31) for factor in (1, 4.9, 5.1)]
    x = np.array([*tens, 0, -0.0, -1 + 1e-7, -1 - 1e-7, -2, 88, 89, np.inf, -np.inf, np.nan], np.float32)
    traced = torch.jit.trace(Near(), torch.from_numpy(x))
    torch.jit.save(traced, str(path := tmp_path / "m.pt"))
    model = qfmt.convert(path)
    for theirs, ours in zip(traced(torch.from_numpy(x)), model.run({"x": x}).values(), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=5e-7, atol=0)


class Halves(nn.Module):
    """What torch computes in float32: in 16 bits, squares are infinite or 0."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, *_ = torch.var_mean(x, -1)
        statistics = F.rms_norm(x, (64,)), F.normalize(x, dim=-1), x.std(-1), first.sqrt(), x.norm()
        ones, squares = torch.ones_like(x), (x[None], x[None].mT.contiguous())
        sums = (
            torch.addmm(-ones[:, :4], x, ones.T),
            torch.addcmul(x, x, x, value=-0.37),
            torch.add(x, x.flip(0), alpha=3),
        )
        products = torch.baddbmm(ones[None, :, :4], *squares, beta=0.5, alpha=1e-3)
        others = (
            x.log1p(),
            x.expm1(),
            x.log2(),
            (x + 1).rsqrt(),
            F.glu(x),
            F.silu(-x),
            x // 0.37,
            torch.div(x, 0.37, rounding_mode="trunc"),
        )
        return *statistics, products, *sums, *others


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [300.0, 1.0, 1e-3])
def test_statistics_of_16_bits(scale: float, dtype: torch.dtype, tmp_path: Path) -> None:
    x = (torch.rand((4, 64), generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    torch.jit.save(torch.jit.trace(Halves(), x, check_trace=False), str(path := tmp_path / "m.pt"))
    model = qfmt.convert(path, input_shapes={"x": (4, 64)}, input_dtypes={"x": str(dtype).removeprefix("torch.")})
    report = qfmt.verify(path, model, {"x": in_numpy(x)})
    assert report.ok, report.nodes
    unit = torch.finfo(dtype).eps
    for ours, theirs in zip(model.run({"x": in_numpy(x)}).values(), Halves()(x), strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), theirs.float().numpy(), rtol=2 * unit)


def in_numpy(x: torch.Tensor) -> Any:
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16 if x.dtype == torch.bfloat16 else np.float16)


class Bounded(nn.Module):
    """A bound is a tensor of another type, to which PyTorch promotes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limit", torch.tensor([100]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=self.limit) * 2


class Bags(nn.Module):
    def forward(self, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(rows, table, mode="sum")


class Started(nn.Module):
    """A list that begins with a vector of no elements."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([torch.zeros(0), x, x]), torch.sign(x > 0)


class Bools(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.add(x, y, alpha=-1), torch.add(x, y)


BYTES, NUMBER, X = torch.tensor([1, 100, 200], dtype=torch.uint8), torch.tensor(3), torch.arange(6.0).reshape(2, 3) - 2
PROMOTED: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
    "a bound of another type": (Bounded(), (BYTES,)),
    "an integer without dimensions": (nn.ReLU(), (NUMBER,)),
    "integers of six dimensions": (nn.ReLU(), (NUMBER.reshape(1, 1, 1, 1, 1, 1),)),
    "bags of float16": (Bags(), (X.half(), torch.tensor([[0, 1], [1, 1]]))),
    "an empty vector": (Started(), (X,)),
    "bools": (Bools(), (X > 0, X < 0)),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_results_have_the_types_of_pytorch(name: str, tmp_path: Path) -> None:
    module, inputs = PROMOTED[name]
    torch.jit.save(torch.jit.trace(module, inputs), str(path := tmp_path / "m.pt"))
    model = qfmt.convert(path)
    values = zip(model.graph.inputs, inputs, strict=True)
    results = model.run({key: value.numpy() for key, value in values}).values()
    expected = module(*inputs)
    for ours, theirs in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy(), strict=True)


class Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().t().as_strided((2, 3), (3, 1))


class ChannelsLast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last).as_strided((120,), (1,))


@pytest.mark.parametrize(("module", "shape"), [(Transposed(), (2, 3)), (ChannelsLast(), (2, 3, 4, 5))])
def test_memory_that_is_not_in_order(module: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(module, torch.rand(shape)), str(path := tmp_path / "m.pt"))
    with pytest.raises(UnsupportedOperatorsError, match="as_strided"):
        qfmt.convert(path, input_shapes={"x": shape})


class Small(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.erf(x), F.gelu(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_verify_accepts_what_kernels_of_float32_are_off_by(dtype: torch.dtype, tmp_path: Path) -> None:
    """torch's erf(1e-6) is 1.19e-6; steps of the smallest float16 are 6e-8."""
    x = torch.logspace(-7, 0, 4096).to(dtype)
    torch.jit.save(torch.jit.trace(Small(), x), str(path := tmp_path / "m.pt"))
    assert qfmt.verify(path, qfmt.convert(path), {"x": in_numpy(x)}).ok


class Filled(nn.Module):
    """The number is below the range that a fused ReLU leaves, and within that of the integers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
        positive = torch.ops.quantized.add_relu(q, q, 0.05, 10)
        return positive.masked_fill(positive.dequantize() > 0.3, -0.4).dequantize()


class Padded(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
        return F.pad(torch.ops.quantized.add_relu(q, q, 0.05, 10), (1, 1), value=self.value).clamp(max=-self.value)


@pytest.mark.parametrize(("value", "what"), [(-0.4, "pads with -0.4"), (0.4, "clamps to at most -0.4")])
def test_numbers_below_a_fused_relu_that_nodes_keep(value: float, what: str, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(Padded(value), X), str(path := tmp_path / "m.pt"))
    with pytest.raises(SourceError, match=f"{what}, below the range of the ReLU"):
        qfmt.convert(path)


def test_a_number_below_a_fused_relu(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(Filled(), X), str(path := tmp_path / "m.pt"))
    (result,) = qfmt.convert(path).run({"x": X.numpy()}).values()
    np.testing.assert_array_equal(result, Filled()(X).numpy(), strict=True)
