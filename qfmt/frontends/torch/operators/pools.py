"""Torch's pooling, means and interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ....errors import SourceError
from .. import arguments, shapes
from ..building import Builder
from ..lifts import by_rank, lifts
from ..values import TensorValue, Unsupported, narrowest
from .linear import many
from .logic import in_type


def _batched(lift: Builder, x: Any, rank: int) -> TensorValue:
    value = lift.tensor(x)
    shapes.need(lift, value, (None,) * (rank + 2))
    if value.shape is not None and len(value.shape) != rank + 2:
        raise SourceError(f"expects {rank + 2} dimensions, but its input has {len(value.shape)}")
    return value


def _window(rank: int, a: Any) -> dict[str, Any]:
    shape, pads = many(a.kernel_size, rank), many(a.padding, rank)
    strides = many(a.stride, rank) if a.stride not in (None, [], ()) else shape
    return {"kernel_shape": shape, "strides": strides, "pads": pads + pads}


_MAX = "kernel_size, stride=[], padding=0, dilation=1, ceil_mode=False"
_AVERAGE = "self, kernel_size, stride=[], padding=0, ceil_mode=False, count_include_pad=True"


@lifts(
    by_rank(f"aten::max_pool{{}}d(self, {_MAX})"),
    {f"quantized::max_pool{rank}d(qx:self, {_MAX})": rank for rank in (1, 2)},
)
def max_pool(lift: Builder, rank: int, a: Any) -> Any:
    attributes = _window(rank, a)
    attributes |= {"dilations": many(a.dilation, rank), "ceil_mode": arguments.flag(lift, a.ceil_mode)}
    return lift.emit("MaxPool", [_batched(lift, a.self, rank)], attributes)


@lifts(by_rank(f"aten::max_pool{{}}d_with_indices(self, {_MAX})"))
def max_pool_with_indices(lift: Builder, rank: int, a: Any) -> Any:
    """Networks that only pool drop the indices; reading them is an error."""
    return max_pool(lift, rank, a), Unsupported()


@lifts(
    {f"aten::avg_pool1d({_AVERAGE})": 1},
    {f"aten::avg_pool{rank}d({_AVERAGE}, divisor_override=None)": rank for rank in (2, 3)},
)
def avg_pool(lift: Builder, rank: int, a: Any) -> Any:
    x, attributes = _batched(lift, a.self, rank), _window(rank, a)
    whole, counted = arguments.flag(lift, a.ceil_mode), arguments.flag(lift, a.count_include_pad)
    attributes |= {"ceil_mode": whole, "count_include_pad": counted, "dilations": (1,) * rank}
    divisor = getattr(a, "divisor_override", None)
    if divisor is not None:  # divides all windows by the same, as a count with the padding does
        if whole or divisor != int(np.prod(attributes["kernel_shape"])):
            return NotImplemented
        attributes["count_include_pad"] = 1
    in_blocks = x.has_block and (x.channels_last or rank == 3)  # volumes are made channels last
    rule = lift.unless(in_blocks or (lift.engine == "qnnpack" and rank < 3), "mean_divide_offset")
    return lift.emit("AveragePool", [x], attributes, quantization=arguments.grid(x), rule=rule)


@lifts(by_rank("aten::adaptive_avg_pool{}d"), {f"aten::_adaptive_avg_pool{rank}d": rank for rank in (2, 3)})
def adaptive_avg_pool(lift: Builder, rank: int, self: Any, output_size: Any) -> Any:
    x = _batched(lift, self, rank)
    sizes = list(output_size) if isinstance(output_size, list | tuple) else [output_size] * rank
    rule = lift.unless(rank < 3, "mean_reciprocal_fma")
    if all(size == 1 for size in sizes):
        return lift.emit("GlobalAveragePool", [x], quantization=arguments.grid(x), rule=rule)
    sizes = [_kept(x, 2 + i) if size is None else arguments.whole(lift, size) for i, size in enumerate(sizes)]
    attributes = {"output_size": tuple(sizes)}
    return lift.emit("qfmt.AdaptiveAveragePool", [x], attributes, quantization=arguments.grid(x), rule=rule)


def _kept(x: TensorValue, axis: int) -> int:
    size = x.shape[axis] if x.shape is not None else None
    if not isinstance(size, int):
        raise SourceError("keeps a size that is not known", hint="give the input's shape with --input-shape")
    return size


@lifts(by_rank("aten::adaptive_max_pool{}d"))
def adaptive_max_pool(lift: Builder, rank: int, self: Any, output_size: Any) -> Any:
    x = _batched(lift, self, rank)
    if any(size != 1 for size in many(output_size, rank)):
        return NotImplemented
    axes = np.arange(2, 2 + rank, dtype=np.int64)
    pooled = lift.emit("ReduceMax", [x, lift.constant(axes)], {"keepdims": 1})
    return pooled, Unsupported()


@lifts({"aten::mean": ("ReduceMean", ""), "aten::sum": ("ReduceSum", "int64")})
def reduced(
    lift: Builder, how: tuple[str, str], self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """`how`: the operator, and the type in which integers are added."""
    x, axes = in_type(lift, self, dtype, whole=how[1]), arguments.axes(lift, dim)
    rule = lift.unless(how[0] != "ReduceMean" or _is_of_image(x, dim), "mean_divide_offset")
    return lift.emit(how[0], [x, axes], {"keepdims": int(keepdim)}, quantization=arguments.grid(x), rule=rule)


def _is_of_image(x: TensorValue, dim: Any) -> bool:
    """Whether a mean is over height and width, for which qnnpack has a kernel."""
    axes = {each % 4 for each in dim} if isinstance(dim, list | tuple) else set()
    return x.shape is None or (len(x.shape) == 4 and axes == {2, 3})


@lifts(by_rank("aten::upsample_nearest{}d", "aten::_upsample_nearest_exact{}d"))
def upsample_nearest(lift: Builder, rank: int, input: Any, output_size: Any, *scales: Any, **named: Any) -> Any:
    """PyTorch uses floor(i / scale), nearest-exact floor((i + 0.5) / scale): half_pixel's -0.5, rounded up."""
    where, rounding = ("half_pixel", "round_prefer_ceil") if "exact" in lift.target else ("asymmetric", "floor")
    attributes = {"mode": "nearest", "coordinate_transformation_mode": where, "nearest_mode": rounding}
    return _resized(lift, rank, input, output_size, _factors(scales, named), attributes)


