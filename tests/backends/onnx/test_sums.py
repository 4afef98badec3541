"""Integer-only nodes in ONNX and in torch, alone and in networks: equal bit by bit, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from cases import integer_inputs, onnx_inputs, torch_inputs
from cases.integer_inputs import integers_like
from cases.one_node import single
from cases.torch_inputs import Case, Random
from networks.integer import network
from qfmt.errors import InexpressibleNodesError
from qfmt.model import DTYPES, Model, Quantization, Tensor
from qfmt.ops import OPERATORS
from qfmt.ops.requantization import PARAMETERS, TAKES
from support import onnx_kernels, onnx_witness
from support.counts import tell

Array = Any
SEEDS = 25

SUMS = {
    "Conv": torch_inputs.conv,
    "ConvTranspose": torch_inputs.conv_transpose,
    "qfmt.Linear": torch_inputs.linear,
    "MatMul": torch_inputs.matmul,
    "Gemm": onnx_inputs.gemm,
    "Mul": torch_inputs.broadcast,
    "GlobalAveragePool": torch_inputs.spatial,
    "ReduceMean": onnx_inputs.reduction,
    "qfmt.AdaptiveAveragePool": torch_inputs.adaptive,
    "AveragePool": torch_inputs.average_pool,
}


def sums_of(name: str, rule: str, rng: Random) -> tuple[Model, dict[str, Array]]:
    """A random case of the operator on 8-bit integers."""
    case = SUMS[name](rng)
    entry, arrays, tensors = OPERATORS[name], {}, []
    for index, each in enumerate(case.inputs):
        at = f"x{index}"
        if each is None or (index == 2 and rng.random() < 0.3):
            tensors.append(None)
        elif index >= entry.sums.factors:
            bias = each.dtype != np.int64
            shape = each.shape[-1:] if bias and name != "Gemm" else each.shape
            values = rng.integers(-999, 999, shape).astype(np.int32) if bias else each
            tensors.append(Tensor.constant(at, values))
        else:
            weight = index == 1 and entry.accumulates
            values, q = integers_like(rng, each)
            q = None if weight and rule == "folded" else q
            if weight:
                tensors.append(Tensor.constant(at, values, q))
            else:
                arrays[at] = values
                tensors.append(Tensor(at, values.dtype.name, values.shape, None, q))
    attributes = {**case.attributes, **({"alpha": 1.0, "beta": 1.0} if name == "Gemm" else {})}
    return single(name, rule, tensors, Tensor("y", "int32", None), attributes), arrays


def compare(model: Model, given: dict[str, Array], expected: dict[str, Array]) -> dict[str, int]:
    """The number of equal outputs of each other program; no model may contain a float.

    With weights in the types of their inputs, ONNX Runtime is exact on every processor; else it may saturate as its
    kernels do on this processor.
    """
    made = model.to_torch("reference")(*(torch.from_numpy(np.array(each)) for each in given.values()))
    results = {"torch": [each.numpy() for each in (made if isinstance(made, tuple) else (made,))]}
    here = {}
    for same_types, who in ((False, "ONNX Runtime"), (True, "ONNX Runtime with same_types")):
        proto = model.to_onnx(same_types=same_types)
        onnx.checker.check_model(proto, full_check=True)
        assert not onnx_witness.floats(proto)
        results[who] = onnx_witness.runtime(proto, given)
        if onnx_kernels.saturates() and not same_types:
            here[who] = onnx_kernels.evaluated(proto, given)
    equal = {}
    for who, arrays in results.items():
        for array, wanted in zip(arrays, here.get(who, expected.values()), strict=True):
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape), who
            assert (array == wanted).all(), who
            equal[who] = equal.get(who, 0) + wanted.size
    return equal


def count(what: str, models: list[tuple[Model, dict[str, Array]]]) -> None:
    totals: dict[str, int] = {}
    for model, given in models:
        for who, equal in compare(model, given, model.run(given)).items():
            totals[who] = totals.get(who, 0) + equal
    assert totals["ONNX Runtime"]
    tell(f"{what}: " + ", ".join(f"{equal} of {equal} equal in {who}" for who, equal in totals.items()))


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name in SUMS for rule in OPERATORS[name].sum_rules])
def test_sums(name: str, rule: str) -> None:
    models = []
    for seed in range(SEEDS):
        model, given = sums_of(name, rule, np.random.default_rng(seed))
        if name == "AveragePool" and any(size == 0 for size in given["x0"].shape):
            continue
        try:
            model.run(given)
        except Exception as error:  # a window entirely inside the padding has no mean
            assert "entirely in the padding" in str(error)
            continue
        models.append((model, given))
    assert len(models) > SEEDS // 2
    count(f"{name}, {rule}", models)


def requantized(rule: str, rng: Random) -> tuple[Model, dict[str, Array]]:
    case = integer_inputs.requantize(rng)
    x, *numbers = case.inputs
    assert x is not None
    axis = case.attributes["axis"]
    q = Quantization.of((0.5,), (int(rng.integers(-128, 128)),), int(rng.integers(-128, 0)), int(rng.integers(0, 128)))
    rows = np.sort(rng.integers(-40000, 40000, (3, q.quant_max - q.quant_min)))
    chosen = rng.integers(-1 if rule == "multiply_shift" else 0, 3, x.shape[axis])
    arrays = dict(zip(PARAMETERS, [*numbers, rows.astype(np.int32), chosen.astype(np.int32)], strict=True))
    needs, may = TAKES[rule]
    names = (*needs, *(may if rng.random() < 0.7 else ()))
    if rule == "thresholds" and "row" not in names:
        arrays["thresholds"] = arrays["thresholds"][:1]
    parameters = [Tensor.constant(name, arrays[name]) if name in names else None for name in PARAMETERS]
    given = Tensor("x", "int32", x.shape)
    return single(
        "qfmt.Requantize", rule, [given, *parameters], Tensor("y", "int8", x.shape, None, q), case.attributes
    ), {"x": x}


@pytest.mark.parametrize("rule", TAKES)
def test_requantization(rule: str) -> None:
    count(f"Requantize, {rule}", [requantized(rule, np.random.default_rng(seed)) for seed in range(SEEDS)])


def test_sums_may_exceed_int32_before_a_clamp() -> None:
    x = np.array([-(1 << 31), (1 << 31) - 1, 0, 5, -(1 << 31), (1 << 31) - 1, 7, -7], np.int32)
    q = Quantization.of((0.5,), (7,), -100, 100)
    for shift in (0, 1, 30, 62):
        numbers = {"multiplier": np.array([(1 << 31) - 1], np.int32), "shift": np.array([shift], np.uint8)}
        parameters = [Tensor.constant(name, numbers[name]) if name in numbers else None for name in PARAMETERS]
        out = Tensor("y", "int8", x.shape, None, q)
        given = Tensor("x", "int32", x.shape)
        model = single("qfmt.Requantize", "fixed_point_single", [given, *parameters], out, {"axis": 0})
        count(f"Requantize to the ends, shift {shift}", [(model, {"x": x})])


def plain(name: str, case: Case) -> tuple[Model, dict[str, Array]]:
    parameters = [parameter.name for parameter in OPERATORS[name].inputs]
    tensors: list[Tensor | None] = []
    for index, each in enumerate(case.inputs):
        assert each is not None
        constant = parameters[min(index, len(parameters) - 1)] in OPERATORS[name].constants
        at = f"x{index}"
        tensors.append(Tensor.constant(at, each) if constant else Tensor(at, each.dtype.name, each.shape))
    given = {t.name: a for t, a in zip(tensors, case.inputs, strict=True) if t is not None and not t.is_constant}
    dtype = {"qfmt.WeightedSum": "int32"}.get(name, case.inputs[-1].dtype.name)
    return single(name, "", tensors, Tensor("y", dtype, None), case.attributes), given


@pytest.mark.parametrize("name", ["qfmt.Table", "qfmt.PairTable", "qfmt.WeightedSum"])
def test_tables_and_weighted_sums(name: str) -> None:
    make = {
        "qfmt.Table": integer_inputs.table,
        "qfmt.PairTable": integer_inputs.pair_table,
        "qfmt.WeightedSum": integer_inputs.weighted_sum,
    }[name]
    count(name, [plain(name, make(np.random.default_rng(seed))) for seed in range(SEEDS)])


def test_requant_shift_does_not_read_scales() -> None:
    """The rule `multiply_add_divide` on sums with per-channel scales."""
    rng = np.random.default_rng(2)
    x = rng.integers(-(1 << 20), 1 << 20, (2, 3, 4)).astype(np.int32)
    unit = Quantization.of((0.5, 0.25, 3.0), (0, 0, 0), -(1 << 20), 1 << 20, 1)
    numbers = [rng.integers(1, 999, (3, 1)).astype(np.int32), rng.integers(-(1 << 30), 1 << 30, (3, 1))]
    tensors = [Tensor("x", "int32", x.shape, None, unit), *(Tensor.constant(f"c{i}", n) for i, n in enumerate(numbers))]
    out = Tensor("y", "int8", x.shape, None, Quantization.of((0.7,), (5,), -128, 127))
    model = single("qfmt.RequantShift", "multiply_add_divide", tensors, out, {"div": 1 << 21})
    whole = (x.astype(np.int64) * numbers[0] + numbers[1] + (1 << 20)) >> 21
    assert (model.run({"x": x})["y"] == np.clip(whole + 5, -128, 127)).all()
    count("RequantShift", [(model, {"x": x})])


def test_a_network_is_written_without_a_float() -> None:
    model, given = network(), {"x": np.random.default_rng(1).integers(0, 256, (2, 2, 5, 5)).astype(np.uint8)}
    proto = model.to_onnx()
    operators = {node.op_type for node in proto.graph.node}
    assert "ConvInteger" in operators and not operators & {"QuantizeLinear", "DequantizeLinear", "Conv"}
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    kinds = {value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    kinds |= {constant.data_type for constant in inferred.graph.initializer}
    names = {onnx.TensorProto.DataType.Name(kind) for kind in kinds}
    assert names <= {"INT8", "UINT8", "INT32", "INT64", "BOOL"}
    expected = model.run(given)
    results = dict(zip(expected, ReferenceEvaluator(proto).run(None, given), strict=True))
    assert all((results[name] == array).all() for name, array in expected.items())
    count("network of integers", [(model, given)])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("name", ["Conv", "MatMul", "Gemm", "qfmt.Linear"])
def test_computed_weights_with_a_zero_point_for_each_channel(name: str, kind: str) -> None:
    """ONNX Runtime's products of integers have one zero point."""
    rng = np.random.default_rng(4)
    shapes = {"Conv": ((1, 3, 5, 5), (4, 3, 2, 2)), "MatMul": ((2, 5), (5, 4)), "Gemm": ((2, 5), (5, 4))}
    of_x, of_w = shapes.get(name, ((2, 5), (4, 5)))
    axis, limits = (0 if of_w[0] == 4 else 1), DTYPES[kind]
    low, high = int(limits.minimum), int(limits.maximum)
    given = {"x": rng.integers(0, 256, of_x).astype(np.uint8), "w": rng.integers(low, high + 1, of_w).astype(kind)}
    x = Tensor("x", "uint8", of_x, None, Quantization.per_tensor(0.5, 9, "uint8"))
    w = Tensor("w", kind, of_w, None, Quantization.of((0.1,) * 4, (high, 12, low, 5), low, high, axis))
    layout = {"kernel_shape": (2, 2), "strides": (2, 1), "pads": (1, 0, 0, 2), "dilations": (1, 1), "group": 1}
    attributes = {"Conv": layout, "Gemm": {"alpha": 1.0, "beta": 1.0}}.get(name, {})
    count(f"{name} of {kind}", [(single(name, "exact", [x, w], Tensor("y", "int32", None), attributes), given)])


