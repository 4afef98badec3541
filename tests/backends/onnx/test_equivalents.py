"""Export to ONNX: nodes that ONNX or ONNX Runtime lacks become equivalent ones, or an error names them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from cases.one_node import single
from qfmt import budget
from qfmt.arithmetic import DYNAMIC
from qfmt.errors import BudgetError, InexpressibleNodesError, QfmtError
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.passes.hazards import hazards
from qfmt.quantization import Parameter
from support.onnx_witness import LEVELS, loaded, runtime

f32 = np.float32
RNG = np.random.default_rng(0)
Y = Tensor("y", "float32", None)
IMAGE = RNG.integers(-9, 9, (1, 2, 4, 5)).astype(f32)


def agrees(model: Model, given: dict[str, Any]) -> None:
    want = model.run(given)["y"]
    for opset in 13, None:
        np.testing.assert_allclose(runtime(model.to_onnx(opset=opset), given)[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("pads", "output_padding"),
    [
        ((-1, 1, 0, 2), (0, 0)),
        ((0, 1, -2, 1), (1, 1)),
        ((1, 1, 0, 0), (0, 3)),
        ((-2, 0, 6, 0), (5, 0)),
        ((9, 0, -4, 0), (0, 0)),
    ],
)
def test_what_a_transposed_convolution_adds(pads: tuple[int, ...], output_padding: tuple[int, ...], bias: bool) -> None:
    """By pads below 0, which ONNX does not have, or by output_padding of a stride or more."""
    tensors = [Tensor("x", "float32", IMAGE.shape), Tensor.constant("w", RNG.integers(-4, 5, (2, 3, 3, 3)).astype(f32))]
    tensors += [Tensor.constant("b", np.array([1, -2, 3], f32))] if bias else []
    layout = {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": pads}
    output = Tensor("y", "float32", None)
    agrees(single("ConvTranspose", "", tensors, output, {"output_padding": output_padding, **layout}), {"x": IMAGE})


@pytest.mark.parametrize("shape", [(1, 2, 3, 3), (1, 2, "h", "w")])
@pytest.mark.parametrize("axes", [(), (2, 3)])
def test_a_resize_that_keeps_a_size(shape: tuple[Any, ...], axes: tuple[int, ...]) -> None:
    """By a scale of 1.3: ONNX interpolates along that dimension, too."""
    scales = np.array([1.3, 2] if axes else [1, 1, 1.3, 2])
    tensors = [Tensor("x", "float32", shape), None, Tensor.constant("scales", scales)]
    model = single("Resize", "", tensors, Tensor("y", "float32", None), {"mode": "linear", "axes": axes})
    image = IMAGE[:, :, :3, :3]
    want = model.run({"x": image})["y"]
    np.testing.assert_allclose(runtime(model.to_onnx(opset=18), {"x": image})[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1, 20), (1, 1, 1, "w")])
@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_the_nearest_elements_of_torch(shape: tuple[Any, ...], mode: str, rounding: str) -> None:
    """Positions are multiplied by the reciprocal of a scale, and divided by it in ONNX."""
    row = np.arange(20, dtype=f32).reshape(1, 1, 1, 20)
    for scale in (0.3, 0.6, 1.2, 2.0, 2.4, 2.9):
        scales = Tensor.constant("scales", np.array([1, 1, 1, scale]))
        attributes = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
        model = single("Resize", "", [Tensor("x", "float32", shape), None, scales], Y, attributes)
        for opset in 13, None:
            got = runtime(model.to_onnx(opset=opset), {"x": row})[0]
            np.testing.assert_array_equal(got, model.run({"x": row})["y"])


@pytest.mark.parametrize("name", ["antialias", "exclude_outside"])
def test_options_without_effect_on_the_nearest_elements(name: str) -> None:
    """ONNX Runtime does not load them."""
    sizes = Tensor.constant("sizes", np.array([1, 1, 1, 40]))
    row = np.arange(20, dtype=f32).reshape(1, 1, 1, 20)
    attributes = {"mode": "nearest", "nearest_mode": "floor", name: 1}
    model = single("Resize", "", [Tensor("x", "float32", row.shape), None, None, sizes], Y, attributes)
    got = runtime(model.to_onnx(), {"x": row})[0]
    np.testing.assert_array_equal(got, model.run({"x": row})["y"])


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_activations_of_both_directions(operator: str, gates: int, direction: str) -> None:
    count = 2 if direction == "bidirectional" else 1
    x = RNG.standard_normal((3, 2, 4)).astype(f32)
    weights = {name: RNG.standard_normal((count, gates * 5, size)).astype(f32) for name, size in (("w", 4), ("r", 5))}
    constants = [Tensor.constant(name, values) for name, values in weights.items()]
    model = single(operator, "", [Tensor("x", "float32", x.shape), *constants], Y, {"direction": direction})
    np.testing.assert_allclose(runtime(model.to_onnx(), {"x": x})[0], model.run({"x": x})["y"], atol=1e-5)


def test_a_slope_that_cannot_represent_1() -> None:
    """torch multiplies positive numbers by the largest number on the grid of the slopes."""
    grid, slopes = Quantization.per_tensor(0.5, 3, "uint8"), Quantization.per_tensor(1 / 512, 0, "uint8")
    x = Tensor("x", "uint8", (256,), quantization=grid)
    slope = Tensor.constant("slope", np.uint8([100]), slopes)
    model = single("PRelu", "product", [x, slope], Tensor("y", "uint8", (256,), quantization=grid), {})
    given = {"x": np.arange(256, dtype=np.uint8)}
    want = model.run(given)["y"]
    assert want.max() == 3 + 252 // 2
    np.testing.assert_array_equal(runtime(model.to_onnx(), given)[0], want)


@pytest.mark.parametrize("zero", [0, 255])
def test_slopes_that_are_computed(zero: int) -> None:
    """Also with slopes that represent nothing above 0."""
    grid, slopes = Quantization.per_tensor(0.5, 3, "uint8"), Quantization.per_tensor(1 / 512, zero, "uint8")
    tensors = [Tensor("x", "uint8", (256,), None, grid), Tensor("slope", "uint8", (1,), None, slopes)]
    model = single("PRelu", "product", [*tensors], Tensor("y", "uint8", (256,), None, grid), {})
    for number in (0, 100, 255):
        given = {"x": np.arange(256, dtype=np.uint8), "slope": np.uint8([number])}
        np.testing.assert_array_equal(runtime(model.to_onnx(), given)[0], model.run(given)["y"])


@pytest.mark.parametrize("opset", [13, 17, 21, None])
@pytest.mark.parametrize("name", ["Reshape", "Transpose", "Squeeze"])
def test_int32_numbers_that_are_moved(name: str, opset: int | None) -> None:
    """ONNX Runtime would move their DequantizeLinear behind the node, and quantize to uint8 between them."""
    integers = Tensor("x", "int32", (1, 4), None, Quantization.per_tensor(0.001, 0, "int32"))
    shape = Tensor.constant("shape", np.array([2, 2]))
    more = {"Reshape": [shape], "Squeeze": [Tensor.constant("axes", np.array([0]))]}
    one = single("DequantizeLinear", "", [integers], Tensor("d", "float32", (1, 4)), {})
    attributes = {"perm": (1, 0)} if name == "Transpose" else {}
    two = single(name, "", [Tensor("d", "float32", (1, 4)), *more.get(name, [])], Y, attributes)
    tensors = {**two.tensors, **one.tensors}
    model = Model(Graph(("x",), ("y",), (*one.nodes, *two.nodes), tensors))
    given = {"x": np.array([[-540, 279, 530, -74]], np.int32)}
    made = runtime(model.to_onnx(opset=opset), given, "fused")[0]
    np.testing.assert_array_equal(made, model.run(given)["y"])


@pytest.mark.parametrize(("mul", "is_refused"), [(1 << 29, False), (1 << 31, True)])
def test_a_requantization_that_may_exceed_int64(mul: int, is_refused: bool) -> None:
    tensors = [Tensor("x", "int32", (2,)), *(Tensor.constant(each, np.array(mul)) for each in "ma")]
    model = single("qfmt.RequantShift", "", [*tensors], Tensor("y", "int32", (2,)), {"div": 1 << 31})
    given = {"x": np.array([-(1 << 31), (1 << 31) - 1], np.int32)}
    if is_refused:
        with pytest.raises(InexpressibleNodesError, match="RequantShift computes products that may exceed int64"):
            model.to_onnx()
    else:
        np.testing.assert_array_equal(runtime(model.to_onnx(), given)[0], model.run(given)["y"])


def test_a_product_of_booleans() -> None:
    shape = (2, 3)
    tensors = [Tensor("x", "bool", shape), Tensor("z", "bool", shape)]
    model = single("Mul", "", tensors, Tensor("y", "bool", shape), {})
    with pytest.raises(InexpressibleNodesError, match="an input of bool, which ONNX's Mul does not have"):
        model.to_onnx()


def test_an_array_that_very_many_tensors_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own copy in ONNX; which products can overflow is found for each of them."""
    integers = Tensor.constant("w", np.ones((4, 50_000), np.int8), Quantization.per_tensor(1, 0, "int8"))
    weights = [replace(integers, name=f"w{index}") for index in range(150)]
    x = Tensor("x", "uint8", (1, 4), quantization=Quantization.per_tensor(1, 0, "uint8"))
    grid = Quantization.per_tensor(2, 0, "uint8")
    outputs = [Tensor(w.name.replace("w", "y"), "uint8", (1, 50_000), quantization=grid) for w in weights]
    pairs = zip(weights, outputs, strict=True)
    nodes = [Node("MatMul", ("x", w.name), (y.name,), {}, version=13, rule="integer_bias") for w, y in pairs]
    tensors = {each.name: each for each in (x, *weights, *outputs)}
    model = Model(Graph(("x",), tuple(y.name for y in outputs), nodes, tensors))
    with pytest.raises(BudgetError, match="writing ONNX"):
        model.to_onnx()
    monkeypatch.setattr(budget, "MODEL_OPERATIONS", (50_000, 0))
    with pytest.raises(BudgetError, match="finding overflows"):
        list(hazards(model))


