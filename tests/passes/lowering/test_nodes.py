"""Every kind of node that can be lowered computes the integers of the stated rule, on random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from networks.random_net import Net, Random, grid
from qfmt.arithmetic import MEAN, QUANTIZE, REQUANTIZE
from qfmt.errors import NoIntegerFormError, QfmtError
from qfmt.forms import FORMS, NARROWED, WIDTHS
from qfmt.model import DTYPES, Model, Quantization, Tensor, numpy_dtype
from qfmt.ops import OPERATORS
from qfmt.passes.lowering import lower_integer
from qfmt.passes.lowering.facts import requantizations, totals
from qfmt.rules import violations
from support.counts import tell

f32 = np.float32
COUNTED: dict[str, list[int]] = {}


@pytest.fixture(scope="module", autouse=True)
def _told() -> Any:
    yield
    for what, (equal, total) in COUNTED.items():
        tell(f"lowered {what}: {equal:,} of {total:,} outputs equal")


def same(what: str, model: Model, rng: Random, *, form: str = "multiply_shift", **options: Any) -> Model:
    """Lower a model, and assert that its outputs are equal on random integers."""
    options.setdefault("exact", True)
    lowered = lower_integer(model, form=form, **options)
    given = {name: integers(model.tensors[name], rng) for name in model.graph.inputs}
    want, got = model.run(given), lowered.run(given)
    assert {*got} == {*want}
    counted = COUNTED.setdefault(what, [0, 0])
    for name, array in want.items():
        equal = int((got[name] == array).sum())
        counted[0], counted[1] = counted[0] + equal, counted[1] + array.size
        if options["exact"]:
            assert equal == array.size, f"{what}: {array.size - equal} of {array.size} differ"
    assert no_floats(lowered) == []
    return lowered


def no_floats(model: Model) -> list[str]:
    """Float tensors in a graph, except the scales of a Resize."""
    scales = {name for node in model.nodes if node.operator == "Resize" for name in node.inputs[1:3]}
    return [name for name, tensor in model.tensors.items() if DTYPES[tensor.dtype].kind == "f" and name not in scales]


def integers(tensor: Tensor, rng: Random) -> np.ndarray:
    assert tensor.quantization is not None
    shape = [size if isinstance(size, int) else 2 for size in tensor.shape or ()]
    low, high = tensor.quantization.quant_min, tensor.quantization.quant_max
    return rng.integers(low, high + 1, shape).astype(numpy_dtype(tensor.dtype))


def weights(rng: Random, net: Net, shape: tuple[int, ...], axis: int | None, dtype: str = "int8") -> str:
    """Random weights; a per-tensor zero point is not 0."""
    limits = DTYPES[dtype]
    low, high = int(limits.minimum), int(limits.maximum)  # type: ignore[arg-type]
    count = 1 if axis is None else shape[axis]
    scales = tuple(float(f32(each)) for each in rng.uniform(0.002, 0.02, count))
    zeros = (int(rng.integers(low, high + 1)),) if axis is None else (0,) * count
    q = Quantization.of(scales, zeros, low, high, axis)
    return net.constant(rng.integers(low, high + 1, shape).astype(numpy_dtype(dtype)), q, dtype)


def bias(rng: Random, net: Net, x: str, w: str, count: int, rule: str) -> str:
    """A float bias; for ONNX's rule integers with the scale of the sums."""
    if rule != "integer_bias":
        return net.constant(rng.normal(0, 2, count).astype(f32))
    units = [f32(net.tensors[x].quantization.scale[0]) * f32(s) for s in net.tensors[w].quantization.scale]  # type: ignore[union-attr]
    q = Quantization.of(
        tuple(map(float, units)), (0,) * len(units), -(2**31), 2**31 - 1, 0 if len(units) > 1 else None, "float32"
    )
    return net.constant(rng.integers(-20_000, 20_000, count).astype(np.int32), q)


WINDOW = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


