"""Integer-only requantization: compares the statements on each channel with every reachable sum."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qfmt.arithmetic import REQUANTIZE, requantize
from qfmt.budget import Budget
from qfmt.errors import BudgetError
from qfmt.forms import FORMS, NARROWED
from qfmt.interpreter import execute
from qfmt.model import Graph, Model, Node, Proof, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from qfmt.passes.lowering import lower_integer, pairs
from qfmt.passes.lowering.facts import requantizations
from qfmt.passes.lowering.forms import quantized_multiplier
from qfmt.passes.lowering.lines import addends, exact_lines
from qfmt.passes.lowering.pairs import between, ratios, weights
from qfmt.passes.lowering.step_functions import StepFunction, of_pairs, search
from support.counts import tell
from support.examples import examples

f32 = np.float32
REACH = 40_000
"""The maximum number of sums of a channel, so that all can be tested."""


class Layer(NamedTuple):
    """A layer of one input: y of channel c is the rule applied to (x - zx) · w[c], so each integer of x is one
    sum."""

    model: Model
    rule: str


def layer(rng: np.random.Generator, rule: str, channels: int = 4, wide: bool = True) -> Layer:
    """qfmt.Linear with one product: sums are a 16-bit or 8-bit input times small weights."""
    dtype = "int16" if wide else "uint8"
    limits = np.iinfo(dtype)
    low = int(rng.integers(limits.min // 2, limits.min // 2 + 100)) if wide else int(limits.min)
    high = low + int(rng.integers(2000, 15_000)) if wide else int(limits.max)
    zero = int(rng.integers(low, high + 1))
    x = Quantization.of((float(f32(rng.uniform(1e-4, 0.05))),), (zero,), low, high)
    per_tensor = rng.random() < 0.3
    scales = [float(f32(each)) for each in rng.uniform(1e-3, 0.1, 1 if per_tensor else channels)]
    w = Quantization.of(tuple(scales), (0,) * len(scales), -128, 127, None if per_tensor else 0)
    weight = rng.integers(-3, 4, (channels, 1)).astype(np.int8)
    unit = x.scale[0] * max(scales)
    lowest = int(rng.choice([0, 0, 128]))
    grid = (float(f32(unit * rng.uniform(1, 200))),), (int(rng.integers(lowest, 256)),), lowest, 255
    bias = (rng.normal(0, 500, channels) * unit).astype(f32) if rng.random() < 0.7 else None
    tensors = [
        Tensor("x", dtype, (None, 1), None, x),
        Tensor.constant("w", weight, w),
        Tensor("y", "uint8", (None, channels), None, Quantization.of(*grid)),
    ]
    names = ["x", "w"]
    if bias is not None:
        tensors.append(Tensor.constant("b", bias))
        names.append("b")
    node = Node("qfmt.Linear", tuple(names), ("y",), rule=rule)
    return Layer(Model(Graph(("x",), ("y",), [node], {each.name: each for each in tensors})), rule)


def everything(made: Layer) -> np.ndarray:
    """All integers of the input, and so every reachable sum."""
    tensor = made.model.tensors["x"]
    assert tensor.quantization is not None
    grid = tensor.quantization
    return np.arange(grid.quant_min, grid.quant_max + 1).astype(tensor.dtype).reshape(-1, 1)


def stated(made: Layer, sums: np.ndarray, channel: int, bias: int) -> np.ndarray:
    """The rule itself, for sums of a channel that include an integer bias."""
    tensors = made.model.tensors
    x, w, y = (tensors[name].quantization for name in ("x", "w", "y"))
    assert x is not None
    assert w is not None
    assert y is not None
    real = tensors["b"].array[channel : channel + 1] if "b" in tensors else None
    scale = np.array(w.scale[channel : channel + 1]) if w.is_per_channel else np.array(w.scale[0])
    return requantize(sums - bias, real, x.scale[0], scale, y, np.dtype(np.uint8), made.rule)


def by_integers(node: Node, lowered: Model, sums: np.ndarray, channel: int) -> np.ndarray:
    """The results of the lowered model's node for sums of one channel."""
    assert node.proof is not None
    wide = np.zeros((len(sums), len(node.proof.low)), np.int32)
    wide[:, channel] = sums
    operands = [Operand(wide, None)]
    operands += [Operand(lowered.tensors[name].array, None) if name else None for name in node.inputs[1:]]  # type: ignore[list-item]
    (result,) = execute(node, operands, [lowered.tensors[node.outputs[0]]])
    return result[:, channel]


