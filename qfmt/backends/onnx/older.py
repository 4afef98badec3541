"""Operators that older opsets express differently, or by multiple operators; and types that ONNX does not support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32
from ...ops import OPERATORS
from ...ops.resize import enlarged, may_stay
from .lowering import Site, lowers, lowers_before, one_to_one, plain, typed_inputs
from .opsets import Lacks, schema


def reduced(site: Site, operator: str, x: ir.Value, axes: list[int], keepdims: int = 1) -> ir.Value:
    """A reduction: its axes were an attribute in older opsets."""
    definition = schema(operator, site.opset)
    if "axes" in definition.attributes:
        return site.emit(operator, x, axes=axes, keepdims=keepdims)
    return site.emit(operator, x, site.constant("axes", np.array(axes, np.int64)), keepdims=keepdims)


def number(site: Site, value: float) -> ir.Value:
    return site.constant("constant", np.array(value, np.float32))


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


@lowers("GroupNormalization")
def group_normalization(site: Site) -> ir.Value | Sequence[ir.Value]:
    """Before opset 21, scale and bias were per group: InstanceNormalization of groups, then scale and bias."""
    if site.opset >= 21:
        return one_to_one(site)
    x, shape, groups = site.real(0), site.tensor(0).shape, site.attributes["num_groups"]
    if shape is None:
        raise Lacks("requires a known input rank")
    grouped = site.emit("Reshape", x, site.constant("groups", np.array([0, groups, -1])))
    ones, zeros = (site.constant(what, np.full(groups, v, np.float32)) for what, v in (("ones", 1), ("zeros", 0)))
    y = site.emit("InstanceNormalization", grouped, ones, zeros, epsilon=site.attributes["epsilon"])
    y = site.emit("Reshape", y, site.emit("Shape", x))
    per_channel = site.constant("channels", np.array([-1, *(1 for _ in shape[2:])]))
    scale, shift = (site.emit("Reshape", site.real(index), per_channel) for index in (1, 2))
    return site.emit("Add", site.emit("Mul", y, scale), shift)


@lowers("Pad")
def pad(site: Site) -> Sequence[ir.Value]:
    return padded(site, typed_inputs(site))


def padded(site: Site, inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value]:
    """Pad. Before opset 18 there were pads for all axes."""
    if site.opset >= 18 or not site.has(3):
        return plain(site, inputs, site.attributes)
    shape = site.tensor(0).shape
    if shape is None:
        raise Lacks("requires a known input rank")
    axes, given = site.integers(3, "axes"), site.integers(1, "pads")
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axes] = np.array(given).reshape(2, -1)
    widths = site.constant("pads", pads.reshape(-1))
    return plain(site, [inputs[0], widths, inputs[2]], site.attributes)


@lowers("Resize")
def resize(site: Site) -> Sequence[ir.Value]:
    return resized(site, site.real)


def resized(site: Site, read: Callable[[int], ir.Value | None]) -> Sequence[ir.Value]:
    """Resize. Scales are float32 in ONNX; PyTorch's are doubles."""
    inputs = [read(index) for index in range(len(site.node.inputs))]
    if site.has(2) and site.tensor(2).dtype == "float64":
        inputs[2] = site.cast(2, "float32")
    if site.has(2) and site.tensor(2).is_constant:
        inputs[2] = _scales(site, inputs[0], inputs[2])
    return plain(site, inputs, site.attributes)


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
        return site.emit("Where", same, number(site, 1), scales)
    return site.constant("scales", np.where(stays, f32(1), values)) if (values[stays] != 1).any() else scales


@lowers(*(name for name in OPERATORS if name.startswith("Reduce")))
def reduction(site: Site) -> Sequence[ir.Value]:
    """Before opset 18, most had no attribute for missing axes; with axes it does not matter."""
    definition = schema(site.node.operator, site.opset)
    a = dict(site.attributes)
    if "noop_with_empty_axes" not in definition.attributes and site.has(1) and site.integers(1, "axes"):
        a["noop_with_empty_axes"] = 0
    return plain(site, typed_inputs(site), a)


@lowers("Split")
def split(site: Site) -> Sequence[ir.Value]:
    """Before opset 18 there was no number of outputs: sizes are written."""
    if site.opset >= 18 or site.has(1):
        return one_to_one(site)
    axis = site.attributes["axis"]
    shapes = [site.output(index).shape for index in range(len(site.node.outputs))]
    sizes = [shape[axis] for shape in shapes if shape is not None]
    if len(sizes) != len(shapes) or not all(isinstance(size, int) for size in sizes):
        raise Lacks("requires known split sizes in that opset")
    parts = site.constant("sizes", np.array(sizes, np.int64))
    return plain(site, [site.real(0), parts], {"axis": axis})
