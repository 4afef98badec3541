"""Assign observations to the tensors that were observed, and find the scales that a saved range results in, as
`torch.ao.quantization.observer` computes them.

An observer belongs to the output of a module (`activation_post_process`), or in FX to that of a node. It is assigned
to a tensor only if its range results in exactly the scale and zero point of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import SourceError
from ...model import Model, Node, Observed, Quantization, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


class Observation(NamedTuple):
    """An observation. `scope` is the module whose output was observed, "" for a function; `of` is the observed range,
    if it results in the scale and zero point of a tensor."""

    scope: str
    of: Callable[[Tensor], Observed | None]


def with_observations(
    model: Model, seen: Sequence[Observation], of_weight: Callable[[Tensor], Observed | None]
) -> Model:
    """The model with `observed` from the observations; SourceError if there are some, and none fits."""
    found = {name: observed for node in model.nodes for name, observed in _of_node(model, node, seen)}
    for tensor in model.graph.constants():
        if tensor.quantization is not None and (observed := of_weight(tensor)):
            found[tensor.name] = observed
    if model.no_graph:
        outputs = (tensor for tensor in model.tensors.values() if not tensor.is_constant)
        pairs = ((each.of(tensor), tensor.name) for tensor in outputs for each in seen if each.scope == tensor.name)
        found.update((name, observed) for observed, name in pairs if observed)
    if seen and not found:
        hint = "pass the same model that convert was called on, as it was after calibration"
        raise SourceError("no observer of the prepared model has the scales of the model", hint=hint)
    tensors = {name: _observed(tensor, found.get(name)) for name, tensor in model.tensors.items()}
    return model.replace(graph=replace(model.graph, tensors=tensors))


def no_observers(hint: str) -> SourceError:
    return SourceError("the prepared model has no observers", hint=hint)


def _observed(tensor: Tensor, observed: Observed | None) -> Tensor:
    if observed is None or tensor.quantization is None:
        return tensor
    return replace(tensor, quantization=replace(tensor.quantization, observed=observed))


def _of_node(model: Model, node: Node, seen: Sequence[Observation]) -> Iterator[tuple[str, Observed]]:
    """The observation of each output of a node, if it is unambiguous.

    An observer of the node's own module decides. Else the tensor has to be on a grid that none of the node's
    inputs has: nodes that only move values are not observed.
    """
    inputs = [model.tensors[name].quantization for name in node.inputs if name]
    for name in node.outputs:
        tensor = model.tensors[name]
        if tensor.quantization is None:
            continue
        fitting = [(each.scope, observed) for each in seen if (observed := each.of(tensor))]
        own = [observed for scope, observed in fitting if scope and scope == node.scope]
        if not own and not any(tensor.quantization.same_grid(grid) for grid in inputs):
            own = [observed for scope, observed in fitting if scope.rpartition(".")[0] == node.scope or not scope]
        if own and all(observed == own[0] for observed in own):
            yield name, own[0]


BINS = 1 << 14
"""The most bins of a histogram; PyTorch's have 2048."""

UNNAMED = "observer"
"""The name of an observer whose class is not known: a state_dict has only its numbers."""

_RANGES = {"uint8": ((0, 127), (0, 255)), "int8": ((-128, 127), (-127, 127), (-64, 63))}
"""The integers that PyTorch's configurations calibrate for, those of fbgemm (`reduce_range`) first."""

TOLERANCE = 1e-6
"""The tolerance between this formula and the fused kernel of fake quantizers; neighbouring ranges differ by 0.8 %."""


