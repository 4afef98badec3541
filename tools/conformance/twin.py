"""A file as JSON: everything that a reader finds in it, and what it gives.

What the file lacks is left out. Integers are numbers, those of 64 bits decimal strings, because JavaScript has no such
numbers. Floats are the hexadecimal digits of their bits, the highest first. An attribute says its type (i, f, s, or
twice the letter for a list); a size that is not known is null.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from qfmt.model import (
    DTYPES,
    Attribute,
    Graph,
    Model,
    Node,
    Observed,
    Parameter,
    Quantization,
    StoredArray,
    Tensor,
    Vector,
    attribute_kind,
)
from qfmt.quantization import PARAMETERS

Json = dict[str, Any]


def twin(model: Model, facts: Json) -> Json:
    """`facts` come first: name, level, and what is known of the file."""
    graph = model.graph
    said = {
        **facts,
        "content_id": model.content_id().hex(),
        "producer": model.producer,
        "engine": model.engine,
        "source": dict(model.source),
        "metadata": dict(model.metadata),
        "graph": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "tensors": {name: _tensor(graph.tensors[name]) for name in sorted(graph.tensors)},
        "nodes": [_node(node) for node in graph.nodes],
        "vectors": [
            stated(
                {
                    "name": vector.name,
                    "inputs": {name: _value(value) for name, value in vector.inputs.items()},
                    "outputs": {name: _value(value) for name, value in vector.outputs.items()},
                    **_digests(vector, graph),
                }
            )
            for vector in model.vectors
        ],
    }
    return stated(said)


def stated(record: Json) -> Json:
    """A record without the fields that are null or an empty text."""
    return {name: value for name, value in record.items() if value is not None and value != ""}


def _digests(vector: Vector, graph: Graph) -> Json:
    return {"digests": [digest.hex() for _, _, digest in vector.stated_digests(graph)]} if vector.digests else {}


def text(value: Json) -> str:
    """The JSON with a line for every tensor, node and test vector, or for every file of the index."""
    return _lines(value, 2) + "\n"


def _lines(value: Any, depth: int) -> str:
    """With a line for each item, down to a depth."""
    is_list = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    if not depth or not value or not (is_list or isinstance(value, dict)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, dict):
        inner = [f"{json.dumps(key, ensure_ascii=False)}:{_lines(value[key], depth - 1)}" for key in value]
        return "{\n" + ",\n".join(inner) + "\n}"
    return "[\n" + ",\n".join(_lines(item, depth - 1) for item in value) + "\n]"


def _tensor(tensor: Tensor) -> Json:
    stored = None
    if tensor.data is not None:
        sizes = tuple(size for size in tensor.shape or () if isinstance(size, int))
        stored = items(StoredArray(tensor.dtype, sizes, tensor.data))
    record = {
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "aliases": list(tensor.aliases),
        "quantization": tensor.quantization and _quantization(tensor.quantization),
        "values": stored,
    }
    return stated(record)


def items(stored: StoredArray) -> list[Any]:
    """The elements of an array, flat, as the JSON has them."""
    kind = DTYPES[stored.dtype]
    flat = stored.array.reshape(-1)
    if kind.kind != "f":
        return [str(item) if kind.bits == 64 else int(item) for item in flat.tolist()]
    bits = flat.view(f"u{flat.dtype.itemsize}").tolist()
    return [f"{item:0{-(-kind.bits // 4)}x}" for item in bits]


def _value(stored: StoredArray) -> Json:
    return {"shape": list(stored.shape), "values": items(stored)}


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _several(values: Sequence[float]) -> list[str]:
    return [_bits(value) for value in values]


def _quantization(given: Quantization) -> Json:
    record = {
        **_level(given),
        "quant_min": given.quant_min,
        "quant_max": given.quant_max,
        "scale_name": given.names[0],
        "zero_point_name": given.names[1],
        "observed": given.observed and _observed(given.observed),
    }
    return stated(record)


def _level(given: Quantization) -> Json:
    return stated({"block": list(given.block), **{name: _parameter(getattr(given, name)) for name in PARAMETERS}})


def _parameter(given: Parameter | None) -> Json | None:
    if given is None:
        return None
    nested = None if given.quantization is None else _level(given.quantization)
    return stated({"dtype": given.dtype, "shape": list(given.shape), "values": items(given), "quantization": nested})


def _observed(given: Observed) -> Json:
    limits = [None if limit is None else str(limit) for limit in (given.quant_min, given.quant_max)]
    record = {
        "observer": given.observer,
        "minimum": _several(given.minimum),
        "maximum": _several(given.maximum),
        "quant_min": limits[0],
        "quant_max": limits[1],
        "qscheme": given.qscheme,
    }
    return stated(record)


def _node(node: Node) -> Json:
    record = {
        "operator": node.operator,
        "version": node.version,
        "name": node.name,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attributes": {name: _attribute(node.attributes[name]) for name in sorted(node.attributes)},
        "rule": node.rule,
        "scope": node.scope,
        "source_operator": node.source_operator,
    }
    return stated(record)


def _attribute(value: Attribute) -> Json:
    kind = attribute_kind(value)
    form = {"i": str, "f": _bits, "s": str}[kind]
    if isinstance(value, tuple):
        return {"type": kind * 2, "value": [form(item) for item in value]}  # type: ignore[arg-type]
    return {"type": kind, "value": form(value)}  # type: ignore[arg-type]