LINEAR, CUBIC = {"mode": "linear"}, {"mode": "cubic"}
ANTIALIASED = {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
"""Attributes with which torch interpolates as PIL does: torch, UpSampleKernel.cpp."""


@lifts(
    {
        "aten::upsample_linear1d": (1, LINEAR),
        "aten::upsample_bilinear2d": (2, LINEAR),
        "aten::upsample_trilinear3d": (3, LINEAR),
        "aten::upsample_bicubic2d": (2, CUBIC),
        "aten::_upsample_bilinear2d_aa": (2, LINEAR | ANTIALIASED),
        "aten::_upsample_bicubic2d_aa": (2, CUBIC | ANTIALIASED),
    }
)
def upsample(
    lift: Builder, how: Any, input: Any, output_size: Any, align_corners: bool, *scales: Any, **named: Any
) -> Any:
    rank, attributes = how
    x = lift.tensor(input)
    if x.is_whole or x.dtype == "float64":
        why = "integers, which torch rounds in its own way" if x.is_whole else "float64, with positions of float64"
        raise SourceError(f"interpolates {why}", hint="cast to float32 first")
    if align_corners and "antialias" in attributes:
        return NotImplemented
    places = {"coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel"}
    return _resized(lift, rank, input, output_size, _factors(scales, named), {**attributes, **places})


def _factors(scales: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """The factor of each dimension, from a list, or from one argument for each; None: not stated."""
    names = ("scales",) if "scales" in named else ("scales_d", "scales_h", "scales_w")
    factors = [*scales, *(named.pop(name) for name in ("scale_factors", *names) if name in named)]
    if named:
        raise SourceError("resizes by arguments that are not supported")
    return [*factors[0]] if len(factors) == 1 and isinstance(factors[0], list | tuple) else factors


def _resized(lift: Builder, rank: int, input: Any, size: Any, factors: list[Any], attributes: dict[str, Any]) -> Any:
    x = _batched(lift, input, rank)
    rule = lift.unless(x.channels_last, "interpolate")
    if size is not None and attributes["coordinate_transformation_mode"] != "align_corners":
        size = _unless_scaled(lift, x, size, factors)
    if size is None:
        doubles = np.array([1.0, 1.0, *(arguments.number(lift, factor) for factor in factors)])
        kept = all(narrowest(factor) == "float32" for factor in doubles.tolist())
        values = lift.constant(doubles.astype(np.float32) if kept else doubles)
        return lift.emit("Resize", [x, None, values], attributes, quantization=arguments.grid(x), rule=rule)
    whole = shapes.shape_tensor(lift, [shapes.size(lift, x, 0), shapes.size(lift, x, 1), *size])
    return lift.emit("Resize", [x, None, None, whole], attributes, quantization=arguments.grid(x), rule=rule)


def _unless_scaled(lift: Builder, x: TensorValue, size: Any, factors: Sequence[Any]) -> Any:
    """The sizes of a result, or None if torch computes with factors that come with these: they give the same sizes."""
    known = [arguments.number(lift, factor) for factor in factors if factor is not None]
    if not any(factor > 0 for factor in known):
        return size
    given = [each for each in map(partial(shapes.size, lift, x), range(2, 2 + len(size))) if isinstance(each, int)]
    if not len(known) == len(given) == len(size) or not all(isinstance(each, int) for each in size):
        raise SourceError("resizes by sizes and factors", hint=shapes.hint(lift))
    exact = [length * factor for length, factor in zip(given, known, strict=True)]
    if exact == list(size):
        return size
    if [int(length) for length in exact] != list(size):
        raise SourceError(f"resizes to {list(size)} by the factors {known}, which give other sizes")
    return None
