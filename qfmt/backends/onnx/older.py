"""Operators that older opsets express differently, or by multiple operators; and types that ONNX does not support."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import onnx_ir as ir

from ...arithmetic import dequantize, f32
from ...model import numpy_dtype
from ...ops import OPERATORS
from ...ops.activation import one_of
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


@lowers("GridSample")
def grid_sample(site: Site) -> Sequence[ir.Value]:
    """Before opset 20, two modes had other names."""
    names = {"linear": "bilinear", "cubic": "bicubic"} if site.opset < 20 else {}
    mode = site.attributes["mode"]
    return one_to_one(site, {**site.attributes, "mode": names.get(mode, mode)})


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


@lowers("InstanceNormalization")
def instance_normalization(site: Site) -> Sequence[ir.Value]:
    if 0 in (site.tensor(0).shape or ())[2:]:
        raise Lacks("normalizes no elements, which may end the process of ONNX Runtime")
    return one_to_one(site)


@lowers("EyeLike")
def eye_like(site: Site) -> Sequence[ir.Value]:
    """ONNX Runtime has it of few types; onnx's checker ends if the type of the input is that of another domain."""
    kind, has_kernel = site.output().dtype, ("float32", "float64", "int32", "int64", "uint64")
    if kind in has_kernel and site.tensor(0).quantization is None:
        return one_to_one(site)
    zeros = site.emit("ConstantOfShape", site.emit("Shape", site.real(0)))
    (made,) = plain(site, [zeros], site.attributes | {"dtype": "int32"})
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
    if site.node.rule != "product" or slope.quantization is None or x is None:
        return one_to_one(site)
    one = f32(one_of(slope.quantization, numpy_dtype(slope.dtype))) * f32(slope.quantization.scale[0])
    if one == 1:
        return one_to_one(site)
    factor = site.constant("one", one)
    if slope.is_constant and one:
        slopes = site.constant("slopes", dequantize(slope.array, slope.quantization) / one)
        return plain(site, [site.emit("Mul", x, factor), slopes], {})
    zero = site.constant("zero", f32(0))
    parts = site.emit("Max", x, zero), site.emit("Min", x, zero)
    return [
        site.emit("Add", *(site.emit("Mul", part, by) for part, by in zip(parts, (factor, site.real(1)), strict=True)))
    ]


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
