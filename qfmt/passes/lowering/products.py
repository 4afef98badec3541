"""Products: sums of inputs times weights, exact in int32, including the bias.

A sum x includes the bias, as the integer nearest to b / at. With `folded`, the inner loop has no zero points: they
are part of the bias, and padding is the zero point.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...arithmetic import EXACT_IN_FLOAT32, REQUANTIZE, f32, requantize, whole_bias
from ...model import DTYPES, INT32, Node, Parameter, Quantization, Tensor
from ...ops import OPERATORS
from ...ops.accumulation import (
    columns,
    in_units_of_sums,
    inner_size,
    range_met,
    reach_of_sums,
    scales_of_channels,
    unit_of_sums,
)
from .context import Context, NoForm
from .requantizing import FACTOR_BITS, Sums, unit_of
from .step_functions import Array, Integers

UNITS = 1 << 15
"""How many units a bias has at most where the unit may be chosen: as many as sums of other channels often have."""


def product(node: Node, context: Context) -> Sums:
    """Conv, ConvTranspose, qfmt.Linear, Gemm, MatMul with a requantize rule."""
    x, w, y = (context.tensors[name] for name in (*node.inputs[:2], node.outputs[0]))
    xq, wq, yq = _grids(node, x, w, y, context)
    if not w.is_constant:
        return _of_inputs(node, xq, wq, yq, context)
    weights, zero = columns(node, _centred(w)), int(xq.zero_point[0])
    scale = scales_of_channels(wq, node.attributes)
    at = unit_of_sums(xq, wq, node.attributes)
    _check_scales(at, yq)
    bias, real, at = _bias(node, context, xq, wq, at, weights)
    least, most = range_met(node, xq.quant_min, xq.quant_max, zero)
    low, high = (ends + bias for ends in reach_of_sums(weights, least - zero, most - zero))
    folded = bias - zero * weights[:, 0].sum(1)
    is_matrix = node.operator != "MatMul" or len(w.shape or ()) < 3  # else C multiplies as with two inputs
    folds = (
        is_matrix
        and _folds(node, folded)
        and _holds("int16", weights)
        and _stays_in_int32(weights, least, most, folded)
    )
    if not folds and not _stays_in_int32(weights, least - zero, most - zero, bias):
        raise NoForm(f"sums may reach {low.min():,} or {high.max():,}, outside int32")

    def evaluate(sums: Integers, some: slice) -> Array:
        scales = scale[some, None] if wq.is_per_channel else scale.reshape(())
        exact, added = (sums, None) if real is None else (sums - bias[some, None], real[some, None])
        return requantize(exact, added, xq.scale[0], scales, yq, context.kind(y), node.rule)

    axis = 1 if node.operator.startswith("Conv") else context.last_axis(y) if len(weights) > 1 else 0
    inputs = [x.name, _weight(w, context) if folds else w.name]
    if (kept := folded if folds else bias).any():
        inputs.append(_bias_tensor(node, context, kept, "folded" if folds else "integers"))
    name, rule = context.free(f"{y.name}.sums"), "folded" if folds else "exact"
    adding = replace(node, inputs=tuple(inputs), outputs=(name,), rule=rule)
    # No product of scales is rounded to float32, as for TFLite's multipliers.
    factor = np.float64(f32(xq.scale[0])) * scale.astype(f32).astype(np.float64)
    factor = np.where(f32(factor) == at, factor, at)  # of channels without weights, `_with_room` chose the unit
    multiplier = np.broadcast_to(factor / np.float64(f32(yq.scale[0])), len(weights)).copy()
    unit = unit_of(at, axis, low, high)
    whole = node.rule.startswith("integer_bias") or _is_whole(real, at, low - bias, high - bias)
    return Sums(adding, axis, low, high, multiplier, node.rule, unit, evaluate, whole=whole)


def _is_whole(real: Array | None, at: Array, low: Integers, high: Integers) -> bool:
    """Whether a float bias is an integer in units of the sums, and float32 represents every sum without it."""
    if real is None:
        return True
    units = real / at
    return bool((units == np.rint(units)).all()) and max(-low.min(), high.max()) <= EXACT_IN_FLOAT32


def _grids(
    node: Node, x: Tensor, w: Tensor, y: Tensor, context: Context
) -> tuple[Quantization, Quantization, Quantization]:
    """The quantizations of input, weight and output; NoForm if integer sums are not possible with them."""
    if node.rule not in REQUANTIZE:
        raise NoForm("multiplies floats")
    if node.operator == "Gemm" and (node.attributes["alpha"], node.attributes["beta"]) != (1, 1):
        raise NoForm("scales its product by floats")
    xq, wq, yq = (context.grid(tensor) for tensor in (x, w, y))
    if xq.is_per_channel or yq.is_per_channel:
        raise NoForm("has an input or output that is quantized per channel")
    if max(DTYPES[x.dtype].bits, DTYPES[w.dtype].bits) > FACTOR_BITS:
        raise NoForm(f"multiplies integers of more than {FACTOR_BITS} bits")
    if w.is_constant and 0 in (w.shape or ()):
        raise NoForm("has a weight without elements")
    return xq, wq, yq


def _folds(node: Node, folded: Integers) -> bool:
    """Whether there is a place for what is folded: MatMul has no bias."""
    entry = OPERATORS[node.operator]
    return "folded" in entry.sum_rules and (len(entry.inputs) > 2 or not folded.any())


def _check_scales(at: Array, yq: Quantization) -> None:
    """NoForm if float32 cannot represent the unit of sums, or their multiplier: 0 · ∞ is NaN."""
    s = f32(yq.scale[0])
    for each in (at, f32(1) / s, at / s, at * (f32(1) / s)):
        if not (np.isfinite(each).all() and (np.asarray(each) > 0).all()):
            raise NoForm("has scales whose product or quotient float32 cannot represent")


def _stays_in_int32(weights: Integers, low: int, high: int, bias: Integers) -> bool:
    """Whether no partial sum exceeds int32, in any order of products and bias."""
    least, most = reach_of_sums(weights, min(low, 0), max(high, 0))
    least, most = least + np.minimum(bias, 0), most + np.maximum(bias, 0)
    return bool(max(most.max(initial=0), -least.min(initial=0)) < INT32)


def _bias(
    node: Node, context: Context, xq: Quantization, wq: Quantization, at: Array, weights: Integers
) -> tuple[Integers, Array | None, Array]:
    """The bias as integers in units of the sums; as floats, unless the rule adds those integers; and the units."""
    count = len(weights)
    tensor = context.tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
    if tensor is None:
        return np.zeros(count, np.int64), None, at
    if not tensor.is_constant:
        raise NoForm("has a bias that is not constant")
    if node.operator == "Gemm" and len(tensor.shape or ()) > 1 and (tensor.shape or ())[0] != 1:
        raise NoForm("has a bias for each row")
    if in_units_of_sums(tensor.quantization, xq, wq, node.attributes):
        return _spread(tensor.array.astype(np.int64), count), None, at
    real = _spread(tensor.dequantize().astype(f32), count)
    if not _fits(units := whole_bias(real, at, "integer_bias")):
        at = _with_room(at, real, weights)
        if not _fits(units := whole_bias(real, at, "integer_bias")):
            raise NoForm(f"has a bias of {np.abs(units).max():.3g} units, outside int32")
    return units.astype(np.int64), real, at


def _fits(units: Array) -> bool:
    return bool(np.abs(units).max(initial=0) < INT32)


def _with_room(at: Array, bias: Array, weights: Integers) -> Array:
    """Larger units for channels whose weights are all zero: their sums are the bias alone, so any unit will do.
    PyTorch's observers give such channels a scale of 1.2e-7."""
    if at.size == 1:
        return at
    unused = np.equal(weights, 0).all((1, 2))
    return np.where(unused, np.maximum(at, np.abs(bias) / UNITS), at)


