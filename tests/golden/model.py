"""The models in the golden files, which use every feature of the format.

`python tests/golden/model.py` wrote `1.0.qfb` and `1.0-blocks.qfb`. The files are never written again: they
represent existing files of users. Additions of a later minor version get a separate file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.model import DTYPES, Observed, numpy_dtype

CONV = {"dilations": (1, 1), "group": 1, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}


def golden_model() -> Model:
    """A quantized convolution between quantize and dequantize, an unknown operator, and a constant of every dtype."""
    image = Quantization.of((0.0078125,), (128,), 0, 255)
    activation = Quantization.of(
        (0.05000000074505806,),
        (3,),
        3,
        255,
        observed=Observed("HistogramObserver", (-0.15,), (12.5,), 0, 127, "per_tensor_affine"),
    )
    weight = Quantization.of((0.5, 0.001953125), (0, 0), -127, 127, axis=0, scale_dtype="float64")
    taps = (np.arange(2 * 3 * 3 * 3) % 255 - 127).astype(np.int8).reshape(2, 3, 3, 3)
    tensors = [
        Tensor("x", "float32", ("N", 3, 8, 8), aliases=("args.0", "image")),
        Tensor("x/quantized", "uint8", ("N", 3, 8, 8), None, image),
        Tensor.constant("conv.weight", taps, weight, aliases=("conv._packed_params._packed_params",)),
        Tensor.constant("conv.bias", np.array([0.25, -1e-8], np.float32)),
        Tensor("conv", "uint8", ("N", 2, 4, 4), None, activation, ("features.0.0", "relu")),
        Tensor("y", "float32", ("N", 2, 4, 4)),
        Tensor("größe", "int64", None),
        *(_constant(name) for name, entry in DTYPES.items() if entry.code <= 19),
    ]
    nodes = (
        Node("QuantizeLinear", ("x",), ("x/quantized",), version=23, rule="reciprocal_fma"),
        Node(
            "Conv",
            ("x/quantized", "conv.weight", "conv.bias"),
            ("conv",),
            CONV,
            "conv",
            22,
            "float_bias",
            "features.0.0",
            "quantized::conv2d_relu",
        ),
        Node("DequantizeLinear", ("conv",), ("y",), version=23),
        Node(
            "vendor.Unknown",
            ("y", ""),
            ("größe",),
            {"f": -0.0, "floats": (0.1, float("inf")), "i": -(2**63), "ints": (), "s": "ß", "strings": ("", "a")},
        ),
    )
    graph = Graph(("x",), ("y", "größe"), nodes, {tensor.name: tensor for tensor in tensors}, "golden")
    return Model(graph, "qfmt", "fbgemm", {"format": "none"}, {"author": "qfmt", "licence": "MIT", "note": ""})


def blocks_model() -> Model:
    """Block-wise scales of every kind, quantized floats, and the element types that were added with them."""
    table = np.arange(21).reshape(3, 7) % 16
    rows = np.array([[0.5, -0.25], [0.0, 1.5], [2.0, 0.125]], np.float16)
    points = np.array([[0, 15], [8, 7], [1, 2]])
    tiles = np.array([[1, 2], [0.5, 0.25]], np.float32)
    mx = np.array([[0.25, 8], [1, 2.0**-127], [2.0**127, 4]]).astype(ml_dtypes.float8_e8m0fnu)
    grids = {
        "groups": ("uint4", Quantization.of_blocks("uint4", (3, 7), (1, 4), rows, points)),
        "one zero point": ("uint4", Quantization.of_blocks("uint4", (3, 7), (1, 4), rows, 8)),
        "float zero points": ("uint4", Quantization.of_blocks("uint4", (3, 7), (1, 4), rows, rows[::-1])),
        "tiles": ("int8", Quantization.of_blocks("int8", (3, 7), (2, 5), tiles, limits=(-127, 127))),
        "mx": ("float4_e2m1fn", Quantization.of_blocks("float4_e2m1fn", (3, 7), (1, 4), mx)),
        "float8": ("float8_e4m3fn", Quantization.per_tensor(0.5, 0, "float8_e4m3fn")),
        "channels": ("float8_e5m2", Quantization.of((0.5, 1.0, 2.0), (0, 0, 0), -8, 8, 0, "float8_e8m0fnu")),
    }
    tensors = [
        Tensor("x", "float32", (3, 7)),
        Tensor("x/quantized", "int8", (3, 7), None, grids["tiles"][1]),
        Tensor("y", "float32", (3, 7)),
        *(_constant(name) for name, entry in DTYPES.items() if entry.code > 19),
    ]
    for name, (dtype, grid) in grids.items():
        values = table % 8 if DTYPES[dtype].is_integer else (table % 5).astype(numpy_dtype(dtype))
        tensors.append(Tensor.constant(name, values.astype(numpy_dtype(dtype)), grid, dtype=dtype))
    nodes = (
        Node("QuantizeLinear", ("x",), ("x/quantized",), version=23, rule="divide"),
        Node("DequantizeLinear", ("x/quantized",), ("y",), version=23),
    )
    graph = Graph(("x",), ("y",), nodes, {tensor.name: tensor for tensor in tensors}, "blocks")
    return Model(graph, "qfmt", "onnx", {"format": "none"})


def _constant(dtype: str) -> Tensor:
    """Five values of a dtype: the smallest, the largest, and three in between."""
    entry = DTYPES[dtype]
    if entry.kind == "f":
        values = np.array([-1.5, 0.0, 0.25, 1.0, 448.0]).astype(numpy_dtype(dtype))
    elif entry.kind == "b":
        values = np.array([True, False, True, True, False])
    else:
        wide = [entry.minimum, entry.maximum, 0, 1, entry.maximum // 2]
        values = np.array(wide, numpy_dtype(dtype) if entry.bits >= 8 else np.int8)
    return Tensor.constant(f"constant.{dtype}", values, dtype=dtype)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    golden_model().save(folder / "1.0.qfb")
    blocks_model().save(folder / "1.0-blocks.qfb")
