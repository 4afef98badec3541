"""torch's quantized kernels on maps: normalization, pooling, resizing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .emit import Emitter, Lacks, Site
from .floats import computed, resize_arguments, scale_shape, upsampling
from .ranges import clamped, is_relu, runs_qnnpack, same_grid, scale_and_zero_point, within_range
from .windows import of_rank, window

aten, quantized = torch.ops.aten, torch.ops.quantized

# Normalization


def _check_operands(s: Site) -> None:
    s.grid(0)
    if any(s.has(index) and s.tensor(index).dtype != "float32" for index in range(1, len(s.node.inputs))):
        raise Lacks("torch normalizes with weights of float32 only")


def _batch_norm(s: Site) -> Any:
    _check_operands(s)
    rank, relu = s.rank(), is_relu(s)
    if not (4 if relu else 2) <= rank <= 5:
        raise Lacks("torch normalizes batches of rank 2 to 5")
    target = getattr(quantized, f"batch_norm{max(rank - 2, 1)}d{'_relu' if relu else ''}").default
    parameters = [s.x(index) for index in range(1, 5)]
    return within_range(s, target, s.x(0), *parameters, s.attribute("epsilon"), *scale_and_zero_point(s))


NORMALIZATIONS: dict[str, tuple[Any, Callable[[Site], list[Any]]]] = {
    "LayerNormalization": (quantized.layer_norm.default, lambda s: [scale_shape(s)]),
    "GroupNormalization": (quantized.group_norm.default, lambda s: [s.attribute("num_groups")]),
    "InstanceNormalization": (quantized.instance_norm.default, lambda s: []),
}
"""Operator → torch's kernel, and its arguments between the input and the weights."""


def _normalization(s: Site) -> Any:
    _check_operands(s)
    shape = s.tensor(0).shape
    if s.node.operator != "LayerNormalization" and shape is not None:
        if len(shape) < 3:
            raise Lacks("torch normalizes groups of rank 3 or more")
        _check_pixels(s, len(shape) - 2)
    target, stated = NORMALIZATIONS[s.node.operator]
    arguments = (s.x(0), *stated(s), s.x(1), s.x(2), s.attribute("epsilon"), *scale_and_zero_point(s))
    return within_range(s, target, *arguments, relu=False)


# Pooling


def _max_pool(s: Site) -> Any:
    kernel, strides, pads, dilations, ceil = window(s)
    if len(kernel) == 3:
        raise Lacks("torch has no quantized max_pool3d")
    if runs_qnnpack(s) and all(size == 1 for size in kernel):
        raise Lacks("QNNPACK does not pool single elements")
    return s.result(of_rank("max_pool", len(kernel)), s.x(0), kernel, strides, pads, dilations, ceil)


def _kept(s: Site) -> Any:
    """A mean with the scale and zero point of its input: the float kernel also supports quantized tensors."""
    same_grid(s)
    if s.node.operator == "qfmt.AdaptiveAveragePool":
        _check_pixels(s, len(s.attribute("output_size")))
    return clamped(s, computed(s, Site.x))


def _check_pixels(s: Site, rank: int) -> None:
    """torch 2.13 takes a single pixel to be channels last, but not the image that it makes of it: wrong channels.
    What it makes of one in normalizations is arbitrary."""
    shape = s.tensor(0).shape
    if len(s.builder.engine.kernels) > 1 and shape is not None and all(size == 1 for size in shape[-rank:]):
        raise Lacks("is computed incorrectly by torch for a single pixel")


def _resize(s: Site) -> Any:
    same_grid(s)
    _check_pixels(s, s.rank() - 2)
    sizes, factors = resize_arguments(s)
    target, corners = upsampling(s)
    if not corners and s.rank() == 3:
        raise Lacks("torch has no quantized upsample_nearest1d")
    if not corners:
        return s.result(target, s.x(0), sizes, factors)
    if s.rank() != 4:
        raise Lacks("torch interpolates quantized images of 2 dimensions only")
    return within_range(s, target, s.x(0), sizes, *corners, factors, relu=False)


MAP_EMITTERS: dict[str, Emitter] = {
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(NORMALIZATIONS, _normalization),
    "MaxPool": _max_pool,
    "Resize": _resize,
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean"), _kept),
}
