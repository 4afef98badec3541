"""Random inputs and attributes of the operators that come from ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from .torch_inputs import (
    Case,
    Random,
    along_axis,
    broadcast,
    conv,
    f32,
    floats,
    layer_normalization,
    matmul,
    maybe,
    reduce,
    sizes,
    unary,
    vector,
)


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
    """Unique indices, except for reductions that accumulate."""
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
    """3 or 4 dimensions, shared key and value heads, boolean or additive masks, past keys and values."""
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
        attributes["softcap"] = 0.0  # onnx's reference outputs capped products instead of raw ones
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
    """A scale and maybe a zero point for x: scalars, along an axis, or block-wise."""
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
