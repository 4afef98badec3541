"""Compares elementwise operators with torch's kernels; 8-bit unary operators on all 256 inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional

from qfmt.model import DTYPES, Quantization
from qfmt.ops import OPERATORS
from support.examples import times
from support.torch_kernels import (
    ENGINES,
    Comparison,
    any_grid,
    check,
    compare,
    f32,
    grid,
    integers,
    printed_ledger,
    rule_of,
    to_torch,
)

quantized = torch.ops.quantized

MILLION = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def _ledger() -> Iterator[None]:
    yield from printed_ledger()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_two_tensors(operator: str, engine: str) -> None:
    """Whole blocks of 64. In the last elements of a tensor, add rounds differently; qnnpack adds in fixed point."""
    strict = operator == "Mul" or engine != "qnnpack"
    check(operator, engine, pairs(operator, engine), strict=strict, at_least=MILLION if engine == "fbgemm" else 0)


def pairs(operator: str, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(3)
    for dtype in ("uint8", "int8"):
        for relu in (False, True):
            for _ in range(9 if engine == "fbgemm" else 2):
                a, b = integers(rng, (256 * 128,), dtype), integers(rng, (256 * 128,), dtype)
                qa, qb, qc = (any_grid(rng, dtype, -1.5, -1) for _ in range(3))
                scale = qc.scale[0] if operator == "Add" else qa.scale[0] * qb.scale[0] * rng.choice([50.0, 61.7])
                call = getattr(quantized, operator.lower() + "_relu" * relu)
                theirs = call(to_torch(a, qa), to_torch(b, qb), float(f32(scale)), qc.zero_point[0])
                yield compare(operator, [(a, qa), (b, qb)], theirs, rule_of(operator, engine), relu=relu)


def test_the_last_elements_of_a_tensor_are_added_by_another_rule() -> None:
    torch.backends.quantized.engine = "fbgemm"
    found = list(tails(np.random.default_rng(4)))
    check("Add, last elements", "fbgemm", iter(found), strict=True)


def tails(rng: np.random.Generator) -> Iterator[Comparison]:
    for _ in range(200):
        a, b = integers(rng, (63,), "uint8"), integers(rng, (63,), "uint8")
        qa, qb, qc = (any_grid(rng, "uint8", -1.5, -1) for _ in range(3))
        theirs = quantized.add(to_torch(a, qa), to_torch(b, qb), qc.scale[0], qc.zero_point[0])
        yield compare("Add", [(a, qa), (b, qb)], theirs, "reciprocal_offset")


class Activation(NamedTuple):
    """An elementwise function: the operator, the call, its attributes, and whether it uses no library function."""

    operator: str
    call: Callable[[torch.Tensor, float, int], torch.Tensor]
    attributes: Mapping[str, Any] = MappingProxyType({})
    strict: bool = False


ACTIVATIONS = {
    "hardswish": Activation("HardSwish", quantized.hardswish, strict=True),
    "leaky_relu": Activation(
        "LeakyRelu", lambda x, s, z: quantized.leaky_relu(x, 0.1, False, s, z), {"alpha": 0.1}, strict=True
    ),
    "aten leaky_relu": Activation(
        "LeakyRelu", lambda x, s, z: functional.leaky_relu(x, 0.02), {"alpha": 0.02}, strict=True
    ),
    "elu": Activation("Elu", lambda x, s, z: quantized.elu(x, s, z, 1.3), {"alpha": 1.3}),
    "celu": Activation("Celu", lambda x, s, z: quantized.celu(x, s, z, 1.3), {"alpha": 1.3}),
    "sigmoid": Activation("Sigmoid", lambda x, s, z: torch.sigmoid(x)),
    "quantized sigmoid": Activation("Sigmoid", quantized.sigmoid),
    "tanh": Activation("Tanh", lambda x, s, z: torch.tanh(x)),
    "hardsigmoid": Activation(  # torch computes (x + 3) / 6, ONNX x / 6 + 1 / 2
        "HardSigmoid", lambda x, s, z: functional.hardsigmoid(x), {"alpha": 1 / 6, "beta": 0.5}
    ),
    "gelu": Activation("Gelu", lambda x, s, z: functional.gelu(x), {"approximate": "none"}),
    "gelu tanh": Activation("Gelu", lambda x, s, z: functional.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    "relu": Activation("Relu", lambda x, s, z: torch.relu(x), strict=True),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_on_every_input(name: str, engine: str) -> None:
    if name == "quantized sigmoid" and engine == "qnnpack":
        pytest.skip("qnnpack takes one output scale only, the one of aten::sigmoid")
    activation = ACTIVATIONS[name]
    check(name, engine, activations(activation, engine), strict=activation.strict and engine != "qnnpack")


def activations(activation: Activation, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(5)
    rule = OPERATORS[activation.operator].engines.get(engine, "")
    for dtype in ("uint8", "int8"):
        x = np.arange(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1).astype(dtype)
        for _ in times(50):
            xq, yq = any_grid(rng, dtype), any_grid(rng, dtype)
            theirs = activation.call(to_torch(x, xq), yq.scale[0], yq.zero_point[0])
            yield compare(activation.operator, [(x, xq)], theirs, rule, **activation.attributes)


CLAMPS = {
    "relu6": (functional.relu6, 0.0, 6.0),
    "quantized relu6": (quantized.relu6, 0.0, 6.0),
    "hardtanh": (functional.hardtanh, -1.0, 1.0),
    "clamp": (lambda x: torch.clamp(x, -0.275, 1.325), -0.275, 1.325),
    "clamp at ties": (lambda x: torch.clamp(x, -0.15, 0.75), -0.15, 0.75),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CLAMPS)
def test_clamps(name: str, engine: str) -> None:
    check(name, engine, clamps(*CLAMPS[name], engine), strict=True)


def clamps(call: Callable[[torch.Tensor], torch.Tensor], low: float, high: float, engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(6)
    for dtype in ("uint8", "int8"):
        x = np.arange(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1).astype(dtype)
        for _ in range(50):
            xq = any_grid(rng, dtype)
            bounds = [(np.array(bound, f32), None) for bound in (low, high)]
            yield compare("Clip", [(x, xq), *bounds], call(to_torch(x, xq)), "")


@pytest.mark.parametrize("engine", ENGINES)
def test_prelu(engine: str) -> None:
    check("prelu", engine, prelus(engine), strict=True)


def prelus(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(7)
    for dtype in ("uint8", "int8"):
        for _ in range(20):
            x, w = integers(rng, (2, 8, 16, 16), dtype), integers(rng, (8,), dtype)
            xq, wq, yq = any_grid(rng, dtype), grid(rng.choice([0.003, 0.01, 0.02]), 3, dtype), any_grid(rng, dtype)
            theirs = quantized.prelu(to_torch(x, xq), to_torch(w, wq), yq.scale[0], yq.zero_point[0])
            yield compare("PRelu", [(x, xq), (w.reshape(8, 1, 1), wq)], theirs, rule_of("PRelu", engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_mul_scalar_is_a_product_with_a_constant(engine: str) -> None:
    """Output quantization (s · |c|, z), for negative c (s · |c|, quant_min + quant_max - z), for 0 (1, 0)."""
    check("mul_scalar", engine, scaled(engine), strict=True)


def scaled(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(8)
    for dtype in ("uint8", "int8"):
        for factor in (2.5, -1.3, 0.01, 1.0, -1.0, 3 / 7, 0.0, *rng.normal(0, 2, 20)):
            x, xq = integers(rng, (4096,), dtype), any_grid(rng, dtype)
            theirs = quantized.mul_scalar(to_torch(x, xq), float(factor))
            flipped = xq.quant_min + xq.quant_max - xq.zero_point[0]
            expected = (xq.scale[0] * abs(factor), xq.zero_point[0] if factor > 0 else flipped)
            assert (theirs.q_scale(), theirs.q_zero_point()) == (expected if factor else (1.0, 0))
            for rule in ("product", "premultiplied"):
                yield compare("Mul", [(x, xq), (np.array(factor, f32), None)], theirs, rule)


@pytest.mark.parametrize("engine", ENGINES)
def test_add_scalar_is_a_sum_with_a_constant_of_the_same_scale(engine: str) -> None:
    """n = rint(c / s), zero point z - n; if that is out of range, the scale grows. `sum` rounds as torch does."""
    check("add_scalar", engine, moved(engine), strict=True)


def moved(engine: str) -> Iterator[Comparison]:
    torch.backends.quantized.engine = engine
    rng = np.random.default_rng(9)
    for dtype in ("uint8", "int8"):
        for _ in range(60):
            x, xq = integers(rng, (1024,), dtype), any_grid(rng, dtype)
            scale, low, high = xq.scale[0], xq.quant_min, xq.quant_max
            addend = float(rng.normal() * scale * 150)
            theirs = quantized.add_scalar(to_torch(x, xq), addend)
            steps = int(np.rint(addend / scale))
            zero_point = xq.zero_point[0] - steps
            if zero_point < low:
                expected = ((high - zero_point) / (high - low) * scale, low)
            elif zero_point > high:
                expected = ((zero_point - low) / (high - low) * scale, high)
            else:
                expected = (scale, zero_point)
            assert (theirs.q_scale(), theirs.q_zero_point()) == (pytest.approx(expected[0], rel=1e-12), expected[1])
            constant = (np.array(steps, np.int32), Quantization.of((scale,), (0,), -(2**31), 2**31 - 1))
            yield compare("Add", [(x, xq), constant], theirs, "sum")
