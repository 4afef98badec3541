"""Integer-only networks as QuantLab writes and Deeploy reads them, compared with NumPy, and back to ONNX; QONNX."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

import qfmt
from networks.onnx_models import FLOAT, node, operators, proto, through_file
from networks.requant_shifts import expected, network, rescale
from qfmt import QfmtError
from qfmt.frontends.onnx.qonnx import DOMAINS
from qfmt.frontends.onnx.runnable import runnable
from qfmt.model import Tensor
from qfmt.passes.lowering import lower_integer
from qfmt.passes.proofs import proofs
from support.counts import tell
from support.onnx_witness import runtime

f32 = np.float32


@pytest.mark.parametrize(
    "said",
    [
        (0.1, 300, "uint8"),
        (math.nan, 0, "uint8"),
        (0.0, 0, "uint8"),
        (1e60, 0, "int8"),
        (0.1, 0, "float32"),
        (0.1, 0, "int64"),
    ],
)
def test_a_quantization_that_no_input_can_have(said: tuple[float, int, str]) -> None:
    source = proto([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"], {})
    with pytest.raises(QfmtError, match=r"^input x: .*(are not valid for|cannot be (float32|int64))"):
        qfmt.convert(source, input_quantization={"x": said})


@pytest.mark.parametrize(("opset", "kind"), [(6, "tensor"), (9, "int"), (11, "float")])
@pytest.mark.parametrize("given", [True, False], ids=["integer input", "float input"])
def test_networks_between_requant_shifts_become_integer_only(
    opset: int, kind: str, given: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(opset)
    source, weights = network(rng, opset, kind)
    said = {"x": (1.0, 0, "int8")} if given else {}
    model = through_file(qfmt.convert(source, input_quantization=said), tmp_path)
    for name in ("b", "e", "t", "p", "f", "c", "s")[0 if given else 1 :]:
        tensor = model.tensors[name]
        assert tensor.quantization is not None, name
        assert (tensor.quantization.scale.numbers(), tensor.quantization.zero_point.numbers()) == ((1.0,), (0,))
    assert [model.tensors[name].dtype for name in ("e", "t", "c")] == ["uint8", "int8", "int32"]
    assert operators(model)["qfmt.RequantShift@multiply_add_divide"] == (3 if given else 2)
    kinds = {each.dtype for each in model.graph.constants() if given or each.name != "w"}
    assert kinds <= ({"int8", "int32"} if given else {"int8", "int32", "float32"}), kinds
    sums = model.tensors["c"].quantization
    assert sums is not None
    reach = 255 * int(np.abs(weights["d"]).sum((1, 2, 3)).max())
    assert (sums.quant_min, sums.quant_max) == (-reach, reach)
    back = model.to_onnx(opset=21)
    torch_module = model.to_torch("reference")
    equal = total = 0
    for _ in range(5):
        x = rng.integers(-128, 128, (1, 3, 8, 8))
        given_x = x.astype(np.int8 if given else f32)
        want = expected(x, weights)
        for y in (
            model.run({"x": given_x})["y"],
            runtime(back, {"x": given_x})[0],
            torch_module(torch.from_numpy(given_x)).numpy(),
        ):
            equal, total = equal + int((y == want).sum()), total + want.size
    print(f"{equal} of {total} outputs equal")
    assert equal == total


def test_sums_that_float32_may_round_stay_real() -> None:
    """600 · 127 · 255 exceeds 2²⁴: an exact integer sum would differ from the sum of the float network."""
    w = np.full((1, 600, 1, 1), 127, f32)
    requant = [node("RequantShift", ["x", "m", "a"], ["q"], div=1.0, n_levels=256.0, signed=0.0)]
    nodes = [*requant, node("Conv", ["q", "w"], ["y"])]
    source = proto(nodes, {"x": (1, [1, 600, 2, 2])}, ["y"], {"w": w, "m": f32(1), "a": f32(0)}, opset=11)
    model = qfmt.convert(source)
    assert model.tensors["y"].dtype == "float32"
    assert "int32" not in {tensor.dtype for tensor in model.tensors.values() if not tensor.is_constant}


ROUND = {
    "ROUND": np.rint,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda x: np.where(x < 0, np.floor(x), np.ceil(x)),
    "DOWN": np.trunc,
    "HALF_UP": lambda x: np.where(x < 0, np.ceil(x - 0.5), np.floor(x + 0.5)),
    "HALF_DOWN": lambda x: np.where(x < 0, np.floor(x + 0.5), np.ceil(x - 0.5)),
}


@pytest.mark.parametrize("bits", [31, 32, 33, 40])
@pytest.mark.parametrize("operator", ["Clip", "RequantShift"])
def test_a_range_beyond_int32_stays_real(operator: str, bits: int) -> None:
    ends = {"low": f32(0), "high": f32(2**bits)}
    constants = {"mul": np.array(3, f32), "add": np.array(1, f32), **ends}
    levels = 256 if operator == "Clip" else 1 << bits
    nodes = [node("RequantShift", ["x", "mul", "add"], ["a"], div=1.0, n_levels=float(levels), signed=0.0)]
    nodes += [node("Clip", ["a", "low", "high"], ["b"]), node("Add", ["b", "b"], ["y"])]
    model = qfmt.convert(proto(nodes, {"x": (TensorProto.FLOAT, [3])}, ["y"], constants))
    given = np.array([-7, 20, 80], f32)
    np.testing.assert_array_equal(model.run({"x": given})["y"], 2 * np.clip(given * 3 + 1, 0, levels - 1))


def quantized(
    x: np.ndarray, scale: np.ndarray, zero: float, bits: int, signed: int, narrow: int, mode: str
) -> np.ndarray:
    """QONNX's definition of Quant."""
    low = (-(2 ** (bits - 1)) + narrow) if signed else 0
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
    q = ROUND[mode](np.clip(x / scale + f32(zero), low, high)).astype(f32)
    return (q - f32(zero)) * scale


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize(("bits", "signed", "narrow", "dtype"), [
    (4, 1, 1, "int4"), (4, 0, 0, "uint4"), (2, 1, 1, "int2"), (8, 1, 0, "int8"), (3, 1, 0, "int4"), (6, 0, 1, "uint8"),
    (17, 1, 0, "int32"), (24, 1, 1, "int32"), (32, 1, 0, "int32"), (32, 0, 0, "uint32"),
])  # fmt: skip
def test_weights_of_qonnx_become_integers(
    mode: str, bits: int, signed: int, narrow: int, dtype: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(bits)
    w = np.round(rng.normal(0, 2, (5, 3, 3, 3)) * 8).astype(f32) / 8  # includes ties
    if bits > 8:
        w[:, 1:] *= f32(2.0 ** (bits - 4))  # some are beyond the limits
    scale = np.array([0.25, 0.5, 0.125, 1, 0.3], f32).reshape(5, 1, 1, 1)
    quant = node(
        "Quant",
        ["w", "s", "z", "b"],
        ["wq"],
        domain=DOMAINS[bits % 3],
        signed=signed,
        narrow=narrow,
        rounding_mode=mode,
    )
    constants = {"w": w, "s": scale, "z": f32(0), "b": f32(bits)}
    nodes = [quant, node("Conv", ["x", "wq"], ["y"]), node("Identity", ["wq"], ["out"])]
    source = proto(nodes, {"x": (1, [1, 3, 3, 3])}, ["y", "out"], constants, opset=13)
    model = through_file(qfmt.convert(source), tmp_path)
    stored = model.tensors["w"]
    assert stored.dtype == dtype
    assert stored.quantization is not None
    assert stored.quantization.axis == 0
    want = quantized(w, scale, 0, bits, signed, narrow, mode)
    equal = int((stored.dequantize() == want).sum())
    print(f"{equal} of {w.size} weights equal")
    assert equal == w.size
    x = rng.normal(size=(1, 3, 3, 3)).astype(f32)
    out = model.run({"x": x})
    assert (out["out"] == want).all()


@pytest.mark.parametrize("scale", [0.25, 0.0, np.nan])
def test_constants_of_qonnx_that_are_no_numbers_stay(scale: float) -> None:
    quant = node("Quant", ["w", "s", "z", "b"], ["y"], domain=DOMAINS[0], signed=1, narrow=0)
    w = np.array([1, np.nan if scale == 0.25 else 0, 2], f32)
    constants = {"w": w, "s": f32(scale), "z": f32(0), "b": f32(4)}
    nodes = [quant, node("Add", ["x", "y"], ["out"])]
    model = qfmt.convert(proto(nodes, {"x": (1, [3])}, ["out"], constants, opset=13))
    assert model.nodes[0].operator == f"{DOMAINS[0]}.Quant"


@pytest.mark.parametrize(("signed", "narrow", "bits"), [(1, 0, 8), (1, 1, 4), (0, 0, 4), (0, 1, 8), (1, 0, 6)])
def test_activations_of_qonnx_become_narrow_ranges(signed: int, narrow: int, bits: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(bits)
    given = {"domain": DOMAINS[0], "signed": signed, "narrow": narrow, "rounding_mode": "ROUND"}
    nodes = [
        node("Quant", ["x", "s", "z", "b"], ["q"], **given),
        node("Relu", ["q"], ["r"]),
        node("Quant", ["r", "s2", "z", "b"], ["y"], **given),
    ]
    constants = {"s": f32(0.25), "s2": f32(0.3), "z": f32(0), "b": f32(bits)}
    source = proto(nodes, {"x": (1, [4, 50])}, ["y"], constants, opset=13)
    model = through_file(qfmt.convert(source), tmp_path)
    grid = model.tensors["q"].quantization
    assert grid is not None
    low = (-(2 ** (bits - 1)) + narrow) if signed else 0
    assert (grid.quant_min, grid.quant_max) == (low, 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow)
    x = (np.round(rng.normal(0, 5, (4, 50)) * 8) / 8).astype(f32)
    q = quantized(x, f32(0.25), 0, bits, signed, narrow, "ROUND")
    want = quantized(np.maximum(q, 0), f32(0.3), 0, bits, signed, narrow, "ROUND")
    equal = int((model.run({"x": x})["y"] == want).sum())
    print(f"{equal} of {want.size} outputs equal")
    assert equal == want.size


@pytest.mark.parametrize("changed", [{"rounding_mode": "FLOOR"}, {"z": 1.0}, {"b": 24.0}])
def test_unsupported_quant_nodes_stay_and_are_reported(changed: dict[str, object]) -> None:
    z, bits = changed.pop("z", 0.0), changed.pop("b", 4.0)
    nodes = [node("Quant", ["x", "s", "z", "b"], ["y"], "act", domain=DOMAINS[0], signed=1, narrow=0, **changed)]
    source = proto(nodes, {"x": (1, [4])}, ["y"], {"s": f32(0.25), "z": f32(z), "b": f32(bits)}, opset=13)
    model = qfmt.convert(source)
    assert model.nodes[0].operator == f"{DOMAINS[0]}.Quant"
    with pytest.raises(QfmtError, match="act"):
        model.run({"x": np.zeros(4, f32)})


@pytest.mark.parametrize("narrow", [None, 0, 1])
def test_bipolar_weights(narrow: int | None) -> None:
    """By BipolarQuant, or by Quant of one bit with a sign, as QONNX's reference computes it."""
    w, given = np.array([[-0.5, 0.0], [2.0, -3.0]], f32), {"s": f32(0.5)}
    quant = node("BipolarQuant", ["w", "s"], ["q"], domain=DOMAINS[0])
    if narrow is not None:
        given |= {"z": f32(0), "b": f32(1)}
        quant = node("Quant", ["w", "s", "z", "b"], ["q"], domain=DOMAINS[0], signed=1, narrow=narrow)
    nodes = [quant, node("MatMul", ["x", "q"], ["y"])]
    model = qfmt.convert(proto(nodes, {"x": (1, [1, 2])}, ["y"], {"w": w, **given}, opset=13))
    assert model.tensors["w"].dtype == "int2"
    assert model.tensors["w"].array.tolist() == [[-1, 1], [1, -1]]
    assert model.run({"x": np.array([[1, 2]], f32)})["y"].tolist() == [[0.5, -0.5]]


def between_requant_shifts(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> qfmt.Model:
    """x [4, 16] int8 → RequantShift → p → nodes → s → RequantShift → y, all integer-only."""
    given = {"m": f32(1), "a": f32(0), **constants}
    first = node("RequantShift", ["x", "m", "a"], ["p"], div=1.0, n_levels=256.0, signed=1.0)
    last = node("RequantShift", ["s", "m", "a"], ["y"], div=512.0, n_levels=256.0, signed=1.0)
    source = proto([first, *nodes, last], {"x": (TensorProto.FLOAT, [4, 16])}, ["y"], given, opset=13)
    return lower_integer(qfmt.convert(source, input_quantization={"x": (1.0, 0, "int8")}))


def check_in_integers(model: qfmt.Model, sums: Callable[[np.ndarray], np.ndarray]) -> None:
    """Assert that a model equals the formula in int64 on random integers, and that its sums are proven."""
    found = proofs(model)
    assert not found.violations
    assert not found.unknown
    rng, total = np.random.default_rng(0), 0
    for _ in range(20):
        x = rng.integers(-128, 128, (4, 16))
        want = rescale(sums(x), np.array(1), np.array(0), 512, 256, True)
        (got,) = model.run({"x": x.astype(np.int8)}).values()
        assert (got == want).all()
        total += got.size
    tell(f"{[each.operator for each in model.nodes]}: {total} of {total} outputs equal")


@pytest.mark.parametrize("shape", [(), (16,), (1, 16), (4, 1), (4, 16)])
@pytest.mark.parametrize("largest", [100, 40_000])
@pytest.mark.parametrize("form", ["p + c", "c + p", "c - p", "p @ w + c"])
def test_a_constant_is_added_in_integers(shape: tuple[int, ...], largest: int, form: str) -> None:
    rng = np.random.default_rng(largest)
    c, w = rng.integers(-largest, largest, shape), rng.integers(-8, 8, (16, 16))
    product = [node("MatMul", ["p", "w"], ["q"])] if "@" in form else []
    operands = ["c", "p"] if form.startswith("c") else ["q" if product else "p", "c"]
    nodes = [*product, node("Sub" if "-" in form else "Add", operands, ["s"])]
    model = between_requant_shifts(nodes, {"c": c.astype(f32), "w": w.astype(f32)})
    formula = {"p + c": lambda x: x + c, "c + p": lambda x: c + x, "c - p": lambda x: c - x}
    check_in_integers(model, formula.get(form, lambda x: x @ w + c))


def test_two_activations_are_multiplied_in_integers() -> None:
    nodes = [node("Transpose", ["p"], ["t"], perm=[1, 0]), node("MatMul", ["p", "t"], ["s"])]
    check_in_integers(between_requant_shifts(nodes, {}), lambda x: x @ x.T)


# -- verify ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["onnxruntime", "onnxruntime:all", "reference"])
@pytest.mark.parametrize("given", [True, False], ids=["integer input", "float input"])
@pytest.mark.parametrize(("opset", "kind"), [(7, "tensor"), (10, "int"), (11, "float"), (19, "int")])
def test_verify_runs_requant_shifts(opset: int, kind: str, given: bool, engine: str, tmp_path: Path) -> None:
    """No runtime has a kernel for RequantShift."""
    pytest.importorskip("onnxruntime")
    source, _ = network(np.random.default_rng(opset), opset, kind)
    onnx.save(source, tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx", input_quantization={"x": (1.0, 0, "int8")} if given else {})
    report = qfmt.verify(tmp_path / "m.onnx", model, engine=engine, samples=2)
    assert report.ok and report.engine == engine, report.first_wrong
    inexact = {node.name for node in report.nodes if node.equal < node.outputs}
    assert inexact <= (set() if given else {"conv"})  # which sums floats in any order there
    counts = Counter[str]()
    for each in report.nodes:  # of a shift and its clamp, which have the name of the node in the source
        counts[each.name] += each.equal
    assert [counts[each.name] for each in report.nodes if each.operator == "qfmt.RequantShift"] == [2 * 6 * 8 * 8] * 3
    multipliers = next(n for n in model.nodes if n.operator == "qfmt.RequantShift").inputs[1]
    tensor = model.tensors[multipliers]
    larger = Tensor.constant(tensor.name, tensor.array + tensor.array.max(), aliases=tensor.aliases)
    wrong = model.replace(graph=replace(model.graph, tensors={**model.tensors, tensor.name: larger}))
    assert not qfmt.verify(tmp_path / "m.onnx", wrong, engine=engine, samples=1).ok


@pytest.mark.parametrize("div", [1, 3, 1000, 1 << 16, (1 << 31) - 1])
@pytest.mark.parametrize("signed", [0, 1])
def test_requant_shift_runnable_is_exact(div: int, signed: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(div)
    x = np.concatenate([rng.integers(-(1 << 24), 1 << 24, 5000), np.arange(-300, 300)]).astype(f32)
    mul, add = int(rng.integers(1, 1 << 24)), int(rng.integers(-(1 << 24), 1 << 24))
    node_of = node("RequantShift", ["x", "m", "a"], ["y"], "y", div=div, n_levels=256, signed=signed)
    constants = {"m": np.array(mul, f32), "a": np.array(add, f32)}
    source = proto([node_of], {"x": (TensorProto.FLOAT, ["N"])}, ["y"], constants)
    spelled = runnable(source)
    (found,) = onnxruntime.InferenceSession(spelled.SerializeToString()).run(None, {"x": x})
    low = -128 * signed
    exact = [min(max((2 * (int(v) * mul + add) + div) // (2 * div), low), low + 255) for v in x]
    assert found.tolist() == exact


def test_large_kernels_of_ones_are_refused() -> None:
    """A kernel of ones for each channel would be far larger than the file."""
    side = 1 << 15
    grid = qfmt.Quantization.of((0.5,), (0,), 0, 0)
    window = {
        "ceil_mode": 0,
        "count_include_pad": 0,
        "kernel_shape": (side, side),
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (0, 0, 0, 0),
    }
    tensors = {
        "x": qfmt.Tensor("x", "uint8", (1, 4, side, side), quantization=grid),
        "y": qfmt.Tensor("y", "int32", (1, 4, 1, 1)),
    }
    node = qfmt.Node("AveragePool", ("x",), ("y",), window, "pool", 22, "exact")
    model = qfmt.Model(qfmt.Graph(("x",), ("y",), (node,), tensors), source={"integer_only": "exact"})
    with pytest.raises(QfmtError, match=r"pool.*4,294,967,296 ones|4,294,967,296 ones.*pool"):
        model.to_onnx()
