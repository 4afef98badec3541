"""Cases of level `float`: into and out of integers, and elements computed in float32 or by a rule of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from qfmt.arrays import Array
from qfmt.model import DTYPES, Parameter, Quantization

from .networks import Case, Network, channels, grid, numbers

RULES = ("divide", "reciprocal", "reciprocal_offset", "reciprocal_fma")
U8, V8, S8 = grid(0.05, 131), grid(0.0173, 9), grid(0.03, -7, "int8")
OUT = ("uint8", grid(0.11, 60))


def reals(seed: int, count: int, size: float) -> np.ndarray:
    """Real numbers of every kind of digits."""
    return (numbers(seed, (count,), -(1 << 23), 1 << 23) / (1 << 23) * size).astype(np.float32)


def cases() -> Iterator[Case]:
    yield from into()
    yield from out_of()
    yield from binary()
    yield from unary()
    yield from joined()


def into() -> Iterator[Case]:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, -1e-45]
    halves = [(value + 0.5) * 0.25 for value in (-130, -9, -3, -2, -1, 0, 1, 2, 7, 126, 300)]
    for rule in RULES:
        name = rule.replace("_", "-")
        for dtype, zero_point in (("uint8", 3), ("int8", -7)):
            net = Network()
            net.input("x", "float32", (60,))
            net.node("QuantizeLinear", ["x"], "y", dtype, grid(0.25, zero_point, dtype), rule)
            fine = Network()
            fine.input("x", "float32", (60,))
            fine.node("QuantizeLinear", ["x"], "y", dtype, grid(0.0173, zero_point, dtype), rule)
            values = np.array([*special, *halves, *reals(5, 40, 20.0)], np.float32)
            about = f"QuantizeLinear by {rule}, {dtype}: ties, NaN, infinities, both ends"
            yield net.case(f"quantize-{name}-{dtype}", about, {"x": values})
            multiples = np.float32(0.0173) * (numbers(8, (60,), -130, 130) + np.float32(0.5)).astype(np.float32)
            about = f"QuantizeLinear by {rule}, {dtype}: close to ties of a scale that is no power of two"
            yield fine.case(f"quantize-{name}-{dtype}-near-ties", about, {"x": multiples})
    net = Network()
    net.input("x", "float32", (3, 20))
    each = channels((0.1, 0.5, 2.0), (3, 128, 250), 0, "uint8")
    net.node("QuantizeLinear", ["x"], "y", "uint8", each, "divide")
    yield net.case("quantize-channels", "QuantizeLinear per channel", {"x": reals(3, 60, 60.0).reshape(3, 20)})
    for dtype in ("int4", "uint4", "int2", "int16", "uint16", "int32"):
        kind = DTYPES[dtype]
        net = Network()
        net.input("x", "float32", (20,))
        low, high = max(kind.minimum, -(1 << 24)), min(kind.maximum, 1 << 24)
        net.node("QuantizeLinear", ["x"], "y", dtype, grid(0.5, 1, dtype, low, high), "divide")
        size = min(kind.maximum, 1 << 24) * 0.6
        yield net.case(f"quantize-{dtype}", f"QuantizeLinear to {dtype}", {"x": reals(4, 20, size)})


def forms() -> Iterator[tuple[str, str, str, Array, Quantization]]:
    """What today's files have: name, what it is, element type, integers, quantization."""
    codes = numbers(11, (2, 16), 0, 15)
    scales = np.array([[1.5, -0.25, 2, 4], [0.1, 100, -8, 0.5]], np.float16)
    of_rows = Quantization.of(np.array([0.0123, 0.25], np.float16), 0, 0, 63, 0)
    sub_scales = replace(Parameter.of_values(numbers(12, (2, 4), 0, 63).astype(np.uint8)), quantization=of_rows)
    negated = replace(of_rows, scale=Parameter.of_values(-of_rows.scale.array))
    mins = replace(Parameter.of_values(numbers(13, (2, 4), 0, 63).astype(np.uint8)), quantization=negated)
    plain = Quantization.of_blocks("uint4", (2, 16), (1, 4), scales)
    yield "offset", "GGUF's Q4_1: d · q + m for groups of 4", "uint4", codes, replace(
        plain, offset=Parameter.of_values(scales[:, ::-1].copy()))  # fmt: skip
    about = "GGUF's Q4_K: scales and offsets of 6 bits, with scales of float16 for a row"
    yield "levels", about, "uint4", codes, replace(
        plain, scale=sub_scales, offset=mins)  # fmt: skip
    table = np.sort(np.random.default_rng(3).normal(0, 0.5, 16)).astype(np.float32)
    nf4 = replace(plain, scale=Parameter.of_values(scales.astype(np.float32)), table=Parameter.of_values(table))
    yield "table", "bitsandbytes' NF4: a table of 16 values, scales for groups of 4", "uint4", codes, nf4
    dynamic = Parameter.of_values(np.linspace(-0.9, 1, 256).astype(np.float32))
    own = Quantization.of(np.array([0.5, 0.07], np.float32), 0, 0, 255, 0)
    own = replace(own, table=dynamic, offset=Parameter.of_values(np.float32(0.031)))
    absmax = replace(Parameter.of_values(numbers(14, (2, 4), 0, 255).astype(np.uint8)), quantization=own)
    about = "A table, and a zero point, which does not count"
    yield "table-zero-point", about, "uint4", codes, replace(nf4, zero_point=Parameter.of_values(np.uint8(3)))
    about = "bitsandbytes' double quantization: scales by a table, a scale for a row and a mean"
    yield "double", about, "uint4", codes, replace(nf4, scale=absmax)
    fp8 = np.array([[0.5, 448], [1.75, -(2**-9)]]).astype(ml_dtypes.float8_e4m3fn)
    block_scales = replace(Parameter.of_values(fp8), quantization=Quantization.of(0.0371, 0, -448, 448))
    grid = Quantization.of_blocks("float4_e2m1fn", (2, 16), (1, 8), fp8)
    yield "nvfp4", "NVFP4: scales of float8_e4m3fn for groups, which have a scale of float32", "float4_e2m1fn", (
        np.array([-6, -0.5, -2, 1, 3, 4], np.float32)[codes % 6]), replace(grid, scale=block_scales)  # fmt: skip
    signed = replace(
        Quantization.of(np.array([0.7, 0.1]), 0, -8, 7, 0), table=Parameter.of_values(np.linspace(-1, 1, 16) ** 3)
    )
    yield "table-signed", "A table of float64 for int4: its first value is that of -8", "int4", codes - 8, signed
    wide = np.random.default_rng(5).uniform(0.1, 9, (3, 4))
    doubles = Quantization.of_blocks("uint4", (4, 16), (1, 16), wide[0], wide[1])
    yield "float64", "Scales, zero points and offsets of float64, each rounded to float32 first", "uint4", (
        numbers(16, (4, 16), 0, 15)), replace(doubles, offset=Parameter.of_values(wide[2].reshape(4)))  # fmt: skip
    points = numbers(15, (2, 4), 0, 15)
    index = Parameter.of_values(np.array([3, 0, 1, 1, 2, 0, 3, 3, 2, 2, 1, 0, 0, 1, 2, 3], np.uint8))
    yield "group-index", "GPTQ's g_idx: the group of each column", "uint4", codes, replace(
        Quantization.of_blocks("uint4", (2, 16), (1, 4), abs(scales), points), group_index=index)  # fmt: skip


