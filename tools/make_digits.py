"""Make the network that ships with the project: `python tools/make_digits.py` (needs torch and scikit-learn).

A small CNN is trained on scikit-learn's digits (1797 images of 8 × 8, a fifth of them held back), quantized by
PyTorch's eager static quantization (engine fbgemm, per-channel weights), and traced to TorchScript. The files are

    examples/digits/digits_int8.pt   the quantized network as `torch.jit.save` wrote it, less debug entries and id
    examples/digits/heldback.npz     x: images [360, 1, 8, 8], float32 from 0 to 1; labels: uint8 [360];
                                     outputs: what torch computed for x, float32 [360, 10]

Deterministic: fixed seeds, one thread, no dates in the archives. The same torch on the same kind of processor writes
the same bytes. Another one may round a training step differently and train another network, so the result is
committed. The files in the repository were made with torch 2.13.0 on x86-64.
"""

from __future__ import annotations

import argparse
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.ao import quantization

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "digits"
SEED = 20
EPOCHS = 30
BATCH = 32
WORST_ACCURACY = 0.95


class ConvBnReLU(nn.Sequential):
    """A 3 × 3 or 1 × 1 convolution; `groups` equal to `inputs` makes it depthwise."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class Residual(nn.Module):
    """x + convolution(x), then ReLU; the sum is a FloatFunctional, which has its own observer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.sum = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        return self.sum.add_relu(self.bn(self.conv(x)), x)


class Digits(nn.Module):
    """Logits of ten digits from images [N, 1, 8, 8] with values from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.stem = ConvBnReLU(1, 16, 3)
        self.depthwise = ConvBnReLU(16, 16, 3, groups=16)
        self.pointwise = ConvBnReLU(16, 32, 1)
        self.pool = nn.MaxPool2d(2)
        self.residual = Residual(32)
        self.squeeze = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(32 * 2 * 2, 10)
        self.dequant = quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pointwise(self.depthwise(self.stem(self.quant(x))))
        x = self.squeeze(self.residual(self.pool(x)))
        return self.dequant(self.fc(torch.flatten(x, 1)))


def train(network: Digits, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


def quantize(network: Digits, calibration: Tensor) -> nn.Module:
    """Fuse, observe and convert, as in PyTorch's tutorial on static quantization."""
    network.eval()
    blocks = ("stem", "depthwise", "pointwise")
    fused = quantization.fuse_modules(
        network, [[f"{block}.{index}" for index in range(3)] for block in blocks] + [["residual.conv", "residual.bn"]]
    )
    fused.qconfig = quantization.get_default_qconfig("fbgemm")
    prepared = quantization.prepare(fused)
    prepared(calibration)
    return quantization.convert(prepared)


def save(quantized: nn.Module, example: Tensor, path: Path) -> None:
    """Trace and save, without the debug entries, which contain paths of this machine, and the id, which is a hash of
    them."""
    written = io.BytesIO()
    torch.jit.save(torch.jit.trace(quantized, example), written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(path, "w") as destination:
        for entry in source.infolist():
            if not entry.filename.endswith((".debug_pkl", ".data/serialization_id")):
                destination.writestr(zipfile.ZipInfo(entry.filename), source.read(entry))


def save_arrays(path: Path, **arrays: np.ndarray[Any, Any]) -> None:
    """`numpy.savez_compressed` without timestamps."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as destination:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            destination.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_DEFLATED)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.backends.quantized.engine = "fbgemm"
    warnings.filterwarnings("ignore", message=".*deprecated.*")

    digits = load_digits()
    pixels = digits.images.astype(np.float32)[:, None] / np.float32(16)
    train_x, held_x, train_y, held_y = train_test_split(
        pixels, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target
    )
    network = Digits()
    train(network, torch.from_numpy(train_x), torch.from_numpy(train_y))
    quantized = quantize(network, torch.from_numpy(train_x))

    EXAMPLE.mkdir(parents=True, exist_ok=True)
    archive, arrays = EXAMPLE / "digits_int8.pt", EXAMPLE / "heldback.npz"
    save(quantized, torch.from_numpy(held_x[:1]), archive)
    outputs = torch.jit.load(archive)(torch.from_numpy(held_x)).numpy()
    accuracy = float((outputs.argmax(axis=1) == held_y).mean())
    if accuracy < WORST_ACCURACY:
        raise SystemExit(
            f"accuracy {accuracy:.1%} on the held-back images is below {WORST_ACCURACY:.0%}: nothing to ship"
        )
    save_arrays(arrays, x=held_x, labels=held_y.astype(np.uint8), outputs=outputs)
    for path in (archive, arrays):
        print(f"{path.relative_to(EXAMPLE.parent.parent)}  {path.stat().st_size:,} bytes")
    print(f"accuracy on {len(held_y)} held-back images: {accuracy:.1%}")


if __name__ == "__main__":
    main()
