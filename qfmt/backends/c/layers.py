"""Operator → its writer: a function that adds the steps of a node to the plan, or raises QfmtError."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import BudgetError, DestinationError, FormatError, InexpressibleNodesError, QfmtError
from ...model import Node
from ...ops import Trait, has, known
from ...ops.shapes import keeps_shape
from ...progress import counted
from .convolutions import conv, conv_transpose
from .elementwise import pair_table, product, requantize, table, unary, weighted_sum
from .matmul import matmul
from .moves import MOVERS, move
from .plan import Plan
from .pools import pool, reduce
from .products import gemm, linear

Writer = Callable[[Plan, Node], None]

WRITERS: Mapping[str, Writer] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "qfmt.Linear": linear,
    "Gemm": gemm,
    "MatMul": matmul,
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool"), pool),
    "qfmt.Requantize": requantize,
    "qfmt.RequantShift": requantize,
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), reduce),
    "qfmt.WeightedSum": weighted_sum,
    "Mul": product,
    "qfmt.Table": table,
    "qfmt.PairTable": pair_table,
    **dict.fromkeys(MOVERS, move),
}

LOWER = "convert it to integer-only first: `qfmt convert … --integer-only --exact`"
END = "end the network before them (`--end-at`) when you make it integer-only, or use the interpreter in readers/c"


def write_nodes(plan: Plan) -> None:
    """All nodes in order; InexpressibleNodesError names every one that has no form in C, and why."""
    reasons: dict[str, list[str]] = {}
    nodes = plan.network.nodes
    for node in counted(nodes, "generating code", len(nodes), "nodes"):
        if reasons and not all(plan.is_there(name) for name in node.inputs if name):
            continue  # errors of readers of a failed node would be redundant
        try:
            _writer(node)(plan, node)
        except (BudgetError, FormatError):
            raise
        except QfmtError as error:
            reasons.setdefault(f"{node.operator} {error.what}", []).append(node.label)
    if reasons:
        hint = END if plan.network.model.engine == "integer" else LOWER
        raise InexpressibleNodesError(reasons, format="C", hint=hint)
    plan.finish()


def _writer(node: Node) -> Writer:
    if node.operator in WRITERS:
        return WRITERS[node.operator]
    operator = known(node)
    if operator is not None and keeps_shape(operator) and has(node, Trait.ELEMENTWISE):
        return unary
    raise DestinationError("has no form in C")
