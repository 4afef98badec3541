"""Torch's attention as its products and softmax."""

from __future__ import annotations

from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np

from ....errors import SourceError
from .. import arguments, shapes
from ..arguments import operands
from ..building import Builder
from ..calls import EVALUATE
from ..lifts import lifts
from ..values import TensorValue, Unsupported
from .indexing import repeated
from .layouts import matrix_transpose, sliced, unsqueeze
from .linear import linear_layer
from .logic import as_in, in_float32


@lifts(
    "aten::scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,"
    " enable_gqa=False)"
)
def attention(lift: Builder, a: Any) -> Any:
    """softmax(q · kᵀ · scale + mask) · v, in float32. The result for a row that a mask hides completely is 0."""
    if arguments.number(lift, a.dropout_p):
        raise SourceError("drops random values: the network was saved in training mode", hint=EVALUATE)
    given = lift.tensor(a.query)
    q, k, v = (in_float32(lift, lift.tensor(each)) for each in (given, a.key, a.value))
    if a.enable_gqa:
        k, v = (_for_heads(lift, each, q) for each in (k, v))
    width = shapes.size(lift, q, shapes.rank(lift, q) - 1)
    factor = 1 / sqrt(arguments.whole(lift, width)) if a.scale is None else float(a.scale)
    scores = _scores(lift, q, k, factor)
    mask = _causal(lift, q, k) if a.is_causal else None if a.attn_mask is None else lift.tensor(a.attn_mask)
    if mask is not None and mask.dtype == "bool" and (known := lift.known(mask.key)) is not None and known.all():
        mask = None
    if mask is not None and mask.dtype != "bool":
        scores = lift.emit("Add", [*operands(lift, scores, mask)])
    elif mask is not None:
        scores = lift.emit("Where", [mask, scores, arguments.scalar_like(lift, scores, -np.inf)])
    weights = lift.emit("Softmax", [scores], {"axis": -1})
    if mask is not None and mask.dtype == "bool" and not a.is_causal:
        weights = lift.emit("Where", [mask, weights, arguments.scalar_like(lift, weights, 0)])
    elif mask is not None and mask.dtype != "bool" and _may_hide(lift, mask):
        most = lift.emit("ReduceMax", [scores, lift.constant(np.array([-1], np.int64))], {"keepdims": 1})
        hidden = lift.emit("Equal", [most, arguments.scalar_like(lift, most, -np.inf)])
        weights = lift.emit("Where", [hidden, arguments.scalar_like(lift, weights, 0), weights])
    return as_in(lift, lift.emit("MatMul", [weights, v]), given)


def _scores(lift: Builder, q: TensorValue, k: TensorValue, factor: float) -> TensorValue:
    """q · kᵀ · factor"""
    turned = matrix_transpose(lift, k)
    return lift.emit("MatMul", [lift.emit("Mul", [*operands(lift, q, factor)]), turned])


def _may_hide(lift: Builder, mask: TensorValue) -> bool:
    """Whether a row of a float mask may have no number but -inf."""
    known = lift.known(mask.key)
    return known is None or bool(np.isneginf(known).all(axis=-1).any())


def _for_heads(lift: Builder, x: TensorValue, q: TensorValue) -> TensorValue:
    """Keys or values of fewer heads than there are queries, repeated."""
    axis = shapes.rank(lift, x) - 3
    wanted, heads = shapes.size(lift, q, shapes.rank(lift, q) - 3), shapes.size(lift, x, axis)
    times = arguments.whole(lift, wanted) // arguments.whole(lift, heads)
    return repeated(lift, x, axis, times) if times > 1 else x


def _causal(lift: Builder, q: TensorValue, k: TensorValue) -> TensorValue:
    """Whether a query, row by row, may attend to a key: not to later ones."""
    rows, columns = (_positions(lift, x) for x in (q, k))
    return lift.emit("GreaterOrEqual", [unsqueeze(lift, rows, 1), unsqueeze(lift, columns, 0)])


def _positions(lift: Builder, x: TensorValue) -> TensorValue:
    count = shapes.shape_tensor(lift, [shapes.size(lift, x, shapes.rank(lift, x) - 2)])
    scalar = lift.emit("Squeeze", [count, lift.constant(np.array([0], np.int64))])
    return lift.emit("Range", [lift.tensor(0), scalar, lift.tensor(1)])


