"""Cases of level `float` whose outputs are others if one step of a formula is rounded, or ordered, in another way.

Such a step changes few outputs: the scales and numbers here were searched for. tests/conformance/test_alternatives.py
lists the other ways, and which file shows each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qfmt.arithmetic import MEAN, QUANTIZE, f32
from qfmt.model import Quantization

from .dynamic import RULES as DYNAMIC_RULES
from .networks import Array, Case, Network, grid, numbers

U8 = grid(0.05, 131)


def cases() -> Iterator[Case]:
    yield from dequantizing()
    yield from multiplying()
    yield from bounding()
    yield from overflowing()
    yield from dynamic()


def dequantizing() -> Iterator[Case]:
    """`premultiplied` differs from `reciprocal` only in how it dequantizes."""
    for rule in QUANTIZE:
        net = Network()
        net.input("x", "uint8", (256,), grid(0.017708424, 61))
        net.node("Neg", ["x"], "y", "uint8", grid(0.00708337, 47), rule)
        about = f"Neg by {rule}: scales for which every two quantize rules differ"
        yield net.case(f"neg-{rule.replace('_', '-')}-telling", about, {"x": range(256)})


def multiplying() -> Iterator[Case]:
    net, scale = Network(), grid(0.020230481, 131)
    names = [net.input("a", "uint8", (256,), scale), net.constant("b", [100], "uint8", scale)]
    net.node("Add", names, "y", "uint8", grid(0.026973976, 206), "sum")
    yield net.case("add-sum-telling", "Add by sum: ties that the rounding of the factor decides", {"a": range(256)})
    net = Network()
    names = [net.input("a", "uint8", (16, 1), grid(0.01764053, 131)), net.input("b", "int8", (16,), S8)]
    net.node("Mul", names, "y", "uint8", grid(0.0048365886, 151), "product")
    near = {"a": 131 + np.arange(-8, 8)[:, None], "b": -7 + np.arange(-8, 8)}
    yield net.case("mul-product-telling", "Mul by product: ties that the rounding of the factor decides", near)
    net = Network()
    net.input("x", "uint8", (256,), grid(0.05904844, 245))
    net.node("LeakyRelu", ["x"], "y", "uint8", grid(0.0039365627, 108), "divide", alpha=0.1)
    yield net.case("leakyrelu-alpha", "LeakyRelu: alpha is no float32, and is rounded to it", {"x": range(256)})
    z = (1 << 22) + 1
    net, wide = Network(), grid(0.001, z, "int32", 0, 1 << 23)
    names = [net.input("x", "int32", (4, 5), wide), net.constant("axes", [1], "int64")]
    net.node("ReduceMean", names, "y", "int32", wide, "mean_divide_offset", keepdims=0)
    x = [[z + total, z, z, z, z] for total in (2, 3, -2, -3)]
    about = "ReduceMean by mean_divide_offset: + z is rounded to float32, to a tie"
    yield net.case("reducemean-offset", about, {"x": x})

    a, b = numbers(5, (16,), 9000, 32767), numbers(6, (16,), 9000, 32767)
    net, wide = Network(), Quantization.of((1.0,), (0,), -(1 << 31), (1 << 31) - 1)
    names = [
        net.input("a", "int16", (16,), grid(0.7, 0, "int16")),
        net.input("b", "int16", (16,), grid(0.9, 0, "int16")),
    ]
    net.node("Mul", names, "y", "int32", wide, "product")
    about = "Mul by product: products beyond 2^24 are rounded to float32 before they are scaled"
    yield net.case("mul-product-wide", about, {"a": a, "b": b})
    for rule in MEAN:
        net = Network()
        names = [net.input("x", "int32", (6, 5), wide), net.constant("axes", [1], "int64")]
        net.node("ReduceMean", names, "y", "int32", wide, rule, keepdims=0)
        about = f"ReduceMean by {rule}: sums beyond 2^24 are rounded to float32 before they are divided"
        yield net.case(f"reducemean-{rule.replace('_', '-')}-wide", about, {"x": numbers(7, (6, 5), 1 << 22, 1 << 27)})


S8 = grid(0.027417483, -7, "int8")


def bounding() -> Iterator[Case]:
    """Real numbers that come to the grid of a tensor: bounds by `reciprocal_offset`, padding by `divide`."""
    every = {"x": range(256)}
    for name, low, high in (("telling", -2.08465, 1.9289502), ("crossed", 1.0, -1.0)):
        net = Network()
        names = [net.input("x", "uint8", (256,), grid(0.0173, 131))]
        names += [net.constant(end, f32(bound), "float32") for end, bound in (("low", low), ("high", high))]
        net.node("Clip", names, "y", "uint8", grid(0.0173, 131))
        about = {"telling": "bounds beside ties", "crossed": "the upper bound decides where they cross"}[name]
        yield net.case(f"clip-{name}", f"Clip of every uint8: {about}", every)
    net = Network()
    names = [net.input("x", "uint8", (256,), U8)]
    names += [net.constant(end, q, "int8", grid(0.03, -7, "int8")) for end, q in (("low", -50), ("high", 60))]
    net.node("Clip", names, "y", "uint8", U8)
    yield net.case("clip-quantized", "Clip of every uint8: bounds that are quantized, on another grid", every)
    net, scale = Network(), grid(0.017708424, 57)
    names = [net.input("x", "uint8", (2,), scale), net.constant("pads", [1, 1], "int64")]
    names.append(net.constant("value", f32(-0.75260806), "float32"))
    net.node("Pad", names, "y", "uint8", scale)
    yield net.case("pad-telling", "Pad with a real number beside a tie, which is divided by the scale", {"x": [3, 200]})
    net = Network()
    names = [net.input("x", "uint8", (2,), U8), net.constant("pads", [1, 1], "int64")]
    names.append(net.constant("value", 60, "int8", grid(0.03, -7, "int8")))
    net.node("Pad", names, "y", "uint8", U8)
    yield net.case("pad-quantized", "Pad with a number that is quantized, on another grid", {"x": [3, 200]})


def overflowing() -> Iterator[Case]:
    """What float32 does not hold, and the clamp to limits that it does not hold."""
    whole = Quantization.of((1.0,), (1,), -(1 << 31), (1 << 31) - 1)
    for rule in ("divide", "reciprocal", "reciprocal_offset", "reciprocal_fma"):
        net = Network()
        net.input("x", "float32", (9,))
        net.node("QuantizeLinear", ["x"], "y", "int32", whole, rule)
        values = [16777214, 16777216, 16777218, 1 << 25, 2147483520, 1 << 31, -(1 << 31), -3e9, 3e38]
        about = f"QuantizeLinear to int32 by {rule}: + z is rounded to float32, the clamp to 2^31 - 1 is exact"
        yield net.case(f"quantize-{rule.replace('_', '-')}-int32", about, {"x": values})
    for rule in ("integer_bias", "integer_bias_reciprocal"):
        net = Network()
        net.input("x", "uint8", (2, 1), U8)
        net.constant("w", [[1], [1], [1]], "int8", grid(0.01, 0, "int8"))
        names = ["x", "w", net.constant("b", np.array([3e38, -3e38, 1e30]), "float32")]
        net.node("qfmt.Linear", names, "y", "uint8", grid(0.1, 7), rule)
        about = f"Linear by {rule}: a bias that is infinite in units of the sums, or beyond int64"
        yield net.case(f"linear-{rule.replace('_', '-')}-overflow", about, {"x": [[0], [255]]})


def around(step: float, below: float, seed: int, top: int = 255) -> Array:
    """24 numbers on both sides of 0, halfway between multiples of about `step`; `below` steps are negative."""
    halves = numbers(seed, (22,), -int(below), int(top - below) - 1) + 0.5
    return (np.concatenate([[-below, top - below], halves]) * np.float64(f32(step))).astype(f32).reshape(4, 6)


def dynamic() -> Iterator[Case]:
    tiny = (np.arange(-9, 15) * 1e-9).astype(f32).reshape(4, 6)
    halves = ((np.arange(24) - 11.5) * np.float64(f32(6.1e-5))).astype(f32)
    halves[0] -= f32(6.1e-5)
    for rule in DYNAMIC_RULES:
        for reduced in (0, 1):
            net = Network()
            net.input("x", "float32", (4, 6))
            net.constant("w", numbers(7, (3, 6), -127, 127), "int8", grid(0.013, 0, "int8", -127))
            net.constant("b", np.array([0.0, -1.25, 3e-5]), "float32")
            net.node("qfmt.DynamicLinear", ["x", "w", "b"], "y", "float32", None, rule, reduce_range=reduced)
            name = f"{rule.replace('_', '-')}-{'reduced-' * reduced}telling"
            given = {
                "ties": around(0.0879, 35.5, 33),
                "ends": around(1.0, 1.5, 5, 127 if reduced else 255),
                "narrow": halves.reshape(4, 6),
                "tiny": tiny,
                "zeros": np.zeros((4, 6), f32),
                "subnormal": (np.arange(-9, 15) * 2.0**-145).astype(f32).reshape(4, 6),
            }
            about = f"DynamicLinear by {rule}{', reduce_range' * reduced}: ties, both ends, narrow ranges, none"
            yield net.case(name, about, *({"x": x} for x in given.values()), vectors=list(given))
    net = Network()
    net.input("x", "float32", (4, 6))
    exact = Quantization.of((0.01003,), (0,), -127, 127, None, "float64")
    net.constant("w", numbers(7, (3, 6), -127, 127), "int8", exact)
    net.node("qfmt.DynamicLinear", ["x", "w"], "y", "float32", None, "dynamic_inverse")
    about = "DynamicLinear by dynamic_inverse: 1 / sw of the float64 scale itself"
    yield net.case("dynamic-inverse-float64", about, {"x": around(0.0879, 35.5, 33)})
