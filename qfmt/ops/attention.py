"""Attention and rotary position embeddings of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..memory import require
from ..model import Dimension, Shape, numpy_dtype
from .registry import ELEMENT_TYPES, Inference, Quantized, operator, optional, truth
from .shapes import check_broadcasts


def _heads(shape: tuple[Dimension, ...], heads: int) -> tuple[Dimension, ...]:
    """[batch, heads, length, size] of [batch, length, heads · size], or unchanged."""
    if len(shape) == 4:
        return shape
    if len(shape) != 3 or heads < 1:
        raise QfmtError(f"requires 4 dimensions, or 3 and the number of heads, not {len(shape)} and {heads}")
    if isinstance(shape[2], int) and shape[2] % heads:
        raise QfmtError(f"a size of {shape[2]} cannot be split into {heads} heads")
    return (shape[0], heads, shape[1], shape[2] // heads if isinstance(shape[2], int) else None)


def _check_equal(what: str, *sizes: Dimension) -> None:
    """QfmtError for sizes that differ: they would broadcast."""
    if len(known := {size for size in sizes if isinstance(size, int)}) > 1:
        raise QfmtError(f"{what} of {', '.join(map(str, sorted(known)))} do not fit each other")


def _attention_shape(given: Inference) -> list[Shape]:
    a = given.attributes
    q = _heads(given.known(0), a["q_num_heads"])
    k, v = (_heads(given.known(index), a["kv_num_heads"]) for index in (1, 2))
    pasts = [shape for shape in given.shapes[4:6] if shape is not None]
    if any(len(shape) != 4 for shape in pasts):
        raise QfmtError("past keys and values have 4 dimensions")
    _check_equal("batches", q[0], *(each[0] for each in (k, v, *pasts)), *(given.shapes[6] or ()))
    _check_equal("heads of keys and values", *(each[1] for each in (k, v, *pasts)))
    if isinstance(q[1], int) and isinstance(k[1], int) and (not k[1] or q[1] % k[1]):
        raise QfmtError(f"{q[1]} heads of queries do not fit {k[1]} heads of keys")
    _check_equal("sizes of queries and keys", q[3], k[3], *(each[3] for each in given.shapes[4:5] if each is not None))
    _check_equal("sizes of values", v[3], *(each[3] for each in given.shapes[5:6] if each is not None))
    _check_equal("numbers of keys and values", k[2], v[2])
    _check_equal("numbers of past keys and values", *(each[2] for each in pasts))
    past, length = given.shapes[4], None
    if past is not None and isinstance(past[2], int) and isinstance(k[2], int):
        length = past[2] + k[2]  # without a past, whose size may only be unknown, nothing is known
    mask = given.shapes[3]
    if mask is not None:
        check_broadcasts((*mask[:-1], 1), (q[0], q[1], q[2], length), "a mask")
    y: Shape = (q[0], q[1], q[2], v[3])
    if len(given.known(0)) == 3:
        y = (q[0], q[2], q[1] * v[3] if isinstance(q[1], int) and isinstance(v[3], int) else None)
    return [y, (k[0], k[1], length, k[3]), (v[0], v[1], length, v[3]), (q[0], q[1], q[2], length)]


def _split(x: Array, heads: int) -> Array:
    _heads(x.shape, heads)
    return x if x.ndim == 4 else x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).swapaxes(1, 2)


def _bias(
    mask: Array | None, shape: tuple[int, int], before: Array, padded: Array | None, a: Mapping[str, int], kind: Any
) -> Array:
    """The addend of the products: the mask, -∞ where it is false or ends, and for keys that are later or too far away.

    `before` is, for each element of the batch or for all, how many keys precede those of the first query; `padded`
    is how many keys count.
    """
    rows, columns = shape
    bias = np.zeros(shape, kind)
    if mask is not None:
        real = np.where(mask, kind.type(0), kind.type(-np.inf)) if mask.dtype == np.bool_ else mask
        missing = columns - real.shape[-1]
        bias = bias + np.pad(real, [*[(0, 0)] * (real.ndim - 1), (0, missing)], constant_values=-np.inf)
    ahead = np.arange(columns) - np.arange(rows)[:, None] - before.reshape(-1, 1, 1, 1)
    hidden = np.zeros(ahead.shape, bool)
    if a["is_causal"]:
        hidden |= ahead > 0
    if a["left_window_size"] >= 0:
        hidden |= ahead < -a["left_window_size"]
    if a["right_window_size"] >= 0:
        hidden |= ahead > a["right_window_size"]
    if padded is not None:
        hidden = hidden | (np.arange(columns) >= padded.reshape(-1, 1, 1, 1))
    return bias + np.where(hidden, kind.type(-np.inf), kind.type(0))


def _softmax(x: Array, hidden: Array) -> Array:
    top = x.max(-1, keepdims=True)
    powers = np.exp(x - np.where(np.isfinite(top), top, x.dtype.type(0)))
    total = powers.sum(-1, keepdims=True)
    return np.where(hidden, x.dtype.type(0), powers / np.where(total == 0, x.dtype.type(1), total))


@operator(
    "Attention",
    25,
    "Q K V attn_mask? past_key? past_value? nonpad_kv_seqlen? -> Y present_key? present_value? qk_matmul_output?",
    attributes={
        "is_causal": truth(0, "1: a query sees no later key"),
        "kv_num_heads": optional(0, "how many heads keys and values of 3 dimensions have"),
        "left_window_size": optional(-1, "how many keys before its own place a query sees; -1: all"),
        "q_num_heads": optional(0, "how many heads queries of 3 dimensions have"),
        "qk_matmul_output_mode": optional(
            0,
            "what qk_matmul_output is: 0 the products, 1 capped, 2 with the mask added, 3 after softmax",
            (0, 1, 2, 3),
        ),
        "right_window_size": optional(-1, "how many keys after its own place a query sees; -1: all"),
        "scale": optional(0.0, "factor of the products; 0: 1 / √size"),
        "softcap": optional(0.0, "c: a product p becomes c · tanh(p / c); 0: no change"),
        "softmax_precision": optional(
            "", "dtype in which softmax is computed; empty: float32, or that of Q if it is wider", ("", *ELEMENT_TYPES)
        ),
    },
    shape=_attention_shape,
    quantized=Quantized.FLOAT_ONLY,
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    lengths: Array | None,
    **a: Any,
) -> list[Array]:
    """Y = Softmax(√s · Q · (√s · K)ᵀ + mask) · V for each head, s = scale.

    Q, K and V are [batch, heads, length, size], or [batch, length, heads · size]. past_key and past_value
    are concatenated before K and V, and are outputs together with them. Of nonpad_kv_seqlen keys (int64, one number for
    each of the batch) the last belong to the queries; keys after them are ignored. Each head of K and V serves an equal
    number of heads of Q. A mask is added; a mask of bool hides where it is false. Keys beyond its last dimension are
    hidden. The result for a row in which everything is hidden is zeros.
    """
    flat, kind = q.ndim == 3, q.dtype
    q, k, v = _split(q, a["q_num_heads"]), _split(k, a["kv_num_heads"]), _split(v, a["kv_num_heads"])
    keys = k if past_key is None else np.concatenate([past_key, k], 2)
    values = v if past_value is None else np.concatenate([past_value, v], 2)
    repeat = q.shape[1] // keys.shape[1]
    wide = numpy_dtype(a["softmax_precision"] or "float32").itemsize
    row = q.itemsize * (3 * q.shape[2] + 3 * q.shape[3] + values.shape[3]) + 2 * wide * q.shape[2]
    require(prod(q.shape[:2]) * keys.shape[2] * row)  # products, weights, one more in between; repeated keys
    root = kind.type(sqrt(a["scale"] or 1 / sqrt(q.shape[3])))
    products = np.matmul(q * root, np.repeat(keys, repeat, 1).swapaxes(2, 3) * root).astype(kind)
    cap = kind.type(a["softcap"])
    capped = np.tanh(products / cap) * cap if a["softcap"] else products
    before = np.array(0 if past_key is None else past_key.shape[2])
    if lengths is not None:
        if past_key is not None:
            raise QfmtError("nonpad_kv_seqlen and past_key exclude each other")
        before = lengths - q.shape[2]
    bias = _bias(mask, (q.shape[2], keys.shape[2]), before, lengths, a, kind)
    masked = (capped + bias).astype(kind)
    exact = masked.astype(numpy_dtype(a["softmax_precision"])) if a["softmax_precision"] else masked
    weights = _softmax(exact, np.isneginf(bias.max(-1, keepdims=True))).astype(kind)
    y = np.matmul(weights, np.repeat(values, repeat, 1)).astype(kind)
    if flat:
        y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return [y, keys, values, (products, capped, masked, weights)[a["qk_matmul_output_mode"]]]


def _rotary_shape(given: Inference) -> list[Shape]:
    """Of a cache with a number for each pair: [batch, length, pairs], or [positions, pairs]."""
    x, turned = given.known(0), given.attributes["rotary_embedding_dim"]
    batch, _, length, size = _heads(x, given.attributes["num_heads"])
    turned = turned or size
    if isinstance(turned, int) and (turned % 2 or (isinstance(size, int) and turned > size)):
        raise QfmtError(f"{turned} of {size} elements of a head cannot be rotated in pairs")
    for cache in given.shapes[1:3]:
        if cache is not None:
            chosen = (batch, length, *cache[1:]) if len(cache) == 2 else cache
            wanted = (batch, length, turned // 2 if isinstance(turned, int) else None)
            check_broadcasts(chosen, wanted, "a cache of cosines or sines")
    if len(given.shapes) > 3 and given.shapes[3] is not None:
        check_broadcasts(given.shapes[3], (batch, length), "positions")
    return [x]


@operator(
    "RotaryEmbedding",
    23,
    "X cos_cache sin_cache position_ids? -> Y",
    attributes={
        "interleaved": truth(0, "1: the elements of a pair are adjacent; 0: they are half the rotated size apart"),
        "num_heads": optional(0, "how many heads X of 3 dimensions has"),
        "rotary_embedding_dim": optional(0, "how many elements of a head are rotated; 0: all"),
    },
    shape=_rotary_shape,
    quantized=Quantized.FLOAT_ONLY,
)
def rotary_embedding(
    x: Array,
    cosine: Array,
    sine: Array,
    position_ids: Array | None,
    *,
    interleaved: int,
    num_heads: int,
    rotary_embedding_dim: int,
) -> Array:
    """Y = X with pairs (a, b) of a head rotated to (cos · a - sin · b, sin · a + cos · b).

    X is [batch, heads, length, size], or [batch, length, heads · size]. cos_cache and sin_cache are
    [batch, length, pairs], or, with position_ids [batch, length], [positions, pairs].
    """
    heads = x.swapaxes(1, 2) if x.ndim == 4 else x.reshape(*x.shape[:2], num_heads, -1)
    turned = rotary_embedding_dim or heads.shape[-1]
    if any(cache.ndim != (3 if position_ids is None else 2) for cache in (cosine, sine)):
        raise QfmtError("caches have 3 dimensions, or 2 with position_ids")
    cos, sin = ((each if position_ids is None else each[position_ids])[:, :, None] for each in (cosine, sine))
    part = heads[..., :turned]
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else np.split(part, 2, -1)
    pair = (cos * a - sin * b, sin * a + cos * b)
    rotated = np.stack(pair, -1).reshape(part.shape) if interleaved else np.concatenate(pair, -1)
    y = np.concatenate([rotated, heads[..., turned:]], -1)
    return y.swapaxes(1, 2) if x.ndim == 4 else y.reshape(x.shape)
