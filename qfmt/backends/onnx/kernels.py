"""Integer types of ONNX Runtime's kernels, where they are fewer than ONNX's: tested with version 1.31."""

from __future__ import annotations

from ...model import DTYPES

BYTES_ONLY = ("MaxPool", "DepthToSpace", "SpaceToDepth")
"""Operators that support only integers of 8 bits."""

BYTES_AND_INT32 = ("Clip", "GlobalMaxPool", "Pad", "ReduceMax", "ReduceMin", "Relu")
"""Operators that support integers of 8 and 32 bits, or are expressed by such. Others support all of 8 bits and more."""

NO_TYPE = "none"


def working_type(operator: str, dtype: str) -> str:
    """The type that integers are cast to before they are moved; empty: they are not; NO_TYPE: there is none."""
    bits, kind = DTYPES[dtype].bits, DTYPES[dtype].kind
    if bits < 8:
        return "int8" if kind == "i" else "uint8"
    if operator in BYTES_ONLY and bits > 8:
        return NO_TYPE
    return "int32" if operator in BYTES_AND_INT32 and bits == 16 else ""
