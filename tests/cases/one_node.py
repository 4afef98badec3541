"""A network of one node."""

from __future__ import annotations

from typing import Any

from qfmt.model import Graph, Model, Node, Tensor
from qfmt.ops import OPERATORS


def single(name: str, rule: str, tensors: list[Tensor | None], output: Tensor, attributes: dict[str, Any]) -> Model:
    """A model of one node; tensors that are not constant are inputs."""
    entry = OPERATORS[name]
    names = tuple("" if each is None else each.name for each in tensors)
    given = {each.name: each for each in tensors if each is not None}
    node = Node(name, names, (output.name,), entry.complete(attributes), "node", entry.version, rule)
    inputs = tuple(each.name for each in given.values() if not each.is_constant)
    return Model(Graph(inputs, (output.name,), (node,), {**given, output.name: output}), engine="integer")
