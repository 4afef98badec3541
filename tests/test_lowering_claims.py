"""What lowered networks state about themselves, against all inputs that there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_lowering_nodes import Net

from qfmt.model import Model, Quantization, numpy_dtype
from qfmt.passes import lower_integer
from qfmt.passes.lowering.facts import totals

f32 = np.float32


def q(scale: float, zero_point: int, low: int, high: int) -> Quantization:
    return Quantization((float(f32(scale)),), (zero_point,), low, high)


def every_pair(model: Model) -> dict[str, np.ndarray]:
    """All integers in the range of the one input of a model, or all pairs of those of two: [n, 1] and [1, m]."""
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
    """QuantizeLinear(…(Dequantize(a) ∘ Dequantize(b))), or the operator itself where there is one alone."""
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
    scale = 0.0006 if operators == "Mul" else 0.0078 if "igmoid" in operators else 0.035
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


def test_a_bias_of_half_a_unit_is_no_sum_of_integers() -> None:
    """float32(sum) + 1/2 rounds half to even: one bias of integers cannot do that, and int32 has too many levels."""
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
