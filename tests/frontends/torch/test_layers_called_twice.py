"""Layers that a network calls more than once, such as the branches of a siamese network: their parameters are stored
once, whatever form PyTorch packs them in."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.ao.nn.quantized import dynamic
from torch.ao.quantization import get_default_qconfig_mapping, quantize_dynamic
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qfmt
from networks.pytorch import quiet

LAYERS = {
    "conv1d": (lambda: nn.Conv1d(3, 3, 3, padding=1), (2, 3, 8)),
    "conv2d": (lambda: nn.Conv2d(3, 3, 3, padding=1), (2, 3, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 3, padding=1), (1, 2, 4, 4, 4)),
    "conv1d, relu": (lambda: nn.Sequential(nn.Conv1d(3, 3, 1), nn.ReLU()), (2, 3, 8)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(3, 3, 3, padding=1), (2, 3, 8)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 3, 3, padding=1), (2, 3, 6, 6)),
    "linear": (lambda: nn.Linear(6, 6), (2, 6)),
    "batch_norm": (lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), (2, 3, 6, 6)),
}
"""Name → how the layer is made, and the shape of its input and output."""


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.layer(x))
        return result


def converted(network: nn.Module, x: torch.Tensor, folder: Path) -> list[qfmt.Model]:
    """From a trace, a script, a pickled module and a module in memory; `verify` says that the first two are right."""
    found = []
    for kind, saved in {"trace": torch.jit.trace(network, x), "script": torch.jit.script(network)}.items():
        saved.save(folder / f"{kind}.pt")
        found.append(qfmt.convert(folder / f"{kind}.pt"))
        report = qfmt.verify(folder / f"{kind}.pt", found[-1], {found[-1].graph.inputs[0]: x.numpy()})
        assert report.ok and not report.skipped, report
    return [*found, qfmt.convert(network, example_inputs=(x,))]


def weights(model: qfmt.Model) -> int:
    return sum(tensor.is_constant and len(tensor.shape or ()) > 1 for tensor in model.tensors.values())


@pytest.mark.usefixtures("fbgemm")
@pytest.mark.parametrize("name", LAYERS)
@quiet()
def test_a_static_layer(name: str, tmp_path: Path) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    prepared = prepare_fx(Twice(make()).eval(), get_default_qconfig_mapping("fbgemm"), (x,))
    prepared(x)
    network = convert_fx(prepared)
    torch.save(network, tmp_path / "saved.pt")
    for model in [*converted(network, x, tmp_path), qfmt.convert(tmp_path / "saved.pt")]:
        assert weights(model) == (name != "batch_norm")


@pytest.mark.usefixtures("fbgemm")
@pytest.mark.parametrize("name", ["linear", "lstm", "conv1d"])
@quiet()
def test_a_dynamic_layer(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network: nn.Module
    if name == "linear":
        network, shape = quantize_dynamic(Twice(nn.Linear(6, 6)).eval()), (2, 6)
    elif name == "lstm":
        network, shape = quantize_dynamic(Sequence().eval()), (3, 2, 5)
    else:
        network, shape = Twice(dynamic.Conv1d(3, 3, 1)).eval(), (2, 3, 8)
    for model in converted(network, torch.randn(shape), tmp_path):
        assert weights(model) == (2 if name == "lstm" else 1)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.layer(x)[0])[0]
        return result
