"""Integer formulas: exact sums, int32 biases, per-channel axes, and agreement with the formulas on real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases.one_node import single
from cases.operators import CASES
from qfmt.arithmetic import dequantize
from qfmt.errors import RunError
from qfmt.interpreter import execute
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from qfmt.ops.accumulation import exact_dtype

PLAIN = {"Gemm": {"alpha": 1.0, "beta": 1.0}}
"""Attributes that the integer formulas require."""

seeds = st.integers(0, 2**32)

WIDE = Quantization.per_tensor(1e-9, 0, "int32")
BYTE = Quantization.per_tensor(0.02, 0, "int8")
LARGEST = (1 << 31) - 1


@pytest.mark.parametrize(
    ("name", "rule", "shapes"),
    [
        *(("MatMul", rule, [(1, 3), (3, 1)]) for rule in ("affine", "float_bias")),
        ("qfmt.Linear", "integer_bias", [(1, 3), (1, 3)]),
        ("LayerNormalization", "moments", [(1, 3)]),
        ("InstanceNormalization", "moments", [(1, 1, 3)]),
    ],
)
def test_sums_beyond_int64(name: str, rule: str, shapes: list[tuple[int, ...]]) -> None:
    """Three products of 32 bits are enough."""
    x = Tensor("x", "int32", shapes[0], None, WIDE)
    others = [Tensor.constant("w", np.full(shape, LARGEST, np.int32), WIDE) for shape in shapes[1:]]
    if rule == "moments":
        size = 3 if name == "LayerNormalization" else 1
        others = [Tensor.constant(each, np.ones(size, np.float32)) for each in "sb"]
    model = single(name, rule, [x, *others], Tensor("y", "int8", None, None, BYTE), {})
    with pytest.raises(RunError, match=r"exact sums may reach .*, which exceeds int64"):
        model.run({"x": np.full(shapes[0], -LARGEST - 1, np.int32)})


@pytest.mark.parametrize("name", ["Mul", "PRelu"])
def test_products_of_32_bits_are_exact(name: str) -> None:
    """Beyond 2^53, where float64 would round first; and beyond int64."""
    tiny = Quantization.per_tensor(2.0**-20, 0, "int32")
    x, w = (Tensor(each, "int32", (1,), None, tiny) for each in "xw")
    output = Tensor("y", "int32", (1,), None, Quantization.per_tensor(1.0, 0, "int32"))
    model = single(name, "product", [x, w], output, {})
    a, b = -((1 << 29) + 1), (1 << 25) + 1  # f32 of the product: between its nearest numbers, but for the last 1
    (made,) = model.run({"x": np.array([a], np.int32), "w": np.array([b], np.int32)})["y"]
    assert made == np.rint(np.float32(a * b) * np.float32(2.0**-40))
    wide = Quantization.per_tensor(2.0**-20, LARGEST, "int32")
    x, w = (Tensor(each, "int32", (1,), None, wide) for each in "xw")
    model = single(name, "product", [x, w], output, {})
    with pytest.raises(RunError, match=r"exact sums may reach .*, which exceeds int64"):
        model.run({each: np.array([-LARGEST], np.int32) for each in "xw"})


@pytest.mark.parametrize("operator", ["qfmt.DynamicLinear", "qfmt.RNNCell"])
def test_float_weights_beside_a_quantized_input_are_multiplied_without_a_rule(operator: str) -> None:
    weight = Tensor.constant("w", np.array([[0.5, -2], [4, 1]], np.float32))
    more = [Tensor.constant("r", np.eye(2, dtype=np.float32))] if operator == "qfmt.RNNCell" else []
    x = np.array([[7, -100]], np.int8)
    given = Tensor("x", "int8", (1, 2), None, BYTE)
    made = single(operator, "", [given, weight, *more], Tensor("y", "float32", None), {}).run({"x": x})["y"]
    real = single(operator, "", [Tensor("x", "float32", (1, 2)), weight, *more], Tensor("y", "float32", None), {})
    np.testing.assert_array_equal(made, real.run({"x": dequantize(x, BYTE)})["y"])


UNQUANTIZED = ("FLOAT_ONLY", "WEIGHTS", "INTEGERS")
"""Kinds of operators whose outputs are not quantized, or not computed from real numbers."""


def run(
    name: str,
    operands: list[tuple[np.ndarray, Quantization | None] | None],
    q: Quantization | None,
    dtype: str,
    rule: str = "",
    **attributes: Any,
) -> np.ndarray:
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(operands))
    node = Node(name, names, ("y",), OPERATORS[name].complete(attributes), rule=rule)
    given_ = [None if each is None else Operand(*each) for each in operands]
    return execute(node, given_, [Tensor("y", dtype, None, None, q)])[0]


def grid(scale: float, zero_point: int, dtype: str = "uint8") -> Quantization:
    return Quantization.per_tensor(scale, zero_point, dtype)


@given(
    x_dtype=st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    w_dtype=st.sampled_from(["int8", "uint8", "int16"]),
    inner=st.sampled_from([1, 9, 70, 600, 3000]),
    extreme=st.booleans(),
    seed=seeds,
)
def test_sums_of_products_are_exact(x_dtype: str, w_dtype: str, inner: int, extreme: bool, seed: int) -> None:
    """Compares sums in the type that was chosen for speed with Python's integers, including the worst cases."""
    rng = np.random.default_rng(seed)
    x_range, w_range = np.iinfo(x_dtype), np.iinfo(w_dtype)
    x = rng.integers(x_range.min, x_range.max + 1, (3, inner)).astype(x_dtype)
    w = rng.integers(w_range.min, w_range.max + 1, (inner, 2)).astype(w_dtype)
    if extreme:
        x[:] = x_range.max
        w[:] = rng.choice([w_range.min, w_range.max])
    zx, zw = int(rng.integers(x_range.min, x_range.max + 1)), int(rng.integers(w_range.min, w_range.max + 1))
    expected = (x.astype(object) - zx) @ (w.astype(object) - zw)
    dtype = exact_dtype(Operand(x, grid(1.0, zx, x_dtype)), w.astype(np.int64) - zw, (0,))
    total = np.matmul(x.astype(dtype) - dtype.type(zx), w.astype(dtype) - dtype.type(zw))
    assert total.astype(np.int64).tolist() == expected.tolist()


