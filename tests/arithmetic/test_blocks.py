"""Compares block-wise scales with their definition, ONNX's reference evaluator and ONNX Runtime."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.arithmetic import dequantize, quantize
from qfmt.errors import QfmtError, RunError, ValidityError
from qfmt.interpreter import run
from qfmt.model import DTYPES, numpy_dtype
from qfmt.ops import OPERATORS
from support.examples import examples
from support.onnx_evaluator import ONNX, by_onnx


def as_onnx(array: np.ndarray, dtype: str) -> np.ndarray:
    """One value per byte → the type that the evaluator computes with."""
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


@examples(50)
@given(st.data())
def test_an_element_has_the_scale_and_zero_point_of_its_block(data: st.DataObject) -> None:
    """For any blocks of any tensor, the definition applies: index divided by block size."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    block = tuple(data.draw(st.integers(1, size + 2)) for size in shape)
    counts = tuple(-(-size // each) for size, each in zip(shape, block, strict=True))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from(["uint4", "int8", "uint16", "int32"]))
    scale = random.choice([0.5, -1, 0, 3], counts).astype(np.float16)
    points = random_values(random, dtype, counts)
    grid = Quantization.of_blocks(dtype, shape, block, scale, points)
    scales, zero_points = (np.broadcast_to(each, shape) for each in (grid.scales(shape), grid.zero_points(shape)))
    for index in np.ndindex(*shape):
        at = tuple(place // each for place, each in zip(index, block, strict=True))
        assert (scales[index], zero_points[index]) == (scale[at], points[at])
    per_slice = sum(count > 1 for count in counts) <= 1 and all(
        each == 1 or count == 1 for each, count in zip(block, counts, strict=True)
    )
    assert grid.is_blocked is not per_slice


def test_blocks_that_do_not_fit_are_refused() -> None:
    scale, points = np.ones((3, 2), np.float32), np.arange(6).reshape(3, 2)
    for arguments, words in (
        (("uint4", (3, 5), (1, 3), scale[:2]), "4 scales, 1 zero points for 6 blocks"),
        (("uint4", (3, 5), (1, 3), scale, points[:2]), "6 scales, 4 zero points for 6 blocks"),
        (("uint4", (3, 5), (1, 0), scale), "do not divide"),
        (("uint4", (3, 5), (1, 3, 1), scale), "do not divide"),
        (("uint4", (3, 5), (1, 3), scale, points + 11), r"zero points in 11..16 do not all fit uint4"),
        (("float4_e2m1fn", (3, 5), (1, 3), scale, points), "the zero point of float4_e2m1fn must be 0"),
        (("uint4", (3, 5), (1, 3), scale.astype(complex)), "arrays of complex128 cannot be stored"),
    ):
        with pytest.raises(QfmtError, match=re.escape(words)):
            Quantization.of_blocks(*arguments)


def test_zero_points_of_any_integer_type_are_stored_in_the_first_that_holds_them() -> None:
    points = np.arange(6).reshape(3, 2)
    made = [
        Quantization.of_blocks("int4", (3, 5), (1, 3), np.ones((3, 2), np.float32), each)
        for each in (points, points.astype(np.int8), points.astype(ml_dtypes.int4), points.astype(np.uint64))
    ]
    assert made == made[:1] * 4
    assert (made[0].zero_point.dtype, bytes(made[0].zero_point.data.view())) == ("uint8", bytes(range(6)))


@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bit_weights_of_onnx_runtime(symmetric: bool) -> None:
    """Uses ONNX Runtime's quantizer, whose scales may be negative or 0, and its dequantization of the same
    integers."""
    runtime = pytest.importorskip("onnxruntime")
    quantizer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    random = np.random.default_rng(11)
    weight = random.normal(size=(80, 48)).astype(np.float32)
    weight[:32, 0] = 0
    blocks = 3
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 80])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 48])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = quantizer.MatMulNBitsQuantizer(model, bits=4, block_size=32, is_symmetric=symmetric)
    made.process()
    stored = {each.name: numpy_helper.to_array(each) for each in made.model.model.graph.initializer}
    session = runtime.InferenceSession(made.model.model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"x": np.eye(80, dtype=np.float32)})[0]

    codes = np.stack([stored["w_Q4"] & 15, stored["w_Q4"] >> 4], -1).reshape(48, blocks * 32)[:, :80]
    scale = stored["w_scales"].reshape(48, blocks)
    points: Any = 8
    if not symmetric:
        packed = stored["w_zero_points"].reshape(48, -1)
        points = np.stack([packed & 15, packed >> 4], -1).reshape(48, -1)[:, :blocks]
    assert not symmetric or (scale < 0).any()
    grid = Quantization.of_blocks("uint4", (48, 80), (1, 32), scale, points)
    ours = Tensor.constant("w", codes, grid, dtype="uint4").dequantize().T
    print(f"{(ours == theirs).sum()} of {ours.size} equal, {(scale < 0).sum()} of {scale.size} scales negative")
    assert np.array_equal(ours, theirs)


