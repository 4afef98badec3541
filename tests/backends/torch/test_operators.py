"""Compares every operator alone, in every engine of `Model.to_torch`, with `Model.run`: odd shapes, scales and
types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cases.one_node import single
from cases.operators import CASES
from cases.torch_nodes import KINDS, Array, one_node
from qfmt.backends.torch.spelled import Kernel
from qfmt.errors import QfmtError
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from qfmt.ops.spelling import parsed
from support.examples import times

pytestmark = pytest.mark.usefixtures("fbgemm")


def allowed(engine: str, kind: str, got: Array, expected: Array, quantized: bool) -> bool:
    """`reference` is equal bit by bit. The others round at other places, or sum floats in another order."""
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return False
    if engine == "reference" or not (quantized or got.dtype.kind == "f"):
        return np.array_equal(got, expected, equal_nan=got.dtype.kind == "f")
    if quantized:
        return int(np.abs(got.astype(np.int64) - expected.astype(np.int64)).max(initial=0)) <= 1
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
    return np.allclose(got, expected, rtol=1e-4, atol=1e-4 * largest, equal_nan=True)


EXCUSED = {
    ("qdq", "Div", "8 bits"): "what 0 / 0 gives on integers is torch's",
}
"""Cases in which torch's own engine is wrong."""


QUANTIZED = {name for name in CASES if not OPERATORS[name].is_real}
RUN = [(kind, name) for kind in KINDS for name in sorted(QUANTIZED if kind != "float" else CASES)]
RUN = [(kind, name) for kind, name in RUN if name != "qfmt.Requantize"]  # its cases are all on integers


@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
@pytest.mark.parametrize(("kind", "name"), RUN)
def test_every_operator_by_every_engine(kind: str, name: str) -> None:
    """Each random case by `reference` and, by turns, another engine."""
    ran = 0
    for seed in times(5):
        model, inputs = one_node(name, kind, np.random.default_rng([seed, *name.encode(), len(kind)]))
        try:
            expected = model.run(inputs)
        except QfmtError:
            continue  # the operator does not support the random rule or quantization
        ran += 1
        for engine in ("reference", ("native", "onednn", "qdq")[seed % 3]):
            made = model.to_torch(engine)(*(torch.from_numpy(np.array(array)) for array in inputs.values()))
            results = made if isinstance(made, tuple) else (made,)
            for got, (at, wanted) in zip(results, expected.items(), strict=True):
                is_quantized = model.tensors[at].quantization is not None
                fine = allowed(engine, kind, got.numpy(), wanted, is_quantized)
                assert fine or (engine, name, kind) in EXCUSED, (engine, seed, model.nodes[0].rule)
    assert ran


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq"])
def test_slopes_whose_range_excludes_one(engine: str) -> None:
    """torch multiplies the positive half of PReLU by a 1 quantized like the slope, whose range ends at 0.25 here."""
    x, q, w = np.arange(256, dtype=np.uint8), (0.02, 128), float(np.float32(0.25 / 255))
    kind = torch.quint8
    theirs = torch.ops.quantized.prelu(
        torch._make_per_tensor_quantized_tensor(torch.from_numpy(x).reshape(1, 1, 16, 16), *q),
        torch.quantize_per_tensor(torch.tensor([0.25]), w, 0, kind),
        0.01,
        100,
    )
    tensors = {
        "x": Tensor("x", "uint8", (1, 1, 16, 16), quantization=Quantization.per_tensor(*q, "uint8")),
        "w": Tensor.constant("w", np.full((1, 1, 1), 255, np.uint8), Quantization.per_tensor(w, 0, "uint8")),
        "y": Tensor("y", "uint8", (1, 1, 16, 16), quantization=Quantization.per_tensor(0.01, 100, "uint8")),
    }
    node = Node("PRelu", ("x", "w"), ("y",), version=16, rule="product")
    model = Model(Graph(("x",), ("y",), (node,), tensors), engine="fbgemm")
    got = model.to_torch(engine)(torch.from_numpy(x).reshape(1, 1, 16, 16)).numpy()
    off = np.abs(got.astype(int) - theirs.int_repr().numpy().astype(int))
    print(f"{engine}: {int((off == 0).sum())} of {off.size} outputs equal")
    assert off.max() <= (1 if engine == "qdq" else 0)


