"""From torch calls to nodes: one lifter for every form in which PyTorch keeps a network."""

from . import creation, decomposed, dynamic, layouts, norms, pointwise, pools, products, queries, recurrent, tables
from .lift import LIFTS, Lifter
from .values import InputSpec, Refine, TensorValue

__all__ = [
    "LIFTS",
    "InputSpec",
    "Lifter",
    "Refine",
    "TensorValue",
    "creation",
    "decomposed",
    "dynamic",
    "layouts",
    "norms",
    "pointwise",
    "pools",
    "products",
    "queries",
    "recurrent",
    "tables",
]
