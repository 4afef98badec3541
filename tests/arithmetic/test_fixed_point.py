"""Compares the rules `fixed_point_single` and `fixed_point_double` with the programs that use them.

- TFLite, gemmlowp, CMSIS-NN: their published formulas, implemented here.
- TOSA: Arm's reference model, which runs in a separate environment (CONTRIBUTING.md, "Ask TOSA's reference model").
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cases.operators import OPERATORS
from qfmt.interpreter import execute
from qfmt.model import Node, Quantization, Tensor
from qfmt.ops import Operand
from support.counts import tell
from support.paths import TOOLS

Array = Any

CHANNELS = 64
ROWS = 512

OUTPUTS = (("int8", -3), ("int8", 127), ("uint8", 0), ("uint8", 131), ("int16", 0))
"""Element types and zero points: those of int16 are 0 in TOSA."""


class Case(NamedTuple):
    """x is [ROWS, C]; parameters are per-tensor or per-channel."""

    x: Array
    multiplier: Array
    shift: Array
    dtype: str
    zero_point: int


def cases(seed: int = 5) -> Iterator[Case]:
    """Cases that TOSA defines: x in 1 - 2^(shift - 1) … 2^(shift - 1) - 1, normalized multipliers, shifts from 20 to
    50.

    The range of the sums slightly exceeds the output's, so some saturate. A third of the channels have multipliers
    with few bits, with which many products are half-way between two integers.
    """
    rng = np.random.default_rng(seed)
    for dtype, zero_point in OUTPUTS:
        for count in (1, CHANNELS):
            shift = rng.integers(20, 51, count)
            shift[0] = rng.integers(33, 46)
            multiplier = rng.integers(1 << 30, 1 << 31, count)
            few = np.arange(count) % 3 == 0
            multiplier[few] = rng.choice([4, 5, 6, 7], few.sum()) << 28
            step = np.ldexp(1.0, shift) / multiplier  # the change of x per output step
            reach = np.minimum(step * np.iinfo(dtype).max * 1.2, np.minimum(np.ldexp(1.0, shift - 1), 2.0**31) - 1)
            x = np.rint(rng.uniform(-1, 1, (ROWS, count)) * reach).astype(np.int64)
            halves = np.rint((np.rint(x / step) + 0.5) * step)
            x = np.where(rng.random(x.shape) < 0.3, np.clip(halves, -reach, reach), x).astype(np.int32)
            yield Case(x, multiplier.astype(np.int32), shift.astype(np.uint8), dtype, zero_point)


def by_qfmt(case: Case, rule: str) -> Array:
    limits = np.iinfo(case.dtype)
    grid = Quantization.of((1.0,), (case.zero_point,), int(limits.min), int(limits.max))
    entry = OPERATORS["qfmt.Requantize"]
    node = Node(entry.name, ("x", "m", "shift"), ("y",), {"axis": 1}, "", 1, rule)
    operands = [Operand(case.x, None), Operand(case.multiplier, None), Operand(case.shift, None), None, None, None]
    return execute(node, operands, [Tensor("y", case.dtype, case.x.shape, None, grid)])[0]


def saturated(rounded: Array, case: Case) -> Array:
    limits = np.iinfo(case.dtype)
    return np.clip(rounded + case.zero_point, limits.min, limits.max).astype(case.dtype)


# Published formulas. They use a left shift, positive or negative, of a multiplier between 1/2 and 1: 31 - shift.


def gemmlowp_high_mul(a: Array, b: Array) -> Array:
    """SaturatingRoundingDoublingHighMul of gemmlowp's fixedpoint.h: adds a nudge to the 64-bit product, and divides
    by 2³¹ towards zero. (The only overflow, -2³¹ · -2³¹, does not occur with positive multipliers.)"""
    product = a * b
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    return np.sign(nudged) * (np.abs(nudged) // (1 << 31))


def gemmlowp_divide(x: Array, exponent: Array) -> Array:
    """RoundingDivideByPOT of gemmlowp's fixedpoint.h: rounds to nearest, halves away from zero."""
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> exponent) + ((x & mask) > threshold)


def tflite_double(x: Array, multiplier: Array, shift: Array) -> Array:
    """MultiplyByQuantizedMultiplier of TFLite's common.h."""
    left, right = np.maximum(31 - shift, 0), np.maximum(shift - 31, 0)
    return gemmlowp_divide(gemmlowp_high_mul(x * (1 << left), multiplier), right)


