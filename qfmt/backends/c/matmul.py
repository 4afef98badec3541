"""Products of two matrices that are both computed, as in attention: both are packed, then multiplied row by row."""

from __future__ import annotations

from math import prod

import numpy as np

from ...errors import QfmtError
from ...model import INT32, Node
from .kernels import kernel
from .loops import indented
from .plan import Plan
from .products import NO_TERMS, ROWS, constant_weights, finished, rows_of, target_of, title_of, unit_of
from .views import Parameter, View, plain

PLACE_BYTES = 32
"""Bytes of memory for the place of a matrix."""


def matmul(plan: Plan, node: Node) -> None:
    """A · B over the last two dimensions; the leading ones broadcast."""
    right = plan.value(node.inputs[1])
    if right.array is not None and right.array.ndim == 2:
        rows_of(plan, node, constant_weights(plan, node).T)
        return
    if node.rule != "exact":
        raise QfmtError(f"computes with the rule `{node.rule or 'none'}` from two inputs")
    a, b = (plan.value(name) for name in node.inputs[:2])
    for each in (a, b):
        if each.dtype not in ("int8", "uint8"):
            raise QfmtError(f"multiplies {each.dtype}, but C supports int8 and uint8")
    if not a.shape[-1]:
        raise QfmtError(NO_TERMS)
    if a.shape[-1] * a.farthest * b.farthest > INT32:
        raise QfmtError("sums products to a result that may exceed int32")
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    other = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    lead = np.broadcast_shapes(left[:-2], other[:-2])
    rows, length, columns = left[-2], left[-1], other[-1]
    unit = unit_of(plan, length)
    padded = -(-length // unit) * unit
    full = -(-columns // ROWS) * ROWS
    if full * padded > INT32:
        raise QfmtError("multiplies a matrix too large for int32")
    plan.network.budget.allocate(PLACE_BYTES * prod(lead))
    views = [View(view.buffer, shape, plain(len(shape)), view.offset)
             for view, shape in ((plan.read(name, plain(len(plan.value(name).shape))), shape)
                                 for name, shape in zip(node.inputs, (left, other), strict=False))]  # fmt: skip
    starts = [
        np.broadcast_to(np.arange(prod(view.shape[:-2])).reshape(view.shape[:-2]), lead).reshape(-1) for view in views
    ]
    firsts = [
        plan.constant((each * prod(view.shape[-2:])).astype(np.int32), "places")
        for each, view in zip(starts, views, strict=True)
    ]
    zeros = plan.constant(np.zeros(full, np.int32), "zeros")
    target, finish = target_of(plan, node, plain(len(plan.value(node.outputs[0]).shape)), columns)
    pack_a, pack_b = (kernel(plan, "pack", X=each.dtype, D="int16") for each in (a, b))
    dot = kernel(plan, "dot", X="int16", W="int16", UNIT=str(unit))
    at = f"y + (m * {rows} + position + r) * {columns}"
    body = [
        f"for (int32_t m = 0; m < {prod(lead)}; m++) {{",
        f"    for (int32_t o = 0; o < {columns}; o++)",
        f"        {pack_b}(x1 + {firsts[1]}[m] + o, {columns}, {b.zero_point}, {length}, {padded},",
        f"            columns + o * {padded});",
        f"    for (int32_t o = {columns}; o < {full}; o++)",
        f"        {pack_b}(x1, 1, 0, 0, {padded}, columns + o * {padded});",
        f"    for (int32_t position = 0; position < {rows}; position += {ROWS}) {{",
        f"        const int32_t count = {rows} - position < {ROWS} ? {rows} - position : {ROWS};",
        "        for (int32_t r = 0; r < count; r++)",
        f"            {pack_a}(x0 + {firsts[0]}[m] + (position + r) * {length}, 1, {a.zero_point}, {length}, {padded},",
        f"                rows + r * {padded});",
        f"        {dot}(rows, count, columns, {zeros}, {padded // unit}, {full}, sums, {full});",
        "        for (int32_t r = 0; r < count; r++) {",
        *indented(finished(plan, finish, f"sums + r * {full}", at, columns), 3),
        "        }",
        "    }",
        "}",
    ]
    given = [Parameter(f"x{i}", view) for i, view in enumerate(views)]
    what = f"{rows} by {length} times {length} by {columns}"
    sizes = (("int32", ROWS * full, "sums"), ("int16", ROWS * padded, "rows"), ("int16", full * padded, "columns"))
    plan.step(title_of(node, finish, what), [*given, Parameter("y", target, True)], body, sizes)
