"""Networks that are built node by node, with random quantization parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qfmt.model import DTYPES, Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Inference

f32 = np.float32

Random = np.random.Generator


def grid(rng: Random, dtype: str = "uint8", scale: float | None = None) -> Quantization:
    limits = DTYPES[dtype]
    low, high = int(limits.minimum), int(limits.maximum)  # type: ignore[arg-type]
    own = float(f32(scale if scale is not None else rng.uniform(0.01, 0.1)))
    return Quantization.of((own,), (int(rng.integers(low, high + 1)),), low, high)


class Net:
    """A graph that is built node by node; operators determine the shapes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.tensors: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def input(self, *shape: int, dtype: str = "uint8", q: Quantization | None = None) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.tensors[name] = Tensor(name, dtype, shape, None, q or grid(self.rng, dtype))
        return name

    def real(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.tensors[name] = Tensor(name, "float32", shape)
        return name

    def constant(self, array: Any, q: Quantization | None = None, dtype: str | None = None) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors[name] = Tensor.constant(name, array, q, dtype=dtype)
        return name

    def node(self, operator: str, inputs: Sequence[str], out: Quantization | None, rule: str = "", **a: Any) -> str:
        entry = OPERATORS[operator]
        dtype = a.pop("dtype", "uint8" if out is not None else "float32")
        attributes = entry.complete(a)
        names = [*inputs, *("" for _ in range(len(entry.inputs) - len(inputs)))]
        shapes = [self.tensors[name].shape if name else None for name in names]
        values = [self.tensors[n].array if n and self.tensors[n].is_constant else None for n in names]
        (shape, *_) = entry.infer(Inference(shapes, attributes, values))
        name = f"y{len(self.nodes)}"
        self.tensors[name] = Tensor(name, dtype, shape, None, out)
        self.nodes.append(Node(operator, tuple(inputs), (name,), attributes, "", entry.version, rule))
        return name

    def model(self, *outputs: str) -> Model:
        return Model(Graph(tuple(self.inputs), outputs, self.nodes, self.tensors))
