"""Compares integer-only nodes with Python's integers: Requantize, tables, weighted sums, exact sums."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from itertools import product
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import qfmt
from cases import onnx_inputs, torch_inputs
from cases.integer_inputs import integers_like
from networks.integer import BROKEN, network
from qfmt import QfmtError
from qfmt.errors import RunError, ValidityError
from qfmt.interpreter import execute
from qfmt.interpreter import run as run_unchecked
from qfmt.model import DTYPES, Node, Quantization, Tensor, numpy_dtype
from qfmt.ops import OPERATORS, Operand
from qfmt.ops.requantization import LARGEST_ADD, RULES, TAKES
from support.counts import tell
from support.examples import examples
from support.mutants import mutants, overwrite

Array = Any
seeds = st.integers(0, 2**32)
INT32 = (-(1 << 31), (1 << 31) - 1)


def run(
    name: str, operands: list[Any], dtype: str, q: Quantization | None = None, rule: str = "", **attributes: Any
) -> Array:
    """Run one node on arrays, or arrays with their quantization; None is absent."""
    given_ = [
        None if each is None else Operand(*each) if isinstance(each, tuple) else Operand(each, None)
        for each in operands
    ]
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(given_))
    node = Node(name, names, ("y",), OPERATORS[name].complete(attributes), version=1, rule=rule)
    return execute(node, given_, [Tensor("y", dtype, None, None, q)])[0]


def requantize(x: Array, parameters: dict[str, Array], dtype: str, q: Quantization, rule: str, axis: int = 0) -> Array:
    inputs = [parameters.get(name) for name in ("multiplier", "shift", "add", "thresholds", "row")]
    return run("qfmt.Requantize", [x, *inputs], dtype, q, rule, axis=axis)


def some_grid(rng: np.random.Generator) -> tuple[str, Quantization]:
    """Any range inside any type of up to 16 bits, with any zero point."""
    dtype = str(rng.choice(["int8", "uint8", "int16", "int4", "uint2"]))
    limits = DTYPES[dtype]
    low, high = sorted(rng.integers(limits.minimum, limits.maximum + 1, 2).tolist())
    return dtype, Quantization.of((0.5,), (int(rng.integers(limits.minimum, limits.maximum + 1)),), low, high)


def any_int32(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """int32 of every magnitude, and its limits."""
    x = rng.integers(*INT32, shape, endpoint=True) >> rng.integers(0, 32, shape)
    return np.where(rng.random(shape) < 0.1, rng.choice([*INT32, 0, -1, 1], shape), x).astype(np.int32)


def formula(rule: str, x: int, m: int, shift: int, add: int) -> int:
    """The rules of docs/spec/integer-only.md, in Python's integers."""
    half = 2 ** (shift - 1) if shift else 0
    if rule == "multiply_shift":
        return (x * m + add) // 2**shift
    if rule == "fixed_point_single":
        return (x * m + half) // 2**shift
    if rule == "power_of_two":
        return (x + half) // 2**shift
    return (x * m + half + ((2**30 if x >= 0 else -(2**30)) if shift > 31 else 0)) // 2**shift


# Requantize


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "thresholds"])
@examples(25)
@given(seed=seeds)
def test_requantization_equals_python_integers(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 6, int(rng.integers(1, 4))).tolist())
    axis, (dtype, q) = int(rng.integers(0, len(shape))), some_grid(rng)
    counts = [shape[axis] if rng.random() < 0.7 else 1 for _ in range(3)]
    x, m, shift, add = (
        any_int32(rng, shape),
        np.maximum(1, np.abs(any_int32(rng, (counts[0],)).astype(np.int64))).clip(1, INT32[1]).astype(np.int32),
        rng.integers(0, 63, counts[1]).astype(np.uint8),
        rng.integers(-LARGEST_ADD, LARGEST_ADD, counts[2], endpoint=True) >> rng.integers(0, 60, counts[2]),
    )
    takes = {"multiply_shift": ("multiplier", "shift", "add"), "power_of_two": ("shift",)}
    names = takes.get(rule, ("multiplier", "shift"))
    given_ = dict(zip(("multiplier", "shift", "add"), (m, shift, add), strict=True))
    y = requantize(x, {name: given_[name] for name in names}, dtype, q, rule, axis)
    for index in np.ndindex(*shape):
        mine, steps, more = (int(each[index[axis] if each.size > 1 else 0]) for each in (m, shift, add))
        expected = formula(rule, int(x[index]), mine, steps, more) + q.zero_point[0]
        assert int(y[index]) == min(max(expected, q.quant_min), q.quant_max)
    assert y.dtype == numpy_dtype(dtype)