@pytest.mark.parametrize("rule", sorted(REQUANTIZE))
@pytest.mark.parametrize("axis", [None, 0], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_convolutions_and_matrix_products(rule: str, axis: int | None, dtype: str) -> None:
    rng = np.random.default_rng(5)
    for pads, group, kind in (((0, 0, 0, 0), 1, "int8"), ((1, 1, 2, 1), 2, "int8"), ((1, 1, 1, 1), 6, "int4")):
        net = Net(rng)
        x = net.input(2, 6, 9, 8, dtype=dtype)
        w = weights(rng, net, (12, 6 // group, 3, 3), axis, kind)
        window = {**WINDOW, "pads": pads, "group": group}
        y = net.node("Conv", [x, w, bias(rng, net, x, w, 12, rule)], grid(rng, "uint8", 0.3), rule, **window)
        lowered = same("Conv", net.model(y), rng)
        assert [node.rule for node in lowered.nodes] == ["folded", lowered.nodes[1].rule]
    for operator in ("qfmt.Linear", "Gemm", "MatMul"):
        net = Net(rng)
        x = net.input(7, 24, dtype=dtype)
        along = axis if operator == "qfmt.Linear" else None if axis is None else 1
        w = weights(rng, net, (10, 24) if operator == "qfmt.Linear" else (24, 10), along)
        inputs = [x, w] if operator == "MatMul" else [x, w, bias(rng, net, x, w, 10, rule)]
        out, a = grid(rng, "int8", 0.2), {"alpha": 1.0, "beta": 1.0} if operator == "Gemm" else {}
        y = net.node(operator, inputs, out, rule, dtype="int8", **a)
        same(operator, net.model(y), rng)
        net.nodes.clear()
        net.tensors[x] = Tensor(x, dtype, (7, 24), None, Quantization.of((0.05,), (0,), *span(dtype)))
        same(operator, net.model(net.node(operator, inputs, out, rule, dtype="int8", **a)), rng)


def span(dtype: str) -> tuple[int, int]:
    limits = DTYPES[dtype]
    return int(limits.minimum), int(limits.maximum)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", sorted(REQUANTIZE))
@pytest.mark.parametrize("axis", [None, 1], ids=["per tensor", "per channel"])
def test_transposed_convolutions(rule: str, axis: int | None) -> None:
    rng = np.random.default_rng(6)
    for group in (1, 2):
        net = Net(rng)
        x = net.input(1, 4, 5, 6)
        w = weights(rng, net, (4, 3, 3, 3), axis)
        window = {**WINDOW, "strides": (2, 2), "output_padding": (1, 0), "pads": (1, 0, 1, 0), "group": group}
        b = net.constant(rng.normal(0, 2, 3 * group).astype(f32))
        y = net.node("ConvTranspose", [x, w, b], grid(rng, "uint8", 0.2), rule, **window)
        lowered = same("ConvTranspose", net.model(y), rng)
        assert lowered.nodes[0].rule == "exact"


def test_products_of_two_inputs() -> None:
    rng = np.random.default_rng(7)
    for rule in ("affine", "integer_bias"):
        net = Net(rng)
        a, b = net.input(3, 5, 40), net.input(3, 40, 6, dtype="int8")
        y = net.node("MatMul", [a, b], grid(rng, "uint8", 1.0), rule)
        same("MatMul of two inputs", net.model(y), rng)


def test_batches_of_constant_matrices() -> None:
    rng = np.random.default_rng(8)
    net = Net(rng)
    x, w = net.input(3, 5, 20), weights(rng, net, (3, 20, 6), None)
    net.tensors[x] = Tensor(x, "uint8", (3, 5, 20), None, Quantization.of((0.05,), (0,), 0, 255))
    lowered = same("MatMul", net.model(net.node("MatMul", [x, w], grid(rng, "uint8", 0.3), "affine")), rng)
    assert lowered.nodes[0].rule == "exact", "which has a form in C"


def test_a_constant_that_is_joined_gets_the_grid_of_the_output() -> None:
    rng = np.random.default_rng(10)
    net = Net(rng)
    x, w = net.input(2, 5), weights(rng, net, (2, 3), None)
    lowered = same("Concat", net.model(net.node("Concat", [x, w], grid(rng, "uint8", 0.3), "divide", axis=1)), rng)
    assert [node.operator for node in lowered.nodes] == ["qfmt.Table", "Concat"]
    net = Net(rng)
    four = Quantization.of((0.1,), (3,), 0, 15)
    x, w = net.input(2, 5, dtype="uint4", q=four), weights(rng, net, (2, 3), None)
    same("Concat", net.model(net.node("Concat", [x, w], four, "divide", dtype="uint4", axis=1)), rng)


@pytest.mark.parametrize("last", [1, -1], ids=["no sum is 0", "their sum is 0"])
def test_matrices_that_add_to_nothing(last: int) -> None:
    """The zero point of x cannot be left out, although it counts nothing for both matrices together."""
    rng = np.random.default_rng(9)
    net = Net(rng)
    x = net.input(2, 5, 20)
    w = rng.integers(1, 100, (20, 6)).astype(np.int8)
    weight = net.constant(np.stack([w, last * w]), Quantization.of((0.05,), (0,), -128, 127))
    same("MatMul", net.model(net.node("MatMul", [x, weight], grid(rng, "uint8", 0.3), "affine")), rng)


@pytest.mark.parametrize("rule", [*MEAN, *QUANTIZE])
def test_means(rule: str) -> None:
    """A quantize rule sums real numbers, in an order that the file does not state: some means are uncertain, and
    counted."""
    rng = np.random.default_rng(9)
    known = rule in MEAN
    cases: list[tuple[str, dict[str, Any]]] = [
        ("AveragePool", {**WINDOW, "kernel_shape": (2, 2)}),
        ("AveragePool", {**WINDOW, "pads": (1, 1, 1, 1), "count_include_pad": 1}),
        ("GlobalAveragePool", {}),
        ("qfmt.AdaptiveAveragePool", {"output_size": (2, 3)}),
        ("ReduceMean", {"keepdims": 0}),
    ]
    for operator, attributes in cases:
        for out in (None, grid(rng)):
            if out is not None and known:
                continue
            net = Net(rng)
            x = net.input(2, 3, 8, 9)
            axes = [net.constant(np.array([2, -1], np.int64))] if operator == "ReduceMean" else []
            y = net.node(operator, [x, *axes], out or net.tensors[x].quantization, rule, **attributes)
            model = net.model(y)
            if known:
                same(operator, model, rng)
                continue
            lowered = same(f"{operator} of real numbers", model, rng, exact=False)
            given = {x: integers(model.tensors[x], rng)}
            got, want = lowered.run(given)[y].astype(int), model.run(given)[y].astype(int)
            apart = got != want
            assert not apart.any() or totals(lowered).differs
            assert (np.abs(got - want) <= 1).all()
            q = model.tensors[y].quantization
            assert q is not None
            mean = np.maximum(got, want)[apart] - 0.5 - q.zero_point[0]  # the boundary between the two
            exact = _real_mean(operator, attributes, model, given[x])[apart] / q.scale[0]
            assert (np.abs(exact - mean) < 0.01).all()


def _real_mean(operator: str, attributes: dict[str, Any], model: Model, x: np.ndarray) -> np.ndarray:
    """The mean in float64."""
    entry, q = OPERATORS[operator], model.tensors["x0"].quantization
    assert q is not None
    real = (x.astype(np.float64) - q.zero_point[0]) * q.scale[0]
    axes = [np.array([2, -1])] if operator == "ReduceMean" else []
    return np.asarray(entry.reference(real, *axes, **entry.complete(attributes)))


def test_windows_of_several_sizes() -> None:
    """L / n gives all windows one scale: a rule that rounds equal means equally is lowered, others are counted or
    refused."""
    rng = np.random.default_rng(10)
    refused = 0
    for rule in MEAN:
        for operator, a in (
            ("AveragePool", {**WINDOW, "pads": (1, 1, 1, 1)}),
            ("AveragePool", {**WINDOW, "ceil_mode": 1, "strides": (2, 2), "pads": (1, 0, 1, 0)}),
            ("qfmt.AdaptiveAveragePool", {"output_size": (5, 7)}),
        ):
            net = Net(rng)
            x = net.input(1, 2, 18, 18)
            model = net.model(net.node(operator, [x], net.tensors[x].quantization, rule, **a))
            try:
                same("means of different sizes", model, rng)
            except NoIntegerFormError as error:
                assert "windows of different sizes" in str(error)
                refused += 1
                lowered = lower_integer(model)
                assert totals(lowered).differs > 0
    assert refused < 6


ONE_INPUT = (
    "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Celu", "Selu", "Gelu", "Mish", "Softplus",
    "Sqrt", "Exp", "Abs", "Neg", "Reciprocal", "Erf", "Sign", "Floor", "ThresholdedRelu", "Swish", "QuantizeLinear",
)  # fmt: skip


@pytest.mark.parametrize("rule", QUANTIZE)
def test_functions_of_one_input_are_tables(rule: str) -> None:
    rng = np.random.default_rng(11)
    for operator in ONE_INPUT:
        for dtype in ("uint8", "int8", "int4"):
            net = Net(rng)
            x = net.input(300, dtype=dtype)
            lowered = same("functions of one input", net.model(net.node(operator, [x], grid(rng), rule)), rng)
            assert [node.operator for node in lowered.nodes] == ["qfmt.Table"]


def test_constants_that_differ_by_channel_make_a_row_of_a_table_for_each() -> None:
    rng = np.random.default_rng(12)
    rules = ("reciprocal", "divide", "premultiplied")
    for rule in rules:
        for operator, shapes in (("BatchNormalization", [(3,)] * 4), ("PRelu", [(3, 1, 1)]), ("Mul", [(3, 1, 1)])):
            net = Net(rng)
            x = net.input(2, 3, 9, 8)
            inputs = [x, *(net.constant(np.abs(rng.normal(0, 1, shape)).astype(f32)) for shape in shapes)]
            a = {"epsilon": 1e-5} if operator == "BatchNormalization" else {}
            lowered = same(operator, net.model(net.node(operator, inputs, grid(rng), rule, **a)), rng)
            assert [(node.operator, node.attributes["axis"]) for node in lowered.nodes] == [("qfmt.Table", 1)]
    net = Net(rng)
    x = net.input(5, 7)
    y = net.node("Add", [x, net.constant(rng.normal(0, 1, 7).astype(f32))], grid(rng), "divide")
    assert same("Add of a vector", net.model(y), rng).nodes[0].attributes["axis"] == 1
    net = Net(rng)
    x = net.input(6)
    y = net.node("Add", [x, net.constant(rng.normal(0, 1, 6).astype(f32))], grid(rng), "divide")
    assert same("Add of a vector", net.model(y), rng).nodes[0].attributes["axis"] == 0


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 1, 1, 1)])
def test_one_slope_of_any_rank(shape: tuple[int, ...]) -> None:
    """torch.onnx.export writes [1, 1, 1], and a PRelu takes no slope of more dimensions than its input."""
    rng = np.random.default_rng(14)
    net = Net(rng)
    y = net.node("PRelu", [net.input(2, 3, 9, 8), net.constant(np.full(shape, 0.3, f32))], grid(rng), "divide")
    lowered = same("PRelu of one slope", net.model(y), rng)
    assert [(node.operator, node.attributes["axis"]) for node in lowered.nodes] == [("qfmt.Table", -1)]


