"""Exact sums of integers: ConvInteger and MatMulInteger, which multiply bytes; wider integers are sums of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product as pairs
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...model import DTYPES, INT32, Tensor
from ...ops import Operand
from ...ops.accumulation import stored_zero, whole
from ...ops.geometry import unit_factors
from ...ops.geometry import windows as windows_of
from ...passes.same_types import OFFSETS
from .lowering import Site, adds_up, lowers, one_to_one, written_attributes
from .opsets import Lacks
from .pools import bin_members
from .qdq import kept_apart


class Part(NamedTuple):
    """int8 or uint8 with their zero point (None: 0): q - z is the sum of (value - zero_point) · factor of all parts."""

    value: ir.Value
    zero_point: ir.Value | None
    dtype: str
    factor: int = 1

    def turned(self, site: Site) -> Part:
        """The transpose of a matrix."""
        key = (str(self.value.name), "turned")
        return self._replace(value=site.builder.once(key, lambda: site.emit("Transpose", self.value, perm=[1, 0])))

    def of_type(self, site: Site, dtype: str) -> Part:
        """The same as integers of that type: 128 is added or subtracted, also to the zero point."""
        if dtype == self.dtype:
            return self
        zero_point = self.zero_point or site.constant("zero_point", np.zeros((), self.dtype))

        def shifted(value: ir.Value) -> ir.Value:
            return site.builder.once((str(value.name), dtype), lambda: _shifted(site, value, dtype))

        return Part(shifted(self.value), shifted(zero_point), dtype, self.factor)


def _shifted(site: Site, value: ir.Value, dtype: str) -> ir.Value:
    """Integers of 8 bits of one type as those of the other."""
    if value.const_value is not None:
        integers = value.const_value.numpy().astype(np.int16) + OFFSETS[dtype]
        return site.builder.constant(f"{value.name}.{dtype}", integers.astype(dtype), dtype)
    moved = site.emit("Add", site.to("int32", value), site.constant("offset", np.int32(OFFSETS[dtype])))
    return site.to(dtype, moved)


def of_tensor(site: Site, index: int) -> list[Part]:
    """The parts of an input: itself, if it is of bytes with one zero point."""
    tensor = site.tensor(index)
    points = (0,) if tensor.quantization is None else tensor.quantization.zero_point
    bits, several = DTYPES[tensor.dtype].bits, len(set(points)) > 1
    if tensor.is_constant and (several or bits != 8):
        return of_constant(site, tensor.name, whole(Operand(tensor.array, tensor.quantization)))
    value = site.stored(index)
    assert value is not None
    if several:  # ONNX Runtime's ConvInteger and MatMulInteger have one zero point
        return of_computed(site, _centred(site, index), bits + 1)
    kind = "int" if DTYPES[tensor.dtype].kind == "i" else "uint"
    if bits <= 8:
        if bits < 8:
            value = site.to(f"{kind}8", value)
        return [Part(value, _zero_point(site, tensor, points[0], f"{kind}8"), f"{kind}8")]
    point = int(points[0])
    wide, base = site.to("int32", value), site.constant("byte", np.int32(256))
    low = site.emit("Mod", wide, base)
    high = site.emit("Div", site.emit("Sub", wide, low), base)
    return [
        Part(site.to("uint8", low), _zero_point(site, tensor, point & 255, "uint8"), "uint8"),
        Part(site.to(f"{kind}8", high), _zero_point(site, tensor, point >> 8, f"{kind}8"), f"{kind}8", 256),
    ]


def of_computed(site: Site, wide: ir.Value, bits: int) -> list[Part]:
    """The parts of int32 that have that many bits, one of them the sign: the lowest byte, and what is above it."""
    if bits <= 8:
        return [Part(site.to("int8", wide), None, "int8")]
    base = site.constant("byte", np.int32(256))
    low = site.emit("Mod", wide, base)
    above = of_computed(site, site.emit("Div", site.emit("Sub", wide, low), base), bits - 8)
    first = Part(site.to("uint8", low), None, "uint8")
    return [first, *(part._replace(factor=part.factor * 256) for part in above)]


def of_constant(site: Site, what: str, values: Array) -> list[Part]:
    """The parts of integers of up to 17 bits."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for dtype in ("int8", "uint8"):
        if DTYPES[dtype].minimum <= low and high <= DTYPES[dtype].maximum:
            return [Part(site.builder.constant(f"{site.name}.{what}", values.astype(dtype), dtype), None, dtype)]
    first = Part(site.builder.constant(f"{site.name}.{what}.low", (values & 255).astype(np.uint8)), None, "uint8")
    return [first, *(part._replace(factor=part.factor * 256) for part in of_constant(site, what, values >> 8))]


