"""Random inputs and attributes of operators in PyTorch networks, and functions to make them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

f32 = np.float32
Random = np.random.Generator


class Case(NamedTuple):
    """Inputs in order (None: absent) and all attributes. int64 inputs are constants with known values."""

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
    """Padding is smaller than the kernel, so no window is entirely inside the padding."""
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
    """Any factors of the number of elements, some of them replaced by 0 or -1."""
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
    if rng.random() < 0.3:  # equal parts, except a smaller last one
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
    """Multiples of a quarter: sums and quotients are exact, so references agree."""
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
