"""State_dicts of networks in quantization-aware training: weights and outputs are quantized."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization as tq
from torch import nn
from torch.ao.quantization.quantize_fx import prepare_fx, prepare_qat_fx

import qfmt
from networks import pytorch


class Net(nn.Module):
    """Layers with and without a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv1, self.bn1, self.conv2 = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1)
        self.fc = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv2(self.bn1(self.conv1(self.quant(x))))
        result: torch.Tensor = self.dequant(self.fc(x.mean([2, 3])))
        return result


@pytorch.quiet()
def trained(mode: str, backend: str, qconfig: tq.QConfig | None = None) -> nn.Module:
    torch.manual_seed(3)
    net, x = Net().train(), torch.randn(4, 2, 6, 6)
    if mode == "fx":
        made = prepare_qat_fx(net, tq.get_default_qat_qconfig_mapping(backend), (x,))
    else:
        net.qconfig = qconfig or tq.get_default_qat_qconfig(backend)
        made = tq.prepare_qat(tq.fuse_modules_qat(net, [["conv1", "bn1"]]))
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    for _ in range(3):
        made(x).square().sum().backward()
        optimizer.step()
    return made.eval().apply(tq.disable_observer)


@pytest.mark.parametrize("mode", ["eager", "fx"])
@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_weights_are_what_the_fake_quantizers_make_of_them(mode: str, backend: str, tmp_path: Path) -> None:
    net = trained(mode, backend)
    torch.save(net.state_dict(), tmp_path / "qat.pt")
    model = qfmt.convert(tmp_path / "qat.pt")
    equal = total = 0
    for name in ("conv2", "fc"):
        module: Any = net.get_submodule(name)
        fake, tensor = module.weight_fake_quant, model.tensors[f"{name}.weight"]
        with torch.no_grad():
            real = fake(module.weight).numpy()
        assert tensor.dtype == "int8" and tensor.quantization is not None
        np.testing.assert_array_equal(np.float32(tensor.quantization.scale), fake.scale.numpy())
        assert list(tensor.quantization.each_zero_point) == fake.zero_point.tolist()
        equal, total = equal + int((tensor.dequantize() == real).sum()), total + real.size
        seen = tensor.quantization.observed
        assert seen is not None
        inner = fake.activation_post_process
        assert seen.minimum == tuple(inner.min_val.reshape(-1).tolist())
        assert seen.maximum == tuple(inner.max_val.reshape(-1).tolist())
        assert seen.quant_min in (None, fake.quant_min)
    print(f"{mode} {backend}: {equal} of {total} weights equal")
    assert equal == total
    assert not [name for name in model.tensors if name.startswith("fc.weight_fake_quant")]
    model.save(tmp_path / "m.qfb")
    assert qfmt.check(tmp_path / "m.qfb") == []
    in_memory = qfmt.convert(net.state_dict())
    assert in_memory.content_id() == model.content_id()


@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_outputs_get_the_grids_of_their_fake_quantizers(backend: str, tmp_path: Path) -> None:
    net = trained("eager", backend)
    torch.save({"epoch": 3, "state_dict": net.state_dict()}, tmp_path / "qat.pt")
    model = qfmt.convert(tmp_path / "qat.pt")
    for name in ("quant", "conv1", "conv2", "fc"):
        fake: Any = net.get_submodule(name).activation_post_process
        quantization = model.tensors[name].quantization
        assert quantization is not None and quantization.observed is not None
        assert (quantization.scale.numbers(), quantization.zero_point.numbers()) == (
            (fake.scale.item(),),
            (fake.zero_point.item(),),
        )
        inner, seen = fake.activation_post_process, quantization.observed
        assert (seen.minimum, seen.maximum) == ((inner.min_val.item(),), (inner.max_val.item(),))
        assert (seen.quant_min, seen.quant_max) == (fake.quant_min, fake.quant_max)


def quantizer(low: int, high: int, dtype: torch.dtype, scheme: torch.qscheme, per_channel: bool = False) -> Any:
    observer = tq.MovingAveragePerChannelMinMaxObserver if per_channel else tq.MovingAverageMinMaxObserver
    range_ = {"quant_min": low, "quant_max": high, "dtype": dtype, "qscheme": scheme}
    return tq.FakeQuantize.with_args(observer=observer, **range_, **({"ch_axis": 0} if per_channel else {}))


