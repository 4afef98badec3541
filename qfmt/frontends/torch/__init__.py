"""From torch calls to nodes: one lifter for every form in which PyTorch keeps a network."""

from . import layouts, norms, pointwise, pools, products, queries
from .lift import LIFTS, Lifter
from .values import InputSpec, Refine, TensorValue

__all__ = [
    "LIFTS",
    "InputSpec",
    "Lifter",
    "Refine",
    "TensorValue",
    "layouts",
    "norms",
    "pointwise",
    "pools",
    "products",
    "queries",
]
