"""The second evaluation: what moves, compares, clamps or looks up integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, product
from math import prod
from typing import Any

from .evaluate import LIMITS, Value, filled
from .evaluate_products import Attributes, Form, Operands, pairs
from .evaluate_windows import pool_shape, reduced, taps
from .reals import f32, rint


def move(function: Callable[..., Value]) -> Callable[..., list[Value]]:
    """An operator with one result, of its operands and attributes alone."""

    def evaluate(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
        return [function(*operands, at)]

    return evaluate


def _renamed(x: Value, shape: Sequence[int]) -> Value:
    """The same items in another shape."""
    assert prod(shape) == len(x.items)
    return Value(tuple(shape), x.items, x.dtype)


def _reshape(x: Value, shape: Value, at: Attributes) -> Value:
    sizes = list(shape.items)
    if not at["allowzero"]:
        sizes = [x.shape[d] if size == 0 else size for d, size in enumerate(sizes)]
    if -1 in sizes:
        rest = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = len(x.items) // rest
    return _renamed(x, sizes)


def _flatten(x: Value, at: Attributes) -> Value:
    axis = at["axis"] + (len(x.shape) if at["axis"] < 0 else 0)
    return _renamed(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _squeeze(x: Value, *rest: Any) -> Value:
    axes = None if len(rest) == 1 or rest[0] is None else [axis % len(x.shape) for axis in rest[0].items]
    return _renamed(x, [size for d, size in enumerate(x.shape) if (size != 1 if axes is None else d not in axes)])


def _unsqueeze(x: Value, axes: Value, at: Attributes) -> Value:
    rank = len(x.shape) + len(axes.items)
    new, sizes = {axis % rank for axis in axes.items}, iter(x.shape)
    return _renamed(x, [1 if d in new else next(sizes) for d in range(rank)])


def _transpose(x: Value, at: Attributes) -> Value:
    perm = at["perm"]
    back = [perm.index(d) for d in range(len(perm))]
    return filled([x.shape[d] for d in perm], x.dtype, lambda place: x[[place[d] for d in back]])


def _slice(x: Value, starts: Value, ends: Value, *rest: Any) -> Value:
    axes, steps = (*rest[:-1], None, None)[:2]
    over = list(range(len(starts.items))) if axes is None else [axis % len(x.shape) for axis in axes.items]
    ranges = [range(size) for size in x.shape]
    for index, axis in enumerate(over):
        step = 1 if steps is None else steps.items[index]
        ranges[axis] = _places(x.shape[axis], starts.items[index], ends.items[index], step)
    places = list(product(*ranges))
    return Value(tuple(map(len, ranges)), [x[place] for place in places], x.dtype)


def _places(size: int, start: int, end: int, step: int) -> range:
    """Negative bounds count from the end; what is then outside comes to the edge, or, if it ends, before the first."""
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _pad(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    x, pads, constant, axes = (*operands, None, None)[:4]
    assert x is not None and pads is not None
    rank = len(x.shape)
    over = list(range(rank)) if axes is None else [axis % rank for axis in axes.items]
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(over):
        before[axis], after[axis] = pads.items[index], pads.items[len(over) + index]
    value = _number(constant) if x.grid is not None else 0 if constant is None else constant.items[0]
    if x.grid is not None:
        value = x.grid.clamp(rint(f32(value / x.grid.scale[0])) + x.grid.zero_point[0])

    def item(place: tuple[int, ...]) -> Any:
        source = []
        for index, low, size in zip(place, before, x.shape, strict=True):
            i = index - low
            if 0 <= i < size:
                source.append(i)
            elif at["mode"] == "edge":
                source.append(min(max(i, 0), size - 1))
            elif at["mode"] == "reflect":
                period = 2 * (size - 1)
                source.append(min(i % period, period - i % period))
            elif at["mode"] == "wrap":
                source.append(i % size)
            else:
                return value
        return x[source]

    sizes = [low + size + high for low, size, high in zip(before, x.shape, after, strict=True)]
    return [filled(sizes, x.dtype, item)]


def _number(value: Value | None) -> Fraction:
    """The real number of an operand that is one number, or 0."""
    from .evaluate_real import real

    return Fraction(0) if value is None else real(value, [0] * len(value.shape))


def _gather(x: Value, indices: Value, at: Attributes) -> Value:
    axis, rank = at["axis"] % len(x.shape), len(indices.shape)

    def item(place: tuple[int, ...]) -> Any:
        index = indices[place[axis : axis + rank]] % x.shape[axis]
        return x[(*place[:axis], index, *place[axis + rank :])]

    return filled((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype, item)


def _split(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    x, split = (*operands, None)[:2]
    assert x is not None
    axis = at["axis"] % len(x.shape)
    if split is not None:
        sizes = split.items
    else:
        each = -(-x.shape[axis] // len(forms))
        sizes = [min(each, x.shape[axis] - start) for start in range(0, x.shape[axis], each)]
    starts = [0, *accumulate(sizes)]

    def part(start: int, size: int) -> Value:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        return filled(shape, x.dtype, lambda p: x[(*p[:axis], p[axis] + start, *p[axis + 1 :])])

    return [part(start, size) for start, size in zip(starts, sizes, strict=False)]


def _expand(x: Value, shape: Value, at: Attributes) -> Value:
    sizes, both = pairs(x, Value(tuple(shape.items), [0] * prod(shape.items), "int64"))
    return filled(sizes, x.dtype, lambda place: both(place)[0])


def _tile(x: Value, repeats: Value, at: Attributes) -> Value:
    sizes = [size * times for size, times in zip(x.shape, repeats.items, strict=True)]
    return filled(sizes, x.dtype, lambda p: x[[index % size for index, size in zip(p, x.shape, strict=True)]])


def _depth_to_space(x: Value, at: Attributes) -> Value:
    n, c, h, w = x.shape
    b = at["blocksize"]
    depth = c // (b * b)

    def item(place: tuple[int, ...]) -> Any:
        image, channel, row, column = place
        inner = (row % b) * b + column % b
        source = inner * depth + channel if at["mode"] == "DCR" else channel * b * b + inner
        return x[image, source, row // b, column // b]

    return filled((n, depth, h * b, w * b), x.dtype, item)


def _space_to_depth(x: Value, at: Attributes) -> Value:
    n, c, h, w = x.shape
    b = at["blocksize"]

    def item(place: tuple[int, ...]) -> Any:
        image, channel, row, column = place
        inner, source = divmod(channel, c)
        return x[image, source, row * b + inner // b, column * b + inner % b]

    return filled((n, c * b * b, h // b, w // b), x.dtype, item)


def _max_pool(x: Value, at: Attributes) -> Value:
    def item(place: tuple[int, ...]) -> Any:
        sources = taps(at, x.shape[2:], place[2:])
        inside = [s for s in sources if all(0 <= i < size for i, size in zip(s, x.shape[2:], strict=True))]
        return max(x[(*place[:2], *source)] for source in inside)

    return filled((*x.shape[:2], *pool_shape(x, at)), x.dtype, item)


def _reduce(best: Callable[..., Any], over_all: bool = False) -> Callable[..., list[Value]]:
    def evaluate(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
        x, axes = (*operands, None)[:2]
        assert x is not None
        rank = len(x.shape)
        over = range(2, rank) if over_all else range(rank) if axes is None else [axis % rank for axis in axes.items]
        shape, places = reduced(x, list(over), over_all or bool(at["keepdims"]))
        return [filled(shape, x.dtype, lambda place: best(x[each] for each in places(place)[0]))]

    return evaluate


def _clamped(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    """Clip: bounds are real, and come to the grid by `reciprocal_offset`; what a bound is not given for is free."""
    x, low, high = (*operands, None, None)[:3]
    grid = forms[0][1]
    assert x is not None

    def bound(limit: Value | None) -> int | None:
        if limit is None or grid is None:
            return None if limit is None else int(limit.items[0])
        return grid.clamp(rint(f32(f32(_number(limit) * f32(1 / grid.scale[0])) + grid.zero_point[0])))

    least, most = bound(low), bound(high)

    def item(place: tuple[int, ...]) -> int:
        q = x[place] if least is None else max(x[place], least)
        q = q if most is None else min(q, most)
        return q if grid is None else grid.clamp(q)

    return [filled(x.shape, x.dtype, item)]


def _relu(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    (x,), grid = operands, forms[0][1]
    assert x is not None and grid is not None
    return [filled(x.shape, x.dtype, lambda place: grid.clamp(max(x[place], grid.zero_point[0])))]


def _index(q: int, dtype: str) -> int:
    return q - LIMITS[dtype][0]


def _table(x: Value, table: Value, at: Attributes) -> Value:
    if at["axis"] == -1:
        return filled(x.shape, table.dtype, lambda place: table.items[_index(x[place], x.dtype)])
    return filled(x.shape, table.dtype, lambda place: table[place[at["axis"]], _index(x[place], x.dtype)])


def _pair_table(a: Value, b: Value, table: Value, at: Attributes) -> Value:
    shape, both = pairs(a, b)

    def item(place: tuple[int, ...]) -> int:
        x, y, _ = both(place)
        return int(table[_index(x, a.dtype), _index(y, b.dtype)])

    return filled(shape, table.dtype, item)


OPERATORS: dict[str, Callable[..., list[Value]]] = {
    "Clip": _clamped,
    "DepthToSpace": move(_depth_to_space),
    "Expand": move(_expand),
    "Flatten": move(_flatten),
    "Gather": move(_gather),
    "GlobalMaxPool": _reduce(max, over_all=True),
    "Identity": move(lambda x, at: _renamed(x, x.shape)),
    "MaxPool": move(_max_pool),
    "Pad": _pad,
    "ReduceMax": _reduce(max),
    "ReduceMin": _reduce(min),
    "Relu": _relu,
    "Reshape": move(_reshape),
    "Slice": move(_slice),
    "SpaceToDepth": move(_space_to_depth),
    "Split": _split,
    "Squeeze": move(_squeeze),
    "Tile": move(_tile),
    "Transpose": move(_transpose),
    "Unsqueeze": move(_unsqueeze),
    "qfmt.PairTable": move(_pair_table),
    "qfmt.Table": move(_table),
}
