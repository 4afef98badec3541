"""What surrounds the network: a main that reads inputs from a file and prints the outputs, and a Makefile."""

from __future__ import annotations

from collections.abc import Sequence

from .names import comment
from .plan import Plan
from .static import C_TYPES
from .text import text_of


def main(plan: Plan) -> str:
    name = plan.names.name
    lines = [
        f"/* Run {name}: main [FILE] reads the inputs one after the other, raw little-endian integers, from FILE or",
        "   standard input, and prints the integers of the outputs, one a line. */",
        "",
        "#include <stdio.h>",
        "",
        f'#include "{name}.h"',
        "",
    ]
    views = [*plan.inputs, *plan.outputs]
    lines += [f"static {C_TYPES[view.dtype]} {view.buffer.name}[{max(1, view.size)}];" for view in views]
    lines += [
        "",
        "static int number(FILE *file, int bytes, uint64_t *value)",
        "{",
        "    *value = 0;",
        "    for (int i = 0; i < bytes; i++) {",
        "        const int byte = getc(file);",
        "        if (byte == EOF)",
        "            return 0;",
        "        *value |= (uint64_t)byte << (8 * i);",
        "    }",
        "    return 1;",
        "}",
        "",
        "int main(int argc, char **argv)",
        "{",
        "    uint64_t value;",
        '    FILE *file = argc > 1 ? fopen(argv[1], "rb") : stdin;',
        "    if (!file) {",
        '        fprintf(stderr, "%s: cannot be read\\n", argv[1]);',
        "        return 2;",
        "    }",
    ]
    for view in plan.inputs:
        kind = C_TYPES[view.dtype]
        lines += [
            f"    for (int32_t i = 0; i < {view.size}; i++) {{",
            f"        if (!number(file, {view.buffer.width}, &value)) {{",
            f'            fprintf(stderr, "the input ends too early: {comment(view.buffer.name)}\\n");',
            "            return 2;",
            "        }",
            f"        {view.buffer.name}[i] = {_signed(kind)};",
            "    }",
        ]
    arguments = ", ".join(view.buffer.name for view in views)
    lines.append(f"    {name}_run({arguments});")
    for view in plan.outputs:
        unsigned = view.dtype.startswith("u")
        form, cast = ("%llu", "unsigned long long") if unsigned else ("%lld", "long long")
        lines += [
            f"    for (int32_t i = 0; i < {view.size}; i++)",
            f'        printf("{form}\\n", ({cast}){view.buffer.name}[i]);',
        ]
    return text_of([*lines, "    return 0;", "}"])


def _signed(kind: str) -> str:
    """A number as the type of an input: what does not fit a signed one is negative."""
    return f"({kind})value" if kind.startswith("u") else f"({kind})(u{kind})value"


def makefile(name: str, sources: Sequence[str]) -> str:
    objects = " ".join(source.replace(".c", ".o") for source in sources)
    return text_of(
        [
            "# `make -j` builds the program `main`; CFLAGS may say for which processor.",
            "CFLAGS = -O3 -march=native",
            f"OBJECTS = {objects}",
            "",
            "main: $(OBJECTS)",
            "\t$(CC) $(LDFLAGS) -o $@ $(OBJECTS)",
            "",
            f"$(OBJECTS): {name}.h {name}_weights.h",
            "",
            ".c.o:",
            "\t$(CC) -std=c99 $(CFLAGS) -c -o $@ $<",
            "",
            "clean:",
            "\trm -f main $(OBJECTS)",
        ]
    )
