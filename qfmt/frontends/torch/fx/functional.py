"""What the functions of torch.nn.functional call, as a trace shows it. Their parameters carry torch's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....errors import SourceError
from ..operators.linear import many

Call = Callable[..., Any]
"""Records a call: (target, *arguments, **keywords)."""

RANKS = {
    1: ("linear", "upsample_linear1d"),
    2: ("bilinear", "upsample_bilinear2d"),
    3: ("trilinear", "upsample_trilinear3d"),
}
"""Spatial dimensions → what `interpolate` calls linear, and the operator."""


def interpolate(
    call: Call,
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    dimensions = call("aten::dim", input)
    if not isinstance(dimensions, int):
        return dimensions  # of an operator that is not supported, which is reported
    rank = dimensions - 2
    if antialias or rank not in RANKS or (recompute_scale_factor and scale_factor is not None):
        raise SourceError(f"interpolates with the mode {mode!r}, which is not supported")
    sizes = None if size is None else _each(size, rank)
    factors = None if scale_factor is None else [float(factor) for factor in _each(scale_factor, rank)]
    if mode in ("nearest", "nearest-exact"):
        name = "upsample_nearest" if mode == "nearest" else "_upsample_nearest_exact"
        return call(f"aten::{name}{rank}d", input, sizes, factors)
    if mode != RANKS[rank][0]:
        raise SourceError(f"interpolates with the mode {mode!r}, which is not supported")
    return call(f"aten::{RANKS[rank][1]}", input, sizes, bool(align_corners), factors)


def _each(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * rank


def pad(call: Call, input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return call("aten::pad", input, list(pad), mode, value)


def softsign(call: Call, input: Any) -> Any:
    return call("aten::div", input, call("aten::add", call("aten::abs", input), 1))


def dropout(call: Call, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return call("aten::dropout", input, p, training)


def max_pool(rank: int) -> Callable[..., Any]:
    def pool(
        call: Call,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        target = f"aten::max_pool{rank}d{'_with_indices' if return_indices else ''}"
        return call(target, input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode)

    return pool


def avg_pool(rank: int) -> Callable[..., Any]:
    def pool(
        call: Call,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        rest = (divisor_override,) if divisor_override is not None else ()
        steps = [] if stride is None else stride
        return call(f"aten::avg_pool{rank}d", input, kernel_size, steps, padding, ceil_mode, count_include_pad, *rest)

    return pool


def adaptive_avg_pool(rank: int) -> Callable[..., Any]:
    def pool(call: Call, input: Any, output_size: Any) -> Any:
        return call(f"aten::adaptive_avg_pool{rank}d", input, _each(output_size, rank))

    return pool


def layer_norm(
    call: Call, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    return call("aten::layer_norm", input, list(normalized_shape), weight, bias, eps)


def group_norm(call: Call, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return call("aten::group_norm", input, num_groups, weight, bias, eps)


def batch_norm(
    call: Call,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    return call("aten::batch_norm", input, weight, bias, running_mean, running_var, training, momentum, eps, True)


def softmax(call: Call, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return call("aten::softmax", input, _softmax_dimension(call, input, dim), dtype)


def log_softmax(call: Call, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return call("aten::log_softmax", input, _softmax_dimension(call, input, dim), dtype)


def _softmax_dimension(call: Call, input: Any, dim: Any) -> int:
    """torch.nn.functional._get_softmax_dim: where none is said, 0 for 0, 1 and 3 dimensions, else 1."""
    return int(dim) if dim is not None else 0 if call("aten::dim", input) in (0, 1, 3) else 1


def adaptive_max_pool(rank: int) -> Callable[..., Any]:
    def pool(call: Call, input: Any, output_size: Any, return_indices: bool = False) -> Any:
        pooled = call(f"aten::adaptive_max_pool{rank}d", input, _each(output_size, rank))
        return pooled if return_indices else pooled[0]

    return pool


def threshold(call: Call, input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    return call("aten::threshold", input, threshold, value)


def spelled(name: str) -> Callable[..., Any] | None:
    """A function that is the operator of the same name: its parameters, but for those that are fixed, and `inplace`."""
    (form, *_) = spellings().get(f"aten::{name}", [None])
    if form is None:
        return None
    names = [each.torch_name for each in form.parameters if each.required is MISSING]

    def function(call: Call, *args: Any, **kwargs: Any) -> Any:
        given = {names[0] if key == "input" else key: value for key, value in kwargs.items() if key != "inplace"}
        return call(f"aten::{name}", *(args[:-1] if len(args) == len(names) + 1 else args), **given)

    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "adaptive_avg_pool1d": adaptive_avg_pool(1),
    "adaptive_avg_pool2d": adaptive_avg_pool(2),
    "adaptive_avg_pool3d": adaptive_avg_pool(3),
    "adaptive_max_pool1d": adaptive_max_pool(1),
    "adaptive_max_pool2d": adaptive_max_pool(2),
    "adaptive_max_pool3d": adaptive_max_pool(3),
    "avg_pool1d": avg_pool(1),
    "avg_pool2d": avg_pool(2),
    "avg_pool3d": avg_pool(3),
    "batch_norm": batch_norm,
    "dropout": dropout,
    "dropout2d": dropout,
    "group_norm": group_norm,
    "hardsigmoid": lambda call, input, inplace=False: call("aten::hardsigmoid", input),
    "hardtanh": lambda call, input, min_val=-1.0, max_val=1.0, inplace=False: call(
        "aten::hardtanh", input, min_val, max_val
    ),
    "interpolate": interpolate,
    "layer_norm": layer_norm,
    "log_softmax": log_softmax,
    "max_pool1d": max_pool(1),
    "max_pool2d": max_pool(2),
    "max_pool3d": max_pool(3),
    "pad": pad,
    "relu": lambda call, input, inplace=False: call("aten::relu", input),
    "relu6": lambda call, input, inplace=False: call("aten::relu6", input),
    "sigmoid": lambda call, input: call("aten::sigmoid", input),
    "silu": lambda call, input, inplace=False: call("aten::silu", input),
    "softmax": softmax,
    "softplus": lambda call, input, beta=1.0, threshold=20.0: call("aten::softplus", input, beta, threshold),
    "softsign": softsign,
    "threshold": threshold,
    "_threshold": threshold,
    "tanh": lambda call, input: call("aten::tanh", input),
}
"""By name, those whose call is not that of the operator of the same name. The others are taken as operators."""


def padded(call: Call, input: Any, padding: Any, mode: str) -> Any:
    """What a convolution with another padding than zeros does first: torch/nn/modules/conv.py."""
    amounts: Sequence[int] = [amount for size in reversed(many(padding, len(padding))) for amount in (size, size)]
    return call("aten::pad", input, list(amounts), mode, None)
