"""Small float networks in ONNX, and their quantization by ONNX Runtime's own tools."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

OPSET = 20


class Builder:
    """Nodes in a row, with pseudo-random weights."""

    def __init__(self, inputs: Mapping[str, Sequence[Any]], seed: int = 0) -> None:
        self.inputs = inputs
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(seed)

    def weight(self, *shape: int, spread: float = 0.0) -> str:
        values = self.random.normal(0, spread or 1 / np.sqrt(np.prod(shape[1:]) or 1), shape)
        return self.constant(values.astype(np.float32))

    def constant(self, values: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(self, x: str, channels: int, features: int, kernel: int, **attributes: Any) -> str:
        weight = self.weight(features, channels // attributes.get("group", 1), kernel, kernel)
        bias = self.weight(features, spread=0.1)
        return self("Conv", x, weight, bias, pads=[kernel // 2] * 4, **attributes)

    def linear(self, x: str, features_in: int, features: int) -> str:
        return self("Gemm", x, self.weight(features, features_in), self.weight(features, spread=0.1), transB=1)

    def finish(self, output: str, name: str) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(each, TensorProto.FLOAT, shape) for each, shape in self.inputs.items()]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def cnn() -> onnx.ModelProto:
    """Convolutions, plain, depthwise and pointwise; a residual sum, pooling, a classifier."""
    b = Builder({"image": [1, 3, 16, 16]})
    x = b("Relu", b.conv("image", 3, 8, 3))
    y = b("Clip", b.conv(x, 8, 8, 3, group=8), b.constant(np.float32(0)), b.constant(np.float32(6)))
    x = b("Add", x, b.conv(y, 8, 8, 1))
    x = b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b("Concat", x, b("Relu", b.conv(x, 8, 8, 3)), axis=1)
    x = b("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b("Flatten", b("GlobalAveragePool", b("LeakyRelu", b.conv(x, 16, 16, 3), alpha=0.1)))
    return b.finish(b("Softmax", b.linear(x, 16, 10)), "cnn")


def generator() -> onnx.ModelProto:
    """Upsampling: transposed convolutions, resizing, sigmoid gates."""
    b = Builder({"code": [1, 8, 4, 4]}, 1)
    x = b("ConvTranspose", "code", b.weight(8, 6, 3, 3), b.weight(6, spread=0.1), strides=[2, 2])
    x = b("Mul", x, b("Sigmoid", x))
    x = b("Resize", b("Relu", x), "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    return b.finish(b("HardSigmoid", b.conv(x, 6, 3, 3)), "generator")


def transformer() -> onnx.ModelProto:
    """One block: attention with two heads, layer normalization, a GELU written out."""
    b = Builder({"tokens": [1, 6, 16]}, 2)
    ones, zeros = b.constant(np.ones(16, np.float32)), b.constant(np.zeros(16, np.float32))
    x = b("LayerNormalization", "tokens", ones, zeros, axis=-1)
    heads = b.constant(np.array([1, 6, 2, 8]))
    q, k, v = (
        b(
            "Transpose",
            b("Reshape", b("Add", b("MatMul", x, b.weight(16, 16)), b.weight(16, spread=0.1)), heads),
            perm=p,
        )
        for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = b("Softmax", b("Mul", b("MatMul", q, k), b.constant(np.float32(0.35))), axis=-1)
    mixed = b("Reshape", b("Transpose", b("MatMul", scores, v), perm=[0, 2, 1, 3]), b.constant(np.array([1, 6, 16])))
    x = b("Add", "tokens", b("MatMul", mixed, b.weight(16, 16)))
    y = b("MatMul", b("LayerNormalization", x, ones, zeros, axis=-1), b.weight(16, 32))
    gate = b("Add", b("Erf", b("Div", y, b.constant(np.float32(2**0.5)))), b.constant(np.float32(1)))
    y = b("Mul", b("Mul", y, gate), b.constant(np.float32(0.5)))
    return b.finish(b("Add", x, b("MatMul", y, b.weight(32, 16))), "transformer")


def mlp() -> onnx.ModelProto:
    """Linear layers of either form."""
    b = Builder({"x": [4, 32]}, 3)
    x = b("Relu", b.linear("x", 32, 64))
    x = b("Tanh", b("Gemm", x, b.weight(64, 48), b.weight(48, spread=0.1)))
    return b.finish(b("MatMul", x, b.weight(48, 32)), "mlp")


NETWORKS = {"cnn": cnn, "generator": generator, "transformer": transformer, "mlp": mlp}

U8, S8, U16, S16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16, QuantType.QInt16
QDQ, QOP = {"quant_format": QuantFormat.QDQ}, {"quant_format": QuantFormat.QOperator}


def _types(activation: QuantType, weight: QuantType, **options: Any) -> dict[str, Any]:
    return {"activation_type": activation, "weight_type": weight, **options}


STATIC: dict[str, dict[str, Any]] = {
    "qdq u8s8": {**QDQ, **_types(U8, S8)},
    "qdq u8s8 per channel": {**QDQ, **_types(U8, S8, per_channel=True)},
    "qdq s8s8 per channel": {**QDQ, **_types(S8, S8, per_channel=True)},
    "qdq u8u8": {**QDQ, **_types(U8, U8)},
    "qdq u8u8 per channel": {**QDQ, **_types(U8, U8, per_channel=True)},
    "qdq 7 bits": {**QDQ, **_types(U8, S8, reduce_range=True)},
    "qdq symmetric": {**QDQ, **_types(S8, S8, extra_options={"ActivationSymmetric": True})},
    "qdq u16u8": {**QDQ, **_types(U16, U8)},
    "qdq s16s8 per channel": {**QDQ, **_types(S16, S8, per_channel=True)},
    "qdq contrib": {**QDQ, **_types(U16, S8, extra_options={"UseQDQContribOps": True})},
    "qdq int4": {**QDQ, **_types(U8, QuantType.QInt4)},
    "qdq uint4 per channel": {**QDQ, **_types(U8, QuantType.QUInt4, per_channel=True)},
    "qdq float weights": {**QDQ, **_types(U8, S8, per_channel=True, extra_options={"AddQDQPairToWeight": True})},
    "qdq float bias": {**QDQ, **_types(U8, S8, extra_options={"QuantizeBias": False})},
    "qoperator u8s8": {**QOP, **_types(U8, S8)},
    "qoperator u8u8": {**QOP, **_types(U8, U8)},
    "qoperator s8s8 per channel": {**QOP, **_types(S8, S8, per_channel=True)},
}
"""Name → arguments of quantize_static."""


class Batches(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        self.batches: Iterator[dict[str, Any]] = iter([inputs(model, seed) for seed in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


def inputs(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    """Pseudo-random, standard normal."""
    random = np.random.default_rng(seed)
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def network(name: str, opset: int = OPSET) -> onnx.ModelProto:
    """A new model each time, since the tools modify it. The operators have the same form from opset 17 on."""
    model = NETWORKS[name]()
    model.opset_import[0].version = opset
    return model


def static(name: str, form: str, folder: Path, opset: int = OPSET) -> Path:
    """A network, quantized by quantize_static."""
    path = folder / "m.onnx"
    with _silence():
        quantize_static(network(name, opset), path, Batches(network(name)), **STATIC[form])
    return path


def dynamic(name: str, folder: Path, **options: Any) -> Path:
    """A network, quantized by quantize_dynamic."""
    path = folder / "m.onnx"
    with _silence():
        quantize_dynamic(network(name), path, **options)
    return path


def weight_only(name: str, folder: Path, **options: Any) -> Path:
    """A network whose products have block-wise low-bit weights."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    path = folder / "m.onnx"
    model = onnx.ModelProto()
    model.CopyFrom(network(name))
    with _silence():
        quantizer = MatMulNBitsQuantizer(model, **options)
        quantizer.process()
    onnx.save(quantizer.model.model, path)
    return path


class _silence:  # noqa: N801
    """Silences the log of the tools."""

    def __enter__(self) -> None:
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(logging.NOTSET)