def test_int32_biases_need_no_fallback() -> None:
    """The biases are int32 with the scale of the sums: the reference adds them to the sums, kernels get dequantized
    biases."""
    rng = np.random.default_rng(0)
    x, out = Quantization.per_tensor(0.5, 3, "uint8"), Quantization.per_tensor(2.0, 100, "uint8")
    w = Quantization.of((0.25, 0.125), (0, 0), -128, 127, axis=0)
    b = Quantization.of((0.125, 0.0625), (0, 0), -(2**31), 2**31 - 1, axis=0)
    tensors = {
        "x": Tensor("x", "uint8", ("N", 5), quantization=x),
        "w": Tensor.constant("w", rng.integers(-128, 128, (2, 5)).astype(np.int8), w),
        "b": Tensor.constant("b", np.array([2500, -777], np.int32), b),
        "y": Tensor("y", "uint8", ("N", 2), quantization=out),
    }
    for rule in ("integer_bias", "float_bias", "affine", "integer_bias_reciprocal"):
        node = Node("qfmt.Linear", ("x", "w", "b"), ("y",), version=1, rule=rule)
        model = Model(Graph(("x",), ("y",), (node,), tensors))
        values = rng.integers(0, 256, (50, 5)).astype(np.uint8)
        expected = model.run({"x": values})["y"].astype(int)
        for engine in ("reference", "native", "onednn"):
            module = model.to_torch(engine)
            assert all("overflow" in row.reason for row in module.report())
            off = np.abs(module(torch.from_numpy(values)).numpy() - expected)
            print(f"{rule}, {engine}: {int((off == 0).sum())} of {off.size} outputs equal")
            assert off.max() <= (0 if engine == "reference" else 1)


@pytest.mark.parametrize("channels", [3, 256])
@pytest.mark.parametrize(("given", "made"), [(None, 0), (0, None), (0, 0)])
def test_functions_from_and_to_scales_per_channel(channels: int, given: int | None, made: int | None) -> None:
    """256 channels are as many as the results in a table of a function."""
    rng = np.random.default_rng(4)

    def grid(axis: int | None) -> Quantization:
        count = channels if axis == 0 else 1
        points = rng.integers(0, 256, count).tolist()
        return Quantization.of(rng.uniform(0.005, 0.05, count).astype(np.float32), points, 0, 255, axis=axis)

    x, y = Tensor("x", "uint8", (channels, 4), None, grid(given)), Tensor("y", "uint8", None, None, grid(made))
    values = rng.integers(0, 256, (channels, 4)).astype(np.uint8)
    for name in ("Abs", "Concat", "HardSwish", "LeakyRelu", "Neg", "Sigmoid", "Tanh"):
        twice, attributes = (2, {"axis": 1}) if name == "Concat" else (1, {})
        model = single(name, "reciprocal", [x] * twice, y, attributes)
        expected = model.run({"x": values})["y"].astype(int)
        for engine in ("auto", "reference", "native", "onednn", "qdq"):
            off = np.abs(model.to_torch(engine)(torch.from_numpy(values)).numpy() - expected)
            print(f"{name}, {engine}: {int((off == 0).sum())} of {off.size} outputs equal")
            assert off.max() <= (0 if engine in ("auto", "reference") else 1)


def test_padding_that_removes_more_than_there_is() -> None:
    grid = Quantization.per_tensor(0.5, 7, "uint8")
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for pads, expected in (((0, -4, 0, 2), [[7], [7]]), ((1, -1, -2, 0), [[7, 7]]), ((-1, 2, 0, -4), [[7]])):
        x, y = (Tensor(name, "uint8", ("N", "C"), None, grid) for name in "xy")
        model = single("Pad", "", [x, Tensor.constant("pads", np.array(pads))], y, {"mode": "constant"})
        assert model.run({"x": values})["y"].tolist() == expected
        for engine in ("auto", "fast", "reference", "native", "onednn", "qdq"):
            assert model.to_torch(engine)(torch.from_numpy(values)).tolist() == expected


def test_rows_are_resized_by_every_engine() -> None:
    """torch has no kernel for quantized ones."""
    grid = Quantization.per_tensor(0.02, 100, "uint8")
    attributes = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    scales = Tensor.constant("scales", np.array([1, 1, 2], np.float32))
    x, y = Tensor("x", "uint8", (1, 2, 3), None, grid), Tensor("y", "uint8", (1, 2, 6), None, grid)
    model = single("Resize", "", [x, None, scales], y, attributes)
    values = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    expected = values.repeat(2, 2).tolist()
    assert model.run({"x": values})["y"].tolist() == expected
    for engine in ("auto", "fast", "reference", "native", "onednn", "qdq"):
        assert model.to_torch(engine)(torch.from_numpy(values)).tolist() == expected


