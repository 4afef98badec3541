"""Linear layers that quantize their input at run time, bit for bit as `Model.run` computes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...arithmetic import EXACT_IN_FLOAT32
from ...errors import RunError
from ...model import DTYPES, INT32
from ...ops.accumulation import EXACT_IN_FLOAT64
from .arithmetic import DYNAMIC, QUANTIZE
from .emit import Lacks, Site
from .processor import multiplies_int8
from .products import sum_dtype


def dynamic_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    weight_sums: Tensor | None,
    bias: Tensor | None,
    rule: str,
    top: int,
    per_token: bool,
    exact: torch.dtype,
    where: str,
) -> Tensor:
    """As qfmt.DynamicLinear by `rule`, with the range of x, or of each of its rows, on 0..top.

    Sums are exact in the type `exact`: int8 means products of int8 summed as int32, and uint8 is shifted to it by
    128 with the `weight_sums`, Σ w of each output. Raises RunError if x contains NaN or infinity.
    """
    if not x.numel():
        return x.new_zeros(*x.shape[:-1], weight.shape[0])
    rows, dynamic = x.reshape(-1, x.shape[-1]), DYNAMIC[rule]
    over = [-1] if per_token else [0, 1]
    low, high = rows.amin(over, keepdim=True).clamp_max(0), rows.amax(over, keepdim=True).clamp_min(0)
    if not torch.compiler.is_compiling() and not (high.double() - low.double()).isfinite().all():
        raise RunError("cannot quantize NaN or infinity: the range is undefined", where=where)
    scale, zero_point = dynamic.parameters(low, high, top)
    least, most = (-((top + 1) // 2), top // 2) if dynamic.is_signed else (0, 255)
    q = QUANTIZE[dynamic.quantize](rows, scale.float(), zero_point.float()).clamp(least, most)
    if exact == torch.int8:
        shift = 0 if weight_sums is None else 128
        acc = torch._int_mm((q - shift).to(torch.int8), weight.t())
        if weight_sums is not None:
            acc = acc + (shift - zero_point).to(torch.int32) * weight_sums
    else:
        kind, points = sum_dtype(exact), weight_zero_point[:, None] if weight_zero_point.dim() else weight_zero_point
        acc = functional.linear((q - zero_point).to(kind), weight.to(kind) - points.to(kind))
    addend = acc.new_zeros((), dtype=torch.float32) if bias is None else bias
    y: Tensor = dynamic.real(acc.float(), addend, scale, weight_scale)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def dynamic_linear_by_rule(s: Site) -> Any:
    """qfmt.DynamicLinear with a constant weight and a float bias."""
    x, w, rule = s.tensor(0), s.tensor(1), s.node.rule
    q = w.quantization
    if rule not in DYNAMIC:
        raise Lacks(f"does not support the rule {rule!r}")
    if w.data is None or q is None or not q.is_summable or not DTYPES[w.dtype].is_integer:
        raise Lacks("needs a constant weight of integers, quantized per tensor or per channel")
    if q.axis not in (None, 0) or not all(w.shape or ()) or DTYPES[w.dtype].bits > 8:
        raise Lacks("needs a weight of at most 8 bits, quantized per output")
    if x.dtype != "float32" or x.quantization is not None:
        raise Lacks("requires a float32 input")
    if s.has(2) and (s.tensor(2).quantization is not None or s.tensor(2).dtype != "float32"):
        raise Lacks("requires float32 biases")
    exact, sums = _exact(s.constant(1), q.zero_points(tuple(s.constant(1).shape))), None
    if exact == torch.int8 and not DYNAMIC[rule].is_signed:
        sums = s.derive("sums", s.constant(1).sum(1, dtype=torch.int32))
    top = 127 if s.attribute("reduce_range") else 255
    stated = (rule, top, bool(s.attribute("per_token")), exact, f"node {s.node.title}")
    return s.result(dynamic_linear, s.features(), *s.parameters(1), sums, s.x(2), *stated)


def _exact(weight: Tensor, zero_points: Any) -> torch.dtype:
    """The type that represents every sum of products with integers of -255..255.

    Of one product, torch's kernel for int8 computes nothing: its result is what the memory held (torch 2.13).
    """
    reach = 255 * int((weight.double() - torch.from_numpy(zero_points)).abs().sum(1).max())
    is_int8 = weight.dtype == torch.int8 and weight.shape[1] > 1 and not zero_points.any()
    if is_int8 and 2 * reach <= INT32 and multiplies_int8():
        return torch.int8
    if reach >= EXACT_IN_FLOAT64:
        raise Lacks("has sums that float64 cannot represent")
    return torch.float32 if reach <= EXACT_IN_FLOAT32 else torch.float64
