"""Export to ONNX: integers of every type, their ranges, scales and biases, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qfmt
from networks.onnx_models import node, proto
from qfmt.errors import InexpressibleNodesError
from qfmt.model import DTYPES, Model, Quantization, Tensor, numpy_dtype
from support import onnx_kernels
from support import onnx_witness as witness
from support.examples import examples

f32 = np.float32


@examples(25)
@given(
    dtype=st.sampled_from(["uint8", "int8", "uint16", "int16", "int32", "int4", "uint2"]),
    scale=st.floats(2.0**-20, 2.0**20, width=32),
    data=st.data(),
)
def test_narrow_ranges_clamp_exactly(dtype: str, scale: float, data: st.DataObject) -> None:
    """Relu or Clip on real numbers computes the same integers as the clamp of the rule, also at and near its
    limits."""
    limits = DTYPES[dtype]
    low, high = sorted(data.draw(st.integers(limits.minimum, limits.maximum)) for _ in range(2))
    point = 0 if dtype == "int32" else data.draw(st.sampled_from([low, high, 0, limits.minimum, limits.maximum]))
    point = min(max(point, limits.minimum), limits.maximum)
    grid = Quantization.of((float(f32(scale)),), (point,), low, high)
    model = witness.one(
        "QuantizeLinear",
        [Tensor("x", "float32", ("N",))],
        Tensor("y", dtype, ("N",), quantization=grid),
        "divide",
        23,
    )
    edges = np.array([limits.minimum, limits.maximum, low, high, point, low - 1, high + 1, 0], np.float64)
    halves = np.concatenate([edges, edges - 0.5, edges + 0.5, edges * 2])
    x = ((halves - point) * scale).astype(f32)
    x = np.concatenate([x, np.nextafter(x, f32(np.inf)), np.nextafter(x, f32(-np.inf)), f32([-1e9, 1e9]) * f32(scale)])
    (theirs,) = witness.runtime(_readable(model), {"x": x})
    np.testing.assert_array_equal(theirs, model.run({"x": x})["y"])


def _readable(model: Model) -> onnx.ModelProto:
    """The model with an output that Python can read: integers of fewer than 8 bits are widened."""
    (name,) = model.graph.outputs
    kind = model.tensors[name].dtype
    if kind not in ("int4", "uint2"):
        return model.to_onnx(opset=26)
    proto = model.to_onnx(opset=26)
    wide = onnx.TensorProto.INT8 if kind == "int4" else onnx.TensorProto.UINT8
    proto.graph.node.append(onnx.helper.make_node("Cast", [name], ["wide"], to=wide))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("wide", wide, ["N"]))
    return proto


def test_a_fused_relu_is_a_relu() -> None:
    x = Tensor("x", "float32", ("N",))
    for point, low, expected in ((0, 0, []), (7, 7, ["Relu"]), (7, 0, []), (7, 9, ["Clip"]), (0, 1, ["Clip"])):
        grid = Quantization.of((0.5,), (point,), low, 255)
        model = witness.one("QuantizeLinear", [x], Tensor("y", "uint8", ("N",), quantization=grid), "divide", 23)
        assert witness.operators(model.to_onnx()) == [*expected, "QuantizeLinear"]


def linear(bias: np.ndarray, rule: str) -> Model:
    rng = np.random.default_rng(5)
    grid = Quantization.of((0.01, 0.02, 0.04), (0, 0, 0), -128, 127, 0)
    return witness.one(
        "qfmt.Linear",
        [
            Tensor("x", "uint8", ("N", 8), quantization=Quantization.per_tensor(0.1, 7, "uint8")),
            Tensor.constant("w", rng.integers(-128, 128, (3, 8)).astype(np.int8), grid),
            Tensor.constant("b", bias),
        ],
        Tensor("y", "uint8", ("N", 3), quantization=Quantization.per_tensor(0.5, 100, "uint8")),
        rule,
    )


def test_the_type_of_a_bias_follows_the_rule() -> None:
    """A bias is int32 with scale sx · sw if the rule rounds it and that changes it; else it is a float."""
    odd, unit = np.array([0.1234, -3.3, 9.99], f32), f32(0.1) * np.array([0.01, 0.02, 0.04], f32)
    whole = (np.array([5, -7, 1000]).astype(f32) * unit).astype(f32)
    for bias, rule, is_integer in ((odd, "float_bias", 0), (odd, "integer_bias", 1), (whole, "integer_bias", 0)):
        model = linear(bias, rule)
        proto = onnx_kernels.exact_here(model)
        stored = witness.initializers(proto)
        assert ("b_quantized" in stored) == bool(is_integer)
        if is_integer:
            np.testing.assert_array_equal(stored["b_quantized"], np.rint(bias / unit).astype(np.int32))
            np.testing.assert_array_equal(stored["b_quantized.scale"], unit)
        else:
            np.testing.assert_array_equal(stored["b"], bias)
        x = {"x": np.random.default_rng(1).integers(0, 256, (50, 8)).astype(np.uint8)}
        for level in witness.LEVELS:
            tally = witness.compare(model, witness.runtime(proto, x, level), x, witness.Tally())
            print(f"{rule} {level}: {tally}")
            assert tally.equal >= tally.total - 1
            assert not tally.faults


@pytest.mark.parametrize("opset", [13, 19, 21, 23])
def test_weights_of_4_bits_of_inputs_of_3_dimensions(opset: int) -> None:
    """Their weights are transposed: before opset 21 as real numbers."""
    rng = np.random.default_rng(3)
    grid = Quantization.of((0.5, 0.25, 2.0), (8, 7, 0), 0, 15, 0)
    x, y = Tensor("x", "float32", (2, 3, 5)), Tensor("y", "float32", (2, 3, 3))
    w = Tensor.constant("w", rng.integers(0, 16, (3, 5)).astype(numpy_dtype("uint4")), grid, dtype="uint4")
    model = witness.one("qfmt.Linear", [x, w], y)
    inputs = {"x": rng.integers(-8, 8, (2, 3, 5)).astype(f32)}
    (theirs,) = witness.runtime(model.to_onnx(opset=opset), inputs)
    np.testing.assert_array_equal(theirs, model.run(inputs)["y"])


def test_integers_of_32_bits_stay_exact() -> None:
    """DequantizeLinear supports no zero point for int32, and QuantizeLinear does not support int32: both become
    formulas."""
    grid = Quantization.of((0.5,), (3,), -(1 << 31), (1 << 31) - 1)
    values = np.array([[-(1 << 31), (1 << 31) - 1, 0, 3, 16777217]], np.int32)
    x, y = Tensor("x", "int32", (1, 5), quantization=grid), Tensor("y", "int32", (5, 1), quantization=grid)
    turned = witness.one("Transpose", [x], y, version=23, perm=(1, 0))
    assert (witness.runtime(turned.to_onnx(), {"x": values})[0] == values.T).all()
    real = witness.one("DequantizeLinear", [x], Tensor("y", "float32", (1, 5)), version=23)
    assert (witness.runtime(real.to_onnx(), {"x": values})[0] == real.run({"x": values})["y"]).all()


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "int16", "uint16", "float8_e4m3fn", "float8_e5m2"])
def test_other_element_types(dtype: str) -> None:
    """Stored bits equal those of the model; opsets without the type use ONNX Runtime's operators, or the formula."""
    import ml_dtypes

    limits = DTYPES[dtype]
    rng = np.random.default_rng(0)
    values: Any = rng.integers(max(limits.minimum, -128), min(limits.maximum, 127) + 1, (3, 5))
    floats = dtype.startswith("float8")
    values = values.astype(getattr(ml_dtypes, dtype)) if floats else values.astype(numpy_dtype(dtype))
    points = (0, 0, 0) if floats else (1, 0, 1)
    grid = Quantization.of((0.25, 0.5, 3.0), points, limits.minimum, limits.maximum, 0)
    w = Tensor.constant("w", values, grid, dtype=dtype)
    model = witness.one("DequantizeLinear", [w], Tensor("y", "float32", (3, 5)), version=23)
    expected = w.dequantize()
    for opset in (13, 19, 21, 25, 26):
        try:
            (theirs,) = witness.runtime(model.to_onnx(opset=opset), {})
        except InexpressibleNodesError as error:
            assert opset < (19 if floats else 25 if limits.bits == 2 else 0), error
            continue
        np.testing.assert_array_equal(theirs, expected)


@pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("block", [(1, 4), (2, 1), (2, 4), (1, 3), (3, 8)])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
def test_blocks(dtype: str, block: tuple[int, int], scale_dtype: Any) -> None:
    """Groups along an axis, and tiles, whose size does not divide that of the tensor."""
    limits = DTYPES[dtype]
    rng = np.random.default_rng(sum(block))
    shape = (5, 10)
    counts = [-(-size // step) for size, step in zip(shape, block, strict=True)]
    values = rng.integers(limits.minimum, limits.maximum + 1, shape).astype(numpy_dtype(dtype))
    scales = rng.uniform(0.01, 3, counts).astype(scale_dtype)
    for points in (np.zeros(1, int), rng.integers(limits.minimum, limits.maximum + 1, counts)):
        grid = Quantization.of_blocks(dtype, shape, block, scales, points)
        w = Tensor.constant("w", values, grid, dtype=dtype)
        model = witness.one("DequantizeLinear", [w], Tensor("y", "float32", shape), version=23)
        for opset in (21, 23, 26):
            proto = model.to_onnx(opset=opset)
            onnx.checker.check_model(proto, full_check=True)
            np.testing.assert_array_equal(witness.runtime(proto, {})[0], w.dequantize(), err_msg=f"{opset}")
    with pytest.raises(InexpressibleNodesError, match="block-wise scales, which ONNX supports from opset 21 on"):
        model.to_onnx(opset=20)


HALF, DOUBLE, INT = np.float16, np.float64, np.int32
WEIGHT, CHANNELS = np.arange(-6, 6).reshape(3, 4) / 4, np.array([0.5, 1.0, -0.25, 2.0])
OF_ONE_TYPE = {
    "Gemm": (HALF, (2, 4), [WEIGHT, CHANNELS[:3]], {"transB": 1}, 17),
    "MatMul": (HALF, (2, 2, 4), [WEIGHT.T], {}, 17),
    "Gelu": (HALF, (2, 4), [], {}, 19),
    "GroupNormalization": (HALF, (1, 4, 3), [CHANNELS, CHANNELS], {"num_groups": 2}, 19),
    "RMSNormalization": (DOUBLE, (2, 4), [CHANNELS], {}, 19),
    "AveragePool": (HALF, (1, 2, 3, 3, 3), [], {"kernel_shape": [2, 2, 2]}, 17),
    "ReduceSum": (INT, (2, 4), [], {"keepdims": 0}, 17),
    "ReduceMean": (INT, (2, 4), [], {"keepdims": 0}, 17),
    "Resize": (INT, (1, 1, 2, 2), [], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                                      "nearest_mode": "floor"}, 17),
}  # fmt: skip
"""Operator → the type of all real numbers; the shape of its input; its other inputs; attributes; an opset to write."""

SINCE = {"Gelu": 20, "GroupNormalization": 21, "RMSNormalization": 23}


@pytest.mark.parametrize("name", OF_ONE_TYPE)
def test_other_types_than_float32(name: str) -> None:
    """ONNX Runtime loads what is written, and torch computes the results of `run`, in their types. (Kernels of torch
    widen sums of integers, and refuse the other types here.)"""
    torch = pytest.importorskip("torch")
    kind, shape, others, attributes, opset = OF_ONE_TYPE[name]
    constants = {f"c{at}": each.astype(kind) for at, each in enumerate(others)}
    inputs = ["x", *constants]
    if name == "Resize":
        constants["scales"] = np.array([1, 1, 2, 2], f32)
        inputs += ["", "scales"]
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    source = proto([node(name, inputs, ["y"], **attributes)], {"x": (code, list(shape))}, ["y"], constants,
                   opset=SINCE.get(name, 17))  # fmt: skip
    model, x = qfmt.convert(source), np.random.default_rng(3).integers(-8, 9, shape).astype(kind)
    wanted = model.run({"x": x})["y"]
    (written,) = witness.runtime(model.to_onnx(opset=opset), {"x": x})
    close = {"rtol": 2e-3, "atol": 2e-3} if kind is HALF else {"rtol": 1e-6}
    for engine in ("auto", "reference"):
        found = model.to_torch(engine=engine)(torch.from_numpy(x)).numpy()
        assert found.dtype == wanted.dtype == written.dtype == kind
        np.testing.assert_allclose(found, wanted, **close)
    np.testing.assert_allclose(written, wanted, **close)


@pytest.mark.parametrize("mode", ("reflect", "edge"))
def test_padding_of_uint16_in_torch(mode: str) -> None:
    torch = pytest.importorskip("torch")
    grid = {"s": f32(0.25), "z": np.uint16(7)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"]),
             node("Pad", ["d", "pads"], ["p"], mode=mode), node("QuantizeLinear", ["p", "s", "z"], ["r"]),
             node("DequantizeLinear", ["r", "s", "z"], ["y"])]  # fmt: skip
    constants = {**grid, "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    float_ = onnx.TensorProto.FLOAT
    model = qfmt.convert(proto(nodes, {"x": (float_, [1, 2, 3, 3])}, ["y"], constants, opset=21))
    x = np.random.default_rng(3).normal(0, 4, (1, 2, 3, 3)).astype(f32)
    for engine in ("auto", "reference"):
        found = model.to_torch(engine=engine)(torch.from_numpy(x)).numpy()
        np.testing.assert_array_equal(found, model.run({"x": x})["y"])
