"""Resize in ONNX, which selects and crops differently in some cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...arithmetic import f32
from ...arrays import Array
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
from .lowering import Site, lowers, plain
from .older import reduced
from .opsets import Lacks


@lowers("Resize")
def resize(site: Site) -> Sequence[ir.Value]:
    return resized(site, site.real)


def resized(site: Site, read: Callable[[int], ir.Value | None]) -> Sequence[ir.Value]:
    """Resize. The region and the scales are float32 in ONNX Runtime; PyTorch's scales are doubles."""
    x = read(0)
    if site.attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        _check_region(site)
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
    attributes = dict(site.attributes)
    if attributes["mode"] == "nearest":  # without effect there, and ONNX Runtime does not load them
        attributes |= {"antialias": 0, "exclude_outside": 0}
    return plain(site, inputs, attributes)


def _check_region(site: Site) -> None:
    """Lacks if an axis that keeps its size is cropped: ONNX Runtime ignores the region along such an axis."""
    before, after = site.tensor(0).shape, site.output().shape
    axes = site.attributes["axes"] or range(len(before or ()))
    region, scales = (_constant(site, index) for index in (1, 2))
    parts = region.reshape(2, -1).T.tolist() if region is not None and region.size == 2 * len(axes) else []
    for place, axis in enumerate(axes):
        if parts and parts[place] == [0, 1]:
            continue
        if (scales is not None and scales[place] == 1) or (before and after and before[axis] == after[axis]):
            raise Lacks("crops an axis that keeps its size, which ONNX Runtime does not")


def _constant(site: Site, index: int) -> Array | None:
    """An input that is constant and not empty."""
    given = site.tensor(index) if site.has(index) else None
    return given.array if given and given.is_constant and given.array.size else None


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
    scales, sizes = (_constant(site, index) for index in (2, 3))
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
