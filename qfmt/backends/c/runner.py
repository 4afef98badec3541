"""The program around the network: a main that reads inputs from a file and prints the outputs, and a Makefile."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .kernels import kernel_text, template
from .plan import Plan
from .static import C_TYPES
from .text import text_of


def main(plan: Plan, with_vectors: bool) -> str:
    """The program for a computer with files; it is not for devices."""
    name = plan.names.name
    taken = sum(view.size * view.buffer.width for view in plan.inputs)
    takes = f"it must have {taken} bytes, see {name}.h"
    usage = [f"usage: main [FILE]{' or main --check' if with_vectors else ''}"]
    usage += [f"FILE, or standard input, has {taken} bytes: see {name}.h"] if plan.inputs else []
    lines = [
        f"/* Try {name} on a computer with files: nothing of this belongs on a device.",
        "",
        "   `main [FILE]` reads the inputs one after the other, raw integers with the lowest byte first, from FILE or",
        f"   standard input, and prints the integers of the outputs, one a line.{'' if with_vectors else ' */'}",
        *(["   `main --check` compares the outputs for the test vectors. */"] if with_vectors else []),
        "",
        "#include <stdio.h>",
        *(["#include <string.h>"] if with_vectors else []),
        "",
        f'#include "{name}.h"',
        "",
    ]
    views = [*plan.inputs, *plan.outputs]
    lines += [f"static {C_TYPES[view.dtype]} {view.buffer.name}[{max(1, view.size)}];" for view in views]
    if plan.inputs:
        lines += ["", kernel_text("reading").replace("TAKES", takes)]
    lines += [
        "",
        kernel_text("written"),
        "",
        "int main(int argc, char **argv)",
        "{",
        *(_checking(name) if with_vectors else ()),
        "    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {",
        *(f'        fputs("{line}\\n", stderr);' for line in usage),
        "        return 2;",
        "    }",
        *(_reading(plan) if plan.inputs else ()),
    ]
    lines.append(f"    {name}_run({', '.join(view.buffer.name for view in views)});")
    for view in plan.outputs:
        unsigned = view.dtype.startswith("u")
        form, cast = ("%llu", "unsigned long long") if unsigned else ("%lld", "long long")
        lines += [
            f"    for (int32_t i = 0; i < {view.size}; i++)",
            f'        printf("{form}\\n", ({cast}){view.buffer.name}[i]);',
        ]
    return text_of([*lines, "    return written(0);", "}"])


def _checking(name: str) -> list[str]:
    return [
        '    if (argc == 2 && strcmp(argv[1], "--check") == 0) {',
        f"        const long wrong = (long){name}_check();",
        f'        printf("%ld of %ld outputs differ\\n", wrong, (long){name.upper()}_CHECKED);',
        "        return written(wrong ? 1 : 0);",
        "    }",
    ]


def _reading(plan: Plan) -> list[str]:
    """Lines that read all inputs, and check the exact number of bytes."""
    lines = [
        '    FILE *file = argc > 1 ? fopen(argv[1], "rb") : stdin;',
        "    uint64_t value;",
        "    if (!file) {",
        '        fprintf(stderr, "main: %s cannot be read\\n", argv[1]);',
        "        return 2;",
        "    }",
    ]
    for view in plan.inputs:
        lines += [
            f"    for (int32_t i = 0; i < {view.size}; i++) {{",
            f"        if (!number(file, {view.buffer.width}, &value))",
            '            return wrong_size("short");',
            f"        {view.buffer.name}[i] = {_signed(C_TYPES[view.dtype])};",
            "    }",
        ]
    return [*lines, "    if (getc(file) != EOF)", '        return wrong_size("long");']


def _signed(kind: str) -> str:
    """A number as the type of an input: values beyond a signed type are negative."""
    return f"({kind})value" if kind.startswith("u") else f"({kind})(u{kind})value"


CHECK = "#   make check       compares the outputs for the test vectors that the file of the network holds\n"
CHECKING = "\ncheck: main\n\t./main --check\n"
NOTHING_TO_CHECK = """
check:
\t@echo "the file of the network has no test vector to compare with: qfmt run FILE --input X --record DEST adds one" >&2
\t@false
"""


def makefile(name: str, sources: Sequence[str], alignment: int, with_vectors: bool) -> str:
    """Targets for this computer and for others. `sources`: those of the library."""
    words = {
        "CHECK": CHECK if with_vectors else "",
        "CHECKING": CHECKING if with_vectors else NOTHING_TO_CHECK,
        "OBJECT_FILES": " ".join(source.replace(".c", ".o") for source in sources),
        "ALIGNMENT": str(alignment),
        "UPPER": name.upper(),
        "NAME": name,
    }
    return re.sub("<(" + "|".join(words) + ")>", lambda found: words[found[1]], template("Makefile"))