def out_of() -> Iterator[Case]:
    for dtype in ("uint8", "int8", "int4", "int16", "int32"):
        kind = DTYPES[dtype]
        net = Network()
        net.input("x", dtype, (16,), grid(0.0173, (1 << 24) + 1 if kind.bits == 32 else 1, dtype))
        net.node("DequantizeLinear", ["x"], "y", "float32")
        values = [kind.minimum, kind.maximum, 0, 1, kind.maximum // 2, kind.maximum - 1]
        values += numbers(6, (10,), kind.minimum, kind.maximum).tolist()
        yield net.case(
            f"dequantize-{dtype}", f"DequantizeLinear of {dtype}: the difference is rounded once", {"x": values}
        )
    net = Network()
    net.constant("x", numbers(3, (3, 5), 0, 255), "uint8", channels((0.1, 0.5, 2.0), (3, 128, 250), 0, "uint8"))
    net.node("DequantizeLinear", ["x"], "y", "float32")
    yield net.case("dequantize-channels", "DequantizeLinear of a constant, per channel; a graph without inputs", {})
    for name, about, dtype, values, form in forms():
        net = Network()
        net.constant("x", values, dtype, form)
        net.node("DequantizeLinear", ["x"], "y", "float32")
        yield net.case(f"form-{name}", about, {})
    for rule in ("lookup_float32", "lookup_float16"):
        net = Network()
        bits = 8 if rule == "lookup_float32" else 4
        high = (1 << bits) - 1
        rows = channels((0.013, 0.5, 0.11), (0, 3, high), 0, f"uint{bits}")
        net.constant("w", numbers(3, (3, 4), 0, high), f"uint{bits}", rows)
        net.input("indices", "int64", (2, 2))
        net.node("qfmt.Embedding", ["w", "indices"], "y", "float32", None, rule)
        yield net.case(f"embedding-{rule.replace('_', '-')}", f"Embedding by {rule}", {"indices": [[2, 0], [1, 2]]})


def binary() -> Iterator[Case]:
    for operator in ("Add", "Sub", "Max", "Min"):
        for rule in (*RULES, "premultiplied") if operator == "Add" else ("premultiplied", "divide"):
            net = Network()
            net.input("a", "uint8", (6, 10), U8)
            net.input("b", "uint8", (6, 1) if operator == "Sub" else (6, 10), V8)
            net.node(operator, ["a", "b"], "y", *OUT, rule)
            yield net.case(f"{operator.lower()}-{rule.replace('_', '-')}", f"{operator} by {rule}: two grids", seed=4)
    net = Network()
    net.input("a", "uint8", (40,), U8)
    net.constant("b", [200], "uint8", U8)
    net.node("Add", ["a", "b"], "y", *OUT, "sum")
    yield net.case("add-sum", "Add by sum: both inputs of one scale")
    net = Network()
    net.input("a", "uint8", (5, 8), U8)
    net.input("b", "int8", (8,), S8)
    net.node("Mul", ["a", "b"], "y", *OUT, "product")
    yield net.case("mul-product", "Mul by product: an exact product, two types")
    net = Network()
    net.input("a", "uint8", (40,), U8)
    net.input("b", "uint8", (40,), V8)
    net.node("Mul", ["a", "b"], "y", "uint8", grid(0.5, 30, "uint8", 10, 60), "product")
    yield net.case("mul-product-narrow", "Mul by product: a narrow range")


def unary() -> Iterator[Case]:
    every = {"x": list(range(256))}
    for operator, attributes in (("LeakyRelu", {"alpha": float(np.float32(0.1))}), ("Neg", {}), ("Abs", {})):
        for rule in ("premultiplied", "divide"):
            net = Network()
            net.input("x", "uint8", (256,), U8)
            net.node(operator, ["x"], "y", *OUT, rule, **attributes)
            yield net.case(f"{operator.lower()}-{rule}", f"{operator} by {rule}, of every uint8", every)
    for name, bounds in (("both", (-1.0, 2.33)), ("low", (0.0, None)), ("high", (None, 6.0))):
        net = Network()
        names = [net.input("x", "uint8", (256,), U8)]
        for end, bound in zip(("low", "high"), bounds, strict=True):
            names.append("" if bound is None else net.constant(end, np.float32(bound), "float32"))
        while not names[-1]:
            names.pop()
        net.node("Clip", names, "y", "uint8", U8)
        yield net.case(f"clip-{name}", f"Clip of every uint8, real bounds: {bounds}", every)
    net = Network()
    net.input("x", "uint8", (2, 3), U8)
    names = ["x", net.constant("pads", [0, 1, 0, 2], "int64"), net.constant("value", np.float32(1.26), "float32")]
    net.node("Pad", names, "y", "uint8", U8)
    yield net.case("pad-value", "Pad with a real number, which is quantized")

    net = Network()
    names = [net.input("x", "int32", (4,))]
    names += [net.constant("mul", 3 << 29, "int32"), net.constant("add", -7, "int64")]
    net.node("qfmt.RequantShift", names, "y", "int32", div=2)
    about = "RequantShift without a quantization: int32 wraps around"
    yield net.case("requant-shift-plain", about, {"x": [-3, 0, 5, 1 << 20]})


def joined() -> Iterator[Case]:
    for rule in (*RULES, "premultiplied"):
        net = Network()
        names = [net.input("a", "uint8", (2, 9), U8), net.input("b", "uint8", (2, 5), V8)]
        names.append(net.input("c", "uint8", (2, 3), OUT[1]))
        net.node("Concat", names, "y", *OUT, rule, axis=1)
        yield net.case(f"concat-{rule.replace('_', '-')}", f"Concat by {rule}: three grids, one that of y", seed=6)
    net = Network()
    net.input("x", "float32", (1, 2, 4, 4))
    net.node("QuantizeLinear", ["x"], "q", "uint8", U8, "reciprocal_fma")
    net.constant(
        "w", numbers(9, (2, 2, 3, 3), -127, 127), "int8", Quantization.of((0.0078125, 0.5), (0, 0), -127, 127, 0)
    )
    net.constant("b", np.array([0.5, -0.25]), "float32")
    shape = {"kernel_shape": (3, 3), "pads": (1,) * 4, "strides": (1, 1), "dilations": (1, 1)}
    net.node("Conv", ["q", "w", "b"], "conv", "uint8", grid(0.3, 0), "float_bias", **shape)
    net.node("GlobalAveragePool", ["conv"], "mean", "uint8", grid(0.3, 0), "mean_reciprocal_fma")
    net.node("Flatten", ["mean"], "flat", "uint8", grid(0.3, 0))
    net.node("DequantizeLinear", ["flat"], "y", "float32")
    given = {"x": reals(12, 32, 4.0).reshape(1, 2, 4, 4)}
    yield net.case("network-float-bias", "A whole network: real inputs and outputs", given)
