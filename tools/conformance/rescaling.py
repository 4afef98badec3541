"""Cases of level `integer`: sums to another grid, by every rule of qfmt.Requantize and by qfmt.RequantShift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qfmt.model import Quantization

from .networks import Case, Network, grid, numbers

DTYPES = {"multiplier": "int32", "shift": "uint8", "add": "int64", "thresholds": "int32", "row": "int32"}
NEVER = (1 << 31) - 1
LEAST = -(1 << 31)


def requantize(
    rule: str,
    shape: Sequence[int],
    out: tuple[str, Quantization],
    *,
    axis: int = 0,
    reach: tuple[int, int] = (LEAST, NEVER),
    x: str = "int32",
    given: Quantization | None = None,
    **parameters: Any,
) -> Network:
    net = Network()
    net.input("x", x, shape, given)
    names = ["x"]
    for name in DTYPES:
        given = parameters.get(name)
        names.append("" if given is None else net.constant(f"y.{name}", given, DTYPES[name]))
    while not names[-1]:
        names.pop()
    net.node("qfmt.Requantize", names, "y", *out, rule, axis=axis)
    net.prove(*reach)
    return net


def around(*centres: int) -> list[int]:
    """Each integer with its neighbours, inside int32."""
    return [value for centre in centres for value in (centre - 1, centre, centre + 1) if LEAST <= value <= NEVER]


U8, S8 = ("uint8", grid(0.05, 3)), ("int8", grid(0.05, -7, "int8"))
NARROW = ("int8", grid(0.05, 5, "int8", 5, 100))
S7 = ("int8", grid(0.05, 0, "int8", -127, 127))
WIDE = [LEAST, LEAST + 1, -(1 << 20), -1000, *range(-12, 13), 1000, 1 << 20, NEVER - 1, NEVER]


def cases() -> Iterator[Case]:
    yield from multiply_shift()
    yield from fixed_point()
    yield from thresholds()
    yield from shifts()


def multiply_shift() -> Iterator[Case]:
    rule, half = "multiply_shift", 1 << 30
    for name, out in (("uint8", U8), ("int8", S8), ("narrow", NARROW), ("symmetric", S7)):
        net = requantize(rule, (len(WIDE),), out, multiplier=[1 << 28], shift=[31], add=[half])
        yield net.case(f"multiply-shift-{name}", f"{rule}: ties, both ends of the range, {name}", {"x": WIDE})
    ends = [LEAST, -256, -3, -2, -1, 0, 1, 2, 3, 255, NEVER]
    net = requantize(rule, (len(ends),), S8, multiplier=[1], shift=[0], add=[0])
    yield net.case("multiply-shift-shift-0", f"{rule}: a shift of 0 and a multiplier of 1", {"x": ends})
    net = requantize(rule, (len(ends),), S8, multiplier=[NEVER], shift=[62], add=[1 << 61])
    yield net.case("multiply-shift-shift-62", f"{rule}: a shift of 62, the greatest multiplier", {"x": ends})
    net = requantize(rule, (len(ends),), S8, multiplier=[NEVER], shift=[40], add=[-(1 << 62) + 1])
    yield net.case("multiply-shift-least-add", f"{rule}: the least add; products of nearly 2^62", {"x": ends})
    net = requantize(rule, (len(ends),), S8, multiplier=[NEVER], shift=[40], add=[(1 << 62) - 1])
    yield net.case("multiply-shift-greatest-add", f"{rule}: the greatest add", {"x": ends})
    low = [-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5]
    net = requantize(rule, (len(low),), S8, multiplier=[1], shift=[2], add=[0])
    yield net.case("multiply-shift-floor", f"{rule}: without add the result is rounded down, also below 0", {"x": low})
    each = {"multiplier": [1 << 28, 3, 5 << 20], "shift": [31, 0, 22], "add": [1 << 30, -7, 0]}
    for axis, shape in ((1, (2, 3, 2, 2)), (2, (2, 2, 3)), (0, (3, 4))):
        x = numbers(axis + 3, shape, -1500, 1500)
        net = requantize(rule, shape, U8, axis=axis, **each)
        about = f"{rule}: parameters for each channel along axis {axis} of {len(shape)}"
        yield net.case(f"multiply-shift-channels-{axis}", about, {"x": x}, {"x": -x}, {"x": x // 16})
    net = requantize(rule, (2, 3), U8, axis=1, multiplier=[7, 9, 11], shift=[5], add=[16])
    some = numbers(2, (2, 3), -2000, 2000)
    yield net.case("multiply-shift-some-channels", f"{rule}: a multiplier per channel, one shift for all", {"x": some})
    net = requantize(rule, (4,), ("int16", grid(0.01, -1000, "int16")), multiplier=[3], shift=[1], add=[1])
    yield net.case("multiply-shift-int16", f"{rule}: to 16 bits", {"x": [-50000, 50000, 7, -7]})
    net = requantize(rule, (7,), ("int4", grid(0.5, -2, "int4")), multiplier=[3], shift=[4], add=[8])
    yield net.case("multiply-shift-int4", f"{rule}: to 4 bits", {"x": [-1000, -30, -3, 0, 3, 30, 1000]})
    wide = Quantization.of((1.0,), (100,), LEAST, NEVER)
    net = requantize(rule, (5,), ("int32", wide), multiplier=[NEVER], shift=[30], add=[0])
    yield net.case("multiply-shift-int32", f"{rule}: to 32 bits", {"x": [LEAST, -1, 0, 1, NEVER]})
    net = requantize(rule, (6,), U8, reach=(-128, 127), x="int8", multiplier=[37], shift=[6], add=[32])
    yield net.case("multiply-shift-int8-input", f"{rule}: x of 8 bits", {"x": [-128, -1, 0, 1, 64, 127]})
    own = grid(0.5, 9, "int8")
    net = requantize(rule, (6,), U8, reach=(-128, 127), x="int8", given=own, multiplier=[37], shift=[6], add=[32])
    about = f"{rule}: x of 8 bits has a zero point, which is not subtracted"
    yield net.case("multiply-shift-zero-point", about, {"x": [-128, -1, 0, 1, 64, 127]})
    net = requantize(rule, (), U8, multiplier=[37], shift=[6], add=[32])
    yield net.case("multiply-shift-scalar", f"{rule}: x without dimensions", {"x": 77}, {"x": -77})


def fixed_point() -> Iterator[Case]:
    for rule in ("fixed_point_single", "fixed_point_double"):
        name = rule.replace("_", "-")
        for shift in (1, 30, 31, 32, 35, 45, 62):
            multiplier = 1 << 30 if shift < 50 else NEVER
            step = max(1, (1 << shift) // multiplier)
            x = [LEAST, *around(*(k * step + step // 2 for k in (-129, -3, -2, -1, 0, 1, 2, 127))), NEVER]
            x = [value for value in x if LEAST <= value <= NEVER]
            net = requantize(rule, (len(x),), S8, multiplier=[multiplier], shift=[shift])
            yield net.case(f"{name}-{shift}", f"{rule}: a shift of {shift}; ties above and below 0", {"x": x})
        x = numbers(9, (2, 4, 3), -400000, 400000)
        each = {"multiplier": [1 << 30, 1518500250, NEVER, 1100000000], "shift": [40, 42, 41, 31]}
        net = requantize(rule, (2, 4, 3), U8, axis=1, **each)
        yield net.case(f"{name}-channels", f"{rule}: for each channel", {"x": x}, {"x": x // 1000})
    net = requantize("fixed_point_single", (5,), S8, multiplier=[3], shift=[0])
    yield net.case("fixed-point-single-0", "fixed_point_single: a shift of 0 adds nothing", {"x": [-2, -1, 0, 1, 2]})
    for shift in (0, 1, 4, 31, 40, 62):
        step = 1 << shift
        x = [LEAST, *around(*(k * step + step // 2 for k in (-129, -2, -1, 0, 1, 127))), NEVER]
        x = [value for value in x if LEAST <= value <= NEVER]
        net = requantize("power_of_two", (len(x),), S8, shift=[shift])
        yield net.case(f"power-of-two-{shift}", f"power_of_two: a shift of {shift}; ties above and below 0", {"x": x})
    net = requantize("power_of_two", (2, 3), U8, axis=1, shift=[0, 3, 8])
    x = numbers(9, (2, 3), -2000, 2000)
    yield net.case("power-of-two-channels", "power_of_two: for each channel", {"x": x})


def thresholds() -> Iterator[Case]:
    out = ("uint8", grid(0.05, 2, "uint8", 1, 5))
    rows = [[-100, 0, 7, 90], [-3, -3, -3, NEVER], [LEAST, LEAST + 1, 0, NEVER - 1]]
    x = [LEAST, *around(-100, -3, 0, 7, 90), NEVER - 1, NEVER]
    given = {"x": [x] * 3}
    net = requantize("thresholds", (3, len(x)), out, thresholds=rows)
    yield net.case(
        "thresholds", "thresholds: a row for each channel; steps of more than 1; 2^31 - 1 is met by itself alone", given
    )
    net = requantize("thresholds", (3, len(x)), out, thresholds=rows[:1])
    yield net.case("thresholds-one-row", "thresholds: one row for all channels", given)
    net = requantize("thresholds", (len(x), 3), out, axis=1, thresholds=rows, row=[2, 0, 2])
    about = "thresholds: rows by number, one of them twice; channels along the last axis"
    yield net.case("thresholds-rows", about, {"x": [[value] * 3 for value in x]})
    net = requantize("thresholds", (3, len(x)), out, thresholds=rows, row=[1])
    yield net.case("thresholds-single-row", "thresholds: one row by number for all channels", given)
    ramp = sorted(numbers(4, (255,), -9000, 9000).tolist())
    net = requantize("thresholds", (40,), U8, thresholds=[ramp])
    edges = [ramp[0] - 1, ramp[0], ramp[254], ramp[254] - 1, *numbers(5, (36,), -9500, 9500).tolist()]
    yield net.case("thresholds-uint8", "thresholds: all 255 of uint8; the zero point is not used", {"x": edges})
    net = requantize("thresholds", (5,), ("int4", grid(1.0, 3, "int4")), thresholds=[list(range(-70, 80, 10))])
    yield net.case(
        "thresholds-int4", "thresholds: to 4 bits, from the least integer on", {"x": [-999, -70, 0, 70, 999]}
    )
    mixed = {"multiplier": [1, 1 << 28, 1], "shift": [0, 31, 4], "add": [0, 1 << 30, 8]}
    net = requantize("multiply_shift", (3, len(x)), out, **mixed, thresholds=rows, row=[-1, 1, 0])
    about = "multiply_shift with thresholds: a channel of row -1 is multiplied, the others count"
    yield net.case("mixed-rows", about, given)
    net = requantize("multiply_shift", (3, len(x)), out, **mixed, thresholds=rows[:1], row=[-1])
    yield net.case("mixed-rows-none", "multiply_shift with thresholds that no channel uses", given)
    net = requantize("multiply_shift", (3, len(x)), out, **mixed, thresholds=rows, row=[2])
    yield net.case("mixed-rows-all", "multiply_shift with one row that all channels use", given)
    flat = ("uint8", grid(0.05, 4, "uint8", 4, 4))
    net = requantize("thresholds", (3,), flat, thresholds=[[]])
    yield net.case("thresholds-none", "thresholds: a range of one integer has none", {"x": [LEAST, 0, NEVER]})


def shifts() -> Iterator[Case]:
    for name, shape, mul, add, div, out in (
        ("requant-shift", (), 37, 128, 256, U8),
        ("requant-shift-channels", (3, 1, 1), [7, 300, -9], [0, -1000, 64], 128, S8),
        ("requant-shift-thirds", (), 2, 1, 3, S8),
        ("requant-shift-narrow", (), 1, 0, 2, NARROW),
    ):
        net = Network()
        net.input("x", "int32", (1, 3, 2, 4), Quantization.of((0.5,), (-3,), -(1 << 24), 1 << 24))
        names = ["x", net.constant("mul", numbers(1, (), mul, mul) if shape == () else [[[v]] for v in mul], "int32")]
        names.append(net.constant("add", numbers(1, (), add, add) if shape == () else [[[v]] for v in add], "int64"))
        net.node("qfmt.RequantShift", names, "y", *out, "multiply_add_divide", div=div)
        few = numbers(8, (1, 3, 2, 4), -40, 40)
        about = f"multiply_add_divide by {div}: halves go up, also below 0; x has a zero point"
        yield net.case(name, about, {"x": few}, {"x": few * 50}, {"x": few * 400000})
