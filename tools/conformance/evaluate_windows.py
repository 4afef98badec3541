"""The second evaluation: sums and means of windows, bins and axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import lcm
from typing import Any

from .evaluate import Value, filled
from .evaluate_products import Attributes, Form, Operands, within, zero


def windows(operator: str, x: Value, at: Attributes, axes: Value | None = None) -> tuple[Value, Value]:
    """Σ (q - z) of each window, and how many elements it divides by."""

    def centred(place: Sequence[int]) -> int:
        return int(x[place]) - zero(x, place)

    places: Callable[[tuple[int, ...]], tuple[list[tuple[int, ...]], int]]
    if operator == "AveragePool":
        shape, places = _pool_windows(x, at)
    elif operator == "qfmt.AdaptiveAveragePool":
        shape, places = _bins(x, at["output_size"])
    else:
        over = tuple(range(2, len(x.shape))) if operator == "GlobalAveragePool" else _axes(x, axes)
        keep = operator == "GlobalAveragePool" or bool(at["keepdims"])
        shape, places = reduced(x, over, keep)
    found = {place: places(place) for place in product(*map(range, shape))}
    total = filled(shape, "int64", lambda place: sum(map(centred, found[place][0])))
    return total, filled(shape, "int64", lambda place: found[place][1])


def _axes(x: Value, axes: Value | None) -> tuple[int, ...]:
    rank = len(x.shape)
    return tuple(range(rank)) if axes is None else tuple(axis % rank for axis in axes.items)


def reduced(x: Value, over: Sequence[int], keep: bool) -> tuple[tuple[int, ...], Callable[..., Any]]:
    """The shape without `over`, and for a place of it all places that go there."""
    shape = tuple(1 if d in over else size for d, size in enumerate(x.shape) if keep or d not in over)

    def places(place: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
        rest = iter([index for d, index in enumerate(place) if not keep or d not in over])
        ranges = [range(size) if d in over else (next(rest),) for d, size in enumerate(x.shape)]
        found = list(product(*ranges))
        return found, len(found)

    return shape, places


def pool_shape(x: Value, at: Attributes) -> list[int]:
    rank, sizes = len(x.shape) - 2, []
    for d in range(rank):
        size, stride = x.shape[2 + d], at["strides"][d]
        span = size + at["pads"][d] + at["pads"][rank + d] - at["dilations"][d] * (at["kernel_shape"][d] - 1) - 1
        count = (-(-span // stride) if at["ceil_mode"] else span // stride) + 1
        if at["ceil_mode"] and (count - 1) * stride >= size + at["pads"][d]:
            count -= 1  # a window that begins in the padding behind counts no more
        sizes.append(count)
    return sizes


def taps(at: Attributes, spatial: Sequence[int], place: Sequence[int]) -> Iterator[list[int]]:
    for k in product(*map(range, at["kernel_shape"])):
        yield [at["strides"][d] * place[d] + at["dilations"][d] * k[d] - at["pads"][d] for d in range(len(spatial))]


def _pool_windows(x: Value, at: Attributes) -> tuple[tuple[int, ...], Callable[..., Any]]:
    spatial, rank = x.shape[2:], len(x.shape) - 2

    def places(place: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
        inside, counted = [], 0
        for source in taps(at, spatial, place[2:]):
            if all(0 <= source[d] < spatial[d] for d in range(rank)):
                inside.append((*place[:2], *source))
            padded = all(-at["pads"][d] <= source[d] < spatial[d] + at["pads"][rank + d] for d in range(rank))
            counted += padded
        return inside, counted if at["count_include_pad"] else len(inside)

    return (*x.shape[:2], *pool_shape(x, at)), places


def _bins(x: Value, output_size: Sequence[int]) -> tuple[tuple[int, ...], Callable[..., Any]]:
    lead = len(x.shape) - len(output_size)

    def places(place: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
        ranges = []
        for size, out, i in zip(x.shape[lead:], output_size, place[lead:], strict=True):
            ranges.append(range(i * size // out, -(-(i + 1) * size // out)))
        found = [(*place[:lead], *source) for source in product(*ranges)]
        return found, len(found)

    return (*x.shape[:lead], *output_size), places


def average(operator: str) -> Callable[..., list[Value]]:
    """Σ · L / n by `exact`, or a mean rule."""

    def evaluate(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
        x, axes = (*operands, None)[:2]
        assert x is not None
        total, counts = windows(operator, x, at, axes)
        if rule == "exact":
            multiple = lcm(*counts.items)
            sums = filled(total.shape, "int32", lambda place: total[place] * multiple // counts[place])
            return [within(sums, "int32")]
        from .evaluate_real import mean

        return [mean(total, counts, rule, forms[0])]

    return evaluate


OPERATORS: dict[str, Callable[..., list[Value]]] = {
    operator: average(operator)
    for operator in ("AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean")
}
