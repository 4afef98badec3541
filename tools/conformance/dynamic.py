"""Cases of level `float`: inputs that are quantized at run time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .elements import reals
from .networks import Case, Network, channels, grid, numbers

RULES = (
    "dynamic_fma", "dynamic_add", "dynamic_inverse", "dynamic_divide", "dynamic_reciprocal", "dynamic_symmetric",
)  # fmt: skip


def cases() -> Iterator[Case]:
    rows = channels((0.013, 0.02, 0.007), 0, 0, low=-127)
    for rule in RULES:
        for name, weight, per_token in (("tensor", grid(0.013, -9, "int8", -127), 0), ("channels", rows, 1)):
            net = Network()
            net.input("x", "float32", (4, 6))
            net.constant("w", numbers(7, (3, 6), -127, 127), "int8", weight)
            net.constant("b", np.array([0.37, -1.25, 3e-5], np.float32), "float32")
            net.node("qfmt.DynamicLinear", ["x", "w", "b"], "y", "float32", None, rule, per_token=per_token)
            one = reals(3, 24, 3.0).reshape(4, 6)
            given = ({"x": one}, {"x": np.abs(one)}, {"x": -np.abs(one) * np.float32(1e-3)})
            about = (
                f"DynamicLinear by {rule}: {'each row' if per_token else 'all of x'} has a grid; of both signs, or one"
            )
            yield net.case(f"{rule.replace('_', '-')}-{name}", about, *given)
    net = Network()
    net.input("x", "float32", (4, 6))
    net.constant("w", numbers(7, (3, 6), -127, 127), "int8", rows)
    net.node("qfmt.DynamicLinear", ["x", "w"], "y", "float32", None, "dynamic_fma", reduce_range=1)
    given = ({"x": reals(3, 24, 3.0).reshape(4, 6)}, {"x": np.full((4, 6), 1e-6, np.float32)})
    yield net.case("dynamic-fma-reduced", "DynamicLinear by dynamic_fma: reduce_range, no bias; a tiny range", *given)
