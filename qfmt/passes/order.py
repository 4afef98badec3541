"""Which nodes and tensors an output depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..model import Graph, Node


def without_unread(nodes: Iterable[Node], outputs: Iterable[str]) -> list[Node]:
    """The nodes that an output depends on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def only_read(graph: Graph) -> Graph:
    """The graph without the tensors that no node, input or output names."""
    named = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    named |= {*graph.inputs, *graph.outputs}
    return replace(graph, tensors={name: tensor for name, tensor in graph.tensors.items() if name in named})


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with tensors under other names, as far as these are free."""
    free = {old: new for old, new in names.items() if old in graph.tensors and new not in graph.tensors}
    first = {new: old for old, new in reversed(free.items())}
    names = {old: new for new, old in first.items() if old not in (*graph.inputs, *graph.outputs)}
    if not names:
        return graph
    nodes = [
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    ]
    tensors = {}
    for name, tensor in graph.tensors.items():
        own = names.get(name, name)
        tensors[own] = tensor if own == name else replace(tensor, name=own, aliases=_without(tensor.aliases, own))
    return replace(graph, nodes=nodes, tensors=tensors)


def _without(aliases: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(alias for alias in aliases if alias != name)
