"""Edits of a graph: remove unneeded nodes, rename tensors, change its inputs and outputs, replace weights."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..content import QUANTIZED_INPUTS
from ..errors import QfmtError
from ..model import Graph, Model, Node, Quantization, StoredArray, Tensor
from ..ops import only_moves
from .proofs import with_ranges_of_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def without_unread(nodes: Iterable[Node], outputs: Iterable[str]) -> list[Node]:
    """The nodes that an output depends on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def without_idle_rules(graph: Graph) -> Graph:
    """The graph in which nodes that only move integers state no rule."""
    nodes = (replace(node, rule="") if only_moves(node, graph.tensors) else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def only_read(graph: Graph) -> Graph:
    """The graph without the tensors that no node, input or output names."""
    named = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    named |= {*graph.inputs, *graph.outputs}
    return replace(graph, tensors={name: tensor for name, tensor in graph.tensors.items() if name in named})


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with renamed tensors, as far as no other tensor has the new name, as an alias either; its inputs and
    outputs keep their names."""
    tensors, aliases = graph.tensors, Counter(alias for each in graph.tensors.values() for alias in each.aliases)
    free = {
        old: new
        for old, new in names.items()
        if old in tensors and new not in tensors and aliases[new] == (new in tensors[old].aliases)
    }
    first = {new: old for old, new in reversed(free.items())}
    ends = {*graph.inputs, *graph.outputs}
    return _renamed(graph, {old: new for new, old in first.items() if old not in ends})


def with_inputs(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph whose inputs have these names, in order. Another tensor with such a name gets a new one."""
    given = dict(zip(graph.inputs, names, strict=False))
    taken = {*graph.tensors, *names}
    for name in names:
        if name in graph.tensors and name not in given:
            given[name] = next(free for index in itertools.count() if (free := f"{name}.{index}") not in taken)
            taken.add(given[name])
    return _renamed(graph, given)


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    if not names:
        return graph
    tensors = {}
    for name, tensor in graph.tensors.items():
        own = names.get(name, name)
        aliases = tuple(alias for alias in tensor.aliases if alias != own)
        tensors[own] = tensor if own == name else replace(tensor, name=own, aliases=aliases)
    return replace(
        graph,
        inputs=_under(names, graph.inputs),
        outputs=_under(names, graph.outputs),
        nodes=[
            replace(node, inputs=_under(names, node.inputs), outputs=_under(names, node.outputs))
            for node in graph.nodes
        ],
        tensors=tensors,
    )


def _under(names: Mapping[str, str], old: Iterable[str]) -> tuple[str, ...]:
    return tuple(names.get(name, name) for name in old)


def rename(model: Model, names: Mapping[str, str]) -> Model:
    """The model with tensors under other names, its test vectors too; see `Model.rename`."""
    graph = model.graph
    found = {existing(graph, old).name: new for old, new in names.items()}
    kept = graph.tensors.keys() - found.keys()
    for new, count in Counter(found.values()).items():
        if not new or count > 1 or new in kept:
            raise QfmtError(f"the name {new!r} is taken" if new else "a tensor needs a name")
    aliased = {
        old: replace(graph.tensors[old], aliases=tuple(sorted({*graph.tensors[old].aliases, old})))
        for old, new in found.items()
        if old != new
    }
    vectors = tuple(
        replace(vector, inputs=_keyed(found, vector.inputs), outputs=_keyed(found, vector.outputs))
        for vector in model.vectors
    )
    made = _renamed(replace(graph, tensors={**graph.tensors, **aliased}), found)
    own = {name: found.get(name, name) for name in graph.inputs}
    return replace(model, graph=made, vectors=vectors, source=_of_inputs(model.source, own))


def _of_inputs(source: Mapping[str, str], names: Mapping[str, str]) -> Mapping[str, str]:
    """The source keys with the integer inputs that are left, under their names (docs/spec/conversions.md)."""
    others = {key: value for key, value in source.items() if key != QUANTIZED_INPUTS}
    parts = [each.partition(" = ") for each in source.get(QUANTIZED_INPUTS, "").split("; ")]
    kept = "; ".join(names[own] + equals + how for own, equals, how in parts if own in names)
    return {**others, QUANTIZED_INPUTS: kept} if kept else others


def _keyed(names: Mapping[str, str], values: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    return {names.get(name, name): value for name, value in values.items()}


def subgraph(model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> Model:
    """The part of the model between tensors; see `Model.subgraph`."""
    graph = model.graph
    begin = [computed(graph, name).name for name in inputs] or list(graph.inputs)
    end = [computed(graph, name).name for name in outputs] or list(graph.outputs)
    given = set(begin)
    nodes = without_unread((node for node in graph.nodes if not given.issuperset(node.outputs)), end)
    made = {name for node in nodes for name in node.outputs}
    if both := [name for name in begin if name in made]:
        raise QfmtError("is one of multiple outputs of a node that is needed", where=both[0], hint="name them all")
    read = {name for node in nodes for name in node.inputs}.union(end) - {""}
    if missing := [name for name in read - made - given if not graph.tensors[name].is_constant]:
        known = ", ".join(sorted(missing)[:3])
        raise QfmtError(f"the outputs need more inputs: {known}", hint="name them as inputs too")
    begin = [name for name in dict.fromkeys(begin) if name in read or inputs]
    begun = given.difference(graph.inputs)  # whose range is that of all channels: less than was proven
    nodes = [replace(node, proof=None) if node.proof and begun.intersection(node.inputs) else node for node in nodes]
    part = only_read(replace(graph, inputs=tuple(begin), outputs=tuple(end), nodes=nodes))
    kept = {name: name for name in graph.inputs if name in part.inputs}
    return replace(model, graph=part, source=_of_inputs(model.source, kept), vectors=())


def replace_tensor(model: Model, name: str, values: ArrayLike, quantization: Quantization | None) -> Model:
    """The model with other values of a constant; see `Model.replace_tensor`."""
    old = existing(model.graph, name)
    if not old.is_constant:
        raise QfmtError("is computed, not stored: it has no values to replace", where=old.name)
    stored = StoredArray.of(values, old.dtype, where=old.name)
    if stored.shape != old.shape:
        raise QfmtError(f"has the shape {list(old.shape or ())}, the new values {list(stored.shape)}", where=old.name)
    new = replace(old, dtype=stored.dtype, data=stored.data, quantization=quantization or old.quantization)
    nodes = [replace(node, proof=None) if node.proof else node for node in model.nodes]
    tensors = {**model.graph.tensors, old.name: new}
    changed = replace(model, graph=replace(model.graph, nodes=nodes, tensors=tensors), vectors=())
    return with_ranges_of_sums(changed, old.name)


def existing(graph: Graph, name: str) -> Tensor:
    """A tensor by any name that `Graph.find` accepts; QfmtError with similar names if there is none."""
    tensor = graph.find(name)
    if tensor is None:
        near = ", ".join(graph.near(name))
        hint = f"similar: {near}" if near else "`qfmt inspect FILE --tensors` lists the names"
        raise QfmtError(f"there is no tensor {name!r}", hint=hint)
    return tensor


def computed(graph: Graph, name: str) -> Tensor:
    """A tensor that is an input, or that a node computes; QfmtError for a constant."""
    tensor = existing(graph, name)
    if tensor.is_constant:
        raise QfmtError("is a constant: a network cannot begin or end with it", where=tensor.name)
    return tensor
