"""Integer-only networks in ONNX: no float remains, and ONNX Runtime computes the same integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qfmt
from cases.one_node import single
from networks.integer import grid, network, node
from qfmt.errors import InexpressibleNodesError, QfmtError
from qfmt.model import DTYPES, Model, Quantization, Tensor, numpy_dtype
from support import onnx_kernels, onnx_witness
from support.counts import tell
from support.paths import FLOAT_SUITE, INTEGER_SUITE

Array = Any

FEW_BITS = {
    TensorProto.INT4: TensorProto.INT8,
    TensorProto.UINT4: TensorProto.UINT8,
    TensorProto.INT2: TensorProto.INT8,
    TensorProto.UINT2: TensorProto.UINT8,
}


def with_bytes_outside(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs and outputs of fewer than 8 bits as bytes, which ONNX Runtime can pass to Python."""
    before, after = [], []
    for value in proto.graph.input:
        kind = value.type.tensor_type
        if kind.elem_type in FEW_BITS:
            before.append(helper.make_node("Cast", [f"{value.name}.byte"], [value.name], to=kind.elem_type))
            kind.elem_type, value.name = FEW_BITS[kind.elem_type], f"{value.name}.byte"
    for value in proto.graph.output:
        kind = value.type.tensor_type
        if kind.elem_type in FEW_BITS:
            kind.elem_type = FEW_BITS[kind.elem_type]
            after.append(helper.make_node("Cast", [value.name], [f"{value.name}.byte"], to=kind.elem_type))
            value.name = f"{value.name}.byte"
    nodes = [*before, *proto.graph.node, *after]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def equal(model: Model, given: dict[str, Array], expected: dict[str, Array], proto: onnx.ModelProto) -> int:
    """Assert that all outputs are equal; return their number."""
    model_inputs = [model.tensors[name] for name in model.graph.inputs]
    few = {each.name for each in model_inputs if DTYPES[each.dtype].bits < 8}
    fed = {
        f"{name}.byte" if name in few else name: array.astype(np.int8 if array.min(initial=0) < 0 else np.uint8)
        if name in few
        else array
        for name, array in given.items()
    }
    for each in proto.graph.input:  # int4 becomes int8 even without negative numbers
        if each.name in fed and each.name.endswith(".byte"):
            fed[each.name] = fed[each.name].astype(helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type))
    count = 0
    for level in onnx_witness.LEVELS:
        for array, wanted in zip(onnx_witness.runtime(proto, fed, level), expected.values(), strict=True):
            assert array.shape == wanted.shape
            assert (array == wanted).all()
            count += wanted.size
    return count


def test_the_conformance_suite() -> None:
    """Runs every file of the level `integer` on its test vectors."""
    total, files, operators = 0, 0, Counter[str]()
    for path in INTEGER_SUITE:
        model = qfmt.load(path).replace(engine="integer")
        proto = with_bytes_outside(onnx_kernels.exact_here(model))
        assert onnx_witness.floats(proto) == [], path.name
        for vector in model.vectors:
            given, expected = (
                {name: stored.array for name, stored in side.items()} for side in (vector.inputs, vector.outputs)
            )
            total += equal(model, given, expected, proto)
        files += 1
        operators.update(each.operator for each in model.nodes)
    tell(f"ONNX without a float: {total} of {total} outputs of {files} files equal, {len(operators)} operators")
    assert files >= 200


