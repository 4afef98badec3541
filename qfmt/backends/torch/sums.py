"""Exact sums by oneDNN's int8 kernels, then the stated rule: bit for bit what the file states, on plain integers.

With all scales 1, a kernel returns its sums as float32: it rounds each once, as every requantize rule begins. A first
step that adds a number to the sums is the kernel's bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...arithmetic import EXACT_IN_FLOAT32
from ...model import INT32
from ...ops.accumulation import reach
from .arithmetic import add_is_fused
from .emit import PLAIN, Emitter, Lacks, Site, Table
from .native_dynamic import DYNAMIC_EMITTERS, linear_float16
from .onednn import ONEDNN_EMITTERS, called, convolution, linear, weight_of
from .processor import AS_FLOATS, sums_exactly
from .products import constant_weight, finish

aten = torch.ops.aten


def _conv(s: Site) -> Any:
    return _by_rule(s, convolution, [-1, *(1 for _ in s.attribute("strides"))])


def _linear(s: Site) -> Any:
    if s.tensor(1).quantization is None and s.tensor(1).dtype == "float16":
        return linear_float16(s)
    return _by_rule(s, linear, [-1])


def _by_rule(s: Site, kernel: Any, along: list[int]) -> Any:
    """Sums by a kernel, the steps of the rule with their numbers `along` the channels, the range of the output."""
    if not sums_exactly():
        raise Lacks("oneDNN does not sum exactly on this processor")
    weight, scales = weight_of(s)
    steps, low, high = finish(s, along)
    largest, bias = _largest_sum(s), None
    if steps[0][0] in ("add", "sum"):
        (step, number), *steps = steps
        addend = s.value_of(number)
        if step == "sum" and largest + float(addend.abs().max()) > EXACT_IN_FLOAT32:
            raise Lacks("has sums that float32 may not represent")
        bias = s.derive("bias", addend.float().flatten())
    value = called(s.call, s, *kernel(s, weight, 1.0, torch.ones_like(scales), bias), *AS_FLOATS)
    for step, number in steps:
        value = _after(s, value, step, number)
    if zero_point := s.out_grid.zero_point:
        value = s.call(aten.add_.Scalar, value, zero_point)
    limits = low + zero_point, high + zero_point
    return s.result(aten.to.dtype, s.call(aten.clamp_.default, value, *limits), s.out_grid.dtype)


def _largest_sum(s: Site) -> float:
    """The largest magnitude of a sum; Lacks if int32 cannot represent the sums of stored integers."""
    weight, x = constant_weight(s)
    terms = tuple(range(1, weight.ndim))
    if 255 * int(np.abs(weight).sum(terms, dtype=np.int64).max(initial=0)) > INT32:
        raise Lacks("has sums that int32 may not represent")
    return reach(x, weight, terms)


def _after(s: Site, value: Any, step: str, number: Any) -> Any:
    """A step after a sum, in place: `after` in arithmetic.py, as a call of torch."""
    if step == "round":
        return s.call(aten.round_.default, value)
    if step == "fma":
        if not add_is_fused():
            raise Lacks("torch does not fuse multiply-add on this machine")
        return s.call(aten.add_.Tensor, value, number[0], alpha=float(s.value_of(number[1])))
    return s.call({"add": aten.add_, "mul": aten.mul_}[step].Tensor, value, number)


EMITTERS: dict[str, Emitter] = {**ONEDNN_EMITTERS, **DYNAMIC_EMITTERS, "Conv": _conv, "qfmt.Linear": _linear}

SUMS = Table("auto", PLAIN, EMITTERS.get)