@pytest.mark.parametrize(("x", "m", "add"), list(product(INT32, [INT32[1]], [LARGEST_ADD, -LARGEST_ADD])))
def test_nothing_overflows_at_the_ends(x: int, m: int, add: int) -> None:
    parameters = {"multiplier": np.array([m], np.int32), "shift": np.array([0], np.uint8), "add": np.array([add])}
    q = Quantization.of((1.0,), (INT32[1] if x > 0 else INT32[0],), *INT32)
    y = requantize(np.array([x], np.int32), parameters, "int32", q, "multiply_shift")
    assert y.tolist() == [min(max(x * m + add + q.zero_point[0], INT32[0]), INT32[1])]


@examples(25)
@given(seed=seeds, rule=st.sampled_from(RULES))
def test_thresholds_are_counted(seed: int, rule: str) -> None:
    """Some channels have a row of thresholds, the others any rule."""
    mixed = rule != "thresholds"
    rng = np.random.default_rng(seed)
    shape = (2, int(rng.integers(1, 6)), 3)
    low, steps = int(rng.integers(-8, 4)), int(rng.integers(0, 12))
    q = Quantization.of((0.5,), (3,), low, low + steps)
    x = np.clip(any_int32(rng, shape), -50, 50) if rng.random() < 0.5 else any_int32(rng, shape)
    rows = int(rng.integers(1, 4))
    chosen = np.sort(np.where(rng.random((rows, steps)) < 0.2, rng.choice(INT32), rng.integers(-50, 50, (rows, steps))))
    thresholds = chosen.astype(np.int32)
    row: Array | None = rng.integers(-1 if mixed else 0, rows, shape[1]).astype(np.int32)
    parameters = {"thresholds": thresholds, "row": row}
    if mixed:
        one = {"multiplier": np.array([7], np.int32), "shift": np.array([4], np.uint8), "add": np.array([5])}
        parameters |= {name: one[name] for name in TAKES[rule][0]}
    elif rng.random() < 0.5:
        thresholds = thresholds[rng.integers(0, rows, shape[1] if rng.random() < 0.5 else 1)]
        row, parameters = None, {"thresholds": thresholds}
    y = requantize(x, parameters, "int8", q, rule, axis=1)
    for index in np.ndindex(*shape):
        mine = (index[1] if len(thresholds) > 1 else 0) if row is None else int(row[index[1]])
        if mine < 0:
            expected = min(max(formula(rule, int(x[index]), 7, 4, 5) + 3, low), low + steps)
        else:
            expected = low + sum(int(x[index]) >= int(t) for t in thresholds[mine])
        assert int(y[index]) == expected


def test_any_monotone_rule_is_thresholds() -> None:
    """Finds a table of thresholds by search, and compares it with the formula for every x near a step."""
    x = np.arange(-4000, 4000, dtype=np.int32)
    q = Quantization.of((1.0,), (-7,), -128, 127)
    parameters = {"multiplier": np.array([1234567891], np.int32), "shift": np.array([35], np.uint8)}
    y = requantize(x, parameters, "int8", q, "fixed_point_double")
    steps = [[int(x[y >= level].min(initial=INT32[1])) for level in range(-127, 128)]]
    again = requantize(x, {"thresholds": np.array(steps, np.int32)}, "int8", q, "thresholds")
    tell(f"thresholds for fixed_point_double: {(y == again).sum()} of {x.size} equal")
    assert (y == again).all() and len(set(y.tolist())) == 256


# Tables


