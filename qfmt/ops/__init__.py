"""The operators: one module per family, one decorated function per operator.

Importing this package fills the table `OPERATORS`.
"""

from importlib import import_module

from .moves import only_moves
from .registry import OPERATORS, UNFIT, Inference, Operand, Operator, Quantized, Result, Trait, UnknownRank, has, known

__all__ = [
    "OPERATORS",
    "UNFIT",
    "Inference",
    "Operand",
    "Operator",
    "Quantized",
    "Result",
    "Trait",
    "UnknownRank",
    "has",
    "known",
    "only_moves",
]

for _module in (
    "activation", "attention", "convolution", "creation", "dynamic", "elementwise", "embedding", "functions",
    "indexing", "integer_products", "layout", "linear", "logic", "normalization", "onnx_recurrent", "pooling",
    "quantization", "recurrent", "reduction", "requantization", "rescaling", "resize", "sampling", "selection",
    "softmax",
):  # fmt: skip
    import_module(f".{_module}", __name__)
