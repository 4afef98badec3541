"""A network of convolutions between RequantShifts, as QuantLab writes it, and its results in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from networks.onnx_models import node, proto

f32 = np.float32


def rescale(x: np.ndarray, mul: np.ndarray, add: np.ndarray, div: int, levels: int, signed: bool) -> np.ndarray:
    """The formula of RequantShift, in integers of any size."""
    low = -(levels // 2) if signed else 0
    exact = np.vectorize(lambda a, m, b: (2 * (int(a) * int(m) + int(b)) + div) // (2 * div), otypes=[object])(
        x, mul, add
    )
    return np.clip(exact.astype(np.float64), low, low + levels - 1).astype(f32)


def convolve(x: np.ndarray, w: np.ndarray, group: int = 1) -> np.ndarray:
    """3×3 with padding 1, in int64."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    if group > 1:
        return np.einsum("nchwij,cij->nchw", windows, w[:, 0].astype(np.int64))
    return np.einsum("nchwij,mcij->nmhw", windows, w.astype(np.int64))


def network(rng: np.random.Generator, opset: int, kind: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """conv → requant → depthwise conv → requant → + → requant → pool → gemm with a bias; `kind` of the attributes."""
    whole = {
        "w": rng.integers(-8, 8, (6, 3, 3, 3)),
        "d": rng.integers(-128, 128, (6, 1, 3, 3)),
        "g": rng.integers(-128, 128, (4, 6 * 16)),
        "gb": rng.integers(-5000, 5000, 4),
        **{f"mul{i}": rng.integers(1, 200, (6, 1, 1)) for i in (0, 1)},
        **{f"add{i}": rng.integers(-3000, 3000, (6, 1, 1)) for i in (0, 1)},
        "mul2": np.array(37),
        "add2": np.array(-11),
    }

    def requant(x: str, y: str, index: int, div: int, signed: int, levels: str = "n_levels_out") -> onnx.NodeProto:
        as_kind = {"float": float, "int": int, "tensor": lambda v: onnx.numpy_helper.from_array(np.array(v, f32))}[kind]
        given = {"div": as_kind(div), levels: as_kind(256), "signed": as_kind(signed)}
        return node("RequantShift", [x, f"mul{index}", f"add{index}"], [y], y, **given)

    pads = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", **pads),
        requant("a", "b", 0, 4096, 0),
        node("Conv", ["b", "d"], ["c"], "depthwise", group=6, **pads),
        requant("c", "e", 1, 1 << 16, 0, "n_levels"),
        node("Add", ["b", "e"], ["s"], "add"),
        requant("s", "t", 2, 64, 1),
        node("MaxPool", ["t"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "g", "gb"], ["y"], "gemm", transB=1),
    ]
    constants = {name: value.astype(f32) for name, value in whole.items()}
    return proto(nodes, {"x": (TensorProto.FLOAT, [1, 3, 8, 8])}, ["y"], constants, opset=opset), whole


def expected(x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    b = rescale(convolve(x, w["w"]), w["mul0"], w["add0"], 4096, 256, False)
    e = rescale(convolve(b, w["d"], 6), w["mul1"], w["add1"], 1 << 16, 256, False)
    t = rescale(b + e, w["mul2"], w["add2"], 64, 256, True)
    p = t.reshape(1, 6, 4, 2, 4, 2).max((3, 5)).reshape(1, -1)
    return p.astype(np.int64) @ w["g"].T + w["gb"]