def _zero_point(site: Site, tensor: Tensor, points: Any, dtype: str) -> ir.Value | None:
    if not np.any(points):
        return None
    return site.builder.constant(f"{tensor.name}.zero_point", np.array(points), dtype)


NO_TERMS = "sums no products, whose result ONNX Runtime leaves undefined"

MOST_ONES = 1 << 24
"""The most elements of a kernel of ones: it is written to the file, and the model has no tensor of that size."""

LAYOUT = ("kernel_shape", "strides", "dilations")


def _combined(site: Site, xs: list[Part], ws: list[Part], multiply: Callable[[Part, Part], ir.Value]) -> ir.Value:
    """Σ of the products of all parts, each times the factors of the parts; int32.

    The bytes of wider integers have one type in each product: it is exact in ONNX Runtime on every processor. The sum
    of all is an int32; the overflow of a single one is a multiple of 2**32.
    """
    if len(xs) == len(ws) == 1:
        return multiply(xs[0], ws[0].of_type(site, xs[0].dtype) if site.builder.same_types else ws[0])
    total = None
    for x, w in pairs(xs, ws):
        term = site.to("int64", multiply(x, w.of_type(site, x.dtype)))
        if x.factor * w.factor != 1:
            term = site.emit("Mul", term, site.constant("factor", np.int64(x.factor * w.factor)))
        total = term if total is None else site.emit("Add", total, term)
    assert total is not None
    return site.to("int32", total)


def _convolved(site: Site, xs: list[Part], ws: list[Part], layout: Mapping[str, Any]) -> ir.Value:
    def multiply(x: Part, w: Part) -> ir.Value:
        return site.emit("ConvInteger", x.value, w.value, x.zero_point, w.zero_point, **layout)

    return _combined(site, xs, ws, multiply)


@adds_up("Conv")
def conv(site: Site) -> ir.Value:
    """ConvInteger pads with the zero point of x, and subtracts it: if it is folded, the bias compensates."""
    if 0 in (site.tensor(1).shape or ())[1:]:
        raise Lacks(NO_TERMS)
    bias, given = _bias(site), written_attributes(site)
    if site.node.rule == "folded":
        weight, zero = site.tensor(1).array, stored_zero(site.tensor(0))
        bias = bias + zero * weight.astype(np.int64).sum(tuple(range(1, weight.ndim)))

    total = _convolved(site, of_tensor(site, 0), of_tensor(site, 1), given)
    return _with_bias(site, total, bias, site.rank(0) - 2)


