"""Rules that have no effect are not stated."""

from __future__ import annotations

from dataclasses import replace

from ..model import Graph
from ..ops import only_moves


def without_idle_rules(graph: Graph) -> Graph:
    """The graph in which nodes that only move integers state no rule."""
    nodes = (replace(node, rule="") if only_moves(node, graph.tensors) else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))
