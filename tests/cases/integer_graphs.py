"""Random integer-only networks of one node, for every operator and rule that C supports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.model import DTYPES, numpy_dtype
from qfmt.ops import OPERATORS

from .integer_inputs import integers_like, narrow, pairs
from .operators import CASES
from .torch_inputs import Case, Random

Array = np.ndarray
Given = tuple[Array, Quantization | None]
"""Integers, and their quantization."""

Feed = dict[str, Array]


def network(
    operator: str,
    rule: str,
    computed: list[Given | None],
    constants: dict[int, Given],
    attributes: dict[str, Any],
    outputs: list[tuple[str, Quantization | None]],
) -> tuple[Model, Feed]:
    """A node on inputs of the graph and constants, in the order of the operands; and its inputs."""
    tensors, names, feed = [], [], {}
    for place in range(len(computed) + len(constants)):
        given = constants[place] if place in constants else computed[place - sum(at < place for at in constants)]
        if given is None:
            names.append("")
            continue
        array, grid = given
        names.append(f"i{place}")
        if place in constants:
            tensors.append(Tensor.constant(names[-1], array, grid))
        else:
            tensors.append(Tensor(names[-1], array.dtype.name, array.shape, None, grid))
            feed[names[-1]] = array
    made = [Tensor(f"o{at}", dtype, None, None, grid) for at, (dtype, grid) in enumerate(outputs)]
    ends = tuple(each.name for each in made)
    entry = OPERATORS[operator]
    node = Node(operator, tuple(names), ends, entry.complete(attributes), "node", entry.version, rule)
    by_name = {each.name: each for each in (*tensors, *made)}
    return Model(Graph(tuple(feed), ends, (node,), by_name)), feed


# Exact sums


def sums(rng: Random, operator: str, rule: str) -> tuple[Model, Feed]:
    """Operands with the shapes of the operator's case: integers of 8 or 16 bits, any zero points."""
    case = CASES[operator](rng)
    attributes = case.attributes | {name: 1.0 for name in ("alpha", "beta") if name in case.attributes}
    x = integers_like(rng, case.inputs[0])
    if operator in ("AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean"):
        axes = case.inputs[1] if len(case.inputs) > 1 else None
        chosen = {1: (axes, None)} if axes is not None else {}
        return network(operator, rule, [x], chosen, attributes, [("int32", None)])
    second = case.inputs[1]
    axis = _channels(operator, second, attributes) if rng.random() < 0.6 else None
    w, points = integers_like(rng, second, None if operator == "Mul" else axis)
    if rule == "folded":
        points = Quantization.of((0.5,), (0,), DTYPES[w.dtype.name].minimum, DTYPES[w.dtype.name].maximum)
    constants: dict[int, Given] = {} if operator in ("Mul", "MatMul") and rule == "exact" else {1: (w, points)}
    computed = [x] if constants else [x, (w, points)]
    if len(case.inputs) > 2 and case.inputs[2] is not None:
        constants[2] = (rng.integers(-9999, 9999, case.inputs[2].shape).astype(np.int32), None)
    return network(operator, rule, computed, constants, attributes, [("int32", None)])


def _channels(operator: str, weight: Array, attributes: dict[str, Any]) -> int | None:
    if operator == "MatMul":
        return weight.ndim - 1 if weight.ndim > 1 else None
    if operator == "Gemm":
        return 0 if attributes["transB"] else 1
    return 1 if operator == "ConvTranspose" else 0


# Requantization


def target(rng: Random) -> tuple[str, Quantization]:
    """An output of 4 to 16 bits, with a range that may be narrower."""
    dtype = str(rng.choice(["uint8", "int8", "int16", "uint4", "int4"]))
    low, high = DTYPES[dtype].minimum, DTYPES[dtype].maximum
    if rng.random() < 0.5:
        low, high = sorted(int(each) for each in rng.integers(low, high + 1, 2))
    return dtype, Quantization.of((0.25,), (int(rng.integers(low, high + 1)),), low, high)


