"""Activations and softmaxes of float16 and bfloat16 are computed in float32 and rounded once, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from qfmt.interpreter import execute
from qfmt.model import Node, Tensor
from qfmt.ops import OPERATORS, Operand
from support.counts import tell

TYPES = {"float16": (torch.float16, np.float16), "bfloat16": (torch.bfloat16, ml_dtypes.bfloat16)}
CASES: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "HardSigmoid": ({"alpha": 1 / 6, "beta": 0.5}, functional.hardsigmoid),
    "HardSwish": ({}, functional.hardswish),
    "LeakyRelu": ({"alpha": 0.3}, lambda x: functional.leaky_relu(x, 0.3)),
    "Sigmoid": ({}, torch.sigmoid),
    "Mish": ({}, functional.mish),
    "Softmax": ({"axis": 1}, lambda x: torch.softmax(x, 1)),
}
EXPONENTIALS = ("Sigmoid", "Mish", "Softmax")
"""exp may differ in the last bit of a float32, and the result then by one place of 16 bits."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_gives_what_torch_computes(dtype: str, name: str) -> None:
    kind, own = TYPES[dtype]
    codes = np.arange(1 << 16, dtype=np.uint16).reshape(512, 128)
    codes = np.where(np.isfinite(codes.view(own).astype(np.float32)), codes, 0).astype(np.uint16)
    attributes, function = CASES[name]
    entry = OPERATORS[name]
    node = Node(name, ("x",), ("y",), entry.complete(attributes), version=entry.version)
    (ours,) = execute(node, [Operand(codes.view(own), None)], [Tensor("y", dtype, codes.shape)])
    theirs = function(torch.from_numpy(codes.view(np.int16)).view(kind)).view(torch.int16).numpy()
    steps = np.abs(_ordered(ours.view(np.int16)) - _ordered(theirs))
    tell(f"{name} of {dtype}: {np.count_nonzero(steps == 0):,} of {steps.size:,} outputs are equal to torch's")
    assert steps.max() <= (name in EXPONENTIALS)


def _ordered(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Codes of floats as integers in the order of the numbers; -0 is 0."""
    wide = codes.astype(np.int64)
    return np.where(wide < 0, -(wide & 0x7FFF), wide)