@given(seeds)
def test_convolutions_of_integers_are_exact(seed: int) -> None:
    """With scales of 1 and a wide output, the result is the accumulator itself."""
    rng = np.random.default_rng(seed)
    for name in ("Conv", "ConvTranspose"):
        case = CASES[name](rng)
        x, w = (rng.integers(0, 256, each.shape) for each in case.inputs[:2])
        zx, zw = (int(point) for point in rng.integers(0, 256, 2))
        exact = OPERATORS[name].reference(x - zx, w - zw, None, **case.attributes)
        operands = [(x.astype(np.uint8), grid(1.0, zx)), (w.astype(np.uint8), grid(1.0, zw)), None]
        y = run(name, operands, grid(1.0, 0, "int32"), "int32", "float_bias", **case.attributes)
        assert (y == exact).all()


@pytest.mark.parametrize("rule", ["float_bias", "integer_bias", "integer_bias_reciprocal", "affine"])
def test_a_bias_of_int32_is_added_to_the_accumulator(rule: str) -> None:
    rng = np.random.default_rng(2)
    scales = tuple(float(np.float32(scale)) for scale in rng.uniform(0.001, 0.01, 5))
    x, w = rng.integers(0, 256, (7, 30)).astype(np.uint8), rng.integers(-128, 128, (5, 30)).astype(np.int8)
    b = rng.integers(-5000, 5000, 5).astype(np.int32)
    xq, wq, yq = grid(0.02, 100), Quantization.of(scales, (0,) * 5, -128, 127, 0), grid(0.9, 120)
    bq = Quantization.of(tuple(0.02 * scale for scale in scales), (0,) * 5, -(2**31), 2**31 - 1, 0)
    with_bias = run("qfmt.Linear", [(x, xq), (w, wq), (b, bq)], yq, "uint8", rule)

    # The same sums without a bias: one more input, 1 + zero point, whose int32 weight is the bias.
    longer = np.concatenate([x, np.full((7, 1), 101, np.uint8)], 1)
    weights = np.concatenate([w.astype(np.int32), b[:, None]], 1)
    wide = Quantization.of(scales, (0,) * 5, -(2**31), 2**31 - 1, 0)
    assert (with_bias == run("qfmt.Linear", [(longer, xq), (weights, wide), None], yq, "uint8", rule)).all()


