"""A network of 4-bit integers."""

from __future__ import annotations

import numpy as np

from qfmt import Graph, Model, Node, Quantization, Tensor

GRID = Quantization.of((0.5,), (3,), -8, 7)


def network() -> Model:
    """Doubles 4-bit integers and outputs them as floats; the input is also an output, and one output is listed
    twice."""
    tensors = {
        "q": Tensor("q", "int4", ("N", 3), None, GRID),
        "real": Tensor("real", "float32", ("N", 3)),
    }
    node = Node("DequantizeLinear", ("q",), ("real",), version=23)
    return Model(Graph(("q",), ("real", "q", "real"), (node,), tensors))


INPUT = {"q": np.array([[-8, 0, 7], [3, 4, 5]], np.int8)}