@adds_up("ConvTranspose")
def conv_transpose(site: Site) -> ir.Value:
    """ConvInteger, with stride 1, of the input with zeros between its elements and the flipped kernel."""
    a, w = site.attributes, site.tensor(1)
    rank, group = len(a["kernel_shape"]), a["group"]
    weights = np.flip(whole(Operand(w.array, w.quantization)), tuple(range(2, rank + 2)))
    inputs, outputs, *kernel = weights.shape  # C, M/group
    if not inputs or 0 in (site.tensor(0).shape or ())[2:]:
        raise Lacks(NO_TERMS)
    weights = weights.reshape(group, inputs // group, outputs, *kernel).swapaxes(1, 2)
    weights = weights.reshape(group * outputs, inputs // group, *kernel)
    given = windows_of(a)
    before = [window.reach - 1 - window.head for window in given]
    after = [
        window.reach - window.tail + more - window.stride  # zeros follow the last element, too
        for window, more in zip(given, a["output_padding"], strict=True)
    ]
    layout = {"kernel_shape": a["kernel_shape"], "dilations": a["dilations"], "group": group}
    xs = [part._replace(value=_spread(site, part, before, after)) for part in of_tensor(site, 0)]
    total = _convolved(site, xs, of_constant(site, "weight", weights), layout)
    return _with_bias(site, total, _bias(site), rank)


def _spread(site: Site, x: Part, before: list[int], after: list[int]) -> ir.Value:
    """Stride - 1 zeros after each element, then pads, which may be negative."""
    strides, value = site.attributes["strides"], x.value
    rank = len(strides)
    if any(stride > 1 for stride in strides):
        size = site.emit("Mul", site.emit("Shape", value), site.constant("strides", np.array([1, 1, *strides])))
        value = site.emit("Unsqueeze", value, site.constant("axes", np.arange(rank) * 2 + 3))
        behind = [0, 0, *(each for stride in strides for each in (0, stride - 1))]
        value = _padded(site, value, [0] * len(behind), behind, x.zero_point)
        value = site.emit("Reshape", value, size)
    return _padded(site, value, [0, 0, *before], [0, 0, *after], x.zero_point)


def _padded(site: Site, value: ir.Value, before: list[int], after: list[int], zero: ir.Value | None) -> ir.Value:
    if not any((*before, *after)):
        return value
    return site.emit("Pad", value, site.constant("pads", np.array([*before, *after], np.int64)), zero)


@adds_up("qfmt.Linear", "MatMul", "Gemm")
def product(site: Site) -> ir.Value:
    given, is_linear = written_attributes(site), site.node.operator == "qfmt.Linear"
    turns_x, turns_w = bool(given.get("transA")), bool(given.get("transB")) or is_linear
    is_folded = site.node.rule == "folded"
    weight = site.tensor(1).shape or (None,)
    if weight[-1 if turns_w or len(weight) == 1 else -2] == 0:
        raise Lacks(NO_TERMS)

    def multiply(x: Part, w: Part) -> ir.Value:
        x, w = x.turned(site) if turns_x else x, w.turned(site) if turns_w else w
        return site.emit("MatMulInteger", x.value, w.value, None if is_folded else x.zero_point, w.zero_point)

    total = _combined(site, of_tensor(site, 0), of_tensor(site, 1), multiply)
    return total if site.node.operator == "MatMul" else _with_bias(site, total, _bias(site), 0)


@lowers("ConvInteger", "MatMulInteger")
def integer_product(site: Site) -> ir.Value | Sequence[ir.Value]:
    """ONNX Runtime takes one zero point for all; columns of a matrix may have their own."""
    is_conv, given = site.node.operator == "ConvInteger", written_attributes(site)

    def fits(index: int) -> bool:
        if not site.has(index + 2):
            return True
        x, points = site.tensor(index), site.tensor(index + 2)
        is_one = points.shape is not None and len(points.shape) < 2 and set(points.shape) <= {1}
        is_row = index == 1 and not is_conv and x.shape is not None and len(x.shape) == 2
        return is_one or is_row

    if fits(0) and fits(1):
        made = one_to_one(site)
        has_max = site.opset >= 12  # of integers
        is_apart = has_max and not is_conv and site.builder.apart.from_cast(site.tensor(1))
        return [kept_apart(site.builder, site.name, made[0])] if is_apart else made

    def multiply(x: Part, w: Part) -> ir.Value:
        return site.emit(site.node.operator, x.value, w.value, x.zero_point, w.zero_point, **given)

    return _combined(site, _less(site, 0, 1 if is_conv else -2), _less(site, 1, 0 if is_conv else -1), multiply)


def _less(site: Site, index: int, axis: int) -> list[Part]:
    """The parts of plain integers less their zero points, of which a vector runs along the axis."""
    value, points = site.to("int32", site.stored(index)), site.stored(index + 2)
    if points is None:
        return of_computed(site, value, 9)
    tensor = site.tensor(index + 2)
    if tensor.shape is None:
        raise Lacks("has zero points of unknown rank")
    points = site.to("int32", points)
    if len(tensor.shape) == 1:
        behind = -1 - axis if axis < 0 else site.rank(index) - 1 - axis
        points = site.emit("Reshape", points, site.constant("along", np.array([-1, *(1,) * behind])))
    return of_computed(site, site.emit("Sub", value, points), 9)


@adds_up("Mul")
def multiply(site: Site) -> ir.Value:
    return site.emit("Mul", *(_centred(site, index) for index in range(2)))


@adds_up("GlobalAveragePool", "ReduceMean")
def total(site: Site) -> ir.Value:
    if site.node.operator == "ReduceMean":
        axes = site.integers(1, "axes") if site.has(1) else []
        return _total(site, axes, site.attributes["keepdims"], site.attributes["noop_with_empty_axes"])
    return _total(site, list(range(2 - site.rank(0), 0)))


def _total(site: Site, axes: list[int], keepdims: int = 1, noop_with_empty_axes: int = 0) -> ir.Value:
    given = [site.constant("axes", np.array(axes, np.int64))] if axes else []
    return site.emit(
        "ReduceSum", _centred(site, 0), *given, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes
    )


@adds_up("qfmt.AdaptiveAveragePool")
def binned(site: Site) -> ir.Value:
    """Multiply each axis by the matrix of bin members, of zeros and ones. MatMul also supports int32."""
    counts = site.attributes["output_size"]
    if set(counts) == {1}:
        return _total(site, list(range(-len(counts), 0)))
    shape = site.tensor(0).shape
    sizes = [] if shape is None else [size for size in shape[-len(counts) :] if isinstance(size, int)]
    if len(sizes) < len(counts):
        raise Lacks("sums bins of an input whose sizes are not known")
    value, lengths = _centred(site, 0), []
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True), -len(counts)):
        inside = bin_members(size, count)
        lengths.append(inside.sum(0, dtype=np.int64))
        if axis == -2:
            value = site.emit("MatMul", site.constant("bins", np.ascontiguousarray(inside.T)), value)
            continue
        perm = list(range(site.rank(0)))
        perm[axis], perm[-1] = perm[-1], perm[axis]
        value = value if axis == -1 else site.emit("Transpose", value, perm=perm)
        value = site.emit("MatMul", value, site.constant("bins", inside))
        value = value if axis == -1 else site.emit("Transpose", value, perm=perm)
    return _in_units(site, value, lengths)


