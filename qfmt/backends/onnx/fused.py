"""Where ONNX Runtime must not fuse nodes: it would compute other numbers, or fail. Observed with version 1.32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32, whole_bias
from ...model import DTYPES, INT32, Graph, Model, Node, Quantization, Tensor, static_shape
from ...ops.accumulation import in_units_of_sums, output_axis, unit_of_sums
from ...ops.registry import OPERATORS, Trait, has, known

Origins = Mapping[str, Tensor]
"""For each computed tensor that is quantized, or was dequantized, the quantized one; also if it was moved since, for
ONNX Runtime looks through that."""

DROPPED = "Relu", "Clip"
"""What ONNX Runtime drops before a QuantizeLinear that limits as much. Then it looks at the node before."""


NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}
"""The constants with which these operators change nothing."""


class Apart(NamedTuple):
    """The tensors at which nodes are kept apart, by name: `constants` from the nodes that read them, `results` from the
    QuantizeLinear that follows, `factors` as first inputs of a MatMul, which is kept apart from an Add, `products` from
    their first input."""

    constants: frozenset[str]
    results: frozenset[str]
    factors: frozenset[str]
    products: frozenset[str]

    def from_readers(self, tensor: Tensor) -> bool:
        """Whether to keep a tensor apart from the nodes that read it.

        MatMulNBits misreads 2-bit weights whose rows or columns do not fill whole bytes.
        """
        has_2_bits = DTYPES[tensor.dtype].bits == 2 and tensor.is_constant
        return tensor.name in self.constants or (has_2_bits and any(size % 4 for size in static_shape(tensor)))

    def from_quantization(self, tensor: Tensor, real: ir.Value, is_output: Callable[[ir.Value | None], bool]) -> bool:
        """Whether to keep a result apart from its QuantizeLinear.

        ONNX Runtime merges two successive quantizations into one with another scale. Before 4 bits and float8, it drops
        a Relu and has few kernels. It moves a quantization before a Transpose, even if that changes an output of the
        network (not one that is dequantized; kept apart from an int8 one, it would fail to load). Its
        QLinearAveragePool has no dilations, and counts other elements with ceil_mode. Its QLinearSoftmax truncates the
        reciprocal of the scale.
        """
        passed = [*_passed(real)]
        if not passed:
            return False
        dtype, name, a = DTYPES[tensor.dtype], passed[-1].op_type, passed[-1].attributes
        has_kernels = dtype.is_integer and dtype.bits >= 8
        if name == "AveragePool":
            counts_beyond = a.get_int("ceil_mode", 0) and a.get_int("count_include_pad", 0)
            has_kernels &= not (counts_beyond or any(size > 1 for size in a.get_ints("dilations", ())))
        if name == "Softmax" and tensor.quantization is not None:
            has_kernels &= not (f32(1) / tensor.quantization.scale.real.astype(f32) % 1).any()
        turned = (node.inputs[0] for node in passed if node.op_type == "Transpose")
        moves_output = any(is_output(value) and not _is_dequantized(value) for value in turned)
        is_dequantized = passed[0].op_type == "DequantizeLinear"
        return is_dequantized or moves_output or tensor.name in self.results or not has_kernels

    @staticmethod
    def from_cast(w: Tensor) -> bool:
        """Whether to keep a MatMulInteger apart from the Cast that follows.

        ONNX Runtime makes a MatMulIntegerToFloat of them and the next nodes. It misreads the bias of a batch of
        matrices whose columns have scales.
        """
        return w.is_constant and len(static_shape(w)) > 2

    def from_add(self, x: Tensor, w: Tensor, opset: int) -> bool:
        """Whether to keep a MatMul apart from an Add.

        ONNX Runtime fuses them to a Gemm. It reshapes an int8 input that is not a matrix, and quantizes it again with a
        zero point of type uint8: always from opset 21 on, before that if the weight is quantized to other than 8 bits.
        """
        return x.name in self.factors and (opset >= 21 or (w.quantization is not None and DTYPES[w.dtype].bits != 8))


def changes_nothing(operator: str, a: Tensor, b: Tensor) -> bool:
    """Whether an operator of NEUTRAL multiplies by 1 or adds 0. ONNX Runtime removes such a node, then fuses its
    neighbours."""
    constants = (each for each in ((b,) if operator in ("Div", "Sub") else (a, b)) if each.is_constant)
    return any(each.array.size == 1 and (each.dequantize() == NEUTRAL[operator]).all() for each in constants)


def apart(model: Model) -> Apart:
    """The tensors of a model at which nodes are kept apart.

    Next to a quantized tensor, ONNX Runtime assumes that the scales of 8-bit constants are those of the output
    channels, and that the scale of an int32 bias is that of the sums. If they are not, its MatMulIntegerToFloat, QGemm
    and QLinearConv use wrong scales, or fail. For a convolution it compares the two scales of the bias, but so roughly
    that all tiny ones count as equal. It rounds a float bias to int32 in units of the sums, even if the float result is
    also an output, and a float weight to int8 with one scale (WeightBiasQuantization). It has no integer kernels for
    2-bit weights.
    """
    nodes = [node for node in model.nodes if known(node)]
    origins, read = _origins(model, nodes), _read(model, nodes)
    readers, outputs = Graph((), (), nodes, {}).readers(), {*model.graph.outputs}
    constants, results, products = set[str](), set[str](), set[str]()
    quantized_later = _quantized_later(nodes, model.tensors)
    for node in nodes:
        if any(name in origins for name in node.inputs):
            given = [read[name] for name in node.inputs if name]
            odd = (each for each in given if _has_many_scales(each) and not _is_weight(node, each, read))
            few = (each for each in given if each.is_constant and DTYPES[each.dtype].bits == 2)
            constants.update(each.name for each in (*odd, *few))
        if _has_float_weight(node, origins, read) and node.outputs[0] in quantized_later:
            products.add(node.outputs[0])
    for product, bias, result in _biases(nodes, read):
        quantized, w = origins.get(product.inputs[0]), read[product.inputs[1]]
        x = None if quantized is None else quantized.quantization
        if x is None or w.quantization is None or not x.is_per_tensor or not w.quantization.is_affine:
            continue
        if DTYPES[bias.dtype].kind == "f":
            passed = _up_to_quantization(read[result], readers, read)
            steps = {y.name: float(np.min(y.quantization.scale.real)) for y in passed if y.quantization is not None}
            is_output = any(y.name in outputs for y in passed if y.name not in steps)
            if steps and not _may_be_rounded(bias, product, x, w, 0 if is_output else min(steps.values()) / 2):
                results.update(steps)
        elif DTYPES[bias.dtype].bits == 32 and _is_in_other_units(bias.quantization, product, x, w.quantization):
            constants.add(bias.name)
    factors = (name for name, tensor in origins.items() if tensor.dtype == "int8" and not _is_matrix(read[name]))
    return Apart(*map(frozenset, (constants, results, factors, products)))


def _passed(real: ir.Value) -> Iterator[ir.Node]:
    """The node that computes a value; and those before it, as long as they are dropped or moved behind a
    QuantizeLinear."""
    value: ir.Value | None = real
    while value is not None and (node := value.producer()) is not None:
        yield node
        value = node.inputs[0] if node.op_type in (*DROPPED, "Transpose") else None


def _is_dequantized(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    return node is not None and node.op_type == "DequantizeLinear"


def _origins(model: Model, nodes: Sequence[Node]) -> Origins:
    computed = (tensor for tensor in model.tensors.values() if tensor.data is None)
    origins = {tensor.name: tensor for tensor in computed if tensor.quantization is not None}
    for node in nodes:
        passes = node.operator == "DequantizeLinear" or has(node, Trait.ANY_MOVE)
        if passes and node.inputs and (origin := origins.get(node.inputs[0])) is not None:
            origins |= {name: origin for name in node.outputs if name and name not in origins}
    return origins


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.shape is not None and len(tensor.shape) == 2


def _read(model: Model, nodes: Sequence[Node]) -> dict[str, Tensor]:
    """The tensors by name; for the output of a DequantizeLinear of a constant, that constant."""
    read = dict(model.tensors)
    for node in nodes:
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


def _biases(nodes: Sequence[Node], read: Mapping[str, Tensor]) -> Iterator[tuple[Node, Tensor, str]]:
    """Each product that has a constant bias, also one that an Add or Sum adds to it; the bias, and the result."""
    producers = {name: node for node in nodes for name in node.outputs if name}
    moved = dict[str, str]()
    """What a tensor was moved from. If it has the same shape, ONNX Runtime may find that the moves change nothing."""
    for node in nodes:
        if has(node, Trait.ANY_MOVE) and node.inputs and len(node.outputs) == 1:
            moved[node.outputs[0]] = moved.get(node.inputs[0], node.inputs[0])
        if has(node, Trait.PRODUCT):
            added = [(node, name) for name in node.inputs[2:3] if name and node.attributes.get("beta") != 0]
        elif node.operator in ("Add", "Sum") and len(node.inputs) == 2:
            pairs = [*zip(node.inputs, reversed(node.inputs), strict=True)]
            pairs += [(name, moved[other]) for name, other in pairs if _is_moved_back(other, moved, read)]
            added = [(producers[other], name) for name, other in pairs if other in producers]
        else:
            continue
        for product, name in added:
            if has(product, Trait.PRODUCT) and read[name].is_constant:
                yield product, read[name], node.outputs[0]


def _is_moved_back(name: str, moved: Mapping[str, str], tensors: Mapping[str, Tensor]) -> bool:
    return name in moved and tensors[name].shape == tensors[moved[name]].shape


def _up_to_quantization(
    result: Tensor, readers: Mapping[str, Sequence[Node]], tensors: Mapping[str, Tensor]
) -> list[Tensor]:
    """A result and the tensors that are clamped, moved or quantized from it, up to the quantized ones."""
    passed = {result.name: result}
    for tensor in (queue := [result]):
        for node in readers.get(tensor.name, ()) if tensor.quantization is None else ():
            name = node.outputs[0] if node.outputs else ""
            passes = node.operator in (*DROPPED, "QuantizeLinear") or has(node, Trait.ANY_MOVE)
            if passes and name and name not in passed:
                queue.append(passed.setdefault(name, tensors[name]))
    return queue


def _has_float_weight(node: Node, origins: Origins, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a node multiplies a quantized tensor by a constant weight of floats."""
    if not has(node, Trait.PRODUCT) or node.inputs[0] not in origins:
        return False
    w = tensors[node.inputs[1]]
    return w.is_constant and w.quantization is None and DTYPES[w.dtype].kind == "f"


