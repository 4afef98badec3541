"""Cases of Resize: nearest moves integers (level `integer`), linear is computed in float32 (level `float`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .networks import Case, Network, grid

U8 = grid(0.05, 131)


def resized(shape: Sequence[int], *, rule: str, scales: Any = None, sizes: Any = None, **attributes: Any) -> Network:
    net = Network()
    names = [net.input("x", "uint8", shape, U8), "", ""]
    if scales is not None:
        names[2] = net.constant("scales", np.array(scales, np.float32), "float32")
    else:
        names.append(net.constant("sizes", sizes, "int64"))
    net.node("Resize", names, "y", "uint8", U8, rule, **attributes)
    return net


def nearest() -> Iterator[Case]:
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "axes": (2, 3)}
    net = resized((1, 2, 3, 2), rule="", scales=(2, 2), **asymmetric)
    yield net.case("resize-nearest", "Resize by nearest: twice as large, as PyTorch does it")
    net = resized((1, 1, 5, 7), rule="", sizes=(3, 11), **asymmetric)
    yield net.case("resize-nearest-sizes", "Resize by nearest: smaller and larger, to sizes")
    for mode in ("round_prefer_floor", "round_prefer_ceil", "ceil", "floor"):
        net = resized((1, 1, 4, 4), rule="", sizes=(1, 1, 8, 3), nearest_mode=mode)
        yield net.case(f"resize-nearest-{mode.replace('_', '-')}", f"Resize by nearest: half_pixel, {mode}")
    corners = {"coordinate_transformation_mode": "align_corners", "nearest_mode": "round_prefer_ceil"}
    net = resized((1, 1, 4, 3), rule="", sizes=(1, 1, 7, 5), **corners)
    yield net.case("resize-nearest-corners", "Resize by nearest: align_corners")


def linear() -> Iterator[Case]:
    for rule in ("interpolate", "interpolate_fma"):
        name = f"resize-{rule.replace('_', '-')}"
        half = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "axes": (2, 3)}
        net = resized((1, 2, 5, 4), rule=rule, sizes=(7, 13), **half)
        yield net.case(name, f"Resize by {rule}: half_pixel, to sizes", seed=8)
        net = resized((1, 1, 3, 4), rule=rule, scales=(2, 1.5), **half)
        yield net.case(f"{name}-scales", f"Resize by {rule}: half_pixel, by scales", seed=9)
        corners = half | {"coordinate_transformation_mode": "align_corners"}
        net = resized((1, 1, 5, 6), rule=rule, sizes=(13, 11), **corners)
        yield net.case(f"{name}-corners", f"Resize by {rule}: align_corners", seed=10)
