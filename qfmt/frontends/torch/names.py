"""Names of lifted tensors, assigned when the module of each call is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...model import Node
from ...ops import OPERATORS
from ...passes.constants import unused


def name_tensors(nodes: Sequence[Node], used: set[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Key → name. A tensor is named after the module that computed it, if the module made only one call; else
    after module and call. Constants and inputs keep their names in the source (`wanted`)."""
    calls = Counter(node.scope for node in nodes)
    names: dict[str, str] = {"": ""}
    taken: set[str] = set()
    for key in sorted(used - {""}, key=lambda key: int(key[1:])):
        if wanted.get(key):
            names[key] = _unique(wanted[key], taken)
    for node in nodes:
        _name_outputs(node, names, taken, alone=bool(node.scope) and calls[node.scope] == 1)
    for key in sorted(used - names.keys()):
        names[key] = _unique("constant", taken)
    return names


def _name_outputs(node: Node, names: dict[str, str], taken: set[str], *, alone: bool) -> None:
    call = node.source_operator.rpartition("::")[2]
    base = node.scope if alone else f"{node.scope}.{call}".lstrip(".")
    outputs = OPERATORS[node.operator].outputs
    for position, key in enumerate(node.outputs):
        part = f".{outputs[position].name.lower()}" if position and not outputs[-1].variadic else ""
        names[key] = _unique(base + part, taken)
    roles = OPERATORS[node.operator].inputs
    for position, key in enumerate(node.inputs):
        if key not in names:
            role = roles[min(position, len(roles) - 1)].name.lower()
            names[key] = _unique(f"{names[node.outputs[0]]}.{role}", taken)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with the names of its tensors instead of their keys."""
    inputs = tuple(names[key] for key in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names[key] for key in node.outputs))


def _unique(base: str, taken: set[str]) -> str:
    name = unused(base, taken)
    taken.add(name)
    return name
