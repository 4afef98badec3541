"""The state of a lowering: the tensors and nodes of the new graph, and why a node has no integer form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...budget import NODE, Budget
from ...errors import QfmtError
from ...model import DTYPES, Model, Node, Quantization, Tensor, numpy_dtype
from ...ops import OPERATORS
from ..constants import unused
from .forms import Form


class NoForm(QfmtError):
    """A node cannot be computed with integers only. `node` is the one to name, if it is not the requested one;
    `unknown_shape`: a known size would help."""

    def __init__(self, what: str, *, node: Node | None = None, unknown_shape: bool = False) -> None:
        super().__init__(what)
        self.node = node
        self.unknown_shape = unknown_shape


def made(operator: str, inputs: tuple[str, ...], output: str, attributes: dict[str, Any], like: Node) -> Node:
    """A node that takes the place of another, without a rule."""
    version = OPERATORS[operator].version
    return Node(operator, inputs, (output,), attributes, like.name, version, "", like.scope, like.source_operator)


class Context:
    """The graph before (`tensors`, `producer`), and after: `nodes`, and all `tensors` that they name."""

    def __init__(self, model: Model, form: Form, budget: Budget | None = None) -> None:
        self.form = form
        self.budget = budget or Budget(None)
        self.tensors: dict[str, Tensor] = dict(model.tensors)
        self.producer = model.graph.producers()
        self.nodes: list[Node] = []
        self.model_inputs = set(model.graph.inputs)
        self.taken: list[str] = []
        self.taken_from: dict[str, str] = {}
        """Quantized tensors that are now inputs, and the float inputs that they were made from."""
        self.made_whole: dict[str, str] = {}
        """Float constants with integer values, and the integer constants made from them."""
        self.moved: dict[tuple[str, bytes, str], str] = {}
        """A tensor, a table and a type → the output of their Table node."""

    def is_real(self, name: str) -> bool:
        """Whether a tensor is float, as far as its nodes are concerned."""
        tensor = self.tensors[name]
        return tensor.quantization is None and not DTYPES[tensor.dtype].is_integer and tensor.dtype != "bool"

    def is_computed(self, name: str) -> bool:
        """Whether a tensor is float and not a constant."""
        return bool(name) and self.is_real(name) and not self.tensors[name].is_constant

    def free(self, name: str) -> str:
        return unused(name, self.tensors)

    def add(self, tensor: Tensor) -> str:
        if tensor.data is not None:
            self.budget.allocate(tensor.data.nbytes)
        self.tensors[tensor.name] = tensor
        return tensor.name

    def put(self, node: Node, outputs: Iterable[Tensor] = ()) -> None:
        """Append a node; `outputs` are those of its tensors that are new or changed."""
        self.budget.spend(NODE)
        for tensor in outputs:
            self.add(tensor)
        self.nodes.append(node)

    def take(self, name: str, source: str) -> None:
        """Make a quantized tensor an input, instead of the floats that it is made from."""
        self.taken.append(name)
        self.taken_from[name] = source

    def grid(self, tensor: Tensor) -> Quantization:
        """The quantization of a tensor of integers; NoForm if it has none, or one without known integers."""
        grid = tensor.quantization
        if grid is None or not DTYPES[tensor.dtype].is_integer:
            raise NoForm(f"computes in floating point: {tensor.name!r} is {tensor.dtype}, not quantized")
        if not grid.is_summable:
            raise NoForm(f"computes in floating point: {tensor.name!r} has block-wise scales, or float zero points")
        return grid

    def kind(self, tensor: Tensor) -> np.dtype[Any]:
        return numpy_dtype(tensor.dtype)

    def last_axis(self, tensor: Tensor) -> int:
        if tensor.shape is None:
            raise NoForm("has an output of unknown rank", unknown_shape=True)
        return max(len(tensor.shape) - 1, 0)

    def constant(self, name: str, array: Any) -> str:
        return self.add(Tensor.constant(self.free(name), array))

    def computed(self, like: Tensor, name: str, dtype: str, grid: Quantization | None) -> Tensor:
        """A new tensor of the shape of another."""
        return replace(like, name=name, dtype=dtype, quantization=grid, aliases=())
