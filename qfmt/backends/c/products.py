"""Convolutions and matrix products with constant weights: folded into one form, packed, and a loop of dot products.

For any rule, the program computes Σ q · w + B over the stored integers of x: the zero point of weights is subtracted
here, and the contribution of the zero point of x is added to B. Padding is the zero point of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arrays import Array
from ...errors import QfmtError
from ...model import INT32, Node
from ...ops import Operand
from ...ops.accumulation import reach_of_sums, whole
from .finish import Finish, follower
from .kernels import kernel, kernel_text
from .loops import indented
from .names import comment
from .numbers import Reach
from .plan import Plan
from .views import Parameter, View, plain

UNITS = (64, 32, 16)
"""Rows of weights are padded with zeros to a multiple of one of these, so that loops have no remainder."""

WASTE = 1.3
"""The largest share of such zeros in a row, except for the smallest unit."""

RULES = ("exact", "folded")

NO_TERMS = "computes sums of no products"

ROWS = 4
"""Rows of inputs and outputs that one pass of the kernel `dot` handles together."""

LANES = 8
"""Outputs whose weights are interleaved for the kernel `dot_lanes`, in groups of DEEP."""

DEEP = 4
"""The unit to which the length of a row is padded for `dot_lanes`."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Weights [groups, outputs, inputs] without zero point, and a bias [groups · outputs] for stored integers."""

    weights: Array
    bias: Array
    zero: int
    x: str
    reach: Reach

    @property
    def dtype(self) -> str:
        return "int8" if self.weights.min(initial=0) >= -128 and self.weights.max(initial=0) <= 127 else "int16"

    @property
    def unsigned(self) -> Folded | None:
        """The same sums over x + 128, for x of int8: products of uint8 and int8 have fast instructions."""
        sums = self.weights.astype(np.int64).sum(2).reshape(-1)
        sizes = np.abs(self.weights.astype(np.int64)).sum(2).reshape(-1)
        bias = self.bias - 128 * sums
        if self.x != "int8" or self.dtype != "int8" or (np.abs(bias) + 255 * sizes).max(initial=0) > INT32:
            return None
        return replace(self, bias=bias, x="uint8")


def folded(plan: Plan, node: Node, weights: Array, bias_count: int) -> Folded:
    """The weights [groups, outputs, inputs] of a node, and its bias, by its rule."""
    x = plan.value(node.inputs[0])
    if x.dtype not in ("int8", "uint8", "int16", "uint16"):
        raise QfmtError(f"has an input of type {x.dtype}, but C supports only 8-bit and 16-bit integers")
    if node.rule not in RULES:
        raise QfmtError(f"computes with the rule `{node.rule or 'none'}`, which needs floats")
    if not weights.shape[2]:
        raise QfmtError(NO_TERMS)
    centred = weights.astype(np.int64)
    bias = np.zeros(bias_count, np.int64)
    added = np.zeros((1, bias_count), np.int64)
    if len(node.inputs) > 2 and node.inputs[2]:
        given = plan.array(node.inputs[2], "a bias that is")
        if _is_row(given, bias_count):
            bias = bias + given.astype(np.int64).reshape(-1)
        else:  # added to the sums, row by row
            added = np.broadcast_to(given.astype(np.int64), (len(given), bias_count))
    if node.rule == "exact":
        bias = bias - x.zero_point * centred.sum(2).reshape(-1)
    if np.abs(bias).max(initial=0) > INT32 or np.abs(centred).max(initial=0) > 32767:
        raise QfmtError("has weights or a bias too large for the integer types of sums in C")
    low, high = min(x.limits[0], x.zero_point), max(x.limits[1], x.zero_point)
    rows = centred.reshape(-1, centred.shape[2])
    least, most = reach_of_sums(rows, low, high)
    down, up = reach_of_sums(rows, min(low, 0), max(high, 0))  # of partial sums, in any order of products, bias, rows
    up = up + np.maximum(bias, 0) + np.maximum(added, 0).max(0)
    down = down + np.minimum(bias, 0) + np.minimum(added, 0).min(0)
    if max(up.max(initial=0), -down.min(initial=0)) > INT32:
        raise QfmtError("computes sums that may exceed int32")
    return Folded(centred, bias, x.zero_point, x.dtype, Reach(least + bias, most + bias))


