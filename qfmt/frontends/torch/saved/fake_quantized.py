"""Fake quantizers in the state_dict of a network in quantization-aware training, joined with the quantized tensors.

`conv.weight` becomes the integers that the network computes with in training: `clamp(rint(w / scale) + zero_point)`
with the reciprocal of the scale, as in `torch.fake_quantize_per_channel_affine`. The output of `conv` becomes a
tensor `conv` without data on the grid of `conv.activation_post_process`.

The file does not state the range of the integers. It is taken from the observer: a scale was computed from the observed
range for one of them. If none of 8 bits fits, nothing is joined, and the tensors of the fake quantizer are kept. So are
those of a weight that is scaled by a batch norm before it is quantized: it stays a float tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ....arrays import DTYPES
from ....budget import Budget
from ....model import Data, Quantization, Tensor
from ...stored import StoredTensor
from ..observations import BINS, TOLERANCE, Seen

if TYPE_CHECKING:
    from .tensors import Entry

WEIGHT, OUTPUT = "weight_fake_quant", "activation_post_process"
INNER = "activation_post_process"
"""The observer in a fake quantizer."""

_STATE = ("scale", "zero_point", "fake_quant_enabled", "observer_enabled", f"{INNER}.eps", f"{INNER}.min_val",
          f"{INNER}.max_val")  # fmt: skip

FIXED = ((1 / 256, 0), (2 / 256, 128))
"""Scales and zero points of FixedQParamsFakeQuantize, which observes nothing: of a sigmoid, and of a tanh."""

Tensors = Mapping[str, StoredTensor]


class _State:
    """The tensors of a state_dict; small ones are read as numbers, charged to a budget."""

    def __init__(self, tensors: Tensors, budget: Budget) -> None:
        self.tensors = tensors
        self.budget = budget

    def is_normed(self, module: str) -> bool:
        """Whether a module scales its weight by a batch norm; before PyTorch 1.6, that was not a module of its own."""
        parts = "bn.weight", "bn.running_var", "gamma", "running_var"
        return any(f"{module}.{part}" in self.tensors for part in parts)

    def numbers(self, name: str, *dtypes: str) -> np.ndarray | None:
        """A tensor of this name and one of these types as one row; None if there is none, or it is empty."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.dtype not in dtypes or len(tensor.shape) > 1 or prod(tensor.shape) == 0:
            return None
        self.budget.hold(prod(tensor.shape))
        return tensor.array().reshape(-1)


def joined(entries: Sequence[Entry], budget: Budget) -> list[Entry]:
    """The entries, with those of fake quantizers merged into the tensors that they quantize."""
    state = _State({each.name: each.value for each in entries if isinstance(each.value, StoredTensor)}, budget)
    quantizers = [name.removesuffix(".scale") for name in state.tensors if name.endswith(".scale")]
    made = {tensor.name: tensor for quantizer in quantizers if (tensor := _quantized(quantizer, state)) is not None}
    used = {alias for tensor in made.values() for alias in tensor.aliases}
    gone = {f"{name}.{part}" for name in used for part in _STATE} | made.keys()
    kept = [entry for entry in entries if entry.name not in gone]
    aliases = {entry.name: entry.aliases for entry in entries}
    return kept + [
        entries[0]._replace(name=name, value=tensor, aliases=(*aliases.get(name, ()), *tensor.aliases))
        for name, tensor in made.items()
    ]


def _quantized(quantizer: str, state: _State) -> Tensor | None:
    """The tensors of one fake quantizer; None if it is not one, is switched off, or was never calibrated."""
    module, _, last = quantizer.rpartition(".")
    enabled = state.numbers(f"{quantizer}.fake_quant_enabled", "int64", "uint8")
    scale = state.numbers(f"{quantizer}.scale", "float32")
    zero_point = state.numbers(f"{quantizer}.zero_point", "int32", "int64")
    if enabled is None or scale is None or zero_point is None or scale.shape != zero_point.shape:
        return None
    if not enabled.any() or not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    if last == WEIGHT:
        name, weight = f"{module}.weight", state.tensors.get(f"{module}.weight")
        if weight is None or weight.dtype != "float32" or state.is_normed(module):
            return None
        if scale.size > 1 and (weight.shape[:1] != scale.shape or _is_along_inputs(weight, quantizer, state)):
            return None
        for dtype in "int8", "uint8":
            if grid := _grid(scale, zero_point, dtype, None if scale.size == 1 else 0, quantizer, state):
                state.budget.allocate(prod(weight.shape))  # many names may share a weight
                return Tensor(name, dtype, weight.shape, Integers(weight, grid, np.dtype(dtype)), grid, (quantizer,))
        return None
    if not last.startswith(OUTPUT) or scale.size > 1:
        return None
    name = module if last == OUTPUT and module and module not in state.tensors else quantizer
    for dtype in "uint8", "int8":
        if grid := _grid(scale, zero_point, dtype, None, quantizer, state):
            return Tensor(name, dtype, None, None, grid, (quantizer,))
    return None


