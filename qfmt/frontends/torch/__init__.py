"""From torch calls to nodes: one lifter for every form in which PyTorch keeps a network."""

from . import (
    attention,
    chosen,
    creation,
    decomposed,
    dynamic,
    functions,
    indexing,
    layouts,
    logic,
    norms,
    pointwise,
    pools,
    products,
    queries,
    recurrent,
    tables,
    weights,
)
from .lift import LIFTS, Lifter
from .values import InputSpec, Refine, TensorValue

__all__ = [
    "LIFTS",
    "InputSpec",
    "Lifter",
    "Refine",
    "TensorValue",
    "attention",
    "chosen",
    "creation",
    "decomposed",
    "dynamic",
    "functions",
    "indexing",
    "layouts",
    "logic",
    "norms",
    "pointwise",
    "pools",
    "products",
    "queries",
    "recurrent",
    "tables",
    "weights",
]