@pytest.mark.parametrize("rule", ["dynamic_symmetric", "dynamic_divide"])
@pytest.mark.parametrize("dtype", ["uint32", "int8", "float16"])
def test_dynamic_quantization_of_an_input_that_is_not_float32(rule: str, dtype: str) -> None:
    x = RNG.integers(0, 100, (4, 6)).astype(dtype)
    w = Tensor.constant("w", RNG.integers(-9, 9, (3, 6)).astype(np.int8), Quantization.per_tensor(0.25, 0, "int8"))
    model = single("qfmt.DynamicLinear", rule, [Tensor("x", dtype, x.shape), w], Y, {})
    np.testing.assert_array_equal(runtime(model.to_onnx(), {"x": x})[0], model.run({"x": x})["y"])


@pytest.mark.parametrize("rule", DYNAMIC)
@pytest.mark.parametrize("reduce_range", [0, 1])
@pytest.mark.parametrize("size", [0.0, 1e-6, 2e-5, 1e-3, 0.01, 0.05, 1.0])
def test_dynamic_scales_have_the_minimum_of_the_rule(rule: str, reduce_range: int, size: float) -> None:
    """Small inputs have few integers: 1e-3 is 16 steps of fbgemm's least scale, and 4 of that of PT2E."""
    x = (np.random.default_rng(5).random((4, 6)) * size - size / 3).astype(f32)
    w = Tensor.constant("w", np.eye(6, dtype=np.int8), Quantization.per_tensor(1.0, 0, "int8"))
    tensors = [Tensor("x", "float32", x.shape), w]
    model = single("qfmt.DynamicLinear", rule, tensors, Y, {"reduce_range": reduce_range})
    want, found = model.run({"x": x})["y"], runtime(model.to_onnx(), {"x": x})[0]
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert len(np.unique(want)) == len(np.unique(found))