@pytest.mark.parametrize("name", ["ConvInteger", "MatMulInteger"])
@pytest.mark.parametrize("points", [-100, (5, -6)])
@pytest.mark.parametrize("index", [0, 1])
def test_zero_points_of_each_channel(name: str, points: Any, index: int) -> None:
    rng = np.random.default_rng(4)
    shapes = ((1, 2, 4, 4), (2, 2, 2, 2)) if name == "ConvInteger" else ((3, 2, 5), (3, 5, 2))
    x, w = (Tensor(at, "int8", shape) for at, shape in zip("xw", shapes, strict=True))
    zero = Tensor.constant("z", np.array(points, np.int8))
    layout = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (1, 1, 0, 0), "dilations": (1, 1), "group": 1}
    tensors = [x, w, *([None] * index), zero]
    model = single(name, "", tensors, Tensor("y", "int32", None), layout if name == "ConvInteger" else {})
    given = {at: rng.integers(-128, 128, shape).astype(np.int8) for at, shape in zip("xw", shapes, strict=True)}
    want = model.run(given)["y"]
    for level in onnx_witness.LEVELS:
        np.testing.assert_array_equal(onnx_witness.runtime(model.to_onnx(), given, level)[0], want)


WINDOWS = {"kernel_shape": (1,), "pads": (0, 0), "strides": (1,), "dilations": (1,), "group": 1}


