"""The facts that `qfmt inspect` shows about a model, as plain data for the tables and for `--json`.

The keys are stable: later versions may add keys, but do not change or remove any.

    file        path, kind ("qfb", or "converted": made in memory from another format), bytes, content_id;
                of a .qfb also format ("1.0") and sha256 (the digest in its header; it commits to the whole file)
    producer, engine, source {key: text}, metadata {key: text}, inputs [name], outputs [name]
    counts      nodes, tensors, parameters (elements of constants), operators {name: count},
                parameter_dtypes {dtype: elements}
    nodes       [index, name, operator, version, inputs, outputs, attributes, rule, scope, source_operator, proof (null,
                or low [..], high [..], compared, differs [..], largest)]
    vectors     [name, inputs {name: shape}, outputs {name: shape}, digests {name: hex}]: the test vectors
    tensors     [name, dtype, shape, constant, bytes, quantization, aliases, written_by, read_by]
    hazards     [node, operator, weight, channels, largest_sum, can_saturate, everywhere, engines {name: facts}]: the
                products, and per engine largest, channels, harmless (qfmt/passes/hazards.py); null if the graph breaks
                rules, or if too many products share one weight
    quantization (or null)  block [..] ([]: per tensor), scale, zero_point, offset, table, group_index (an array, or
                null), quant_min, quant_max, names [scale, zero point], observed (null: not in the source; or observer,
                minimum [..], maximum [..], and the quant_min, quant_max (or null) and qscheme that the observer chose
                the scale for)
    an array    dtype, shape, values [..] (null: more than 4096 bytes, in a buffer), quantization: null, or, if the
                values are codes of a second level, block, scale, zero_point, offset, table, group_index

    --tensor    the tensor, with stored_min, stored_max, real_min, real_max; if a shard is missing, `error` names it
    --stats     [name, dtype, shape, axis (of the channels, or null), elements, min, max, first, width, bins [..], used,
                codes, low, high, dead, scale_min, scale_max, error]: as qfmt/passes/statistics.py has it; a key
                is absent where it means nothing, as codes of floats
    --tree      name, nodes, parameters, bytes, operators {name: count}, modules [the same]

`written_by` is the index of a node or null, `read_by` a list of indices; a dimension of a shape is a number, a name
or null, and a shape is null where not even the rank is known. `bytes` is null for what is not stored. A number that
is not finite is the string "inf", "-inf" or "nan", since JSON cannot represent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from typing import Any

from ..budget import Budget
from ..errors import BudgetError, ValidityError, some
from ..model import (
    Graph,
    Model,
    Node,
    Parameter,
    Quantization,
    Tensor,
    Vector,
    digested,
    static_shape,
)
from ..quantization import PARAMETERS
from ..urls import Place, size_of
from .source import QFB

Facts = dict[str, Any]

NUMBER_BYTES = 50
"""Bytes of a number of an array in memory and in JSON."""


class Users:
    """Which node writes a tensor, which nodes read it, and the ends of the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.inputs, self.outputs = graph, set(graph.inputs), set(graph.outputs)
        self.writer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            self.writer.update(dict.fromkeys(node.outputs, index))
            for name in dict.fromkeys(filter(None, node.inputs)):
                self.readers.setdefault(name, []).append(index)
        self._quantized: dict[int, tuple[bool, bool]] = {}

    def quantized(self, index: int) -> tuple[bool, bool]:
        """Whether a constant that the node reads is quantized, and whether a tensor that it computes is: found once."""
        if index not in self._quantized:
            node, tensors = self.graph.nodes[index], self.graph.tensors
            read, made = ([tensors[name] for name in filter(None, names)] for names in (node.inputs, node.outputs))
            self._quantized[index] = (
                any(tensor.is_constant and tensor.quantization is not None for tensor in read),
                any(tensor.quantization is not None for tensor in made),
            )
        return self._quantized[index]


