"""Torch executes a program, in a worker process. The only code that runs is torch's own: operators that the lifter
knows by name, on arguments that fit their schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import Array
from ...errors import RunError, first_line
from ...model import numpy_dtype
from ..witness import Computed
from . import guards
from .lifter import is_known
from .program import Call, Constant, Made, Program, Slot, Stored
from .torchscript.folding import fold, on_values
from .values import DTYPE_CODES

if TYPE_CHECKING:
    import torch


class Engine:
    """One program, and torch with the engine that it names; see `isolation.child.Engine`."""

    def __init__(self, program: Program) -> None:
        import torch

        known = [each for each in torch.backends.quantized.supported_engines if each != "none"]
        name = program.engine or known[0]
        if name not in known:
            raise RunError(f"this torch has no engine {name!r}", hint=f"it has {', '.join(known)}")
        torch.backends.quantized.engine = name
        torch.set_grad_enabled(False)
        self.version = f"torch {torch.__version__}".partition("+")[0]
        self.program, self.wanted = program, frozenset(program.wanted)
        self._constants: dict[int, Any] = {}
        self._expiring = _last_readers(program.calls)

    def answer(self, verb: str, *arguments: Any) -> Iterator[tuple[Any, ...]]:
        """ "run" (inputs by key): every wanted tensor that is an input or the result of a call."""
        (inputs,) = arguments
        values: dict[str | int, Any] = {key: tensor(stored) for key, stored in inputs.items()}
        yield from (("value", key, computed(value)) for key, value in values.items() if key in self.wanted)
        seen = set(values)
        for index, call in enumerate(self.program.calls):
            yield "at", index
            for key, value in _paired(call.result, self._result(call, values)):
                values[key] = value
                if key in self.wanted and key not in seen and _has_tensor(value):
                    seen.add(key)
                    yield "value", key, computed(value)
            for key in self._expiring.get(index, ()):
                values.pop(key, None)

    def _result(self, call: Call, values: Mapping[str | int, Any]) -> Any:
        """The result of a call in torch. RunError, at its place, if torch fails."""
        try:
            args = [self._resolved(arg, values) for arg in call.args]
            kwargs = {name: self._resolved(value, values) for name, value in call.kwargs.items()}
            if call.target in _CREATIONS or _has_tensor((*args, *kwargs.values())):
                return apply(call.target, args, kwargs)
            number = fold(on_values, call.target, args, kwargs)
            return apply(call.target, args, kwargs) if number is NotImplemented else number
        except Exception as error:  # any exception of torch for incompatible arguments
            why = first_line(error).partition(". This could be because")[0]  # then it lists backends
            raise RunError(f"torch cannot run {call.target}: {why}", where=call.place) from None

    def _resolved(self, value: Any, values: Mapping[str | int, Any]) -> Any:
        if isinstance(value, Slot):
            return values[value.key]
        if isinstance(value, Constant):
            if value.place not in self._constants:
                self._constants[value.place] = made(self.program.constants[value.place])
            return self._constants[value.place]
        if isinstance(value, list | tuple):
            return [self._resolved(item, values) for item in value]
        return value


def apply(target: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operator. ValueError for one that the lifter does not know, and for arguments against its
    schema: torch itself accepts any integer as an element type, and reads beyond its tables."""
    if target in _QUERIES:
        return _QUERIES[target](*args, **kwargs)
    namespace, _, name = target.partition("::")
    if namespace not in ("aten", "quantized", "quantized_decomposed") or not (is_known(target) or target in _PACKING):
        raise ValueError("it is not on the list of operators that qfmt can run")
    import torch

    if namespace == "quantized_decomposed":
        import torch.ao.quantization.fx._decomposed  # registers them
    kwargs = {name: value for name, value in kwargs.items() if name not in ("layout", "device", "pin_memory")}
    overload, args = _overload(target, args, kwargs)
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    arguments = {each.name: each for each in operator._schema.arguments}
    args = [_checked(each, value) for each, value in zip(arguments.values(), args, strict=False)]
    guards.check(target, {**dict(zip(arguments, args, strict=False)), **kwargs})
    torch._C._set_mkldnn_enabled(target not in guards.WITHOUT_ONEDNN)
    return operator(*args, **{name: _checked(arguments[name], value) for name, value in kwargs.items()})


