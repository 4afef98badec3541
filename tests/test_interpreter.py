"""Running models: values, lifetimes of tensors, and errors of models that cannot be run."""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from qfmt import Graph, Model, Node, QfmtError, Quantization, Tensor
from qfmt.errors import RunError
from qfmt.interpreter import execute, run, trace
from qfmt.model import Shape
from qfmt.ops import OPERATORS, Operand

FLOATS = np.array([[1.0, -2.0, 3.0]], np.float32)


def q8(scale: float = 0.5, zero_point: int = 10) -> Quantization:
    return Quantization.per_tensor(scale, zero_point, "uint8")


def node(operator: str, inputs: str, outputs: str, **fields: Any) -> Node:
    """Names are separated by spaces; "-" is an absent input."""
    names = tuple("" if name == "-" else name for name in inputs.split())
    version = OPERATORS[operator].version if operator in OPERATORS else 1
    return Node(operator, names, tuple(outputs.split()), version=version, **fields)


def model(nodes: list[Node], tensors: list[Tensor], inputs: str = "x", outputs: str = "y") -> Model:
    return Model(
        Graph(tuple(inputs.split()), tuple(outputs.split()), nodes, {tensor.name: tensor for tensor in tensors})
    )


def floating(name: str, shape: Shape = None) -> Tensor:
    return Tensor(name, "float32", shape)


def chain() -> Model:
    """x → quantize → Relu → dequantize; the outputs are `y` and the integers `q`."""
    tensors = [
        floating("x", ("N", 3)),
        Tensor("q", "uint8", ("N", 3), None, q8()),
        Tensor("r", "uint8", ("N", 3), None, q8()),
        floating("y", ("N", 3)),
    ]
    nodes = [
        node("QuantizeLinear", "x", "q", rule="divide"),
        node("Relu", "q", "r"),
        node("DequantizeLinear", "r", "y"),
    ]
    return model(nodes, tensors, outputs="y q")


def test_integers_come_out_of_a_quantized_output_and_reals_of_a_float_one() -> None:
    result = run(chain(), {"x": FLOATS})
    assert list(result) == ["y", "q"]
    assert result["q"].dtype == np.uint8 and result["q"].tolist() == [[12, 6, 16]]
    assert result["y"].dtype == np.float32 and result["y"].tolist() == [[1.0, 0.0, 3.0]]


def test_a_quantized_input_accepts_its_integers() -> None:
    tensors = [Tensor("x", "uint8", (2,), None, q8()), floating("y", (2,))]
    quantized = model([node("DequantizeLinear", "x", "y")], tensors)
    assert run(quantized, {"x": np.array([10, 13], np.uint8)})["y"].tolist() == [0.0, 1.5]
    with pytest.raises(RunError, match="input x: expects uint8, not float32"):
        run(quantized, {"x": np.zeros(2, np.float32)})


def test_integers_outside_the_range_of_a_quantized_input_are_refused() -> None:
    grid = Quantization.of((0.5,), (10,), -127, 100)
    narrow = model([node("DequantizeLinear", "x", "y")], [Tensor("x", "int8", (2,), None, grid), floating("y", (2,))])
    assert run(narrow, {"x": np.array([-127, 100], np.int8)})["y"].tolist() == [-68.5, 45.0]
    for value in (-128, 101):
        with pytest.raises(RunError, match=rf"^input x: expects integers in \[-127, 100\], not {value}$"):
            run(narrow, {"x": np.array([0, value], np.int8)})


