"""Cases of level `float`: exact sums of windows that a mean rule divides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .networks import Case, Network, grid

RULES = ("mean_divide_offset", "mean_reciprocal", "mean_reciprocal_fma", "mean_stored")
U8 = grid(0.05, 131)
S8 = grid(0.03, -7, "int8")
OPERATORS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "AveragePool": (
        (1, 2, 4, 5),
        {"ceil_mode": 0, "dilations": (1, 1), "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 2)},
    ),
    "GlobalAveragePool": ((2, 3, 3, 2), {}),
    "qfmt.AdaptiveAveragePool": ((1, 2, 5, 7), {"output_size": (2, 3)}),
    "ReduceMean": ((3, 4, 6), {"keepdims": 0}),
}


def cases() -> Iterator[Case]:
    for rule in RULES:
        for operator, (shape, attributes) in OPERATORS.items():
            signed = operator.startswith("Global")
            net = Network()
            form = ("int8", S8) if signed else ("uint8", U8)
            names = [net.input("x", form[0], shape, form[1])]
            if operator == "ReduceMean":
                names.append(net.constant("axes", [-1], "int64"))
            net.node(operator, names, "y", *form, rule, **attributes)
            name = operator.removeprefix("qfmt.").lower() + "-" + rule.replace("_", "-")
            yield net.case(name, f"{operator} by {rule}")
    net = Network()
    net.input("x", "uint8", (1, 1, 8, 2), grid(0.5, 10))
    pool = {"ceil_mode": 0, "dilations": (1, 1), "kernel_shape": (1, 2), "pads": (0, 0, 0, 0), "strides": (1, 2)}
    net.node("AveragePool", ["x"], "y", "uint8", grid(0.5, 10, "uint8", 8, 12), "mean_reciprocal", **pool)
    pairs = {"x": [[[[7, 8], [8, 9], [9, 10], [10, 11], [11, 12], [12, 13], [0, 0], [255, 255]]]]}
    yield net.case("averagepool-ties", "AveragePool of two elements: ties, a narrow range", pairs)
