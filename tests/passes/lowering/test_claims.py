"""Compares the statements of lowered networks on themselves with all possible inputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from networks.random_net import Net
from qfmt.arithmetic import dequantize
from qfmt.errors import NoIntegerFormError
from qfmt.model import Graph, Model, Node, Quantization, Tensor, numpy_dtype
from qfmt.ops import OPERATORS
from qfmt.passes.lowering import lower_integer
from qfmt.passes.lowering.facts import totals
from qfmt.rules import graph_violations

f32 = np.float32


def q(scale: float, zero_point: int, low: int, high: int) -> Quantization:
    return Quantization.of((float(f32(scale)),), (zero_point,), low, high)


def every_pair(model: Model) -> dict[str, np.ndarray]:
    """All integers in the range of a model's only input, or all pairs for two inputs: [n, 1] and [1, m]."""
    given = {}
    for place, name in enumerate(model.graph.inputs):
        tensor = model.tensors[name]
        grid = tensor.quantization
        assert grid is not None
        values = np.arange(grid.quant_min, grid.quant_max + 1).astype(numpy_dtype(tensor.dtype))
        given[name] = values[:, None] if place == 0 else values[None, :]
    return given


def differences(model: Model, lowered: Model) -> np.ndarray:
    given = every_pair(model)
    (want,), (got,) = model.run(given).values(), lowered.run(given).values()
    return np.abs(want.astype(np.int64) - got.astype(np.int64))


def of_two(operators: str, first: Quantization, second: Quantization, out: Quantization, rule: str) -> Model:
    """QuantizeLinear(…(Dequantize(a) ∘ Dequantize(b))), or a single quantized operator."""
    net = Net(np.random.default_rng(0))
    sizes = [each.quant_max - each.quant_min + 1 for each in (first, second)]
    a, b = net.input(sizes[0], 1, dtype="int8", q=first), net.input(1, sizes[1], dtype="int8", q=second)
    names = operators.split()
    if len(names) == 1:
        return net.model(net.node(names[0], [a, b], out, rule, dtype="int8"))
    real = net.node(names[0], [net.node("DequantizeLinear", [each], None) for each in (a, b)], None)
    for name in names[1:]:
        real = net.node(name, [real], None)
    return net.model(net.node("QuantizeLinear", [real], out, rule, dtype="int8"))


@pytest.mark.parametrize(
    "operators", ["Add", "Sub", "Mul", "Add Relu", "Add Sigmoid", "Add LeakyRelu", "Sub HardSigmoid"]
)
def test_pairs_of_inputs_that_differ_are_counted(operators: str) -> None:
    scale = 0.009 if operators == "Mul" else 0.0078 if "igmoid" in operators else 0.035
    first, second, out = q(0.02, 3, -128, 127), q(0.03, -7, -100, 127), q(scale, -5, -128, 127)
    options: dict[str, Any]
    for rule, form, options in (
        ("divide", "multiply_shift", {}),
        ("reciprocal", "multiply_shift", {"bits": 8}),
        ("divide", "power_of_two", {}),
        ("divide", "fixed_point_double", {"exact": True}),
    ):
        model = of_two(operators, first, second, out, rule)
        lowered = lower_integer(model, form=form, **options)
        apart, stated = differences(model, lowered), totals(lowered)
        print(f"{operators} by {form} {options}: {apart.size - np.count_nonzero(apart)} of {apart.size} equal")
        assert (np.count_nonzero(apart), apart.max()) == (stated.differs, stated.largest)
        assert stated.sums == (apart.size if stated.count else 0)
        assert not (apart.any() and (options.get("exact") or operators != "Mul")), "thresholds would have done"


def test_a_bias_of_half_a_unit_is_not_integer_only() -> None:
    """float32(sum) + 1/2 rounds half to even: an integer bias cannot express that, and int32 has too many levels for
    thresholds."""
    rng = np.random.default_rng(1)
    for rule in ("float_bias", "affine", "integer_bias"):
        for bias in (0.5, 2.0, -3.0):
            net = Net(rng)
            x = net.input(256, 3, q=q(1, 0, 0, 255))
            w = net.constant(np.array([[1, 1, 2]], np.int8), q(1, 0, -128, 127), "int8")
            b = net.constant(np.array([bias], f32))
            model = net.model(net.node("qfmt.Linear", [x, w, b], q(1, 0, -(2**31), 2**31 - 1), rule, dtype="int32"))
            if bias == 0.5 and rule != "integer_bias":
                with pytest.raises(Exception, match="levels"):
                    lower_integer(model)
                continue
            given = {x: rng.integers(0, 256, (256, 3)).astype(np.uint8)}
            lowered = lower_integer(model)
            (want,), (got,) = model.run(given).values(), lowered.run(given).values()
            print(f"{rule}, bias {bias}: {(want == got).sum()} of {want.size} equal")
            assert (want == got).all()