@pytest.mark.parametrize("rule", [*QUANTIZE, "sum", "product"])
def test_functions_of_two_inputs(rule: str) -> None:
    rng = np.random.default_rng(13)
    own = {"sum": ("Add",), "product": ("Mul",), "divide": ("Add", "Sub", "Mul", "Min", "Max", "Div")}
    found: dict[str, set[str]] = {}
    for operator in own.get(rule, ("Add", "Mul")):
        for _ in range(2):
            net = Net(rng)
            a, b = net.input(4, 3, 9, 8), net.input(3, 1, 1, dtype=str(rng.choice(["uint8", "int8"])))
            if rule == "sum":
                q = net.tensors[a].quantization
                assert q is not None
                net.tensors[b] = Tensor(b, "uint8", (3, 1, 1), None, grid(rng, "uint8", q.scale[0]))
            y = net.node(operator, [a, b], grid(rng), rule)
            lowered = same(f"{operator} of two inputs", net.model(y), rng)
            found.setdefault(operator, set()).add(lowered.nodes[0].operator)
    assert found.get("Add", {"qfmt.WeightedSum"}) == {"qfmt.WeightedSum"}
    assert found.get("Sub", {"qfmt.WeightedSum"}) == {"qfmt.WeightedSum"}
    assert found.get("Max", {"qfmt.PairTable"}) == {"qfmt.PairTable"}
    assert "Mul" in found.get("Mul", {"Mul"})


