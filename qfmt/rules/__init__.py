"""The validity rules V1…Vn as data: number, sentence, check. `violations` applies them all at once.

A file that can be decoded may still be wrong: a scale of zero, a weight outside its range, a node that reads
what is computed later. `save` refuses such a model and lists everything that is wrong with it. The rules about
single tensors are applied whenever a tensor is decoded, and those about its quantization when that is decoded, so no
caller ever sees a tensor or a quantization that breaks them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from ..errors import ValidityError, Violation, some
from ..model import Model, Node, Tensor
from ..progress import counted
from . import integers as integers  # its rules join MEANING and CONSTANTS
from .graph import EDGES, ENDS, GRAPH, MODEL
from .nodes import CONSTANTS, MEANING, SIGNATURE
from .quantization import NUMBERS, QUANTIZATION
from .rule import Rule, quoted
from .tensors import (
    DATA,
    NAMING,
    VALUES,
    data_violations,
    form_violations,
    is_name,
    quantization_violations,
    tensor_violations,
)
from .vectors import ENDS as VECTOR_ENDS
from .vectors import SIZES, digested_count, vector_data_violations, vector_violations, vectors_violations

__all__ = [
    "RULES",
    "Rule",
    "data_violations",
    "digested_count",
    "form_violations",
    "graph_violations",
    "is_name",
    "meaning_violations",
    "quantization_violations",
    "require_sound",
    "tensor_violations",
    "vector_data_violations",
    "vector_violations",
    "violations",
]

_STAGES = (
    NAMING, DATA, QUANTIZATION, NUMBERS, VALUES, GRAPH, EDGES, ENDS, MODEL, SIGNATURE, MEANING, CONSTANTS, VECTOR_ENDS,
    SIZES,
)  # fmt: skip

RULES: tuple[Rule, ...] = tuple(
    sorted((rule for stage in _STAGES for rule in stage.rules if rule.sentence), key=lambda rule: int(rule.number[1:]))
)
"""Every rule, by number."""


def violations(model: Model) -> list[Violation]:
    """Every violation of a rule. Raises DigestError if constants cannot be read because they were damaged."""
    found: list[Violation] = []
    for name, tensor in counted(model.tensors.items(), "checking", len(model.tensors), "tensors"):
        broken = tensor_violations(tensor)
        if name != tensor.name:
            broken.append(Violation("V1", f"tensor {quoted(tensor.name)}", f"is stored under the name {quoted(name)}"))
        found += broken or data_violations(tensor)
    sound = not found
    found += graph_violations(model)
    return found + vectors_violations(model) if sound else found


def require_sound(model: Model) -> None:
    """ValidityError if the graph breaks rules, so that code that runs or rewrites graphs need not check for them.

    A file may not have been written by `save`, and opening one checks only its tensors.
    """
    if broken := graph_violations(model):
        raise ValidityError(broken)


def graph_violations(model: Model, lost: tuple[type[Exception], ...] = ()) -> list[Violation]:
    """The rules of the graph and its nodes that they break: V30–V49, and from V52 on. `lost` is what reading a constant
    may raise: the rules on its values are then left out."""
    from ..ops import known

    graph = model.graph
    found = GRAPH.broken("graph", graph)
    available = set(graph.inputs) | {tensor.name for tensor in graph.constants()}
    for index, node in enumerate(graph.nodes):
        where, operator = partial(_place, index, node), known(node)
        broken = EDGES.broken(where, node, graph.tensors, available) + SIGNATURE.broken(where, node, operator)
        with suppress(*lost):
            broken = broken or meaning_violations(where, node, graph.tensors)
        available.update(node.outputs)
        found += broken
    return found + ENDS.broken("graph", graph, available) + MODEL.broken("model", model)


def meaning_violations(where: str | Callable[[], str], node: Node, tensors: Mapping[str, Tensor]) -> list[Violation]:
    """The rules that a node breaks by its attributes and tensors. Its signature must be valid."""
    from ..ops import known

    operator = known(node)
    if operator is None:
        return []
    subject = where, node, operator, tensors
    return MEANING.broken(*subject) or CONSTANTS.broken(*subject)


def _place(index: int, node: Node) -> str:
    return f"node {index} ({some([node.operator or 'no operator'])} → {some(node.outputs)})"
