"""Cases of level `float`: exact sums that a requantize rule brings to the grid of the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qfmt.model import Quantization

from .networks import Case, Network, channels, grid, numbers

RULES = ("float_bias", "integer_bias", "integer_bias_reciprocal", "affine")
U8 = grid(0.05, 131)
OUT = ("uint8", grid(0.11, 60))
WEIGHT = grid(0.013, 0, "int8", -127)
ROWS = channels((0.013, 0.02, 0.007), 0, 0, low=-127)


def layer(
    rule: str,
    x: tuple[str, Sequence[int], Quantization],
    w: tuple[str, Sequence[int], Quantization],
    out: tuple[str, Quantization],
    bias: Sequence[float] | None,
    operator: str = "qfmt.Linear",
    bias_dtype: str = "float32",
    **attributes: Any,
) -> Network:
    net = Network()
    net.input("x", *x)
    low = 0 if w[0].startswith("u") else -127
    net.constant("w", numbers(7, w[1], low, 255 if low == 0 else 127), w[0], w[2])
    names = ["x", "w"]
    if bias is not None:
        units = [float(np.float32(x[2].scale[0]) * np.float32(scale)) for scale in w[2].scale]
        unit = channels(units, 0, 0, "int32") if bias_dtype == "int32" else None
        names.append(net.constant("b", np.array(bias, bias_dtype), bias_dtype, unit))
    if operator.startswith("Conv"):
        rank = len(w[1]) - 2
        usual = {"kernel_shape": w[1][2:], "pads": (1,) * 2 * rank, "strides": (1,) * rank, "dilations": (1,) * rank}
        if operator == "ConvTranspose":
            usual["output_padding"] = (0,) * rank
        attributes = usual | attributes
    net.node(operator, names, "y", *out, rule, **attributes)
    return net


def cases() -> Iterator[Case]:
    bias = (0.37, -1.25, 3e-5)
    x = ("uint8", (5, 4), U8)
    for rule in RULES:
        name = rule.replace("_", "-")
        wide = layer(rule, ("uint8", (12, 4), U8), ("int8", (3, 4), WEIGHT), OUT, bias)
        yield wide.case(f"linear-{name}", f"Linear by {rule}: a weight per tensor, with a bias")
        rows = layer(rule, ("uint8", (12, 4), U8), ("int8", (3, 4), ROWS), OUT, bias)
        yield rows.case(f"linear-{name}-channels", f"Linear by {rule}: a weight per channel, with a bias")
        yield layer(rule, x, ("int8", (3, 4), ROWS), OUT, None).case(
            f"linear-{name}-no-bias", f"Linear by {rule}: no bias"
        )
        # scales that are powers of two: every other output lies at a tie
        ties = layer(
            rule,
            ("uint8", (16, 1), grid(0.5, 8)),
            ("int8", (1, 1), grid(0.25, 0, "int8")),
            ("int8", grid(2.0, -7, "int8", -40, 40)),
            (0.125,),
        )
        steps = {"x": [[value] for value in range(0, 256, 16)]}
        yield ties.case(f"linear-{name}-ties", f"Linear by {rule}: ties, a narrow range", steps)
        conv = layer(rule, ("uint8", (1, 2, 4, 4), U8), ("int8", (3, 2, 3, 3), ROWS), OUT, bias, "Conv")
        yield conv.case(f"conv-{name}", f"Conv by {rule}: per channel, padding stands for real zeros")
    relu = ("uint8", grid(0.11, 60, "uint8", 60, 255))
    yield layer("float_bias", x, ("int8", (3, 4), WEIGHT), relu, bias).case(
        "linear-float-bias-relu", "Linear by float_bias: a fused ReLU is the least integer of y"
    )
    yield layer("float_bias", x, ("int8", (3, 4), WEIGHT), OUT, (0.0, 0.0, 0.0)).case(
        "linear-float-bias-zero", "Linear by float_bias: a bias of zeros"
    )
    for rule in ("integer_bias", "float_bias"):
        whole = layer(rule, x, ("int8", (3, 4), ROWS), OUT, (900, -1500, 7), bias_dtype="int32")
        yield whole.case(
            f"linear-{rule.replace('_', '-')}-int32",
            f"Linear by {rule}: a bias of int32 in the unit of the sums",
        )
    yield from biases()
    points = channels((0.013, 0.02, 0.007), (9, 128, 250), 0, "uint8")
    yield layer("integer_bias", x, ("uint8", (3, 4), points), OUT, bias).case(
        "linear-integer-bias-uint8", "Linear by integer_bias: a weight of uint8, zero points per channel"
    )
    group = channels((0.013, 0.02), 0, 1, low=-127)
    net = layer(
        "float_bias", ("uint8", (1, 4, 3, 3), U8), ("int8", (4, 2, 2, 2), group), OUT, (0.4, -0.2, 0.1, 0.0),
        "ConvTranspose", group=2, pads=(0, 0, 0, 0), strides=(2, 1),
    )  # fmt: skip
    yield net.case("conv-transpose-float-bias", "ConvTranspose by float_bias: scales along axis 1 serve both groups")
    for rule in ("affine", "integer_bias"):
        net = Network()
        net.input("a", "uint8", (2, 3, 4), U8)
        net.input("b", "uint8", (4, 2), grid(0.02, 77))
        net.node("MatMul", ["a", "b"], "y", *OUT, rule)
        yield net.case(f"matmul-{rule.replace('_', '-')}", f"MatMul by {rule}: two inputs")
    net = layer("integer_bias_reciprocal", ("uint8", (4, 5), U8), ("int8", (4, 3), WEIGHT), OUT, bias, "Gemm", transA=1)
    yield net.case("gemm-integer-bias-reciprocal", "Gemm by integer_bias_reciprocal: transA")


def biases() -> Iterator[Case]:
    """Sums of 20 products near -600,000, and biases of int32; one unit of the sums is one of y."""
    x = [[254] * 20, [255] * 20, [255, *[245] * 18, 1]]
    near = float(np.float32(0.25) + 8 * np.spacing(np.float32(0.25)))
    for name, bias, unit, about in (
        ("near", 600001, grid(near, 0, "int32"), "in units that differ from sx · sw by less than 10^-6: it is added"),
        ("unit", 600001, grid(0.25 + 12 * 2.0**-25, 0, "int32"), "in units that differ by 1.4 · 10^-6 is dequantized"),
        ("scale", 300000, grid(0.5, 0, "int32"), "of another scale is dequantized"),
        ("point", 600090, grid(near, 90, "int32"), "with a zero point is dequantized"),
        ("plain", 150001, None, "that is not quantized consists of real numbers"),
    ):
        net = Network()
        net.input("x", "uint8", (3, 20), grid(0.5, 0))
        names = ["x", net.constant("w", [[-118] * 20], "int8", grid(0.5, 0, "int8"))]
        names.append(net.constant("b", [bias], "int32", unit))
        net.node("qfmt.Linear", names, "y", "int16", grid(0.25, 0, "int16"), "integer_bias")
        yield net.case(
            f"linear-integer-bias-int32-{name}", f"Linear by integer_bias: a bias of int32 {about}", {"x": x}
        )
    for name, second, about in (
        ("channels", 0.125, "that is added"),
        ("channel", 0.126, "that is another one in one channel: all are dequantized"),
    ):
        net = Network()
        net.input("x", "uint8", (3, 20), grid(0.5, 0))
        rows = channels((0.5, 0.25), 0, 0)
        names = ["x", net.constant("w", [[-118] * 20, [-117] * 20], "int8", rows)]
        units = channels((near, second), 0, 0, dtype="int32")
        names.append(net.constant("b", [600001, 590000], "int32", units))
        net.node("qfmt.Linear", names, "y", "int16", grid(0.25, 0, "int16"), "integer_bias")
        about = f"Linear by integer_bias: a bias of int32 with a unit for each channel {about}"
        yield net.case(f"linear-integer-bias-int32-{name}", about, {"x": x})
    beyond = [26420, 26421, 26421, 26421, 26421]
    for rule in ("float_bias", "affine", "integer_bias", "integer_bias_reciprocal"):
        net = Network()
        net.input("x", "int16", (3, 8), grid(0.5, 0, "int16"))
        names = ["x", net.constant("w", [[127] * 5 + [1] * 3], "int8", grid(0.5, 0, "int8"))]
        names.append(net.constant("b", np.array([-(1 << 22)]), "float32"))
        net.node("qfmt.Linear", names, "y", "int8", grid(0.25, 0, "int8"), rule)
        how = (
            "and a bias, which are added exactly"
            if rule.startswith("integer")
            else "are exact, then rounded to float32"
        )
        rows = [[*beyond, *rest] for rest in ((9, 0, 0), (12, 0, 0), (8, 1, 1))]
        about = f"Linear by {rule}: sums beyond 2^24 {how}"
        yield net.case(f"linear-{rule.replace('_', '-')}-exact", about, {"x": rows})
