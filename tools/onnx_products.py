"""Runs ONNX Runtime's integer kernels for tools/engine_sums.py: each operator, with factors of each pair of
types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from engine_sums import Drawn, Product, integers, step
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from torch_products import CONVOLUTIONS, LINEAR, ZERO

MICROSOFT = "com.microsoft"
UNSIGNED = (("uint8", "uint8"), ("uint8", "int8"))
ALIKE = (*UNSIGNED, ("int8", "int8"))
EVERY = (*ALIKE, ("int8", "uint8"))
CONV, MATRIX = "conv", "matrix"

OPERATORS_OF = {
    "QLinearConv": (CONV, ALIKE), "ConvInteger": (CONV, EVERY), "QLinearMatMul": (MATRIX, ALIKE),
    "QGemm": (MATRIX, ALIKE), "MatMulInteger": (MATRIX, EVERY), "DynamicQuantizeMatMul": (MATRIX, UNSIGNED),
}  # fmt: skip
"""Operator → the kind of its operands, and the types of input and weight that ONNX Runtime supports."""

Array = np.ndarray


def products() -> Iterator[Product]:
    for operator, (kind, types) in OPERATORS_OF.items():
        for what, draw in _shapes(kind):
            for pair in types:
                yield Product("ONNX Runtime", f"{operator}{what}", " · ".join(pair), partial(draw, operator, pair))


def _shapes(kind: str) -> Iterator[tuple[str, Any]]:
    """The suffix for the name of a product, and a function that draws one."""
    if kind == CONV:
        for name, (operator, shape, group, pad) in CONVOLUTIONS.items():
            attributes = {"kernel_shape": shape[2:], "pads": (pad,) * 4, "group": group}
            if operator == "Conv":
                shapes = (1, shape[1] * group, 16, 16), shape
                yield name.removeprefix("Conv"), partial(_drawn, shapes, attributes)
    else:
        for features in LINEAR:
            yield f", {features} features", partial(_drawn, ((100, features), (features, 96)), {})


def _drawn(shapes: Any, attributes: dict[str, Any], operator: str, types: Any, rng: np.random.Generator) -> Drawn:
    x, w = (integers(rng, shape, dtype) for shape, dtype in zip(shapes, types, strict=True))
    if operator.endswith("Integer"):
        return _integers(operator, x, w, attributes)
    return _dynamic(operator, x, w) if operator.startswith("Dynamic") else _quantized(operator, x, w, attributes)


def _quantized(operator: str, x: Array, w: Array, attributes: dict[str, Any]) -> Drawn:
    """A product with scales 1."""
    node = _node("Conv" if attributes else "MatMul", "integer_bias", 2, attributes)
    dtype, points = x.dtype.name, [_middle(x), _middle(w)]
    operands: list[Operand | None] = [
        Operand(each, Quantization.per_tensor(1.0, int(point), each.dtype.name))
        for each, point in zip((x, w), points, strict=True)
    ]
    scale = step(replace(node, rule="exact"), operands)
    given = [np.float32(1), points[0], w, np.float32(1), points[1], np.float32(scale), points[0]]
    if operator == "QGemm":
        given.insert(5, np.zeros(w.shape[1], np.int32))
    y = Tensor("y", dtype, None, None, Quantization.per_tensor(scale, int(points[0]), dtype))
    return Drawn(node, operands, y, _computed(operator, [x, *given], attributes))


def _integers(operator: str, x: Array, w: Array, attributes: dict[str, Any]) -> Drawn:
    given = [x, w, _middle(x), _middle(w)]
    node = _node(operator, "", len(given), attributes)
    operands: list[Operand | None] = [Operand(each, None) for each in given]
    return Drawn(node, operands, Tensor("y", "int32", None), _computed(operator, given, attributes))


def _dynamic(operator: str, x: Array, w: Array) -> Drawn:
    """A dynamic product on integers in 0..255: that range results in a scale of 1 and a zero point of 0."""
    x[0, :2] = 0, 255
    real, point = x.astype(np.float32), _middle(w)
    weight = Operand(np.ascontiguousarray(w.T), Quantization.per_tensor(1.0, int(point), w.dtype.name))
    node = _node("qfmt.DynamicLinear", "dynamic_divide", 2, {})
    theirs = _computed(operator, [real, w, np.float32(1), point], {})
    return Drawn(node, [Operand(real, None), weight], Tensor("y", "float32", None), theirs)


def _middle(array: Array) -> Array:
    """The zero point of integers of this type."""
    return np.array(ZERO if array.dtype == np.uint8 else 0, array.dtype)


def _node(operator: str, rule: str, inputs: int, attributes: dict[str, Any]) -> Node:
    entry = OPERATORS[operator]
    layout = {"strides": (1, 1), "dilations": (1, 1)} if attributes else {}
    names = tuple(f"x{index}" for index in range(inputs))
    return Node(operator, names, ("y",), entry.complete({**attributes, **layout}), "", entry.version, rule)


def _computed(operator: str, given: list[Any], attributes: dict[str, Any]) -> Array:
    """The result of one node in ONNX Runtime; all inputs except the first are constants."""
    x, *constants = given
    names = [f"x{index}" for index in range(len(given))]
    domain = MICROSOFT if operator in ("QGemm", "DynamicQuantizeMatMul") else ""
    node = helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    outside = helper.make_tensor_value_info("x0", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    stored = [numpy_helper.from_array(np.asarray(each), name) for each, name in zip(constants, names[1:], strict=True)]
    graph = helper.make_graph([node], "product", [outside], [onnx.ValueInfoProto(name="y")], stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    result: Array = session.run(None, {"x0": x})[0]
    return result
