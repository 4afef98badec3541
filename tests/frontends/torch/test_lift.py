"""Tests the lifter on hand-made calls, and compares its tables with PyTorch's own schemas."""

from __future__ import annotations

import numpy as np
import pytest

from qfmt.engines import ENGINES
from qfmt.errors import SourceError, UnsupportedOperatorsError
from qfmt.frontends.options import Options
from qfmt.frontends.stored import PerTensor, Storage, StoredTensor
from qfmt.frontends.torch import network
from qfmt.frontends.torch.calls import Packed, Place
from qfmt.frontends.torch.lifter import Lifter
from qfmt.frontends.torch.lifts import LIFTS, Meaning
from qfmt.frontends.torch.values import InputSpec, Refine
from qfmt.ops import OPERATORS
from qfmt.ops.spelling import MISSING, parsed, spellings
from qfmt.passes.lowering import lower_integer

HERE = Place()
IMAGE = InputSpec("x", ("N", 3, "H", "W"))


def at(scope: str) -> Place:
    return Place(scope, "code/net.py", 7)


def stored(array: np.ndarray, quantizer: PerTensor | None = None, *names: str) -> StoredTensor:
    raw = memoryview(np.ascontiguousarray(array).tobytes())
    strides = tuple(stride // array.itemsize for stride in np.ascontiguousarray(array).strides)
    kind = array.dtype.name
    return StoredTensor(Storage("0", kind, lambda: raw), kind, array.shape, strides, 0, quantizer, list(names))


def packed_conv(path: str, out: int = 4, channels: int = 3) -> Packed:
    weight = stored(np.arange(out * channels * 9, dtype=np.int8).reshape(out, channels, 3, 3), PerTensor(0.1, 0))
    geometry = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "output_padding": (0, 0)}
    return Packed("conv", weight, stored(np.ones(out, np.float32)), path=path, **geometry)


def quantized(lift: Lifter, spec: InputSpec = IMAGE, scale: float = 0.5, zero_point: int = 3) -> object:
    x = lift.builder.add_input(spec)
    return lift.call("aten::quantize_per_tensor", (x, scale, zero_point, 13), {}, at("quant"))


def test_tensors_have_the_names_of_their_modules() -> None:
    lift = Lifter("fbgemm")
    y = lift.call(
        "quantized::conv2d_relu", (quantized(lift), packed_conv("conv1._packed_params"), 0.25, 7), {}, at("conv1")
    )
    z = lift.call("aten::dequantize", (y,), {}, HERE)
    model = lift.finish([z])
    assert [node.outputs for node in model.nodes] == [("quant",), ("conv1",), ("dequantize",)]
    assert model.nodes[1].inputs == ("quant", "conv1.weight", "conv1.bias")
    assert model.tensors["conv1.weight"].aliases == ("conv1._packed_params",)
    assert model.graph.find("conv1.scale") is model.tensors["conv1"]


def test_a_fused_relu_is_the_lower_limit_of_the_output() -> None:
    lift = Lifter("fbgemm")
    y = lift.call("quantized::conv2d_relu", (quantized(lift), packed_conv("c._packed_params"), 0.25, 7), {}, at("c"))
    assert (y.quantization.quant_min, y.quantization.quant_max) == (7, 255)


def test_a_concatenation_does_not_inherit_the_relu_of_its_first_input() -> None:
    lift = Lifter("fbgemm")
    x = quantized(lift)
    y = lift.call("quantized::conv2d_relu", (x, packed_conv("c._packed_params"), 0.25, 7), {}, at("c"))
    z = lift.call("aten::cat", ([y, x], 1), {}, HERE)
    assert z.quantization.quant_min == 0


def test_an_in_place_operator_changes_all_references_to_a_tensor() -> None:
    lift = Lifter("fbgemm")
    x = lift.builder.add_input(IMAGE)
    before = lift.call("aten::add", (x, 1.0), {}, HERE)
    lift.call("aten::relu_", (before,), {}, HERE)
    model = lift.finish([lift.call("aten::mul", (before, 2.0), {}, HERE)])
    assert [node.operator for node in model.nodes] == ["Add", "Relu", "Mul"]


def test_requirements_of_an_input_follow_from_its_first_reader() -> None:
    lift = Lifter("fbgemm")
    with pytest.raises(Refine) as caught:
        lift.call("quantized::conv2d", (quantized(lift, InputSpec("x")), packed_conv("c"), 0.25, 7), {}, HERE)
    assert (caught.value.name, caught.value.shape) == ("x", ("N", 3, "H", "W"))


