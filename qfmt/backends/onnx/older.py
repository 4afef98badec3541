"""Operators that older opsets express differently, or by multiple operators; and types that ONNX does not support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, sqrt
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...arithmetic import dequantize, f32
from ...arrays import Array
from ...model import numpy_dtype
from ...ops import OPERATORS
from ...ops.activation import one_of
from ...ops.resize import (
    check_scales,
    divided_neighbours,
    divides_alike,
    enlarged,
    is_nearest,
    known_neighbours,
    may_stay,
    on_a_border,
)
from ...ops.shapes import axis_of
from .lowering import Site, lowers, lowers_before, one_to_one, plain, real_type, typed_inputs
from .opsets import Lacks, schema


def reduced(site: Site, operator: str, x: ir.Value, axes: list[int], keepdims: int = 1) -> ir.Value:
    """A reduction: its axes were an attribute in older opsets."""
    if not axes:  # no list of axes is all of them
        return site.emit("Identity", x)
    definition = schema(operator, site.opset)
    if "axes" in definition.attributes:
        return site.emit(operator, x, axes=axes, keepdims=keepdims)
    return site.emit(operator, x, site.constant("axes", np.array(axes, np.int64)), keepdims=keepdims)


def number(site: Site, value: float | Sequence[float]) -> ir.Value:
    """A constant of the type of the first input, as a real one."""
    kind = numpy_dtype(site.tensor(0).dtype)
    return site.constant("constant", np.array(value, np.float32 if site.tensor(0).quantization else kind))


@lowers_before("HardSwish")
def hard_swish(site: Site) -> ir.Value:
    x = site.real(0)
    return site.emit("Mul", x, site.emit("HardSigmoid", x, alpha=1 / 6, beta=0.5))


@lowers_before("Mish")
def mish(site: Site) -> ir.Value:
    x = site.real(0)
    return site.emit("Mul", x, site.emit("Tanh", site.emit("Softplus", x)))


@lowers_before("Gelu")
def gelu(site: Site) -> ir.Value:
    x = site.real(0)
    if site.attributes["approximate"] == "tanh":
        cube = site.emit("Mul", site.emit("Mul", x, x), x)
        inner = site.emit("Add", x, site.emit("Mul", cube, number(site, 0.044715)))
        bend = site.emit("Tanh", site.emit("Mul", inner, number(site, sqrt(2 / np.pi))))
    else:
        bend = site.emit("Erf", site.emit("Div", x, number(site, sqrt(2))))
    half = site.emit("Mul", x, number(site, 0.5))
    return site.emit("Mul", half, site.emit("Add", bend, number(site, 1)))


@lowers("Swish")
def swish(site: Site) -> ir.Value:
    """From opset 24; ONNX Runtime 1.31 has no kernel for it."""
    x, alpha = site.real(0), site.attributes["alpha"]
    return site.emit("Mul", x, site.emit("Sigmoid", x if alpha == 1 else site.emit("Mul", x, number(site, alpha))))


@lowers_before("LayerNormalization", "RMSNormalization")
def layer_normalization(site: Site) -> ir.Value:
    """From opset 17 and 23: expressed by means."""
    x, shape, axis = site.x, site.tensor(0).shape, site.attributes["axis"]
    if shape is None and axis >= 0:
        raise Lacks("requires a known input rank")
    axes = list(range(axis - len(shape) if shape is not None and axis >= 0 else axis, 0))
    if site.node.operator == "LayerNormalization":
        x = site.emit("Sub", x, reduced(site, "ReduceMean", x, axes))
    square = reduced(site, "ReduceMean", site.emit("Mul", x, x), axes)
    deviation = site.emit("Sqrt", site.emit("Add", square, number(site, site.attributes["epsilon"])))
    y = site.emit("Mul", site.emit("Div", x, deviation), site.real(1))
    return site.emit("Add", y, site.real(2)) if site.has(2) else y


@lowers("MeanVarianceNormalization")
def mean_variance_normalization(site: Site) -> ir.Value:
    """By its formula: ONNX Runtime subtracts squares, which gives NaN for equal numbers."""
    kind = real_type(site, site.tensor(0))

    def mean(value: ir.Value) -> ir.Value:
        """In float64: of equal numbers it is one of them."""
        wide = reduced(site, "ReduceMean", site.to("float64", value), list(site.attributes["axes"]))
        return site.to(kind, wide)

    x = site.emit("Sub", site.x, mean(site.x))
    variance = mean(site.emit("Mul", x, x))
    return site.emit("Div", x, site.emit("Add", site.emit("Sqrt", variance), number(site, 1e-9)))


@lowers("GroupNormalization")
def group_normalization(site: Site) -> ir.Value | Sequence[ir.Value]:
    """Before opset 21, scale and bias were per group: InstanceNormalization of groups, then scale and bias."""
    if site.opset >= 21:
        return one_to_one(site)
    x, shape, groups = site.real(0), site.tensor(0).shape, site.attributes["num_groups"]
    if shape is None:
        raise Lacks("requires a known input rank")
    grouped = site.emit("Reshape", x, site.constant("groups", np.array([0, groups, -1])))
    ones, zeros = (number(site, [value] * groups) for value in (1, 0))
    y = site.emit("InstanceNormalization", grouped, ones, zeros, epsilon=site.attributes["epsilon"])
    y = site.emit("Reshape", y, site.emit("Shape", x))
    per_channel = site.constant("channels", np.array([-1, *(1 for _ in shape[2:])]))
    scale, shift = (site.emit("Reshape", site.real(index), per_channel) for index in (1, 2))
    return site.emit("Add", site.emit("Mul", y, scale), shift)


@lowers("EyeLike")
def eye_like(site: Site) -> Sequence[ir.Value]:
    """ONNX Runtime has it of few types."""
    if (kind := site.output().dtype) in ("float32", "float64", "int32", "int64", "uint64"):
        return one_to_one(site)
    (made,) = plain(site, [site.real(0)], site.attributes | {"dtype": "int32"})
    return [site.to(kind, made)]


@lowers("Pad")
def pad(site: Site) -> Sequence[ir.Value]:
    return padded(site, typed_inputs(site))


def padded(site: Site, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """Pad. Before opset 18 there were pads for all axes. ONNX Runtime crops first and repeats what is left."""
    pads = site.tensor(1).array.reshape(2, -1) if site.tensor(1).is_constant else np.zeros((2, 0), np.int64)
    crops = site.attributes["mode"] != "constant" and bool(((pads < 0).any(0) & (pads > 0).any(0)).any())
    if not crops and (site.opset >= 18 or not site.has(3)):
        return plain(site, inputs, site.attributes)
    if site.has(3):
        shape = site.tensor(0).shape
        if shape is None:
            raise Lacks("requires a known input rank")
        axes, given = site.integers(3, "axes"), site.integers(1, "pads")
        pads = np.zeros((2, len(shape)), np.int64)
        pads[:, axes] = np.array(given).reshape(2, -1)
    x, value = inputs[0], inputs[2] if len(inputs) > 2 else None
    if crops:
        (x,) = plain(site, [x, site.constant("repeated", np.maximum(pads, 0).reshape(-1)), value], site.attributes)
        pads = np.minimum(pads, 0)
    return plain(site, [x, site.constant("pads", pads.reshape(-1)), value], site.attributes)


@lowers("Resize")
def resize(site: Site) -> Sequence[ir.Value]:
    return resized(site, site.real)


def resized(site: Site, read: Callable[[int], ir.Value | None]) -> Sequence[ir.Value]:
    """Resize. The region and the scales are float32 in ONNX Runtime; PyTorch's scales are doubles."""
    x = read(0)
    if x is not None and is_nearest(site.attributes) and (found := _neighbours(site, x)):
        for axis, indices in found.items():
            x = site.emit("Gather", x, indices, axis=axis)
        return [x]
    others = [index for index in (1, 2) if site.has(index) and site.tensor(index).dtype != "float32"]
    rest = range(1, len(site.node.inputs))
    inputs = [x, *(site.cast(index, "float32") if index in others else read(index) for index in rest)]
    if site.has(2) and site.tensor(2).is_constant:
        inputs[2] = _scales(site, inputs[0], inputs[2])
        if _infers_other_sizes(site):
            inputs[2] = site.emit("Identity", inputs[2])
    return plain(site, inputs, site.attributes)