@pytest.mark.parametrize("form", ["fixed_point_single", "fixed_point_double", "power_of_two"])
def test_forms_without_an_addend_have_a_constant_in_the_sum(form: str) -> None:
    """Add in these forms is equal on all pairs; where a line exists, thresholds are rare."""
    rng = np.random.default_rng(22)
    in_form = lines = 0
    for rule in QUANTIZE:
        for _ in range(1):
            net = Net(rng)
            a, b = net.input(2, 300), net.input(2, 300, dtype="int8")
            scales = [float(f32(each / 32)) for each in rng.integers(1, 9, 2)]
            for name, scale in zip((a, b), scales, strict=True):
                own = net.tensors[name]
                net.tensors[name] = replace(own, quantization=own.quantization.with_values(scale))
            model = net.model(net.node("Add", [a, b], grid(rng, "uint8", 0.11), rule))
            (found,) = requantizations(same(f"Add, {form}", model, rng, form=form))
            assert found.rule in (form, "thresholds")
            assert found.sums == 1 << 16
            (usual,) = requantizations(lower_integer(model))
            in_form, lines = in_form + (found.rule == form), lines + (usual.rule == "multiply_shift")
    tell(f"Add in the form {form}: {in_form} of the {lines} that have a line at all")
    assert in_form > lines / 2 > 0