def _quantized_later(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> set[str]:
    """The tensors that are quantized, also after nodes that ONNX Runtime may fuse with the product before them."""
    found = {tensor.name for tensor in tensors.values() if tensor.quantization is not None}
    fused = {*DROPPED, *NEUTRAL, "BatchNormalization", "QuantizeLinear"}
    for node in reversed(nodes):
        if (node.operator in fused or has(node, Trait.ANY_MOVE)) and not found.isdisjoint(node.outputs):
            found.update(node.inputs)
    return found


def _is_in_other_units(bias: Quantization | None, product: Node, x: Quantization, w: Quantization) -> bool:
    return bias is not None and not in_units_of_sums(bias, x, w, product.attributes)


def _may_be_rounded(bias: Tensor, product: Node, x: Quantization, w: Tensor, limit: float) -> bool:
    """Whether ONNX Runtime may round a float bias to units of the sums: int32 holds it together with any sum, and it
    moves by no more than `limit` from what the rule of the node adds."""
    assert w.quantization is not None
    real, unit = bias.array.astype(f32), unit_of_sums(x, w.quantization, product.attributes)
    if real.size in (1, unit.size):  # of a convolution, it may be [channels, 1, 1]
        real = real.reshape(-1)
    elif unit.size > 1 and real.shape[-1:] != unit.shape:
        return False
    with np.errstate(all="ignore"):
        units = np.rint(real / unit).astype(np.float64)
        added = whole_bias(real, unit, product.rule) * unit if product.rule.startswith("integer_bias") else real
        return bool(((np.abs(units) + _reach(product, x, w) < INT32) & (np.abs(units * unit - added) <= limit)).all())


def _reach(product: Node, x: Quantization, w: Tensor) -> int:
    """A bound of sums of 8-bit products, at most INT32; 0 for wider integers, which ONNX Runtime sums as floats."""
    assert w.quantization is not None
    spans = [each.quant_max - each.quant_min for each in (x, w.quantization)]
    if max(spans) > 255:
        return 0
    if w.shape is None:
        return INT32
    axis = output_axis(product, len(w.shape))
    sizes = [size if isinstance(size, int) else INT32 for index, size in enumerate(w.shape) if index != axis]
    return min(prod(sizes) * prod(spans), INT32)
