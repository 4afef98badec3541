"""Between the Records of the schema and the values of `qfmt.model`, both directions side by side.

What is written here is canonical: maps sorted by key, nothing written that may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ..errors import FormatError
from ..model import (
    DTYPES,
    Attribute,
    Blocks,
    Data,
    Node,
    Observed,
    Quantization,
    Shape,
    StoredArray,
    Tensor,
    attribute_kind,
)
from ..quantization import block_counts
from .decode import Record
from .schema import ENUMS

DTYPE_NAMES = {entry.code: entry.name for entry in DTYPES.values()}

Value = TypeVar("Value")


def dtype_name(code: int) -> str:
    if code not in DTYPE_NAMES:
        raise FormatError(f"the element type {code} is not known", hint="a newer qfmt may support it", rule="V2")
    return DTYPE_NAMES[code]


def shape(record: Record) -> Shape:
    """The shape of a Tensor record: -1 is a size that is not known, or known by the name in `dims`."""
    sizes, dims = record["shape"], record["dims"]
    if not dims:
        return None if sizes is None else tuple(None if size == -1 else size for size in sizes)
    if sizes is None or len(dims) != len(sizes):
        count = "no" if sizes is None else len(sizes)
        raise FormatError(f"{count} sizes, but {len(dims)} names of sizes", rule="F12")
    if any(name and size != -1 for size, name in zip(sizes, dims, strict=True)):
        raise FormatError("a size has both a name and a number", rule="F12")
    return tuple(size if size != -1 else name or None for size, name in zip(sizes, dims, strict=True))


Buffers = Callable[[int], Data]
"""The data of the buffer at an index."""


def quantization(record: Record, shape: Shape, buffers: Buffers) -> Quantization:
    """The quantization of a tensor of that shape."""
    if record["quant_min"] is None or record["quant_max"] is None:
        raise FormatError("a quantization lacks quant_min or quant_max", rule="F12")
    observed, floats = record["observed"], record["zero_point_float"]
    if floats is not None and record["zero_point"]:
        raise FormatError("a quantization has both zero_point and zero_point_float", rule="F12")
    return Quantization(
        record["scale"],
        record["zero_point"] if floats is None else floats,
        record["quant_min"],
        record["quant_max"],
        record["axis"],
        dtype_name(record["scale_dtype"]),
        None if observed is None else observation(observed),
        record["blocks"] and blocks(record["blocks"], dtype_name(record["scale_dtype"]), shape, buffers),
        (record["scale_name"] or "", record["zero_point_name"] or ""),
    )


def blocks(record: Record, scale_dtype: str, shape: Shape, buffers: Buffers) -> Blocks:
    """The blocks of a tensor of that shape. What they need to be decoded at all is rule V27."""
    sizes, own = record["shape"], record["zero_point"]
    if shape is None or len(shape) != len(sizes) or min(sizes, default=0) < 1:
        raise FormatError(f"blocks of {list(sizes)} in a tensor of {shape}", rule="V27")
    fixed = tuple(size for size in shape if isinstance(size, int))
    if len(fixed) != len(sizes):
        raise FormatError("a tensor with blocks has an unknown size", rule="V27")
    if record["scale"] is None or (own is None) != (record["zero_point_dtype"] == 0):
        raise FormatError("blocks lack scales, or the type of their zero points", rule="F12")
    counts = block_counts(fixed, sizes)
    scale = StoredArray(scale_dtype, counts, buffers(record["scale"]))
    if own is None:
        return Blocks(sizes, fixed, scale)
    return Blocks(sizes, fixed, scale, StoredArray(dtype_name(record["zero_point_dtype"]), counts, buffers(own)))


def observation(record: Record) -> Observed:
    limits = record["quant_min"], record["quant_max"]
    return Observed(record["observer"], record["minimum"], record["maximum"], *limits, record["qscheme"] or "")


def quantization_record(value: Quantization, scale: int | None, zero_point: int | None) -> Record:
    """`scale` and `zero_point`: the buffers of its blocks."""
    floats = value.has_float_zero_points and bool(value.zero_point)
    return {
        "scale": value.scale,
        "zero_point": () if floats else value.zero_point,
        "quant_min": value.quant_min,
        "quant_max": value.quant_max,
        "axis": value.axis,
        "scale_dtype": DTYPES[value.scale_dtype].code,
        "observed": value.observed and observed_record(value.observed),
        "zero_point_float": value.zero_point if floats else None,
        "blocks": value.blocks and blocks_record(value.blocks, scale, zero_point),
        "scale_name": value.names[0] or None,
        "zero_point_name": value.names[1] or None,
    }


def blocks_record(value: Blocks, scale: int | None, zero_point: int | None) -> Record:
    own = value.zero_point
    dtype = 0 if own is None else DTYPES[own.dtype].code
    return {"shape": value.shape, "scale": scale, "zero_point": zero_point, "zero_point_dtype": dtype}


def observed_record(value: Observed) -> Record:
    return {
        "observer": value.observer,
        "minimum": value.minimum,
        "maximum": value.maximum,
        "quant_min": value.quant_min,
        "quant_max": value.quant_max,
        "qscheme": value.qscheme or None,
    }


def tensor_record(tensor: Tensor, buffer: int | None, quantization: Record | None) -> Record:
    sizes = tensor.shape
    named = [size if isinstance(size, str) else "" for size in sizes or ()]
    return {
        "name": tensor.name,
        "dtype": DTYPES[tensor.dtype].code,
        "shape": None if sizes is None else [size if isinstance(size, int) else -1 for size in sizes],
        "dims": named if any(named) else None,
        "buffer": buffer,
        "quantization": quantization,
        "aliases": tensor.aliases or None,
    }


def value_record(value: StoredArray, buffer: int) -> Record:
    return {"shape": value.shape, "buffer": buffer}


def node_record(node: Node, indices: Mapping[str, int]) -> Record:
    """`indices`: of tensors by name; -1 for the empty name."""
    return {
        "operator": node.operator,
        "version": node.version,
        "inputs": [indices[name] for name in node.inputs],
        "outputs": [indices[name] for name in node.outputs],
        "attributes": [attribute_record(name, node.attributes[name]) for name in sorted(node.attributes)] or None,
        "rule": node.rule or None,
        "name": node.name or None,
        "scope": node.scope or None,
        "source_operator": node.source_operator or None,
    }


ATTRIBUTE_TYPES = {
    "i": ("Int", "int_value"),
    "f": ("Float", "float_value"),
    "s": ("String", "string_value"),
    "ii": ("Ints", "ints"),
    "ff": ("Floats", "floats"),
    "ss": ("Strings", "strings"),
}
"""How the schema calls a kind of attribute, and the field that holds its value."""

_ATTRIBUTE_FIELDS = {ENUMS["AttributeType"][name]: field for name, field in ATTRIBUTE_TYPES.values()}


def attribute_value(record: Record) -> Attribute:
    if record["type"] not in _ATTRIBUTE_FIELDS:
        raise FormatError(f"the attribute {record['name']!r} has the unknown type {record['type']}", rule="F12")
    value: Attribute | None = record[_ATTRIBUTE_FIELDS[record["type"]]]
    if value is None:
        raise FormatError(f"the attribute {record['name']!r} has no value", rule="F12")
    return value


def attribute_record(name: str, value: Attribute) -> Record:
    kind = attribute_kind(value) * (2 if isinstance(value, tuple) else 1)
    enum, field = ATTRIBUTE_TYPES[kind]
    return {"name": name, "type": ENUMS["AttributeType"][enum], field: value}


def sorted_map(pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """The pairs of a map, which the file has sorted by key."""
    result: dict[str, Value] = {}
    last = None
    for key, value in pairs:
        if last is not None and key <= last:
            raise FormatError(f"the key {key!r} is not in order", rule="F11")
        result[key] = value
        last = key
    return result


def pair_records(pairs: Mapping[str, str]) -> list[Record] | None:
    return [{"key": key, "value": pairs[key]} for key in sorted(pairs)] or None
