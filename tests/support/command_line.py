"""Runs the command line, on a small file."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from qfmt.cli import main
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from support.paths import ROOT


def tiny_model(weight_name: str = "fc1.weight") -> Model:
    """x → quantize → Linear with a fused ReLU → dequantize → y; then a float Relu → z."""
    weight = np.array([[1, -2, 3], [-128, 5, 6]], np.int8)
    per_channel = Quantization.of((0.5, 0.25), (0, 0), -128, 127, axis=0, scale_dtype="float64")
    tensors = [
        Tensor("x", "float32", ("N", 3)),
        Tensor("quant", "uint8", ("N", 3), quantization=Quantization.per_tensor(0.125, 64, "uint8")),
        Tensor.constant(weight_name, weight, per_channel, aliases=("fc1._packed_params._packed_params",)),
        Tensor.constant("fc1.bias", np.array([0.5, -1.0], np.float32)),
        Tensor("fc1", "uint8", ("N", 2), quantization=Quantization.per_tensor(0.25, 3, "uint8", quant_min=3)),
        Tensor("y", "float32", ("N", 2)),
        Tensor("z", "float32", ("N", 2)),
    ]
    nodes = (
        Node("QuantizeLinear", ("x",), ("quant",), version=23, rule="reciprocal_fma"),
        Node("qfmt.Linear", ("quant", weight_name, "fc1.bias"), ("fc1",), name="fc1", rule="float_bias"),
        Node("DequantizeLinear", ("fc1",), ("y",), version=23),
        Node("Relu", ("y",), ("z",), version=14),
    )
    graph = Graph(("x",), ("y", "z"), nodes, {tensor.name: tensor for tensor in tensors})
    return Model(graph, "test", "fbgemm", {"framework": "pytorch", "format": "torchscript"})


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="qfmt")


def trouble(*arguments: object) -> str:
    """The one line that a failing command prints."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("qfmt: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def start(*arguments: object, variables: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command of this checkout in a separate process; options are Popen's."""
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "QFMT_DEBUG")}
    environment |= {"PYTHONPATH": str(ROOT), **(variables or {})}
    return subprocess.Popen([sys.executable, "-m", "qfmt", *map(str, arguments)], env=environment, **options)
