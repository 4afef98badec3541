"""Cases of level `integer`: exact sums of windows, bins and axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .networks import Case, Network, grid

U8 = grid(0.05, 131)
S8 = grid(0.03, -7, "int8")
POOL = {"ceil_mode": 0, "dilations": (1, 1), "kernel_shape": (2, 2), "pads": (0, 0, 0, 0), "strides": (2, 2)}


def average(
    operator: str, shape: Sequence[int], *axes: Sequence[int], signed: bool = False, **attributes: Any
) -> Network:
    net = Network()
    net.input("x", "int8" if signed else "uint8", shape, S8 if signed else U8)
    names = ["x", *(net.constant("axes", each, "int64") for each in axes)]
    net.node(operator, names, "y.sums", "int32", None, "exact", **attributes)
    return net


def cases() -> Iterator[Case]:
    pool = "AveragePool"
    yield average(pool, (1, 2, 4, 6), **POOL).case("average-pool-exact", "AveragePool by exact: plain sums of windows")
    padded = POOL | {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}
    yield average(pool, (1, 2, 4, 5), **padded).case(
        "average-pool-exact-exclude", "AveragePool by exact: windows of 4, 6 and 9 elements come to one unit"
    )
    yield average(pool, (1, 2, 4, 5), **padded, count_include_pad=1).case(
        "average-pool-exact-include", "AveragePool by exact: padding counts, and adds nothing"
    )
    ceiling = padded | {"ceil_mode": 1, "strides": (2, 3)}
    for include in (0, 1):
        yield average(pool, (1, 1, 6, 5), **ceiling, count_include_pad=include).case(
            f"average-pool-exact-ceil-{include}",
            f"AveragePool by exact: ceil_mode, count_include_pad {include}; beyond the padding nothing counts",
        )
    line = {"ceil_mode": 0, "dilations": (3,), "kernel_shape": (3,), "pads": (2, 2), "strides": (1,)}
    yield average(pool, (2, 1, 8), **line, signed=True).case(
        "average-pool-exact-dilations", "AveragePool by exact: one spatial dimension, dilations, int8"
    )
    yield average("GlobalAveragePool", (2, 3, 3, 2)).case("global-average-pool-exact", "GlobalAveragePool by exact")
    for size in ((2, 3), (1, 1), (5, 4)):
        yield average("qfmt.AdaptiveAveragePool", (1, 2, 5, 7), output_size=size).case(
            f"adaptive-average-pool-exact-{size[0]}x{size[1]}",
            f"AdaptiveAveragePool by exact to {list(size)}: bins of unequal sizes overlap",
        )
    yield average("qfmt.AdaptiveAveragePool", (2, 2, 7), output_size=(3,), signed=True).case(
        "adaptive-average-pool-exact-1d", "AdaptiveAveragePool by exact: one spatial dimension"
    )
    yield average("ReduceMean", (2, 3, 4), (-1, 0)).case("reduce-mean-exact", "ReduceMean by exact: a negative axis")
    yield average("ReduceMean", (2, 3, 4), (1,), keepdims=0, signed=True).case(
        "reduce-mean-exact-dropped", "ReduceMean by exact: keepdims 0"
    )
    yield average("ReduceMean", (2, 3, 4), keepdims=0).case("reduce-mean-exact-all", "ReduceMean by exact: all axes")
