"""The second evaluation: rules that go through float32, rounded as docs/spec/running.md states them, on fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from .evaluate import Grid, Value, filled
from .evaluate_products import Attributes, Form, Operands, pairs
from .reals import Real, f16, f32, f64, rint

PREMULTIPLIED = "premultiplied"


def quantize(x: Real, grid: Grid, place: Sequence[int], rule: str) -> int:
    at = 0 if grid.axis is None else place[grid.axis]
    s, z = grid.scale[at], grid.zero_point[at]
    if isinstance(x, float):
        return grid.low if math.isnan(x) or x < 0 else grid.high
    try:
        if rule == "divide":
            return grid.clamp(rint(f32(rint(f32(x / s)) + z)))
        if rule in ("reciprocal", PREMULTIPLIED):
            return grid.clamp(rint(f32(rint(f32(x * f32(1 / s))) + z)))
        if rule == "reciprocal_offset":
            return grid.clamp(rint(f32(f32(x * f32(1 / s)) + z)))
        assert rule == "reciprocal_fma", rule
        return grid.clamp(rint(f32(x * f32(1 / s) + z)))
    except OverflowError:
        return grid.high if x > 0 else grid.low


def real(x: Value, place: Sequence[int], rule: str = "") -> Fraction:
    """What an item means."""
    if x.grid is None:
        return x[place]  # type: ignore[no-any-return]
    q, s, z = x[place], x.slice_of(place, x.grid.scale), x.slice_of(place, x.grid.zero_point)
    if x.grid.table is not None:
        q, z = x.grid.table[q if x.dtype.startswith("u") else q + len(x.grid.table) // 2], 0
    d = f32(q - z) if isinstance(z, int) else f32(f32(q) - f32(z))
    found = f32(q * s + f32(-z * s)) if rule == PREMULTIPLIED else f32(d * s)
    return found if x.grid.offset is None else f32(found + f32(x.slice_of(place, x.grid.offset)))


def all_real(x: Value, rule: str) -> Value:
    return filled(x.shape, "float32", lambda place: real(x, place, rule))


def finished(result: Value, form: Form, rule: str) -> Value:
    """Real results to the grid of the output, if it has one."""
    dtype, grid = form
    if grid is None:
        return result
    return filled(result.shape, dtype, lambda place: quantize(result[place], grid, place, rule))


def requantized(
    operator: str, x: Value, w: Value, b: Value | None, acc: Value, at: Attributes, rule: str, form: Form, channels: int
) -> Value:
    """Exact sums to the grid of the output by a requantize rule."""
    dtype, grid = form
    assert x.grid is not None and w.grid is not None and grid is not None
    s, z, per_channel = grid.scale[0], grid.zero_point[0], w.grid.axis is not None
    scales = w.grid.scale * (at["group"] if operator == "ConvTranspose" and per_channel else 1)

    def item(place: tuple[int, ...]) -> int:
        channel = place[channels]
        unit = f32(x.grid.scale[0] * (scales[channel] if per_channel else scales[0]))  # type: ignore[union-attr]
        bias = Fraction(0) if b is None else b.items[channel]
        total = acc[place]
        assert x.grid is not None and w.grid is not None
        if b is not None and b.grid is not None and in_units(b.grid, x.grid, w.grid, scales):
            total, bias = total + bias, Fraction(0)
        elif b is not None:
            bias = f32(bias) if b.grid is None else real(b, (channel,))
        any_bias = b is not None and any(b.items)
        try:
            return grid.clamp(_rounded(rule, total, bias, unit, s, z, per_channel, any_bias=any_bias))
        except OverflowError:  # only a bias is that large
            return grid.high if bias > 0 else grid.low

    return filled(acc.shape, dtype, item)


def in_units(b: Grid, x: Grid, w: Grid, scales: Sequence[Fraction]) -> bool:
    """Whether a bias consists of integers in units of the sums; `scales` has as many as a weight has channels."""
    exact = w.scale64 * (len(scales) // len(w.scale64))
    count = max(len(exact), len(b.scale64))
    both = zip(exact * (count // len(exact)), b.scale64 * (count // len(b.scale64)), strict=True)
    units = [(x.scale64[0] * each, own) for each, own in both]
    return not any(b.zero_point) and all(abs(own - unit) * 10**6 <= unit for unit, own in units)


def _rounded(
    rule: str, acc: int, bias: Fraction, unit: Fraction, s: Fraction, z: int, per_channel: bool, any_bias: bool
) -> int:
    if rule == "float_bias":
        total = f32(acc)
        if any_bias:
            total = f32(total + f32(bias / unit)) if per_channel else f32(bias * f32(1 / unit) + total)
        return rint(f32(total * f32(unit / s))) + z
    if rule == "integer_bias":
        return rint(f32(f32(acc + rint(f32(bias / unit))) * f32(unit / s))) + z
    if rule == "integer_bias_reciprocal":
        return rint(f32(f32(acc + rint(f32(bias * f32(1 / unit)))) * f32(unit * f32(1 / s)))) + z
    assert rule == "affine", rule
    return rint(f32(f32(f32(f32(f32(acc) * unit) + bias) * f32(1 / s)) + z))


def mean(total: Value, counts: Value, rule: str, form: Form) -> Value:
    dtype, grid = form
    assert grid is not None
    z = grid.zero_point[0]

    def item(place: tuple[int, ...]) -> int:
        n = counts[place]
        if rule == "mean_divide_offset":
            rounded = rint(f32(f32(f32(total[place]) / n) + z))
        elif rule == "mean_reciprocal":
            rounded = rint(f32(f32(total[place]) * f32(Fraction(1, n)))) + z
        elif rule == "mean_reciprocal_fma":
            rounded = rint(f32(f32(total[place]) * f32(Fraction(1, n)) + z))
        else:
            assert rule == "mean_stored", rule
            rounded = rint(f32(f32(total[place] + n * z) * f32(Fraction(1, n))))
        return grid.clamp(rounded)

    return filled(total.shape, dtype, item)


def scaled(products: Value, a: Value, b: Value, form: Form) -> Value:
    """`product`."""
    dtype, grid = form
    assert grid is not None
    units = [Fraction(1) if each.grid is None else each.grid.scale[0] for each in (a, b)]
    factor = f32(f32(units[0] * units[1]) * f32(1 / grid.scale[0]))
    z = grid.zero_point[0]
    return filled(products.shape, dtype, lambda place: grid.clamp(rint(f32(f32(products[place]) * factor)) + z))


def elementwise(function: Callable[[Fraction, Fraction], Fraction]) -> Callable[..., list[Value]]:
    """Two reals to one, rounded to float32."""

    def evaluate(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
        a, b = operands
        assert a is not None and b is not None
        if rule == "sum":
            return [_sum(a, b, forms[0])]
        x, y = all_real(a, rule), all_real(b, rule)
        shape, both = pairs(x, y)
        result = filled(shape, "float32", lambda place: f32(function(*both(place)[:2])))
        return [finished(result, forms[0], rule)]

    return evaluate


def _sum(a: Value, b: Value, form: Form) -> Value:
    dtype, grid = form
    assert a.grid is not None and b.grid is not None and grid is not None and a.grid.scale == b.grid.scale
    factor, z = f32(a.grid.scale[0] * f32(1 / grid.scale[0])), grid.zero_point[0]
    zeros = a.grid.zero_point[0] + b.grid.zero_point[0]
    shape, both = pairs(a, b)
    return filled(shape, dtype, lambda place: grid.clamp(rint(f32(f32(sum(both(place)[:2]) - zeros) * factor)) + z))


def unary(function: Callable[[Fraction, Attributes], Fraction]) -> Callable[..., list[Value]]:
    def evaluate(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
        (x,) = operands
        assert x is not None
        given = all_real(x, rule)
        return [finished(filled(x.shape, "float32", lambda place: function(given[place], at)), forms[0], rule)]

    return evaluate


def _concat(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    """Without a rule it moves integers."""
    given = [each for each in operands if each is not None]
    dtype, grid = forms[0]
    axis = at["axis"] % len(given[0].shape)
    sizes = list(given[0].shape)
    sizes[axis] = sum(each.shape[axis] for each in given)

    def item(place: tuple[int, ...]) -> Any:
        index, left = 0, place[axis]
        while left >= given[index].shape[axis]:
            left -= given[index].shape[axis]
            index += 1
        source = (*place[:axis], left, *place[axis + 1 :])
        x = given[index]
        if not rule:
            return x[source]
        value = real(x, source, rule)
        return value if grid is None else quantize(value, grid, place, rule)

    return [filled(sizes, dtype, item)]


def _embedding(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    w, indices = operands
    assert w is not None and w.grid is not None and indices is not None

    def item(place: tuple[int, ...]) -> Fraction:
        source = (indices[place[:-1]], place[-1])
        s, z = w.slice_of(source, w.grid.scale), w.slice_of(source, w.grid.zero_point)  # type: ignore[union-attr]
        slope, offset = (s, f32(-z * s)) if rule == "lookup_float32" else (f16(s), f16(f32(-z * s)))
        return f32(w[source] * slope + offset)

    return [filled((*indices.shape, w.shape[1]), "float32", item)]


def dynamic_grid(items: Sequence[Fraction], rule: str, top: int) -> tuple[Fraction, int, int, int]:
    """Scale, zero point, least and greatest integer of an input that is quantized at run time."""
    low, high = min([*items, Fraction(0)]), max([*items, Fraction(0)])
    if rule == "dynamic_symmetric":
        s = max(f32(max(-low, high) / Fraction(top, 2)), Fraction(1, 1 << 23))
        return s, 0, -(top + 1) // 2, top // 2
    if rule == "dynamic_divide":
        s = f32(f32(high - low) / top) or Fraction(1)
        return s, rint(f32(-low / s)), 0, 255
    if rule == "dynamic_reciprocal":
        s = max(f32(f32(high - low) / top), Fraction(1, 1 << 12))
        return s, min(max(-rint(f32(low / s)), 0), top), 0, 255
    s = f64(f64(high - low) / top)
    least = f32(Fraction(61, 10**6))
    if not f32(s) or 1 / f32(s) >= Fraction(2) ** 128:
        s = f64(Fraction(1, 10))
    if s < least:
        low, s = f32(low * f32(least / f32(s))), least
    return s, rint(f64(-low / s)), 0, 255


DYNAMIC_QUANTIZE = {"dynamic_inverse": "reciprocal_offset", "dynamic_divide": "divide"} | dict.fromkeys(
    ("dynamic_fma", "dynamic_add"), "reciprocal_fma"
)


def _dynamic_linear(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    x, w, b = (*operands, None)[:3]
    assert x is not None and w is not None and w.grid is not None
    width, top = x.shape[-1], 127 if at["reduce_range"] else 255
    rows = [x.items[start : start + width] for start in range(0, len(x.items), width)]
    results: list[Fraction] = []
    for row in rows:
        s, z, low, high = dynamic_grid(row if at["per_token"] else x.items, rule, top)
        grid = Grid([f32(s)], [z], low, high, (), (), [s])
        q = [quantize(value, grid, (0,), DYNAMIC_QUANTIZE.get(rule, "reciprocal")) for value in row]
        for m in range(w.shape[0]):
            place = (m, 0)
            zw = w.slice_of(place, w.grid.zero_point)
            acc = sum((q[k] - z) * (w[m, k] - zw) for k in range(width))
            bias = Fraction(0) if b is None else b.items[m]
            results.append(_dynamic(rule, acc, bias, s, w.slice_of(place, w.grid.scale64)))
    return [Value((*x.shape[:-1], w.shape[0]), results, "float32")]


def _dynamic(rule: str, acc: int, bias: Fraction, s: Fraction, sw: Fraction) -> Fraction:
    total, unit = f32(acc), f32(f32(s) * f32(sw))
    if rule == "dynamic_fma":
        return f32(total * unit + bias)
    if rule == "dynamic_symmetric":
        return f32(f32(f32(total * f32(s)) * f32(sw)) + bias)
    if rule == "dynamic_inverse":
        unit = f32(f32(1 / f32(1 / s)) * f32(1 / f32(1 / sw)))
    return f32(f32(total * unit) + bias)


def _into(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    assert operands[0] is not None
    return [finished(operands[0], forms[0], rule)]


def _out_of(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    assert operands[0] is not None
    return [all_real(operands[0], "")]


OPERATORS: dict[str, Callable[..., list[Value]]] = {
    "Abs": unary(lambda x, at: abs(x)),
    "Add": elementwise(lambda x, y: x + y),
    "Concat": _concat,
    "DequantizeLinear": _out_of,
    "LeakyRelu": unary(lambda x, at: x if x > 0 else f32(x * f32(at["alpha"]))),
    "Max": elementwise(max),
    "Min": elementwise(min),
    "Neg": unary(lambda x, at: -x),
    "QuantizeLinear": _into,
    "Sub": elementwise(lambda x, y: x - y),
    "qfmt.DynamicLinear": _dynamic_linear,
    "qfmt.Embedding": _embedding,
}