def test_scales_of_a_transposed_convolution_run_along_the_outputs_of_each_group() -> None:
    rng = np.random.default_rng(3)
    scales = (0.01, 0.02, 0.05)
    wq, xq = Quantization.of(scales, (1, 2, 3), -128, 127, 1), grid(0.1, 7)
    x, w = rng.integers(0, 256, (2, 4, 5)).astype(np.uint8), rng.integers(-128, 128, (4, 3, 2)).astype(np.int8)
    a = {"kernel_shape": (2,), "strides": (2,), "pads": (0, 0), "dilations": (1,), "group": 2, "output_padding": (0,)}
    y = run("ConvTranspose", [(x, xq), (w, wq), None], grid(0.5, 0, "int16"), "int16", "float_bias", **a)
    real = [(x.astype(np.float64) - 7) * 0.1, (w - wq.zero_points(w.shape)) * wq.scales(w.shape)]
    exact = OPERATORS["ConvTranspose"].reference(*real, None, **a) / 0.5
    assert np.abs(y - exact).max() <= 0.5 + 1e-3


def test_padding_of_integers_represents_real_zeros() -> None:
    x, q = np.array([[10, 20]], np.uint8), grid(0.5, 7)
    pads = (np.array([0, 1, 0, 1]), None)
    assert run("Pad", [(x, q), pads, None, None], q, "uint8").tolist() == [[7, 10, 20, 7]]
    value = (np.array(2.0, np.float32), None)
    assert run("Pad", [(x, q), pads, value, None], q, "uint8").tolist() == [[11, 10, 20, 11]]
    low = (np.array(-100.0, np.float32), None)
    assert run("Pad", [(x, q), pads, low, None], q, "uint8").tolist() == [[0, 10, 20, 0]]
    assert run("Pad", [(x, q), pads, None, None], q, "uint8", mode="edge").tolist() == [[10, 10, 20, 20]]
    beyond = Quantization.of(0.5, (1 << 24) + 1, -(1 << 31), (1 << 31) - 1)
    values = (np.array([[1, 2]], np.int32), beyond)
    assert run("Pad", [values, pads, None, None], beyond, "int32").tolist() == [[(1 << 24) + 1, 1, 2, (1 << 24) + 1]]


def test_padding_is_never_the_maximum() -> None:
    a = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,), "ceil_mode": 1}
    for dtype in ("int8", "uint8", "int16"):
        x, q = np.array([[[-9, -8, -7, -6]]]).astype(dtype), grid(0.5, 3, dtype)
        low = int(np.iinfo(dtype).min)
        expected = np.array([[[max(x[0, 0, :2]), max(x[0, 0, 1:]), x[0, 0, 3]]]])
        assert run("MaxPool", [(x, q)], q, dtype, **a).tolist() == expected.tolist() != [[[low] * 3]]


@pytest.mark.parametrize(
    "name",
    [name for name in OPERATORS if OPERATORS[name].quantized.name not in UNQUANTIZED and name != "DequantizeLinear"],
)
def test_integers_with_a_small_scale_equal_the_real_results(name: str) -> None:
    """With 16 bits and a small scale, results on integers equal those on real numbers up to one step."""
    operator = OPERATORS[name]
    rng = np.random.default_rng(len(name))
    rules = [rule for rule in operator.rules or ("",) if rule not in ("sum", "multiply_add_divide")]
    for rule in rules:
        for _ in range(4):
            case = CASES[name](rng)
            case = case._replace(attributes={**case.attributes, **PLAIN.get(name, {})})
            fine = grid(2.0**-10, 11, "int16")
            operands: list[Any] = []
            for i, each in enumerate(case.inputs):
                real = each is None or each.dtype != np.float32 or not _is_quantized(name, i)
                operands.append(None if each is None else (each, None) if real else (_on_grid(each, fine), fine))
            reals = [None if each is None else _real(*each) for each in operands]
            reals += [None] * (len([p for p in operator.inputs if not p.variadic]) - len(reals))
            expected = operator.reference(*reals, **operator.complete(case.attributes))
            if isinstance(expected, list):
                continue  # Split only moves
            highest = float(np.abs(expected).max(initial=1))
            moves = operator.moves or rule.startswith(("mean", "interpolate"))
            q = fine if moves else grid(highest / 30000, 0, "int16")
            y = run(name, operands, q, "int16", rule, **case.attributes)
            limits = [(bound - q.zero_point[0]) * q.scale[0] for bound in (q.quant_min, q.quant_max)]
            np.testing.assert_allclose(_real(y, q), np.clip(expected, *limits), atol=q.scale[0] * 1.01, err_msg=rule)


def _is_quantized(name: str, index: int) -> bool:
    """Whether an input is quantized; bounds, constants, weights of normalizations and exponents are floats."""
    if name in ("Clip", "Pad", "Resize", "BatchNormalization", "LayerNormalization", "RMSNormalization"):
        return index == 0
    if name in ("GroupNormalization", "InstanceNormalization"):
        return index == 0
    return not (name in ("Conv", "ConvTranspose", "qfmt.Linear", "Gemm") and index == 2)


