"""What `qfmt inspect` says about a model, as plain data: the tables print it, `--json` writes it.

The keys are stable: later versions add some, and change or remove none.

    file        path, kind ("qfb", or "converted": made in memory from another format), bytes, content_id;
                of a .qfb also format ("1.0") and sha256 (the digest in its header; it commits to the whole file)
    producer, arithmetic, source {key: text}, metadata {key: text}, inputs [name], outputs [name]
    counts      nodes, tensors, parameters (elements of constants), operators {name: count},
                parameter_dtypes {dtype: elements}
    nodes       [index, name, operator, version, inputs, outputs, attributes, arithmetic, scope, source_operator]
    vectors     [name, inputs {name: shape}, outputs {name: shape}]: the test vectors
    tensors     [name, dtype, shape, constant, bytes, quantization, aliases, written_by, read_by]
    quantization (or null)  scale [..], zero_point [..], quant_min, quant_max, axis (null: per tensor), scale_dtype,
                blocks (null: per tensor or per slice; or shape [..], counts [..], scale_bytes, zero_point_dtype and
                zero_point_bytes, null if `zero_point` has the one of all blocks; the scales are of type scale_dtype),
                observed (null: the source had discarded it; or observer, minimum [..], maximum [..], and
                the quant_min, quant_max (or null) and qscheme that the observer chose the scale for)

`written_by` is the index of a node or null, `read_by` a list of indices; a dimension of a shape is a number, a name
or null, and a shape is null where not even the rank is known. `bytes` is null for what is not stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

from ..model import DTYPES, Blocks, Graph, Model, Node, Quantization, Tensor, Vector, static_shape
from .source import QFB

Facts = dict[str, Any]


class Users:
    """Which node writes a tensor, and which nodes read it."""

    def __init__(self, graph: Graph) -> None:
        self.writer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            self.writer.update(dict.fromkeys(node.outputs, index))
            for name in dict.fromkeys(filter(None, node.inputs)):
                self.readers.setdefault(name, []).append(index)


def describe(model: Model, path: Path, kind: str) -> Facts:
    """Everything, as the module's docstring lists it. The content id needs the digests of all data."""
    graph, users = model.graph, Users(model.graph)
    return {
        "file": file_facts(path, kind) | {"content_id": model.content_id().hex()},
        "producer": model.producer,
        "arithmetic": model.arithmetic,
        "source": dict(model.source),
        "metadata": dict(model.metadata),
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "counts": counts(graph),
        "nodes": [node_facts(index, node) for index, node in enumerate(graph.nodes)],
        "tensors": [tensor_facts(tensor, users) for tensor in graph.tensors.values()],
        "vectors": [vector_facts(vector) for vector in model.vectors],
    }


def file_facts(path: Path, kind: str) -> Facts:
    """What is known of a file without its data: a listing takes as long for a gigabyte as for a megabyte."""
    facts: Facts = {"path": str(path), "kind": kind, "bytes": path.stat().st_size}
    if kind == QFB:
        from ..file.reader import Container

        container = Container(path, verify=False)  # it was verified when the model was opened
        major, minor = container.header.identifier[3:].decode("latin-1"), container.root["minor_version"]
        facts |= {"format": f"{major}.{minor}", "sha256": container.header.sha256.hex()}
    return facts


def counts(graph: Graph) -> Facts:
    """How much of what there is."""
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
        "name": node_name(node),
        "operator": node.operator,
        "version": node.version,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": dict(node.attributes),
        "arithmetic": node.arithmetic,
        "scope": node.scope,
        "source_operator": node.source_operator,
    }


def vector_facts(vector: Vector) -> Facts:
    inputs, outputs = (
        {name: list(value.shape) for name, value in values.items()} for values in (vector.inputs, vector.outputs)
    )
    return {"name": vector.name, "inputs": inputs, "outputs": outputs}


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
    """All but the arrays of blocks, of which it says how large they are."""
    blocks = quantization.blocks
    facts = asdict(replace(quantization, blocks=None))
    if blocks is not None:
        own = blocks.zero_point
        facts["blocks"] = {
            "shape": list(blocks.shape),
            "counts": list(blocks.scale.shape),
            "scale_bytes": blocks.scale.data.nbytes,
            "zero_point_dtype": None if own is None else own.dtype,
            "zero_point_bytes": None if own is None else own.data.nbytes,
        }
    return facts


