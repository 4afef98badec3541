"""A layered layout of a graph: each node below those that it reads from (Sugiyama, Tagawa, Toda 1981).

The page uses dagre. This is for pictures without a browser; no library for it is maintained and has no dependencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONG = 40
"""Layers that an edge may cross and still be led around the nodes between."""
PLACES = 100_000
"""The most places between nodes for all edges together: with more of them, fewer layers are crossed so."""
SWEEPS = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """`nodes`: column and row of each node, a column is as wide as a node. `edges`: (from, to) → points on the way."""

    nodes: list[tuple[float, int]]
    edges: dict[tuple[int, int], list[tuple[float, int]]]


def layout(count: int, edges: Iterable[tuple[int, int]]) -> Layout:
    """Place nodes 0 … count - 1. An edge leads from a smaller number to a greater one."""
    links = sorted({(a, b) for a, b in edges if 0 <= a < b < count})
    rows = [0] * count
    for a, b in sorted(links, key=lambda link: link[1]):
        rows[b] = max(rows[b], rows[a] + 1)
    above: list[list[int]] = [[] for _ in range(count)]
    ways: dict[tuple[int, int], list[int]] = {}
    spans = [rows[b] - rows[a] for a, b in links]
    long = LONG
    while sum(span - 1 for span in spans if span <= long) > PLACES:
        long //= 2
    for a, b in links:
        chain = [a]
        if rows[b] - rows[a] <= long:
            for row in range(rows[a] + 1, rows[b]):  # a place for the edge in each row that it crosses
                rows.append(row)
                above.append([chain[-1]])
                chain.append(len(rows) - 1)
            above[b].append(chain[-1])
        ways[a, b] = chain[1:]
    below: list[list[int]] = [[] for _ in rows]
    for node, others in enumerate(above):
        for other in others:
            below[other].append(node)
    layers: list[list[int]] = [[] for _ in range(max(rows, default=0) + 1)]
    for node in _in_depth(count, below, above):
        layers[rows[node]].append(node)
    columns = _columns(layers, above, below, len(rows), [0.35 if node >= count else 1.0 for node in range(len(rows))])
    placed = [(columns[node], rows[node]) for node in range(len(rows))]
    return Layout(placed[:count], {link: [placed[node] for node in way] for link, way in ways.items()})


def _in_depth(count: int, below: Sequence[Sequence[int]], above: Sequence[Sequence[int]]) -> list[int]:
    """An order that keeps branches together."""
    seen: set[int] = set()
    found = []
    for start in range(count):
        pending = [] if above[start] else [start]
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                found.append(node)
                pending.extend(reversed(below[node]))
    return found


def _columns(
    layers: list[list[int]],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
    count: int,
    widths: Sequence[float],
) -> list[float]:
    """Order each layer by the means of its neighbours, in turns from above and from below, and pack it around them."""
    columns = [0.0] * count
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else reversed(layers):
            others = above if downwards else below
            wanted = {
                node: sum(columns[other] for other in others[node]) / len(others[node])
                if others[node]
                else columns[node]
                for node in layer
            }
            layer.sort(key=lambda node: wanted[node])
            at, places = float("-inf"), []
            for node in layer:
                at = max(at, wanted[node] - widths[node] / 2)
                places.append(at)
                at += widths[node]
            shift = sum(wanted[node] - place - widths[node] / 2 for node, place in zip(layer, places, strict=True))
            for node, place in zip(layer, places, strict=True):
                columns[node] = place + widths[node] / 2 + shift / len(layer)
    left = min((columns[node] - widths[node] / 2 for node in range(count)), default=0.0)
    return [column - left - 0.5 for column in columns]