def _is_along_inputs(weight: StoredTensor, quantizer: str, state: _State) -> bool:
    """Whether observed channels are rather those of the second axis, as of a transposed convolution, than of the first.

    The weight may have changed since it was observed. torch itself observes matrices along the first axis only.
    """
    if len(weight.shape) < 2 or weight.shape[0] != weight.shape[1] or not prod(weight.shape):
        return False
    highs = state.numbers(f"{quantizer}.{INNER}.max_val", "float32")
    if highs is None or highs.shape != weight.shape[:1]:
        return False
    state.budget.allocate(4 * prod(weight.shape))
    array = weight.array()
    first, second = (array.max(axis=(1 - axis, *range(2, array.ndim))) for axis in (0, 1))
    margin = 4 if array.ndim == 2 else 1
    return bool(margin * np.abs(second - highs).sum() < np.abs(first - highs).sum())


def _grid(
    scale: np.ndarray, zero_point: np.ndarray, dtype: str, axis: int | None, quantizer: str, state: _State
) -> Quantization | None:
    """The quantization, with the range of the observer in the quantizer; None if that does not result in these scales
    for any integers of this type."""
    limits = DTYPES[dtype]
    if not ((limits.minimum <= zero_point) & (zero_point <= limits.maximum)).all():
        return None
    numbers = tuple(scale.tolist()), tuple(zero_point.tolist())
    grid = Quantization.of(*numbers, limits.minimum, limits.maximum, axis, "float32")
    low, high, eps, fixed = (
        state.numbers(f"{quantizer}.{INNER}.{name}", "float32") for name in ("min_val", "max_val", "eps", "scale")
    )
    if fixed is not None and dtype == "uint8" and (*grid.scale, *grid.zero_point) in FIXED:
        return grid
    if low is None or high is None or low.shape != high.shape or low.size not in (1, scale.size):
        return None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        return None
    histogram = state.tensors.get(f"{quantizer}.{INNER}.histogram")
    bins = prod(histogram.shape) if histogram is not None and low.size == 1 else 0
    state.budget.spend(bins)  # names may share a histogram
    if bins > BINS:
        return None
    fused = state.tensors[f"{quantizer}.fake_quant_enabled"].dtype == "int64"  # others have uint8
    seen = Seen(low, high, bins, fused=fused)
    seen = seen if eps is None else seen._replace(epsilon=float(eps[0]))
    fitting = seen.fitting(grid, dtype, TOLERANCE)
    if not fitting:
        return None
    least, most = min(low for low, _, _ in fitting), max(high for _, high, _ in fitting)
    observed = seen.described(*(fitting.pop() if len(fitting) == 1 else ()))
    return replace(grid, quant_min=least, quant_max=most, observed=observed)


class Integers(Data):
    """A float weight quantized by a fake quantizer, computed on demand."""

    __slots__ = ("_dtype", "_grid", "_weight")

    def __init__(self, weight: StoredTensor, grid: Quantization, dtype: np.dtype[Any]) -> None:
        self._weight = weight
        self._grid = grid
        self._dtype = dtype
        self.nbytes = prod(weight.shape)

    def view(self) -> memoryview:
        grid, weight = self._grid, self._weight.array()
        spread = (-1, *(1 for _ in weight.shape[1:])) if grid.axis is not None else ()
        zero_point = np.asarray(grid.zero_point, np.float32).reshape(spread)
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = (np.float32(1) / np.asarray(grid.scale, np.float32)).reshape(spread)
            rounded = np.rint(weight * inverse) + zero_point
        integers = np.clip(np.nan_to_num(rounded, nan=grid.quant_min), grid.quant_min, grid.quant_max)
        return np.ascontiguousarray(integers.astype(self._dtype)).reshape(-1).view(np.uint8).data.toreadonly()
