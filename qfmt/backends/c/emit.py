"""The text of the program: header, layers, weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .memory import place
from .names import comment
from .plan import ALIGNMENT, Operand, Plan, Step, View, arena_type
from .runner import main, makefile
from .static import C_TYPES, Value
from .text import array_of, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

CHUNK = 3_000_000
"""Numbers of weights in one file: compilers take a gigabyte for ten million."""


def files(plan: Plan) -> dict[str, str]:
    """Name of file → text, of the whole folder."""
    name = plan.names.name
    sizes = place(plan)
    weights = _weights(plan)
    sources = [f"{name}.c", *weights, "main.c"]
    return {
        f"{name}.h": _header(plan, sizes),
        f"{name}.c": _layers(plan, sizes),
        f"{name}_weights.h": _declarations(plan),
        **weights,
        "main.c": main(plan),
        "Makefile": makefile(name, sources),
    }


# The header


def _header(plan: Plan, sizes: dict[int, int]) -> str:
    name, upper = plan.names.name, plan.names.name.upper()
    model = plan.network.model
    arena = sum(width * size for width, size in sizes.items())
    constants = sum(array.nbytes for _, array in plan.constants.values())
    lines = [
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        f"/* {name}: a quantized network in integers alone, written by qfmt.",
        "",
        f"   Memory, all of it static, nothing allocated: {arena} bytes that change, {constants} bytes of constants.",
        "   Not reentrant: one run at a time, because runs share that memory. */",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {upper}_MEMORY_BYTES {arena}",
        f"#define {upper}_CONSTANT_BYTES {constants}",
        "",
    ]
    for role, names, views in (
        ("INPUT", model.graph.inputs, plan.inputs),
        ("OUTPUT", model.graph.outputs, plan.outputs),
    ):
        for index, (tensor, view) in enumerate(zip(names, views, strict=True)):
            lines += _described(f"{upper}_{role}_{index}", role.lower(), plan.value(tensor), view)
    lines += [
        "/* Compute the outputs from the inputs. Elements lie as in the file: the last dimension runs fastest.",
        "   No integer of an input may be beyond the range that is stated for it: sums are proven for that range alone,",
        "   and one that leaves int32 is undefined in C. */",
        f"void {name}_run({_arguments(plan)});",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
    ]
    return text_of(lines)


def _described(macro: str, role: str, value: Value, view: View) -> Iterator[str]:
    grid = value.quantization
    low, high = value.limits
    shape = ",".join(map(str, value.shape))
    meaning = ""
    if grid is not None and len(grid.scale) == 1:
        meaning = f", real = (q - {value.zero_point}) * {grid.scale[0]!r}"
    yield f"/* {role} {view.buffer.name}: {comment(value.name)}, {value.dtype} [{shape}], {low} to {high}{meaning} */"
    yield f"#define {macro}_SIZE {value.size}"
    if grid is not None and len(set(grid.zero_point)) == 1:
        yield f"#define {macro}_ZERO_POINT {value.zero_point}"
    yield ""


def _arguments(plan: Plan) -> str:
    inputs = [f"const {C_TYPES[view.dtype]} *{view.buffer.name}" for view in plan.inputs]
    outputs = [f"{C_TYPES[view.dtype]} *{view.buffer.name}" for view in plan.outputs]
    return ", ".join((*inputs, *outputs)) or "void"


# The layers


def _layers(plan: Plan, sizes: dict[int, int]) -> str:
    name = plan.names.name
    lines = [
        f'#include "{name}.h"',
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f'#include "{name}_weights.h"',
        "",
        "#if (-1 >> 1) != -1",
        '#error "needs a compiler that shifts negative numbers arithmetically"',
        "#endif",
        "",
        "/* Memory of the tensors between layers, one array for each width of elements. */",
    ]
    for width, size in sizes.items():
        kind = C_TYPES[arena_type(width)]
        lines.append(f"static {kind} arena{8 * width}[{size}] {name.upper()}_ALIGNED;")
    for text in (*plan.types, *plan.kernels.values()):
        lines += ["", text]
    for struct in plan.structs:
        lines += ["", struct]
    calls = []
    for index, step in enumerate(plan.steps):
        lines += ["", *_function(index, step)]
        given = ", ".join(operand.view.pointer for operand in (*step.operands, *step.scratch))
        calls.append(f"    layer_{index}({given});")
    read = {
        operand.view.buffer.name for step in plan.steps for operand in step.operands if operand.view.buffer.external
    }
    ends = (*plan.inputs, *plan.outputs)
    unread = [f"    (void){view.buffer.name};" for view in ends if view.buffer.name not in read]
    lines += ["", f"void {name}_run({_arguments(plan)})", "{", *unread, *calls, "}"]
    return text_of(lines)


def _function(index: int, step: Step) -> list[str]:
    parameters = ", ".join(_parameter(operand) for operand in (*step.operands, *step.scratch))
    return [
        f"/* {step.title} */",
        f"static void layer_{index}({parameters})",
        "{",
        *("    " + line for line in step.body),
        "}",
    ]


def _parameter(operand: Operand) -> str:
    const = "" if operand.written else "const "
    return f"{const}{C_TYPES[operand.view.dtype]} *restrict {operand.name}"


# The weights


def _declarations(plan: Plan) -> str:
    name = plan.names.name
    guard = f"{name.upper()}_WEIGHTS_H"
    lines = [
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#if defined(__GNUC__)",
        f"#define {name.upper()}_ALIGNED __attribute__((aligned({ALIGNMENT})))",
        "#else",
        f"#define {name.upper()}_ALIGNED",
        "#endif",
        "",
    ]
    for identifier, array in plan.constants.values():
        lines.append(f"extern const {C_TYPES[str(array.dtype)]} {identifier}[{max(1, array.size)}];")
    return text_of([*lines, "", "#endif"])


def _weights(plan: Plan) -> dict[str, str]:
    """Files of constants, none of too many numbers unless one array has them."""
    name = plan.names.name
    parts: list[list[tuple[str, Array]]] = [[]]
    count = 0
    for identifier, array in plan.constants.values():
        if parts[-1] and count + array.size > CHUNK:
            parts.append([])
            count = 0
        parts[-1].append((identifier, array))
        count += array.size
    found = {}
    for index, part in enumerate(parts):
        lines = [f'#include "{name}_weights.h"']
        for identifier, array in part:
            shape = "x".join(map(str, array.shape))
            lines += ["", f"/* {shape} */"]
            lines += array_of(f"const {{kind}} {identifier}[{{size}}] {name.upper()}_ALIGNED", array)
        found[f"{name}_weights{f'_{index + 1}' if index else ''}.c"] = text_of(lines)
    return found
