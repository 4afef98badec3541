"""Nodes of other element types than torch's kernels: every engine that promises the integers of `run` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from cases.one_node import single
from qfmt.backends.torch.values import to_array, to_tensor
from qfmt.errors import QfmtError
from qfmt.model import Quantization, Tensor, numpy_dtype
from support.counts import tell

BYTE = Quantization.per_tensor(0.0625, 3, "uint8")
SIGNED = Quantization.per_tensor(0.5, 0, "int8")
Y = Tensor("y", "uint8", None, None, BYTE)


class Case(NamedTuple):
    operator: str
    rule: str
    inputs: list[Tensor]
    output: Tensor
    attributes: Mapping[str, Any] = MappingProxyType({})


def constant(name: str, values: Any, dtype: str, quantization: Quantization | None = None) -> Tensor:
    return Tensor.constant(name, np.asarray(values).astype(numpy_dtype(dtype)), quantization, dtype=dtype)


NEAR_TIES = (np.arange(-40, 200) + 0.5) * 0.0625 * (1 + 2**-12)
WEIGHT = constant("w", [[1, -2, 3], [4, 5, -6]], "int8", SIGNED)
SQUARES = constant("c", np.arange(16).reshape(1, 1, 4, 4), "uint8", BYTE)
POOL = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "ceil_mode": 0}
SUMS = Tensor("y", "int32", None)
ROW = Tensor("x", "uint8", (1, 3), None, BYTE)

PLAIN = Tensor("y", "float32", None)
THREE = constant("x", [[[1, -2], [3, 4], [5, -6]]], "float32")
VECTOR, ONE = constant("v", [0.5, 2, 1], "float32"), constant("o", 1.5, "float32")
SLOPES = constant("x", [[-3, 2, 7]], "float32")
ROWS, COLUMNS = np.zeros((0, 4)), np.zeros((1, 1, 0, 4))
NO_SCALES, NO_ROWS = (Quantization.of((), (), 0, 255, axis=axis) for axis in (0, 2))
TIGHT = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}

EXTREMES = (
    ("int32", 0, 2**24 + 1), ("int32", -(2**31), 2**31 - 1), ("int64", 0, 2**31 - 1), ("int64", 0, 2**63 - 1),
    ("float64", -0.1, 16777217.5),
)  # fmt: skip
"""Types, and numbers that float32 does not have."""

CASES = {
    **{
        f"{rule} of {dtype}": Case("QuantizeLinear", rule, [constant("x", NEAR_TIES, dtype)], Y)
        for rule in ("divide", "reciprocal", "reciprocal_fma", "reciprocal_offset")
        for dtype in ("float16", "bfloat16", "float64")
    },
    "codes of float4": Case(
        "QuantizeLinear", "divide", [constant("x", [-6, -0.5, 0, 1.5, 4], "float4_e2m1fn")],
        Tensor("y", "int8", None, None, SIGNED),
    ),
    **{
        f"bias of {dtype}": Case(
            "qfmt.Linear", "affine", [ROW, WEIGHT, constant("b", [1, -2], dtype)], Y
        )
        for dtype in ("bfloat16", "float8_e4m3fn", "float16", "float64", "int32")
    },
    "a window of integers": Case(
        "MaxPool", "", [constant("x", [[[-3, 5, 1, 2]]], "int8")], Tensor("y", "int8", None),
        {"kernel_shape": (2,), "strides": (1,), "pads": (0, 0), "dilations": (1,), "ceil_mode": 0},
    ),
    "zero of each channel": Case(
        "Relu", "", [constant("x", [[-3, 5], [1, -2]], "int8", Quantization.of((1.0, 2.0), (0, 0), -128, 127, 1))],
        Tensor("y", "int8", None, None, Quantization.of((1.0, 2.0), (0, 0), -128, 127, 1)),
    ),
    "a dynamic layer of float64": Case(
        "qfmt.DynamicLinear", "dynamic_fma", [constant("x", [[0.25, -1.5, 3.0]], "float64"), WEIGHT],
        Tensor("y", "float32", None), {"reduce_range": 0, "per_token": 0},
    ),
    "sums of a constant": Case("GlobalAveragePool", "exact", [SQUARES], SUMS),
    "windows of a constant": Case("AveragePool", "exact", [SQUARES], SUMS, {**POOL, "count_include_pad": 0}),
    "a product of constants": Case("qfmt.Linear", "exact", [constant("x", [[1, 2, 3]], "uint8", BYTE), WEIGHT], SUMS),
    "products of constants": Case("Mul", "exact", [SQUARES, constant("d", 9, "uint8", BYTE)], SUMS),
    **{
        f"{name} of {dtype}": Case(
            name, "", [constant(each, [[3, 1, 0]], dtype) for each in names], Tensor("y", dtype, None)
        )
        for name, dtype, names in (
            ("Abs", "uint16", "x"), ("Max", "uint32", "ab"), ("Relu", "bool", "x"), ("ReduceMax", "float8_e5m2", "x")
        )
    },
    **{
        f"numbers of {dtype}": Case("DequantizeLinear", "", [constant("x", [3, 1, 0], dtype)], PLAIN)
        for dtype in ("float16", "float64")
    },
    "factors of another type": Case("Mul", "", [constant("x", 1.1, "float32"), constant("d", [0.3], "float64")], PLAIN),
    "a scale of each place": Case("LayerNormalization", "", [THREE, constant("w", [1, 2], "float32"), ONE], PLAIN),
    **{
        f"{name} with an alpha of {alpha}": Case(name, "", [SLOPES], PLAIN, {"alpha": alpha})
        for name, alpha in (("Celu", 1e39), ("Celu", 1e-45), ("Celu", 0.0), ("Elu", 1e39))
    },
    "a table of no rows": Case("DequantizeLinear", "", [constant("x", ROWS, "uint8", NO_SCALES)], PLAIN),
    "nothing beside a row": Case(
        "Concat", "divide", [SQUARES, constant("d", COLUMNS, "uint8", NO_ROWS)], Y, {"axis": 2}
    ),
    "bins of no rows": Case("qfmt.AdaptiveAveragePool", "mean_reciprocal", [SQUARES], Y, {"output_size": (0, 2)}),
    **{
        f"a variance of {dtype}": Case(
            "BatchNormalization", "divide",
            [constant("x", [[[9, 60], [80, 99], [7, 31]]], "uint8", BYTE),
             VECTOR, VECTOR, VECTOR, constant("d", [0.75, 1.5, 0.25], dtype)], Y,
        )
        for dtype in ("bfloat16", "float16", "float8_e4m3fn")
    },
    **{
        f"bounds of {dtype}, {most}": Case(
            "Clip", "", [constant("x", [0, 1, most], dtype), *(constant(*each, dtype) for each in bounds.items())],
            Tensor("y", dtype, None),
        )
        for dtype, least, most in EXTREMES for bounds in [{"l": least, "h": most}]
    },
    **{
        f"padding of {dtype}, {value}": Case(
            "Pad", "", [constant("x", [0, 1], dtype), constant("p", [0, 1], "int64"), constant("v", value, dtype)],
            Tensor("y", dtype, None), {"mode": "constant"},
        )
        for dtype, value in (
            *((dtype, most) for dtype, _, most in EXTREMES), ("bfloat16", 0.7), ("bfloat16", -np.inf), ("float16", 0.7)
        )
    },
    "padding of a whole stride": Case(
        "ConvTranspose", "exact",
        [SQUARES, constant("w", np.arange(4).reshape(1, 1, 2, 2), "int8", SIGNED)], SUMS,
        {**TIGHT, "output_padding": (1, 2)},
    ),
    "rounded padding of a whole stride": Case(
        "ConvTranspose", "float_bias",
        [SQUARES, constant("w", np.arange(4).reshape(1, 1, 2, 2), "int8", SIGNED)], Y,
        {**TIGHT, "output_padding": (1, 0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_the_integers_are_those_of_run(name: str, engine: str) -> None:
    case = CASES[name]
    model = single(case.operator, case.rule, [*case.inputs], case.output, dict(case.attributes))
    given = {each: np.array([[7, 200, 31]], np.uint8) for each in model.graph.inputs}
    expected = model.run(given)["y"]
    made = to_array(model.to_torch(engine)(*(to_tensor(array, "uint8") for array in given.values())), case.output.dtype)
    assert made.dtype == expected.dtype
    assert np.array_equal(made, expected, equal_nan=expected.dtype.kind == "f")
    tell(f"{name}: {expected.size} of {expected.size} equal")


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_a_pool_of_rows_is_refused(engine: str) -> None:
    """Its rank is not known before; torch would sum over all axes."""
    x = np.array([[7, 200, 31]], np.uint8)
    model = single("GlobalAveragePool", "exact", [Tensor("x", "uint8", None, None, BYTE)], SUMS, {})
    with pytest.raises(QfmtError, match="over all spatial dimensions"):
        model.run({"x": x})
    with pytest.raises(QfmtError, match="over all spatial dimensions"):
        model.to_torch(engine)(to_tensor(x, "uint8"))


def test_a_layer_of_floats_with_a_bias_of_integers() -> None:
    floats = [Tensor("x", "float32", (2, 3)), constant("w", [[1, -2, 3], [4, 5, -6]], "float32")]
    model = single("qfmt.Linear", "", [*floats, Tensor("b", "int32", (2,))], PLAIN, {})
    x, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7, -9], np.int32)
    made = model.to_torch()(to_tensor(x, "float32"), to_tensor(b, "int32")).numpy()
    assert np.array_equal(made, model.run({"x": x, "b": b})["y"])


def test_integers_without_a_quantization_are_a_bias_between_floats() -> None:
    case, x = CASES["bias of int32"], np.array([[7, 200, 31]], np.uint8)
    model = single(case.operator, case.rule, [*case.inputs], case.output, {})
    made = model.to_torch("qdq")(to_tensor(x, "uint8")).numpy()
    assert np.array_equal(made, model.run({"x": x})["y"])