@examples(25)
@given(seed=seeds, kind=st.sampled_from(["int8", "uint8", "int4", "uint4", "int2", "uint2"]))
def test_tables_are_indexed_by_the_integer(seed: int, kind: str) -> None:
    rng, limits = np.random.default_rng(seed), DTYPES[kind]
    x = rng.integers(limits.minimum, limits.maximum + 1, (2, 3, 4)).astype(numpy_dtype(kind))
    size, channels = 1 << limits.bits, 3
    function = rng.integers(-32768, 32768, (channels, size)).astype(np.int16)
    each = run("qfmt.Table", [x, function], "int16", axis=1)
    one = run("qfmt.Table", [x, function[1]], "int16")
    b = rng.integers(limits.minimum, limits.maximum + 1, (3, 1)).astype(numpy_dtype(kind))
    pairs = rng.integers(0, 256, (size, size)).astype(np.uint8)
    both = run("qfmt.PairTable", [x, b, pairs], "uint8")
    for index in np.ndindex(*x.shape):
        place, other = int(x[index]) - limits.minimum, int(b[index[1], 0]) - limits.minimum
        assert each[index] == function[index[1], place] and one[index] == function[1, place]
        assert both[index] == pairs[place, other]


def test_an_integer_beyond_a_table_is_refused() -> None:
    for x in (np.array([16], np.uint8), np.array([-9], np.int8), np.array([8], np.int8)):
        with pytest.raises(RunError, match="a table of 16 elements has none"):
            run("qfmt.Table", [x, np.zeros(16, np.int8)], "int8")
        with pytest.raises(RunError, match="a table of 16 elements has none"):
            run("qfmt.PairTable", [x, x, np.zeros((16, 16), np.int8)], "int8")


# Sums


@examples(25)
@given(seed=seeds)
def test_weighted_sums_are_exact_or_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["int8", "uint8", "int16", "int32"], int(rng.integers(1, 4))).tolist()
    inputs = [
        rng.integers(np.iinfo(k).min, np.iinfo(k).max, (3, 1 + i % 2), k, endpoint=True) for i, k in enumerate(kinds)
    ]
    weights = tuple((rng.integers(-(2**28), 2**28, len(kinds)) >> rng.integers(0, 28, len(kinds))).tolist())
    exact = sum(each.astype(object) * weight for each, weight in zip(inputs, weights, strict=True))
    if INT32[0] <= exact.min() and exact.max() <= INT32[1]:
        y = run("qfmt.WeightedSum", inputs, "int32", weights=weights)
        assert y.dtype == np.int32 and (y == exact).all()
    else:
        with pytest.raises(RunError, match="exceed int32"):
            run("qfmt.WeightedSum", inputs, "int32", weights=weights)


def whole(values: Array, q: Quantization) -> Array:
    return values.astype(np.int64) - q.zero_points(values.shape)