def test_the_same_input_twice_and_constants_of_integers() -> None:
    rng = np.random.default_rng(14)
    for operator in ("Add", "Mul"):
        net = Net(rng)
        x = net.input(40, 5)
        lowered = same(f"{operator} of one input", net.model(net.node(operator, [x, x], grid(rng), "divide")), rng)
        assert lowered.nodes[0].operator == "qfmt.Table"
        net = Net(rng)
        x, c = net.input(40, 5, 6), net.constant(rng.integers(0, 256, (5, 6)).astype(np.uint8), grid(rng))
        same(f"{operator} of a constant", net.model(net.node(operator, [x, c], grid(rng), "divide")), rng)


def test_real_numbers_between_integers_are_one_table() -> None:
    """x · sigmoid(x), and a sum of two of these, quantized only at the ends."""
    rng = np.random.default_rng(15)
    net = Net(rng)
    x = net.input(300)
    real = net.node("DequantizeLinear", [x], None)
    swish = net.node("Mul", [real, net.node("Sigmoid", [real], None)], None)
    lowered = same("chains of one input", net.model(net.node("QuantizeLinear", [swish], grid(rng), "divide")), rng)
    assert [node.operator for node in lowered.nodes] == ["qfmt.Table"]
    net = Net(rng)
    reals = [net.node("DequantizeLinear", [net.input(30, 40)], None) for _ in range(2)]
    total = net.node("Relu", [net.node("Add", [reals[0], net.node("Tanh", [reals[1]], None)], None)], None)
    same("chains of two inputs", net.model(net.node("QuantizeLinear", [total], grid(rng), "divide")), rng)


def test_joining_brings_all_to_one_grid() -> None:
    rng = np.random.default_rng(16)
    for rule in QUANTIZE:
        net = Net(rng)
        names = [net.input(2, 3, 4, dtype=dtype) for dtype in ("uint8", "int8", "uint8")]
        out = net.tensors[names[2]].quantization
        y = net.node("Concat", [*names, names[0]], out, rule, axis=1)
        lowered = same("Concat", net.model(y), rng)
        assert [node.operator for node in lowered.nodes] == ["qfmt.Table", "qfmt.Table", "Concat"]


def test_moves_of_integers_are_kept() -> None:
    rng = np.random.default_rng(17)
    q = grid(rng)
    cases: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("MaxPool", [], {**WINDOW, "pads": (1, 1, 1, 1)}),
        ("Relu", [], {}),
        ("Clip", [np.array(-0.5, f32), np.array(1.5, f32)], {}),
        ("Reshape", [np.array([0, -1], np.int64)], {}),
        ("Flatten", [], {}),
        ("Transpose", [], {"perm": (0, 2, 3, 1)}),
        ("Slice", [np.array([1], np.int64), np.array([7], np.int64), np.array([3], np.int64)], {}),
        ("Pad", [np.array([0, 0, 1, 2, 0, 0, 2, 1], np.int64), np.array(0.25, f32)], {}),
        ("Pad", [np.array([0, 0, 1, 2, 0, 0, 2, 1], np.int64)], {"mode": "reflect"}),
        ("Identity", [], {}),
        ("Unsqueeze", [np.array([0], np.int64)], {}),
        ("Gather", [np.array([2, 0], np.int64)], {"axis": 1}),
        ("Tile", [np.array([1, 2, 1, 1], np.int64)], {}),
        ("ReduceMax", [np.array([2], np.int64)], {}),
        ("DepthToSpace", [], {"blocksize": 2, "mode": "DCR"}),
        ("Resize", ["", np.array([1, 1, 2, 2], f32)], {"mode": "nearest", "nearest_mode": "floor",
                                                         "coordinate_transformation_mode": "asymmetric"}),
    ]  # fmt: skip
    for operator, constants, attributes in cases:
        net = Net(rng)
        x = net.input(2, 4, 8, 9, q=q)
        names = [each if isinstance(each, str) else net.constant(each) for each in constants]
        same("what moves", net.model(net.node(operator, [x, *names], q, **attributes)), rng)