@pytest.mark.parametrize(
    "form", ["multiply_shift", "fixed_point_single", "power_of_two", "thresholds", "multiply_add_divide"]
)
def test_an_output_of_one_level_differs_nowhere(form: str) -> None:
    for exact in (False, True):
        net = Net(np.random.default_rng(2))
        x = net.input(256, 1)
        w = net.constant(np.array([[1], [-3]], np.int8), q(0.1, 0, -128, 127), "int8")
        model = net.model(net.node("qfmt.Linear", [x, w], q(0.1, 7, 7, 7), "affine"))
        lowered = lower_integer(model, form=form, exact=exact)
        assert not differences(model, lowered).any()
        assert totals(lowered).differs == totals(lowered).largest == 0
        assert "differs on" not in str(lowered.source["integer_only"]) or "differs on 0 " in str(
            lowered.source["integer_only"]
        )


def equal(model: Model, given: dict[str, np.ndarray], **options: Any) -> Model:
    """Lower a model, and assert that the outputs are equal, in order."""
    lowered = lower_integer(model, exact=True, **options)
    want, got = model.run(given), lowered.run(given)
    for name, own in zip(model.graph.outputs, lowered.graph.outputs, strict=True):
        grid = lowered.tensors[own].quantization
        real = want[name] if want[name].dtype.kind != "f" or grid is None else dequantize(got[own], grid)
        apart = np.count_nonzero(real != (want[name] if want[name].dtype.kind == "f" else got[own]))
        print(f"{name}: {want[name].size - apart} of {want[name].size} equal")
        assert not apart
    return lowered


def test_constants_of_other_names_stay_what_they_are() -> None:
    net = Net(np.random.default_rng(3))
    x, other = net.input(1, 3, 4, q=q(1, 0, 0, 255)), net.input(1, q=q(1, 0, -(2**20), 2**20), dtype="int32")
    mul, add = net.constant(np.array([3.0], f32)), net.constant(np.array([5.0], f32))
    net.tensors[f"{mul}.integers"] = Tensor.constant(f"{mul}.integers", np.array([7], np.int32))
    y = net.node("qfmt.RequantShift", [x, mul, add], q(1, 0, 0, 255), "multiply_add_divide", div=4)
    z = net.node("qfmt.RequantShift", [other, f"{mul}.integers", add], q(1, 0, 0, 255), "multiply_add_divide", div=4)
    given = {x: np.arange(12, dtype=np.uint8).reshape(1, 3, 4), other: np.array([9], np.int32)}
    lowered = equal(net.model(y, z), given)
    assert len({*lowered.nodes[0].inputs} & {*lowered.nodes[1].inputs}) == 1  # the addend, once


def test_outputs_that_come_to_the_same_integers_stay_outputs() -> None:
    net = Net(np.random.default_rng(4))
    x = net.input(4, 1)
    y = net.node("Relu", [x], net.tensors[x].quantization)
    real = net.node("DequantizeLinear", [y], None)
    given = {x: np.array([[0], [100], [200], [255]], np.uint8)}
    assert equal(net.model(y, real), given).graph.outputs == (y, real)
    assert equal(net.model(real), given).graph.outputs == (y,)
    assert lower_integer(net.model(y, y)).graph.outputs == (y, y)
    assert lower_integer(net.model(real, real)).graph.outputs == (y, y)
    assert lower_integer(net.model(real, y)).graph.outputs == (real, y)
    assert lower_integer(net.model(y), outputs=[y, real, y]).graph.outputs == (y, real, y)


def test_unrepresentable_zeros_are_not_used_as_padding() -> None:
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    for low, mode in ((0, "constant"), (50, "reflect"), (50, "constant")):
        net = Net(np.random.default_rng(5))
        x = net.input(1, 1, 4, 4, q=q(0.1, 0, low, 200))
        padded = net.node("Pad", [net.node("DequantizeLinear", [x], None), net.constant(pads)], None, mode=mode)
        model = net.model(net.node("QuantizeLinear", [padded], q(0.1, 0, 0, 255), "divide"))
        if low and mode == "constant":
            with pytest.raises(NoIntegerFormError, match="Pad"):
                lower_integer(model)
        else:
            equal(model, {x: np.arange(low, low + 16, dtype=np.uint8).reshape(1, 1, 4, 4)})