@lifts("aten::rms_norm")
def rms_norm(
    lift: Builder, input: TensorValue, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    """x / sqrt(mean(x²) + eps) · weight"""
    x, axes = in_float32(lift, input), lift.constant(np.arange(-len(normalized_shape), 0, dtype=np.int64))
    mean = lift.emit("ReduceMean", [lift.emit("Mul", [x, x]), axes], {"keepdims": 1})
    small = float(np.finfo("float64" if input.dtype == "float64" else "float32").eps) if eps is None else float(eps)
    root = lift.emit("Sqrt", [lift.emit("Add", [*operands(lift, mean, small)])])
    normal = lift.emit("Mul", [x, lift.emit("Reciprocal", [root])])
    if weight is not None:
        normal = lift.emit("Mul", [normal, in_float32(lift, lift.tensor(weight))])
    return as_in(lift, normal, input)


_HEADS = "qkv_weight, qkv_bias, proj_weight, proj_bias"


@lifts(
    f"aten::_native_multi_head_attention(query, key, value, embed_dim, num_head, {_HEADS}, mask=None,"
    " need_weights=True, average_attn_weights=True, mask_type=None)"
)
def multi_head_attention(lift: Builder, a: Any) -> Any:
    """The fused kernel of nn.MultiheadAttention, which torch takes without gradients, on [batch, places, features]."""
    weights = _thirds(lift, a.qkv_weight), _thirds(lift, a.qkv_bias)
    given = zip((a.query, a.key, a.value), *weights, strict=True)
    q, k, v = (_split(lift, linear_layer(lift, x, w, b), a.num_head) for x, w, b in given)
    factor = 1 / sqrt(a.embed_dim // a.num_head)
    scores = _scores(lift, q, k, factor)
    if a.mask is not None:
        hidden = lift.emit("Cast", [lift.tensor(a.mask)], {"to": "bool"})
        if a.mask_type == 1:  # of keys: [batch, keys]
            hidden = unsqueeze(lift, unsqueeze(lift, hidden, 1), 1)
        scores = lift.emit("Where", [hidden, arguments.scalar_like(lift, scores, -np.inf), scores])
    weights_of_heads = lift.emit("Softmax", [scores], {"axis": -1})
    joined = lift.emit("Transpose", [lift.emit("MatMul", [weights_of_heads, v])], {"perm": (0, 2, 1, 3)})
    features = shapes.reshape(lift, joined, [*shapes.sizes(lift, lift.tensor(a.query))[:2], a.embed_dim])
    result = linear_layer(lift, features, a.proj_weight, a.proj_bias)
    if not a.need_weights:
        return result, Unsupported()
    mean = lift.emit("ReduceMean", [weights_of_heads, lift.constant(np.array([1], np.int64))], {"keepdims": 0})
    return result, mean if a.average_attn_weights else weights_of_heads


def _thirds(lift: Builder, x: Any) -> list[TensorValue]:
    """The parts for queries, keys and values of a weight or bias."""
    value = lift.tensor(x)
    third = arguments.whole(lift, shapes.size(lift, value, 0)) // 3
    return [sliced(lift, value, 0, i * third, (i + 1) * third) for i in range(3)]


def _split(lift: Builder, x: Any, heads: int) -> TensorValue:
    """[batch, places, features] as [batch, heads, places, features / heads]."""
    parts = shapes.reshape(lift, x, [*shapes.sizes(lift, x)[:2], heads, -1])
    return lift.emit("Transpose", [parts], {"perm": (0, 2, 1, 3)})


@lifts(
    f"aten::_transformer_encoder_layer_fwd(src, embed_dim, num_heads, {_HEADS}, use_gelu, norm_first, eps,"
    " norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2,"
    " mask=None, mask_type=None)"
)
def encoder_layer(lift: Builder, a: Any) -> Any:
    """The fused kernel of nn.TransformerEncoderLayer."""

    def norm(x: Any, weight: Any, bias: Any) -> TensorValue:
        axes = {"axis": -1, "epsilon": float(a.eps)}
        return lift.emit("LayerNormalization", [x, lift.tensor(weight), lift.tensor(bias)], axes)

    def attend(x: Any) -> Any:
        given = {"query": x, "key": x, "value": x, "num_head": a.num_heads, "need_weights": False}
        return multi_head_attention(lift, SimpleNamespace(**{**vars(a), **given}))[0]

    def feed(x: Any) -> Any:
        inner = linear_layer(lift, x, a.ffn_weight_1, a.ffn_bias_1)
        active = lift.emit("Gelu", [inner], {"approximate": "none"}) if a.use_gelu else lift.emit("Relu", [inner])
        return linear_layer(lift, active, a.ffn_weight_2, a.ffn_bias_2)

    x = lift.tensor(a.src)
    first, second = (a.norm_weight_1, a.norm_bias_1), (a.norm_weight_2, a.norm_bias_2)
    if a.norm_first:
        x = lift.emit("Add", [x, attend(norm(x, *first))])
        return lift.emit("Add", [x, feed(norm(x, *second))])
    x = norm(lift.emit("Add", [x, attend(x)]), *first)
    return norm(lift.emit("Add", [x, feed(x)]), *second)