def test_moves_between_real_numbers_are_moves_of_integers() -> None:
    """As in torch.fx: dequantize, flatten, pad with zeros, quantize with the same or other parameters."""
    rng = np.random.default_rng(18)
    for out in (None, grid(rng)):
        net = Net(rng)
        x = net.input(2, 3, 4)
        real = net.node("Flatten", [net.node("DequantizeLinear", [x], None)], None)
        real = net.node("Pad", [real, net.constant(np.array([0, 1, 0, 1])), net.constant(np.zeros((), f32))], None)
        y = net.node("QuantizeLinear", [real], out or net.tensors[x].quantization, "divide")
        lowered = same("moves of real numbers", net.model(y), rng)
        assert lowered.nodes[-1].operator == ("Identity" if out is None else "qfmt.Table")


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "align_corners"])
@pytest.mark.parametrize("between_real_numbers", [False, True])
def test_nearest_resizing_uses_sizes(mode: str, between_real_numbers: bool) -> None:
    """No factor remains, unless it selects other elements than the sizes: 2.3 · 5 is 11 elements, and 11 / 5 is not
    2.3."""
    rng = np.random.default_rng(20)
    how = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": "floor"}
    left = 0
    for shape in ((2, 3, 5, 4), (None, 3, 5, 4), (None, 3, None, 4)):
        for factors in ((1, 1, 2, 3), (1, 1, 1.5, 0.5), (1, 1, 2.3, 1)):
            net = Net(rng)
            x = net.input(*shape)  # type: ignore[arg-type]
            scales = net.constant(np.array(factors, f32))
            if between_real_numbers:
                real = net.node("DequantizeLinear", [x], None)
                real = net.node("Resize", [real, "", scales], None, **how)
                y = net.node("QuantizeLinear", [real], grid(rng), "divide")
            else:
                y = net.node("Resize", [x, "", scales], net.tensors[x].quantization, **how)
            lowered = same("resizing by the nearest", net.model(y), rng)
            floats = [name for name, tensor in lowered.tensors.items() if tensor.dtype == "float32"]
            left += len(floats)
            if factors == (1, 1, 2, 3) and shape != (None, 3, None, 4):
                assert not floats
    assert left > 0


def test_the_ends_of_a_graph_are_integers() -> None:
    """QuantizeLinear of inputs and DequantizeLinear of outputs are removed, also before and after moves."""
    rng = np.random.default_rng(19)
    net = Net(rng)
    real, q = net.real(2, 8, 8, 3), grid(rng, "uint8", 0.02)
    moved = net.node("Transpose", [real], None, perm=(0, 3, 1, 2))
    x = net.node("QuantizeLinear", [moved], q, "divide")
    w = weights(rng, net, (4, 3, 3, 3), 0)
    y = net.node("Conv", [x, w], grid(rng, "uint8", 0.1), "float_bias", **WINDOW)
    out = net.node("Reshape", [net.node("DequantizeLinear", [y], None), net.constant(np.array([2, -1]))], None)
    model = net.model(out, y)
    lowered = lower_integer(model, exact=True)
    assert [lowered.tensors[name].dtype for name in (*lowered.graph.inputs, *lowered.graph.outputs)] == ["uint8"] * 3
    values = rng.integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    given = (values.astype(f32) - q.zero_point[0]) * f32(q.scale[0])
    want, got = model.run({real: given}), lowered.run({lowered.graph.inputs[0]: values})
    assert (got[y] == want[y]).all()
    other = next(name for name in lowered.graph.outputs if name != y)
    assert (got[other] == want[y].reshape(2, -1)).all()


def test_integers_of_more_bits_on_a_narrow_grid() -> None:
    rng = np.random.default_rng(20)
    for dtype in ("int16", "uint16"):
        for rule in QUANTIZE:
            net = Net(rng)
            x = net.input(5000, dtype=dtype, q=grid(rng, dtype, 0.001))
            same("of 16 bits to 8", net.model(net.node("QuantizeLinear", [x], grid(rng), rule)), rng)
    net = Net(rng)
    x = net.input(6, 20)
    w = weights(rng, net, (3, 20), 0)
    y = net.node("qfmt.Linear", [x, w], grid(rng, "int16", 0.002), "float_bias", dtype="int16")
    same("qfmt.Linear to 16 bits", net.model(y), rng)


@pytest.mark.parametrize("form", ["fixed_point_single", "fixed_point_double", "power_of_two", "multiply_add_divide"])
def test_forms_of_engines_differ_where_they_say(form: str) -> None:
    rng = np.random.default_rng(21)
    net = Net(rng)
    x = net.input(40, 24)
    w = weights(rng, net, (10, 24), 0)
    y = net.node("qfmt.Linear", [x, w, bias(rng, net, x, w, 10, "float_bias")], grid(rng, "uint8", 0.1), "float_bias")
    z = net.node("Add", [y, y], grid(rng), "divide")
    model = net.model(y, z)
    same(f"by {form}, exact", model, rng, form=form)
    lowered = same(f"by {form}", model, rng, form=form, exact=False)
    assert {node.rule for node in lowered.nodes} == {"folded", form, ""}


