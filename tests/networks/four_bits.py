"""A network of integers of 4 bits."""

from __future__ import annotations

import numpy as np

from qfmt import Graph, Model, Node, Quantization, Tensor

GRID = Quantization.of((0.5,), (3,), -8, 7)


def network() -> Model:
    """4-bit integers, doubled and given back as floats; the input is an output, too, and one output stands twice."""
    tensors = {
        "q": Tensor("q", "int4", ("N", 3), None, GRID),
        "real": Tensor("real", "float32", ("N", 3)),
    }
    node = Node("DequantizeLinear", ("q",), ("real",), version=23)
    return Model(Graph(("q",), ("real", "q", "real"), (node,), tensors))


INPUT = {"q": np.array([[-8, 0, 7], [3, 4, 5]], np.int8)}