def constant_neighbours(site: Site) -> dict[int, Array] | None:
    """`ops.resize.known_neighbours`; Lacks without any scales or sizes."""
    given = [site.tensor(index) for index in (2, 3) if site.has(index)]
    if all(each.is_constant and not each.array.size for each in given):
        raise Lacks("has neither scales nor sizes")
    with np.errstate(divide="ignore", over="ignore"):  # of the step to no elements
        return known_neighbours(site.node, site.builder.model.tensors)


def _neighbours(site: Site, x: ir.Value) -> dict[int, ir.Value]:
    """Axis → the elements that a nearest Resize selects, if ONNX's may select others; none if they are the same."""
    shape, a = site.tensor(0).shape, site.attributes
    given = (site.tensor(index) if site.has(index) else None for index in (2, 3))
    scales, sizes = (each.array if each and each.is_constant and each.array.size else None for each in given)
    check_scales(scales)  # which no rule does for an input of unknown rank
    known = constant_neighbours(site)
    if known is not None and shape is not None:
        alike = True
        for axis, own in known.items():
            place = [axis_of(each, len(shape)) for each in a["axes"] or range(len(shape))].index(axis)
            length = shape[axis]
            assert isinstance(length, int)
            if not alike or not len(own):
                alike = False
                break
            scale = f32(scales[place]) if scales is not None else f32(len(own)) / f32(length)
            alike = not on_a_border(length, len(own), float(scale), a)
            alike = alike and np.array_equal(own, divided_neighbours(length, len(own), scale, a))
        return {} if alike else {axis: site.constant("neighbours", own) for axis, own in known.items()}
    if scales is not None and sizes is None and all(scale == 1 or divides_alike(scale, a) for scale in scales):
        return {}
    return _computed(site, x, scales)


