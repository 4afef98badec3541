"""Integer-only networks: exact sums, then one requantization with integers, proven equal to the original or counted.

lower_integer(model)                                   multiply, add, shift: equal wherever possible
lower_integer(model, exact=True)                       thresholds elsewhere: equal everywhere
lower_integer(model, form="fixed_point_double")        as TFLite's kernels round; differences are counted
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...budget import Budget
from ...errors import QfmtError, ValidityError
from ...forms import FORMS, NARROWED, WIDTHS
from ...memory import Memory
from ...model import Dimension, Model
from ...rules import graph_violations, require_sound
from ..edits import subgraph
from ..sizes import limited, with_input_shapes
from .facts import totals
from .forms import Form
from .graph import is_real, lowered, needs_sizes

__all__ = ["FORMS", "WIDTHS", "lower_as", "lower_integer"]

KEY, ASSUMED, LOWERED_FROM, INPUTS = "integer_only", "assumed_sizes", "lowered_from", "quantized_inputs"
EXACT = "exact"

IMAGE = (224, 224)
"""The default sizes of an image of 3 channels, if they are needed and not stated."""

Shapes = Mapping[str, Sequence[Dimension]]


TABLES = 32 << 20
"""Bytes that tables may take in addition: those of functions of two inputs have 64 kB each, also in small networks."""


def lower_integer(
    model: Model,
    *,
    form: str = "multiply_shift",
    bits: int = 32,
    exact: bool = False,
    input_shapes: Shapes | None = None,
    outputs: Sequence[str] = (),
) -> Model:
    """The same network, with nodes that compute with integers only.

    Sums are exact, in int32; a qfmt.Requantize (or qfmt.RequantShift) makes 8-bit integers of them by the rule `form`,
    one of FORMS, with multipliers of `bits` bits at most, one of WIDTHS. Each states on how many of the sums that can
    occur it differs from the rule that the model stated. `exact`: none does; channels for which no parameters of the
    form are equal have thresholds (all channels, if the form is multiply_add_divide). The only exception are means of
    floats, which the stated rule sums in any order: at ties they may be rounded either way, and those are counted.
    QuantizeLinear of inputs and DequantizeLinear of outputs are removed: inputs and outputs are integers.

    `input_shapes` are sizes that the model leaves open: means need them. For an image of 3 channels 224 × 224 is
    assumed, and recorded in `source["assumed_sizes"]`. `outputs` are tensors to end with, instead of the outputs of the
    model: later nodes, such as a last Softmax, are omitted.

    Raises NoIntegerFormError with every node that computes floats, SourceError for shapes that do not fit,
    BudgetError if the cost is out of proportion to the size of the model, QfmtError for an integer-only one.
    """
    if form not in FORMS:
        raise QfmtError(f"unknown form {form!r} of requantization", hint=f"use one of {', '.join(FORMS)}")
    if bits not in WIDTHS:
        hint = f"use one of {', '.join(map(str, WIDTHS))}"
        raise QfmtError(f"multipliers of {bits} bits are not supported", hint=hint)
    if bits != WIDTHS[0] and form not in NARROWED:
        hint = f"only those of {', '.join(NARROWED)} can"
        raise QfmtError(f"multipliers of {form} cannot have {bits} bits", hint=hint)
    if model.no_graph:
        raise QfmtError(f"cannot be lowered to integers: {model.no_graph}")
    if KEY in model.source:
        raise QfmtError("is already integer-only", hint="lower the model that it was made from")
    require_sound(model)
    if is_real(model):
        hint = "quantize the network first, then convert it"
        raise QfmtError("is not quantized: there is nothing to lower", hint=hint)
    if outputs:
        model = subgraph(model, (), outputs)
    if input_shapes:
        model = replace(model, graph=with_input_shapes(model.graph, input_shapes))
    source = {key: told for key, told in model.source.items() if key != ASSUMED}
    for tensor in model.tensors.values():
        limited(tensor)
    budget = Budget.of(model, "lowering a network of")
    budget.bytes += TABLES
    if needs_sizes(model, budget) and (images := _images(model)):
        model = replace(model, graph=with_input_shapes(model.graph, images))
        source[ASSUMED] = json.dumps(images, ensure_ascii=False)
    with Memory.charged(budget).spent():
        return _lowered(replace(model, source=source), Form(form, bits, exact), budget)


def lower_as(model: Model, stated: str, outputs: Sequence[str]) -> Model:
    """Lower a network as described by another one (`source["integer_only"]`)."""
    words = stated.split(", ")
    exact = words[0].startswith(EXACT)
    form, bits = [*(words[1:] if exact else words), *("", "")][:2]
    width = next((each for each in WIDTHS if bits == f"{each} bits"), WIDTHS[0])
    return lower_integer(model, form=form or FORMS[0], bits=width, exact=exact, outputs=outputs)


def _images(model: Model) -> dict[str, tuple[Dimension, ...]]:
    """Inputs that are images of 3 channels without stated sizes, with the assumed ones."""
    shapes = {name: model.tensors[name].shape or () for name in model.graph.inputs}
    return {
        name: (shape[0] or "N", 3, *IMAGE)
        for name, shape in shapes.items()
        if len(shape) == 4 and shape[1] == 3 and not any(isinstance(size, int) for size in shape[2:])
    }


def _lowered(model: Model, form: Form, budget: Budget) -> Model:
    """The integer-only model, with its source keys."""
    made = replace(model, graph=lowered(model, form, budget), engine="integer", vectors=())
    named = f"{form.rule}, {form.bits} bits" if form.rule in NARROWED else form.rule
    if form.exact:
        unsure = totals(made).differs
        exactly = f"{EXACT} but for {unsure:,} sums of means of real numbers" if unsure else EXACT
        named = exactly if (form.rule, form.bits) == (FORMS[0], WIDTHS[0]) else f"{exactly}, {named}"
    stated = {LOWERED_FROM: model.engine, INPUTS: _quantized_inputs(model, made)}
    stated = {key: value for key, value in stated.items() if value}
    made = replace(made, source={**model.source, KEY: named, **stated})
    if broken := graph_violations(made):
        raise ValidityError(broken, where="the integer-only network")
    return made


def _quantized_inputs(model: Model, lowered: Model) -> str:
    """How the integer inputs are made from the source's inputs: `quant = reciprocal_fma(x)`."""
    producers = model.graph.producers()
    taken = ((name, producers.get(name)) for name in lowered.graph.inputs)
    return "; ".join(
        f"{name} = {node.rule}({node.inputs[0]})"
        for name, node in taken
        if node is not None and node.operator == "QuantizeLinear" and node.rule
    )
