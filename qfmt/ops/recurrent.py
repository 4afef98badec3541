"""Recurrent layers and cells, whose gates are linear layers: dynamic ones if the weights are quantized.

Weights and biases are PyTorch's: the gates are concatenated along the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..arithmetic import f32
from ..arrays import Array
from ..errors import QfmtError
from ..memory import require
from ..model import Dimension, Shape
from .accumulation import real
from .dynamic import REDUCE_RANGE, linear_integer
from .linear import linear
from .registry import Inference, Operand, Quantized, operator, optional, truth
from .shapes import check_bias, check_sizes

Product = Callable[[Any, Any, Any], Any]
"""(x, weight, bias) → x · weightᵀ + bias"""

REVERSE = {"reverse": truth(0, "1: from the last step to the first")}


def sigmoid(x: Array) -> Array:
    """f32(1 / f32(1 + e)), e the float32 nearest to exp(-x)."""
    return f32(1) / (f32(1) + np.exp(-x.astype(np.float64)).astype(f32))


def tanh(x: Array) -> Array:
    """The float32 nearest to tanh(x)."""
    return np.tanh(x.astype(np.float64)).astype(f32)


def _quantized(compute: Callable[..., Any], meaning: str) -> Callable[..., Any]:
    """The quantized form of a layer or a cell."""

    def integer(
        x: Operand, *weights_and_states: Operand | None, rule: str, reduce_range: int, **attributes: Any
    ) -> Any:
        def product(x: Array, w: Operand, b: Operand | None) -> Array:
            return linear_integer(Operand(x, None), w, b, rule=rule, reduce_range=reduce_range)

        weights, states = weights_and_states[:4], weights_and_states[4:]
        return compute(product, real(x), *weights, *(each and real(each) for each in states), **attributes)

    integer.__doc__ = meaning
    return integer


# Shapes: X is [steps, batch, inputs], or [batch, inputs] for a cell


def _layer_shape(given: Inference, gates: int, states: int) -> list[Shape]:
    steps, batch = _leading(given, 3)
    state = _state(given, gates, states, batch)
    return [(steps, *state), *[state] * states]


def _cell_shape(given: Inference, gates: int, states: int) -> list[Shape]:
    (batch,) = _leading(given, 2)
    return [_state(given, gates, states, batch)] * states


def _state(given: Inference, gates: int, states: int, batch: Dimension) -> tuple[Dimension, Dimension]:
    """The shape of a state, from the weights: W_ih [gates · size, inputs] and W_hh [gates · size, size]."""
    shapes = given.known(1), given.known(2)
    if any(len(shape) != 2 for shape in shapes):
        raise QfmtError("the weights of a recurrent layer have 2 dimensions")
    size = shapes[1][1]
    for index, (rows, _) in enumerate(shapes):
        if isinstance(rows, int) and isinstance(size, int) and rows != gates * size:
            raise QfmtError(f"a state of size {size} needs weights of {gates * size} rows, not {rows}")
        check_bias(given, rows, 3 + index)
        check_sizes(given, 5 + index, (batch, size), "a state")
    return batch, size


def _leading(given: Inference, rank: int) -> tuple[Dimension, ...]:
    x, inputs = given.shapes[0], given.known(1)[-1]
    if x is None:
        return (None,) * (rank - 1)
    if len(x) != rank:
        raise QfmtError(f"needs an input of {rank} dimensions, not {len(x)}")
    if isinstance(x[-1], int) and isinstance(inputs, int) and x[-1] != inputs:
        raise QfmtError(f"the input has {x[-1]} features, the weights expect {inputs}")
    return x[:-1]


_recurrent = partial(operator, version=1, quantized=Quantized.WEIGHTS, weights=(1, 2), dtype="float32")


# Steps: each takes the product of the input, the product of the first state, and the states, and gives the next states


def _lstm_step(x: Array, h: Array, _: Array, c: Array) -> tuple[Array, Array]:
    i, f, g, o = np.split(h + x, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru_step(x: Array, h: Array, state: Array) -> tuple[Array]:
    (xr, xz, xn), (hr, hz, hn) = np.split(x, 3, -1), np.split(h, 3, -1)
    r, z = sigmoid(hr + xr), sigmoid(hz + xz)
    n = tanh(xn + hn * r)
    return ((state - n) * z + n,)


def _rnn_step(x: Array, h: Array, _: Array, *, activation: str) -> tuple[Array]:
    return (np.maximum(h + x, f32(0)) if activation == "relu" else tanh(h + x),)


Step = Callable[..., tuple[Array, ...]]

SUMMING = 32
"""Bytes for each element of a product."""


# Layers


def _states(states: Sequence[Array | None], batch: int, w_hh: Any) -> tuple[Array, ...]:
    """States of [batch, size]; absent ones are zeros."""
    shape = batch, (w_hh.array if isinstance(w_hh, Operand) else w_hh).shape[1]
    return tuple(np.zeros(shape, f32) if state is None else state for state in states)


def _layer(
    step: Step, product: Product, x: Array, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *states: Any, reverse: int
) -> list[Array]:
    """The first state after each step, and all states after the last."""
    require(SUMMING * prod(x.shape[:2]) * (w_ih.array if isinstance(w_ih, Operand) else w_ih).shape[0])
    gates = product(x, w_ih, b_ih)
    steps, batch = gates.shape[:2]
    now = _states(states, batch, w_hh)
    y = np.zeros((steps, *now[0].shape), f32)
    for at in reversed(range(steps)) if reverse else range(steps):
        now = step(gates[at], product(now[0], w_hh, b_hh), *now)
        y[at] = now[0]
    return [y, *now]


def _cell(
    step: Step, product: Product, x: Array, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, *states: Any, **options: Any
) -> tuple[Array, ...]:
    """All states after one step."""
    now = _states(states, x.shape[0], w_hh)
    return step(product(x, w_ih, b_ih), product(now[0], w_hh, b_hh), *now, **options)


_lstm, _gru = partial(_layer, _lstm_step), partial(_layer, _gru_step)
_lstm_cell, _gru_cell, _rnn_cell = (partial(_cell, step) for step in (_lstm_step, _gru_step, _rnn_step))


@_recurrent(
    "qfmt.LSTM",
    signature="X W_ih W_hh B_ih? B_hh? H_0? C_0? -> Y H_n C_n",
    attributes={**REDUCE_RANGE, **REVERSE},
    shape=partial(_layer_shape, gates=4, states=2),
    integer=_quantized(
        _lstm,
        "Products as in qfmt.DynamicLinear: X · W_ihᵀ of all steps at once, with one scale, H · W_hhᵀ step by step.",
    ),
)
def lstm(*operands: Any, reduce_range: int, reverse: int) -> list[Array]:
    """One layer in one direction. H and C start as H_0 and C_0, or as zeros; for each step x of X, with
    [i, f, g, o] = (H · W_hhᵀ + B_hh) + (x · W_ihᵀ + B_ih), a quarter of the columns each:

    C becomes σ(f) · C + σ(i) · tanh(g), H becomes σ(o) · tanh(C), and Y[step] is H. H_n and C_n are the last ones.

    X is [steps, batch, inputs], W_ih [4 · size, inputs], W_hh [4 · size, size], H and C [batch, size]. σ(x) is
    f32(1 / f32(1 + e)) with e the float32 nearest to exp(-x), and tanh(x) the float32 nearest to it; the other
    operations are in float32.
    """
    return _lstm(linear, *operands, reverse=reverse)


@_recurrent(
    "qfmt.GRU",
    signature="X W_ih W_hh B_ih? B_hh? H_0? -> Y H_n",
    attributes={**REDUCE_RANGE, **REVERSE},
    shape=partial(_layer_shape, gates=3, states=1),
    integer=_quantized(_gru, "Products as in qfmt.LSTM."),
)
def gru(*operands: Any, reduce_range: int, reverse: int) -> list[Array]:
    """One layer in one direction. H starts as H_0, or as zeros; for each step x of X, with
    [xr, xz, xn] = x · W_ihᵀ + B_ih and [hr, hz, hn] = H · W_hhᵀ + B_hh, a third of the columns each:

    r = σ(hr + xr), z = σ(hz + xz), n = tanh(xn + hn · r); H becomes (H - n) · z + n, and Y[step] is H. H_n is the
    last one.

    X is [steps, batch, inputs], W_ih [3 · size, inputs], W_hh [3 · size, size], H [batch, size]; σ and tanh as in
    qfmt.LSTM.
    """
    return _gru(linear, *operands, reverse=reverse)


# Cells


@_recurrent(
    "qfmt.LSTMCell",
    signature="X W_ih W_hh B_ih? B_hh? H_0? C_0? -> H_1 C_1",
    attributes=REDUCE_RANGE,
    shape=partial(_cell_shape, gates=4, states=2),
    integer=_quantized(_lstm_cell, "Products as in qfmt.DynamicLinear."),
)
def lstm_cell(*operands: Any, reduce_range: int) -> tuple[Array, ...]:
    """One step of qfmt.LSTM: X is [batch, inputs], H and C are [batch, size]."""
    return _lstm_cell(linear, *operands)


@_recurrent(
    "qfmt.GRUCell",
    signature="X W_ih W_hh B_ih? B_hh? H_0? -> H_1",
    attributes=REDUCE_RANGE,
    shape=partial(_cell_shape, gates=3, states=1),
    integer=_quantized(_gru_cell, "Products as in qfmt.DynamicLinear."),
)
def gru_cell(*operands: Any, reduce_range: int) -> tuple[Array, ...]:
    """One step of qfmt.GRU: X is [batch, inputs], H is [batch, size]."""
    return _gru_cell(linear, *operands)


@_recurrent(
    "qfmt.RNNCell",
    signature="X W_ih W_hh B_ih? B_hh? H_0? -> H_1",
    attributes={"activation": optional("tanh", "`tanh` or `relu`", ("tanh", "relu")), **REDUCE_RANGE},
    shape=partial(_cell_shape, gates=1, states=1),
    integer=_quantized(_rnn_cell, "Products as in qfmt.DynamicLinear."),
)
def rnn_cell(*operands: Any, reduce_range: int, activation: str) -> tuple[Array, ...]:
    """H_1 = activation((H_0 · W_hhᵀ + B_hh) + (X · W_ihᵀ + B_ih)), H_0 zeros if absent.

    X is [batch, inputs], H_0 is [batch, size]; tanh is the one of qfmt.LSTM.
    """
    return _rnn_cell(linear, *operands, activation=activation)
