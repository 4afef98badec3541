"""Export to ONNX as operators on integers: QLinearConv, QGemm and the like."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import qfmt
from cases.one_node import single
from cases.onnx_nodes import QUANTIZED, quantized_node
from cases.operators import CASES
from qfmt.model import Quantization, Tensor
from qfmt.ops import OPERATORS
from support import onnx_kernels
from support import onnx_witness as witness

f32 = np.float32

WRITTEN = {
    "Add": "QLinearAdd", "AveragePool": "QLinearAveragePool", "Clip": "Clip", "Concat": "QLinearConcat",
    "Conv": "QLinearConv", "Gemm": "QGemm", "GlobalAveragePool": "QLinearGlobalAveragePool",
    "LeakyRelu": "QLinearLeakyRelu", "MatMul": "QLinearMatMul", "Mul": "QLinearMul", "Relu": "Clip",
    "Resize": "Resize", "Sigmoid": "QLinearSigmoid", "qfmt.Linear": "QGemm",
}  # fmt: skip
"""Operator → its ONNX operators on integers; operators that move integers keep their own."""

FLOATS_ONLY = {"GlobalMaxPool"}
"""Operators that move numbers, but do not support integers in ONNX."""

WRITTEN |= {
    name: name
    for name in QUANTIZED
    if OPERATORS[name].moves and not OPERATORS[name].integer and name not in FLOATS_ONLY
}


KEEPS_INT8 = {"session.qdqisint8allowed": "1"}
"""Otherwise ONNX Runtime converts inputs to uint8 for int8 weights, and saturates without VNNI."""


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_operators_on_integers(name: str) -> None:
    """One node: if it has an operator on integers, no float remains, and ONNX Runtime equals the reference."""
    tallies = {level: witness.Tally() for level in witness.LEVELS}
    written: Counter[str] = Counter()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        case = CASES[name](rng)
        if case.inputs[0] is None or any(each is not None and 0 in each.shape for each in case.inputs):
            continue
        model, inputs = quantized_node(name, case, rng)
        proto = onnx_kernels.exact_here(model, form="qoperator")
        onnx.checker.check_model(proto)
        operators = {node.op_type for node in proto.graph.node}
        on_floats = "DequantizeLinear" in operators
        written["floats" if on_floats else "integers"] += 1
        assert on_floats or operators & {WRITTEN[name], "QLinearMatMul"}
        for level, tally in tallies.items():
            if (level, name) != ("fused", "AveragePool"):
                witness.compare(model, witness.runtime(proto, inputs, level, KEEPS_INT8), inputs, tally)
    print(f"\n{name}: {dict(written)}", *(f"{level}: {tally}" for level, tally in tallies.items()), sep="\n")
    assert written["integers"]
    assert all(tally.equal == tally.total for tally in tallies.values())


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_softmax_of_the_usual_grid(dtype: str) -> None:
    limits = np.iinfo(dtype)
    grid = Quantization.of((1 / 256,), (int(limits.min),), int(limits.min), int(limits.max))
    x = Tensor("x", dtype, ("N", 7), quantization=Quantization.per_tensor(0.05, 3, dtype))
    model = witness.one("Softmax", [x], Tensor("y", dtype, ("N", 7), quantization=grid), "divide", 13, axis=-1)
    proto = model.to_onnx(form="qoperator")
    assert witness.operators(proto) == ["QLinearSoftmax"]
    values = np.random.default_rng(0).integers(limits.min, limits.max + 1, (300, 7)).astype(dtype)
    tally = witness.compare(model, witness.runtime(proto, {"x": values}), {"x": values}, witness.Tally())
    print(f"\n{tally}")
    assert tally.equal == tally.total == values.size


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize(("rule", "whole"), [("integer_bias", 166), ("integer_bias_reciprocal", 165)])
def test_a_bias_is_rounded_by_the_rule(form: str, rule: str, whole: int) -> None:
    """0.08713575 / (0.081 · 0.0065) is close to 165.5, and differs from the product with the reciprocal."""
    x = Tensor("x", "uint8", ("N", 2), quantization=Quantization.per_tensor(float(f32(0.081)), 0, "uint8"))
    grid = Quantization.per_tensor(float(f32(0.0065)), 0, "int8")
    w, b = Tensor.constant("w", np.ones((1, 2), np.int8), grid), Tensor.constant("b", np.array([0.08713575], f32))
    y = Tensor("y", "uint8", ("N", 1), quantization=Quantization.per_tensor(0.01, 0, "uint8"))
    proto = witness.one("qfmt.Linear", [x, w, b], y, rule).to_onnx(form=form)
    (bias,) = (each for each in proto.graph.initializer if each.name == "b_quantized")
    assert onnx.numpy_helper.to_array(bias).tolist() == [whole]


@pytest.mark.parametrize("source", [{}, {"integer_only": "exact"}])
@pytest.mark.parametrize("operator", ["Concat", "Resize"])
def test_joined_and_resized_integers_are_clamped(operator: str, source: dict[str, str]) -> None:
    """The range of the output is narrower, so the node states a rule."""
    whole, narrow = (Quantization.of((0.5,), (60,), low, 255) for low in (0, 60))
    x, y = Tensor("x", "uint8", (1, 1, 4, 4), None, whole), Tensor("y", "uint8", None, None, narrow)
    scales = Tensor.constant("scales", np.array([1, 1, 2, 2], np.float32))
    given: list[Tensor | None] = [x, x] if operator == "Concat" else [x, None, scales]
    attributes = {"axis": 1} if operator == "Concat" else {"mode": "nearest", "nearest_mode": "floor"}
    rule = "divide" if operator == "Concat" else "interpolate"
    model = single(operator, rule, given, y, attributes).replace(source=source, engine="integer" if source else "")
    feeds = {"x": np.arange(0, 160, 10, dtype=np.uint8).reshape(1, 1, 4, 4)}
    (expected,) = model.run(feeds).values()
    assert expected.min() == 60
    for level in witness.LEVELS:
        np.testing.assert_array_equal(witness.runtime(model.to_onnx(), feeds, level)[0], expected)


@pytest.mark.parametrize("low", [-128, -3, 20])
def test_narrow_ranges_are_clips_of_integers(low: int) -> None:
    rng = np.random.default_rng(1)
    grid = Quantization.of((0.3,), (-3,), low, 100)
    w = Tensor.constant("w", rng.integers(-128, 128, (4, 6)).astype(np.int8), Quantization.of((0.02,), (5,), -128, 127))
    x = Tensor("x", "int8", ("N", 6), quantization=Quantization.per_tensor(0.05, -7, "int8"))
    model = witness.one("qfmt.Linear", [x, w], Tensor("y", "int8", ("N", 4), quantization=grid), "integer_bias")
    proto = model.to_onnx(form="qoperator")
    assert witness.operators(proto) == ["QGemm", "Clip"]
    values = rng.integers(-128, 128, (100, 6)).astype(np.int8)
    tally = witness.compare(model, witness.runtime(proto, {"x": values}), {"x": values}, witness.Tally())
    assert tally.equal == tally.total == 400


def test_a_network_of_integers(shared_data: Path) -> None:
    """A real MobileNetV2 between its first and its last node computes the same integers as the reference."""
    model = qfmt.convert(shared_data / "torchscript" / "ios_mobilenet_quantized.pt", engine="onnx")
    image = {model.graph.inputs[0]: np.random.default_rng(0).normal(0, 1, (1, 3, 224, 224)).astype(f32)}
    proto = onnx_kernels.exact_here(model, form="qoperator")
    onnx.checker.check_model(proto)
    counts = Counter(witness.operators(proto))
    print(f"\n{dict(counts)}")
    assert (counts["QLinearConv"], counts["QLinearAdd"], counts["QGemm"]) == (52, 10, 1)
    assert (counts["QuantizeLinear"], counts["DequantizeLinear"]) == (1, 1)
    for level in witness.LEVELS:
        tally = witness.compare(model, witness.runtime(proto, image, level), image, witness.Tally())
        print(f"{level}: {tally}")
        assert tally.equal == tally.total == 1000
