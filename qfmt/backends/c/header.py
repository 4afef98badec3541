"""The header: the origin of the network, what was proven, how to make its inputs, and what its outputs mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ...model import Model
from ...passes.lowering.facts import requantizations, totals
from .check import outputs_of
from .names import comment
from .plan import Plan
from .static import C_TYPES, Value
from .text import literal, text_of
from .views import View

QUANTIZE = {
    "divide": "round(real / SCALE) + ZERO_POINT",
    "reciprocal": "round(real * (1 / SCALE)) + ZERO_POINT",
    "reciprocal_offset": "round(real * (1 / SCALE) + ZERO_POINT)",
    "reciprocal_fma": "round(fma(real, 1 / SCALE, ZERO_POINT))",
    "premultiplied": "round(real * (1 / SCALE)) + ZERO_POINT",
}
"""docs/spec/running.md, "Quantize rules", in the notation of a C comment."""

ROUND = "each step in IEEE binary32, halves to even"


def header(plan: Plan, memory: int, constants: int, vectors: int) -> str:
    """`memory`, `constants`: bytes of each. `vectors`: how many test vectors the program has."""
    name, upper = plan.names.name, plan.names.name.upper()
    model = plan.network.model
    lines = [
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        *_about(name, model),
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* All memory is static. Compilers may leave out some constants, or add a few. */",
        f"#define {upper}_MEMORY_BYTES {memory}",
        f"#define {upper}_CONSTANT_BYTES {constants}",
        "",
    ]
    quantized = _quantized(model)
    for role, names, views in (
        ("input", model.graph.inputs, plan.inputs),
        ("output", model.graph.outputs, plan.outputs),
    ):
        for index, (tensor, view) in enumerate(zip(names, views, strict=True)):
            lines += _described(f"{upper}_{role.upper()}_{index}", role, plan.value(tensor), view, quantized)
    lines += [
        "/* Compute the outputs from the inputs. Elements are in the file's order: the last dimension varies fastest.",
        "   Inputs and outputs may not overlap. No integer of an input may be outside its stated range:",
        "   sums are proven only for that range, and a sum that exceeds int32 is undefined in C.",
        "   Not reentrant: one run at a time, because runs share their memory. */",
        f"void {name}_run({arguments(plan)});",
        *(_checked(plan, vectors) if vectors else ()),
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
    ]
    return text_of(lines)


def arguments(plan: Plan) -> str:
    """The parameters of the program."""
    inputs = [f"const {C_TYPES[view.dtype]} *{view.buffer.name}" for view in plan.inputs]
    outputs = [f"{C_TYPES[view.dtype]} *{view.buffer.name}" for view in plan.outputs]
    return ", ".join((*inputs, *outputs)) or "void"


def _about(name: str, model: Model) -> Iterator[str]:
    from ... import __version__

    yield f"/* {name}: an integer-only quantized network, written by qfmt {__version__}."
    yield ""
    yield f"   network  content id {model.content_id().hex()}"
    source = model.source
    if "format" in source:
        digest = f", sha256 {comment(source['sha256'])}" if "sha256" in source else ""
        yield f"   source   {comment(source['format'])}{digest}"
    if "integer_only" in source:
        yield f"   form     {comment(source['integer_only'])}"
    yield f"   proof    {_proof(model)} */"


def _proof(model: Model) -> str:
    """What was compared, and the result."""
    found = totals(model)
    if not found.count:
        return "nothing is requantized"
    rules = sorted({each.compared for each in requantizations(model) if each.compared})
    if not rules:
        return "not compared with the rounding rules of the source"
    named = ", ".join(rule if re.fullmatch("[a-z0-9_]{1,40}", rule) else comment(rule) for rule in rules)
    came = f"equal on all {found.sums:,} reachable sums"
    if found.differs:
        came = f"differs on {found.differs:,} of {found.sums:,} reachable sums, by {found.largest} at most"
    without = f"; {found.unproven} of {found.count} requantizations are not compared" if found.unproven else ""
    return f"compared with {named}: {came}{without}"


def _described(
    macro: str, role: str, value: Value, view: View, quantized: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    """A comment on an input or output, and macros with what a caller may need."""
    grid = value.quantization
    low, high = value.limits
    shape = ",".join(map(str, value.shape))
    lines = [f"{role} {view.buffer.name}: {comment(value.name)}, {value.dtype} [{shape}], {low} to {high}"]
    per_tensor = grid is not None and len(grid.scale) == 1 and not grid.has_float_zero_points
    if per_tensor:
        point = f"(q {'-' if value.zero_point > 0 else '+'} {abs(value.zero_point)})" if value.zero_point else "q"
        lines.append(f"real = {point} * {macro}_SCALE")
    if role == "input" and per_tensor:
        rule, real = quantized.get(value.name, ("divide", ""))
        formula = re.sub(r"SCALE|ZERO_POINT", lambda word: f"{macro}_{word.group()}", QUANTIZE[rule])
        what = f", where real is {comment(real)} of the source" if real else "; ONNX's rule: the source states none"
        lines.append(f"q = {formula}, clamped; {ROUND}{what}")
    yield from _comment(lines)
    yield f"#define {macro}_SIZE {value.size}"
    yield f"#define {macro}_MIN {_enclosed(low, value.dtype)}"
    yield f"#define {macro}_MAX {_enclosed(high, value.dtype)}"
    if grid is not None and per_tensor:
        yield f"#define {macro}_ZERO_POINT {_enclosed(value.zero_point, value.dtype)}"
        yield f"#define {macro}_SCALE {grid.scale[0]!r}"
    yield ""


def _enclosed(number: int, kind: str) -> str:
    """An integer of that type that is safe in any expression."""
    return f"({text})" if (text := literal(number, kind)).startswith("-") else text


def _comment(lines: Iterable[str]) -> Iterator[str]:
    text = "\n   ".join(lines)
    yield from f"/* {text} */".split("\n")


def _quantized(model: Model) -> dict[str, tuple[str, str]]:
    """Input → its quantize rule, and the name of its source tensor. ONNX's rule if none is stated."""
    found: dict[str, tuple[str, str]] = {}
    for each in model.source.get("quantized_inputs", "").split("; "):
        name, _, rest = each.partition(" = ")
        if call := re.fullmatch(r"(\w+)\((.*)\)", rest, re.DOTALL):
            found.setdefault(name, (call[1] if call[1] in QUANTIZE else "divide", call[2]))
    return found


def _checked(plan: Plan, vectors: int) -> Iterator[str]:
    name = plan.names.name
    yield ""
    yield f"/* How many of the {name.upper()}_CHECKED outputs of the test vectors differ: 0 if all are equal."
    yield f"   The vectors are in {name}_check.c, which a product does not need. */"
    yield f"#define {name.upper()}_CHECKED {vectors * outputs_of(plan)}"
    yield f"int32_t {name}_check(void);"
