"""Resizing by nearest neighbour, linear or cubic interpolation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, frexp, prod
from typing import Any, NamedTuple

import numpy as np

from ..arithmetic import clamp, f32, fma
from ..arrays import Array
from ..errors import QfmtError
from ..graph import MAXIMUM_RANK
from ..memory import require
from ..model import Dimension, Node, Shape, Tensor
from .registry import (
    QUANTIZE_RULES,
    AttributeSpec,
    Inference,
    Operand,
    Quantized,
    Result,
    by_engine,
    operator,
    optional,
    truth,
)
from .shapes import axes_of, axis_of


def _resize_shape(given: Inference) -> list[Shape]:
    x, a = given.known(0), given.attributes
    scales, sizes = given.values[2], given.values[3] if len(given.values) > 3 else None
    axes = _axes(a, len(x))
    if all(len(given.shapes) > i and given.shapes[i] not in (None, (0,)) for i in (2, 3)):
        raise QfmtError("Resize has both scales and sizes")
    check_scales(scales)
    if sizes is not None and sizes.size and sizes.dtype != np.int64:
        raise QfmtError(f"the sizes have the type {sizes.dtype.name}; it must be int64")
    for values in (scales, sizes):
        if values is not None and np.size(values) and np.shape(values) != (len(axes),):
            raise QfmtError(f"Resize needs {len(axes)} scales or sizes, one per dimension, not {np.size(values)}")
    result: list[Dimension] = list(x)
    for place, axis in enumerate(axes):
        size = x[axis]
        if sizes is not None and np.size(sizes):
            result[axis] = int(sizes[place]) if a["keep_aspect_ratio_policy"] == "stretch" else None
        elif scales is None:
            result[axis] = None
        else:
            result[axis] = _scaled(size, scales[place])
    if a["keep_aspect_ratio_policy"] != "stretch" and sizes is not None and all(isinstance(x[i], int) for i in axes):
        for axis, (out, _) in zip(axes, _kept([x[i] for i in axes], sizes, a), strict=True):  # type: ignore[misc]
            result[axis] = out
    return [tuple(result)]


def check_scales(scales: Array | None) -> None:
    """QfmtError for scales that are known and not positive numbers, or more than a tensor has dimensions."""
    if scales is not None and scales.size > MAXIMUM_RANK:
        raise QfmtError(f"has {scales.size:,} scales; a tensor has up to {MAXIMUM_RANK} dimensions")
    if scales is not None and scales.size and scales.dtype not in (np.float32, np.float64):
        raise QfmtError(f"the scales have the type {scales.dtype.name}; it must be float32 or float64")
    if scales is not None and not np.all((scales > 0) & np.isfinite(scales)):
        raise QfmtError(f"the scales {scales.tolist()} are not all finite and greater than 0")


def _scaled(size: Dimension, scale: np.floating[Any]) -> Dimension:
    if isinstance(size, int):
        return enlarged(size, scale)
    return size if scale == 1 else None


def enlarged(size: int, scale: np.floating[Any]) -> int:
    """The product is one of the type of the scale: ONNX Runtime's float32, PyTorch's float64."""
    return floor(type(scale)(size * float(scale)))


def may_stay(scale: float) -> bool:
    """Whether a dimension of some size keeps it: 1 · 1.9 gives 1, and float32 rounds a product just below a size up."""
    return 0.99 < scale < 2


def _axes(a: Mapping[str, Any], rank: int) -> list[int]:
    return axes_of(a["axes"], rank) if a["axes"] else list(range(rank))


class Axis(NamedTuple):
    """One dimension: its size, that of the output, the step in the input that one of the output is, float32; and the
    part that is cropped, as fractions of the size."""

    size: int
    out: int
    step: np.float32
    start: float = 0.0
    end: float = 1.0


def _geometry(
    whole: Sequence[int], roi: Array | None, scales: Array | None, sizes: Array | None, a: Mapping[str, Any]
) -> list[Axis]:
    """The resizing of each dimension of an input of that shape."""
    axes = _axes(a, len(whole))
    shape = [whole[axis] for axis in axes]
    if sizes is not None and sizes.size:
        pairs = _kept(shape, sizes, a)
    elif scales is None:
        raise QfmtError("Resize needs scales or sizes")
    else:
        check_scales(scales)
        pairs = [(enlarged(n, scale), f32(1 / float(scale))) for n, scale in zip(shape, scales, strict=True)]
    result = [Axis(size, size, f32(1)) for size in whole]
    crops = a["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if crops and (roi is None or roi.size != 2 * len(axes)):
        raise QfmtError(f"tf_crop_and_resize needs a roi of {2 * len(axes)} numbers")
    for place, axis in enumerate(axes):
        part = (float(roi[place]), float(roi[len(axes) + place])) if crops and roi is not None else (0.0, 1.0)
        result[axis] = Axis(shape[place], *pairs[place], *part)
    return result


def _kept(shape: list[int], sizes: Array, a: Mapping[str, Any]) -> list[tuple[int, np.float32]]:
    """Sizes and steps; if the aspect ratio is kept, there is one scale for all."""
    policy = a["keep_aspect_ratio_policy"]
    if policy == "stretch":
        return [(int(out), f32(size) / f32(out)) for size, out in zip(shape, sizes, strict=True)]
    ratios = [int(out) / size for size, out in zip(shape, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [(floor(scale * size + 0.5), f32(1 / scale)) for size in shape]


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _places(axis: Axis, mode: str, multiply_add: Callable[..., Array] = _multiply_add) -> Array:
    """The position in the input of each element of the output, float32."""
    size, out, step = axis.size, axis.out, axis.step
    i = np.arange(out, dtype=f32)
    if mode == "asymmetric":
        return i * step
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        return multiply_add(i + f32(0.5), np.asarray(step), np.asarray(f32(-0.5)))
    if mode == "half_pixel_symmetric":
        offset = f32(size / 2) * (f32(1) - f32(out) * step / f32(size))
        return offset + (i + f32(0.5)) * step - f32(0.5)
    if mode == "tf_crop_and_resize":
        if out == 1:
            return np.full(1, 0.5 * (axis.start + axis.end) * (size - 1), f32)
        return f32(axis.start * (size - 1)) + i * f32((axis.end - axis.start) * (size - 1) / (out - 1))
    if mode == "align_corners" and out > 1:
        return i * (f32(size - 1) / f32(out - 1))
    return np.zeros(out, f32)  # align_corners or pytorch_half_pixel, of one element


def _rounded(places: Array, rounding: str) -> Array:
    if rounding == "round_prefer_floor":
        return np.ceil(places.astype(np.float64) - 0.5)
    if rounding == "round_prefer_ceil":
        return np.floor(places.astype(np.float64) + 0.5)
    return np.floor(places) if rounding == "floor" else np.ceil(places)


def _stays(axis: Axis) -> bool:
    return axis.out == axis.size and (axis.start, axis.end) == (0, 1)


def _require_along(x: Array, number: int, axis: Axis, copies: int = 1) -> None:
    """RunError if x, resized along one axis, needs more memory than there is: another axis may shrink it later."""
    require(copies * x.itemsize * prod((*x.shape[:number], axis.out, *x.shape[number + 1 :])))


def _nearest(x: Array, geometry: list[Axis], mode: str, rounding: str) -> Array:
    for number, axis in enumerate(geometry):
        if not _stays(axis):
            _require_along(x, number, axis)
            x = np.take(x, _neighbours(axis, mode, rounding), number)
    return x


def _neighbours(axis: Axis, mode: str, rounding: str) -> Array:
    return np.clip(_rounded(_places(axis, mode), rounding), 0, axis.size - 1).astype(np.int64)


LARGEST = 1 << 24
"""The largest size of a dimension whose neighbours are listed."""


def neighbours(
    length: int, a: Mapping[str, Any], *, scale: np.floating[Any] | None = None, size: int | None = None
) -> Array:
    """The elements of a dimension of `length` elements that a nearest Resize selects, int64, by its scale or size;
    `a` are its attributes."""
    alone = {**a, "axes": ()}
    scales, sizes = (None if each is None else np.array([each]) for each in (scale, size))
    (axis,) = _geometry((length,), None, scales, sizes, alone)
    if _stays(axis):
        return np.arange(length)
    return _neighbours(axis, a["coordinate_transformation_mode"], a["nearest_mode"])


def divided_neighbours(length: int, out: int, scale: np.floating[Any], a: Mapping[str, Any]) -> Array:
    """What a nearest Resize of ONNX selects of a dimension: positions are divided by the scale, float32, instead of
    multiplied by its reciprocal (onnx/docs/Operators.md; upsamplebase.h of ONNX Runtime)."""
    mode, i = a["coordinate_transformation_mode"], np.arange(out, dtype=f32)
    if length == out:
        return np.arange(length)
    if mode == "asymmetric":
        places = i / scale
    elif mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
        places = (i + f32(0.5)) / scale - f32(0.5)
    elif mode == "align_corners" and out > 1:
        places = i * f32(length - 1) / f32(out - 1)
    else:
        places = _places(Axis(length, out, f32(1) / scale), mode)
    return np.clip(_rounded(places, a["nearest_mode"]), 0, length - 1).astype(np.int64)


def on_a_border(length: int, out: int, scale: float, a: Mapping[str, Any]) -> bool:
    """Whether a position is so near to the border of two elements that its last bits decide which one ONNX Runtime
    selects, and its formula for them is not `divided_neighbours`."""
    mode, i = a["coordinate_transformation_mode"], np.arange(out, dtype=np.float64)
    step = (length - 1) / max(out - 1, 1) if mode == "align_corners" else 1 / scale
    follows = a["nearest_mode"] in ("floor", "ceil") and mode != "half_pixel_symmetric"
    divided = mode not in ("align_corners", "half_pixel_symmetric")
    exact = frexp(step)[0] == 0.5 or (divided and float(scale * 1024).is_integer())  # what lies on a border, in float32
    if follows or exact or length == out:
        return False
    places = i * step if mode in ("asymmetric", "align_corners") else (i + 0.5) * step - 0.5
    borders = places + 0.5
    error = 8 * np.finfo(f32).eps * (np.abs(places) + 1)
    return mode == "half_pixel_symmetric" or bool((np.abs(borders - np.rint(borders)) < error).any())


def divides_alike(scale: np.floating[Any], a: Mapping[str, Any]) -> bool:
    """Whether the first 65,536 positions by a scale select the same if they are divided, in a dimension of any size."""
    length = int(np.ceil(MANY / float(scale))) + 2 if scale > 0 else LARGEST
    if length >= LARGEST or on_a_border(length, MANY, float(scale), a):
        return False
    axis = Axis(length, MANY, f32(1 / float(scale)))
    own = _neighbours(axis, a["coordinate_transformation_mode"], a["nearest_mode"])
    return np.array_equal(own, divided_neighbours(length, MANY, f32(scale), a))


MANY = 1 << 16


def known_neighbours(node: Node, tensors: Mapping[str, Tensor]) -> dict[int, Array] | None:
    """Axis → the elements that a nearest Resize selects along it, for each axis that changes.

    None if that is not known: its sizes or scales are computed, those of the input are open, factors depend on each
    other, or there are too many elements or none.
    """
    shape, a = tensors[node.inputs[0]].shape, node.attributes
    given = [tensors[name] if name else None for name in (*node.inputs, "", "", "")[2:4]]
    if any(each is not None and not each.is_constant for each in given):
        return None
    scales, sizes = ([] if each is None else list(each.array) for each in given)
    if shape is None or not (len(scales) or len(sizes)) or a["keep_aspect_ratio_policy"] != "stretch":
        return None
    found = {}
    for place, axis in enumerate(node.ints("axes") or range(len(shape))):
        length = shape[axis]
        if not sizes and scales[place] == 1:
            continue
        if not isinstance(length, int) or not (sizes[place] if sizes else scales[place] * length) < LARGEST:
            return None
        wanted: dict[str, Any] = {"size": sizes[place]} if sizes else {"scale": scales[place]}
        indices = neighbours(length, a, **wanted)
        if len(indices) != length or not np.array_equal(indices, np.arange(length)):
            found[axis_of(axis, len(shape))] = indices
    return found


def _linear(x: Array, geometry: list[Axis], mode: str, multiply_add: Callable[..., Array]) -> Array:
    """Along each axis, the last first: (1 - t) · x[low] + t · x[low + 1]; the second product may be fused."""
    for number in reversed(range(x.ndim)):
        axis = geometry[number]
        if not _stays(axis):
            _require_along(x, number, axis, 10 if multiply_add is fma else 4)
            place = np.clip(_places(axis, mode, multiply_add), 0, axis.size - 1)
            low = np.floor(place).astype(np.int64)
            t = (place - low.astype(f32)).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - number))
            high = np.minimum(low + 1, axis.size - 1)
            x = multiply_add(np.take(x, high, number), t, np.take(x, low, number) * (x.dtype.type(1) - t))
    return x


def _triangle(distance: Array) -> Array:
    return np.maximum(0, 1 - distance)


def cubic_kernel(distance: Array, a: float) -> Array:
    """The weight of an element at a distance, by the cubic convolution of the coefficient a."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _weighted(x: Array, geometry: list[Axis], a: Mapping[str, Any]) -> Array:
    """Along each axis the weights of a kernel around the position, float64; wider if it shrinks and is antialiased."""
    for number, axis in enumerate(geometry):
        if _stays(axis):
            continue
        wide = max(1.0, float(axis.step)) if a["antialias"] else 1.0
        reach = (2 if a["mode"] == "cubic" else 1) * wide
        _require_along(x, number, axis)
        require(8 * axis.out * (axis.size + 4 * (2 * ceil(reach) + 2)))
        place = _places(axis, a["coordinate_transformation_mode"]).astype(np.float64)[:, None]
        met = np.floor(place) + np.arange(-floor(reach), floor(reach) + 2)
        distance = np.abs(met - place) / wide
        weights = cubic_kernel(distance, a["cubic_coeff_a"]) if a["mode"] == "cubic" else _triangle(distance)
        if a["exclude_outside"]:
            weights = np.where((met < 0) | (met >= axis.size), 0, weights)
        weights = weights / weights.sum(1, keepdims=True)
        matrix = np.zeros((axis.out, axis.size))
        rows = np.broadcast_to(np.arange(axis.out)[:, None], met.shape)
        np.add.at(matrix, (rows, np.clip(met, 0, axis.size - 1).astype(np.int64)), weights)
        x = np.moveaxis(np.tensordot(matrix, x, (1, number)), 0, number)
    return x


