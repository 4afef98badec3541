"""The second evaluation: Resize by nearest and linear, on integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any

from .evaluate import Value, filled
from .evaluate_products import Attributes, Form, Operands
from .reals import f32, f64, rint

HALF = Fraction(1, 2)


def _geometry(x: Value, operands: Operands, at: Attributes) -> list[tuple[int, Fraction]]:
    """What each dimension becomes, and its step r."""
    _, _, scales, sizes = (*operands, None, None, None)[:4]
    rank = len(x.shape)
    axes = [axis % rank for axis in at["axes"]] or list(range(rank))
    found = [(size, Fraction(1)) for size in x.shape]
    for place, axis in enumerate(axes):
        size = x.shape[axis]
        if sizes is not None and sizes.items:
            found[axis] = sizes.items[place], f32(Fraction(size, sizes.items[place]))
        else:
            assert scales is not None
            found[axis] = floor(f32(size * scales.items[place])), f32(1 / scales.items[place])
    return found


def _place(i: int, size: int, out: int, step: Fraction, mode: str, fused: bool) -> Fraction:
    """Where an element of the output lies in the input."""
    if mode == "asymmetric":
        return f32(i * step)
    if mode == "align_corners":
        return f32(i * f32(Fraction(size - 1, out - 1))) if out > 1 else Fraction(0)
    if mode == "pytorch_half_pixel" and out == 1:
        return Fraction(0)
    assert mode in ("half_pixel", "pytorch_half_pixel"), mode
    product = (i + HALF) * step
    return f32((product if fused else f32(product)) - HALF)


ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "ceil": ceil,
    "round_prefer_floor": lambda place: ceil(place - HALF),
    "round_prefer_ceil": lambda place: floor(place + HALF),
}


def _nearest(x: Value, geometry: Sequence[tuple[int, Fraction]], at: Attributes) -> Value:
    def source(place: tuple[int, ...]) -> list[int]:
        found = []
        for i, size, (out, step) in zip(place, x.shape, geometry, strict=True):
            where = i
            if out != size:
                real = _place(i, size, out, step, at["coordinate_transformation_mode"], False)
                where = ROUNDINGS[at["nearest_mode"]](real)
            found.append(min(max(where, 0), size - 1))
        return found

    return filled([out for out, _ in geometry], x.dtype, lambda place: x[source(place)])


def _linear(x: Value, geometry: Sequence[tuple[int, Fraction]], mode: str, fused: bool) -> Value:
    """Along each axis, the last one first."""
    for axis in reversed(range(len(x.shape))):
        out, step = geometry[axis]
        size = x.shape[axis]
        if out == size:
            continue

        def item(
            place: tuple[int, ...], x: Value = x, axis: int = axis, size: int = size, step: Fraction = step
        ) -> Any:
            out = geometry[axis][0]
            where = min(max(_place(place[axis], size, out, step, mode, fused), Fraction(0)), Fraction(size - 1))
            low = floor(where)
            t = f32(where - low)
            first, second = (x[(*place[:axis], index, *place[axis + 1 :])] for index in (low, min(low + 1, size - 1)))
            rest = f32(first * f32(1 - t))
            return f32((second * t if fused else f32(second * t)) + rest)

        sizes = list(x.shape)
        sizes[axis] = out
        x = filled(sizes, "float32", item)
    return x


def _cropped(x: Value, roi: Value, geometry: Sequence[tuple[int, Fraction]], at: Attributes) -> Value:
    """By tf_crop_and_resize, of all dimensions."""
    everywhere = []
    for axis, (size, (out, _)) in enumerate(zip(x.shape, geometry, strict=True)):
        start, end = roi.items[axis], roi.items[len(x.shape) + axis]
        step = f32(f64(f64((end - start) * (size - 1)) / (out - 1)))
        everywhere.append([f32(f32(start * (size - 1)) + f32(i * step)) for i in range(out)])

    def item(place: tuple[int, ...]) -> Any:
        reals = [places[i] for places, i in zip(everywhere, place, strict=True)]
        if any(not 0 <= real <= size - 1 for real, size in zip(reals, x.shape, strict=True)):
            return f32(at["extrapolation_value"])
        return x[[ROUNDINGS[at["nearest_mode"]](real) for real in reals]]

    return filled([out for out, _ in geometry], x.dtype, item)


def resize(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    x, roi, (dtype, grid) = operands[0], operands[1], forms[0]
    assert x is not None
    geometry = _geometry(x, operands, at)
    if at["coordinate_transformation_mode"] == "tf_crop_and_resize":
        assert at["mode"] == "nearest" and roi is not None and grid is None
        return [_cropped(x, roi, geometry, at)]
    assert grid is not None
    if at["mode"] == "nearest":
        return [_nearest(x, geometry, at)]
    assert rule in ("interpolate", "interpolate_fma"), rule
    z = grid.zero_point[0]
    between = _linear(
        filled(x.shape, "float32", lambda place: Fraction(x[place])),
        geometry,
        at["coordinate_transformation_mode"],
        rule == "interpolate_fma",
    )
    return [filled(between.shape, dtype, lambda place: grid.clamp(rint(f32(f32(between[place] - z) + z))))]


OPERATORS: dict[str, Callable[..., list[Value]]] = {"Resize": resize}
