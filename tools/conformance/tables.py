"""Cases of level `integer`: tables of one integer and of two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qfmt.model import DTYPES

from .networks import Case, Network, grid, numbers


def all_of(dtype: str) -> np.ndarray:
    return np.arange(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1)


def cases() -> Iterator[Case]:
    for source, target in (
        ("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("int8", "int16"),
        ("uint8", "int32"), ("uint4", "uint8"), ("int4", "int8"), ("int2", "uint2"), ("int8", "int4"),
    ):  # fmt: skip
        every, kind = all_of(source), DTYPES[target]
        low, high = max(kind.minimum, -(1 << 31)), min(kind.maximum, (1 << 31) - 1)
        net = Network()
        net.input("x", source, (len(every),), grid(0.1, 1, source))
        names = ["x", net.constant("y.table", numbers(3, (len(every),), low, high), target)]
        net.node("qfmt.Table", names, "y", target, grid(0.2, 0, target))
        about = f"Table of every {source}, to {target}: the first element is for {every[0]}"
        yield net.case(f"table-{source}-{target}", about, {"x": every})
    net = Network()
    net.input("x", "int4", (2, 3, 4), grid(0.1, 1, "int4"))
    names = ["x", net.constant("y.table", numbers(3, (3, 16), -128, 127), "int8")]
    net.node("qfmt.Table", names, "y", "int8", grid(0.2, 0, "int8"), axis=1)
    yield net.case("table-channels", "Table with a row for each channel along axis 1")
    net = Network()
    net.input("x", "uint8", (2, 3), None)
    net.constant("y.table", numbers(3, (256,), -9, 9), "int8")
    net.node("qfmt.Table", ["x", "y.table"], "y", "int8")
    yield net.case("table-plain", "Table: neither side is quantized")
    yield _digests()
    for left, right, target in (("int2", "int8", "uint8"), ("uint4", "int4", "int8"), ("uint4", "uint4", "uint4")):
        a, b = all_of(left), all_of(right)
        kind = DTYPES[target]
        net = Network()
        net.input("a", left, (len(a), 1), grid(0.1, 1, left))
        net.input("b", right, (len(b),), grid(0.2, 1, right))
        values = numbers(6, (len(a), len(b)), kind.minimum, kind.maximum)
        net.node("qfmt.PairTable", ["a", "b", net.constant("y.table", values, target)], "y", target, grid(1, 0, target))
        about = f"PairTable of every {left} and {right}, which broadcast, to {target}"
        yield net.case(f"pair-table-{left}-{right}", about, {"a": a[:, None], "b": b})


def _digests() -> Case:
    """Packed integers, sums of four bytes, which nothing uses, and a network of three nodes."""
    net = Network()
    net.input("x", "uint8", (2, 5), grid(0.1, 1, "uint8"))
    net.node("qfmt.Table", ["x", net.constant("a.table", numbers(3, (256,), -8, 7), "int4")], "a", "int4",
             grid(0.2, 0, "int4"))  # fmt: skip
    net.node("qfmt.WeightedSum", ["x", "a"], "sums", "int32", weights=(-3, 1000))
    net.node("qfmt.Table", ["a", net.constant("y.table", numbers(4, (16,), -999, 999), "int16")], "y", "int16",
             grid(0.3, 0, "int16"))  # fmt: skip
    return net.case("digests", "Test vectors with digests of what the nodes compute", digests=True)