def constant_weights(plan: Plan, node: Node) -> Array:
    """The weights less their zero points (which are 0 by the rule `folded`)."""
    array = plan.array(node.inputs[1], "weights that are")
    return whole(Operand(array, plan.value(node.inputs[1]).quantization))


# Dot products


def unit_of(plan: Plan, length: int) -> int:
    """The unit to which the length of a row is padded."""
    if plan.compact:
        return 1
    return next((unit for unit in UNITS if -(-length // unit) * unit <= WASTE * length), UNITS[-1])


def packed(plan: Plan, node: Node, f: Folded, unit: int) -> tuple[str, str, str, int]:
    """A kernel, and its constants: padded weights, bias; and how many outputs of a group they are for."""
    groups, outputs, length = f.weights.shape
    lanes = in_lanes(plan, f)
    full = _filled(outputs, LANES if lanes else ROWS)
    weights = np.zeros((groups, full, _filled(length, unit)), f.dtype)
    weights[:, :outputs, :length] = f.weights
    bias = np.zeros((groups, full), np.int32)
    bias[:, :outputs] = f.bias.reshape(groups, outputs)
    if lanes:
        plan.declare(kernel_text("lanes"))
        name = kernel(plan, "dot_lanes", X=f.x, W=f.dtype)
        weights = weights.reshape(groups, full // LANES, LANES, -1, DEEP).swapaxes(2, 3)
    else:
        name = kernel(plan, "dot", X=f.x, W=f.dtype, UNIT=str(unit))
    array = plan.constant(weights, node.inputs[1], aligned=True)
    return name, array, plan.constant(bias, f"{node.outputs[0]} bias"), full


def in_lanes(plan: Plan, f: Folded) -> bool:
    """Whether the kernel `dot_lanes` is used."""
    return (f.x, f.dtype) == ("uint8", "int8") and not plan.compact


def _filled(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def target_of(
    plan: Plan, node: Node, order: Sequence[int], row: int, reach: Reach | None = None
) -> tuple[View, Finish | None]:
    """The destination of rows of `row` sums: requantized, if that follows directly and a row has all channels."""
    name = node.outputs[0]
    finish = follower(plan, name)
    if finish is not None and finish.axis is not None and (finish.axis, finish.channels) != (order[-1], row):
        finish = None
    if finish is None:
        return plan.result(name, tuple(order)), None
    plan.fused.add(finish.y.name)
    return plan.result(finish.y.name, tuple(order)), replace(finish, reach=reach)


def finished(plan: Plan, finish: Finish | None, sums: str, y: str, count: int) -> list[str]:
    """Lines that turn a row of sums into a row of the result."""
    if finish is not None:
        return finish.call(sums, y, count)
    return [f"{kernel(plan, 'pack', X='int32', D='int32')}({sums}, 1, 0, {count}, {count}, {y});"]


def title_of(node: Node, finish: Finish | None, what: str) -> str:
    text = f"{node.operator}: {comment(node.outputs[0])}, {what}"
    return text if finish is None else f"{text}; then {finish.node.operator}: {comment(finish.y.name)}"


def dot_rows(
    plan: Plan,
    node: Node,
    f: Folded,
    rows: int,
    gather: Any,
    view: View,
    order: Sequence[int],
    what: str,
    direct: bool,
    added: str = "",
) -> None:
    """A step that makes `rows` rows of sums, four at a time; `gather(group, row)` fills in the inputs of one."""
    groups, outputs, length = f.weights.shape
    fast = f.unsigned or f
    lanes = in_lanes(plan, fast)
    unit = DEEP if lanes else unit_of(plan, length)
    blocks = -(-length // unit)
    dot, weights, bias, full = packed(plan, node, fast, unit)
    across = groups * outputs
    target, finish = target_of(plan, node, order, across, None if added else f.reach)
    apart = (groups - 1) * outputs + full
    in_place = direct and fast.x == view.dtype and length % unit == 0
    body = [
        f"for (int32_t position = 0; position < {rows}; position += {ROWS}) {{",
        f"    const int32_t count = {rows} - position < {ROWS} ? {rows} - position : {ROWS};",
    ]
    inner: list[str] = []
    given = f"x + position * {length}" if in_place else "rows"
    for_group = "" if groups == 1 else f" + g * {full * blocks * unit}"
    for_bias = "" if groups == 1 else f" + g * {full}"
    for_sums = "" if groups == 1 else f" + g * {outputs}"
    if not in_place:
        inner += ["for (int32_t r = 0; r < count; r++)"]
        inner += [f"    {gather(fast, f'rows + r * {blocks * unit}', 'position + r')}"]
    terms = blocks * DEEP if lanes else blocks
    told = f"{weights}{for_group}, {bias}{for_bias}, {terms}, {full}, sums{for_sums}, {apart}"
    inner.append(f"{dot}({given}, count, {told});")
    if groups > 1:
        inner = [f"for (int32_t g = 0; g < {groups}; g++) {{", *indented(inner), "}"]
    inner += ["for (int32_t r = 0; r < count; r++) {"]
    if added:
        inner += [f"    for (int32_t o = 0; o < {across}; o++)"]
        inner += [f"        sums[r * {apart} + o] += {added}[(position + r) * {across} + o];"]
    inner += indented(finished(plan, finish, f"sums + r * {apart}", f"y + (position + r) * {across}", across))
    inner += ["}"]
    body += [*indented(inner), "}"]
    scratch = [("int32", ROWS * apart, "sums")]
    if not in_place:
        scratch.append((fast.x, ROWS * blocks * unit, "rows"))
    plan.step(title_of(node, finish, what), [Parameter("x", view), Parameter("y", target, True)], body, scratch)


def rows_of(plan: Plan, node: Node, weights: Array, order: Sequence[int] | None = None) -> None:
    """x [..., inputs] times weights [outputs, inputs]."""
    f = folded(plan, node, weights[None], len(weights))
    value = plan.value(node.inputs[0])
    length = weights.shape[1]
    view = plan.read(value.name, tuple(order) if order else plain(len(value.shape)))

    def gather(fast: Folded, row: str, position: str) -> str:
        shift = -128 if fast.x != f.x else 0
        pack = kernel(plan, "pack", X=f.x, D=fast.x)
        return f"{pack}(x + ({position}) * {length}, 1, {shift}, {length}, {length}, {row});"

    rank = len(plan.value(node.outputs[0]).shape)
    added = _added(plan, node, len(weights))
    rows = value.size // length if length else 0
    dot_rows(plan, node, f, rows, gather, view, plain(rank), f"{length} inputs, {len(weights)} outputs", True, added)


def _is_row(bias: Array, outputs: int) -> bool:
    return bias.size == 1 or bias.shape[-1] == bias.size == outputs


def _added(plan: Plan, node: Node, outputs: int) -> str:
    """The C of Gemm if it differs between rows, as a constant of all rows; "" otherwise."""
    given = plan.value(node.inputs[2]).array if len(node.inputs) > 2 and node.inputs[2] else None
    if given is None or _is_row(given, outputs):
        return ""
    plan.network.budget.allocate(4 * plan.value(node.outputs[0]).size)
    full = np.broadcast_to(given.astype(np.int32), plan.value(node.outputs[0]).shape)
    return plan.constant(full, node.inputs[2])


def linear(plan: Plan, node: Node) -> None:
    """X · Wᵀ + B"""
    rows_of(plan, node, constant_weights(plan, node))


def gemm(plan: Plan, node: Node) -> None:
    """A · B + C, of which B and C are constants."""
    if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("beta", 1.0) != 1:
        raise QfmtError("has an alpha or beta other than 1")
    w = constant_weights(plan, node)
    order = (1, 0) if node.attributes.get("transA") else (0, 1)
    rows_of(plan, node, w if node.attributes.get("transB") else w.T, order)
