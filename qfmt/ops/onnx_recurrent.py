"""ONNX's recurrent layers, of one or two directions, real."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import QfmtError
from ..model import Dimension, Shape
from .registry import AttributeSpec, Inference, Quantized, operator, optional, truth
from .shapes import check_sizes

Function = Callable[[Any], Any]
"""An activation."""

FUNCTIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], float, float]] = {
    "Relu": (lambda x, a, b: np.maximum(x, 0), 0, 0),
    "Tanh": (lambda x, a, b: np.tanh(x), 0, 0),
    "Sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), 0, 0),
    "Affine": (lambda x, a, b: a * x + b, 1, 0),
    "LeakyRelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0),
    "ThresholdedRelu": (lambda x, a, b: np.where(x >= a, x, 0), 1, 0),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), 1, 1),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "Elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(x)), 1, 0),
    "Softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0, 0),
    "Softplus": (lambda x, a, b: np.logaddexp(x, 0), 0, 0),
}
"""The activations, each with its default alpha and beta."""

TAKES_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
TAKES_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def _attributes(activations: tuple[str, ...], meaning: str) -> dict[str, AttributeSpec]:
    return {
        "activation_alpha": AttributeSpec("ff", (), "α of those activations that have one, in order; empty: ONNX's"),
        "activation_beta": AttributeSpec("ff", (), "β of those activations that have one, in order; empty: ONNX's"),
        "activations": optional(activations, meaning),
        "clip": optional(0.0, "inputs of activations are clamped to ± this; 0: no clamp"),
        "direction": optional(
            "forward", "`forward`, `reverse` or `bidirectional`", ("forward", "reverse", "bidirectional")
        ),
        "hidden_size": optional(0, "size of the state, which R also has; 0: not stated"),
        "layout": truth(0, "1: the batch is the first dimension of X, of Y and of the states"),
    }


def each_activation(a: Mapping[str, Any], count: int) -> list[str]:
    """`count` activations for each direction: those of one direction serve both."""
    directions = 2 if a["direction"] == "bidirectional" else 1
    return [name for name, _ in zip(cycle(a["activations"]), range(count * directions), strict=False)]


def _functions(a: Mapping[str, Any], count: int) -> list[list[Function]]:
    names = each_activation(a, count)
    alphas, betas = iter(a["activation_alpha"]), iter(a["activation_beta"])
    made: list[Function] = []
    for name in names:
        if name not in FUNCTIONS:
            raise QfmtError(f"unknown activation {name!r}", hint=f"use one of {', '.join(FUNCTIONS)}")
        function, alpha, beta = FUNCTIONS[name]
        alpha = next(alphas, alpha) if name in TAKES_ALPHA else alpha
        beta = next(betas, beta) if name in TAKES_BETA else beta
        made.append(partial(_activated, function, np.float32(alpha), np.float32(beta), a["clip"]))
    return [made[i : i + count] for i in range(0, len(made), count)]


def _activated(function: Callable[..., Array], alpha: Any, beta: Any, clip: float, x: Array) -> Array:
    return np.asarray(function(np.clip(x, -clip, clip) if clip else x, alpha, beta)).astype(x.dtype)


def _shape(given: Inference, gates: int, states: int) -> list[Shape]:
    x, r, a = given.known(0), given.known(2), given.attributes
    if len(x) != 3 or len(r) != 3:
        raise QfmtError(f"requires an input and weights of 3 dimensions, not {len(x)} and {len(r)}")
    size, directions = r[2], 2 if a["direction"] == "bidirectional" else 1
    batch, steps = x[:2] if a["layout"] else (x[1], x[0])
    state = (batch, directions, size) if a["layout"] else (directions, batch, size)

    def rows(count: int) -> Dimension:
        return count * size if isinstance(size, int) else None

    for index in 1, 2:
        check_sizes(given, index, (directions, rows(gates), x[2] if index == 1 else size), "a weight")
    check_sizes(given, 3, (directions, rows(2 * gates)), "a bias")
    check_sizes(given, 4, (batch,), "lengths")
    for index in range(5, 5 + states):
        check_sizes(given, index, state, "a state")
    check_sizes(given, 7, (directions, rows(3)), "peepholes")
    y = (batch, steps, directions, size) if a["layout"] else (steps, directions, batch, size)
    return [y, *[state] * states]


Step = Callable[..., Any]
"""(products of the input, states) → the next states"""


def _run(
    steps: Sequence[Step], inputs: Sequence[Array], lengths: Array | None, states: Sequence[Array], a: Mapping[str, Any]
) -> list[Array]:
    """Y and the last states: for each direction its step, its [steps, batch, …] input and its first states."""
    results, last = [], []
    for number, (step, x) in enumerate(zip(steps, inputs, strict=True)):
        backwards = a["direction"] == "reverse" or number == 1
        now = [state[number] for state in states]
        y = np.zeros((x.shape[0], *now[0].shape), x.dtype)
        for at in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
            new = step(x[at], *now)
            runs = np.ones((x.shape[1], 1), bool) if lengths is None else (at < lengths)[:, None]
            now = [np.where(runs, after, before) for after, before in zip(new, now, strict=True)]
            y[at] = np.where(runs, now[0], 0)
        results.append(y)
        last.append(now)
    y = np.stack(results, 1)
    ends = [np.stack([each[i] for each in last]) for i in range(len(states))]
    return [y.transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in ends)] if a["layout"] else [y, *ends]


def _given(
    x: Array, r: Array, states: Sequence[Array | None], b: Array | None, gates: int, a: Mapping[str, Any]
) -> tuple[Array, list[Array], Array]:
    """X and the states with the steps first, zeros for absent states; the biases [directions, 2, gates · size]."""
    size, directions = r.shape[2], r.shape[0]
    x = x.swapaxes(0, 1) if a["layout"] else x
    zeros = np.zeros((directions, x.shape[1], size), x.dtype)
    full = [zeros if each is None else each.swapaxes(0, 1) if a["layout"] else each for each in states]
    bias = np.zeros((directions, 2 * gates * size), x.dtype) if b is None else b
    return x, full, bias.reshape(directions, 2, gates * size)


def _rnn_step(r: Array, rb: Array, function: Function) -> Step:
    return lambda x, h: (function(x + h @ r.T + rb),)


@operator(
    "RNN",
    22,
    "X W R B? sequence_lens? initial_h? -> Y? Y_h?",
    attributes=_attributes(("Tanh", "Tanh"), "f, for each direction"),
    shape=partial(_shape, gates=1, states=1),
    quantized=Quantized.FLOAT_ONLY,
)
def rnn(x: Array, w: Array, r: Array, b: Array | None, lengths: Array | None, h: Array | None, **a: Any) -> list[Array]:
    """H = f(X[t] · Wᵀ + Wb + H · Rᵀ + Rb) for each step t; Y[t] = H, Y_h the last H.

    X is [steps, batch, inputs], W [directions, size, inputs], R [directions, size, size], B = [Wb, Rb]
    [directions, 2 · size], Y [steps, directions, batch, size]. After sequence_lens steps H stays, and Y is 0.
    """
    x, states, bias = _given(x, r, [h], b, 1, a)
    steps = [_rnn_step(r[d], bias[d, 1], f) for d, (f,) in enumerate(_functions(a, 1)[: len(r)])]
    return _run(steps, [x @ w[d].T + bias[d, 0] for d in range(len(w))], lengths, states, a)


def _gru_step(r: Array, rb: Array, functions: list[Function], before_reset: int) -> Step:
    (f, g), size = functions, r.shape[1]

    def step(x: Array, h: Array) -> tuple[Array]:
        gates = h @ r[: 2 * size].T + rb[: 2 * size] + x[:, : 2 * size]
        z, reset = np.split(f(gates), 2, -1)
        if before_reset:
            inner = reset * (h @ r[2 * size :].T + rb[2 * size :])
        else:
            inner = (reset * h) @ r[2 * size :].T + rb[2 * size :]
        return ((1 - z) * g(x[:, 2 * size :] + inner) + z * h,)

    return step


@operator(
    "GRU",
    22,
    "X W R B? sequence_lens? initial_h? -> Y? Y_h?",
    attributes={
        **_attributes(("Sigmoid", "Tanh"), "f and g, for each direction"),
        "linear_before_reset": truth(0, "1: multiply by R before multiplying by r"),
    },
    shape=partial(_shape, gates=3, states=1),
    quantized=Quantized.FLOAT_ONLY,
)
def gru(x: Array, w: Array, r: Array, b: Array | None, lengths: Array | None, h: Array | None, **a: Any) -> list[Array]:
    """For each step, with [xz, xr, xh] = X[t] · Wᵀ + Wb, a third of the columns each, and R, Rb in the same order:

    z = f(xz + H · Rzᵀ + Rbz), r = f(xr + H · Rrᵀ + Rbr), n = g(xh + (r · H) · Rhᵀ + Rbh), or
    g(xh + r · (H · Rhᵀ + Rbh)) with linear_before_reset; H = (1 - z) · n + z · H; Y[t] = H. Shapes are as in RNN, with
    3 · size rows.
    """
    x, states, bias = _given(x, r, [h], b, 3, a)
    chosen = _functions(a, 2)
    steps = [_gru_step(r[d], bias[d, 1], chosen[d], a["linear_before_reset"]) for d in range(len(r))]
    return _run(steps, [x @ w[d].T + bias[d, 0] for d in range(len(w))], lengths, states, a)


def _lstm_step(r: Array, rb: Array, p: Array, functions: list[Function], input_forget: int) -> Step:
    f, g, out = functions
    pi, po, pf = np.split(p, 3)

    def step(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, o, forget, cell = np.split(x + h @ r.T + rb, 4, -1)
        i = f(i + pi * c)
        kept = 1 - i if input_forget else f(forget + pf * c)
        c = kept * c + i * g(cell)
        return f(o + po * c) * out(c), c

    return step


@operator(
    "LSTM",
    22,
    "X W R B? sequence_lens? initial_h? initial_c? P? -> Y? Y_h? Y_c?",
    attributes={
        **_attributes(("Sigmoid", "Tanh", "Tanh"), "f, g and h, for each direction"),
        "input_forget": truth(0, "1: the forget gate is 1 - i"),
    },
    shape=partial(_shape, gates=4, states=2),
    quantized=Quantized.FLOAT_ONLY,
)
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h: Array | None,
    c: Array | None,
    p: Array | None,
    **a: Any,
) -> list[Array]:
    """For each step, with [i, o, f, c] = X[t] · Wᵀ + Wb + H · Rᵀ + Rb, a quarter of the columns each:

    I = f(i + Pi · C), F = f(f + Pf · C), C = F · C + I · g(c), O = f(o + Po · C), H = O · h(C); Y[t] = H. Y_h and Y_c
    are the last H and C. P = [Pi, Po, Pf], zeros if absent. Shapes are as in RNN, with 4 · size rows.
    """
    x, states, bias = _given(x, r, [h, c], b, 4, a)
    peepholes = np.zeros((len(r), 3 * r.shape[2]), x.dtype) if p is None else p
    chosen = _functions(a, 3)
    steps = [_lstm_step(r[d], bias[d, 1], peepholes[d], chosen[d], a["input_forget"]) for d in range(len(r))]
    return _run(steps, [x @ w[d].T + bias[d, 0] for d in range(len(w))], lengths, states, a)
