"""What has multiple steps is computed in float32 for float16 and bfloat16, and rounded once, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import helper
from onnxruntime import InferenceSession
from torch.nn import functional

from qfmt.interpreter import execute
from qfmt.model import Graph, Model, Node, Tensor
from qfmt.ops import OPERATORS, Operand
from support.counts import tell

TYPES = {"float16": (torch.float16, np.float16), "bfloat16": (torch.bfloat16, ml_dtypes.bfloat16)}
CASES: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "HardSigmoid": ({"alpha": 1 / 6, "beta": 0.5}, functional.hardsigmoid),
    "HardSwish": ({}, functional.hardswish),
    "LeakyRelu": ({"alpha": 0.3}, lambda x: functional.leaky_relu(x, 0.3)),
    "Sigmoid": ({}, torch.sigmoid),
    "Mish": ({}, functional.mish),
    "Softmax": ({"axis": 1}, lambda x: torch.softmax(x, 1)),
}
EXPONENTIALS = ("Sigmoid", "Mish", "Softmax")
"""exp may differ in the last bit of a float32, and the result then by one place of 16 bits."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_gives_what_torch_computes(dtype: str, name: str) -> None:
    kind, own = TYPES[dtype]
    codes = np.arange(1 << 16, dtype=np.uint16).reshape(512, 128)
    codes = np.where(np.isfinite(codes.view(own).astype(np.float32)), codes, 0).astype(np.uint16)
    attributes, function = CASES[name]
    entry = OPERATORS[name]
    node = Node(name, ("x",), ("y",), entry.complete(attributes), version=entry.version)
    (ours,) = execute(node, [Operand(codes.view(own), None)], [Tensor("y", dtype, codes.shape)])
    theirs = function(torch.from_numpy(codes.view(np.int16)).view(kind)).view(torch.int16).numpy()
    steps = np.abs(_ordered(ours.view(np.int16)) - _ordered(theirs))
    tell(f"{name} of {dtype}: {np.count_nonzero(steps == 0):,} of {steps.size:,} outputs are equal to torch's")
    assert steps.max() <= (name in EXPONENTIALS)


