"""Runs one node in ONNX's reference evaluator, on elements of every type."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

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
    """Run one ONNX node in its reference evaluator."""
    names = ["x", "scale", "zero_point"][: len(arrays)]
    values = [
        helper.make_tensor_value_info(name, kind, array.shape)
        for name, kind, array in zip(names, kinds, arrays, strict=True)
    ]
    node = helper.make_node(operator, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", to, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]
