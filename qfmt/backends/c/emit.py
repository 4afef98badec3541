"""The text of the program: layers and weights, and the list of its files."""

from __future__ import annotations

from ...arrays import Array
from .check import check, fitting
from .header import arguments, header
from .loops import indented
from .plan import Plan, Step, place
from .runner import main, makefile
from .static import C_TYPES
from .text import array_of, text_of
from .views import Parameter, arena_type

CHUNK = 3_000_000
"""Numbers of weights in one file: compilers need a gigabyte for ten million."""


def files(plan: Plan) -> dict[str, str]:
    """File name → text, for the whole folder."""
    name = plan.names.name
    sizes = place(plan)
    weights = _weights(plan)
    vectors = fitting(plan)
    checks = {f"{name}_check.c": check(plan, vectors)} if vectors else {}
    memory = sum(width * size for width, size in sizes.items())
    return {
        f"{name}.h": header(plan, memory, _constant_bytes(plan), len(vectors)),
        f"{name}.c": _layers(plan, sizes),
        f"{name}_weights.h": _declarations(plan),
        **weights,
        **checks,
        "main.c": main(plan, bool(vectors)),
        "Makefile": makefile(name, [f"{name}.c", *weights, *checks], plan.alignment, bool(vectors)),
    }


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
    lines += ["", f"void {name}_run({arguments(plan)})", "{", *unread, *calls, "}"]
    return text_of(lines)


def _function(index: int, step: Step) -> list[str]:
    parameters = ", ".join(_parameter(operand) for operand in (*step.operands, *step.scratch))
    return [
        f"/* {step.title} */",
        f"static void layer_{index}({parameters})",
        "{",
        *indented(step.body),
        "}",
    ]


def _parameter(operand: Parameter) -> str:
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
        "/* Where arrays begin that the inner loops read. It may be defined beforehand, as nothing, too. */",
        f"#ifndef {name.upper()}_ALIGNED",
        "#if defined(__GNUC__)",
        f"#define {name.upper()}_ALIGNED __attribute__((aligned({plan.alignment})))",
        "#else",
        f"#define {name.upper()}_ALIGNED",
        "#endif",
        "#endif",
        "",
    ]
    for identifier, array in plan.constants.values():
        lines.append(f"extern const {C_TYPES[str(array.dtype)]} {identifier}[{max(1, array.size)}];")
    return text_of([*lines, "", "#endif"])


def _weights(plan: Plan) -> dict[str, str]:
    """Files of constants, none with too many numbers unless a single array has them."""
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
            aligned = f" {name.upper()}_ALIGNED" if identifier in plan.aligned else ""
            lines += array_of(f"const {{kind}} {identifier}[{{size}}]{aligned}", array)
        found[f"{name}_weights{f'_{index + 1}' if index else ''}.c"] = text_of(lines)
    return found


def _constant_bytes(plan: Plan) -> int:
    """The size of the linked constants: aligned arrays, and structures."""
    end = 0
    for identifier, array in plan.constants.values():
        step = plan.alignment if identifier in plan.aligned else array.itemsize
        end = -(-end // step) * step + max(1, array.size) * array.itemsize
    return end + plan.struct_bytes