def requantize(rng: Random, rule: str) -> tuple[Model, Feed]:
    dtype, grid = target(rng)
    shape = rng.integers(1, 6, int(rng.integers(1, 5)))
    axis = int(rng.integers(0, len(shape)))
    x = rng.integers(-(1 << int(rng.integers(8, 32))), 1 << int(rng.integers(8, 32)), shape).clip(
        -(1 << 31), (1 << 31) - 1
    )
    channels = int(shape[axis]) if rng.random() < 0.7 else 1
    shift = rng.integers(0, 63, channels)
    if rng.random() < 0.7:
        shift = rng.integers(20, 50, channels)
    given: list[Array | None] = [None] * 5
    given[1] = shift.astype(np.uint8)
    if rule != "power_of_two":
        given[0] = rng.integers(1, 1 << 31, channels).astype(np.int32)
    if rule == "multiply_shift":
        given[2] = rng.integers(-(1 << 62) + 1, 1 << 62, channels) >> rng.integers(0, 62, channels)
    if rule == "thresholds":
        given = [None] * 5
    if rule == "thresholds" or rng.random() < 0.5:
        rows = channels if rule == "thresholds" and rng.random() < 0.5 else int(rng.integers(1, 4))
        steps = grid.quant_max - grid.quant_min
        given[3] = np.sort(rng.choice(x.reshape(-1), (rows, steps)), axis=1).astype(np.int32)
        if rows not in (1, channels) or rule != "thresholds" or rng.random() < 0.5:
            given[4] = rng.integers(0 if rule == "thresholds" else -1, rows, channels).astype(np.int32)
    while given and given[-1] is None:
        given.pop()
    constants = {at: (each, None) for at, each in enumerate(given, 1) if each is not None}
    computed = [(x.astype(np.int32), None), *(None for each in given if each is None)]
    return network("qfmt.Requantize", rule, computed, constants, {"axis": axis}, [(dtype, grid)])


def requant_shift(rng: Random, rule: str) -> tuple[Model, Feed]:
    dtype, grid = target(rng)
    x = rng.integers(-99999, 99999, rng.integers(1, 5, 4)).astype(np.int32)
    shape = (x.shape[1], 1, 1) if rng.random() < 0.5 else ()
    mul = rng.integers(-999, 999, shape).astype(np.int32)
    add = rng.integers(-(10**9), 10**9, shape)
    points = Quantization.of((1.0,), (int(rng.integers(-9, 9)),), -(1 << 31), (1 << 31) - 1)
    div = {"div": int(rng.integers(1, 10**6))}
    constants = {1: (np.asarray(mul), None), 2: (np.asarray(add), None)}
    return network("qfmt.RequantShift", rule, [(x, points)], constants, div, [(dtype, grid)])


def table(rng: Random, rule: str) -> tuple[Model, Feed]:
    case = CASES["qfmt.Table"](rng)
    dtype = case.inputs[1].dtype.name
    return network(
        "qfmt.Table", "", [(case.inputs[0], None)], {1: (case.inputs[1], None)}, case.attributes, [(dtype, None)]
    )


def pair_table(rng: Random, rule: str) -> tuple[Model, Feed]:
    a, b = pairs(rng, 2)
    values = narrow(rng, 256, 256)
    given: list[Given | None] = [(a, None), (b, None)]
    return network("qfmt.PairTable", "", given, {2: (values, None)}, {}, [(values.dtype.name, None)])


def weighted_sum(rng: Random, rule: str) -> tuple[Model, Feed]:
    case = CASES["qfmt.WeightedSum"](rng)
    given: list[Given | None] = [(each, None) for each in case.inputs]
    return network("qfmt.WeightedSum", "", given, {}, case.attributes, [("int32", None)])


# Operators that move integers


def move(rng: Random, operator: str) -> tuple[Model, Feed]:
    """The operator's case with quantized or plain integers instead of floats."""
    case = CASES[operator](rng)
    dtype = str(rng.choice(["uint8", "int8", "int16", *(("int32",) if operator != "Concat" else ())]))
    scale = float(np.float32(rng.uniform(0.001, 1)))
    grid = Quantization.of((scale,), (3,), DTYPES[dtype].minimum, DTYPES[dtype].maximum) if rng.random() < 0.6 else None
    if operator == "Clip" and grid is not None:
        case = Case(case.inputs[:1], case.attributes)
    computed: list[Given | None] = []
    constants: dict[int, Given] = {}
    for place, array in enumerate(case.inputs):
        if array is not None and array.dtype == np.int64 and operator != "Concat" and place > 0:
            constants[place] = array, None
        elif array is None or (operator == "Pad" and place == 2):
            computed.append(None)
        elif operator == "Clip" and place > 0:
            constants[place] = np.asarray(rng.integers(0, 100), numpy_dtype(dtype)), None
        else:
            limits = DTYPES[dtype]
            computed.append((rng.integers(limits.minimum, limits.maximum + 1, array.shape).astype(dtype), grid))
    count = _output_count(operator, case)
    return network(operator, "", computed, constants, case.attributes, [(dtype, grid)] * count)


