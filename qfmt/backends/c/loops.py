"""Nested loops over elements, as few and as long as their steps through memory allow; and copies, which are such."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import Array
from .views import Order, Parameter, View

if TYPE_CHECKING:
    from .plan import Plan

COUNTERS = "ijklmopq"


@dataclass(frozen=True, slots=True)
class Dimension:
    """The distance of each step along a dimension: always `step`, or from a table."""

    step: int
    table: Array | None = None

    @classmethod
    def of(cls, line: Array) -> Dimension:
        step = int(line[1] - line[0]) if line.size > 1 else 0
        regular = np.array_equal(line, step * np.arange(line.size))
        return cls(step) if regular else cls(0, line.astype(np.int32))


@dataclass(frozen=True, slots=True)
class Walk:
    """The index in `name` of each element of a loop nest: a start, and a term for each dimension; or one table."""

    name: str
    start: int
    dimensions: Sequence[Dimension] | None
    table: Array | None = None


def nest(
    plan: Plan,
    shape: Sequence[int],
    walks: Sequence[Walk],
    inner: Callable[[Mapping[str, str]], list[str]],
    counters: Sequence[str] = COUNTERS,
) -> list[str]:
    """Loops over `shape`; `inner` gets the C expression of each index and returns the lines of the body."""
    sizes, steps = merged(shape, walks)
    places = {}
    for walk, dimensions in zip(walks, steps, strict=True):
        words = [] if walk.start == 0 else [str(walk.start)]
        for counter, dimension in zip(counters, dimensions, strict=False):
            if dimension.table is not None:
                plan.network.budget.allocate(dimension.table.nbytes)
                words.append(f"{plan.constant(narrowest(dimension.table), 'places')}[{counter}]")
            elif dimension.step:
                words.append(counter if dimension.step == 1 else f"{counter} * {dimension.step}")
        places[walk.name] = " + ".join(words) or "0"
    body = inner(places)
    lines = [
        f"{'    ' * depth}for (int32_t {counter} = 0; {counter} < {size}; {counter}++)"
        for depth, (counter, size) in enumerate(zip(counters, sizes, strict=False))
    ]
    if not lines:
        return body
    if len(body) > 1:
        lines[-1] += " {"
    indent = "    " * len(lines)
    closing = ["    " * (len(lines) - 1) + "}"] if len(body) > 1 else []
    return [*lines, *(indent + line for line in body), *closing]


def narrowest(places: Array) -> Array:
    """Integers in the smallest C type that fits them all."""
    for kind in (np.uint8, np.int16):
        limits = np.iinfo(kind)
        if places.min(initial=0) >= limits.min and places.max(initial=0) <= limits.max:
            return places.astype(kind)
    return places


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Lines of the body of a loop."""
    return ["    " * depth + line for line in lines]


def merged(shape: Sequence[int], walks: Sequence[Walk]) -> tuple[list[int], list[list[Dimension]]]:
    """Sizes and steps without dimensions of one element, and with contiguous dimensions joined."""
    if any(walk.dimensions is None for walk in walks):
        total = int(np.prod(shape))
        return [total], [[_flat(walk, shape)] for walk in walks]
    sizes: list[int] = []
    kept: list[list[Dimension]] = [[] for _ in walks]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        own = [walk.dimensions[axis] for walk in walks if walk.dimensions is not None]
        if sizes and all(_continues(lines[-1], each, size) for lines, each in zip(kept, own, strict=True)):
            sizes[-1] *= size
            for lines, each in zip(kept, own, strict=True):
                lines[-1] = each
        else:
            sizes.append(size)
            for lines, each in zip(kept, own, strict=True):
                lines.append(each)
    return sizes, kept


def _continues(outer: Dimension, inner: Dimension, size: int) -> bool:
    return outer.table is None and inner.table is None and outer.step == inner.step * size