def test_a_resize_by_nothing_of_an_input_of_unknown_rank() -> None:
    tensors = [Tensor("x", "float32", None), None, Tensor.constant("scales", np.array([0, 1.5], f32))]
    model = single("Resize", "", tensors, Y, {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"})
    with pytest.raises(QfmtError, match=r"^node node \(Resize\): the scales \[0.0, 1.5\] are not all"):
        model.to_onnx()


def test_a_grid_that_many_tensors_share_is_not_listed_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a scale for each of a million channels."""
    grid = Quantization.of(np.full(50, 0.5, f32), np.arange(50), -128, 127, 1, names=("s", "z"))
    listed: list[int] = []
    numbers = Parameter.stored_numbers

    def counted(self: Parameter) -> tuple[float, ...]:
        listed.append(len(self))
        return numbers(self)

    def calls(count: int) -> int:
        weights = [Tensor.constant(f"w{i}", np.ones((1, 50), np.int8), grid) for i in range(count)]
        outputs = [Tensor(f"y{i}", "float32", (1, 50)) for i in range(count)]
        nodes = [Node("DequantizeLinear", (f"w{i}",), (f"y{i}",), version=23) for i in range(count)]
        tensors = {each.name: each for each in (*weights, *outputs)}
        model = Model(Graph((), tuple(each.name for each in outputs), nodes, tensors))
        listed.clear()
        monkeypatch.setattr(Parameter, "stored_numbers", counted)
        assert len(model.to_onnx().graph.initializer) == count + 2
        monkeypatch.undo()
        return listed.count(50)

    assert calls(20) == calls(2) > 0


def test_a_resize_by_more_scales_than_dimensions() -> None:
    tensors = [Tensor("x", "float32", None), None, Tensor.constant("scales", np.full(33, 2, f32))]
    model = single("Resize", "", tensors, Y, {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"})
    with pytest.raises(QfmtError, match=r"^node node \(Resize\): has 33 scales; a tensor has up to 32 dimensions"):
        model.to_onnx()


def exact(model: Model, given: dict[str, Any]) -> None:
    """ONNX Runtime gives the elements and the shape of `run`, in the oldest and in the newest opset."""
    want = model.run(given)["y"]
    for opset in 13, None:
        for level in LEVELS:
            (got,) = runtime(model.to_onnx(opset=opset), given, level)
            assert (got.shape, got.dtype, got.tobytes()) == (want.shape, want.dtype, want.tobytes())


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), ("n", 4)])
@pytest.mark.parametrize("end", [2**63 - 1, 2**31 - 1, 2**31, 4, 0, -5, -(2**63)])
def test_a_slice_backwards(end: int, shape: tuple[Any, ...], is_constant: bool) -> None:
    """ONNX Runtime reads the largest integers as ends before the first element."""
    ends = np.array([end, 3])
    tensors = [
        Tensor("x", "float32", shape),
        Tensor.constant("starts", np.array([-1, 1])),
        Tensor.constant("ends", ends) if is_constant else Tensor("ends", "int64", (2,)),
        Tensor.constant("axes", np.array([1, 0])),
        Tensor.constant("steps", np.array([-2, 1])),
    ]
    given = {"x": IMAGE[0, 0, :3, :4], **({} if is_constant else {"ends": ends})}
    exact(single("Slice", "", tensors, Y, {}), given)


def test_ends_of_steps_forward_stay_as_they_are() -> None:
    """`verify` compares constants bit by bit."""
    ends = np.array([-9, 2**63 - 1])
    tensors = [Tensor("x", "float32", (3, 4)), Tensor.constant("starts", np.array([-1, 1]))]
    tensors += [Tensor.constant("ends", ends), Tensor.constant("axes", np.array([1, 0]))]
    model = single("Slice", "", [*tensors, Tensor.constant("steps", np.array([-1, 1]))], Y, {})
    kept = {each.name: onnx.numpy_helper.to_array(each) for each in model.to_onnx().graph.initializer}
    np.testing.assert_array_equal(kept["ends"], ends)
    exact(model, {"x": IMAGE[0, 0, :3, :4]})


def test_the_opset_that_a_source_states_may_be_any_text() -> None:
    model = single("Relu", "", [Tensor("x", "float32", (2,))], Y, {})
    for text in ("9" * 5000, "-1", "²", ""):
        source = {"format": "onnx", "format_version": text}
        assert model.replace(source=source).to_onnx() == model.to_onnx()


def test_a_slice_by_bounds_of_two_types() -> None:
    tensors = [
        Tensor("x", "float32", (4, 3)),
        Tensor.constant("starts", np.array([0, 1], np.int32)),
        Tensor.constant("ends", np.array([-(2**63) + 1, 3])),
    ]
    exact(single("Slice", "", tensors, Y, {}), {"x": IMAGE[0, 0, :4, :3]})


def test_a_scale_that_is_quantized() -> None:
    """ONNX takes the real number."""
    tensors = [Tensor("x", "float32", (3, 4)), Tensor("s", "int8", (), None, Quantization.per_tensor(0.5, 0, "int8"))]
    model = single("ai.onnx.QuantizeLinear", "", tensors, Tensor("y", "uint8", (3, 4)), {"output_dtype": "uint8"})
    given = {"x": IMAGE[0, 0, :3, :4], "s": np.array(3, np.int8)}
    np.testing.assert_array_equal(runtime(model.to_onnx(opset=21), given)[0], model.run(given)["y"])


def test_no_axes_to_squeeze() -> None:
    tensors = [Tensor("x", "float32", (1, 2, 1)), Tensor.constant("axes", np.array([], np.int64))]
    exact(single("Squeeze", "", tensors, Y, {}), {"x": IMAGE[:, :, 0, :1]})


PLACES = ["asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners"]


@pytest.mark.parametrize("shape", [(1, 52), (None, None)])
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller", "scales"])
@pytest.mark.parametrize("mode", PLACES)
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_the_nearest_elements_by_computed_sizes(shape: Any, policy: str, mode: str, rounding: str) -> None:
    attributes = {"coordinate_transformation_mode": mode, "nearest_mode": rounding}
    attributes |= {} if policy == "scales" else {"keep_aspect_ratio_policy": policy}
    x, row = Tensor("x", "float32", shape), np.arange(52, dtype=f32).reshape(1, 52)
    sizes = 44, 14, 1, 83, 52
    if policy == "scales":
        tensors, factors = [x, None, Tensor("to", "float32", (2,))], [np.array([1.4, n / 52], f32) for n in sizes]
    else:
        tensors, factors = [x, None, None, Tensor("to", "int64", (2,))], [np.array([1, n]) for n in sizes]
    model = single("Resize", "", tensors, Y, attributes)
    session = loaded(model.to_onnx(opset=18))
    for each in factors:
        given = {"x": row, "to": each}
        np.testing.assert_array_equal(session.run(None, given)[0], model.run(given)["y"])


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", PLACES)
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_the_nearest_elements_by_constant_sizes(policy: str, mode: str, rounding: str) -> None:
    attributes = {"coordinate_transformation_mode": mode, "nearest_mode": rounding, "keep_aspect_ratio_policy": policy}
    row = np.arange(52, dtype=f32).reshape(1, 52)
    for size in 44, 14, 1, 83, 52:
        tensors = [Tensor("x", "float32", (None, None)), None, None, Tensor.constant("sizes", np.array([1, size]))]
        model = single("Resize", "", tensors, Y, attributes)
        np.testing.assert_array_equal(runtime(model.to_onnx(opset=18), {"x": row})[0], model.run({"x": row})["y"])


@pytest.mark.parametrize("size", [np.array([1, 0]), np.array([1.0, 1e-300])])
def test_a_resize_to_no_elements(size: Any) -> None:
    name, before = ("sizes", [None, None]) if size.dtype == np.int64 else ("scales", [None])
    tensors = [Tensor("x", "float32", (1, 5)), *before, Tensor.constant(name, size)]
    with np.errstate(divide="ignore", over="ignore"):
        exact(single("Resize", "", tensors, Y, {}), {"x": IMAGE[0, 0, :1]})


def test_a_resize_without_sizes() -> None:
    tensors = [Tensor("x", "float32", (1, 5)), None, None, Tensor.constant("sizes", np.zeros((1, 0), np.int64))]
    with pytest.raises(InexpressibleNodesError, match="has neither scales nor sizes"):
        single("Resize", "", tensors, Y, {}).to_onnx()


def test_the_variance_of_equal_numbers() -> None:
    """ONNX Runtime's MeanVarianceNormalization gives NaN."""
    x = np.full((1, 1, 3, 3), -21.7, f32)
    exact(single("MeanVarianceNormalization", "", [Tensor("x", "float32", x.shape)], Y, {}), {"x": x})


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_recurrent_layer_whose_batch_comes_first(operator: str, gates: int) -> None:
    """ONNX Runtime has no layout of 1."""
    arrays = {"x": (2, 3, 4), "w": (1, gates * 5, 4), "r": (1, gates * 5, 5), "h": (2, 1, 5)}
    values = {name: RNG.standard_normal(shape).astype(f32) for name, shape in arrays.items()}
    x, w, r, h = (Tensor.constant(name, value) for name, value in values.items())
    x = Tensor("x", "float32", arrays["x"])
    model = single(operator, "", [x, w, r, None, None, h], Y, {"layout": 1})
    want = model.run({"x": values["x"]})["y"]
    np.testing.assert_allclose(runtime(model.to_onnx(), {"x": values["x"]})[0], want, atol=1e-5)


@pytest.mark.parametrize("name", ["SpaceToDepth", "GlobalMaxPool", "Tile", "Pad", "Concat", "Relu"])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_moves_of_integers_whose_real_numbers_are_infinite(name: str, form: str) -> None:
    grid = Quantization.per_tensor(float(np.finfo(f32).max), 3, "int8")
    x = Tensor("x", "int8", (1, 2, 2, 2), quantization=grid)
    more = {"Tile": [1, 2, 1, 1], "Pad": [0, 0, 1, 0, 0, 0, 0, 0]}
    attributes = {"SpaceToDepth": {"blocksize": 2}, "Concat": {"axis": 1}}.get(name, {})
    tensors = [x, *([Tensor.constant("n", np.array(more[name]))] if name in more else [])]
    model = single(name, "", tensors, Tensor("y", "int8", None, None, grid), attributes).replace(engine="reference")
    given = {"x": RNG.integers(-128, 128, (1, 2, 2, 2)).astype(np.int8)}
    np.testing.assert_array_equal(runtime(model.to_onnx(form=form), given)[0], model.run(given)["y"])


@pytest.mark.parametrize("opset", [17, None])
def test_pads_of_both_signs_of_a_wrapped_tensor(opset: int | None) -> None:
    """Elements modulo the size of the tensor, not of what a crop leaves."""
    pads = Tensor.constant("pads", np.array([-2, 2, 1, 3]))
    model = single("Pad", "", [Tensor("x", "float32", (4, 5)), pads], Y, {"mode": "wrap"})
    want = model.run({"x": IMAGE[0, 0]})["y"]
    np.testing.assert_array_equal(runtime(model.to_onnx(opset=opset), {"x": IMAGE[0, 0]})[0], want)


def test_nodes_that_need_known_ranks() -> None:
    window = {"kernel_shape": (3,), "strides": (1,), "dilations": (2,), "pads": (0, 1), "ceil_mode": 1}
    model = single("MaxPool", "", [Tensor("x", "float32", None)], Tensor("y", "float32", (1,)), window)
    with pytest.raises(
        InexpressibleNodesError, match="MaxPool has sizes that contradict each other, or requires known"
    ):
        model.to_onnx()


@pytest.mark.parametrize("by", ["scales", "sizes"])
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.25, 1.0), (0.0, 0.5)])
def test_a_region_of_an_axis_that_keeps_its_size(by: str, start: float, end: float) -> None:
    """ONNX Runtime ignores the region along such an axis."""
    region = Tensor.constant("region", np.array([start, 0.25, end, 0.75], f32))
    factors = {"scales": np.array([1, 2], f32), "sizes": np.array([2, 6])}
    given = [Tensor.constant(name, factors[name]) if name == by else None for name in factors]
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "axes": (0, 1)}
    x = np.arange(6, dtype=f32).reshape(2, 3)
    model = single("Resize", "", [Tensor("x", "float32", (2, 3)), region, *given], Y, attributes)
    if (start, end) == (0, 1):
        np.testing.assert_array_almost_equal_nulp(runtime(model.to_onnx(), {"x": x})[0], model.run({"x": x})["y"], 2)
    else:
        with pytest.raises(QfmtError, match="Resize crops an axis that keeps its size, which ONNX Runtime does not"):
            model.to_onnx()


