"""Of a file in which many tensors share large arrays, each is read as often as if one tensor had it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt import arrays
from qfmt.cli.statistics import show_statistics
from qfmt.model import Graph, Model, Parameter, Quantization, Tensor
from qfmt.view.description import describe

SIZE = 6000
"""Scales of a tensor: more than lie in the metadata, and more than a page has one by one."""


@pytest.fixture
def numbers_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers were read at each access to an array of more than one."""
    found: list[int] = []
    elements, stored_numbers = arrays.elements, Parameter.stored_numbers

    def counted(view: memoryview, dtype: str, count: int) -> arrays.Array:
        found.extend([count] if count > 1 else [])
        return elements(view, dtype, count)

    def counted_numbers(self: Parameter) -> tuple[float, ...]:
        found.extend([len(self)] if len(self) > 1 else [])
        return stored_numbers(self)

    monkeypatch.setattr(arrays, "elements", counted)
    monkeypatch.setattr(Parameter, "stored_numbers", counted_numbers)
    return found


def shared(path: Path, tensors: int, seed: int) -> Model:
    """Tensors that share their codes and scales, and each of which has a quantization of its own."""
    draw = np.random.default_rng(seed)
    codes = Tensor.constant("t", draw.integers(-100, 100, (SIZE, 3)).astype(np.int16)).data
    grid = Quantization.of(draw.uniform(1, 2, SIZE).astype(np.float32), 0, -100, 100, axis=0)
    made = [
        Tensor(f"t{at}", "int16", (SIZE, 3), codes, replace(grid, quant_min=-100 - at, quant_max=100 + at))
        for at in range(tensors)
    ]
    Model(Graph((), (), (), {each.name: each for each in made})).save(path)
    return qfmt.load(path)


@pytest.mark.parametrize(
    "use",
    [
        lambda a, _: describe(a, "m"),
        lambda a, _: show_statistics(a, [*a.tensors.values()], "m.qfb", json_=True),
        qfmt.diff,
    ],
    ids=["view", "inspect --stats", "diff"],
)
def test_many_tensors_cost_what_one_does(
    use: Callable[[Model, Model], object], numbers_read: list[int], tmp_path: Path
) -> None:
    costs = []
    for tensors in (1, 40):
        models = [shared(tmp_path / f"{tensors}-{seed}.qfb", tensors, seed) for seed in (0, 1)]
        numbers_read.clear()
        use(*models)
        costs.append(sum(numbers_read))
    assert costs[0] >= SIZE
    assert costs[1] == costs[0]


def test_equal_arrays_are_not_compared_element_by_element(numbers_read: list[int], tmp_path: Path) -> None:
    a, b = (shared(tmp_path / f"{name}.qfb", 3, 0) for name in "ab")
    numbers_read.clear()
    assert qfmt.diff(a, b).is_equal
    assert numbers_read == []


def test_changes_of_a_private_map_are_kept(tmp_path: Path) -> None:
    """Memory in which changes to a copy-on-write map lie is not given back."""
    (tmp_path / "zeros").write_bytes(bytes(arrays.BLOCK))
    mapped = np.memmap(tmp_path / "zeros", np.int8, "c")
    mapped[:] = 1
    tensor = Tensor.constant("t", mapped)
    Model(Graph((), (), (), {"t": tensor})).save(tmp_path / "m.qfb")
    assert mapped.all()
    assert qfmt.load(tmp_path / "m.qfb").tensors["t"].array.all()
