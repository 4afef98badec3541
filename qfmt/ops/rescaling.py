"""Integers to other integers with integer arithmetic only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..arithmetic import clamp
from ..arrays import Array
from ..errors import RunError
from ..forms import MULTIPLY_ADD_DIVIDE
from ..model import Dimension, Shape
from .accumulation import whole
from .registry import Inference, Operand, Quantized, Result, Trait, by_engine, operator, required
from .shapes import check_broadcasts


def _shape(given: Inference) -> list[Shape]:
    """That of x, to which mul and add broadcast."""
    x = given.shapes[0]
    for name, shape in zip(("mul", "add"), given.shapes[1:3], strict=True):
        if x is not None and shape is not None:
            check_broadcasts(shape, x, name)
    return [x]


def channels_of(parameters: Iterable[Sequence[Dimension]], rank: int) -> int | None:
    """The dimension of x, of that rank, along which mul and add, of these shapes, differ; None for none, or several."""
    along = {at - len(shape) + rank for shape in parameters for at, size in enumerate(shape) if size != 1}
    return along.pop() if len(along) == 1 else None


def multiply_add_divide(x: Array, mul: Array, add: Array, div: int) -> Array:
    """floor((x · mul + add) / div + 1/2) of integers, exact; RunError if it could exceed int64 when it is rounded."""
    largest = [int(np.abs(each.astype(np.float64)).max(initial=0)) for each in (x, mul, add)]
    if largest[0] * largest[1] + largest[2] + div >= 1 << 62:
        raise RunError(f"{largest[0]} · {largest[1]} + {largest[2]} may reach 2^62: its double exceeds int64")
    wide = x.astype(np.int64) * mul.astype(np.int64) + add.astype(np.int64)
    return (wide + div // 2) // div


def _integer(x: Operand, mul: Operand, add: Operand, *, result: Result, div: int) -> Array:
    """`multiply_add_divide`: y = zy + floor(((q - zx) · mul + add) / div + 1/2), clamped; in int64, exact"""
    result.expect(MULTIPLY_ADD_DIVIDE)
    q = multiply_add_divide(whole(x), mul.array, add.array, div) + int(result.quantization.zero_point[0])
    return clamp(q, result.quantization, result.dtype)


@operator(
    "qfmt.RequantShift",
    1,
    "x mul add -> y",
    attributes={"div": required("i", "the divisor, at least 1")},
    shape=_shape,
    quantized=Quantized.OWN,
    integer=_integer,
    rules=(MULTIPLY_ADD_DIVIDE,),
    engines=dict.fromkeys(by_engine(MULTIPLY_ADD_DIVIDE), MULTIPLY_ADD_DIVIDE),
    traits=Trait.REQUANTIZE,
)
def requant_shift(x: Array, mul: Array, add: Array, *, div: int) -> Array:
    """y = floor((x · mul + add) / div + 1/2); exact if all values are integral, otherwise in float64.

    A y without a quantization has the type of x, in which integers wrap around.

    mul and add have integral values, in float32 or an integer type; they broadcast to x: one for all, or one per
    channel ([C, 1, 1]). This is the requantization of accelerators without floating point: accumulators to 8 bits.
    """
    if all(bool((each == np.rint(each)).all()) for each in (x, mul, add)):
        return multiply_add_divide(x, mul, add, div).astype(x.dtype)
    wide = x.astype(np.float64) * mul.astype(np.float64) + add.astype(np.float64)
    return np.floor(wide / div + 0.5).astype(x.dtype)
