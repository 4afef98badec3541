"""From torch calls to nodes: one lifter for every form in which PyTorch keeps a network."""

from importlib import import_module

from .lift import Lifter, lifts
from .values import InputSpec, Refine, TensorValue

__all__ = [
    "lifts",
    "InputSpec",
    "Lifter",
    "Refine",
    "TensorValue",
]

for _module in (
    "attention", "chosen", "creation", "decomposed", "dynamic", "functions", "indexing", "layouts", "logic", "norms",
    "pointwise", "pools", "products", "queries", "recurrent", "sequences", "tables", "weights",
):  # fmt: skip
    import_module(f".{_module}", __name__)
