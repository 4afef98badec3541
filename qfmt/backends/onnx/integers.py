"""Networks of integers alone, by ONNX's integer operators: ConvInteger, MatMulInteger, and arithmetic in int64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ...arithmetic import FIXED_POINT
from ...model import DTYPES, Tensor
from ...ops import Operand
from ...ops.accumulation import exact_dtype, stored_zero, whole
from ...ops.pooling import unit_factors, window_counts
from .constants import onnx_dtype
from .lowering import Site, adds_up, lowers, written_attributes
from .opsets import Lacks
from .rescaling import clipped, floor_divided

INT64 = int(ir.DataType.INT64)
INT32 = int(ir.DataType.INT32)
FLOAT = int(ir.DataType.FLOAT)

NEVER = 1 << 31
"""A threshold that no int32 reaches."""


# Sums


@adds_up("Conv")
def conv(site: Site) -> ir.Value:
    """ConvInteger pads with the zero point of x, and takes that off: where it is folded, the bias gets it back."""
    bias = _bias(site)
    if not _fits_bytes(site):
        return _with_bias(site, _by_floats(site), bias, _rank(site, 0) - 2)
    points = [_zero_point(site, 0), None if site.node.arithmetic == "folded" else _zero_point(site, 1)]
    inputs = [site.stored(0), site.stored(1), *points]
    if site.node.arithmetic == "folded":
        weight, zero = site.tensor(1).array, stored_zero(Operand(np.zeros(0), site.tensor(0).quantization))
        bias = bias + zero * weight.sum(tuple(range(1, weight.ndim)), dtype=np.int64)
    return _with_bias(site, site.emit("ConvInteger", *inputs, **written_attributes(site)), bias, _rank(site, 0) - 2)


@adds_up("ConvTranspose")
def conv_transpose(site: Site) -> ir.Value:
    return _with_bias(site, _by_floats(site), _bias(site), _rank(site, 0) - 2)


@adds_up("qfmt.Linear", "MatMul", "Gemm")
def product(site: Site) -> ir.Value:
    operands = [site.stored(0), site.stored(1)]
    given = written_attributes(site)
    turned = [bool(given.get("transA")), bool(given.get("transB")) or site.node.operator == "qfmt.Linear"]
    for index in range(2):
        if turned[index]:
            operands[index] = site.emit("Transpose", operands[index], perm=[1, 0])
    if any(DTYPES[site.tensor(index).dtype].bits != 8 for index in range(2)):
        raise Lacks("multiplies integers of more than 8 bits")
    folded = site.node.arithmetic == "folded"
    points = [None if folded else _zero_point(site, index) for index in range(2)]
    total = site.emit("MatMulInteger", *operands, *points)
    return total if site.node.operator == "MatMul" else _with_bias(site, total, _bias(site), 0)


@adds_up("Mul")
def multiply(site: Site) -> ir.Value:
    return site.emit("Mul", *(_centred(site, index, INT32) for index in range(2)))


@adds_up("GlobalAveragePool", "ReduceMean", "qfmt.AdaptiveAveragePool")
def total(site: Site) -> ir.Value:
    attributes = site.attributes
    if site.node.operator == "ReduceMean":
        axes = site.integers(1, "axes") if site.has(1) else []
        options = {key: attributes[key] for key in ("keepdims", "noop_with_empty_axes")}
    else:
        size = attributes.get("output_size", (1,))
        if any(each != 1 for each in size):
            raise Lacks("sums up bins")
        spatial = len(size) if "output_size" in attributes else _rank(site, 0) - 2
        axes, options = list(range(-spatial, 0)), {"keepdims": 1, "noop_with_empty_axes": 0}
    given = [site.constant("axes", np.array(axes, np.int64))] if axes else []
    return site.emit("ReduceSum", _centred(site, 0, INT32), *given, **options)


@adds_up("AveragePool")
def windows(site: Site) -> ir.Value:
    """ConvInteger with a kernel of ones for each channel; times L / n, where windows differ."""
    a, x = site.attributes, site.tensor(0)
    if x.shape is None or not all(isinstance(size, int) for size in x.shape[1:]) or DTYPES[x.dtype].bits != 8:
        raise Lacks("sums up windows of an input whose sizes are not known, or of more than 8 bits")
    channels, *sizes = (size for size in x.shape[1:] if isinstance(size, int))
    given = {key: value for key, value in a.items() if key != "count_include_pad"}
    factors = unit_factors(window_counts(tuple(sizes), a["count_include_pad"], given))
    before, after = a["pads"][: len(sizes)], list(a["pads"][len(sizes) :])
    for i, (size, count) in enumerate(zip(sizes, factors.shape[2:], strict=True)):
        reach = (count - 1) * a["strides"][i] + (a["kernel_shape"][i] - 1) * a["dilations"][i] + 1
        after[i] = max(after[i], reach - size - before[i])  # what a last, partial window meets
    ones = site.constant("ones", np.ones((channels, 1, *a["kernel_shape"]), np.uint8))
    layout = {key: a[key] for key in ("kernel_shape", "strides", "dilations")}
    inputs = (site.stored(0), ones, _zero_point(site, 0))
    total = site.emit("ConvInteger", *inputs, group=channels, pads=[*before, *after], **layout)
    if (factors == 1).all():
        return total
    return site.emit("Mul", total, site.constant("factor", factors.astype(np.int32)))


def _rank(site: Site, index: int) -> int:
    shape = site.tensor(index).shape
    if shape is None:
        raise Lacks("has an input of which the number of dimensions is not known")
    return len(shape)


def _fits_bytes(site: Site) -> bool:
    """Whether ConvInteger takes the input and the weight, which has one zero point there."""
    w = site.tensor(1).quantization
    one_point = w is None or len(set(w.zero_point)) == 1
    return one_point and all(DTYPES[site.tensor(index).dtype].bits == 8 for index in range(2))


def _zero_point(site: Site, index: int) -> ir.Value | None:
    tensor = site.tensor(index)
    points = () if tensor.quantization is None else tensor.quantization.zero_point
    if not any(points):
        return None
    several = len(set(points)) > 1
    return site.builder.constant(f"{tensor.name}.zero_point", np.array(points if several else points[0]), tensor.dtype)


def _centred(site: Site, index: int, kind: int) -> ir.Value:
    """The integers minus their zero point, cast before."""
    wide = site.emit("Cast", site.stored(index), to=kind)
    zero = stored_zero(Operand(np.zeros(0), site.tensor(index).quantization))
    dtype = {INT32: np.int32, FLOAT: np.float32}[kind]
    return site.emit("Sub", wide, site.constant("zero_point", dtype(zero))) if zero else wide


def _by_floats(site: Site) -> ir.Value:
    """The operator on float32, where that holds every sum."""
    x, w = site.tensor(0), site.tensor(1)
    if not w.is_constant or (site.node.arithmetic == "folded" and any(site.attributes["pads"])):
        raise Lacks("adds up integers that ConvInteger does not take")
    weights = whole(Operand(w.array, w.quantization))
    summed = (0, *range(2, weights.ndim)) if site.node.operator == "ConvTranspose" else tuple(range(1, weights.ndim))
    folded = site.node.arithmetic == "folded"
    given = Operand(np.zeros(0, x.dtype), None if folded else x.quantization)
    if exact_dtype(given, weights, summed) != np.float32:
        raise Lacks("adds up integers that neither ConvInteger takes nor float32 holds")
    real = site.emit("Cast", site.stored(0), to=FLOAT) if folded else _centred(site, 0, FLOAT)
    kernel = site.constant("weight", weights.astype(np.float32))
    return site.emit("Cast", site.emit(site.node.operator, real, kernel, **written_attributes(site)), to=INT32)


def _bias(site: Site) -> Any:
    """The bias, in int64; Lacks if it is not constant."""
    if not site.has(2):
        return np.int64(0)
    if not site.tensor(2).is_constant:
        raise Lacks("has a bias that is computed")
    return site.tensor(2).array.astype(np.int64)


def _with_bias(site: Site, sums: ir.Value, bias: Any, behind: int) -> ir.Value:
    """`behind` is how many dimensions follow that of the channels."""
    if not bias.any():
        return sums
    if np.abs(bias).max() >= 1 << 31:
        raise Lacks("has a bias beyond int32")
    shaped = bias.astype(np.int32).reshape((*bias.shape, *(1,) * behind))
    return site.emit("Add", sums, site.constant("bias", shaped))


# Requantize


@lowers("qfmt.Requantize")
def requantize(site: Site) -> None:
    """In int64; a shift is a division without remainder."""
    out = site.output()
    assert out.quantization is not None
    x = site.emit("Cast", site.stored(0), to=INT64)
    result = None
    if site.node.arithmetic in FIXED_POINT:
        result = clipped(site, _shifted(site, x))
    if site.has(4):
        result = _counted(site, x, out.quantization.quant_min, result)
    assert result is not None
    site.builder.define(out.name, site.emit("Cast", result, to=int(onnx_dtype(out.dtype))))


def _shifted(site: Site, x: ir.Value) -> ir.Value:
    """floor((x · m + add) / 2^shift)"""
    rule, shift = site.node.arithmetic, _parameter(site, 2)
    power = np.int64(1) << shift
    if rule != "power_of_two":
        x = site.emit("Mul", x, site.constant("multiplier", _parameter(site, 1)))
    if rule == "multiply_shift":
        added = site.constant("add", _parameter(site, 3))
    elif rule == "fixed_point_double":
        first = np.where(shift > 31, np.int64(1 << 30), np.int64(0))
        below = site.emit("Less", x, _int64(site, "none", 0))
        halves = (site.constant(name, (power >> 1) + way) for name, way in (("below", -first), ("above", first)))
        added = site.emit("Where", below, *halves)
    else:
        added = site.constant("half", power >> 1)
    return floor_divided(site, site.emit("Add", x, added), site.constant("power", power))


def _counted(site: Site, x: ir.Value, low: int, others: ir.Value | None) -> ir.Value:
    """quant_min + how many thresholds are not above x: a binary search; where no row is stated, the `others`."""
    table = site.tensor(4).array.astype(np.int64)
    rows = _parameter(site, 5) if site.has(5) else _along(site, np.arange(len(table)))
    bits = table.shape[1].bit_length()
    width = (1 << bits) - 1
    padded = np.full((len(table), width), NEVER)
    padded[:, : table.shape[1]] = table
    flat = site.constant("thresholds", padded.reshape(-1))
    before = site.constant("row", np.maximum(rows, 0) * width - 1)
    count = site.emit("Sub", x, x)
    for bit in reversed(range(bits)):
        more = site.emit("Add", count, _int64(site, "step", 1 << bit))
        reached = site.emit("GreaterOrEqual", x, site.emit("Gather", flat, site.emit("Add", more, before)))
        count = site.emit("Where", reached, more, count)
    result = site.emit("Add", count, _int64(site, "quant_min", low))
    return result if others is None else site.emit("Where", site.constant("has_row", rows >= 0), result, others)


def _parameter(site: Site, index: int) -> Any:
    """A parameter in int64, as it broadcasts against x."""
    return _along(site, site.tensor(index).array.astype(np.int64))


def _along(site: Site, values: Any) -> Any:
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *(1,) * (_rank(site, 0) - 1 - site.attributes["axis"]))


def _int64(site: Site, what: str, number: int) -> ir.Value:
    return site.constant(what, np.int64(number))


# Tables and weighted sums


@lowers("qfmt.Table")
def table(site: Site) -> None:
    index, values = _place(site, 0), site.stored(1)
    if site.attributes["axis"] != -1:
        rows, size = site.tensor(1).array.shape
        axis = site.attributes["axis"] % _rank(site, 0)
        begins = (np.arange(rows) * size).reshape(-1, *(1,) * (_rank(site, 0) - 1 - axis))
        index = site.emit("Add", index, site.constant("row", begins))
        values = _flat(site, site.tensor(1))
    site.builder.define(site.output().name, site.emit("Gather", values, index))


@lowers("qfmt.PairTable")
def pair_table(site: Site) -> None:
    size = site.tensor(2).array.shape[1]
    index = site.emit("Add", site.emit("Mul", _place(site, 0), _int64(site, "row", size)), _place(site, 1))
    site.builder.define(site.output().name, site.emit("Gather", _flat(site, site.tensor(2)), index))


def _place(site: Site, index: int) -> ir.Value:
    """q - type_min"""
    lowest = DTYPES[site.tensor(index).dtype].minimum
    wide = site.emit("Cast", site.stored(index), to=INT64)
    return site.emit("Sub", wide, _int64(site, "lowest", lowest)) if lowest else wide


def _flat(site: Site, tensor: Tensor) -> ir.Value:
    return site.builder.constant(f"{site.name}.table", tensor.array.reshape(-1), tensor.dtype)


@lowers("qfmt.WeightedSum")
def weighted_sum(site: Site) -> None:
    result = None
    for index, weight in enumerate(site.attributes["weights"]):
        wide = site.emit("Cast", site.stored(index), to=INT64)
        term = site.emit("Mul", wide, _int64(site, f"weight.{index}", weight))
        result = term if result is None else site.emit("Add", result, term)
    assert result is not None
    site.builder.define(site.output().name, site.emit("Cast", result, to=INT32))
