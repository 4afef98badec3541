"""Converts ONNX models to files, and compares them with a witness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qfmt
from networks.onnx_models import operators, random_inputs, through_file
from qfmt.model import Model

from . import onnx_kernels
from .onnx_witness import runtime


def compare(
    source: onnx.ModelProto, folder: Path, *, steps: int = 0, share: float = 1.0, witness: Any = runtime, seeds: int = 3
) -> Model:
    """Compare all outputs, and return the model from the file: at least this share is equal, the others are up to
    `steps` off.

    If kernels of ONNX Runtime saturate, sums are those of the kernel that explains most outputs.
    """
    model = through_file(qfmt.convert(source), folder)
    equal = total = 0
    for seed in range(seeds):
        inputs = random_inputs(source, seed)
        wanted = dict(zip(model.graph.outputs, witness(source, inputs), strict=True))
        runs = (model.run(inputs), *onnx_kernels.saturated(model, inputs))
        got = max(runs, key=lambda run: sum(np.count_nonzero(run[name] == want) for name, want in wanted.items()))
        for value, want in zip(source.graph.output, wanted.values(), strict=True):
            y = got[value.name]
            assert (y.dtype, y.shape) == (want.dtype, want.shape), value.name
            same = (y == want) | (np.isnan(want) if want.dtype.kind == "f" else False)
            if want.dtype.kind == "f" and steps == 0 and share < 1:
                same |= np.isclose(y, want, rtol=1e-5, atol=1e-6)
            elif steps:
                assert np.abs(y.astype(np.float64) - want.astype(np.float64)).max() <= steps
            equal, total = equal + int(same.sum()), total + want.size
    print(f"{equal} of {total} outputs equal; {dict(operators(model))}")
    assert equal >= share * total
    return model
