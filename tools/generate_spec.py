"""Rewrite the generated parts of spec.md and docs/spec; `--check` tests whether they are current.

    python tools/generate_spec.py            # rewrite them, and schema/operators.json
    python tools/generate_spec.py --check    # exit 1 and name the parts that are stale

A part is between `<!-- generated: NAME -->` and `<!-- end -->`. It is made from the only place with the facts: the
schema, the operator table, the rules, or the bytes of a real file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import hexdump  # noqa: E402
from fbs import Field, read_schema  # noqa: E402
from qfmt.content import content_text  # noqa: E402
from qfmt.file.checker import CONTAINER_RULES  # noqa: E402
from qfmt.file.writer import save  # noqa: E402
from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor  # noqa: E402
from qfmt.ops import OPERATORS, Operator, Quantized  # noqa: E402
from qfmt.ops.accumulation import output_axis  # noqa: E402
from qfmt.ops.pooling import MEAN_RULES  # noqa: E402
from qfmt.ops.registry import _DEFAULTS as USUAL  # noqa: E402
from qfmt.ops.registry import DYNAMIC_RULES, QUANTIZE_RULES, REQUANTIZE_RULES, AttributeSpec, Parameter  # noqa: E402
from qfmt.rules import RULES  # noqa: E402

PAGES = (ROOT / "spec.md", *sorted((ROOT / "docs" / "spec").glob("*.md")))
"""The specification."""

PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

FAMILIES = {
    "convolution": "Convolutions",
    "linear": "Matrix products",
    "integer_products": "Products of integers",
    "dynamic": "Products with inputs that are quantized at run time",
    "recurrent": "Recurrent layers",
    "onnx_recurrent": "Recurrent layers of ONNX",
    "attention": "Attention",
    "embedding": "Tables",
    "creation": "Creating numbers",
    "quantization": "Into and out of integers",
    "elementwise": "Elements",
    "functions": "Functions of elements",
    "logic": "Logic",
    "activation": "Activations",
    "softmax": "Along an axis",
    "normalization": "Normalizations",
    "pooling": "Pooling",
    "reduction": "Reductions",
    "resize": "Resizing",
    "sampling": "Sampling",
    "layout": "Layout",
    "selection": "Parts and joins",
    "indexing": "Elements by index",
}

INTEGER_FAMILIES = {"requantization": "Integers only", "rescaling": "Rescaling of integers"}
"""Families of operators on the page of integer-only networks, in addition to the integer rules."""

WAYS = {
    Quantized.FLOAT_ONLY: "plain",
    Quantized.MOVES: "moves",
    Quantized.COMPUTES: "computes",
    Quantized.ACCUMULATES: "accumulates",
    Quantized.OWN: "own formula",
    Quantized.WEIGHTS: "weights",
    Quantized.INTEGERS: "integers",
}

RULE_SETS = {
    MEAN_RULES: "any mean rule, any quantize rule",
    QUANTIZE_RULES: "any quantize rule",
    REQUANTIZE_RULES: "any requantize rule",
    DYNAMIC_RULES: "any dynamic rule",
}


def smallest_model() -> Model:
    """The example of the specification: one constant, one node, one output."""
    import numpy as np

    grid = Quantization.of((0.5,), (0,), -8, 7)
    w = Tensor.constant("w", np.array([1, -2, 7], np.int8), grid, dtype="int4")
    y = Tensor("y", "float32", (3,))
    node = Node("DequantizeLinear", ("w",), ("y",), version=OPERATORS["DequantizeLinear"].version)
    return Model(Graph((), ("y",), (node,), {"w": w, "y": y}))


def smallest_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "smallest.qfb"
        save(smallest_model(), path)
        return path.read_bytes()


def hex_dump() -> str:
    return _block(hexdump.hexdump(smallest_file(), read_schema()))


def content_id() -> str:
    model = smallest_model()
    result = f"SHA-256: `{model.content_id().hex()}`"
    return f"{_block(*content_text(model).splitlines())}\n{result}\n"


def schema_tables() -> str:
    schema = read_schema()
    lines = []
    for table in schema.tables.values():
        rows = [
            (str(i), f"`{f.name}`", _type(f), _absent(table.name, f), _here(f.meaning))
            for i, f in enumerate(table.fields)
        ]
        lines += [f"#### {table.name}", "", _here(table.meaning), ""]
        lines += [_table(("field", "name", "type", "absent", "meaning"), rows)]
    for enum in schema.enums.values():
        if enum.name != "DType":
            members = ", ".join(f"{code} {name}" for name, code, _ in enum.members)
            lines += [f"#### {enum.name}", "", f"{enum.meaning} {members}.", ""]
    return "\n".join(lines)


def _here(comment: str) -> str:
    """A comment of the schema in the form of spec.md, with links."""
    return re.sub(r"docs/spec/([\w-]+)\.md", r"[\g<0>](\g<0>)", comment)


def _type(field: Field) -> str:
    return f"{field.type}{', required' if field.required else ''}".replace("[", "vector of ").replace("]", "")


def _stated(spec: AttributeSpec) -> str:
    return "required" if spec.default is None else f"`{spec.default}`"


MANDATORY = {
    "Tensor": ("dtype",),
    "Numbers": ("dtype",),
    "Array": ("dtype",),
    "Quantization": ("quant_min", "quant_max"),
    "Attribute": ("type",),
    "TestValue": ("buffer",),
}
"""Scalars that FlatBuffers cannot require; the rules V2 and F12 do."""


def _absent(table: str, field: Field) -> str:
    """The meaning of an absent field."""
    if field.required or field.name in MANDATORY.get(table, ()):
        return "refused"
    if table in ("Numbers", "Array") and field.name in ("bytes", "buffer"):
        return "the other"
    scalar = field.type in hexdump.SCALARS or field.type in read_schema().enums
    return "nothing" if field.default == "null" else field.default or ("0" if scalar else "nothing")


def dtypes() -> str:
    members = {code: (name, note) for name, code, note in read_schema().enums["DType"].members}
    rows = []
    for entry in DTYPES.values():
        name, note = members[entry.code]
        values = f"{entry.minimum} … {entry.maximum}" if entry.maximum else ""
        rows.append((str(entry.code), name, f"`{entry.name}`", str(entry.bits), values, note))
    return _table(("code", "in the schema", "name", "bits", "range", ""), rows)


def rules(entries: Iterable[Any]) -> str:
    return _table(("rule", ""), [(f"**{number}**", sentence) for number, sentence, *_ in entries])


def operators() -> str:
    lines = ["An operator that", ""]
    for way, (names, engines) in USUAL.items():
        if names:
            lines.append(f"- *{WAYS[way]}* may state {_rule_names(names, engines)}")
    return "\n".join([*lines, "", "This applies to every entry that does not list its rules.", "", families(FAMILIES)])


def families(titles: Mapping[str, str]) -> str:
    lines = []
    for family, title in titles.items():
        members = [operator for operator in OPERATORS.values() if operator.family == family]
        lines += [f"## {title}", "", *(_operator(operator) for operator in members)]
    return "\n".join(lines)


def _operator(operator: Operator) -> str:
    left, right = (", ".join(_signature(end)) for end in (operator.inputs, operator.outputs))
    head = f"`{left}` → `{right}` · version {operator.version} · {WAYS[operator.quantized]}"
    if operator.dtype != "same":
        head += f" · output {', '.join(_output(operator, word) for word in operator.dtype.split())}"
    lines = [f"### {operator.name}", "", head, "", operator.meaning, ""]
    if operator.integer is not None and operator.integer.__doc__:
        lines += [f"On integers: {_paragraph(operator.integer.__doc__)}", ""]
    if operator.sums is not None:
        only = f"by `{operator.sum_rules[0]}`: " if len(operator.sum_rules) == 1 else ""
        lines += [f"Sums, {only}{_paragraph(operator.sums.function.__doc__ or '')}", ""]
    if (operator.rules, operator.engines) != USUAL[operator.quantized] and operator.rules:
        lines += [f"Rules: {_rule_names(operator.rules, operator.engines)}", ""]
    if operator.attributes:
        rows = [
            (f"`{name}`", _kind(spec.kind), _stated(spec), spec.meaning) for name, spec in operator.attributes.items()
        ]
        lines += [_table(("attribute", "kind", "default", "meaning"), rows)]
    return "\n".join(lines)


def _signature(end: Iterable[Parameter]) -> list[str]:
    return [each.name + "?" * each.optional + "*" * each.variadic for each in end]


def _output(operator: Operator, word: str) -> str:
    kind, _, argument = word.partition(":")
    if kind == "attribute":
        return f"dtype by attribute {argument}"
    if kind == "input" or word == "same":
        return f"as {operator.inputs[int(argument or 0)].name}"
    return word


def _rule_names(rules: tuple[str, ...], engines: Mapping[str, str]) -> str:
    """The rules that a node may state, and the rule that conversion chooses for each engine."""
    names = []
    for rule_set, title in RULE_SETS.items():
        if set(rule_set) <= set(rules):
            names.append(title)
            rules = tuple(rule for rule in rules if rule not in rule_set)
    users: dict[str, list[str]] = {}
    for engine, rule in engines.items():
        users.setdefault(rule, []).append(engine)
    uses = "; ".join(f"{', '.join(engines)}: `{rule}`" for rule, engines in users.items())
    listed = ", ".join([*(f"`{rule}`" for rule in rules), *names])
    return f"{listed}. Conversion uses, for {uses}." if uses else f"{listed}."


def _kind(kind: str) -> str:
    return f"[{kind[0]}]" if len(kind) == 2 else kind


def _paragraph(text: str) -> str:
    """A docstring with its own paragraphs, each in one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).strip()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _block(*lines: str) -> str:
    return "\n".join(["```", *lines, "```", ""])


