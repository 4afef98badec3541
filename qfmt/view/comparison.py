"""What a page paints: the differences of two models, or the result of `verify`, node by node."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compare.difference import Pairing, diff
from ..compare.report import COUNTS
from ..notation import json_value
from .description import describe, places, text

if TYPE_CHECKING:
    from ..compare import Report
    from ..model import Model


def of_two(model: Model, other: Model, name: str) -> dict[str, Any]:
    """How `other` differs from `model`. A row for each node of either, in order: the index in both, or -1, and words.

    Raises ValidityError for a graph that breaks rules.
    """
    found = diff(model, other)
    pairing = Pairing(model.graph, other.graph)
    mine, theirs = ({id(node): index for index, node in enumerate(each.nodes)} for each in (model, other))
    words = [[*map(text, node.words)] for node in pairing.node_differences(provenance=True)]
    pairs = [
        (-1 if a is None else mine[id(a)], -1 if b is None else theirs[id(b)], said)
        for (a, b), said in zip(pairing.nodes, words, strict=True)
    ]
    first, second = places(model), places(other)
    tensors: dict[int, str] = {}
    others: dict[int, str] = {}
    for tensor in found.tensors:
        if tensor.other or (tensor.name in first and tensor.name not in pairing.tensors):
            tensors[first[tensor.name]] = text(str(tensor))
        else:
            others[second[tensor.name]] = text(str(tensor))
    alone = deque(pair for pair in pairs if pair[1] < 0)
    rows = []
    for pair in pairs:
        if pair[1] < 0:
            continue
        while alone and alone[0][0] < pair[0]:
            rows.append(alone.popleft())
        rows.append(pair)
    return {
        "kind": "diff",
        "other": describe(other, name),
        "equal": found.is_equal,
        "sameContent": model.content_id() == other.content_id(),
        "rows": [*rows, *alone],
        "tensors": tensors,
        "otherTensors": others,
        "words": [*map(text, found.words)],
    }


def of_report(model: Model, report: Report) -> dict[str, Any]:
    """What `verify` counted at each node of the model; None for a node that was not run."""
    named = places(model)
    weights = {
        weight.name: "; ".join(
            [f"{weight.different:,} of {weight.elements:,} values differ"] * bool(weight.different)
            + [*weight.differences]
        )
        for weight in report.weights
        if not weight.ok
    }
    waiting = defaultdict[tuple[str, str], deque[Any]](deque)  # nodes may share a name
    for node in report.nodes:
        waiting[node.name, node.operator].append(node)
    counted = [found.popleft() if (found := waiting.get((node.label, node.operator))) else None for node in model.nodes]
    return {
        "kind": "verify",
        "source": Path(report.source).name,
        "engine": report.engine,
        "version": report.version,
        "ok": report.ok,
        "exact": report.is_exact,
        "first": text(report.first_wrong),
        "inputs": report.inputs,
        "skipped": report.skipped,
        "nodes": [
            None
            if node is None
            else json_value({name: getattr(node, name) for name in (*COUNTS, "largest")})
            | {"differences": [*map(text, node.differences)]}
            for node in counted
        ],
        "tensors": {named[name]: text(words) for name, words in weights.items() if name in named},
        "outputs": [
            {key: value for key, value in asdict(output).items() if key != "largest"} | {"name": text(output.name)}
            for output in report.outputs
        ],
        "words": [
            *map(text, report.notes),
            *(f"{text(name)} is only in the source" for name in report.missing),
            *(f"{text(name)}: {text(words)}" for name, words in weights.items() if name not in named),
            *map(text, report.interface),
        ],
    }
