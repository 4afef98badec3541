"""Networks of one node from random cases, with any quantization parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cases.operators import CASES, compute
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, only_moves

Array = np.ndarray[Any, Any]

Rng = np.random.Generator

KINDS = {"float": (), "8 bits": ("uint8", "int8"), "more bits": ("int16", "uint16", "int32")}

REAL_INPUTS = {
    "Clip": 1, "Pad": 1, "Resize": 1, "BatchNormalization": 1, "LayerNormalization": 1, "GroupNormalization": 1,
    "InstanceNormalization": 1,
}  # fmt: skip
"""Operator → the number of quantized inputs; the others are floats. Default: all."""

WEIGHTS = {"Conv": 0, "ConvTranspose": 1, "qfmt.Linear": 0}
"""The axis along which the second input may have its scales; the third is a bias."""


def grid(rng: Rng, values: Array, dtype: str, axis: int | None = None) -> Quantization:
    """Scales that approximately cover the range of the values; any zero points and clamped ranges."""
    limits = DTYPES[dtype]
    parts = [values] if axis is None else [np.take(values, i, axis) for i in range(values.shape[axis])]
    reach = [float(np.abs(part[np.isfinite(part)]).max(initial=0.1)) for part in parts]
    scales = [float(np.float32(r * rng.uniform(1, 3) / (limits.maximum - limits.minimum))) for r in reach]
    middle = (limits.minimum + limits.maximum + 1) // 2
    if axis is not None:
        points = [int(rng.integers(limits.minimum, limits.maximum + 1)) if rng.random() < 0.2 else 0 for _ in parts]
        return Quantization.of(tuple(scales), tuple(points), limits.minimum, limits.maximum, axis=axis)
    point = int(rng.integers(limits.minimum, limits.maximum + 1)) if rng.random() < 0.5 else middle
    low = point if rng.random() < 0.2 else limits.minimum
    return Quantization.of((scales[0],), (point,), low, limits.maximum)


def stored(values: Array, q: Quantization, dtype: str) -> Array:
    steps = np.rint(np.nan_to_num(values) / q.scales(values.shape) + q.zero_points(values.shape))
    return np.clip(steps, q.quant_min, q.quant_max).astype(dtype)


def one_node(name: str, kind: str, rng: Rng) -> tuple[Model, dict[str, Array]]:
    """A model of a random case; some inputs are constants, some sizes have a name."""
    operator, case = OPERATORS[name], CASES[name](rng)
    dtype = str(rng.choice(KINDS[kind])) if kind != "float" else ""
    rule = str(rng.choice(operator.rules or ("",))) if dtype else ""
    tensors: dict[str, Tensor] = {}
    inputs: dict[str, Array] = {}
    first: Quantization | None = None
    for i, array in enumerate(case.inputs):
        if array is None:
            continue
        at, own, q = f"x{i}", dtype, None
        constant = i > 0 and (array.dtype == np.int64 or name == "Resize" or rng.random() < 0.7)
        if dtype and array.dtype == np.float32 and i < REAL_INPUTS.get(name, 9):
            if name in WEIGHTS and i == 1:
                own = "int8" if kind == "8 bits" and rng.random() < 0.7 else dtype
                q = grid(rng, array, own, WEIGHTS[name] if rng.random() < 0.6 else None)
            elif name in WEIGHTS and i == 2:
                own, q = _bias(rng, tensors, name, case.attributes)
                constant = True
            else:
                q = first if first and operator.moves else grid(rng, array, own)
                first = first or q
        array = array if q is None else stored(array, q, own)
        if constant:
            tensors[at] = Tensor.constant(at, array, q)
        else:
            shape = tuple(f"{at}.{axis}" if rng.random() < 0.3 else size for axis, size in enumerate(array.shape))
            tensors[at], inputs[at] = Tensor(at, str(array.dtype), shape, quantization=q), array
    results = compute(name, case)
    for i, array in enumerate(results):
        at, own, q = f"y{i}", array.dtype.name, None
        if dtype and array.dtype == np.float32 and name != "DequantizeLinear":
            keeps = operator.moves or rule.startswith(("mean", "interpolate"))
            own, q = dtype, first if keeps and first else grid(rng, array, dtype)
        tensors[at] = Tensor(at, own, array.shape if rng.random() < 0.5 else (None,) * array.ndim, quantization=q)
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(case.inputs))
    outputs = tuple(f"y{i}" for i in range(len(results)))
    node = Node(name, names, outputs, operator.complete(case.attributes), "node", operator.version, rule)
    node = replace(node, rule="") if only_moves(node, tensors) else node
    return Model(Graph(tuple(inputs), outputs, (node,), tensors), engine="fbgemm"), inputs


def _bias(rng: Rng, tensors: dict[str, Tensor], name: str, attributes: Any) -> tuple[str, Quantization | None]:
    """A float bias, as in PyTorch, or int32 with the scale of the sums, as in ONNX."""
    x, w = tensors["x0"].quantization, tensors["x1"].quantization
    if x is None or w is None or rng.random() < 0.6:
        return "float32", None
    groups = int(attributes["group"]) if name == "ConvTranspose" and w.is_per_channel else 1
    scales = tuple(float(np.float32(x.scale[0] * scale)) for scale in w.scale.numbers() * groups)
    axis = 0 if w.is_per_channel else None
    return "int32", Quantization.of(scales, (0,) * len(scales), -(2**31), 2**31 - 1, axis=axis)
