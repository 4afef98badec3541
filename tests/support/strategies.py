"""Hypothesis strategies for valid models: every dtype, every kind of shape, quantization, attribute and name.

    @given(models())
    def test_round_trip(model): ...

Nodes have operators that qfmt does not know (`vendor.…`), so that attributes and shapes are arbitrary.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from operator import neg
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from qfmt.model import (
    DTYPES,
    ArrayData,
    Attribute,
    Data,
    DType,
    Graph,
    Model,
    Node,
    Observed,
    Quantization,
    Shape,
    StoredArray,
    Tensor,
    Vector,
    numpy_dtype,
    pack,
)

Draw = Any
INT64 = st.integers(-(2**63), 2**63 - 1)
SCALE_DTYPES = ["float16", "bfloat16", "float32", "float64", "float8_e8m0fnu"]
FLOATS = st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = TEXT.filter(bool)
QUANTIZABLE = [name for name, dtype in DTYPES.items() if dtype.is_quantizable]


@st.composite
def models(draw: Draw) -> Model:
    """A valid model with at most four constants, two inputs and four nodes."""
    names = draw(st.lists(NAMES, max_size=14, unique=True))
    constants = [draw(constant_tensors(name)) for name in names[:4]]
    inputs = [draw(computed_tensors(name)) for name in names[4:6]]
    nodes, computed = draw(node_lists(names[6:], [tensor.name for tensor in constants + inputs]))
    tensors = constants + inputs + computed
    outputs = draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors else []
    graph = Graph(
        tuple(tensor.name for tensor in inputs),
        tuple(tensor.name for tensor in outputs),
        tuple(nodes),
        {tensor.name: tensor for tensor in draw(st.permutations(tensors))},
        draw(TEXT),
    )
    pairs = st.dictionaries(NAMES, TEXT, max_size=3)
    many = 0 if graph.is_archive else draw(st.integers(0, 2))
    vectors_ = [draw(vectors(graph)) for _ in range(many)]
    return Model(graph, draw(TEXT), draw(TEXT), draw(pairs), draw(pairs), tuple(vectors_))


@st.composite
def vectors(draw: Draw, graph: Graph) -> Vector:
    """Arbitrary values for inputs and outputs; they are not computed."""
    named: dict[str, int] = {}
    ends: list[dict[str, StoredArray]] = []
    for names in (graph.inputs, graph.outputs):
        ends.append({})
        for name in dict.fromkeys(names):
            tensor = graph.tensors[name]
            shape = draw(st.lists(st.integers(0, 3), max_size=3)) if tensor.shape is None else tensor.shape
            sizes = tuple(
                named.setdefault(size, draw(st.integers(0, 3))) if isinstance(size, str) else size for size in shape
            )
            fixed = tuple(draw(st.integers(0, 3)) if size is None else size for size in sizes)
            grid, count = tensor.quantization, math.prod(fixed)
            assume(count < 100 and (grid is None or grid.axis is None or fixed[grid.axis] == len(grid.scale)))
            ends[-1][name] = StoredArray(tensor.dtype, fixed, draw(datas(tensor.dtype, count, grid)))
    return Vector(*ends, draw(TEXT))


@st.composite
def node_lists(draw: Draw, names: Sequence[str], available: list[str]) -> tuple[list[Node], list[Tensor]]:
    """Nodes in topological order that compute the named tensors, one or two each."""
    nodes, computed, rest = [], [], list(names)
    while rest:
        outputs = [rest.pop() for _ in range(draw(st.integers(1, min(2, len(rest)))))]
        inputs = draw(st.lists(st.sampled_from(["", *available]), max_size=3))
        attributes = draw(st.dictionaries(NAMES, attributes_(), max_size=3))
        operator, version = "vendor." + draw(TEXT), draw(st.integers(1, 2**32 - 1))
        words = [draw(TEXT) for _ in range(4)]
        nodes.append(Node(operator, tuple(inputs), tuple(outputs), attributes, words[0], version, *words[1:]))
        computed += [draw(computed_tensors(name)) for name in outputs]
        available = [*available, *outputs]
    return nodes, computed


def attributes_() -> st.SearchStrategy[Attribute]:
    one = st.one_of(INT64, FLOATS, TEXT)
    many = (st.lists(element, max_size=4).map(tuple) for element in (INT64, FLOATS, TEXT))
    return st.one_of(one, *many)


@st.composite
def computed_tensors(draw: Draw, name: str) -> Tensor:
    dtype = draw(st.sampled_from([*DTYPES]))
    shape: Shape = draw(
        st.one_of(st.none(), st.lists(st.one_of(st.none(), NAMES, st.integers(0, 2**20)), max_size=3).map(tuple))
    )
    return Tensor(name, dtype, shape, None, draw(quantizations(dtype, shape, computed=True)), draw(aliases()))


@st.composite
def constant_tensors(draw: Draw, name: str) -> Tensor:
    dtype = draw(st.sampled_from([*DTYPES]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    quantization = draw(quantizations(dtype, shape))
    data = draw(datas(dtype, math.prod(shape), quantization))
    return Tensor(name, dtype, shape, data, quantization, draw(aliases()))


def aliases() -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(NAMES, max_size=2, unique=True).map(lambda words: tuple(sorted(words)))


@st.composite
def datas(draw: Draw, dtype: str, count: int, quantization: Quantization | None) -> Data:
    """The bytes of `count` values: arbitrary bits, but inside the stated range, and 0 or 1 for bool."""
    entry = DTYPES[dtype]
    if entry.kind == "f":
        return draw(floats(entry, count, quantization))
    low, high = (0, 1) if entry.kind == "b" else (entry.minimum, entry.maximum)
    if quantization is not None:
        low, high = quantization.quant_min, quantization.quant_max
    values = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    if entry.bits < 8:
        return ArrayData(pack(np.array(values, np.int64), entry.bits))
    return ArrayData(np.array(values, numpy_dtype(dtype)))


@st.composite
def floats(draw: Draw, entry: DType, count: int, quantization: Quantization | None) -> Data:
    """Arbitrary bits; for a quantized tensor only numbers inside the stated range."""
    codes = np.arange(1 << min(entry.bits, 8)).astype(np.uint8)
    if quantization is not None:
        values = codes.view(numpy_dtype(entry.name)).astype(np.float32)
        codes = codes[~((values < quantization.quant_min) | (values > quantization.quant_max))]
        assume(codes.size or not count)  # a range may lie between two values
    if entry.bits == 4:
        return ArrayData(pack(np.array([draw(st.sampled_from(codes)) for _ in range(count)], np.uint8), 4))
    size = count * entry.bits // 8
    return ArrayData(np.array([draw(st.sampled_from(codes)) for _ in range(size)], np.uint8))


@st.composite
def quantizations(draw: Draw, dtype: str, shape: Shape, *, computed: bool = False) -> Quantization | None:
    if dtype not in QUANTIZABLE or draw(st.booleans()):
        return None
    if shape and all(isinstance(size, int) and 0 < size < 8 for size in shape) and draw(st.booleans()):
        return draw(blocked(dtype, shape, computed=computed))
    axes = [axis for axis, size in enumerate(shape or ()) if isinstance(size, int) and 0 < size < 4]
    axis = draw(st.sampled_from([None, *axes]))
    count = 1 if axis is None or shape is None else shape[axis]
    assert isinstance(count, int)
    scale_dtype = draw(st.sampled_from(SCALE_DTYPES))
    low, high = sorted(draw(st.tuples(*[integers(dtype)] * 2)))
    zero_point = draw(zero_points(dtype, scale_dtype, computed=computed))
    return Quantization.of(
        tuple(draw(scales(scale_dtype)) for _ in range(count)),
        tuple(draw(zero_point) for _ in range(count)),
        low,
        high,
        axis,
        scale_dtype,
        observed=draw(st.one_of(st.none(), observations(count))),
        names=draw(st.tuples(*[st.sampled_from(["", "x_scale", "Skala µ"])] * 2)),
    )


@st.composite
def blocked(draw: Draw, dtype: str, shape: tuple[int, ...], *, computed: bool = False) -> Quantization:
    """Blocks of any size in a small tensor, of equal size or not; per-tensor and per-channel are special cases."""
    scale_dtype = draw(st.sampled_from(SCALE_DTYPES))
    sizes = tuple(draw(st.integers(1, size)) for size in shape)
    counts = tuple(-(-size // block) for size, block in zip(shape, sizes, strict=True))

    def array(elements: st.SearchStrategy[Any]) -> Any:
        return np.array([draw(elements) for _ in range(math.prod(counts))])

    scale = array(scales(scale_dtype)).astype(numpy_dtype(scale_dtype)).reshape(counts)
    points = array(draw(zero_points(dtype, scale_dtype, computed=computed))).reshape(counts)
    limits = tuple(sorted(draw(st.tuples(*[integers(dtype)] * 2))))
    return Quantization.of_blocks(dtype, shape, sizes, scale, points, limits=limits)  # type: ignore[arg-type]


def zero_points(dtype: str, scale_dtype: str, *, computed: bool = False) -> st.SearchStrategy[st.SearchStrategy[Any]]:
    """A strategy for zero points: integers, or, in constants, floats of the type of the scales."""
    if not DTYPES[dtype].is_integer:
        return st.just(st.just(0))
    positive = scales(scale_dtype)
    negative = positive if scale_dtype == "float8_e8m0fnu" else positive.map(neg)
    return st.sampled_from([integers(dtype, 2**31), *([] if computed else [positive, negative])])


def integers(dtype: str, limit: int = 2**63) -> st.SearchStrategy[int]:
    return st.integers(max(DTYPES[dtype].minimum, -limit), min(DTYPES[dtype].maximum, limit - 1))


FLOAT32_MAX = float(np.finfo(np.float32).max)


def scales(dtype: str) -> st.SearchStrategy[float]:
    if dtype == "bfloat16":
        return st.integers(1, 0x7F7F).map(lambda upper: struct.unpack("<f", struct.pack("<I", upper << 16))[0])
    if dtype == "float8_e8m0fnu":
        return st.integers(-127, 127).map(lambda exponent: 2.0**exponent)
    width = int(dtype.removeprefix("float"))
    low, high = (2.0**-149, FLOAT32_MAX) if dtype == "float64" else (0, None)  # a scale is also a float32 above 0
    return st.floats(low, high, exclude_min=not low, allow_infinity=False, allow_nan=False, width=width)  # type: ignore[arg-type]


def observations(count: int) -> st.SearchStrategy[Observed]:
    pairs = st.lists(st.tuples(FLOATS, FLOATS).map(sorted), min_size=count, max_size=count)
    limits = st.one_of(st.just((None, None)), st.tuples(INT64, INT64).map(sorted))
    return st.builds(
        lambda name, ranges, limits, scheme: Observed(
            name, tuple(low for low, _ in ranges), tuple(high for _, high in ranges), *limits, scheme
        ),
        NAMES,
        pairs,
        limits,
        TEXT,
    )
