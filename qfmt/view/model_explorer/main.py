"""The adapter. Model Explorer imports this module and finds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs, graph_builder

import qfmt

from ...errors import printable, shortened
from ...notation import quantization_cells, shape_text
from ..modules import module_paths

if TYPE_CHECKING:
    from ...model import Graph, Node, Tensor

LONGEST = 200
INPUTS, OUTPUTS = "inputs", "outputs"


class QfbAdapter(Adapter):  # type: ignore[misc]
    """Shows `.qfb` files: modules as layers, scales and zero points of every tensor."""

    metadata: ClassVar[Any] = AdapterMetadata(
        id="qfmt", name="qfmt", description="Quantized networks in .qfb files", fileExts=["qfb"]
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """The graph of a file. Raises QfmtError for a file that cannot be read."""
        with qfmt.load(model_path) as model:
            return {"graphs": [graph_of(model.graph)]}


def graph_of(graph: Graph) -> Any:
    """The graph as Model Explorer has it. The id of a node is its place, as in the node data of `qfmt view`."""
    made = {name: (INPUTS, str(index)) for index, name in enumerate(graph.inputs)}
    nodes = [_end(INPUTS, graph, graph.inputs)]
    for place, (node, modules) in enumerate(zip(graph.nodes, module_paths(graph.nodes), strict=True)):
        nodes.append(_node(place, node, "/".join(modules), graph, made))
        made.update((name, (str(place), str(index))) for index, name in enumerate(node.outputs))
    nodes.append(_end(OUTPUTS, graph, graph.outputs))
    nodes[-1].incomingEdges = list(_edges(graph.outputs, made))
    return graph_builder.Graph(id=_text(graph.name) or "main", nodes=nodes)


def _end(name: str, graph: Graph, tensors: tuple[str, ...]) -> Any:
    metadata = [_tensor(str(index), graph.tensors[each]) for index, each in enumerate(tensors)]
    ends = {"outputsMetadata" if name == INPUTS else "inputsMetadata": metadata}
    return graph_builder.GraphNode(id=name, label=name, **ends)


def _node(place: int, node: Node, modules: str, graph: Graph, made: dict[str, tuple[str, str]]) -> Any:
    facts = {"name": node.label, "rule": node.rule, "from": node.source_operator}
    facts |= {key: str(value) for key, value in sorted(node.attributes.items())}
    return graph_builder.GraphNode(
        id=str(place),
        label=_text(node.operator.removeprefix("qfmt.")),
        namespace=_text(modules),
        attrs=[_pair(key, value) for key, value in facts.items() if value],
        incomingEdges=list(_edges(node.inputs, made)),
        inputsMetadata=[_tensor(str(index), graph.tensors[name]) for index, name in enumerate(node.inputs) if name],
        outputsMetadata=[_tensor(str(index), graph.tensors[name]) for index, name in enumerate(node.outputs) if name],
    )


def _edges(names: tuple[str, ...], made: dict[str, tuple[str, str]]) -> Iterator[Any]:
    for index, name in enumerate(names):
        if name in made:
            source, output = made[name]
            yield graph_builder.IncomingEdge(source, output, str(index))


def _tensor(place: str, tensor: Tensor) -> Any:
    facts = {
        "tensor_name": tensor.name,
        "__tensor_tag": tensor.name,
        "shape": f"{tensor.dtype}{shape_text(tensor.shape)}",
    }
    if tensor.quantization is not None:
        cells = quantization_cells(tensor.quantization)
        facts |= dict(zip(("scale", "zero_point", "range", "granularity"), cells, strict=True))
    return graph_builder.MetadataItem(id=place, attrs=[_pair(key, value) for key, value in facts.items()])


def _pair(key: str, value: str) -> Any:
    return graph_builder.KeyValue(key=_text(key), value=_text(value))


def _text(text: str) -> str:
    return printable(shortened(text, LONGEST))
