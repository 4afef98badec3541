"""V30–V39: the graph as a whole, and the rest of the model beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model import Graph, Model, Node, Tensor
from .rule import Stage, first_of, is_text

GRAPH = Stage()
EDGES = Stage()
ENDS = Stage()
MODEL = Stage()


@GRAPH.rule(30, "An input of the graph is a tensor of the graph, is not a constant, and appears only once.")
def _inputs(graph: Graph) -> str:
    if missing := [name for name in graph.inputs if name not in graph.tensors]:
        return f"the input {first_of(missing)} is not a tensor"
    if constant := [name for name in graph.inputs if graph.tensors[name].is_constant]:
        return f"the input {first_of(constant)} is a constant"
    return "" if len(set(graph.inputs)) == len(graph.inputs) else "an input is listed twice"


@EDGES.rule(
    31,
    "The inputs of a node are tensors of the graph, or absent; its outputs are tensors of the graph. In a file this is "
    "F7.",
)
def _edges(node: Node, tensors: Mapping[str, Tensor], available: set[str]) -> str:
    names = [name for name in node.inputs if name] + list(node.outputs)
    missing = [name for name in names if name not in tensors]
    return f"{first_of(missing)} is not a tensor of the graph" if missing else ""


@EDGES.rule(32, "A tensor is the output of at most one node; graph inputs and constants are not outputs of any node.")
def _produced_once(node: Node, tensors: Mapping[str, Tensor], available: set[str]) -> str:
    if len(set(node.outputs)) < len(node.outputs):
        return "an output is listed twice"
    again = [name for name in node.outputs if name in available]
    return f"{first_of(again)} is an input, a constant or the output of an earlier node" if again else ""


@EDGES.rule(33, "A node reads only inputs of the graph, constants, and outputs of earlier nodes.")
def _order(node: Node, tensors: Mapping[str, Tensor], available: set[str]) -> str:
    early = [name for name in node.inputs if name in tensors and name not in available]
    return f"{first_of(early)} is read before it is computed" if early else ""


@ENDS.rule(
    35,
    "Every tensor, and so every output of the graph, is an input of the graph, a constant, or the output of a node. In "
    "an archive (no nodes, inputs or outputs) it may also be none of these, if it is quantized.",
)
def _dangling(graph: Graph, available: set[str]) -> str:
    loose = [name for name in dict.fromkeys((*graph.tensors, *graph.outputs)) if name not in available]
    if graph.is_archive:
        loose = [name for name in loose if graph.tensors[name].quantization is None]
    return f"nothing computes {first_of(loose)}" if loose else ""


@MODEL.rule(
    36,
    "All other strings, also in test vectors and proofs, are Unicode text as in rule V5; keys of source and metadata "
    "are not empty.",
)
def _text(model: Model) -> str:
    if "" in model.source or "" in model.metadata:
        return "a key is empty"
    wrong = [text for text in _strings(model) if not is_text(text)]
    return f"{first_of(wrong)} is not valid text" if wrong else ""


def _strings(model: Model) -> Iterator[str]:
    """Every string of a model outside its tensors; V5 covers those of tensors."""
    yield from (model.producer, model.engine, model.graph.name)
    for pairs in (model.source, model.metadata):
        yield from pairs.keys()
        yield from pairs.values()
    for node in model.graph.nodes:
        yield from (node.operator, node.rule, node.name, node.scope, node.source_operator)
        if node.proof is not None:
            yield node.proof.compared
        for name, value in node.attributes.items():
            yield name
            yield from (text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str))