TABLE = ROOT / "schema" / "operators.json"
"""The operators for programs: what the rules V40 to V47 need of them."""


def operators_json() -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(_facts(operator))}" for name, operator in sorted(OPERATORS.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _facts(operator: Operator) -> dict[str, Any]:
    return {
        "version": operator.version,
        "way": WAYS[operator.quantized],
        "inputs": _signature(operator.inputs),
        "outputs": _signature(operator.outputs),
        "types": [_output(operator, word) for word in operator.dtype.split()],
        "attributes": {name: _kind(spec.kind) for name, spec in operator.attributes.items()},
        "choices": {name: list(spec.choices) for name, spec in operator.attributes.items() if spec.choices},
        "rules": list(operator.rules),
        "sum_rules": list(operator.sum_rules),
        "constants": list(operator.constants),
        "weights": {
            operator.inputs[place].name: output_axis(Node(operator.name, (), ()), 0) for place in operator.weights
        },
    }


PARTS: dict[str, Callable[[], str]] = {
    "container rules": lambda: rules(CONTAINER_RULES),
    "hex dump": hex_dump,
    "schema": schema_tables,
    "dtypes": dtypes,
    "validity rules": lambda: rules(RULES),
    "content id": content_id,
    "operators": operators,
    "integer operators": lambda: families(INTEGER_FAMILIES),
}


def generated(text: str) -> str:
    """A page with its generated parts renewed."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}{part[4]}", text)


def stale(texts: Iterable[str]) -> list[str]:
    """The names of the parts that are not current, or on none of the pages."""
    found = {name: body for text in texts for _, name, body, _ in PART.findall(text)}
    tables = [] if TABLE.read_text(encoding="utf-8") == operators_json() else [TABLE.name]
    return [name for name, make in PARTS.items() if found.get(name) != make()] + tables


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a part is not current")
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    if not parser.parse_args().check:
        TABLE.write_text(operators_json(), encoding="utf-8")
        for page, text in texts.items():
            page.write_text(generated(text), encoding="utf-8")
    elif names := stale(texts.values()):
        raise SystemExit(textwrap.fill(f"Parts are not current, run tools/generate_spec.py: {', '.join(names)}"))


if __name__ == "__main__":
    main()
