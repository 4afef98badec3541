"""Float operators on constants that are quantized: dequantized once, to the last bit, then torch's float kernels.

Of the kernels that read int8 weights, `aten._weight_int8pack_mm` takes 7 to 70 times as long in float32 (torch 2.13,
a layer of 1024 × 1024, 1 to 128 rows), and in bfloat16 its results are off by 4e-3 of the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...arithmetic import dequantize
from .emit import PLAIN, Lacks, Site, Table
from .floats import REAL, computed


def _real(s: Site, index: int) -> Any:
    tensor = s.tensor(index)
    if tensor.quantization is None:
        if tensor.dtype != "float32":
            raise Lacks(f"computes with {tensor.dtype}")
        return s.x(index)
    return real_constant(s, index)


def real_constant(s: Site, index: int) -> Any:
    """A quantized constant as float32, dequantized once."""
    tensor = s.tensor(index)
    if tensor.data is None or tensor.quantization is None:
        raise Lacks("has a quantized input that is computed")
    values = dequantize(tensor.array, tensor.quantization, s.node.rule)
    return s.builder.derive(f"{tensor.name}_real", torch.from_numpy(np.asarray(values)))


def _on_weights(s: Site) -> Any:
    if s.is_float or s.out.quantization is not None:
        raise Lacks("is quantized, but its weights are not")
    if s.out.dtype != "float32":
        raise Lacks("outputs integers")
    return computed(s, _real)


WEIGHTS = Table("torch's float kernels", PLAIN, dict.fromkeys(REAL, _on_weights).get, any_grid=True)
