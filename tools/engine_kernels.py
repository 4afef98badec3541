"""Engines that compute the convolutions of tools/two_convolutions.py: PyTorch, ONNX Runtime, TFLite, formulas, and
qfmt with each rule. Each accepts a layer and x, uint8 [1, I, H, W], and returns y, uint8 [1, O, H, W]."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.passes.lowering import lower_integer
from two_convolutions import Grid, Layer, depthwise_layer, exact, fixed_point

Run = Callable[[Layer, np.ndarray], np.ndarray]


class Engine(NamedTuple):
    """An engine. `stated` is the rule that qfmt states for it, `rule` is the name of the rule."""

    name: str
    run: Run
    rule: str = ""
    stated: Run | None = None


# Arithmetic that qfmt states


def as_model(layer: Layer, rule: str) -> Model:
    """The layer as a model from integers to integers."""
    channels = len(layer.weight)
    weight = Quantization.of(tuple(map(float, layer.weight_scale)), (0,) * channels, -128, 127, 0)
    low = layer.output.zero_point if layer.relu else None
    tensors = [
        Tensor("x", "uint8", ("N", layer.weight.shape[1] * layer.group, "H", "W"), None, _grid(layer.input)),
        Tensor.constant("w", layer.weight, weight),
        Tensor.constant("b", layer.bias),
        Tensor("y", "uint8", ("N", channels, "H", "W"), None, _grid(layer.output, low)),
    ]
    attributes = {"kernel_shape": (3, 3), "pads": (1,) * 4, "strides": (1, 1), "dilations": (1, 1)}
    node = Node("Conv", ("x", "w", "b"), ("y",), attributes | {"group": layer.group}, layer.name, 22, rule)
    return Model(Graph(("x",), ("y",), (node,), {tensor.name: tensor for tensor in tensors}))


def _grid(grid: Grid, quant_min: int | None = None) -> Quantization:
    return Quantization.per_tensor(float(grid.scale), grid.zero_point, "uint8", quant_min=quant_min)


def by_rule(rule: str) -> Run:
    return lambda layer, x: as_model(layer, rule).run({"x": x})["y"]


def lowered(rule: str, form: str, **options: Any) -> Run:
    """The rule, lowered in one of the forms of `--integer-only`."""
    return lambda layer, x: lower_integer(as_model(layer, rule), form=form, **options).run({"x": x})["y"]


# Engines


def torch_engine(kernels: str) -> Run:
    def run(layer: Layer, x: np.ndarray) -> np.ndarray:
        import torch

        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = kernels
        try:
            return _convolved(layer, x)
        finally:
            torch.backends.quantized.engine = before

    return run


def _convolved(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Compute with torch's current engine."""
    import torch

    quantized = torch.ops.quantized
    given = torch._make_per_tensor_quantized_tensor(
        torch.from_numpy(x), float(layer.input.scale), layer.input.zero_point
    )
    scales = torch.from_numpy(layer.weight_scale.astype(np.float64))
    weight = torch._make_per_channel_quantized_tensor(
        torch.from_numpy(layer.weight), scales, torch.zeros(len(scales), dtype=torch.int64), 0
    )
    packed = quantized.conv2d_prepack(weight, torch.from_numpy(layer.bias), [1, 1], [1, 1], [1, 1], layer.group)
    call = quantized.conv2d_relu if layer.relu else quantized.conv2d
    return call(given, packed, float(layer.output.scale), layer.output.zero_point).int_repr().numpy()


def onnx_runtime(form: str, is_optimized: bool) -> Run:
    """ONNX Runtime on a model that qfmt exports by the rule of ONNX, with an int32 bias."""

    def run(layer: Layer, x: np.ndarray) -> np.ndarray:
        import onnxruntime

        levels, options = onnxruntime.GraphOptimizationLevel, onnxruntime.SessionOptions()
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if is_optimized else levels.ORT_DISABLE_ALL
        options.log_severity_level = 4
        proto = as_model(layer, "integer_bias").to_onnx(form=form)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    return run


