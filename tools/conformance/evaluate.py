"""A second evaluation of the networks of the suite, from their JSON: written from docs/spec, with nothing of qfmt.

`outputs(twin, vector)` gives what the JSON of a test vector has to say. Loops over fractions and integers of any size:
slow, and plain enough to be read beside the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any

from .reals import FORMATS, SMALL, Real, f32, from_bits, to_bits

LIMITS = {f"{'u' * (not signed)}int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
          for bits in (2, 4, 8, 16, 32, 64) for signed in (True, False)}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """What a tensor's integers mean; the scales as float32. All but `low` and `high` are as the JSON has them."""

    scale: list[Fraction]
    zero_point: list[int]
    low: int
    high: int
    block: tuple[int, ...]
    counts: tuple[int, ...]
    scale64: list[Fraction]
    offset: list[Fraction] | None = None
    table: list[Fraction] | None = None
    group_index: list[int] | None = None

    @property
    def axis(self) -> int | None:
        """The dimension that the scales run along, if there is one."""
        return len(self.block) - 1 if self.block else None

    def at(self, place: Sequence[int]) -> int:
        """The number of the block of an element."""
        found = 0
        for index, block, count in zip(place, self.block, self.counts, strict=False):
            inside = 0 if block == 0 else index // block
            if block > 1 and self.group_index is not None:
                inside = self.group_index[index]
            found = found * count + inside
        return found

    def clamp(self, value: int) -> int:
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Value:
    """What a tensor holds: flat, the last dimension running fastest."""

    shape: tuple[int, ...]
    items: list[Any]
    dtype: str
    grid: Grid | None = None

    def places(self) -> Iterator[tuple[int, ...]]:
        return product(*map(range, self.shape))

    def __getitem__(self, place: Sequence[int]) -> Any:
        at = 0
        for size, index in zip(self.shape, place, strict=True):
            assert 0 <= index < size, (self.shape, place)
            at = at * size + index
        return self.items[at]

    def slice_of(self, place: Sequence[int], values: Sequence[Any]) -> Any:
        """Which of the scales or zero points counts at a place."""
        assert self.grid is not None
        return values[0] if len(values) == 1 else values[self.grid.at(place)]


def filled(shape: Sequence[int], dtype: str, item: Callable[[tuple[int, ...]], Any], grid: Grid | None = None) -> Value:
    """The value whose items are those that `item` gives for each place."""
    return Value(tuple(shape), [item(place) for place in product(*map(range, shape))], dtype, grid)


def outputs(twin: dict[str, Any], vector: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{output: {shape, values}}, as the JSON writes values."""
    values = computed(twin, vector)
    return {name: _written(values[name]) for name in twin["outputs"]}


def digests(twin: dict[str, Any], vector: dict[str, Any]) -> list[str]:
    """The digests of what the nodes compute, as the JSON writes them."""
    values = computed(twin, vector)
    named = [values[name] for node in twin["nodes"] for name in node["outputs"]]
    return [sha256(_stored(each)).hexdigest()[:32] for each in named if each.dtype.startswith(("int", "uint", "bool"))]


def _stored(value: Value) -> bytes:
    """Integers as a file stores them."""
    bits = 8 if value.dtype == "bool" else int(value.dtype.lstrip("uint"))
    whole = sum((int(item) & ((1 << bits) - 1)) << (bits * at) for at, item in enumerate(value.items))
    return whole.to_bytes((bits * len(value.items) + 7) // 8, "little")


def computed(twin: dict[str, Any], vector: dict[str, Any]) -> dict[str, Value]:
    """Every tensor of the graph, for the inputs of a vector."""
    from .operators import OPERATORS

    values: dict[str, Value] = {}
    for name, tensor in twin["tensors"].items():
        if "values" in tensor:
            values[name] = _value(tensor, tensor["shape"], tensor["values"])
    for name, given in vector["inputs"].items():
        values[name] = _value(twin["tensors"][name], given["shape"], given["values"])
    for node in twin["nodes"]:
        operands = [values[name] if name else None for name in node["inputs"]]
        wanted = [twin["tensors"][name] for name in node["outputs"]]
        forms = [(each["dtype"], _grid(each.get("quantization"))) for each in wanted]
        attributes = {name: _attribute(each) for name, each in node["attributes"].items()}
        results = OPERATORS[node["operator"]](operands, attributes, node.get("rule", ""), forms)
        for name, (dtype, grid), result in zip(node["outputs"], forms, results, strict=True):
            values[name] = Value(result.shape, result.items, dtype, grid)
    return values


def _value(tensor: dict[str, Any], shape: Sequence[int], items: Sequence[Any]) -> Value:
    dtype = tensor["dtype"]
    decode = (lambda item: from_bits(item, dtype)) if dtype in (*FORMATS, *SMALL) else int
    assert len(items) == prod(shape)
    return Value(tuple(shape), [decode(item) for item in items], dtype, _grid(tensor.get("quantization")))


def _grid(quantization: dict[str, Any] | None) -> Grid | None:
    if quantization is None:
        return None
    exact = _numbers(quantization["scale"])
    scale = [f32(each) for each in exact]
    limits = quantization.get("quant_min", 0), quantization.get("quant_max", 0)
    layout = tuple(quantization["block"]), tuple(quantization["scale"]["shape"])
    points, offset, table, index = (
        _numbers(quantization[name]) if name in quantization else None
        for name in ("zero_point", "offset", "table", "group_index")
    )
    assert points is not None
    points = points * len(scale) if len(points) == 1 else points
    return Grid(scale, points, *limits, *layout, exact, offset, table, index)  # type: ignore[arg-type]


def _numbers(stated: dict[str, Any]) -> list[Any]:
    """The numbers of an array of a quantization: exact, or in float32 if they are quantized themselves."""
    if "quantization" not in stated:
        return [from_bits(item, stated["dtype"]) if isinstance(item, str) else int(item) for item in stated["values"]]
    from .evaluate_real import real

    codes = _value(stated, stated["shape"], stated["values"])
    return [real(codes, place) for place in codes.places()]


def _attribute(stated: dict[str, Any]) -> Any:
    kind, value = stated["type"], stated["value"]
    decode: Callable[[Any], Any] = {"i": int, "f": lambda item: from_bits(item, "float64"), "s": str}[kind[0]]
    return tuple(map(decode, value)) if len(kind) == 2 else decode(value)


def _written(value: Value) -> dict[str, Any]:
    def item(each: Real | int) -> Any:
        if value.dtype in FORMATS:
            return to_bits(each, value.dtype)
        low, high = LIMITS.get(value.dtype, (0, 1))
        assert low <= each <= high, f"{each} is no {value.dtype}"
        return str(each) if value.dtype.endswith("64") else each

    return {"shape": list(value.shape), "values": [item(each) for each in value.items]}