def resize(rng: Random, rule: str) -> tuple[Model, Feed]:
    """Nearest-neighbour resizing in every rounding mode, by sizes or scales of some axes."""
    x = rng.integers(0, 256, rng.integers(1, 16, 3)).astype(np.uint8)
    grid = Quantization.of((0.25,), (7,), 0, 255) if rng.random() < 0.6 else None
    axes = rng.permutation(3)[: rng.integers(1, 4)]
    sizes = rng.integers(1, 30, len(axes))
    scales = rng.uniform(0.3, 3, len(axes)).astype(np.float32)
    if rng.random() < 0.3:
        scales = (sizes / np.array(x.shape)[axes]).astype(np.float32) + np.float32(1e-6)
    if rng.random() < 0.3:  # doubles, as PyTorch has them
        scales = np.float64(scales)
    places = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric")
    roundings = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    attributes = {
        "axes": tuple(axes.tolist()),
        "coordinate_transformation_mode": str(rng.choice(places)),
        "nearest_mode": str(rng.choice(roundings)),
    }
    least = np.float32(1 / 30)
    chosen = {3: (sizes, None)} if rng.random() < 0.5 else {2: (np.maximum(scales, least), None)}
    computed: list[Given | None] = [(x, grid), None, *([None] if 3 in chosen else [])]
    return network("Resize", "", computed, chosen, attributes, [("uint8", grid)])


def position(rng: Random, operator: str) -> tuple[Model, Feed]:
    """A case with few different integers, so that the largest occurs more than once."""
    case = CASES[operator](rng)
    dtype = str(rng.choice(["int8", "int16", "int32"]))
    grid = Quantization.of((0.25,), (7,), -128, 127) if dtype == "int8" and rng.random() < 0.5 else None
    x = rng.integers(-3, 3, case.inputs[0].shape).astype(dtype)
    return network(operator, "", [(x, grid)], {}, case.attributes, [("int64", None)])


def _output_count(operator: str, case: Case) -> int:
    if operator != "Split":
        return 1
    parts = case.inputs[1] if len(case.inputs) > 1 else None
    return case.attributes["num_outputs"] if parts is None else len(parts)


SUMS = ("Conv", "ConvTranspose", "qfmt.Linear", "Gemm", "MatMul", "Mul")
MEANS = ("AveragePool", "GlobalAveragePool", "qfmt.AdaptiveAveragePool", "ReduceMean")
MOVES = (
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "DepthToSpace",
    "SpaceToDepth", "Relu", "Clip", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Concat", "Split", "Slice",
    "Pad", "Gather",
)  # fmt: skip

Make = Callable[[Random], tuple[Model, Feed]]


def kinds() -> Iterator[tuple[str, Make]]:
    """Every operator and rule, and a function that makes a network of it."""
    for operator in (*SUMS, *MEANS):
        for rule in OPERATORS[operator].sum_rules:
            yield f"{operator} {rule}", lambda rng, operator=operator, rule=rule: sums(rng, operator, rule)
    for rule in OPERATORS["qfmt.Requantize"].rules:
        yield f"qfmt.Requantize {rule}", lambda rng, rule=rule: requantize(rng, rule)
    makers = (requant_shift, "multiply_add_divide"), (table, ""), (pair_table, ""), (weighted_sum, ""), (resize, "")
    for make, rule in makers:
        yield make.__name__, lambda rng, make=make, rule=rule: make(rng, rule)
    for operator in ("ArgMax", "ArgMin"):
        yield operator, lambda rng, operator=operator: position(rng, operator)
    for operator in MOVES:
        yield operator, lambda rng, operator=operator: move(rng, operator)