def _as(kind: np.dtype[Any], values: Array) -> Array:
    """For integers, the truncated values, inside their range."""
    if kind.kind in "iu":
        values = np.clip(values, np.iinfo(kind).min, np.iinfo(kind).max)
    return values.astype(kind, copy=False)


def _outside(geometry: list[Axis], mode: str) -> Array:
    """Which elements of the output are outside the input."""
    result = np.zeros([axis.out for axis in geometry], bool)
    for number, axis in enumerate(geometry):
        place = _places(axis, mode)
        beyond = (place < 0) | (place > axis.size - 1)
        result |= beyond.reshape([-1 if i == number else 1 for i in range(len(geometry))])
    return result


def is_nearest(a: Mapping[str, Any]) -> bool:
    """Whether attributes select the nearest element, without a value outside the edges."""
    return a["mode"] == "nearest" and a["coordinate_transformation_mode"] != "tf_crop_and_resize"


def _resize_integer(
    x: Operand, roi: Operand | None, scales: Operand | None, sizes: Operand | None, *, result: Result, **a: Any
) -> Array:
    """by `interpolate`, nearest is clamp(q), and linear is clamp(rint(f32(f32(R(f32(q)) - z) + z))), R the formula
    of linear; X and Y have one scale and zero point. `interpolate_fma` is the same, but the last two steps of p in
    half_pixel and pytorch_half_pixel are fma(i + ½, r, -½), and those of the value are fma(X[h], t, f32(X[l] · (1 -
    t))). Other modes, tf_crop_and_resize and antialias need a quantize rule.
    """
    result.expect("interpolate", "interpolate_fma")
    q = result.quantization
    if x.quantization is None or not x.quantization.same_grid(q):
        raise QfmtError("interpolation of integers requires the quantization of the input")
    mode = a["coordinate_transformation_mode"]
    if a["mode"] not in ("nearest", "linear") or a["antialias"] or mode == "tf_crop_and_resize":
        raise QfmtError("integers are only resized with nearest and linear", hint="a quantize rule supports any mode")
    geometry = _geometry(x.array.shape, None, scales and scales.array, sizes and sizes.array, a)
    if a["mode"] == "nearest":
        return clamp(_nearest(x.array, geometry, mode, a["nearest_mode"]), q, result.dtype)
    multiply_add = fma if result.rule == "interpolate_fma" else _multiply_add
    between = _linear(x.array.astype(f32), geometry, mode, multiply_add)
    zero_point = f32(q.zero_point[0])
    return clamp(np.rint((between - zero_point) + zero_point), q, result.dtype)


