"""Lower elementwise functions: to a table, a weighted sum, an exact product, or a table of pairs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...arithmetic import EXACT_IN_FLOAT32
from ...forms import MULTIPLY_ADD_DIVIDE
from ...model import DTYPES, INT32, Node, Tensor
from .context import Context, NoForm, made
from .forms import Form, Requantization
from .lines import Lines
from .pairs import weights
from .regions import Region, evaluate, integers, pair_table, region, table
from .requantizing import PAIRS, Sums, append, best, requantized
from .step_functions import Integers

SMALL = 8


def by_element(node: Node, context: Context) -> None:
    """Append nodes that compute the quantized output of an elementwise node."""
    found = region(node, context)
    if _is_plain_sum(node, context):
        _plain_sum(node, context)
    elif len(found.leaves) == 1 and DTYPES[found.leaves[0].dtype].bits > SMALL:
        _rescaled(node, found, context)
    elif len(found.leaves) == 1:
        name = tabled(found.leaves[0].name, table(found, context), found.output, found.axis, node, context)
        assert name == found.output.name
    elif len(found.leaves) == 2 and found.axis is None:
        _of_two(node, found, context)
    else:
        what = "no" if not found.leaves else f"{len(found.leaves)}" if found.axis is None else "2, and channels of"
        raise NoForm(f"is a function of {what} quantized tensors")


def tabled(source: str, values: Any, output: Tensor, axis: int | None, like: Node, context: Context) -> str:
    """Append a Table of an 8-bit tensor, one for all or one for each channel; the name of the result.

    A table that changes nothing becomes an Identity.
    """
    leaf = context.tensors[source]
    if leaf.dtype == output.dtype and axis is None and _is_identity(leaf, output, values):
        _put("Identity", (source,), output, {}, like, context)
        return output.name
    if axis is not None and len(values) and (values == values[0]).all():
        axis, values = None, values[0]
    name = context.free(f"{output.name}.table")
    context.add(Tensor.constant(name, values, dtype=output.dtype))
    attributes: dict[str, Any] = {"axis": -1 if axis is None else axis}
    _put("qfmt.Table", (source, name), output, attributes, like, context)
    return output.name


def _is_identity(leaf: Tensor, output: Tensor, values: Any) -> bool:
    """Whether a table maps every integer to itself, and the output range contains that of the input."""
    a, b = leaf.quantization, output.quantization
    if a is None or b is None or not a.same_grid(b):
        return False
    return b.quant_min <= a.quant_min <= a.quant_max <= b.quant_max and bool((values == integers(leaf)).all())


def regridded(source: str, like: Tensor, values: Any, node: Node, context: Context) -> str:
    """A tensor on the grid of another, by a Table; each is made only once."""
    key = source, hashlib.sha256(values.tobytes()).digest(), like.dtype
    if key not in context.moved:
        name = context.free(f"{source}.on_grid")
        tensor = context.computed(context.tensors[source], name, like.dtype, like.quantization)
        context.moved[key] = tabled(source, values, tensor, None, node, context)
    return context.moved[key]


def _put(operator: str, inputs: tuple[str, ...], output: Tensor, attributes: Any, like: Node, context: Context) -> None:
    context.put(made(operator, inputs, output.name, attributes, like), [output])


# One input of more than 8 bits


def _rescaled(node: Node, found: Region, context: Context) -> None:
    """A wide tensor on another grid: a monotone function, so thresholds define it."""
    (leaf,), y = found.leaves, found.output
    if node.operator != "QuantizeLinear" or len(found.nodes) > 1:
        raise NoForm(f"reads {leaf.name!r}, of {DTYPES[leaf.dtype].bits} bits: too many for a table")
    grid, target = context.grid(leaf), context.grid(y)
    if max(-grid.quant_min, grid.quant_max) >= INT32:
        raise NoForm(f"reads {leaf.name!r}, whose range is not stated")
    scale = np.array([grid.scale[0] / target.scale[0]])
    low, high = np.array([grid.quant_min]), np.array([grid.quant_max])
    offset = int(grid.zero_point[0])
    sums = Sums(node, 0, low, high, scale, node.rule, None, lambda x, _: evaluate(found, x, context))
    adds = context.form.rule in ("multiply_shift", "thresholds")  # the other forms have no parameter for the zero point
    form = Form("thresholds") if offset and not adds else context.form
    append(best(sums, y, context, form), sums, leaf.name, y, node, context)


# Two inputs


def _is_plain_sum(node: Node, context: Context) -> bool:
    """Whether integers of scale 1 are added, and neither rounded nor clamped."""
    if node.operator not in ("Add", "Sub") or not all(context.tensors[name].quantization for name in node.inputs):
        return False
    tensors = [context.tensors[name] for name in (*node.inputs, *node.outputs)]
    grids = [context.grid(tensor) for tensor in tensors]
    if (
        any(grid.scale.numbers() != (1.0,) or any(grid.zero_point) for grid in grids)
        or DTYPES[tensors[-1].dtype].bits <= SMALL
    ):
        return False
    low, high = _sum_range(node, context)
    within = grids[-1].quant_min <= low <= high <= grids[-1].quant_max
    return within and max(-low, high) <= EXACT_IN_FLOAT32


def _sum_range(node: Node, context: Context) -> tuple[int, int]:
    (a, b), sign = (
        (_bounds(context.tensors[name], context) for name in node.inputs),
        -1 if node.operator == "Sub" else 1,
    )
    ends = sorted(sign * bound for bound in b)
    return a[0] + ends[0], a[1] + ends[1]


def _bounds(tensor: Tensor, context: Context) -> tuple[int, int]:
    """The least and the greatest integer that a tensor may contain."""
    if tensor.is_constant and tensor.array.size:
        return int(tensor.array.min()), int(tensor.array.max())
    grid = context.grid(tensor)
    return grid.quant_min, grid.quant_max


def _plain_sum(node: Node, context: Context) -> None:
    y = context.tensors[node.outputs[0]]
    grid = context.grid(y)
    low, high = _sum_range(node, context)
    output = replace(y, dtype="int32", quantization=replace(grid, quant_min=min(low, 0), quant_max=max(high, 0)))
    _put("qfmt.WeightedSum", node.inputs, output, {"weights": (1, -1 if node.operator == "Sub" else 1)}, node, context)


def _of_two(node: Node, found: Region, context: Context) -> None:
    a, b = found.leaves
    whole = pair_table(found, context)
    first, second = (_values(leaf, context) for leaf in (a, b))
    inner = whole[np.ix_(*(_places(leaf, context) for leaf in (a, b)))].astype(np.int64)
    if node.operator == "Mul" and len(found.nodes) == 1 and _as_product(node, found, first, second, inner, context):
        return
    if not _as_sum(node, found, first, second, inner, context):
        name = context.free(f"{found.output.name}.table")
        context.add(Tensor.constant(name, whole, dtype=found.output.dtype))
        _put("qfmt.PairTable", (a.name, b.name, name), found.output, {}, node, context)


def _values(leaf: Tensor, context: Context) -> Integers:
    grid = context.grid(leaf)
    return np.arange(grid.quant_min, grid.quant_max + 1, dtype=np.int64)


def _places(leaf: Tensor, context: Context) -> Integers:
    minimum = DTYPES[leaf.dtype].minimum
    assert minimum is not None
    return _values(leaf, context) - int(minimum)


def _as_product(
    node: Node, found: Region, first: Integers, second: Integers, inner: Integers, context: Context
) -> bool:
    """Lower the output if it is a function of the product of the centred integers; whether it is one."""
    grids = [context.grid(context.tensors[name]) for name in node.inputs]
    target = context.grid(found.output)
    centred = [values - int(grid.zero_point[0]) for values, grid in zip((first, second), grids, strict=True)]
    products = np.multiply.outer(*centred).ravel()
    scale = grids[0].scale[0] * grids[1].scale[0] / target.scale[0]
    name = context.free(f"{found.output.name}.sums")
    adding = replace(node, outputs=(name,), rule="exact")
    sums = _paired(adding, products, inner.ravel(), scale, node)
    try:
        requantized(sums, found.output.name, node, context)
    except NoForm:
        return False
    return True


def _as_sum(node: Node, found: Region, first: Integers, second: Integers, inner: Integers, context: Context) -> bool:
    """Lower the output if it is a function of a weighted sum; whether it is one. The first weights with an equal line
    are used. If there are none, thresholds: a sum may be followed by any monotone function, far from any line."""
    rule = context.form.rule if context.form.rule in ("thresholds", MULTIPLY_ADD_DIVIDE) else "multiply_shift"
    form = Form(rule, context.form.bits, exact=True)
    context.budget.spend(inner.size // PAIRS)
    like: Sums | None = None
    name = context.free(f"{found.output.name}.sums")
    for pair in weights(inner):
        sums = _weighted(node, found, pair, np.add.outer(first * pair[0], second * pair[1]), inner, name)
        try:
            compared = best(sums, found.output, context, form)
        except NoForm:
            continue
        like = like or sums
        if rule != "thresholds" and (compared.row >= 0).any():  # no line is equal
            continue
        if context.form.rule not in FIXED:
            break
        if fixed := _in_form(sums, compared.lines, found, context):
            sums, compared = fixed
            break
    else:
        if like is None:
            return False
        sums, compared = like, best(like, found.output, context, Form("thresholds"))
    context.put(sums.node, [context.computed(found.output, name, "int32", None)])
    append(compared, sums, name, found.output, node, context)
    return True


def _in_form(sums: Sums, lines: Lines, found: Region, context: Context) -> tuple[Sums, Requantization] | None:
    """The same with a constant in the sum, for a form without an addend; None if that is not possible."""
    pair = sums.node.ints("weights")
    reach = sum(abs(weight) << DTYPES[leaf.dtype].bits for weight, leaf in zip(pair, found.leaves, strict=True))
    chosen = weighting(context.form.rule, lines, reach)
    if chosen is None or sums.pairs is None:
        return None
    factor, constant, multiplier = chosen
    values = sums.pairs[0] * factor + constant
    inputs, factors = sums.node.inputs, tuple(weight * factor for weight in pair)
    if constant:
        inputs, factors = (*inputs, _one(found.output, context)), (*factors, constant)
    adding = replace(sums.node, inputs=inputs, attributes={"weights": factors})
    low, high = np.array([values.min()]), np.array([values.max()])
    pairs = values, sums.pairs[1]
    own = replace(sums, node=adding, low=low, high=high, multiplier=np.array([multiplier]), pairs=pairs)
    compared = best(own, found.output, context, context.form._replace(exact=False))
    return None if compared.differs.any() else (own, compared)


def _one(like: Tensor, context: Context) -> str:
    """A constant of one element, 1, which broadcasts to a tensor."""
    name = "one" if like.shape else "one.scalar"
    if name not in context.tensors or not context.tensors[name].is_constant:
        name = context.add(Tensor.constant(context.free(name), np.ones((1,) if like.shape else (), np.int8)))
    return name


def _weighted(node: Node, found: Region, pair: tuple[int, int], values: Integers, inner: Integers, name: str) -> Sums:
    """A weighted sum of the two inputs, and the output for each pair of them."""
    inputs = tuple(leaf.name for leaf in found.leaves)
    adding = made("qfmt.WeightedSum", inputs, name, {"weights": pair}, node)
    return _paired(adding, values.ravel(), inner.ravel(), 0.0, node)


def _paired(adding: Node, values: Integers, outputs: Integers, scale: float, node: Node) -> Sums:
    """Sums that are known pair by pair. A scale of 0: about the growth of the outputs."""
    low, high = np.array([values.min()]), np.array([values.max()])
    if not scale:
        ends = outputs.min(), outputs.max()
        inner = values[(outputs > ends[0]) & (outputs < ends[1])] if ends[1] - ends[0] > 1 else values
        scale = max(float(ends[1] - ends[0]), 1.0) / max(float(np.ptp(inner)) if len(inner) else 1.0, 1.0)
    return Sums(adding, 0, low, high, np.array([scale]), node.rule, None, None, (values, outputs))


FIXED = ("fixed_point_single", "fixed_point_double", "power_of_two")
FINEST = 24


class Weighting(NamedTuple):
    """S' = factor · S + constant, which is multiplied by `multiplier`."""

    factor: int
    constant: int
    multiplier: float


def weighting(rule: str, lines: Lines, reach: int) -> Weighting | None:
    """Factor and constant for a line of one channel, as fine as int32 allows; None if int32 cannot represent the sums.

    Forms without an addend get it in the sum, as one more input: a line (S · m + add) >> s of a sum S is the form
    (S' · m' + 2^(s' - 1)) >> s' of S' = f · S + c. For a power of two f is m; for a multiplier f is a power of two,
    so that c, an integer, represents the addend exactly.

    `reach` is a bound of |S|, for partial sums and all values of the types, too.
    """
    multiplier, shift, add = (int(each[0]) for each in lines)
    half = (1 << shift) >> 1
    if rule == "power_of_two":
        found = Weighting(multiplier, add - half, 2.0**-shift)
        return found if _fits(found, reach) else None
    for power in range(FINEST, -1, -1):
        constant = ((2 * (add - half) << power) + multiplier) // (2 * multiplier)
        found = Weighting(1 << power, constant, multiplier / (1 << shift) / (1 << power))
        if _fits(found, reach):
            return found
    return None


def _fits(found: Weighting, reach: int) -> bool:
    return found.factor * reach + abs(found.constant) < INT32
