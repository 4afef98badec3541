"""Which nodes and tensors an output depends on."""

from __future__ import annotations

from collections.abc import Iterable
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
