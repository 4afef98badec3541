"""Operators that only move elements: each becomes copies of regular parts, or nothing at all.

The operator's own reference runs on the positions of the elements instead of the elements, so that it returns the
source of each output element. If the positions are consecutive, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arrays import Array
from ...errors import QfmtError, first_line
from ...interpreter import execute
from ...model import Node
from ...ops import OPERATORS, Operand
from ...ops.resize import is_nearest
from .loops import copy
from .names import comment
from .plan import Plan
from .views import Buffer, View, plain

MOVERS = {
    "Identity": (0,), "Reshape": (0,), "Flatten": (0,), "Transpose": (0,), "Squeeze": (0,), "Unsqueeze": (0,),
    "Expand": (0,), "DepthToSpace": (0,), "SpaceToDepth": (0,), "Split": (0,), "Slice": (0,), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "Tile": (0,), "Pad": (0,), "ReverseSequence": (0,), "Compress": (0,),
    "Resize": (0,),
}  # fmt: skip
"""Operator → the inputs that are moved; the others are parameters, and must be constants."""

FILL = -1
"""Represents an element that Pad adds."""


def move(plan: Plan, node: Node) -> None:
    """An operator of the table, or Concat of inputs with the same quantization."""
    _check_moves(node)
    moved = range(len(node.inputs)) if node.operator == "Concat" else MOVERS[node.operator]
    sources: list[View] = []
    start = 0
    given: list[Array | None] = []
    for index, name in enumerate(node.inputs):
        if index in moved:
            sources.append(plan.read(name))
            given.append(sources[-1].positions() + start)
            start += sources[-1].buffer.size
        else:
            given.append(plan.array(name, "element positions that are") if name else None)
    operator = OPERATORS[node.operator]
    given += [None] * (sum(not parameter.variadic for parameter in operator.inputs) - len(given))
    if node.operator == "Pad":
        given[2] = np.array(FILL)
    try:
        picked = operator.reference(*given, **operator.complete(node.attributes))
    except (ValueError, IndexError, TypeError) as error:  # for attributes and constants that no rule checks
        raise QfmtError(f"cannot be computed: {first_line(error)}") from None
    results = list(picked) if isinstance(picked, tuple | list) else [picked]
    for name, picks in zip(node.outputs, results, strict=False):
        if name:
            if (picks == FILL).any():
                sources.append(_fill(plan, node, picks))
            _put(plan, node, name, sources, np.where(picks == FILL, start, picks).astype(np.int64))


def _check_moves(node: Node) -> None:
    """QfmtError for an operator that does not only move elements here."""
    if node.operator == "Resize" and not is_nearest(node.attributes):
        raise QfmtError("interpolates, which needs floats")
    if node.rule:
        raise QfmtError("has inputs and outputs with different quantization")


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


def _put(plan: Plan, node: Node, name: str, sources: Sequence[View], picks: Array) -> None:
    """Place an output: at its elements if they are contiguous, else as copies."""
    first, rank = sources[0], picks.ndim
    likely = first.order if rank == len(first.shape) else plain(rank)
    if len(sources) == 1 and picks.size:
        for order in dict.fromkeys((likely, plain(rank))):
            flat = picks.transpose(order).reshape(-1)
            if np.array_equal(flat, np.arange(flat.size) + flat[0]):
                plan.same(name, View(first.buffer, picks.shape, order, int(flat[0])))
                return
    copy(plan, f"{node.operator}: {comment(name)}", sources, picks, plan.result(name, likely))
