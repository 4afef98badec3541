"""Integers that are clipped before they are dequantized: narrow ranges, as written by Brevitas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..model import DTYPES, Node, Tensor
from ..ops.activation import bounds
from .qdq_grids import QUANTIZE

Ranges = dict[str, tuple[int, int]]
"""Tensor → the smallest and the largest of its integers."""


def narrowed(nodes: Sequence[Node], tensors: dict[str, Tensor], uses: Counter[str]) -> tuple[list[Node], Ranges]:
    """The nodes without the Clips of integers that a QuantizeLinear alone gives, or that are constants; the ranges.

    The QuantizeLinear then outputs the clipped integers: clamping twice is clamping to the intersection of the ranges.
    """
    producers = {node.outputs[0]: position for position, node in enumerate(nodes) if node.operator == QUANTIZE}
    kept: list[Node | None] = list(nodes)
    ranges: Ranges = {}
    for position, node in enumerate(nodes):
        limits = _limits(node, tensors)
        if limits is None:
            continue
        source, target = node.inputs[0], node.outputs[0]
        low, high = ranges.get(source, limits)
        limits = (max(low, limits[0]), min(high, limits[1]))
        if limits[0] > limits[1]:
            continue
        if tensors[source].is_constant:
            tensors[target] = _clipped(tensors[source], tensors[target], limits)
        elif source in producers and uses[source] == 1:
            at = producers.pop(source)
            quantizer = kept[at]
            assert quantizer is not None
            kept[at] = replace(quantizer, outputs=(target,))
            producers[target] = at
            names = {*tensors[target].aliases, *tensors[source].aliases, source}
            tensors[target] = replace(tensors[target], aliases=tuple(sorted(names)))
        else:
            continue
        kept[position] = None
        ranges[target] = limits
    return [node for node in kept if node is not None], ranges


def _limits(node: Node, tensors: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """The range after a Clip of integers, if its bounds are constants."""
    if node.operator != "Clip" or not DTYPES[tensors[node.inputs[0]].dtype].is_integer:
        return None
    kind, known = DTYPES[tensors[node.inputs[0]].dtype], bounds(node, tensors)
    if known is None or not kind.is_quantizable:
        return None
    return int(max(kind.minimum, known[0])), int(min(kind.maximum, known[1]))


def _clipped(source: Tensor, target: Tensor, limits: tuple[int, int]) -> Tensor:
    """The constant after the Clip: the same data if nothing is clipped."""
    names = tuple(sorted({*target.aliases, *source.aliases, source.name} - {target.name}))
    array = source.array
    if array.size == 0 or (array.min() >= limits[0] and array.max() <= limits[1]):
        return replace(source, name=target.name, aliases=names)
    clipped = np.clip(array, *limits).astype(array.dtype)
    return Tensor.constant(target.name, clipped, dtype=source.dtype, aliases=names)
