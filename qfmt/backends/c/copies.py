"""Copies of elements from where they lie to where they are wanted, as loops over regular parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import Array
from .loops import Dimension, Walk, nest
from .views import Operand, View

if TYPE_CHECKING:
    from .plan import Plan


def copy(plan: Plan, title: str, sources: Sequence[View], picks: Array, target: View) -> None:
    """Copy into `target` what `picks` says: positions in the buffers of the sources, counted one after the other."""
    if not picks.size:
        return
    physical = picks.transpose(target.order)
    place = np.arange(physical.size, dtype=np.int64).reshape(physical.shape) + target.offset
    body: list[str] = []
    used: dict[str, View] = {}
    start = 0
    for index, view in enumerate(sources):
        inside = (physical >= start) & (physical < start + view.buffer.size)
        if inside.any():
            name = "x" if len(sources) == 1 else f"x{index}"
            used[name] = View(view.buffer, (view.buffer.size,), (0,))
            for box in _boxes(inside):
                source = _walk(physical[box] - start, name)
                aim = _walk(place[box], "y")
                body += nest(plan, physical[box].shape, [source, aim], partial(_assign, name))
        start += view.buffer.size
    whole = View(target.buffer, (target.buffer.size,), (0,))
    parameters = [Operand(name, view) for name, view in used.items()]
    plan.step(title, [*parameters, Operand("y", whole, written=True)], body)


def _assign(name: str, at: Mapping[str, str]) -> list[str]:
    return [f"y[{at['y']}] = {name}[{at[name]}];"]


def _boxes(inside: Array, corner: tuple[int, ...] = ()) -> Iterator[tuple[slice, ...]]:
    """Boxes that cover the places that are true, and no others: cut wherever one slab differs from the next."""
    corner = corner or (0,) * inside.ndim
    if inside.all():
        yield tuple(slice(begin, begin + size) for begin, size in zip(corner, inside.shape, strict=True))
    if inside.all() or not inside.any():
        return
    for axis, size in enumerate(inside.shape):
        slabs = np.moveaxis(inside, axis, 0).reshape(size, -1)
        cuts = (np.flatnonzero((slabs[1:] != slabs[:-1]).any(1)) + 1).tolist()
        if cuts:
            for begin, part in zip([0, *cuts], np.split(inside, cuts, axis), strict=True):
                yield from _boxes(part, (*corner[:axis], corner[axis] + begin, *corner[axis + 1 :]))
            return


def _walk(positions: Array, name: str) -> Walk:
    """Positions as a start and what each dimension adds; by a table of all if they are not such a sum."""
    start = int(positions.reshape(-1)[0])
    added: list[Array] = []
    total: Any = np.int64(start)
    for axis, size in enumerate(positions.shape):
        line = positions[tuple(slice(None) if other == axis else 0 for other in range(positions.ndim))] - start
        added.append(line)
        total = total + line.reshape([size if other == axis else 1 for other in range(positions.ndim)])
    if not np.array_equal(np.broadcast_to(total, positions.shape), positions):
        return Walk(name, start, None, positions - start)
    return Walk(name, start, [Dimension.of(line) for line in added], None)