def test_python_lists_and_wider_floats_are_taken_for_float32() -> None:
    assert run(chain(), {"x": [[1.0, 2.0, 3.0]]})["q"].tolist() == [[12, 14, 16]]
    with pytest.raises(RunError, match="input x: expects float32, not complex64"):
        run(chain(), {"x": FLOATS * 1j})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing; the inputs are x"),
        ({"x": FLOATS, "z": FLOATS}, "the model has no input 'z'; its inputs are x"),
        (FLOATS, 'inputs are arrays by name, not a ndarray; pass {"x": array}'),
        ({"x": [[1.0, 2.0], [3.0]]}, "input x: is not an array: .*inhomogeneous.*"),
        ({"x": FLOATS[0]}, "input x: expects 2 dimensions, not 1"),
        ({"x": np.zeros((1, 4), np.float32)}, "input x: dimension 1 is 4, must be 3"),
        ({"x": np.ma.masked_less(FLOATS, 2)}, r"input x: is a masked array; .*array\.filled\(value\)"),
        ({"x": np.broadcast_to(np.float32(1), (1 << 22, 1 << 22))}, "input x: needs 70368.7 GB of memory.*"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    with pytest.raises(RunError, match=f"^{message}$"):
        run(chain(), inputs)


def test_sizes_of_one_name_are_equal_in_one_run() -> None:
    tensors = [floating("x", ("N",)), floating("z", ("N",)), floating("y", ("N",))]
    two = model([node("Add", "x z", "y")], tensors, inputs="x z")
    assert run(two, {"x": np.ones(2), "z": np.ones(2)})["y"].tolist() == [2.0, 2.0]
    with pytest.raises(RunError, match="input z: dimension 0 is 3, must be 2"):
        run(two, {"x": np.ones(2), "z": np.ones(3)})


def test_an_input_of_which_nothing_is_known_is_taken_as_it_comes() -> None:
    anything = model([node("Identity", "x", "y")], [floating("x"), floating("y")])
    assert run(anything, {"x": np.ones((1, 2, 3))})["y"].shape == (1, 2, 3)


def test_outputs_may_be_inputs_and_constants() -> None:
    tensors = [floating("x", (1,)), Tensor.constant("c", np.array([5], np.int64))]
    result = run(model([], tensors, outputs="x c"), {"x": np.ones(1)})
    assert result["x"].tolist() == [1.0] and result["c"].tolist() == [5]


def test_a_node_may_have_several_outputs_and_absent_inputs() -> None:
    tensors = [
        floating("x", (5,)),
        Tensor.constant("sizes", np.array([2, 3])),
        Tensor.constant("high", np.array(2, np.float32)),
        *(floating(name) for name in "aby"),
    ]
    nodes = [node("Split", "x sizes", "a b", attributes={"axis": 0, "num_outputs": 0}), node("Clip", "b - high", "y")]
    result = run(model(nodes, tensors, outputs="a y"), {"x": np.arange(5)})
    assert result["a"].tolist() == [0.0, 1.0] and result["y"].tolist() == [2.0, 2.0, 2.0]


def test_values_are_dropped_when_their_last_reader_has_run() -> None:
    values: dict[str, np.ndarray] = {}
    seen = [sorted(values) for _ in trace(chain(), {"x": FLOATS}, values)]
    assert seen == [["q", "x"], ["q", "r"], ["q", "r", "y"]]  # q is an output of the graph
    assert sorted(values) == ["q", "y"]


def test_results_do_not_share_memory_with_constants_or_inputs() -> None:
    """A change of an output by the caller must not affect the next run."""
    constant = Tensor.constant("c", np.ones((2, 2), np.float32))
    nodes = [node("Transpose", "c", "t", attributes={"perm": (1, 0)}), node("Add", "t x", "y")]
    shared = model(nodes, [constant, floating("t"), floating("x", (2, 2)), floating("y")])
    first = run(shared, {"x": np.zeros((2, 2))})["y"]
    first += 100
    assert run(shared, {"x": np.zeros((2, 2))})["y"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


# Models that cannot be run


def execute_one(
    operator: str, *operands: Operand | None, tensor: Tensor | None = None, **fields: Any
) -> list[np.ndarray]:
    names = " ".join("-" if each is None else f"x{i}" for i, each in enumerate(operands))
    return execute(node(operator, names, "y", **fields), operands, [tensor or floating("y")])


def test_an_operator_without_a_reference_is_named() -> None:
    with pytest.raises(RunError, match=r"^node y \(vendor.Magic\): qfmt cannot run this operator; its arrays"):
        execute_one("vendor.Magic", Operand(FLOATS, None))
    silent = model([node("vendor.Log", "x", "")], [Tensor("x", "float32", (1, 3))], outputs="x")
    with pytest.raises(RunError, match=r"^node vendor.Log \(vendor.Log\): qfmt cannot run this operator"):
        run(silent, {"x": FLOATS})


def test_messages_contain_the_name_of_a_node() -> None:
    with pytest.raises(RunError, match=r"^node features.3 \(vendor.Magic\): "):
        execute_one("vendor.Magic", Operand(FLOATS, None), name="features.3")


@pytest.mark.parametrize("rule", ["", "upwards", "float_bias", "mean_reciprocal"])
@pytest.mark.parametrize(
    ("operator", "count"), [("Sigmoid", 1), ("Add", 2), ("Mul", 2), ("GlobalAveragePool", 1), ("QuantizeLinear", 1)]
)
def test_a_rule_that_an_operator_does_not_have_is_named(operator: str, count: int, rule: str) -> None:
    if (operator, rule) == ("GlobalAveragePool", "mean_reciprocal"):
        return
    operands = [Operand(np.zeros((1, 2, 2), np.uint8), q8())] * count
    with pytest.raises(
        RunError, match=rf"node y \({operator}\): the rounding rule '{rule}' is not supported here; use "
    ):
        execute_one(operator, *operands, tensor=Tensor("y", "uint8", None, None, q8()), rule=rule)


@pytest.mark.parametrize("operator", ["Identity", "Sigmoid", "Reshape"])
def test_a_rule_of_a_node_that_rounds_nothing_is_named(operator: str) -> None:
    """A newer rule may mean something else."""
    operands = [Operand(FLOATS, None), Operand(np.array([3]), None)][: 2 if operator == "Reshape" else 1]
    with pytest.raises(
        RunError, match=rf"node y \({operator}\): the rounding rule 'newer' is not supported here; use "
    ):
        execute_one(operator, *operands, rule="newer")


def test_an_operator_that_moves_integers_keeps_their_grid() -> None:
    x = Operand(np.zeros((1, 2), np.uint8), q8())
    tensor = Tensor("y", "uint8", None, None, q8(scale=0.25))
    with pytest.raises(
        RunError, match=r"node y \(Transpose\): moves integers, so its output must have the quantization"
    ):
        execute_one("Transpose", x, tensor=tensor, attributes={"perm": (1, 0)})
    with pytest.raises(RunError, match="moves integers"):
        execute_one("Transpose", x, attributes={"perm": (1, 0)})


@pytest.mark.parametrize(
    ("operator", "rule", "message"),
    [
        ("qfmt.Linear", "float_bias", "needs a quantized input and a quantized weight"),
        ("MatMul", "affine", "needs a quantized input and a quantized weight"),
        ("Add", "sum", "needs two inputs quantized with one scale"),
        ("PRelu", "product", "needs two quantized inputs"),
    ],
)
def test_an_integer_formula_needs_integers(operator: str, rule: str, message: str) -> None:
    tensor = Tensor("y", "uint8", None, None, q8())
    operands = [Operand(np.zeros((2, 2), np.uint8), q8()), Operand(np.zeros((2, 2), np.float32), None)]
    with pytest.raises(RunError, match=message):
        execute_one(operator, *operands, tensor=tensor, rule=rule)


@pytest.mark.parametrize(
    ("operator", "arrays", "attributes"),
    [
        ("Reshape", [FLOATS, np.array([2, 2])], {}),
        ("Gather", [FLOATS, np.array([7])], {"axis": 1}),
        ("Add", [FLOATS, np.zeros((1, 2), np.float32)], {}),
        ("Concat", [FLOATS, FLOATS[0]], {"axis": 0}),
        ("MatMul", [FLOATS, FLOATS], {}),
        ("Transpose", [FLOATS], {"perm": (0, 0)}),
        ("Squeeze", [FLOATS, np.array([1])], {}),
        ("Pad", [FLOATS, np.array([1, 1, 1])], {"mode": "constant"}),
        ("Pad", [FLOATS, np.array([1, 1, 1, 1])], {"mode": "sideways"}),
        ("Resize", [FLOATS, None, None, np.array([1, 6])], {"mode": "cubic", "coordinate_transformation_mode": "",
                                                             "nearest_mode": ""}),
        ("Softmax", [FLOATS], {"axis": 5}),
        ("DepthToSpace", [FLOATS], {"blocksize": 2, "mode": "DCR"}),
        ("Cast", [FLOATS], {"to": "nonsense"}),
        ("Split", [np.arange(5), np.array([2, 2])], {"axis": 0}),
        ("PRelu", [FLOATS[:, :1], np.ones(3, np.float32)], {}),
        ("Gemm", [FLOATS, np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)], {"alpha": 1.0, "beta": 1.0}),
        ("BatchNormalization", [FLOATS[:, :1], *[np.ones(3, np.float32)] * 4], {"epsilon": 0.1}),
        ("LayerNormalization", [FLOATS[:, :1], np.ones(3, np.float32)], {}),
        ("ScatterElements", [np.arange(3), np.array([0, 1]), np.array([5])], {"axis": 0}),
        ("ScatterND", [np.arange(3), np.array([[0], [1]]), np.array([5])], {}),
        ("Relu", [FLOATS, FLOATS], {}),
        ("Relu", [FLOATS], {"alpha": 1}),
    ],
)  # fmt: skip
def test_operands_that_do_not_go_together(operator: str, arrays: list[Any], attributes: dict[str, Any]) -> None:
    operands = [None if array is None else Operand(array, None) for array in arrays]
    with pytest.raises(QfmtError, match=rf"^node y \({operator}\): "):
        execute_one(operator, *operands, attributes=attributes)


PER_CHANNEL = Quantization.of((1.0, 2.0), (0, 10), 0, 255, axis=1)


@pytest.mark.parametrize(
    ("operator", "rule", "count"),
    [("Add", "sum", 2), ("Mul", "product", 2), ("GlobalAveragePool", "mean_reciprocal", 1)],
)
def test_a_formula_on_integers_does_not_take_the_first_scale_for_all(operator: str, rule: str, count: int) -> None:
    operands = [Operand(np.full((1, 2, 2, 2), 20, np.uint8), PER_CHANNEL)] * count
    for quantization in (q8(), PER_CHANNEL):
        tensor = Tensor("y", "uint8", None, None, quantization)
        with pytest.raises(RunError, match="per tensor, not per channel"):
            execute_one(operator, *operands, tensor=tensor, rule=rule)


def test_sums_are_not_requantized_by_the_first_scale_of_the_output() -> None:
    x, w = Operand(np.full((1, 2), 20, np.uint8), q8()), Operand(np.ones((2, 2), np.int8), q8(1.0, 0))
    tensor = Tensor("y", "uint8", None, None, PER_CHANNEL)
    with pytest.raises(RunError, match="per tensor, not per channel"):
        execute_one("qfmt.Linear", x, w, None, tensor=tensor, rule="float_bias")


def test_relu_uses_the_zero_point_of_each_slice() -> None:
    x = Operand(np.array([[0, 0], [20, 20]], np.uint8), PER_CHANNEL)
    tensor = Tensor("y", "uint8", None, None, PER_CHANNEL)
    assert execute_one("Relu", x, tensor=tensor)[0].tolist() == [[0, 10], [20, 20]]


def test_averages_of_wide_integers_do_not_wrap() -> None:
    grid = Quantization.of((1.0,), (1 << 30,), -(1 << 31), (1 << 31) - 1)
    x = Operand(np.full((1, 1, 1, 1), -(1 << 31), np.int32), grid)
    tensor = Tensor("y", "int32", None, None, grid)
    computed = execute_one("GlobalAveragePool", x, tensor=tensor, rule="mean_reciprocal")
    assert computed[0].item() == -(1 << 31)


def test_an_input_beyond_float32_is_infinite_without_a_warning() -> None:
    assert run(chain(), {"x": FLOATS.astype(np.float64) * 1e300})["q"].tolist() == [[255, 0, 255]]


def test_threads_compute_means_of_nothing_without_a_warning() -> None:
    """A warning would be an error here; a filter of warnings would be that of all threads."""
    nodes = [
        node("ReduceMean", "x", "reduced"),
        node("GlobalAveragePool", "x", "averaged"),
        node("InstanceNormalization", "x ones ones", "normalized"),
        node("RMSNormalization", "x none", "scaled", attributes={"axis": 2}),
        node("MeanVarianceNormalization", "x", "shifted", attributes={"axes": (0, 2)}),
    ]
    outputs = [name for each in nodes for name in each.outputs]
    constants = [Tensor.constant("ones", np.ones(2, np.float32)), Tensor.constant("none", np.ones(0, np.float32))]
    made = model(nodes, [*constants, *map(floating, ["x", *outputs])], outputs=" ".join(outputs))
    before, interval = [*warnings.filters], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: run(made, {"x": np.zeros((3, 2, 0), np.float32)}), range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters == before
    for each in found:
        assert {name: array.shape for name, array in each.items()} == {
            "reduced": (1, 1, 1), "averaged": (3, 2, 1), "normalized": (3, 2, 0), "scaled": (3, 2, 0),
            "shifted": (3, 2, 0),
        }  # fmt: skip
        assert np.isnan(each["reduced"]).all() and np.isnan(each["averaged"]).all()


def test_sums_do_not_depend_on_the_order_in_memory() -> None:
    """Of float inputs, and of floats that a node moved."""
    graph = model(
        [node("Transpose", "x", "moved", attributes={"perm": (0, 3, 1, 2)}), node("GlobalAveragePool", "moved", "y")],
        [floating("x", (2, 7, 7, 64)), floating("moved", (2, 64, 7, 7)), floating("y", (2, 64, 1, 1))],
    )
    x = np.random.default_rng(0).normal(size=(2, 7, 7, 64)).astype(np.float32)
    (y,) = run(graph, {"x": x}).values()
    for each in (np.asfortranarray(x), np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)):
        np.testing.assert_array_equal(run(graph, {"x": each})["y"], y)
    alone = execute(graph.nodes[1], [Operand(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), None)], [floating("y")])
    np.testing.assert_array_equal(alone[0], y)
