"""Export to ONNX: dynamically quantized layers, and embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor, numpy_dtype
from support import onnx_kernels
from support import onnx_witness as witness

f32 = np.float32


def weights(name: str, rows: int, columns: int, dtype: str = "int8", *, axis: int | None = 0) -> Tensor:
    rng = np.random.default_rng(len(name) + rows)
    limits = DTYPES[dtype]
    values = rng.integers(limits.minimum, limits.maximum + 1, (rows, columns)).astype(numpy_dtype(dtype))
    count = rows if axis == 0 else 1
    scales = tuple(rng.uniform(0.005, 0.02, count).astype(f32).tolist())
    points = tuple(int(each) for each in rng.integers(limits.minimum, limits.maximum, count))
    return Tensor.constant(
        name, values, Quantization.of(scales, points, limits.minimum, limits.maximum, axis), dtype=dtype
    )


def floats(name: str, *shape: int) -> Tensor:
    return Tensor.constant(name, np.random.default_rng(len(name)).normal(0, 1, shape).astype(f32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("reduce_range", [0, 1])
@pytest.mark.parametrize("axis", [None, 0])
def test_dynamic_linear(dtype: str, reduce_range: int, axis: int | None) -> None:
    model = witness.one(
        "qfmt.DynamicLinear",
        [Tensor("x", "float32", ("N", 3, 8)), weights("w", 4, 8, dtype, axis=axis), floats("b", 4)],
        Tensor("y", "float32", ("N", 3, 4)),
        "dynamic_divide",
        reduce_range=reduce_range,
        per_token=0,
    )
    tally = witness.Tally()
    for seed, shift in enumerate((0, 5, -5, 0)):
        x = np.random.default_rng(seed).normal(shift, 2, (2, 3, 8)).astype(f32) * (seed != 3)
        proto = model.to_onnx()
        for level in witness.LEVELS:
            with onnx_kernels.as_computed_here("MatMulInteger", "uint8 · int8"):
                witness.compare(model, witness.runtime(proto, {"x": x}, level), {"x": x}, tally)
        witness.compare(model, witness.evaluator(proto, {"x": x}), {"x": x}, tally)
    print(f"\n{tally}")
    assert not tally.faults, tally.faults
    assert ("MatMulInteger" in witness.operators(proto)) == (dtype != "int4")


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rule", ["dynamic_divide", "integer_bias"])
def test_dynamic_convolution(name: str, rule: str) -> None:
    """ONNX cannot round the bias to whole sums, so what `integer_bias` states becomes `float_bias`."""
    rng = np.random.default_rng(3)
    w = rng.integers(-128, 128, (4, 2, 3, 3)).astype(np.int8)
    axis = 0 if name == "Conv" else 1
    scales = tuple(rng.uniform(0.005, 0.02, w.shape[axis]).astype(f32).tolist())
    a: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 1), "pads": (1, 0, 1, 2), "dilations": (1, 1)}
    a |= {"group": 2, "reduce_range": 0} | ({} if name == "Conv" else {"output_padding": (1, 0)})
    out = Tensor("y", "float32", ("N", 4, None, None))
    model = witness.one(
        f"qfmt.Dynamic{name}",
        [
            Tensor("x", "float32", ("N", 4, 6, 7)),
            Tensor.constant("w", w, Quantization.of(scales, (0,) * len(scales), -128, 127, axis)),
            floats("b", 4),
        ],
        out,
        rule,
        **a,
    )
    x = rng.normal(1, 2, (2, 4, 6, 7)).astype(f32)
    tally = witness.Tally()
    computed = witness.runtime(model.to_onnx(), {"x": x})
    (node,) = model.nodes
    stated = model
    if rule == "integer_bias":
        stated = model.replace(graph=replace(model.graph, nodes=(replace(node, rule="float_bias"),)))
        (mine,), (other,) = (each.run({"x": x}).values() for each in (model, stated))
        step = (x.max() - x.min()) / 255
        assert 0 < np.abs(mine - other).max() <= 1.001 * step
    witness.compare(stated, computed, {"x": x}, tally)
    print(f"\n{tally}")
    assert not tally.faults and not tally.one, tally.faults


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_recurrent(kind: str, reverse: int, dtype: str) -> None:
    """States are quantized in each step, as the model states; absent initial states are zeros."""
    gates, states = {"LSTM": (4, 2), "GRU": (3, 1), "RNN": (1, 1)}[kind.removesuffix("Cell")]
    cell = kind.endswith("Cell")
    size, features = 5, 3
    if dtype == "int8":
        matrices = [weights("w_ih", gates * size, features), weights("w_hh", gates * size, size)]
    else:
        shapes = ((gates * size, features), (gates * size, size))
        matrices = [
            Tensor.constant(f"w{i}", floats("f" * (i + 1), *s).array.astype(np.float16)) for i, s in enumerate(shapes)
        ]
    x = Tensor("x", "float32", ("N", features) if cell else ("T", "N", features))
    inputs = [x, *matrices, floats("b_ih", gates * size), floats("b_hh_", gates * size)]
    outputs = [] if cell else [Tensor("y", "float32", ("T", "N", size))]
    outputs += [Tensor(f"s{i}", "float32", ("N", size)) for i in range(states)]
    attributes: dict[str, Any] = {"reduce_range": 0} | ({} if cell else {"reverse": reverse})
    if kind == "RNNCell":
        attributes["activation"] = "relu" if reverse else "tanh"
    tensors = {tensor.name: tensor for tensor in [*inputs, *outputs]}
    names = tuple(tensor.name for tensor in outputs)
    rule = "dynamic_divide" if dtype == "int8" else ""
    node = Node(f"qfmt.{kind}", tuple(t.name for t in inputs), names, attributes, "node", 1, rule)
    model = Model(Graph(("x",), names, (node,), tensors), engine="onnx")
    values = {"x": np.random.default_rng(1).normal(0, 1, (2, features) if cell else (6, 2, features)).astype(f32)}
    tally = witness.Tally()
    for opset in (None, 13):
        proto = model.to_onnx(opset=opset)
        onnx.checker.check_model(proto, full_check=True)
        for level in witness.LEVELS:
            with onnx_kernels.as_computed_here("MatMulInteger", "uint8 · int8"):
                witness.compare(model, witness.runtime(proto, values, level), values, tally, tolerance=1e-4)
    print(f"\n{tally}")
    assert not tally.faults, tally.faults


@pytest.mark.parametrize("rule", ["lookup_float32", "lookup_float16"])
@pytest.mark.parametrize("dtype", ["uint8", "uint4"])
@pytest.mark.parametrize("mode", ["row", "sum", "mean"])
def test_embeddings(rule: str, dtype: str, mode: str) -> None:
    rng = np.random.default_rng(4)
    limits = DTYPES[dtype]
    values = rng.integers(0, limits.maximum + 1, (20, 6)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, 20).astype(f32).astype(float)
    points = rng.uniform(0, limits.maximum, 20).astype(f32).astype(float)
    grid = Quantization.of(tuple(scales.tolist()), tuple(points.tolist()), 0, limits.maximum, 0)
    table = Tensor.constant("w", values, grid, dtype=dtype)
    indices = Tensor("i", "int64", ("N",))
    offsets = [Tensor("o", "int64", ("B",))] if mode != "row" else []
    attributes = {} if mode == "row" else {"mode": mode, "include_last_offset": 0, "padding_idx": 3}
    out = Tensor("y", "float32", ("N" if mode == "row" else "B", 6))
    name = "qfmt.Embedding" if mode == "row" else "qfmt.EmbeddingBag"
    model = witness.one(name, [table, indices, *offsets], out, rule, **attributes)
    inputs = {"i": rng.integers(0, 20, 15), **({} if mode == "row" else {"o": np.array([0, 4, 4, 9])})}
    tally = witness.Tally()
    for opset in (13 if mode == "row" else 16, 20, 21):  # bags need ScatterElements of 16; uint4 is new in 21
        proto = model.to_onnx(opset=opset)
        onnx.checker.check_model(proto, full_check=True)
        for level in witness.LEVELS:
            witness.compare(model, witness.runtime(proto, inputs, level), inputs, tally)
    print(f"\n{tally}")
    assert not tally.faults, tally.faults
