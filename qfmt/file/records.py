"""Between the Records of the schema and the values of `qfmt.model`, both directions side by side.

What is written here is canonical: maps sorted by key, nothing written that may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..errors import FormatError
from ..model import (
    DTYPES,
    Attribute,
    Data,
    Node,
    Observed,
    Parameter,
    Proof,
    Quantization,
    Shape,
    StoredArray,
    Tensor,
    attribute_kind,
)
from ..quantization import NO_ZERO_POINT, PARAMETERS, Bytes
from ..rules.rule import quoted
from .decode import Record
from .schema import ENUMS

_MANY = 1000
"""Sizes that are still multiplied: rule V21 allows 32, but the time grows with the square of their number."""

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


def quantization(record: Record, buffers: Buffers) -> Quantization:
    """The quantization of a tensor."""
    if record["quant_min"] is None or record["quant_max"] is None:
        raise FormatError("a quantization lacks quant_min or quant_max", rule="F12")
    made = _quantization(record, (record["quant_min"], record["quant_max"]), buffers)
    observed = record["observed"] and observation(record["observed"])
    return replace(made, observed=observed, names=(record["scale_name"] or "", record["zero_point_name"] or ""))


def _quantization(record: Record, limits: tuple[int, int], buffers: Buffers) -> Quantization:
    """What a Quantization and a SecondLevel have in common."""
    given = {name: parameter(record[name], name, buffers) for name in PARAMETERS if record.get(name) is not None}
    scale, zero_point = given["scale"], given.get("zero_point", NO_ZERO_POINT)
    offset, table, group_index = (given.get(name) for name in ("offset", "table", "group_index"))
    return Quantization(scale, zero_point, *limits, record["block"] or (), offset, table, group_index)


def parameter(record: Record, name: str, buffers: Buffers) -> Parameter:
    """The numbers of a quantization, with as many bytes as they need."""
    own, index = record["bytes"], record["buffer"]
    if (own is None) == (index is None):
        raise FormatError(f"{name} has {'neither' if own is None else 'both'} bytes and a buffer", rule="F12")
    sizes = record["shape"] or ()
    if len(sizes) > _MANY:
        raise FormatError(f"{name} has {len(sizes)} dimensions", rule="V21")
    if any(size < 0 for size in sizes):
        raise FormatError(f"{name} has the shape {list(sizes)}", rule="V20")
    dtype, own_level = dtype_name(record["dtype"]), record.get("quantization")
    limits = DTYPES[dtype].minimum, DTYPES[dtype].maximum
    nested = None if own_level is None else _quantization(own_level, limits, buffers)
    return Parameter(dtype, sizes, Bytes(own) if own is not None else buffers(index), nested)


def observation(record: Record) -> Observed:
    limits = record["quant_min"], record["quant_max"]
    return Observed(record["observer"], record["minimum"], record["maximum"], *limits, record["qscheme"] or "")


def quantization_record(value: Quantization, buffer: Callable[[str], int]) -> Record:
    """`buffer` returns that of an array by its name, as `Quantization.parameters` has it."""
    return {
        **level_record(value, buffer),
        "quant_min": value.quant_min,
        "quant_max": value.quant_max,
        "observed": value.observed and observed_record(value.observed),
        "scale_name": value.names[0] or None,
        "zero_point_name": value.names[1] or None,
    }


def level_record(value: Quantization, buffer: Callable[[str], int], prefix: str = "") -> Record:
    """What the two levels have in common."""
    parts = {name: getattr(value, name) for name in PARAMETERS}
    written = {name: each for name, each in parts.items() if each is not None and each != NO_ZERO_POINT}
    arrays = {name: parameter_record(each, buffer, prefix + name) for name, each in written.items()}
    return {"block": value.block or None, **arrays}


def parameter_record(value: Parameter, buffer: Callable[[str], int], name: str) -> Record:
    nested = value.quantization
    return {
        "dtype": DTYPES[value.dtype].code,
        "shape": value.shape or None,
        "bytes": bytes(value.data.view()) if value.is_inline else None,
        "buffer": None if value.is_inline else buffer(name),
        "quantization": nested and level_record(nested, buffer, f"{name}."),
    }


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
        "proof": node.proof and proof_record(node.proof),
    }


def proof(record: Record) -> Proof:
    return Proof(record["low"], record["high"], record["compared"] or "", record["differs"] or (), record["largest"])


def proof_record(value: Proof) -> Record:
    return {
        "low": value.low,
        "high": value.high,
        "compared": value.compared or None,
        "differs": value.differs or None,
        "largest": value.largest,
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
    name, field = f"the attribute {quoted(record['name'])}", _ATTRIBUTE_FIELDS.get(record["type"])
    if field is None:
        raise FormatError(f"{name} has the unknown type {record['type']}", rule="F12")
    value: Attribute | None = record[field]
    if value is None:
        raise FormatError(f"{name} has no value", rule="F12")
    if any(record[other] not in (None, 0) for other in _ATTRIBUTE_FIELDS.values() if other != field):
        raise FormatError(f"{name} has values of two types", rule="F12")
    if value == () and field != "ints":
        raise FormatError(f"{name} is an empty list, which has the type Ints", rule="F12")
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
            raise FormatError(f"the key {quoted(key)} is not in order", rule="F11")
        result[key] = value
        last = key
    return result


def pair_records(pairs: Mapping[str, str]) -> list[Record] | None:
    return [{"key": key, "value": pairs[key]} for key in sorted(pairs)] or None
