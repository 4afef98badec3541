"""The behaviour of torch's kernels on this processor, found by running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from engine_sums import EXACT, ORDERS, first_order
from networks import pytorch
from qfmt import interpreter
from qfmt.arithmetic import fma
from qfmt.model import Model, Node
from qfmt.ops.overflow import PairSums, computed_by
from torch_products import convolution, products

from . import counts

f32 = np.float32


def trace(
    model: Model, inputs: Mapping[str, ArrayLike], values: dict[str, np.ndarray], engine: str = ""
) -> Iterator[Node]:
    """Run as the interpreter does, but with the sums of the engine's kernel on this processor; default: torch's
    engine."""
    engine, steps = engine or torch.backends.quantized.engine, interpreter.trace(model, inputs, values)
    for node in model.nodes:
        with computed_by(kernel(engine, *_form(model, node))):
            next(steps)
        yield node


def run(model: Model, inputs: Mapping[str, ArrayLike], engine: str = "") -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = {}
    for _ in trace(model, inputs, values, engine):
        pass
    return {name: values[name] for name in model.graph.outputs}


def as_computed_here(engine: str) -> AbstractContextManager[None]:
    """A context in which sums of matrix products are those of the engine's kernel."""
    return computed_by(kernel(engine, LINEAR, ()))


LINEAR = "DynamicLinear, 301 features"
"""The number of features is large, so that kernels sum them in parts."""


@cache
def kernel(engine: str, operator: str, form: tuple[Any, ...]) -> PairSums | None:
    """The order that reproduces the engine's sums; None if they are exact, or torch is wrong in another way."""
    if operator == LINEAR:
        (product,) = (each for each in products() if (each.row, each.column) == (operator, engine))
    else:
        shape, window = form
        product = convolution(engine, operator, shape, dict(window))
    found = ORDERS[first_order(product) or EXACT]
    if operator == LINEAR:
        counts.ENGINES[engine] = found is not None
    return None if found is None else Counted(found.channels_last, found.fill, found.halves)


class Counted(PairSums):
    """Counts the sums that saturate."""

    def apply(self, exact: np.ndarray, found: np.ndarray) -> np.ndarray:
        counts.OUTPUTS["saturated"] += int(np.count_nonzero(found))
        return super().apply(exact, found)


def _form(model: Model, node: Node) -> tuple[str, tuple[Any, ...]]:
    """The operator of a node, and for convolutions the shape of the weight and attributes; few filters are
    enough."""
    operator = node.operator.removeprefix("qfmt.Dynamic")
    if operator not in ("Conv", "ConvTranspose"):
        return LINEAR, ()
    shape, group = list(model.tensors[node.inputs[1]].shape), node.attributes["group"]
    if group == 1 and operator == "Conv":
        shape[0] = min(shape[0], 16)
    window = {key: value for key, value in node.attributes.items() if key != "reduce_range"}
    return operator, (tuple(shape), tuple(sorted(window.items())))


# float16 weights: float32 sums, in the order of fbgemm's kernels


def half_linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """qfmt.Linear, with each row of X summed in the order of its kernel on this processor; up to 512 columns.

    Without AVX-512, kernels of 1 and 2 rows have 4 and 2 sums: column k is added to sum (k - 1) mod n while more
    than four columns are left; the others are added to the first sum.
    """
    rows, columns = x.reshape(-1, x.shape[-1]), w.astype(f32)
    y = np.zeros((len(rows), len(w)), f32)
    kinds = np.array(sums_of_rows(len(rows)))
    for count in set(kinds.tolist()):
        y[kinds == count] = _in_order(rows[kinds == count], columns, count)
    y = y.reshape(*x.shape[:-1], len(w))
    return y if b is None else y + b


def _in_order(x: np.ndarray, w: np.ndarray, count: int) -> np.ndarray:
    size = x.shape[1]
    spread = 0 if count == 1 else 1 + max(0, size - 2) // 4 * 4
    sums = [np.zeros((len(x), len(w)), f32)] * count
    for k in range(size):
        at = (k - 1) % count if 0 < k < spread else 0
        sums[at] = fma(x[:, k, None], w[:, k], sums[at])
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total


@cache
def sums_of_rows(rows: int) -> tuple[int, ...]:
    """The number of sums that fbgemm's kernel has for each row of a product.

    The first column, and the sixth, which is added to the same sum, are so large that they absorb columns in
    between.
    """
    x = np.ones((rows, 8), f32)
    x[:, 0], x[:, 5] = 2.0**30, -(2.0**30)
    with pytorch.quiet():
        packed = torch.ops.quantized.linear_prepack_fp16(torch.ones(1, 8), None)
        kept = torch.ops.quantized.linear_dynamic_fp16(torch.from_numpy(x), packed)[:, 0]
    return tuple({2.0: 1, 4.0: 2, 5.0: 4}[each] for each in kept.tolist())
