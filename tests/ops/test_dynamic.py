"""Compares dynamically quantized products and embeddings with torch's kernels, bit by bit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.nn.quantized.dynamic as nnqd

import qfmt
from networks import pytorch
from qfmt.errors import RunError
from qfmt.interpreter import execute
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from qfmt.ops.dynamic import quantized_now
from qfmt.ops.linear import linear_sums
from support import onnx_kernels, processor
from support.counts import OUTPUTS, tell
from support.torch_kernels import ENGINES, f32, grid, to_torch

quantized = torch.ops.quantized
MILLION = 1_000_000
COUNTS: dict[str, list[int]] = defaultdict(lambda: [0, 0])


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    """Print the number of compared outputs at the end."""
    engine = torch.backends.quantized.engine
    yield
    torch.backends.quantized.engine = engine
    rows = [f"{what:44} {equal} of {total} equal" for what, (equal, total) in COUNTS.items()]
    tell(*rows)


def assert_equal(what: str, ours: np.ndarray, theirs: torch.Tensor) -> None:
    """Assert equality bit by bit, except for the sign of zeros."""
    expected = theirs.numpy()
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
    equal = (ours == expected) | (np.isnan(ours) & np.isnan(expected))
    COUNTS[what][0] += int(equal.sum())
    OUTPUTS["equal"] += int(equal.sum())
    COUNTS[what][1] += equal.size
    assert equal.all(), f"{what}: {(~equal).sum()} of {equal.size} differ"


def run(operator: str, operands: list[Any], rule: str, **attributes: Any) -> np.ndarray:
    """Run a node on arrays or (array, quantization)."""
    entry = OPERATORS[operator]
    assert rule in entry.rules
    given = [
        each if each is None else Operand(*each) if isinstance(each, tuple) else Operand(each, None)
        for each in operands
    ]
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(given))
    node = Node(operator, names, ("y",), entry.complete(attributes), version=entry.version, rule=rule)
    return execute(node, given, [Tensor("y", "float32", None)])[0]


def weights(rng: np.random.Generator, shape: tuple[int, ...], per_channel: bool, zero_point: int = 0) -> Any:
    values = rng.integers(-128, 128, shape).astype(np.int8)
    if not per_channel:
        return values, grid(rng.uniform(0.001, 0.02), zero_point, "int8")
    scales = tuple(float(f32(scale)) for scale in rng.uniform(0.001, 0.02, shape[0]))
    return values, Quantization.of(scales, (0,) * shape[0], -128, 127, 0)


def inputs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Inputs of both signs, of one sign, or mostly at ties."""
    x = rng.standard_normal(shape) * 10 ** rng.uniform(-3, 2) + rng.choice([-3, 0, 0, 3])
    if rng.random() < 0.3:
        x = (rng.integers(-400, 600, shape) + 0.5) * f32(0.0037)
    return np.abs(x).astype(f32) if rng.random() < 0.2 else x.astype(f32)


# Linear layers


def in_steps(x: np.ndarray, w: np.ndarray, wq: Quantization, b: np.ndarray | None, reduce_range: bool) -> np.ndarray:
    """oneDNN's result on processors where it scales by input and weight in two steps, `f32(f32(f32(acc) · i(s)) ·
    i(sw)) + b`. The rule was found on another processor."""
    q = quantized_now(Operand(x, None), "dynamic_inverse", int(reduce_range))
    acc = linear_sums(q, Operand(w, wq)).astype(f32)
    y = acc * twice_inverted(q.quantization.scale) * twice_inverted(wq.scale)
    return y if b is None else y + b