class _Sizes(NamedTuple):
    """Of one axis: how many elements it has, int64; how many it gets, int64; and the step of the positions, float32."""

    before: ir.Value
    after: ir.Value
    step: ir.Value


def _computed(site: Site, x: ir.Value, scales: Array | None) -> dict[int, ir.Value]:
    """The elements that a nearest Resize selects along axes of any size: as `ops.resize.neighbours`."""
    by_scales = scales is not None or not site.has(3)
    factors, shape = site.tensor(2 if by_scales else 3), site.tensor(0).shape
    count = len(shape) if shape is not None else (factors.shape or (None,))[0]
    axes = site.attributes["axes"] or (range(count) if isinstance(count, int) else ())
    if not axes:
        raise Lacks("selects other elements in ONNX, if the rank is not known")
    whole = site.emit("Shape", x)
    every = site.emit("Gather", whole, site.constant("axes", np.array(axes, np.int64)))
    found = {}
    for place, axis in enumerate(axes):
        if scales is None or scales[place] != 1:
            at = site.constant("place", np.int64(place))
            sizes = _by_scale(site, every, at) if by_scales else _by_size(site, every, at)
            found[axis] = _selected(site, sizes)
    return found


def _by_scale(site: Site, every: ir.Value, at: ir.Value) -> _Sizes:
    """The product with the size is of the type of the scale."""
    before, scale, kind = site.emit("Gather", every, at), site.emit("Gather", site.real(2), at), site.tensor(2).dtype
    after = site.to("int64", site.emit("Floor", site.emit("Mul", site.to(kind, before), scale)))
    return _Sizes(before, after, _reciprocal(site, site.to("float64", scale)))


def _by_size(site: Site, every: ir.Value, at: ir.Value) -> _Sizes:
    """The stated size; or, if the aspect ratio is kept, that by the least or the greatest scale of all axes."""
    policy, wanted, before = site.attributes["keep_aspect_ratio_policy"], site.real(3), site.emit("Gather", every, at)
    if policy == "stretch":
        after = site.emit("Gather", wanted, at)
        return _Sizes(before, after, site.emit("Div", site.to("float32", before), site.to("float32", after)))
    ratios = site.emit("Div", site.to("float64", wanted), site.to("float64", every))
    scale = reduced(site, "ReduceMin" if policy == "not_larger" else "ReduceMax", ratios, [0], 0)
    size = site.emit("Mul", scale, site.to("float64", before))
    after = site.emit("Floor", site.emit("Add", size, site.constant("half", np.float64(0.5))))
    return _Sizes(before, site.to("int64", after), _reciprocal(site, scale))


def _reciprocal(site: Site, scale: ir.Value) -> ir.Value:
    return site.to("float32", site.emit("Div", site.constant("one", np.float64(1)), scale))


def _selected(site: Site, sizes: _Sizes) -> ir.Value:
    """The nearest element of each position along one axis."""
    mode, rounding = site.attributes["coordinate_transformation_mode"], site.attributes["nearest_mode"]

    def at(value: float, kind: str = "float32") -> ir.Value:
        return site.constant("number", np.asarray(value, kind))

    before, after, step = sizes
    index = site.emit("Range", at(0, "int64"), after, at(1, "int64"))
    place = real = site.to("float32", index)
    if mode == "asymmetric":
        place = site.emit("Mul", real, step)
    elif mode == "align_corners":
        span, steps = (site.to("float32", site.emit("Sub", size, at(1, "int64"))) for size in (before, after))
        place = site.emit("Mul", real, site.emit("Div", span, steps))
    else:
        place = site.emit("Mul", site.emit("Add", real, at(0.5)), step)
        if mode == "half_pixel_symmetric":
            old, new = (site.to("float32", size) for size in (before, after))
            part = site.emit("Div", site.emit("Mul", new, step), old)
            offset = site.emit("Mul", site.emit("Div", old, at(2)), site.emit("Sub", at(1), part))
            place = site.emit("Add", offset, place)
        place = site.emit("Sub", place, at(0.5))
    if mode in ("align_corners", "pytorch_half_pixel"):
        place = site.emit("Where", site.emit("Greater", after, at(1, "int64")), place, at(0))
    place = site.to("float64", place)
    if rounding == "round_prefer_floor":
        place = site.emit("Ceil", site.emit("Sub", place, at(0.5, "float64")))
    elif rounding == "round_prefer_ceil":
        place = site.emit("Floor", site.emit("Add", place, at(0.5, "float64")))
    else:
        place = site.emit("Floor" if rounding == "floor" else "Ceil", place)
    last = site.to("float64", site.emit("Sub", before, at(1, "int64")))
    place = site.to("int64", site.emit("Max", site.emit("Min", place, last), at(0, "float64")))
    return site.emit("Where", site.emit("Equal", before, after), index, place)  # a size that stays is left as it is


