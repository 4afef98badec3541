"""Torch's quantized kernels beside qfmt's recomputation, as a processor without VNNI runs them: prints JSON.

A program of its own: the libraries look at these variables once. What does not saturate there does not either where the
processor has no AVX2, or is no x86.
"""

from __future__ import annotations

import json
import os
import warnings

os.environ.update(FBGEMM_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2")

import numpy as np
import torch

from qfmt.compare.classes import classify
from qfmt.interpreter import execute
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand

RULES = {"fbgemm": "float_bias", "onednn": "affine"}
CONVOLUTIONS = {
    "1x1": (16, 16, 1, 1), "3x3": (16, 24, 3, 1), "odd channels": (5, 16, 3, 1), "grouped": (32, 32, 5, 4),
    "groups of three": (12, 24, 3, 4), "depthwise": (16, 16, 3, 16), "depthwise 5x5": (16, 32, 5, 16),
}  # fmt: skip
"""Name → channels, outputs, size of the kernel, groups."""


def extreme(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Integers of which many are the largest, so that many pairs overflow."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max + 1, shape)
    return np.where(rng.random(shape) < 0.5, limits.max, values).astype(dtype)


def counted(node: Node, x: Operand, w: Operand, call: object, engine: str) -> list[int]:
    """Counts: outputs, off, saturated, overflow possible, wrong, ties. `node` gives exact sums."""
    (sums,) = execute(node, [x, w], [Tensor("y", "int32", None)])
    scale = float(np.float32(np.abs(sums).max() / 100))
    theirs = call(scale)
    output = Tensor("y", "uint8", None, None, Quantization.per_tensor(scale, 128, "uint8"))
    stated = Node(node.operator, node.inputs, node.outputs, node.attributes, "", node.version, RULES[engine])
    (mine,) = execute(stated, [x, w], [output])
    found = classify(stated, [x, w], output, mine, theirs, engine)
    return [mine.size, int((mine != theirs).sum()), found.saturated, found.overflow, found.wrong, found.tie]


def main() -> None:
    warnings.simplefilter("ignore")
    rng, ops, found = np.random.default_rng(5), torch.ops.quantized, {}
    for engine in (each for each in RULES if each in torch.backends.quantized.supported_engines):
        torch.backends.quantized.engine = engine
        for name, (channels, outputs, kernel, group) in CONVOLUTIONS.items():
            x, w = (
                extreme(rng, (2, channels, 12, 12), np.uint8),
                extreme(rng, (outputs, channels // group, kernel, kernel), np.int8),
            )
            given = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), 1.0, 3)
            weight = torch._make_per_tensor_quantized_tensor(torch.from_numpy(w), 1.0, 0)
            packed = ops.conv2d_prepack(weight, None, [1, 1], [0, 0], [1, 1], group)
            attributes = {
                "kernel_shape": (kernel,) * 2,
                "strides": (1, 1),
                "pads": (0,) * 4,
                "dilations": (1, 1),
                "group": group,
            }
            node = Node("Conv", ("x", "w"), ("y",), attributes, "", OPERATORS["Conv"].version, "exact")
            found[f"{engine} {name}"] = counted(
                node,
                Operand(x, Quantization.per_tensor(1.0, 3, "uint8")),
                Operand(w, Quantization.per_tensor(1.0, 0, "int8")),
                lambda scale, given=given, packed=packed: ops.conv2d(given, packed, scale, 128).int_repr().numpy(),
                engine,
            )
        for features in (64, 63, 5):
            x, w = extreme(rng, (50, features), np.uint8), extreme(rng, (40, features), np.int8)
            given = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), 1.0, 3)
            packed = ops.linear_prepack(torch._make_per_tensor_quantized_tensor(torch.from_numpy(w), 1.0, 0), None)
            node = Node("qfmt.Linear", ("x", "w"), ("y",), {}, "", OPERATORS["qfmt.Linear"].version, "exact")
            found[f"{engine} linear of {features}"] = counted(
                node,
                Operand(x, Quantization.per_tensor(1.0, 3, "uint8")),
                Operand(w, Quantization.per_tensor(1.0, 0, "int8")),
                lambda scale, given=given, packed=packed: ops.linear(given, packed, scale, 128).int_repr().numpy(),
                engine,
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
