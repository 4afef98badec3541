"""What ONNX Runtime would misread, or round, where it fuses nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...arithmetic import f32, whole_bias
from ...model import DTYPES, INT32, Model, Node, Quantization, Tensor
from ...ops.accumulation import in_units_of_sums, output_axis, unit_of_sums
from ...ops.registry import OPERATORS, Trait, has

Grids = Mapping[str, Quantization]
"""The quantization of each computed tensor that is quantized, or dequantized; also if it was moved since, as ONNX
Runtime looks through that."""


class Kept(NamedTuple):
    """Names of tensors at which nodes are to be kept apart.

    `constants`, from nodes that read them: ONNX Runtime would use wrong scales, or lacks a kernel. `results`, from
    their quantization: it would round the bias in them too far.
    """

    constants: frozenset[str]
    results: frozenset[str]


def kept_apart(model: Model) -> Kept:
    """The tensors of a model at which ONNX Runtime must not fuse nodes.

    It takes the scales of 8-bit constants beside a quantized tensor for those of output channels, and the scale of an
    int32 bias for that of the sums: its MatMulIntegerToFloat, QGemm and QLinearConv fail, or compute with wrong scales.
    A float bias it rounds to int32 in units of the sums (WeightBiasQuantization). Kernels of integers for weights of 2
    bits do not exist.
    """
    grids, read, readers = _grids(model), _read(model), model.graph.readers()
    constants, results = set[str](), set[str]()
    for node in model.nodes:
        if any(name in grids for name in node.inputs):
            given = [read[name] for name in node.inputs if name]
            odd = (each for each in given if _has_many_scales(each) and not _is_weight(node, each, read))
            few = (each for each in given if each.is_constant and DTYPES[each.dtype].bits == 2)
            constants.update(each.name for each in (*odd, *few))
    for product, bias, result in _biases(model, read):
        x, w = grids.get(product.inputs[0]), read[product.inputs[1]].quantization
        if x is None or w is None or not x.is_per_tensor or not w.is_affine:
            continue
        if DTYPES[bias.dtype].kind == "f":
            ends = _ends(read[result], readers, read)
            results.update(y.name for y in ends if _is_rounded_far(bias, product, x, w, y))
        elif DTYPES[bias.dtype].bits == 32 and _is_in_other_units(bias.quantization, product, x, w):
            constants.add(bias.name)
    return Kept(frozenset(constants), frozenset(results))


def _grids(model: Model) -> Grids:
    computed = (tensor for tensor in model.tensors.values() if tensor.data is None)
    grids = {tensor.name: tensor.quantization for tensor in computed if tensor.quantization is not None}
    for node in model.nodes:
        passes = node.operator == "DequantizeLinear" or has(node, Trait.ANY_MOVE)
        if passes and (grid := grids.get(node.inputs[0])) is not None:
            grids |= {name: grid for name in node.outputs if name and name not in grids}
    return grids


def _read(model: Model) -> dict[str, Tensor]:
    """What is read by each name: the constant, if it is dequantized by a node of its own."""
    read = dict(model.tensors)
    for node in model.nodes:
        if node.operator == "DequantizeLinear" and read[node.inputs[0]].is_constant:
            read[node.outputs[0]] = read[node.inputs[0]]
    return read


def _has_many_scales(tensor: Tensor) -> bool:
    grid = tensor.quantization
    return tensor.data is not None and grid is not None and DTYPES[tensor.dtype].bits == 8 and len(grid.scale) > 1


def _is_weight(node: Node, tensor: Tensor, read: Mapping[str, Tensor]) -> bool:
    """Whether it is the weight of a product, one matrix or kernel, with one scale for each output channel."""
    grid, rank = tensor.quantization, len(tensor.shape or ())
    if grid is None or not has(node, Trait.PRODUCT) or read[node.inputs[1]] is not tensor:
        return False
    is_matrix = rank == 2 or "kernel_shape" in OPERATORS[node.operator].attributes
    return is_matrix and grid.is_per_channel and grid.axis == output_axis(node, rank)


def _biases(model: Model, read: Mapping[str, Tensor]) -> Iterator[tuple[Node, Tensor, str]]:
    """Each product that has a constant bias, also one that an Add adds to it; the bias, and the result."""
    producers = model.graph.producers()
    for node in model.nodes:
        if has(node, Trait.PRODUCT):
            added = [(node, name) for name in node.inputs[2:3] if name]
        elif node.operator == "Add":
            pairs = zip(node.inputs, reversed(node.inputs), strict=True)
            added = [(producers[other], name) for name, other in pairs if other in producers]
        else:
            continue
        for product, name in added:
            if has(product, Trait.PRODUCT) and read[name].is_constant:
                yield product, read[name], node.outputs[0]


def _ends(result: Tensor, readers: Mapping[str, Sequence[Node]], tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Where the real numbers of a result are quantized: itself, or what clamps and quantizes it."""
    found = [result]
    for tensor in found:
        if tensor.quantization is not None:
            yield tensor
        else:
            own = (node for node in readers.get(tensor.name, ()) if node.operator in ("Relu", "Clip", "QuantizeLinear"))
            found += [tensors[node.outputs[0]] for node in own]


def _is_in_other_units(bias: Quantization | None, product: Node, x: Quantization, w: Quantization) -> bool:
    """Of a matrix product; ONNX Runtime itself tests the scale of the bias of a convolution."""
    is_convolution = "kernel_shape" in product.attributes
    return bias is not None and not is_convolution and not in_units_of_sums(bias, x, w, product.attributes)


def _is_rounded_far(bias: Tensor, product: Node, x: Quantization, w: Quantization, y: Tensor) -> bool:
    """Whether a float bias moves by more than half a step of the output, further than what its rule states."""
    steps, real, unit = y.quantization, bias.array.astype(f32), unit_of_sums(x, w, product.attributes)
    if steps is None or real.size == 0 or (unit.size > 1 and real.shape[-1:] not in ((1,), unit.shape)):
        return False
    with np.errstate(all="ignore"):
        by_rule = whole_bias(real, unit, product.rule) * unit if product.rule.startswith("integer_bias") else real
        moved = np.clip(np.rint(real / unit), -INT32 - 1, INT32).astype(np.float64) * unit - by_rule
        return not bool((np.abs(moved) <= np.min(steps.scale.real) / 2).all())