@operator(
    "Resize",
    19,
    "X roi? scales? sizes? -> Y",
    attributes={
        "antialias": truth(0, "1: if linear or cubic downsamples, the kernel is wider by that factor"),
        "axes": AttributeSpec("ii", (), "the dimensions of roi, scales and sizes; empty: all"),
        "coordinate_transformation_mode": optional(
            "half_pixel",
            "`half_pixel`, `half_pixel_symmetric`, `pytorch_half_pixel`, `asymmetric`, `align_corners` or "
            "`tf_crop_and_resize`",
            (
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "asymmetric",
                "align_corners",
                "tf_crop_and_resize",
            ),
        ),
        "cubic_coeff_a": optional(-0.75, "a of the cubic kernel"),
        "exclude_outside": truth(0, "1: kernel weights for positions outside X are excluded"),
        "extrapolation_value": optional(0.0, "for tf_crop_and_resize: the value outside X"),
        "keep_aspect_ratio_policy": optional(
            "stretch",
            "`stretch`; `not_larger`, `not_smaller`: one scale for all, so that no size exceeds sizes, or none "
            "falls below",
            ("stretch", "not_larger", "not_smaller"),
        ),
        "mode": optional("nearest", "`nearest`, `linear` or `cubic`", ("nearest", "linear", "cubic")),
        "nearest_mode": optional(
            "round_prefer_floor",
            "`floor`, `ceil`, `round_prefer_floor` or `round_prefer_ceil`",
            ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
        ),
    },
    shape=_resize_shape,
    quantized=Quantized.OWN,
    integer=_resize_integer,
    rules=("interpolate", "interpolate_fma", *QUANTIZE_RULES),
    engines=by_engine("interpolate_fma"),
    selects=lambda a: slice(int(is_nearest(a))),
)
def resize(x: Array, roi: Array | None, scales: Array | None, sizes: Array | None, **a: Any) -> Array:
    """Y = X, resized along the axes. An axis whose size stays the same is left as it is, whatever its scale, unless
    tf_crop_and_resize crops it: unless its start and end are not 0 and 1.

    Sizes. Either scales or sizes is given, for all axes. in and out are the sizes of an axis of X and of Y, and r is
    the step in X for a step of 1 in Y, a float32:

    - by scales, out = floor(in · scale) and r = f32(1 / scale). Scales are float32, or float64 if the source held
      doubles, and in · scale is rounded to their type: 10 · f32(0.7), which is less than 7, gives 7;
    - by sizes, out is stated and r = f32(in / out);
    - if the aspect ratio is kept, one scale serves all axes, the least or the greatest of all size / in (`not_larger`,
      `not_smaller`), a float64; out = floor(in · scale + ½) and r = f32(1 / scale).

    Positions. Element i of an axis of Y is at the position p of X, in float32, each operation rounded in this order:

    | `coordinate_transformation_mode` | p |
    | --- | --- |
    | `asymmetric` | i · r |
    | `half_pixel` | ((i + ½) · r) - ½ |
    | `pytorch_half_pixel` | the same, or 0 if out = 1 |
    | `half_pixel_symmetric` | (o + ((i + ½) · r)) - ½, with o = (in / 2) · (1 - ((out · r) / in)) |
    | `align_corners` | i · ((in - 1) / (out - 1)), or 0 if out = 1 |
    | `tf_crop_and_resize` | start · (in - 1) + (i · c), or (start + end) / 2 · (in - 1) if out = 1 |

    roi has start and end, and c = (end - start) · (in - 1) / (out - 1). start · (in - 1), c and the product
    for out = 1 are float64, each rounded to float32 at its end; i · c and the sum are float32. Where p is less
    than 0 or more than in - 1 along any axis, Y is extrapolation_value.

    Values:

    - `nearest` selects the element at ceil(p - ½) (`round_prefer_floor`), floor(p + ½) (`round_prefer_ceil`), floor(p)
      or ceil(p); p - ½ and p + ½ are exact. An index outside X is clamped to the edge.
    - `linear` goes along one axis after the other, the last one first, in float32. p is clamped to 0..in - 1; l =
      floor(p), h = min(l + 1, in - 1), t = p - l; the value is (X[h] · t) + (X[l] · (1 - t)).
    - `cubic`, and `linear` with antialias or exclude_outside, go along the axes from the first, in float64. An element
      at the distance d from p has the weight of a kernel; weights are divided by their sum. An element outside X is
      that at the edge, or, with exclude_outside, has the weight 0. With antialias, where r > 1, d is divided by r.
      The kernel of linear is 1 - d up to d = 1. That of cubic, with a = cubic_coeff_a, is
      (a + 2) · d³ - (a + 3) · d² + 1 up to d = 1, and a · d³ - 5 · a · d² + 8 · a · d - 4 · a up to d = 2.
    """
    geometry, places = _geometry(x.shape, roi, scales, sizes, a), a["coordinate_transformation_mode"]
    if a["mode"] == "nearest":
        y = _nearest(x, geometry, places, a["nearest_mode"])
    elif a["mode"] == "cubic" or a["antialias"] or a["exclude_outside"]:
        y = _as(x.dtype, _weighted(x, geometry, a))
    else:
        y = _as(x.dtype, _linear(x if x.dtype.kind == "f" else x.astype(f32), geometry, places, _multiply_add))
    if places != "tf_crop_and_resize":
        return y
    return np.where(_outside(geometry, places), x.dtype.type(a["extrapolation_value"]), y)
