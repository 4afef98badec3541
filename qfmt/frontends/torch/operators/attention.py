"""Torch's attention as its products and softmax."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from .. import arguments, shapes
from ..arguments import operands
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue
from .indexing import repeated
from .layouts import unsqueeze


@lifts(
    "aten::scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,"
    " enable_gqa=False)"
)
def attention(lift: Builder, a: Any) -> Any:
    """softmax(q · kᵀ · scale + mask) · v. The result for a row that a mask hides completely is 0."""
    if a.dropout_p:
        return NotImplemented
    q, k, v = (lift.tensor(each) for each in (a.query, a.key, a.value))
    if a.enable_gqa:
        k, v = (_for_heads(lift, each, q) for each in (k, v))
    width = shapes.size(lift, q, shapes.rank(lift, q) - 1)
    factor = 1 / sqrt(arguments.whole(lift, width)) if a.scale is None else float(a.scale)
    rank = shapes.rank(lift, k)
    turned = lift.emit("Transpose", [k], {"perm": (*range(rank - 2), rank - 1, rank - 2)})
    scores = lift.emit("MatMul", [lift.emit("Mul", [*operands(lift, q, factor)]), turned])
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
    return lift.emit("MatMul", [weights, v])


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
    axes = lift.constant(np.arange(-len(normalized_shape), 0, dtype=np.int64))
    mean = lift.emit("ReduceMean", [lift.emit("Mul", [input, input]), axes], {"keepdims": 1})
    small = float(np.finfo("float64" if input.dtype == "float64" else "float32").eps) if eps is None else float(eps)
    root = lift.emit("Sqrt", [lift.emit("Add", [*operands(lift, mean, small)])])
    normal = lift.emit("Mul", [input, lift.emit("Reciprocal", [root])])
    return normal if weight is None else lift.emit("Mul", [normal, weight])
