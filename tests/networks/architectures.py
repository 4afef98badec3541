"""Published architectures, written out compactly, ready for quantization in eager mode and by FX.

A module names in `fuse` the children that eager mode fuses; a Sequential is searched for the usual runs.
Annotations are not postponed here: FX prints them into the code that TorchScript then compiles.
"""

from typing import ClassVar

import torch
from torch import nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.nn import functional


class Network(nn.Module):
    """A network between the two stubs; FX mode ignores them."""

    fuse: ClassVar[list[list[str]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.dequant = DeQuantStub()


def conv_bn(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, *last: nn.Module):
    padding = kernel // 2
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *last)


def conv_bn_relu(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return conv_bn(inputs, outputs, kernel, stride, groups, nn.ReLU())


class InvertedResidual(nn.Module):
    """Sandler et al. 2018: expand, depthwise, project; added to the input where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [conv_bn_relu(inputs, hidden)] if expansion != 1 else []
        depthwise = conv_bn_relu(hidden, hidden, 3, stride, groups=hidden)
        project = [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*expand, depthwise, *project)
        self.residual = stride == 1 and inputs == outputs
        self.skip_add = FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.residual:
            return self.skip_add.add(x, self.conv(x))
        return self.conv(x)


class MobileNetV2(Network):
    """MobileNetV2 with ReLU instead of ReLU6, as in torchvision's quantizable version, with its names."""

    SETTINGS: ClassVar = [
        # expansion, channels, repeats, stride
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            rounded = max(8, int(channels * width + 4) // 8 * 8)
            return rounded + 8 if rounded < 0.9 * channels * width else rounded

        channels = scaled(32)
        features: list[nn.Module] = [conv_bn_relu(3, channels, 3, 2)]
        for expansion, wanted, repeats, stride in self.SETTINGS:
            for index in range(repeats):
                features.append(InvertedResidual(channels, scaled(wanted), stride if index == 0 else 1, expansion))
                channels = scaled(wanted)
        last = scaled(int(1280 * max(1.0, width)))
        self.features = nn.Sequential(*features, conv_bn_relu(channels, last))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(self.quant(x))
        x = functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1)
        return self.dequant(self.classifier(x))


class BasicBlock(nn.Module):
    """He et al. 2016: two 3x3 convolutions and the identity (or a 1x1 projection)."""

    fuse: ClassVar = [["conv1", "bn1", "relu1"], ["conv2", "bn2"]]

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.downsample = None if same else conv_bn(inputs, outputs, 1, stride)
        self.add_relu = FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        identity = x if self.downsample is None else self.downsample(x)
        return self.add_relu.add_relu(y, identity)


class ResNet18(Network):
    """ResNet-18; `width` is the channel count of the first stage (64 as published)."""

    fuse: ClassVar = [["conv1", "bn1", "relu"]]

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        for stage in range(4):
            inputs, outputs = sizes[stage], sizes[stage + 1]
            blocks = [BasicBlock(inputs, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs, 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(sizes[4], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(self.quant(x)))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.dequant(self.fc(torch.flatten(self.avgpool(x), 1)))


class SqueezeExcitation(nn.Module):
    """Hu et al. 2018 in the form of MobileNetV3: a gate of hardsigmoid."""

    fuse: ClassVar = [["fc1", "activation"]]

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()
        self.skip_mul = FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
        return self.skip_mul.mul(gate, x)


class MobileNetV3Block(Network):
    """The start of MobileNetV3-small: hardswish, one block with ReLU and one with hardswish, both squeezed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, 2, 1, nn.Hardswish())
        self.first = nn.Sequential(conv_bn_relu(16, 16, 3, 2, groups=16), SqueezeExcitation(16, 8), *conv_bn(16, 16))
        self.expand = conv_bn(16, 96, 1, 1, 1, nn.Hardswish())
        self.depthwise = conv_bn(96, 96, 5, 1, 96, nn.Hardswish())
        self.squeeze = SqueezeExcitation(96, 24)
        self.project = conv_bn(96, 16)
        self.skip_add = FloatFunctional()
        self.classifier = nn.Sequential(nn.Linear(16, 32), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.stem(self.quant(x)))
        x = self.skip_add.add(self.project(self.squeeze(self.depthwise(self.expand(x)))), x)
        return self.dequant(self.classifier(x.mean([2, 3])))


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    batch, channels, height, width = x.size(0), x.size(1), x.size(2), x.size(3)
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Ma et al. 2018 (ShuffleNetV2): half of the channels pass unchanged; a unit with stride 2 has two branches."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = channels // 2
        inputs = half if stride == 1 else channels
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(*conv_bn(inputs, inputs, 3, stride, inputs), *conv_bn_relu(inputs, half))
        self.branch2 = nn.Sequential(
            *conv_bn_relu(inputs, half), *conv_bn(half, half, 3, stride, half), *conv_bn_relu(half, half)
        )
        self.cat = FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stride == 1:
            kept, changed = x.chunk(2, dim=1)
            out = self.cat.cat([kept, self.branch2(changed)], dim=1)
        else:
            out = self.cat.cat([self.branch1(x), self.branch2(x)], dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(Network):
    """Two stages of ShuffleNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn_relu(3, 24, 3, 2)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.stage2 = nn.Sequential(ShuffleUnit(24, 2), ShuffleUnit(24, 1))
        self.stage3 = nn.Sequential(ShuffleUnit(24, 2), ShuffleUnit(24, 1))
        self.fc = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage3(self.stage2(self.maxpool(self.conv1(self.quant(x)))))
        return self.dequant(self.fc(x.mean([2, 3])))


class UNet(Network):
    """Ronneberger et al. 2015 in small: each kind of upsampling once (learned, nearest, both bilinear ones).

    The learned one has 12 channels: with a kernel of height 2 and a multiple of 8 channels, fbgemm's transposed
    convolution (torch 2.13) computes different numbers each time its weights are packed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_bn_relu(3, 8, 3)
        self.down2 = conv_bn_relu(8, 12, 3)
        self.down3 = conv_bn_relu(12, 12, 3)
        self.bottom = conv_bn_relu(12, 12, 3)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.up3 = nn.ConvTranspose2d(12, 12, 2, stride=2)
        self.merge3 = conv_bn_relu(24, 12, 3)
        self.merge2 = conv_bn_relu(24, 8, 3)
        self.merge1 = conv_bn_relu(24, 8, 3)
        self.head = nn.Conv2d(8, 2, 1)
        self.cat3, self.cat2, self.cat1 = FloatFunctional(), FloatFunctional(), FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(self.quant(x))
        two = self.down2(self.pool(one))
        three = self.down3(self.pool(two))
        deep = self.bottom(self.pool(three))
        up = self.merge3(self.cat3.cat([three, self.up3(deep)], dim=1))
        up = self.merge2(self.cat2.cat([two, functional.interpolate(up, scale_factor=2.0, mode="nearest")], dim=1))
        size = (one.size(2), one.size(3))
        aligned = functional.interpolate(up, size=size, mode="bilinear", align_corners=True)
        centred = functional.interpolate(up, size=size, mode="bilinear", align_corners=False)
        up = self.merge1(self.cat1.cat([one, aligned, centred], dim=1))
        return self.dequant(self.head(up))


class Conv1dNet(Network):
    """A keyword spotter on raw samples.

    The transposed convolution keeps the number of channels: onednn's (torch 2.13) is wrong if it changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(2, 8, 9, stride=4, padding=4),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(8, 16, 3, padding=2, dilation=2, groups=2, bias=False),
            nn.BatchNorm1d(16),
            nn.Conv1d(16, 16, 1),
            nn.ReLU(),
            nn.AvgPool1d(2),
        )
        self.up = nn.ConvTranspose1d(16, 16, 4, stride=2, padding=1)
        self.pool = nn.AdaptiveAvgPool1d(4)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.up(self.features(self.quant(x))))
        return self.dequant(self.fc(x.reshape(x.size(0), -1)))


class Conv3dNet(Network):
    """A video classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(2, 8, 3, stride=(1, 2, 2), padding=1, bias=False),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.AvgPool3d(2),
            nn.Conv3d(8, 16, (1, 3, 3), padding=(0, 1, 1), groups=2),
            nn.BatchNorm3d(16),
            nn.Conv3d(16, 16, 1),
            nn.ReLU(),
        )
        self.up = nn.ConvTranspose3d(16, 8, 2, stride=2)
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.up(self.features(self.quant(x))))
        return self.dequant(self.fc(x.flatten(1)))