def _infers_other_sizes(site: Site) -> bool:
    """Whether onnx, which does not round the products of sizes and scales, infers other sizes than ONNX Runtime."""
    scales, shape = site.tensor(2).array.astype(f32), site.tensor(0).shape
    sizes = [] if shape is None else [shape[axis] for axis in site.attributes["axes"] or range(len(shape))]
    pairs = zip(sizes, scales, strict=False)
    return any(isinstance(size, int) and floor(size * float(scale)) != enlarged(size, scale) for size, scale in pairs)


def _scales(site: Site, x: ir.Value | None, scales: ir.Value | None) -> ir.Value | None:
    """The scales, 1 for a dimension that keeps its size: otherwise ONNX interpolates along it, if another one
    changes."""
    shape, values = site.tensor(0).shape, site.tensor(2).array.astype(f32)
    if (values != 1).sum() < 2:
        return scales
    axes = site.attributes["axes"] or range(len(values))
    known = [None if shape is None else shape[axis] for axis in axes]
    sizes = [size if isinstance(size, int) else None for size in known]
    pairs = [*zip(sizes, values, strict=True)]
    stays = [size is not None and enlarged(size, scale) == size for size, scale in pairs]
    if any(size is None and may_stay(scale) and scale != 1 for size, scale in pairs):
        before = site.emit("Gather", site.emit("Shape", x), site.constant("axes", np.array(axes, np.int64)))
        before = site.to("float32", before)
        same = site.emit("Equal", before, site.emit("Floor", site.emit("Mul", before, scales)))
        return site.emit("Where", same, site.constant("one", np.float32(1)), scales)
    return site.constant("scales", np.where(stays, f32(1), values)) if (values[stays] != 1).any() else scales


@lowers(*(name for name in OPERATORS if name.startswith("Reduce")))
def reduction(site: Site) -> Sequence[ir.Value]:
    """Before opset 18, most had no attribute for missing axes; with axes it does not matter."""
    definition = schema(site.node.operator, site.opset)
    a = dict(site.attributes)
    if "noop_with_empty_axes" not in definition.attributes and site.has(1) and site.integers(1, "axes"):
        a["noop_with_empty_axes"] = 0
    return plain(site, typed_inputs(site), a)


@lowers("PRelu")
def prelu(site: Site) -> Sequence[ir.Value]:
    """The rule `product` multiplies positive numbers by 1 as the quantization of the slopes represents it."""
    slope, x = site.tensor(1), site.real(0)
    if site.node.rule != "product" or not slope.is_constant or slope.quantization is None or x is None:
        return one_to_one(site)
    one = f32(one_of(slope.quantization, slope.array.dtype)) * f32(slope.quantization.scale[0])
    if one in (0, 1):
        return one_to_one(site)
    slopes = site.constant("slopes", dequantize(slope.array, slope.quantization) / one)
    return plain(site, [site.emit("Mul", x, site.constant("one", one)), slopes], {})


@lowers("Split")
def split(site: Site) -> Sequence[ir.Value]:
    """Before opset 18 there was no number of outputs: sizes are written. It has one of both."""
    axis = site.attributes["axis"]
    if site.has(1):
        return one_to_one(site, {"axis": axis})
    if site.opset >= 18:
        return one_to_one(site)
    shapes = [site.output(index).shape for index in range(len(site.node.outputs))]
    sizes = [shape[axis] for shape in shapes if shape is not None]
    if len(sizes) != len(shapes) or not all(isinstance(size, int) for size in sizes):
        raise Lacks("requires known split sizes in that opset")
    parts = site.constant("sizes", np.array(sizes, np.int64))
    return plain(site, [site.real(0), parts], {"axis": axis})
