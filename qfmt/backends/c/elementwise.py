"""Elementwise operators: tables, weighted sums, products, clamps, and standalone requantization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ...errors import QfmtError
from ...interpreter import execute
from ...model import DTYPES, INT32, Node, numpy_dtype
from ...ops import Operand, Trait, has
from .finish import Finish, finish_of, follower
from .loops import Dimension, Walk, indented, merged, nest, through
from .names import comment
from .plan import Plan
from .text import literal
from .views import Parameter, View, plain

TOGETHER = 256
"""Sums that are requantized together: they stay in the cache, and in registers where there are many."""


def weighted_sum(plan: Plan, node: Node) -> None:
    """Σ weights · q."""
    factors = node.ints("weights")
    reach = low = high = 0
    for factor, value in zip(factors, map(plan.value, node.inputs), strict=True):
        kind = np.iinfo(value.dtype)
        reach += abs(factor) * max(int(kind.max), -int(kind.min))
        ends = [factor * end for end in value.reach]
        low, high = low + min(ends), high + max(ends)
    if low < -INT32 - 1 or high > INT32 or reach >= 1 << 63:
        raise QfmtError("computes sums that may exceed int32")
    wide = reach > INT32  # a partial sum may exceed int32, though the sum does not
    terms = [f"INT{64 if wide else 32}_C({factor}) * {{}}" for factor in factors]
    _accumulate(plan, node, terms, " + ", wide)


def product(plan: Plan, node: Node) -> None:
    """(qa - za) · (qb - zb)"""
    if node.rule != "exact":
        raise QfmtError(f"computes with the rule `{node.rule}`, which needs floats")
    points = [plan.value(name).zero_point for name in node.inputs]
    if prod(plan.value(name).farthest for name in node.inputs) > INT32:
        raise QfmtError("computes products that may exceed int32")
    _accumulate(plan, node, [f"((int32_t){{}} - {point})" for point in points], " * ")


def _accumulate(plan: Plan, node: Node, terms: Sequence[str], joint: str, wide: bool = False) -> None:
    """Sums of one element of each input; requantized immediately if nothing else reads them."""
    name = node.outputs[0]
    order = _order(plan, node.inputs, plan.value(name).shape)
    finish = follower(plan, name)
    if finish is not None and finish.axis not in (None, *order[-1:]):
        finish = None  # its channels are not the fastest dimension
    if finish is not None:
        plan.fused.add(finish.node.outputs[0])
    target = plan.result(finish.y.name if finish else name, order)
    operands = _operands(plan, node.inputs, order, target)

    def expression(at: dict[str, str]) -> str:
        text = joint.join(term.format(f"x{i}[{at[f'x{i}']}]") for i, term in enumerate(terms))
        return f"(int32_t)({text})" if wide else text

    if finish is None:
        _each(plan, node, operands, target, expression)
        return
    walks = _walks(operands, target)
    sizes, steps = _merged(target.physical, walks, keep_last=finish.axis is not None)
    run = sizes[-1] if sizes else 1
    part = run if finish.axis is not None else min(run, TOGETHER)
    body = _in_rows(plan, sizes, steps, walks, part, expression, finish)
    title = f"{node.operator}: {comment(name)}, then {finish.node.operator}: {comment(finish.y.name)}"
    plan.step(title, _parameters(operands, target), body, [("int32", part, "sums")])


def _merged(shape: Sequence[int], walks: Sequence[Walk], keep_last: bool) -> tuple[list[int], list[list[Dimension]]]:
    """Like `merged`, but the last dimension can be kept separate."""
    if not keep_last:
        return merged(shape, walks)
    sizes, steps = merged(shape[:-1], [Walk(w.name, w.start, list(w.dimensions or ())[:-1]) for w in walks])
    return [*sizes, shape[-1]], [[*each, (w.dimensions or ())[-1]] for w, each in zip(walks, steps, strict=True)]


def _in_rows(
    plan: Plan,
    sizes: Sequence[int],
    steps: Sequence[Sequence[Dimension]],
    walks: Sequence[Walk],
    part: int,
    expression: Callable[[dict[str, str]], str],
    finish: Finish,
) -> list[str]:
    """Loops over rows of the last dimension, `part` sums of it at a time."""
    run = sizes[-1] if sizes else 1
    outer = [
        Walk(walk.name, walk.start, list(lines[:-1]) if sizes else []) for walk, lines in zip(walks, steps, strict=True)
    ]
    inner = {walk.name: (lines[-1].step if sizes else 0) for walk, lines in zip(walks, steps, strict=True)}

    def body(at: Any) -> list[str]:
        begin = "r" if part < run else "0"
        places = {name: _plus(at[name], begin, inner[name]) for name in at}
        count = str(part)
        lines = []
        if run % part:
            lines.append(f"const int32_t n = {run} - r < {part} ? {run} - r : {part};")
            count = "n"
        each = {name: _plus(places[name], "i", inner[name]) for name in places}
        lines += [f"for (int32_t i = 0; i < {count}; i++)", f"    sums[i] = {expression(each)};"]
        lines += finish.call("sums", f"y + {places['y']}" if places["y"] != "0" else "y", count)
        if part < run:
            return [f"for (int32_t r = 0; r < {run}; r += {part}) {{", *indented(lines), "}"]
        return lines

    return nest(plan, sizes[:-1], outer, body, "jklmopq")


def _plus(place: str, counter: str, step: int) -> str:
    word = "0" if step == 0 or counter == "0" else counter if step == 1 else f"{counter} * {step}"
    words = [each for each in (place, word) if each != "0"]
    return " + ".join(words) or "0"


def _order(plan: Plan, names: Sequence[str], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The layout of the first input that has all dimensions of the output."""
    for name in names:
        value = plan.value(name)
        if value.array is None and value.shape == shape:
            return plan.order(name)
    for name in names:
        if plan.value(name).array is None and len(plan.value(name).shape) == len(shape):
            return plan.order(name)
    return plain(len(shape))


