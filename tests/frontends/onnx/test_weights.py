"""Compares dynamic and weight-only quantization by ONNX Runtime's own tools with ONNX Runtime."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    QuantFormat,
)

import qfmt
from networks.onnx_models import node, operators, proto, random_inputs, through_file
from qfmt import QfmtError
from support import onnx_kernels
from support.onnx_witness import runtime

f32 = np.float32
FLOAT, U8 = TensorProto.FLOAT, TensorProto.UINT8
MS = "com.microsoft"


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.disable(logging.WARNING)


def float_net(rng: np.random.Generator) -> onnx.ModelProto:
    def array(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(f32)

    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]), node("Relu", ["c"], ["r"], "relu"),
        node("Flatten", ["r"], ["f"], "flat"), node("MatMul", ["f", "m"], ["mm"], "product"),
        node("Add", ["mm", "mb"], ["a"], "bias"), node("Gemm", ["a", "g", "gb"], ["y"], "gemm", transB=1),
    ]  # fmt: skip
    constants = {
        "w": array(4, 3, 3, 3),
        "b": array(4),
        "m": array(256, 16),
        "mb": array(16),
        "g": array(5, 16),
        "gb": array(5),
    }
    return proto(nodes, {"x": (FLOAT, [3, 3, 8, 8])}, ["y"], constants, opset=17)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("reduce_range", [False, True])
def test_quantize_dynamic(per_channel: bool, kind: str, reduce_range: bool, tmp_path: Path) -> None:
    onnx.save(float_net(np.random.default_rng(1)), tmp_path / "f.onnx")
    given = {"per_channel": per_channel, "weight_type": QuantType[kind], "reduce_range": reduce_range}
    quantize_dynamic(tmp_path / "f.onnx", tmp_path / "d.onnx", **given)
    source = onnx.load(tmp_path / "d.onnx")
    model = through_file(qfmt.convert(tmp_path / "d.onnx"), tmp_path)
    counts = operators(model)
    assert counts["qfmt.DynamicLinear@dynamic_divide"] == 2
    assert counts["qfmt.DynamicConv@dynamic_divide"] == 1
    assert not {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "Cast"} & set(counts)
    equal = total = 0
    for seed in range(4):
        inputs = random_inputs(source, seed)
        want = runtime(source, inputs)[0]
        equal, total = equal + int((onnx_kernels.run(model, inputs)["y"] == want).sum()), total + want.size
    print(f"{equal} of {total} outputs equal")
    assert equal == total


def dynamic(order: str, bias: str, **changes: Any) -> onnx.ModelProto:
    """DynamicQuantizeLinear → MatMulInteger → Cast → Mul(Mul) → Add, with the operands in either order."""
    rng = np.random.default_rng(2)
    constants = {
        "w": rng.integers(0, 256, (6, 5)).astype(np.uint8), "wz": np.uint8(131), "ws": f32(0.03),
        "b": rng.normal(size=5).astype(f32), **changes,
    }  # fmt: skip

    def both(a: str, b: str) -> list[str]:
        return [a, b] if order == "first" else [b, a]

    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        node("Cast", ["i"], ["f"], to=FLOAT), node("Mul", both("s", "ws"), ["u"]), node("Mul", both("f", "u"), ["m"]),
    ]  # fmt: skip
    nodes += [node("Add", both("m", bias), ["y"])] if bias else [node("Identity", ["m"], ["y"])]
    return proto(nodes, {"x": (FLOAT, [2, 7, 6])}, ["y"], constants)


CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "per column": {"ws": np.linspace(0.01, 0.1, 5).astype(f32), "wz": np.arange(5, dtype=np.uint8)},
    "scales [1, 1, N]": {"ws": np.linspace(0.01, 0.1, 5).astype(f32).reshape(1, 1, 5)},
    "scales [M, 1]": {"ws": np.linspace(0.01, 0.1, 7).astype(f32).reshape(7, 1)},
    "bias [M, 1]": {"b": np.linspace(-1, 1, 7).astype(f32).reshape(7, 1)},
    "bias []": {"b": f32(0.3)},
    "scales too deep": {"ws": np.ones((1, 1, 1, 5), f32)},
    "negative scale": {"ws": f32(-0.03)},
}


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("bias", ["b", ""])
@pytest.mark.parametrize("name", CHANGES)
def test_dynamic_products_with_all_operands(order: str, bias: str, name: str, tmp_path: Path) -> None:
    """Nodes that do not match the pattern are not changed; outputs are equal in any case."""
    source = dynamic(order, bias, **CHANGES[name])
    model = through_file(qfmt.convert(source), tmp_path)
    folded = "qfmt.DynamicLinear@dynamic_divide" in operators(model)
    assert folded == (name not in ("scales [M, 1]", "scales too deep", "negative scale"))
    for seed in range(3):
        inputs = random_inputs(source, seed)
        np.testing.assert_array_equal(model.run(inputs)["y"], runtime(source, inputs)[0])


def test_sums_with_other_readers_stay(tmp_path: Path) -> None:
    source = dynamic("first", "b")
    source.graph.output.append(onnx.helper.make_tensor_value_info("i", TensorProto.INT32, None))
    model = qfmt.convert(source)
    assert operators(model)["MatMulInteger"] == 1
    inputs = random_inputs(source)
    for got, want in zip(model.run(inputs).values(), runtime(source, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("operator", "names", "folded"), [
    ("DynamicQuantizeMatMul", ["x", "w", "ws", "wz", "b"], True),
    ("DynamicQuantizeMatMul", ["x", "w", "ws"], True),
    ("MatMulIntegerToFloat", ["u", "w", "us", "ws", "uz", "wz", "b"], False),
    ("MatMulIntegerToFloat", ["u", "w", "us", "ws"], False),
])  # fmt: skip
def test_fused_operators_of_onnx_runtime(operator: str, names: list[str], folded: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.integers(0, 256, (6, 5)).astype(np.uint8), "wz": np.uint8(131), "ws": f32(0.03), "us": f32(0.02),
        "uz": np.uint8(7), "b": rng.normal(size=5).astype(f32),
    }  # fmt: skip
    kind = {"x": (FLOAT, [4, 6])} if folded else {"u": (U8, [4, 6])}
    used = {name: value for name, value in constants.items() if name in names}
    source = proto([node(operator, names, ["y"], domain=MS)], kind, ["y"], used, opset=17)
    model = through_file(qfmt.convert(source), tmp_path)
    assert ("qfmt.DynamicLinear@dynamic_divide" in operators(model)) == folded
    for seed in range(3):
        inputs = random_inputs(source, seed)
        np.testing.assert_allclose(model.run(inputs)["y"], runtime(source, inputs)[0], rtol=2e-6, atol=2e-6)


# -- weight-only ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [64, 80])
@pytest.mark.parametrize(("form", "bits"), [("QOperator", 4), ("QOperator", 8), ("QDQ", 4)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_matmul_nbits_quantizer(columns: int, form: str, bits: int, symmetric: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    constants = {"w": rng.normal(size=(columns, 16)).astype(f32), "b": rng.normal(size=16).astype(f32)}
    nodes = [node("MatMul", ["x", "w"], ["m"], "product"), node("Add", ["m", "b"], ["y"], "bias")]
    made = proto(nodes, {"x": (FLOAT, [3, columns])}, ["y"], constants)
    config = DefaultWeightOnlyQuantConfig(32, is_symmetric=symmetric, quant_format=QuantFormat[form], bits=bits)
    quantizer = MatMulNBitsQuantizer(copy.deepcopy(made), 32, symmetric, algo_config=config)
    quantizer.process()
    source = quantizer.model.model
    model = through_file(qfmt.convert(source), tmp_path)
    (weight,) = (tensor for tensor in model.graph.constants() if tensor.quantization is not None)
    assert weight.quantization is not None
    assert weight.quantization.block == ((1, 32) if form == "QOperator" else (32, 1))
    assert weight.dtype in (f"uint{bits}", f"int{bits}")
    assert weight.name in {each.name for each in source.graph.initializer}
    assert not {"ai.onnx.DequantizeLinear", "com.microsoft.MatMulNBits"} & set(operators(model))
    for seed in range(3):
        inputs = random_inputs(source, seed)
        np.testing.assert_allclose(model.run(inputs)["y"], runtime(source, inputs)[0], rtol=1e-5, atol=1e-5)


def nbits(
    bits: int, block: int, columns: int, points: str, bias: bool = True, positive: bool = False
) -> onnx.ModelProto:
    """A MatMulNBits model: packed bytes, with the first value in the lowest bits."""
    rng = np.random.default_rng(5)
    rows, blocks = 7, -(-columns // block)
    packed = rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    constants: dict[str, Any] = {"B": packed, "s": rng.normal(size=(rows * blocks)).astype(f32)}
    if positive:
        constants["s"] = np.abs(constants["s"])
    names = ["x", "B", "s", "", "", ""]
    if points == "packed":
        names[3] = "z"
        constants["z"] = rng.integers(0, 256, rows * -(-blocks * bits // 8)).astype(np.uint8)
    elif points == "float":
        names[3] = "z"
        constants["z"] = rng.uniform(0, 2**bits, rows * blocks).astype(f32)
    if bias:
        names[5] = "b"
        constants["b"] = rng.normal(size=rows).astype(f32)
    made = node("MatMulNBits", names, ["y"], domain=MS, N=rows, K=columns, bits=bits, block_size=block)
    return proto([made], {"x": (FLOAT, [2, 3, columns])}, ["y"], constants)


@pytest.mark.parametrize("points", ["absent", "packed", "float"])
@pytest.mark.parametrize(("bits", "block", "columns"), [(4, 16, 64), (4, 32, 40), (8, 16, 48), (2, 16, 64)])
def test_matmul_nbits(points: str, bits: int, block: int, columns: int, tmp_path: Path) -> None:
    source = nbits(bits, block, columns, points)
    model = through_file(qfmt.convert(source), tmp_path)
    assert operators(model) == {"qfmt.Linear": 1}
    weight = model.tensors["B"]
    assert (weight.dtype, weight.shape) == (f"uint{bits}", (7, columns))
    inputs = random_inputs(source)
    if (points, bits) == ("float", 8):  # ONNX Runtime has no kernel for it
        stored = {each.name: onnx.numpy_helper.to_array(each) for each in source.graph.initializer}
        scales, zero = (stored[name].reshape(7, -1, 1) for name in ("s", "z"))
        want = inputs["x"] @ ((stored["B"].astype(f32) - zero) * scales).reshape(7, -1).T + stored["b"]
    else:
        (want,) = runtime(source, inputs)
    np.testing.assert_allclose(model.run(inputs)["y"], want, rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize("opset", [13, 19, 21, 26])
@pytest.mark.parametrize("columns", [32, 64])
def test_matmul_nbits_with_float_zero_points_in_any_opset(opset: int, columns: int) -> None:
    """Cast takes 4 bits from opset 21 on. One block in a row is a scale per channel."""
    source = nbits(4, 32, columns, "float", positive=True)
    again = qfmt.convert(source).to_onnx(opset=opset)
    onnx.checker.check_model(again, full_check=True)
    inputs = random_inputs(source)
    np.testing.assert_allclose(runtime(again, inputs)[0], runtime(source, inputs)[0], rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize(("points", "opset"), [("float", 15), ("float", 21), ("packed", 21), ("absent", 26)])
@pytest.mark.parametrize("block", [16, 32])
def test_matmul_nbits_and_what_it_is_written_as_are_verified(
    points: str, opset: int, block: int, tmp_path: Path
) -> None:
    """Zero points of a row with an odd number of blocks have a spare half byte, which counts for nothing."""
    onnx.save(nbits(4, block, 48 if block == 16 else 32, points, positive=True), tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx")
    (tmp_path / "again.onnx").write_bytes(model.to_onnx(opset=opset).SerializeToString())
    again = qfmt.convert(tmp_path / "again.onnx")
    for source, file in (("m.onnx", model), ("again.onnx", model), ("m.onnx", again)):
        report = qfmt.verify(tmp_path / source, file)
        assert report.ok, (source, report.first_wrong)


def test_matmul_nbits_computes_with_inputs_that_are_not_rounded(tmp_path: Path) -> None:
    source = nbits(4, 16, 64, "absent")
    attribute = onnx.helper.make_attribute("accuracy_level", 4)
    source.graph.node[0].attribute.append(attribute)
    onnx.save(source, tmp_path / "m.onnx")
    assert qfmt.verify(tmp_path / "m.onnx", qfmt.convert(tmp_path / "m.onnx")).ok
    assert attribute in source.graph.node[0].attribute


def test_matmul_nbits_with_g_idx_stays_and_is_reported() -> None:
    source = nbits(4, 16, 64, "absent", bias=False)
    source.graph.node[0].input[4] = "g"
    source.graph.node[0].name = "ordered"
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(64, dtype=np.int32) // 16, "g"))
    model = qfmt.convert(source)
    with pytest.raises(QfmtError, match=r"ordered \(com.microsoft.MatMulNBits\)"):
        model.run(random_inputs(source))


@pytest.mark.parametrize("kind", ["uint8", "int4"])
def test_rows_of_a_table_with_blocks(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    values = rng.integers(-8, 8, (9, 32))
    data: Any = rng.integers(0, 256, (9, 16)).astype(np.uint8)
    if kind == "int4":
        data = onnx.helper.make_tensor("", TensorProto.INT4, (9, 32), values.reshape(-1).tolist())
    constants = {"t": data, "s": rng.uniform(0.1, 1, (9, 2)).astype(f32)}
    a = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, **({"bits": 4} if kind == "uint8" else {})}
    made = node("GatherBlockQuantized", ["t", "i", "s"], ["y"], domain=MS, **a)
    source = proto([made], {"i": (TensorProto.INT64, [2, 5])}, ["y"], constants)
    model = through_file(qfmt.convert(source), tmp_path)
    inputs = {"i": rng.integers(0, 9, (2, 5))}
    np.testing.assert_array_equal(model.run(inputs)["y"], runtime(source, inputs)[0])
    assert model.tensors["t"].dtype in ("uint4", "int4")