def tflite_single(x: Array, multiplier: Array, shift: Array) -> Array:
    """The same, with TFLITE_SINGLE_ROUNDING."""
    return (x * multiplier + (np.int64(1) << (shift - 1))) >> shift


def cmsis_double(x: Array, multiplier: Array, shift: Array) -> Array:
    """arm_nn_requantize of CMSIS-NN: arm_nn_doubling_high_mult_no_sat, then arm_nn_divide_by_power_of_two."""
    left, right = np.maximum(31 - shift, 0), np.maximum(shift - 31, 0)
    high = (x * (1 << left) * multiplier + (1 << 30)) >> 31
    mask = (np.int64(1) << right) - 1
    result = high >> right
    return result + ((high & mask) > (mask >> 1) + (result < 0))


def cmsis_single(x: Array, multiplier: Array, shift: Array) -> Array:
    """The same, with CMSIS_NN_USE_SINGLE_ROUNDING."""
    return (((x * multiplier) >> (shift - 1)) + 1) >> 1


PUBLISHED = {
    "fixed_point_single": {"TFLite": tflite_single, "CMSIS-NN": cmsis_single},
    "fixed_point_double": {"TFLite": tflite_double, "CMSIS-NN": cmsis_double},
}


@pytest.mark.parametrize("rule", PUBLISHED)
def test_published_formulas(rule: str) -> None:
    for who, formula in PUBLISHED[rule].items():
        equal = total = inside = 0
        for case in cases():
            theirs = saturated(formula(*(each.astype(np.int64) for each in case[:3])), case)
            ours = by_qfmt(case, rule)
            limits = np.iinfo(case.dtype)
            equal, total = equal + int((theirs == ours).sum()), total + ours.size
            inside += int(((ours > limits.min) & (ours < limits.max)).sum())
        tell(f"{rule} and {who}: {equal} of {total} equal, {inside} of them inside the range")
        assert equal == total >= 100_000
        assert inside >= total // 2


def test_rounding_twice_differs_from_rounding_once_only_next_to_a_half() -> None:
    """The first rounding changes the product by up to 2³⁰ before the second."""
    differ = total = 0
    for case in cases():
        x, multiplier, shift = (each.astype(np.int64) for each in case[:3])
        once, twice = (by_qfmt(case, rule).astype(int) for rule in PUBLISHED)
        from_half = np.abs((x * multiplier) % (1 << shift) - (np.int64(1) << (shift - 1)))
        assert (np.abs(twice - once)[from_half > 1 << 30] == 0).all()
        assert np.abs(twice - once).max() <= 1
        differ, total = differ + int((once != twice).sum()), total + once.size
    tell(f"fixed_point_double and fixed_point_single: {differ} of {total} differ, by 1")
    assert differ


@pytest.mark.slow
@pytest.mark.parametrize("rule", PUBLISHED)
def test_reference_model_of_tosa(rule: str, tmp_path: Path) -> None:
    python = os.environ.get("TOSA_PYTHON")
    if not python:
        pytest.skip("TOSA_PYTHON does not say where TOSA's reference model is (CONTRIBUTING.md)")
    given = {}
    rounding = {"fixed_point_single": "SINGLE_ROUND", "fixed_point_double": "DOUBLE_ROUND"}[rule]
    for index, case in enumerate(cases()):
        values = {**case._asdict(), "shift": case.shift.astype(np.int8), "rounding": rounding}
        given |= {f"{index:02}.{key}": np.array(value) for key, value in values.items()}
    np.savez(tmp_path / "cases.npz", **given)
    oracle = TOOLS / "tosa_oracle.py"
    command = [python, oracle, tmp_path / "cases.npz", tmp_path / "results.npz"]
    finished = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert finished.returncode == 0, finished.stderr[-2000:]
    with np.load(tmp_path / "results.npz") as results:
        pairs = [(by_qfmt(case, rule), results[f"{index:02}"]) for index, case in enumerate(cases())]
    equal, total = sum(int((a == b).sum()) for a, b in pairs), sum(a.size for a, _ in pairs)
    ends = sum(int(((a == np.iinfo(a.dtype).min) | (a == np.iinfo(a.dtype).max)).sum()) for a, _ in pairs)
    tell(f"{rule} and TOSA's reference model: {equal} of {total} equal, {ends} of them at an end of the range")
    assert all(a.dtype == b.dtype for a, b in pairs)
    assert equal == total >= 100_000
