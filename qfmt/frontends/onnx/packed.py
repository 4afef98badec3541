"""Weight-only quantization of ONNX Runtime: packed block-wise weights, converted to DequantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...errors import SourceError
from ...model import Attribute, unpack
from ...passes.qdq import DEQUANTIZE
from .calls import Call
from .importer import Importer, imports


@imports("com.microsoft.MatMulNBits")
def matmul_nbits(im: Importer, call: Call) -> Any:
    """A, B, scales, zero_points, g_idx, bias: A · Wᵀ + bias, where W [N, K] is quantized block-wise along its rows.

    B is [N, blocks, bytes per block], with the first value in the lowest bits. Zero points are packed row by row in
    the same way, or have the element type of the scales. The default zero point is the middle of the range.
    """
    a = call.attributes
    bits, rows, columns, block = (int(a.get(key, default)) for key, default in _KEYS.items())
    if bits not in (2, 4, 8) or call.input(4) or a.get("weight_prepacked"):
        return NotImplemented
    blocks = -(-columns // block)
    weight = _unpacked(im, call.inputs[1], bits, (rows, blocks * block), columns)
    scale, point = call.inputs[2], call.input(3)
    if weight is None:
        return NotImplemented
    if im.shape(scale) != (rows, blocks):
        scale = im.emit("Reshape", [scale, im.constant(np.array([rows, blocks]), "shape")], f"{scale}.rows")
    if not point:
        point = _middle(im, weight, bits, (rows, blocks))
    elif im.tensors[point].dtype == "uint8":
        per_row = -(-blocks * bits // 8) * 8 // bits
        packed = _unpacked(im, point, bits, (rows, per_row), blocks)
        if packed is None:
            return NotImplemented
        point = packed
    else:
        point = im.emit("Reshape", [point, im.constant(np.array([rows, blocks]), "shape")], f"{point}.rows")
    real = _dequantized(im, weight, scale, point, 1, block)
    im.emit("qfmt.Linear", [call.inputs[0], real, call.input(5)], call.outputs)
    return None


_KEYS = {"bits": 4, "N": 0, "K": 0, "block_size": 32}


@imports("com.microsoft.GatherBlockQuantized")
def gather_block_quantized(im: Importer, call: Call) -> Any:
    """data, indices, scales, zero_points: gathers rows of a block-wise quantized table; uint8 data is packed."""
    a: Mapping[str, Any] = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1, **call.attributes}
    data, indices, scale, point = (*call.inputs, "")[:4]
    shape = im.shape(data)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return NotImplemented
    if im.tensors[data].dtype == "uint8" and a["bits"] != 8:
        per_byte, sizes = 8 // a["bits"], [size for size in shape if isinstance(size, int)]
        table = _unpacked(im, data, a["bits"], (*sizes[:-1], sizes[-1] * per_byte), sizes[-1] * per_byte)
        if table is None:
            return NotImplemented
        data, counts = table, [size for size in im.shape(scale) or () if isinstance(size, int)]
        if point:
            packed = _unpacked(im, point, a["bits"], (*counts[:-1], -(-counts[-1] // per_byte) * per_byte), counts[-1])
            if packed is None:
                return NotImplemented
            point = packed
        else:
            point = _middle(im, data, a["bits"], counts)
    elif im.tensors[data].dtype == "uint8" and not point:
        point = _middle(im, data, 8, [size for size in im.shape(scale) or () if isinstance(size, int)])
    real = _dequantized(im, data, scale, point, a["quantize_axis"], a["block_size"])
    im.emit("Gather", [real, indices], call.outputs, {"axis": a["gather_axis"]})
    return None


def _dequantized(im: Importer, data: str, scale: str, point: str, axis: int, block: int) -> str:
    attributes: dict[str, Attribute] = {"axis": axis, "block_size": block, "output_dtype": im.tensors[scale].dtype}
    return im.emit(DEQUANTIZE, [data, scale, point], f"{data}.dequantized", attributes)


def _middle(im: Importer, data: str, bits: int, counts: Sequence[int]) -> str:
    """Zero points in the middle of the range, with the element type of the data."""
    im.budget.allocate(prod(counts))
    return im.constant(np.full(counts, 1 << bits - 1, np.uint8), f"{data}.zero_point", f"uint{bits}")


def _unpacked(im: Importer, name: str, bits: int, stored: tuple[int, ...], columns: int) -> str | None:
    """Reinterpret bytes as a tensor of `bits`-bit values; the data is shared if rows are not padded.

    None for a tensor that is computed at run time.
    """
    tensor = im.tensors[name]
    if tensor.data is None:
        return None
    dtype, needed, shape = f"uint{bits}", prod(stored) * bits // 8, (*stored[:-1], columns)
    if tensor.data.nbytes != needed:
        raise SourceError(f"{name!r} has {tensor.data.nbytes} bytes, {list(stored)} values need {needed}")
    if columns == stored[-1]:
        own = im.fresh(f"{name}.values")
        im.tensors[own] = replace(tensor, name=own, dtype=dtype, shape=shape, aliases=(name,))
    else:
        values = unpack(tensor.data.view(), bits, False, prod(stored)).reshape(stored)
        own = im.constant(values[..., :columns], f"{name}.values", dtype, (name,))
    im.preferred[own] = name
    return own