def run(model: Model, seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    given = {}
    for name in model.graph.inputs:
        tensor = model.tensors[name]
        assert tensor.shape is not None
        sizes = [size if isinstance(size, int) else 3 for size in tensor.shape]
        q = tensor.quantization or Quantization.of((1.0,), (0,), -100, 100)
        given[name] = rng.integers(q.quant_min, q.quant_max + 1, sizes).astype(numpy_dtype(tensor.dtype))
    proto = model.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    assert onnx_witness.floats(proto) == []
    return equal(model, given, model.run(given), with_bytes_outside(proto))


def test_a_network_with_clamps_joins_and_neighbours() -> None:
    """Relu, Clip, Pad, Concat and Resize have their own formula on integers; here they follow a convolution."""
    image, twice = ("N", 3, 5, 5), ("N", 3, 10, 10)
    y = grid(1.0, 5, 3, 18)
    tensors = [
        Tensor("relu", "uint8", image, None, y),
        Tensor.constant("low", np.array(1.5, np.float32)),
        Tensor.constant("high", np.array(9.0, np.float32)),
        Tensor("clip", "uint8", image, None, y),
        Tensor("joined", "uint8", ("N", 6, 5, 5), None, y),
        Tensor.constant("scales", np.array([1, 1, 2, 2], np.float32)),
        Tensor("larger", "uint8", twice, None, y),
        Tensor.constant("pads", np.array([0, 0, 1, 2, 0, 0, 0, -1])),
        Tensor.constant("value", np.array(4.0, np.float32)),
        Tensor("padded", "uint8", ("N", 3, 11, 11), None, y),
        Tensor("largest", "uint8", ("N", 3, 1, 1), None, y),
    ]
    nodes = {
        "relu": node("Relu", "y", "relu"),
        "clip": node("Clip", "y low high", "clip"),
        "joined": node("Concat", "relu clip", "joined", axis=1),
        "larger": node("Resize", "relu - scales", "larger", mode="nearest"),
        "padded": node("Pad", "larger pads value", "padded", mode="constant"),
        "largest": node("GlobalMaxPool", "clip", "largest"),
    }
    model = network(nodes, *tensors)
    outputs = (*model.graph.outputs, "joined", "padded", "largest")
    model = Model(
        qfmt.model.Graph(model.graph.inputs, outputs, model.graph.nodes, model.tensors), "test", "integer", {}
    )
    total = run(model)
    tell(f"clamps, joins and neighbours: {total} of {total} equal")


def test_a_pad_by_a_quantized_number() -> None:
    x = Tensor("x", "uint8", (2, 5), None, grid(0.5, 9))
    pads = Tensor.constant("pads", np.array([1, 0, 0, 2]))
    value = Tensor.constant("value", np.array(7, np.uint8), grid(0.3, 2))
    total = run(single("Pad", "", [x, pads, value], Tensor("y", "uint8", None, None, grid(0.5, 9)), {}))
    tell(f"Pad by a quantized number: {total} of {total} equal")


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int8", "uint8", "int4", "uint2"])
@pytest.mark.parametrize("operator", ["Relu", "Reshape", "ReduceMax", "Pad", "Transpose"])
def test_moves_of_integers_of_any_width(operator: str, dtype: str) -> None:
    limits = DTYPES[dtype]
    q = Quantization.of((0.5,), (1,), int(limits.minimum or 0), int(limits.maximum or 0))
    x = Tensor("x", dtype, (2, 3, 4), None, q)
    more = {
        "Reshape": [Tensor.constant("shape", np.array([2, 12]))],
        "ReduceMax": [Tensor.constant("axes", np.array([1]))],
        "Pad": [Tensor.constant("pads", np.array([0, 0, 1, 0, 1, 0]))],
    }
    attributes = {"Transpose": {"perm": (2, 0, 1)}}
    out = Tensor("y", dtype, None, None, q)
    model = single(operator, "", [x, *more.get(operator, [])], out, attributes.get(operator, {}))
    total = run(model)
    tell(f"{operator} of {dtype}: {total} of {total} equal")


@pytest.mark.parametrize("kind", ["int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize("weight", ["int16", "int8", "uint4"])
def test_products_of_integers_of_any_width_are_sums_of_products_of_bytes(kind: str, weight: str) -> None:
    rng = np.random.default_rng(5)

    def made(dtype: str, *points: int, parts: int = 1) -> Quantization:
        low, high = (int(end or 0) // parts for end in (DTYPES[dtype].minimum, DTYPES[dtype].maximum))
        return Quantization.of((0.5,) * len(points), points, low, high, 0 if len(points) > 1 else None)

    def integers(dtype: str, shape: tuple[int, ...]) -> Array:
        limits = DTYPES[dtype]
        return rng.integers(int(limits.minimum or 0) // 2, int(limits.maximum or 0) // 2 + 1, shape).astype(
            numpy_dtype(dtype)
        )

    total = 0
    for point in (0, 3):
        x = made(kind, point, parts=4 if DTYPES[kind].bits > 8 else 1)  # no sum may exceed int32
        image, matrix = (Tensor("x", kind, shape, None, x) for shape in ((1, 2, 4, 3), (2, 5)))
        kernel = Tensor.constant("w", integers(weight, (2, 2, 2, 1)), made(weight, 1, 2), dtype=weight)
        square = Tensor.constant("w", integers(weight, (3, 5)), made(weight, 1, 2, 0), dtype=weight)
        layout = {"kernel_shape": (2, 1), "strides": (2, 2), "pads": (1, 0, 0, 0), "dilations": (1, 1), "group": 1}
        painted = Tensor.constant("w", kernel.array, made(weight, point), dtype=weight)
        more = {**layout, "output_padding": (0, 1)}
        sums = Tensor("y", "int32", None)
        total += run(single("Conv", "exact", [image, kernel], sums, layout))
        total += run(single("ConvTranspose", "exact", [image, painted], sums, more))
        total += run(single("qfmt.Linear", "exact", [matrix, square], sums, {}))
        for rule in ("exact", "folded"):
            plain = Tensor.constant("w", kernel.array, dtype=weight)
            total += run(single("Conv", rule, [image, plain], sums, layout))
            plain = Tensor.constant("w", square.array, dtype=weight)
            total += run(single("qfmt.Linear", rule, [matrix, plain], sums, {}))
    tell(f"{kind} times {weight}: {total} of {total} equal")


def test_bins() -> None:
    """Bins of equal and of unequal sizes, along one axis and two."""
    q = Quantization.of((0.5,), (9,), 0, 255)
    total = 0
    for shape, size in (
        ((1, 3, 12), (4,)),
        ((2, 3, 12, 9), (4, 3)),
        ((2, 3, 7, 5), (3, 5)),
        ((3, 7, 6), (1, 4)),
        ((1, 2, 4, 7, 5), (3, 2, 2)),
    ):
        x, out = Tensor("x", "uint8", shape, None, q), Tensor("y", "int32", None)
        total += run(single("qfmt.AdaptiveAveragePool", "exact", [x], out, {"output_size": size}))
    tell(f"bins: {total} of {total} equal")
    unknown = Tensor("x", "uint8", ("N", 3, None, None), None, q)
    model = single("qfmt.AdaptiveAveragePool", "exact", [unknown], out, {"output_size": (2, 2)})
    with pytest.raises(QfmtError, match="sizes are not known"):
        model.to_onnx()


@pytest.mark.parametrize("name", ["AveragePool", "qfmt.AdaptiveAveragePool"])
def test_factors_of_windows_are_stored_by_dimension(name: str) -> None:
    """One for each window would make a file as large as the output."""
    q = Quantization.of((0.5,), (9,), 0, 255)
    x, out = Tensor("x", "uint8", (1, 1, 40, 30), None, q), Tensor("y", "int32", None)
    pool = {"kernel_shape": (2, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "ceil_mode": 0}
    attributes = {**pool, "count_include_pad": 0} if name == "AveragePool" else {"output_size": (15, 7)}
    proto = single(name, "exact", [x], out, attributes).to_onnx()
    factors = [tuple(each.dims) for each in proto.graph.initializer if "factor" in each.name]
    assert factors == ([(41, 1), (30,)] if name == "AveragePool" else [(15, 1), (7,)])


def test_windows_of_no_channels() -> None:
    """A convolution without groups ends the process of ONNX Runtime."""
    x = Tensor("x", "int8", (1, 0, 5), None, Quantization.per_tensor(0.5, 3, "int8"))
    y = Tensor("y", "int32", None, None, Quantization.per_tensor(0.25, 0, "int32"))
    pool = {"kernel_shape": (2,), "pads": (0, 0), "strides": (1,), "dilations": (1,), "ceil_mode": 0}
    with pytest.raises(InexpressibleNodesError, match="AveragePool sums windows of no channels"):
        single("AveragePool", "exact", [x], y, {**pool, "count_include_pad": 0}).to_onnx()


def test_the_largest_of_no_elements() -> None:
    """The least integer of the range; that of int32 would remain, and be cut to int16."""
    grid = Quantization.per_tensor(0.5, 3, "int16")
    x, y = Tensor("x", "int16", (1, 2, 0), None, grid), Tensor("y", "int16", None, None, grid)
    with pytest.raises(InexpressibleNodesError, match="GlobalMaxPool reduces no elements"):
        single("GlobalMaxPool", "", [x], y, {}).to_onnx()


@pytest.mark.parametrize("opset", [13, 17, 19, 21, 23, None])
def test_every_written_file_is_valid(opset: int | None) -> None:
    """The conformance suite: for onnx's checker and for ONNX Runtime, or refused."""
    written, refused = 0, 0
    for path in [*INTEGER_SUITE, *FLOAT_SUITE]:
        try:
            made = qfmt.load(path).to_onnx(opset=opset)
        except InexpressibleNodesError:
            refused += 1
            continue
        onnx.checker.check_model(made, full_check=True)
        onnx_witness.loaded(made)
        written += 1
    tell(f"opset {opset}: {written} files written, {refused} refused")
    assert written > 350


@pytest.mark.parametrize("path", [path for path in FLOAT_SUITE if path.stem == "quantize-divide-int32"])
def test_int32_that_a_sum_in_float32_rounds(path: Path) -> None:
    model = qfmt.load(path)
    (vector,) = model.vectors
    given, want = ({name: each.array for name, each in side.items()} for side in (vector.inputs, vector.outputs))
    assert equal(model, given, want, model.to_onnx()) > 0
