"""Scales by blocks, and quantized floats of 8 and 4 bits: against ONNX's reference evaluator and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qfmt import Quantization, Tensor
from qfmt.arithmetic import dequantize, quantize
from qfmt.model import DTYPES, numpy_dtype

ONNX = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "float4_e2m1fn": TensorProto.FLOAT4E2M1,
}
FLOATS = [name for name in ONNX if name.startswith("float")]


def by_onnx(operator: str, attributes: dict[str, Any], *arrays: np.ndarray, kinds: list[int], to: int) -> Any:
    """One node of ONNX's, by its reference evaluator."""
    names = ["x", "scale", "zero_point"][: len(arrays)]
    values = [
        helper.make_tensor_value_info(name, kind, array.shape)
        for name, kind, array in zip(names, kinds, arrays, strict=True)
    ]
    node = helper.make_node(operator, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", to, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]


def as_onnx(array: np.ndarray, dtype: str) -> np.ndarray:
    """One value a byte → the type that the evaluator computes with."""
    return array.astype(getattr(ml_dtypes, dtype)) if dtype in ("int4", "uint4") else array


def random_values(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    entry = DTYPES[dtype]
    if entry.is_integer:
        return random.integers(entry.minimum, entry.maximum + 1, shape).astype(numpy_dtype(dtype))
    return random.uniform(entry.minimum, entry.maximum, shape).astype(np.float32).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", ONNX)
@pytest.mark.parametrize(
    ("shape", "axis", "block"), [((6, 64), 1, 32), ((10, 3), 0, 4), ((2, 7, 5), 1, 3), ((9,), 0, 2)]
)
def test_blocks_along_an_axis_are_those_of_onnx(dtype: str, shape: tuple[int, ...], axis: int, block: int) -> None:
    random = np.random.default_rng(len(shape) + axis)
    q = random_values(random, dtype, shape)
    counts = tuple(-(-size // block) if at == axis else size for at, size in enumerate(shape))
    scale = random.uniform(0.001, 3, counts).astype(np.float32)
    whole = DTYPES[dtype].is_integer
    zero_point = random_values(random, dtype, counts) if whole else np.zeros(counts, numpy_dtype(dtype))
    grid = Quantization.of_blocks(
        dtype, shape, tuple(block if at == axis else 1 for at in range(len(shape))), scale, zero_point
    )
    assert grid.is_blocked
    assert Tensor.constant("w", q, grid, dtype=dtype).quantization is grid
    ours = dequantize(q, grid)
    kinds = [ONNX[dtype], TensorProto.FLOAT, ONNX[dtype]]
    theirs = by_onnx(
        "DequantizeLinear",
        {"axis": axis, "block_size": block},
        as_onnx(q, dtype),
        scale,
        as_onnx(zero_point, dtype),
        kinds=kinds,
        to=TensorProto.FLOAT,
    )
    assert ours.dtype == np.float32
    print(f"{dtype} {shape}: {(ours == theirs).sum()} of {ours.size} equal")
    assert (ours == theirs).all()
    real = random.normal(0, 2 * np.abs(ours).max(), shape).astype(np.float32)
    mine = quantize(real, grid, numpy_dtype(dtype), "divide")
    kinds = [TensorProto.FLOAT, TensorProto.FLOAT, ONNX[dtype]]
    theirs = by_onnx(
        "QuantizeLinear",
        {"axis": axis, "block_size": block},
        real,
        scale,
        as_onnx(zero_point, dtype),
        kinds=kinds,
        to=ONNX[dtype],
    )
    print(f"quantize: {(mine == theirs.astype(mine.dtype)).sum()} of {mine.size} equal")
    assert (mine == theirs.astype(mine.dtype)).all()
