"""Torch carries out the calls of a tape, on real tensors and by a named engine. The only code that runs is torch's own:
operators that the lifter knows by name, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import MissingPackageError, RunError, SourceError
from ..stored import PerTensor, StoredTensor
from ..witness import Computed
from .calls import Packed, PackedState
from .lift import is_known
from .tape import Slot, Tape
from .values import DTYPE_CODES

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from ...model import Quantization

    Array = NDArray[Any]


@contextmanager
def running(name: str) -> Iterator[str]:
    """Torch by one engine for quantized operators, without warnings of deprecation and gradients; gives its
    name and version."""
    try:
        import torch
    except ImportError:
        hint = "`pip install '.[torch]'` in a checkout of qfmt brings it"
        raise MissingPackageError("torch is not installed", hint=hint) from None
    known = [each for each in torch.backends.quantized.supported_engines if each != "none"]
    if name not in known:
        raise RunError(f"this torch has no engine {name!r}", hint=f"it has {', '.join(known)}")
    before = torch.backends.quantized.engine
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.backends.quantized.engine = name
        try:
            yield f"torch {torch.__version__}".partition("+")[0]
        finally:
            torch.backends.quantized.engine = before


def carry_out(
    tape: Tape,
    inputs: Mapping[str, torch.Tensor],
    real: Callable[[Any], Any],
    on_numbers: Callable[[str, Sequence[Any], Mapping[str, Any]], Any],
) -> dict[str, Computed]:
    """What every tensor of the lifter is when torch runs, by its key. `inputs` are those of the graph, by key.

    `real` makes torch objects of stored tensors and packed parameters; `on_numbers` computes the calls that
    have no tensor among their arguments. Raises RunError, placed, where torch refuses a call.
    """
    values: dict[str | int, Any] = {}
    values.update(inputs)
    seen = {key: computed(tensor) for key, tensor in inputs.items()}
    for entry in tape.entries:
        args = [_resolved(arg, values, real) for arg in entry.args]
        kwargs = {name: _resolved(value, values, real) for name, value in entry.kwargs.items()}
        try:
            if entry.target in _CREATIONS or _has_tensor((*args, *kwargs.values())):
                result = _apply(entry.target, args, kwargs)
            else:
                result = on_numbers(entry.target, args, kwargs)
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            what = f"torch cannot carry out {entry.target}: {_first_line(error)}"
            raise RunError(what, where=str(entry.place)) from None
        for key, value in _paired(entry.result, result):
            values[key] = value
            if isinstance(key, str) and _has_tensor(value):
                seen.setdefault(key, computed(value))
    return seen


def _apply(target: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if target in _QUERIES:
        return _QUERIES[target](*args)
    namespace, _, name = target.partition("::")
    if namespace not in ("aten", "quantized", "quantized_decomposed") or not is_known(target):
        raise ValueError("it is not on the list of operators that are carried out")
    if namespace == "quantized_decomposed":
        return _decomposed(name, args, kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name not in ("layout", "device", "pin_memory")}
    if "dtype" in kwargs:
        kwargs["dtype"] = _dtype(kwargs["dtype"])
    if name.startswith("quantize_per_"):
        args[-1] = _dtype(args[-1])
    import torch

    return getattr(getattr(torch.ops, namespace), name)(*args, **kwargs)


def _decomposed(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Of PT2E: which argument is an element type, the operator's schema says."""
    from torch.ao.quantization.fx import _decomposed

    overloads = getattr(_decomposed.torch.ops.quantized_decomposed, name)  # type: ignore[attr-defined]
    schema = getattr(overloads, overloads.overloads()[0])._schema
    for position, argument in enumerate(schema.arguments[: len(args)]):
        if "dtype" in argument.name:
            args[position] = _dtype(args[position])
    return overloads(*args, **{key: _dtype(value) if "dtype" in key else value for key, value in kwargs.items()})


def _resolved(value: Any, values: Mapping[str | int, Any], real: Callable[[Any], Any]) -> Any:
    if isinstance(value, Slot):
        return values[value.key]
    if isinstance(value, StoredTensor | Packed | PackedState):
        return real(value)
    if isinstance(value, list | tuple):
        return [_resolved(item, values, real) for item in value]
    return value


def _paired(noted: Any, result: Any) -> Iterator[tuple[str | int, Any]]:
    """(slot, value) of a result that may be nested."""
    if isinstance(noted, Slot):
        yield noted.key, result
    elif isinstance(noted, list | tuple) and isinstance(result, Sequence):
        for each, value in zip(noted, result, strict=False):
            yield from _paired(each, value)


def _has_tensor(value: Any) -> bool:
    import torch

    return any(map(_has_tensor, value)) if isinstance(value, list | tuple) else isinstance(value, torch.Tensor)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