def _spread(bias: Array, count: int) -> Array:
    if bias.size not in (1, count):
        raise NoForm(f"has a bias of {bias.size} elements for {count} channels")
    return np.broadcast_to(bias.reshape(-1), count)


def _centred(w: Tensor) -> Integers:
    assert w.quantization is not None
    if not w.quantization.is_summable:
        raise NoForm("has weights with block-wise scales, or float zero points")
    array: Integers = w.array.astype(np.int64)
    return array - w.quantization.zero_points(array.shape).astype(np.int64)


def _weight(w: Tensor, context: Context) -> str:
    """The weight less its zero points, which `folded` does not have."""
    assert w.quantization is not None
    if not any(w.quantization.zero_point):
        return w.name
    centred = _centred(w)
    name = context.free(f"{w.name}.centred")
    dtype = next(each for each in ("int8", "int16") if _holds(each, centred))
    limits, zero = DTYPES[dtype], Parameter.of_values(np.uint8(0))
    grid = replace(w.quantization, zero_point=zero, quant_min=limits.minimum, quant_max=limits.maximum, names=("", ""))
    context.add(Tensor.constant(name, centred.astype(dtype), grid))
    return name


def _holds(dtype: str, values: Integers) -> bool:
    return DTYPES[dtype].holds(values.min(initial=0), values.max(initial=0))


def _bias_tensor(node: Node, context: Context, values: Integers, word: str) -> str:
    has_own = len(node.inputs) > 2 and node.inputs[2]
    name = context.free(f"{node.inputs[2]}.{word}" if has_own else f"{node.outputs[0]}.bias")
    context.add(Tensor.constant(name, values.astype(np.int32)))
    return name


def _of_inputs(node: Node, aq: Quantization, bq: Quantization, yq: Quantization, context: Context) -> Sums:
    """MatMul of two computed tensors."""
    a, b = (context.tensors[name] for name in node.inputs[:2])
    y = context.tensors[node.outputs[0]]
    if node.operator != "MatMul" or bq.is_per_channel:
        raise NoForm("has weights that are not constant")
    length = inner_size(a.shape, b.shape)
    if length is None:
        raise NoForm("sums an unknown number of products", unknown_shape=True)
    ends = [each - q.zero_point[0] for q in (aq, bq) for each in (q.quant_min, q.quant_max)]
    products = [int(i * j) for i in ends[:2] for j in ends[2:]]
    low, high = length * min(0, *products), length * max(0, *products)
    if max(-low, high) >= INT32:
        raise NoForm(f"sums may reach {low:,} or {high:,}, outside int32")
    at = unit_of_sums(aq, bq, node.attributes)
    _check_scales(at, yq)

    def evaluate(sums: Integers, _: slice) -> Array:
        return requantize(sums, None, aq.scale[0], np.array(bq.scale[0]), yq, context.kind(y), node.rule)

    lows, highs = np.array([low]), np.array([high])
    adding = replace(node, outputs=(context.free(f"{y.name}.sums"),), rule="exact")
    unit = unit_of(at, 0, lows, highs)
    return Sums(adding, 0, lows, highs, at.astype(np.float64) / yq.scale[0], node.rule, unit, evaluate)
