"""Random float inputs and attributes for every operator: what shape rules, references and witnesses are tried on.

case = CASES["Conv"](np.random.default_rng(7))
OPERATORS["Conv"].reference(*case.inputs, **case.attributes)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qfmt.ops import OPERATORS

f32 = np.float32
Random = np.random.Generator


class Case(NamedTuple):
    """Inputs in order (None: absent) and all attributes. Inputs of int64 are constants, whose values are known."""

    inputs: list[np.ndarray | None]
    attributes: dict[str, Any]


def floats(rng: Random, *shape: int) -> np.ndarray:
    return rng.normal(0, 2, shape).astype(f32)


def sizes(rng: Random, rank: int, low: int = 1, high: int = 5) -> list[int]:
    return [int(size) for size in rng.integers(low, high + 1, rank)]


def vector(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def maybe(rng: Random, value: np.ndarray) -> np.ndarray | None:
    return value if rng.random() < 0.7 else None


def some_axes(rng: Random, rank: int) -> list[int]:
    """Some of the axes, in any order, some of them counted from the end."""
    chosen = rng.permutation(rank)[: rng.integers(1, rank + 1)]
    return [int(axis) - rank * int(rng.random() < 0.5) for axis in chosen]


def unary(rng: Random, **attributes: Any) -> Case:
    return Case([floats(rng, *sizes(rng, rng.integers(0, 5)))], attributes)


def positive(rng: Random) -> Case:
    return Case([np.abs(floats(rng, *sizes(rng, 3))) + f32(0.1)], {})


def broadcast(rng: Random, count: int = 2) -> Case:
    """Inputs that broadcast: some axes are 1, some leading ones are missing."""
    shape = sizes(rng, rng.integers(0, 5))
    inputs = []
    for _ in range(count):
        own = [size if rng.random() < 0.7 else 1 for size in shape]
        inputs.append(floats(rng, *own[rng.integers(0, len(own) + 1) :]))
    return Case(list(inputs), {})


def power(rng: Random) -> Case:
    base, exponent = broadcast(rng).inputs
    return Case([np.abs(base) + f32(0.1), exponent], {})


def along_axis(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    return Case([floats(rng, *sizes(rng, rank))], {"axis": int(rng.integers(-rank, rank))})


def window(rng: Random, rank: int) -> dict[str, tuple[int, ...]]:
    return {
        "kernel_shape": tuple(sizes(rng, rank, 1, 3)),
        "strides": tuple(sizes(rng, rank, 1, 3)),
        "pads": tuple(sizes(rng, 2 * rank, 0, 2)),
        "dilations": tuple(sizes(rng, rank, 1, 2)),
    }


def image(rng: Random, a: dict[str, tuple[int, ...]], channels: int) -> np.ndarray:
    """An input into which the window fits, [N, C, *spatial]."""
    rank = len(a["kernel_shape"])
    spatial = [(a["kernel_shape"][i] - 1) * a["dilations"][i] + int(rng.integers(1, 7)) for i in range(rank)]
    return floats(rng, int(rng.integers(1, 3)), channels, *spatial)


def conv(rng: Random) -> Case:
    a = window(rng, int(rng.integers(1, 4)))
    group, per_group, filters = sizes(rng, 3, 1, 3)
    w = floats(rng, group * filters, per_group, *a["kernel_shape"])
    x, b = image(rng, a, group * per_group), floats(rng, group * filters)
    return Case([x, w, maybe(rng, b)], {**a, "group": group})


def conv_transpose(rng: Random) -> Case:
    rank = int(rng.integers(1, 4))
    a = window(rng, rank)
    group, per_group, filters = sizes(rng, 3, 1, 3)
    w = floats(rng, group * per_group, filters, *a["kernel_shape"])
    x, b = floats(rng, 2, group * per_group, *sizes(rng, rank, 3, 5)), floats(rng, group * filters)
    extra = [int(rng.integers(0, stride)) for stride in a["strides"]]
    a["pads"] = tuple(sizes(rng, 2 * rank, 0, 1))
    return Case([x, w, maybe(rng, b)], {**a, "group": group, "output_padding": tuple(extra)})


def pool(rng: Random, **attributes: Any) -> Case:
    """Padding is less than the kernel, as everywhere; no window lies in the padding alone."""
    a = window(rng, int(rng.integers(1, 4)))
    limits = a["kernel_shape"] * 2
    a["pads"] = tuple(min(pad, limit - 1) for pad, limit in zip(a["pads"], limits, strict=True))
    return Case([image(rng, a, 2)], {**a, "ceil_mode": int(rng.integers(0, 2)), **attributes})


def average_pool(rng: Random) -> Case:
    return pool(rng, count_include_pad=int(rng.integers(0, 2)))


def spatial(rng: Random) -> Case:
    return Case([floats(rng, *sizes(rng, int(rng.integers(3, 6))))], {})


def adaptive(rng: Random) -> Case:
    rank = int(rng.integers(1, 4))
    return Case([floats(rng, 2, 3, *sizes(rng, rank, 3, 8))], {"output_size": tuple(sizes(rng, rank, 1, 4))})


def reduce(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    axes = maybe(rng, vector(*some_axes(rng, rank)))
    return Case([floats(rng, *sizes(rng, rank)), axes], {"keepdims": int(rng.integers(0, 2))})


def linear(rng: Random) -> Case:
    inner, out = sizes(rng, 2)
    x = floats(rng, *sizes(rng, rng.integers(0, 4)), inner)
    return Case([x, floats(rng, out, inner), maybe(rng, floats(rng, out))], {})


def matmul(rng: Random) -> Case:
    rows, inner, columns = sizes(rng, 3)
    a, b = broadcast(rng).inputs
    left = [] if rng.random() < 0.2 else [*a.shape, rows]
    right = [inner] if rng.random() < 0.2 else [*b.shape, inner, columns]
    return Case([floats(rng, *left, inner), floats(rng, *right)], {})


def batch_normalization(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, int(rng.integers(2, 6))))
    mean, scale, b = (floats(rng, x.shape[1]) for _ in range(3))
    return Case([x, scale, b, mean, np.abs(floats(rng, x.shape[1]))], {"epsilon": 1e-3})


def layer_normalization(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    x, axis = floats(rng, *sizes(rng, rank, 2)), int(rng.integers(-rank, rank))
    scale, b = floats(rng, *x.shape[axis % rank :]), floats(rng, *x.shape[axis % rank :])
    return Case([x, scale, maybe(rng, b)], {"axis": axis, "epsilon": 1e-3})


def group_normalization(rng: Random) -> Case:
    groups, per_group = sizes(rng, 2, 1, 3)
    channels = groups * per_group
    x = floats(rng, 2, channels, *sizes(rng, rng.integers(1, 3), 2))
    return Case([x, floats(rng, channels), floats(rng, channels)], {"epsilon": 1e-3, "num_groups": groups})


def instance_normalization(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, int(rng.integers(3, 5)), 2))
    return Case([x, floats(rng, x.shape[1]), floats(rng, x.shape[1])], {"epsilon": 1e-3})


def clip(rng: Random) -> Case:
    return Case([*unary(rng).inputs, maybe(rng, np.array(-1, f32)), maybe(rng, np.array(1.5, f32))], {})


def prelu(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, 4))
    return Case([x, floats(rng, x.shape[1], 1, 1) if rng.random() < 0.5 else floats(rng, 1)], {})


def reshape(rng: Random) -> Case:
    """Any factors of the number of elements, some of them written as 0 or -1."""
    x = floats(rng, *sizes(rng, int(rng.integers(1, 4)), 1, 6))
    shape = list(x.shape)
    rng.shuffle(shape)
    if rng.random() < 0.5:
        shape = [*shape[:-2], int(np.prod(shape[-2:]))]
    wanted = [0 if i < x.ndim and x.shape[i] == size and rng.random() < 0.5 else size for i, size in enumerate(shape)]
    if rng.random() < 0.5:
        wanted[rng.integers(0, len(wanted))] = -1
    return Case([x, vector(*wanted)], {})


def flatten(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    return Case([floats(rng, *sizes(rng, rank))], {"axis": int(rng.integers(-rank, rank + 1))})


def transpose(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    return Case([floats(rng, *sizes(rng, rank))], {"perm": tuple(int(axis) for axis in rng.permutation(rank))})


def squeeze(rng: Random) -> Case:
    shape = sizes(rng, 4, 1, 2)
    ones = [axis - 4 * int(rng.random() < 0.5) for axis, size in enumerate(shape) if size == 1]
    return Case([floats(rng, *shape), maybe(rng, vector(*ones))], {})


def unsqueeze(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    axes = some_axes(rng, rank)
    return Case([floats(rng, *sizes(rng, rank - len(axes))), vector(*axes)], {})


def concat(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    shape, axis = sizes(rng, rank), int(rng.integers(-rank, rank))
    parts = []
    for _ in range(int(rng.integers(1, 4))):
        shape[axis] = int(rng.integers(0, 4))
        parts.append(floats(rng, *shape))
    return Case(list(parts), {"axis": axis})


def split(rng: Random) -> Case:
    rank = int(rng.integers(1, 5))
    shape, axis, parts = sizes(rng, rank), int(rng.integers(-rank, rank)), sizes(rng, int(rng.integers(1, 4)), 0, 3)
    shape[axis] = sum(parts)
    if rng.random() < 0.3:  # equal parts, and one that is smaller
        count = int(rng.integers(1, 4))
        shape[axis] = count * 3 - int(rng.integers(0, 3))
        return Case([floats(rng, *shape), None], {"axis": axis, "num_outputs": count})
    return Case([floats(rng, *shape), vector(*parts)], {"axis": axis, "num_outputs": 0})


def slice_(rng: Random) -> Case:
    """Bounds inside, outside and far outside, forwards and backwards."""
    rank = int(rng.integers(1, 4))
    axes = some_axes(rng, rank)
    far = [2**63 - 1, -(2**63) + 1, 2**31 - 1, 0, -1]
    bounds = [[int(rng.choice([int(rng.integers(-8, 8)), *far])) for _ in axes] for _ in range(2)]
    steps = [int(step) for step in rng.choice([-3, -1, 1, 2], len(axes))]
    if rng.random() < 0.3:
        return Case([floats(rng, *sizes(rng, rank, 0)), *(vector(*each) for each in bounds), None, None], {})
    whole = [*(vector(*each) for each in bounds), vector(*axes), maybe(rng, vector(*steps))]
    return Case([floats(rng, *sizes(rng, rank, 0)), *whole], {})


def pad(rng: Random) -> Case:
    rank = int(rng.integers(1, 4))
    axes = some_axes(rng, rank)
    mode = str(rng.choice(["constant", "reflect", "edge", "wrap"]))
    low = -1 if mode == "constant" else 0
    pads = [int(width) for width in rng.integers(low, 3, 2 * len(axes))]
    value = maybe(rng, np.array(1.5, f32)) if mode == "constant" else None
    return Case([floats(rng, *sizes(rng, rank, 3)), vector(*pads), value, vector(*axes)], {"mode": mode})


def gather(rng: Random) -> Case:
    rank = int(rng.integers(1, 4))
    x, axis = floats(rng, *sizes(rng, rank)), int(rng.integers(-rank, rank))
    size = x.shape[axis]
    return Case([x, rng.integers(-size, size, sizes(rng, rng.integers(0, 3)))], {"axis": axis})


def expand(rng: Random) -> Case:
    a, b = broadcast(rng).inputs
    return Case([a, vector(*b.shape)], {})


def tile(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, 3))
    return Case([x, vector(*sizes(rng, 3, 0, 3))], {})


def shape(rng: Random) -> Case:
    rank = int(rng.integers(0, 5))
    start, end = (int(bound) for bound in rng.integers(-6, 7, 2))
    return Case([floats(rng, *sizes(rng, rank))], {"start": start, "end": end if rng.random() < 0.7 else 2**63 - 1})


def depth_to_space(rng: Random) -> Case:
    n, c, h, w, b = sizes(rng, 5, 1, 3)
    mode = str(rng.choice(["DCR", "CRD"]))
    return Case([floats(rng, n, c * b * b, h, w)], {"blocksize": b, "mode": mode})


def space_to_depth(rng: Random) -> Case:
    n, c, h, w, b = sizes(rng, 5, 1, 3)
    return Case([floats(rng, n, c, h * b, w * b)], {"blocksize": b})


def resize(rng: Random) -> Case:
    """Quarters: sums and quotients without rounding, on which references agree."""
    x = floats(rng, 1, 2, *sizes(rng, int(rng.integers(1, 3)), 2, 6))
    attributes: dict[str, Any] = {
        "mode": str(rng.choice(["nearest", "linear", "cubic"]))
        if x.ndim == 4
        else str(rng.choice(["nearest", "linear"])),
        "coordinate_transformation_mode": str(
            rng.choice(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        ),
        "nearest_mode": str(rng.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])),
    }
    if attributes["mode"] != "nearest" and x.ndim == 4 and rng.random() < 0.3:
        attributes |= {"antialias": 1, "coordinate_transformation_mode": "half_pixel"}
    given = range(2, x.ndim) if rng.random() < 0.3 else range(x.ndim)
    if len(given) < x.ndim:
        attributes["axes"] = tuple(given)
    roi = None
    if x.ndim == 4 and attributes["mode"] == "linear" and "antialias" not in attributes and rng.random() < 0.3:
        attributes |= {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 2.5}
        roi = np.array([*[0, 0, 0.25, 0.1][-len(given) :], *[1, 1, 0.75, 1.2][-len(given) :]], f32)
    if rng.random() < 0.5:
        scales = np.array([1, 1, *rng.choice([0.5, 0.75, 1, 2, 2.5, 4], x.ndim - 2)], f32)
        return Case([x, roi, scales[-len(given) :], None], attributes)
    if len(given) < x.ndim and roi is None and rng.random() < 0.5:
        attributes["keep_aspect_ratio_policy"] = str(rng.choice(["not_larger", "not_smaller"]))
    wanted = vector(*x.shape[:2], *sizes(rng, x.ndim - 2, 1, 9))
    return Case([x, roi, None, wanted[-len(given) :]], attributes)


def cast(rng: Random) -> Case:
    return Case([floats(rng, 3, 4)], {"to": str(rng.choice(["int32", "int64", "uint8", "float64", "bool", "float16"]))})


def dynamic(case: Case) -> Case:
    return Case(case.inputs, {**case.attributes, "reduce_range": 0})


def embedding(rng: Random) -> Case:
    rows, columns = sizes(rng, 2)
    indices = rng.integers(0, rows, sizes(rng, rng.integers(0, 3)))
    return Case([floats(rng, rows, columns), indices.astype(np.int32)], {})


def embedding_bag(rng: Random) -> Case:
    rows, columns, bags, size = sizes(rng, 4)
    mode = str(rng.choice(["sum", "mean", "max"]))
    attributes = {"mode": mode, "include_last_offset": int(rng.integers(0, 2)), "padding_idx": -1}
    if rng.random() < 0.5:
        indices = rng.integers(0, rows, (bags, size)).astype(np.int32)
        weights = maybe(rng, floats(rng, bags, size)) if mode == "sum" else None
        return Case([floats(rng, rows, columns), indices, None, weights], attributes)
    offsets = np.sort(rng.integers(0, size + 1, bags))
    offsets[0] = 0
    if attributes["include_last_offset"]:
        offsets = np.append(offsets, size)
    return Case([floats(rng, rows, columns), rng.integers(0, rows, size), offsets, None], attributes)


def recurrent(rng: Random, gates: int, states: int, *, cell: bool, **attributes: Any) -> Case:
    steps, batch, features, size = sizes(rng, 4)
    weights = [floats(rng, gates * size, features), floats(rng, gates * size, size)]
    biases = [maybe(rng, floats(rng, gates * size)) for _ in range(2)]
    begin = [maybe(rng, floats(rng, batch, size)) for _ in range(states)]
    x = floats(rng, *([batch] if cell else [steps, batch]), features)
    direction = {} if cell else {"reverse": int(rng.integers(0, 2))}
    return Case([x, *weights, *biases, *begin], {"reduce_range": 0, **direction, **attributes})


def inside(rng: Random) -> Case:
    """Between -1 and 1."""
    return Case([rng.uniform(-0.95, 0.95, sizes(rng, 3)).astype(f32)], {})


def from_one(rng: Random) -> Case:
    return Case([np.abs(floats(rng, *sizes(rng, 3))) + f32(1.1)], {})


def bits(rng: Random, count: int = 2, kind: str = "int32") -> Case:
    """Integers that broadcast; equal ones are not rare."""
    return Case([each.astype(kind) for each in broadcast(rng, count).inputs], {})


def truths(rng: Random, count: int = 2) -> Case:
    return Case([each > 0 for each in broadcast(rng, count).inputs], {})


def is_nan(rng: Random) -> Case:
    x = unary(rng).inputs[0]
    return Case([np.where(rng.random(x.shape) < 0.5, x, f32(rng.choice([np.nan, np.inf, -np.inf]))).astype(f32)], {})


def is_infinite(rng: Random) -> Case:
    choices = {name: int(rng.integers(0, 2)) for name in ("detect_negative", "detect_positive")}
    return Case(is_nan(rng).inputs, choices)


def bit_shift(rng: Random) -> Case:
    x, y = bits(rng, kind="uint8").inputs
    return Case([x, y % 7], {"direction": str(rng.choice(["LEFT", "RIGHT"]))})


def modulo(rng: Random) -> Case:
    if rng.random() < 0.5:
        a, b = broadcast(rng).inputs
        return Case([a, b], {"fmod": 1})
    a, b = bits(rng).inputs
    return Case([a * 3, np.where(b == 0, np.int32(2), b)], {"fmod": int(rng.integers(0, 2))})


def where(rng: Random) -> Case:
    condition, x, y = broadcast(rng, 3).inputs
    return Case([condition > 0, x, y], {})


def gemm(rng: Random) -> Case:
    rows, inner, columns = sizes(rng, 3)
    trans_a, trans_b = (int(flag) for flag in rng.integers(0, 2, 2))
    a, b = floats(rng, *([inner, rows] if trans_a else [rows, inner])), floats(rng, inner, columns)
    c = [floats(rng), floats(rng, columns), floats(rng, rows, 1), floats(rng, rows, columns), None][rng.integers(0, 5)]
    factors = {"alpha": 1.0, "beta": 1.0} if rng.random() < 0.5 else {"alpha": 0.5, "beta": 1.25}
    return Case([a, b.T.copy() if trans_b else b, c], {"transA": trans_a, "transB": trans_b, **factors})


def einsum(rng: Random) -> Case:
    i, j, k, b = sizes(rng, 4)
    equation, *shapes = [
        ("ij,jk->ik", [i, j], [j, k]),
        ("bij,bjk->bik", [b, i, j], [b, j, k]),
        ("...ij,jk->...ik", [b, i, j], [j, k]),
        ("ij,jk", [i, j], [j, k]),
        ("ij->ji", [i, j]),
        ("ii->i", [i, i]),
        ("bij->b", [b, i, j]),
    ][rng.integers(0, 7)]
    return Case([floats(rng, *shape) for shape in shapes], {"equation": equation})


def requant_shift(rng: Random) -> Case:
    x = rng.integers(-5000, 5000, (2, *sizes(rng, 3))).astype(f32)
    along = (x.shape[1], 1, 1) if rng.random() < 0.7 else ()
    mul, add = rng.integers(1, 300, along).astype(f32), rng.integers(-9999, 9999, along).astype(f32)
    return Case([x, mul, add], {"div": int(rng.choice([1, 3, 256, 1 << 14]))})


def matmul_integer(rng: Random) -> Case:
    case = matmul(rng)
    a, b = (rng.integers(0, 256, each.shape).astype(np.uint8) for each in case.inputs)
    points = [maybe(rng, np.array(int(point), np.uint8)) for point in rng.integers(0, 256, 2)]
    if b.ndim > 1 and rng.random() < 0.5:
        points[1] = rng.integers(0, 256, b.shape[-1]).astype(np.uint8)
    return Case([a, b, *points], {})


def conv_integer(rng: Random) -> Case:
    x, w, _ = (case := conv(rng)).inputs
    x, w = (rng.integers(0, 256, each.shape).astype(np.uint8) for each in (x, w))
    points = [maybe(rng, np.array(int(point), np.uint8)) for point in rng.integers(0, 256, 2)]
    return Case([x, w, *points], case.attributes)


def reduction(rng: Random) -> Case:
    x, axes = (case := reduce(rng)).inputs
    if axes is not None and rng.random() < 0.2:
        axes = vector()
    empty = 0 if axes is None else int(rng.integers(0, 2))
    return Case([x, axes], {**case.attributes, "noop_with_empty_axes": empty})


def positive_reduction(rng: Random) -> Case:
    x, axes = (case := reduction(rng)).inputs
    return Case([np.abs(x) + f32(0.1), axes], case.attributes)


def position(rng: Random) -> Case:
    x = (case := along_axis(rng)).inputs[0]
    flags = {name: int(rng.integers(0, 2)) for name in ("keepdims", "select_last_index")}
    return Case([np.rint(x)], {**case.attributes, **flags})


def cumulative_sum(rng: Random) -> Case:
    case = along_axis(rng)
    flags = {name: int(rng.integers(0, 2)) for name in ("exclusive", "reverse")}
    return Case([*case.inputs, np.array(case.attributes["axis"])], flags)


def top(rng: Random) -> Case:
    x, axis = (case := along_axis(rng)).inputs[0], case.attributes["axis"]
    count = vector(int(rng.integers(0, x.shape[axis] + 1)))
    return Case([np.rint(x), count], {"axis": axis, "largest": int(rng.integers(0, 2)), "sorted": 1})


def gather_elements(rng: Random) -> Case:
    x, axis = (case := along_axis(rng)).inputs[0], case.attributes["axis"]
    shape = [int(rng.integers(1, size + 1)) for size in x.shape]
    return Case([x, rng.integers(-x.shape[axis], x.shape[axis], shape)], {"axis": axis})


def scatter_elements(rng: Random) -> Case:
    """Indices that name no place twice, but for those that add up."""
    x, indices = (case := gather_elements(rng)).inputs
    axis, reduction = case.attributes["axis"], str(rng.choice(["none", "add", "mul", "min", "max"]))
    if reduction == "none":
        indices = rng.permuted(np.indices(x.shape)[axis], axis=axis)
    return Case([x, indices, floats(rng, *indices.shape)], {"axis": axis, "reduction": reduction})


def gather_nd(rng: Random) -> Case:
    x, batch = floats(rng, *sizes(rng, 4)), int(rng.integers(0, 2))
    depth = int(rng.integers(1, 4 - batch))
    lead = [*x.shape[:batch], *sizes(rng, rng.integers(0, 3))]
    columns = [rng.integers(-x.shape[batch + i], x.shape[batch + i], lead) for i in range(depth)]
    return Case([x, np.stack(columns, -1)], {"batch_dims": batch})


def scatter_nd(rng: Random) -> Case:
    x, depth = floats(rng, *sizes(rng, 3)), int(rng.integers(1, 4))
    places = np.array(list(np.ndindex(x.shape[:depth])))
    chosen = places[rng.permutation(len(places))[: rng.integers(1, len(places) + 1)]]
    reduction = str(rng.choice(["none", "add", "mul", "min", "max"]))
    return Case([x, chosen, floats(rng, len(chosen), *x.shape[depth:])], {"reduction": reduction})


def non_zero(rng: Random) -> Case:
    return Case([np.rint(floats(rng, *sizes(rng, int(rng.integers(1, 4)))))], {})


def compress(rng: Random) -> Case:
    x, axis = (case := along_axis(rng)).inputs[0], case.attributes["axis"]
    return Case([x, rng.random(int(rng.integers(1, x.shape[axis] + 1))) < 0.5], {"axis": axis})


def one_hot(rng: Random) -> Case:
    rank, depth = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    indices = rng.integers(-depth, depth, sizes(rng, rank))
    axis = int(rng.integers(-rank - 1, rank + 1))
    return Case([indices, vector(depth), floats(rng, 2)], {"axis": axis})


def reverse_sequence(rng: Random) -> Case:
    x, batch = floats(rng, *sizes(rng, int(rng.integers(2, 5)))), int(rng.integers(0, 2))
    lengths = rng.integers(1, x.shape[1 - batch] + 1, x.shape[batch])
    return Case([x, lengths], {"batch_axis": batch, "time_axis": 1 - batch})


def triangle(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, int(rng.integers(2, 5))))
    return Case([x, maybe(rng, np.array(int(rng.integers(-3, 4))))], {"upper": int(rng.integers(0, 2))})


def eye(rng: Random) -> Case:
    kind = str(rng.choice(["float32", "int64", "bool"]))
    return Case([floats(rng, *sizes(rng, 2))], {"dtype": kind, "k": int(rng.integers(-2, 3))})


def rms_normalization(rng: Random) -> Case:
    x, scale, _ = (case := layer_normalization(rng)).inputs
    return Case([x, scale], case.attributes)


def lp_normalization(rng: Random) -> Case:
    case = along_axis(rng)
    return Case(case.inputs, {**case.attributes, "p": int(rng.integers(1, 3))})


def local_response(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, 4))
    return Case([x], {"alpha": 0.5, "beta": 0.75, "bias": 1.25, "size": int(rng.choice([1, 3, 5]))})


def attention(rng: Random) -> Case:
    """3 or 4 dimensions, heads that serve several, masks that hide or add, what was before."""
    batch, heads, times, rows, columns, size, past = sizes(rng, 7, 1, 4)
    attributes: dict[str, Any] = {
        "is_causal": int(rng.integers(0, 2)),
        "qk_matmul_output_mode": int(rng.integers(0, 4)),
        "scale": float(rng.choice([0.0, 0.5])),
        "softcap": float(rng.choice([0.0, 2.0])),
    }
    q, k = floats(rng, batch, heads * times, rows, size), floats(rng, batch, heads, columns, size)
    v = floats(rng, batch, heads, columns, 2)
    before = [floats(rng, batch, heads, past, width) for width in (size, 2)] if rng.random() < 0.5 else [None, None]
    whole = columns + (past if before[0] is not None else 0)
    mask = maybe(rng, floats(rng, rows, whole))
    if mask is not None and rng.random() < 0.5:
        mask = mask > 0
        mask[:, 0] = True
    if rng.random() < 0.5:
        attributes |= {"q_num_heads": heads * times, "kv_num_heads": heads}
        q, k, v = (each.swapaxes(1, 2).reshape(batch, each.shape[2], -1) for each in (q, k, v))
    if not attributes["qk_matmul_output_mode"]:
        attributes["softcap"] = 0.0  # onnx's own reference puts out capped products for raw ones
    attributes |= {f"{side}_window_size": int(rng.integers(-1, 3)) for side in ("left", "right")}
    return Case([q, k, v, mask, *before], attributes)


def rotary(rng: Random) -> Case:
    batch, heads, length, half = sizes(rng, 4, 1, 3)
    x = floats(rng, batch, heads, length, 2 * half + 2 * int(rng.integers(0, 2)))
    attributes = {"interleaved": int(rng.integers(0, 2)), "rotary_embedding_dim": 2 * half, "num_heads": heads}
    if rng.random() < 0.5:
        x = x.swapaxes(1, 2).reshape(batch, length, -1)
    if rng.random() < 0.5:
        return Case([x, floats(rng, 9, half), floats(rng, 9, half), rng.integers(0, 9, (batch, length))], attributes)
    return Case([x, floats(rng, batch, length, half), floats(rng, batch, length, half), None], attributes)


def onnx_recurrent(rng: Random, gates: int, activations: int, **attributes: Any) -> Case:
    steps, batch, features, size = sizes(rng, 4)
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d, layout = 2 if direction == "bidirectional" else 1, int(rng.integers(0, 2))
    x, states = (
        floats(rng, steps, batch, features),
        [floats(rng, d, batch, size) for _ in range(2 if gates == 4 else 1)],
    )
    if layout:
        x, *states = (each.swapaxes(0, 1).copy() for each in (x, *states))
    names = ["Sigmoid", "Tanh", "Relu", "HardSigmoid", "LeakyRelu", "Softsign"]
    chosen = tuple(str(name) for name in rng.choice(names, activations * d))
    given = [
        x,
        *(floats(rng, d, gates * size, width) / 2 for width in (features, size)),
        maybe(rng, floats(rng, d, 2 * gates * size)),
        maybe(rng, rng.integers(1, steps + 1, batch).astype(np.int32)),
        *(maybe(rng, state) for state in states),
        *([maybe(rng, floats(rng, d, 3 * size))] if gates == 4 else []),
    ]
    options = {"direction": direction, "layout": layout, "activations": chosen, "clip": float(rng.choice([0.0, 2.0]))}
    return Case(given, {**options, "hidden_size": size, **attributes})


def grid_sample(rng: Random) -> Case:
    rank = int(rng.integers(2, 4))
    x, out = floats(rng, 2, 2, *sizes(rng, rank, 2)), sizes(rng, rank)
    modes = ["linear", "nearest", "cubic"] if rank == 2 else ["linear", "nearest"]
    attributes = {
        "mode": str(rng.choice(modes)),
        "padding_mode": str(rng.choice(["zeros", "border", "reflection"])),
        "align_corners": int(rng.integers(0, 2)),
    }
    return Case([x, rng.uniform(-1.4, 1.4, (2, *out, rank)).astype(f32)], attributes)


def scaled(rng: Random, x: np.ndarray) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """A scale and maybe a zero point for x: scalars, along an axis, or by blocks."""
    axis = int(rng.integers(-x.ndim, x.ndim))
    shape: list[int] = [[], [x.shape[axis]], list(x.shape)][rng.integers(0, 3)]
    block = 0
    if len(shape) == x.ndim:
        block, shape[axis] = 2, -(-x.shape[axis] // 2)
    scale = rng.uniform(0.01, 0.2, shape).astype(f32)
    points = rng.integers(0, 256, shape).astype(np.uint8)
    return [scale, points if rng.random() < 0.7 or x.dtype == np.uint8 else None], {"axis": axis, "block_size": block}


def quantize(rng: Random) -> Case:
    x = floats(rng, *sizes(rng, int(rng.integers(2, 4))))
    grid, attributes = scaled(rng, x)
    return Case([x, *grid], {**attributes, "output_dtype": "uint8", "saturate": 1})


def dequantize(rng: Random) -> Case:
    x = rng.integers(0, 256, sizes(rng, int(rng.integers(2, 4)))).astype(np.uint8)
    grid, attributes = scaled(rng, x)
    return Case([x, *grid], {**attributes, "output_dtype": "float32"})


def number_range(rng: Random) -> Case:
    start, step = int(rng.integers(-5, 6)), int(rng.choice([-3, -2, -1, 1, 2, 3]))
    kind = np.int64 if rng.random() < 0.5 else f32
    limit = start + step * int(rng.integers(-1, 6)) + int(rng.integers(-1, 2))
    return Case([np.array(each, kind) for each in (start, limit, step)], {})


CASES: dict[str, Callable[[Random], Case]] = {
    **dict.fromkeys(("Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Erf", "Sign", "Softsign"), unary),
    **dict.fromkeys(("Ceil", "Floor", "Round"), unary),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), inside),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), bits),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), bits),
    **dict.fromkeys(("And", "Or", "Xor"), truths),
    "Acosh": from_one,
    "Shrink": lambda rng: unary(rng, bias=0.5, lambd=1.0),
    "Swish": lambda rng: unary(rng, alpha=1.25),
    "Not": lambda rng: truths(rng, 1),
    "BitwiseNot": lambda rng: bits(rng, 1),
    "IsNaN": is_nan,
    "IsInf": is_infinite,
    "BitShift": bit_shift,
    "Mod": modulo,
    "Where": where,
    "Hardmax": along_axis,
    "Gemm": gemm,
    "Einsum": einsum,
    "MatMulInteger": matmul_integer,
    "ConvInteger": conv_integer,
    "DynamicQuantizeLinear": lambda rng: Case([floats(rng, *sizes(rng, 3))], {}),
    **dict.fromkeys(("ArgMax", "ArgMin"), position),
    "CumSum": cumulative_sum,
    "TopK": top,
    "GatherElements": gather_elements,
    "ScatterElements": scatter_elements,
    "GatherND": gather_nd,
    "ScatterND": scatter_nd,
    "NonZero": non_zero,
    "Compress": compress,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "Trilu": triangle,
    "EyeLike": eye,
    "Size": unary,
    "Sum": lambda rng: broadcast(rng, int(rng.integers(1, 4))),
    "Mean": lambda rng: broadcast(rng, int(rng.integers(1, 4))),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), reduction),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"), reduction),
    "ReduceLogSum": positive_reduction,
    "Add": broadcast,
    "Sub": broadcast,
    "Mul": broadcast,
    "Div": broadcast,
    "Pow": power,
    "Min": lambda rng: broadcast(rng, int(rng.integers(1, 4))),
    "Max": lambda rng: broadcast(rng, int(rng.integers(1, 4))),
    "Sqrt": positive,
    "Log": positive,
    "Reciprocal": positive,
    "Exp": unary,
    "Neg": unary,
    "Abs": unary,
    "Identity": unary,
    "Cast": cast,
    "Relu": unary,
    "Clip": clip,
    "LeakyRelu": lambda rng: unary(rng, alpha=0.1),
    "Elu": lambda rng: unary(rng, alpha=1.3),
    "Celu": lambda rng: unary(rng, alpha=1.3),
    "Selu": lambda rng: unary(rng, alpha=1.6, gamma=1.1),
    "PRelu": prelu,
    "HardSigmoid": lambda rng: unary(rng, alpha=0.2, beta=0.4),
    "HardSwish": unary,
    "Sigmoid": unary,
    "Tanh": unary,
    "Softplus": unary,
    "Mish": unary,
    "ThresholdedRelu": lambda rng: unary(rng, alpha=0.7),
    "Gelu": lambda rng: unary(rng, approximate=str(rng.choice(["none", "tanh"]))),
    "Softmax": along_axis,
    "LogSoftmax": along_axis,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "qfmt.Linear": linear,
    "qfmt.DynamicLinear": lambda rng: dynamic(linear(rng)),
    "qfmt.DynamicConv": lambda rng: dynamic(conv(rng)),
    "qfmt.DynamicConvTranspose": lambda rng: dynamic(conv_transpose(rng)),
    "qfmt.LSTM": lambda rng: recurrent(rng, 4, 2, cell=False),
    "qfmt.GRU": lambda rng: recurrent(rng, 3, 1, cell=False),
    "qfmt.LSTMCell": lambda rng: recurrent(rng, 4, 2, cell=True),
    "qfmt.GRUCell": lambda rng: recurrent(rng, 3, 1, cell=True),
    "qfmt.RNNCell": lambda rng: recurrent(rng, 1, 1, cell=True, activation=str(rng.choice(["tanh", "relu"]))),
    "Range": number_range,
    "GridSample": grid_sample,
    "RMSNormalization": rms_normalization,
    "MeanVarianceNormalization": lambda rng: Case([floats(rng, *sizes(rng, 4, 2))], {"axes": (0, 2, 3)}),
    "LpNormalization": lp_normalization,
    "LRN": local_response,
    "GlobalMaxPool": spatial,
    "LpPool": lambda rng: pool(rng, p=int(rng.integers(1, 4))),
    "GlobalLpPool": lambda rng: Case(spatial(rng).inputs, {"p": int(rng.integers(1, 4))}),
    "Attention": attention,
    "RotaryEmbedding": rotary,
    "RNN": lambda rng: onnx_recurrent(rng, 1, 1),
    "GRU": lambda rng: onnx_recurrent(rng, 3, 2, linear_before_reset=int(rng.integers(0, 2))),
    "LSTM": lambda rng: onnx_recurrent(rng, 4, 3, input_forget=int(rng.integers(0, 2))),
    "ai.onnx.QuantizeLinear": quantize,
    "qfmt.RequantShift": requant_shift,
    "ai.onnx.DequantizeLinear": dequantize,
    "qfmt.Embedding": embedding,
    "qfmt.EmbeddingBag": embedding_bag,
    "MatMul": matmul,
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "MaxPool": pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": spatial,
    "qfmt.AdaptiveAveragePool": adaptive,
    "Resize": resize,
    "Reshape": reshape,
    "Flatten": flatten,
    "Transpose": transpose,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Gather": gather,
    "Expand": expand,
    "Tile": tile,
    "Shape": shape,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "QuantizeLinear": unary,
    "DequantizeLinear": unary,
}


def compute(name: str, case: Case) -> list[np.ndarray]:
    """The outputs of the operator's reference."""
    operator = OPERATORS[name]
    missing = [None] * (len([p for p in operator.inputs if not p.variadic]) - len(case.inputs))
    with np.errstate(all="ignore"):
        result = operator.reference(*case.inputs, *missing, **operator.complete(case.attributes))
    return [np.asarray(each) for each in (result if isinstance(result, list | tuple) else [result])]