_CREATIONS = ("aten::zeros", "aten::ones", "aten::full", "aten::arange")
"""What makes tensors of numbers alone."""

_QUERIES: Mapping[str, Callable[..., Any]] = {
    "prim::ListUnpack": lambda value, count: list(value),
    "prim::shape": lambda x: list(x.size()),
    "prim::NumToTensor": lambda x: x,
    "aten::view": lambda x, sizes: x.reshape(sizes),  # the layout in memory is not kept
    "aten::sym_size": lambda x, dim: x.size(dim),
    "aten::size": lambda x, *dim: x.size(*dim) if dim else list(x.size()),
    "aten::len": lambda x: len(x),
    "aten::numel": lambda x: x.numel(),
    "prim::data": lambda x: x,
}
"""What is no operator of torch.ops."""


# -- from and to torch -----------------------------------------------------------------------------------


def computed(tensor: torch.Tensor) -> Computed:
    """A copy: in-place operators change tensors later."""
    import torch

    tensor = tensor.detach()
    if not tensor.is_quantized:
        return Computed(_array(tensor))
    integers = _array(tensor.int_repr())
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return Computed(integers, (tensor.q_scale(),), (tensor.q_zero_point(),))
    scales, zero_points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return Computed(integers, tuple(scales.tolist()), tuple(zero_points.tolist()), tensor.q_per_channel_axis())


def _array(tensor: torch.Tensor) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        from ...model import numpy_dtype

        return tensor.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16")).copy()
    array: Array = tensor.contiguous().numpy().copy()
    return array


def input_tensor(array: Array, quantization: Quantization | None) -> torch.Tensor:
    """An input of the graph as torch takes it: floats, or integers with their scale and zero point."""
    import numpy as np
    import torch

    tensor = torch.from_numpy(np.array(array))
    if quantization is None:
        return tensor
    return torch._make_per_tensor_quantized_tensor(tensor, quantization.scale[0], int(quantization.zero_point[0]))


def made(value: Any) -> Any:
    """The torch object of a stored tensor or packed parameters, made of what qfmt read: packed by the engine of now."""
    match value:
        case StoredTensor():
            return _tensor(value)
        case Packed():
            return _packed(value)
        case PackedState(state=("quantized_dynamic", [b_ih, b_hh], _, [*reduce_range], [w_ih, w_hh])):
            import torch

            parts = (made(w_ih), made(w_hh), made(b_ih), made(b_hh), bool(sum(reduce_range)))
            return torch.ops.quantized.make_quantized_cell_params_dynamic(*parts)
        case PackedState(state=("quantized_fp16", _, _, _, [w_ih, w_hh])):
            import torch

            return torch.ops.quantized.make_quantized_cell_params_fp16(made(w_ih), made(w_hh))
        case PackedState():
            raise SourceError(f"packed parameters of the class {value.class_name} cannot be made here")
    return value


def _tensor(stored: StoredTensor) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(stored.array().copy())
    quantizer = stored.quantizer
    if quantizer is None:
        return tensor
    if isinstance(quantizer, PerTensor):
        return torch._make_per_tensor_quantized_tensor(tensor, quantizer.scale, quantizer.zero_point)
    scales, zero_points = _tensor(quantizer.scale), _tensor(quantizer.zero_point)
    if stored.dtype == "uint4":  # torch makes such tensors by quantizing only
        reals = (tensor - zero_points[:, None]) * scales[:, None]
        return torch.quantize_per_channel(reals, scales, zero_points, quantizer.axis, torch.quint4x2)
    return torch._make_per_channel_quantized_tensor(tensor, scales, zero_points, quantizer.axis)


def _packed(packed: Packed) -> Any:
    import torch

    operators = torch.ops.quantized
    weight, bias = _tensor(packed.weight), None if packed.bias is None else _tensor(packed.bias)
    if packed.kind == "linear":
        return operators.linear_prepack(weight, bias)
    if packed.kind == "linear_fp16":
        return operators.linear_prepack_fp16(weight, bias)
    if packed.kind == "embedding":
        return operators.embedding_bag_prepack(weight)
    geometry: list[Any] = [list(packed.stride), list(packed.padding), list(packed.dilation), packed.groups]
    if packed.transposed:
        geometry.insert(2, list(packed.output_padding))
    kind = f"conv{'_transpose' if packed.transposed else ''}{weight.dim() - 2}d_prepack"
    return getattr(operators, kind)(weight, bias, *geometry)


def _dtype(code: Any) -> Any:
    """A dtype as archives write it, as torch takes it: 13 is quint8."""
    if not isinstance(code, int):
        return code
    import torch

    quantized = {12: torch.qint8, 13: torch.quint8, 14: torch.qint32, 16: torch.quint4x2, 17: torch.quint2x4}
    return quantized[code] if code in quantized else getattr(torch, DTYPE_CODES[code])
