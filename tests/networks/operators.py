"""Networks that together use every operator of statically quantized networks.

This is float code that torch quantizes, in eager mode and by FX; operators that neither emits are in `direct.py`.
"""

import torch
from torch import nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.nn import functional

from .architectures import Network, channel_shuffle

STAYS_FLOAT = ".body"
"""A submodule whose name contains this is not quantized."""


class Island(nn.Module):
    """A module that stays float between quantized ones."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.dequant = DeQuantStub()
        self.body = module
        self.quant = QuantStub()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant(self.body(self.dequant(x)))


class Convolutions(Network):
    """Every form of 2-d convolution: groups, dilation, uneven strides and padding, with and without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(4, 8, 3),
                nn.Conv2d(4, 8, 3, bias=False),
                nn.Conv2d(4, 8, (3, 1), stride=(2, 1), padding=(1, 0)),
                nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2),
                nn.Conv2d(4, 8, 3, groups=4, padding=1),
                nn.Conv2d(4, 8, 2, padding=(2, 1), padding_mode="reflect"),
                nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU()),
                nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1),
                nn.ConvTranspose2d(4, 8, (2, 3), stride=(1, 2), dilation=(2, 1), bias=False),
                nn.ConvTranspose2d(4, 8, 3, groups=2),
            ]
        )
        self.add = FloatFunctional()
        self.fc = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x = self.quant(x)
        maps = [conv(x) for conv in self.convs]
        pooled = self.add.add(maps[0].mean([2, 3]), maps[7].mean([2, 3]))
        return self.dequant(self.fc(pooled)), [self.dequant(each) for each in maps]


class Linears(Network):
    """Linear on three dimensions, with and without bias and ReLU; a ModuleDict; attention's products."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 16)
        self.layers = nn.ModuleDict(
            {"key": nn.Linear(16, 16, bias=False), "query": nn.Linear(16, 16), "value": nn.Linear(16, 16)}
        )
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16, bias=False))
        self.norm = nn.LayerNorm(16)
        self.products = FloatFunctional()
        self.scores = FloatFunctional()
        self.residual = FloatFunctional()
        self.softmax = Island(nn.Softmax(dim=-1))
        self.out = nn.Linear(6 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(self.quant(x))
        key, query, value = self.layers["key"](x), self.layers["query"](x), self.layers["value"](x)
        weights = self.softmax(self.scores.mul_scalar(self.products.matmul(query, key.transpose(1, 2)), 0.25))
        x = self.residual.add(self.scores.matmul(weights, value), x)
        x = self.feed(self.norm(x))
        return self.dequant(self.out(x.reshape(x.size(0), -1)))


class Activations(Network):
    """Every activation, each on the output of its own 1x1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        activations = [
            nn.ReLU6(),
            nn.Hardswish(),
            nn.ELU(0.7),
            nn.LeakyReLU(0.05),
            nn.PReLU(4),
            nn.Sigmoid(),
            nn.Tanh(),
            nn.Hardsigmoid(),
            nn.Hardtanh(-0.5, 1.25),
            nn.ReLU(),
            nn.Identity(),
        ]
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.branches = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 4, 1), nn.Identity(), act) for act in activations])
        self.cat = FloatFunctional()
        self.head = nn.Conv2d(4 * len(activations), 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(self.quant(x))
        parts = [branch(x) for branch in self.branches]
        return self.dequant(torch.clamp(self.head(self.cat.cat(parts, dim=1)), -1.5, 1.5))


class Normalizations(Network):
    """Normalizations that are not folded, quantized and in float islands."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer = nn.LayerNorm([16, 16])
        self.group = nn.GroupNorm(4, 8)
        self.instance = nn.InstanceNorm2d(8, affine=True)
        self.bare = nn.InstanceNorm2d(8)
        self.batch = nn.BatchNorm2d(8)
        self.batch_relu = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())
        self.island = Island(nn.BatchNorm2d(8))
        self.line = nn.InstanceNorm1d(8, affine=True)
        self.volume = nn.InstanceNorm3d(8, affine=True)
        self.batch3 = nn.BatchNorm3d(8)
        self.cat = FloatFunctional()
        self.head = nn.Conv2d(64, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(self.quant(x))
        line = self.line(x.flatten(2)).view(2, 8, 16, 16)
        volume = self.batch3(self.volume(x.view(2, 8, 4, 4, 16))).view(2, 8, 16, 16)
        first = [self.layer(x), self.group(x), self.instance(x), self.bare(x)]
        second = [self.island(self.batch(x)), self.batch_relu(x), line, volume]
        return self.dequant(self.head(self.cat.cat(first + second, dim=1)))


class Pooling(Network):
    """Pooling of 2-d maps, and of 1-d and 3-d views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.max = nn.MaxPool2d(3, 2, padding=1)
        self.dilated = nn.MaxPool2d(2, 1, dilation=2)
        self.average = nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)
        self.padded = nn.AvgPool2d((3, 2), 2, padding=1)
        self.ceil = nn.AvgPool2d(4, 3, ceil_mode=True)
        self.uneven = nn.AdaptiveAvgPool2d((5, 7))
        self.rows = nn.AdaptiveAvgPool2d((18, 1))
        self.line_max = nn.MaxPool1d(4)
        self.line_average = nn.AvgPool1d(3, 2, padding=1)
        self.line_adaptive = nn.AdaptiveAvgPool1d(10)
        self.float_volume = Island(nn.MaxPool3d(2))
        self.float_global = Island(nn.AdaptiveMaxPool2d(1))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(self.quant(x))
        line = x.flatten(2)
        volume = x.unsqueeze(2).reshape(2, 2, 4, 18, 18)
        return [
            self.dequant(self.max(x)),
            self.dequant(self.dilated(x)),
            self.dequant(self.average(x)),
            self.dequant(self.padded(x)),
            self.dequant(self.ceil(x)),
            self.dequant(self.uneven(x)),
            self.dequant(self.rows(x)),
            self.dequant(self.line_max(line)),
            self.dequant(self.line_average(line)),
            self.dequant(self.line_adaptive(line)),
            self.dequant(self.float_volume(volume)),
            self.dequant(self.float_global(x)),
            self.dequant(functional.avg_pool3d(volume, 2)),
            self.dequant(functional.adaptive_avg_pool3d(volume, (2, 3, 4))),
            self.dequant(x.mean([2, 3])),
            self.dequant(x.mean([1], keepdim=True)),
            self.dequant(x.mean((2, 3), keepdim=True)),
        ]


