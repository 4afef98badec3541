"""ONNX Runtime's integer kernels are exact, or saturate as docs/spec/conversions.md says.

With factors of one type they are exact on every processor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import qfmt
from engine_sums import EXACT, Product, integers, measure, step
from networks import onnx_runtime
from onnx_products import OPERATORS_OF, products
from qfmt.cli import main
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from qfmt.ops.overflow import computed_by
from qfmt.passes.hazards import TAPS_FIRST, hazards
from support import onnx_witness
from support.counts import tell
from support.onnx_kernels import saturates
from support.paths import DIGITS

TAPS, CHANNELS = "taps", "channels"
UNSIGNED_BY_SIGNED, SIGNED_BY_UNSIGNED = "uint8 · int8", "int8 · uint8"

PRODUCTS = list(products())


def stated(product: Product) -> str:
    """The order of sums on an x86 processor with AVX2 and without VNNI, according to docs/spec/conversions.md."""
    if product.row.startswith("ConvInteger"):
        return CHANNELS if product.column == SIGNED_BY_UNSIGNED else EXACT
    exact = product.column != UNSIGNED_BY_SIGNED or "depthwise" in product.row
    return EXACT if exact else TAPS


@pytest.mark.parametrize("operator", OPERATORS_OF)
def test_sums(operator: str) -> None:
    counts = dict.fromkeys((EXACT, TAPS, CHANNELS), 0)
    for product in (each for each in PRODUCTS if each.row.startswith(operator)):
        expected, found = stated(product) if saturates() else EXACT, measure(product, 1)
        assert expected in found.orders, product
        counts[expected] += found.outputs
    counted = ", ".join(f"{count} {order}" for order, count in counts.items())
    tell(f"ONNX Runtime, {operator}: {counted} outputs, all as recomputed")


# Weights in the type of their inputs


Given = dict[str, np.ndarray]
Types = tuple[str, str]

MIXED: list[Types] = [("uint8", "int8"), ("int8", "uint8")]
ZERO = {"uint8": 128, "int8": 0}


def conv(rng: np.random.Generator, types: Types, group: int = 1, per_channel: bool = False) -> tuple[Model, Given]:
    x, w = integers(rng, (2, 16, 9, 9), types[0]), integers(rng, (32, 16 // group, 3, 3), types[1])
    attributes = {"kernel_shape": (3, 3), "pads": (1,) * 4, "strides": (1, 1), "dilations": (1, 1), "group": group}
    return requantized("Conv", x, w, per_channel, **attributes)


def linear(rng: np.random.Generator, types: Types, rows: Any = (40,), per_channel: bool = False) -> tuple[Model, Given]:
    x, w = integers(rng, (*rows, 64), types[0]), integers(rng, (24, 64), types[1])
    return requantized("qfmt.Linear", x, w, per_channel)


def matmul(rng: np.random.Generator, types: Types) -> tuple[Model, Given]:
    return requantized("MatMul", integers(rng, (3, 20, 64), types[0]), integers(rng, (64, 24), types[1]))


STATIC: dict[str, Callable[..., tuple[Model, Given]]] = {
    "conv": conv,
    "grouped": partial(conv, group=4),
    "per channel": partial(conv, per_channel=True),
    "linear": linear,
    "linear per channel": partial(linear, per_channel=True),
    "linear of sequences": partial(linear, rows=(3, 20)),
    "matmul": matmul,
}


def requantized(
    operator: str, x: np.ndarray, w: np.ndarray, per_channel: bool = False, **attributes: Any
) -> tuple[Model, Given]:
    """A layer from integers to integers of this type. All scales are powers of two, so that only sums can be
    wrong."""
    weight = grid(w, tuple(2.0 ** (index % 3) for index in range(len(w))) if per_channel else (1.0,))
    scale = 4 * step(node(operator, "exact", **attributes), [Operand(x, grid(x)), Operand(w, grid(w))])
    given, result = grid(x), grid(x, (scale,))
    tensors = [Tensor("x", x.dtype.name, x.shape, None, given), Tensor.constant("w", w, weight)]
    y = Tensor("y", x.dtype.name, None, None, result)
    return model(node(operator, "integer_bias", **attributes), tensors, [y]), {"x": x}


def grid(array: np.ndarray, scale: tuple[float, ...] = (1.0,)) -> Quantization:
    limits, points = np.iinfo(array.dtype), (ZERO[array.dtype.name],) * len(scale)
    return Quantization.of(scale, points, int(limits.min), int(limits.max), 0 if len(scale) > 1 else None)


def node(operator: str, rule: str, inputs: str = "x w", outputs: str = "y", **attributes: Any) -> Node:
    entry = OPERATORS[operator]
    names = tuple(inputs.split()), tuple(outputs.split())
    return Node(operator, *names, entry.complete(attributes), "node", entry.version, rule)


def model(made: Node, given: list[Tensor], results: list[Tensor]) -> Model:
    inputs = tuple(each.name for each in given if not each.is_constant)
    tensors = {each.name: each for each in (*given, *results)}
    return Model(Graph(inputs, made.outputs, (made,), tensors), engine="onnx")


def of_weights(proto: onnx.ModelProto) -> set[str]:
    """The types of constants with two or more dimensions."""
    return {array.dtype.name for array in onnx_witness.initializers(proto).values() if array.ndim > 1}


@pytest.mark.parametrize("types", MIXED, ids="-".join)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("name", STATIC)
def test_static_layers(name: str, form: str, types: Types) -> None:
    """Results equal `run`, also where the kernels of mixed types saturate."""
    made, given = STATIC[name](np.random.default_rng(3), types)
    (expected,) = made.run(given).values()
    default, same = made.to_onnx(form=form), made.to_onnx(form=form, same_types=True)
    assert (of_weights(default), of_weights(same)) == ({types[1]}, {types[0]})
    off = 0
    for level in onnx_witness.LEVELS:
        (theirs,) = onnx_witness.runtime(same, given, level)
        assert np.array_equal(theirs, expected)
        (theirs,) = onnx_witness.runtime(default, given, level)
        off += int((theirs != expected).sum())
        with computed_by(TAPS_FIRST):
            (recomputed,) = made.run(given).values()
        assert np.array_equal(theirs, expected) or (saturates() and np.array_equal(theirs, recomputed))
    assert bool(off) == (saturates() and types == ("uint8", "int8"))
    tell(f"ONNX Runtime, {name}, {form}, {' · '.join(types)}: {off} of {2 * expected.size} off, 0 with --same-types")


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_int8_activations_between_two_layers(form: str) -> None:
    """ONNX Runtime converts these to uint8 when it optimizes, unless its session keeps int8."""
    rng = np.random.default_rng(9)
    x, weights = integers(rng, (40, 64), "int8"), [integers(rng, (64, 64), "int8") for _ in range(2)]
    scales = (1.0, 2.0**12, 2.0**24)
    tensors = [Tensor("x", "float32", x.shape)]
    tensors += [Tensor(f"x{at}", "int8", x.shape, None, grid(x, (scale,))) for at, scale in enumerate(scales)]
    tensors += [Tensor.constant(f"w{at}", w, grid(w)) for at, w in enumerate(weights)]
    nodes = (
        node("QuantizeLinear", "divide", "x", "x0"),
        node("MatMul", "integer_bias", "x0 w0", "x1"),
        node("Reshape", "", "x1 shape", "turned", allowzero=0),
        node("MatMul", "integer_bias", "turned w1", "x2"),
        node("DequantizeLinear", "", "x2", "y"),
    )
    tensors += [Tensor.constant("shape", np.array([40, 64])), Tensor("y", "float32", None)]
    tensors += [Tensor("turned", "int8", x.shape, None, grid(x, scales[1:2]))]
    network = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}), engine="onnx")
    given = {"x": x.astype(np.float32)}
    (expected,) = network.run(given).values()
    default, same = network.to_onnx(form=form), network.to_onnx(form=form, same_types=True)
    assert (of_weights(default), of_weights(same)) == ({"int8"}, {"uint8"})
    for level in onnx_witness.LEVELS:
        assert np.array_equal(*onnx_witness.runtime(same, given, level), expected)
        kept = onnx_witness.runtime(default, given, level, {"session.qdqisint8allowed": "1"})
        assert np.array_equal(*kept, expected)
    (theirs,) = onnx_witness.runtime(default, given, "fused")
    assert np.array_equal(theirs, expected) != (saturates() and form == "qdq")
    hazard = [each.engines["onnxruntime"] for each in hazards(network)]
    assert [each.channels for each in hazard] == [64, 64]


def dynamic(operator: str, rng: np.random.Generator, **attributes: Any) -> tuple[Model, Given]:
    """A dynamic layer on integers in 0..255: that range results in a scale of 1 and a zero point of 0."""
    shape = (2, 16, 9, 9) if attributes else (40, 64)
    x, w = integers(rng, shape, "uint8"), integers(rng, (24, 16, 3, 3) if attributes else (24, 64), "int8")
    x.reshape(-1)[:2] = 0, 255
    tensors = [Tensor("x", "float32", shape), Tensor.constant("w", w, grid(w))]
    made = model(node(operator, "dynamic_divide", **attributes), tensors, [Tensor("y", "float32", None)])
    return made, {"x": x.astype(np.float32)}


@pytest.mark.parametrize("operator", ["qfmt.DynamicLinear", "qfmt.DynamicConv"])
def test_dynamic_layers(operator: str) -> None:
    layout = {"kernel_shape": (3, 3), "pads": (0,) * 4, "strides": (1, 1), "dilations": (1, 1)}
    made, given = dynamic(operator, np.random.default_rng(4), **(layout if operator.endswith("Conv") else {}))
    (expected,) = made.run(given).values()
    with computed_by(TAPS_FIRST):
        (recomputed,) = made.run(given).values()
    here = recomputed if saturates() and operator == "qfmt.DynamicLinear" else expected
    assert not np.array_equal(expected, recomputed)
    for level in onnx_witness.LEVELS:
        assert np.array_equal(*onnx_witness.runtime(made.to_onnx(), given, level), here)
        assert np.array_equal(*onnx_witness.runtime(made.to_onnx(same_types=True), given, level), expected)


def test_recurrent_layers() -> None:
    rng = np.random.default_rng(5)
    x, weights = rng.normal(0, 1, (4, 2, 24)).astype(np.float32), [integers(rng, (32, n), "int8") for n in (24, 8)]
    tensors = [Tensor("x", "float32", x.shape)]
    tensors += [Tensor.constant(f"w{i}", w, grid(w, (2.0**-12,))) for i, w in enumerate(weights)]
    results = [Tensor(each, "float32", None) for each in "yhc"]
    made = model(node("qfmt.LSTM", "dynamic_divide", "x w0 w1", "y h c"), tensors, results)
    default, same = made.to_onnx(), made.to_onnx(same_types=True)
    assert (of_weights(default), of_weights(same)) == ({"int8"}, {"uint8"})
    for level in onnx_witness.LEVELS:
        pairs = zip(*(onnx_witness.runtime(each, {"x": x}, level) for each in (default, same)), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs) != saturates()


@pytest.mark.parametrize("types", MIXED, ids="-".join)
@pytest.mark.parametrize("zero_point", [None, 7])
@pytest.mark.parametrize("operator", ["MatMulInteger", "ConvInteger"])
def test_zero_points_that_are_inputs(operator: str, zero_point: int | None, types: Types) -> None:
    rng = np.random.default_rng(6)
    shapes = ((40, 64), (64, 24)) if operator == "MatMulInteger" else ((2, 16, 9, 9), (24, 16, 3, 3))
    x, w = (integers(rng, *each) for each in zip(shapes, types, strict=True))
    tensors = [Tensor("x", types[0], x.shape), Tensor.constant("w", w)]
    tensors += [] if zero_point is None else [Tensor.constant("z", np.array(zero_point, types[1]))]
    layout = {"kernel_shape": (3, 3), "pads": (0,) * 4, "strides": (1, 1), "dilations": (1, 1)}
    made = node(operator, "", "x w", **(layout if operator == "ConvInteger" else {}))
    made = replace(made, inputs=("x", "w") if zero_point is None else ("x", "w", "", "z"))
    network = model(made, tensors, [Tensor("y", "int32", None)])
    same = network.to_onnx(same_types=True)
    assert of_weights(same) == {types[0]}
    assert np.array_equal(*onnx_witness.runtime(same, {"x": x}), network.run({"x": x})["y"])


def test_a_weight_of_two_layers() -> None:
    """One layer reads uint8, the other int8: each gets its own weight."""
    rng = np.random.default_rng(7)
    w = integers(rng, (24, 64), "int8")
    given = {name: integers(rng, (40, 64), name) for name in ZERO}
    results = {name: Tensor(f"y_{name}", name, None, None, grid(given[name], (4096.0,))) for name in ZERO}
    tensors = [Tensor(name, name, x.shape, None, grid(x)) for name, x in given.items()]
    nodes = tuple(node("qfmt.Linear", "integer_bias", f"{name} w", f"y_{name}") for name in ZERO)
    every = {each.name: each for each in (*tensors, Tensor.constant("w", w, grid(w)), *results.values())}
    network = Model(Graph(tuple(ZERO), tuple(f"y_{name}" for name in ZERO), nodes, every), engine="onnx")
    same = network.to_onnx(same_types=True)
    assert of_weights(same) == {"int8", "uint8"}
    theirs = onnx_witness.runtime(same, given, "fused")
    assert all(map(np.array_equal, theirs, network.run(given).values()))


def test_a_changed_weight_is_found(tmp_path: Path) -> None:
    """The change is found even if most outputs of the layer are wrong."""
    made, given = conv(np.random.default_rng(9), ("uint8", "int8"))
    onnx.save(made.to_onnx(form="qoperator"), tmp_path / "m.onnx")
    network = qfmt.convert(tmp_path / "m.onnx")
    report = qfmt.verify(tmp_path / "m.onnx", network, given)
    assert report.ok and bool(sum(each.saturated for each in report.nodes)) == saturates()
    values = network.tensors["w"].array.copy()
    values[3, 5, 1, 2] -= 1
    changed = Tensor.constant("w", values, network.tensors["w"].quantization)
    graph = replace(network.graph, tensors={**network.graph.tensors, "w": changed})
    report = qfmt.verify(tmp_path / "m.onnx", network.replace(graph=graph), given)
    assert not report.ok and [each.name for each in report.weights if not each.ok] == ["w"]


@pytest.mark.parametrize(
    ("name", "form", "engine"),
    [
        ("cnn", "qoperator u8s8", "onnxruntime"),
        ("mlp", "qdq u8s8 per channel", "onnxruntime:all"),
        ("mlp", "dynamic", "onnxruntime"),
    ],
)
def test_verify_of_networks_of_onnx_runtimes_own_tools(name: str, form: str, engine: str, tmp_path: Path) -> None:
    """Exit status 0 on every processor, and one line with the number of outputs that are wrong because kernels
    saturate."""
    make = onnx_runtime.dynamic if form == "dynamic" else partial(onnx_runtime.static, form=form)
    path = str(make(name, folder=tmp_path))
    done = CliRunner().invoke(main, ["verify", path, path, "--engine", engine], catch_exceptions=False)
    lines = done.stdout.splitlines()
    told = [line for line in lines if "clip sums of two products to 16 bits" in line]
    assert (done.exit_code, len(told), "overflows" in lines[-1]) == (0, saturates(), saturates()), done.stdout
    for line in told:
        why = "outputs differ because of this, all recomputed; `--engine reference` avoids it"
        counted = re.search(rf" ([0-9,]+) {why}$", line)
        assert counted, line
        tell(f"ONNX Runtime, verify of {name}, {form}: {counted[1]} outputs saturate, all as recomputed")


def test_the_command(tmp_path: Path) -> None:
    written = {}
    for options in ((), ("--same-types",)):
        path = tmp_path / f"{len(options)}.onnx"
        done = CliRunner().invoke(main, ["convert", str(DIGITS), str(path), *options])
        assert done.exit_code == 0, done.output
        assert ("--same-types avoids it" in done.output) != bool(options)
        written[bool(options)] = onnx.load(path)
    assert "int8" in of_weights(written[False]) and "int8" not in of_weights(written[True])
    x = np.random.default_rng(8).random((2, 1, 8, 8)).astype(np.float32)
    pair = [onnx_witness.runtime(proto, {"x": x})[0] for proto in written.values()]
    assert np.array_equal(*pair)
    done = CliRunner().invoke(main, ["convert", str(DIGITS), str(tmp_path / "m.qfb"), "--same-types"])
    assert done.exit_code and "for ONNX" in done.output
