"""Models for tests of URLs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qfmt.model import Graph, Model, Tensor

MB = 1_000_000


def weights(count: int, nbytes: int) -> Model:
    """A model of constants with different bytes."""
    arrays = {f"w{index}": np.full(nbytes, index % 256, np.uint8) for index in range(count)}
    return Model(Graph((), (), (), {name: Tensor.constant(name, array) for name, array in arrays.items()}))


def content(model: Model, folder: Path) -> bytes:
    """The bytes of a model as a file."""
    model.save(folder / "model.qfb")
    return (folder / "model.qfb").read_bytes()