def test_the_place_of_the_largest() -> None:
    rng = np.random.default_rng(25)
    for operator in ("ArgMax", "ArgMin"):
        for real in (False, True):
            net = Net(rng)
            x = net.input(3, 5, 40, dtype="int8")
            source = net.node("DequantizeLinear", [x], None) if real else x
            y = net.node(operator, [source], None, axis=1, keepdims=0, select_last_index=1, dtype="int64")
            same("places of extremes", net.model(y), rng)


def test_operators_on_real_numbers_are_not_kept() -> None:
    """Comparisons of tensors with different scales, and rules on real numbers, are not kept unchanged."""
    rng = np.random.default_rng(26)
    net = Net(rng)
    y = net.node("Greater", [net.input(3), net.input(3)], None, dtype="bool")
    with pytest.raises(NoIntegerFormError, match="Greater"):
        lower_integer(net.model(y))
    net = Net(rng)
    w = net.constant(rng.integers(-9, 9, (4, 6)).astype(np.int8), Quantization.of((0.1,), (0,), -128, 127))
    x = net.input(2, 6, q=Quantization.of((float(f32(1e-36)),), (3,), 0, 255))
    y = net.node("qfmt.Linear", [x, w], Quantization.of((1e10,), (0,), 0, 255), "float_bias")
    with pytest.raises(NoIntegerFormError, match="float32 cannot represent"):
        lower_integer(net.model(y))


def narrow(rng: Random, dtype: str) -> Quantization:
    """Quantization parameters with nearly any float32 scale and any range, down to a single integer."""
    ends = sorted(int(each) for each in rng.integers(*span(dtype), 2, endpoint=True))
    low, high = ends if rng.random() < 0.4 else span(dtype)
    scale = 2.0 ** (rng.uniform(-12, 2) if rng.random() < 0.5 else rng.uniform(-60, 60))
    return Quantization.of((float(f32(scale)),), (int(rng.integers(low, high + 1)),), low, high)


@pytest.mark.parametrize("start", range(0, 240, 60))
def test_grids_of_any_scale_and_range(start: int) -> None:
    """Outputs that are all equal, never reached, or overflow: lowered ones are equal, or counted, or refused."""
    for seed in range(start, start + 60):
        rng = np.random.default_rng(seed)
        kinds, net = [str(rng.choice(["uint8", "int8"])) for _ in range(2)], Net(rng)
        out, rule = narrow(rng, kinds[1]), str(rng.choice(sorted(QUANTIZE)))
        operator = ("qfmt.Linear", "Conv", "Add", "Mul", "Sub", "AveragePool", "Sigmoid", "Concat")[seed % 8]
        if operator in ("qfmt.Linear", "Conv"):
            x = net.input(
                *(3, 6) if operator == "qfmt.Linear" else (1, 6, 5, 5), dtype=kinds[0], q=narrow(rng, kinds[0])
            )
            w = weights(rng, net, (4, 6, 3, 3) if operator == "Conv" else (4, 6), None if seed % 3 else 0)
            b = net.constant((rng.normal(0, 1, 4) * 10.0 ** rng.uniform(-8, 4)).astype(f32))
            inputs, rule = [x, w, b], str(rng.choice(sorted(REQUANTIZE)))
        elif operator in ("AveragePool", "Sigmoid"):
            inputs = [net.input(1, 2, 7, 7, dtype=kinds[0], q=narrow(rng, kinds[0]))]
        else:
            inputs = [
                net.input(5, 60, dtype=kinds[0], q=narrow(rng, kinds[0])),
                net.input(5, 60, q=narrow(rng, "uint8")),
            ]
        a: dict[str, Any] = {**WINDOW, "pads": (1, 0, 1, 1)} if operator in ("Conv", "AveragePool") else {}
        a |= {"axis": 1} if operator == "Concat" else {}
        model = net.model(net.node(operator, inputs, out, rule, dtype=kinds[1], **a))
        form = str(rng.choice(FORMS))
        try:
            lowered = lower_integer(
                model, form=form, bits=int(rng.choice(WIDTHS)) if form in NARROWED else 32, exact=True
            )
        except NoIntegerFormError as error:
            assert any(
                word in str(error)
                for word in ("outside int32", "float32 cannot represent", "windows of different sizes")
            )
            continue
        assert violations(lowered) == []
        given = {name: integers(model.tensors[name], rng) for name in model.graph.inputs}
        with np.errstate(all="ignore"):
            (want,), (got,) = model.run(given).values(), lowered.run(given).values()
        counted = COUNTED.setdefault("with grids of any scale", [0, 0])
        equal = int((got == want).sum())
        counted[0], counted[1] = counted[0] + equal, counted[1] + want.size
        is_exact = lowered.source["integer_only"].split(", ")[0] == "exact"
        assert equal == want.size or not is_exact
        assert is_exact or operator == "AveragePool"


