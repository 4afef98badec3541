"""Networks of one node from random cases: floats, or quantized as in ONNX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cases.operators import CASES, Case, compute
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, only_moves


def quantized_node(name: str, case: Case, rng: np.random.Generator) -> tuple[Model, dict[str, np.ndarray]]:
    """The case with quantized tensors, and the rule of ONNX."""
    operator = OPERATORS[name]
    moves = operator.moves
    dtype = str(rng.choice(["uint8", "int8"]))
    tensors: dict[str, Tensor] = {}
    inputs = {}
    for i, array in enumerate(case.inputs):
        if array is None:
            continue
        if array.dtype != np.float32 or i >= REAL_INPUTS.get(name, 99) or (moves and i and name != "Concat"):
            tensors[f"x{i}"] = Tensor.constant(f"x{i}", array)
        elif i == 1 and name in WEIGHTS:
            grid = weight_grid(array, WEIGHTS[name])
            tensors[f"x{i}"] = Tensor.constant(f"x{i}", on_grid(array, grid, "int8"), grid)
        else:
            grid = grid_of(array, dtype, rng)
            tensors[f"x{i}"] = Tensor(f"x{i}", dtype, array.shape, quantization=grid)
            inputs[f"x{i}"] = np.asarray(on_grid(array, grid, dtype))
    results = compute(name, case)
    outputs = []
    for i, each in enumerate(results):
        grid = tensors["x0"].quantization if moves else grid_of(each, dtype, rng)
        outputs.append(Tensor(f"y{i}", dtype, each.shape, quantization=grid))
    rule = operator.engines.get("onnx", "")
    if rule not in ("divide", "integer_bias", "") or {case.attributes.get(key, 1) for key in ("alpha", "beta")} != {1}:
        rule = "divide" if rule else rule
    return _model(name, case, tensors, inputs, outputs, rule), inputs


QUANTIZED = [
    name
    for name in CASES
    if OPERATORS[name].quantized.name not in ("FLOAT_ONLY", "WEIGHTS", "INTEGERS") and name != "qfmt.RequantShift"
]
"""RequantShift has a rule of its own alone, which networks of integers test."""


REAL_INPUTS = {
    "Clip": 1, "Pad": 1, "Resize": 1, "BatchNormalization": 1, "LayerNormalization": 1, "GroupNormalization": 1,
    "InstanceNormalization": 1, "Conv": 2, "ConvTranspose": 2, "qfmt.Linear": 2,
}  # fmt: skip
"""Operator → the number of quantized inputs; the others are floats. Default: all."""

WEIGHTS = {"Conv": 0, "ConvTranspose": 1, "qfmt.Linear": 0}
"""The axis of the scales of the second input."""


def one_node(name: str, case: Case, rng: np.random.Generator) -> tuple[Model, dict[str, np.ndarray]]:
    """A model without quantization; integers, and some of the other inputs, are constants."""
    tensors: dict[str, Tensor] = {}
    inputs = {}
    for i, array in enumerate(case.inputs):
        if array is None:
            continue
        if i and (array.dtype == np.int64 or name == "Resize" or rng.random() < 0.5):
            tensors[f"x{i}"] = Tensor.constant(f"x{i}", array)
        else:
            tensors[f"x{i}"] = Tensor(f"x{i}", array.dtype.name, array.shape)
            inputs[f"x{i}"] = np.asarray(array)
    results = compute(name, case)
    outputs = [Tensor(f"y{i}", each.dtype.name, each.shape) for i, each in enumerate(results)]
    return _model(name, case, tensors, inputs, outputs, ""), inputs


def _model(
    name: str, case: Case, tensors: dict[str, Tensor], inputs: dict[str, Any], outputs: list[Tensor], rule: str
) -> Model:
    operator = OPERATORS[name]
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(case.inputs))
    made = tuple(tensor.name for tensor in outputs)
    node = Node(name, names, made, operator.complete(case.attributes), "node", operator.version, rule)
    tensors |= {tensor.name: tensor for tensor in outputs}
    node = replace(node, rule="") if only_moves(node, tensors) else node
    return Model(Graph(tuple(inputs), made, (node,), tensors), engine="onnx")


def grid_of(array: np.ndarray, dtype: str, rng: np.random.Generator) -> Quantization:
    limits = np.iinfo(dtype)
    low, high = float(array.min(initial=0)), float(array.max(initial=0))
    scale = float(np.float32(max(1e-3, (high - low) / 255)))
    return Quantization.per_tensor(scale, int(np.clip(limits.min - round(low / scale), limits.min, limits.max)), dtype)


def weight_grid(array: np.ndarray, axis: int) -> Quantization:
    others = tuple(i for i in range(array.ndim) if i != axis)
    scales = np.abs(array).max(others, initial=0.1) / np.float32(127)
    return Quantization.of(tuple(scales.astype(np.float32).tolist()), (0,) * scales.size, -128, 127, axis)


def on_grid(array: np.ndarray, grid: Quantization, dtype: str) -> np.ndarray:
    values = np.rint(array / grid.scales(array.shape)) + grid.zero_points(array.shape)
    return np.asarray(np.clip(values, grid.quant_min, grid.quant_max)).astype(dtype)
