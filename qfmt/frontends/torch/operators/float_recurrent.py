"""Torch's float recurrent layers as ONNX's, which have another order of gates, and separate directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import SourceError
from .. import arguments, shapes
from ..building import Builder
from ..lifts import lifts
from ..values import TensorValue
from .layouts import permute, unsqueeze

GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""ONNX's order, in torch's numbers: i, o, f, c of i, f, g, o; z, r, h of r, z, n."""


_OPTIONS = "params, has_biases, num_layers, dropout, train, bidirectional, batch_first"


@lifts(f"aten::lstm(input, hx, {_OPTIONS})")
def lstm(lift: Builder, a: Any) -> Any:
    if not isinstance(a.hx, list | tuple) or len(a.hx) != 2:
        return NotImplemented  # for a packed sequence
    return _layers(lift, "LSTM", a, a.hx)


@lifts(f"aten::gru(input, hx, {_OPTIONS})")
def gru(lift: Builder, a: Any) -> Any:
    return _layers(lift, "GRU", a, [a.hx]) if isinstance(a.params, list | tuple) else NotImplemented


def _layers(lift: Builder, operator: str, a: Any, states: Sequence[Any]) -> Any:
    options = (a.has_biases, a.num_layers, a.train, a.bidirectional, a.batch_first)
    biases, layers, train, both, batch_first = (int(arguments.number(lift, option)) for option in options)
    if train:
        raise SourceError("is in training mode", hint="call model.eval() before exporting")
    x, directions, each = lift.tensor(a.input), 1 + both, 4 if biases else 2
    if len(a.params) != layers * directions * each:
        raise SourceError(f"has {len(a.params)} parameters for {layers} layers")
    x = permute(lift, x, [1, 0, 2]) if batch_first else x
    last: list[list[TensorValue]] = [[] for _ in states]
    for layer in range(layers):
        begin = layer * directions
        own = [a.params[(begin + way) * each : (begin + way + 1) * each] for way in range(directions)]
        first = [_rows(lift, lift.tensor(state), begin, begin + directions) for state in states]
        x, ends = _layer(lift, operator, x, own, first)
        for collected, end in zip(last, ends, strict=True):
            collected.append(end)
    x = permute(lift, x, [1, 0, 2]) if batch_first else x
    return [x, *(ends[0] if layers == 1 else lift.emit("Concat", ends, {"axis": 0}) for ends in last)]


def _layer(
    lift: Builder, operator: str, x: TensorValue, params: Sequence[Sequence[Any]], states: Sequence[TensorValue]
) -> tuple[TensorValue, list[TensorValue]]:
    parts = [[_in_order(lift, operator, lift.tensor(each)) for each in way] for way in params]
    w, r = (_joined(lift, [unsqueeze(lift, way[index], 0) for way in parts]) for index in (0, 1))
    b = None
    if len(parts[0]) == 4:
        b = _joined(lift, [unsqueeze(lift, _joined(lift, way[2:]), 0) for way in parts])
    hidden = arguments.whole(lift, shapes.size(lift, r, 2))
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "bidirectional" if len(parts) == 2 else "forward",
        "activations": (("Sigmoid", "Tanh", "Tanh") if operator == "LSTM" else ("Sigmoid", "Tanh")) * len(parts),
    }
    if operator == "GRU":
        attributes["linear_before_reset"] = 1
    y, *ends = lift.emit_many(operator, [x, w, r, b, None, *states], attributes, outputs=1 + len(states))
    apart = lift.emit("Transpose", [y], {"perm": (0, 2, 1, 3)})
    outer = [shapes.size(lift, apart, axis) for axis in (0, 1)]
    return shapes.reshape(lift, apart, [*outer, hidden * len(parts)]), ends


def _in_order(lift: Builder, operator: str, value: TensorValue) -> TensorValue:
    """The rows of the gates in ONNX's order."""
    gates = GATES[operator]
    rows = arguments.whole(lift, shapes.size(lift, value, 0)) // len(gates)
    return _joined(lift, [_rows(lift, value, gate * rows, (gate + 1) * rows) for gate in gates])


def _rows(lift: Builder, value: TensorValue, start: int, end: int) -> TensorValue:
    if value.shape is not None and value.shape[0] == end - start:
        return value
    bounds = [lift.constant(np.array([each], np.int64)) for each in (start, end, 0, 1)]
    return lift.emit("Slice", [value, *bounds])


def _joined(lift: Builder, values: Sequence[TensorValue]) -> TensorValue:
    return values[0] if len(values) == 1 else lift.emit("Concat", list(values), {"axis": 0})