def _overload(target: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
    """The overload of an operator for the arguments. In traces, numbers are tensors, which have no dimensions."""
    import torch

    try:
        return torch._C._jit_resolve_packet(target, *args, **kwargs) or "default", args
    except RuntimeError:
        if not args or not isinstance(args[0], int | float):
            raise
    kind = torch.float64 if isinstance(args[0], float) else None
    args = [torch.tensor(args[0], dtype=kind), *args[1:]]
    return torch._C._jit_resolve_packet(target, *args, **kwargs) or "default", args


def _checked(argument: Any, value: Any) -> Any:
    """An argument whose type in the schema is an enumeration, which archives write as an integer, as torch's object."""
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    if value is None or kind not in _ENUMERATIONS:
        return value
    member = _ENUMERATIONS[kind](value)
    if member is None:
        raise ValueError(f"{argument.name}={value} is not a {kind}")
    return member


def _element_type(code: Any) -> Any:
    """13 is quint8."""
    import torch

    quantized = {12: "qint8", 13: "quint8", 14: "qint32", 16: "quint4x2", 17: "quint2x4"}
    return getattr(torch, quantized.get(code, DTYPE_CODES.get(code, "")), None)


def _memory_format(code: Any) -> Any:
    import torch

    names = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
    return getattr(torch, names[code]) if code in range(len(names)) else None


_ENUMERATIONS: Mapping[str, Callable[[Any], Any]] = {
    "ScalarType": _element_type,
    "MemoryFormat": _memory_format,
    "Layout": lambda code: _strided() if code == 0 else None,
    "Device": lambda name: "cpu",
}
"""Type of a schema → the torch class of a value of an archive; None for none. All devices are the CPU."""


def _strided() -> Any:
    import torch

    return torch.strided


def _last_readers(calls: Sequence[Call]) -> dict[int, list[str | int]]:
    """Index of a call → the values that are not read after it."""
    last: dict[str | int, int] = {}
    for index, call in enumerate(calls):
        for key in _slots((call.args, *call.kwargs.values(), call.result)):
            last[key] = index
    expiring: dict[int, list[str | int]] = {}
    for key, index in last.items():
        expiring.setdefault(index, []).append(key)
    return expiring


def _slots(value: Any) -> Iterator[str | int]:
    if isinstance(value, Slot):
        yield value.key
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _slots(item)


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


_CREATIONS = {f"aten::{name}" for name in ("zeros", "ones", "full", "arange", "tensor", "scalar_tensor", "eye")}
"""Functions that make tensors from numbers only."""

_PACKING = frozenset(
    (
        *(f"quantized::{name}_prepack" for name in ("linear", "embedding_bag")),
        *(f"quantized::conv{way}{rank}d_prepack" for way in ("", "_transpose") for rank in (1, 2, 3)),
        "quantized::linear_prepack_fp16",
        "quantized::make_quantized_cell_params_dynamic",
        "quantized::make_quantized_cell_params_fp16",
    )
)
"""Functions that make packed parameters."""


def _of_numbers(data: Any, *, dtype: Any = None, **_options: Any) -> Any:
    import torch

    return torch.tensor(data, dtype=None if dtype is None else _element_type(dtype))


_QUERIES: Mapping[str, Callable[..., Any]] = {
    "aten::tensor": _of_numbers,
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
"""Functions that are not operators of torch.ops."""


# -- from and to torch -----------------------------------------------------------------------------------


def made(constant: Any) -> Any:
    """The torch object of a constant, packed by the current engine."""
    if isinstance(constant, Made):
        return apply(constant.target, [made(arg) for arg in constant.args], {})
    return tensor(constant) if isinstance(constant, Stored) else constant


def tensor(stored: Stored) -> torch.Tensor:
    """A torch tensor: plain, or quantized per tensor or per channel."""
    import torch

    plain, scale, zero_point = _plain(stored.array), stored.scale, stored.zero_point
    if scale is None:
        return plain
    if stored.axis is None:
        return torch._make_per_tensor_quantized_tensor(plain, scale, zero_point)
    scales, zero_points = _plain(scale), _plain(zero_point)
    if stored.dtype == "uint4":  # torch creates such tensors only by quantizing
        reals = (plain - zero_points[:, None]) * scales[:, None]
        return torch.quantize_per_channel(reals, scales, zero_points, stored.axis, torch.quint4x2)
    return torch._make_per_channel_quantized_tensor(plain, scales, zero_points, stored.axis)


def computed(value: torch.Tensor) -> Computed:
    """A copy: in-place operators change tensors later."""
    import torch

    if not value.is_quantized:
        return Computed(_array(value))
    integers = _array(value.int_repr())
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return Computed(integers, (value.q_scale(),), (value.q_zero_point(),))
    scales, zero_points = value.q_per_channel_scales(), value.q_per_channel_zero_points()
    return Computed(integers, tuple(scales.tolist()), tuple(zero_points.tolist()), value.q_per_channel_axis())


def _plain(array: Array) -> torch.Tensor:
    """A tensor of an array, also for types whose names differ."""
    import torch

    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(np.array(array))
    integers = np.array(array.view(f"i{array.dtype.itemsize}"))
    return torch.from_numpy(integers).view(getattr(torch, array.dtype.name))


def _array(value: torch.Tensor) -> Array:
    import torch

    name, value = str(value.dtype).removeprefix("torch."), value.contiguous()
    if not name.startswith(("bfloat", "float8")):
        array: Array = value.numpy().copy()
        return array
    integers = value.view(torch.int16 if name == "bfloat16" else torch.int8)
    return integers.numpy().view(numpy_dtype(name)).copy()
