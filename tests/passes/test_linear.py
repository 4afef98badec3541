"""Work on a graph grows linearly with its ends: no step looks for a name in a list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.backends.c import program
from qfmt.cli.arrays import matched
from qfmt.cli.facts import Users, why_float
from qfmt.model import StoredArray, Vector
from qfmt.ops import OPERATORS
from qfmt.passes.edits import renamed
from qfmt.passes.lowering import lower_integer
from qfmt.rules.vectors import vector_violations

MANY = 300
ZEROS = StoredArray.of(np.zeros(4, np.float32), "float32")


class Name(str):
    """Counts how often it is compared with another name."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)  # type: ignore[no-any-return]

    __hash__ = str.__hash__


GRID = Quantization.per_tensor(0.5, 0, "int8")


def network(operator: str, engine: str = "onnx", given: bool = True, made: bool = True) -> Model:
    """Nodes side by side: each has its own input and its own output, quantized if `given` and `made` say so."""
    inputs, outputs = ([Name(f"{letter}{at}") for at in range(MANY)] for letter in "xy")
    tensors = {
        name: Tensor(name, "int8", (4,), None, GRID) if quantized else Tensor(name, "float32", (4,))
        for names, quantized in ((inputs, given), (outputs, made))
        for name in names
    }
    version = OPERATORS[operator].version
    nodes = [Node(operator, (x,), (y,), {}, "", version) for x, y in zip(inputs, outputs, strict=True)]
    return Model(Graph(tuple(inputs), tuple(outputs), nodes, tensors), engine=engine)


def checked(model: Model) -> None:
    values = [dict.fromkeys(each, ZEROS) for each in (model.graph.inputs, model.graph.outputs)]
    assert not vector_violations(Vector(*values), model.graph, lambda: 0)


def explained(model: Model) -> None:
    users = Users(model.graph)
    assert all(why_float(model, tensor, users) for tensor in model.tensors.values())


def ran(model: Model) -> None:
    model.run({Name(name): np.zeros(4, np.float32) for name in matched(model.graph.inputs, INPUTS, Path("x.npz"))})


INPUTS = {Name(f"x{at}"): np.zeros(4, np.float32) for at in range(MANY)}


WORK: dict[str, tuple[Callable[[Model], object], Model]] = {
    "diff": (lambda model: qfmt.diff(model, model), network("Relu")),
    "rename": (
        lambda model: renamed(model.graph, {name: Name(f"{name}.new") for name in model.tensors}),
        network("Relu"),
    ),
    "lower": (lower_integer, network("DequantizeLinear", made=False)),
    "a test vector": (checked, network("Relu", given=False, made=False)),
    "floats": (explained, network("DequantizeLinear", made=False)),
    "run": (ran, network("Relu", given=False, made=False)),
    "C": (lambda model: program(model, "net"), network("Relu", engine="integer")),
}


@pytest.mark.parametrize("work", WORK)
def test_names_are_not_compared_with_all_others(work: str) -> None:
    do, model = WORK[work]
    Name.compared = 0
    do(model)
    assert Name.compared < MANY * MANY // 4


class Counted(dict[str, Tensor]):
    """Counts how often a tensor is looked up."""

    count = 0

    def __getitem__(self, name: str) -> Tensor:
        Counted.count += 1
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        Counted.count += 1
        return super().get(name, default)


@pytest.mark.parametrize("work", [explained, lambda model: model.to_onnx()], ids=["floats", "ONNX"])
def test_a_node_of_many_ends_is_looked_at_a_few_times(work: Callable[[Model], object]) -> None:
    inputs, outputs = (tuple(f"{letter}{at}" for at in range(MANY)) for letter in "xy")
    tensors = Counted({name: Tensor(name, "float32", (1,)) for name in (*inputs, *outputs)})
    tensors["z"] = Tensor("z", "float32", (MANY,))
    nodes = [
        Node("Split", ("z",), outputs, {"axis": 0, "num_outputs": MANY}, version=18),
        Node("Concat", inputs, ("z",), {"axis": 0}, version=13),
    ]
    if work is explained:
        nodes = [Node("vendor.a", inputs, (*outputs, "z"))]
    Counted.count = 0
    work(Model(Graph(inputs, outputs, nodes[::-1], tensors)))
    assert Counted.count < 30 * MANY
