"""Windows that compute the maximum or the sum; means over axes are windows, too."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...arrays import Array
from ...errors import QfmtError
from ...model import INT32, Node
from ...ops.geometry import Window, bins, common_multiple, reduced_axes, windows
from .convolutions import three
from .kernels import kernel, kernel_text
from .loops import indented
from .plan import Plan
from .products import finished, target_of, title_of
from .views import Parameter, View, channels_last

BETTER = {"MaxPool": ">", "GlobalMaxPool": ">", "ReduceMax": ">", "ReduceMin": "<"}
"""Operators that select one of the inputs, and how it compares with the others."""

POSITION_BYTES = 24
"""Bytes of memory for a position of a window along one dimension."""


@dataclass(frozen=True, slots=True)
class Along:
    """A window along one dimension, for each of its positions: the first input, their number, and the divisor."""

    size: int
    dilation: int
    first: Array
    taps: Array
    divisor: Array

    @classmethod
    def of_bins(cls, size: int, count: int) -> Along:
        parts = bins(size, count)
        taps = np.array([part.stop - part.start for part in parts])
        return cls(size, 1, np.array([part.start for part in parts]), taps, taps)

    @classmethod
    def of_window(cls, window: Window, size: int, count_include_pad: int) -> Along:
        return cls(size, window.dilation, *window.met(size), np.maximum(window.counts(size, count_include_pad), 1))


def pool(plan: Plan, node: Node) -> None:
    """A pool over the spatial dimensions of [N, C, *spatial]."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    if "output_size" in node.attributes and len(x.shape) == len(node.ints("output_size")) + 1:
        raise QfmtError("is an adaptive pool without a batch dimension")
    if len(x.shape) - 2 not in (1, 2, 3):
        raise QfmtError(f"has {len(x.shape) - 2} spatial dimensions, but C supports 1 to 3")
    plan.network.budget.allocate(POSITION_BYTES * sum(y.shape[2:]))
    if "kernel_shape" in node.attributes:
        with_pads, pairs = node.int("count_include_pad", 0), zip(windows(node.attributes), x.shape[2:], strict=True)
        along = [Along.of_window(window, size, with_pads) for window, size in pairs]
    else:
        along = [Along.of_bins(size, count) for size, count in zip(x.shape[2:], y.shape[2:], strict=True)]
    order = channels_last(len(x.shape))
    _emit(plan, node, plan.read(node.inputs[0], order), along, x.shape[1], prod(y.shape) // x.shape[1], order)


def reduce(plan: Plan, node: Node) -> None:
    """ReduceMean, ReduceMax, ReduceMin: a window over the axes, with the dimensions after them as channels."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    given = plan.array(node.inputs[1], "axes that are") if any(node.inputs[1:]) else None
    axes = reduced_axes(node, given, len(x.shape))
    view = plan.read(node.inputs[0])
    kept = [axis for axis in view.order if axis not in axes]
    places = [view.order.index(axis) for axis in axes]
    if places and max(places) - min(places) + 1 == len(places):
        order, after = view.order, len(view.order) - max(places) - 1
    else:
        order, after = (*kept, *axes), 0
        view = plan.read(node.inputs[0], order)
    channels = prod(view.physical[len(order) - after :])
    size = prod(x.shape[axis] for axis in axes)
    result = order if len(y.shape) == len(x.shape) else tuple(sorted(kept).index(axis) for axis in kept)
    _emit(plan, node, view, [Along.of_bins(size, 1)], channels, prod(y.shape) // max(1, channels), result)


def _emit(
    plan: Plan, node: Node, view: View, along: list[Along], channels: int, places: int, order: tuple[int, ...]
) -> None:
    tables = {
        name: [plan.constant(getattr(each, name).astype(np.int32), "window") for each in along]
        for name in ("first", "taps", "divisor")
    }
    one, none = plan.constant(np.ones(1, np.int32), "window"), plan.constant(np.zeros(1, np.int32), "window")
    fields = {
        "channels": str(channels),
        "in": three([each.size for each in along], 1),
        "out": three([len(each.first) for each in along], 1),
        "dilation": three([each.dilation for each in along], 1),
        "first": three(tables["first"], none),
        "taps": three(tables["taps"], one),
        "divisor": three(tables["divisor"], one),
    }
    plan.declare(kernel_text("pool"))
    window = plan.struct("pool", f"{node.outputs[0]} window", fields)
    what = f"{channels} channels, {places} places"
    at = f"y + position * {channels}"
    loop = f"for (int32_t position = 0; position < {places}; position++)"
    if node.operator in BETTER:
        target = plan.result(node.outputs[0], order)
        better = BETTER[node.operator]
        start = _worst(view.dtype, better)
        if not plan.value(node.inputs[0]).size:  # the extreme of no elements
            start = str(plan.value(node.outputs[0]).limits[better == "<"])
        name = kernel(plan, "pool_best", X=view.dtype, START=start, BETTER=better)
        body = [loop, f"    {name}(&{window}, x, position, {at});"]
        plan.step(title_of(node, None, what), [Parameter("x", view), Parameter("y", target, True)], body)
        return
    if node.rule != "exact":
        raise QfmtError(f"computes with the rule `{node.rule or 'none'}`, which needs floats")
    target, finish = target_of(plan, node, order, channels)
    divisors = {a * b * c for a in _of(along, 0) for b in _of(along, 1) for c in _of(along, 2)}
    if 0 in divisors:
        raise QfmtError("averages no elements")
    common = common_multiple(divisors)
    if common * max(plan.value(node.inputs[0]).farthest, 1) > INT32:
        raise QfmtError("sums elements to a result that may exceed int32")
    name = kernel(plan, "pool_sum", X=view.dtype)
    zero = plan.value(node.inputs[0]).zero_point
    body = [
        f"{loop} {{",
        f"    {name}(&{window}, x, position, {zero}, {common}, sums);",
        *indented(finished(plan, finish, "sums", at, channels)),
        "}",
    ]
    parameters = [Parameter("x", view), Parameter("y", target, True)]
    plan.step(title_of(node, finish, what), parameters, body, [("int32", channels, "sums")])


def _of(along: list[Along], index: int) -> set[int]:
    return set(along[index].divisor.tolist()) if index < len(along) else {1}


def _worst(dtype: str, better: str) -> str:
    """The initial value that any element replaces, in C."""
    if better == "<":
        return f"{dtype.upper()}_MAX"
    return "0" if dtype.startswith("u") else f"{dtype.upper()}_MIN"