def _operands(plan: Plan, names: Sequence[str], order: tuple[int, ...], target: View) -> dict[str, View]:
    """The inputs as x0, x1, …; those of the same rank have the same layout."""
    orders = [order if len(plan.value(name).shape) == len(target.shape) else None for name in names]
    return {f"x{i}": plan.read(name, own) for i, (name, own) in enumerate(zip(names, orders, strict=True))}


def _broadcast(view: View, target: View, name: str) -> Walk:
    """The steps through a view along the dimensions of `target` in memory order."""
    return through(view, target.shape, target.order, name)


def _walks(operands: Mapping[str, View], target: View) -> list[Walk]:
    return [_broadcast(view, target, name) for name, view in [*operands.items(), ("y", target)]]


def _parameters(operands: Mapping[str, View], target: View) -> list[Parameter]:
    given = [Parameter(name, view.whole) for name, view in operands.items()]
    return [*given, Parameter("y", target.whole, written=True)]


def _each(
    plan: Plan, node: Node, operands: Mapping[str, View], target: View, expression: Callable[[Any], str], *more: Walk
) -> None:
    """A step that computes each element of the output from one of each operand."""
    walks = [*_walks(operands, target), *more]
    body = nest(plan, target.physical, walks, lambda at: [f"y[{at['y']}] = {expression(at)};"])
    plan.step(f"{node.operator}: {comment(node.outputs[0])}", _parameters(operands, target), body)


def requantize(plan: Plan, node: Node) -> None:
    """A standalone requantization, which does not follow an accumulator."""
    if node.outputs[0] in plan.fused:
        return
    finish = finish_of(plan, node)
    source = plan.read(node.inputs[0])
    target = plan.result(node.outputs[0], source.order)
    title = f"{node.operator}: {comment(node.outputs[0])}"
    kind = source.dtype
    if finish.axis is None:
        body = finish.call("x", "y", source.size, source=kind)
    else:
        place = source.order.index(finish.axis)
        outer = int(np.prod(source.physical[:place], dtype=np.int64))
        inner = int(np.prod(source.physical[place + 1 :], dtype=np.int64))
        count = finish.channels
        if inner == 1:
            at = f"r * {count}"
            lines = finish.call(f"x + {at}", f"y + {at}", count, source=kind)
            body = [f"for (int32_t r = 0; r < {outer}; r++) {{", *indented(lines), "}"]
        else:
            at = f"(r * {count} + c) * {inner}"
            lines = finish.call_one(f"x + {at}", f"y + {at}", inner, "c", source=kind)
            body = [f"for (int32_t r = 0; r < {outer}; r++)", f"    for (int32_t c = 0; c < {count}; c++) {{"]
            body += [*indented(lines, 2), "    }"]
    plan.step(title, [Parameter("x", source), Parameter("y", target, written=True)], body)


