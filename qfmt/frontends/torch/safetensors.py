"""Safetensors: named tensors, mapped into memory; and the form of torchao's tensors in them.

The format (https://github.com/huggingface/safetensors): a 64-bit length, that many bytes of JSON, then the bytes of the
tensors, without gaps. The JSON has each tensor's type, shape and position, and text under `__metadata__`, where
torchao describes its tensors (torchao/prototype/safetensors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...budget import Budget
from ...errors import SourceError, damaged
from ...model import Model
from ...regular import mapped
from ..content import sha256_of
from ..json_text import parse
from ..options import Options
from ..stored import ELEMENT_BITS, Storage, StoredTensor
from .saved.tensors import IN_MEMORY, Entry, of_entries, placed, weight_entries
from .torchao import of_json

if TYPE_CHECKING:
    from .witness import TorchWitness

HEADER_LIMIT = 100_000_000
"""The longest header that the format's own reader accepts."""

DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn",
}  # fmt: skip
"""The format's element types → ours. (It has types of 6 bits, too, that nothing writes yet.)"""

PLAIN = "Tensor"
"""torchao's class name for plain tensors."""


class File(NamedTuple):
    """The contents of a file: tensors by name, and text by name; and the budget of its conversion."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    budget: Budget


def convert(path: Path, options: Options) -> Model:
    """The tensors of a file, with their quantization if torchao described it, as a Model without a graph."""
    options.check_names([])
    file = read(path)
    entries, weights = _entries(file)
    known = {"format": "safetensors", **({"framework": "pytorch"} if weights else {}), "sha256": sha256_of(path)}
    would = IN_MEMORY if weights else "convert the file that holds the network"
    why = f"safetensors files hold tensors, but no graph; {would}"
    return of_entries(entries, {**known, "no_graph": why})


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    from .witness import without_graph

    return without_graph(convert(path, Options(file.engine)), file, engine)


def read(path: str | PathLike[str]) -> File:
    """The tensors of a file, none of whose bytes are read yet. Raises SourceError if it breaks the format."""
    content = memoryview(mapped(path))
    begin = 8 + int.from_bytes(content[:8], "little")
    if not 8 < begin <= min(len(content), HEADER_LIMIT + 8):
        raise SourceError(f"has a header of {begin - 8} bytes", hint="the file is damaged or truncated")
    budget = Budget(len(content))
    header = _json(bytes(content[8:begin]), "its header", budget)
    metadata = header.pop("__metadata__", None) or {}
    budget.tensor(len(header))
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise damaged("has metadata that is not text")
    return File(dict(_tensors(header, content[begin:])), metadata, budget)


def _tensors(header: Mapping[str, Any], data: memoryview) -> Iterable[tuple[str, StoredTensor]]:
    """Each tensor at its position; together they fill the data."""
    end = 0
    described = [_described(name, entry) for name, entry in header.items()]
    for begin, stop, name, dtype, shape in sorted(described, key=itemgetter(0, 1)):
        size = -(-prod(shape) * ELEMENT_BITS[dtype] // 8)
        if begin != end or stop - begin != size:
            what = f"is at {begin} to {stop}, but {dtype} {list(shape)[:8]} must be at {end} to {end + size}"
            raise damaged(what, where=name[:200])
        end = stop
        if end > len(data):
            raise SourceError(f"ends at {end} of {len(data)} bytes", where=name[:200], hint="the file is truncated")
        yield name, _stored(name, dtype, shape, data[begin:end])
    if end != len(data):
        raise damaged(f"has {len(data) - end} bytes that belong to no tensor")


def _described(name: str, entry: Any) -> tuple[int, int, str, str, tuple[int, ...]]:
    """Where a tensor begins and ends, its name, type and shape."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]}:
            numbers = (*shape, begin, end)
            if not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers) or len(shape) > 32:
                raise SourceError("has an invalid shape or position", where=name[:200], hint="the file is damaged")
            if dtype not in DTYPES:
                what = f"has the element type {dtype[:40]}, which is not supported"
                raise SourceError(what, where=name[:200], hint="remove it from the file")
            return begin, end, name, DTYPES[dtype], tuple(shape)
    raise damaged("does not have a type, a shape and a position", where=name[:200])


def _stored(name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> StoredTensor:
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return StoredTensor(Storage(name, dtype, lambda: data), dtype, shape, strides)


def _json(text: bytes, what: str, budget: Budget) -> dict[str, Any]:
    """A JSON object without two values with the same name."""
    try:
        value = parse(text, budget)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise SourceError(f"is damaged: {what} cannot be read as JSON", hint="download it again")
    return value


# -- torchao's tensors -----------------------------------------------------------------------------------


def _entries(file: File) -> tuple[list[Entry], int]:
    """The tensors under their names, and how many of them have multiple parts."""
    left, weights = dict(file.tensors), 0
    entries: list[Entry] = []
    for name in _names(file.metadata, file.budget):
        described = _json(file.metadata.get(name, "").encode(), f"its description of {name[:200]}", file.budget)
        kind = described.get("_type")
        if kind == PLAIN:
            continue
        told, parts = described.get("_data"), described.get("_tensor_data_names")
        if not isinstance(kind, str) or not isinstance(told, dict) or not isinstance(parts, list):
            raise SourceError(
                "has a description that torchao does not write", where=name[:200], hint="the file is damaged"
            )
        module, dot, own = name.rpartition(".")
        file.budget.allocate(len(parts) * len(name))
        aliases = {str(part): f"{module}{dot}_{own}_{part}" for part in parts}
        if lost := [alias for alias in aliases.values() if alias not in left]:
            what = f"lacks its part {lost[0][:200]}"
            raise SourceError(
                what, where=name[:200], hint="it may be in another file of the same model: merge the files"
            )
        held = {part: left.pop(alias) for part, alias in aliases.items()}
        entries += weight_entries(name, placed(name, of_json, kind, held, told), aliases)
        weights += 1
    return [*entries, *(Entry(name, tensor) for name, tensor in left.items())], weights


def _names(metadata: Mapping[str, str], budget: Budget) -> list[str]:
    """The tensors that torchao describes; none if it did not write the file."""
    try:
        names = parse(metadata.get("tensor_names", "[]").encode(), budget)
    except ValueError:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) and name in metadata for name in names):
        return []
    return names
