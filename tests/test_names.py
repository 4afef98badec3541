"""Tensors by their names in the source, suggestions for a wrong name, and the natural order of names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt import Graph, Model, Tensor


def model() -> Model:
    names = ["features.2", "features.10", "features.9", "classifier"]
    tensors = {
        name: Tensor.constant(name, np.zeros(1, np.float32), aliases=(f"source.{name}.weight",)) for name in names
    }
    return Model(Graph((), (), (), tensors))


@pytest.mark.parametrize("is_file", [False, True])
def test_names_of_the_source(is_file: bool, tmp_path: Path) -> None:
    found = model()
    if is_file:
        found.save(tmp_path / "m.qfb")
        found = qfmt.load(tmp_path / "m.qfb")
    assert found.tensors["source.features.9.weight"] is found.tensors["features.9"]
    assert "source.features.9.weight" not in found.tensors
    assert found.tensors.get("source.features.9.weight") is None
    assert dict(found.tensors) == dict(found.graph.tensors)
    with pytest.raises(KeyError, match=r"no tensor 'feature\.9'; similar: features\.9"):
        found.tensors["feature.9"]
    with pytest.raises(KeyError, match=r"no tensor 'features'; similar: (features\.\d+(, )?){3}"):
        found.tensors["features"]
    with pytest.raises(KeyError, match="no tensor '####'"):
        found.tensors["####"]


def test_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    model().save(tmp_path / "m.qfb")
    command = [sys.executable, "-m", "qfmt", "inspect", str(tmp_path / "m.qfb"), "--tensors"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["tensor", "classifier", "features.2", "features.9", "features.10"]


def test_nothing_has_an_empty_name() -> None:
    """Scales and zero points without a name in the source have an empty one."""
    grid = qfmt.Quantization.per_tensor(0.5, 0, "int8")
    found = Model(Graph((), (), (), {"w": Tensor.constant("w", np.zeros(1, np.int8), grid)}))
    assert found.graph.find("") is None and found.tensors.get("") is None
