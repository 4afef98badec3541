"""The operators: one module per family, one decorated function per operator.

Importing this package fills the table `OPERATORS`.
"""

from . import (
    activation,
    convolution,
    creation,
    dynamic,
    elementwise,
    embedding,
    functions,
    indexing,
    integer_products,
    layout,
    linear,
    logic,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    selection,
    softmax,
)
from .registry import OPERATORS, Inference, Operand, Operator, Quantized, Result, UnknownRank

__all__ = [
    "OPERATORS",
    "Inference",
    "Operand",
    "Operator",
    "Quantized",
    "Result",
    "UnknownRank",
    "activation",
    "convolution",
    "creation",
    "dynamic",
    "elementwise",
    "embedding",
    "functions",
    "indexing",
    "integer_products",
    "layout",
    "linear",
    "logic",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "selection",
    "softmax",
]
