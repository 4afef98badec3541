"""Recurrent layers and cells: a layer is a Scan over its steps, whose body is the cell.

ONNX's own LSTM and GRU cannot quantize the state of each step, which is what PyTorch's dynamic layers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ...model import Dimension
from ...ops.onnx_recurrent import each_activation
from .dynamic import multiplier
from .lowering import Site, lowers, one_to_one, plain, typed_inputs
from .opsets import Lacks

Step = Callable[..., Sequence[ir.Value]]
"""(product of the input, product of the state, *states) → the next states"""


@lowers("RNN", "GRU", "LSTM")
def recurrent(site: Site) -> Sequence[ir.Value]:
    """ONNX needs the activations of each direction, and ONNX Runtime the size of the state. It has no other layout."""
    if site.node.operator == "LSTM" and site.attributes["clip"]:
        raise Lacks("has a clip, which ONNX Runtime applies to other numbers")
    names = each_activation(site.attributes, {"RNN": 1, "GRU": 2, "LSTM": 3}[site.node.operator])
    size = site.attributes["hidden_size"] or _size(site, -1)
    attributes = site.attributes | {"activations": names, "hidden_size": size}
    if not site.attributes["layout"]:
        return one_to_one(site, attributes)
    inputs = typed_inputs(site)
    turned = [x and site.emit("Transpose", x, perm=[1, 0, 2]) if i in (0, 5, 6) else x for i, x in enumerate(inputs)]
    made = plain(site, turned, attributes | {"layout": 0})
    perms = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
    return [site.emit("Transpose", y, perm=perm) if y.name else y for y, perm in zip(made, perms, strict=False)]


def _size(site: Site, axis: int = 1) -> int:
    shape = site.tensor(2).shape
    size: Dimension = None if shape is None else shape[axis]
    if not isinstance(size, int):
        raise Lacks("requires a known state size")
    return size


def _states(site: Site, x: ir.Value, count: int) -> list[ir.Value]:
    """The first states, [batch, size]; absent ones are zeros."""
    given = [site.real(5 + index) for index in range(count)]
    present = [state for state in given if state is not None]
    if len(present) == count:
        return present
    batch = site.emit("Shape", x)
    start, end, size = (site.constant("size", np.array([at], np.int64)) for at in (-2, -1, _size(site)))
    sizes = [site.emit("Slice", batch, start, end), size]
    zeros = site.emit("ConstantOfShape", site.emit("Concat", *sizes, axis=0))
    return [zeros if state is None else state for state in given]


def _split(site: Site, gates: ir.Value, count: int) -> list[ir.Value]:
    sizes = site.constant("gates", np.full(count, _size(site), np.int64))
    return site.emit_several("Split", [gates, sizes], count, axis=-1)


def _lstm_step(site: Site) -> Step:
    def step(x: ir.Value, h: ir.Value, _: ir.Value, c: ir.Value) -> Sequence[ir.Value]:
        i, f, g, o = _split(site, site.emit("Add", h, x), 4)
        kept = site.emit("Mul", site.emit("Sigmoid", f), c)
        added = site.emit("Mul", site.emit("Sigmoid", i), site.emit("Tanh", g))
        cell = site.emit("Add", kept, added)
        return site.emit("Mul", site.emit("Sigmoid", o), site.emit("Tanh", cell)), cell

    return step


def _gru_step(site: Site) -> Step:
    def step(x: ir.Value, h: ir.Value, state: ir.Value) -> Sequence[ir.Value]:
        (xr, xz, xn), (hr, hz, hn) = _split(site, x, 3), _split(site, h, 3)
        r = site.emit("Sigmoid", site.emit("Add", hr, xr))
        z = site.emit("Sigmoid", site.emit("Add", hz, xz))
        n = site.emit("Tanh", site.emit("Add", xn, site.emit("Mul", hn, r)))
        return [site.emit("Add", site.emit("Mul", site.emit("Sub", state, n), z), n)]

    return step


def _rnn_step(site: Site) -> Step:
    activation = "Relu" if site.attributes["activation"] == "relu" else "Tanh"

    def step(x: ir.Value, h: ir.Value, _: ir.Value) -> Sequence[ir.Value]:
        return [site.emit(activation, site.emit("Add", h, x))]

    return step


STEPS = {"LSTM": (_lstm_step, 2), "GRU": (_gru_step, 1), "RNN": (_rnn_step, 1)}
"""The step of a kind of layer, and its number of states."""


@lowers("qfmt.LSTMCell", "qfmt.GRUCell", "qfmt.RNNCell")
def cell(site: Site) -> Sequence[ir.Value]:
    make, count = STEPS[site.node.operator.removeprefix("qfmt.").removesuffix("Cell")]
    x = site.x
    states = _states(site, x, count)
    return make(site)(multiplier(site, 1, 3)(x), multiplier(site, 2, 4)(states[0]), *states)


@lowers("qfmt.LSTM", "qfmt.GRU")
def layer(site: Site) -> Sequence[ir.Value]:
    make, count = STEPS[site.node.operator.removeprefix("qfmt.")]
    x = site.x
    states = _states(site, x, count)
    gates = multiplier(site, 1, 3)(x)
    inner = [_value(site, what) for what in ("H", "C")[:count]]
    now = _value(site, "gates")
    with site.builder.body() as nodes:
        after = list(make(site)(now, multiplier(site, 2, 4)(inner[0]), *inner))
        y = site.emit("Identity", after[0])
    body = ir.Graph([*inner, now], [*after, y], nodes=nodes, name=f"{site.name}_step")
    for value in (*after, y):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    attributes = {"body": body, "num_scan_inputs": 1}
    if site.attributes["reverse"]:
        attributes |= {"scan_input_directions": [1], "scan_output_directions": [1]}
    *last, steps = site.emit_several("Scan", [*states, gates], count + 1, **attributes)
    return [steps, *last]


def _value(site: Site, what: str) -> ir.Value:
    return ir.Value(name=site.builder.fresh(f"{site.name}_{what}"), type=ir.TensorType(ir.DataType.FLOAT))