def _flat(walk: Walk, shape: Sequence[int]) -> Dimension:
    """All dimensions as one."""
    if walk.table is not None:
        return Dimension.of(walk.table.reshape(-1))
    total: Any = np.zeros(tuple(shape), np.int64)
    for axis, dimension in enumerate(walk.dimensions or ()):
        line = dimension.step * np.arange(shape[axis]) if dimension.table is None else dimension.table
        total = total + line.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return Dimension.of(total.reshape(-1))


ALL: tuple[slice, ...] = ()
"""The box of all elements, as an index of NumPy."""


def copy(plan: Plan, title: str, sources: Sequence[View], picks: Array, target: View) -> None:
    """Copy the elements at `picks` into `target`. `picks` are positions in the concatenated buffers of the
    sources."""
    if not picks.size:
        return
    physical = picks.transpose(target.order)
    steps = [target.steps[axis] for axis in target.order]
    body: list[str] = []
    used: dict[str, View] = {}
    start = 0
    for index, view in enumerate(sources):
        name = "x" if len(sources) == 1 else f"x{index}"
        for box in [ALL] if len(sources) == 1 else _boxes((physical >= start) & (physical < start + view.buffer.size)):
            used[name] = view.whole
            corner = target.offset + sum(step * (part.start or 0) for step, part in zip(steps, box, strict=False))
            walks = [_walk(physical[box], name, -start), Walk("y", corner, [*map(Dimension, steps)])]
            body += nest(plan, physical[box].shape, walks, partial(_assign, name))
        start += view.buffer.size
    parameters = [Parameter(name, view) for name, view in used.items()]
    plan.step(title, [*parameters, Parameter("y", target.whole, written=True)], body)


def through(view: View, shape: Sequence[int], order: Order, name: str) -> Walk:
    """The walk through a view that broadcasts to `shape`, dimension by dimension in `order`."""
    steps = [0 if size == 1 else step for size, step in zip(view.shape, view.steps, strict=True)]
    steps = [0] * (len(shape) - len(steps)) + steps
    return Walk(name, view.offset, [Dimension(steps[axis]) for axis in order])


def transfer(plan: Plan, title: str, sources: Sequence[View], target: View, axis: int | None = None) -> None:
    """Copy the sources into `target`, one after the other along an axis, or broadcast a single one. Each may be in any
    order in memory."""
    body: list[str] = []
    used: list[Parameter] = []
    start = 0
    for index, view in enumerate(sources):
        if view.size:
            name = "x" if len(sources) == 1 else f"x{index}"
            aim = Walk("y", target.offset + start, [Dimension(target.steps[each]) for each in target.order])
            shape = target.shape if axis is None else view.shape
            walks = [through(view, shape, target.order, name), aim]
            used.append(Parameter(name, view.whole))
            body += nest(plan, [shape[each] for each in target.order], walks, partial(_assign, name))
            start += 0 if axis is None else target.steps[axis] * view.shape[axis]
    if body:
        plan.step(title, [*used, Parameter("y", target.whole, written=True)], body)


def _assign(name: str, at: Mapping[str, str]) -> list[str]:
    return [f"y[{at['y']}] = {name}[{at[name]}];"]


def _boxes(inside: Array, corner: tuple[int, ...] = ()) -> Iterator[tuple[slice, ...]]:
    """Boxes that cover exactly the true positions; cut where a slab differs from the next."""
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


def _walk(positions: Array, name: str, shift: int) -> Walk:
    """Positions, shifted, as a start plus a term per dimension; a table of all if they are not such a sum."""
    start = int(positions[(0,) * positions.ndim])
    added: list[Array] = []
    total: Any = np.int64(start)
    for axis, size in enumerate(positions.shape):
        line = positions[tuple(slice(None) if other == axis else 0 for other in range(positions.ndim))] - start
        added.append(line)
        total = total + line.reshape([size if other == axis else 1 for other in range(positions.ndim)])
    if not np.array_equal(np.broadcast_to(total, positions.shape), positions):
        return Walk(name, start + shift, None, positions - start)
    return Walk(name, start + shift, [Dimension.of(line) for line in added], None)
