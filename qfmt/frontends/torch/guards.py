"""Sizes that some kernels of torch (2.13) do not check: they read beyond their arrays, or divide by zero.

ValueError, or QfmtError, before such a kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...ops.embedding import bag_ends

if TYPE_CHECKING:
    import torch


def check(target: str, given: Mapping[str, Any]) -> None:
    """Check the arguments of a call, by the names of its schema."""
    if target in _CHECKS:
        _CHECKS[target](**given)


def _equal(what: str, *sizes: int) -> None:
    if len({*sizes}) > 1:
        raise ValueError(f"{what} of {' and '.join(map(str, sizes))} do not fit each other")


def _bags(
    indices: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    **_others: Any,
) -> None:
    bounds, factors = (None if each is None else each.numpy() for each in (offsets, per_sample_weights))
    bag_ends(indices.numpy(), bounds, factors, include_last_offset)


def _batch_norm(input: torch.Tensor, **others: Any) -> None:
    for name in ("weight", "bias", "running_mean", "running_var"):
        if others.get(name) is not None:
            _equal("channels", input.size(1), others[name].numel())


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_others: Any) -> None:
    _equal("numbers of keys and values", key.size(-2), value.size(-2))
    _equal("sizes of queries and keys", query.size(-1), key.size(-1))


def _linear(X: torch.Tensor, W_prepack: Any, **_others: Any) -> None:  # noqa: N803  (torch's names)
    _equal("features", X.size(-1), _features(W_prepack))


def _conv(qx: torch.Tensor, **others: Any) -> None:
    """QNNPACK checks the channels of its first input only."""
    packed = others["packed_weight"] if "packed_weight" in others else others["weight"]
    weight = packed.unpack()[0]
    _equal("channels", qx.size(1), weight.size(0) if packed.transpose() else weight.size(1) * packed.groups())


def _cell(input: torch.Tensor, hx: Any, w_ih: Any, w_hh: Any, **_others: Any) -> None:
    _linear(input, w_ih)
    for state in hx if isinstance(hx, Sequence) else [hx]:
        _linear(state, w_hh)


def _layers(input: torch.Tensor, params: Sequence[Any], **_others: Any) -> None:
    """Later layers get what the first ones compute."""
    if params and not _is_tensor(params[0]):
        _linear(input, params[0].__getstate__()[0][4][0])


def _features(packed: Any) -> int:
    """The inputs of packed weights, of float16 or integers."""
    import torch

    try:
        weight = packed.unpack()[0]
    except RuntimeError:
        weight = torch.ops.quantized.linear_unpack_fp16(packed)[0]
    count: int = weight.size(1)
    return count


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


_CHECKS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(("aten::embedding_bag", "quantized::embedding_bag_byte", "quantized::embedding_bag_4bit"), _bags),
    **dict.fromkeys(("aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_no_training"), _batch_norm),
    "aten::scaled_dot_product_attention": _attention,
    **{f"quantized::linear{name}": _linear for name in ("", "_relu", "_dynamic", "_relu_dynamic", "_dynamic_fp16")},
    **{f"quantized::quantized_{name}_cell_dynamic": _cell for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{
        f"quantized::conv{way}{rank}d{suffix}": _conv
        for way, suffixes in (("", ("", "_relu", "_dynamic")), ("_transpose", ("", "_dynamic")))
        for rank in (1, 2, 3)
        for suffix in suffixes
    },
    "aten::quantized_lstm": _layers,
    "aten::quantized_gru": _layers,
}

WITHOUT_ONEDNN = ("aten::lstm",)
"""Operators that torch checks only in its own kernels."""
