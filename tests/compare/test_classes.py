"""Outputs of one node are equal, ties, close, as the engine overflows, or wrong."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfmt.compare.classes import classify, saturated
from qfmt.interpreter import execute
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from support.examples import examples

pytestmark = pytest.mark.usefixtures("fbgemm")


@examples(75)
@given(
    st.lists(st.integers(0, 255), min_size=3, max_size=3),
    st.lists(st.integers(-128, 127), min_size=3, max_size=3),
    st.integers(0, 255),
    st.integers(-3, 3),
    st.integers(-512, 512),
    st.sampled_from(["float_bias", "affine", "integer_bias"]),
    st.sampled_from([-1, 1]),
)
def test_ties_agree_with_exact_fractions(
    x: list[int], w: list[int], zero_point: int, exponent: int, bias: int, rule: str, step: int
) -> None:
    """With scales that are powers of two, Python computes the value before the rounding exactly, as a fraction."""
    node = Node("qfmt.Linear", ("x", "w", "b"), ("y",), {}, rule=rule, version=OPERATORS["qfmt.Linear"].version)
    scale = Fraction(2) ** exponent * 16
    real = Fraction(sum((a - 7) * b for a, b in zip(x, w, strict=True))) / 64 + Fraction(bias, 64)
    before = real / scale + zero_point
    output = Tensor("y", "uint8", (1, 1), quantization=Quantization.per_tensor(float(scale), zero_point, "uint8"))
    operands = [
        Operand(np.array([x], np.uint8), Quantization.per_tensor(1 / 8, 7, "uint8")),
        Operand(np.array([w], np.int8), Quantization.per_tensor(1 / 8, 0, "int8")),
        Operand(np.array([bias / 64], np.float32), None),
    ]
    (mine,) = execute(node, operands, [output])
    theirs = mine.astype(int) + step
    if not 0 <= theirs.item() <= 255:
        return
    counts = classify(node, operands, output, mine, theirs.astype(np.uint8))
    is_tie = before == Fraction(int(mine.item()) + int(theirs.item()), 2)
    assert (counts.tie, counts.wrong) == ((1, 0) if is_tie else (0, 1))


@pytest.mark.parametrize("transposed", [0, 1])
def test_ties_of_float_sums_depend_on_the_number_of_products(transposed: int) -> None:
    """float32 sums 1,000 products with a relative error of up to 1,000 · 2^-24, in both layouts of the weight."""
    attributes = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": transposed}
    node = Node("Gemm", ("x", "w"), ("y",), attributes, rule="integer_bias", version=OPERATORS["Gemm"].version)
    output = Tensor("y", "uint8", (1, 2), quantization=Quantization.per_tensor(1000 / 100.502, 0, "uint8"))
    operands = [
        Operand(np.ones((1, 1000), np.uint8), Quantization.per_tensor(1.0, 0, "uint8")),
        Operand(np.ones((2, 1000) if transposed else (1000, 2), np.int8), Quantization.per_tensor(1.0, 0, "int8")),
    ]
    (mine,) = execute(node, operands, [output])
    assert mine.tolist() == [[101, 101]]
    for engine, ties in (("onnxruntime", 2), ("qnnpack", 0)):
        counts = classify(node, operands, output, mine, mine - np.uint8(1), engine)
        assert (counts.tie, counts.wrong) == (ties, 2 - ties)


def test_a_tie_beside_an_infinite_number() -> None:
    node = Node("Reciprocal", ("x",), ("y",), {}, rule="reciprocal", version=OPERATORS["Reciprocal"].version)
    x = Operand(np.array([0, 8], np.uint8), Quantization.per_tensor(1.0, 0, "uint8"))
    output = Tensor("y", "uint8", (2,), quantization=Quantization.per_tensor(0.25, 0, "uint8"))
    (mine,) = execute(node, [x], [output])
    assert mine.tolist() == [255, 0]
    counts = classify(node, [x], output, mine, np.array([255, 1], np.uint8))
    assert (counts.equal, counts.tie, counts.wrong) == (1, 1, 0)


def test_two_steps_are_never_a_tie() -> None:
    node = Node("QuantizeLinear", ("x",), ("y",), {}, rule="reciprocal", version=OPERATORS["QuantizeLinear"].version)
    output = Tensor("y", "uint8", (3,), quantization=Quantization.per_tensor(1.0, 0, "uint8"))
    operands = [Operand(np.array([0.5, 0.5, 0.25], np.float32), None)]
    (mine,) = execute(node, operands, [output])
    assert mine.tolist() == [0, 0, 0]
    counts = classify(node, operands, output, mine, np.array([1, 2, 1], np.uint8))
    assert (counts.equal, counts.tie, counts.wrong, counts.largest) == (0, 1, 2, 2)


def test_only_nan_becomes_anything() -> None:
    """An integer that is not made from NaN is wrong, and so is one that is not quant_min."""
    node, output = (
        Node("QuantizeLinear", ("x",), ("y",), {}, rule="divide", version=OPERATORS["QuantizeLinear"].version),
        quantized_output("y"),
    )
    x, mine = np.array([np.nan, np.nan, 0, np.inf], np.float32), np.array([3, 4, 3, 3], np.uint8)
    counts = classify(node, [Operand(x, None)], output, mine, np.array([255] * 4, np.uint8))
    assert (counts.stated, counts.wrong) == (1, 3)


def quantized_output(name: str) -> Tensor:
    return Tensor(name, "uint8", (4,), None, Quantization.of((1.0,), (7,), 3, 255))


def test_floats_are_equal_close_or_wrong() -> None:
    node = Node("Exp", ("x",), ("y",), {}, version=OPERATORS["Exp"].version)
    output = Tensor("y", "float32", (5,))
    mine = np.array([100, 100.0005, 100.1, np.nan, np.inf], np.float32)
    theirs = np.array([100, 100, 100, np.nan, np.inf], np.float32)
    counts = classify(node, [], output, mine, theirs)
    assert (counts.equal, counts.close, counts.wrong) == (3, 1, 1)
    assert counts.largest == pytest.approx(0.1, rel=1e-4)
    infinite = classify(node, [], output, np.array([np.inf] * 5, np.float32), theirs)
    assert (infinite.equal, infinite.wrong, infinite.largest) == (1, 4, np.inf)


def test_rounding_errors_of_nearly_equal_elements() -> None:
    """Divided by a small deviation, they are large; those of other elements stay small."""
    entry = OPERATORS["LayerNormalization"]
    node = Node(entry.name, ("x", "w", ""), ("y",), entry.complete({"axis": -1}), version=entry.version)
    x, w = np.array([[1, 1, 1, 1], [1, 2, 3, 4]], np.float32), np.ones(4, np.float32)
    operands, output = [Operand(x, None), Operand(w, None), None], Tensor("y", "float32", (2, 4))
    (exact,) = execute(node, operands, [output])
    for off, close in ((4e-5, 4), (4e-4, 0)):  # 2⁻²³ · 1 / √1e-5 = 3.8e-5
        counts = classify(node, operands, output, exact, exact + np.float32(off))
        assert (counts.close, counts.wrong) == (close, 8 - close)


def test_the_mean_of_many_equal_elements_is_rounded() -> None:
    """By up to √n units, and then divided by the root of epsilon."""
    entry = OPERATORS["InstanceNormalization"]
    node = Node(entry.name, ("x", "w", "b"), ("y",), entry.complete({}), version=entry.version)
    x, one = np.full((1, 1, 16, 16), 0.4, np.float32), np.ones(1, np.float32)
    operands = [Operand(each, None) for each in (x, one, one * 0)]
    output = Tensor("y", "float32", x.shape)
    (exact,) = execute(node, operands, [output])
    for off, close in ((1e-4, 256), (1e-3, 0)):  # 16 · 2⁻²³ · 0.4 / √1e-5 = 2.4e-4
        counts = classify(node, operands, output, exact, exact + np.float32(off))
        assert (counts.close, counts.wrong) == (close, 256 - close)


def test_a_large_output_does_not_hide_errors_of_small_ones() -> None:
    """What may differ is relative to the terms of each sum, also where they cancel, and to each element alone."""
    x, w = np.array([[1, 1]], np.float32), np.array([[1e6, 0], [1e-3, 0], [1e6, -1e6]], np.float32)
    node, output = (
        Node("qfmt.Linear", ("x", "w"), ("y",), {}, version=OPERATORS["qfmt.Linear"].version),
        Tensor("y", "float32", (1, 3)),
    )
    mine = np.array([[1e6, 2e-3, 1]], np.float32)
    counts = classify(node, [Operand(x, None), Operand(w, None)], output, mine, x @ w.T)
    assert (counts.equal, counts.close, counts.wrong) == (1, 1, 1)
    theirs = np.array([1e6, 1e-3], np.float32)
    node, output = Node("Exp", ("x",), ("y",), {}, version=OPERATORS["Exp"].version), Tensor("y", "float32", (2,))
    assert classify(node, [Operand(np.log(theirs), None)], output, theirs * np.float32(1.02), theirs).wrong == 2
    mean, x = (
        Node("ReduceMean", ("x",), ("y",), {}, version=OPERATORS["ReduceMean"].version),
        np.ones((1, 1 << 20), np.float16),
    )
    two = np.array([2], np.float16)  # √n last places of float16 are as much as the mean itself
    assert classify(mean, [Operand(x, None)], Tensor("y", "float16", (1,)), two, two / 2).wrong == 1


@pytest.mark.parametrize(("operator", "x", "beside"), [("Sigmoid", -8, 1), ("Elu", -1e-6, 1), ("Mish", -12, 12)])
def test_small_outputs_are_as_exact_as_what_they_are_computed_from(operator: str, x: float, beside: float) -> None:
    """Two units in its last place."""
    node = Node(operator, ("x",), ("y",), {"alpha": 1.0} if operator == "Elu" else {}, "y", OPERATORS[operator].version)
    operand, output = Operand(np.array([x], np.float32), None), Tensor("y", "float32", (1,))
    (mine,) = execute(node, [operand], [output])
    for units, close in ((1.5, 1), (3, 0)):
        counts = classify(node, [operand], output, mine, mine + np.float32(units * beside * 2**-23))
        assert (counts.close, counts.wrong) == (close, 1 - close)


def test_a_difference_is_as_exact_as_its_terms() -> None:
    """ONNX Runtime computes float16 in float32, and may not round the terms, which can cancel in every result."""
    terms, output = np.array([0.1, 0.2], np.float16), Tensor("y", "float16", (2,))
    node = Node("Sub", ("a", "b"), ("y",), {}, version=OPERATORS["Sub"].version)
    mine = np.array([0, 1e-4], np.float16)
    for off, close in ((3e-5, 2), (6e-3, 0)):
        counts = classify(node, [Operand(terms, None)] * 2, output, mine, mine + np.float16(off))
        assert (counts.close, counts.wrong) == (close, 2 - close)


@pytest.mark.parametrize(("operator", "keepdims"), [("TopK", None), ("ArgMax", 0), ("ArgMax", 1)])
def test_places_of_equal_elements_are_ties(operator: str, keepdims: int | None) -> None:
    x = np.array([[3, 5, 5], [1, 2, 0]], np.uint8)
    attributes = {"axis": 1} if keepdims is None else {"axis": 1, "keepdims": keepdims}
    shape = (2,) if keepdims == 0 else (2, 1)
    node, output = (
        Node(operator, ("x",), ("y",), attributes, version=OPERATORS[operator].version),
        Tensor("y", "int64", shape),
    )
    mine = np.array([1, 1]).reshape(shape)
    for theirs, found in (([2, 1], (1, 1, 0)), ([0, 1], (1, 0, 1)), ([2, 2], (0, 1, 1)), ([3, 1], (1, 0, 1))):
        counts = classify(node, [Operand(x, None)], output, mine, np.array(theirs).reshape(shape))
        assert (counts.equal, counts.tie, counts.wrong) == found


def test_another_shape_or_dtype_is_wrong() -> None:
    node, output = (
        Node("Identity", ("x",), ("y",), {}, version=OPERATORS["Identity"].version),
        Tensor("y", "uint8", (4,)),
    )
    mine = np.zeros(4, np.uint8)
    for theirs in (np.zeros((2, 2), np.uint8), np.zeros(4, np.int8)):
        assert classify(node, [], output, mine, theirs).wrong == 4


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (7, 7), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_an_overflow_of_fbgemm_is_computed_bit_by_bit(kernel: tuple[int, ...], stride: int) -> None:
    rank, channels, generator = len(kernel), 16, np.random.default_rng(sum(kernel) + stride)
    x = generator.integers(0, 256, (2, channels, *(9, 11, 7)[:rank]), dtype=np.uint8)
    w = generator.integers(-128, 128, (channels, 1, *kernel), dtype=np.int8)
    scales, points = generator.uniform(0.01, 0.02, channels), generator.integers(-2, 3, channels)
    bias = generator.normal(size=channels).astype(np.float32)
    pads = [size // 2 for size in kernel]
    output = Tensor("y", "uint8", None, quantization=Quantization.per_tensor(4.0, 120, "uint8"))
    operands = [
        Operand(x, Quantization.per_tensor(0.125, 9, "uint8")),
        Operand(w, Quantization.of(tuple(scales.tolist()), tuple(points.tolist()), -128, 127, 0)),
        Operand(bias, None),
    ]
    attributes = {"kernel_shape": kernel, "strides": (stride,) * rank, "pads": (*pads, *pads)}
    node = Node(
        "Conv", ("x", "w", "b"), ("y",), {**attributes, "dilations": (1,) * rank, "group": channels},
        rule="float_bias",
    )  # fmt: skip
    theirs = _fbgemm(operands, rank, stride, pads, channels)
    (emulated,) = saturated(node, operands, output, "fbgemm")
    (mine,) = execute(node, operands, [output])
    off = int((mine != theirs).sum())
    print(f"{kernel} stride {stride}: {off} of {mine.size} outputs of fbgemm are off, all explained")
    assert off > mine.size // 100
    assert np.array_equal(emulated, theirs)
    counts = classify(node, operands, output, mine, theirs, "fbgemm")
    assert (counts.saturated, counts.wrong) == (off, 0)
    assert classify(node, operands, output, mine, theirs, "qnnpack").wrong == off


def _fbgemm(operands: list[Operand], rank: int, stride: int, pads: list[int], channels: int) -> np.ndarray:
    (x, _), (w, quantization), (bias, _) = operands
    assert quantization is not None
    scales, points = torch.tensor(quantization.scale, dtype=torch.float64), torch.tensor(quantization.each_zero_point)
    weight = torch._make_per_channel_quantized_tensor(torch.from_numpy(w), scales, points, 0)
    ops = torch.ops.quantized
    prepack, conv = (ops.conv2d_prepack, ops.conv2d) if rank == 2 else (ops.conv3d_prepack, ops.conv3d)
    packed = prepack(weight, torch.from_numpy(bias), [stride] * rank, pads, [1] * rank, channels)
    image = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), 0.125, 9)
    result: np.ndarray = conv(image, packed, 4.0, 120).int_repr().numpy()
    return result


def test_equal_ends_of_the_range_do_not_prove_an_overflow() -> None:
    """A faulty kernel that clamps a lot has some results of a kernel that overflows, by chance."""
    generator = np.random.default_rng(1)
    x = generator.integers(0, 256, (2, 16, 19, 21), dtype=np.uint8)
    w = generator.integers(-128, 128, (16, 1, 3, 3), dtype=np.int8)
    grids = [Quantization.per_tensor(scale, zero, kind) for scale, zero, kind in ((0.1, 9, "uint8"), (0.01, 0, "int8"))]
    operands = [Operand(each, grid) for each, grid in zip((x, w), grids, strict=True)]
    output = Tensor("y", "uint8", None, quantization=Quantization.per_tensor(0.1, 120, "uint8"))
    attributes = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 16}
    node = Node("Conv", ("x", "w"), ("y",), attributes, rule="float_bias", version=OPERATORS["Conv"].version)
    (emulated,) = saturated(node, operands, output, "fbgemm")
    (mine,) = execute(node, operands, [output])
    ends = (emulated != mine) & ((emulated == 0) | (emulated == 255))
    theirs = np.where(ends, emulated, np.where((mine > 99) & (mine < 150), mine - 50, mine))
    counts = classify(node, operands, output, mine, theirs, "fbgemm")
    assert ends.any() and counts.saturated == int(ends.sum())
    assert (counts.overflow, counts.wrong) == (0, int((theirs != mine).sum()) - counts.saturated)
    assert counts.wrong > 0