def test_an_unconfirmed_rank_is_reported() -> None:
    def asks(recorder: Lifter, values: dict[str, object]) -> object:
        assert recorder.call("aten::dim", (values["x"],), {}, HERE) == 4
        return recorder.call("aten::relu", (values["x"],), {}, HERE)

    def convolves(recorder: Lifter, values: dict[str, object]) -> object:
        asks(recorder, values)
        x = recorder.call("aten::quantize_per_tensor", (values["x"], 0.5, 3, 13), {}, HERE)
        return recorder.call("quantized::conv2d", (x, packed_conv("c"), 0.25, 7), {}, HERE)

    def multiplies(recorder: Lifter, values: dict[str, object]) -> object:
        asks(recorder, values)
        packed = Packed("linear", stored(np.ones((4, 3), np.int8), PerTensor(0.1, 0)), path="l")
        return recorder.call("quantized::linear_dynamic", (values["x"], packed), {}, HERE)

    assert network.lift(asks, "fbgemm", [InputSpec("x")]).assumed == {"x": 4}
    assert network.lift(multiplies, "fbgemm", [InputSpec("x")]).assumed == {"x": 4}
    assert network.lift(convolves, "fbgemm", [InputSpec("x")]).assumed == {}


def convolves(recorder: Lifter, values: dict[str, object]) -> object:
    x = recorder.call("aten::quantize_per_tensor", (values["x"], 0.5, 3, 13), {}, HERE)
    return recorder.call("quantized::conv2d", (x, packed_conv("c"), 0.25, 7), {}, HERE)


def test_a_named_size_that_becomes_a_number_does_so_everywhere() -> None:
    specs = [InputSpec("x", ("N", "N", "H", "N")), InputSpec("y", (None, "N"))]
    lifter = network.lift(convolves, "fbgemm", specs).lifter
    assert [lifter.builder.tensors[key].shape for key in lifter.builder.inputs] == [(3, 3, "x.H", 3), (None, 3)]


@pytest.mark.parametrize(
    ("shapes", "quantization", "message"),
    [
        ({"x": 5}, {}, "input x: 5 is not a shape"),
        ({"x": "NCHW"}, {}, "input x: 'NCHW' is not a shape"),
        ({"x": (1, 2.5)}, {}, "input x: .* is not a shape"),
        ({"x": (np.int64(1), 3, -8, 8)}, {}, "input x: -8 is not a size"),
        ({"x": ("N", "")}, {}, "input x: '' is not a size"),
        ({}, {"x": 5}, "input x: 5 is not a quantization; give"),
        ({}, {"x": (1.0, 2)}, "input x: .* is not a quantization; give"),
        ({}, {"x": (1.0, 2.5, "uint8")}, "input x: .* is not a quantization; give"),
        ({}, {"x": (1e-60, 2, "uint8")}, "input x: scale 1e-60 and zero point 2 are not valid for uint8"),
        ({}, {"x": (1e300, 2, "uint8")}, "input x: scale 1e[+]300 and zero point 2 are not"),
        ({}, {"x": (float("nan"), 2, "uint8")}, "input x: scale nan and zero point 2 are not"),
    ],
)
def test_invalid_input_options(shapes: object, quantization: object, message: str) -> None:
    with pytest.raises(SourceError, match=f"^{message}"):
        network.with_options([InputSpec("x")], Options.checked("fbgemm", shapes, quantization))


def test_numbers_of_numpy_are_sizes() -> None:
    quantization = {"x": (np.float32(0.5), np.int8(3), "int8")}
    given = Options.checked("fbgemm", {"x": [np.int64(1), "C", None]}, quantization)
    assert given.shapes == {"x": (1, "C", None)} and type(given.shapes["x"][0]) is int
    assert given.quantization == {"x": (0.5, 3, "int8")} and type(given.quantization["x"][1]) is int


def test_a_view_by_the_batch_size_copies_the_dimension() -> None:
    lift = Lifter("fbgemm")
    x = lift.builder.add_input(IMAGE)
    batch = lift.call("aten::size", (x, 0), {}, HERE)
    model = lift.finish([lift.call("aten::view", (x, [batch, -1]), {}, HERE)])
    assert [node.operator for node in model.nodes] == ["Reshape"]
    assert model.tensors[model.nodes[0].inputs[1]].array.tolist() == [0, -1]
    x_value = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    (output,) = model.run({"x": x_value}).values()
    assert np.array_equal(output, x_value.reshape(2, -1))