class Resizing(Network):
    """Interpolation by size and by scale, and related rearrangements."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.larger = nn.Upsample(scale_factor=2, mode="nearest")
        self.bilinear = nn.UpsamplingBilinear2d(scale_factor=2)
        self.shuffle = nn.PixelShuffle(2)
        self.unshuffle = nn.PixelUnshuffle(2)
        self.island = Island(nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=False))
        self.island_line = Island(nn.Upsample(size=77, mode="linear", align_corners=True))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(self.quant(x))
        volume = x.view(2, 2, 4, 12, 10)
        return [
            self.dequant(self.larger(x)),
            self.dequant(self.bilinear(x)),
            self.dequant(self.shuffle(x)),
            self.dequant(self.unshuffle(x)),
            self.dequant(self.island(x)),
            self.dequant(self.island_line(x.flatten(2))),
            self.dequant(functional.interpolate(x, size=(7, 25))),
            self.dequant(functional.interpolate(x, size=(7, 25), mode="nearest-exact")),
            self.dequant(functional.interpolate(x, scale_factor=(1.5, 0.7), mode="nearest")),
            self.dequant(functional.interpolate(x, size=(17, 6), mode="bilinear", align_corners=False)),
            self.dequant(functional.interpolate(x, scale_factor=(1.5, 0.7), mode="bilinear", align_corners=False)),
            self.dequant(functional.interpolate(x, scale_factor=2.5, mode="bilinear")),
            self.dequant(functional.interpolate(volume, size=(5, 7, 13))),
            self.dequant(functional.interpolate(volume, scale_factor=2.0, mode="nearest-exact")),
        ]


class Layout(Network):
    """Operators that only move integers, fed by a convolution so that the layout in memory varies."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.zeros = nn.ZeroPad2d((1, 2, 0, 1))
        self.mirror = nn.ReflectionPad2d((1, 2, 2, 1))
        self.flatten = nn.Flatten()
        self.unflatten = nn.Unflatten(1, (4, 2))
        self.dropout = nn.Dropout2d(0.1)
        self.head = nn.Linear(12 * 8, 5)
        self.register_buffer("chosen", torch.tensor([0, 5, 2]))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.dropout(self.stem(self.quant(x)))
        low, high = torch.split(x, [3, 5], dim=1)
        rows = x.permute(0, 2, 3, 1).reshape(x.size(0), 12, -1)
        return [
            self.dequant(low[:, :, 1:-1, ::3]),
            self.dequant(high[..., -4:]),
            self.dequant(x[:, 2]),
            self.dequant(x.select(3, -1)),
            self.dequant(x[1]),
            self.dequant(x.index_select(1, self.chosen)),
            self.dequant(torch.stack([low[:, 0], high[:, 0]], dim=1)),
            self.dequant(torch.cat([low, x], dim=1)),
            self.dequant(self.zeros(x)),
            self.dequant(functional.pad(x, [1, 0, 2, 1], value=0.75)),
            self.dequant(self.mirror(x)),
            self.dequant(self.flatten(x)),
            self.dequant(self.unflatten(x)),
            self.dequant(x.transpose(1, 3).contiguous().unsqueeze(-1).squeeze(-1)),
            self.dequant(self.head(rows)),
            self.dequant(channel_shuffle(x, 4)),
            self.dequant(x.repeat(1, 2, 1, 1)),
            self.dequant(x[:, :1].expand(-1, 3, -1, -1)),
            self.dequant(torch.narrow(x, 2, 3, 4)),
        ]


