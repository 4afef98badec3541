"""Cases of level `integer`: exact sums of products, by the rules `exact` and `folded`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qfmt.model import Quantization

from .networks import Case, Network, channels, grid, numbers

U8 = grid(0.05, 131)
S8 = grid(0.03, -7, "int8")
NARROW = grid(0.05, 3, "uint8", 3, 127)
BIAS = (-5, 7, 1 << 20, -(1 << 20), 0, 1)


def conv(
    rule: str,
    x: tuple[str, Sequence[int], Quantization | None],
    w: tuple[str, Sequence[int], Quantization | None],
    *,
    bias: Sequence[int] | None = BIAS,
    operator: str = "Conv",
    units: Quantization | None = None,
    **attributes: Any,
) -> Network:
    """One layer; `x` and `w` are (dtype, shape, quantization)."""
    net = Network()
    net.input("x", *x)
    low, high = (-7, 7) if w[0] == "int4" else (-300, 300) if w[0] == "int16" else (-127, 127)
    low = 0 if w[0].startswith("u") else low
    net.constant("w", numbers(7, w[1], low, high), w[0], w[2])
    names = ["x", "w"]
    if bias is not None:
        count = w[1][1] * attributes.get("group", 1) if operator == "ConvTranspose" else w[1][0]
        names.append(net.constant("b", [bias[i % len(bias)] for i in range(count)], "int32"))
    if operator.startswith("Conv"):
        shape = tuple(w[1][2:])
        rank = len(shape)
        defaults = {"kernel_shape": shape, "pads": (0,) * 2 * rank, "strides": (1,) * rank, "dilations": (1,) * rank}
        if operator == "ConvTranspose":
            defaults["output_padding"] = (0,) * rank
        attributes = defaults | attributes
    net.node(operator, names, "y.sums", "int32", units, rule, **attributes)
    return net


def cases() -> Iterator[Case]:
    yield from convolutions()
    yield from transposed()
    yield from matrices()
    yield from gemm()
    yield from elements()


def convolutions() -> Iterator[Case]:
    x, per_tensor = ("uint8", (1, 2, 5, 4), U8), grid(0.01, 0, "int8", -127)
    w = ("int8", (3, 2, 3, 3), per_tensor)
    for rule in ("exact", "folded"):
        about = f"Conv by {rule}"
        corner = "padding adds nothing" if rule == "exact" else "padding is the zero point of x"
        uneven = {"pads": (1, 0, 2, 1), "strides": (2, 1)}
        yield conv(rule, x, w, **uneven).case(f"conv-{rule}", f"{about}: {corner}; uneven pads and strides")
        yield conv(rule, ("int8", (1, 2, 5, 4), S8), w, pads=(1, 1, 1, 1)).case(f"conv-{rule}-int8", f"{about}: int8 x")
        yield conv(rule, x, w, bias=None).case(f"conv-{rule}-no-bias", f"{about}: no bias")
        group = conv(rule, ("uint8", (2, 4, 3, 3), U8), ("int8", (6, 2, 2, 2), per_tensor), group=2)
        yield group.case(f"conv-{rule}-group", f"{about}: two groups, two images")
        deep = ("uint8", (1, 3, 4, 4), U8), ("int8", (3, 1, 3, 3), per_tensor)
        yield conv(rule, *deep, group=3, pads=(1, 1, 1, 1)).case(f"conv-{rule}-depthwise", f"{about}: depthwise")
        wide = conv(
            rule, ("uint8", (1, 1, 7, 6), U8), ("int8", (2, 1, 3, 2), per_tensor), dilations=(2, 3), pads=(2,) * 4
        )
        yield wide.case(f"conv-{rule}-dilations", f"{about}: dilations")
        line = conv(rule, ("uint8", (2, 2, 9), U8), ("int8", (2, 2, 3), per_tensor), pads=(2, 1), strides=(2,))
        yield line.case(f"conv-{rule}-1d", f"{about}: one spatial dimension")
        volume = conv(
            rule, ("uint8", (1, 1, 3, 3, 4), U8), ("int8", (2, 1, 2, 2, 2), per_tensor), pads=(1, 0, 0, 0, 1, 1)
        )
        yield volume.case(f"conv-{rule}-3d", f"{about}: three spatial dimensions")
        yield conv(rule, ("uint8", (1, 2, 3, 3), NARROW), w, pads=(2, 2, 2, 2)).case(
            f"conv-{rule}-narrow", f"{about}: x in a narrow range, more padding than input"
        )
    points = channels((0.01, 0.02, 0.04), 0, 0)
    yield conv("folded", x, ("int8", (3, 2, 3, 3), points), pads=(1, 1, 1, 1)).case(
        "conv-folded-channels", "Conv by folded: a weight per channel; its scales change nothing"
    )
    units = Quantization.of((0.0005, 0.001, 0.002), (0, 0, 0), -2000000, 2000000, 1, "float64")
    yield conv("folded", x, ("int8", (3, 2, 3, 3), points), pads=(1, 1, 1, 1), units=units).case(
        "conv-folded-units", "Conv by folded: the sums state their units, and the range that they reach"
    )
    yield conv("folded", x, ("int16", (3, 2, 3, 3), None), pads=(1, 1, 1, 1)).case(
        "conv-folded-int16", "Conv by folded: weights of 16 bits"
    )
    yield conv("folded", x, ("int4", (3, 2, 3, 3), grid(0.1, 0, "int4")), pads=(1, 1, 1, 1)).case(
        "conv-folded-int4", "Conv by folded: weights of 4 bits, an odd number of them"
    )
    yield conv("exact", x, ("uint8", (3, 2, 3, 3), grid(0.01, 77)), pads=(1, 1, 1, 1)).case(
        "conv-exact-uint8-weight", "Conv by exact: a weight of uint8 with a zero point"
    )
    each = channels((0.01, 0.02, 0.04), (0, 200, 77), 0, "uint8")
    yield conv("exact", x, ("uint8", (3, 2, 3, 3), each), pads=(1, 1, 1, 1)).case(
        "conv-exact-channel-zero-points", "Conv by exact: a zero point for each output channel"
    )
    yield conv("exact", ("uint8", (1, 2, 3, 3), None), ("int8", (3, 2, 2, 2), None)).case(
        "conv-exact-plain", "Conv by exact: integers without quantization mean themselves"
    )
    yield conv("exact", ("uint4", (1, 2, 3, 3), grid(0.1, 5, "uint4")), ("int8", (3, 2, 2, 2), None)).case(
        "conv-exact-uint4", "Conv by exact: an input of 4 bits"
    )
    yield conv("exact", ("int16", (1, 1, 3, 3), grid(0.1, 0, "int16")), ("int8", (2, 1, 2, 2), None)).case(
        "conv-exact-int16", "Conv by exact: an input of 16 bits"
    )
    net = Network()
    net.input("x", "uint8", (1, 2), U8)
    net.constant("w", [[127, 127]], "int8", per_tensor)
    net.constant("b", [(1 << 31) - 1 - 2 * 124 * 127], "int32")
    net.node("qfmt.Linear", ["x", "w", "b"], "y.sums", "int32", None, "exact")
    yield net.case("linear-exact-limit", "Linear by exact: the greatest sum is 2^31 - 1")


def transposed() -> Iterator[Case]:
    x, w = ("uint8", (1, 2, 3, 3), U8), ("int8", (2, 3, 3, 3), grid(0.01, 0, "int8", -127))
    operator = "ConvTranspose"
    yield conv("exact", x, w, operator=operator).case("conv-transpose-exact", "ConvTranspose by exact")
    cropped = {"strides": (2, 2), "pads": (1, 0, 1, 1), "output_padding": (1, 0)}
    yield conv("exact", x, w, operator=operator, **cropped).case(
        "conv-transpose-exact-strides", "ConvTranspose by exact: strides, pads that crop, output_padding"
    )
    grouped = ("uint8", (2, 4, 2, 2), U8), ("int8", (4, 2, 2, 2), None)
    yield conv("exact", *grouped, operator=operator, group=2, dilations=(2, 1)).case(
        "conv-transpose-exact-group", "ConvTranspose by exact: two groups, dilations"
    )
    each = channels((0.1, 0.2, 0.4), (1, 130, 255), 1, "uint8")
    yield conv("exact", ("int8", (1, 2, 4), S8), ("uint8", (2, 3, 2), each), operator=operator, strides=(2,)).case(
        "conv-transpose-exact-1d", "ConvTranspose by exact: one spatial dimension, zero points per channel", seed=3
    )


def matrices() -> Iterator[Case]:
    per_tensor = grid(0.01, 0, "int8", -127)
    for rule in ("exact", "folded"):
        x, w = ("uint8", (3, 5), U8), ("int8", (4, 5), per_tensor)
        about = f"Linear by {rule}"
        yield conv(rule, x, w, operator="qfmt.Linear").case(f"linear-{rule}", about)
        yield conv(rule, x, w, operator="qfmt.Linear", bias=None).case(f"linear-{rule}-no-bias", f"{about}: no bias")
        deep = ("int8", (2, 1, 3, 5), S8)
        yield conv(rule, deep, w, operator="qfmt.Linear").case(f"linear-{rule}-4d", f"{about}: x of four dimensions")
        yield conv(rule, ("uint8", (5,), U8), w, operator="qfmt.Linear").case(
            f"linear-{rule}-vector", f"{about}: x is a vector"
        )
        wide = conv(rule, ("uint8", (1, 40), U8), ("int4", (3, 40), grid(0.1, 0, "int4")), operator="qfmt.Linear")
        yield wide.case(f"linear-{rule}-int4", f"{about}: weights of 4 bits")
        net = Network()
        net.input("a", "uint8", (2, 3, 4), U8)
        net.constant("b", numbers(5, (4, 2), -127, 127), "int8", per_tensor)
        net.node("MatMul", ["a", "b"], "y.sums", "int32", None, rule)
        yield net.case(f"matmul-{rule}", f"MatMul by {rule}: a constant second factor, which broadcasts")
    each = channels((0.01, 0.02, 0.03, 0.04), (0, 255, 128, 1), 0, "uint8")
    yield conv("exact", ("uint8", (3, 5), U8), ("uint8", (4, 5), each), operator="qfmt.Linear").case(
        "linear-exact-channel-zero-points", "Linear by exact: a zero point for each row of the weight"
    )
    net = Network()
    net.input("a", "uint8", (2, 1, 3, 4), U8)
    net.input("b", "int8", (3, 4, 2), S8)
    net.node("MatMul", ["a", "b"], "y.sums", "int32", None, "exact")
    yield net.case("matmul-exact-activations", "MatMul by exact: two inputs with zero points; leading sizes broadcast")
    net = Network()
    net.input("a", "uint8", (3, 4), U8)
    net.constant("b", numbers(5, (4, 3), 0, 255), "uint8", channels((0.1, 0.2, 0.3), (9, 128, 250), 1, "uint8"))
    net.node("MatMul", ["a", "b"], "y.sums", "int32", None, "exact")
    yield net.case("matmul-exact-columns", "MatMul by exact: a zero point for each column")


def gemm() -> Iterator[Case]:
    for rule in ("exact", "folded"):
        for left, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            net = Network()
            net.input("a", "uint8", (4, 3) if left else (3, 4), U8)
            net.constant("b", numbers(5, (2, 4) if right else (4, 2), -127, 127), "int8", grid(0.01, 0, "int8"))
            names = ["a", "b", net.constant("c", [1000, -1000], "int32")]
            net.node("Gemm", names, "y.sums", "int32", None, rule, transA=left, transB=right)
            yield net.case(f"gemm-{rule}-{left}{right}", f"Gemm by {rule}: transA {left}, transB {right}")
    for shape in ((1, 2), (3, 1), (3, 2), ()):
        net = Network()
        net.input("a", "uint8", (3, 4), U8)
        net.constant("b", numbers(5, (4, 2), -127, 127), "int8", grid(0.01, 0, "int8"))
        names = ["a", "b", net.constant("c", numbers(6, shape, -5000, 5000), "int32")]
        net.node("Gemm", names, "y.sums", "int32", None, "exact")
        name = "x".join(map(str, shape)) or "scalar"
        yield net.case(f"gemm-exact-c-{name}", f"Gemm by exact: C of shape {list(shape)} broadcasts")


def elements() -> Iterator[Case]:
    net = Network()
    net.input("a", "uint8", (2, 3, 4), U8)
    net.input("b", "int8", (3, 1), S8)
    net.node("Mul", ["a", "b"], "y.sums", "int32", None, "exact")
    yield net.case("mul-exact", "Mul by exact: zero points, broadcasting")
    net = Network()
    net.input("a", "int16", (4,), grid(0.1, 0, "int16"))
    net.input("b", "int16", (4,), grid(0.1, 0, "int16"))
    net.node("Mul", ["a", "b"], "y.sums", "int32", None, "exact")
    yield net.case("mul-exact-int16", "Mul by exact: 16 bits, whose greatest product is 2^30")
    for name, weights, about in (
        ("weighted-sum", (3, -2), "two inputs that broadcast, a negative weight"),
        ("weighted-sum-limits", (1 << 22, 1 << 22), "large weights"),
        ("weighted-sum-zero", (0, 1), "a weight of 0"),
    ):
        net = Network()
        net.input("a", "uint8", (2, 3), U8)
        net.input("b", "int8", (3,), S8)
        net.node("qfmt.WeightedSum", ["a", "b"], "y.sums", "int32", weights=weights)
        yield net.case(name, f"WeightedSum: {about}; zero points are not subtracted")
    net = Network()
    net.input("a", "int16", (2,), None)
    net.input("b", "int32", (2,), Quantization.of((1.0,), (0,), -(1 << 20), 1 << 20))
    net.input("c", "uint4", (2, 1), grid(0.1, 7, "uint4"))
    net.node("qfmt.WeightedSum", ["a", "b", "c"], "y.sums", "int32", weights=(-100, 7, 1))
    yield net.case("weighted-sum-types", "WeightedSum: three inputs, of 16, 32 and 4 bits")
