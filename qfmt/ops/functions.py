"""Functions of one element, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf as _erf
from typing import Any

import numpy as np

from ..arrays import Array
from .registry import AttributeSpec, Quantized, Trait, operator, optional
from .shapes import broadcast, same


def erf(x: Array) -> Array:
    """The error function, computed in float64."""
    return np.fromiter(map(_erf, x.flat), np.float64, x.size).reshape(x.shape).astype(x.dtype)


def _softsign(x: Array) -> Array:
    return x / (x.dtype.type(1) + np.abs(x))


def elementwise(
    name: str,
    version: int,
    signature: str = "X -> Y",
    *,
    torch: tuple[str, ...] = (),
    engines: Mapping[str, str] | None = None,
    **attributes: AttributeSpec,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function of one element: of real numbers, if its input is quantized."""
    kind = Quantized.COMPUTES
    return operator(
        name, version, signature, attributes=attributes, shape=same, quantized=kind, torch=torch, engines=engines
    )


def function(
    family: str,
    name: str,
    version: int,
    compute: Callable[..., Array],
    meaning: str,
    signature: str = "input -> output",
    torch: str = "",
    dtype: str = "",
    traits: Trait = Trait.NONE,
) -> None:
    """An operator that is one function of NumPy, on floats unless a `dtype` is stated."""

    def reference(*inputs: Array) -> Array:
        return compute(*inputs)

    reference.__doc__, reference.__module__ = meaning, family
    operator(
        name,
        version,
        signature,
        shape=broadcast if len(signature.partition("->")[0].split()) > 1 else same,
        quantized=Quantized.FLOAT_ONLY if dtype else Quantized.COMPUTES,
        dtype=dtype or "same",
        torch=(torch,) if torch else (),
        traits=traits,
    )(reference)


for _entry in (
    ("Sin", 22, np.sin, "output = sin(input)."),
    ("Cos", 22, np.cos, "output = cos(input)."),
    ("Tan", 22, np.tan, "output = tan(input)."),
    ("Asin", 22, np.arcsin, "output = arcsin(input)."),
    ("Acos", 22, np.arccos, "output = arccos(input)."),
    ("Atan", 22, np.arctan, "output = arctan(input)."),
    ("Sinh", 22, np.sinh, "output = sinh(input)."),
    ("Cosh", 22, np.cosh, "output = cosh(input)."),
    ("Asinh", 22, np.arcsinh, "output = arsinh(input)."),
    ("Acosh", 22, np.arccosh, "output = arcosh(input)."),
    ("Atanh", 22, np.arctanh, "output = artanh(input)."),
    ("Erf", 13, erf, "output = the error function of input, computed in float64."),
    ("Sign", 13, np.sign, "output = -1, 0 or 1, the sign of input."),
    ("Softsign", 22, _softsign, "output = input / (1 + |input|)."),
    ("Ceil", 13, np.ceil, "Y = the least integer that is greater than or equal to X.", "X -> Y"),
    ("Floor", 13, np.floor, "Y = the greatest integer that is less than or equal to X.", "X -> Y"),
    ("Round", 22, np.rint, "Y = the integer nearest to X; ties go to the even one.", "X -> Y"),
):
    function(__name__, *_entry)


@elementwise("Shrink", 9, "input -> output", bias=optional(0.0, "what is subtracted"), lambd=optional(0.5, "threshold"))
def shrink(x: Array, *, bias: float, lambd: float) -> Array:
    """output = input + bias where input < -lambd, input - bias where input > lambd, 0 elsewhere."""
    step = x.dtype.type(bias) if x.dtype.kind not in "iu" else bias  # integers: the real result, truncated
    moved = np.where(x < -lambd, x + step, np.where(x > lambd, x - step, x.dtype.type(0)))
    return moved.astype(x.dtype)


@elementwise("Swish", 24, alpha=optional(1.0, "steepness of the sigmoid"))
def swish(x: Array, *, alpha: float) -> Array:
    """Y = X / (1 + exp(-alpha · X))."""
    kind = x.dtype.type
    return x / (kind(1) + np.exp(-kind(alpha) * x))