class Islands(Network):
    """Float modules between quantized ones, as in real networks."""

    def __init__(self) -> None:
        super().__init__()
        modules = [
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Sequential(nn.BatchNorm2d(8), nn.SiLU()),
            nn.Mish(),
            nn.Softplus(),
            nn.GELU(),
            nn.GELU(approximate="tanh"),
            nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.AvgPool2d(2)),
            nn.Softmax(dim=1),
            nn.LogSoftmax(dim=1),
            nn.ELU(),
            nn.CELU(0.5),
            nn.SELU(),
            nn.Softsign(),
            nn.GroupNorm(2, 8),
            nn.ZeroPad2d(0),
        ]
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.islands = nn.ModuleList([Island(module) for module in modules])
        self.cat = FloatFunctional()
        self.head = nn.Conv2d(8 * len(modules), 8, 1)
        self.fc = Island(nn.Linear(8, 8))
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(self.quant(x))
        parts = [island(x) for island in self.islands]
        x = self.head(self.cat.cat(parts, dim=1)).mean([2, 3])
        x = self.dequant(self.out(self.fc(x)))
        y = torch.exp(-x.abs()) / (1.0 + x.pow(2)).sqrt() - x.sum(1, keepdim=True)
        z = torch.maximum(torch.minimum(x, y), torch.log(2.0 + x.abs()).reciprocal() - 1.0)
        return functional.threshold(z, 0.1, 0.0).to(torch.float64)


class TwoInputs(Network):
    """Inputs: an image and a vector. Output: a tuple with a nested list; one output is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.quant_vector = QuantStub()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.embed = nn.Linear(5, 8)
        self.mul, self.add = FloatFunctional(), FloatFunctional()

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        x = self.stem(self.quant(image))
        v = self.embed(self.quant_vector(vector)).view(vector.size(0), 8, 1, 1)
        scaled = self.mul.mul(x, v)
        shifted = self.add.add(scaled, x)
        return self.dequant(shifted), [self.dequant(scaled), self.dequant(v)]


class DictionaryOutput(Network):
    """Outputs a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        self.heads = nn.ModuleDict({"mask": nn.Conv2d(8, 1, 1), "boxes": nn.Conv2d(8, 4, 3)})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.stem(self.quant(x))
        return {"mask": self.dequant(self.heads["mask"](x)), "boxes": self.dequant(self.heads["boxes"](x))}
