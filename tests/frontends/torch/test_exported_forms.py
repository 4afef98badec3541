"""Every form of `quantized_decomposed` in exported programs, called by hand: conversions compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import qfmt  # noqa: E402
from networks.decomposed import FORMS, Function, X, randn  # noqa: E402
from networks.pytorch import flat, quiet  # noqa: E402
from qfmt import Model  # noqa: E402


@quiet()
def exported(name: str) -> Any:
    return torch.export.export(Function(FORMS[name][0]).eval(), (X,))


def results(model: Model, x: Any) -> list[np.ndarray]:
    return list(model.run({model.graph.inputs[0]: x.numpy()}).values())


@pytest.mark.parametrize("name", FORMS)
@quiet()
def test_form_is_torchs(name: str) -> None:
    program = exported(name)
    model = qfmt.convert(program)
    expected = FORMS[name][1]
    if expected:
        assert {node.operator for node in model.nodes} == expected
    steps = equal = total = 0
    for seed in range(3):
        x = randn(4, 6, 16, seed=20 + seed) * (seed + 1)
        for mine, theirs in zip(results(model, x), flat(program.module()(x)), strict=True):
            array = theirs.detach().numpy()
            assert (mine.shape, mine.dtype) == (array.shape, array.dtype)
            near = np.isclose(mine, array, rtol=1e-5, atol=1e-6 * np.abs(array).max())
            equal, total, steps = equal + int((mine == array).sum()), total + mine.size, steps + int((~near).sum())
    print(f"{name}: {equal} of {total} equal, {steps} by a step")
    assert steps <= total / 1000