def test_all_unsupported_nodes_are_named_together() -> None:
    rng = np.random.default_rng(22)
    net = Net(rng)
    x = net.input(2, 6)
    soft = net.node("Softmax", [x], grid(rng), "divide", axis=-1)
    ones = net.constant(np.ones(6, f32))
    norm = net.node("LayerNormalization", [soft, ones], grid(rng), "divide", axis=-1, epsilon=1e-5)
    y = net.node("Exp", [net.node("DequantizeLinear", [norm], None)], None)
    with pytest.raises(NoIntegerFormError) as caught:
        lower_integer(net.model(y))
    words = str(caught.value)
    assert words.startswith("3 nodes have no integer form: ")
    for word in ("y0 (Softmax)", "y1 (LayerNormalization)", "y3 (Exp) outputs floats"):
        assert word in words
    assert sum(map(len, caught.value.reasons.values())) == 3


def test_sums_beyond_int32_are_refused_with_their_bound() -> None:
    rng = np.random.default_rng(23)
    net = Net(rng)
    x = net.input(1, 70_000)
    w = net.constant(np.full((2, 70_000), 127, np.int8), Quantization.of((0.01,), (0,), -128, 127))
    net.tensors[x] = Tensor(x, "uint8", (1, 70_000), None, Quantization.of((0.01,), (0,), 0, 255))
    y = net.node("qfmt.Linear", [x, w], grid(rng, "uint8", 100), "float_bias")
    with pytest.raises(NoIntegerFormError, match=r"2,266,950,000, outside int32"):
        lower_integer(net.model(y))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", sorted(REQUANTIZE))
def test_channels_without_weights(rule: str, form: str) -> None:
    """PyTorch's observers give them a scale of 1.2e-7, in units of which int32 holds no bias."""
    rng = np.random.default_rng(25)
    net = Net(rng)
    x = net.input(2, 6, 9, 8)
    w = weights(rng, net, (4, 6, 3, 3), 0)
    tensor = net.tensors[w]
    assert tensor.quantization is not None
    scales = Quantization.of((*tensor.quantization.scale[:2], 1e-12, 1.1920929e-07), (0,) * 4, -128, 127, 0)
    array = tensor.array.copy()
    array[2:] = 0
    net.tensors[w] = Tensor.constant(w, array, scales)
    b = net.constant(np.array([1, -2, 30, -3], f32))
    out = Quantization.of((0.5,), (90,), 0, 255)
    lowered = same("Conv", net.model(net.node("Conv", [x, w, b], out, rule, **WINDOW)), rng, form=form)
    assert violations(lowered) == []


def test_channels_of_an_output_without_a_shape() -> None:
    """The multipliers of a RequantShift lie along an axis of it."""
    rng = np.random.default_rng(26)
    net = Net(rng)
    x = net.input(2, 6, 9, 8)
    y = net.node("Conv", [x, weights(rng, net, (4, 6, 3, 3), 0)], grid(rng, "uint8", 0.3), "affine", **WINDOW)
    net.tensors[y] = replace(net.tensors[y], shape=None)
    with pytest.raises(NoIntegerFormError, match="has an output of unknown rank"):
        lower_integer(net.model(y), form="multiply_add_divide")


def test_sums_that_fit_without_the_zero_point() -> None:
    """Partial sums of Σ q·w would exceed int32, those of Σ (q - z)·w do not: `exact` instead of `folded`."""
    rng = np.random.default_rng(24)
    net = Net(rng)
    x = net.input(2, 70_000, q=Quantization.of((0.01,), (128,), 0, 255))
    w = net.constant(np.full((2, 70_000), 127, np.int8), Quantization.of((0.01,), (0,), -128, 127))
    lowered = same("sums near 2³¹", net.model(net.node("qfmt.Linear", [x, w], grid(rng, "uint8", 500), "affine")), rng)
    assert lowered.nodes[0].rule == "exact"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "float"}, "unknown form 'float'"),
        ({"bits": 7}, "7 bits"),
        ({"form": "power_of_two", "bits": 8}, "cannot have"),
    ],
)
def test_options_that_do_not_exist(options: Mapping[str, Any], said: str) -> None:
    net = Net(np.random.default_rng(0))
    model = net.model(net.node("Relu", [net.input(3)], net.tensors["x0"].quantization))
    with pytest.raises(QfmtError, match=said):
        lower_integer(model, **options)
    with pytest.raises(QfmtError, match="already"):
        lower_integer(lower_integer(model))