@pytest.mark.parametrize(
    ("name", "x", "weight", "attributes", "bias"),
    [
        ("qfmt.Linear", (2, 0), (3, 0), {}, (3,)),
        ("MatMul", (2, 0), (0, 3), {}, None),
        ("MatMul", (2, 0), (0,), {}, None),
        ("Gemm", (0, 2), (3, 0), {"transA": 1, "transB": 1}, (3,)),
        ("Conv", (1, 0, 5), (3, 0, 1), WINDOWS, (3,)),
        ("ConvTranspose", (1, 0, 5), (0, 3, 1), {**WINDOWS, "output_padding": (0,)}, (3,)),
        ("ConvTranspose", (1, 2, 0), (2, 3, 4), {**WINDOWS, "kernel_shape": (4,), "output_padding": (0,)}, (3,)),
        ("qfmt.Linear", (2, 3), (0, 3), {}, (0,)),
        ("Gemm", (0, 3), (4, 3), {"transB": 1}, (0, 4)),
        ("Conv", (1, 3, 5), (0, 3, 1), WINDOWS, (0,)),
        ("ConvTranspose", (1, 3, 5), (3, 0, 1), {**WINDOWS, "output_padding": (0,)}, (0,)),
    ],
)
def test_sums_of_nothing_and_no_sums(
    name: str, x: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], bias: tuple[int, ...] | None
) -> None:
    """ONNX Runtime leaves the sums of no products undefined."""
    grid = Quantization.of([0.5], [3], -128, 127)
    tensors = [Tensor("x", "int8", x, None, grid), Tensor.constant("w", np.ones(weight, np.int8), grid)]
    tensors += [] if bias is None else [Tensor.constant("b", np.full(bias, 7, np.int32))]
    output = Tensor("y", "int32", None, None, Quantization.of([0.25], [0], -(2**31), 2**31 - 1))
    model, given = single(name, "exact", tensors, output, attributes), {"x": np.zeros(x, np.int8)}
    want = model.run(given)["y"]
    np.testing.assert_array_equal(model.to_torch()(torch.from_numpy(given["x"])).numpy(), want)
    if want.size:
        with pytest.raises(InexpressibleNodesError, match=f"{name} sums no products"):
            model.to_onnx()
    else:
        assert onnx_witness.runtime(model.to_onnx(), given)[0].shape == want.shape
