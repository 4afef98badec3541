"""Every operator that the second evaluation knows: (operands, attributes, rule, [(dtype, grid)]) → results."""

from __future__ import annotations

from collections.abc import Callable

from . import evaluate_moves, evaluate_products, evaluate_real, evaluate_rescaling, evaluate_resize, evaluate_windows
from .evaluate import Value

OPERATORS: dict[str, Callable[..., list[Value]]] = {
    **evaluate_products.OPERATORS,
    **evaluate_windows.OPERATORS,
    **evaluate_rescaling.OPERATORS,
    **evaluate_resize.OPERATORS,
    **evaluate_moves.OPERATORS,
    **evaluate_real.OPERATORS,
}

__all__ = ["OPERATORS"]
