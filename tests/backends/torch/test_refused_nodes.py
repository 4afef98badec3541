"""Nodes that torch's quantized kernels would compute otherwise: another table of `fast` and `native` computes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cases.one_node import single
from qfmt.model import Quantization, Tensor

pytestmark = pytest.mark.usefixtures("fbgemm")

ENGINES = [
    name for name in ("fast", "native:x86", "native:fbgemm", "native:qnnpack", "native:onednn")
    if name == "fast" or name.partition(":")[2] in torch.backends.quantized.supported_engines
]  # fmt: skip


class Case(NamedTuple):
    """A node, what a report says of it, and the engines that must not use torch's kernel."""

    operator: str
    rule: str
    inputs: list[Tensor | None]
    output: Tensor
    reason: str
    attributes: Mapping[str, Any] = MappingProxyType({})
    engines: tuple[str, ...] = tuple(ENGINES)


def grid(scale: float, zero_point: int, dtype: str) -> Quantization:
    return Quantization.per_tensor(scale, zero_point, dtype)


def quantized(name: str, shape: tuple[int, ...], dtype: str, scale: float = 0.0625, zero_point: int = 0) -> Tensor:
    return Tensor(name, dtype, shape, quantization=grid(scale, zero_point, dtype))


def weight(name: str, *shape: int, dtype: str = "int8", scale: float = 0.02) -> Tensor:
    values = np.random.default_rng(1).integers(0, 127, shape).astype(dtype)
    return Tensor.constant(name, values, grid(scale, 0, dtype))


def floats(name: str, *shape: int) -> Tensor:
    return Tensor.constant(name, np.random.default_rng(2).normal(size=shape).astype(np.float32))


REAL, IMAGE, OTHER = Tensor("x", "float32", (2, 3)), (2, 3, 4, 4), "the quantization and the type of the input"
PIXEL, MAP = quantized("x", (2, 4, 1, 1), "uint8", zero_point=128), Tensor("x", "float32", IMAGE)
Y = Tensor("y", "float32", None)
AXES, FACTORS = Tensor.constant("a", np.array([2, 3])), Tensor.constant("s", np.array([1, 1, 2, 2], np.float32))
SIGNED, UNSIGNED = quantized("x", IMAGE, "int8"), quantized("y", (2, 3, 4, 4), "uint8")
SIZED = Tensor("y", "uint8", None, quantization=UNSIGNED.quantization)
CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def cell(rule: str) -> tuple[str, str, list[Tensor | None], Tensor]:
    parts = [weight("w", 9, 3), weight("u", 9, 3), floats("b", 9), floats("c", 9)]
    return "qfmt.GRUCell", rule, [REAL, *parts, Tensor("h", "float32", (2, 3))], Y


def by_number(number: float, dtype: str, scale: float, zero_point: int) -> tuple[list[Tensor | None], Tensor]:
    """Inputs, x and a number, and an output with this scale and zero point."""
    constant = Tensor.constant("c", np.float32(number))
    return [quantized("x", IMAGE, dtype), constant], quantized("y", IMAGE, dtype, scale, zero_point)


def normalized(operator: str, x: Tensor, *more: Tensor) -> tuple[str, str, list[Tensor | None], Tensor]:
    output = Tensor("y", "uint8", x.shape, quantization=grid(0.03, 128, "uint8"))
    return operator, "reciprocal_fma", [x, *more], output


QNNPACK, NOT_QNNPACK = ("native:qnnpack",), tuple(name for name in ENGINES if name != "native:qnnpack")
CLAMPED = "clamps the output to the range of the input"
NUMBERS = "quantized tensors only"
WEIGHTS = "weights of int8, not uint8"