# A network with such weights


def networks() -> dict[str, Model]:
    """x · w + b, and rows of a table. w has each kind of block-wise quantization, or is a quantized float."""
    random = np.random.default_rng(3)
    grids = {}
    for dtype in ("uint4", "int4", "int8", "float8_e4m3fn", "float4_e2m1fn"):
        for block in ((32, 1), (5, 3), (48, 10), (1, 10)):
            counts = tuple(-(-size // each) for size, each in zip((48, 10), block, strict=True))
            scale = random.uniform(0.01, 0.1, counts).astype(np.float16)
            points = random_values(random, dtype, counts) if DTYPES[dtype].is_integer else 0
            grids[f"{dtype} {block}"] = dtype, Quantization.of_blocks(dtype, (48, 10), block, scale, points)
    beyond = {name: each for name, each in grids.items() if each[1].is_blocked or each[0].startswith("float")}
    return {name: network(*each) for name, each in beyond.items()}


def network(dtype: str, grid: Quantization) -> Model:
    random = np.random.default_rng(4)
    w = Tensor.constant("w", random_values(random, dtype, (48, 10)), grid, dtype=dtype)
    tensors = [
        Tensor("x", "float32", ("N", 48)),
        w,
        Tensor("product", "float32", ("N", 10)),
        Tensor("f8", "float8_e4m3fn", ("N", 10), None, Quantization.per_tensor(0.0625, 0, "float8_e4m3fn")),
        Tensor("y", "float32", ("N", 10)),
    ]
    nodes = (
        Node("MatMul", ("x", "w"), ("product",), version=OPERATORS["MatMul"].version),
        Node("QuantizeLinear", ("product",), ("f8",), version=23, rule="divide"),
        Node("DequantizeLinear", ("f8",), ("y",), version=23),
    )
    return Model(Graph(("x",), ("product", "f8", "y"), nodes, {tensor.name: tensor for tensor in tensors}))


NETWORKS = networks()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", ["reference", "onednn", "native", "qdq", "auto"])
def test_every_engine_of_torch_computes_them_as_the_reference_does(name: str, engine: str) -> None:
    import torch

    model = NETWORKS[name]
    x = np.random.default_rng(5).normal(size=(7, 48)).astype(np.float32)
    ours = model.run({"x": x})
    assert np.array_equal(ours["product"], x @ model.tensors["w"].dequantize())
    module = model.to_torch(engine)
    assert module.to_model().tensors["w"] == model.tensors["w"]
    theirs = dict(zip(ours, module(torch.from_numpy(x)), strict=True))
    given = {output: theirs[output].to(torch.float32).numpy() for output in ours}
    if engine != "reference":  # torch sums floats in another order; the rest of the test starts from its sums
        np.testing.assert_allclose(given["product"], ours["product"], rtol=1e-5, atol=1e-4)
        rest = replace(model.graph, inputs=("product",), outputs=("f8", "y"), nodes=model.nodes[1:])
        ours = run(Model(rest), {"product": theirs["product"].numpy()})
    for output, mine in ours.items():
        assert np.array_equal(mine.astype(np.float32), given[output]), output


def test_integers_with_blocks_are_not_summed() -> None:
    model = NETWORKS["int8 (5, 3)"]
    tensors = {
        **model.tensors,
        "x": Tensor("x", "uint8", ("N", 48), None, Quantization.per_tensor(0.5, 3, "uint8")),
        "product": Tensor("product", "uint8", ("N", 10), None, Quantization.per_tensor(0.5, 3, "uint8")),
    }
    x = np.full((2, 48), 7, np.uint8)
    nodes = [replace(node, rule=node.rule or "") for node in model.nodes[:1]]
    for rule in ("float_bias", "divide"):
        nodes[0] = replace(nodes[0], rule=rule)
        changed = Model(Graph(("x",), ("product",), tuple(nodes), {n: tensors[n] for n in ("x", "w", "product")}))
        if rule == "divide":
            real = np.full((2, 48), 2, np.float32) @ tensors["w"].dequantize()
            grid = tensors["product"].quantization
            assert grid is not None
            assert np.array_equal(changed.run({"x": x})["product"], quantize(real, grid, np.dtype(np.uint8), rule))
            continue
        with pytest.raises(ValidityError, match=r"V47 .* the rounding rule is 'float_bias', expected reciprocal"):
            changed.run({"x": x})
        with pytest.raises(RunError, match="computes on integers, not with block-wise scales"):
            run(changed, {"x": x})
