"""Compares `Model.to_torch` with `Model.run` on layers whose sums overflow 16 bits: prints JSON.

A separate program, so that it can also run as on a processor without VNNI: torch reads the environment only once.
Scales are powers of two and zero points even, so that all requantize rules agree.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import torch

from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS

CONVOLUTIONS = {
    "1x1": ("Conv", (32, 40, 1, 1), {}),
    "3x3": ("Conv", (33, 64, 3, 1), {"pads": (1, 1, 1, 1)}),
    "3x3 in parts": ("Conv", (256, 16, 3, 1), {"pads": (1, 1, 1, 1)}),
    "7x7, strides, one side": ("Conv", (3, 16, 7, 1), {"pads": (0, 1, 2, 3), "strides": (2, 2)}),
    "grouped": ("Conv", (32, 32, 3, 4), {"dilations": (2, 2)}),
    "depthwise": ("Conv", (128, 128, 3, 128), {"pads": (1, 1, 1, 1)}),
    "transposed": ("ConvTranspose", (16, 16, 3, 1), {"strides": (2, 2)}),
    "transposed, grouped": ("ConvTranspose", (16, 8, 2, 2), {"strides": (2, 2)}),
}
"""Name → operator; channels, outputs, kernel size, groups; attributes that differ from the usual ones."""

ENGINES = ("auto", "fast", "onednn", "reference")


def extreme(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Integers, many of them the largest, so that many pairs overflow."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max + 1, shape)
    return np.where(rng.random(shape) < 0.5, limits.max, values).astype(dtype)


def layer(operator: str, weight: np.ndarray, attributes: dict[str, object], rule: str, terms: int) -> Model:
    """A layer uint8 → uint8, or a dynamic one for float32; the output scale makes a sum of `terms` terms about 100
    steps."""
    is_dynamic, step = "reduce_range" in attributes, 2.0 ** np.ceil(np.log2(255 * 64 * terms / 100))
    grid = None if is_dynamic else Quantization.per_tensor(2.0**-4, 2, "uint8")
    result = None if is_dynamic else Quantization.per_tensor(step / 16, 100, "uint8")
    kind, scale = "float32" if is_dynamic else "uint8", 1 / step if rule == "float_bias" and is_dynamic else 1.0
    outputs = ["y", "h", "c"][: len(OPERATORS[operator].outputs)]
    names = ["x", "w", "w_hh"][: 3 if operator in ("qfmt.LSTM", "qfmt.GRU") else 2]
    constants = [Tensor.constant(name, weight, Quantization.per_tensor(scale, 0, "int8")) for name in names[1:]]
    rank = {"qfmt.Linear": 2, "qfmt.DynamicLinear": 2}.get(operator, 3 if len(names) == 3 else weight.ndim)
    tensors = [
        Tensor("x", kind, (None,) * rank, None, grid),
        *constants,
        *(Tensor(name, kind, None, None, result) for name in outputs),
    ]
    node = Node(operator, tuple(names), tuple(outputs), attributes, "layer", OPERATORS[operator].version, rule)
    return Model(Graph(("x",), tuple(outputs), (node,), {tensor.name: tensor for tensor in tensors}))


def convolution(name: str, rng: np.random.Generator, *, is_dynamic: bool = False) -> tuple[Model, np.ndarray]:
    operator, (channels, outputs, size, group), given = CONVOLUTIONS[name]
    transposed = operator == "ConvTranspose"
    shape = (channels, outputs // group) if transposed else (outputs, channels // group)
    weight = extreme(rng, (*shape, size, size), np.int8)
    if name.endswith("in parts"):  # both signs: sums stay small although their range is large
        weight[..., 0] = -weight[..., 1]
    attributes = {
        "kernel_shape": (size, size),
        "strides": (1, 1),
        "pads": (0,) * 4,
        "dilations": (1, 1),
        "group": group,
    }
    attributes |= given | ({"output_padding": (0, 0)} if transposed else {})
    x = extreme(rng, (2, channels, 20, 20), np.uint8)
    if is_dynamic:
        operator, x = f"qfmt.Dynamic{operator}", x.astype(np.float32)
        attributes["reduce_range"] = 0
    return layer(operator, weight, attributes, "float_bias", channels // group * size * size), x


def layers(rng: np.random.Generator) -> dict[str, tuple[Model, np.ndarray]]:
    found = {name: convolution(name, rng) for name in CONVOLUTIONS}
    found |= {f"dynamic {name}": convolution(name, rng, is_dynamic=True) for name in ("3x3", "grouped", "transposed")}
    for count in (64, 4000):
        weight, x = extreme(rng, (300, count), np.int8), extreme(rng, (50, count), np.uint8)
        found[f"linear of {count}"] = layer("qfmt.Linear", weight, {}, "float_bias", count), x
        dynamic = layer("qfmt.DynamicLinear", weight, {"reduce_range": 0, "per_token": 0}, "dynamic_fma", 0)
        found[f"dynamic linear of {count}"] = dynamic, x.astype(np.float32)
    for operator, gates in (("qfmt.LSTM", 4), ("qfmt.GRU", 3)):
        weight = extreme(rng, (gates * 16, 16), np.int8)
        x = extreme(rng, (3, 5, 16), np.uint8).astype(np.float32)
        found[operator] = layer(operator, weight, {"reduce_range": 0, "reverse": 0}, "dynamic_fma", 0), x
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, list[object]]] = {}
    for name, (model, x) in layers(np.random.default_rng(3)).items():
        expected = model.run({"x": x})["y"]
        for engine in ENGINES:
            module = model.to_torch(engine)
            got = module(torch.from_numpy(x))
            got = (got[0] if isinstance(got, tuple) else got).numpy()
            report = module.report()
            told = any("overflow" in row.reason for row in (*report, *report.notes))
            equal = int((got == expected).sum())
            found.setdefault(name, {})[engine] = [equal, got.size, told, report.engine]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
