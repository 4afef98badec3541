"""Make the two layers that docs/integers.md computes by hand: `python tools/make_two_layers.py`.

A convolution with ReLU and a second convolution, with PyTorch's initial weights, quantized by its eager static
quantization (engine fbgemm, per-channel weights) and traced to examples/two_layers/two_layers_int8.pt. It needs the
same packages as make_digits.py, and is as deterministic.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from torch import Tensor, nn
from torch.ao import quantization

from make_digits import EXAMPLE, save

ARCHIVE = EXAMPLE.parent / "two_layers" / "two_layers_int8.pt"
SEED = 4
"""With this seed, every layer has weights and biases of both signs."""


class TwoLayers(nn.Module):
    """[N, 1, 4, 4] → conv1 [N, 2, 3, 3] → conv2 [N, 1, 2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.conv1 = nn.Conv2d(1, 2, 2)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(2, 1, 2)
        self.dequant = quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.conv2(self.relu(self.conv1(self.quant(x)))))


def quantized() -> nn.Module:
    """The network, calibrated with 64 images with values from -0.41 to 0.99, and converted."""
    torch.manual_seed(SEED)
    network = TwoLayers().eval()
    quantization.fuse_modules(network, [["conv1", "relu"]], inplace=True)
    network.qconfig = quantization.QConfig(
        activation=quantization.MinMaxObserver.with_args(dtype=torch.quint8, reduce_range=True),
        weight=quantization.default_per_channel_weight_observer,
    )
    prepared = quantization.prepare(network)
    prepared(torch.rand(64, 1, 4, 4) * 1.4 - 0.41)
    return quantization.convert(prepared)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    torch.backends.quantized.engine = "fbgemm"
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    warnings.filterwarnings("ignore", message=".*quant_min and quant_max.*")
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    save(quantized(), torch.zeros(1, 1, 4, 4), ARCHIVE)
    print(f"{ARCHIVE.relative_to(EXAMPLE.parent.parent)}  {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
