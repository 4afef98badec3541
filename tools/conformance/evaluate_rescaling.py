"""The second evaluation: integers to another grid in integer-only arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from .evaluate import LIMITS, Value, filled
from .evaluate_products import Attributes, Form, Operands, clipped, zero


def requantize(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    """The rules of qfmt.Requantize; `>>` of Python rounds down, and its integers do not overflow."""
    x, multiplier, shift, add, thresholds, row = (*operands, None, None, None, None, None)[:6]
    dtype, grid = forms[0]
    assert x is not None and grid is not None

    def of(parameter: Value | None, place: Sequence[int]) -> int:
        if parameter is None:
            return 0
        return int(parameter.items[0 if len(parameter.items) == 1 else place[at["axis"]]])

    def row_of(place: Sequence[int]) -> int:
        if thresholds is None:
            return -1
        rows = Value((len(thresholds.items),), list(range(thresholds.shape[0])), "int32") if row is None else row
        return of(rows, place)

    def item(place: tuple[int, ...]) -> int:
        q, m, s, a, chosen = x[place], of(multiplier, place), of(shift, place), of(add, place), row_of(place)
        if chosen >= 0:
            steps = grid.high - grid.low
            return grid.low + sum(q >= thresholds[chosen, k] for k in range(steps))  # type: ignore[index]
        half = 1 << (s - 1) if s else 0
        if rule == "multiply_shift":
            rounded = (q * m + a) >> s
        elif rule == "fixed_point_single":
            rounded = (q * m + half) >> s
        elif rule == "fixed_point_double":
            nudge = 0 if s <= 31 else 1 << 30 if q >= 0 else -(1 << 30)
            rounded = (q * m + half + nudge) >> s
        else:
            assert rule == "power_of_two", rule
            rounded = (q + half) >> s
        assert -(1 << 63) <= q * m + a < 1 << 63
        return grid.clamp(rounded + grid.zero_point[0])

    return [filled(x.shape, dtype, item)]


def requant_shift(operands: Operands, at: Attributes, rule: str, forms: list[Form]) -> list[Value]:
    """multiply_add_divide."""
    x, mul, add = operands
    dtype, grid = forms[0]
    assert x is not None and mul is not None and add is not None
    assert rule == ("" if grid is None else "multiply_add_divide")

    def item(place: tuple[int, ...]) -> int:
        m, a = (int(each[clipped(place, each.shape)]) for each in (mul, add))
        exact = Fraction((x[place] - zero(x, place)) * m + a, at["div"]) + Fraction(1, 2)
        rounded = exact.__floor__()
        if grid is None:
            low, high = LIMITS[dtype]
            return (rounded - low) % (high - low + 1) + low
        return grid.clamp(rounded + grid.zero_point[0])

    return [filled(x.shape, dtype, item)]


OPERATORS: dict[str, Callable[..., list[Value]]] = {
    "qfmt.Requantize": requantize,
    "qfmt.RequantShift": requant_shift,
}