def table(plan: Plan, node: Node) -> None:
    """y = table[q - least], one table for all channels or one for each."""
    source = plan.read(node.inputs[0])
    target = plan.result(node.outputs[0], source.order)
    array = plan.array(node.inputs[1], "a table that is")
    axis = node.int("axis", -1)
    name = plan.constant(array.astype(target.dtype), f"{node.outputs[0]} table")
    index = _index("x[{}]", source.dtype, array.shape[-1])
    rows = []
    if axis != -1:
        rows = [Walk("row", 0, [Dimension(array.shape[-1] if each == axis else 0) for each in target.order])]
        index = f"{index} + {{row}}"

    def expression(at: Any) -> str:
        return f"{name}[{index.format(at['x'], row=at.get('row', ''))}]"

    _each(plan, node, {"x": source}, target, expression, *rows)


def _index(expression: str, dtype: str, size: int) -> str:
    """The index of an integer of that type in a table of `size` entries; always inside it, for any input."""
    place = f"({expression} + {size // 2})" if dtype.startswith("int") else expression
    return place if size == 256 else f"({place} & {size - 1})"


def pair_table(plan: Plan, node: Node) -> None:
    """y = table[qa - least, qb - least]"""
    name = node.outputs[0]
    order = _order(plan, node.inputs[:2], plan.value(name).shape)
    target = plan.result(name, order)
    operands = _operands(plan, node.inputs[:2], order, target)
    array = plan.array(node.inputs[2], "a table that is")
    entries = plan.constant(array.astype(target.dtype), f"{name} table")
    pairs = zip(operands.items(), array.shape, strict=True)
    indices = [_index(f"{x}[{{{x}}}]", view.dtype, size) for (x, view), size in pairs]
    index = f"{indices[0]} * {array.shape[1]} + {indices[1]}"
    _each(plan, node, operands, target, lambda at: f"{entries}[{index.format(**at)}]")


def unary(plan: Plan, node: Node) -> None:
    """Any operator on one element of at most 8 bits: tabulated here for all values; a clamp is written as a clamp."""
    x, y = plan.value(node.inputs[0]), plan.value(node.outputs[0])
    if any(each.quantization is not None and not each.quantization.is_per_tensor for each in (x, y)):
        raise QfmtError("computes with more than one scale, which no table of one element has")
    tensor = plan.network.model.tensors[node.inputs[0]]
    kind = DTYPES[tensor.dtype if DTYPES[tensor.dtype].bits < 8 else x.dtype]
    wide = kind.bits > 8
    given = np.array([kind.minimum, kind.maximum] if wide else kind.every(), numpy_dtype(tensor.dtype))
    shape = (given.size, *(1,) * max(0, len(x.shape) - 1))
    operands: list[Operand | None] = [Operand(given.reshape(shape), x.quantization)]
    for name in node.inputs[1:]:
        array = plan.array(name, "an input that is") if name else None
        if array is not None and array.size != 1:
            raise QfmtError("has parameters for each channel, which no table of one element has")
        operands.append(None if array is None else Operand(array, plan.value(name).quantization))
    results = execute(node, operands, [plan.network.model.tensors[node.outputs[0]]])[0].reshape(-1).astype(y.dtype)
    low, high = int(results.min()), int(results.max())
    source = plan.read(node.inputs[0])
    if wide and not has(node, Trait.CLAMP):
        raise QfmtError(f"on {tensor.dtype} is neither a clamp nor a table")
    if x.dtype == y.dtype and np.array_equal(np.clip(given.astype(object), low, high), results):
        if (low, high) == (given.min(), given.max()):
            plan.same(node.outputs[0], source)
            return
        least, most = literal(low, x.dtype), literal(high, x.dtype)
        expression = "x[{0}]" if high == given.max() else f"x[{{0}}] > {most} ? {most} : x[{{0}}]"
        expression = expression if low == given.min() else f"x[{{0}}] < {least} ? {least} : {expression}"
    else:
        entries = plan.constant(results, f"{node.outputs[0]} table")
        expression = f"{entries}[{_index('x[{0}]', x.dtype, given.size)}]"
    target = plan.result(node.outputs[0], source.order)
    _each(plan, node, {"x": source}, target, lambda at: expression.format(at["x"]))