CONSTANTS = [(), (1,), (5,), (3, 5), (2, 1, 1), (3, 1), (1, 1, 1, 1)]
"""Shapes that broadcast with [2, 3, 5]."""


@pytest.mark.parametrize("own", ["uint8", "int8", ""])
@pytest.mark.parametrize(("name", "rule"), [("Add", "reciprocal_fma"), ("Mul", "product"), ("PRelu", "product")])
@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
def test_constants_of_any_size_on_either_side(name: str, rule: str, own: str) -> None:
    """torch's kernels support numbers and constants of the type of x; other engines compute the rest."""
    rng = np.random.default_rng(0)
    x, q = Quantization.per_tensor(0.05, 120, "uint8"), Quantization.per_tensor(0.03, 7, own or "uint8")
    rule = rule if own else "reciprocal_fma"
    values = rng.integers(0, 256, (2, 3, 5)).astype(np.uint8)
    same = total = 0
    for shape in CONSTANTS:
        raw = rng.integers(0, 128, shape).astype(own or "float32")
        constant = Tensor.constant("c", raw, q if own else None)
        for names in (("x", "c"), ("c", "x")) if name != "PRelu" else (("x", "c"),):
            known = (2, 3, 5) if len(shape) % 2 else None
            out = Quantization.per_tensor(0.2, 100, "uint8", quant_min=100 if len(shape) == 1 else None)
            tensors = {
                "x": Tensor("x", "uint8", known, quantization=x),
                "c": constant,
                "y": Tensor("y", "uint8", None, quantization=out),
            }
            node = Node(name, names, ("y",), version=OPERATORS[name].version, rule=rule)
            model = Model(Graph(("x",), ("y",), (node,), tensors), engine="fbgemm")
            try:
                expected = model.run({"x": values})["y"]
            except QfmtError:
                assert name == "PRelu", shape  # whose slope adds no dimensions
                continue
            for engine in ("auto", "native", "onednn"):
                got = model.to_torch(engine)(torch.from_numpy(values)).numpy()
                assert got.shape == expected.shape, (engine, names, shape)
                off = np.abs(got.astype(int) - expected)
                assert off.max() <= 1, (engine, names, shape)
                same, total = same + int((off == 0).sum()), total + off.size
    print(f"{name} with {own or 'real'} constants: {same} of {total} outputs equal")
    assert total


def test_arguments_after_a_default_are_passed_by_name() -> None:
    call = "aten::embedding(weight:data, indices, padding_idx:_=-1, scale_grad_by_freq:axis, sparse:_=False)"
    parameters = {each.torch_name: each for each in parsed(call)[1]}
    kernel = Kernel(torch.ops.aten.embedding.default, OPERATORS["Gather"], parameters)
    site: Any = SimpleNamespace(attribute={"axis": 1}.__getitem__)
    assert kernel.arguments(site, ["x", "i"]) == (["x", "i"], {"scale_grad_by_freq": 1})


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize("axes", [[2], [3], [2, 3]])
def test_padding_of_one_axis_of_an_image(mode: str, axes: list[int]) -> None:
    pads, places = np.array([1] * len(axes) + [2] * len(axes)), np.array(axes)
    x = np.arange(40, dtype=np.float32).reshape(1, 2, 4, 5)
    given = [Tensor("x", "float32", x.shape), Tensor.constant("p", pads), None, Tensor.constant("a", places)]
    model = single("Pad", "", given, Tensor("y", "float32", None), {"mode": mode})
    np.testing.assert_array_equal(model.to_torch()(torch.from_numpy(x)).numpy(), model.run({"x": x})["y"])


@pytest.mark.parametrize("pad", [3, 4, 5, 9])
def test_padding_that_is_mirrored_again_and_again(pad: int) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    pads = Tensor.constant("p", np.array([0, 0, pad, 0, 0, 0, 0, 1]))
    model = single(
        "Pad", "", [Tensor("x", "float32", x.shape), pads], Tensor("y", "float32", None), {"mode": "reflect"}
    )
    for engine in ("auto", "reference"):
        found = model.to_torch(engine=engine)(torch.from_numpy(x)).numpy()
        np.testing.assert_array_equal(found, model.run({"x": x})["y"])


def test_a_resize_without_scales_or_sizes_is_named() -> None:
    given = [Tensor("x", "float32", (1, 1, 4, 4)), None]
    model = single("Resize", "", given, Tensor("y", "float32", None), {"mode": "nearest"})
    with pytest.raises(QfmtError, match="needs scales or sizes"):
        model.to_torch()(torch.zeros(1, 1, 4, 4))