@pytest.mark.parametrize("name", ["Clip", "Relu", "GlobalMaxPool", "Concat", "Pad", "Resize"])
def test_moves_of_int32(name: str) -> None:
    """float32 does not hold them."""
    grid = Quantization.per_tensor(0.05, 131, "int32")
    x, y = Tensor("x", "int32", (1, 1, 2, 3), quantization=grid), Tensor("y", "int32", None, quantization=grid)
    more: dict[str, list[Tensor | None]] = {"Pad": [Tensor.constant("pads", np.array([0, 0, 0, 1, 0, 0, 0, 0]))]}
    more["Resize"] = [None, Tensor.constant("scales", np.array([1, 1, 2, 1], f32))]
    model = single(name, "", [x, *more.get(name, [])], y, {"axis": 0} if name == "Concat" else {})
    given = {"x": RNG.integers(-(2**31), 2**31, (1, 1, 2, 3)).astype(np.int32)}
    model = model.replace(engine="reference")
    np.testing.assert_array_equal(runtime(model.to_onnx(), given)[0], model.run(given)["y"])


POOL = {"kernel_shape": (2,), "strides": (1,), "pads": (0, 0), "dilations": (1,)}


@pytest.mark.parametrize(
    ("name", "tensors", "kind", "attributes"),
    [
        ("ReduceMax", [Tensor("x", "int16", (3,))], "int16", {}),
        ("MaxPool", [Tensor("x", "int32", (1, 1, 4))], "int32", POOL),
    ],
)
def test_what_onnx_does_not_have_is_refused(name: str, tensors: Any, kind: str, attributes: dict[str, Any]) -> None:
    """Types, and sizes beyond int64."""
    model = single(name, "", tensors, Tensor("y", kind, None), attributes).replace(engine="reference")
    with pytest.raises(InexpressibleNodesError, match=f"{name} has an (input of int|output of a size)"):
        model.to_onnx()