class Seen(NamedTuple):
    """The numbers of a saved observer: arrays of one element, or one per channel; the bins of a histogram, or 0."""

    low: Floats
    high: Floats
    bins: int = 0
    epsilon: float = float(np.finfo(np.float32).eps)
    """The least scale."""
    fused: bool | None = None
    """Whether it belongs to a fake quantizer with torch's fused kernel, or to another; None for an observer only."""

    def observed(self, quantization: Quantization, dtype: str) -> Observed | None:
        """The observed range if it results in these scales and zero points, with the integer range if only one fits;
        else None."""
        found = self.fitting(quantization, dtype)
        return self.described(*(found.pop() if len(found) == 1 else ())) if found else None

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a file may have any numbers
    def fitting(self, quantization: Quantization, dtype: str, tolerance: float = 0.0) -> set[tuple[int, int, str]]:
        """quant_min, quant_max and the scheme of each range of integers for which the observed range results in these
        scales and zero points."""
        scale, zero_point = np.asarray(quantization.scale, np.float32), np.asarray(quantization.zero_point)
        if scale.size != self.low.size or not np.isfinite(self.high - self.low).all():  # no observer has it
            return set()
        per = "per_tensor" if quantization.axis is None else "per_channel"
        found: set[tuple[int, int, str]] = set()
        for quant_min, quant_max in _RANGES.get(dtype, ()):
            for scheme, scales, points, least in self._candidates(scale, quant_min, quant_max, dtype):
                fits = (np.abs(scales - scale) <= tolerance * scale) & (points == zero_point)
                tells = (scales > least).any(axis=1) | (self.fused is None)  # the smallest scale fits every range
                if (fits.all(axis=1) & tells).any():
                    found.add((quant_min, quant_max, f"{per}_{scheme}"))
        return found

    def described(self, quant_min: int | None = None, quant_max: int | None = None, qscheme: str = "") -> Observed:
        name = "HistogramObserver" if self.bins else UNNAMED
        return Observed(name, tuple(self.low.tolist()), tuple(self.high.tolist()), quant_min, quant_max, qscheme)

    def _candidates(
        self, scale: Floats, quant_min: int, quant_max: int, dtype: str
    ) -> Iterator[tuple[str, Any, Any, Any]]:
        """(mapping, scales, zero points, least scale), one row for each range that may have given this scale."""
        zero, steps, epsilon = np.float32(0), np.float32(quant_max - quant_min), np.float32(self.epsilon)
        low, high = self._ranges(scale * steps) if self.bins else (self.low[None], self.high[None])
        lows, highs = np.minimum(low, zero), np.maximum(high, zero)
        if self.fused:
            yield "affine", *_fused(lows, highs, quant_min, quant_max, False)
            yield "symmetric", *_fused(lows, highs, quant_min, quant_max, True)
            return
        scales = np.maximum((highs - lows) / steps, epsilon)
        points = np.clip(quant_min - np.rint(lows / scales).astype(np.int64), quant_min, quant_max)
        yield "affine", scales, points, epsilon
        if self.bins:  # only the end that is farther from 0 counts
            lows, highs = np.minimum(self._edges, zero), np.maximum(self._edges, zero)
        scales = np.maximum(np.maximum(-lows, highs) / (steps / 2), epsilon)
        yield "symmetric", scales, np.full(scales.shape, 128 if dtype == "uint8" else 0), epsilon
        if self.fused is None and dtype == "int8":  # of a weight whose fake quantizer is gone
            yield "symmetric", *_fused(lows, highs, quant_min, quant_max, True)
        if self.fused is False and dtype == "uint8":  # of an observer that is given the range
            yield "symmetric", scales, np.full(scales.shape, (quant_min + quant_max) // 2), epsilon

    @property
    def _edges(self) -> Any:
        """The edges of the bins, as a column."""
        width = (self.high - self.low) / np.float32(self.bins)
        edges: Any = self.low + width * np.arange(self.bins + 1, dtype=np.float32)
        return edges[:, None]

    def _ranges(self, width: Floats) -> tuple[Floats, Floats]:
        """For each bin as the first: the range that starts there, contains 0, and is nearest to the width."""
        edges = self._edges
        ends = np.minimum(edges[:-1], 0) + width
        bin_width = np.maximum((self.high - self.low) / np.float32(self.bins), np.finfo(np.float32).tiny)
        last = np.clip(np.rint((ends - self.low) / bin_width), 0, self.bins).astype(np.int64)
        return edges[:-1], edges[last[:, 0]]


def _fused(lows: Floats, highs: Floats, quant_min: int, quant_max: int, symmetric: bool) -> tuple[Any, Any, Any]:
    """Scales, zero points and least scales of the fused kernel of fake quantizers (ATen's QuantUtils.h).

    Ranges of one sign are never symmetric, and small scales are cut off.
    """
    steps, half = np.float32(quant_max - quant_min), (quant_max - quant_min) // 2
    both = symmetric & (lows < 0) & (highs > 0)
    spread = np.maximum(-lows / np.float32(half + 1), highs / np.float32(half)) * np.float32((2 * half + 1) / steps)
    scales = np.where(both, spread, (highs - lows) / steps)
    none, small = np.float32(0.1), np.float32(6.1e-5)
    least = np.where(scales == 0, none, small)
    scales = np.where(scales == 0, none, scales)
    low, high = lows / scales, highs / scales
    is_nearer = abs(quant_min) - low < abs(quant_max) + high
    points = np.clip(np.rint(np.where(is_nearer, quant_min - low, quant_max - high)), quant_min, quant_max)
    return np.maximum(scales, small), np.where(both, np.rint((quant_min + quant_max) / 2), points), least
