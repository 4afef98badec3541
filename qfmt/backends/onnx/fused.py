"""The constants whose scales ONNX Runtime would misread where it fuses nodes."""

from __future__ import annotations

from ...model import DTYPES, Model, Node, Tensor
from ...ops.accumulation import output_axis
from ...ops.registry import OPERATORS, Trait, has


def misread(model: Model) -> frozenset[str]:
    """The names of 8-bit constants with more than one scale that are read beside a quantized tensor, other than weights
    with one scale for each output channel.

    ONNX Runtime fuses the node with the DequantizeLinear nodes before it, and takes the scales for those of output
    channels: its MatMulIntegerToFloat, QGemm and QLinearConv fail, or compute with wrong scales.
    """
    tensors, names, found = model.tensors, _of_integers(model), set[str]()
    for node in model.nodes:
        given = [tensors[name] for name in node.inputs if name]
        if any(tensor.name in names for tensor in given):
            found.update(tensor.name for tensor in given if _has_many_scales(tensor) and not _is_weight(node, tensor))
    return frozenset(found)


def _of_integers(model: Model) -> set[str]:
    """The computed tensors that are quantized, or dequantized: ONNX Runtime also looks through nodes that move them."""
    names = {name for name, tensor in model.tensors.items() if tensor.data is None and tensor.quantization is not None}
    for node in model.nodes:
        if node.operator == "DequantizeLinear" or (has(node, Trait.ANY_MOVE) and node.inputs[0] in names):
            names.update(node.outputs)
    return names


def _has_many_scales(tensor: Tensor) -> bool:
    grid = tensor.quantization
    return tensor.data is not None and grid is not None and DTYPES[tensor.dtype].bits == 8 and len(grid.scale) > 1


def _is_weight(node: Node, tensor: Tensor) -> bool:
    """Whether it is the weight of a product, one matrix or kernel, with one scale for each output channel."""
    grid, rank = tensor.quantization, len(tensor.shape or ())
    if grid is None or not has(node, Trait.PRODUCT) or tensor.name not in node.inputs[1:2]:
        return False
    is_matrix = rank == 2 or "kernel_shape" in OPERATORS[node.operator].attributes
    return is_matrix and grid.is_per_channel and grid.axis == output_axis(node, rank)