SYMMETRIC, AFFINE, PER_CHANNEL = torch.per_tensor_symmetric, torch.per_tensor_affine, torch.per_channel_symmetric
WEIGHTS: dict[str, tuple[Any, tuple[int, int] | None]] = {
    "int8": (quantizer(-128, 127, torch.qint8, SYMMETRIC), (-128, 127)),
    "int8 per channel": (quantizer(-128, 127, torch.qint8, PER_CHANNEL, True), (-128, 127)),
    "7 bits": (quantizer(-64, 63, torch.qint8, SYMMETRIC), (-64, 63)),
    "affine int8": (quantizer(-128, 127, torch.qint8, AFFINE), (-128, 127)),
    "affine uint8": (quantizer(0, 255, torch.quint8, AFFINE), (0, 255)),
    "4 bits": (quantizer(-8, 7, torch.qint8, SYMMETRIC), None),
    "4 bits per channel": (quantizer(-8, 7, torch.qint8, PER_CHANNEL, True), None),
    "6 bits": (quantizer(-32, 31, torch.qint8, AFFINE), None),
}
"""Fake quantizers of weights, and the integers that they use if these are known."""

OUTPUTS: dict[str, tuple[Any, tuple[str, int, int] | None]] = {
    "uint8": (quantizer(0, 255, torch.quint8, AFFINE), ("uint8", 0, 255)),
    "7 bits": (quantizer(0, 127, torch.quint8, AFFINE), ("uint8", 0, 127)),
    "int8": (quantizer(-128, 127, torch.qint8, AFFINE), ("int8", -128, 127)),
    "symmetric": (quantizer(-128, 127, torch.qint8, SYMMETRIC), ("int8", -128, 127)),
    "4 bits": (quantizer(0, 15, torch.quint8, AFFINE), None),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_integers_of_weights_are_those_of_training(kind: str) -> None:
    """They are not stated in the file. What is not known to have 8 bits stays a float tensor."""
    fake, expected = WEIGHTS[kind]
    net = trained("eager", "", tq.QConfig(OUTPUTS["uint8"][0], fake))
    for parameter in net.parameters():
        parameter.data *= 1.02  # the observer is off: some are beyond what it saw
    model = qfmt.convert(net.state_dict())
    for name in ("conv2", "fc"):
        module: Any = net.get_submodule(name)
        tensor = model.tensors[f"{name}.weight"]
        if expected is None:
            np.testing.assert_array_equal(tensor.array, module.weight.detach().numpy())
            assert np.array_equal(
                model.tensors[f"{name}.weight_fake_quant.scale"].array, module.weight_fake_quant.scale
            )
            assert f"{name}.weight_fake_quant" not in model.tensors
            continue
        assert tensor.quantization is not None
        assert (tensor.quantization.quant_min, tensor.quantization.quant_max) == expected
        with torch.no_grad():
            np.testing.assert_array_equal(tensor.dequantize(), module.weight_fake_quant(module.weight).numpy())


@pytest.mark.parametrize("kind", ["per_tensor", "per_channel"])
def test_the_narrow_range_of_the_fused_kernel(kind: str) -> None:
    """What it clamps at -127 must not become -128."""
    name = {"per_tensor": "symmetric", "per_channel": "per_channel_symmetric"}[kind]
    net = trained("eager", "", getattr(tq, f"default_{name}_qnnpack_qat_qconfig"))
    for parameter in net.parameters():
        parameter.data *= 1.1
    model = qfmt.convert(net.state_dict())
    for name in ("conv2", "fc"):
        module: Any = net.get_submodule(name)
        grid = model.tensors[f"{name}.weight"].quantization
        assert grid is not None and grid.quant_min == -127
        with torch.no_grad():
            real = module.weight_fake_quant(module.weight).numpy()
        np.testing.assert_array_equal(model.tensors[f"{name}.weight"].dequantize(), real)
    assert model.tensors["conv2"].dtype == "int8"


def test_the_narrow_range_of_an_observer() -> None:
    """The scale 1.5 / 127 is that of -127..127, and of -128..127 in the fused kernel, which has other flags."""
    fake = quantizer(-127, 127, torch.qint8, SYMMETRIC)()
    weight = torch.linspace(-1.5, 1.5, 16).reshape(4, 4)
    fake(weight)
    weight *= 1.02
    state = {"fc.weight": weight} | {f"fc.weight_fake_quant.{name}": value for name, value in fake.state_dict().items()}
    tensor = qfmt.convert(state).tensors["fc.weight"]
    assert tensor.quantization is not None and tensor.quantization.quant_min == -127
    np.testing.assert_array_equal(tensor.dequantize(), fake.apply(tq.disable_observer)(weight).numpy())


def test_ties_are_rounded_before_the_zero_point_is_added() -> None:
    net = trained("eager", "", tq.QConfig(OUTPUTS["uint8"][0], WEIGHTS["affine int8"][0]))
    fc: Any = net.get_submodule("fc")
    with torch.no_grad():
        fake, weight = fc.weight_fake_quant, fc.weight
        fake.scale.fill_(1 / 64)
        fake.zero_point.fill_(-1)
        fake.activation_post_process.min_val.fill_(-127 / 64)
        fake.activation_post_process.max_val.fill_(2)
        weight.copy_(((torch.arange(weight.numel()) - 7.5) / 64).reshape(weight.shape))
        tensor = qfmt.convert(net.state_dict()).tensors["fc.weight"]
        np.testing.assert_array_equal(tensor.dequantize(), fake(weight).numpy())


def observed_along(axis: int) -> dict[str, torch.Tensor]:
    """The state of a convolution `c` whose channels along an axis have ranges of their own."""
    torch.manual_seed(0)
    sizes = torch.tensor([1.0, 2.0, 4.0, 8.0]).reshape([4 if at == axis else 1 for at in range(4)])
    weight = torch.randn(4, 4, 3, 3) * sizes
    fake = quantizer(-128, 127, torch.qint8, PER_CHANNEL, True)(ch_axis=axis)
    fake(weight)
    state = {f"c.weight_fake_quant.{name}": value for name, value in fake.state_dict().items()}
    return {"c.weight": weight * 1.01, **state}


def test_channels_of_a_transposed_convolution_stay_floats() -> None:
    """Their fake quantizers are along the second axis; torch's convert has none."""
    state = observed_along(1)
    np.testing.assert_array_equal(qfmt.convert(state).tensors["c.weight"].array, state["c.weight"].numpy())
    assert qfmt.convert(observed_along(0)).tensors["c.weight"].dtype == "int8"


def test_a_matrix_may_change_after_it_was_observed() -> None:
    """As if training goes on for long: by chance, its columns are now a little nearer to the ranges than its rows."""
    torch.manual_seed(1)
    fake = quantizer(-128, 127, torch.qint8, PER_CHANNEL, True)(ch_axis=0)
    fake(torch.randn(4, 4))
    fake.apply(tq.disable_observer)
    highs = fake.activation_post_process.max_val
    weight = torch.full((4, 4), -1.0)
    weight.fill_diagonal_(0.0)
    weight += torch.diag(highs.roll(1))  # row 0 has the maximum of row 3
    weight[0, 1:] = highs[1:]  # columns of row 0 have their own
    rows, columns = (float((weight.amax(axis) - highs).abs().sum()) for axis in (1, 0))
    assert 0 < columns < rows < 4 * columns
    state = {f"fc.weight_fake_quant.{name}": value for name, value in fake.state_dict().items()}
    tensor = qfmt.convert({"fc.weight": weight, **state}).tensors["fc.weight"]
    np.testing.assert_array_equal(tensor.dequantize(), fake(weight).numpy())


def test_a_scale_whose_reciprocal_is_infinite() -> None:
    """Without a warning of NumPy."""
    top, quantizer_ = torch.full((4,), 127.5 * 1e-45), "c.weight_fake_quant"
    inner = f"{quantizer_}.activation_post_process"
    state = observed_along(0) | {f"{quantizer_}.scale": torch.full((4,), 1e-45), f"{inner}.eps": torch.zeros(1)}
    tensor = qfmt.convert(state | {f"{inner}.min_val": -top, f"{inner}.max_val": top}).tensors["c.weight"]
    assert tensor.dtype == "int8" and tensor.array.shape == (4, 4, 3, 3)


def test_weights_without_elements() -> None:
    state = observed_along(0) | {"c.weight": torch.zeros(4, 4, 0, 3)}
    assert qfmt.convert(state).tensors["c.weight"].shape == (4, 4, 0, 3)


def test_a_layer_that_is_nearly_zero_stays_float() -> None:
    """Its scale is the least one, which fits any integers."""
    net = trained("eager", "", tq.QConfig(OUTPUTS["uint8"][0], WEIGHTS["4 bits"][0]))
    fc: Any = net.get_submodule("fc")
    with torch.no_grad():
        fc.weight *= 1e-8
        fc.weight_fake_quant.apply(tq.enable_observer)
        fc.weight_fake_quant.activation_post_process.min_val.fill_(-1e-9)
        fc.weight_fake_quant.activation_post_process.max_val.fill_(1e-9)
        fc.weight_fake_quant(fc.weight)
    assert qfmt.convert(net.state_dict()).tensors["fc.weight"].dtype == "float32"


def test_fake_quantizers_that_observe_nothing() -> None:
    net = nn.Sequential(tq.QuantStub(), nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2), nn.Tanh()).train()
    net.qconfig = tq.get_default_qat_qconfig("fbgemm")
    made = prepare_qat_fx(net, tq.get_default_qat_qconfig_mapping("fbgemm"), (torch.rand(2, 3),))
    made(torch.rand(2, 3))
    grids = [tensor.quantization for tensor in qfmt.convert(made.state_dict()).tensors.values()]
    found = [(grid.scale.numbers()[0], grid.each_zero_point[0]) for grid in grids if grid is not None]
    assert {(1 / 256, 0), (2 / 256, 128)} <= {*found}