def stored_range(tensor: Tensor) -> Facts:
    """The smallest and largest values that a constant holds, as integers and as the reals that they stand for.

    Keys: stored_min, stored_max, real_min, real_max. Reads the array.
    """
    values = tensor.array
    if values.size == 0:
        return dict.fromkeys(("stored_min", "stored_max", "real_min", "real_max"))
    real = tensor.dequantize()
    if DTYPES[tensor.dtype].kind == "f":
        values = values.astype(float)
    return {
        "stored_min": values.min().item(),
        "stored_max": values.max().item(),
        "real_min": real.min().item(),
        "real_max": real.max().item(),
    }


def real_range(quantization: Quantization) -> tuple[float, float]:
    """The real numbers that quant_min and quant_max stand for, over all slices of the axis or all blocks."""
    if quantization.blocks is not None:
        return _range_of_blocks(quantization, quantization.blocks)
    pairs = list(zip(quantization.scale, quantization.zero_point, strict=True))
    low = min((quantization.quant_min - zero_point) * scale for scale, zero_point in pairs)
    high = max((quantization.quant_max - zero_point) * scale for scale, zero_point in pairs)
    return low, high


def _range_of_blocks(quantization: Quantization, blocks: Blocks) -> tuple[float, float]:
    import numpy as np

    own = blocks.zero_point
    points = np.array(quantization.zero_point, float) if own is None else own.array.astype(float)
    scales = blocks.scale.array.astype(float)
    ends = [(limit - points) * scales for limit in (quantization.quant_min, quantization.quant_max)]
    return min(end.min().item() for end in ends), max(end.max().item() for end in ends)


def why_float(model: Model, tensor: Tensor, users: Users) -> str:
    """Why a floating-point tensor was not quantized, as far as the graph tells."""
    readers = [model.nodes[index] for index in users.readers.get(tensor.name, ())]
    if tensor.is_constant:
        return _why_constant(model, tensor, readers)
    if tensor.name in model.graph.inputs:
        quantizers = [node for node in readers if node.operator == "QuantizeLinear"]
        return f"input of the graph, quantized by {node_name(quantizers[0])}" if quantizers else "input of the graph"
    writer = model.nodes[users.writer[tensor.name]] if tensor.name in users.writer else None
    if writer is None:
        return "no node computes it"
    if writer.operator == "DequantizeLinear":
        used = "for the output of the graph" if tensor.name in model.graph.outputs else f"for {_names(readers)}"
        return f"dequantized {used}"
    return f"{node_name(writer)} ({writer.operator}) {_in_float(model, writer)}"


def _in_float(model: Model, node: Node) -> str:
    """How a node computes that puts out floats."""
    inputs = [model.tensors[name] for name in node.inputs if name]
    if any(tensor.is_constant and tensor.quantization is not None for tensor in inputs):
        return "is quantized in its weights only: what it puts out is a float"
    return "is not quantized in the source: it computes in float"


def _why_constant(model: Model, tensor: Tensor, readers: list[Node]) -> str:
    if model.no_graph:
        return "the source has no graph that would say what reads it"
    if not readers:
        return "no node reads it"
    node = readers[0]
    quantized = any(model.tensors[name].quantization is not None for name in node.outputs)
    if quantized and tensor.name in node.inputs[2:]:
        return f"bias of {_names(readers)}: {_BIAS.get(node.arithmetic, 'kept as the source had it')}"
    if quantized:
        return f"parameter of {_names(readers)}, which computes in float and quantizes its result"
    return f"parameter of {_names(readers)}, which {_in_float(model, node)}"


_BIAS: Mapping[str, str] = {
    "float_bias": "the engine adds it as a float, so an int32 bias would give other results",
    "affine": "the engine adds it as a float, so an int32 bias would give other results",
    "integer_bias": "kept as the source had it; the engine rounds it to int32 when it runs",
}


def _names(nodes: list[Node]) -> str:
    return ", ".join(map(node_name, nodes)) or "nothing"


def node_name(node: Node) -> str:
    """What to call a node: its name, or what it puts out."""
    return node.name or (node.outputs[0] if node.outputs else node.operator)


def origin(source: Mapping[str, str]) -> str:
    """What a model was converted from: file, format, framework and its version, as far as it is known."""
    framework = " ".join(filter(None, (source.get("framework"), source.get("framework_version"))))
    return ", ".join(filter(None, (source.get("file"), source.get("format"), framework))) or "not said"


def discarded_calibration(model: Model, tensor: Tensor) -> bool:
    """Whether the tensor was calibrated in PyTorch, whose `convert` throws the observed range away."""
    quantization = tensor.quantization
    from_torch = model.source.get("framework") == "pytorch"
    return quantization is not None and quantization.observed is None and from_torch