def tflite(python: str, kernels: str) -> Run:
    """TFLite in another Python, with int8: 128 less than our uint8, channels last."""

    def run(layer: Layer, x: np.ndarray) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            given, result = Path(folder, "given.npz"), Path(folder, "y.npy")
            np.savez(
                given,
                x=(x.astype(np.int16) - 128).astype(np.int8).transpose(0, 2, 3, 1),
                w=layer.weight.transpose(0, 2, 3, 1),
                b=layer.whole_bias.astype(np.int32),
                x_scale=layer.input.scale,
                x_zero=layer.input.zero_point - 128,
                w_scale=layer.weight_scale,
                y_scale=layer.output.scale,
                y_zero=layer.output.zero_point - 128,
                relu=layer.relu,
            )
            command = [python, str(Path(__file__).with_name("run_litert.py")), kernels, str(given), str(result)]
            subprocess.run(command, check=True, capture_output=True)
            return (np.load(result).astype(np.int16) + 128).astype(np.uint8).transpose(0, 3, 1, 2)

    return run


def x86_takes() -> str:
    """The engine whose kernels x86 uses for convolutions on this processor: onednn if it has VNNI instructions.

    fbgemm's depthwise kernel saturates on any processor.
    """
    x, layer = depthwise_layer(32)
    found = (torch_engine(each)(layer, x) for each in ("x86", "fbgemm"))
    return "fbgemm" if np.array_equal(*found) else "onednn"


def engines(python: str | None) -> list[Engine]:
    """All engines; `python` is a Python with TFLite."""
    whole = by_rule("integer_bias")
    x86_rule = {"fbgemm": "float_bias", "onednn": "affine"}[x86_takes()]
    double, single = (lowered("integer_bias", f"fixed_point_{each}") for each in ("double", "single"))
    found = [
        Engine("PyTorch, fbgemm", torch_engine("fbgemm"), "`float_bias`", by_rule("float_bias")),
        Engine("PyTorch, onednn", torch_engine("onednn"), "`affine`", by_rule("affine")),
        Engine("PyTorch, x86", torch_engine("x86"), f"`{x86_rule}`", by_rule(x86_rule)),
        Engine(
            "PyTorch, qnnpack", torch_engine("qnnpack"), "`integer_bias_reciprocal`", by_rule("integer_bias_reciprocal")
        ),
        Engine("ONNX Runtime, `QLinearConv`", onnx_runtime("qoperator", False), "`integer_bias`", whole),
        Engine("ONNX Runtime, Q and DQ, optimized", onnx_runtime("qdq", True), "`integer_bias`", whole),
        Engine("ONNX Runtime, Q and DQ, not optimized", onnx_runtime("qdq", False), "`integer_bias`", whole),
    ]
    if python:
        found += [
            Engine("TFLite, XNNPACK (the default)", tflite(python, "XNNPACK"), "`integer_bias`", whole),
            Engine("TFLite, reference", tflite(python, "reference"), "`fixed_point_double`", double),
            Engine(
                "TFLite, built-in",
                tflite(python, "built-in"),
                "none: `fixed_point_double` with its second ties up",
                functools.partial(fixed_point, rounding="double up"),
            ),
        ]
    return [
        *found,
        Engine(
            "CMSIS-NN, gemmlowp (formula)",
            functools.partial(fixed_point, rounding="double"),
            "`fixed_point_double`",
            double,
        ),
        Engine(
            "TOSA, CMSIS-NN with single rounding (formula)",
            functools.partial(fixed_point, rounding="single"),
            "`fixed_point_single`",
            single,
        ),
        Engine("rational numbers, float bias", functools.partial(exact, ties="even")),
        Engine("rational numbers, int32 bias", functools.partial(exact, ties="even", whole_bias=True)),
    ]


FORMS: dict[str, dict[str, Any]] = {
    "`--exact`": {"form": "multiply_shift", "exact": True},
    "`--exact --bits 16`": {"form": "multiply_shift", "bits": 16, "exact": True},
    "`multiply_shift`, 32 bits": {"form": "multiply_shift", "bits": 32},
    "`multiply_shift`, 16 bits": {"form": "multiply_shift", "bits": 16},
    "`multiply_shift`, 8 bits": {"form": "multiply_shift", "bits": 8},
    "`thresholds`": {"form": "thresholds"},
    "`fixed_point_single`": {"form": "fixed_point_single"},
    "`fixed_point_double`": {"form": "fixed_point_double"},
    "`power_of_two`": {"form": "power_of_two"},
}
"""Options of `--integer-only`, for the rule of fbgemm."""


def forms() -> list[Engine]:
    stated = by_rule("float_bias")
    return [Engine(name, lowered("float_bias", **options), "`float_bias`", stated) for name, options in FORMS.items()]