def twice_inverted(scale: tuple[float, ...]) -> np.ndarray:
    return f32(1) / (1 / np.array(scale)).astype(f32)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_linear(per_channel: bool, engine: str) -> None:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(1)
    what = f"linear_dynamic per {'channel' if per_channel else 'tensor'}, {engine}"
    for x_shape, n in [((900, 65), 256), ((3, 200, 96), 128), ((1, 513), 300), ((700, 31), 500)] * (
        1 + (engine == "fbgemm")
    ):
        for bias in (True, False):
            for reduce_range in (False, True) if engine in ("fbgemm", "onednn") else (False,):
                w, wq = weights(rng, (n, x_shape[-1]), per_channel, 3 * (engine in ("fbgemm", "qnnpack")))
                b = rng.normal(0, 2, n).astype(f32) if bias else None
                x = inputs(rng, x_shape)
                packed = quantized.linear_prepack(to_torch(w, wq), None if b is None else torch.from_numpy(b))
                theirs = quantized.linear_dynamic(torch.from_numpy(x), packed, reduce_range)
                rule = OPERATORS["qfmt.DynamicLinear"].engines[engine]
                with processor.as_computed_here(engine):
                    ours = run("qfmt.DynamicLinear", [x, (w, wq), b], rule, reduce_range=int(reduce_range))
                    if engine == "onednn" and not np.array_equal(ours, theirs.numpy()):
                        ours = in_steps(x, w, wq, b, reduce_range)
                assert_equal(what, ours, theirs)
    assert engine not in ("fbgemm", "qnnpack") or COUNTS[what][1] >= MILLION


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_without_a_range_to_speak_of(engine: str) -> None:
    torch.backends.quantized.engine = engine
    w, wq = np.eye(16, dtype=np.int8), grid(1, 0, "int8")
    packed = quantized.linear_prepack(to_torch(w, wq), None)
    line = np.linspace(-1, 3, 48, dtype=f32).reshape(3, 16)
    rule = OPERATORS["qfmt.DynamicLinear"].engines[engine]
    for x in (
        line * 0,
        line * 0 + 5,
        line * 0 - 5,
        line[:0],
        *(line * f32(s) for s in (1e-4, 2e-3, -2e-3, 1e-40, 1e38)),
    ):
        theirs = quantized.linear_dynamic(torch.from_numpy(x), packed, False)
        assert_equal(f"linear_dynamic, narrow ranges, {engine}", run("qfmt.DynamicLinear", [x, (w, wq)], rule), theirs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_without_a_range_are_refused(value: float) -> None:
    x = np.array([[1, value]], f32)
    with pytest.raises(RunError, match="the range is undefined"):
        run("qfmt.DynamicLinear", [x, (np.eye(2, dtype=np.int8), grid(1, 0, "int8"))], "dynamic_fma")


def test_onnx_quantizes_dynamically_as_its_runtime() -> None:
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    make, types = onnx.helper, onnx.TensorProto
    nodes = [
        make.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        make.make_node("MatMulInteger", ["q", "w", "z"], ["acc"]),
        make.make_node("Cast", ["acc"], ["real"], to=types.FLOAT),
        make.make_node("Mul", ["s", "sw"], ["at"]),
        make.make_node("Mul", ["real", "at"], ["y"]),
    ]
    rng = np.random.default_rng(4)
    w, wq = weights(rng, (60, 48), False)
    constants = [onnx.numpy_helper.from_array(w.T.copy(), "w"), onnx.numpy_helper.from_array(f32(wq.scale[0]), "sw")]
    ends = [[make.make_tensor_value_info(name, types.FLOAT, None)] for name in "xy"]
    model = make.make_model(
        make.make_graph(nodes, "g", *ends, constants), opset_imports=[make.make_opsetid("", 21)], ir_version=10
    )
    session = ort.InferenceSession(model.SerializeToString())
    for x in (*(inputs(rng, (50, 48)) for _ in range(20)), np.zeros((2, 48), f32)):
        theirs = torch.from_numpy(session.run(None, {"x": x})[0])
        with onnx_kernels.as_computed_here("MatMulInteger", "uint8 · int8"):
            ours = run("qfmt.DynamicLinear", [x, (w, wq)], "dynamic_divide")
        assert_equal("linear, ONNX Runtime", ours, theirs)


@pytest.mark.parametrize("relu", [False, True])
def test_linear_with_weights_of_float16(relu: bool) -> None:
    """Up to 512 features; with more, fbgemm's last columns are sums of sums. Weights beyond float16 saturate."""
    torch.backends.quantized.engine = "fbgemm"
    rng = np.random.default_rng(8)
    for x_shape, n in [((300, 65), 256), ((3, 50, 96), 40), ((1, 512), 300), ((64, 31), 17)]:
        x, w = (rng.standard_normal(shape).astype(f32) for shape in (x_shape, (n, x_shape[-1])))
        w[0, :3] = 70000, -1e6, 1e-8
        b = rng.standard_normal(n).astype(f32)
        with pytorch.quiet():
            packed = quantized.linear_prepack_fp16(torch.from_numpy(w), torch.from_numpy(b))
            call = quantized.linear_relu_dynamic_fp16 if relu else quantized.linear_dynamic_fp16
            theirs = call(torch.from_numpy(x), packed)
        half = np.clip(w, -65504, 65504).astype(np.float16)
        ours = processor.half_linear(x, half, b)
        assert_equal("linear, float16", np.maximum(ours, f32(0)) if relu else ours, theirs)


# Convolutions

CONVOLUTIONS = {
    "Conv1d": (nnqd.Conv1d, (3, 8, 400), {"padding": 1, "stride": 2}),
    "Conv2d": (nnqd.Conv2d, (2, 8, 40, 41), {"padding": 1, "groups": 2}),
    "Conv3d": (nnqd.Conv3d, (1, 8, 9, 13, 14), {"dilation": 2}),
    "ConvTranspose1d": (nnqd.ConvTranspose1d, (3, 8, 300), {"stride": 2}),
    "ConvTranspose2d": (nnqd.ConvTranspose2d, (2, 8, 21, 22), {"stride": 2, "padding": 1, "output_padding": 1}),
    "ConvTranspose3d": (nnqd.ConvTranspose3d, (1, 8, 5, 6, 7), {"stride": 2}),
}


class Net(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_dynamic_convolutions_of_archives(name: str, engine: str, tmp_path: Path) -> None:
    """PyTorch quantizes the result of the convolution with the parameters of its input."""
    if engine == "qnnpack" and name in ("Conv3d", "ConvTranspose3d"):
        pytest.skip("qnnpack does not have it")
    torch.backends.quantized.engine = engine
    torch.manual_seed(3)
    kind, shape, options = CONVOLUTIONS[name]
    with pytorch.quiet():
        layer = kind(8, 16, 3, **options)
        weight = layer.weight()
        values = torch.randint(-128, 128, weight.shape, dtype=torch.int8)
        made = torch._make_per_tensor_quantized_tensor(values, 0.01, 3)
        if "Transpose" not in name:
            scales = torch.rand(16, dtype=torch.float64).float().double() * 0.01 + 0.001
            made = torch._make_per_channel_quantized_tensor(values, scales, torch.zeros(16, dtype=torch.long), 0)
        layer.set_weight_bias(made, torch.randn(16))
        x = torch.randn(shape)
        torch.jit.save(torch.jit.script(Net(layer)), tmp_path / "conv.pt")
        theirs = layer(x)
    model = qfmt.convert(tmp_path / "conv.pt", engine=engine)
    (node,) = model.nodes
    assert node.operator == f"qfmt.Dynamic{name[:-2]}"
    (ours,) = model.run({"x": x.numpy()}).values()
    assert_equal(f"dynamic convolutions, {engine}", ours, theirs)


def test_a_dynamic_convolution_without_a_second_rounding() -> None:
    """By ONNX's rule (`ConvInteger`) the sums are dequantized directly."""
    rng = np.random.default_rng(9)
    x, (w, wq) = inputs(rng, (2, 4, 9, 9)), weights(rng, (6, 4, 3, 3), True)
    a = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    ours = run("qfmt.DynamicConv", [x, (w, wq)], "dynamic_divide", **a)
    scale = (max(x.max(), 0) - min(x.min(), 0)) / 255
    rounded = np.round(x.astype(np.float64) / scale) * scale
    real = w * wq.scales(w.shape)
    exact = OPERATORS["Conv"].reference(rounded, real, None, **a)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


# Embedding tables


def table(rng: np.random.Generator, rows: int, columns: int, bits: int) -> tuple[np.ndarray, Quantization, Any]:
    """Integers, quantization, and torch's packed table. torch creates 4-bit tensors only by quantizing."""
    real = rng.standard_normal((rows, columns)) * rng.uniform(0.1, 3, (rows, 1)) + rng.uniform(-1, 1, (rows, 1))
    top = 2**bits - 1
    low, high = np.minimum(real.min(1), 0), np.maximum(real.max(1), 0)
    scales = ((high - low) / top).astype(f32)
    points = (-low / scales).astype(f32)
    kind = torch.quint8 if bits == 8 else torch.quint4x2
    tensor = torch.quantize_per_channel(
        torch.from_numpy(real.astype(f32)), torch.from_numpy(scales), torch.from_numpy(points), 0, kind
    )
    stored = tensor.int_repr().numpy()
    integers = stored if bits == 8 else np.stack([stored & 15, stored >> 4], -1).reshape(rows, -1)[:, :columns]
    quantization = Quantization.of(tuple(scales.tolist()), tuple(points.tolist()), 0, top, 0)
    return integers, quantization, quantized.embedding_bag_prepack(tensor)


@pytest.mark.parametrize("bits", [8, 4])
def test_embedding(bits: int) -> None:
    rng = np.random.default_rng(2)
    call = quantized.embedding_byte if bits == 8 else quantized.embedding_4bit
    for rows, columns in ((400, 64), (50, 16), (31, 34), (1, 2)):
        w, wq, packed = table(rng, rows, columns, bits)
        for shape in ((4000,), (20, 30), (0,)):
            at = rng.integers(0, rows, shape)
            ours = run("qfmt.Embedding", [(w, wq), at], "lookup_float32" if bits == 8 else "lookup_float16")
            assert_equal(f"embedding, {bits} bits", ours, call(packed, torch.from_numpy(at)))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("include_last", [False, True])
def test_embedding_bag(bits: int, weighted: bool, include_last: bool) -> None:
    """Bags of any size, including empty ones."""
    rng = np.random.default_rng(3)
    call = quantized.embedding_bag_byte if bits == 8 else quantized.embedding_bag_4bit
    rule = "lookup_float32" if bits == 8 else "lookup_float16"
    for rows, columns, count in ((300, 64, 5000), (50, 16, 400), (31, 34, 70), (5, 6, 0)):
        w, wq, packed = table(rng, rows, columns, bits)
        at = rng.integers(0, rows, count)
        p = rng.standard_normal(count).astype(f32) if weighted else None
        bounds = np.sort(rng.choice(np.arange(count + 1), count // 6 + 2))
        bounds[0] = 0
        if include_last:
            bounds[-1] = count
        rest = (None if p is None else torch.from_numpy(p), None, include_last)
        theirs = call(packed, torch.from_numpy(at), torch.from_numpy(bounds), False, 0, False, *rest)
        ours = run("qfmt.EmbeddingBag", [(w, wq), at, bounds, p], rule, include_last_offset=int(include_last))
        assert (theirs.numpy() == 0).all(1).any(), "no empty bag was tried"
        assert_equal(f"embedding_bag, {bits} bits", ours, theirs)


@pytest.mark.parametrize("bits", [8, 4])
def test_bags_of_one_size(bits: int) -> None:
    rng = np.random.default_rng(5)
    call = quantized.embedding_bag_byte if bits == 8 else quantized.embedding_bag_4bit
    w, wq, packed = table(rng, 40, 24, bits)
    at = rng.integers(0, 40, (30, 7))
    ours = run("qfmt.EmbeddingBag", [(w, wq), at], "lookup_float32" if bits == 8 else "lookup_float16")
    assert_equal(f"embedding_bag, {bits} bits", ours, call(packed, torch.from_numpy(at)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_float_embedding_bag(mode: str, padding: int | None) -> None:
    """qfmt sums row by row; torch's means and sums differ in the last bits."""
    rng = np.random.default_rng(6)
    w = rng.standard_normal((20, 32)).astype(f32)
    at, bounds = rng.integers(0, 20, 300), np.sort(rng.integers(0, 300, 60))
    bounds[0] = 0
    p = rng.standard_normal(300).astype(f32) if mode == "sum" else None
    entry = OPERATORS["qfmt.EmbeddingBag"]
    ours = entry.reference(w, at, bounds, p, mode=mode, include_last_offset=0, padding_idx=-1 if padding is None else 3)
    theirs, *_ = torch.embedding_bag(
        torch.from_numpy(w), torch.from_numpy(at), torch.from_numpy(bounds), False, ["sum", "mean", "max"].index(mode),
        False, None if p is None else torch.from_numpy(p), False, padding,
    )  # fmt: skip
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=4e-6 if mode != "max" else 0)


@pytest.mark.parametrize("at", [[-1], [20]])
def test_indices_outside_of_a_table_are_refused(at: list[int]) -> None:
    w, wq, _ = table(np.random.default_rng(7), 20, 4, 8)
    for operands in ([(w, wq), np.array(at)], [(w, wq), np.array(at), np.array([0])]):
        operator = "qfmt.EmbeddingBag" if len(operands) == 3 else "qfmt.Embedding"
        with pytest.raises(RunError, match="outside a table of 20 rows"):
            run(operator, operands, "lookup_float32")


@pytest.mark.parametrize("bounds", [[1, 2], [0, 3, 2], [0, 9]])
def test_invalid_offsets_of_bags_are_refused(bounds: list[int]) -> None:
    w, wq, _ = table(np.random.default_rng(7), 20, 4, 8)
    with pytest.raises(RunError, match="offsets of bags"):
        run("qfmt.EmbeddingBag", [(w, wq), np.arange(5), np.array(bounds)], "lookup_float32")


# Archives


class Bags(torch.nn.Module):
    """Float bags: one after the other, of one size, with weights, with a padding index; and a table of positions."""

    def __init__(self, mode: str = "sum", padding_idx: int | None = None) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(20, 8, mode=mode, padding_idx=padding_idx)
        self.positions = torch.nn.Embedding(9, 8)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        place = self.positions(torch.arange(square.size(0)))
        return torch.cat([self.bag(indices, offsets), self.bag(square) + place])


@pytest.mark.parametrize("kind", ["traced", "scripted"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_archives_with_float_bags(mode: str, kind: str, tmp_path: Path) -> None:
    module = Bags(mode, 2 if mode == "mean" else None).eval()
    given = (torch.randint(0, 20, (30,)), torch.tensor([0, 4, 4, 17]), torch.randint(0, 20, (5, 6)))
    with pytorch.quiet():
        archive = torch.jit.trace(module, given) if kind == "traced" else torch.jit.script(module)
        torch.jit.save(archive, tmp_path / "bags.pt")
    shapes = {"indices": (None,), "offsets": (None,), "square": (None, None)}  # a script does not state its rank
    model = qfmt.convert(tmp_path / "bags.pt", input_shapes=shapes if kind == "scripted" else None)
    assert [model.tensors[name].dtype for name in model.graph.inputs] == ["int64"] * 3
    (ours,) = model.run(dict(zip(model.graph.inputs, (tensor.numpy() for tensor in given), strict=True))).values()
    np.testing.assert_allclose(ours, module(*given).detach().numpy(), rtol=0, atol=2e-6)


def fixture(shared_data: Path, name: str, part: str) -> Any:
    path = shared_data / "torchscript_bc" / f"TestSerialization.test_{name}.{part}.pt"
    return path if part in ("scripted", "traced") else torch.load(path, weights_only=True)


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_the_dynamic_linear_fixture(shared_data: Path, kind: str) -> None:
    model = qfmt.convert(fixture(shared_data, "linear_dynamic_qint8", kind))
    given = fixture(shared_data, "linear_dynamic_qint8", "input").numpy()
    (result,) = model.run({model.graph.inputs[0]: given}).values()
    assert_equal("fixture linear_dynamic_qint8", result, fixture(shared_data, "linear_dynamic_qint8", "expected"))


@pytest.mark.parametrize("kind", ["trace", "script"])
def test_tables_of_torch_1_13_have_their_rows(shared_data: Path, tmp_path: Path, kind: str) -> None:
    """torch 2.13 cannot load these files, since one table has 4 bits."""
    folder = shared_data / "torch_legacy" / "t1131"
    given, expected = torch.load(folder / "emb.io.pt", weights_only=True)
    qfmt.save(qfmt.convert(folder / f"emb.{kind}.pt"), tmp_path / "emb.qfb")
    assert qfmt.check(tmp_path / "emb.qfb") == []
    model = qfmt.load(tmp_path / "emb.qfb")
    assert [model.tensors[name].dtype for name in model.graph.inputs] == ["int64", "int64"]
    assert model.tensors["eb4.weight"].dtype == "uint4"
    assert "eb4._packed_params._packed_weight" in model.tensors["eb4.weight"].aliases
    results = model.run(dict(zip(model.graph.inputs, (tensor.numpy() for tensor in given), strict=True)))
    for result, theirs in zip(results.values(), expected, strict=True):
        assert_equal("networks of torch 1.13", result, theirs)