@adds_up("AveragePool")
def windows(site: Site) -> ir.Value:
    """ConvInteger with a kernel of ones per channel; multiplied by L / n if windows differ in size."""
    a, x = site.attributes, site.tensor(0)
    if x.shape is None or not all(isinstance(size, int) for size in x.shape[1:]):
        raise Lacks("sums windows of an input whose sizes are not known")
    channels, *sizes = (size for size in x.shape[1:] if isinstance(size, int))
    if not channels:
        raise Lacks("sums windows of no channels, which a convolution in groups needs")
    count = channels * prod(a["kernel_shape"])
    if count > MOST_ONES:
        raise Lacks(f"sums windows with a kernel of {count:,} ones, more than {MOST_ONES:,}")
    along = list(zip(windows_of(a), sizes, strict=True))
    lengths = [window.counts(size, a["count_include_pad"]) for window, size in along]
    before, after = zip(*(window.margins(size) for window, size in along), strict=True)
    ones = of_constant(site, "ones", np.ones((channels, 1, *a["kernel_shape"]), np.int64))
    layout = {"group": channels, "pads": [*before, *after], **{key: a[key] for key in LAYOUT}}
    return _in_units(site, _convolved(site, of_tensor(site, 0), ones, layout), lengths)


def _in_units(site: Site, sums: ir.Value, lengths: Sequence[Array]) -> ir.Value:
    """Sums of windows times L / n. `lengths`: how many elements the windows have along each of the last dimensions.

    n is the product of its lengths, so L and L / n are products over the dimensions, too. A constant for each dimension
    is small; one for all windows would be as large as the output.
    """
    for axis, counts in enumerate(lengths, -len(lengths)):
        factors = unit_factors(counts).astype(np.int32)
        if (factors != 1).any():
            sums = site.emit("Mul", sums, site.constant("factor", factors.reshape(-1, *[1] * (-axis - 1))))
    return sums


def _centred(site: Site, index: int) -> ir.Value:
    """The integers minus their zero points, as int32."""
    wide, grid = site.to("int32", site.stored(index)), site.tensor(index).quantization
    if grid is None or not any(grid.zero_point):
        return wide
    if grid.is_blocked or grid.has_float_zero_points:
        raise Lacks("adds up computed integers with zero points of blocks")
    rank = 0 if grid.axis is None else site.rank(index)
    sizes = [len(grid.zero_point) if axis == grid.axis else 1 for axis in range(rank)]
    return site.emit("Sub", wide, site.constant("zero_point", grid.zero_points(sizes)))


def _bias(site: Site) -> Array:
    """The bias, in int64; Lacks if it is not constant."""
    if not site.has(2):
        return np.zeros((), np.int64)
    if not site.tensor(2).is_constant:
        raise Lacks("has a bias that is not constant")
    return site.tensor(2).array.astype(np.int64)


def _with_bias(site: Site, sums: ir.Value, bias: Array, behind: int) -> ir.Value:
    """`behind` is the number of dimensions after the channels."""
    if not bias.any():
        return sums
    if np.abs(bias).max() > INT32:
        raise Lacks("has a bias beyond int32")
    shaped = bias.astype(np.int32).reshape((*bias.shape, *(1,) * behind))
    return site.emit("Add", sums, site.constant("bias", shaped))
