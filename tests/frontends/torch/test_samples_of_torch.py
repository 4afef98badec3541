"""Every operator, on the inputs that PyTorch tests it with: traced, converted and run.

Operators that are not supported are refused. PyTorch's database has a few hundred operators, with views, empty tensors,
tensors without dimensions, negative axes and all element types.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils import _pytree as tree

import qfmt
from qfmt.errors import QfmtError
from support.counts import tell

pytest.importorskip("expecttest", reason="PyTorch's database of operators needs it")

OTHER_SUITES = ("_refs", "fft", "jiterator", "masked", "ops", "signal", "sparse", "special")
"""Names that begin so are of functions that trained networks do not call."""

UNDEFINED = ("topk",)
"""PyTorch leaves open which of equal elements comes first."""


class Called(torch.nn.Module):
    """One call of an operator, of which the tensors are the inputs."""

    def __init__(self, operator: Any, sample: Any) -> None:
        super().__init__()
        leaves, self.form = tree.tree_flatten((sample.input, *sample.args, sample.kwargs))
        self.operator, self.leaves = operator, leaves
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.leaves[place].clone() for place in self.places)

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [*self.leaves]
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        *args, kwargs = tree.tree_unflatten(leaves, self.form)
        return [each for each in tree.tree_leaves(self.operator(*args, **kwargs)) if isinstance(each, torch.Tensor)]


def calls(dtype: torch.dtype, most: int) -> Iterator[tuple[str, Called]]:
    """At most so many calls of each operator."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db:
        if dtype in operator.supported_dtypes("cpu") and not operator.name.startswith(OTHER_SUITES):
            torch.manual_seed(0)
            random.seed(0)
            for sample in islice(operator.sample_inputs_func(operator, "cpu", dtype, False), most):
                yield operator.name, Called(operator.op, sample)


def traced(call: Called, path: Path) -> list[torch.Tensor] | None:
    """The outputs of a call, which is traced and saved; None if PyTorch itself cannot, or they differ each time."""
    tensors = call.tensors()
    if not tensors or any(each.is_complex() or each.layout != torch.strided for each in tensors):
        return None
    try:
        expected, again = call(*call.tensors()), call(*call.tensors())
        torch.jit.save(torch.jit.trace(call, tensors, check_trace=False), str(path))
        is_real = expected and not any(each.is_complex() or each.is_quantized for each in expected)
        is_same = is_real and all(a.nan_to_num().equal(b.nan_to_num()) for a, b in zip(expected, again, strict=True))
    except (RuntimeError, TypeError, ValueError):  # NotImplementedError is a RuntimeError
        return None
    return expected if is_same else None


def in_numpy(x: torch.Tensor) -> Any:
    x = x.contiguous()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def is_close(ours: Any, theirs: Any) -> bool:
    """Integers are equal. Floats are within some units of the largest one: the order of sums is not defined."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if theirs.dtype.kind in "biu":
        return np.array_equal(ours, theirs)
    unit = float(max(ml_dtypes.finfo(theirs.dtype).eps, ml_dtypes.finfo(np.float32).eps))
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    largest = np.abs(b[np.isfinite(b)]).max(initial=0)
    return np.allclose(a, b, rtol=16 * unit, atol=16 * unit * largest, equal_nan=True)


def check(dtype: str, most: int, path: Path) -> None:
    counts, wrong = Counter[str](), list[str]()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of PyTorch, on its own samples
        for name, call in calls(getattr(torch, dtype), most):
            if (expected := traced(call, path)) is None:
                continue
            try:
                model = qfmt.convert(path)
                values = zip(model.graph.inputs, map(in_numpy, call.tensors()), strict=True)
                results = [*model.run(dict(values)).values()]
            except QfmtError:
                counts["refused"] += 1
                continue
            is_right = len(results) == len(expected) and all(map(is_close, results, map(in_numpy, expected)))
            counts["right" if is_right else "undefined" if name in UNDEFINED else "wrong"] += 1
            if not is_right and name not in UNDEFINED:
                wrong.append(f"{name}{[tuple(each.shape) for each in call.tensors()]}")
    tell(f"samples of PyTorch's operators of {dtype}: {dict(counts)}")
    assert not wrong and counts["right"] > counts["undefined"]


def test_a_sample_of_each_operator(tmp_path: Path) -> None:
    check("float32", 1, tmp_path / "m.pt")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_samples_of_each_operator(dtype: str, tmp_path: Path) -> None:
    check(dtype, 15, tmp_path / "m.pt")
