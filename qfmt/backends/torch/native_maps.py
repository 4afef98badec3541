"""torch's quantized kernels on maps: normalization, pooling, resizing."""

from __future__ import annotations

from typing import Any

import torch

from .emit import Emitter, Lacks, Site
from .floats import computed, resize_arguments, scale_shape
from .ranges import clamped, is_relu, same_grid, scale_and_zero_point, within_range
from .windows import of_rank, window

aten, quantized = torch.ops.aten, torch.ops.quantized

# Normalization


def _batch_norm(s: Site) -> Any:
    s.grid(0)
    targets = {
        (2, False): quantized.batch_norm1d.default,
        (3, False): quantized.batch_norm1d.default,
        (4, False): quantized.batch_norm2d.default,
        (5, False): quantized.batch_norm3d.default,
        (4, True): quantized.batch_norm2d_relu.default,
        (5, True): quantized.batch_norm3d_relu.default,
    }
    key = (s.rank(), is_relu(s))
    if key not in targets:
        raise Lacks("torch normalizes batches of rank 2 to 5")
    parameters = [s.x(index) for index in range(1, 5)]
    return within_range(s, targets[key], s.x(0), *parameters, s.attribute("epsilon"), *scale_and_zero_point(s))


def _check_real_parameters(s: Site) -> None:
    if any(s.has(index) and s.tensor(index).quantization is not None for index in (1, 2)):
        raise Lacks("torch normalizes with float weights only")


def _layer_norm(s: Site) -> Any:
    s.grid(0)
    _check_real_parameters(s)
    arguments = (s.x(0), scale_shape(s), s.x(1), s.x(2), s.attribute("epsilon"), *scale_and_zero_point(s))
    return within_range(s, quantized.layer_norm.default, *arguments, relu=False)


def _group_norm(s: Site) -> Any:
    s.grid(0)
    _check_real_parameters(s)
    arguments = (s.attribute("num_groups"), s.x(1), s.x(2), s.attribute("epsilon"), *scale_and_zero_point(s))
    return within_range(s, quantized.group_norm.default, s.x(0), *arguments, relu=False)


def _instance_norm(s: Site) -> Any:
    s.grid(0)
    _check_real_parameters(s)
    arguments = (s.x(1), s.x(2), s.attribute("epsilon"), *scale_and_zero_point(s))
    return within_range(s, quantized.instance_norm.default, s.x(0), *arguments, relu=False)


# Pooling


def _max_pool(s: Site) -> Any:
    kernel, strides, pads, dilations, ceil = window(s)
    if len(kernel) == 3:
        raise Lacks("torch has no quantized max_pool3d")
    return s.result(of_rank("max_pool", len(kernel)), s.x(0), kernel, strides, pads, dilations, ceil)


def _kept(s: Site) -> Any:
    """A mean with the scale and zero point of its input: the float kernel also supports quantized tensors."""
    same_grid(s)
    return clamped(s, computed(s, Site.x))


def _resize(s: Site) -> Any:
    same_grid(s)
    sizes, factors = resize_arguments(s)
    rank, mode = s.rank() - 2, s.attribute("mode")
    nearest = {1: aten.upsample_nearest1d, 2: aten.upsample_nearest2d, 3: aten.upsample_nearest3d}
    exact = {1: aten._upsample_nearest_exact1d, 2: aten._upsample_nearest_exact2d, 3: aten._upsample_nearest_exact3d}
    if mode == "nearest":
        target = (nearest if s.attribute("nearest_mode") == "floor" else exact)[rank].vec
        return s.result(target, s.x(0), sizes, factors)
    if rank != 2:
        raise Lacks("torch interpolates quantized images of 2 dimensions only")
    corners = s.attribute("coordinate_transformation_mode") == "align_corners"
    return within_range(s, aten.upsample_bilinear2d.vec, s.x(0), sizes, corners, factors, relu=False)


MAP_EMITTERS: dict[str, Emitter] = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "MaxPool": _max_pool,
    "Resize": _resize,
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean"), _kept),
}