@examples(25)
@given(st.integers(0, 2**32), st.sampled_from(sorted(REQUANTIZE)), st.sampled_from(FORMS), st.sampled_from([8, 16, 32]))
def test_the_count_of_differing_sums_is_that_of_all_sums_tried(seed: int, rule: str, form: str, bits: int) -> None:
    made = layer(np.random.default_rng(seed), rule)
    bits = bits if form in NARROWED else 32
    for exact in (False, True):
        lowered = lower_integer(made.model, form=form, bits=bits, exact=exact)
        (found,) = requantizations(lowered)
        (adding, node) = lowered.nodes
        bias = lowered.tensors[adding.inputs[2]].array if len(adding.inputs) > 2 else np.zeros(4, int)
        weight, zero = made.model.tensors["w"].array[:, 0], made.model.tensors["x"].quantization.zero_point[0]  # type: ignore[union-attr]
        own = bias + weight.astype(np.int64) * zero  # the bias without the folded zero point
        differs, largest = [], 0
        for channel, (low, high) in enumerate(found.reach):
            sums = np.arange(low, high + 1)
            assert len(sums) <= 3 * REACH
            apart = np.abs(
                by_integers(node, lowered, sums, channel).astype(int)
                - stated(made, sums, channel, int(own[channel])).astype(int)
            )
            differs.append(int(np.count_nonzero(apart)))
            largest = max(largest, int(apart.max()))
        counted = tuple(differs) if any(differs) else ()
        assert node.proof == Proof(*zip(*found.reach, strict=True), rule, counted, largest)
        if exact or form == "thresholds":
            assert not any(differs)
        assert node.rule in (form, "thresholds")
        if form in NARROWED:
            multiplier = lowered.tensors[node.inputs[1]].array if node.inputs[1:2] != ("",) else np.ones(1)
            assert 1 <= multiplier.min() <= multiplier.max() < 1 << min(bits, 31)


@examples(25)
@given(st.integers(0, 2**32), st.sampled_from(sorted(REQUANTIZE)), st.booleans())
def test_reachable_sums_are_those_of_all_inputs(seed: int, rule: str, wide: bool) -> None:
    """For every input integer, outputs are equal and the sum is inside the stated reach, whose ends occur."""
    made = layer(np.random.default_rng(seed), rule, wide=wide)
    lowered = lower_integer(made.model, exact=True)
    x = everything(made)
    assert (lowered.run({"x": x})["y"] == made.model.run({"x": x})["y"]).all()
    adding = lowered.nodes[0]
    operands = [Operand(x, made.model.tensors["x"].quantization)]
    operands += [Operand(lowered.tensors[each].array, lowered.tensors[each].quantization) for each in adding.inputs[1:]]
    (sums,) = execute(adding, operands, [lowered.tensors[adding.outputs[0]]])
    node = lowered.nodes[1]
    assert node.proof is not None
    assert (tuple(sums.min(0)), tuple(sums.max(0))) == (node.proof.low, node.proof.high)


def steps_of(rng: np.random.Generator) -> tuple[StepFunction, np.ndarray]:
    """A random step function over few sums, and its values."""
    low, count = int(rng.integers(-500, 500)), int(rng.integers(1, 120))
    x = np.arange(low, low + count)
    slope = rng.uniform(0.01, 1.5)
    y = np.clip(np.floor(x * slope + rng.uniform(-3, 3) + rng.normal(0, 0.2, count)), 0, 15).astype(np.int64)
    y = np.maximum.accumulate(y)
    found = search(
        lambda sums: y[np.clip(sums - low, 0, count - 1)],
        np.array([low]),
        np.array([low + count - 1]),
        np.arange(1, 16),
        np.array([slope]),
        0,
    )
    return found, y