def test_an_input_of_a_size_beyond_int64() -> None:
    model = single("Relu", "", [Tensor("x", "float32", (2**63,))], Tensor("y", "float32", None), {})
    with pytest.raises(QfmtError, match="input x: has a size beyond int64"):
        model.to_onnx()


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "float16", "int64"])
def test_an_identity_matrix_of_any_type(kind: str) -> None:
    model = single("EyeLike", "", [Tensor("x", "float32", (2, 3))], Tensor("y", kind, None), {"dtype": kind, "k": 1})
    exact(model, {"x": IMAGE[0, 0, :2, :3]})


def test_a_split_by_sizes_and_by_a_number_of_outputs() -> None:
    parts = Tensor.constant("parts", np.array([1, 3]))
    model = single("Split", "", [Tensor("x", "float32", (4, 5)), parts], Y, {"axis": 0, "num_outputs": 2})
    (node,) = model.nodes
    second = Tensor("z", "float32", None)
    graph = replace(
        model.graph,
        nodes=(replace(node, outputs=("y", "z")),),
        outputs=("y", "z"),
        tensors={**model.tensors, "z": second},
    )
    model, given = model.replace(graph=graph), {"x": IMAGE[0, 0]}
    for got, want in zip(runtime(model.to_onnx(), given), model.run(given).values(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rule", ["", "exact"])
def test_bins_of_no_elements(rule: str) -> None:
    grid = Quantization.per_tensor(0.5, 3, "uint8")
    x = Tensor("x", "uint8", (1, 2, 4), None, grid) if rule else Tensor("x", "float32", (1, 2, 4))
    y = Tensor("y", "int32" if rule else "float32", None)
    model = single("qfmt.AdaptiveAveragePool", rule, [x], y, {"output_size": (0,)})
    exact(model, {"x": np.abs(IMAGE[:, :, 0, :4]).astype(x.dtype)})


@pytest.mark.parametrize("name", ["Greater", "Less", "Equal"])
@pytest.mark.parametrize("index", [0, 1])
def test_comparisons_of_a_quantized_tensor_with_numbers(name: str, index: int) -> None:
    """Real numbers are not truncated to the type of the others."""
    q = Tensor("q", "int8", (6,), None, Quantization.per_tensor(0.3, 3, "int8"))
    tensors: list[Tensor | None] = [q, Tensor("x", "float16", (6,))]
    given = {"q": np.arange(6, dtype=np.int8), "x": np.float16([-1, -0.5, 0, 0.5, 0, 0.6])}
    model = single(name, "", tensors[::-1] if index else tensors, Tensor("y", "bool", None), {})
    exact(model, given)
