"""Integer-only networks with torch's own operators: exact sums, integer rules, tables.

Sums are floats only if these represent every possible integer. No quantized tensors, no scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...arithmetic import FIXED_POINT
from ...errors import RunError
from ...model import DTYPES
from ...ops import OPERATORS, Operand
from ...ops.accumulation import as_stored, stored_zero
from .arithmetic import Grid, clamp
from .emit import PLAIN, Emitter, Lacks, Site, Table
from .products import (
    Weight,
    constant_weight,
    conv_sums,
    float_weight,
    held,
    linear_sums,
    torch_pads,
    wide_weight,
)
from .windows import Geometry

# Sums


def with_bias(total: Tensor, bias: Tensor | None) -> Tensor:
    """Convert to int32, which is proven to be wide enough."""
    wide = total.to(torch.int64)
    return (wide if bias is None else wide + bias).to(torch.int32)


def convolve(
    x: Tensor,
    weight: Tensor | Weight,
    bias: Tensor | None,
    zero: int,
    padding: int,
    geometry: Geometry,
    parts: int,
) -> Tensor:
    """Σ (x - zero) · w + b; pads are `padding`. Transposed: each x - zero adds a scaled kernel."""
    dense = weight.dense if isinstance(weight, Weight) else weight
    values, pads = x.to(dense.dtype) - zero, geometry.pads
    if padding and any(pads):
        values = functional.pad(values, torch_pads(pads), value=float(padding))
        geometry = geometry._replace(pads=[0] * len(pads))
    return with_bias(conv_sums(values, weight, geometry, parts), bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, zero: int) -> Tensor:
    """Σ (x - zero) · w + b over the last dimension."""
    return with_bias(linear_sums(x.to(weight.dtype) - zero, weight), bias)


def matmul(
    a: Tensor, b: Tensor, bias: Tensor | None, a_zero: int, b_zero: Tensor, turn_a: bool, turn_b: bool
) -> Tensor:
    """Σ (a - za) · (b - zb) + c, in float64; matrices are transposed first if stated."""
    left, right = a.double() - a_zero, b.double()
    left, right = left.t() if turn_a else left, right.t() if turn_b else right
    return with_bias(torch.matmul(left, right - b_zero), bias)


def multiply(a: Tensor, b: Tensor, a_zero: int, b_zero: int) -> Tensor:
    """(a - za) · (b - zb)"""
    return ((a.to(torch.int64) - a_zero) * (b.to(torch.int64) - b_zero)).to(torch.int32)


def total(x: Tensor, axes: list[int] | None, keepdims: bool, zero: int) -> Tensor:
    """Σ (x - zero) of the axes (None: the spatial ones)."""
    over = spatial(x) if axes is None else axes
    return (x.to(torch.int64) - zero).sum(over, keepdim=keepdims).to(torch.int32)


def spatial(x: Tensor) -> list[int]:
    """The spatial axes of an input whose rank may be unknown before; without any, torch would sum over all axes."""
    if x.dim() < 3:
        raise RunError(f"a pool over all spatial dimensions needs an input of rank 3 or more, not {x.dim()}")
    return list(range(2, x.dim()))


def _zero(s: Site, index: int) -> int:
    return 0 if s.node.rule == "folded" else stored_zero(s.tensor(index))


def _weight(s: Site) -> tuple[Any, Operand]:
    """The weight less its zero points, and the operand that determines the range of its factors."""
    weight, x = constant_weight(s)
    return weight, as_stored(x) if s.node.rule == "folded" else x


def _bias(s: Site, behind: int = 0) -> Any:
    """The bias in int64; `behind` is the number of dimensions after the channels."""
    if not s.has(2):
        return None
    if s.tensor(2).data is None:
        raise Lacks("has a bias that is not constant")
    array = s.tensor(2).array.astype(np.int64)
    return _derived(s, "bias", array.reshape(array.shape + (1,) * behind))


def _conv(s: Site) -> Any:
    geometry, folded = Geometry.of(s), s.node.rule == "folded"
    padding = stored_zero(s.tensor(0)) if folded else 0
    transposed = geometry.output_padding is not None
    weight, parts = float_weight(*_weight(s), geometry.group, transposed=transposed)
    given = (s.x(0), held(s, weight), _bias(s, len(geometry.strides)), _zero(s, 0), padding)
    return s.result(convolve, *given, geometry, parts)


def _linear(s: Site) -> Any:
    return s.result(linear, s.x(0), held(s, wide_weight(*_weight(s), (1,))), _bias(s), _zero(s, 0))


def _matmul(s: Site) -> Any:
    if any(DTYPES[s.tensor(index).dtype].bits > 8 for index in range(2)):
        raise Lacks("has sums that float64 may not represent")
    q = s.tensor(1).quantization
    points = np.array(0.0 if q is None or s.node.rule == "folded" else q.zero_point, np.float64)
    zero = _derived(s, "zero_point", points)
    turned = [bool(s.node.attributes.get(name)) for name in ("transA", "transB")]
    return s.result(matmul, s.x(0), s.x(1), _bias(s), _zero(s, 0), zero, *turned)


def _multiply(s: Site) -> Any:
    return s.result(multiply, s.x(0), s.x(1), _zero(s, 0), _zero(s, 1))


def _total(s: Site) -> Any:
    return s.result(total, s.x(0), *s.reduction(), _zero(s, 0))


# Requantize


def shifted(x: Tensor, multiplier: Tensor, above: Tensor, below: Tensor, shift: Tensor, grid: Grid) -> Tensor:
    """clamp(((x · m + added) >> shift) + z), where added is `above` if x ≥ 0, else `below`"""
    wide = x.to(torch.int64)
    added = above if below is above else torch.where(wide >= 0, above, below)
    return clamp(((wide * multiplier + added) >> shift) + grid.zero_point, grid)


def counted(x: Tensor, thresholds: Tensor, axis: int, low: int, dtype: torch.dtype) -> Tensor:
    """low + how many thresholds are not above x, by a row for all or one for each channel."""
    x = x.to(torch.int32) if x.dtype == torch.uint16 else x  # which searchsorted does not compare
    if thresholds.shape[0] == 1:
        return (torch.searchsorted(thresholds[0], x.contiguous(), right=True) + low).to(dtype)
    channels = x.movedim(axis, 0)
    found = torch.searchsorted(thresholds, channels.reshape(channels.shape[0], -1).contiguous(), right=True)
    return (found.reshape(channels.shape).movedim(0, axis) + low).to(dtype)


def chosen(has_row: Tensor, counts: Tensor, others: Tensor) -> Tensor:
    return torch.where(has_row, counts, others)


def _requantize(s: Site) -> Any:
    grid = s.out_grid
    if s.node.rule not in FIXED_POINT:
        return s.result(counted, *_rows(s)[0])
    shift = _numbers(s, 2)
    half = (np.int64(1) << shift) >> 1
    first = np.where(shift > 31, np.int64(1 << 30), np.int64(0)) if s.node.rule == "fixed_point_double" else 0
    added = _numbers(s, 3) if s.has(3) else half
    above = _derived(s, "above", added + first)
    below = _derived(s, "below", added - first) if np.any(first) else above
    multiplier = _derived(s, "multiplier", _numbers(s, 1) if s.has(1) else np.ones((), np.int64))
    given = (s.x(0), multiplier, above, below, _derived(s, "shift", shift), grid)
    if not s.has(4):
        return s.result(shifted, *given)
    rows, has_row = _rows(s)
    return s.result(chosen, _derived(s, "has_row", has_row), s.call(counted, *rows), s.call(shifted, *given))


def _rows(s: Site) -> tuple[tuple[Any, ...], Any]:
    """The arguments of `counted`, and which channels have a row, as that broadcasts."""
    table, grid = s.tensor(4).array, s.out_grid
    if not table.shape[1]:
        raise Lacks("has no threshold")
    row: Any = s.tensor(5).array if s.has(5) else np.arange(len(table))
    own = _derived(s, "thresholds", np.ascontiguousarray(table[np.maximum(row, 0)]))
    return (s.x(0), own, s.attribute("axis"), grid.minimum, grid.dtype), _along(s, row >= 0)


def _numbers(s: Site, index: int) -> Any:
    """A parameter in int64, as it broadcasts against x."""
    return _along(s, s.tensor(index).array.astype(np.int64))


def _along(s: Site, values: Any) -> Any:
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *(1,) * (s.rank() - 1 - s.attribute("axis")))


def _derived(s: Site, what: str, array: Any) -> Any:
    return s.derive(what, torch.from_numpy(np.array(array)))


# Tables and weighted sums


def look_up(table: Tensor, begins: Tensor | None, x: Tensor, lowest: int) -> Tensor:
    """table[q - lowest], with a separate row for each channel if there are `begins`."""
    index = x.to(torch.int64) - lowest
    return table[index] if begins is None else table.flatten()[index + begins]


def look_up_pair(table: Tensor, a: Tensor, b: Tensor, lowest: int, other: int) -> Tensor:
    """table[qa - lowest, qb - other]"""
    return table[a.to(torch.int64) - lowest, b.to(torch.int64) - other]


def weighted(inputs: list[Tensor], weights: list[int]) -> Tensor:
    """Σ weights[i] · q_i"""
    result = inputs[0].to(torch.int64) * weights[0]
    for x, weight in zip(inputs[1:], weights[1:], strict=True):
        result = result + x.to(torch.int64) * weight
    return result.to(torch.int32)


def _table(s: Site) -> Any:
    begins, axis = None, s.attribute("axis")
    if axis != -1:
        rows, size = s.tensor(1).array.shape
        starts = (np.arange(rows) * size).reshape(-1, *(1,) * (s.rank() - 1 - axis % s.rank()))
        begins = _derived(s, "begins", starts)
    return s.result(look_up, s.x(1), begins, s.x(0), DTYPES[s.tensor(0).dtype].minimum)


def _pair_table(s: Site) -> Any:
    lowest = [DTYPES[s.tensor(index).dtype].minimum for index in range(2)]
    return s.result(look_up_pair, s.x(2), s.x(0), s.x(1), *lowest)


def _weighted(s: Site) -> Any:
    return s.result(weighted, [s.x(index) for index in range(len(s.node.inputs))], s.attribute("weights"))


OF_SUMS: dict[str, Emitter] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "qfmt.Linear": _linear,
    "MatMul": _matmul,
    "Gemm": _matmul,
    "Mul": _multiply,
    "GlobalAveragePool": _total,
    "ReduceMean": _total,
}

EMITTERS: dict[str, Emitter] = {
    "qfmt.Requantize": _requantize,
    "qfmt.Table": _table,
    "qfmt.PairTable": _pair_table,
    "qfmt.WeightedSum": _weighted,
}


def _emitter(operator: str) -> Emitter | None:
    if operator not in OF_SUMS:
        return EMITTERS.get(operator)

    def emit(s: Site) -> Any:
        if s.node.rule not in OPERATORS[operator].sum_rules:
            raise Lacks("does not compute integer sums")
        return OF_SUMS[operator](s)

    return emit


INTEGERS = Table("integers", PLAIN, _emitter, any_grid=True)
