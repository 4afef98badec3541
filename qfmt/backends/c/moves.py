"""Operators that only move elements: each becomes copies of regular parts, or nothing at all.

A few say so by their shapes alone. For the others, the operator's own reference runs on the positions of the elements
instead of the elements, so that it returns the source of each output element. If the positions are consecutive, nothing
is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...arrays import Array
from ...budget import AT_ONCE
from ...errors import QfmtError, first_line
from ...interpreter import execute
from ...memory import require
from ...model import Node
from ...ops import OPERATORS, Operand
from ...ops.resize import is_nearest
from ...ops.shapes import axis_of
from .loops import copy, transfer
from .names import comment
from .plan import Plan
from .views import Buffer, View, plain

FILL = -1
"""Represents an element that Pad adds."""

POSITION_WORK, POSITION_BYTES = 16, 40
"""What the position of an element counts as: elements that are computed, and bytes of memory."""


def move(plan: Plan, node: Node) -> None:
    """An operator of MOVERS, between tensors of one quantization."""
    if node.operator == "Resize" and not is_nearest(node.attributes):
        raise QfmtError("interpolates, which needs floats")
    if node.rule:
        raise QfmtError("has inputs and outputs with different quantization")
    MOVERS[node.operator](plan, node)


def _parameters(plan: Plan, node: Node) -> list[Array | None]:
    """The inputs but the first, which say what is moved; QfmtError if they are computed."""
    return [plan.array(name, "element positions that are") if name else None for name in node.inputs[1:]]


def _concat(plan: Plan, node: Node) -> None:
    """Each input is copied into its part; nothing is copied if there is one."""
    sources, name = [plan.read(each) for each in node.inputs], node.outputs[0]
    if len(sources) == 1:
        plan.same(name, sources[0])
        return
    target = plan.result(name, sources[0].order)
    transfer(plan, f"Concat: {comment(name)}", sources, target, axis_of(node.int("axis"), len(target.shape)))


def _expand(plan: Plan, node: Node) -> None:
    _parameters(plan, node)
    name = node.outputs[0]
    target = plan.result(name, plain(len(plan.value(name).shape)))
    transfer(plan, f"Expand: {comment(name)}", [plan.read(node.inputs[0])], target)


def _transpose(plan: Plan, node: Node) -> None:
    """The same elements in another order."""
    source, shape = plan.read(node.inputs[0]), plan.value(node.outputs[0]).shape
    place = {axis: at for at, axis in enumerate(node.ints("perm"))}
    order = tuple(place[axis] for axis in source.order)
    plan.same(node.outputs[0], View(source.buffer, shape, order, source.offset))


def _reshape(plan: Plan, node: Node) -> None:
    """The same elements in the same order: that of the file."""
    _parameters(plan, node)
    (given, *_), (name, *_) = node.inputs, node.outputs
    shape = plan.value(name).shape
    source = plan.read(given, None if shape == plan.value(given).shape else plain(len(plan.value(given).shape)))
    order = source.order if shape == source.shape else plain(len(shape))
    plan.same(name, View(source.buffer, shape, order, source.offset))


def _pick(plan: Plan, node: Node) -> None:
    """The elements that the reference selects."""
    source = plan.read(node.inputs[0])
    count = source.size + sum(plan.value(name).size for name in node.outputs if name)
    plan.network.budget.spend(POSITION_WORK * count // AT_ONCE)
    require(POSITION_BYTES * count)
    operator = OPERATORS[node.operator]
    given = [source.positions(), *_parameters(plan, node)]
    given += [None] * (len(operator.inputs) - len(given))
    if node.operator == "Pad":
        given[2] = np.array(FILL)
    try:
        picked = operator.reference(*given, **operator.complete(node.attributes))
    except (ValueError, IndexError, TypeError) as error:  # for attributes and constants that no rule checks
        raise QfmtError(f"cannot be computed: {first_line(error)}") from None
    results = list(picked) if isinstance(picked, tuple | list) else [picked]
    for name, picks in zip(node.outputs, results, strict=False):
        if name:
            _put(plan, node, name, source, picks)


def _fill(plan: Plan, node: Node, picks: Array) -> View:
    """The value that Pad adds, found by computing it."""
    operands: list[Operand | None] = []
    for name in node.inputs:
        value = plan.value(name) if name else None
        array = None if value is None else value.array
        if value is not None and array is None:
            array = np.zeros(value.shape, value.dtype)
        operands.append(None if value is None or array is None else Operand(array, value.quantization))
    padded = execute(node, operands, [plan.network.model.tensors[node.outputs[0]]])[0]
    dtype = plan.value(node.outputs[0]).dtype
    value = padded[picks == FILL][:1].astype(dtype)
    return View(Buffer(dtype, 1, plan.constant(value, "fill"), external=True), (1,), (0,))


def _put(plan: Plan, node: Node, name: str, source: View, picks: Array) -> None:
    """Place an output: at its elements if they are contiguous, else as copies."""
    rank = picks.ndim
    likely = source.order if rank == len(source.shape) else plain(rank)
    sources = [source]
    if node.operator == "Pad" and (picks == FILL).any():
        sources.append(_fill(plan, node, picks))
        picks = np.where(picks == FILL, source.buffer.size, picks)
    elif picks.size:
        for order in dict.fromkeys((likely, plain(rank))):
            flat = picks.transpose(order).reshape(-1)
            if flat[-1] - flat[0] == flat.size - 1 and (np.diff(flat) == 1).all():
                plan.same(name, View(source.buffer, picks.shape, order, int(flat[0])))
                return
    copy(plan, f"{node.operator}: {comment(name)}", sources, picks, plan.result(name, likely))


MOVERS: Mapping[str, Callable[[Plan, Node], None]] = {
    "Concat": _concat,
    "Expand": _expand,
    "Transpose": _transpose,
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "Split", "Slice", "Tile", "Pad", "Resize"), _pick),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ReverseSequence", "Compress"), _pick),
}