def _ordered(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Codes of floats as integers in the order of the numbers; -0 is 0."""
    wide = codes.astype(np.int64)
    return np.where(wide < 0, -(wide & 0x7FFF), wide)


WINDOW = {"kernel_shape": (24, 24), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
FOUR_ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)
STATISTICS: dict[str, tuple[dict[str, Any], list[np.ndarray[Any, Any]], Callable[[torch.Tensor], torch.Tensor]]] = {
    "GroupNormalization": ({"num_groups": 2}, [FOUR_ONES, ZEROS], lambda x: functional.group_norm(x, 2)),
    "InstanceNormalization": ({}, [FOUR_ONES, ZEROS], functional.instance_norm),
    "LayerNormalization": ({}, [np.ones(24, np.float32)], lambda x: functional.layer_norm(x, (24,))),
    "AveragePool": (
        {"kernel_shape": (24, 24), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)},
        [],
        lambda x: functional.avg_pool2d(x, 24),
    ),
    "GlobalAveragePool": ({}, [], lambda x: functional.adaptive_avg_pool2d(x, 1)),
    "qfmt.AdaptiveAveragePool": ({"output_size": (1, 2)}, [], lambda x: functional.adaptive_avg_pool2d(x, (1, 2))),
    "ReduceL2": ({"keepdims": 1}, [np.array([3])], lambda x: torch.linalg.vector_norm(x, dim=3, keepdim=True)),
    "ReduceMean": ({"keepdims": 1}, [np.array([2, 3])], lambda x: x.mean((2, 3), keepdim=True)),
    "ReduceSum": ({"keepdims": 1}, [np.array([3])], lambda x: x.sum(3, keepdim=True)),
}
"""Attributes, parameters and what torch computes."""


@pytest.mark.parametrize("scale", [300.0, 1.0, 1e-4])
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("dtype", TYPES)
def test_statistics_have_the_digits_and_the_range_of_float32(dtype: str, name: str, scale: float) -> None:
    """Squares of numbers above 256 are infinite in float16, and a sum of many numbers stops growing in bfloat16."""
    kind, own = TYPES[dtype]
    attributes, parameters, function = STATISTICS[name]
    x, entry = (np.random.default_rng(0).random((2, 4, 24, 24)) * scale).astype(own), OPERATORS[name]
    node = Node(name, ("x", "s", "b")[: 1 + len(parameters)], ("y",), entry.complete(attributes), version=entry.version)

    def run(kind: Any, dtype: str) -> Any:
        given = [each.astype(kind) if each.dtype.kind != "i" else each for each in (x, *parameters)]
        (result,) = execute(node, [Operand(each, None) for each in given], [Tensor("y", dtype, None)])
        return result

    ours, wide = run(own, dtype), run(np.float32, "float32")
    assert (ours == wide.astype(own)).all() and np.isfinite(wide).all()
    theirs = function(torch.from_numpy(x.view(np.int16)).view(kind)).float().numpy()
    off = np.abs(ours.astype(np.float32) - theirs).max() / np.abs(theirs).max() / float(ml_dtypes.finfo(own).eps)
    tell(f"{name} of {dtype}, {scale:g} times: {off:.1f} units off what torch computes")
    assert off < 2


X = np.random.default_rng(0).standard_normal((6, 6)) * 60
PLAIN = {"strides": (1,), "pads": (0, 0), "dilations": (1,)}
STEPS: dict[str, tuple[dict[str, Any], list[np.ndarray[Any, Any]]]] = {
    "Conv": ({"kernel_shape": (1,), **PLAIN}, [X[None], X[:3, :, None], -X[:3, 0] * 100]),
    "Einsum": ({"equation": "ij,jk,kl->il"}, [X, X * 1e-6, X * 1e-3]),
    "Gemm": ({"alpha": 0.01, "beta": -0.3}, [X, X, X]),
    "GRU": ({"hidden_size": 2}, [X[None, :, :3] / 60, X[None, :, :3] / 20, X[None, :, 3:5] / 20]),
    "Mean": ({}, [X * 350, X * 351]),
    "Sum": ({}, [X * 350, X * 351, X * -352]),
}
"""Attributes and inputs."""


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_steps_of_a_node_are_not_rounded_as_in_onnx_runtime(dtype: str, name: str) -> None:
    """Products and sums of 16 bits may be infinite, where the result is not."""
    attributes, arrays = STEPS[name]
    entry, given = OPERATORS[name], [array.astype(np.float16).astype(dtype) for array in arrays]
    names = [f"x{index}" for index in range(len(given))]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info(each, kind, a.shape) for each, a in zip(names, given, strict=True)]
    output = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([helper.make_node(name, names, ["y"], **attributes)], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, dict(zip(names, given, strict=True)))
    node = Node(name, tuple(names), ("y",), entry.complete(attributes), version=entry.version)
    ours = execute(node, [Operand(array, None) for array in given], [Tensor("y", dtype, None)])[0]
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, theirs, rtol=2 * float(np.finfo(dtype).eps), atol=1e-4)


ONES = np.ones((1, 1, 17, 17, 17))
CUBE = {"strides": (17,) * 3, "pads": (0,) * 6, "dilations": (1,) * 3}
ROW, LESS = np.ones((1, 500)), np.array([-60000])
SUMS: dict[str, tuple[dict[str, Any], list[np.ndarray[Any, Any]]]] = {
    "AveragePool": ({"kernel_shape": (17,) * 3, **CUBE}, [ONES]),
    "Conv": ({"kernel_shape": (17,) * 3, **CUBE}, [ONES, ONES, LESS / 10]),
    "ConvTranspose": (
        {"kernel_shape": (1,), "output_padding": (0,), **PLAIN},
        [ROW[..., None], ROW.T[..., None] * 200, LESS],
    ),
    "Gemm": ({}, [ROW, ROW.T * 200, LESS]),
    "qfmt.AdaptiveAveragePool": ({"output_size": (2, 1, 1)}, [ONES]),
    "qfmt.Linear": ({}, [ROW, ROW * 200, LESS]),
}
"""Attributes and inputs, of which 16 bits cannot hold the sums."""


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_modules_sum_in_float32(dtype: str, name: str) -> None:
    kind, own = TYPES[dtype]
    attributes, arrays = SUMS[name]
    entry, given = OPERATORS[name], [array.astype(own) for array in arrays]
    names = tuple(f"x{index}" for index in range(len(given)))
    tensors = {each: Tensor(each, dtype, array.shape) for each, array in zip(names, given, strict=True)}
    node = Node(name, names, ("y",), entry.complete(attributes), version=entry.version)
    model = Model(Graph(names, ("y",), (node,), tensors | {"y": Tensor("y", dtype, None)}))
    expected = model.run(dict(zip(names, given, strict=True)))["y"].astype(np.float32)
    for engine in ("auto", "reference", "fast"):
        result = model.to_torch(engine=engine)(*(torch.from_numpy(each.view(np.int16)).view(kind) for each in given))
        np.testing.assert_array_equal(result.float().numpy(), expected)


@pytest.mark.parametrize("exponent", ["float32", "float64", "int64"])
def test_a_power_has_the_type_of_its_base(exponent: str) -> None:
    """In ONNX; torch has the wider type of both."""
    given = np.array([2, 4, 0.5, 3], np.float16), np.array([3, 2, 2, 5], exponent)
    tensors = {"x": Tensor("x", "float16", (4,)), "y": Tensor("y", exponent, (4,)), "z": Tensor("z", "float16", None)}
    model = Model(Graph(("x", "y"), ("z",), (Node("Pow", ("x", "y"), ("z",), {}, version=15),), tensors))
    expected = model.run(dict(zip("xy", given, strict=True)))["z"]
    for engine in ("auto", "reference"):
        result = model.to_torch(engine=engine)(*map(torch.from_numpy, given))
        np.testing.assert_array_equal(result.numpy(), expected, strict=True)