def describe(model: Model, path: Place, kind: str) -> Facts:
    """Everything, as the module's docstring lists it. The content id needs the digests of all data."""
    graph, users = model.graph, Users(model.graph)
    budget = Budget.of(model, "describing a network of")
    for node in graph.nodes:  # many may share a text, or a quantization
        texts = (*node.inputs, *node.outputs, node.label, node.operator, node.rule, node.scope, node.source_operator)
        budget.allocate(sum(map(len, texts)))
    ends = sum(map(len, (*graph.inputs, *graph.outputs)))
    budget.allocate(ends * (1 + len(model.vectors)))
    for grid in filter(None, (tensor.quantization for tensor in graph.tensors.values())):
        inline = sum(prod(each.shape) for _, each in grid.parameters() if each.is_inline)
        budget.allocate(sum(map(len, grid.names)) + NUMBER_BYTES * inline)
    return {
        "file": file_facts(model, path, kind) | {"content_id": model.content_id().hex()},
        "producer": model.producer,
        "engine": model.engine,
        "source": dict(model.source),
        "metadata": dict(model.metadata),
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "counts": counts(graph),
        "nodes": [node_facts(index, node) for index, node in enumerate(graph.nodes)],
        "tensors": [tensor_facts(tensor, users) for tensor in graph.tensors.values()],
        "vectors": vectors_facts(model),
        "hazards": _hazards(model),
    }


def _hazards(model: Model) -> list[Facts] | None:
    from ..passes.hazards import hazards
    from .hazards import hazard_facts

    try:
        return hazard_facts(hazards(model))
    except (ValidityError, BudgetError):
        return None


def file_facts(model: Model, path: Place, kind: str) -> Facts:
    """The facts of a model's file that do not require its data, so a gigabyte is listed as quickly as a megabyte. For a
    `.qfb`, they describe the file that was opened, even if another file has its name by now."""
    facts: Facts = {"path": str(path), "kind": kind}
    if kind != QFB:
        return facts | {"bytes": size_of(path)}
    from ..file.tensors import Tensors

    held = model.graph.tensors
    assert isinstance(held, Tensors)
    header = held.header
    format_ = f"{header.identifier[3:].decode('latin-1')}.{held.minor_version}"
    return facts | {"bytes": header.file_size, "format": format_, "sha256": header.sha256.hex()}


def counts(graph: Graph) -> Facts:
    """How many of each kind."""
    operators = Counter(node.operator for node in graph.nodes)
    dtypes: Counter[str] = Counter()
    for tensor in graph.constants():
        dtypes[tensor.dtype] += prod(static_shape(tensor))
    return {
        "nodes": len(graph.nodes),
        "tensors": len(graph.tensors),
        "parameters": sum(dtypes.values()),
        "operators": dict(operators.most_common()),
        "parameter_dtypes": dict(dtypes.most_common()),
    }


def node_facts(index: int, node: Node) -> Facts:
    return {
        "index": index,
        "name": node.label,
        "operator": node.operator,
        "version": node.version,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": dict(node.attributes),
        "rule": node.rule,
        "scope": node.scope,
        "source_operator": node.source_operator,
        "proof": node.proof and asdict(node.proof),
    }


def vectors_facts(model: Model) -> list[Facts]:
    named = digested(model.graph) if any(vector.digests for vector in model.vectors) else []
    return [vector_facts(vector, model.graph, named) for vector in model.vectors]


def vector_facts(vector: Vector, graph: Graph, named: list[tuple[Node, str]]) -> Facts:
    inputs, outputs = (
        {name: list(value.shape) for name, value in values.items()} for values in (vector.inputs, vector.outputs)
    )
    digests = {name: digest.hex() for _, name, digest in vector.stated_digests(graph, named)}
    return {"name": vector.name, "inputs": inputs, "outputs": outputs, "digests": digests}


def tensor_facts(tensor: Tensor, users: Users) -> Facts:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "constant": tensor.is_constant,
        "bytes": None if tensor.data is None else tensor.data.nbytes,
        "quantization": None if tensor.quantization is None else quantization_facts(tensor.quantization),
        "aliases": list(tensor.aliases),
        "written_by": users.writer.get(tensor.name),
        "read_by": users.readers.get(tensor.name, []),
    }


