"""Runs networks of torch and the modules that `Model.to_torch` makes of them, and compares the outputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

import qfmt
from networks import pytorch
from qfmt.model import Model

from .shared import made_once


@cache
def archive(name: str) -> bytes:
    """A network as torch.jit.save writes it, made once per test run."""

    def make(folder: Path) -> None:
        pytorch.save_as(*pytorch.quantized(name, pytorch.NETWORKS[name].modes[-1]), "trace", folder / "m.pt")

    return (made_once(f"torch-{name}", make) / "m.pt").read_bytes()


@cache
def model_of(name: str, engine: str = "fbgemm") -> Model:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt"
        path.write_bytes(archive(name))
        qfmt.save(qfmt.convert(path, engine=engine), Path(folder) / "m.qfb")
        return qfmt.load(Path(folder) / "m.qfb")


def inputs_of(name: str) -> pytorch.Inputs:
    return pytorch.example_inputs(name, pytorch.HELD_BACK)


@cache
def expected_of(name: str, engine: str = "fbgemm") -> list[np.ndarray]:
    """What the interpreter computes for these inputs."""
    return run(model_of(name, engine), inputs_of(name))


def run(model: Model, inputs: pytorch.Inputs) -> list[np.ndarray]:
    results = model.run(dict(zip(model.graph.inputs, (tensor.numpy() for tensor in inputs), strict=True)))
    return [results[name] for name in model.graph.outputs]


def call(module: torch.nn.Module, inputs: pytorch.Inputs) -> list[np.ndarray]:
    """The outputs, quantized ones as integers."""
    with torch.no_grad():
        outputs = pytorch.flat(module(*inputs))
    return [(tensor.int_repr() if tensor.is_quantized else tensor).numpy() for tensor in outputs]


def equal(got: list[np.ndarray], expected: list[np.ndarray]) -> tuple[int, int]:
    """The numbers of equal outputs and of all; asserts equal dtypes and shapes."""
    assert [(array.dtype, array.shape) for array in got] == [(array.dtype, array.shape) for array in expected]
    pairs = list(zip(got, expected, strict=True))
    return sum(int((a == b).sum()) for a, b in pairs), sum(b.size for _, b in pairs)


def saved(module: nn.Module, path: Path, trace: tuple[torch.Tensor, ...] | None = None) -> Path:
    """Write a module as TorchScript: scripted, or traced with these inputs."""
    module = module.eval()
    archive = torch.jit.script(module) if trace is None else torch.jit.trace(module, trace, check_trace=False)
    torch.jit.save(archive, path)
    return path
