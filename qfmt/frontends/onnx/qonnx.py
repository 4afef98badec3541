"""QONNX (Brevitas, FINN): Quant nodes, which fake-quantize, converted to QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Array
from ...model import DTYPES, Attribute, first_holding, numpy_dtype
from ...passes.qdq import DEQUANTIZE, QUANTIZE
from .calls import Call
from .importer import Importer, imports

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")

WIDE = ("int32", "uint32")
"""Types that only constants are quantized to: the biases of Brevitas have 24 or 32 bits."""

_ROUND: dict[str, Callable[[Any], Any]] = {
    "ROUND": np.rint,
    "HALF_EVEN": np.rint,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "DOWN": np.trunc,
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + np.float32(0.5)),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - np.float32(0.5)),
}


@imports(*(f"{domain}.{operator}" for domain in DOMAINS for operator in ("Quant", "IntQuant")))
@np.errstate(all="ignore")  # of hostile scales and zero points
def quant(im: Importer, call: Call) -> Any:
    """X, scale, zeropt, bitwidth; signed, narrow, rounding_mode: (round(clip(X / scale + zeropt)) - zeropt) · scale.

    One bit with a sign is 1 or -1: so QONNX's reference computes it (qonnx/custom_op/general/quant.py).
    Constants are quantized with any rounding mode. For computed tensors only half-to-even rounding with a zero point
    of 0 is supported; other nodes are kept as opaque nodes.
    """
    x, scale, point, width = call.inputs[:4]
    found = [im.value(name) for name in (scale, point, width)]
    axis = _axis(im, x, scale)
    if any(each is None for each in found) or axis is None:
        return NotImplemented
    scales, points, bits = (np.asarray(each) for each in found)
    if call.attributes.get("signed", 1) and bits.size == 1 and bits.reshape(()) == 1:
        return NotImplemented if points.any() or (scales <= 0).any() else bipolar_quant(im, call)
    limits = _limits(bits, bool(call.attributes.get("signed", 1)), bool(call.attributes.get("narrow", 0)))
    rounding = _ROUND.get(str(call.attributes.get("rounding_mode", "ROUND")).upper())
    if limits is None or rounding is None or (points.size > 1 and points.shape != scales.shape):
        return NotImplemented
    points = points if points.size > 1 else points.reshape(())
    array = im.value(x)
    if array is not None:
        real = array / scales + points
        if np.isnan(real).any():
            return NotImplemented
        q = rounding(np.clip(real, *limits))
        integers, dtype = np.clip(q.astype(np.float64), *limits), _narrowest(limits)  # float32 lacks some limits
    elif rounding is np.rint and not points.any() and (dtype := _narrowest(limits, at_least=8)) not in WIDE:
        integers = None
    else:
        return NotImplemented
    kind = DTYPES[dtype]
    whole = bool((points == np.rint(points)).all()) and kind.minimum <= points.min() <= points.max() <= kind.maximum
    vector = np.broadcast_to(points, scales.shape).reshape(-1) if scales.size > 1 else points.reshape(())
    stored = vector.astype(numpy_dtype(dtype)) if whole else vector.astype(scales.dtype)
    point = im.constant(stored, f"{call.outputs[0]}.zero_point", dtype if whole else "")
    _on_grid(im, call, x, integers, _Grid(scales, point, axis, dtype, limits))
    return None


@imports(*(f"{domain}.BipolarQuant" for domain in DOMAINS))
def bipolar_quant(im: Importer, call: Call) -> Any:
    """X, scale: scale where X ≥ 0, -scale elsewhere; the integers are 1 and -1."""
    x, scale = call.inputs[:2]
    array, scales, axis = im.value(x), im.value(scale), _axis(im, x, scale)
    if scales is None or axis is None:
        return NotImplemented
    if array is not None:
        _on_grid(im, call, x, np.where(array >= 0, 1, -1), _Grid(scales, "", axis, "int2", (-2, 1)))
        return None
    base = call.outputs[0]
    zero = im.constant(np.zeros((), numpy_dtype(im.tensors[x].dtype)), f"{base}.zero")
    positive = im.emit("GreaterOrEqual", [x, zero], f"{base}.positive")
    above, below = (im.constant(each, f"{base}.sign") for each in (scales, -scales))
    real = im.emit("Where", [positive, above, below], f"{base}.real")
    _on_grid(im, call, real, None, _Grid(scales, "", axis, "int8", (-1, 1)))
    return None


class _Grid(NamedTuple):
    """The scales of the file, the name of the zero points ("" for 0), and the range of the integers."""

    scales: Array
    point: str
    axis: int
    dtype: str
    limits: tuple[int, int]


def _on_grid(im: Importer, call: Call, x: str, integers: Array | None, grid: _Grid) -> None:
    """Emit the output of a node: `x` quantized and dequantized, or, for a constant, its dequantized integers."""
    base, scales, dtype, kind = call.outputs[0], grid.scales, numpy_dtype(grid.dtype), DTYPES[grid.dtype]
    scale = im.constant(scales.reshape(-1) if scales.size > 1 else scales.reshape(()), f"{base}.scale")
    along: dict[str, Attribute] = {"axis": grid.axis, "block_size": 0}
    if integers is not None:
        name = im.constant(integers.astype(dtype), f"{x}.integers", grid.dtype, (x,))
    else:
        rounded: dict[str, Attribute] = {**along, "output_dtype": grid.dtype, "saturate": 1}
        name = im.emit(QUANTIZE, [x, scale, grid.point], f"{base}.integers", rounded)
    if grid.limits != (kind.minimum, kind.maximum):
        bounds = [
            im.constant(np.array(limit, dtype), f"{base}.{word}", grid.dtype)
            for word, limit in zip(("min", "max"), grid.limits, strict=True)
        ]
        name = im.emit("Clip", [name, *bounds], f"{base}.clipped")
    im.emit(DEQUANTIZE, [name, scale, grid.point], call.outputs, {**along, "output_dtype": im.tensors[scale].dtype})
    if integers is None:
        im.preferred[name] = base


def _axis(im: Importer, x: str, scale: str) -> int | None:
    """The axis of the scales; 0 for a single scale; None if they are neither per-tensor nor per-channel."""
    shape, own = im.shape(scale), im.shape(x)
    sizes = [index for index, size in enumerate(shape or ()) if size != 1]
    if shape is None or len(sizes) > 1:
        return None
    if not sizes:
        return 0
    if own is None or len(own) < len(shape) or own[sizes[0] - len(shape)] not in (None, shape[sizes[0]]):
        return None
    return sizes[0] + len(own) - len(shape)


def _limits(bits: Any, signed: bool, narrow: bool) -> tuple[int, int] | None:
    """The smallest and the largest integer; None for a bit width that is not in 1 to 32."""
    if bits.size != 1 or not 1 <= (width := float(bits.reshape(()))) <= 32 or width != int(width):
        return None
    if not signed:
        return 0, (1 << int(width)) - 1 - narrow
    half = 1 << int(width) - 1
    return (-half + narrow, half - 1) if -half + narrow <= half - 1 else None


def _narrowest(limits: tuple[int, int], at_least: int = 2) -> str:
    """The smallest element type of 2 to 32 bits that contains a range."""
    sizes = (bits for bits in (2, 4, 8, 16, 32) if bits >= at_least)
    sign = "" if limits[0] < 0 else "u"
    return first_holding((f"{sign}int{bits}" for bits in sizes), *limits) or "int32"
