"""Convert tensors: dtypes, arrays, and the check of a module's arguments."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import RunError
from ...model import DTYPES, numpy_dtype


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that holds an element type of a Model; values of less than 8 bits have a byte each."""
    bits, kind = DTYPES[name].bits, DTYPES[name].kind
    if bits < 8:
        return torch.int8 if kind == "i" else torch.uint8
    return getattr(torch, name)  # type: ignore[no-any-return]


def to_tensor(array: Any, dtype: str) -> torch.Tensor:
    """An array of one of the Model's element types, with its own memory."""
    if DTYPES[dtype].is_from_ml_dtypes:
        return torch.from_numpy(array.view(f"u{array.dtype.itemsize}").copy()).view(torch_dtype(dtype))
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))


def to_array(value: torch.Tensor, dtype: str) -> Any:
    """The inverse: a NumPy array whose dtype is that of the Model's element type (one value a byte below 8 bits)."""
    value = value.detach().cpu().contiguous()
    if not DTYPES[dtype].is_from_ml_dtypes:
        return value.numpy()
    return value.view(getattr(torch, f"int{max(DTYPES[dtype].bits, 8)}")).numpy().view(numpy_dtype(dtype))


FOR_RECORDING = "use engine='native' for torch.jit.trace, engine='qdq' for torch.export"


def is_traced() -> bool:
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return traced


def is_recorded() -> bool:
    """Whether torch is compiling or tracing, so that tensors may have no values."""
    return torch.compiler.is_compiling() or is_traced()


def check_input(
    value: Any,
    name: str,
    dtype: torch.dtype,
    shape: list[int | str | None] | None,
    grid: tuple[float, float] | None = None,
) -> torch.Tensor:
    """An argument of a module as the tensor that it expects; RunError, at the input, if it is not one.

    A torch tensor that is quantized itself, on the `grid` (scale, zero point) of the input, represents its integers.
    Nothing is checked while torch compiles or traces.
    """
    if value is None:
        raise RunError("is missing", where=f"input {name}")
    if not isinstance(value, torch.Tensor):
        nested = isinstance(value, tuple | list | dict)
        hint = "pass its tensors one by one: each is a separate input" if nested else ""
        raise RunError(f"expects a torch.Tensor, not {type(value).__name__}", where=f"input {name}", hint=hint)
    if is_recorded():
        return value
    if value.is_quantized:
        value = _integers(value, name, grid)
    if value.dtype != dtype:
        if not (dtype.is_floating_point and value.dtype.is_floating_point):
            raise RunError(f"expects {dtype}, not {value.dtype}", where=f"input {name}")
        value = value.to(dtype)
    checked: torch.Tensor = value
    if shape is not None:
        if value.dim() != len(shape):
            raise RunError(f"expects {len(shape)} dimensions, not {value.dim()}", where=f"input {name}")
        for axis, (size, wanted) in enumerate(zip(value.shape, shape, strict=True)):
            if isinstance(wanted, int) and size != wanted:
                raise RunError(f"dimension {axis} is {size}, must be {wanted}", where=f"input {name}")
    return checked


def _integers(value: torch.Tensor, name: str, grid: tuple[float, float] | None) -> torch.Tensor:
    if grid is None:
        raise RunError("expects floats, not a quantized tensor", where=f"input {name}", hint="dequantize it")
    per_tensor = value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    if not per_tensor or (value.q_scale(), value.q_zero_point()) != grid:
        what = f"expects integers with scale {grid[0]!r} and zero point {grid[1]!r}, not with another quantization"
        raise RunError(what, where=f"input {name}")
    return torch.int_repr(value)
