"""Integer-only networks (QuantLab, Deeploy): float tensors of integer values, with RequantShift nodes between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import INT32
from .calls import Call
from .importer import Importer, imports


@imports("RequantShift")
def requant_shift(im: Importer, call: Call) -> Any:
    """x, mul, add; div, n_levels_out (or n_levels), signed: clip(floor((x · mul + add) / div + 1/2)) to n levels.

    The levels are -n/2 … n/2 - 1 if signed, else 0 … n - 1. Attributes are numbers, or tensors of one element.
    """
    levels = _number(call, "n_levels_out" if "n_levels_out" in call.attributes else "n_levels", 256)
    low = -(levels // 2) if _number(call, "signed", 0) else 0
    x, mul, add = call.inputs
    shape = im.shape(x)
    operands = [_integers(im, name, None if shape is None else len(shape)) for name in (mul, add)]
    result = im.fresh(f"{call.outputs[0]}.rescaled")
    im.emit("qfmt.RequantShift", [x, *operands], [result], {"div": _number(call, "div", 1)})
    bounds = [im.constant(np.float32(value), f"{call.outputs[0]}.bound") for value in (low, low + levels - 1)]
    im.emit("Clip", [result, *bounds], call.outputs)


def _integers(im: Importer, name: str, rank: int | None) -> str:
    """A factor or summand as int32; a per-channel vector is reshaped so that it broadcasts to [N, C, …]."""
    array = im.value(name)
    if array is None:
        return name
    if array.ndim == 1 and array.size > 1 and rank is not None and rank > 2:
        array = array.reshape(-1, *(1 for _ in range(rank - 2)))
    whole = np.asarray(array, np.float64)
    if not (whole == np.rint(whole)).all() or np.abs(whole).max(initial=0) > INT32:
        return im.constant(array, f"{name}.channels")
    return im.constant(whole.astype(np.int32), f"{name}.integers", aliases=(name,))


def _number(call: Call, name: str, default: int) -> int:
    value = call.attributes.get(name, default)
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or (number := float(array.reshape(()))) != int(number):
        raise SourceError(f"its {name} is not an integer")
    return int(number)