@pytest.mark.parametrize("operator", ["Sigmoid", "QuantizeLinear", "Add", "Concat"])
def test_functions_with_an_output_of_many_scales_are_refused(operator: str) -> None:
    net = Net(np.random.default_rng(6))
    many = Quantization.of(tuple(np.linspace(0.01, 0.2, 256)), (0,) * 256, 0, 255, 0)  # as many as a table has rows
    inputs = [net.input(256, 2) for _ in range(2 if operator in ("Add", "Concat") else 1)]
    axis = {"axis": 1} if operator == "Concat" else {}
    model = net.model(net.node(operator, inputs, many, sorted(OPERATORS[operator].rules)[0], **axis))
    with pytest.raises(NoIntegerFormError, match="output that is quantized per channel"):
        lower_integer(model)


def test_constants_of_each_channel_of_none() -> None:
    net = Net(np.random.default_rng(6))
    x = net.input(2, 0)
    real = net.node("Mul", [net.node("DequantizeLinear", [x], None), net.constant(np.ones(0, f32))], None)
    model = net.model(net.node("QuantizeLinear", [real], q(0.1, 0, 0, 255), "divide"))
    equal(model, {x: np.empty((2, 0), np.uint8)})


def test_the_largest_of_no_real_numbers_is_refused() -> None:
    net = Net(np.random.default_rng(6))
    real = net.node("DequantizeLinear", [net.input(2, 0)], None)
    largest = net.node("ReduceMax", [real, net.constant(np.array([1]))], None, keepdims=1)
    model = net.model(net.node("QuantizeLinear", [largest], q(0.1, 50, 0, 255), "divide"))
    with pytest.raises(NoIntegerFormError, match="ReduceMax"):
        lower_integer(model)


def test_means_of_more_levels_than_are_searched_are_refused() -> None:
    net = Net(np.random.default_rng(6))
    wide = q(0.1, 0, -(1 << 31), (1 << 31) - 1)
    with pytest.raises(NoIntegerFormError, match="an output of 4,294,967,296 levels"):
        lower_integer(net.model(net.node("GlobalAveragePool", [net.input(1, 2, 5)], wide, "divide", dtype="int32")))


def test_constants_that_add_dimensions_or_elements_are_refused() -> None:
    rng = np.random.default_rng(6)
    for shape, constant, fits in (
        ((3,), (1, 1, 1), False),
        ((3,), (1, 1, 3), False),
        ((1, 3), (4, 1), False),
        (("N", "M"), (1, 4), False),
        (("N", 4), (1, 4), True),
        ((2, 3), (1, 1), True),
        ((2, 3), (), True),
    ):
        for two, stored in itertools.product((False, True), repeat=2):
            net = Net(rng)
            inputs = [net.input(*shape) for _ in range(1 + two)]  # type: ignore[arg-type]
            real = [net.node("DequantizeLinear", [each], None) for each in inputs]
            real = [net.node("Mul", real, None)] if two else real
            added = net.constant(rng.normal(size=constant).astype(f32))
            if stored:
                whole = net.constant(rng.integers(-9, 9, constant).astype(np.int8), q(0.5, 0, -128, 127))
                added = net.node("DequantizeLinear", [whole], None)
            real = [net.node("Add", [*real, added], None)]
            model = net.model(net.node("QuantizeLinear", real, q(0.3, 9, 0, 255), "divide"))
            if not fits or (two and len(constant) == 2 and constant[1] == 4):
                with pytest.raises(NoIntegerFormError):
                    lower_integer(model)
                continue
            sizes = [size if isinstance(size, int) else 5 for size in shape]
            equal(model, {name: rng.integers(0, 256, sizes).astype(np.uint8) for name in inputs})


def test_real_numbers_that_are_outputs_at_once_are_refused() -> None:
    for which, said in (("input", "an input"), ("constant", "a constant")):
        net = Net(np.random.default_rng(7))
        x, c = net.real(4), net.constant(np.ones(3, f32))
        y = net.node("QuantizeLinear", [x], q(0.1, 3, 0, 255), "divide")
        with pytest.raises(NoIntegerFormError, match=said):
            lower_integer(net.model(y, x if which == "input" else c))


