"""Cases of Resize: nearest moves integers (level `integer`), linear is computed in float32 (level `float`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qfmt.model import Quantization

from .moves import MIXED
from .networks import Case, Network, grid, numbers

U8 = grid(0.05, 131)


HIGH = grid(0.05, 200)


def resized(
    shape: Sequence[int],
    *,
    rule: str,
    scales: Any = None,
    sizes: Any = None,
    kept: Quantization = U8,
    **attributes: Any,
) -> Network:
    net = Network()
    names = [net.input("x", "uint8", shape, kept), "", ""]
    if scales is not None:
        names[2] = net.constant("scales", np.array(scales, np.float32), "float32")
    else:
        names.append(net.constant("sizes", sizes, "int64"))
    net.node("Resize", names, "y", "uint8", kept, rule, **attributes)
    return net


def nearest() -> Iterator[Case]:
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "axes": (2, 3)}
    net = resized((1, 2, 3, 2), rule="", scales=(2, 2), **asymmetric)
    yield net.case("resize-nearest", "Resize by nearest: twice as large, as PyTorch does it", kinds=MIXED)
    net = resized((1, 1, 5, 7), rule="", sizes=(3, 11), **asymmetric)
    yield net.case("resize-nearest-sizes", "Resize by nearest: smaller and larger, to sizes", kinds=MIXED)
    for mode in ("round_prefer_floor", "round_prefer_ceil", "ceil", "floor"):
        net = resized((1, 1, 4, 4), rule="", sizes=(1, 1, 8, 3), nearest_mode=mode)
        yield net.case(
            f"resize-nearest-{mode.replace('_', '-')}", f"Resize by nearest: half_pixel, {mode}", kinds=MIXED
        )
    net = resized((1, 1, 4, 6), rule="", sizes=(14, 21), axes=(2, 3))
    yield net.case("resize-nearest-float32", "Resize by nearest: positions that float32 rounds to halves", kinds=MIXED)
    net = resized((1, 52), rule="", sizes=(44,), **(asymmetric | {"axes": (1,)}))
    yield net.case(
        "resize-nearest-float32-floor", "Resize by nearest: positions that float32 rounds to integers", kinds=MIXED
    )
    net = resized((1, 10), rule="", scales=(1, 0.7), **(asymmetric | {"axes": ()}))
    yield net.case(
        "resize-nearest-scales", "Resize by nearest: 10 · f32(0.7), less than 7, is rounded to 7", kinds=MIXED
    )
    net = resized((1, 1, 3, 9), rule="", scales=(2.3, 1.4), **asymmetric)
    about = "Resize by nearest: steps are 1 / scale, not the quotient of the sizes"
    yield net.case("resize-nearest-steps", about, {"x": [[[range(9), range(10, 19), range(20, 29)]]]})
    net = resized((1, 10), rule="", scales=(1, 1.05), **(asymmetric | {"axes": ()}))
    yield net.case(
        "resize-nearest-kept", "Resize by nearest: a scale of 1.05 keeps the size, and the axis as it is", kinds=MIXED
    )
    corners = {"coordinate_transformation_mode": "align_corners", "nearest_mode": "round_prefer_ceil"}
    net = resized((1, 2), rule="", sizes=(1, 83), **corners)
    about = "Resize by nearest: a position just below a half, to which a half is added exactly"
    yield net.case("resize-nearest-half", about, {"x": [[0, 255]]})
    net = resized((1, 1, 4, 3), rule="", sizes=(1, 1, 7, 5), **corners)
    yield net.case("resize-nearest-corners", "Resize by nearest: align_corners", kinds=MIXED)


def linear() -> Iterator[Case]:
    for rule in ("interpolate", "interpolate_fma"):
        name = f"resize-{rule.replace('_', '-')}"
        half = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "axes": (2, 3)}
        net = resized((1, 2, 5, 4), rule=rule, sizes=(7, 13), **half)
        yield net.case(name, f"Resize by {rule}: half_pixel, to sizes", seed=8, kinds=MIXED)
        net = resized((1, 1, 3, 4), rule=rule, scales=(2.3, 1.4), **half)
        yield net.case(f"{name}-scales", f"Resize by {rule}: half_pixel, by scales", seed=9, kinds=MIXED)
        one = half | {"coordinate_transformation_mode": "pytorch_half_pixel"}
        net = resized((1, 1, 5, 4), rule=rule, sizes=(1, 3), **one)
        yield net.case(
            f"{name}-one", f"Resize by {rule}: pytorch_half_pixel, to one row, the first", seed=11, kinds=MIXED
        )
        corners = half | {"coordinate_transformation_mode": "align_corners"}
        net = resized((1, 1, 5, 6), rule=rule, sizes=(13, 11), **corners)
        yield net.case(f"{name}-corners", f"Resize by {rule}: align_corners", seed=10, kinds=MIXED)
    net = Network()
    names = [net.input("x", "float32", (2, 4)), net.constant("roi", np.array([0, 0.25, 1, 1.25]), "float32")]
    names.append(net.constant("scales", np.array([1.5, 1]), "float32"))
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": -7.0}
    net.node("Resize", names, "y", "float32", **crop)
    about = "Resize by tf_crop_and_resize: an axis whose size stays the same is cropped, too, beyond its end"
    yield net.case("resize-crop", about, {"x": np.arange(8).reshape(2, 4)})
    yield from telling()


def telling() -> Iterator[Case]:
    """Sizes and numbers, searched for, whose outputs show in which order everything is computed."""
    for rule, mode, size, sizes, seed in (
        ("interpolate", "half_pixel", (3, 6), (9, 15), 24),
        ("interpolate", "align_corners", (4, 5), (11, 13), 11),
        ("interpolate", "asymmetric", (4, 5), (8, 9), 44),
        ("interpolate_fma", "half_pixel", (4, 3), (6, 9), 2),
        ("interpolate_fma", "align_corners", (4, 3), (11, 7), 7),
        ("interpolate_fma", "asymmetric", (3, 6), (9, 12), 12),
    ):
        shape = (1, 12, *size)
        how: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": mode, "axes": (2, 3)}
        net = resized(shape, rule=rule, sizes=sizes, kept=HIGH, **how)
        name = f"resize-{rule.replace('_', '-')}-{mode.replace('_', '-')}-telling"
        yield net.case(name, f"Resize by {rule}, {mode}: the order of its steps", {"x": numbers(seed, shape, 0, 255)})
