"""Models have arrays of their own: what the caller writes to later changes no model, and no result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qfmt
from qfmt import Graph, Model, Node, Tensor
from qfmt.arrays import StoredArray
from qfmt.compare import replay
from qfmt.errors import QfmtError
from qfmt.ops import OPERATORS
from support.archives import digits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return qfmt.convert(digits(tmp_path_factory.mktemp("net") / "digits.pt"))


def weight_of(model: Model) -> Tensor:
    return next(each for each in model.graph.constants() if each.shape and len(each.shape) > 1)


def test_vectors_of_one_reused_buffer(model: Model, tmp_path: Path) -> None:
    (name,) = model.graph.inputs
    buffer = np.empty((1, 1, 8, 8), np.float32)
    for number in range(3):
        buffer[...] = number
        model = model.with_vectors({name: buffer})
    assert [int(each.inputs[name].array.max()) for each in model.vectors] == [0, 1, 2]
    model.save(tmp_path / "m.qfb")
    assert not any(each.different for each in replay(qfmt.load(tmp_path / "m.qfb")))


def test_variants_of_one_weight(model: Model) -> None:
    name = weight_of(model).name
    values, variants = np.array(model.tensors[name].array), []
    for number in range(3):
        values[...] = number
        variants.append(model.replace_tensor(name, values))
    assert [int(each.tensors[name].array.max()) for each in variants] == [0, 1, 2]


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("view", [lambda a: a, lambda a: read_only(a[:]), lambda a: np.broadcast_to(a, (2, 4)), list])
def test_a_constant_is_what_it_was(view: Any) -> None:
    array = np.zeros(4, np.float32)
    tensor = Tensor.constant("w", view(array))
    array[...] = 5
    assert not tensor.array.any()


@pytest.mark.parametrize("value", [[[1.0], [2.0, 3.0]], torch.ones(2, requires_grad=True)], ids=["uneven", "gradient"])
def test_what_is_no_array(value: Any, model: Model) -> None:
    with pytest.raises(QfmtError, match="is not an array"):
        Tensor.constant("w", value)
    with pytest.raises(QfmtError, match="is not an array"):
        model.run(dict.fromkeys(model.graph.inputs, value))


def test_what_nobody_can_write_to_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(1000, np.float32))
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    assert np.shares_memory(StoredArray.of(mapped).array, mapped)


def test_a_changed_proto_does_not_change_its_model(model: Model) -> None:
    proto = model.to_onnx()
    converted = qfmt.convert(proto)
    before = converted.content_id()
    for initializer in proto.graph.initializer:
        initializer.raw_data = bytes(len(initializer.raw_data))
    assert converted.content_id() == before
    assert weight_of(converted).array.any()


@pytest.mark.parametrize("operator", ["Identity", "Flatten"])
def test_results_are_not_the_inputs(operator: str) -> None:
    tensors = {"x": Tensor("x", "float32", (2, 4)), "y": Tensor("y", "float32", (2, 4))}
    graph = Graph(
        ("x",),
        ("y",),
        [Node(operator, ("x",), ("y",), {"axis": 1} if operator == "Flatten" else {}, version=23)],
        tensors,
    )
    x = np.ones((2, 4), np.float32)
    given = torch.ones(2, 4)
    for model in (
        Model(graph),
        Model(replace(graph, outputs=("y", "x"))),
        Model(Graph(("x",), ("x",), (), {"x": tensors["x"]})),
    ):
        for value in (x, given):
            results = list(model.run({"x": value}).values())
            results[0][...] = 7
            assert all((each == 1).all() for each in (x, given, *results[1:]))


@pytest.mark.parametrize("outputs", [("y", "z"), ("z", "y"), ("z", "x", "y")])
def test_results_are_not_parts_of_each_other(outputs: tuple[str, ...]) -> None:
    """Expand gives a view that cannot be changed, of an array that can."""
    size = Tensor.constant("size", np.array([2, 4], np.int64))
    tensors = {name: Tensor(name, "float32", (2, 4)) for name in "xyz"} | {"size": size}
    nodes = [
        Node("Relu", ("x",), ("y",), version=OPERATORS["Relu"].version),
        Node("Expand", ("y", "size"), ("z",), version=OPERATORS["Expand"].version),
    ]
    x = np.ones((2, 4), np.float32)
    results = Model(Graph(("x",), outputs, nodes, tensors)).run({"x": x})
    for name in outputs:
        if results[name].flags.writeable:
            results[name][...] = 7
            assert [other for other in outputs if (results[other] == 7).all()] == [name] and (x == 1).all()
            results[name][...] = 1
