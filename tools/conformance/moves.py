"""Cases of level `integer`: operators that move, compare and clamp integers, and whole networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qfmt.model import Quantization

from .networks import Case, Network, channels, grid, numbers

U8 = grid(0.05, 131)
S8 = grid(0.03, -7, "int8")
POOL = {"ceil_mode": 0, "dilations": (1, 1), "kernel_shape": (2, 2), "pads": (0, 0, 0, 0), "strides": (2, 2)}


MIXED = ("mixed",)
"""The test vector of what only moves: others would not tell one element from another."""


def moved(
    operator: str,
    shape: Sequence[int],
    *constants: Sequence[int] | int | None,
    signed: bool = False,
    out: Quantization | None = None,
    parts: int = 1,
    **attributes: Any,
) -> Network:
    """One node; constants are int64, None is an input that is absent."""
    net = Network()
    dtype, quantization = ("int8", S8) if signed else ("uint8", U8)
    names = [net.input("x", dtype, shape, quantization)]
    for index, each in enumerate(constants):
        names.append("" if each is None else net.constant(f"c{index}", each, "int64"))
    outputs = ["y"] if parts == 1 else [f"y{index}" for index in range(parts)]
    net.node(operator, names, outputs, dtype, out or quantization, **attributes)
    return net


def cases() -> Iterator[Case]:
    yield from pools()
    yield from shapes()
    yield from parts()
    yield from networks()


def pools() -> Iterator[Case]:
    pool = "MaxPool"
    yield moved(pool, (1, 2, 4, 6), **POOL).case("max-pool", pool)
    padded = POOL | {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 2)}
    yield moved(pool, (1, 2, 4, 5), signed=True, **padded).case("max-pool-pads", f"{pool}: padding never wins, int8")
    ceiling = padded | {"ceil_mode": 1, "strides": (2, 3)}
    yield moved(pool, (1, 1, 6, 5), **ceiling).case("max-pool-ceil", f"{pool}: ceil_mode")
    line = {"ceil_mode": 0, "dilations": (3,), "kernel_shape": (3,), "pads": (2, 2), "strides": (1,)}
    yield moved(pool, (2, 1, 8), **line).case("max-pool-dilations", f"{pool}: one spatial dimension, dilations")
    yield moved("GlobalMaxPool", (2, 3, 2, 3)).case("global-max-pool", "GlobalMaxPool")
    yield moved("ReduceMax", (2, 3, 4), [-1, 0]).case("reduce-max", "ReduceMax: a negative axis")
    yield moved("ReduceMin", (2, 3, 4), [1], signed=True, keepdims=0).case("reduce-min", "ReduceMin: keepdims 0")
    yield moved("Relu", (2, 3)).case(
        "relu", "Relu: nothing is below the zero point", {"x": [[0, 130, 131], [132, 255, 7]]}
    )
    narrow = grid(0.03, -7, "int8", -3, 90)
    yield moved("Relu", (6,), signed=True, out=narrow).case(
        "relu-narrow", "Relu: its result is clamped to the range of y", {"x": [-128, -8, -7, -3, 90, 127]}
    )
    for name, bounds in (("both", (-3, 90)), ("low", (-3,)), ("high", (None, 90)), ("crossed", (5, -5))):
        net = Network()
        names = [net.input("x", "int8", (6,))]
        for end, bound in zip(("low", "high"), bounds, strict=False):
            names.append("" if bound is None else net.constant(end, bound, "int8"))
        net.node("Clip", names, "y", "int8")
        about = f"Clip of integers without a quantization: {name}"
        yield net.case(f"clip-plain-{name}", about, {"x": [-128, -4, -3, 0, 91, 127]})
    yield moved("Clip", (6,), signed=True, out=narrow).case(
        "clip-range", "Clip without bounds: clamps to the range of y", {"x": [-128, -4, -3, 0, 91, 127]}
    )


def shapes() -> Iterator[Case]:
    yield moved("Reshape", (2, 3, 4), [4, -1]).case("reshape", "Reshape: a size of -1", kinds=MIXED)
    yield moved("Reshape", (2, 3, 4), [0, 2, -1]).case("reshape-zero", "Reshape: a size of 0 is that of x", kinds=MIXED)
    for axis in (0, 2, -1):
        yield moved("Flatten", (2, 3, 2, 2), axis=axis).case(f"flatten-{axis}", f"Flatten: axis {axis}", kinds=MIXED)
    yield moved("Transpose", (2, 3, 4), perm=(2, 0, 1)).case("transpose", "Transpose of three dimensions", kinds=MIXED)
    yield moved("Transpose", (1, 2, 3, 2), perm=(0, 2, 3, 1), signed=True).case(
        "transpose-nhwc", "Transpose to NHWC", kinds=MIXED
    )
    yield moved("Identity", (2, 2)).case("identity", "Identity", kinds=MIXED)
    yield moved("Squeeze", (1, 3, 1, 2), [0, -2]).case("squeeze", "Squeeze: a negative axis", kinds=MIXED)
    yield moved("Squeeze", (1, 3, 1, 2)).case("squeeze-all", "Squeeze of every size of 1", kinds=MIXED)
    yield moved("Unsqueeze", (2, 3), [0, -1]).case("unsqueeze", "Unsqueeze: axes count in the result", kinds=MIXED)
    yield moved("Expand", (3, 1), [2, 1, 4]).case("expand", "Expand: both shapes broadcast", kinds=MIXED)
    yield moved("Tile", (2, 3), [2, 3]).case("tile", "Tile", kinds=MIXED)
    for mode in ("DCR", "CRD"):
        net = moved("DepthToSpace", (1, 8, 2, 3), blocksize=2, mode=mode)
        yield net.case(f"depth-to-space-{mode.lower()}", f"DepthToSpace: {mode}", kinds=MIXED)
    yield moved("SpaceToDepth", (1, 2, 4, 2), blocksize=2).case("space-to-depth", "SpaceToDepth", kinds=MIXED)


def parts() -> Iterator[Case]:
    for name, constants, about in (
        ("slice", ([1, 0], [3, 2]), "the first axes"),
        ("slice-axes", ([1, -3], [100, -1], [2, 0], [2, 1]), "axes and steps, ends beyond the size and from the back"),
        ("slice-backwards", ([-1], [-100], [1], [-2]), "a negative step to the beginning"),
        ("slice-backwards-beyond", ([100, 100], [0, -100], [1, 2], [-1, -2]), "negative steps from beyond the end"),
        (
            "slice-backwards-none",
            ([-100], [-200], [1], [-1]),
            "a negative step from before the first element: that one",
        ),
        ("slice-backwards-part", ([-2, 3], [-4, -4], [1, 2], [-1, -1]), "negative steps between inner bounds"),
    ):
        yield moved("Slice", (3, 4, 5), *constants).case(name, f"Slice: {about}", kinds=MIXED)
    yield moved("Pad", (2, 3), [1, 0, 0, 2]).case("pad", "Pad: without a constant it adds the zero point", kinds=MIXED)
    net, narrow = Network(), grid(0.03, -7, "int8", -3, 90)
    names = [net.input("x", "int8", (2, 3), narrow), net.constant("c0", [1, 0, 0, 2], "int64")]
    net.node("Pad", names, ["y"], "int8", narrow)
    yield net.case(
        "pad-narrow", "Pad: the zero point is below the range, whose end is added", {"x": [[-3, 0, 5], [90, 7, -2]]}
    )
    for mode in ("edge", "reflect", "wrap"):
        net = moved("Pad", (3, 4), [0, 2, 1, 3], signed=True, mode=mode)
        yield net.case(f"pad-{mode}", f"Pad: {mode}", kinds=MIXED)
    yield moved("Pad", (2, 3, 2), [1, 2], None, [-2]).case("pad-axes", "Pad: only some of the axes", kinds=MIXED)
    yield moved("Gather", (3, 4), [[2, 0], [-1, 1]], axis=1).case(
        "gather", "Gather: a matrix of indices, one negative", kinds=MIXED
    )
    yield moved("Gather", (3, 4, 2), [2, 0], axis=-2).case("gather-axis", "Gather: a negative axis", kinds=MIXED)
    yield moved("Gather", (3, 4), 2).case("gather-scalar", "Gather: a single index drops the axis", kinds=MIXED)
    yield moved("Split", (2, 7), [2, 4, 1], axis=1, parts=3).case("split", "Split by sizes", kinds=MIXED)
    yield moved("Split", (7, 2), parts=3, num_outputs=3).case(
        "split-equal", "Split into equal parts, the last smaller", kinds=MIXED
    )
    net = Network()
    names = [net.input(f"x{index}", "uint8", (2, size, 2), U8) for index, size in enumerate((1, 3, 2))]
    net.node("Concat", names, "y", "uint8", U8, axis=-2)
    yield net.case("concat", "Concat of one grid moves integers; a negative axis", kinds=MIXED)


def networks() -> Iterator[Case]:
    yield residual("multiply_shift").case("network-multiply-shift", "A whole network: multiply_shift", seed=5)
    yield residual("thresholds").case("network-thresholds", "A whole network: thresholds", seed=5)
    yield residual("mixed").case("network-mixed", "A whole network: some channels have thresholds", seed=5)
    net = Network()
    tables = numbers(11, (256,), -128, 127)
    net.input("x", "int8", (1, 2, 3, 3), S8)
    net.node(
        "qfmt.Table",
        ["x", net.constant("sigmoid.table", tables, "int8")],
        "sigmoid",
        "int8",
        grid(1 / 256, -128, "int8"),
    )
    net.node("Mul", ["x", "sigmoid"], "product.sums", "int32", None, "exact")
    requantized(net, "product", ("int8", grid(0.1, 3, "int8")), "multiply_shift", 1, 1, (-40000, 40000), 12)
    net.node("GlobalAveragePool", ["product"], "mean.sums", "int32", None, "exact")
    requantized(net, "mean", ("int8", grid(0.1, 3, "int8")), "multiply_shift", 1, 1, (-1200, 1200), 4)
    yield net.case("network-gate", "A whole network: a table, a product of two activations, a mean")


def residual(rule: str) -> Network:
    """conv, pool, a depthwise conv, the sum of both, mean, linear."""
    net, out = Network(), ("uint8", grid(0.1, 7, "uint8", 7, 47))
    deep, sums = ("uint8", grid(0.05, 131, "uint8", 115, 146)), ("int8", grid(0.03, -7, "int8", -23, 8))
    net.input("x", "uint8", (1, 3, 6, 6), U8)
    layer(net, "x", "stem", (4, 3, 3, 3), out, rule, pads=(1, 1, 1, 1))
    net.node("MaxPool", ["stem"], "pool", "uint8", out[1], **POOL)
    layer(net, "pool", "deep", (4, 1, 3, 3), deep, rule, pads=(1, 1, 1, 1), group=4)
    net.node("qfmt.WeightedSum", ["pool", "deep"], "add.sums", "int32", weights=(1024, -512))
    requantized(net, "add", sums, "multiply_shift" if rule == "mixed" else rule, 1, 1, (-130560, 261120), 11)
    net.node("GlobalAveragePool", ["add"], "mean.sums", "int32", None, "exact")
    requantized(net, "mean", sums, "multiply_shift" if rule == "mixed" else rule, 1, 1, (-1089, 1206), 3)
    net.node("Flatten", ["mean"], "flat", *sums)
    net.constant("fc.w", numbers(17, (3, 4), -127, 127), "int8", channels((0.1, 0.2, 0.3), 0, 0, low=-127))
    net.constant("fc.b", [1000, -2000, 0], "int32")
    net.node("qfmt.Linear", ["flat", "fc.w", "fc.b"], "fc.sums", "int32", None, "folded")
    requantized(net, "fc", sums, rule, 3, 1, (-70000, 70000), 10)
    return net


def layer(
    net: Network, x: str, name: str, w: Sequence[int], out: tuple[str, Quantization], rule: str, **attributes: Any
) -> None:
    net.constant(f"{name}.w", numbers(len(name), w, -127, 127), "int8", channels((0.01,) * w[0], 0, 0, low=-127))
    net.constant(f"{name}.b", numbers(3, (w[0],), -5000, 5000), "int32")
    attributes = {"kernel_shape": w[2:], "strides": (1, 1), "dilations": (1, 1), "group": 1} | attributes
    net.node("Conv", [x, f"{name}.w", f"{name}.b"], f"{name}.sums", "int32", None, "folded", **attributes)
    requantized(net, name, out, rule, w[0], 1, (-1000000, 1000000), 11)


def requantized(
    net: Network,
    name: str,
    out: tuple[str, Quantization],
    rule: str,
    count: int,
    axis: int,
    reach: tuple[int, int],
    shift: int,
) -> None:
    """`name`.sums to `name`: by about 2^-shift, or by thresholds that far apart."""
    names, step = [f"{name}.sums"], 1 << shift
    quantization, stated = out[1], "multiply_shift" if rule == "mixed" else rule
    if rule == "thresholds":
        names += ["", "", ""]
    else:
        bits = shift + 20
        names.append(net.constant(f"{name}.multiplier", numbers(shift, (count,), 1 << 19, (1 << 20) - 1), "int32"))
        names.append(net.constant(f"{name}.shift", [bits] * count, "uint8"))
        names.append(net.constant(f"{name}.add", [1 << bits - 1] * count, "int64"))
    if rule != "multiply_shift":
        steps = range(quantization.quant_max - quantization.quant_min)
        first = (quantization.quant_min - quantization.zero_point[0]) * step
        rows = [[int(first + k * step + row) for k in steps] for row in range(2)]
        names.append(net.constant(f"{name}.thresholds", rows, "int32"))
        chosen = (
            [index % 2 for index in range(count)] if rule == "thresholds" else [index % 3 - 1 for index in range(count)]
        )
        names.append(net.constant(f"{name}.row", chosen, "int32"))
    net.node("qfmt.Requantize", names, name, *out, stated, axis=axis)
    net.prove(*reach)
