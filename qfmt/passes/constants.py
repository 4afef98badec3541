"""Compute nodes over constants now instead of at run time."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from ..interpreter import execute
from ..memory import keep
from ..model import Node, Tensor, numpy_dtype, static_shape
from ..ops import Operand

ALIASES = 64
"""The most aliases that a constant gets from those that it was made of, one after another."""


def computed(
    node: Node, given: Sequence[Tensor | None], outputs: Sequence[Tensor], aliases: tuple[str, ...] = ()
) -> list[Tensor]:
    """The outputs of a node as constants. Of an input that is not constant, only its static shape is used."""
    arrays = execute(node, [None if each is None else _operand(each) for each in given], outputs)
    keep(sum(array.nbytes for array in arrays))
    pairs = zip(outputs, arrays, strict=True)
    return [
        Tensor.constant(each.name, array, each.quantization, dtype=each.dtype, aliases=aliases) for each, array in pairs
    ]


def _operand(tensor: Tensor) -> Operand:
    if tensor.is_constant:
        return Operand(tensor.array, tensor.quantization)
    return Operand(np.broadcast_to(np.zeros((), numpy_dtype(tensor.dtype)), static_shape(tensor)), tensor.quantization)


def names_of(tensor: Tensor) -> set[str]:
    """Its name and its aliases, as aliases of what is made of it. A long chain keeps the first ALIASES."""
    return {*tensor.aliases, tensor.name} if len(tensor.aliases) < ALIASES else {*tensor.aliases}


def moved_constant(node: Node, source: Tensor, others: Sequence[Tensor | None], name: str) -> Tensor | None:
    """The result of a data-movement node for a quantized constant; None if its scales cannot be moved along.

    If each slice has a scale, the slice indices are moved as well, to find the new axis.
    """
    grid = source.quantization
    if grid is None or not grid.is_affine:
        return None
    operands = [None if other is None else Operand(other.array, other.quantization) for other in others]

    def move(array: Any, dtype: str) -> Any:
        (result,) = execute(node, [Operand(array, None), *operands], [Tensor(node.outputs[0], dtype, None)])
        return result

    moved = move(source.array, source.dtype)
    keep(moved.nbytes)
    if grid.axis is not None:
        along = [-1 if axis == grid.axis else 1 for axis in range(source.array.ndim)]
        numbers = np.arange(len(grid.scale), dtype=np.int32).reshape(along)
        axis = _axis_of(move(np.broadcast_to(numbers, source.array.shape), "int32"), len(grid.scale))
        if axis is None:
            return None
        grid = grid.along(axis)
    aliases = tuple(sorted(names_of(source)))
    return Tensor.constant(name, moved, grid, dtype=source.dtype, aliases=aliases)


def _axis_of(numbers: Any, count: int) -> int | None:
    """The axis along which an array of slice indices counts from 0 to `count` - 1, if there is one."""
    for axis, size in enumerate(numbers.shape):
        shape = [-1 if each == axis else 1 for each in range(numbers.ndim)]
        if size == count and (numbers == np.arange(count).reshape(shape)).all():
            return axis
    return None


def unused(base: str, taken: Container[str]) -> str:
    """An unused name: the given one, or one with a number appended. It counts: many may begin with one that is long.

    Found by bisection, so that a thousand calls with one base do not need a million lookups.
    """
    keep(len(base))
    if base not in taken:
        return base
    low, high = 0, 1
    while f"{base}_{high}" in taken:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{base}_{middle}" in taken else (low, middle)
    return f"{base}_{high}"
