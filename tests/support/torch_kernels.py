"""Compares our nodes with torch's own quantized kernels on the same integers, for each engine.

An output is equal, one step off at a rounding tie, or wrong. A tie is proven: the exact real value (computed in
float64) is within a few float32 roundings of the middle between the two integers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from qfmt.interpreter import execute
from qfmt.model import DTYPES, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand

from .counts import OUTPUTS, tell

ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")
f32 = np.float32

ROUNDINGS = 8
"""The maximum distance of a value from a tie, in float32 roundings of half a unit in the last place."""


class Comparison(NamedTuple):
    """Our and torch's integers, the exact value in steps of the output, and the largest term of its computation."""

    ours: np.ndarray
    theirs: np.ndarray
    exact: np.ndarray
    magnitude: np.ndarray


class Tally:
    """Counts of outputs: equal, at a tie, wrong."""

    def __init__(self) -> None:
        self.equal = self.tie = self.wrong = 0

    def add(self, found: Comparison) -> None:
        ours, theirs = found.ours.astype(np.int64), found.theirs.astype(np.int64)
        assert ours.shape == theirs.shape
        middle = np.minimum(ours, theirs) + 0.5
        near = np.abs(found.exact - middle) <= ROUNDINGS * 2.0**-24 * found.magnitude
        tie = (np.abs(ours - theirs) == 1) & near
        equal, ties = int((ours == theirs).sum()), int(tie.sum())
        self.equal += equal
        self.tie += ties
        OUTPUTS.update(equal=equal, tied=ties)
        self.wrong += int(((ours != theirs) & ~tie).sum())


LEDGER: dict[tuple[str, str], Tally] = defaultdict(Tally)


def printed_ledger() -> Iterator[None]:
    """For a module fixture: tests run torch in one thread, and the counts are printed at the end."""
    threads, engine = torch.get_num_threads(), torch.backends.quantized.engine
    torch.set_num_threads(1)  # more threads split a tensor into parts, each with a remainder
    yield
    torch.set_num_threads(threads)
    torch.backends.quantized.engine = engine
    rows = [f"{'operator':34}{'engine':9}{'equal':>10}{'tie':>7}{'wrong':>7}"]
    rows += [f"{name:34}{engine:9}{t.equal:10}{t.tie:7}{t.wrong:7}" for (name, engine), t in sorted(LEDGER.items())]
    LEDGER.clear()
    tell(*rows)


# Operands for both


def grid(scale: float, zero_point: int, dtype: str, *, relu: bool = False) -> Quantization:
    return Quantization.per_tensor(float(f32(scale)), zero_point, dtype, quant_min=zero_point if relu else None)


def any_grid(rng: np.random.Generator, dtype: str, low: float = -3, high: float = -0.5) -> Quantization:
    """A scale between 10**low and 10**high, or a round one, which makes ties frequent; any zero point."""
    scale = 10 ** rng.uniform(low, high) if rng.random() < 0.5 else rng.choice([0.02, 0.03, 0.05, 0.06, 0.1, 1 / 64])
    limits = DTYPES[dtype]
    return grid(scale, int(rng.integers(limits.minimum, limits.maximum + 1)), dtype)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(DTYPES[dtype].minimum, DTYPES[dtype].maximum + 1, shape).astype(dtype)


def to_torch(array: np.ndarray, q: Quantization) -> torch.Tensor:
    values = torch.from_numpy(np.ascontiguousarray(array))
    if q.axis is None:
        return torch._make_per_tensor_quantized_tensor(values, q.scale[0], q.zero_point[0])
    scales, zero_points = torch.tensor(q.scale, dtype=torch.float64), torch.tensor(q.each_zero_point)
    return torch._make_per_channel_quantized_tensor(values, scales, zero_points, q.axis)


def compare(
    operator: str,
    operands: list[tuple[np.ndarray, Quantization | None] | None],
    theirs: torch.Tensor,
    rule: str,
    *,
    relu: bool = False,
    **attributes: Any,
) -> Comparison:
    """Run our node on the operands, with the quantization of torch's result."""
    entry = OPERATORS[operator]
    dtype = theirs.int_repr().numpy().dtype.name
    output = grid(theirs.q_scale(), theirs.q_zero_point(), dtype, relu=relu)
    assert rule in entry.rules or (not rule and not entry.rules)
    names = tuple("" if each is None else f"x{i}" for i, each in enumerate(operands))
    node = Node(operator, names, ("y",), entry.complete(attributes), version=entry.version, rule=rule)
    given = [None if each is None else Operand(np.asarray(each[0]), each[1]) for each in operands]
    (ours,) = execute(node, given, [Tensor("y", dtype, None, None, output)])

    real = [None if each is None else _float64(*each) for each in operands]
    real += [None] * (len([p for p in entry.inputs if not p.variadic]) - len(real))
    with np.errstate(all="ignore"):
        value = np.asarray(entry.reference(*real, **node.attributes), np.float64)
    scale = float(f32(output.scale[0]))
    terms = sum(np.abs(x) for x in real) / scale if operator == "Add" else 0.0  # terms that may cancel
    exact = value / scale + output.zero_point[0]
    return Comparison(ours, theirs.int_repr().numpy(), exact, 256 + np.abs(exact) + terms)


def _float64(array: np.ndarray, q: Quantization | None) -> np.ndarray:
    if q is None:
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    scales = q.scales(array.shape).astype(f32).astype(np.float64)
    return (array.astype(np.float64) - q.zero_points(array.shape)) * scales


def rule_of(operator: str, engine: str) -> str:
    return OPERATORS[operator].engines[engine]


def check(name: str, engine: str, found: Iterator[Comparison], *, strict: bool = False, at_least: int = 0) -> None:
    tally = LEDGER[name, engine]
    for comparison in found:
        tally.add(comparison)
    assert tally.wrong == 0
    assert not strict or tally.tie == 0
    assert tally.equal + tally.tie >= at_least
