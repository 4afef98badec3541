"""Which inputs torch takes as real numbers, although the user states a quantization.

TorchScript and FX do not say whether `forward` takes quantized tensors. If the network quantizes an input itself, or
computes with floats, torch cannot run it on a quantized one.
"""

from __future__ import annotations

from ...model import DTYPES, Node
from ...ops import OPERATORS
from .building import Builder
from .values import Refine

_ROUND_BOUNDS = {"Clip", "Pad"}
"""Operators that move integers, and quantize a bound or a value for it."""

QUANTIZED_KERNELS = {
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "cat", "clamp", "clip", "constant_pad_nd", "gelu", "hardsigmoid", "hardtanh", "leaky_relu", "masked_fill", "mean",
    "pad", "reflection_pad1d", "reflection_pad2d", "relu6", "sigmoid", "stack", "tanh", "threshold", "topk",
    "upsample_bilinear2d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
}  # fmt: skip
"""Calls of aten that torch has for quantized tensors, too, beside most of those that only move elements."""

FLOAT_KERNELS = {"amax", "amin", "gather"}
"""Calls of aten that only move elements, and that torch does not have for quantized tensors."""


def require_reals(lift: Builder) -> None:
    """Find the inputs that torch cannot take as quantized tensors (`Builder.floats`). Refine if a node would round to
    the grid of one: then the network gets its real numbers."""
    if not lift.undecided:
        return
    derived = {key: {key} for key in lift.undecided}
    """Tensors on the grid of inputs → these."""
    rounded, taken = {*lift.asked}, set[str]()
    for node in lift.nodes:
        lift.budget.spend(len(node.inputs))
        origins = {origin for key in node.inputs for origin in derived.get(key, ())}
        if not origins or (node.operator == "DequantizeLinear" and "fake_quant" not in node.source_operator):
            continue
        if node.source_operator.startswith("quantized::") and "dynamic" not in node.source_operator:
            taken |= origins
        elif not _takes_quantized(lift, node):
            lift.floats |= origins
        if node.operator != "QuantizeLinear" and lift.tensors[node.outputs[0]].quantization is not None:
            rounded |= set() if _only_moves(node) else origins
            derived.update(dict.fromkeys(node.outputs, origins))
    lift.floats -= taken
    for key in lift.inputs:
        if key in lift.floats & rounded:
            raise Refine(lift.wanted[key], lift.tensors[key].shape, is_real=True)


def _takes_quantized(lift: Builder, node: Node) -> bool:
    """Whether torch computes a node on quantized tensors."""
    first, target = lift.tensors[node.outputs[0]], node.source_operator.removeprefix("aten::").rstrip("_")
    if first.quantization is None:
        return DTYPES[first.dtype].kind != "f"
    if any(_is_real(lift, node, key) for key in node.inputs):  # quantized tensors and floats do not mix
        return False
    if target in QUANTIZED_KERNELS:
        return True
    return node.operator != "QuantizeLinear" and _only_moves(node) and target not in FLOAT_KERNELS


def _is_real(lift: Builder, node: Node, key: str) -> bool:
    """Whether a node computes with a tensor of floats. Unless it joins tensors, its constants are bounds, slopes or
    scales, which torch takes beside quantized tensors."""
    if not key or ((tensor := lift.tensors[key]).is_constant and node.operator != "Concat"):
        return False
    return tensor.quantization is None and DTYPES[tensor.dtype].kind == "f"


def _only_moves(node: Node) -> bool:
    """Whether a node moves integers, and rounds nothing to their grid."""
    return OPERATORS[node.operator].moves and node.operator not in _ROUND_BOUNDS
