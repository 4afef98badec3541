"""QuantizeLinear is hoisted before moves: the integers are equal, and integers are moved."""

from __future__ import annotations

import numpy as np
import pytest

from qfmt import Model, Quantization, Tensor
from qfmt.model import Graph, Node
from qfmt.ops import OPERATORS
from qfmt.passes import hoisting
from qfmt.passes.edits import only_read
from qfmt.passes.hoisting import hoist_quantizers

GRID = Quantization.per_tensor(0.03, 100, "uint8")
X = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)

MOVERS = {
    "Transpose": ({"perm": (0, 2, 3, 1)}, [], (2, 4, 4, 3)),
    "Pad": ({"mode": "constant"}, [np.array([0, 0, 1, 1] * 2), np.array(0.5, np.float32)], (2, 3, 6, 6)),
    "MaxPool": ({"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1)}, [], (2, 3, 2, 2)),
    "Reshape": ({}, [np.array([2, -1])], (2, 48)),
    "Slice": ({}, [np.array([1]), np.array([3]), np.array([3]), np.array([1])], (2, 3, 4, 2)),
}


def node(operator: str, inputs: list[str], outputs: list[str], **rest: object) -> Node:
    entry = OPERATORS[operator]
    attributes = entry.complete(rest.pop("attributes", {}))  # type: ignore[arg-type]
    return Node(operator, tuple(inputs), tuple(outputs), attributes, version=entry.version, **rest)  # type: ignore[arg-type]


def model(operator: str, *, outputs: tuple[str, ...] = ("q",)) -> Model:
    """x → Abs → operator → QuantizeLinear."""
    attributes, extra, shape = MOVERS[operator]
    constants = [Tensor.constant(f"c{index}", array) for index, array in enumerate(extra)]
    nodes = [
        node("Abs", ["x"], ["a"]),
        node(operator, ["a", *(tensor.name for tensor in constants)], ["b"], attributes=attributes),
        node("QuantizeLinear", ["b"], ["q"], rule="reciprocal"),
    ]
    tensors = [Tensor("x", "float32", X.shape), Tensor("a", "float32", X.shape), Tensor("b", "float32", shape)]
    tensors += [Tensor("q", "uint8", shape, quantization=GRID), *constants]
    return Model(Graph(("x",), outputs, nodes, {tensor.name: tensor for tensor in tensors}))


@pytest.mark.parametrize("operator", MOVERS)
def test_integers_are_moved(operator: str) -> None:
    before = model(operator)
    after = before.replace(graph=hoist_quantizers(before.graph))
    assert [each.operator for each in after.nodes] == ["Abs", "QuantizeLinear", operator]
    assert np.array_equal(after.run({"x": X})["q"], before.run({"x": X})["q"])


@pytest.mark.parametrize("operator", MOVERS)
def test_real_numbers_that_others_read_stay(operator: str) -> None:
    for read in ("a", "b"):
        before = model(operator, outputs=("q", read))
        assert hoist_quantizers(before.graph) is before.graph


def test_a_chain_needs_one_rewrite_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rewrite per operator of the chain would take quadratic time."""
    rewritten = []
    monkeypatch.setattr(hoisting, "only_read", lambda graph: rewritten.append(1) or only_read(graph))
    shapes = [(2, 3, 4, 4), (4, 4, 3, 2)] * 20
    nodes = [node("Abs", ["x"], ["t0"])]
    nodes += [node("Transpose", [f"t{i}"], [f"t{i + 1}"], attributes={"perm": (3, 2, 1, 0)}) for i in range(39)]
    nodes.append(node("QuantizeLinear", ["t39"], ["q"], rule="reciprocal"))
    tensors = [Tensor("x", "float32", X.shape), *(Tensor(f"t{i}", "float32", shape) for i, shape in enumerate(shapes))]
    tensors.append(Tensor("q", "uint8", shapes[-1], quantization=GRID))
    before = Model(Graph(("x",), ("q",), nodes, {tensor.name: tensor for tensor in tensors}))
    after = before.replace(graph=hoist_quantizers(before.graph))
    assert [each.operator for each in after.nodes] == ["Abs", "QuantizeLinear", *["Transpose"] * 39]
    assert len(rewritten) == 1
    assert np.array_equal(after.run({"x": X})["q"], before.run({"x": X})["q"])