CASES = {
    "a dynamic rule of ONNX": Case(
        "qfmt.DynamicConv", "dynamic_divide", [MAP, weight("w", 4, 3, 3, 3)], Y, CLAMPED, CONV
    ),
    "a dynamic convolution by uint8": Case(
        "qfmt.DynamicConv", "float_bias", [MAP, weight("w", 4, 3, 3, 3, dtype="uint8")], Y, WEIGHTS, CONV
    ),
    "a dynamic product by uint8": Case(
        "qfmt.DynamicLinear", "dynamic_fma", [REAL, weight("w", 5, 3, dtype="uint8")], Y, WEIGHTS
    ),
    "a dynamic product of a vector": Case(
        "qfmt.DynamicLinear", "dynamic_fma", [Tensor("x", "float32", (3,)), weight("w", 5, 3)], Y, "require matrices"
    ),
    "a reduced range": Case(
        "qfmt.DynamicLinear", "dynamic_fma", [REAL, weight("w", 5, 3)], Y, "QNNPACK", {"reduce_range": 1}, QNNPACK
    ),
    "a cell of 8 bits": Case(*cell("dynamic_fma"), "reduce the range", engines=NOT_QNNPACK),
    "a cell of signed inputs": Case(*cell("dynamic_symmetric"), "unsigned", {"reduce_range": 1}, NOT_QNNPACK),
    "another factor": Case("Mul", "reciprocal_fma", *by_number(0.3, "uint8", 0.03125, 0), NUMBERS),
    "another signed factor": Case("Mul", "reciprocal_fma", *by_number(-0.3, "int8", 0.03125, -1), NUMBERS),
    "another addend": Case("Add", "reciprocal_fma", *by_number(5.0, "int8", 0.0625, -16), NUMBERS),
    "a factor of 16 bits": Case("Mul", "reciprocal_fma", *by_number(0.125, "uint16", 0.0625, 0), "no quantized uint16"),
    "a factor that changes the type": Case(
        "Mul", "reciprocal_fma", [SIGNED, Tensor.constant("c", np.float32(1.0))], UNSIGNED, "type of the input"
    ),
    "an average": Case("GlobalAveragePool", "mean_reciprocal_fma", [SIGNED], SIZED, OTHER),
    "a mean": Case("ReduceMean", "mean_divide_offset", [SIGNED, AXES], SIZED, OTHER),
    "an enlargement": Case(
        "Resize", "interpolate", [SIGNED, None, FACTORS], SIZED, OTHER,
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ),
    "a pool of one element": Case(
        "MaxPool", "", [quantized("x", IMAGE, "uint8")], SIZED, "single elements",
        {"kernel_shape": (1, 1), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}, QNNPACK,
    ),
    "a normalization by integers": Case(
        *normalized("BatchNormalization", quantized("x", IMAGE, "uint8"), weight("w", 3), floats("b", 3),
                    floats("m", 3), Tensor.constant("v", np.array([0.5, 1, 2], np.float32))),
        "weights of float32",
    ),
    "instances of a pixel": Case(
        *normalized("InstanceNormalization", PIXEL, floats("w", 4), floats("b", 4)), "single pixel", engines=("fast",)
    ),
    "groups of a pixel": Case(
        *normalized("GroupNormalization", PIXEL, floats("w", 4), floats("b", 4)), "single pixel", {"num_groups": 4},
        ("fast",),
    ),
    "groups of rows": Case(
        *normalized("GroupNormalization", quantized("x", (2, 4), "uint8", zero_point=128), floats("w", 4),
                    floats("b", 4)),
        "rank 3 or more", {"num_groups": 2},
    ),
    "one row of a table": Case(
        "qfmt.Embedding", "lookup_float32",
        [
            Tensor.constant(
                "t", np.arange(24, dtype=np.uint8).reshape(6, 4),
                Quantization.of((0.5, 1.0, 2.0, 3.0, 4.0, 5.0), (0,) * 6, 0, 255, axis=0),
            ),
            Tensor("x", "int64", ()),
        ],
        Y, "vectors and matrices",
    ),
}  # fmt: skip


def sample(tensor: Tensor, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = tuple(int(size or 0) for size in tensor.shape or ())
    if tensor.dtype == "float32":
        return rng.random(shape).astype(np.float32)
    limits = np.iinfo(tensor.dtype)
    low, high = (0, 6) if tensor.quantization is None else (int(limits.min), int(limits.max) + 1)
    return np.asarray(rng.integers(low, high, shape)).astype(tensor.dtype)


@pytest.mark.parametrize("name", CASES)
def test_another_table_computes_it(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(0)
    model = single(case.operator, case.rule, case.inputs, case.output, dict(case.attributes))
    inputs = {name: sample(model.tensors[name], rng) for name in model.graph.inputs}
    expected = model.run(inputs)["y"]
    same = total = 0
    for engine in [each for each in case.engines if each in ENGINES]:
        module = model.to_torch(engine)
        got = module(*map(torch.from_numpy, inputs.values())).numpy()
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), engine
        off = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        assert off.max() <= (1e-5 if expected.dtype == np.float32 else 1), engine
        if module.engine.startswith("native"):
            (row,) = module.report()
            assert case.reason in row.reason, engine
        same, total = same + int((off == 0).sum()), total + off.size
    print(f"{name}: {same} of {total} outputs equal")
    assert total
