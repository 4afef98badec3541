"""Sums of many elements, and of types whose sums are not float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qfmt.interpreter import execute
from qfmt.model import Node, Tensor
from qfmt.ops import OPERATORS, Operand


def run(name: str, x: np.ndarray[Any, Any], *others: np.ndarray[Any, Any], **attributes: Any) -> Any:
    entry, given = OPERATORS[name], [Operand(each, None) for each in (x, *others)]
    names = tuple(f"x{index}" for index in range(len(given)))
    node = Node(name, names, ("y",), entry.complete(attributes), version=entry.version)
    return execute(node, given, [Tensor("y", x.dtype.name, None)])[0]


@pytest.mark.parametrize(("axes", "shape"), [([1, 2], (1, 512, 512, 3)), ([0], (1 << 18, 3)), ([1], (3, 1 << 18))])
def test_the_mean_of_equal_numbers_is_that_number(axes: list[int], shape: tuple[int, ...]) -> None:
    white = np.full(shape, 5.1, np.float32)
    assert (run("ReduceMean", white, np.array(axes), keepdims=0) == np.float32(5.1)).all()
    total = np.float32(np.float64(np.float32(5.1)) * 512 * 512)
    assert (run("ReduceSum", white, np.array(axes), keepdims=0) == total).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint8"])
def test_means_of_integers_are_exact(dtype: str) -> None:
    """Rounded towards zero, also where float64 cannot represent them."""
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min // 8, limits.max // 8, (5, 7), dtype, endpoint=True)
    sums = [sum(map(int, row)) for row in x]
    expected = [abs(each) // 7 * (1 if each >= 0 else -1) for each in sums]
    assert run("ReduceMean", x, np.array([1]), keepdims=0).tolist() == expected


def test_a_pool_of_bools_is_true_where_one_is() -> None:
    x = np.array([[[False, False, True, False]]])
    window = {"kernel_shape": (2,), "strides": (2,), "pads": (0, 0), "dilations": (1,)}
    assert run("MaxPool", x, **window).tolist() == [[[False, True]]]