def test_weights_of_nan_and_of_huge_numbers() -> None:
    net = trained("eager", "qnnpack")
    with torch.no_grad():
        weight: Any = net.fc.weight
        weight[0, :2] = torch.tensor([float("nan"), 3e38])
        tensor = qfmt.convert(net.state_dict()).tensors["fc.weight"]
        np.testing.assert_array_equal(tensor.dequantize(), net.fc.weight_fake_quant(weight).numpy())


@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_integers_of_outputs_are_those_of_training(kind: str) -> None:
    fake, expected = OUTPUTS[kind]
    model = qfmt.convert(trained("eager", "", tq.QConfig(fake, WEIGHTS["int8"][0])).state_dict())
    for name in ("quant", "conv1", "conv2", "fc"):
        if expected is None:
            assert name not in model.tensors
            assert f"{name}.activation_post_process.scale" in model.tensors
            continue
        tensor = model.tensors[name]
        assert tensor.quantization is not None
        assert (tensor.dtype, tensor.quantization.quant_min, tensor.quantization.quant_max) == expected


@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_channels_that_are_nearly_zero(backend: str) -> None:
    """Their scales are the least ones that torch uses."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 5)).train()
    net.qconfig = tq.get_default_qat_qconfig(backend)
    with torch.no_grad():
        net[0].weight[1:3] *= torch.tensor([[1e-6], [0.0]])
        net[0].weight[3] = net[0].weight[3].abs()
    made: Any = tq.prepare_qat(net)
    made(torch.randn(4, 3))
    model = qfmt.convert(made.eval().apply(tq.disable_observer).state_dict())
    tensor = model.tensors["0.weight"]
    assert tensor.dtype == "int8"
    with torch.no_grad():
        np.testing.assert_array_equal(tensor.dequantize(), made[0].weight_fake_quant(made[0].weight).numpy())


@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_weights_before_a_batch_norm_stay_floats(backend: str, tmp_path: Path) -> None:
    net = trained("eager", backend)
    torch.save(net.state_dict(), tmp_path / "qat.pt")
    model = qfmt.convert(tmp_path / "qat.pt")
    np.testing.assert_array_equal(model.tensors["conv1.weight"].array, net.conv1.weight.detach().numpy())
    np.testing.assert_array_equal(
        model.tensors["conv1.weight_fake_quant.scale"].array, net.conv1.weight_fake_quant.scale.numpy()
    )
    assert "conv1.weight_fake_quant" not in model.tensors  # it is no output


@pytest.mark.parametrize("form", ["PyTorch 1.5", "below bn"])
def test_batch_norms_of_other_names(form: str) -> None:
    state = {}
    for name, value in trained("eager", "qnnpack").state_dict().items():
        old = name.replace(".bn.weight", ".gamma").replace(".bn.bias", ".beta").replace(".bn.", ".")
        state[old if form == "PyTorch 1.5" else f"bn.{name}"] = value
    model = qfmt.convert(state)
    prefix = "" if form == "PyTorch 1.5" else "bn."
    assert model.tensors[f"{prefix}conv1.weight"].dtype == "float32"
    assert model.tensors[f"{prefix}conv2.weight"].dtype == "int8"


@pytorch.quiet()
def test_weights_that_were_never_calibrated_stay_floats() -> None:
    net = Net().train()
    net.qconfig = tq.get_default_qat_qconfig("qnnpack")
    model = qfmt.convert(tq.prepare_qat(net).state_dict())
    assert all(tensor.quantization is None for tensor in model.tensors.values())
    np.testing.assert_array_equal(model.tensors["fc.weight"].array, net.fc.weight.detach().numpy())


def test_a_fake_quantizer_that_is_off_changes_nothing() -> None:
    net = copy.deepcopy(trained("eager", "qnnpack")).apply(tq.disable_fake_quant)
    model = qfmt.convert(net.state_dict())
    assert model.tensors["fc.weight"].dtype == "float32"
    assert "fc.weight_fake_quant.scale" in model.tensors
    assert all(tensor.quantization is None for tensor in model.tensors.values())


@pytorch.quiet()
def test_observers_of_a_prepared_model_stay_tensors() -> None:
    net, x = Net().eval(), torch.randn(4, 2, 6, 6)
    observed = prepare_fx(net, tq.get_default_qconfig_mapping("fbgemm"), (x,))
    observed(x)
    model = qfmt.convert(observed.state_dict())
    low = observed.activation_post_process_0.min_val
    assert model.tensors["activation_post_process_0.min_val"].array.item() == low.item()
    assert all(tensor.quantization is None for tensor in model.tensors.values())
