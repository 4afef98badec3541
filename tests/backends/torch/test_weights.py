"""Layers with quantized weights and float inputs in torch: no NumPy, results exact up to the order of float sums.
Layers that quantize their input equal `Model.run` bit by bit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfmt
from qfmt.backends.torch import dynamic
from qfmt.backends.torch.processor import multiplies_int8
from qfmt.errors import RunError
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from support.counts import tell

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

FAST = ["auto", "native", "onednn", "qdq"]
RULES = [
    "dynamic_fma", "dynamic_add", "dynamic_inverse", "dynamic_divide", "dynamic_reciprocal", "dynamic_symmetric",
]  # fmt: skip


def layer(operator: str, weight: Tensor, bias: Array | None, rule: str = "", **attributes: Any) -> Model:
    """One layer between x of any sizes and y."""
    constants = [weight, *([] if bias is None else [Tensor.constant("b", bias)])]
    rank = len(weight.shape or ())
    image = rank == 4
    shape = (None, (weight.shape or ())[1], None, None) if image else (None, None, (weight.shape or ())[-1])
    out = (None, (weight.shape or ())[0], None, None) if image else (None, None, (weight.shape or ())[0])
    tensors = [Tensor("x", "float32", shape), *constants, Tensor("y", "float32", out)]
    inputs = ("x", *(tensor.name for tensor in constants))
    complete = OPERATORS[operator].complete(attributes)
    version = OPERATORS[operator].version
    node = Node(operator, inputs, ("y",), complete, version=version, rule=rule)
    return Model(Graph(("x",), ("y",), (node,), {tensor.name: tensor for tensor in tensors}))


def integers(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Array:
    limits = DTYPES[dtype]
    return rng.integers(limits.minimum, limits.maximum + 1, shape).astype("int8" if limits.kind == "i" else "uint8")


def blocked(rng: Rng, dtype: str, shape: tuple[int, ...], block: tuple[int, ...], *, points: bool = False) -> Tensor:
    counts = tuple(-(-size // each) for size, each in zip(shape, block, strict=True))
    scale = rng.uniform(0.001, 0.01, counts).astype(np.float32)
    zero_point = integers(rng, dtype, counts) if points else 0
    grid = Quantization.of_blocks(dtype, shape, block, scale, zero_point)
    return Tensor.constant("w", integers(rng, dtype, shape), grid, dtype=dtype)


WEIGHTS = {
    "per tensor": ("int8", (24, 50), (24, 50), False),
    "per channel": ("int8", (24, 50), (1, 50), False),
    "per channel, zero points": ("uint8", (24, 50), (1, 50), True),
    "int4 by groups": ("int4", (24, 64), (1, 16), False),
    "int4 by groups that do not fit": ("int4", (24, 50), (1, 16), True),
    "tiles": ("uint4", (24, 50), (8, 10), True),
    "int2": ("int2", (24, 64), (1, 32), False),
}


@pytest.mark.parametrize("engine", FAST)
def test_linear_layers_with_quantized_weights(engine: str) -> None:
    rng = np.random.default_rng(0)
    equal = total = 0
    for form, (dtype, shape, block, points) in WEIGHTS.items():
        weight = blocked(rng, dtype, shape, block, points=points)
        bias = rng.normal(size=shape[0]).astype(np.float32)
        module = layer("qfmt.Linear", weight, bias).to_torch(engine)
        assert not [row for row in module.report() if row.computed_by == "numpy"], form
        x = torch.from_numpy(rng.normal(size=(2, 3, shape[1])).astype(np.float32))
        real = torch.from_numpy(weight.dequantize())
        got, wanted = module(x), nn.functional.linear(x, real, torch.from_numpy(bias))
        exact = nn.functional.linear(x.double(), real.double(), torch.from_numpy(bias).double())
        assert (got - exact).abs().max() <= 1e-6 * exact.abs().max(), form
        equal, total = equal + int((got == wanted).sum()), total + wanted.numel()
    tell(f"weights of {len(WEIGHTS)} forms, {engine}: {equal} of {total} outputs equal to torch's of real weights")
    assert equal == total


def test_convolutions_with_weights_by_blocks() -> None:
    rng = np.random.default_rng(1)
    weight = blocked(rng, "int4", (6, 8, 3, 3), (1, 4, 3, 3))
    attributes = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    module = layer("Conv", weight, None, **attributes).to_torch()
    x = torch.from_numpy(rng.normal(size=(2, 8, 5, 5)).astype(np.float32))
    wanted = nn.functional.conv2d(x, torch.from_numpy(weight.dequantize()), padding=1)
    assert not [row for row in module.report() if row.computed_by == "numpy"]
    assert torch.equal(module(x), wanted)


@pytest.mark.parametrize("attributes", [{}, {"transB": 1, "alpha": 0.5, "beta": 2.0}])
def test_gemm_with_weights_by_blocks(attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(8)
    shape, block = ((24, 64), (1, 16)) if attributes else ((64, 24), (16, 1))
    weight, bias = blocked(rng, "int4", shape, block), rng.normal(size=24).astype(np.float32)
    tensors = [
        Tensor("x", "float32", (None, 64)), weight, Tensor.constant("b", bias), Tensor("y", "float32", (None, 24)),
    ]  # fmt: skip
    entry = OPERATORS["Gemm"]
    node = Node("Gemm", ("x", "w", "b"), ("y",), entry.complete(attributes), version=entry.version)
    model = Model(Graph(("x",), ("y",), (node,), {tensor.name: tensor for tensor in tensors}))
    x = rng.normal(size=(5, 64)).astype(np.float32)
    wanted = model.run({"x": x})["y"]
    for engine in FAST:
        module = model.to_torch(engine)
        assert not [row for row in module.report() if row.computed_by == "numpy"]
        assert np.abs(module(torch.from_numpy(x)).numpy() - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_new_weights_are_those_computed_with() -> None:
    rng = np.random.default_rng(2)
    first, second = (blocked(rng, "int4", (8, 32), (1, 8)) for _ in range(2))
    module, other = (layer("qfmt.Linear", weight, None).to_torch() for weight in (first, second))
    assert set(module.state_dict()) == {"w", "w_scale", "w_zero_point"}
    x = torch.from_numpy(rng.normal(size=(1, 3, 32)).astype(np.float32))
    wanted = other(x)
    assert not torch.equal(module(x), wanted)
    module.load_state_dict(other.state_dict())
    assert torch.equal(module(x), wanted)


def weight_of(rng: Rng, kind: str, shape: tuple[int, int]) -> Tensor:
    """int8 with zero points of 0, as sums of int8 require; any weight; or only extreme values."""
    dtype = "uint8" if kind == "any" and rng.random() < 0.5 else "int8"
    weight = blocked(rng, dtype, shape, (1, shape[1]) if rng.random() < 0.5 else shape, points=kind == "any")
    if kind != "extreme":
        return weight
    return Tensor.constant("w", np.full(shape, -128, np.int8), weight.quantization)


@pytest.mark.parametrize("per_token", [0, 1])
def test_dynamic_layers_bit_for_bit(per_token: int) -> None:
    rng = np.random.default_rng(3)
    engines = ["reference", "onednn", "qdq", "native", "auto"]
    counts = dict.fromkeys(engines, (0, 0))
    kinds = ("symmetric", "any", "extreme")
    for rule in RULES:
        own = ["native", "auto"] if rule != "dynamic_symmetric" and not per_token else []  # torch's own kernels
        own += ["qdq"] if rule == "dynamic_reciprocal" and not per_token else []
        for step, kind in enumerate(kinds * 4):
            shape = (int(rng.integers(1, 40)), int(rng.integers(1, 400)))
            bias = rng.normal(size=shape[0]).astype(np.float32) if step % 2 else None
            attributes = {"per_token": per_token, "reduce_range": step // len(kinds) % 2}
            model = layer("qfmt.DynamicLinear", weight_of(rng, kind, shape), bias, rule, **attributes)
            x = rng.normal(size=(2, int(rng.integers(1, 20)), shape[1])).astype(np.float32)
            x *= np.float32(10) ** rng.integers(-9, 5, (2, 1, 1)).astype(np.float32)
            x[0, 0] = 0
            wanted = model.run({"x": x})["y"]
            for engine in set(engines) - set(own):
                module = model.to_torch(engine)
                assert not [row for row in module.report() if row.computed_by == "numpy"]
                same = module(torch.from_numpy(x)).numpy().view(np.uint32) == wanted.view(np.uint32)
                counts[engine] = counts[engine][0] + int(same.sum()), counts[engine][1] + wanted.size
    for engine, (equal, total) in counts.items():
        tell(f"dynamic layers, per_token {per_token}, {engine}: {equal} of {total} outputs equal, bit for bit")
        assert equal == total > 0


@pytest.mark.parametrize("rule", ["dynamic_fma", "dynamic_symmetric"])
def test_dynamic_layers_of_one_feature(rule: str) -> None:
    """torch's kernel for products of int8 leaves their results unset."""
    rng = np.random.default_rng(8)
    model = layer("qfmt.DynamicLinear", weight_of(rng, "symmetric", (5, 1)), None, rule)
    x = rng.normal(size=(1, 7, 1)).astype(np.float32)
    for engine in ("reference", "onednn", "qdq"):
        assert np.array_equal(model.to_torch(engine)(torch.from_numpy(x)).numpy(), model.run({"x": x})["y"])