def quantization_facts(quantization: Quantization) -> Facts:
    """Everything except the numbers of large arrays."""
    q = quantization
    return {
        **level_facts(q),
        "quant_min": q.quant_min,
        "quant_max": q.quant_max,
        "observed": q.observed and asdict(q.observed),
        "names": list(q.names),
    }


def level_facts(quantization: Quantization) -> Facts:
    """What a second level has, too."""
    arrays = {name: parameter_facts(getattr(quantization, name)) for name in PARAMETERS}
    return {"block": list(quantization.block), **arrays}


def parameter_facts(values: Parameter | None) -> Facts | None:
    """An array of a quantization; its numbers only if they are in the metadata."""
    if values is None:
        return None
    nested = values.quantization
    return {
        "dtype": values.dtype,
        "shape": list(values.shape),
        "values": list(values.stored_numbers()) if values.is_inline else None,
        "quantization": nested and level_facts(nested),
    }


def why_float(model: Model, tensor: Tensor, users: Users) -> str:
    """Why a floating-point tensor was not quantized, as far as the graph shows."""
    if tensor.is_constant:
        return _why_constant(model, tensor, users)
    readers = [model.nodes[index] for index in users.readers.get(tensor.name, ())]
    if tensor.name in users.inputs:
        quantizers = [node for node in readers if node.operator == "QuantizeLinear"]
        return "input of the graph" + (f", quantized by {_names(quantizers[:1])}" if quantizers else "")
    if tensor.name not in users.writer:
        return "no node computes it"
    index = users.writer[tensor.name]
    writer = model.nodes[index]
    if writer.operator == "DequantizeLinear":
        used = "for the output of the graph" if tensor.name in users.outputs else f"for {_names(readers)}"
        return f"dequantized {used}"
    return f"{_names([writer])} ({writer.operator}) {_in_float(users, index)}"


def _in_float(users: Users, index: int) -> str:
    """How a node with a float output computes."""
    if users.quantized(index)[0]:
        return "has quantized weights only: its output is a float"
    return "is not quantized in the source: it computes in float"


def _why_constant(model: Model, tensor: Tensor, users: Users) -> str:
    if model.no_graph:
        return "the source has no graph, so its readers are unknown"
    readers = [model.nodes[index] for index in users.readers.get(tensor.name, ())]
    if not readers:
        return "no node reads it"
    node, index = readers[0], users.readers[tensor.name][0]
    quantized = users.quantized(index)[1]
    if quantized and tensor.name not in node.inputs[:2]:
        return f"bias of {_names(readers)}: {_BIAS.get(node.rule, 'kept as the source had it')}"
    if quantized:
        return f"parameter of {_names(readers)}, which computes in float and quantizes its result"
    return f"parameter of {_names(readers)}, which {_in_float(users, index)}"


_BIAS: Mapping[str, str] = {
    "float_bias": "the engine adds it as a float, so an int32 bias would change the results",
    "affine": "the engine adds it as a float, so an int32 bias would change the results",
    "integer_bias": "kept as in the source; the engine rounds it to int32 at run time",
}


def _names(nodes: list[Node]) -> str:
    return some([node.label for node in nodes]) or "nothing"


def origin(source: Mapping[str, str]) -> str:
    """The source of a model: file, format, framework and its version, if they are known."""
    framework = " ".join(filter(None, (source.get("framework"), source.get("framework_version"))))
    return ", ".join(filter(None, (source.get("file"), source.get("format"), framework))) or "unknown"


def discarded_calibration(model: Model, tensor: Tensor) -> bool:
    """Whether the tensor was calibrated in PyTorch, whose `convert` discards the observed range.

    If the file contains an observer, the model was not converted.
    """
    quantization = tensor.quantization
    from_torch = model.source.get("framework") == "pytorch"
    watched = any(name.rpartition(".")[2] == "min_val" for name in model.tensors)
    return quantization is not None and quantization.observed is None and from_torch and not watched
