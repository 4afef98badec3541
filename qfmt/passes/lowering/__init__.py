"""Networks in integers alone: exact sums, then one requantization by integers, proven or counted against the original.

lower_integer(model)                                   multiply, add, shift: equal wherever a line can be
lower_integer(model, exact=True)                       thresholds where none can: equal everywhere
lower_integer(model, form="fixed_point_double")        as TFLite's kernels round; how much differs is counted
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import QfmtError
from ...model import Model
from .facts import totals
from .forms import FORMS, WIDTHS, Form
from .graph import lowered

__all__ = ["FORMS", "WIDTHS", "lower_integer"]

KEY = "integer_only"


def lower_integer(model: Model, *, form: str = "multiply_shift", bits: int = 32, exact: bool = False) -> Model:
    """The same network, every node of which computes with integers alone.

    Sums are exact, in int32; a qfmt.Requantize (or qfmt.RequantShift) makes 8-bit integers of them by the rule `form`,
    one of FORMS, with multipliers of `bits` bits, one of WIDTHS. Each states on how many of the sums that can occur it
    differs from the rule that the model stated. `exact`: none does; where no parameters of the form are equal,
    thresholds are. Means of real numbers alone, which the stated rule adds up in whatever order, may be rounded either
    way at ties even so: those are counted. QuantizeLinear of inputs and DequantizeLinear of outputs are taken off:
    inputs and outputs are integers.

    Raises NoIntegerForm with every node that computes real numbers, QfmtError for a model that is lowered already.
    """
    if form not in FORMS:
        raise QfmtError(f"no form {form!r} of requantization", hint=f"known are {', '.join(FORMS)}")
    if bits not in WIDTHS:
        raise QfmtError(f"multipliers of {bits} bits are not known", hint=f"known are {', '.join(map(str, WIDTHS))}")
    if model.no_graph:
        raise QfmtError(f"cannot be lowered to integers: {model.no_graph}")
    if KEY in model.source:
        raise QfmtError("computes with integers alone already", hint="lower the model that it was made from")
    graph = lowered(model, Form(form, bits, exact))
    named = f"{form}, {bits} bits" if form in ("multiply_shift", "multiply_add_divide") else form
    made = replace(model, graph=graph, arithmetic="integer", vectors=())
    if exact:
        unsure = totals(made).differs
        named = f"exact but for {unsure:,} sums of means of real numbers" if unsure else "exact"
    return replace(made, source={**model.source, KEY: named})