def test_dynamic_layers_where_torch_multiplies_no_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "multiplies_int8", lambda: False)
    rng = np.random.default_rng(4)
    for size in (100, 3000):  # sums that float32 represents exactly, and larger ones
        model = layer(
            "qfmt.DynamicLinear", weight_of(rng, "extreme", (5, size)), None, "dynamic_symmetric", per_token=1
        )
        module = model.to_torch("reference")
        assert f"torch.float{32 if size == 100 else 64}" in module.code
        x = rng.normal(size=(1, 9, size)).astype(np.float32)
        assert np.array_equal(module(torch.from_numpy(x)).numpy(), model.run({"x": x})["y"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_dynamic_layers_refuse_what_has_no_range(value: float) -> None:
    rng = np.random.default_rng(5)
    model = layer("qfmt.DynamicLinear", weight_of(rng, "symmetric", (4, 6)), None, "dynamic_symmetric", per_token=1)
    x = np.zeros((1, 3, 6), np.float32)
    x[0, 1, 2] = value
    with pytest.raises(RunError) as ours:
        model.run({"x": x})
    with pytest.raises(RunError) as theirs:
        model.to_torch()(torch.from_numpy(x))
    assert str(ours.value) == str(theirs.value)


def test_dynamic_layers_of_nothing() -> None:
    model = layer(
        "qfmt.DynamicLinear", weight_of(np.random.default_rng(6), "symmetric", (4, 6)), None, "dynamic_symmetric"
    )
    assert model.to_torch()(torch.zeros(2, 0, 6)).shape == (2, 0, 4)


@pytest.mark.parametrize("kind", ["int8", "int8 dynamic", "int4", "int4 dynamic", "float8"])
def test_models_of_torchao_come_back(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # at its import
        api: Any = pytest.importorskip("torchao.quantization")
    groups = api.PerGroup(32)
    config = {
        "int8": api.Int8WeightOnlyConfig,
        "int8 dynamic": api.Int8DynamicActivationInt8WeightConfig,
        "int4": lambda: api.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=groups),
        "int4 dynamic": lambda: api.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=groups
        ),
        "float8": api.Float8WeightOnlyConfig,
    }[kind]()
    torch.manual_seed(0)
    source = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 48)).eval()
    api.quantize_(source, config)
    x = torch.randn(40, 64)
    model = qfmt.convert(source, example_inputs=(x,))
    wanted = source(x).detach()
    if kind == "int8 dynamic" and not multiplies_int8():  # torchao's own products overflow on this processor
        wanted = torch.from_numpy(next(iter(model.run({model.graph.inputs[0]: x.numpy()}).values())))
    for engine in FAST:
        module = model.to_torch(engine)
        assert not [row for row in module.report() if row.computed_by == "numpy"]
        got = module(x)
        off = float((got - wanted).abs().max() / wanted.abs().max())
        tell(f"torchao {kind}, {engine}: {int((got == wanted).sum())} of {got.numel()} outputs equal, off by {off:.1e}")
        assert off <= 1e-6


def test_dynamic_layers_can_be_exported() -> None:
    model = layer(
        "qfmt.DynamicLinear", weight_of(np.random.default_rng(7), "symmetric", (8, 16)), None, "dynamic_symmetric",
        per_token=1,
    )  # fmt: skip
    module, x = model.to_torch("qdq"), torch.randn(1, 5, 16)
    program = torch.export.export(module, (x,))
    assert torch.equal(program.module()(x), module(x))