@examples(50)
@given(st.integers(0, 2**32))
def test_a_line_is_found_if_one_exists(seed: int) -> None:
    """For all multipliers below 2⁶ and all shifts up to 16, tests whether an addend exists."""
    found, y = steps_of(np.random.default_rng(seed))
    low, high = int(found.low[0]), int(found.high[0])
    lines, equal = exact_lines(found, 6)
    x = np.arange(low, high + 1)
    least = next(
        (
            m
            for m in range(1, 64)
            for shift in range(17)
            if any(_is_equal(x, y, m, shift, add) for add in _ends(found, m, shift))
        ),
        None,
    )
    assert bool(equal[0]) == (least is not None) or (equal[0] and lines.shift[0] > 16)
    if equal[0]:
        assert _is_equal(x, y, *(int(each[0]) for each in lines))
        assert least is None or lines.multiplier[0] <= least


def _ends(found: StepFunction, m: int, shift: int) -> tuple[int, ...]:
    """The smallest and largest addend that the levels may allow."""
    least, most = addends(found, np.array([m]), np.array([shift]))
    return int(least[0]), int(most[0])


def _is_equal(x: np.ndarray, y: np.ndarray, m: int, shift: int, add: int) -> bool:
    return bool((np.clip((x * m + add) >> shift, 0, 15) == y).all())


@pytest.mark.parametrize("count", [1, 2])
def test_channels_of_one_output_have_a_line(count: int) -> None:
    """Weights of zero, and sums that end before the first step."""
    for value in (0, 7, 255):
        found = search(
            lambda x, value=value: np.full(x.shape, value),
            np.full(count, 5),
            np.full(count, 9),
            np.arange(1, 256),
            np.full(count, 0.01),
            0,
        )
        lines, equal = exact_lines(found, 32)
        assert equal.all()
        got = (np.arange(5, 10) * lines.multiplier[0] + lines.add[0]) >> lines.shift[0]
        assert (np.clip(got, 0, 255) == value).all()


def test_multipliers_are_those_of_tflite() -> None:
    """QuantizeMultiplier: a fraction in [1/2, 1), times 2³¹, rounded half away from zero."""
    rng = np.random.default_rng(0)
    real = np.concatenate([2.0 ** rng.uniform(-25, 3, 2000), [0.5, 1.0, 1 - 2.0**-33, 0.25 + 2.0**-34]])
    multiplier, shift = quantized_multiplier(real)
    exact = [Fraction(each) for each in real]
    wanted = []
    for each in exact:
        exponent = 0
        while not Fraction(1, 2) <= each < 1:
            each, exponent = (each / 2, exponent + 1) if each >= 1 else (each * 2, exponent - 1)
        whole = int(each * (1 << 31) + Fraction(1, 2))
        wanted.append((whole, 31 - exponent) if whole < 1 << 31 else (1 << 30, 30 - exponent))
    assert list(zip(multiplier.tolist(), shift.tolist(), strict=True)) == wanted


# Functions of two inputs


@examples(40)
@given(st.fractions(0, 30, max_denominator=200), st.fractions(0, 30, max_denominator=200))
def test_the_simplest_fraction_between_two(a: Fraction, b: Fraction) -> None:
    low, high = min(a, b), max(a, b)
    if low == high:
        return
    found = between(low, high)
    assert low < found < high
    smaller = (
        Fraction(int(low * denominator) + 1, denominator) for denominator in range(1, min(found.denominator, 500))
    )
    assert not any(low < each < high for each in smaller)


