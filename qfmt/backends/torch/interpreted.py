"""Nodes that torch's operators cannot compute: by a table of all results, or by NumPy, both bit for bit."""

from __future__ import annotations

from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import RunError
from ...interpreter import execute
from ...model import DTYPES, Node, Quantization
from ...model import Tensor as ModelTensor
from ...ops import OPERATORS, Operand, Quantized
from ...ops.shapes import keeps_shape
from .emit import PLAIN, Lacks, Site, Table
from .integers import look_up
from .values import FOR_RECORDING, is_traced, to_array, to_tensor

# Functions of one 8-bit integer: a table of all 256 results


UNARY = {
    entry.name
    for entry in OPERATORS.values()
    if keeps_shape(entry) and len(entry.inputs) == 1 and entry.quantized is Quantized.COMPUTES
} - {"QuantizeLinear", "DequantizeLinear"}


def _look_up(s: Site) -> Any:
    x = s.tensor(0)
    if x.dtype not in ("uint8", "int8") or s.grid(0).axis is not None or s.out_grid.axis is not None:
        raise Lacks("is not a function of one 8-bit integer")
    (results,) = execute(s.node, [Operand(DTYPES[x.dtype].every(), x.quantization)], [s.out])
    table = s.derive("table", torch.from_numpy(results.copy()))
    return s.result(look_up, table, None, s.x(0), DTYPES[x.dtype].minimum)


# NumPy: everything else


Given = tuple[str, Quantization | None]
"""Element type and quantization of an input."""


class ByNumPy:
    """A node that the reference interpreter computes; a callable with a name, for the generated code."""

    def __init__(self, node: Node, grids: list[Given], outputs: list[ModelTensor]) -> None:
        self.node, self.grids, self.outputs = node, grids, outputs
        self.__name__ = f"numpy_{node.operator.rpartition('.')[2]}"
        self.__module__ = __name__
        self.__qualname__ = self.__name__

    def __call__(self, *inputs: Tensor | None) -> Any:
        if is_traced():
            what = "is computed by NumPy, which a trace does not record"
            raise RunError(what, where=f"node {self.node.title}", hint=FOR_RECORDING)
        operands = [
            None if value is None else Operand(to_array(value, dtype), grid)
            for value, (dtype, grid) in zip(inputs, self.grids, strict=True)
        ]
        arrays = execute(self.node, operands, self.outputs)
        pairs = zip(arrays, self.outputs, strict=True)
        results = [to_tensor(np.asarray(array), tensor.dtype) for array, tensor in pairs]
        return results[0] if len(results) == 1 else results


def _by_numpy(s: Site) -> Any:
    if s.node.operator not in OPERATORS:
        raise RunError("qfmt cannot run this operator", hint="its arrays can still be read")
    node, tensors = s.node, s.builder.model.tensors
    inputs = [s.x(index) for index in range(len(node.inputs))]
    grids = [(tensors[name].dtype, tensors[name].quantization) if name else ("", None) for name in node.inputs]
    function = ByNumPy(node, grids, [tensors[name] for name in node.outputs])
    result = s.result(function, *inputs)
    if len(node.outputs) == 1:
        return result
    return [s.call(getitem, result, index) for index in range(len(node.outputs))]


LOOK_UP = Table("look-up", PLAIN, dict.fromkeys(UNARY, _look_up).get)
NUMPY = Table("numpy", PLAIN, lambda operator: _by_numpy, any_grid=True)