def test_a_view_with_other_sizes_is_computed_at_run_time() -> None:
    """Channel shuffle: [n, groups, c / groups, h, w], transpose, back."""
    lift = Lifter("fbgemm")
    x = lift.builder.add_input(InputSpec("x", ("N", 4, "H", "W")))
    n, c, h, w = lift.call("aten::size", (x,), {}, HERE)
    y = lift.call("aten::view", (x, [n, 2, c // 2, h, w]), {}, HERE)
    y = lift.call("aten::transpose", (y, 1, 2), {}, HERE)
    twice = lift.call("aten::mul", (h, 2), {}, HERE)
    half = lift.call("aten::floor_divide", (twice, 2), {}, HERE)
    model = lift.finish([lift.call("aten::view", (y, [n, c, half, w]), {}, HERE)])
    value = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2, 4, 3, 5)
    (output,) = model.run({"x": value}).values()
    assert np.array_equal(output, value.reshape(2, 2, 2, 3, 5).swapaxes(1, 2).reshape(2, 4, 3, 5))


def test_calls_on_constants_are_computed_while_lifting() -> None:
    lift = Lifter("fbgemm")
    x = lift.builder.add_input(InputSpec("x", ("N", 2)))
    weight = stored(np.arange(6, dtype=np.float32).reshape(3, 2), None, "fc.weight")
    turned = lift.call("aten::t", (weight,), {}, HERE)
    model = lift.finish([lift.call("aten::matmul", (x, turned), {}, HERE)])
    assert [node.operator for node in model.nodes] == ["MatMul"]
    assert np.array_equal(model.tensors[model.nodes[0].inputs[1]].array, np.arange(6).reshape(3, 2).T)


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_a_threshold_keeps_nan_as_torch_does(value: float) -> None:
    torch = pytest.importorskip("torch")
    lift = Lifter("fbgemm")
    x = lift.builder.add_input(InputSpec("x", (6,)))
    model = lift.finish([lift.call("aten::threshold", (x, 0.25, value), {}, HERE)])
    numbers = np.array([np.nan, np.inf, -np.inf, 0.25, 0.5, -1], np.float32)
    expected = torch.nn.functional.threshold(torch.from_numpy(numbers), 0.25, value).numpy()
    (output,) = model.run({"x": numbers}).values()
    np.testing.assert_array_equal(output, expected)
    assert np.isnan(output[0])


def test_every_unsupported_operator_is_listed_with_its_place() -> None:
    lift = Lifter("fbgemm")
    y = lift.call("aten::made_up", (lift.builder.add_input(IMAGE),), {}, at("head"))
    z = lift.call("aten::relu", (y,), {}, at("head.act"))
    w = lift.call("quantized::also_made_up", (z, z), {}, at("tail"))
    with pytest.raises(UnsupportedOperatorsError) as caught:
        lift.finish([w])
    assert set(caught.value.operators) == {"aten::made_up", "quantized::also_made_up"}
    assert "head (code/net.py:7)" in str(caught.value)


@pytest.mark.parametrize("args", [("many",), (1.5,), ()])
def test_results_of_unsupported_calls_are_unpacked_into_a_count(args: tuple[object, ...]) -> None:
    lift = Lifter("fbgemm")
    x = lift.call("aten::is_nothing", (lift.builder.add_input(IMAGE),), {}, HERE)
    assert len(lift.call("prim::ListUnpack", (x, 3), {}, HERE)) == 3
    with pytest.raises(SourceError, match="ListUnpack gets invalid arguments") as raised:
        lift.call("prim::ListUnpack", (x, *args), {}, at("net"))
    assert raised.value.where == at("net").where


def test_lists_within_lists_without_end() -> None:
    lift, nested = Lifter("fbgemm"), []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(SourceError, match="nested too deeply"):
        lift.call("aten::cat", (nested,), {}, HERE)


@pytest.mark.parametrize("size", [0, -1])
def test_parts_without_elements(size: int) -> None:
    lift = Lifter("fbgemm")
    with pytest.raises(SourceError, match=f"parts of {size} elements"):
        lift.call("aten::split", (lift.builder.add_input(IMAGE), size, 1), {}, HERE)


@pytest.mark.parametrize("told", ["[" * 100_000, '{"kind": "a", "kind": "b"}', "[]", "{}", "no"])
def test_descriptions_of_weights_that_are_no_json(told: str) -> None:
    lift = Lifter("fbgemm")
    args = lift.builder.add_input(IMAGE), stored(np.ones((2, 2), np.int8)), *[None] * 6, told
    with pytest.raises(SourceError, match="quantized_linear gets invalid arguments"):
        lift.call("qfmt::quantized_linear", args, {}, HERE)


def test_a_call_with_another_fixed_value_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    _, parameters = parsed("aten::some(self, mode==1)")
    monkeypatch.setitem(LIFTS, "aten::some", Meaning(lambda builder, a: a.self, (), parameters))
    lift = Lifter("fbgemm")
    x = lift.builder.add_input(IMAGE)
    assert lift.call("aten::some", (x, 1), {}, HERE).key == x.key
    lift.call("aten::some", (x, 2), {}, HERE)
    assert list(lift.builder.unsupported_calls) == ["aten::some"]


def test_an_unquantized_input_to_a_quantized_call_is_refused_where_it_is() -> None:
    lift = Lifter("fbgemm")
    with pytest.raises(SourceError, match=r"conv1.*not quantized"):
        lift.call("quantized::conv2d", (lift.builder.add_input(IMAGE), packed_conv("c"), 0.25, 7), {}, at("conv1"))


def test_spellings_name_the_parameters_of_torchs_own_schemas() -> None:
    torch = pytest.importorskip("torch")
    for target, entries in spellings().items():
        schemas = torch._C._jit_get_schemas_for_operator(target)
        assert schemas, f"{target} is not an operator of torch {torch.__version__}"
        for entry in entries:
            names = [parameter.torch_name for parameter in entry.parameters]
            assert any(_fits(names, schema) for schema in schemas), f"{target}{names}: {schemas}"


def _fits(names: list[str], schema: object) -> bool:
    known = [argument.name for argument in schema.arguments]  # type: ignore[attr-defined]
    return names == known[: len(names)] or set(names) <= set(known)


def test_defaults_of_spellings_are_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    for target, entries in spellings().items():
        for parameter in (parameter for entry in entries for parameter in entry.parameters):
            if parameter.default is MISSING or parameter.target == "_":
                continue
            found = [
                argument.default_value
                for schema in torch._C._jit_get_schemas_for_operator(target)
                for argument in schema.arguments
                if argument.name == parameter.torch_name and argument.has_default_value()
            ]
            assert not found or parameter.default in found, f"{target} {parameter}"


def test_registered_calls_exist_in_torch() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers quantized_decomposed
    for target, meaning in LIFTS.items():
        if not target.startswith(("prim::", "torchao::", "qfmt::")):  # torchao takes seconds to import
            schemas = torch._C._jit_get_schemas_for_operator(target)
            assert schemas, target
            names = [parameter.torch_name for parameter in meaning.parameters]
            assert any(_fits(names, schema) for schema in schemas), f"{target}{names}: {schemas}"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_rules_for_what_is_rounded(engine: str) -> None:
    for operator in OPERATORS.values():
        assert not operator.engines or operator.engines[engine] in operator.rules, operator.name
    lifter = network.lift(convolves, engine, [InputSpec("x")]).lifter
    expected = [OPERATORS[node.operator].engines[engine] for node in lifter.builder.nodes]
    assert [node.rule for node in lifter.builder.nodes] == expected


def test_duplicate_outputs_have_two_names() -> None:
    lifter = Lifter("fbgemm")
    x = lifter.builder.add_input(InputSpec("x", (1, 3, 8, 8)))
    grid = (0.1, 7, 13)
    y = lifter.call("aten::quantize_per_tensor", (x, *grid), {}, HERE)
    y = lifter.call("quantized::conv2d", (y, packed_conv("c"), 0.25, 7), {}, at("conv"))
    y = lifter.call("aten::dequantize", (y,), {}, HERE)
    model = lifter.finish([y, x, y, x])
    assert model.graph.outputs == ("dequantize", "x", "output", "output_1")
    outputs = model.run({"x": np.ones((1, 3, 8, 8), np.float32)})
    assert list(outputs) == list(model.graph.outputs)
    np.testing.assert_array_equal(outputs["output"], outputs["dequantize"])
    integer = lower_integer(lifter.finish([y, y]), exact=True)
    assert len(set(integer.graph.outputs)) == len(integer.graph.outputs) == 2
