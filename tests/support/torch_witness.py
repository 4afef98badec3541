"""torch as a witness: compares every step that it computed with the reference, node by node.

torch itself may round ties either way (depending on the position in a block of 64 and the memory layout), and one
such difference affects all later nodes. So each of our nodes gets torch's integers as inputs, and every output is in
one of three classes: equal, one step off at a rounding tie, wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from networks import pytorch
from qfmt.compare.classes import rounding_ties
from qfmt.model import Model, Node, Quantization
from qfmt.ops import OPERATORS, Operand, Quantized

from . import processor
from .counts import OUTPUTS

ROUNDED = (Quantized.COMPUTES, Quantized.ACCUMULATES, Quantized.OWN)

FLOAT_TOLERANCE = 2e-5
"""Tolerance for float32 sums in another order, relative to the largest value."""


@dataclass(frozen=True)
class Seen:
    """A tensor that torch computed: integers with scale and zero point, or floats without."""

    array: np.ndarray
    scale: float | None
    zero_point: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Seen:
        if tensor.is_quantized:
            return cls(tensor.int_repr().numpy().copy(), tensor.q_scale(), tensor.q_zero_point())
        return cls(tensor.numpy().copy(), None, None)

    def fits(self, array: np.ndarray, quantization: Quantization | None) -> bool:
        if (self.array.shape, self.array.dtype) != (array.shape, array.dtype):
            return False
        if quantization is None or self.scale is None:
            return quantization is None and self.scale is None
        return (np.float32(quantization.scale[0]), quantization.zero_point[0]) == (
            np.float32(self.scale),
            self.zero_point,
        )


class Record(TorchDispatchMode):
    """Records every tensor that an operator returns while this mode is active, also inside TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and (not tensor.is_quantized or _is_per_tensor(tensor)):
                self.seen.append(Seen.of(tensor))
        return result


def _is_per_tensor(tensor: torch.Tensor) -> bool:
    return tensor.qscheme() == torch.per_tensor_affine


def observe(model: torch.nn.Module, inputs: pytorch.Inputs) -> tuple[list[np.ndarray], list[Seen]]:
    """The outputs of `model` (quantized ones as integers), and all intermediate tensors."""
    record = Record()
    with torch.no_grad(), pytorch.quiet(), record:
        outputs = model(*inputs)
    return [Seen.of(tensor).array for tensor in pytorch.flat(outputs)], record.seen


@dataclass
class Tally:
    """Counts of output elements per operator; `close` are floats within the tolerance, `inexact` those not equal.

    `lost` are nodes without a corresponding tensor of torch, `faults` describes errors.
    """

    equal: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tie: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wrong: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    close: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    inexact: int = 0
    lost: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{'operator':28}{'equal':>10}{'tie':>7}{'wrong':>7}{'float close':>13}"]
        for name in sorted({*self.equal, *self.tie, *self.wrong, *self.close}):
            counts = f"{self.equal[name]:10}{self.tie[name]:7}{self.wrong[name]:7}{self.close[name]:13}"
            rows.append(f"{name:28}{counts}")
        return "\n".join([*rows, *(f"lost: {place}" for place in self.lost), *self.faults])

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.faults

    @property
    def is_exact(self) -> bool:
        """Whether every node equals torch, so that the whole network must, too."""
        return self.is_good and not any(self.tie.values()) and not self.inexact


def compare(model: Model, inputs: Mapping[str, np.ndarray], seen: list[Seen], tally: Tally) -> Tally:
    """Run `model` node by node on torch's inputs of each node, and count in `tally`."""
    values: dict[str, np.ndarray] = {}
    given = {name: np.asarray(array) for name, array in inputs.items()}
    nodes = list(model.nodes)
    for index, node in enumerate(processor.trace(model, inputs, values)):
        for name in node.outputs:
            theirs = _nearest(values[name], model.tensors[name].quantization, seen)
            if theirs is not None:
                _count(model, node, name, values[name], theirs, given, tally)
                values[name] = theirs
            elif _must_be_known(node, values[name]) and not _is_within_a_call(nodes, index):
                tally.lost.append(f"{node.operator} {name} of {node.source_operator}")
            given[name] = values[name]
    return tally


def _nearest(mine: np.ndarray, quantization: Quantization | None, seen: list[Seen]) -> np.ndarray | None:
    """The corresponding tensor of torch: same form, and more than half of the elements are equal."""
    best, least = None, (0.5, 0.0)
    for each in seen:
        if each.fits(mine, quantization):
            difference = _difference(mine, each.array)
            if difference < least:
                best, least = each.array, difference
    return best


def _difference(mine: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The difference of two arrays: first the number of differing elements (floats: clearly), then the distance."""
    if mine.dtype.kind != "f":
        return float(np.mean(mine != theirs)), 0.0
    clearly = ~np.isclose(mine, theirs, rtol=1e-3, atol=1e-3, equal_nan=True)
    with np.errstate(invalid="ignore"):
        return float(np.mean(clearly)), float(np.abs(mine - theirs).max(initial=0))


def _must_be_known(node: Node, array: np.ndarray) -> bool:
    """Whether torch must have a tensor for a node: not for sizes (int64), nor for moves, which may be views."""
    return OPERATORS[node.operator].quantized in ROUNDED and array.dtype != np.int64


def _is_within_a_call(nodes: list[Node], index: int) -> bool:
    """Whether the node is one of those that a call of the source became, but not the last."""
    made = nodes[index]
    following = nodes[index + 1 : index + 2]
    return any(
        node.source_operator == made.source_operator and set(made.outputs) & set(node.inputs) for node in following
    )


def _count(
    model: Model,
    node: Node,
    name: str,
    mine: np.ndarray,
    theirs: np.ndarray,
    given: Mapping[str, np.ndarray],
    tally: Tally,
) -> None:
    if mine.dtype.kind == "f":
        limit = FLOAT_TOLERANCE * max(1.0, float(np.abs(theirs).max(initial=0)))
        off = ~np.isclose(mine, theirs, rtol=0, atol=limit, equal_nan=True)
        tally.close[node.operator] += int((~off).sum())
        tally.inexact += int((mine != theirs).sum())
    else:
        off = mine != theirs
        tally.equal[node.operator] += int((~off).sum())
        OUTPUTS["equal"] += int((~off).sum())
        if off.any():
            operands = [_operand(model, each, given) for each in node.inputs]
            halves = (mine.astype(np.float64) + theirs) / 2
            ties = off & (np.abs(mine.astype(np.int64) - theirs) == 1)
            ties &= rounding_ties(node, operands, model.tensors[name], halves)
            tally.tie[node.operator] += int(ties.sum())
            OUTPUTS["tied"] += int(ties.sum())
            off &= ~ties
    if off.any():
        tally.wrong[node.operator] += int(off.sum())
        where = tuple(int(i) for i in np.argwhere(off)[0])
        tally.faults.append(
            f"wrong: {node.operator} {name} of {node.source_operator}: {off.sum()} of {off.size} differ, "
            f"at {where} ours {mine[where]}, torch {theirs[where]}"
        )


def _operand(model: Model, name: str, given: Mapping[str, np.ndarray]) -> Operand | None:
    if not name:
        return None
    tensor = model.tensors[name]
    return Operand(tensor.array if tensor.is_constant else given[name], tensor.quantization)
