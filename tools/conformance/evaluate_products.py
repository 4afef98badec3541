"""The second evaluation: sums of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from .evaluate import LIMITS, Grid, Value, filled

Form = tuple[str, Grid | None]
Operands = list[Value | None]
Attributes = dict[str, Any]


def zero(x: Value, place: Sequence[int]) -> int:
    return 0 if x.grid is None else int(x.slice_of(place, x.grid.zero_point))


def _factor(x: Value, place: Sequence[int], folded: bool) -> int:
    """What is multiplied: q - z, or by `folded` q."""
    return x[place] - (0 if folded else zero(x, place))


def _padding(x: Value, folded: bool) -> int:
    return zero(x, [0] * len(x.shape)) if folded else 0


def _conv(x: Value, w: Value, at: Attributes, folded: bool) -> Value:
    """Σ over taps k and channels c: x[n, c, strides·i + dilations·k - pads] · w[m, c, k]."""
    rank, group = len(x.shape) - 2, at["group"]
    kernel, strides, dilations, pads = at["kernel_shape"], at["strides"], at["dilations"], at["pads"]
    sizes = [
        (x.shape[2 + d] + pads[d] + pads[rank + d] - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1
        for d in range(rank)
    ]
    each, per_group = w.shape[1], w.shape[0] // group

    def item(place: tuple[int, ...]) -> int:
        n, m, *i = place
        total = 0
        for c, *k in product(range(each), *map(range, kernel)):
            source = [strides[d] * i[d] + dilations[d] * k[d] - pads[d] for d in range(rank)]
            inside = all(0 <= source[d] < x.shape[2 + d] for d in range(rank))
            channel = m // per_group * each + c
            value = _factor(x, (n, channel, *source), folded) if inside else _padding(x, folded)
            total += value * _factor(w, (m, c, *k), folded)
        return total

    return filled((x.shape[0], w.shape[0], *sizes), "int32", item)


def _conv_transpose(x: Value, w: Value, at: Attributes, folded: bool) -> Value:
    """x[n, c, i] · w[c, m, k] goes to y[n, m, strides·i + dilations·k - pads]."""
    assert not folded
    rank, group = len(x.shape) - 2, at["group"]
    kernel, strides, dilations, pads = at["kernel_shape"], at["strides"], at["dilations"], at["pads"]
    sizes = [
        (x.shape[2 + d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1 - pads[d] - pads[rank + d]
        + at["output_padding"][d]
        for d in range(rank)
    ]  # fmt: skip
    per_group, inputs = w.shape[1], x.shape[1] // group
    sums = dict.fromkeys(product(range(x.shape[0]), range(per_group * group), *map(range, sizes)), 0)
    for n, c, *i in x.places():
        for m, *k in product(range(per_group), *map(range, kernel)):
            place = (n, c // inputs * per_group + m,
                     *(strides[d] * i[d] + dilations[d] * k[d] - pads[d] for d in range(rank)))  # fmt: skip
            if place in sums:
                sums[place] += _factor(x, (n, c, *i), False) * _factor(w, (c, m, *k), False)
    return Value((x.shape[0], per_group * group, *sizes), list(sums.values()), "int32")


def _matmul(a: Value, b: Value, folded: bool) -> Value:
    """As NumPy's: the leading dimensions broadcast."""
    lead = _broadcast(a.shape[:-2], b.shape[:-2])

    def item(place: tuple[int, ...]) -> int:
        *front, i, j = place
        left, right = clipped(front, a.shape[:-2]), clipped(front, b.shape[:-2])
        return sum(_factor(a, (*left, i, k), folded) * _factor(b, (*right, k, j), folded) for k in range(a.shape[-1]))

    return filled((*lead, a.shape[-2], b.shape[-1]), "int32", item)


def _linear(x: Value, w: Value, at: Attributes, folded: bool) -> Value:
    def item(place: tuple[int, ...]) -> int:
        *front, m = place
        return sum(_factor(x, (*front, k), folded) * _factor(w, (m, k), folded) for k in range(x.shape[-1]))

    return filled((*x.shape[:-1], w.shape[0]), "int32", item)


