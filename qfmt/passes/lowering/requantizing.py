"""From exact sums to output integers: a qfmt.Requantize, or a qfmt.RequantShift, after the node that sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arithmetic import f32
from ...forms import MULTIPLY_ADD_DIVIDE
from ...model import INT32, Node, Proof, Quantization, Tensor
from ...ops.requantization import PARAMETERS
from .context import Context, NoForm, made
from .forms import Form, Requantization, fit, joined
from .lines import Floats, Lines
from .step_functions import Array, Integers, StepFunction, levels_of, of_pairs, search

FACTOR_BITS = 16
"""The most bits of integers that are multiplied or summed."""


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """A node that outputs exact sums as int32, and how they are requantized. C channels, or 1 for all.

    `evaluate(x, channels)`: sums [c, n] of some channels to output integers, by the rule `compared`. `pairs`: all
    reachable sums and their outputs, if these are known individually; `nearly`: one sum may have multiple outputs.
    `unsure`: for how many sums the stated rule's result is uncertain, because it sums floats.
    `whole`: the stated rule adds only integers to a sum, in float32 without rounding.
    """

    node: Node
    axis: int
    low: Integers
    high: Integers
    multiplier: Floats
    compared: str
    unit: Quantization | None = None
    evaluate: Callable[[Integers, slice], Array] | None = None
    pairs: tuple[Integers, Integers] | None = None
    unsure: int = 0
    nearly: bool = False
    whole: bool = True


def unit_of(scale: Array, axis: int, low: Integers, high: Integers) -> Quantization:
    """The quantization of the sums: their unit, and their range."""
    scales = tuple(float(each) for each in np.asarray(scale, np.float64).reshape(-1))
    least, most = min(0, int(low.min(initial=0))), max(0, int(high.max(initial=0)))
    exact = all(float(f32(each)) == each for each in scales)
    zeros, stored = (0,) * len(scales), "float32" if exact else "float64"
    return Quantization.of(scales, zeros, least, most, axis if len(scales) > 1 else None, stored)


LEVELS = 1 << 16
PAIRS, FOUND = 10, 4
"""Pairs that are compared, and thresholds that are found, in the time of an operation."""

CELLS = 1 << 20
"""How many thresholds are searched at a time."""


def requantized(sums: Sums, output: str, like: Node, context: Context) -> None:
    """Append the node that sums, and the requantization of its sums, unless it changes nothing."""
    y = context.tensors[output]
    found = best(sums, y, context, context.form)
    name = sums.node.outputs[0]
    context.put(sums.node, [context.computed(y, name, "int32", sums.unit)])
    append(found, sums, name, y, like, context)


def check_levels(grid: Quantization) -> None:
    """NoForm if an output has too many levels to search a threshold for each."""
    if grid.quant_max - grid.quant_min > LEVELS:
        raise NoForm(f"has an output of {grid.quant_max - grid.quant_min + 1:,} levels")


def best(sums: Sums, y: Tensor, context: Context, form: Form) -> Requantization:
    """The parameters for all channels; those with a common shift are found for all at once."""
    grid = context.grid(y)
    check_levels(grid)
    if grid.quant_min == grid.quant_max:
        return _constant(len(sums.low), form)
    zero_point = int(grid.zero_point[0])
    if sums.pairs is not None:
        context.budget.spend(len(sums.pairs[0]) // PAIRS)
        limits = grid.quant_min, grid.quant_max
        steps = of_pairs(*sums.pairs, limits, float(sums.multiplier[0]), zero_point, nearly=sums.nearly)
        if steps is None:
            raise NoForm("outputs different integers for equal sums")
        found = fit(steps, form)
        if form.exact and found.differs.any():
            raise NoForm(f"rounds {found.differs.sum():,} means differently for windows of different sizes")
        return _unsure(found, sums)
    levels = levels_of(grid.quant_min, grid.quant_max)
    count = len(sums.low)
    context.budget.spend(count * len(levels) // FOUND)
    step = max(1, CELLS // len(levels)) if form.rule != MULTIPLY_ADD_DIVIDE else count
    parts = [slice(start, start + step) for start in range(0, count, step)]
    return _unsure(joined([fit(_steps(sums, levels, part, zero_point), form) for part in parts]), sums)


def _constant(channels: int, form: Form) -> Requantization:
    """The parameters for an output with a single level: any line works, because of the clamp."""
    zeros = np.zeros(channels, np.int64)
    rule = "multiply_shift" if form.rule == "thresholds" else form.rule
    return Requantization(rule, Lines(zeros + 1, zeros, zeros), zeros - 1, np.empty((0, 0), np.int64), zeros, 0)


def _unsure(found: Requantization, sums: Sums) -> Requantization:
    """The requantization, with sums whose result by the stated rule is uncertain counted as differing by 1."""
    return found._replace(differs=found.differs + sums.unsure, largest=max(found.largest, min(sums.unsure, 1)))


def _steps(sums: Sums, levels: Integers, part: slice, zero_point: int) -> StepFunction:
    assert sums.evaluate is not None
    evaluate = sums.evaluate
    arguments = sums.low[part], sums.high[part], levels, sums.multiplier[part], zero_point
    return search(lambda x: evaluate(x, part), *arguments)


def append(found: Requantization, sums: Sums, source: str, y: Tensor, like: Node, context: Context) -> None:
    """The node that requantizes `source` to y, with its constants."""
    if found.rule == MULTIPLY_ADD_DIVIDE:
        _append_shift(found, sums, source, y, like, context)
        return
    by_row = found.row >= 0
    arrays: dict[str, Any] = {}
    rule = "thresholds" if by_row.all() else found.rule
    lines, uses_lines = found.lines, rule != "thresholds"
    if uses_lines and rule != "power_of_two":
        arrays["multiplier"] = np.where(by_row, 1, lines.multiplier).astype(np.int32)
    if uses_lines:
        arrays["shift"] = np.where(by_row, 0, lines.shift).astype(np.uint8)
    if rule == "multiply_shift":
        arrays["add"] = np.where(by_row, 0, lines.add)
    if all((each == each[0]).all() for each in arrays.values()):
        arrays = {word: each[:1] for word, each in arrays.items()}
    if by_row.any():
        reached = found.thresholds <= sums.high[by_row][:, None]
        arrays["thresholds"] = np.where(reached, found.thresholds, INT32).astype(np.int32)
        if uses_lines:
            arrays["row"] = found.row.astype(np.int32)
    names = [context.constant(f"{y.name}.{word}", arrays[word]) if word in arrays else "" for word in PARAMETERS]
    while not names[-1]:
        names.pop()
    node = made("qfmt.Requantize", (source, *names), y.name, {"axis": sums.axis}, like)
    _put(node, rule, found, sums, y, context)


def _put(node: Node, rule: str, found: Requantization, sums: Sums, y: Tensor, context: Context) -> None:
    """The node by that rule, with its proof."""
    differs = tuple(found.differs.tolist()) if found.differs.any() else ()
    proof = Proof(tuple(sums.low.tolist()), tuple(sums.high.tolist()), sums.compared, differs, found.largest)
    name = f"{node.name}.requantize" if node.name else ""
    context.put(replace(node, name=name, rule=rule, proof=proof), [y])


def _append_shift(found: Requantization, sums: Sums, source: str, y: Tensor, like: Node, context: Context) -> None:
    """floor((x·mul + add) / div + 1/2): div is a power of two; the rule, not the addend, adds half of it."""
    shift = int(found.lines.shift[0])
    if y.shape is None and len(sums.low) > 1:
        raise NoForm("has an output of unknown rank", unknown_shape=True)
    rank = len(y.shape or ())
    spread = [-1 if axis == sums.axis and len(sums.low) > 1 else 1 for axis in range(rank)][sums.axis :]
    mul = found.lines.multiplier.astype(np.int32).reshape(spread)
    add = (found.lines.add - ((1 << shift) >> 1)).reshape(spread)
    names = [context.constant(f"{y.name}.{word}", array) for word, array in (("multiplier", mul), ("add", add))]
    node = made("qfmt.RequantShift", (source, *names), y.name, {"div": 1 << shift}, like)
    if source == sums.node.outputs[0]:
        context.add(replace(context.tensors[source], quantization=None))  # RequantShift subtracts zero points
    _put(node, MULTIPLY_ADD_DIVIDE, found, sums, y, context)