def convolved(x: Array, w: Array, padding: int, a: dict[str, Any]) -> Array:
    """Sums by the definition: output by output, tap by tap."""
    rank = len(a["kernel_shape"])
    padded = np.pad(x, [(0, 0), (0, 0), *zip(a["pads"][:rank], a["pads"][rank:], strict=True)], constant_values=padding)
    reach = [a["dilations"][i] * (a["kernel_shape"][i] - 1) + 1 for i in range(rank)]
    out = [(padded.shape[2 + i] - reach[i]) // a["strides"][i] + 1 for i in range(rank)]
    y, filters = np.zeros((len(x), len(w), *out), np.int64), len(w) // a["group"]
    for n, m, *place in np.ndindex(*y.shape):
        for c, *k in np.ndindex(*w.shape[1:]):
            at = [p * a["strides"][i] + k[i] * a["dilations"][i] for i, p in enumerate(place)]
            y[(n, m, *place)] += padded[(n, m // filters * w.shape[1] + c, *at)] * w[(m, c, *k)]
    return y


def painted(x: Array, w: Array, a: dict[str, Any]) -> Array:
    """ConvTranspose by the definition: each input value adds a scaled kernel."""
    rank, group = len(a["kernel_shape"]), a["group"]
    size = [
        a["strides"][i] * (x.shape[2 + i] - 1)
        + a["output_padding"][i]
        + a["dilations"][i] * (a["kernel_shape"][i] - 1)
        + 1
        for i in range(rank)
    ]
    y = np.zeros((len(x), group * w.shape[1], *size), np.int64)
    for n, c, *place in np.ndindex(*x.shape):
        for m, *k in np.ndindex(*w.shape[1:]):
            at = [p * a["strides"][i] + k[i] * a["dilations"][i] for i, p in enumerate(place)]
            y[(n, c // (x.shape[1] // group) * w.shape[1] + m, *at)] += x[(n, c, *place)] * w[(c, m, *k)]
    return y[(..., *(slice(a["pads"][i], size[i] - a["pads"][rank + i]) for i in range(rank)))]


def biased(rng: np.random.Generator, total: Array, channels: int) -> tuple[Array | None, Array]:
    if rng.random() < 0.3:
        return None, total
    bias = rng.integers(-(2**20), 2**20, total.shape[channels]).astype(np.int32)
    return bias, total + bias.reshape([-1 if i == channels % total.ndim else 1 for i in range(total.ndim)])


@pytest.mark.parametrize("rule", ["exact", "folded"])
@examples(25)
@given(seed=seeds)
def test_sums_of_convolutions_are_exact(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = torch_inputs.conv(rng)
    x, xq = integers_like(rng, case.inputs[0])
    w, wq = integers_like(rng, case.inputs[1], 0 if rng.random() < 0.5 else None)
    if rule == "exact":
        total = convolved(whole(x, xq), whole(w, wq), 0, case.attributes)
    else:
        total = convolved(x.astype(np.int64), w.astype(np.int64), xq.zero_point[0], case.attributes)
    bias, total = biased(rng, total, 1)
    y = run("Conv", [(x, xq), (w, wq) if rule == "exact" else w, bias], "int32", None, rule, **case.attributes)
    assert y.dtype == np.int32 and y.shape == total.shape and (y == total).all()


@examples(20)
@given(seed=seeds)
def test_sums_of_transposed_convolutions_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = torch_inputs.conv_transpose(rng)
    (x, xq), (w, wq) = integers_like(rng, case.inputs[0]), integers_like(rng, case.inputs[1], 1)
    bias, total = biased(rng, painted(whole(x, xq), whole(w, wq), case.attributes), 1)
    y = run("ConvTranspose", [(x, xq), (w, wq), bias], "int32", None, "exact", **case.attributes)
    assert y.shape == total.shape and (y == total).all()


@pytest.mark.parametrize("rule", ["exact", "folded"])
@examples(25)
@given(seed=seeds)
def test_sums_of_products_of_matrices_are_exact(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counted = whole if rule == "exact" else (lambda values, q: values.astype(np.int64))
    case = torch_inputs.linear(rng)
    (x, xq), (w, wq) = integers_like(rng, case.inputs[0]), integers_like(rng, case.inputs[1], 0)
    bias, total = biased(rng, (counted(x, xq)[..., None, :] * counted(w, wq)).sum(-1), -1)
    assert (run("qfmt.Linear", [(x, xq), (w, wq), bias], "int32", None, rule) == total).all()

    case = torch_inputs.matmul(rng)
    (x, xq), (w, wq) = (integers_like(rng, each) for each in case.inputs[:2])
    total = np.matmul(counted(x, xq), counted(w, wq), dtype=np.int64)
    assert (run("MatMul", [(x, xq), (w, wq)], "int32", None, rule) == total).all()

    case = onnx_inputs.gemm(rng)
    a = {**case.attributes, "alpha": 1.0, "beta": 1.0}
    (x, xq), (w, wq) = (integers_like(rng, each) for each in case.inputs[:2])
    left, right = counted(x, xq), counted(w, wq)
    left, right = left.T if a["transA"] else left, right.T if a["transB"] else right
    bias, total = biased(rng, (left[:, :, None] * right[None]).sum(1), -1)
    assert (run("Gemm", [(x, xq), (w, wq), bias], "int32", None, rule, **a) == total).all()


@examples(25)
@given(seed=seeds)
def test_products_and_sums_over_axes_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    (a, aq), (b, bq) = (integers_like(rng, each) for each in torch_inputs.broadcast(rng).inputs)
    assert (run("Mul", [(a, aq), (b, bq)], "int32", None, "exact") == whole(a, aq) * whole(b, bq)).all()
    case = onnx_inputs.reduction(rng)
    x, q = integers_like(rng, case.inputs[0])
    axes = case.inputs[1] if len(case.inputs) > 1 else None
    y = run("ReduceMean", [(x, q), axes], "int32", None, "exact", **case.attributes)
    mean = np.asarray(OPERATORS["ReduceSum"].reference(whole(x, q), axes, **case.attributes))
    assert y.shape == mean.shape and (y == mean).all()
    x, q = integers_like(rng, torch_inputs.spatial(rng).inputs[0])
    total = whole(x, q).sum(tuple(range(2, x.ndim)), keepdims=True)
    assert (run("GlobalAveragePool", [(x, q)], "int32", None, "exact") == total).all()


@examples(25)
@given(seed=seeds)
def test_means_of_unequal_windows_have_one_scale(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = torch_inputs.average_pool(rng)
    x, q = integers_like(rng, case.inputs[0])
    a = {key: value for key, value in case.attributes.items() if key != "count_include_pad"}
    rank, count_pads = len(a["kernel_shape"]), case.attributes["count_include_pad"]
    real = OPERATORS["AveragePool"].reference(x.astype(np.float64) - q.zero_point[0], **case.attributes)
    counts = np.zeros(real.shape[2:], np.int64)
    for place in np.ndindex(*counts.shape):
        for k in np.ndindex(*a["kernel_shape"]):
            at = [place[i] * a["strides"][i] + k[i] * a["dilations"][i] - a["pads"][i] for i in range(rank)]
            sizes = [x.shape[2 + i] + (a["pads"][rank + i] if count_pads else 0) for i in range(rank)]
            lows = [-a["pads"][i] if count_pads else 0 for i in range(rank)]
            counts[place] += all(low <= p < size for low, p, size in zip(lows, at, sizes, strict=True))
    if (counts == 0).any():
        with pytest.raises(QfmtError, match="is entirely in the padding"):
            run("AveragePool", [(x, q)], "int32", None, "exact", **case.attributes)
        return
    y = run("AveragePool", [(x, q)], "int32", None, "exact", **case.attributes)
    unit = lcm(*counts.reshape(-1).tolist())
    assert (y == np.rint(real * unit)).all()
    assert (y * counts == np.rint(real * counts).astype(np.int64) * unit).all()


@examples(25)
@given(seed=seeds)
def test_means_of_bins_have_one_scale(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = torch_inputs.adaptive(rng)
    x, q = integers_like(rng, case.inputs[0])
    y = run("qfmt.AdaptiveAveragePool", [(x, q)], "int32", None, "exact", **case.attributes)
    size = case.attributes["output_size"]
    bins = [
        [(i * length // n, -(-(i + 1) * length // n)) for i in range(n)]
        for length, n in zip(x.shape[-len(size) :], size, strict=True)
    ]
    places = list(np.ndindex(*size))
    counts = [int(np.prod([bins[i][p][1] - bins[i][p][0] for i, p in enumerate(place)])) for place in places]
    for place, count in zip(places, counts, strict=True):
        part = whole(x, q)[(..., *(slice(*bins[i][p]) for i, p in enumerate(place)))]
        total = part.sum(tuple(range(part.ndim - len(size), part.ndim)))
        assert (y[(..., *place)] == total * (lcm(*counts) // count)).all()


def test_a_sum_that_leaves_int32_is_refused() -> None:
    x, w = np.full((1, 1 << 18), 255, np.uint8), np.full((1, 1 << 18), 127, np.int8)
    total = 255 * 127 * 2**18 + 1
    with pytest.raises(RunError, match=rf"node y \(qfmt.Linear\): sums in \[{total}, {total}\] exceed int32"):
        run("qfmt.Linear", [x, w, np.array([1], np.int32)], "int32", None, "folded")
    with pytest.raises(RunError, match="exceed int32"):
        run("Mul", [np.array([-32768], np.int16), np.full(1, 65537, np.int32)], "int32", None, "exact")
    last = run("Mul", [np.array([-32768], np.int16), np.full(1, 65536, np.int32)], "int32", None, "exact")
    assert last.tolist() == [INT32[0]]


# Networks


def images(seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).integers(0, 256, (2, 2, 5, 5)).astype(np.uint8)}


def test_an_integer_only_network_equals_its_formulas() -> None:
    """Computes the network of tests/networks/integer.py node by node, in Python's integers."""
    model, given_ = network(), images()
    t = {name: tensor.array.astype(np.int64) for name, tensor in model.tensors.items() if tensor.is_constant}
    attributes = dict(model.nodes[0].attributes)
    sums = convolved(given_["x"].astype(np.int64), t["w"], 7, attributes) + t["b"].reshape(-1, 1, 1)
    m, shift, add = (t[name].reshape(-1, 1, 1) for name in ("m", "shift", "add"))
    y = np.clip(((sums * m + add) >> shift) + 5, 3, 18)
    for channel, row in enumerate(t["row"]):
        if row >= 0:
            y[:, channel] = 3 + (sums[:, channel, ..., None] >= t["steps"][row]).sum(-1)
    table = t["table"][y]
    total = 5 * y - 3 * table
    out = np.clip(((total + 4) >> 3) - 3, -128, 127)
    results = model.run(given_)
    assert (results["out"] == out).all() and (results["pair"] == t["pairs"][y, table]).all()
    assert len(np.unique(y)) > 5


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq", "auto"])
def test_torch_computes_a_network_of_integers(engine: str) -> None:
    """torch's own operators compute all of it, without NumPy."""
    model, given_ = network(), images(1)
    module = model.to_torch(engine)
    made = module(torch.from_numpy(given_["x"]))
    for got, wanted in zip(made, model.run(given_).values(), strict=True):
        assert got.numpy().dtype == wanted.dtype and (got.numpy() == wanted).all()
    assert list(module.report()) == []


def test_torch_exports_a_network_of_integers() -> None:
    model, given_ = network(), images(1)
    x = torch.from_numpy(given_["x"])
    program = torch.export.export(model.to_torch("qdq"), (x,))
    for got, wanted in zip(program.module()(x), model.run(given_).values(), strict=True):
        assert (got.numpy() == wanted).all()


@pytest.mark.parametrize("index", range(len(BROKEN)))
def test_a_broken_network_is_refused_and_does_no_harm(index: int) -> None:
    """Runs and exports report the broken rule; without the check of the rules, a run returns an error or an
    array."""
    rule, model = BROKEN[index]
    shapes = {name: model.tensors[name].shape or () for name in model.graph.inputs[1:]}
    sizes = {name: [size if isinstance(size, int) else 1 for size in shape] for name, shape in shapes.items()}
    given_ = images() | {name: np.zeros(size, np.int32) for name, size in sizes.items()}
    for act in (lambda: model.run(given_), model.to_torch, model.to_onnx):
        with pytest.raises(ValidityError, match=rule):
            act()
    try:
        results = run_unchecked(model, images())
    except QfmtError:
        return
    assert all(isinstance(each, np.ndarray) for each in results.values())


def test_damaged_files_of_integers_raise_nothing_else(tmp_path: Path) -> None:
    """Mutates the metadata, with a valid digest; and parameters and tables, without checking their digests."""
    path, original = tmp_path / "m.qfb", tmp_path / "original.qfb"
    network().save(original)
    data = original.read_bytes()
    begin, finished, count, chance = struct.unpack_from("<Q", data, 24)[0], 0, 300, random.Random(4)
    damaged = []
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 8, 64))):
            changed[chance.randrange(begin, len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        damaged.append(bytes(changed))
    for each in (*mutants(data, count=count, seed=3), *damaged):
        overwrite(path, each)
        with suppress(QfmtError):
            loaded = qfmt.load(path, verify=False)
            loaded.run({name: images()["x"] for name in loaded.graph.inputs})
            finished += 1
    tell(f"{2 * count} damaged files of integers: {finished} ran to the end, the others were refused")
    assert 50 < finished < 2 * count - 50


def test_a_row_of_thresholds_for_a_number_without_dimensions() -> None:
    """The rule `multiply_shift` is stated, but the row says that thresholds are counted."""
    q = Quantization.per_tensor(1.0, 0, "int8")
    one = {"multiplier": np.ones(1, np.int32), "shift": np.zeros(1, np.uint8), "add": np.zeros(1, np.int64)}
    counted = {"thresholds": np.arange(255, dtype=np.int32)[None], "row": np.zeros(1, np.int32)}
    y = requantize(np.array(99, np.int32), {**one, **counted}, "int8", q, "multiply_shift")
    assert y.shape == () and y == -128 + 100
