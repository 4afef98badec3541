"""From sums to stored integers: the requantization after an accumulator, applied to rows of int32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import QfmtError
from ...model import DTYPES, Node
from ...ops import Trait, has
from ...ops.shapes import axis_of
from .kernels import kernel
from .numbers import Numbers, Reach, numbers_of
from .plan import Plan
from .static import Value


@dataclass(frozen=True, slots=True)
class Finish:
    """A requantization: parameters of one element, or of one per channel, along `axis` of the sums.

    `reach`, if it is proven: the least and greatest sum of each channel.
    """

    plan: Plan
    node: Node
    x: Value
    y: Value
    axis: int | None
    reach: Reach | None = None

    def call(self, sums: str, y: str, count: str | int, *, source: str = "int32") -> list[str]:
        """Requantize `count` sums: one of each channel, or any number if all channels have equal parameters."""
        return self._calls(sums, y, count, "" if self.axis is None else "i", "", source)

    def call_one(self, sums: str, y: str, count: str | int, channel: str, *, source: str) -> list[str]:
        """Requantize `count` sums of one channel."""
        return self._calls(sums, y, count, "", f" + {channel}", source)

    def _calls(self, sums: str, y: str, count: str | int, at: str, plus: str, source: str) -> list[str]:
        n = numbers_of(self.plan, self.node, self.channels, self.reach if at else None)
        low, high = self.y.limits
        types = {"X": source, "Y": self.y.dtype}
        start, end = f"({sums}, {y}, ", f"{self.y.zero_point}, {low}, {high});"
        given = ", ".join(f"{self._constant(array, name)}{plus}" for name, array in n.line.items())
        divisor = f", INT64_C({n.divisor})" if n.rule == "multiply_divide" else ""
        lines = [f"{kernel(self.plan, n.rule, **types, AT=at or '0')}{start}{count}, {given}{divisor}, {end}"]
        if n.sums.size:
            mend = kernel(self.plan, "mend", **types)
            changes = f"{self._constant(n.sums, 'exceptions')}, {self._constant(n.changes, 'changes')}"
            lines.append(f"{mend}{start}{count}, {changes}, {len(n.sums)});")
        if (n.row >= 0).any() and n.table.size:
            lines += self._counted(n, start, count, at, plus, types)
        return lines

    def _counted(
        self, n: Numbers, start: str, count: str | int, at: str, plus: str, types: dict[str, str]
    ) -> list[str]:
        """Code lines for the channels with a row of thresholds, after a first result for all channels."""
        levels, low = n.table.shape[1], self.y.limits[0]
        listed = np.flatnonzero(n.row >= 0).astype(np.int32)
        if at:
            self.plan.network.budget.allocate(n.table.itemsize * levels * listed.size)
            rows, channels = self._constant(n.table[n.row[listed]], "thresholds"), self._constant(listed, "channels")
            name = kernel(self.plan, "count_of", **types)
            return [f"{name}{start}{listed.size}, {channels}, {rows}, {levels}, {low});"]
        name = kernel(self.plan, "count", **types)
        if not plus:
            return [f"{name}{start}{count}, {self._constant(n.table[n.row[0]], 'thresholds')}, {levels}, {low});"]
        rows, which = self._constant(n.table, "thresholds"), f"{self._constant(n.row, 'rows')}[0{plus}]"
        return [f"if ({which} >= 0)", f"    {name}{start}{count}, {rows} + {which} * {levels}, {levels}, {low});"]

    def _constant(self, array: Any, name: str) -> str:
        return self.plan.constant(array, f"{self.y.name} {name}")

    @property
    def channels(self) -> int:
        return 1 if self.axis is None else self.x.shape[self.axis]


def finish_of(plan: Plan, node: Node) -> Finish:
    """The requantization that a node states."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    if not DTYPES["int32"].holds(*y.limits):
        raise QfmtError(f"outputs {y.dtype}, but C requantizes to int32 and smaller types")
    axis: int | None = None
    if node.operator == "qfmt.RequantShift":
        shapes = [plan.value(name).shape for name in node.inputs[1:3]]
        along = {axis - len(shape) + len(x.shape) for shape in shapes for axis, size in enumerate(shape) if size > 1}
        if len(along) > 1:
            raise QfmtError("has a multiplier that varies along more than one dimension")
        axis = next(iter(along), None)
    else:
        rows = 5 if any(node.inputs[5:]) else 4  # without `row`, there is a row of thresholds for each channel
        sizes = {plan.value(name).shape[0] for name in (*node.inputs[1:4], *node.inputs[rows : rows + 1]) if name}
        axis = axis_of(node.int("axis"), len(x.shape)) if sizes - {1} else None
    return Finish(plan, node, x, y, axis)


def follower(plan: Plan, name: str) -> Finish | None:
    """The requantization that is the only reader of the sums `name`; None if there is another reader or none."""
    readers = plan.network.readers.get(name, ())
    if len(readers) != 1 or plan.is_output(name):
        return None
    node = readers[0]
    return finish_of(plan, node) if has(node, Trait.REQUANTIZE) and node.inputs[0] == name else None