def test_weights_of_16_bits_whose_centred_integers_need_more() -> None:
    rng = np.random.default_rng(8)
    net = Net(rng)
    x = net.input(40, 4)
    w = net.constant(np.array([[-30000] * 4, [3] * 4], np.int16), q(0.1, 20000, -32768, 32767), "int16")
    model = net.model(net.node("qfmt.Linear", [x, w], q(1000, 3, 0, 255), "affine"))
    assert equal(model, {x: rng.integers(0, 256, (40, 4)).astype(np.uint8)}).nodes[0].rule == "exact"


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean"])
def test_means_of_nothing_are_refused(operator: str) -> None:
    net = Net(np.random.default_rng(9))
    x = net.input(1, 2, 0, 3)
    inputs = [x, net.constant(np.array([2], np.int64))] if operator == "ReduceMean" else [x]
    attributes = {"output_size": (1, 1)} if operator.startswith("qfmt") else {}
    y = net.node(operator, inputs, net.tensors[x].quantization, "mean_stored", **attributes)
    with pytest.raises(NoIntegerFormError, match="averages over zero elements"):
        lower_integer(net.model(y))


def test_the_place_of_the_largest_needs_numbers_that_differ() -> None:
    for scale, exponents in ((0.1, True), (3e38, False)):
        net = Net(np.random.default_rng(10))
        x = net.input(1, 4, q=q(scale, 0, 0, 255))
        y = net.node("ArgMax", [net.node("DequantizeLinear", [x], None)], None, axis=1, dtype="int64")
        if exponents:
            equal(net.model(y), {x: np.array([[3, 7, 9, 1]], np.uint8)})
        else:
            with (
                pytest.raises(NoIntegerFormError, match="different integers dequantize to equal float32 values"),
                np.errstate(over="ignore"),
            ):
                lower_integer(net.model(y))


def test_convolutions_without_channels() -> None:
    for shape in ((0, 2, 3, 3), (0, 1, 3, 3)):
        net = Net(np.random.default_rng(11))
        x = net.input(1, shape[1], 4, 4)
        w = net.constant(np.zeros(shape, np.int8), q(0.1, 0, -128, 127), "int8")
        window = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
        model = net.model(net.node("Conv", [x, w], q(0.1, 0, 0, 255), "affine", **window))
        (got,) = model.run({x: np.zeros((1, shape[1], 4, 4), np.uint8)}).values()
        assert got.shape == (1, 0, 2, 2)


def test_sums_of_unequal_windows_state_their_sizes() -> None:
    """L / n of each window depends on the size: V62 requires the sizes if windows may differ."""
    pool = {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "ceil_mode": 0}
    cases: list[tuple[str, dict[str, Any], tuple[Any, ...], bool]] = [
        ("AveragePool", {**pool, "pads": (0, 0, 0, 0)}, (1, 2, "H", "W"), True),
        ("AveragePool", {**pool, "pads": (1, 0, 1, 0)}, (1, 2, 9, "W"), True),
        ("AveragePool", {**pool, "pads": (1, 0, 1, 0)}, (1, 2, "H", 9), False),
        ("AveragePool", {**pool, "pads": (1, 1, 1, 1), "count_include_pad": 1}, (1, 2, "H", "W"), True),
        ("AveragePool", {**pool, "pads": (0, 0, 0, 0), "ceil_mode": 1}, (1, 2, 9, None), False),
        ("qfmt.AdaptiveAveragePool", {"output_size": (1, 1)}, (1, 2, "H", "W"), True),
        ("qfmt.AdaptiveAveragePool", {"output_size": (1, 3)}, (1, 2, "H", "W"), False),
        ("qfmt.AdaptiveAveragePool", {"output_size": (1, 3)}, (1, 2, "H", 9), True),
    ]
    for operator, attributes, shape, holds in cases:
        net = Net(np.random.default_rng(12))
        x = net.input(*shape)
        model = net.model(net.node(operator, [x], None, "exact", dtype="int32", **attributes))
        assert [str(each)[:3] for each in graph_violations(model)] == ([] if holds else ["V62"])


def layer(scale: float) -> Model:
    """y = x · scale, for all x of 8 bits."""
    net = Net(np.random.default_rng(13))
    x = net.input(256, 1, q=q(1, 0, 0, 255))
    w = net.constant(np.array([[1]], np.int8), q(scale, 0, -128, 127), "int8")
    return net.model(net.node("qfmt.Linear", [x, w], q(1, 0, 0, 255), "affine"))


