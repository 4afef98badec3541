"""Compares quantization to floats of 8 and 4 bits with ONNX's reference evaluator, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from cases.operators import CASES
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.arithmetic import QUANTIZE, dequantize, quantize
from qfmt.compare.classes import classify
from qfmt.errors import RunError
from qfmt.interpreter import execute
from qfmt.model import DTYPES, numpy_dtype
from qfmt.ops import OPERATORS, Operand
from support.onnx_evaluator import FLOATS, ONNX, by_onnx


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_code_is_dequantized_as_onnx_does(dtype: str) -> None:
    codes = np.arange(1 << DTYPES[dtype].bits).astype(np.uint8).view(numpy_dtype(dtype))
    grid = Quantization.per_tensor(0.3, 0, dtype)
    scale = np.array(0.3, np.float32)
    kinds = [ONNX[dtype], TensorProto.FLOAT]
    theirs = by_onnx("DequantizeLinear", {}, codes, scale, kinds=kinds, to=TensorProto.FLOAT)
    ours = dequantize(codes, grid)
    print(f"{dtype}: {(ours == theirs).sum()} of {ours.size} equal, {np.isnan(ours).sum()} not a number")
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours), np.signbit(theirs))


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_and_ties_are_rounded_as_in_onnx(dtype: str) -> None:
    """Tests every value, every tie, their float32 neighbours, values beyond the range, and NaN."""
    codes = np.arange(1 << DTYPES[dtype].bits).astype(np.uint8).view(numpy_dtype(dtype)).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)]) + np.float32(0)  # np.unique may keep 0.0 or -0.0
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    points = np.concatenate(
        [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    )
    x = np.concatenate([points, [np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0]]).astype(np.float32)
    if dtype == "float4_e2m1fn":
        x = x[:-1]  # here the evaluator adds the zero point, and -0.0 + 0.0 is 0.0
    grid = Quantization.per_tensor(1.0, 0, dtype)
    kinds = [TensorProto.FLOAT, TensorProto.FLOAT, ONNX[dtype]]
    zero = np.zeros((), numpy_dtype(dtype))
    theirs = by_onnx("QuantizeLinear", {}, x, np.ones((), np.float32), zero, kinds=kinds, to=ONNX[dtype])
    for rule in QUANTIZE:  # all rules are equal with a scale of 1
        ours = quantize(x, grid, numpy_dtype(dtype), rule)
        assert np.array_equal(ours.view(np.uint8), np.asarray(theirs).astype(ours.dtype).view(np.uint8))
    print(f"{dtype}: {x.size} of {x.size} equal, by {len(QUANTIZE)} rules")
    undefined = quantize(np.array([np.nan], np.float32), grid, numpy_dtype(dtype), "divide").astype(np.float32)
    assert np.isnan(undefined).all() if DTYPES[dtype].bits == 8 else undefined == -6


def test_the_range_of_a_float_is_its_clamp() -> None:
    grid = Quantization.of((0.5,), (0,), 0, 16)
    x = np.array([-1, 0.25, 7.9, 9, np.inf], np.float32)
    assert quantize(x, grid, numpy_dtype("float8_e5m2"), "divide").astype(float).tolist() == [0, 0.5, 16, 16, 16]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16"])
def test_an_input_may_come_from_a_file_of_numpy(dtype: str, tmp_path: Path) -> None:
    """A .npy file does not state the type, only its bytes."""
    kind = numpy_dtype(dtype)
    x = np.array([1, -2.5, 0]).astype(kind)
    np.savez(tmp_path / "x.npz", x=x)
    node = Node("Identity", ("x",), ("y",), version=OPERATORS["Identity"].version)
    model = Model(Graph(("x",), ("y",), (node,), {name: Tensor(name, dtype, (3,)) for name in "xy"}))
    with np.load(tmp_path / "x.npz") as loaded:
        assert loaded["x"].dtype.type is np.void
        y = model.run({"x": loaded["x"]})["y"]
    assert y.dtype == kind and np.array_equal(y, x)
    with pytest.raises(RunError, match=r"expects .*, not"):
        model.run({"x": np.zeros(3, "V5")})


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float8_e4m3fn", "float4_e2m1fn"])
def test_a_graph_has_narrow_inputs_and_outputs(dtype: str) -> None:
    grid = Quantization.per_tensor(0.5, 0, dtype)
    tensors = [
        Tensor("x", dtype, ("N",), None, grid),
        Tensor("y", "float32", ("N",)),
        Tensor("z", dtype, ("N",), None, grid),
    ]
    nodes = (
        Node("DequantizeLinear", ("x",), ("y",), version=23),
        Node("QuantizeLinear", ("y",), ("z",), version=23, rule="divide"),
    )
    model = Model(Graph(("x",), ("y", "z"), nodes, {tensor.name: tensor for tensor in tensors}))
    x = np.arange(2).astype(numpy_dtype(dtype))
    found = model.run({"x": x})
    assert found["y"].tolist() == [0, 0.5]
    assert found["z"].dtype == x.dtype and found["z"].tolist() == x.tolist()
    limited = replace(tensors[0], quantization=replace(grid, quant_max=0))
    narrow = Model(Graph(("x",), ("y",), nodes[:1], {"x": limited, "y": tensors[1]}))
    with pytest.raises(RunError, match=r"input x: expects (integers|float.*) in \[.*, 0\], not 1"):
        narrow.run({"x": x})


def on(grid: Quantization, real: np.ndarray, kind: Any) -> np.ndarray:
    return quantize(real, grid, kind, "divide")


@pytest.mark.parametrize("name", [name for name, each in OPERATORS.items() if each.moves])
@pytest.mark.parametrize("dtype", FLOATS)
def test_moves_support_narrow_floats(dtype: str, name: str) -> None:
    """The results equal those of the operator on the same real numbers, inside the range."""
    operator, grid, kind = OPERATORS[name], Quantization.per_tensor(0.5, 0, dtype), numpy_dtype(dtype)
    for seed in range(3):
        case = CASES[name](np.random.default_rng(seed))
        assert case.inputs[0] is not None
        if case.inputs[0].dtype != np.float32:
            continue
        quantized = len(case.inputs) if name == "Concat" else 1
        operands = [
            None if each is None else Operand(each, None) if index >= quantized else Operand(on(grid, each, kind), grid)
            for index, each in enumerate(case.inputs)
        ]
        reals = [each and (each.array if each.quantization is None else dequantize(*each)) for each in operands]
        reals += [None] * (len([each for each in operator.inputs if not each.variadic]) - len(reals))
        attributes = operator.complete(case.attributes)
        expected = operator.reference(*reals, **attributes)
        expected = expected if isinstance(expected, list | tuple) else [expected]
        outputs = [Tensor(f"y{index}", dtype, None, None, grid) for index in range(len(expected))]
        names = tuple(f"x{index}" for index in range(len(operands)))
        node = Node(name, names, tuple(each.name for each in outputs), attributes, version=operator.version)
        for real, moved in zip(expected, execute(node, operands, outputs), strict=True):
            assert moved.dtype == kind
            limits = 0.5 * grid.quant_min, 0.5 * grid.quant_max
            assert np.array_equal(np.clip(real, *limits).astype(np.float32), dequantize(moved, grid))


def test_results_of_eight_bits_are_compared_as_floats() -> None:
    node = Node("QuantizeLinear", ("x",), ("y",), version=23, rule="divide")
    grid = Quantization.per_tensor(0.5, 0, "float8_e4m3fn")
    y = Tensor("y", "float8_e4m3fn", (4,), None, grid)
    mine = np.array([1, 2, 3, np.nan], np.float32).astype(numpy_dtype(y.dtype))
    assert classify(node, [None], y, mine, mine.copy()).equal == 4
    theirs = np.array([1, 2, 448, np.nan], np.float32).astype(numpy_dtype(y.dtype))
    found = classify(node, [None], y, mine, theirs)
    assert (found.equal, found.wrong, found.largest) == (3, 1, 445)
