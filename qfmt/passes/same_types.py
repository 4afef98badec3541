"""Products of integers of one type: uint8 by uint8, int8 by int8.

ONNX Runtime multiplies uint8 by int8 with instructions that saturate if an x86 processor has no VNNI; products of
one type are exact everywhere (docs/spec/conversions.md, "Kernels that saturate"). Its optimizations turn int8
activations between Q and DQ into uint8, and leave the weights: so activations inside the network become uint8 here,
then weights get the type of their input. To change the type, 128 is added to the integers and to their zero point, or
subtracted: the real numbers stay the same, and so do the results of the network.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arithmetic import DYNAMIC
from ..arrays import Data
from ..model import Model, Node, Quantization, Tensor
from ..ops import known
from ..ops.moves import only_moves
from .constants import unused

OFFSETS = {"int8": -128, "uint8": 128}
"""Element type → the number added to integers of the other type."""

WITH_ZERO_POINTS = ("ConvInteger", "MatMulInteger")
"""Operators whose inputs 1 and 3 are a weight and its zero point."""


class Shifted(Data):
    """Integers of one type as those of the other: they differ in the highest bit."""

    __slots__ = ("_data",)

    def __init__(self, data: Data) -> None:
        self._data, self.nbytes = data, data.nbytes

    def view(self) -> memoryview:
        return (np.frombuffer(self._data.view(), np.uint8) ^ 128).data.toreadonly()


def with_same_types(model: Model) -> Model:
    """The model with uint8 activations for int8 ones, and its constant weights of 8 bits in the types of their inputs.

    Nodes that output sums of integers keep their types: `backends.onnx.sums` multiplies bytes of one type.
    """
    types = _SameTypes(model)
    for name in _movable(model):
        tensor = model.tensors[name]
        assert tensor.quantization is not None
        types.tensors[name] = replace(tensor, dtype="uint8", quantization=_moved(tensor.quantization, OFFSETS["uint8"]))
    nodes = tuple(map(types.rewired, model.nodes))
    return model.replace(graph=replace(model.graph, nodes=nodes, tensors=types.tensors))


def has_same_types(onnx: Model, model: Model) -> bool:
    """Whether an ONNX model was written with these types: it has other activations, or constants, than its origin."""
    constants = {name for tensor in onnx.graph.constants() for name in (tensor.name, *tensor.aliases)}
    for tensor in model.tensors.values():
        if tensor.is_constant:
            others, names = OFFSETS.keys() - {tensor.dtype}, (tensor.name, *tensor.aliases)
            found = any(f"{name}.{other}" in constants for other in others for name in names)
        else:
            there = onnx.tensors.get(tensor.name)
            found = there is not None and not there.is_constant and (tensor.dtype, there.dtype) == ("int8", "uint8")
        if found:
            return True
    return False


def _movable(model: Model) -> set[str]:
    """The int8 activations inside the network that can be uint8: no node reads or outputs their stored integers."""
    found = {tensor.name for tensor in model.tensors.values() if tensor.dtype == "int8" and _has_grid(tensor)}
    found -= {*model.graph.inputs, *model.graph.outputs, *(tensor.name for tensor in model.graph.constants())}
    together: dict[str, list[set[str]]] = {}
    for node in model.nodes:
        entry, ends = known(node), {name for name in (*node.inputs, *node.outputs) if name}
        if entry is None or entry.takes_integers or node.rule in entry.sum_rules:
            found -= ends
        elif entry.moves or only_moves(node, model.tensors):
            moved = {name for name in ends if model.tensors[name].quantization is not None}
            for name in moved:
                together.setdefault(name, []).append(moved)
    kept = [name for name in together if name not in found]
    while kept:  # a moved tensor has the type of its source
        for moved in together.pop(kept.pop()):
            kept += found & moved
            found -= moved
    return found


def _has_grid(tensor: Tensor) -> bool:
    grid = tensor.quantization
    return grid is not None and grid.is_summable


class _SameTypes:
    def __init__(self, model: Model) -> None:
        self.tensors = dict(model.tensors)
        self._made: dict[tuple[str, str], str] = {}

    def rewired(self, node: Node) -> Node:
        """The node with other weights, if necessary."""
        operator = known(node)
        if operator is None or node.rule in operator.sum_rules:
            return node
        inputs = list(node.inputs)
        if node.operator in WITH_ZERO_POINTS:
            self._change_stated(inputs)
            return replace(node, inputs=tuple(inputs))
        for index in operator.weights:
            dtype, weight = self._type_of_input(node), self.tensors[inputs[index]]
            if self._may_change(inputs[index], dtype) and _has_grid(weight):
                inputs[index] = self._changed(inputs[index], dtype)
        return replace(node, inputs=tuple(inputs))

    def _change_stated(self, inputs: list[str]) -> None:
        """A weight whose zero point is an input."""
        dtype, weight = self.tensors[inputs[0]].dtype, inputs[1]
        inputs += [""] * (4 - len(inputs))
        if not inputs[3] and self._may_change(weight, dtype):
            name = unused(f"{weight}.zero_point", self.tensors)
            self.tensors[name] = Tensor.constant(name, np.zeros((), self.tensors[weight].dtype))
            inputs[3] = name
        if self._may_change(weight, dtype) and self._may_change(inputs[3], dtype):
            inputs[1], inputs[3] = (self._changed(name, dtype) for name in (weight, inputs[3]))

    def _type_of_input(self, node: Node) -> str:
        if node.rule in DYNAMIC:
            return "int8" if DYNAMIC[node.rule].is_signed else "uint8"
        return self.tensors[node.inputs[0]].dtype

    def _may_change(self, name: str, dtype: str) -> bool:
        """Whether a tensor is a constant of the other type."""
        tensor = self.tensors[name]
        return tensor.is_constant and {tensor.dtype, dtype} == OFFSETS.keys()

    def _changed(self, name: str, dtype: str) -> str:
        """The name of a constant as integers of that type."""
        if (name, dtype) not in self._made:
            tensor = self.tensors[name]
            assert tensor.data is not None
            made = self._made[name, dtype] = unused(f"{name}.{dtype}", self.tensors)
            grid = None if tensor.quantization is None else _moved(tensor.quantization, OFFSETS[dtype])
            self.tensors[made] = Tensor(made, dtype, tensor.shape, Shifted(tensor.data), grid)
        return self._made[name, dtype]


def _moved(grid: Quantization, offset: int) -> Quantization:
    return replace(grid.shifted(offset), names=(grid.names[0], ""))
