"""The pass over a graph: each node is lowered, kept, or reported as one without an integer form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ...arithmetic import EXACT_IN_FLOAT32, MEAN, QUANTIZE, REQUANTIZE, dequantize
from ...budget import Budget
from ...errors import BudgetError, NoIntegerFormError
from ...forms import MULTIPLY_ADD_DIVIDE
from ...interpreter import check_versions, execute
from ...model import DTYPES, INT32, Graph, Model, Node, Tensor
from ...notation import in_shell
from ...ops import OPERATORS, Operand, Trait, has, known, only_moves
from ...ops.geometry import UncountedError, mean_sizes
from ...ops.registry import SUM_RULES
from ...progress import counted
from ..edits import only_read, without_unread
from ..likely_shapes import shape_options
from .boundary import distinct_outputs, is_input, last_integers, move_integers, output, take_input, with_integer_fill
from .context import Context, NoForm
from .elements import by_element, regridded, tabled
from .forms import Form
from .means import mean
from .products import product
from .regions import SEVERAL, integers, is_by_element, is_move
from .requantizing import Sums, requantized
from .resizing import by_sizes

Reasons: TypeAlias = "dict[str, dict[str, None]]"
"""Why nodes have no integer form → their titles, in order."""

RECURRENT = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")


def lowered(model: Model, form: Form, budget: Budget) -> Graph:
    """The integer-only graph. Raises NoIntegerFormError with every node that has no integer form."""
    check_versions(model)
    with np.errstate(all="ignore"):
        return _lowered(model, Context(model, form, budget))


def _lowered(model: Model, context: Context) -> Graph:
    reasons: Reasons = {}
    failed: list[Node] = []
    waiting: list[Node] = []
    unknown_shape = False
    needed = {name for node in without_unread(model.nodes, model.graph.outputs) for name in node.outputs}
    for node in counted(model.nodes, "", len(model.nodes), "nodes"):
        if not needed.intersection(node.outputs):
            continue
        if node.operator.endswith(RECURRENT):
            failed.append(node)
            _note(reasons, "computes a recurrence in floating point", node)
        if all(map(context.is_real, node.outputs)):  # the final readers of floats look for the integers behind them
            waiting.append(node)
            move_integers(node, context)
            continue
        context.budget.visit(node, context.tensors)
        try:
            _lower(node, context)
        except NoForm as error:
            failed.append(error.node or node)
            _note(reasons, error.what, failed[-1])
            unknown_shape |= error.unknown_shape
        except BudgetError:
            if not reasons:
                raise
            break  # the nodes without an integer form that are known say more
    outputs = [output(name, context) for name in model.graph.outputs]
    for name in filter(context.is_real, outputs):
        if name in context.producer:
            failed.append(context.producer[name])
            _note(reasons, "outputs floats", failed[-1])
        else:
            what = "a constant" if context.tensors[name].is_constant else "an input"
            reasons.setdefault(f"is a float output, and {what}", {})[name] = None
    if reasons:
        for node in filter(_is_obstacle, waiting):  # the pass names the last one before some integers
            failed.append(node)
            _note(reasons, SEVERAL, node)
        ends = last_integers(context, model.graph, failed)
        raise NoIntegerFormError(
            {what: [*nodes] for what, nodes in reasons.items()}, hint=_hint(model, unknown_shape, ends)
        )
    inputs = [name for name in model.graph.inputs if not context.is_real(name)] + context.taken
    order: dict[str | None, int] = {name: place for place, name in enumerate(model.graph.inputs)}
    inputs.sort(key=lambda name: order[context.taken_from.get(name, name)])
    outputs = distinct_outputs(model.graph.outputs, outputs, context)
    nodes = without_unread(context.nodes, outputs)
    graph = replace(model.graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=nodes)
    return only_read(replace(graph, tensors=context.tensors))


def _note(reasons: Reasons, what: str, node: Node) -> None:
    reasons.setdefault(what, {})[node.title] = None


def is_real(model: Model) -> bool:
    """Whether nothing in a model is quantized, and no node computes with integers."""
    nodes = any(node.operator == "qfmt.RequantShift" or node.rule for node in model.nodes)
    return not nodes and all(tensor.quantization is None for tensor in model.tensors.values())


def needs_sizes(model: Model, budget: Budget) -> bool:
    """Whether a mean is computed over an unknown number of elements."""
    means = (node for node in model.nodes if has(node, Trait.MEAN) and node.rule)
    return any(_is_open(node, model.tensors, budget) for node in means)


def _is_open(node: Node, tensors: Mapping[str, Tensor], budget: Budget) -> bool:
    try:
        mean_sizes(node, tensors, budget)
    except UncountedError as error:
        return error.is_open
    return False


def _hint(model: Model, unknown_shape: bool, ends: Sequence[str]) -> str:
    quantized = {node.inputs[0] for node in model.nodes if node.operator == "QuantizeLinear"}
    has_integers = any(node.operator == "qfmt.RequantShift" for node in model.nodes)
    for name in model.graph.inputs if has_integers else ():
        tensor = model.tensors[name]
        if tensor.quantization is None and DTYPES[tensor.dtype].kind == "f" and name not in quantized:
            stated = in_shell("--input-quantization", f"{name}=1,0,int8")
            return f"if an input holds integers, declare it when you convert: {stated}"
    if not unknown_shape and ends:
        return f"end the network before these nodes: {' '.join(in_shell('--end-at', name) for name in ends)}"
    if not unknown_shape:
        return "compute them outside the network, before or after its integer-only part"
    noun = "input" if len(model.graph.inputs) == 1 else "inputs"
    options = shape_options(model)
    return f"state the sizes of the {noun}, as in `{options}`" if options else f"state the sizes of the {noun}"


def _is_obstacle(node: Node) -> bool:
    """Whether float outputs of a node cannot be part of an elementwise function."""
    fits = is_move(node) or is_by_element(node)  # DequantizeLinear is a function of one element
    return not fits and not node.operator.endswith(RECURRENT)


def _lower(node: Node, context: Context) -> None:
    operator = known(node)
    if operator is None:
        raise NoForm("is not known")
    given = [name for name in node.inputs if name]
    quantized = [context.tensors[name].quantization is not None for name in given]
    if node.operator == "QuantizeLinear" and is_input(node.inputs[0], context):
        take_input(node, context)
    elif node.rule in SUM_RULES:
        context.put(node)
    elif operator.takes_integers or node.rule == MULTIPLY_ADD_DIVIDE:
        _keep_integers(node, context)
    elif has(node, Trait.PRODUCT) and node.rule in REQUANTIZE:
        _put_sums(product(node, context), node, context)
    elif has(node, Trait.MEAN) and node.rule in {**MEAN, **QUANTIZE}:
        _put_sums(mean(node, context), node, context)
    elif node.rule and operator.selects is not None and (chosen := node.inputs[operator.selects(node.attributes)]):
        _on_one_grid(node, chosen, context)
    elif _moves(node, context):
        context.put(by_sizes(with_integer_fill(node, context), context))
    elif node.rule or node.operator == "Clip":
        by_element(node, context)
    elif node.operator in ("ArgMax", "ArgMin"):
        _position(node, context)
    elif not any(map(context.is_real, (*given, *node.outputs))) and (has(node, Trait.SIZES) or not any(quantized)):
        context.put(node)
    else:
        raise NoForm("reads floats")


def _moves(node: Node, context: Context) -> bool:
    """Whether a node only moves integers, or clamps them at the zero point."""
    if only_moves(node, context.tensors):
        return True
    if not has(node, Trait.ANY_MOVE) or node.operator == "Clip":
        return False
    return not any(map(context.is_computed, node.inputs))


def _keep_integers(node: Node, context: Context) -> None:
    """A node that computes on integers; its float constants become integers."""
    inputs = list(node.inputs)
    for place, name in enumerate(inputs):
        tensor = context.tensors[name] if name else None
        if tensor is None or not context.is_real(name):
            continue
        if not tensor.is_constant:
            raise NoForm(f"reads floats, {name!r}")
        values = tensor.array.astype(np.float64)
        if not (np.abs(values) < 2.0**53).all() or not (values == np.rint(values)).all():
            raise NoForm(f"has a constant {name!r} that is not an integer")
        narrow = np.abs(values).max(initial=0) <= INT32
        if name not in context.made_whole:
            array = values.astype(np.int32 if narrow else np.int64)
            context.made_whole[name] = context.constant(f"{name}.integers", array)
        inputs[place] = context.made_whole[name]
    if context.is_real(node.outputs[0]):
        raise NoForm("outputs floats")
    context.put(replace(node, inputs=tuple(inputs)))


def _position(node: Node, context: Context) -> None:
    """The largest integer has the index of the largest real value: a Table outputs integers without a quantization."""
    source = context.producer.get(node.inputs[0])
    dequantized = source is not None and source.operator == "DequantizeLinear"
    name = source.inputs[0] if source is not None and dequantized else node.inputs[0]
    x = context.tensors[name]
    if context.grid(x).is_per_channel:
        raise NoForm("has an input that is quantized per channel")
    real = dequantize(np.unique(integers(x)).astype(context.kind(x)), context.grid(x))
    if not (np.diff(real) > 0).all():
        raise NoForm("has an input where different integers dequantize to equal float32 values")
    plain = context.computed(x, context.free(f"{name}.integers"), x.dtype, None)
    tabled(name, integers(x).astype(context.kind(x)), plain, None, node, context)
    context.put(replace(node, inputs=(plain.name,)))


def _put_sums(sums: Sums, node: Node, context: Context) -> None:
    y = context.tensors[node.outputs[0]]
    if _are_the_output(sums, y, context):
        context.put(replace(sums.node, outputs=(y.name,)))
    else:
        requantized(sums, y.name, node, context)


def _are_the_output(sums: Sums, y: Tensor, context: Context) -> bool:
    """Whether the stated rule changes nothing: one unit, and float32 represents every sum."""
    grid = context.grid(y)
    if y.dtype != "int32" or any(grid.zero_point) or not sums.whole or sums.evaluate is None:
        return False
    low, high = int(sums.low.min()), int(sums.high.max())
    if max(-low, high) > EXACT_IN_FLOAT32 or not grid.quant_min <= low <= high <= grid.quant_max:
        return False
    if not (sums.multiplier == 1).all() or grid.scale.numbers() != (1.0,):
        return False
    count = len(sums.low)
    tried = np.stack([sums.low, sums.high, (sums.low + sums.high) >> 1], axis=1)
    return bool((sums.evaluate(tried, slice(0, count)) == tried).all())


def _on_one_grid(node: Node, chosen: Sequence[str], context: Context) -> None:
    """The inputs that are moved are first converted to the grid of the output, by tables; then the node rounds nothing.

    A rule of interpolation only clamps here, as every quantize rule does between equal grids.
    """
    y, entry = context.tensors[node.outputs[0]], OPERATORS["Concat"]
    if context.grid(y).is_per_channel:
        raise NoForm("has an output that is quantized per channel")
    rule = node.rule if node.rule in QUANTIZE else "divide"
    rounding = Node(entry.name, ("",), node.outputs, {"axis": 0}, node.name, entry.version, rule)
    found = {}
    for name in chosen:
        x = context.tensors[name]
        grid = context.grid(x)
        if grid.is_per_channel:
            raise NoForm("has an input that is quantized per channel")
        values = integers(x)
        given = Operand(values.astype(context.kind(x)), grid)
        (moved,) = execute(rounding, [given], [replace(y, shape=(len(values),))])
        if x.dtype == y.dtype and (moved == values).all() and grid.same_grid(y.quantization):
            found[name] = name
        elif x.is_constant:
            (moved,) = execute(rounding, [Operand(x.array, grid)], [replace(y, shape=x.shape)])
            found[name] = context.free(f"{name}.on_grid")
            context.add(Tensor.constant(found[name], moved, y.quantization, dtype=y.dtype))
        else:
            found[name] = regridded(name, y, moved, node, context)
    inputs = tuple(found.get(name, name) for name in node.inputs)
    context.put(by_sizes(replace(node, inputs=inputs, rule=""), context))