def transposed(x: Value) -> Value:
    grid = x.grid
    if grid is not None and grid.axis is not None:
        block, counts = ((1,), grid.counts[-1:]) if grid.axis == 1 else ((0, 1), (1, *grid.counts))
        grid = Grid(grid.scale, grid.zero_point, grid.low, grid.high, block, counts, grid.scale64)
    return filled(x.shape[::-1], x.dtype, lambda place: x[place[::-1]], grid)


def _gemm(a: Value, b: Value, at: Attributes, folded: bool) -> Value:
    assert at["alpha"] == at["beta"] == 1
    return _matmul(transposed(a) if at["transA"] else a, transposed(b) if at["transB"] else b, folded)


PRODUCTS: dict[str, tuple[Callable[..., Value], int]] = {
    "Conv": (_conv, 1),
    "ConvTranspose": (_conv_transpose, 1),
    "qfmt.Linear": (_linear, -1),
    "MatMul": (lambda a, b, at, folded: _matmul(a, b, folded), -1),
    "Gemm": (_gemm, -1),
}
"""The sums, and the dimension of channels."""


def accumulate(operator: str) -> Callable[..., list[Value]]:
    """Sums, then + B by `exact` and `folded`, or a requantize rule."""
    sums, channels = PRODUCTS[operator]

    def evaluate(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
        x, w, b = (*operands, None)[:3]
        assert x is not None and w is not None
        acc = sums(x, w, at, rule == "folded")
        if rule in ("exact", "folded"):
            if b is not None:
                added = [acc[place] + _bias(b, place, channels) for place in acc.places()]
                acc = Value(acc.shape, added, "int32")
            return [within(acc, "int32")]
        from .evaluate_real import requantized

        return [requantized(operator, x, w, b, acc, at, rule, forms[0], channels)]

    return evaluate


def _bias(b: Value, place: Sequence[int], channels: int) -> int:
    """A vector runs along the channels; what Gemm adds broadcasts to the product."""
    if len(b.shape) == 1 and b.shape[0] > 1:
        return int(b.items[place[channels]])
    return int(b[clipped(place, b.shape)])


def within(value: Value, dtype: str) -> Value:
    """The value, none of whose integers is beyond its type."""
    low, high = LIMITS[dtype]
    assert all(low <= item <= high for item in value.items), "an integer is beyond its type"
    return value


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def clipped(place: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The place in what was broadcast from `shape`."""
    last = place[len(place) - len(shape) :]
    return tuple(0 if size == 1 else index for index, size in zip(last, shape, strict=True))


def pairs(a: Value, b: Value) -> tuple[tuple[int, ...], Callable[[Sequence[int]], tuple[Any, Any, tuple[int, ...]]]]:
    """The shape to which two values broadcast, and both items at a place of it."""
    return _broadcast(a.shape, b.shape), lambda place: (
        a[clipped(place, a.shape)],
        b[clipped(place, b.shape)],
        tuple(place),
    )


def weighted_sum(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    given = [each for each in operands if each is not None]
    shape = _broadcast(*(each.shape for each in given))

    def item(place: tuple[int, ...]) -> int:
        return sum(w * x[clipped(place, x.shape)] for w, x in zip(at["weights"], given, strict=True))

    return [within(filled(shape, "int32", item), "int32")]


def multiply(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    a, b = operands
    assert a is not None and b is not None
    shape, both = pairs(a, b)

    def item(place: tuple[int, ...]) -> int:
        x, y, _ = both(place)
        return int((x - zero(a, [0] * len(a.shape))) * (y - zero(b, [0] * len(b.shape))))

    products = filled(shape, "int32", item)
    if rule == "exact":
        return [within(products, "int32")]
    from .evaluate_real import scaled

    return [scaled(products, a, b, forms[0])]


OPERATORS: dict[str, Callable[..., list[Value]]] = {
    **{operator: accumulate(operator) for operator in PRODUCTS},
    "Mul": multiply,
    "qfmt.WeightedSum": weighted_sum,
}
