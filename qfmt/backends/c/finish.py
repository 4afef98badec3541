"""From sums to what is stored: the requantization that follows an accumulator, applied to rows of int32."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QfmtError
from ...model import Node
from .kernels import kernel
from .plan import Plan
from .static import Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

REQUANTIZERS = ("qfmt.Requantize", "qfmt.RequantShift")
PARAMETERS = ("multiplier", "shift", "add", "thresholds", "row")


@dataclass(frozen=True, slots=True)
class Finish:
    """A requantization: parameters of one element, or of one per channel, along `axis` of the sums."""

    plan: Plan
    node: Node
    x: Value
    y: Value
    axis: int | None

    def call(self, sums: str, y: str, count: str | int, *, source: str = "int32") -> list[str]:
        """Requantize `count` sums: those of all channels in a row, or any number where all channels are alike."""
        return self._calls(sums, y, count, "" if self.axis is None else "i", "", source)

    def call_one(self, sums: str, y: str, count: str | int, channel: str, *, source: str) -> list[str]:
        """Requantize `count` sums that are all of one channel."""
        return self._calls(sums, y, count, "", f" + {channel}", source)

    def _calls(self, sums: str, y: str, count: str | int, at: str, plus: str, source: str) -> list[str]:
        low, high = self.y.limits
        end = f"{self.y.zero_point}, {low}, {high});"
        types = {"X": source, "Y": self.y.dtype}
        of_channel = types | {"AT": at or "0"}
        p = self._parameters()

        def given(name: str) -> str:
            return self._constant(p[name], name) + plus

        start = f"({sums}, {y}, {count}, "
        lines = []
        if "divisor" in p:
            divisor = f"INT64_C({int(p['divisor'])})"
            name = kernel(self.plan, "multiply_divide", **of_channel)
            lines.append(f"{name}{start}{given('multiplier')}, {given('add')}, {divisor}, {end}")
        elif "double" in p:
            name = kernel(self.plan, "fixed_point_double", **of_channel)
            lines.append(f"{name}{start}{given('multiplier')}, {given('shift')}, {end}")
        elif "multiplier" in p:
            name = kernel(self.plan, "multiply_shift", **of_channel)
            lines.append(f"{name}{start}{given('multiplier')}, {given('shift')}, {given('add')}, {end}")
        if "thresholds" in p:
            lines += self._counted(p["thresholds"], p["row"], f"({sums}, {y}, ", count, at, plus, types)
        return lines

    def _counted(
        self, table: Array, row: Array, start: str, count: str | int, at: str, plus: str, types: dict[str, str]
    ) -> list[str]:
        """Lines for the channels that have a row of thresholds, after all of them have been given a guess."""
        levels, low = table.shape[1], self.y.limits[0]
        listed = np.flatnonzero(row >= 0).astype(np.int32)
        if at:
            rows, channels = self._constant(table[row[listed]], "thresholds"), self._constant(listed, "channels")
            name = kernel(self.plan, "count_of", **types)
            return [f"{name}{start}{listed.size}, {channels}, {rows}, {levels}, {low});"]
        name = kernel(self.plan, "count", **types)
        if not plus:
            return [f"{name}{start}{count}, {self._constant(table[row[0]], 'thresholds')}, {levels}, {low});"]
        rows, which = self._constant(table, "thresholds"), f"{self._constant(row, 'rows')}[0{plus}]"
        return [f"if ({which} >= 0)", f"    {name}{start}{count}, {rows} + {which} * {levels}, {levels}, {low});"]

    def _constant(self, array: Any, name: str) -> str:
        return self.plan.constant(array, f"{self.y.name} {name}")

    def _parameters(self) -> dict[str, Array]:
        """The parameters of the kernels, each of one element or of one per channel."""
        if self.node.operator == "qfmt.RequantShift":
            return self._divided()
        p = dict(zip(PARAMETERS, self.node.inputs[1:], strict=False))
        raw = {name: self.plan.value(tensor).array for name, tensor in p.items() if tensor}
        found = {name: array for name, array in raw.items() if array is not None}
        rule = self.node.arithmetic
        made: dict[str, Array] = {}
        if rule != "thresholds":
            shift = found["shift"].astype(np.uint8)
            half = np.where(shift > 0, np.int64(1) << np.maximum(shift.astype(np.int64) - 1, 0), 0)
            made["multiplier"] = found.get("multiplier", np.ones(1)).astype(np.int32)
            made["shift"] = shift
            made["add"] = found["add"].astype(np.int64) if rule == "multiply_shift" else half
            if rule == "fixed_point_double":
                made["double"] = shift
        count = self.channels
        made = {name: _spread(array, count) for name, array in made.items()}
        if "thresholds" in found:
            table = found["thresholds"].astype(np.int32)
            row = _spread(found["row"] if "row" in found else np.arange(len(table)), count).astype(np.int32)
            if (row >= 0).any():
                made |= self._guessed(made, table, row)
                made |= {"thresholds": table, "row": row} if table.size else {}
        return made

    def _guessed(self, made: dict[str, Array], table: Array, row: Array) -> dict[str, Array]:
        """Multiplier, shift and add for the channels with thresholds, too: near enough to count on from there."""
        names = ("multiplier", "shift", "add")
        kinds = (np.int32, np.uint8, np.int64)
        found = {
            name: np.array(made[name]) if name in made else np.zeros(len(row), kind)
            for name, kind in zip(names, kinds, strict=True)
        }
        for channel in np.flatnonzero(row >= 0):
            line = _line_through(table[row[channel]], self.y.limits[0] - self.y.zero_point)
            for name, number in zip(names, line, strict=True):
                found[name][channel] = number
        return found

    def _divided(self) -> dict[str, Array]:
        """RequantShift: floor((x · mul + add) / div + 1/2), so the half goes into what is added."""
        div = self.node.attributes["div"]
        assert isinstance(div, int)
        mul, add = (_exact(self.plan.value(name)) for name in self.node.inputs[1:3])
        point = self.x.zero_point
        add = add + div // 2 - point * mul
        mul, add = (_spread(each.reshape(-1), self.channels) for each in np.broadcast_arrays(mul, add))
        if div & (div - 1) == 0 and np.abs(mul).max(initial=0) < 1 << 31:
            shift = np.full(mul.shape, div.bit_length() - 1, np.uint8)
            return {"multiplier": mul.astype(np.int32), "shift": shift, "add": add}
        return {"multiplier": mul, "add": add, "divisor": np.array(div)}

    @property
    def channels(self) -> int:
        return 1 if self.axis is None else self.x.shape[self.axis]


def _line_through(thresholds: Array, low: int) -> tuple[int, int, int]:
    """Multiplier, shift, add with low + #{k : x ≥ thresholds[k]} ≈ (x · multiplier + add) >> shift."""
    real = thresholds[thresholds < np.iinfo(np.int32).max].astype(np.int64)
    first, last = (int(real[0]), int(real[-1])) if real.size else (0, 0)
    if last == first:
        return 1, 31, (low + real.size // 2) << 31
    slope = Fraction(real.size - 1, last - first)
    shift = 0
    while slope * (1 << shift + 1) < 1 << 29 and (abs(low) + real.size) << shift + 1 < 1 << 60:
        shift += 1
    multiplier = max(1, round(slope * (1 << shift)))
    return multiplier, shift, ((low + 1) << shift) - first * multiplier


def _exact(value: Value) -> Array:
    """Integers of a constant, which may be stored as real numbers."""
    if value.array is None:
        raise QfmtError("its multiplier is computed, and C needs it constant")
    numbers = np.asarray(value.array)
    whole: Array = numbers.astype(np.int64)
    if not (whole == numbers).all():
        raise QfmtError("its multiplier or what it adds is no integer")
    return whole


def _spread(array: Array, count: int) -> Array:
    return np.broadcast_to(array, (count,)) if array.size == 1 else array


def finish_of(plan: Plan, node: Node) -> Finish:
    """The requantization that a node states."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    axis: int | None = None
    if node.operator == "qfmt.RequantShift":
        shapes = [plan.value(name).shape for name in node.inputs[1:3]]
        along = {axis - len(shape) + len(x.shape) for shape in shapes for axis, size in enumerate(shape) if size > 1}
        if len(along) > 1:
            raise QfmtError("its multiplier runs along several dimensions")
        axis = next(iter(along), None)
    else:
        sizes = {plan.value(name).shape[0] for name in (*node.inputs[1:4], *node.inputs[5:6]) if name}
        if not node.inputs[5:6] and len(node.inputs) > 4 and node.inputs[4]:
            sizes.add(plan.value(node.inputs[4]).shape[0])
        stated = node.attributes["axis"]
        assert isinstance(stated, int)
        axis = stated if sizes - {1} else None
    return Finish(plan, node, x, y, axis)


def follower(plan: Plan, name: str) -> Finish | None:
    """The requantization that alone reads the sums `name`; None if there is another reader or none."""
    if plan.network.readers[name] != 1 or name in plan.network.model.graph.outputs:
        return None
    node = next(each for each in plan.network.nodes if name in each.inputs)
    return finish_of(plan, node) if node.operator in REQUANTIZERS and node.inputs[0] == name else None
