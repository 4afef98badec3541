"""The calls of the functions of torch.nn.functional, as in a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....errors import SourceError, brief
from ..lifts import Meaning, by_rank, registering
from ..operators.linear import many

Call = Callable[..., Any]
"""Records a call: (target, *arguments, **keywords)."""

FUNCTIONS: dict[str, Meaning] = {}
"""Functions (call, *variant, arguments) whose calls differ from the operator of the same name."""

MODES = {
    1: {"linear": "upsample_linear1d"},
    2: {"bilinear": "upsample_bilinear2d", "bicubic": "upsample_bicubic2d"},
    3: {"trilinear": "upsample_trilinear3d"},
}
"""Spatial dimensions → the operators of interpolation by their modes, but for the nearest element."""


_functions = registering(FUNCTIONS)


@_functions(
    {
        text: f"aten::{text.partition('(')[0]}"
        for text in (
            "alpha_dropout(input, p=0.5, training=False, inplace=False)",
            "celu(input, alpha=1.0, inplace=False)",
            "dropout(input, p=0.5, training=True, inplace=False)",
            "elu(input, alpha=1.0, inplace=False)",
            "feature_alpha_dropout(input, p=0.5, training=False, inplace=False)",
            "group_norm(input, num_groups, weight=None, bias=None, eps=1e-5)",
            "hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False)",
            "leaky_relu(input, negative_slope=0.01, inplace=False)",
            "linear(input, weight, bias=None)",
            "rms_norm(input, normalized_shape, weight=None, eps=None)",
            "sigmoid(input)",
            "softplus(input, beta=1.0, threshold=20.0)",
            "tanh(input)",
            "threshold(input, threshold, value, inplace=False)",
            *(
                f"{name}(input, inplace=False)"
                for name in ("hardsigmoid", "hardswish", "mish", "relu", "relu6", "selu", "silu")
            ),
        )
    },
    {f"dropout{rank}d(input, p=0.5, training=True, inplace=False)": "aten::dropout" for rank in (1, 2, 3)},
    {"_threshold(input, threshold, value, inplace=False)": "aten::threshold"},
)
def _same(call: Call, target: str, a: Any) -> Any:
    given = vars(a)
    in_place = given.pop("inplace", False)
    return call(f"{target}_" if in_place else target, *given.values())


@_functions(
    "interpolate(input, size=None, scale_factor=None, mode='nearest', align_corners=None, recompute_scale_factor=None,"
    " antialias=False)"
)
def _interpolate(call: Call, a: Any) -> Any:
    dimensions = call("aten::dim", a.input)
    if not isinstance(dimensions, int):
        return dimensions  # of an operator that is not supported, which is reported
    rank = dimensions - 2
    if rank not in MODES or (a.recompute_scale_factor and a.scale_factor is not None):
        raise SourceError(f"interpolates with the mode '{brief(a.mode)}', which is not supported")
    sizes = None if a.size is None else _each(a.size, rank)
    factors = None if a.scale_factor is None else [float(factor) for factor in _each(a.scale_factor, rank)]
    if a.mode in ("nearest", "nearest-exact") and not a.antialias:
        name = "upsample_nearest" if a.mode == "nearest" else "_upsample_nearest_exact"
        return call(f"aten::{name}{rank}d", a.input, sizes, factors)
    if a.mode not in [*MODES[rank]] or (a.antialias and rank != 2):
        raise SourceError(f"interpolates with the mode '{brief(a.mode)}', which is not supported")
    name = f"_{MODES[rank][a.mode]}_aa" if a.antialias else MODES[rank][a.mode]
    return call(f"aten::{name}", a.input, sizes, bool(a.align_corners), factors)


def _each(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * rank


@_functions("unfold(input, kernel_size, dilation=1, padding=0, stride=1)")
def _unfold(call: Call, a: Any) -> Any:
    """Of images; `Tensor.unfold` is another operator."""
    return call("aten::im2col", a.input, a.kernel_size, a.dilation, a.padding, a.stride)


@_functions("pad(input, pad, mode='constant', value=None)")
def _pad(call: Call, a: Any) -> Any:
    return call("aten::pad", a.input, list(a.pad), a.mode, a.value)


@_functions("gelu(input, *, approximate='none')")
def _gelu(call: Call, a: Any) -> Any:
    return call("aten::gelu", a.input, approximate=a.approximate)


@_functions("softsign(input)")
def _softsign(call: Call, a: Any) -> Any:
    return call("aten::div", a.input, call("aten::add", call("aten::abs", a.input), 1))


_WINDOW = "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False"


@_functions(by_rank(f"max_pool{{}}d({_WINDOW})"))
def _max_pool(call: Call, rank: int, a: Any) -> Any:
    target = f"aten::max_pool{rank}d{'_with_indices' if a.return_indices else ''}"
    stride = [] if a.stride is None else a.stride
    return call(target, a.input, a.kernel_size, stride, a.padding, a.dilation, a.ceil_mode)


@_functions(by_rank(f"max_pool{{}}d_with_indices({_WINDOW})"))
def _max_pool_with_indices(call: Call, rank: int, a: Any) -> Any:
    a.return_indices = True
    return _max_pool(call, rank, a)


@_functions(
    by_rank(
        "avg_pool{}d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,"
        " divisor_override=None)"
    )
)
def _avg_pool(call: Call, rank: int, a: Any) -> Any:
    divisor = () if a.divisor_override is None else (a.divisor_override,)
    stride = [] if a.stride is None else a.stride
    window = a.kernel_size, stride, a.padding, a.ceil_mode, a.count_include_pad
    return call(f"aten::avg_pool{rank}d", a.input, *window, *divisor)


@_functions(by_rank("adaptive_avg_pool{}d(input, output_size)"))
def _adaptive_avg_pool(call: Call, rank: int, a: Any) -> Any:
    return call(f"aten::adaptive_avg_pool{rank}d", a.input, _each(a.output_size, rank))


@_functions(by_rank("adaptive_max_pool{}d(input, output_size, return_indices=False)"))
def _adaptive_max_pool(call: Call, rank: int, a: Any) -> Any:
    pooled = call(f"aten::adaptive_max_pool{rank}d", a.input, _each(a.output_size, rank))
    return pooled[0] if isinstance(pooled, tuple) and not a.return_indices else pooled


@_functions("layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5)")
def _layer_norm(call: Call, a: Any) -> Any:
    return call("aten::layer_norm", a.input, list(a.normalized_shape), a.weight, a.bias, a.eps)


@_functions(
    "batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5)"
)
def _batch_norm(call: Call, a: Any) -> Any:
    parameters = a.weight, a.bias, a.running_mean, a.running_var
    return call("aten::batch_norm", a.input, *parameters, a.training, a.momentum, a.eps, True)


@_functions(
    "instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True,"
    " momentum=0.1, eps=1e-5)"
)
def _instance_norm(call: Call, a: Any) -> Any:
    parameters = a.weight, a.bias, a.running_mean, a.running_var
    return call("aten::instance_norm", a.input, *parameters, a.use_input_stats, a.momentum, a.eps, True)


@_functions(
    "embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False)"
)
def _embedding(call: Call, a: Any) -> Any:
    if a.max_norm is not None:
        raise SourceError("changes rows of its table while it runs: it has a max_norm")
    return call("aten::embedding", a.weight, a.input)


@_functions(
    "embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode='mean',"
    " sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None)"
)
def _embedding_bag(call: Call, a: Any) -> Any:
    raise SourceError("calls torch.nn.functional.embedding_bag, which is not supported", hint="trace the network")


@_functions({f"{name}(input, dim=None, _stacklevel=3, dtype=None)": name for name in ("softmax", "log_softmax")})
def _softmax(call: Call, name: str, a: Any) -> Any:
    """torch.nn.functional._get_softmax_dim: without a stated dimension, 0 for 0, 1 and 3 dimensions, else 1."""
    dim = int(a.dim) if a.dim is not None else 0 if call("aten::dim", a.input) in (0, 1, 3) else 1
    return call(f"aten::{name}", a.input, dim, a.dtype)


@_functions("norm(input, p='fro', dim=None, keepdim=False, out=None, dtype=None)")
def _norm(call: Call, a: Any) -> Any:
    """torch.functional.norm and Tensor.norm, which are not the operator of that name."""
    _require_no_out(a)
    order, dims = 2 if a.p == "fro" else a.p, None if a.dim is None else _each(a.dim, 1)
    return call("aten::linalg_vector_norm", a.input, order, dims, a.keepdim, dtype=a.dtype)


@_functions("normalize(input, p=2.0, dim=1, eps=1e-12, out=None)")
def _normalize(call: Call, a: Any) -> Any:
    _require_no_out(a)
    length = call("aten::linalg_vector_norm", a.input, a.p, _each(a.dim, 1), True)
    return call("aten::div", a.input, call("aten::clamp_min", length, a.eps))


def _require_no_out(a: Any) -> None:
    if a.out is not None:
        raise SourceError("writes its result into another tensor")


def padded(call: Call, input: Any, padding: Any, mode: str) -> Any:
    """The padding of a convolution whose padding is not zeros: torch/nn/modules/conv.py."""
    amounts: Sequence[int] = [amount for size in reversed(many(padding, len(padding))) for amount in (size, size)]
    return call("aten::pad", input, list(amounts), mode, None)
