"""Networks for the tests: built, calibrated, quantized and saved by torch, with fixed seeds.

`NETWORKS` maps a name to its definition and input shapes; `quantized(name, mode)` returns the converted model and
inputs in the calibrated range; `save_as` writes it as each kind of TorchScript archive.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.ao import quantization as tq
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qfmt
from qfmt.model import Model

from . import architectures as published
from . import direct, operators

Inputs = tuple[torch.Tensor, ...]

KINDS = ("trace", "script", "freeze")


@dataclass(frozen=True)
class Definition:
    """Defines a network. `modes`: eager and fx quantize a float network; direct is quantized as written.

    `histograms`: calibrate with torch's default observer, or with the range alone (deep networks, for speed).
    `declared`: the code does not determine the rank of the input, so a conversion must state it.
    """

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    modes: tuple[str, ...] = ("eager", "fx")
    histograms: bool = True
    declared: bool = False


NETWORKS: dict[str, Definition] = {
    "mobilenet_v2": Definition(
        partial(published.MobileNetV2, width=0.5, classes=100), ((2, 3, 64, 64),), histograms=False
    ),
    "resnet18": Definition(partial(published.ResNet18, width=16, classes=100), ((2, 3, 64, 64),), histograms=False),
    "mobilenet_v3": Definition(published.MobileNetV3Block, ((2, 3, 48, 48),)),
    "shufflenet_v2": Definition(published.ShuffleNetV2, ((2, 3, 64, 64),)),
    "unet": Definition(published.UNet, ((2, 3, 32, 40),)),
    "conv1d": Definition(published.Conv1dNet, ((3, 2, 256),)),
    "conv3d": Definition(published.Conv3dNet, ((2, 2, 8, 16, 16),)),
    "convolutions": Definition(operators.Convolutions, ((2, 4, 16, 16),)),
    "linears": Definition(operators.Linears, ((2, 6, 24),), declared=True),
    "activations": Definition(operators.Activations, ((2, 3, 16, 16),)),
    "normalizations": Definition(operators.Normalizations, ((2, 3, 16, 16),)),
    "pooling": Definition(operators.Pooling, ((2, 3, 18, 18),)),
    "resizing": Definition(operators.Resizing, ((2, 3, 12, 10),)),
    "layout": Definition(operators.Layout, ((2, 3, 12, 12),)),
    "islands": Definition(operators.Islands, ((2, 3, 16, 16),)),
    "two_inputs": Definition(operators.TwoInputs, ((2, 3, 16, 16), (2, 5))),
    "dictionary": Definition(operators.DictionaryOutput, ((2, 3, 16, 16),)),
    "arithmetic": Definition(direct.Arithmetic, ((2, 4, 12, 13),), ("direct",)),
    "functions": Definition(direct.Functions, ((2, 4, 12, 13),), ("direct",)),
    "volumes": Definition(direct.Volumes, ((2, 4, 6, 8, 8), (2, 4, 20)), ("direct",)),
    "signed": Definition(direct.Signed, ((2, 4, 12, 13),), ("direct",)),
}

LARGE: dict[str, Definition] = {
    "mobilenet_v2_224": Definition(published.MobileNetV2, ((1, 3, 224, 224),), ("fx",), histograms=False),
    "resnet18_224": Definition(published.ResNet18, ((1, 3, 224, 224),), ("fx",), histograms=False),
}


def cells() -> list[tuple[str, str]]:
    """Every (name, mode) of the matrix."""
    return [(name, mode) for name, definition in NETWORKS.items() for mode in definition.modes]


HELD_BACK = 101
"""The seed of inputs that are not used for calibration."""


def example_inputs(name: str, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in definition(name).shapes)


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore torch's warnings about making and running networks (tracing, observers)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@quiet()
def build(name: str) -> tuple[nn.Module, Inputs]:
    """The float network in eval mode, with settled batch statistics, and example inputs."""
    torch.manual_seed(sum(name.encode()))
    model = definition(name).make()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = None  # plain averages, which settle after three batches
            norm.weight.uniform_(0.7, 1.3)
            norm.bias.uniform_(-0.3, 0.3)
        if norms:
            model.train()
            for seed in range(3):
                model(*example_inputs(name, seed))
    return model.eval(), example_inputs(name, 100)


@quiet()
def quantize(name: str, mode: str, engine: str = "fbgemm", scale: float = 1) -> tuple[nn.Module, Inputs]:
    """The converted model (in eval mode), and inputs that were not used for calibration, which are times `scale`."""
    if mode == "direct":
        torch.manual_seed(sum(name.encode()))
        return definition(name).make().eval(), example_inputs(name, HELD_BACK)
    torch.backends.quantized.engine = engine
    model, inputs = build(name)
    chosen = tq.get_default_qconfig(engine)
    if not definition(name).histograms:
        reduce_range = engine != "qnnpack"
        chosen = tq.QConfig(tq.MinMaxObserver.with_args(reduce_range=reduce_range), chosen.weight)
    prepared = _prepare_fx(model, chosen, inputs) if mode == "fx" else _prepare_eager(model, chosen)
    with torch.no_grad():
        for seed in range(10, 14):
            prepared(*(tensor * scale for tensor in example_inputs(name, seed)))
    converted = convert_fx(prepared) if mode == "fx" else tq.convert(prepared)
    return converted.eval(), example_inputs(name, HELD_BACK)


@cache
def quantized(name: str, mode: str) -> tuple[nn.Module, Inputs]:
    """`quantize` with engine fbgemm, once per test run."""
    return quantize(name, mode)


@quiet()
def save_as(model: nn.Module, inputs: Inputs, kind: str, path: Path) -> Path:
    """Write `model` as a TorchScript archive of that kind."""
    with torch.no_grad():
        if kind == "trace":
            archive = torch.jit.trace(model, inputs, check_trace=False, strict=False)
        else:
            archive = torch.jit.script(model)
        if kind == "freeze":
            archive = torch.jit.freeze(archive)
    torch.jit.save(archive, path)
    return path


def flat(outputs: object) -> list[torch.Tensor]:
    """The tensors of an output, nested tuples, lists and dictionaries opened in order."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, dict) else outputs
    return [tensor for value in values for tensor in flat(value)]


