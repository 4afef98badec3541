"""Recompute what an integer-only file states about its sums, from its constants and the ranges of its inputs.

This does not use the code that lowered it. The stated ranges of tensors are proven one after the other: those of sums
here, those of all others by the clamp of the node that computes them. Inputs of the graph must be in their ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..budget import Budget
from ..errors import BudgetError, QfmtError, ValidityError, Violation
from ..model import DTYPES, Model, Node, Proof, Tensor
from ..ops import Trait, has, known
from ..ops.accumulation import columns, inner_size, range_met, reach_of_sums
from ..ops.geometry import common_multiple, mean_sizes
from ..ops.rescaling import channels_of
from ..progress import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

Tensors = Mapping[str, Tensor]


class Range(NamedTuple):
    """The least and the greatest sum for each channel, which run along `axis`; and of any partial sum."""

    low: Integers
    high: Integers
    least_part: int
    most_part: int
    axis: int | None = None


@dataclass(slots=True)
class Proofs:
    """`violations`: P1 a sum may exceed int32, P2 a tensor of sums states too narrow a range, P3 a requantization too
    small a reach. `sums`, `reaches`: how many nodes satisfy P1, and P3. `unknown`: node → why the file does not
    determine it.
    """

    violations: list[Violation] = field(default_factory=list)
    sums: int = 0
    reaches: int = 0
    unknown: dict[str, str] = field(default_factory=dict)


def proofs(model: Model) -> Proofs:
    """Whether the sums of all nodes stay in int32, and within the ranges that the file states. For valid models."""
    budget = Budget.of(model, "checking the sums of a network of")
    found, tensors, ranges = Proofs(), model.graph.tensors, dict[str, Range]()
    for index, node in enumerate(counted(model.nodes, "bounding sums", len(model.nodes), "nodes")):
        where = f"node {index} ({node.operator} → {', '.join(node.outputs)})"
        budget.visit(node, tensors)
        try:
            if (add := _adder(node)) is not None:
                ranges[node.outputs[0]] = reached = add(node, tensors, budget)
                broken = _beyond(reached, tensors[node.outputs[0]], where)
                found.sums += not any(each.rule == "P1" for each in broken)
            elif node.proof is not None and has(node, Trait.REQUANTIZE):
                broken = _reach(node, node.proof, tensors, ranges.get(node.inputs[0]), where)
                found.reaches += not broken
            else:
                continue
        except BudgetError:
            raise
        except QfmtError as error:
            found.unknown[where] = error.what
        else:
            found.violations += broken
    return found


def require_proven(model: Model, rules: Container[str] = ("P1", "P2")) -> None:
    """ValidityError for sums that may break one of the rules: a program that assumes them would compute others."""
    if broken := [each for each in proofs(model).violations if each.rule in rules]:
        raise ValidityError(broken)


def with_ranges_of_sums(model: Model, name: str) -> Model:
    """The model in which sums with a constant state the range that its elements give; all of int32 if that is not
    known."""
    budget, tensors = Budget.of(model, "bounding the sums of a network of"), dict(model.graph.tensors)
    for node in model.graph.readers().get(name, ()):
        add, grid = _adder(node), tensors[node.outputs[0]].quantization
        if add is None or grid is None:
            continue
        budget.visit(node, tensors)
        whole = np.array((DTYPES["int32"].minimum, DTYPES["int32"].maximum), np.int64)
        try:
            reached = add(node, tensors, budget)
            low, high = np.clip((reached.low.min(), reached.high.max()), *whole) if reached.low.size else whole
        except BudgetError:
            raise
        except QfmtError:
            low, high = whole
        grid = replace(grid, quant_min=int(low), quant_max=int(high))
        tensors[node.outputs[0]] = replace(tensors[node.outputs[0]], quantization=grid)
    return model.replace(graph=replace(model.graph, tensors=tensors))


def _adder(node: Node) -> Callable[[Node, Tensors, Budget], Range] | None:
    operator = known(node)
    if operator is not None and operator.name == "qfmt.WeightedSum":
        return _weighted
    if operator is None or operator.sums is None or node.rule not in operator.sum_rules:
        return None
    if node.operator == "Mul":
        return _product
    return _sums if operator.accumulates else _mean


# Sums of nodes


def limits(tensor: Tensor) -> tuple[int, int]:
    """The least and the greatest integer of a tensor, or a bound of them."""
    kind, grid = DTYPES[tensor.dtype], tensor.quantization
    low, high = int(kind.minimum), int(kind.maximum)
    if tensor.is_constant and tensor.array.size:
        return int(tensor.array.min()), int(tensor.array.max())
    if tensor.is_constant and grid is None:  # nothing is summed
        return 0, 0
    return (low, high) if grid is None else (max(low, grid.quant_min), min(high, grid.quant_max))


def _centred(tensor: Tensor) -> tuple[int, int]:
    """The same, less the zero point: a matrix that is computed may have one for each column."""
    points = (0,) if tensor.quantization is None else tensor.quantization.zero_point
    low, high = limits(tensor)
    return low - int(max(points, default=0)), high - int(min(points, default=0))


def _zero_point(tensor: Tensor) -> int:
    return 0 if tensor.quantization is None else int(tensor.quantization.zero_point[0])


def _one(low: int, high: int, parts: tuple[int, int] | None = None) -> Range:
    return Range(np.array([low]), np.array([high]), *(parts or (low, high)))


def _sums(node: Node, tensors: Tensors, budget: Budget) -> Range:
    """Σ v · w + B, v the integers of x less the zero point, or unchanged with `folded`."""
    x, w = (tensors[name] for name in node.inputs[:2])
    if not w.is_constant:
        return _of_two(node, x, w)
    weights = w.array.astype(np.int64)
    if node.rule == "exact" and w.quantization is not None:
        weights = weights - w.quantization.zero_points(weights.shape).astype(np.int64)
    weights = columns(node, weights)
    low, high = limits(x) if node.rule == "folded" else _centred(x)
    low, high = range_met(node, low, high, _zero_point(x) if node.rule == "folded" else 0)
    least, most = _bias(node, tensors, len(weights))
    lowest, highest = reach_of_sums(weights, low, high)
    down, up = reach_of_sums(weights, min(low, 0), max(high, 0))
    parts = int((down + np.minimum(least, 0)).min(initial=0)), int((up + np.maximum(most, 0)).max(initial=0))
    axis = 1 if node.operator.startswith("Conv") else len(tensors[node.outputs[0]].shape or ()) - 1
    return Range(lowest + least, highest + most, *parts, axis if len(weights) > 1 else None)


def _bias(node: Node, tensors: Tensors, count: int) -> tuple[Integers, Integers]:
    """The least and the greatest addend to the sums of each channel; Gemm has one for each row."""
    tensor = tensors[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
    if tensor is None or (tensor.is_constant and not (tensor.array.size and count)):
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    if not tensor.is_constant:
        low, high = limits(tensor)
        return np.full(count, low), np.full(count, high)
    rows = np.broadcast_to(tensor.array.astype(np.int64), (*tensor.array.shape[:-1], count)).reshape(-1, count)
    return rows.min(0), rows.max(0)


def _of_two(node: Node, a: Tensor, b: Tensor) -> Range:
    length = inner_size(a.shape, b.shape)
    if node.operator != "MatMul" or length is None:
        raise QfmtError("the number of its products is not known")
    products = [i * j for i in _centred(a) for j in _centred(b)]
    low, high = length * min(products), length * max(products)
    return _one(low, high, (min(0, low), max(0, high)))


def _product(node: Node, tensors: Tensors, budget: Budget) -> Range:
    a, b = (tensors[name] for name in node.inputs)
    products = [i * j for i in _centred(a) for j in _centred(b)]
    return _one(min(products), max(products))


def _weighted(node: Node, tensors: Tensors, budget: Budget) -> Range:
    """Σ weights · q: parts are added in int64, which the rules of validity guard."""
    weights: Counter[str] = Counter()
    for name, weight in zip(node.inputs, node.ints("weights"), strict=True):
        weights[name] += weight
    ends = [sorted(weight * end for end in limits(tensors[name])) for name, weight in weights.items()]
    return _one(sum(low for low, _ in ends), sum(high for _, high in ends))


def _mean(node: Node, tensors: Tensors, budget: Budget) -> Range:
    multiple = common_multiple(mean_sizes(node, tensors, budget))
    low, high = _centred(tensors[node.inputs[0]])
    if node.attributes.get("count_include_pad"):
        low, high = min(low, 0), max(high, 0)
    return _one(low * multiple, high * multiple, (min(low, 0) * multiple, max(high, 1) * multiple))  # 1: the factors


# What the file states about them


def _beyond(reached: Range, sums: Tensor, where: str) -> list[Violation]:
    found = []
    if not DTYPES["int32"].holds(reached.least_part, reached.most_part):
        what = f"sums may reach {reached.least_part:,} or {reached.most_part:,}, outside int32"
        found.append(Violation("P1", where, what))
    grid = sums.quantization
    if grid is None or not reached.low.size:
        return found
    low, high = int(reached.low.min()), int(reached.high.max())
    if not grid.quant_min <= low <= high <= grid.quant_max:
        stated = f"[{grid.quant_min:,}, {grid.quant_max:,}]"
        found.append(Violation("P2", where, f"sums reach [{low:,}, {high:,}], but {sums.name!r} states {stated}"))
    return found


def _reach(node: Node, proof: Proof, tensors: Tensors, reached: Range | None, where: str) -> list[Violation]:
    x = tensors[node.inputs[0]]
    low, high = np.array(proof.low, np.int64), np.array(proof.high, np.int64)
    channels = len(low)
    # the range of a whole tensor says nothing of one channel
    nothing_stated = reached is None and (x.quantization is None or channels > 1)
    reached = reached or _one(*limits(x))
    own = reached.low, reached.high
    if channels > 1 and own[0].size and (channels, _axis(node, tensors)) != (len(own[0]), reached.axis):
        own = own[0].min(keepdims=True), own[1].max(keepdims=True)
    if not own[0].size:
        return []
    narrow = np.flatnonzero((own[0] < low) | (own[1] > high))
    if not narrow.size:
        return []
    if nothing_stated:
        raise QfmtError(f"the range of {x.name!r} is not stated")
    at = int(narrow[0])
    least, most, stated_low, stated_high = (
        int(np.broadcast_to(each, max(channels, len(own[0])))[at]) for each in (*own, low, high)
    )
    more = f" (and {narrow.size - 1} more)" if narrow.size > 1 else ""
    what = f"sums of channel {at}{more} reach [{least:,}, {most:,}], but [{stated_low:,}, {stated_high:,}] is stated"
    return [Violation("P3", where, what)]


def _axis(node: Node, tensors: Tensors) -> int | None:
    """The dimension that the channels of a requantization run along; None if it is not known, or not one."""
    x, *given = (tensors[name].shape or () for name in node.inputs if name)
    return node.int("axis") if "axis" in node.attributes else channels_of(given, len(x))