@examples(25)
@given(st.integers(0, 2**32))
def test_weights_make_a_sum_of_which_the_table_is_a_function(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = np.arange(int(rng.integers(2, 40))), np.arange(int(rng.integers(2, 40)))
    signs = rng.choice([-1, 1], 2)
    real = np.add.outer(a * rng.uniform(0.05, 2) * signs[0], b * rng.uniform(0.05, 2) * signs[1])
    table = np.clip(np.floor(real + rng.uniform(0, 40)), 0, 60).astype(np.int64)
    found = list(weights(table))
    assert found
    for pair in found:
        sums = np.add.outer(a * pair[0], b * pair[1]).ravel()
        steps = of_pairs(sums, table.ravel(), (0, 60), 1.0, 0)
        if pair is found[0]:
            assert steps is not None
        if steps is not None:
            got = steps.levels[0] - 1 + np.searchsorted(steps.above[0], sums, "right")
            assert (got == table.ravel()).all() or len(np.unique(table)) == 1


def test_tables_that_are_not_sums_have_no_weights() -> None:
    a = np.arange(16)
    assert not ratios(np.maximum.outer(a, a))[0] < ratios(np.maximum.outer(a, a))[1]
    assert list(weights(np.maximum.outer(a, a))) == []
    assert list(weights(np.abs(np.subtract.outer(a, a)))) == []


def slowly(table: np.ndarray) -> tuple[float, float]:
    """The interval of `ratios` by its definition, from every two rows of every level."""
    low, high, (height, width) = 0.0, np.inf, table.shape
    for level in range(table.min() + 1, table.max() + 1):
        first = (table < level).sum(1).tolist()
        pairs = [(i, k) for i in range(height) for k in range(height) if first[i] > 0 and first[k] < width]
        bounds = [((first[k] - first[i] + 1) / (i - k), i > k) for i, k in pairs if i != k]
        high = min([high, *(bound for bound, above in bounds if above)])
        low = max([low, *(bound for bound, above in bounds if not above)])
    return low, high


def growing(seed: int) -> np.ndarray:
    """A table that increases along both axes: random and sorted, or a rounded and clamped line."""
    rng = np.random.default_rng(seed)
    height, width, levels = (int(each) for each in rng.integers(1, 16, 3))
    if seed % 2:
        return np.sort(np.sort(rng.integers(0, levels, (height, width)), 0), 1)
    slopes = rng.uniform(0, 3, 2)
    line = slopes[0] * np.arange(height)[:, None] + slopes[1] * np.arange(width) - rng.uniform(0, 9)
    return np.clip(np.rint(line), 0, levels).astype(np.int64)


def test_ratios_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    for seed in range(400):
        if seed == 200:
            monkeypatch.setattr(pairs, "CELLS", 16)  # a few levels at a time
        table = growing(seed)
        found, expected = ratios(table), slowly(table)
        assert found == expected, (seed, found, expected)
        count += found[0] < found[1]
    tell(f"ratios: {count} of 400 tables have some")
    assert 100 < count < 400


def test_ratios_of_levels_that_are_far_apart() -> None:
    assert ratios(np.array([[0, 1 << 40], [1 << 39, 1 << 41]])) == ratios(np.array([[0, 2], [1, 3]]))


def sums(count: int, operator: str = "Add", shared: int = 0) -> Model:
    """A chain of sums of two quantized tensors with separate parameters; `shared` elements of one constant."""
    rng = np.random.default_rng(0)

    def tensor(name: str) -> Tensor:
        grid = Quantization.per_tensor(float(f32(rng.uniform(0.005, 0.05))), int(rng.integers(80, 170)), "uint8")
        return Tensor(name, "uint8", (1, 8), quantization=grid)

    names = ["x", *(f"y{index}" for index in range(count))]
    tensors = {name: tensor(name) for name in ["a", *names]}
    if shared:
        constant = Tensor.constant("c", np.zeros((shared,), np.int8))
        tensors |= {name: replace(constant, name=name) for name in ("c0", "c1", "c2")}
    nodes = [
        Node(operator, (before, "a"), (after,), {}, version=OPERATORS[operator].version, rule="premultiplied")
        for before, after in pairwise(names)
    ]
    return Model(Graph(("x", "a"), (names[-1],), nodes, tensors))


@pytest.mark.parametrize("operator", ["Add", "Max"])
def test_lowering_costs_in_proportion_to_the_model(operator: str) -> None:
    lower_integer(sums(20, operator))
    with pytest.raises(BudgetError, match=r"^lowering a network of 80,?400 bytes would take more than"):
        lower_integer(sums(401, operator))


def test_a_constant_counts_once_however_many_tensors_hold_it() -> None:
    assert Budget.of(sums(1, shared=1 << 20), "").source_bytes == (1 << 20) + 100 * (6 + 1)


def test_more_channels_than_are_searched_at_a_time() -> None:
    """5,000 channels: the parts are concatenated in order. Compares outputs of the rule with integer-only ones."""
    rng = np.random.default_rng(1)
    equal = total = 0
    for form in ("multiply_shift", "thresholds"):
        made = layer(rng, "float_bias", channels=5000, wide=False)
        lowered: Any = lower_integer(made.model, form=form, exact=True)
        x = everything(made)
        got, want = lowered.run({"x": x})["y"], made.model.run({"x": x})["y"]
        equal, total = equal + int((got == want).sum()), total + want.size
    tell(f"lowering of 5,000 channels: {equal:,} of {total:,} outputs equal")
    assert equal == total
