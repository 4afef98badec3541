"""Cases of level `float` that tell neighbouring rules apart: sums for which every two of them give other integers.

Rules of one family differ in about one output of 65,000. The scales here are such that some sums are known where they
do; those go into the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from qfmt.arithmetic import MEAN, QUANTIZE, REQUANTIZE, f32

from .networks import Array, Case, Network, channels, grid

STEPS = (127, 127, 127, 1, -127, -127, -127)
"""The weights; every sum up to 96,000 is one of products with uint8."""


def cases() -> Iterator[Case]:
    yield from quantizing()
    yield from requantizing()
    yield from averaging()


def requantizing() -> Iterator[Case]:
    sx, sw, s, z = 0.041958958, 0.02734688, 0.114744656, 117
    biases = np.array([-0.34589764, -19.508886, 2.4434874], f32)
    sums = np.arange(-40000, 40000)
    unit = f32(sx) * f32(sw)
    told: set[int] = set()
    for bias in biases:
        results = {
            name: np.clip(rule(sums.astype(np.float64), bias, unit, f32(s), f32(z)), 0, 255)
            for name, rule in (REQUANTIZE | otherwise()).items()
        }
        told |= told_apart(results, always=False)
    rows = np.array([products(sums[index]) for index in sorted(told)])
    for rule in REQUANTIZE:
        for weights, scales in (("", grid(sw, 0, "int8")), ("channels-", channels((sw,) * 3, 0, 0))):
            net = Network()
            net.input("x", "uint8", rows.shape, grid(sx, 0))
            net.constant("w", [STEPS] * 3, "int8", scales)
            names = ["x", "w", net.constant("b", biases, "float32")]
            net.node("qfmt.Linear", names, "y", "uint8", grid(s, z), rule)
            about = f"Linear by {rule}: sums for which every two requantize rules, and their likes, differ"
            name = f"linear-{rule.replace('_', '-')}-{weights}telling"
            yield net.case(name, f"{about}; a weight per {'channel' if weights else 'tensor'}", {"x": rows})


Rule = Callable[[Array, Array, Array, Array, Array], Array]


def otherwise() -> dict[str, Rule]:
    """What is close to a requantize rule, but rounds one of its steps elsewhere."""
    one = f32(1)
    return {
        "float_bias per channel": lambda acc, b, at, s, z: np.rint((acc.astype(f32) + b / at) * (at / s)) + z,
        "affine by division": lambda acc, b, at, s, z: np.rint((acc.astype(f32) * at + b) / s + z),
        "affine, + z exact": lambda acc, b, at, s, z: np.rint(
            ((acc.astype(f32) * at + b) * (one / s)).astype(np.float64) + z
        ),
        "affine, + z outside": lambda acc, b, at, s, z: np.rint((acc.astype(f32) * at + b) * (one / s)) + z,
        "integer_bias, + z inside": lambda acc, b, at, s, z: np.rint(
            (acc + np.rint(b / at)).astype(f32) * (at / s) + z
        ),
        "the bias by division": lambda acc, b, at, s, z: (
            np.rint((acc + np.rint(b / at)).astype(f32) * (at * (one / s))) + z
        ),
        "the scale by division": lambda acc, b, at, s, z: (
            np.rint((acc + np.rint(b * (one / at))).astype(f32) * (at / s)) + z
        ),
    }


def averaging() -> Iterator[Case]:
    count, z = 14, 131
    sums = np.arange(-count * z, count * (255 - z) + 1)
    results = mean_results(sums, count, z)
    rows = np.array([spread(sums[index] + count * z, count) for index in sorted(told_apart(results))])
    for rule in MEAN:
        net = Network()
        net.input("x", "uint8", rows.shape, grid(0.05, z))
        names = ["x", net.constant("axes", [1], "int64")]
        net.node("ReduceMean", names, "y", "uint8", grid(0.05, z), rule, keepdims=0)
        about = f"ReduceMean by {rule}: sums of 14 elements for which every two mean rules differ"
        yield net.case(f"reducemean-{rule.replace('_', '-')}-telling", about, {"x": rows})


def quantizing() -> Iterator[Case]:
    """Real numbers beside ties of a scale that is no power of two."""
    s, z = f32(0.0173), 31
    ties = (np.arange(-300, 300) + 0.5).astype(f32) * s
    near = np.unique(np.concatenate([ties, np.nextafter(ties, f32(np.inf)), np.nextafter(ties, f32(-np.inf))]))
    rules = {name: QUANTIZE[name] for name in ("divide", "reciprocal", "reciprocal_offset", "reciprocal_fma")}
    results = {name: np.clip(rule(near, s, f32(z)), 0, 255) for name, rule in rules.items()}
    x = near[sorted(told_apart(results))]
    for rule in rules:
        net = Network()
        net.input("x", "float32", x.shape)
        net.node("QuantizeLinear", ["x"], "y", "uint8", grid(float(s), z), rule)
        about = f"QuantizeLinear by {rule}: numbers for which every two quantize rules differ"
        yield net.case(f"quantize-{rule.replace('_', '-')}-telling", about, {"x": x})


def mean_results(sums: Array, count: int, z: int) -> dict[str, Array]:
    counts = np.full(sums.shape, count, f32)
    rules: Mapping[str, Callable[..., Array]] = MEAN
    return {name: np.clip(rule(sums, counts, f32(z)), 0, 255) for name, rule in rules.items()}


def told_apart(results: Mapping[str, Array], *, always: bool = True) -> set[int]:
    """For every two rules the first and the last place where they differ; there is one, unless not `always`."""
    found: set[int] = set()
    for one, other in combinations(results.values(), 2):
        differing = np.flatnonzero(one != other)
        assert differing.size or not always, "nothing tells two rules apart"
        found |= {int(index) for index in differing[:1]} | {int(index) for index in differing[-1:]}
    return found


def products(total: int) -> list[int]:
    """x such that Σ x · STEPS is `total`."""
    left, x = total, []
    for step in STEPS:
        rest = left - left % 127 if abs(step) == 127 else left
        taken = min(255, max(0, rest // step)) if step != 1 else left % 127
        x.append(int(taken))
        left -= taken * step
    assert left == 0, total
    return x


def spread(total: int, count: int) -> Sequence[int]:
    """So many integers of uint8 whose sum is `total`."""
    return [total // count + (index < total % count) for index in range(count)]