def _on_grid(values: np.ndarray, q: Quantization) -> np.ndarray:
    return np.rint(values / q.scale[0] + q.zero_point[0]).astype(np.int16)


def _real(values: np.ndarray, q: Quantization | None) -> np.ndarray:
    return values if q is None else ((values.astype(np.float64) - q.zero_point[0]) * q.scale[0]).astype(np.float32)


@given(dtype=st.sampled_from(["int8", "uint8", "int32", "int64", "uint64"]), seed=seeds)
def test_quotients_of_integers_are_exact(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    a = rng.integers(limits.min, limits.max, 50, dtype, endpoint=True)
    b = rng.integers(limits.min, limits.max, 50, dtype, endpoint=True) >> rng.integers(0, limits.bits, 50).astype(dtype)
    b[b == 0] = 1
    a[:2], b[:2] = (limits.max, limits.min + 1), (3, limits.max)
    expected = [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    wrapped = np.array([q if q <= limits.max else limits.min for q in expected], dtype)
    quotient = run("Div", [(a, None), (b, None)], None, dtype)
    assert quotient.dtype == dtype and quotient.tolist() == wrapped.tolist()


def test_an_integer_divided_by_zero_is_zero() -> None:
    a = np.array([-7, 0, 7, -(2**63)])
    assert run("Div", [(a, None), (np.array([0, 0, 0, -1]), None)], None, "int64").tolist() == [0, 0, 0, -(2**63)]


@pytest.mark.parametrize("pads", [(-1, 2), (2, -3), (-2, -1), (-1, 6)])
def test_a_transposed_convolution_with_pads_below_zero(pads: tuple[int, int]) -> None:
    """Such pads add zeros; the definition, tap by tap."""
    rng = np.random.default_rng(sum(pads) + 9)
    x, w = rng.integers(-9, 9, (1, 2, 3)).astype(np.int8), rng.integers(-9, 9, (2, 4, 2)).astype(np.int8)
    length = 2 * 2 + 2 - sum(pads)
    wanted = np.zeros((1, 4, length), np.int32)
    for c, m, i, k in np.ndindex(2, 4, 3, 2):
        if 0 <= (at := 2 * i + k - pads[0]) < length:
            wanted[0, m, at] += int(x[0, c, i]) * int(w[c, m, k])
    window = {"kernel_shape": (2,), "strides": (2,), "dilations": (1,), "pads": pads, "output_padding": (0,)}
    got = run("ConvTranspose", [(x, None), (w, None)], None, "int32", "exact", group=1, **window)
    assert got.shape == wanted.shape and (got == wanted).all()
    tensors = [Tensor("x", "float32", x.shape), Tensor.constant("w", w.astype(np.float32))]
    model = single("ConvTranspose", "", [*tensors], Tensor("y", "float32", wanted.shape), {**window, "group": 1})
    assert (model.to_torch()(torch.from_numpy(x.astype(np.float32))).numpy() == wanted).all()


@pytest.mark.parametrize("name", ["BatchNormalization", "LayerNormalization", "GroupNormalization"])
def test_quantized_parameters_of_normalizations_mean_real_numbers(name: str) -> None:
    """As ONNX Runtime's quantize_static makes them; `convert --engine fbgemm` gives them torch's rule."""
    rng, x, rule = (
        np.random.default_rng(0),
        Quantization.per_tensor(0.1, 100, "uint8"),
        OPERATORS[name].engines["fbgemm"],
    )
    count = 4 if name == "BatchNormalization" else 2
    values = rng.integers(0, 256, (2, 4, 4)).astype(np.uint8)
    steps = [rng.integers(1, 100, 4).astype(np.int8) for _ in range(count)]
    grids = [Quantization.per_tensor(0.02, zero_point, "int8") for zero_point in (-3, 4, 5, -6)[:count]]
    given = [Tensor("x", "uint8", (2, 4, 4), quantization=x)]
    output = Tensor("y", "uint8", None, quantization=Quantization.per_tensor(0.05, 90, "uint8"))
    attributes = {"num_groups": 2} if name == "GroupNormalization" else {}
    results = []
    for is_real in (False, True):
        parameters = [
            Tensor.constant(f"p{i}", q.dequantize(stored)) if is_real else Tensor.constant(f"p{i}", stored, q)
            for i, (stored, q) in enumerate(zip(steps, grids, strict=True))
        ]
        model = single(name, rule, [*given, *parameters], output, attributes)
        results.append(model.run({"x": values})["y"])
    assert np.array_equal(*results)
    assert len(np.unique(results[0])) > 10