def definition(name: str) -> Definition:
    return NETWORKS.get(name) or LARGE[name]


def _prepare_fx(model: nn.Module, qconfig: tq.QConfig, inputs: Inputs) -> nn.Module:
    if isinstance(model, published.Network):
        model.quant = model.dequant = nn.Identity()  # FX inserts its own
    mapping = tq.get_default_qconfig_mapping().set_global(qconfig)
    mapping.set_module_name_regex(rf".*{re.escape(operators.STAYS_FLOAT)}\b.*", None)
    return prepare_fx(model, mapping, inputs)


def _prepare_eager(model: nn.Module, qconfig: tq.QConfig) -> nn.Module:
    for module in list(model.modules()):
        if runs := getattr(module, "fuse", None) or _runs(module):
            tq.fuse_modules(module, runs, inplace=True)
    model.qconfig = qconfig
    for name, module in model.named_modules():
        if operators.STAYS_FLOAT in name:
            module.qconfig = None
        elif isinstance(module, _PER_TENSOR_WEIGHT):
            module.qconfig = tq.QConfig(qconfig.activation, tq.default_weight_observer)
    return tq.prepare(model)


_PER_TENSOR_WEIGHT = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.PReLU)
"""Eager mode has no per-channel weight observer for these."""

_FUSABLE = [
    (nn.Conv1d, nn.BatchNorm1d, nn.ReLU),
    (nn.Conv2d, nn.BatchNorm2d, nn.ReLU),
    (nn.Conv3d, nn.BatchNorm3d, nn.ReLU),
    (nn.Conv1d, nn.BatchNorm1d),
    (nn.Conv2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.BatchNorm3d),
    (nn.Conv1d, nn.ReLU),
    (nn.Conv2d, nn.ReLU),
    (nn.Conv3d, nn.ReLU),
    (nn.Linear, nn.ReLU),
    (nn.BatchNorm2d, nn.ReLU),
    (nn.BatchNorm3d, nn.ReLU),
]


def _runs(module: nn.Module) -> list[list[str]]:
    """The names of fusable neighbours in a Sequential, longest first."""
    if type(module) is not nn.Sequential:
        return []
    children = list(module.named_children())
    runs, at = [], 0
    while at < len(children):
        kinds = tuple(type(child) for _, child in children[at : at + 3])
        length = next((len(run) for run in _FUSABLE if kinds[: len(run)] == run), 0)
        if length:
            runs.append([name for name, _ in children[at : at + length]])
        at += max(length, 1)
    return runs


def convert(name: str, archive: Path, engine: str = "fbgemm") -> Model:
    """Convert an archive, with input shapes only if the definition of its network requires them."""
    network = definition(name)
    if not network.declared:
        return qfmt.convert(archive, engine=engine)
    (shape,) = network.shapes
    return qfmt.convert(archive, engine=engine, input_shapes={"x": (None,) * len(shape)})


def named(model: Model, inputs: Inputs) -> dict[str, np.ndarray]:
    return dict(zip(model.graph.inputs, (tensor.numpy() for tensor in inputs), strict=True))