@pytest.mark.parametrize("scale", [0.3, 0.7, 0.5, 0.999, 1.3, 0.2])
@pytest.mark.parametrize("form", ["fixed_point_single", "fixed_point_double"])
def test_sums_that_differ_are_counted_by_shifts_from_30_to_33(form: str, scale: float) -> None:
    """With double rounding, a shift of 31 rounds once, a shift of 32 twice."""
    model = layer(scale)
    lowered = lower_integer(model, form=form)
    (shift,) = (each.array for name, each in lowered.tensors.items() if name.endswith(".shift"))
    assert shift[0] == 31 - np.frexp(f32(scale))[1]
    apart, stated = differences(model, lowered), totals(lowered)
    print(f"{form}, shift {shift[0]}: {(apart == 0).sum()} of {apart.size} equal")
    assert (np.count_nonzero(apart), apart.max()) == (stated.differs, stated.largest)


@pytest.mark.parametrize("rule", ["divide", "reciprocal"])
def test_ties_of_means_of_real_numbers_are_counted(rule: str) -> None:
    """Means of four numbers with one scale: every fourth sum is half-way, and no other is close."""
    net = Net(np.random.default_rng(14))
    x = net.input(1, 1, 2, 2, q=q(0.1, 0, 0, 255))
    lowered = lower_integer(net.model(net.node("GlobalAveragePool", [x], q(0.1, 0, 0, 255), rule)), exact=True)
    assert totals(lowered).differs == sum(total % 4 == 2 for total in range(4 * 255 + 1))


@pytest.mark.parametrize("rule", ["mean_divide_offset", "mean_reciprocal"])
@pytest.mark.parametrize("form", ["multiply_shift", "thresholds"])
def test_zeros_of_padding_are_in_reach_of_means_where_no_input_is_zero(form: str, rule: str) -> None:
    net = Net(np.random.default_rng(15))
    x = net.input(1, 1, 6, 6, q=q(0.1, 0, 100, 255))
    window = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "ceil_mode": 0}
    y = net.node("AveragePool", [x], q(0.1, 0, 0, 255), rule, **window, pads=(1, 1, 1, 1), count_include_pad=1)
    for given in (np.full((1, 1, 6, 6), 100, np.uint8), np.arange(100, 136, dtype=np.uint8).reshape(1, 1, 6, 6)):
        equal(net.model(y), {x: given}, form=form)


def test_a_padding_value_is_divided_by_the_scale() -> None:
    """Some float32 padding values half-way between two integers round differently if multiplied by 1 / s."""
    s = f32(0.07)
    halves = ((np.arange(120) + 0.5) * s).astype(f32)
    (told,) = np.nonzero(np.rint(halves / s) != np.rint(halves * (f32(1) / s)))
    assert len(told)
    for value in halves[told]:
        net = Net(np.random.default_rng(16))
        x = net.input(2, q=q(float(s), 3, 0, 255))
        inputs = [x, net.constant(np.array([1, 1], np.int64)), net.constant(np.array(value, f32))]
        equal(net.model(net.node("Pad", inputs, net.tensors[x].quantization)), {x: np.array([0, 255], np.uint8)})


def chain(operators: list[str], start: str) -> Model:
    """x → the operators, each on the result of the previous one (twice, if binary) → QuantizeLinear → y."""
    nodes, names = [], [start]
    for index, operator in enumerate(operators):
        inputs = tuple(names[-1:] * (2 if operator == "Add" else 1))
        names.append(f"t{index}")
        entry = OPERATORS[operator]
        nodes.append(Node(operator, inputs, (names[-1],), entry.complete({}), version=entry.version))
    entry = OPERATORS["QuantizeLinear"]
    quantizer = Node(entry.name, (names[-1],), ("y",), entry.complete({}), version=entry.version, rule="divide")
    tensors = {name: Tensor(name, "float32", (1, 4)) for name in names}
    tensors["y"] = Tensor("y", "uint8", (1, 4), quantization=Quantization.per_tensor(0.1, 3, "uint8"))
    return Model(Graph((start,), ("y",), [*nodes, quantizer], tensors))


@pytest.mark.parametrize(
    ("operators", "words"),
    [
        (["Relu"] * 3000, "computes floats with more than 100 operators"),
        (["Softmax", *["Flatten"] * 3000], "from more than one element"),
        (["Softmax", *["Add"] * 60], "from more than one element"),
    ],
    ids=["formula", "moves", "doubling"],
)
def test_long_formulas_are_refused(operators: list[str], words: str) -> None:
    """Long formulas cause neither deep recursion nor a walk over all paths: 60 sums of a tensor with itself have
    2⁶⁰."""
    with pytest.raises(NoIntegerFormError, match=words):
        lower_integer(chain(operators, "x"))


def test_an_input_that_is_moved_often_stays_an_input() -> None:
    lowered = lower_integer(chain(["Flatten"] * 2000, "x"))
    assert [node.operator for node in lowered.nodes] == ["Flatten"] * 2000
